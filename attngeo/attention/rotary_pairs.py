"""Which dimensions of the heads of attention sites rotate, for their forms at every offset."""

from __future__ import annotations

import torch
from torch import Tensor

from attngeo.geometry.offsets import STILL, PairLayout
from attngeo.layouts.layout import AttentionSite
from attngeo.layouts.positions import SiteRotation, explain_rotary, find_rotation

# Frequencies that are nearer than this share are the same, in the number types of two files.
SAME_FREQUENCY = 1e-4


def find_rotary_pairs(site: AttentionSite) -> tuple[PairLayout, Tensor, str]:
    """The rotary pairs of a site, the frequencies of the pairs that rotate (float64), and a note.

    If the rotating dimensions are unknown, the note says so, and all dimensions count as fixed: the form is the one at
    relative offset 0.

    Raises:
        CorruptCheckpointError: the configuration describes an invalid rotary embedding.
    """
    with explain_rotary("correct it, or give one with $config", "config"):
        rotation = find_rotation(site)
    if isinstance(rotation, SiteRotation):
        rotates = rotation.frequencies != 0
        layout = PairLayout(rotates, rotation.interleaved, rotation.start)
        return layout, rotation.frequencies[rotates].double(), ""
    note = "" if rotation.is_known else f"only at relative offset 0: {rotation.reason}"
    return STILL, torch.zeros(0, dtype=torch.float64), note


def shared_layouts(site: AttentionSite, other: AttentionSite) -> tuple[PairLayout, PairLayout, str]:
    """The rotary pairs of two sites to compare, and a note if the comparison leaves something out.

    Pairs are compared in their order: a pair may be two neighbours in one site and one dimension of each half in the
    other. If the frequencies differ, the forms are uncorrelated over the offsets whatever the weights, so pairs are
    compared as if their frequencies were equal. If the numbers of rotating pairs differ or are unknown, all dimensions
    count as fixed: the forms are those at relative offset 0.

    Raises:
        CorruptCheckpointError: a configuration describes an invalid rotary embedding.
    """
    layout, frequencies, note = find_rotary_pairs(site)
    other_layout, other_frequencies, other_note = find_rotary_pairs(other)
    if note or other_note:
        return STILL, STILL, note or f"other: {other_note}"
    if len(frequencies) != len(other_frequencies):
        counts = f"{2 * len(frequencies)} and {2 * len(other_frequencies)} dimensions rotate"
        return STILL, STILL, f"{counts}: compared only at relative offset 0"
    if not torch.allclose(frequencies, other_frequencies, rtol=SAME_FREQUENCY, atol=0):
        return layout, other_layout, "rotary frequencies differ: compared pair by pair, as if they were equal"
    return layout, other_layout, ""
