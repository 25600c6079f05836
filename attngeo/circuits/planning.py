"""Pairs of layers that must be in memory together: the order in which to read layers, with few of them at a time."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

Site = TypeVar("Site")
# The numbers of two sites, in the list of sites: the first one is not larger. They are equal for a site by itself.
Numbers = tuple[int, int]


class Reading(NamedTuple):
    """One step of the plan by which layers are read.

    Attributes:
        number: number of the site, in the list of sites.
        stays: whether the site stays in memory.
        begins_part: whether the sites before it are dropped.
    """

    number: int
    stays: bool
    begins_part: bool


def plan_readings(sizes: Sequence[int], pairs: Collection[Numbers], memory: int) -> list[Reading]:
    """The order in which to read sites, so that the two sites of each pair are in memory together once.

    As many sites as fit stay in memory, with room for one more: then the later sites paired with them are read one by
    one. If all sites fit, none is read twice.

    Args:
        sizes: bytes of each site while it is in memory.
        pairs: the pairs of sites.
        memory: bytes for all of them.
    """
    needed = sorted({number for pair in pairs for number in pair})
    paired = {number for pair in pairs if pair[0] != pair[1] for number in pair}
    alone = {a for a, b in pairs if a == b}
    plan: list[Reading] = []
    while needed:
        part: list[int] = []
        largest = max(sizes[number] for number in needed)
        room = memory if sum(sizes[number] for number in needed) <= memory else memory - largest
        for number in needed:
            if part and sum(map(sizes.__getitem__, (*part, number))) > room:
                break
            part.append(number)
        others = sorted({b for a, b in pairs if a in part and b not in part})
        if others or len(part) > 1 or not alone.isdisjoint(part):
            plan += [Reading(number, number in paired, begins_part=number == part[0]) for number in part]
            plan += [Reading(number, False, begins_part=False) for number in others]
            alone = alone.difference(part, others)
        needed = needed[len(part) :]
    return plan


def meet(
    plan: Sequence[Reading], sites: Iterable[Site], pairs: Mapping[int, Numbers]
) -> Generator[tuple[int, Site, Site]]:
    """The number of each pair and its two sites, as soon as both are there.

    Args:
        plan: as returned by `plan_readings`.
        sites: the site of each step of the plan, made when it is requested.
        pairs: number of each pair → the pair.
    """
    left = {pair: number for number, pair in pairs.items()}
    in_memory: dict[int, Site] = {}
    for reading, site in zip(plan, sites, strict=True):
        if reading.begins_part:
            in_memory.clear()
        here = {**in_memory, reading.number: site}
        for other in here:
            a, b = sorted((other, reading.number))
            number = left.pop((a, b), None)
            if number is not None:
                yield number, here[a], here[b]
        if reading.stays:
            in_memory[reading.number] = site
