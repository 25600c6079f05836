"""A TensorStore over another one, which adds the low-rank updates of a PEFT adapter to its weights.

LoRA: W + s·B·A, with A [rank, inputs], B [outputs, rank], s = alpha / rank, or alpha / √rank with rsLoRA. DoRA:
m·(W + s·B·A) / ‖W + s·B·A‖, by outputs. Source: https://github.com/huggingface/peft/tree/main/src/peft/tuners/lora
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from attngeo.bounds.names import list_names
from attngeo.checkpoints.adapter_names import (
    PREFIX,
    UPDATE,
    WEIGHT,
    Role,
    is_found_by_peft,
    match_names,
    read_name,
    strip_wrappers,
)
from attngeo.checkpoints.adapter_settings import MERGE, LoraSettings, show_name
from attngeo.checkpoints.files import ADAPTER
from attngeo.checkpoints.store import FLOATS, OuterStore, TensorInfo, TensorStore
from attngeo.errors import CorruptCheckpointError, UnsupportedModelError, UsageError, about

# The ends of the names of the factors of an update: see `AdapterStore.read_all`.
FACTORS = (".update_out", ".update_in")


class Adapter:
    """The updates of one PEFT adapter. Errors are about the adapter.

    Args:
        ref: its name.
        base: the model that it changes.
        tensors: its own tensors.
        settings: its adapter_config.json.
        adapter_weight: factor for its updates.

    Attributes:
        transposed: weights stored as [inputs, outputs]; see `require_fit`.

    Raises:
        CorruptCheckpointError: Two of its tensors belong to the same base tensor.
    """

    def __init__(
        self, ref: str, base: TensorStore, tensors: TensorStore, settings: LoraSettings, adapter_weight: float = 1.0
    ) -> None:
        self.ref = ref
        self.tensors = tensors
        self.settings = settings
        self._base = base
        self._adapter_weight = adapter_weight
        # Tensor of the base → role → tensor of the adapter.
        self._stored: dict[str, dict[Role, str]] = defaultdict(dict)
        self._modules: dict[str, str] = {}  # weight of the base → its module in the model that was trained
        self._unmatched: dict[str, str] = {}  # tensor of the adapter → its tensor, which the base lacks
        self._lost: dict[str, str] = {}  # tensor of the base → one of the adapter for it that PEFT does not find
        self.transposed: set[str] = set()  # weights that are stored as [inputs, outputs]; see `require_fit`
        with about(ref):
            self._match_tensors()

    def _match_tensors(self) -> None:
        """Find the tensor of the base that each of its tensors belongs to."""
        bare = [stored for stored in self.tensors.names if not strip_wrappers(stored).startswith(PREFIX)]
        if bare and len(bare) < len(self.tensors.names):
            raise CorruptCheckpointError(
                f"{show_name(bare[0])} lacks the prefix {PREFIX!r} of the other tensors, so PEFT would ignore it"
            )
        used: dict[str, tuple[str, Role]] = {}
        may_be_renamed: dict[str, bool] = {}
        for stored in self.tensors.names:
            target = read_name(stored)
            if target is not None:
                name, role = target
                used[stored] = target
                is_in_layer = any(part.isdecimal() for part in name.split("."))  # as queries and keys are
                may_be_renamed[name] = role in UPDATE and is_in_layer
        matches = match_names(may_be_renamed, self._base)
        for stored, (name, role) in used.items():
            if name not in matches:
                self._unmatched[stored] = name
                continue
            in_base = matches[name]
            by_role = self._stored[in_base]
            if role == "other":
                by_role.setdefault(role, stored)
                continue
            if role in UPDATE:
                self._modules[in_base] = name.removesuffix(WEIGHT)
            is_in_file = bool(self.tensors.main_file)
            if is_in_file and (self.tensors.nested_under or not is_found_by_peft(stored, name, in_base)):
                self._lost[in_base] = stored
            # A tensor that takes the place of the base's leaves nothing to change.
            excluded = set(by_role) - {"other"} if role == "whole" else {role, "whole"}
            others = [by_role[taken] for taken in by_role if taken in excluded]
            if others:
                raise CorruptCheckpointError(
                    f"{show_name(stored)} and {show_name(others[0])} both belong to {show_name(in_base)}, expected "
                    f"only one of them; {MERGE}"
                )
            by_role[role] = stored

    def list_notes(self, names: Iterable[str]) -> list[str]:
        """How the treatment of these base tensors differs from PEFT's."""
        names = list(names)
        notes = []
        lost = [self._lost[name] for name in names if name in self._lost]
        if lost:
            nested = f" under {self.tensors.nested_under!r}" if self.tensors.nested_under else ""
            notes.append(
                f"the update of {self.ref} is added, although PEFT, which does not find {show_name(lost[0])}{nested} "
                "in this base, would skip it with a warning"
            )
        if self.settings.ignored and any(map(self.affects, names)):
            notes.append(f"{ADAPTER} has {list_names(self.settings.ignored)}, ignored here as in PEFT")
        return notes

    def affects(self, name: str) -> bool:
        """Whether the adapter changes or replaces a base tensor."""
        return name in self._stored

    def has_update(self, name: str) -> bool:
        """Whether the adapter adds an update to a base tensor."""
        return any(role in UPDATE for role in self._stored.get(name, ()))

    def find_replacement(self, name: str) -> str | None:
        """The name of the adapter tensor that replaces a base tensor; None if there is none."""
        by_role = self._stored.get(name, {})
        return by_role.get("whole") or by_role.get("base")

    def list_stored(self, names: Iterable[str]) -> dict[str, slice]:
        """The adapter tensors that change these base tensors, each with all its rows."""
        stored: list[str] = []
        for name in names:
            stored += self._stored.get(name, {}).values()
        return dict.fromkeys(stored, slice(None))

    def require_fit(self, weights: Mapping[str, bool], *, only_updates: bool) -> None:
        """Check the adapter against these base tensors. Reads only headers.

        Args:
            weights: base tensors to read → whether they are stored as [inputs, outputs], as in a Conv1D.
            only_updates: see `AdapterStore.read_all`.

        Raises:
            CorruptCheckpointError: An adapter tensor is missing, contradicts the settings or the base, or belongs to
                another base.
            UnsupportedModelError: A tensor is not part of LoRA or DoRA.
            UsageError: A weight is given for a change that is not a sum.
        """
        with about(self.ref):
            modules = {_last_part(name) for name in weights}
            for stored, name in self._unmatched.items():
                if _last_part(name) in modules:
                    raise self._explain_foreign(stored)
            for name, is_transposed in weights.items():
                if is_transposed:
                    self.transposed.add(name)
                if name in self._stored:
                    self._require_sum(name, only_updates=only_updates)
                    self._check_stored(name, is_transposed=is_transposed)

    def _require_sum(self, name: str, *, only_updates: bool) -> None:
        """Raise if what it does to a tensor is no sum, and a weight or its update alone is asked for."""
        if self.find_replacement(name) is not None:
            reason = "it was trained as a whole"
        elif self.has_update(name) and self.settings.use_dora:
            reason = "DoRA rescales every output of a weight"
        else:
            return
        if self._adapter_weight != 1:
            raise UsageError(
                f"{show_name(name)} cannot be weighted, got weight {self._adapter_weight:g}: {reason}",
                "adapter",
                subject=self.ref,
            )
        if only_updates:
            raise UnsupportedModelError(
                f"{reason}, so its update is not low-rank; score without $adapter_only",
                "adapter_only",
                subject=show_name(name),
            )

    def _explain_foreign(self, stored: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(
            f"{show_name(stored)} changes {show_name(self._unmatched[stored])}, but {self._base.ref} has no such "
            "tensor; give the base that the adapter was trained on"
        )

    def _check_stored(self, name: str, *, is_transposed: bool) -> None:
        """Raise if the dtypes or shapes of the tensors that make one of the base do not fit it."""
        by_role = self._stored[name]
        if "other" in by_role:
            raise UnsupportedModelError(f"{show_name(by_role['other'])} is not part of LoRA or DoRA; {MERGE}")
        infos = {role: self.tensors.info(stored) for role, stored in by_role.items()}
        for info in infos.values():
            if info.dtype not in FLOATS:
                raise UnsupportedModelError(
                    f"{show_name(info.name)} is stored as {info.dtype}, expected {', '.join(FLOATS)}; {MERGE}"
                )
        shape = self._base.info(name).shape
        for role in ("whole", "base"):
            if role in infos and infos[role].shape != shape:
                raise CorruptCheckpointError(
                    f"{show_name(by_role[role])} is {list(infos[role].shape)}, but {show_name(name)} of "
                    f"{self._base.ref} is {list(shape)}; give the base that the adapter was trained on"
                )
        if self.has_update(name):
            outputs, inputs = shape[::-1] if is_transposed else shape
            self._check_update(self._modules[name], infos, outputs, inputs)

    def _check_update(self, module: str, infos: Mapping[Role, TensorInfo], outputs: int, inputs: int) -> None:
        """Raise if the factors and magnitudes of an update do not fit its module or the settings."""
        factors = [infos[role].shape for role in ("A", "B") if role in infos]
        rank = factors[0][0] if factors[0] else 0
        if factors != [(rank, inputs), (outputs, rank)]:
            raise CorruptCheckpointError(
                f"A and B have shapes {[list(factor) for factor in factors]}, expected [rank, {inputs}] "
                f"and [{outputs}, rank]; give the base that the adapter was trained on",
                subject=show_name(module),
            )
        self.settings.require_target(module)
        self.settings.scale(module, rank)
        magnitudes = infos["magnitude"].shape if "magnitude" in infos else None
        expected = (outputs,) if self.settings.use_dora else None
        if magnitudes != expected:
            needed = "no DoRA magnitudes" if expected is None else f"DoRA magnitudes of shape {list(expected)}"
            found = "none" if magnitudes is None else f"shape {list(magnitudes)}"
            raise CorruptCheckpointError(
                f"use_dora is {self.settings.use_dora}, which requires {needed}, but the file has {found}; copy or "
                "download the adapter again",
                subject=show_name(module),
            )

    def require_change(self, names: Collection[str]) -> None:
        """Raise UnsupportedModelError if the adapter changes none of these tensors, which are the ones to read.

        Raises CorruptCheckpointError if it changes no tensor at all.
        """
        if any(map(self.affects, names)):
            return
        others = {_last_part(name) for name in self._stored}
        with about(self.ref):
            if not others and self._unmatched:
                raise self._explain_foreign(next(iter(self._unmatched)))
            raise UnsupportedModelError(
                f"the adapter changes {list_names(sorted(others)[:4]) or 'no weights'}, but none of the weights "
                f"read here: the result would equal that of {self._base.ref}; with $circuit ov, score and compare read "
                "values and outputs",
                "circuit",
            )

    def factors(self, name: str, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The update of a weight as a product: s·B [outputs, rank] and A [rank, inputs].

        tensors: see `list_stored`.
        """
        by_role = self._stored[name]
        down = tensors[by_role["A"]].float()
        up = tensors[by_role["B"]].float()
        with about(self.ref):
            scale = self.settings.scale(self._modules[name], len(down))
        return scale * self._adapter_weight * up, down

    def apply(self, name: str, weight: Tensor | None, rows: slice, tensors: Mapping[str, Tensor]) -> Tensor:
        """Rows of a base tensor after the adapter's change.

        Args:
            name: name of the tensor.
            weight: these rows of the base; None if the adapter replaces them.
            rows: the rows.
            tensors: see `list_stored`.
        """
        replacement = self.find_replacement(name)
        if replacement is not None:
            weight = tensors[replacement][rows]
        assert weight is not None  # what is not replaced is read
        if not self.has_update(name):
            return weight
        up, down = self.factors(name, tensors)
        update = up @ down
        if name in self.transposed:
            update = update.T
        changed = weight.float() + update[rows]
        if "magnitude" not in self._stored[name]:
            return changed
        magnitude = tensors[self._stored[name]["magnitude"]].float()  # [outputs]
        if name in self.transposed:
            return changed.mul(magnitude / changed.norm(dim=0))
        return changed.mul((magnitude[rows] / changed.norm(dim=1)).unsqueeze(1))


class AdapterStore(OuterStore):
    """The tensors of a base model, with the weights that adapters change replaced by the changed ones, in float32.

    Args:
        ref: its name.
        base: the base model.
        adapters: adapters of this base, applied in this order.
        only_updates: see `read_all`.
        may_be_idle: whether an adapter may leave queries and keys unchanged, because the user did not name it.
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
        super().__init__(base)
        self.ref = ref
        self.format = f"{base.format}+lora"
        self._adapters = adapters
        self._only_updates = only_updates
        self._may_be_idle = may_be_idle
        self._fitted: set[str] = set()

    @property
    def lanes(self) -> int:
        """Number of parallel reads that make reading faster."""
        return max(self._inner.lanes, *(adapter.tensors.lanes for adapter in self._adapters))

    def require_fit(self, weights: Mapping[str, bool]) -> None:
        """Check the adapters against base tensors; see `Adapter.require_fit`.

        Also raises UsageError if one adapter replaces a tensor that another one changes.
        """
        if isinstance(self._inner, AdapterStore):
            self._inner.require_fit(weights)
        for adapter in self._adapters:
            adapter.require_fit(weights, only_updates=self._only_updates)
        for name in weights:
            adapters = [adapter.ref for adapter in self._adapters if adapter.affects(name)]
            whole = next((adapter.ref for adapter in self._adapters if adapter.find_replacement(name)), None)
            if whole is not None and len(adapters) > 1:
                raise UsageError(
                    f"{whole} replaces {show_name(name)}, so no other adapter may change it, got "
                    f"{list_names(adapters)}; leave out all but one",
                    "adapter",
                )
        self._fitted.update(weights)

    def require_changes(self, names: Collection[str]) -> None:
        """Raise UnsupportedModelError if an adapter changes none of these tensors, such as queries and keys."""
        if isinstance(self._inner, AdapterStore):
            self._inner.require_changes(names)
        if self._may_be_idle:
            return
        for adapter in self._adapters:
            adapter.require_change(names)

    def info(self, name: str) -> TensorInfo:
        """Shape and size in memory of one tensor."""
        info = self._inner.info(name)
        adapters = [adapter for adapter in self._adapters if adapter.affects(name)]
        if any(adapter.has_update(name) for adapter in adapters):
            packed = f"{info.packed or info.dtype}+lora"
            dtype = "F32" if info.dtype in FLOATS else info.dtype
            return TensorInfo(name, dtype, info.shape, 4 * math.prod(info.shape), packed=packed)
        for adapter in reversed(adapters):
            stored = adapter.find_replacement(name)
            if stored is not None:
                return adapter.tensors.info(stored)
        return info

    def list_notes(self, names: Iterable[str]) -> list[str]:
        """Caveats about scores of these tensors; see `TensorStore`."""
        names = list(names)
        notes = super().list_notes(names)
        for adapter in self._adapters:
            notes += adapter.list_notes(names)
        return notes

    def count_nbytes(self, reads: Mapping[str, slice]) -> int:
        """Bytes that `read_all` reads from all files."""
        count = self._inner.count_nbytes(self._leave_out_replaced(reads))
        for adapter in self._adapters:
            count += adapter.tensors.count_nbytes(adapter.list_stored(reads))
        return count

    def _leave_out_replaced(self, reads: Mapping[str, slice]) -> dict[str, slice]:
        """Those of the base's tensors that no adapter replaces."""
        return {
            name: rows
            for name, rows in reads.items()
            if not any(adapter.find_replacement(name) for adapter in self._adapters)
        }

    def read_all(self, reads: Mapping[str, slice]) -> dict[str, Tensor]:
        """Rows of each of these tensors after the updates.

        With `only_updates`: the base's rows, and beside them the factors of the updates, under the tensor's name plus
        the endings in `FACTORS`: rows of the stacked s·B, [outputs, rank], transposed if the weight is; and the stacked
        A, [rank, inputs].
        """
        unfitted = {name: False for name in reads if name not in self._fitted}
        if unfitted:
            self.require_fit(unfitted)
        changed = self._inner.read_all(self._leave_out_replaced(reads))
        factors: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for adapter in self._adapters:
            stored = adapter.tensors.read_all(adapter.list_stored(reads))
            for name, rows in reads.items():
                if adapter.has_update(name) and self._only_updates:
                    up, down = adapter.factors(name, stored)
                    factors[name].append((up.T if name in adapter.transposed else up[rows], down))
                elif adapter.affects(name):
                    changed[name] = adapter.apply(name, changed.get(name), rows, stored)
        tensors = {name: changed[name] for name in reads}
        for name, pairs in factors.items():
            ups, downs = zip(*pairs, strict=True)
            is_transposed = name in self._adapters[0].transposed
            tensors[name + FACTORS[0]] = torch.cat(ups, 0 if is_transposed else 1)
            tensors[name + FACTORS[1]] = torch.cat(downs)
        return tensors

    def close(self) -> None:
        """Close all open files."""
        super().close()
        for adapter in self._adapters:
            adapter.tensors.close()


def _last_part(name: str) -> str:
    """The last part of the name of the module of a tensor: "q_proj" of "layers.0.q_proj.weight"."""
    return name.rpartition(".")[0].rpartition(".")[2]
