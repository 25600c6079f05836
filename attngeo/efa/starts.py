"""How parameters start: as torch starts its modules, or as Keras starts those of the published models."""

from __future__ import annotations

import math

import torch
from torch import nn

from attngeo.efa.attention import MaskedLayer
from attngeo.efa.network import ItemAttention, ValueAttention

# Keras' embeddings are uniform between ± this.
EMBEDDED = 0.05


@torch.no_grad()
def start_like_keras(network: nn.Module) -> None:
    """Draw all parameters as Keras' modules of the published code do.

    Embeddings are uniform, ±0.05; positions and matrices by Glorot and Bengio 2010, of which those of attention have
    three dimensions there; biases are 0.
    """
    for module in network.modules():
        if isinstance(module, nn.Embedding):
            nn.init.uniform_(module.weight, -EMBEDDED, EMBEDDED)
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for module in network.modules():
        if isinstance(module, MaskedLayer):
            _start_attention(module)
    if isinstance(network, ItemAttention | ValueAttention) and network.position is not None:
        nn.init.xavier_uniform_(network.position.weight)
    for name, parameter in network.named_parameters():
        if name in ("mask", "start"):
            nn.init.uniform_(parameter, -EMBEDDED, EMBEDDED)


def _start_attention(layer: MaskedLayer) -> None:
    """Kernels [d, heads, size] of queries, keys and values, and [heads, size, d] of the output.

    Keras counts the first dimension of three as that of a receptive field.
    """
    width, heads, size = layer.shape.width, layer.shape.heads, layer.shape.size
    for matrix in (layer.query, layer.key, layer.value):
        _draw_glorot(matrix.weight, heads * width, size * width)
    if layer.output is not None:
        _draw_glorot(layer.output.weight, size * heads, width * heads)


def _draw_glorot(weight: torch.Tensor, fan_in: int, fan_out: int) -> None:
    limit = math.sqrt(6 / (fan_in + fan_out))
    nn.init.uniform_(weight, -limit, limit)
