"""A TensorStore over another one, which adds the low-rank updates of a PEFT adapter to its weights.

LoRA: W + s·B·A, with A [rank, inputs], B [outputs, rank], s = alpha / rank, or alpha / √rank with rsLoRA. DoRA:
m·(W + s·B·A) / ‖W + s·B·A‖, by outputs. Source: https://github.com/huggingface/peft/tree/main/src/peft/tuners/lora
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from attngeo.checkpoints.reference import ADAPTER
from attngeo.checkpoints.store import FLOATS, TensorInfo, TensorStore
from attngeo.errors import CorruptCheckpointError, UnsupportedModelError

FILES = ("adapter_model.safetensors", "adapter_model.bin")
MERGE = "merge it with PEFT's merge_and_unload, and give that checkpoint"
PREFIX, WEIGHT = "base_model.model.", ".weight"
# A repetition of a repetition.
SLOW = re.compile(r"[*+}]\)*\s*[*+{]")
# What an adapter stores of a weight: role → the ends of its name.
DOWN, UP, MAGNITUDE = ".lora_A.weight", ".lora_B.weight", (".lora_magnitude_vector", ".lora_magnitude_vector.weight")


class AdapterStore:
    """The tensors of a base model, and in place of the weights that an adapter changes the changed ones, in float32.

    base: the model that the adapter was trained on. adapter: its tensors. settings: its adapter_config.json.
    Raises UnsupportedModelError for another method than LoRA and DoRA, CorruptCheckpointError if tensors are missing,
    contradict the configuration, or belong to another base.
    """

    def __init__(self, ref: str, base: TensorStore, adapter: TensorStore, settings: Mapping[str, Any]) -> None:
        self._base, self._adapter, self._settings = base, adapter, settings
        self.ref, self.config, self.revision, self.offline = ref, base.config, base.revision, base.offline
        self.folder, self.main_file, self.format = base.folder, base.main_file, f"{base.format}+lora"
        if str(settings.get("peft_type")) != "LORA":
            raise UnsupportedModelError(
                f"{ref}: an adapter of the method {settings.get('peft_type')!r:.40}, expected LORA; {MERGE}"
            )
        self._changed: dict[str, str] = {}
        self._replaced: dict[str, str] = {}
        for stored in adapter.names:
            path = stored.removeprefix(PREFIX)
            if path.endswith(UP):
                self._changed[self._find(path.removesuffix(UP) + WEIGHT, stored)] = stored.removesuffix(UP)
            elif ".lora_" not in path:  # a module that was trained whole
                self._replaced[self._find(path.replace(".modules_to_save.default", ""), stored)] = stored
            elif not path.endswith((DOWN, *MAGNITUDE)):
                raise UnsupportedModelError(f"{ref}: {stored} is no part of LoRA or DoRA; {MERGE}")

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

    @property
    def lanes(self) -> int:
        """How many reads at once make it faster."""
        return self._base.lanes

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

    def info(self, name: str) -> TensorInfo:
        """Shape and bytes in memory of one tensor."""
        info = self._base.info(name)
        if name in self._replaced:
            return self._adapter.info(self._replaced[name])
        if name not in self._changed:
            return info
        packed, dtype = f"{info.packed or info.dtype}+lora", "F32" if info.dtype in FLOATS else info.dtype
        return TensorInfo(name, dtype, info.shape, 4 * math.prod(info.shape), packed=packed)

    def fetched(self, reads: Mapping[str, slice]) -> int:
        """Bytes that `read_all` reads of the files of both."""
        own = {name for names in map(self._parts, reads) for name in names}
        base = {name: rows for name, rows in reads.items() if name not in self._replaced}
        return self._base.fetched(base) + self._adapter.fetched(dict.fromkeys(own, slice(None)))

    def _parts(self, name: str) -> list[str]:
        """The adapter's tensors that make one weight."""
        if name in self._replaced:
            return [self._replaced[name]]
        ends = (DOWN, UP, *MAGNITUDE) if name in self._changed else ()
        return [self._changed[name] + end for end in ends if self._changed[name] + end in self._adapter.names]

    def open(self, names: Iterable[str], progress: Callable[[str], None] | None = None) -> None:
        """Open the base's files that hold these tensors. Calls `progress` with each file's name."""
        self._base.open(names, progress)

    def read(self, name: str, rows: slice = slice(None)) -> Tensor:
        """One tensor, or rows of its first dimension."""
        return self.read_all({name: rows})[name]

    def read_all(self, reads: Mapping[str, slice]) -> dict[str, Tensor]:
        """Rows of each of these tensors."""
        base = self._base.read_all({name: rows for name, rows in reads.items() if name not in self._replaced})
        tensors = {}
        for name, rows in reads.items():
            if name in self._replaced:
                tensors[name] = self._adapter.read(self._replaced[name], rows)
            elif name in self._changed:
                tensors[name] = self._change(name, base.pop(name), rows)
            else:
                tensors[name] = base[name]
        return tensors

    def _change(self, name: str, weight: Tensor, rows: slice) -> Tensor:
        """Rows of a weight after its update."""
        module, shape = self._changed[name], self._base.info(name).shape
        parts = {part: self._adapter.read(part).float() for part in self._parts(name)}
        down, up = parts.get(module + DOWN), parts.get(module + UP)
        transposed = bool(self._settings.get("fan_in_fan_out"))  # as a Conv1D stores it
        outputs, inputs = shape[::-1] if transposed else shape
        if down is None or up is None or down.shape != (len(down), inputs) or up.shape != (outputs, len(down)):
            raise self._broken(
                f"{module}: A and B are {[list(part.shape) for part in (down, up) if part is not None]}, expected "
                f"[rank, {inputs}] and [{outputs}, rank]"
            )
        update = self._scale(module.removeprefix(PREFIX), len(down)) * (up @ down)
        update = update.T if transposed else update
        magnitude = next((parts[module + end] for end in MAGNITUDE if module + end in parts), None)
        changed = weight.float() + update[rows]
        if magnitude is None:
            if self._settings.get("use_dora"):
                raise self._broken(f"{module}: the magnitudes of DoRA are missing")
            return changed
        if magnitude.shape != (outputs,):
            raise self._broken(f"{module}: {len(magnitude)} magnitudes, expected {outputs}")
        if transposed:
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

    def file(self, name: str) -> Path | None:
        """The path of another file of the base."""
        return self._base.file(name)

    def download(self, progress: Callable[[str], None]) -> None:
        """Make every file of the base a whole file on this machine."""
        self._base.download(progress)

    def close(self) -> None:
        """Close all open files."""
        self._base.close()
        self._adapter.close()
