"""The options of `attngeo theory`, declared once. Imports nothing heavy."""

from __future__ import annotations

from attngeo.options import COMPUTATION, Options, option

LARGEST_SEED = 2**32 - 1


class TheoryOptions(Options):
    """How statements are evaluated. Raises UsageError for a value outside its limits."""

    seed: int = option(
        0, "Seed of what is drawn: weights, corpora, matrices", panel=COMPUTATION, least=0, most=LARGEST_SEED
    )
