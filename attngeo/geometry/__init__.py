"""The scores and the variants of the form M = Wq·Wkᵀ, as pure functions of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.lazy import import_when_used

if TYPE_CHECKING:
    from attngeo.geometry.growths import growths_of as growths_of
    from attngeo.geometry.rotary import rotary_scores_of as rotary_scores_of
    from attngeo.geometry.scores import (
        directionality as directionality,
        directionality_of as directionality_of,
        symmetry as symmetry,
        symmetry_of as symmetry_of,
    )
    from attngeo.geometry.spectra import (
        eigenvalues as eigenvalues,
        positive_share as positive_share,
        standardize_trace as standardize_trace,
    )
else:
    __getattr__, __dir__ = import_when_used(__name__)
