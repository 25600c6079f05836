"""The options of exponential family attention: keywords of the estimator, and further options of its commands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal, get_args

from attngeo.choices import advise, whole
from attngeo.errors import UsageError
from attngeo.estimators.shared import EstimatorOptions
from attngeo.estimators.shared.forms import FormOptions
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

Part = Literal["auto", "items", "values", "both"]
Kind = Literal["category", "categories", "number", "time"]
Model = Literal["efa", "fm"]
Direction = Literal["bi", "uni"]
Scale = Literal["width", "head"]
Weights = Literal["softmax", "linear", "relu"]
ValueEmbedding = Literal["network", "lookup", "identity"]
Readout = Literal["network", "last"]
Pooling = Literal["mean", "sum", "seen"]
Init = Literal["torch", "keras"]
Short = Literal["error", "keep"]
Distance = Literal["haversine", "euclidean"]
SimilarBy = Literal["probability", "vectors"]

# The command that saves a model.
MADE_BY = "attngeo efa fit --save"
# The folders of a model of both parts, each of which is a model of one.
MODEL_PARTS = ("items", "values")
# Family → how its number is written, if it has one.
FAMILY_FORMS = {
    "gaussian": "[:VARIANCE]",
    "poisson": "[:LEAST]",
    "poisson-from-1": "[:LEAST]",
    "bernoulli": "",
    "binomial": ":TOTAL_COUNT",
    "negative-binomial": ":TOTAL_COUNT",
    "gamma": ":CONCENTRATION",
    "ordinal": ":LEVELS",
}
# How alike a mistyped name of a family is to the right one, at least: "normal" and "binomial" have 0.71.
ALIKE = 0.75
# COLUMN or COLUMN:FAMILY, where the family may have a number after a further colon. They match any text.
VALUE = re.compile(r"(.+?|)(?::([A-Za-z][\w-]*(?::[^:A-Za-z][^:]*)?))?", re.DOTALL)
# COLUMN or COLUMN:KIND.
COVARIATE = re.compile(r"(.+?|)(?::([A-Za-z]+))?", re.DOTALL)
SHORT = "How to treat a sequence of one row, which no other row predicts: stop with an error, or keep it"


def _parse_units(units: Any) -> tuple[int, ...]:
    """Whole numbers from 1. Raises UsageError."""
    counts = units if isinstance(units, list | tuple) else [units]
    return tuple(whole("output_units", count, 1) for count in counts)


def _parse_pairs(columns: Any) -> Any:
    """Texts such as "rating:poisson"; in Python also a dictionary."""
    if isinstance(columns, dict):
        columns = [":".join(pair) for pair in columns.items()]
    return as_texts(columns)


class Architecture(Options):
    """The architecture of a model, beyond its sizes. Commands use the defaults, experiments the paper's choices.

    Raises UsageError for a value outside its limits.
    """

    longest: int | None = option(
        None, "Number of positions in the longest sequence", panel=MODEL, least=1, shown_default="as in the data"
    )
    head_size: int | None = option(
        None,
        "Size of the queries, keys and values of a head",
        panel=MODEL,
        least=1,
        shown_default="token size / heads, rounded down",
    )
    scale: Scale = option("width", "Divide products by the width, or by √(head size)", panel=MODEL)
    weights: Weights = option(
        "softmax",
        "Attention weights, from the products of queries and keys: their softmax; the products themselves (linear "
        "attention); or their positive part, divided by the number of tokens",
        panel=MODEL,
    )
    bias: bool = option(True, "Add a learned bias in the layers and in the network of coordinates", panel=MODEL)
    residual: bool = option(True, "Add the input of a layer to its output", panel=MODEL)
    norm: bool = option(False, "Normalise each layer", panel=MODEL)
    feed_forward: int = option(
        0, "Hidden units of the feed-forward layer after each attention layer; 0 for none", panel=MODEL, least=0
    )
    two_item_vectors: bool = option(
        True, "Include both the context vector and the center vector of the item in the token of a value", panel=MODEL
    )
    value_embedding: ValueEmbedding = option(
        "network",
        "How a value becomes a vector: by a network; by lookup in a table with one vector per whole number from 0 "
        "(values are rounded down); or identity, the value itself, with 0 for a masked one",
        panel=MODEL,
    )
    join: int = option(
        0, "Hidden units of a network between tokens and the first layer; 0 for none", panel=MODEL, least=0
    )
    output_units: Sequence[int] = option(
        (32,), "Hidden units of the output network, layer by layer", panel=MODEL, parse=_parse_units, repeated=True
    )
    readout: Readout = option(
        "network",
        "How to read the family's parameter: through the output network, or as the last number of the token",
        panel=MODEL,
    )
    pooling: Pooling = option(
        "mean",
        "Divisor of the sum of a context in the factor model: the length minus 1 (mean), 1 (sum), or the number of "
        "visible rows (seen)",
        panel=MODEL,
    )
    start: bool = option(False, "Add a learned vector to the sums of the factor model of items", panel=MODEL)
    init: Init = option("torch", "Initial parameters: as in torch's modules, or as in Keras", panel=MODEL)


class EfaOptions(EstimatorOptions):
    """Options for the columns of a table, the model and its training. Raises UsageError."""

    sequence: str = option(
        "sequence", "Column with the sequence, such as a basket, a user or a day", panel=INPUT, metavar="COLUMN"
    )
    position: str | None = option(
        None,
        "Column that orders the rows of a sequence",
        panel=INPUT,
        metavar="COLUMN",
        shown_default="position, if the table has it",
    )
    item: str = option(
        "item", "Column with the item, such as a product, a movie or a city", panel=INPUT, metavar="COLUMN"
    )
    value: Sequence[str] = option(
        ("value",),
        "Column with the value, such as a count or a rating, and its family",
        panel=INPUT,
        metavar="COLUMN[:FAMILY]",
        parse=_parse_pairs,
        repeated=True,
        shown_default="value",
    )
    covariates: Sequence[str] = option(
        (),
        "Column with another fact about a row, and its kind: category, categories (Drama|War), number or time",
        panel=INPUT,
        metavar="COLUMN[:KIND]",
        parse=_parse_pairs,
        repeated=True,
    )
    coordinates: Sequence[str] = option(
        (), "Column with a coordinate", panel=INPUT, metavar="COLUMN", parse=as_texts, repeated=True
    )
    lags: Sequence[str] = option(
        (),
        "Column with the row's own value at an earlier time; for several, give the latest first",
        advanced=True,
        panel=INPUT,
        metavar="COLUMN",
        parse=as_texts,
        repeated=True,
    )
    short: Short = option("error", SHORT, advanced=True, panel=INPUT)
    part: Part = option(
        "auto",
        "What to model: the items of a sequence, the values of its items, or both",
        panel=MODEL,
        shown_default="values, if the table has them",
    )
    family: str | None = option(
        None,
        "Family of the value columns that name none: gaussian, poisson (poisson:1 for rates above 1), poisson-from-1, "
        "bernoulli, binomial:N, negative-binomial:N, gamma:CONCENTRATION or ordinal:LEVELS (from 0 to LEVELS − 1)",
        panel=MODEL,
        metavar="FAMILY",
        shown_default="gaussian, if there is one value column",
    )
    model: Model = option("efa", "Exponential family attention, or the latent factor model", advanced=True, panel=MODEL)
    direction: Direction = option("bi", "What each position sees: all others, or only those before it", panel=MODEL)
    order: bool | None = option(
        None,
        "Give each position a vector; without it, the order of rows has no effect with direction bi",
        advanced=True,
        panel=MODEL,
        shown_default="if a column orders the rows, or with direction uni",
    )
    repeats: bool | None = option(
        None,
        "Let an item occur more than once in a sequence; without it, the items that a row sees have probability 0",
        advanced=True,
        panel=MODEL,
        shown_default="if one does in the training rows",
    )
    width: int = option(32, "Size of an embedding", panel=MODEL, least=1)
    n_layers: int = option(1, "Number of attention layers", panel=MODEL, flags=("--layers",), least=1, most=1000)
    n_heads: int = option(2, "Number of attention heads", advanced=True, panel=MODEL, flags=("--heads",), least=1)
    item_vectors: bool = option(
        True, "Include vectors of the item in the token of a value, if rows have items", advanced=True, panel=MODEL
    )
    standardize: bool = option(
        True,
        "Scale values and coordinates to mean 0 and standard deviation 1 inside the model, and start predictions at "
        "the mean",
        advanced=True,
        panel=MODEL,
    )
    window: int | None = option(
        None,
        "Number of positions on each side that the factor model of items or their values sums over",
        advanced=True,
        panel=MODEL,
        least=1,
        shown_default="all others",
    )
    n_neighbors: int | None = option(
        None,
        "Number of nearest places that the factor model sums over",
        advanced=True,
        panel=MODEL,
        least=1,
        shown_default="all others",
    )
    distance: Distance = option(
        "haversine",
        "Distance between places: great-circle (latitude and longitude), or straight-line",
        advanced=True,
        panel=MODEL,
    )
    learning_rate: float = option(3e-3, "Learning rate of Adam", panel=OPTIMISATION, flags=("--lr",), least=0)
    weight_decay: float = option(0.0, "Weight decay of AdamW; 0 is Adam", advanced=True, panel=OPTIMISATION, least=0)
    averaging: float = option(
        0.995,
        "Decay of the running average of the weights, which the fitted model uses; 0 for no averaging",
        advanced=True,
        panel=OPTIMISATION,
        least=0,
        most=0.9999,
    )
    context_dropout: float | None = option(
        None,
        "Fraction of the rows to hide at random from the other rows during training, for attention",
        advanced=True,
        panel=OPTIMISATION,
        least=0,
        most=0.9,
        shown_default="0.3 for items, 0 for values",
    )
    batch_size: int = option(32, "Sequences per batch", advanced=True, panel=OPTIMISATION, least=1)
    patience: int | None = option(
        10,
        "Stop after this number of epochs without a lower loss on held-out sequences; 0 never stops",
        advanced=True,
        panel=OPTIMISATION,
        least=0,
    )
    validation_fraction: float = option(
        0.2,
        "Fraction of the sequences to hold out if there is no validation table",
        advanced=True,
        panel=OPTIMISATION,
        least=0,
        most=0.9,
    )
    random_state: int = option(
        0,
        "Seed of the initial weights, the batches and the held-out sequences",
        panel=OPTIMISATION,
        flags=("--seed",),
        least=0,
        most=2**32 - 1,
    )
    precision: Precision = option("fp32", "Precision of the products", advanced=True, panel=RUNNING)

    def _check(self) -> None:
        if not self.value:
            raise UsageError("$value names no column, expected one or more", "value")
        predicted = self.families.keys()
        columns_of_options: dict[str, Sequence[str]] = {
            "value": list(_split(VALUE, self.value)),
            "coordinates": self.coordinates,
            "lags": self.lags,
            "covariates": list(self.kinds),
        }
        others = {self.item, self.position}
        for name, columns in columns_of_options.items():
            texts = tuple(getattr(self, name))
            object.__setattr__(self, name, texts)  # a file has a list
            both = predicted & set(columns)
            if name != "value" and both:
                raise UsageError(f"${name} has {min(both)!r}, the predicted column; name another one", name)
            if len(set(columns)) < len(texts):
                raise UsageError(f"${name} names a column twice: {', '.join(texts)}; name each once", name)
            others.update(columns)
        for name, column, used in (("sequence", self.sequence, others), ("item", self.item, self.kinds)):
            if column in used:
                raise UsageError(f"${name} is {column!r}, which another option names, too; name another column", name)

    @property
    def families(self) -> dict[str, str]:
        """Value column → text of its family. Raises UsageError if a column has none."""
        stated = _split(VALUE, self.value)
        without = [column for column, family in stated.items() if family is None]
        if without and self.family is None and len(stated) > 1:
            raise UsageError(
                f"$value has {without[0]!r} without a family, expected COLUMN:FAMILY for each of several values, such "
                f"as {without[0]}:gaussian; or set $family for those without one",
                "value",
                "family",
            )
        return {column: family or self.family or "gaussian" for column, family in stated.items()}

    @property
    def kinds(self) -> dict[str, Kind | None]:
        """Covariate column → its kind, or None if the cells decide. Raises UsageError."""
        kinds: dict[str, Any] = _split(COVARIATE, self.covariates)
        for column, kind in kinds.items():
            if kind not in (None, *get_args(Kind)):
                problem = f"$covariates has {column!r} of kind {kind!r}"
                raise UsageError(f"{problem}; {advise(kind, get_args(Kind))}", "covariates")
        return kinds

    @property
    def causal(self) -> bool:
        """Whether a position sees only those before it."""
        return self.direction == "uni"

    @property
    def may_be_alone(self) -> bool:
        """Whether sequences of one row are allowed."""
        return self.short == "keep" or self.causal

    def has_order(self, position: str | None) -> bool:
        """Whether the order of rows has an effect. position: as for `gives_vectors`."""
        return self.gives_vectors(position) or self.causal or self.window is not None

    def gives_vectors(self, position: str | None) -> bool:
        """Whether each position has a vector. position: the column that orders the rows, if there is one.

        Unless `order` is set, they have vectors if a column orders the rows, and in one direction.
        """
        if self.model != "efa":
            return False
        if self.order is not None:
            return self.order
        return position is not None or self.causal


def check_family(text: str, option: str = "family") -> None:
    """Raise UsageError unless a text such as "gaussian:2" begins with the name of a family. option: that states it."""
    name = text.partition(":")[0]
    if name not in FAMILY_FORMS:
        expected = f"expected one of: {', '.join(name + form for name, form in FAMILY_FORMS.items())}"
        advice = advise(name, FAMILY_FORMS, expected, alike=ALIKE)
        raise UsageError(f"{describe_family(text, option)}; {advice}", option)


def describe_family(text: str, option: str) -> str:
    """The start of an error about a family. option: that states it."""
    return f"${option} {'is' if option == 'family' else 'has the family'} {text!r:.60}"


def _split(pattern: re.Pattern[str], texts: Sequence[str]) -> dict[str, str | None]:
    """The family or kind that each text has after its column, by column; None for a text that is a column only."""
    matches = (pattern.fullmatch(text) for text in texts)
    return {match[1]: match[2] for match in matches if match}


class EfaFitOptions(FormOptions, EfaOptions):
    """Options for fitting a model to a file, measuring it and saving it. Raises UsageError."""

    validation: str | None = option(
        None, "File with the validation rows; without it, some sequences are held out", panel=INPUT, metavar="FILE"
    )
    test: str | None = option(None, "File with rows to measure the fitted model on", panel=INPUT, metavar="FILE")
    missing: Sequence[str] | None = missing_option()
    save: str | None = option(
        None,
        "Save the model to a new folder, for the other commands and for attngeo score",
        panel=RESULTS,
        metavar="FOLDER",
    )
    resume: str | None = option(
        None,
        "Keep the state of an unfinished training run in FOLDER; the same command resumes it",
        panel=RESULTS,
        metavar="FOLDER",
    )

    def _check(self) -> None:
        for family in self.families.values():
            check_family(family, "family" if family == self.family else "value")


class EfaPredictOptions(FormOptions):
    """Options for predicting the rows of a file: its form, and the device. Raises UsageError."""

    missing: Sequence[str] | None = missing_option("as fitted")
    short: Short | None = option(None, SHORT, panel=INPUT, shown_default="as in fit")
    device: str = device_option()


class EfaSampleOptions(Options):
    """Options for drawing from a fitted model. Raises UsageError."""

    sequences: int | None = option(None, "Number of sequences to draw", panel=COMPUTATION, least=1, shown_default="1")
    length: int | None = option(
        None, "Items per sequence", panel=COMPUTATION, least=1, shown_default="as many as in training"
    )
    sweeps: int = option(20, "Sweeps over all positions, for a model of direction bi", panel=COMPUTATION, least=1)
    seed: int = option(0, "Seed", panel=COMPUTATION, least=0)


class EfaDrawOptions(FormOptions, EfaSampleOptions):
    """Options for drawing from a saved model. Raises UsageError."""

    data: str | None = option(
        None,
        "Table of sequences, for a model of values or with covariates; the columns that the model predicts are drawn",
        panel=INPUT,
        metavar="DATA",
    )


class EfaSimilarOptions(Options):
    """Options for ranking the items that go with another item. Raises UsageError."""

    by: SimilarBy | None = option(
        None,
        "Rank by p(item | ITEM) / p(item): items that occur together (probability); or by products δ·β: items that "
        "the model treats alike, even if they never occur together (vectors)",
        panel=COMPUTATION,
        shown_default="probability, for a model of items without covariates",
    )
    top: int = option(10, "Number of items to list", panel=COMPUTATION, metavar="N", least=1)
