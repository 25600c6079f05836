"""Options and columns of `attngeo.lineage`. Imports nothing heavy."""

from __future__ import annotations

from attngeo.attention.options import ModelReading, ReadingOptions
from attngeo.options import COMPUTATION, INPUT, Options, option
from attngeo.questions.conditions import Checkable
from attngeo.questions.rows import ABOUT_BOTH

# One row for each candidate.
LINEAGE_COLUMNS = (*ABOUT_BOTH, "verdict", "related", "similarity", "p_value", "similarity_z", "layers", "note")
# Values of the column `verdict`.
VERDICTS = ("related", "no evidence", "suspicious", "not testable")
LINEAGE_NUMBERS = ("similarity", "p_value", "similarity_z")
# What conditions may say of the table.
CHECKS = Checkable(LINEAGE_NUMBERS, about=("other",), units=("rows",))
# Seeds that torch takes.
LARGEST_SEED = 2**63 - 1


class LineageOptions(Options):
    """Options of `lineage`. Raises UsageError for an invalid value."""

    stack: str | None = option(
        None,
        "Compare only this stack: encoder, decoder, text, vision …; text=decoder if candidates name it differently",
        in_command=" (see attngeo inspect)",
        panel=INPUT,
        metavar="NAME",
    )
    n_permutations: int = option(
        199,
        "Number of random permutations, and of draws of random signs; the smallest p is 1/(1 + N)",
        panel=COMPUTATION,
        metavar="N",
        least=19,
        most=100_000,
    )
    align: bool = option(
        False,
        "Detect permuted coordinates by first matching the token embeddings; the test then draws 19 random rotations "
        "instead of permutations, and only 19 sets of random signs; requires scipy",
        panel=COMPUTATION,
    )
    seed: int = option(0, "Seed of the permutations", panel=COMPUTATION, metavar="N", least=0, most=LARGEST_SEED)

    def readings(self) -> tuple[ModelReading, ModelReading]:
        """What to read from both models.

        A copy with a rotated stream has the gains of the norms before attention folded into its weights, so they are
        folded into the forms of both models.
        """
        reading = ModelReading(ReadingOptions(fold_norm=True, device="cpu"))
        return reading, reading
