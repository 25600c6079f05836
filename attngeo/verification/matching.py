"""Which site of a file is which site of the model in memory: transformers may name and cut tensors anew as it loads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
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


class Matches(NamedTuple):
    """Sites of a file and of the model in memory that belong together.

    partners: place in the file → place in memory, for the sites that have a partner. copies: place in memory → place in
    the file, for further modules in memory that share the weights, which a file has only once.
    """

    partners: dict[SitePlace, SitePlace]
    copies: dict[SitePlace, SitePlace]


def match_places(saved: Mapping[SitePlace, Prediction], loaded: Mapping[SitePlace, Prediction]) -> Matches:
    """Match the sites by what their weights multiply to.

    The partner of a site has the same weights, and the same place if such a one exists. A site whose weights no other
    has is matched by its place alone, so that it is compared with the running model.
    """

    def equal(place: SitePlace, other: SitePlace) -> bool:
        return difference_of(saved[place], loaded[other]) < TOLERANCE

    partners = {place: place for place in saved if place in loaded and equal(place, place)}
    free = [other for other in loaded if other not in partners]
    for place in saved:
        if place not in partners and (partner := next((own for own in free if equal(place, own)), None)) is not None:
            partners[place] = partner
            free.remove(partner)
    for place in saved:
        if place not in partners and place in free:
            partners[place] = place
            free.remove(place)
    copies = {other: place for other in free for place in saved if equal(place, other)}
    return Matches(partners, copies)
