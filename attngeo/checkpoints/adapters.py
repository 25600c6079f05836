"""A TensorStore over another one, which adds the low-rank updates of a PEFT adapter to its weights.

LoRA: W + s·B·A, with A [rank, inputs], B [outputs, rank], s = alpha / rank, or alpha / √rank with rsLoRA. DoRA:
m·(W + s·B·A) / ‖W + s·B·A‖, by outputs. Source: https://github.com/huggingface/peft/tree/main/src/peft/tuners/lora
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attngeo.checkpoints.reference import ADAPTER
from attngeo.checkpoints.store import FLOATS, TensorInfo, TensorStore
from attngeo.errors import CorruptCheckpointError, UnsupportedModelError, UsageError

MERGE = "merge it with PEFT's merge_and_unload, and give that checkpoint"
PREFIX, WEIGHT = "base_model.model.", ".weight"
# A repetition of a repetition.
SLOW = re.compile(r"[*+}]\)*\s*[*+{]")
# How the names of initialisations begin that subtract what they start with from the base.
CHANGES_BASE = ("pissa", "olora", "corda", "loftq")
# The ends of the names of the factors of an update: see `AdapterStore.read_all`.
FACTORS = (".update_out", ".update_in")
# What an adapter stores of a weight: role → the ends of its name.
DOWN, UP, MAGNITUDE = ".lora_A.weight", ".lora_B.weight", (".lora_magnitude_vector", ".lora_magnitude_vector.weight")


class Adapter:
    """The updates of one adapter of PEFT.

    ref: its name. base: the model that it was trained on. tensors: its own. settings: its adapter_config.json. weight:
    what its updates are multiplied by. replaced: name of a tensor of the base → that of the adapter's in its place.
    Raises UnsupportedModelError for another method than LoRA and DoRA, CorruptCheckpointError if tensors are missing,
    contradict the configuration, or belong to another base, UsageError for a weight of what is no sum.
    """

    def __init__(
        self, ref: str, base: TensorStore, tensors: TensorStore, settings: Mapping[str, Any], weight: float = 1.0
    ) -> None:
        self.ref, self.tensors = ref, tensors
        self._base, self._settings, self._weight = base, settings, weight
        if str(settings.get("peft_type")) != "LORA":
            raise UnsupportedModelError(
                f"{ref}: an adapter of the method {settings.get('peft_type')!r:.40}, expected LORA; {MERGE}"
            )
        if str(settings.get("init_lora_weights")).startswith(CHANGES_BASE):
            raise UnsupportedModelError(
                f"{ref}: {settings['init_lora_weights']!r:.40} has changed the weights of the base as well; {MERGE}"
            )
        self._changed: dict[str, str] = {}
        self.replaced: dict[str, str] = {}
        for stored in tensors.names:
            path = stored.removeprefix(PREFIX)
            if path.endswith(UP):
                self._changed[self._find(path.removesuffix(UP) + WEIGHT, stored)] = stored.removesuffix(UP)
            elif ".lora_" not in path:  # a module that was trained whole
                self.replaced[self._find(path.replace(".modules_to_save.default", ""), stored)] = stored
            elif not path.endswith((DOWN, *MAGNITUDE)):
                raise UnsupportedModelError(f"{ref}: {stored} is no part of LoRA or DoRA; {MERGE}")
        self.is_sum = not settings.get("use_dora") and not any(name.endswith(MAGNITUDE) for name in tensors.names)
        if weight != 1 and (self.replaced or not self.is_sum):
            raise UsageError(
                f"{ref}: DoRA and modules that were trained whole take no weight, got {weight:g}", "adapter"
            )

    def _find(self, name: str, stored: str) -> str:
        """The base's name of a weight: the same, or the only one that ends so."""
        if name in self._base.names:
            return name
        ending = [other for other in self._base.names if other.endswith(f".{name}") or name.endswith(f".{other}")]
        if len(ending) != 1:
            raise self._broken(f"{stored} changes {name}, and {self._base.ref} has no such tensor; give its own base")
        return ending[0]

    def _broken(self, problem: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(f"{self.ref}: {problem}")

    def has(self, name: str) -> bool:
        """Whether it changes or replaces a tensor of the base."""
        return name in self._changed or name in self.replaced

    def list_parts(self, name: str) -> list[str]:
        """Its tensors that make one of the base."""
        if name in self.replaced:
            return [self.replaced[name]]
        ends = (DOWN, UP, *MAGNITUDE) if name in self._changed else ()
        return [self._changed[name] + end for end in ends if self._changed[name] + end in self.tensors.names]

    def factors(self, name: str, parts: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The update of a weight as a product: s·B [outputs, rank] and A [rank, inputs]. parts: see `list_parts`."""
        module, shape = self._changed[name], self._base.info(name).shape
        down, up = parts.get(module + DOWN), parts.get(module + UP)
        outputs, inputs = shape[::-1] if self.is_transposed else shape
        if down is None or up is None or down.shape != (len(down), inputs) or up.shape != (outputs, len(down)):
            raise self._broken(
                f"{module}: A and B are {[list(part.shape) for part in (down, up) if part is not None]}, expected "
                f"[rank, {inputs}] and [{outputs}, rank]; give the base that the adapter was trained on"
            )
        return self._scale(module.removeprefix(PREFIX), len(down)) * self._weight * up.float(), down.float()

    @property
    def is_transposed(self) -> bool:
        """Whether the weights are stored as [inputs, outputs], as a Conv1D stores them."""
        return bool(self._settings.get("fan_in_fan_out"))

    def change(self, name: str, weight: Tensor, rows: slice, parts: Mapping[str, Tensor]) -> Tensor:
        """Rows of a weight of the base after its update."""
        up, down = self.factors(name, parts)
        update = (up @ down).T if self.is_transposed else up @ down
        module = self._changed[name]
        magnitude = next((parts[module + end].float() for end in MAGNITUDE if module + end in parts), None)
        changed = weight.float() + update[rows]
        if magnitude is None:
            if self._settings.get("use_dora"):
                raise self._broken(f"{module}: the magnitudes of DoRA are missing")
            return changed
        if magnitude.shape != (len(up),):
            raise self._broken(f"{module}: {len(magnitude)} magnitudes, expected {len(up)}")
        if self.is_transposed:
            return changed.mul(magnitude / changed.norm(dim=0))
        return changed.mul((magnitude[rows] / changed.norm(dim=1)).unsqueeze(1))

    def _scale(self, module: str, rank: int) -> float:
        """What the product is multiplied by. Raises CorruptCheckpointError if the rank is not the stated one."""
        stated = self._stated("rank_pattern", module, "r")
        alpha = self._stated("alpha_pattern", module, "lora_alpha")
        if stated != rank or not isinstance(alpha, int | float) or isinstance(alpha, bool) or not math.isfinite(alpha):
            raise self._broken(
                f"{module}: rank {rank}, and {ADAPTER} states r = {stated!r:.20}, lora_alpha = {alpha!r:.20}"
            )
        return alpha / (math.sqrt(rank) if self._settings.get("use_rslora") else rank)

    def _stated(self, pattern: str, module: str, usual: str) -> Any:
        """A number of a module: the first pattern that fits, or that of all modules."""
        patterns = self._settings.get(pattern)
        for key, value in patterns.items() if isinstance(patterns, Mapping) else ():
            if SLOW.search(key):
                raise self._broken(f"{ADAPTER} has the pattern {key!r:.60}, whose search may not end")
            with suppress(re.error):
                if re.match(rf"(.*\.)?({key})$", module):
                    return value
        return self._settings.get(usual)


class AdapterStore(TensorStore):
    """The tensors of a base model, and in place of the weights that adapters change the changed ones, in float32.

    ref: its name. adapters: of this base; they change its weights one after the other. only_updates: see `read_all`.
    Raises UnsupportedModelError if updates alone are asked for and an adapter is not their sum.
    """

    def __init__(self, ref: str, base: TensorStore, adapters: Sequence[Adapter], *, only_updates: bool = False) -> None:
        self._base, self._adapters, self._only_updates = base, adapters, only_updates
        self.ref, self.config, self.revision, self.offline = ref, base.config, base.revision, base.offline
        self.folder, self.main_file, self.format = base.folder, base.main_file, f"{base.format}+lora"
        unfit = next((adapter.ref for adapter in adapters if only_updates and not adapter.is_sum), None)
        if unfit is not None:
            raise UnsupportedModelError(
                f"{unfit}: DoRA scales every output of a weight, so its update has no low rank; score without "
                "$adapter_only",
                "adapter_only",
            )

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

    def require_updates(self, names: Collection[str]) -> None:
        """Raise UnsupportedModelError if an adapter changes none of these tensors, those of queries and keys.

        Also if updates alone are asked for, and one of them is replaced as a whole.
        """
        for adapter in self._adapters:
            if not any(map(adapter.has, names)):
                others = {
                    name.removesuffix(WEIGHT).rpartition(".")[2] for name in self._base.names if adapter.has(name)
                }
                raise UnsupportedModelError(
                    f"{adapter.ref}: the adapter changes no queries or keys, but {', '.join(sorted(others)[:4])}; "
                    f"score {self._base.ref} alone"
                )
            whole = next((name for name in names if name in adapter.replaced), None)
            if self._only_updates and whole is not None:
                raise UnsupportedModelError(
                    f"{adapter.ref}: {whole} was trained whole, so its update has no low rank; score without "
                    "$adapter_only",
                    "adapter_only",
                )

    def info(self, name: str) -> TensorInfo:
        """Shape and bytes in memory of one tensor."""
        info, adapters = self._base.info(name), [adapter for adapter in self._adapters if adapter.has(name)]
        if not adapters:
            return info
        if name in (replaced := adapters[-1].replaced):
            return adapters[-1].tensors.info(replaced[name])
        packed, dtype = f"{info.packed or info.dtype}+lora", "F32" if info.dtype in FLOATS else info.dtype
        return TensorInfo(name, dtype, info.shape, 4 * math.prod(info.shape), packed=packed)

    def fetched(self, reads: Mapping[str, slice]) -> int:
        """Bytes that `read_all` reads of the files of all."""
        adapters = [(adapter.tensors, _all_parts(adapter, reads)) for adapter in self._adapters]
        return self._base.fetched(self._of_base(reads)) + sum(tensors.fetched(parts) for tensors, parts in adapters)

    def _of_base(self, reads: Mapping[str, slice]) -> dict[str, slice]:
        replaced = {name for adapter in self._adapters for name in adapter.replaced}
        return {name: rows for name, rows in reads.items() if name not in replaced}

    def open(self, names: Iterable[str], progress: Callable[[str], None] | None = None) -> None:
        """Open the base's files that hold these tensors. Calls `progress` with each file's name."""
        self._base.open(names, progress)

    def read_all(self, reads: Mapping[str, slice]) -> dict[str, Tensor]:
        """Rows of each of these tensors after the updates.

        If updates alone are asked for: as the base has them, and beside them the factors of each update, under the
        tensor's name and an ending of `FACTORS`: rows of the sum of s·B, [outputs, rank], or its transpose if the
        weight is one; and A, [rank, inputs].
        """
        base = self._base.read_all(self._of_base(reads))
        factors: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for adapter in self._adapters:
            parts = adapter.tensors.read_all(_all_parts(adapter, reads))
            for name, rows in reads.items():
                if name in adapter.replaced:
                    base[name] = parts[adapter.replaced[name]][rows]
                elif adapter.has(name) and self._only_updates:
                    up, down = adapter.factors(name, parts)
                    factors[name].append((up if adapter.is_transposed else up[rows], down))
                elif adapter.has(name):
                    base[name] = adapter.change(name, base[name], rows, parts)
        tensors = {name: base[name] for name in reads}
        for name, pairs in factors.items():
            ups, downs = zip(*pairs, strict=True)
            out = torch.cat(ups, 1).T if self._adapters[0].is_transposed else torch.cat(ups, 1)
            tensors |= {name + FACTORS[0]: out, name + FACTORS[1]: torch.cat(downs)}
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
