"""Which site of a file is which site of the model in memory: transformers may name and cut tensors anew as it loads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from attngeo.layouts.sites import AttentionSite
from attngeo.verification.agreement import TOLERANCE, Prediction, difference_of


class Place(NamedTuple):
    """Where a site is in its model.

    stack: without the pattern that tells stacks of one name apart. number: counts the sites of one stack and layer.
    """

    stack: str
    layer: int
    number: int


def places_of(sites: Iterable[AttentionSite]) -> list[Place]:
    """The place of each site, in their order. No two are equal."""
    seen: Counter[tuple[str, int]] = Counter()
    places = []
    for site in sites:
        key = (site.stack.partition(":")[0], site.layer)
        places.append(Place(*key, seen[key]))
        seen[key] += 1
    return places


def match_places(saved: Mapping[Place, Prediction], loaded: Mapping[Place, Prediction]) -> dict[Place, Place]:
    """Place in the file → place in memory, for the sites that have a partner.

    The partner has the same place; or else, if no site of the file has its place, the same weights.
    """
    partners = {place: place for place in saved if place in loaded}
    free = {place: predicted for place, predicted in loaded.items() if place not in saved}
    for place in (place for place in saved if place not in loaded):
        same = (other for other, predicted in free.items() if difference_of(saved[place], predicted) < TOLERANCE)
        if (partner := next(same, None)) is not None:
            partners[place] = partner
            del free[partner]
    return partners
