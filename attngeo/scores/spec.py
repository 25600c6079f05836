"""What is scored: the options of `attngeo.score`, and the scores as data, which all that shows scores reads.

An option is declared once: the library, the command and the recipe read it here. A new score is one more `ScoreSpec` in
`SCORES`; the table is read when it is needed, never copied at import. Imports no torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

from attngeo.choices import Convention, Precision
from attngeo.errors import UsageError
from attngeo.layouts.names import MOST_LAYERS
from attngeo.options import COMPUTATION, INPUT, RUNNING, Options, as_texts, device_option, option, parse_bytes

if TYPE_CHECKING:
    from attngeo.geometry import FormStatistics

RANGE = re.compile(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", re.ASCII)
# Beyond this many positions, float64 cannot represent the angle of a rotation.
LARGEST_OFFSET = 2**31


def parse_layers(text: str) -> list[int]:
    """The layers of a list such as "0-3,7". Raises UsageError.

    >>> parse_layers("0-3,7")
    [0, 1, 2, 3, 7]
    """
    layers: set[int] = set()
    parts = text.split(",", MOST_LAYERS)
    for part in parts:
        range_ = RANGE.fullmatch(part)
        first, last = (int(range_[1]), int(range_[2] or range_[1])) if range_ else (1, 0)
        if not first <= last < MOST_LAYERS or len(parts) > MOST_LAYERS:
            raise UsageError(
                f"$layers is {text!r:.80}, expected for example 0-3,7, all below {MOST_LAYERS:,}", "layers"
            )
        layers.update(range(first, last + 1))
    return sorted(layers)


def check_layers(layers: Iterable[int] | str | None) -> tuple[int, ...] | None:
    """The layers that are asked for: a collection of numbers, a list in a text, or None. Raises UsageError."""
    if layers is None:
        return None
    if isinstance(layers, str):
        return tuple(parse_layers(layers))
    wanted = tuple(islice(layers, MOST_LAYERS + 1)) if isinstance(layers, Iterable) else ()
    numbers = all(isinstance(layer, Integral) and not isinstance(layer, bool) for layer in wanted)
    if not isinstance(layers, Iterable) or not numbers or len(wanted) > MOST_LAYERS:
        raise UsageError(f"$layers is {layers!r:.80}, expected whole numbers, such as [0, 1, 7]", "layers")
    return tuple(map(int, wanted))  # of numpy, too


def _adapter_option() -> Any:
    return option(
        (), "Adapter of PEFT, on the Hub or a folder, whose update is added; REF=0.5 for half of it; may be repeated",
        panel=INPUT, metavar="REF", parse=as_texts, repeated=True,
    )  # fmt: skip


def _config_option() -> Any:
    return option(
        None, "Where config.json is, if not beside the weights: a folder, a file or a model on the Hub",
        panel=INPUT, metavar="REF", parse=str, advanced=True,
    )  # fmt: skip


class SourceOptions(Options):
    """What is read of a model, beside its weights."""

    adapter: Sequence[str] = _adapter_option()
    config: str | None = _config_option()


class ScoreOptions(Options):
    """What is scored, and how. Raises UsageError for a value that is no choice or outside its limits."""

    per_head: bool = option(False, "Add one row for each head", panel=INPUT)
    stack: str | None = option(
        None, "Score only this stack: encoder, decoder, cross, text, vision … (see attngeo inspect)",
        panel=INPUT, metavar="NAME",
    )  # fmt: skip
    layers: Sequence[int] | None = option(
        None, "Score only these layers, for example 0-3,7", panel=INPUT, metavar="LIST", parse=check_layers
    )
    adapter: Sequence[str] = _adapter_option()
    adapter_only: bool = option(False, "Score what the adapters add to W_qk alone", panel=INPUT, advanced=True)
    config: str | None = _config_option()
    gamma: float = option(2.0, "Outlier threshold: mean + gamma·std of the norms", panel=COMPUTATION, least=0)
    convention: Convention = option(
        "corrected",
        "Formulas: corrected follows the paper's definitions, published reproduces its tables S4 and S5",
        panel=COMPUTATION,
    )
    with_bias: bool = option(False, "Include the biases, as an extra input with the value 1", panel=COMPUTATION)
    fold_norm: bool = option(False, "Include the gain of the normalisation before attention", panel=COMPUTATION)
    rope_offset: int = option(
        0, "Query position minus key position, for rotary embeddings", panel=COMPUTATION, metavar="Δ",
        least=-LARGEST_OFFSET, most=LARGEST_OFFSET,
    )  # fmt: skip
    precision: Precision = option(
        "float32", "Number type of the matrix products; fast uses bfloat16 (error about 1e-3)", panel=COMPUTATION
    )
    device: str = device_option()
    memory: int | None = option(
        None, "Memory for the weights of layers in flight; at least one layer is read", panel=RUNNING, metavar="SIZE",
        shown_default="a quarter of what is free", least=1, parse=parse_bytes,
    )  # fmt: skip

    def _check(self) -> None:
        if self.adapter_only and not self.adapter:
            raise UsageError(
                "$adapter_only is about the update of adapters; name one with $adapter", "adapter_only", "adapter"
            )


class Chance(NamedTuple):
    """Mean and standard deviation of a score over n × n forms with independent Gaussian factors."""

    mean: float
    deviation: float


def symmetry_at_chance(n: int) -> Chance:
    """1/n and √2/n: limits for large n, for any rank.

    E[tr(MM)] = rank·n·σ⁴ and E‖M‖² = rank·n²·σ⁴. Saponati et al. 2025, Prop. S1.15, prints 8/n for the mean;
    simulation gives 1/n.
    """
    return Chance(1 / n, math.sqrt(2) / n)


def directionality_at_chance(n: int) -> Chance:
    """0 and 3.4/√n; the factor 3.4 was found by simulation of Gaussian Wq and Wk."""
    return Chance(0.0, 3.4 / math.sqrt(n))


@dataclass(frozen=True, kw_only=True)
class ScoreSpec:
    """One score of a bilinear form M = Wq·Wkᵀ [d_model, d_model].

    name: its column. label: how figures and tables call it. low, high: its range. negative, positive: what the ends of
    the range mean, as the end of the sentence "the form is …". compute: the score of a form, NaN if it is undefined.
    chance: the score of random forms, for a d_model. chance_is_exact: whether chance follows from a proof; then the
    column `NAME_z` counts standard deviations above chance. source: the paper and its equation.
    """

    name: str
    label: str
    low: float = -1.0
    high: float = 1.0
    negative: str
    positive: str
    compute: Callable[[FormStatistics, ScoreOptions], float]
    chance: Callable[[int], Chance]
    chance_is_exact: bool = False
    source: str

    @property
    def axis_title(self) -> str:
        """The label with the meaning of both ends of the range, for an axis."""
        return f"{self.label} ({_number(self.low)} {self.negative}, {_number(self.high)} {self.positive})"

    def z(self, value: float, d_model: int) -> float:
        """How many standard deviations a score is above chance."""
        mean, deviation = self.chance(d_model)
        return (value - mean) / deviation


def _number(value: float) -> str:
    return f"{value:g}".replace("-", "−")


def _symmetry(form: FormStatistics, _: ScoreOptions) -> float:
    from attngeo.geometry import symmetry_of

    return float(symmetry_of(form))


def _directionality(form: FormStatistics, options: ScoreOptions) -> float:
    from attngeo.geometry import directionality_of

    return float(directionality_of(form, gamma=options.gamma, convention=options.convention))


PAPER = "Saponati et al. 2025 (arXiv 2502.10927)"

SCORES: dict[str, ScoreSpec] = {
    spec.name: spec
    for spec in (
        ScoreSpec(
            name="symmetry",
            label="symmetry",
            negative="skew-symmetric",
            positive="symmetric",
            compute=_symmetry,
            chance=symmetry_at_chance,
            chance_is_exact=True,
            source=f"{PAPER}, Def. 3.1 without its factor 2",
        ),
        ScoreSpec(
            name="directionality",
            label="directionality",
            negative="dominated by columns",
            positive="dominated by rows",
            compute=_directionality,
            chance=directionality_at_chance,
            source=f"{PAPER}, Def. 3.2",
        ),
    )
}


def score_names() -> tuple[str, ...]:
    """The names of all scores, in the order of the table."""
    return tuple(SCORES)


def z_columns() -> tuple[str, ...]:
    """The columns that count standard deviations above chance."""
    return tuple(f"{spec.name}_z" for spec in SCORES.values() if spec.chance_is_exact)


def number_columns() -> tuple[str, ...]:
    """The columns of scores and of their z; a reader of results files needs their names."""
    return (*score_names(), *z_columns())
