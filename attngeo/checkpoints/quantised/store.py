"""A TensorStore over another one, which decodes packed weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from typing import NamedTuple

from torch import Tensor

from attngeo.bounds.machine import require_memory
from attngeo.checkpoints.file_store import FileStore
from attngeo.checkpoints.quantised import torchao
from attngeo.checkpoints.quantised.autoround import AutoRoundAwq, AutoRoundOthers, AutoRoundWords
from attngeo.checkpoints.quantised.bitsandbytes import Blocks, Int8Rows
from attngeo.checkpoints.quantised.fields import (
    AUTOROUND,
    AWQ,
    BITNET,
    BITSANDBYTES,
    COMPRESSED,
    EVERY,
    FLOAT8,
    GGUF,
    GPTQ,
    HQQ,
    MLX,
    MODELOPT,
    QUANTO,
    QUARK,
    SKIPPED,
    TORCHAO,
    Fields,
)
from attngeo.checkpoints.quantised.floats import ModeloptFp4, PackedFp4, Scaled
from attngeo.checkpoints.quantised.ggml import Ggml
from attngeo.checkpoints.quantised.hqq import Hqq
from attngeo.checkpoints.quantised.integers import Awq, CompressedIntegers, Gptq, Mlx
from attngeo.checkpoints.quantised.quanto import QuantoBits, QuantoBytes
from attngeo.checkpoints.quantised.quark import QuarkFloats, QuarkOthers
from attngeo.checkpoints.quantised.refused import OTHER_CODES, OTHERS
from attngeo.checkpoints.quantised.scheme import Packed
from attngeo.checkpoints.quantised.settings import (
    FIELDS_OF_SKIPPED as LISTS,
    estimate_settings,
    is_listed,
    resolve_settings,
)
from attngeo.checkpoints.quantised.ternary import RoundedTernary, Ternary
from attngeo.checkpoints.store import FLOATS, OuterStore, TensorInfo, quantization_settings, stated_quantization
from attngeo.errors import CheckpointError, CorruptCheckpointError, UnsupportedModelError, about


class Quantisation(NamedTuple):
    """A quantisation method.

    fields: the fields of its configuration. forms: the possible forms of its weights; the first that fits is used.
    """

    fields: Fields
    forms: tuple[type[Packed], ...]


AUTO_ROUND = Quantisation(EVERY | SKIPPED | AUTOROUND, (AutoRoundWords, AutoRoundAwq, AutoRoundOthers))
# Name of a method, as config.json states it → the method.
METHODS: Mapping[str, Quantisation] = {
    "auto-round": AUTO_ROUND,
    "awq": Quantisation(EVERY | SKIPPED | AWQ, (Awq,)),
    "bitnet": Quantisation(EVERY | SKIPPED | BITNET, (Ternary, RoundedTernary)),
    "bitsandbytes": Quantisation(EVERY | BITSANDBYTES, (Blocks, Int8Rows)),
    "compressed-tensors": Quantisation(EVERY | COMPRESSED, (PackedFp4, CompressedIntegers, Scaled)),
    "fbgemm_fp8": Quantisation(EVERY | SKIPPED | FLOAT8, (Scaled,)),
    "fp8": Quantisation(EVERY | SKIPPED | FLOAT8, (Scaled,)),
    "gguf": Quantisation(EVERY | GGUF, (Ggml,)),
    "gptq": Quantisation(EVERY | SKIPPED | GPTQ, (Gptq,)),
    "hqq": Quantisation(EVERY | HQQ, (Hqq,)),
    "intel/auto-round": AUTO_ROUND,
    "mlx": Quantisation(EVERY | MLX, (Mlx,)),
    "modelopt": Quantisation(EVERY | MODELOPT, (ModeloptFp4, Scaled)),
    "mxfp4": Quantisation(EVERY | SKIPPED, ()),  # its attention is plain
    "mxfp8": Quantisation(EVERY | SKIPPED | FLOAT8, (Scaled,)),
    "quanto": Quantisation(EVERY | SKIPPED | QUANTO, (QuantoBytes, QuantoBits)),
    "quark": Quantisation(EVERY | QUARK, (QuarkFloats, QuarkOthers)),
    "torchao": Quantisation(EVERY | SKIPPED | TORCHAO, (torchao.Int4, torchao.ScaledBlocks, torchao.Others)),
}
# Methods of which a weight of plain numbers is one that the running model multiplies as it is.
MIXED = ("gguf", "mlx", "mxfp4")
# How the names of codes end under any method that is decoded, and under others, so that errors name the weight.
CODES = sorted({end for method in METHODS.values() for form in method.forms for end in form.parts["codes"]})
UNKNOWN_CODES = (*CODES, *OTHER_CODES, ".weight_q")
# How the name of a weight ends.
WEIGHT = ".weight"
MATRIX = 2
# Bytes of a stored tensor at most if its numbers are needed to know the shape of a weight.
MOST_SHAPE_BYTES = 1 << 16


class DecodingStore(OuterStore):
    """The tensors of another store, with packed weights decoded to float32.

    Reads only the requested tensors, and only the requested rows if the form allows it. Scales and codes may be in
    different files. A weight of plain numbers is read as stored.

    Args:
        inner: the store to decode.
    """

    def __init__(self, inner: FileStore) -> None:
        super().__init__(inner)
        self._files = inner
        self.method = stated_quantization(inner.config)
        self._settings = quantization_settings(inner.config)
        self._forms = METHODS[self.method].forms if self.method in METHODS else ()
        self._packed: dict[str, Packed | None] = {}
        self._small: dict[str, Tensor] = {}

    @cached_property
    def _pieces(self) -> Mapping[str, dict[str, str]]:
        """Weight → end of the name → the stored tensor, for each weight that may be packed.

        So, too, for a tensor of plain numbers that is stored under another name.
        """
        code_ends = {WEIGHT, *(CODES if self.method in METHODS else UNKNOWN_CODES)}
        ends = set(code_ends)
        for form in self._forms:
            for names in form.parts.values():
                ends.update(names)
        by_weight: dict[str, dict[str, str]] = {}
        for stored in self._inner.names:
            if stored.endswith(torchao.PLAIN):
                by_weight.setdefault(stored.removesuffix(torchao.PLAIN), {})[WEIGHT] = stored
                continue
            end = max((end for end in ends if stored.endswith(end)), key=len, default=None)
            if end is not None:
                by_weight.setdefault(stored.removesuffix(end) + WEIGHT, {})[end] = stored
        return {name: pieces for name, pieces in by_weight.items() if code_ends & pieces.keys()}

    @cached_property
    def _owners(self) -> Mapping[str, str]:
        """Stored tensor → the weight that it is a part of."""
        owners = {}
        for name, pieces in self._pieces.items():
            owners.update(dict.fromkeys(pieces.values(), name))
        return owners

    @cached_property
    def names(self) -> Collection[str]:
        """The names of all tensors. A packed weight has its name from the unquantised model."""
        return dict.fromkeys(self._owners.get(stored, stored) for stored in self._inner.names).keys()

    def _find(self, name: str) -> Packed | None:
        """How a weight is packed; None for a tensor of plain numbers.

        Raises CorruptCheckpointError if tensors that belong to it are missing or contradict one another,
        UnsupportedModelError for a form that is not decoded.
        """
        if name not in self._pieces:
            return None
        if name not in self._packed:
            with about(self.ref):
                self._packed[name] = self._recognise(name, self._pieces[name])
        return self._packed[name]

    def _recognise(self, name: str, pieces: Mapping[str, str]) -> Packed | None:
        if self.method not in METHODS:
            self._require_plain(pieces)
        missing = ""
        for form in self._forms:
            by_role = self._sort_roles(form, pieces)
            codes = by_role.get("codes")
            if codes is None or self._inner.info(codes).dtype not in form.dtypes:
                continue
            infos = {role: self._inner.info(stored) for role, stored in by_role.items()}
            if not form.suits(self._settings, infos):
                continue
            lacking = form.parts.keys() - by_role.keys() - form.optional
            if not lacking:
                return self._decide(name, form, infos)
            missing = missing or " or ".join(form.parts[min(lacking)])
        # Plain numbers with scales are codes in a wrong dtype, unless scales are kept for another purpose.
        may_be_plain = len(pieces) == 1 or not self._forms or self._settings.get("format") == "dense"
        if WEIGHT in pieces and may_be_plain and (not missing or self._inner.info(pieces[WEIGHT]).dtype in FLOATS):
            return None
        stored = pieces.get(WEIGHT) or next(iter(pieces.values()))
        problem = f"but its tensor {missing} is missing" if missing else "but in an unknown form"
        raise CorruptCheckpointError(
            f"{stored} is {self._inner.info(stored).dtype}, packed by {self.method}, {problem}; "
            "copy or download it again"
        )

    def _require_plain(self, pieces: Mapping[str, str]) -> None:
        """Raise UnsupportedModelError for codes of a method that is not decoded."""
        stored = next(iter(pieces.values()))
        other = OTHERS.get(self.method)
        if other is not None and (pieces.keys() - {WEIGHT} or self._inner.info(stored).dtype not in FLOATS):
            raise UnsupportedModelError(
                f"{stored} is packed by {other.title} ({self.method}), which is not supported: {other.reason}; give "
                "the original model, or save this one without quantisation"
            )
        if pieces.keys() - {WEIGHT}:
            raise UnsupportedModelError(
                f"{stored} is packed by {self.method}, expected one of: {', '.join(METHODS)}; give the model without "
                "quantisation"
            )

    def _sort_roles(self, form: type[Packed], pieces: Mapping[str, str]) -> dict[str, str]:
        """Role → the stored tensor. Raises CorruptCheckpointError if a role has two."""
        by_role = {}
        for role, ends in form.parts.items():
            stored = [pieces[end] for end in ends if end in pieces]
            if len(stored) > 1:
                raise CorruptCheckpointError(
                    f"{stored[0]} and {stored[1]} are both the {role} of one weight, expected only one; "
                    "copy or download it again"
                )
            if stored:
                by_role[role] = stored[0]
        return by_role

    def _decide(self, name: str, form: type[Packed], infos: Mapping[str, TensorInfo]) -> Packed:
        """A weight in the form of the settings that its tensors agree with; the first error if there are none."""
        first: CheckpointError | None = None
        fields = METHODS[self.method].fields
        for settings in resolve_settings(self.method, fields, self._settings, name.removesuffix(WEIGHT)):
            try:
                return form(name, settings, infos, self._read_small, self.method)
            except CheckpointError as error:
                first = first or error
        assert first is not None  # there are settings for every weight
        raise first

    def _read_small(self, stored: str) -> Tensor:
        nbytes = self._inner.info(stored).nbytes
        if nbytes > MOST_SHAPE_BYTES:
            raise CorruptCheckpointError(f"{stored} has {nbytes:,} bytes, expected at most {MOST_SHAPE_BYTES:,}")
        return self._small[stored] if stored in self._small else self._inner.read(stored)

    def info(self, name: str) -> TensorInfo:
        """Shape and size in memory of one tensor, after decoding."""
        packed = self._find(name)
        if packed is None:
            return self._inner.info(self._plain(name))
        return TensorInfo(name, "F32", packed.shape, 4 * math.prod(packed.shape), packed=packed.format)

    def list_notes(self, names: Iterable[str]) -> list[str]:
        """A note if config.json states a quantisation of these weights, but they are stored as plain numbers.

        Some methods round plain weights whenever a layer runs, or once when a model is loaded.
        """
        names = list(names)
        notes = super().list_notes(names)
        if self.method not in MIXED and any(self._may_be_rounded(name) for name in names):
            notes.append(
                f"config.json states the quantisation {self.method!r}, but the weights are plain numbers: scored as "
                "stored, before the running model rounds them"
            )
        return notes

    def _may_be_rounded(self, name: str) -> bool:
        """Whether the configuration states that a weight of plain numbers is quantised."""
        if not name.endswith(WEIGHT) or self._find(name) is not None or len(self.info(name).shape) != MATRIX:
            return False
        if self.method not in METHODS:
            return not any(is_listed(name.removesuffix(WEIGHT), self._settings.get(field)) for field in LISTS)
        try:
            resolve_settings(self.method, METHODS[self.method].fields, self._settings, name.removesuffix(WEIGHT))
        except CorruptCheckpointError:  # it is stated as one that is not quantised
            return False
        except UnsupportedModelError:  # a field that packed weights would be refused for
            return True
        return True

    def _plain(self, name: str) -> str:
        """The stored name of a tensor of plain numbers."""
        return self._pieces.get(name, {}).get(WEIGHT, name)

    def _list_needs(self, reads: Mapping[str, slice]) -> dict[str, slice]:
        """Stored tensor → its rows that rows of these tensors need."""
        needs = {}
        for name, rows in reads.items():
            packed = self._find(name)
            if packed is None:
                needs[self._plain(name)] = rows
            else:
                for role, stored_rows in packed.needs(rows).items():
                    needs[packed.infos[role].name] = stored_rows
        return needs

    def count_nbytes(self, reads: Mapping[str, slice]) -> int:
        """Stored bytes that `read_all` would read."""
        return self._inner.count_nbytes(self._list_needs(reads))

    def open(self, names: Iterable[str], progress: Callable[[str], None] | None = None) -> None:
        """Open the files with these tensors, and read at once the small tensors that give the shapes of packed ones."""
        stored: list[str] = []
        for name in names:
            stored += self._pieces.get(name, {name: name}).values()
        self._inner.open(stored, progress)
        small_ends: list[str] = []
        for form in self._forms:
            for role in form.small:
                small_ends += form.parts[role]
        small = [tensor for tensor in stored if tensor.endswith(tuple(small_ends)) and tensor not in self._small]
        small = [tensor for tensor in small if self._inner.info(tensor).nbytes <= MOST_SHAPE_BYTES]
        self._small.update(self._inner.read_all(dict.fromkeys(small, slice(None))))

    def read_all(self, reads: Mapping[str, slice]) -> dict[str, Tensor]:
        """Rows of each of these tensors, decoded. Raises CorruptCheckpointError for scales that are not finite."""
        stored = self._inner.read_all(self._list_needs(reads))
        tensors = {}
        for name, rows in reads.items():
            packed = self._find(name)
            if packed is None:
                tensors[name] = stored[self._plain(name)]
                continue
            outputs, inputs = packed.shape
            count = len(range(outputs)[rows]) * inputs
            by_role = {role: stored[packed.infos[role].name] for role in packed.needs(rows)}
            with about(self.ref):
                require_memory(8 * count, f"decoding {name}")  # the codes in bytes and the numbers
                tensors[name] = packed.decode(by_role, rows)
        return tensors

    @property
    def parameters(self) -> int | None:
        """Number of weights, estimated for files that are not open. Counts codes, not scales."""
        return self._files.count(self._count_weights)

    def _count_weights(self, info: TensorInfo) -> int:
        """The weights that a stored tensor holds."""
        owner = self._owners.get(info.name)
        has_scales = owner is not None and len(self._pieces[owner]) > 1
        if info.dtype in FLOATS and not has_scales:
            return math.prod(info.shape)
        for form in self._forms:
            if info.dtype in form.dtypes and info.name.endswith(form.parts["codes"]):
                module = (owner or info.name).removesuffix(WEIGHT)
                return form.count(info, estimate_settings(self.method, self._settings, module))
        return 0  # scales and zeros
