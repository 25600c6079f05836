"""Another processor, as far as its rounding goes: for pytest's `--rounding SEED`.

Processors and libraries of linear algebra add the terms of a product in different orders, so that its last digits
differ. Here each product of torch is moved by -1 to 2 units in the last place, by a hash of its bits and the seed:
equal inputs still give equal outputs, and each seed is another processor. Zeros and infinities stay as they are.

The products are intercepted in torch's dispatcher, below autograd and above the kernels of devices: in all threads, in
forward and backward passes, and without the cost of a TorchDispatchMode for all other operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
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
# The seed, for processes that are started.
VARIABLE = "ATTNGEO_TEST_ROUNDING"
# For tests that compare this process with one that starts anew. pytest reads the condition when the test runs.
ONE_PROCESS = pytest.mark.skipif(
    "config.getoption('rounding') is not None", reason="--rounding is not of a process that starts anew"
)
KEY = torch._C.DispatchKey.BackendSelect
BELOW = torch._C._dispatch_keyset_full_after(KEY)

_library: list[torch.library.Library] = []


def start(seed: int) -> None:
    """Round all products of this process, and of those that it forks, in the way of a seed. It cannot be undone."""
    library = torch.library.Library("aten", "IMPL")
    for name in PRODUCTS:
        packet, _, overload = name.partition(".")
        operation = getattr(getattr(torch.ops.aten, packet), overload or "default")
        library.impl(name, _rounded(operation, seed), KEY.name, with_keyset=True)
    _library.append(library)  # its end would remove the kernels


def _rounded(operation: Any, seed: int) -> Callable[..., Any]:
    def compute(keys: Any, *arguments: Any, **keywords: Any) -> Any:
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
