"""The device to compute on."""

from __future__ import annotations

import torch

from attngeo.errors import UsageError

FASTEST_FIRST = ("cuda", "mps", "cpu")


def pick_device(device: str) -> torch.device:
    """The torch device of a name; "auto" is the fastest available one. Raises UsageError for an unavailable one."""
    if device == "auto":
        return torch.device(next(kind for kind in FASTEST_FIRST if _count_devices(kind)))
    kind, colon, number = device.partition(":")
    is_numbered = number.isdecimal()
    if (colon and not is_numbered) or (int(number) if is_numbered else 0) >= _count_devices(kind):
        available = ", ".join(name for name in reversed(FASTEST_FIRST) if _count_devices(name))
        raise UsageError(f"device is {device!r}, which is not available; expected one of: auto, {available}")
    return torch.device(kind, int(number)) if colon else torch.device(kind)


def _count_devices(kind: str) -> int:
    """The number of devices of a kind; 0 for a name that is not a kind."""
    counts = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    return counts.get(kind, 0)
