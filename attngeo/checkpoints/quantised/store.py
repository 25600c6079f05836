"""A TensorStore over another one, which decodes the weights that it holds in packed form."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from attngeo.bounds.machine import require_memory
from attngeo.checkpoints.quantised.bitsandbytes import Blocks, Int8Rows
from attngeo.checkpoints.quantised.floats import ModeloptFp4, PackedFp4, Scaled
from attngeo.checkpoints.quantised.ggml import Ggml
from attngeo.checkpoints.quantised.integers import Awq, CompressedIntegers, Gptq, Mlx
from attngeo.checkpoints.quantised.scheme import Packed
from attngeo.checkpoints.quantised.settings import estimate_settings, resolve_settings
from attngeo.checkpoints.store import FLOATS, TensorInfo, TensorStore, quantisation_settings, stated_quantisation
from attngeo.errors import CheckpointError, CorruptCheckpointError, UnsupportedModelError

if TYPE_CHECKING:
    from attngeo.checkpoints.opening import FileStore

# Method, as config.json states it → the forms that its weights may have; the first one that fits is taken.
METHODS: Mapping[str, tuple[type[Packed], ...]] = {
    "awq": (Awq,),
    "bitsandbytes": (Blocks, Int8Rows),
    "compressed-tensors": (PackedFp4, CompressedIntegers, Scaled),
    "fbgemm_fp8": (Scaled,),
    "fp8": (Scaled,),
    "gguf": (Ggml,),
    "gptq": (Gptq,),
    "mlx": (Mlx,),
    "modelopt": (ModeloptFp4, Scaled),
    "mxfp4": (),  # its attention is plain
    "mxfp8": (Scaled,),
}
# How the names of codes end under methods that are not decoded, so that errors name the weight that is wanted.
OTHER_CODES = (
    ".qweight", ".weight_packed", ".weight_q", ".W_q", ".codes", ".Qidxs", ".dense_weights", ".indices",
    ".weight._data",
)  # fmt: skip
# What a weight is called; its bytes at most if its numbers are needed to know its shape.
WEIGHT, MOST_SMALL = ".weight", 1 << 16


class DecodingStore(TensorStore):
    """The tensors of another store, and in place of packed weights the numbers that they stand for, in float32.

    inner: the store that is decoded. Only what is asked for is read, and where a form allows, only its rows. Scales may
    be in other files than codes. A weight that is stored as plain numbers is read as it is.
    """

    def __init__(self, inner: FileStore) -> None:
        self._inner = inner
        self.ref, self.config, self.revision, self.offline = inner.ref, inner.config, inner.revision, inner.offline
        self.folder, self.main_file, self.format = inner.folder, inner.main_file, inner.format
        self._settings, self.method = quantisation_settings(inner.config), stated_quantisation(inner.config)
        self._kinds = METHODS.get(self.method, ())
        self._found: dict[str, Packed | None] = {}
        self._small: dict[str, Tensor] = {}

    @property
    def lanes(self) -> int:
        """How many reads at once make it faster."""
        return self._inner.lanes

    @cached_property
    def _pieces(self) -> Mapping[str, dict[str, str]]:
        """Weight → end of the name → the stored tensor, for each weight that may be packed."""
        ends = {end for kind in self._kinds for names in kind.parts.values() for end in names}
        ends |= {WEIGHT} if self.method in METHODS else {WEIGHT, *OTHER_CODES}
        by_weight: dict[str, dict[str, str]] = {}
        for stored in self._inner.names:
            end = max((end for end in ends if stored.endswith(end)), key=len, default=None)
            if end is not None:
                by_weight.setdefault(stored.removesuffix(end) + WEIGHT, {})[end] = stored
        codes = {WEIGHT, *OTHER_CODES, *(end for kind in self._kinds for end in next(iter(kind.parts.values())))}
        return {name: pieces for name, pieces in by_weight.items() if codes & pieces.keys()}

    @cached_property
    def _owners(self) -> Mapping[str, str]:
        """Stored tensor → the weight that it is a part of."""
        return {stored: name for name, pieces in self._pieces.items() for stored in pieces.values()}

    @cached_property
    def names(self) -> Collection[str]:
        """The names of all tensors. A packed weight has the name that it would have without quantisation."""
        return dict.fromkeys(self._owners.get(stored, stored) for stored in self._inner.names).keys()

    def _find(self, name: str) -> Packed | None:
        """How a weight is packed; None for a tensor of plain numbers.

        Raises CorruptCheckpointError if tensors that belong to it are missing or contradict one another,
        UnsupportedModelError for a form that is not decoded.
        """
        if name not in self._found:
            self._found[name] = self._recognise(name, self._pieces[name]) if name in self._pieces else None
        return self._found[name]

    def _recognise(self, name: str, pieces: Mapping[str, str]) -> Packed | None:
        if self.method not in METHODS and pieces.keys() - {WEIGHT}:
            raise UnsupportedModelError(
                f"{self.ref}: {next(iter(pieces.values()))} is packed by {self.method}, expected one of: "
                f"{', '.join(METHODS)}; give the model without quantisation"
            )
        missing = ""
        for kind in self._kinds:
            by_role = self._sort_roles(kind, pieces)
            codes = next(iter(kind.parts))
            lacking = kind.parts.keys() - by_role.keys() - kind.optional
            infos = {role: self._inner.info(stored) for role, stored in by_role.items() if not lacking or role == codes}
            if codes in infos and infos[codes].dtype in kind.dtypes:
                if not lacking:
                    return self._decide(name, kind, infos)
                missing = missing or " or ".join(kind.parts[min(lacking)])
        # Plain numbers with scales are codes in a wrong dtype, unless scales are kept for another purpose.
        may_be_plain = len(pieces) == 1 or not self._kinds or self._settings.get("format") == "dense"
        if WEIGHT in pieces and may_be_plain and (not missing or self._inner.info(pieces[WEIGHT]).dtype in FLOATS):
            return None
        stored = pieces.get(WEIGHT) or next(iter(pieces.values()))
        problem = f"and its tensor {missing} is missing" if missing else "and not in a form that is known"
        raise CorruptCheckpointError(
            f"{self.ref}: {stored} is {self._inner.info(stored).dtype}, packed by {self.method}, {problem}; "
            "download it again"
        )

    def _sort_roles(self, kind: type[Packed], pieces: Mapping[str, str]) -> dict[str, str]:
        """Role → the stored tensor. Raises CorruptCheckpointError if a role has two."""
        by_role = {}
        for role, ends in kind.parts.items():
            stored = [pieces[end] for end in ends if end in pieces]
            if len(stored) > 1:
                raise CorruptCheckpointError(
                    f"{self.ref}: {stored[0]} and {stored[1]} are the {role} of one weight, expected one of them; "
                    "download it again"
                )
            if stored:
                by_role[role] = stored[0]
        return by_role

    def _decide(self, name: str, kind: type[Packed], infos: Mapping[str, TensorInfo]) -> Packed:
        """A weight in the form of the settings that its tensors agree with; the first error if there are none."""
        first: CheckpointError | None = None
        for settings in resolve_settings(self.method, self._settings, name.removesuffix(WEIGHT), self.ref):
            try:
                return kind(name, settings, infos, self._read_small, self.ref, self.method)
            except CheckpointError as error:
                first = first or error
        assert first is not None  # there are settings for every weight
        raise first

    def _read_small(self, stored: str) -> Tensor:
        nbytes = self._inner.info(stored).nbytes
        if nbytes > MOST_SMALL:
            raise CorruptCheckpointError(f"{self.ref}: {stored} has {nbytes:,} bytes, expected at most {MOST_SMALL:,}")
        return self._small[stored] if stored in self._small else self._inner.read(stored)

    def info(self, name: str) -> TensorInfo:
        """Shape and bytes in memory of one tensor, after decoding."""
        packed = self._find(name)
        if packed is None:
            return self._inner.info(self._plain(name))
        return TensorInfo(name, "F32", packed.shape, 4 * math.prod(packed.shape), packed=packed.format)

    def _plain(self, name: str) -> str:
        """The stored name of a tensor of plain numbers."""
        return self._pieces.get(name, {}).get(WEIGHT, name)

    def _needs(self, name: str, rows: slice) -> dict[str, slice]:
        """Stored tensor → its rows that rows of a tensor need."""
        packed = self._find(name)
        if packed is None:
            return {self._plain(name): rows}
        return {packed.infos[role].name: part for role, part in packed.needs(rows).items()}

    def fetched(self, reads: Mapping[str, slice]) -> int:
        """Bytes that `read_all` reads of the files."""
        needs = [self._needs(name, rows) for name, rows in reads.items()]
        return self._inner.fetched({key: rows for parts in needs for key, rows in parts.items()})

    def open(self, names: Iterable[str], progress: Callable[[str], None] | None = None) -> None:
        """Open the files that hold these tensors, and read what tells the shapes of packed ones, all at once."""
        names = list(names)
        stored = [part for name in names for part in self._pieces.get(name, {name: name}).values()]
        self._inner.open(stored, progress)
        ends = tuple(end for kind in self._kinds for role in kind.small for end in kind.parts[role])
        small = [part for part in stored if ends and part.endswith(ends) and part not in self._small]
        small = [part for part in small if self._inner.info(part).nbytes <= MOST_SMALL]
        self._small.update(self._inner.read_all(dict.fromkeys(small, slice(None))))

    def read_all(self, reads: Mapping[str, slice]) -> dict[str, Tensor]:
        """Int8Rows of each of these tensors. Raises CorruptCheckpointError for scales that stand for no numbers."""
        needs = {name: self._needs(name, rows) for name, rows in reads.items()}
        stored = self._inner.read_all({key: rows for parts in needs.values() for key, rows in parts.items()})
        tensors = {}
        for name, rows in reads.items():
            packed = self._find(name)
            if packed is None:
                tensors[name] = stored[self._plain(name)]
                continue
            count = len(range(packed.shape[0])[rows]) * packed.shape[1]
            require_memory(8 * count, f"{self.ref}: decoding {name}")  # the codes in bytes and the numbers
            roles = {role: stored[packed.infos[role].name] for role in packed.needs(rows)}
            tensors[name] = packed.decode(roles, rows)
        return tensors

    @property
    def total_nbytes(self) -> int | None:
        """Bytes of all tensors as they are stored."""
        return self._inner.total_nbytes

    @property
    def parameters(self) -> int | None:
        """Number of weights, in files that are not open estimated; codes count, scales do not."""
        return self._inner.count(self._count_weights)

    def _count_weights(self, info: TensorInfo) -> int:
        """The weights that a stored tensor holds."""
        if info.dtype in FLOATS and len(self._pieces.get(self._owners.get(info.name, ""), ())) < 2:
            return math.prod(info.shape)
        for kind in self._kinds:
            if info.dtype in kind.dtypes and info.name.endswith(next(iter(kind.parts.values()))):
                module = self._owners.get(info.name, info.name).removesuffix(WEIGHT)
                return kind.count(info, estimate_settings(self.method, self._settings, module))
        return 0  # scales and zeros

    def file(self, name: str) -> Path | None:
        """The path of another file of the model; see `TensorStore`."""
        return self._inner.file(name)

    def download(self, progress: Callable[[str], None]) -> None:
        """Make every file of weights a whole file on this machine."""
        self._inner.download(progress)

    def close(self) -> None:
        """Close all open files."""
        self._inner.close()
