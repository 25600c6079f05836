"""Where to compute."""

from __future__ import annotations

import torch

from attngeo.errors import UsageError


def pick_device(device: str) -> torch.device:
    """The torch device of that name; "auto" is the best one there is. Raises UsageError for one that is not there."""
    if device == "auto":
        return torch.device(
            "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        )
    kind, colon, number = device.partition(":")
    count = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if int(number) >= count.get(kind, 0) if number.isdecimal() else colon or not count.get(kind):
        there = ", ".join(name for name, here in count.items() if here)
        raise UsageError(f"device {device!r} is not here, expected one of: auto, {there}")
    return torch.device(kind, int(number)) if colon else torch.device(kind)
