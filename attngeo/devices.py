"""The device to compute on."""

from __future__ import annotations

import torch

from attngeo.errors import UsageError


def pick_device(device: str) -> torch.device:
    """The torch device of a name; "auto" is the fastest available one. Raises UsageError for an unavailable one."""
    if device == "auto":
        return torch.device(
            "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        )
    kind, colon, number = device.partition(":")
    count = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if int(number) >= count.get(kind, 0) if number.isdecimal() else colon or not count.get(kind):
        available = ", ".join(name for name, number_of in count.items() if number_of)
        raise UsageError(f"device is {device!r}, which is not available; expected one of: auto, {available}")
    return torch.device(kind, int(number)) if colon else torch.device(kind)
