"""A TensorStore over another one, which adds the low-rank updates of a PEFT adapter to its weights.

LoRA: W + s·B·A, with A [rank, inputs], B [outputs, rank], s = alpha / rank, or alpha / √rank with rsLoRA. DoRA:
m·(W + s·B·A) / ‖W + s·B·A‖, by outputs. Source: https://github.com/huggingface/peft/tree/main/src/peft/tuners/lora
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from attngeo.bounds.names import list_names
from attngeo.checkpoints.adapter_settings import MERGE, LoraSettings, show_name
from attngeo.checkpoints.store import FLOATS, TensorInfo, TensorStore
from attngeo.errors import CorruptCheckpointError, UnsupportedModelError, UsageError

PREFIX, WEIGHT = "base_model.model.", ".weight"
# The ends of the names of the factors of an update: see `AdapterStore.read_all`.
FACTORS = (".update_out", ".update_in")
# What a tensor of an adapter is to the tensor of the base that it belongs to. "whole" and "base" take its place; "base"
# is changed by the update of the same module. "other" changes it in a way that is not computed here.
Role = Literal["A", "B", "magnitude", "whole", "base", "other"]
UPDATE: tuple[Role, ...] = ("A", "B", "magnitude")
# A parameter of an update, of any method; what comes after it, without the adapter's name, → its role.
PARAMETER = re.compile(r"(.+?)\.lora_(.+)", re.DOTALL)
PARAMETERS: dict[str, Role] = {
    "A.weight": "A", "B.weight": "B", "magnitude_vector": "magnitude", "magnitude_vector.weight": "magnitude",
}  # fmt: skip
# PEFT's name of an adapter that has no other. A whole state_dict has it in the names of parameters.
DEFAULT_ADAPTER = ".default"
# The most parts of a name that are left out one after the other.
MOST_PARTS = 50


def _read_name(stored: str) -> tuple[str, Role] | None:
    """The tensor of the base that a tensor of an adapter belongs to, and its role; None if it is not used.

    >>> _read_name("base_model.model.layers.0.q_proj.lora_A.weight")
    ('layers.0.q_proj.weight', 'A')
    """
    path = stored.removeprefix(PREFIX)
    parameter = PARAMETER.fullmatch(path)
    if parameter is not None:
        module, rest = parameter.groups()
        role = PARAMETERS.get(rest.replace(DEFAULT_ADAPTER, ""), "other")
        if module.endswith(".base_layer"):  # two updates, one around the other
            role = "other"
        return module.removesuffix(".base_layer") + WEIGHT, role
    if ".original_module." in path:  # what modules_to_save has taken the place of
        return None
    if ".token_adapter." in path:
        return path.partition(".token_adapter.")[0] + WEIGHT, "other"
    path = path.replace(f".modules_to_save{DEFAULT_ADAPTER}", "")
    return path.replace(".base_layer.", "."), "base" if path.endswith(f".base_layer{WEIGHT}") else "whole"


class Adapter:
    """The updates of one adapter of PEFT.

    ref: its name. base: the model that it was trained on. tensors: its own. settings: its adapter_config.json. weight:
    what its updates are multiplied by.
    Raises CorruptCheckpointError if two of its tensors belong to one of the base.
    """

    def __init__(
        self, ref: str, base: TensorStore, tensors: TensorStore, settings: LoraSettings, weight: float = 1.0
    ) -> None:
        self.ref, self.tensors, self.settings = ref, tensors, settings
        self._base, self._weight = base, weight
        self._parts: dict[str, dict[Role, str]] = defaultdict(dict)  # tensor of the base → role → tensor of the adapter
        self._unmatched: list[str] = []  # tensors of the adapter whose tensor the base lacks
        self._transposed: set[str] = set()
        bare = next((stored for stored in tensors.names if not stored.startswith(PREFIX)), None)
        if bare is not None and any(stored.startswith(PREFIX) for stored in tensors.names):
            raise self._broken(
                f"{show_name(bare)} has no {PREFIX!r} in front, as other tensors have, so that PEFT leaves it out"
            )
        places = {stored: place for stored in tensors.names if (place := _read_name(stored)) is not None}
        found = match_names({name: role in UPDATE and _is_in_layer(name) for name, role in places.values()}, base)
        for stored, (name, role) in places.items():
            own = found.get(name)
            if own is None:
                self._unmatched.append(stored)
            else:
                self._add(own, role, stored)

    def _add(self, own: str, role: Role, stored: str) -> None:
        """Add a tensor of the adapter to those of a tensor of the base."""
        parts = self._parts[own]
        if role == "other":
            parts.setdefault(role, stored)
            return
        # A tensor that takes the place of the base's leaves nothing to change.
        excluded = set(parts) - {"other"} if role == "whole" else {role, "whole"}
        others = [parts[taken] for taken in parts if taken in excluded]
        if others:
            raise self._broken(
                f"{show_name(stored)} and {show_name(others[0])} belong to {show_name(own)} both, expected "
                f"one of them; {MERGE}"
            )
        parts[role] = stored

    def _broken(self, problem: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(f"{self.ref}: {problem}")

    def has(self, name: str) -> bool:
        """Whether it changes or replaces a tensor of the base."""
        return name in self._parts

    def changes(self, name: str) -> bool:
        """Whether it adds an update to a tensor of the base."""
        return any(role in UPDATE for role in self._parts.get(name, ()))

    def replaces(self, name: str) -> str | None:
        """The name of its tensor that takes the place of one of the base; None if there is none."""
        parts = self._parts.get(name, {})
        return parts.get("whole") or parts.get("base")

    def list_parts(self, name: str) -> list[str]:
        """Its tensors that make one of the base."""
        return list(self._parts.get(name, {}).values())

    def require_fit(self, weights: Mapping[str, bool], *, only_updates: bool) -> None:
        """Check what it says about these tensors of the base, by headers alone.

        weights: tensors of the base that are read → whether they are stored as [inputs, outputs], as a Conv1D stores
        them. only_updates: see `AdapterStore.read_all`.
        Raises CorruptCheckpointError if a tensor of the adapter is missing, contradicts the settings or the base, or
        belongs to another base; UnsupportedModelError if it is no part of LoRA or DoRA; UsageError for a weight of what
        is no sum.
        """
        modules = {_last_part(name) for name in weights}
        unmatched = next((name for name in self._unmatched if _module_of(name) in modules), None)
        if unmatched is not None:
            raise self._foreign(unmatched)
        for name, is_transposed in weights.items():
            if is_transposed:
                self._transposed.add(name)
            if name in self._parts:
                self._require_sum(name, only_updates=only_updates)
                self._check_parts(name, is_transposed=is_transposed)

    def _require_sum(self, name: str, *, only_updates: bool) -> None:
        """Raise if what it does to a tensor is no sum, and a weight or its update alone is asked for."""
        if self.replaces(name) is not None:
            why = "it was trained whole"
        elif self.changes(name) and self.settings.use_dora:
            why = "DoRA scales every output of a weight"
        else:
            return
        if self._weight != 1:
            raise UsageError(f"{self.ref}: {show_name(name)} takes no weight, got {self._weight:g}: {why}", "adapter")
        if only_updates:
            raise UnsupportedModelError(
                f"{self.ref}: {show_name(name)}: {why}, so its update has no low rank; score without $adapter_only",
                "adapter_only",
            )

    def _foreign(self, stored: str) -> CorruptCheckpointError:
        place = _read_name(stored)
        assert place is not None  # it was matched before
        return self._broken(
            f"{show_name(stored)} changes {show_name(place[0])}, and {self._base.ref} has no such tensor; "
            "give its own base"
        )

    def _check_parts(self, name: str, *, is_transposed: bool) -> None:
        parts = self._parts[name]
        if "other" in parts:
            raise UnsupportedModelError(f"{self.ref}: {show_name(parts['other'])} is no part of LoRA or DoRA; {MERGE}")
        infos = {role: self.tensors.info(stored) for role, stored in parts.items()}
        for info in infos.values():
            if info.dtype not in FLOATS:
                raise UnsupportedModelError(
                    f"{self.ref}: {show_name(info.name)} is stored as {info.dtype}, expected "
                    f"{', '.join(FLOATS)}; {MERGE}"
                )
        shape = self._base.info(name).shape
        for role in ("whole", "base"):
            if role in infos and infos[role].shape != shape:
                raise self._broken(
                    f"{show_name(parts[role])} is {list(infos[role].shape)}, and {show_name(name)} of "
                    f"{self._base.ref} is {list(shape)}; "
                    "give its own base"
                )
        if not self.changes(name):
            return
        module = self._module(name)
        outputs, inputs = shape[::-1] if is_transposed else shape
        factors = [infos[role].shape for role in ("A", "B") if role in infos]
        rank = factors[0][0] if factors[0] else 0
        if factors != [(rank, inputs), (outputs, rank)]:
            raise self._broken(
                f"{show_name(module)}: A and B are {[list(factor) for factor in factors]}, expected "
                f"[rank, {inputs}] and [{outputs}, rank]; give the base that the adapter was trained on"
            )
        self.settings.require_target(module)
        self.settings.scale(module, rank)
        if ("magnitude" in parts) != self.settings.use_dora:
            raise self._broken(
                f"{show_name(module)}: use_dora is {self.settings.use_dora}, and the magnitudes of DoRA are "
                f"{'there' if 'magnitude' in parts else 'missing'}"
            )
        if "magnitude" in parts and infos["magnitude"].shape != (outputs,):
            raise self._broken(
                f"{show_name(module)}: {list(infos['magnitude'].shape)} magnitudes, expected [{outputs}]"
            )

    def _module(self, name: str) -> str:
        """The name of the module of a weight of the base in the model that was trained."""
        stored = next(stored for role, stored in self._parts[name].items() if role in UPDATE)
        parameter = PARAMETER.fullmatch(stored.removeprefix(PREFIX))
        assert parameter is not None  # its role comes from that
        return parameter[1]

    def require_change(self, names: Collection[str]) -> None:
        """Raise UnsupportedModelError if it changes none of these tensors, those of queries and keys.

        Raises CorruptCheckpointError if it changes none at all.
        """
        if any(map(self.has, names)):
            return
        others = {_last_part(name) for name in self._parts}
        if not others and self._unmatched:
            raise self._foreign(self._unmatched[0])
        raise UnsupportedModelError(
            f"{self.ref}: the adapter changes no queries or keys, but {list_names(sorted(others)[:4]) or 'nothing'}; "
            f"score {self._base.ref} alone"
        )

    def is_transposed(self, name: str) -> bool:
        """Whether a weight is stored as [inputs, outputs]; see `require_fit`."""
        return name in self._transposed

    def factors(self, name: str, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The update of a weight as a product: s·B [outputs, rank] and A [rank, inputs].

        tensors: see `list_parts`.
        """
        parts = self._parts[name]
        down, up = tensors[parts["A"]].float(), tensors[parts["B"]].float()
        return self.settings.scale(self._module(name), len(down)) * self._weight * up, down

    def change(self, name: str, weight: Tensor | None, rows: slice, tensors: Mapping[str, Tensor]) -> Tensor:
        """Rows of a tensor of the base as the adapter has them.

        weight: these rows of the base; None if the adapter replaces them. tensors: see `list_parts`.
        """
        replaced = self.replaces(name)
        if replaced is not None:
            weight = tensors[replaced][rows]
        assert weight is not None  # what is not replaced is read
        if not self.changes(name):
            return weight
        up, down = self.factors(name, tensors)
        update = (up @ down).T if self.is_transposed(name) else up @ down
        changed = weight.float() + update[rows]
        if "magnitude" not in self._parts[name]:
            return changed
        magnitude = tensors[self._parts[name]["magnitude"]].float()
        if self.is_transposed(name):
            return changed.mul(magnitude / changed.norm(dim=0))
        return changed.mul((magnitude[rows] / changed.norm(dim=1)).unsqueeze(1))


class AdapterStore(TensorStore):
    """The tensors of a base model, and in place of the weights that adapters change the changed ones, in float32.

    ref: its name. adapters: of this base; they change its weights one after the other. only_updates: see `read_all`.
    may_be_idle: whether an adapter need not change queries or keys, as one that nobody named.
    """

    def __init__(
        self,
        ref: str,
        base: TensorStore,
        adapters: Sequence[Adapter],
        *,
        only_updates: bool = False,
        may_be_idle: bool = False,
    ) -> None:
        self._base, self._adapters = base, adapters
        self._only_updates, self._may_be_idle = only_updates, may_be_idle
        self.ref, self.config, self.revision, self.offline = ref, base.config, base.revision, base.offline
        self.folder, self.main_file, self.format = base.folder, base.main_file, f"{base.format}+lora"
        self._fitted: set[str] = set()

    @property
    def lanes(self) -> int:
        """How many reads at once make it faster."""
        return max(store.lanes for store in (self._base, *(adapter.tensors for adapter in self._adapters)))

    @property
    def names(self) -> Collection[str]:
        """The names of the base's tensors."""
        return self._base.names

    @property
    def total_nbytes(self) -> int | None:
        """Bytes of the base's tensors as they are stored."""
        return self._base.total_nbytes

    @property
    def parameters(self) -> int | None:
        """Number of the base's weights; a merged adapter has no more."""
        return self._base.parameters

    def require_fit(self, weights: Mapping[str, bool]) -> None:
        """Check what the adapters say about tensors of the base; see `Adapter.require_fit`.

        Raises UsageError also if one adapter replaces what another one changes.
        """
        if isinstance(self._base, AdapterStore):
            self._base.require_fit(weights)
        for adapter in self._adapters:
            adapter.require_fit(weights, only_updates=self._only_updates)
        for name in weights:
            adapters = [adapter.ref for adapter in self._adapters if adapter.has(name)]
            whole = next((adapter.ref for adapter in self._adapters if adapter.replaces(name)), None)
            if whole is not None and len(adapters) > 1:
                raise UsageError(
                    f"{whole} replaces {show_name(name)}, which {list_names(adapters)} change, expected one adapter "
                    "that does; leave out the other one",
                    "adapter",
                )
        self._fitted.update(weights)

    def require_changes(self, names: Collection[str]) -> None:
        """Raise UnsupportedModelError if an adapter changes none of these tensors, those of queries and keys."""
        if isinstance(self._base, AdapterStore):
            self._base.require_changes(names)
        for adapter in () if self._may_be_idle else self._adapters:
            adapter.require_change(names)

    def info(self, name: str) -> TensorInfo:
        """Shape and bytes in memory of one tensor."""
        info = self._base.info(name)
        adapters = [adapter for adapter in self._adapters if adapter.has(name)]
        if any(adapter.changes(name) for adapter in adapters):
            packed, dtype = f"{info.packed or info.dtype}+lora", "F32" if info.dtype in FLOATS else info.dtype
            return TensorInfo(name, dtype, info.shape, 4 * math.prod(info.shape), packed=packed)
        replaced = [(adapter, stored) for adapter in adapters if (stored := adapter.replaces(name)) is not None]
        if not replaced:
            return info
        adapter, stored = replaced[-1]
        return adapter.tensors.info(stored)

    def fetched(self, reads: Mapping[str, slice]) -> int:
        """Bytes that `read_all` reads of the files of all."""
        adapters = [(adapter.tensors, _all_parts(adapter, reads)) for adapter in self._adapters]
        return self._base.fetched(self._of_base(reads)) + sum(tensors.fetched(parts) for tensors, parts in adapters)

    def _of_base(self, reads: Mapping[str, slice]) -> dict[str, slice]:
        """Those of the base's tensors that no adapter replaces."""
        return {
            name: rows for name, rows in reads.items() if not any(adapter.replaces(name) for adapter in self._adapters)
        }

    def open(self, names: Iterable[str], progress: Callable[[str], None] | None = None) -> None:
        """Open the base's files that hold these tensors. Calls `progress` with each file's name."""
        self._base.open(names, progress)

    def read_all(self, reads: Mapping[str, slice]) -> dict[str, Tensor]:
        """Rows of each of these tensors after the updates.

        If updates alone are asked for: as the base has them, and beside them the factors of each update, under the
        tensor's name and an ending of `FACTORS`: rows of the sum of s·B, [outputs, rank], or its transpose if the
        weight is one; and A, [rank, inputs].
        """
        unfitted = {name: False for name in reads if name not in self._fitted}
        if unfitted:
            self.require_fit(unfitted)
        base = self._base.read_all(self._of_base(reads))
        factors: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for adapter in self._adapters:
            parts = adapter.tensors.read_all(_all_parts(adapter, reads))
            for name, rows in reads.items():
                if adapter.changes(name) and self._only_updates:
                    up, down = adapter.factors(name, parts)
                    factors[name].append((up.T if adapter.is_transposed(name) else up[rows], down))
                elif adapter.has(name):
                    base[name] = adapter.change(name, base.get(name), rows, parts)
        tensors = {name: base[name] for name in reads}
        for name, pairs in factors.items():
            ups, downs = zip(*pairs, strict=True)
            is_transposed = self._adapters[0].is_transposed(name)
            tensors[name + FACTORS[0]] = torch.cat(ups, 0 if is_transposed else 1)
            tensors[name + FACTORS[1]] = torch.cat(downs)
        return tensors

    def file(self, name: str) -> Path | None:
        """The path of another file of the base."""
        return self._base.file(name)

    def download(self, progress: Callable[[str], None]) -> None:
        """Make every file of the base a whole file on this machine."""
        self._base.download(progress)

    def close(self) -> None:
        """Close all open files."""
        for store in (self._base, *(adapter.tensors for adapter in self._adapters)):
            store.close()


def _all_parts(adapter: Adapter, reads: Mapping[str, slice]) -> dict[str, slice]:
    """The adapter's tensors that make these of the base."""
    return {part: slice(None) for name in reads for part in adapter.list_parts(name)}


def _last_part(name: str) -> str:
    """The last part of the name of the module of a tensor: "q_proj" of "layers.0.q_proj.weight"."""
    return name.rpartition(".")[0].rpartition(".")[2]


def _is_in_layer(name: str) -> bool:
    """Whether a tensor is in a numbered layer, as those of queries and keys are."""
    return any(part.isdecimal() for part in name.split("."))


def _module_of(stored: str) -> str:
    """The same of a tensor of an adapter."""
    place = _read_name(stored)
    return "" if place is None else _last_part(place[0])


def match_names(names: Mapping[str, bool], base: TensorStore) -> dict[str, str]:
    """Names of tensors of the model that an adapter was trained on → the base's name of each one that it has.

    The base's name is the same; or the only one that ends so, or that this one ends so, as a model without a head has
    shorter names; or the one that transformers renames to it.
    names: → whether transformers is asked for its renaming, which takes seconds, if the base has no such name.
    """
    matches = {name: [end for end in _list_ends(name) if end in base.names] for name in names if name not in base.names}
    for own in base.names if matches else ():
        for end in _list_ends(own):
            if end in matches:
                matches[end].append(own)
    found = {name: name for name in names if name not in matches}
    found |= {name: owns[0] for name, owns in matches.items() if len(owns) == 1}
    missing = [name for name in names if name not in found]
    if not any(names[name] for name in missing):
        return found
    from attngeo.checkpoints.renaming import find_renaming  # loads transformers, which scoring needs for nothing else

    renaming = find_renaming(base.config, base.names)
    if renaming is not None:
        renamed = {renaming(own): own for own in base.names}
        for name in missing:
            in_base = renamed.get(name) or renamed.get(renaming(name))
            if in_base is not None:
                found[name] = in_base
    return found


def _list_ends(name: str) -> list[str]:
    """What a name is without its first parts: "b.c" and "c" of "a.b.c"; nothing of one with more parts than names have.

    The last part alone, such as "weight", is in most names, and never a name.
    """
    parts = name.split(".")
    return [".".join(parts[first:]) for first in range(1, len(parts))] if len(parts) <= MOST_PARTS else []
