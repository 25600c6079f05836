"""Fill a model with random parameters, so that no weight is neutral: no bias of 0, no gain of 1, no shut gate."""

from __future__ import annotations

import torch
from torch import nn

SPREAD = 0.3
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@torch.no_grad()
def randomise(model: nn.Module, seed: int) -> None:
    """Draw every parameter anew from `seed`.

    Matrices: normal, standard deviation 0.9 / sqrt(inputs). Vectors (gains, biases, gates): their initial value
    plus a uniform number in [-0.3, 0.3].
    """
    generator = torch.Generator().manual_seed(seed)
    convolutions = {id(module.weight) for module in model.modules() if isinstance(module, CONVOLUTIONS)}
    for parameter in model.parameters():
        if not parameter.is_floating_point() or not parameter.requires_grad:  # tables of positions are not learned
            continue
        extended = [size for size in parameter.shape if size > 1]
        if len(extended) >= 2:
            # What is no convolution is a matrix or a stack of matrices, such as experts.
            inputs = parameter.numel() // parameter.shape[0] if id(parameter) in convolutions else parameter.shape[-1]
            drawn = torch.randn(parameter.shape, generator=generator) * (3 * SPREAD / max(inputs, 1) ** 0.5)
        else:
            shift = (torch.rand(parameter.shape, generator=generator) * 2 - 1) * SPREAD
            initial = parameter.detach().float()
            drawn = torch.where(initial.isfinite() & (initial.abs() < 1e4), initial, torch.ones(())) + shift
        parameter.copy_(drawn.to(parameter.dtype))
