"""Which site of a file is which site of the model in memory: transformers may name and cut tensors anew as it loads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from attngeo.layouts.sites import AttentionSite
from attngeo.verification.agreement import TOLERANCE, Prediction, difference_of


class SitePlace(NamedTuple):
    """Where a site is in its model.

    stack: without the pattern that tells stacks of one name apart. number: counts the sites of one stack and layer.
    """

    stack: str
    layer: int
    number: int


def places_of(sites: Iterable[AttentionSite]) -> list[SitePlace]:
    """The place of each site, in their order. No two are equal."""
    seen: Counter[tuple[str, int]] = Counter()
    places = []
    for site in sites:
        key = (site.stack.partition(":")[0], site.layer)
        places.append(SitePlace(*key, seen[key]))
        seen[key] += 1
    return places


def match_places(
    saved: Mapping[SitePlace, Prediction], loaded: Iterable[SitePlace], predict: Callable[[SitePlace], Prediction]
) -> dict[SitePlace, SitePlace]:
    """SitePlace in the file → place in memory, for the sites that have a partner.

    The partner has the same place; or else, if no site of the file has its place, the same weights. predict: what the
    weights of a site in memory multiply to.
    """
    loaded = list(loaded)
    partners = {place: place for place in saved if place in loaded}
    others = [place for place in saved if place not in loaded]
    free = {place: predict(place) for place in loaded if place not in saved} if others else {}
    for place in others:
        same = (other for other, predicted in free.items() if difference_of(saved[place], predicted) < TOLERANCE)
        if (partner := next(same, None)) is not None:
            partners[place] = partner
            del free[partner]
    return partners
