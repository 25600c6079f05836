"""Which head of one layer is which of another: heads in another order, with their keys, compute the same."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def match_heads(similarities: Tensor, key_heads: Sequence[int], other_key_heads: Sequence[int]) -> list[int]:
    """The match of each head: the most similar pairs first; heads that share keys match heads that share keys.

    Args:
        similarities: of each head with each other head, [heads, heads]; NaN is least.
        key_heads: the key head of each head, [heads]; all key heads have the same number of heads.
        other_key_heads: those of the other heads, in groups of the same size, [heads].

    Returns:
        [heads], each number once.

    >>> import torch
    >>> match_heads(torch.tensor([[0.1, 0.9], [0.8, 0.7]]), [0, 1], [0, 1])
    [1, 0]
    """
    heads = len(key_heads)
    order = similarities.nan_to_num(nan=-float("inf")).flatten().argsort(descending=True, stable=True)
    matched: dict[int, int] = {}
    groups: dict[int, int] = {}
    for index in order.tolist():
        head, other = divmod(index, heads)
        if head in matched or other in matched.values():
            continue
        group, other_group = key_heads[head], other_key_heads[other]
        is_taken = group in groups or other_group in groups.values()
        if is_taken and groups.get(group) != other_group:
            continue
        matched[head] = other
        groups[group] = other_group
    return [matched[head] for head in range(heads)]
