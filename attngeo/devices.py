"""Devices: the one to compute on, copies of tensors to it, and the error if they do not fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from attngeo.errors import TrainingError, UsageError, first_line


def pick_device(device: str) -> torch.device:
    """The torch device of a name; "auto" is the fastest available one. Raises UsageError for an unavailable one."""
    counts = {"cpu": 1, "mps": int(torch.backends.mps.is_available()), "cuda": torch.cuda.device_count()}
    available = [kind for kind, count in counts.items() if count]
    if device == "auto":
        return torch.device(available[-1])
    kind, _, number = device.partition(":")
    if int(number or 0) >= counts[kind]:
        expected = ", ".join(available)
        raise UsageError(f"$device is {device!r}, which is not available; expected one of: auto, {expected}", "device")
    return torch.device(kind, int(number)) if number else torch.device(kind)


def usable_device(device: str) -> str:
    """The name of the device that a model was fitted on; "auto" if this machine lacks it."""
    try:
        pick_device(device)
    except UsageError:
        return "auto"
    return device


class Sent(NamedTuple):
    """Tensors by name, and the event after which they have arrived; None if they are there."""

    tensors: dict[str, Tensor]
    arrived: torch.cuda.Event | None


class Transfer:
    """Copies of tensors to a device, made while the caller and the device compute.

    A CUDA device copies pinned memory by itself, here on a stream of its own, so that a copy waits for no computation.
    For other devices nothing is copied: what computes there moves the tensors, too.
    """

    def __init__(self, device: torch.device) -> None:
        self.is_needed = device.type == "cuda"
        self._device = device
        self._stream = torch.cuda.Stream(device) if self.is_needed else None  # type: ignore[no-untyped-call]

    def send(self, tensors: dict[str, Tensor]) -> Sent:
        """Start to copy tensors from the CPU. Any thread may call this; only copying to pinned memory takes it time."""
        if self._stream is None:
            return Sent(tensors, None)
        with torch.cuda.stream(self._stream):
            copies = {name: tensor.pin_memory().to(self._device, non_blocking=True) for name, tensor in tensors.items()}
            return Sent(copies, self._stream.record_event())

    def receive(self, sent: Sent) -> dict[str, Tensor]:
        """The tensors, for the current stream of the calling thread: it waits for them, the thread does not."""
        if sent.arrived is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(sent.arrived)
            for tensor in sent.tensors.values():
                tensor.record_stream(stream)  # else its memory is free for the next copy before `stream` has read it
        return sent.tensors


@contextmanager
def explain_memory(advice: str) -> Iterator[None]:
    """Raise TrainingError for a batch that does not fit in the memory of its device. advice: what to do."""
    try:
        yield
    except RuntimeError as error:  # torch has no class of its own for the memory of a CPU
        if not any(text in str(error) for text in ("allocate memory", "not enough memory", "out of memory")):
            raise
        raise TrainingError(f"a batch does not fit into memory; {advice} ({first_line(error)})") from None
