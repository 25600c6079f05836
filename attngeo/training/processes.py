"""The processes that train one model together, by accelerate; most often one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attngeo.devices import pick_device
from attngeo.training.batches import Batch


class Processes:
    """One process, or those that `accelerate launch` started. With one, nothing is exchanged.

    device: where this process computes. is_main: whether it writes files.
    """

    def __init__(self, device: str) -> None:
        from accelerate import Accelerator

        self._accelerator: Any = Accelerator(device_placement=False)
        self._count = int(self._accelerator.num_processes)
        self.is_main = bool(self._accelerator.is_main_process)
        self.device: torch.device = self._accelerator.device if self._count > 1 else pick_device(device)

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model whose gradients are the means over the processes."""
        wrapped: nn.Module = self._accelerator.prepare(model) if self._count > 1 else model
        return wrapped

    def share(self, batch: Batch, example_dim: int) -> tuple[Batch, int]:
        """The part of a batch that this process computes, on its device, and how it counts: 1, or 0.

        A process for which a small batch has no example computes one that counts 0, since all exchange gradients.
        """
        counts = 1
        if self._count > 1:
            first = self._accelerator.process_index
            if first >= batch[0].shape[example_dim]:
                first, counts = 0, 0
            part = (slice(None),) * example_dim + (slice(first, None, self._count),)
            batch = tuple(each[part] for each in batch)
        return tuple(each.to(self.device, non_blocking=True) for each in batch), counts

    def backward(self, total: Tensor, count: Tensor) -> None:
        """The gradient of the mean loss over all processes."""
        counted = self._accelerator.reduce(count, "mean") if self._count > 1 else count
        self._accelerator.backward((total / counted).sum())

    def add(self, value: Tensor) -> Tensor:
        """The sum over processes."""
        summed: Tensor = self._accelerator.reduce(value, "sum") if self._count > 1 else value
        return summed

    def agree(self, wish: bool) -> bool:
        """Whether any process wishes it. All stop at the same step, or the others would wait for ever."""
        return bool(self.add(torch.tensor(float(wish), device=self.device)) > 0) if self._count > 1 else wish
