"""The options of exponential family attention: the keywords of the estimator, and what its commands add to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from attngeo.choices import whole
from attngeo.errors import UsageError
from attngeo.estimators.shared import EstimatorOptions
from attngeo.options import (
    COMPUTATION,
    INPUT,
    MODEL,
    OPTIMISATION,
    RESULTS,
    RUNNING,
    Options,
    as_texts,
    device_option,
    missing_option,
    option,
)
from attngeo.training import Precision

Part = Literal["auto", "items", "values"]
Model = Literal["efa", "fm"]
Direction = Literal["bi", "uni"]
Scale = Literal["width", "head"]
Embedding = Literal["network", "truncated"]
Pooling = Literal["mean", "sum", "seen"]
Init = Literal["torch", "keras"]
Short = Literal["error", "keep"]
Distance = Literal["haversine", "euclidean"]

SHORT = "What to do with a sequence of one row, which no other row predicts: stop, or keep it"


def _parse_units(units: Any) -> tuple[int, ...]:
    """Whole numbers from 1. Raises UsageError."""
    return tuple(whole("head", count, 1) for count in (units if isinstance(units, list | tuple) else (units,)))


class Architecture(Options):
    """How a model is built, beyond its sizes. Commands have the default one; experiments have those of the paper.

    Raises UsageError for a value outside its limits.
    """

    longest: int | None = option(None, "Most positions of a sequence; as in the data", panel=MODEL, least=1)
    head_size: int | None = option(None, "Size of a head; numbers of a token / heads, rounded down", panel=MODEL,
                                   least=1)  # fmt: skip
    scale: Scale = option("width", "Products are divided by the width, or by √(head size)", panel=MODEL)
    residual: bool = option(True, "Add the input of a layer to its output", panel=MODEL)
    norm: bool = option(False, "Normalise each layer", panel=MODEL)
    feed_forward: int = option(0, "Hidden units of a feed-forward layer after each attention; 0 for none", panel=MODEL,
                               least=0)  # fmt: skip
    both: bool = option(True, "Give tokens of values two vectors of the item, or one", panel=MODEL)
    embedding: Embedding = option(
        "network", "How values enter: through a network, or by a vector for each whole number from 0, without "
        "fractions", panel=MODEL,
    )  # fmt: skip
    join: int = option(0, "Hidden units through which each token goes first; 0 for none", panel=MODEL, least=0)
    head: Sequence[int] = option(
        (32,), "Hidden units before the parameter of the family", panel=MODEL, parse=_parse_units, repeated=True
    )
    pooling: Pooling = option(
        "mean", "What the factor model divides the sum of a context by: the length less 1, 1, or how many are seen",
        panel=MODEL,
    )  # fmt: skip
    start: bool = option(False, "Let the factor model have a vector of its own for the start", panel=MODEL)
    init: Init = option("torch", "How parameters start: as torch's modules, or as those of Keras", panel=MODEL)


class EfaOptions(EstimatorOptions):
    """The columns of a table, what is modelled, and how the model is trained. Raises UsageError."""

    sequence: str = option("sequence", "Column of the sequence: a basket, a user, a day", panel=INPUT, metavar="COLUMN")
    position: str | None = option(
        None, "Column that orders the rows of a sequence", panel=INPUT, metavar="COLUMN",
        shown_default="position, if the table has it",
    )  # fmt: skip
    item: str = option("item", "Column of the item: a product, a movie, a city", panel=INPUT, metavar="COLUMN")
    value: str = option("value", "Column of the value: a count, a rating", panel=INPUT, metavar="COLUMN")
    coordinates: Sequence[str] = option(
        (), "Column of a coordinate; may be repeated", panel=INPUT, metavar="COLUMN", parse=as_texts, repeated=True
    )
    lags: Sequence[str] = option(
        (), "Column of the value at an earlier time, the latest first; not of another row of the sequence; may be "
        "repeated", advanced=True, panel=INPUT, metavar="COLUMN", parse=as_texts, repeated=True,
    )  # fmt: skip
    short: Short = option("error", SHORT, advanced=True, panel=INPUT)
    part: Part = option(
        "auto", "What is modelled: the items of a sequence, or the values of its items", panel=MODEL,
        shown_default="values, if the table has them",
    )  # fmt: skip
    family: str = option(
        "gaussian", "Family of values: gaussian, poisson (poisson:1 for rates above 1), poisson-from-1, bernoulli, "
        "binomial:N, negative-binomial:N, gamma:CONCENTRATION or ordinal:LEVELS (values from 0 to LEVELS − 1)",
        panel=MODEL, metavar="FAMILY",
    )  # fmt: skip
    model: Model = option("efa", "Exponential family attention, or the latent factor model", advanced=True, panel=MODEL)
    direction: Direction = option("bi", "What a position sees: all others, or those before it", panel=MODEL)
    order: bool | None = option(
        None, "Give each position a vector; without it, and with direction bi, the order of rows has no effect",
        advanced=True, panel=MODEL, shown_default="if a column orders the rows, or with direction uni",
    )  # fmt: skip
    width: int = option(32, "Numbers of an embedding", panel=MODEL, least=1)
    n_layers: int = option(2, "Layers of attention", panel=MODEL, flags=("--layers",), least=1)
    n_heads: int = option(2, "Heads of attention", advanced=True, panel=MODEL, flags=("--heads",), least=1)
    item_vectors: bool = option(
        True, "Give tokens of values a vector of their item, if there are items", advanced=True, panel=MODEL
    )
    standardise: bool = option(
        True, "Scale values and coordinates to mean 0 and deviation 1 inside the model, and start at their mean",
        advanced=True, panel=MODEL,
    )  # fmt: skip
    neighbours: int | None = option(
        None, "Nearest places that the factor model adds up", advanced=True, panel=MODEL, least=1,
        shown_default="all others",
    )  # fmt: skip
    distance: Distance = option(
        "haversine", "Distance of places: of latitude and longitude, or straight", advanced=True, panel=MODEL
    )
    weight_decay: float = option(0.0, "Weight decay of AdamW; 0 is Adam", advanced=True, panel=OPTIMISATION, least=0)
    batch_size: int = option(32, "Sequences in a batch", panel=OPTIMISATION, least=1)
    patience: int | None = option(
        10, "Stop after this number of epochs without a lower loss on held-out sequences; 0 never stops",
        advanced=True, panel=OPTIMISATION, least=0,
    )  # fmt: skip
    validation_fraction: float = option(
        0.2, "Fraction of the sequences that are held out, without validation data", advanced=True, panel=OPTIMISATION,
        least=0, most=0.9,
    )  # fmt: skip
    random_state: int = option(
        0, "Seed of the start, the batches and the held-out sequences", panel=OPTIMISATION, flags=("--seed",), least=0,
        most=2**32 - 1,
    )  # fmt: skip
    precision: Precision = option("fp32", "Precision of the products", advanced=True, panel=RUNNING)

    def _check(self) -> None:
        for name in ("coordinates", "lags"):
            columns = tuple(getattr(self, name))
            object.__setattr__(self, name, columns)  # a file has a list
            if self.value in columns:
                raise UsageError(f"${name} has {self.value!r}, the column that is predicted; name another one", name)
            if len(set(columns)) < len(columns):
                raise UsageError(f"${name} has a column twice: {', '.join(columns)}; name each once", name)
        others = (self.position, self.item, self.value, *self.coordinates, *self.lags)
        if self.sequence in others:
            raise UsageError(
                f"$sequence is {self.sequence!r}, which is a column of another option, too; name another one",
                "sequence",
            )

    @property
    def causal(self) -> bool:
        """Whether a position sees only those before it."""
        return self.direction == "uni"

    @property
    def may_be_alone(self) -> bool:
        """Whether a sequence of one row is read."""
        return self.short == "keep" or self.causal

    def gives_vectors(self, position: str | None) -> bool:
        """Whether each position has a vector. position: the column that orders the rows, if there is one.

        Rows that are asked for in one direction are in an order, too.
        """
        has_order = position is not None or self.causal
        return self.model == "efa" and (has_order if self.order is None else self.order)


class EfaFitOptions(EfaOptions):
    """What is fitted to a table, how it is measured, and what is kept. Raises UsageError."""

    validation: str | None = option(
        None, "File of the validation rows; without it, some sequences are held out", panel=INPUT, metavar="FILE"
    )
    test: str | None = option(None, "File of rows that the fitted model is measured on", panel=INPUT, metavar="FILE")
    missing: Sequence[str] | None = missing_option()
    save: str | None = option(
        None, "Save the model to a new folder, for the other commands and for attngeo score", panel=RESULTS,
        metavar="FOLDER",
    )  # fmt: skip
    resume: str | None = option(
        None, "Keep the state of an unfinished training there; the same command resumes it", panel=RESULTS,
        metavar="FOLDER",
    )  # fmt: skip


class EfaPredictOptions(Options):
    """How a file is read that a saved model predicts, and where. Raises UsageError."""

    missing: Sequence[str] | None = missing_option()
    short: Short | None = option(None, SHORT, panel=INPUT, shown_default="as in fit")
    device: str = device_option()


class EfaSampleOptions(Options):
    """What is drawn from a fitted model. Raises UsageError."""

    sequences: int | None = option(None, "Sequences of items", panel=COMPUTATION, least=1, shown_default="1")
    length: int | None = option(
        None, "Items of a sequence", panel=COMPUTATION, least=1, shown_default="as many as in training"
    )
    sweeps: int = option(20, "Sweeps over all positions, for a model of both directions", panel=COMPUTATION, least=1)
    seed: int = option(0, "Seed", panel=COMPUTATION, least=0)


class EfaDrawOptions(EfaSampleOptions):
    """What is drawn from a saved model. Raises UsageError."""

    data: str | None = option(
        None, "Table of sequences whose values are drawn, for a model of values", panel=INPUT, metavar="DATA"
    )
