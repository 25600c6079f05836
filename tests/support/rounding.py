"""Another processor, as far as its rounding goes: for pytest's `--rounding SEED`.

Processors and libraries of linear algebra add the terms of a product in different orders, so that its last digits
differ. Here each product of torch is moved by -1 to 2 units in the last place, by a hash of its bits and the seed:
equal inputs still give equal outputs, and each seed is another processor. Zeros and infinities stay as they are.

The products are intercepted in torch's dispatcher, below autograd and above the kernels of devices: in all threads, in
forward and backward passes, and without the cost of a TorchDispatchMode for all other operations.

Python processes that are started with `variables` do the same: they find `startup/sitecustomize.py`, which runs
`start_here` as soon as they have imported torch.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

PRODUCTS = (
    "mm", "mm.out", "addmm", "addmm.out", "addmm_", "bmm", "bmm.out", "baddbmm", "baddbmm.out", "baddbmm_",
    "mv", "mv.out", "addmv", "addmv.out", "addmv_", "dot", "convolution", "convolution_backward",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward",
)  # fmt: skip
# Floating-point type → the integers of its bits, and an odd number that spreads them.
BITS = {
    torch.float64: (torch.int64, -0x61C8_8646_80B5_83EB),
    torch.float32: (torch.int32, -0x61C8_8647),
    torch.float16: (torch.int16, -0x61C9),
    torch.bfloat16: (torch.int16, -0x61C9),
}
# The seed, and the file of a Sign if there is one, for processes that are started.
SEED, SIGN = "ATTNGEO_TEST_ROUNDING", "ATTNGEO_TEST_PRODUCTS"
STARTUP = Path(__file__).with_name("startup")
KEY = torch._C.DispatchKey.BackendSelect
BELOW = torch._C._dispatch_keyset_full_after(KEY)

_library: list[torch.library.Library] = []


class Sign:
    """A byte in a file, which processes share: whether one of them has multiplied since the sign was taken down."""

    def __init__(self, path: str) -> None:
        with Path(path).open("r+b") as file:
            self._byte = mmap.mmap(file.fileno(), 1)

    def put_up(self) -> None:
        """Say that there was a product."""
        self._byte[0] = 1

    def take_down(self) -> bool:
        """Whether the sign was up."""
        is_up = bool(self._byte[0])
        self._byte[0] = 0
        return is_up


def variables(seed: int) -> dict[str, str]:
    """What makes Python processes round: variables of their environment."""
    folders = [str(STARTUP), os.environ.get("PYTHONPATH", "")]
    return {SEED: str(seed), "PYTHONPATH": os.pathsep.join(filter(None, folders))}


def start_here() -> None:
    """Do in this process what its variables say."""
    start(int(os.environ[SEED]), Sign(os.environ[SIGN]) if SIGN in os.environ else None)


def start(seed: int, sign: Sign | None = None) -> None:
    """Round all products of this process, and of those that it forks, in the way of a seed. It cannot be undone.

    sign: is put up by each product.
    """
    library = torch.library.Library("aten", "IMPL")
    for name in PRODUCTS:
        packet, _, overload = name.partition(".")
        operation = getattr(getattr(torch.ops.aten, packet), overload or "default")
        library.impl(name, _rounded(operation, seed, sign), KEY.name, with_keyset=True)
    _library.append(library)  # its end would remove the kernels


def _rounded(operation: Any, seed: int, sign: Sign | None) -> Callable[..., Any]:
    def compute(keys: Any, *arguments: Any, **keywords: Any) -> Any:
        if sign is not None:
            sign.put_up()
        result = operation.redispatch(keys & BELOW, *arguments, **keywords)
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, torch.Tensor) and value.dtype in BITS and value.device.type == "cpu":
                move(value, seed)
        return result

    return compute


def move(values: torch.Tensor, seed: int) -> None:
    """Move each number by -1 to 2 units in the last place, in place."""
    integers, spread = BITS[values.dtype]
    limits = torch.finfo(values.dtype)
    bits = values.view(integers)
    steps = ((bits ^ seed) * spread).bitwise_right_shift_(torch.iinfo(integers).bits - 2)  # -2 to 1
    sizes = values.abs()
    steps.mul_((sizes >= limits.tiny * 4) & (sizes <= limits.max / 4))
    bits.sub_(steps)
