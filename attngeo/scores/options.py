"""Options of `attngeo.score`: what is scored, and how. The library, the command and the recipe read them here.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from attngeo.attention.options import ModelReading, ReadingOptions
from attngeo.choices import PARTS_OF, Circuit, Convention, one_of
from attngeo.errors import UsageError
from attngeo.options import COMPUTATION, INPUT, Options, option
from attngeo.questions.conditions import Checkable
from attngeo.scores.spec import SCORES, layer_scores, number_columns, score_names

# In place of the names of all scores.
ALL = "all"


def checked_columns() -> tuple[str, ...]:
    """The columns of numbers in a table of scores, which conditions may name."""
    return (*number_columns(), "frobenius_norm", "d_model", "head_dim")


# What conditions may say of the table.
CHECKS = Checkable(
    checked_columns, sizes=("parameters",), has_baseline=True, of_layers=layer_scores, counted=score_names()[0]
)


def parse_scores(names: Any) -> tuple[str, ...]:
    """The optional scores of a text such as "trace_z,stable_rank" or "all", or of names. Raises UsageError.

    >>> parse_scores("stable_rank, symmetry, trace_z")
    ('trace_z', 'stable_rank')
    """
    chosen = names.split(",") if isinstance(names, str) else names
    if not isinstance(chosen, Collection) or not all(isinstance(name, str) for name in chosen):
        raise UsageError(f"$scores is {names!r:.60}, expected names such as trace_z, or all", "scores")
    chosen = [name.strip() for name in chosen]
    for name in chosen:
        one_of("scores", name, (*SCORES, ALL))
    return tuple(name for name, spec in SCORES.items() if spec.is_optional and {name, ALL} & {*chosen})


class ScoringOptions(Options):
    """Options of the scored matrices and the formulas."""

    # In a base of their own, because help lists the options of bases first, in reverse.

    per_head: bool = option(False, "Add one row per head", panel=INPUT)
    adapter_only: bool = option(False, "Score only the adapters' change to W_qk", panel=INPUT, advanced=True)
    circuit: Circuit = option(
        "qk",
        "Matrix of each head: queries with keys (qk), values with outputs (ov), or both",
        panel=COMPUTATION,
    )
    scores: Sequence[str] = option(
        (),
        f"Optional scores to add: {', '.join(name for name, spec in SCORES.items() if spec.is_optional)}; or all",
        panel=COMPUTATION,
        metavar="LIST",
        parse=parse_scores,
    )
    gamma: float = option(
        2.0, "Outlier threshold: mean + gamma·std of the norms", panel=COMPUTATION, least=0, advanced=True
    )
    convention: Convention = option(
        "corrected",
        "Formulas: corrected follows the paper's definitions, published follows its tables S4 and S5",
        panel=COMPUTATION,
    )


class ScoreOptions(ReadingOptions, ScoringOptions):
    """Options of `score`. Raises UsageError for an invalid choice or a value outside its limits."""

    def readings(self) -> tuple[ModelReading]:
        """The parts of the model that are read."""
        return (ModelReading(self, PARTS_OF[self.circuit], self.adapter_only),)

    def _check(self) -> None:
        if self.circuit != "qk" and self.with_bias:
            raise UsageError(
                "biases of values and outputs add the same to every token; leave out $with_bias or $circuit",
                "with_bias",
                "circuit",
            )
        if self.circuit != "qk" and self.adapter_only:
            raise UsageError(
                "$adapter_only applies only to W_qk; leave out $adapter_only or $circuit", "adapter_only", "circuit"
            )
        if self.circuit == "ov" and self.rope_offset:
            raise UsageError(
                "$rope_offset applies only to W_qk; leave out $rope_offset or $circuit", "rope_offset", "circuit"
            )
        if self.adapter_only and not self.adapter:
            raise UsageError("$adapter_only requires an adapter; name one with $adapter", "adapter_only", "adapter")
