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
    """The rotary pairs of a site, the frequencies of those that turn, float64, and a note.

    If it is not known which dimensions rotate, the note says so, and all of them count as standing still: the form is
    that at relative offset 0 alone.

    Raises:
        CorruptCheckpointError: the configuration describes rotary embeddings that make no sense.
    """
    with explain_rotary("correct it, or give one with $config", "config"):
        rotation = find_rotation(site)
    if isinstance(rotation, SiteRotation):
        rotates = rotation.frequencies != 0
        layout = PairLayout(rotates, rotation.interleaved, rotation.start)
        return layout, rotation.frequencies[rotates].double(), ""
    note = "" if rotation.is_known else f"at relative offset 0 alone: {rotation.reason}"
    return STILL, torch.zeros(0, dtype=torch.float64), note


def shared_layouts(site: AttentionSite, other: AttentionSite) -> tuple[PairLayout, PairLayout, str]:
    """The rotary pairs of two sites whose forms are compared, and a note where that leaves something out.

    Pairs are compared in their order: in one site they may be neighbours, and halves in the other. If frequencies
    differ, the forms are functions of the offset that are uncorrelated whatever the weights are, so that pairs are
    compared as if they turned alike. If other numbers of pairs turn, or if that is not known, all dimensions count as
    standing still: the forms are those at relative offset 0.

    Raises:
        CorruptCheckpointError: a configuration describes rotary embeddings that make no sense.
    """
    layout, frequencies, note = find_rotary_pairs(site)
    other_layout, other_frequencies, other_note = find_rotary_pairs(other)
    if note or other_note:
        return STILL, STILL, note or f"other: {other_note}"
    if len(frequencies) != len(other_frequencies):
        counts = f"{2 * len(frequencies)} and {2 * len(other_frequencies)} dimensions rotate"
        return STILL, STILL, f"{counts}: compared at relative offset 0 alone"
    if not torch.allclose(frequencies, other_frequencies, rtol=SAME_FREQUENCY, atol=0):
        return layout, other_layout, "rotary frequencies differ: compared pair by pair, as if they were the same"
    return layout, other_layout, ""
