"""Attention whose gradients stay at each token: the own-token errors of Saponati et al. 2025, equations (S25) to (S28).

The paper's proof carries the error of token i back at position i alone: from the logits to the last layer, and through
each layer by the derivative of the output of token i by its own input. This is the product of the diagonal blocks of
the Jacobians of all layers above, with the sum that (S26) prints as a product. In attention, the output of token i
depends on its own input by its query and, if it sees itself, by its own key and value. The keys and values of all other
tokens are constants.

So one pass back through the whole model, with attention replaced by `attend_by_own_token`, gives the own-token part of
β in every layer. Paths that leave token i and return to it in a higher layer are not part of it. Under a causal mask
there are none, and the product of diagonal blocks is the derivative of the loss of token i by its own state. Otherwise
it is not: if two layers follow, an error can come back from the logits of i to token j, and from there to i.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

# The largest distance of gradients that follow from the form below to those of the model, as a share of these.
NOT_KNOWN = 0.02


class AttentionCall(NamedTuple):
    """A call of the eager attention function of a model.

    Attributes:
        attend: the function of the model's own file; it returns outputs [S, N, heads, value_dim] and weights
            [S, heads, N, N].
        module: the attention module.
        query: [S, heads, N, head_dim].
        key: [S, key_heads, N, head_dim].
        value: [S, key_heads, N, value_dim].
        options: further arguments of the function.
    """

    attend: Callable[..., tuple[Tensor, Tensor]]
    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    options: Mapping[str, Any]

    @property
    def scale(self) -> float:
        """The factor of q·k in a logit."""
        scaling = self.options.get("scaling")
        return self.query.shape[-1] ** -0.5 if scaling is None else float(scaling)

    def repeat(self, x: Tensor) -> Tensor:
        """Keys or values of each query head, [S, heads, N, …]."""
        return x.repeat_interleave(self.query.shape[1] // x.shape[1], 1)

    def run(self, mask: Tensor, key: Tensor | None = None, value: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Outputs and weights with a mask that broadcasts to [S, heads, N, N], and perhaps other keys and values."""
        key = self.key if key is None else key
        value = self.value if value is None else value
        return self.attend(self.module, self.query, key, value, mask, **self.options)


def attend_by_own_token(call: AttentionCall, mask: Tensor, slope: Tensor | float) -> tuple[Tensor, Tensor]:
    """What `call.run(mask)` returns; the gradient of the output of a token reaches no other token.

    Args:
        call: the call of attention.
        mask: added to the logits.
        slope: derivative of the logits, where they are capped, by scale·q·k, [S, heads, N, N].
    """
    keys = call.repeat(call.key)
    values = call.repeat(call.value)
    # Zeros with the gradients of the key and of the value that a token reads of itself.
    own_logits = call.scale * (call.query.detach() * (keys - keys.detach())).sum(-1)  # [S, heads, N]
    added = torch.diag_embed(own_logits) * slope
    outputs, weights = call.run(mask + added, call.key.detach(), call.value.detach())
    own_weights = weights.detach().diagonal(dim1=-2, dim2=-1)[..., None].to(values.dtype)
    own_values = own_weights * (values - values.detach())  # [S, heads, N, value_dim]
    return outputs + own_values.transpose(1, 2), weights


def has_known_form(call: AttentionCall, mask: Tensor, slope: Tensor | float) -> bool:
    """Whether logits are scale·q·k + mask, before a cap, and outputs weights·values, as the gradients show.

    If not, `attend_by_own_token` has other gradients than the model. Arguments as there.
    """
    size = (*call.query.shape[:3], call.key.shape[2])
    if size[2] != size[3] or size[1] % call.key.shape[1] or size[1] % call.value.shape[1]:
        return False
    key = call.key.detach().requires_grad_()
    value = call.value.detach().requires_grad_()
    added = mask.new_zeros(size, requires_grad=True)
    fixed = call._replace(query=call.query.detach())
    outputs, weights = fixed.run(mask.detach() + added * slope, key, value)
    if weights.shape != size or outputs.shape[:3] != (size[0], size[2], size[1]):
        return False
    error = outputs.detach()  # any numbers would do
    by_key, by_value, beta = torch.autograd.grad(
        (outputs * error).sum(), (key, value, added), allow_unused=True, materialize_grads=True
    )
    key_share = call.scale * beta.mT @ fixed.query
    value_share = weights.detach().mT.to(error.dtype) @ error.transpose(1, 2)
    return _are_close(by_key, key_share) and _are_close(by_value, value_share)


def _are_close(found: Tensor, of_heads: Tensor) -> bool:
    """Whether gradients of key heads [S, key_heads, N, …] are the sums of those of their query heads."""
    size = found.shape
    expected = of_heads.reshape(size[0], size[1], -1, *size[2:]).sum(2)
    return bool((found - expected).norm() <= NOT_KNOWN * expected.norm())
