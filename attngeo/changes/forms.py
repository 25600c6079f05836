"""Which dimensions of the heads of an attention site rotate, for their forms at every offset."""

from __future__ import annotations

from attngeo.geometry.offsets import STILL, PairLayout
from attngeo.layouts.layout import AttentionSite
from attngeo.layouts.positions import SiteRotation, explain_rotary, find_rotation


def pair_layout(site: AttentionSite) -> tuple[PairLayout, str]:
    """The rotary pairs of a site, and a note if it is not known which dimensions rotate.

    Then all of them count as standing still: the form is that at relative offset 0 alone.

    Raises:
        CorruptCheckpointError: the configuration describes rotary embeddings that make no sense.
    """
    with explain_rotary("correct it, or give one with $config", "config"):
        rotation = find_rotation(site)
    if isinstance(rotation, SiteRotation):
        return PairLayout(rotation.frequencies != 0, rotation.interleaved, rotation.start), ""
    note = "" if rotation.is_known else f"at relative offset 0 alone: {rotation.reason}"
    return STILL, note
