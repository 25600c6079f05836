"""Pairs of stacks of two models: by name, or because only one pair is possible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attngeo.errors import UsageError
from attngeo.layouts.layout import AttentionSite

# Names of one stack, alone and as a part of another model: of a language model, and of the encoder of a speech model.
SAME_NAMES = (frozenset({"decoder", "text"}), frozenset({"encoder", "audio"}))


def group_sites(sites: Iterable[AttentionSite]) -> dict[str, list[AttentionSite]]:
    """The sites of a model, grouped by stack."""
    stacks: dict[str, list[AttentionSite]] = {}
    for site in sites:
        stacks.setdefault(site.stack, []).append(site)
    return stacks


def split_stack(stack: str) -> tuple[str, str | None]:
    """The stack of the first model, and the stack of the other model, named by an option; None for the same name."""
    name, equals, other_name = stack.partition("=")
    return name, other_name if equals else None


def choose_stacks(
    stacks: Mapping[str, Sequence[AttentionSite]],
    others: Mapping[str, Sequence[AttentionSite]],
    stack: str | None,
    refs: tuple[str, str],
) -> dict[str, str]:
    """The stacks of the first model to compare → the name of the paired stack in the other model.

    Args:
        stacks: stacks of the first model.
        others: stacks of the other model.
        stack: compare only this stack; "text=decoder" if its name differs between the models; None for `pair_stacks`.
        refs: the names of both models.

    Raises:
        UsageError: a model lacks the requested stack.
    """
    if stack is None:
        return pair_stacks(stacks, others)
    name, stated = split_stack(stack)
    other_name = name if stated is None else stated
    if name not in stacks:
        raise UsageError(f"{refs[0]} has no stack {name!r:.60}, expected one of: {', '.join(stacks)}", "stack")
    if other_name not in others:
        raise UsageError(
            f"{refs[1]} has no stack {other_name!r:.60}, expected one of: {', '.join(others)}; "
            f"if that model names the stack differently, write $stack {name}=OTHER",
            "stack",
        )
    return {name: other_name}


def pair_stacks(
    stacks: Mapping[str, Sequence[AttentionSite]], others: Mapping[str, Sequence[AttentionSite]]
) -> dict[str, str]:
    """The stacks of the first model that can be paired → the name of the paired stack in the other model.

    Stacks with the same name are paired. Without any, the only stacks of both models are; else the only two that can be
    the same part: of one model type, or with two names for one part, such as decoder and text, and with heads of the
    same sizes. Empty if there is no such pair, or more than one.
    """
    partners = {name: name for name in stacks if name in others}
    if partners:
        return partners
    if len(stacks) == len(others) == 1:
        return dict(zip(stacks, others, strict=True))
    pairs = []
    for name, sites in stacks.items():
        pairs += [(name, other) for other, of_other in others.items() if _may_be_same(sites[0], of_other[0])]
    return dict(pairs) if len(pairs) == 1 else {}


def _may_be_same(site: AttentionSite, other: AttentionSite) -> bool:
    """Whether two stacks can be the same part of two models. site, other: the first one of each."""
    if site.is_cross or other.is_cross or _sizes(site) != _sizes(other):
        return False
    model_type = site.section.get("model_type")
    is_same_type = bool(model_type) and model_type == other.section.get("model_type")
    return is_same_type or {site.stack, other.stack} in SAME_NAMES


def _sizes(site: AttentionSite) -> tuple[int, ...]:
    return site.heads, site.key_heads, site.head_dim, site.d_model
