"""Which stack of one model belongs to which of another one: by their names, or if only one can be meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attngeo.layouts.layout import AttentionSite

# Names of the stack of a language model: alone, and as a part of another model.
SAME_NAMES = frozenset({"decoder", "text"})


def group_sites(sites: Iterable[AttentionSite]) -> dict[str, list[AttentionSite]]:
    """The sites of a model by stack."""
    stacks: dict[str, list[AttentionSite]] = {}
    for site in sites:
        stacks.setdefault(site.stack, []).append(site)
    return stacks


def pair_stacks(
    stacks: Mapping[str, Sequence[AttentionSite]], others: Mapping[str, Sequence[AttentionSite]]
) -> dict[str, str]:
    """The stacks of a model that belong to one of another model → its name there.

    Those of the same name; if there are none, the only stacks of both; or else the only two that can be the same part:
    of one model type, or a decoder and the text part of a model, with heads of the same sizes. Empty if there are none,
    or several.
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
    return is_same_type or {site.stack, other.stack} == SAME_NAMES


def _sizes(site: AttentionSite) -> tuple[int, ...]:
    return site.heads, site.key_heads, site.head_dim, site.d_model
