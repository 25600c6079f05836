"""The options of the classifier and of the commands that fit it and predict by it, and the names of all methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

from attngeo.choices import advise
from attngeo.errors import UsageError
from attngeo.estimators.shared import EstimatorOptions
from attngeo.estimators.shared.forms import FormOptions
from attngeo.options import (
    COMPUTATION,
    INPUT,
    MODEL,
    OPTIMISATION,
    RESULTS,
    as_texts,
    missing_option,
    option,
)

# The methods for a table, as the paper's tables call them: the baselines, and attention.
METHOD_LABELS = {"lr": "LR", "rf": "RF", "gb": "GB", "mlp": "MLP", "atn": "ATN"}
OURS = "atn"
# The command that saves a model.
MADE_BY = "attngeo tabular fit --save"
Vocabulary = Literal["column", "shared"]
Kind = Literal["number", "category", "date", "day-month", "month-day"]
Unseen = Literal["category", "error", "mask"]
UNSEEN = (
    "How to treat a value that is not in the training rows: as a category of its own, as an error, or as missing (mask)"
)


def least_rows_option(default: int) -> Any:
    """The option `min_frequency`."""
    return option(
        default,
        "Minimum training rows per category; rarer values count as unseen",
        advanced=True,
        panel=COMPUTATION,
        least=1,
    )


def batch_option(default: int | None, shown: str | None = None) -> Any:
    """The option `batch_size`."""
    return option(
        default,
        "Masked copies of rows per batch",
        advanced=True,
        panel=OPTIMISATION,
        least=1,
        shown_default=shown,
    )


def epoch_option(default: int | None) -> Any:
    """The option `epoch_cells`."""
    return option(
        default,
        "Maximum cells to mask per epoch, labels first; without it, every cell is masked",
        advanced=True,
        panel=OPTIMISATION,
        least=1,
    )


def hidden_option(default: float, shown: str | None = None) -> Any:
    """The option `hidden_share`."""
    return option(
        default,
        "Largest share of the row's other cells to mask as well; each masked copy of a row draws its own share",
        panel=OPTIMISATION,
        least=0,
        most=1,
        shown_default=shown,
    )


def validation_option(default: float) -> Any:
    """The option `validation_fraction`."""
    return option(
        default,
        "Fraction of the training rows to hold out for early stopping",
        advanced=True,
        panel=OPTIMISATION,
        least=0,
        most=0.9,
    )


def patience_option() -> Any:
    """The option `patience`."""
    return option(
        None,
        "Stop after this number of epochs without a lower loss on held-out rows; 0 never stops",
        advanced=True,
        panel=OPTIMISATION,
        least=0,
        shown_default="3 to 10, depending on the held-out rows",
    )


class ClassifierOptions(EstimatorOptions):
    """Options of `AttentionClassifier`; the defaults follow the published run."""

    n_heads: int = option(5, "Number of attention heads", panel=MODEL, flags=("--heads",), least=1)
    head_size: int = option(4, "Size of a head", advanced=True, panel=MODEL, least=1)
    feed_forward: int = option(5, "Hidden units of the feed-forward layer", advanced=True, panel=MODEL, least=1)
    dropout: float = option(0.1, "Dropout probability", panel=MODEL, least=0, most=0.99)
    vocabulary: Vocabulary = option(
        "column",
        "Category vectors: one set per column, or one set that all columns share by category number",
        advanced=True,
        panel=MODEL,
    )
    n_bins: int = option(
        10,
        "Number of bins for a numeric column with fractions, or with more values than this",
        panel=COMPUTATION,
        flags=("--bins",),
        least=2,
    )
    min_frequency: int = least_rows_option(1)
    unseen: Unseen = option("error", UNSEEN, panel=COMPUTATION)
    batch_size: int | None = batch_option(128)
    epoch_cells: int | None = epoch_option(None)
    hidden_share: float = hidden_option(0.0)
    validation_fraction: float = validation_option(0.0)
    patience: int | None = patience_option()
    random_state: int | None = option(
        None, "Seed of all random numbers", panel=OPTIMISATION, flags=("--seed",), least=0, most=2**32 - 1
    )

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the network."""
        return {"heads": self.n_heads, "head_size": self.head_size, "feed_forward": self.feed_forward}

    def _check(self) -> None:
        if self.patience and not self.validation_fraction:
            if "patience" in self.model_fields_set:
                raise UsageError(
                    "$patience requires held-out rows; set $validation_fraction, for example to 0.1",
                    "patience",
                    "validation_fraction",
                )
            object.__setattr__(self, "patience", None)


def check_methods(names: Iterable[str] | str) -> tuple[str, ...]:
    """The names of a list such as "lr,rf", each once. Raises UsageError with the nearest name for an unknown one."""
    if isinstance(names, str):
        names = names.split(",")
    methods = tuple(dict.fromkeys(str(name).strip().lower() for name in names))
    for method in methods:
        if method not in METHOD_LABELS:
            advice = advise(method, METHOD_LABELS)
            raise UsageError(f"$methods has the unknown method {method!r:.60}; {advice}", "methods")
    return methods


def _split_names(names: Any) -> Any:
    return tuple(names.split(",")) if isinstance(names, str) else as_texts(names)


def _split_types(texts: Any) -> Any:
    """Texts such as "year:category" as a dict of kinds. Raises UsageError."""
    if isinstance(texts, Mapping):
        return dict(texts)
    kinds: dict[str, str] = {}
    for text in as_texts(texts):
        name, colon, kind = str(text).rpartition(":")
        if not colon or not name or kind not in get_args(Kind):
            raise UsageError(
                f"$column_types is {text!r:.60}, expected COLUMN:KIND with one of the kinds: "
                f"{', '.join(get_args(Kind))}",
                "column_types",
            )
        kinds[name] = kind
    return kinds


def methods_option(example: str) -> Any:
    """The option `methods` of a command that compares them."""
    return option(
        None,
        f"Methods to compare, for example {example}",
        panel=INPUT,
        metavar="LIST",
        parse=_split_names,
        shown_default="all",
    )


class RowsOptions(FormOptions):
    """Options for reading the rows of a file for a saved model. Raises UsageError."""

    missing: Sequence[str] | None = missing_option("as fitted")
    unseen: Unseen | None = option(None, UNSEEN, panel=COMPUTATION, shown_default="as fitted")


class PredictOptions(RowsOptions):
    """Options for predicting the rows of a file with a saved model. Raises UsageError."""

    attention_output: str | None = option(
        None,
        "Write the attention between the cells of each row to FILE, for attngeo plot row-attention",
        panel=RESULTS,
        metavar="FILE",
    )


class FitOptions(FormOptions, ClassifierOptions):
    """Options for fitting methods to a table, measuring them and saving the attention model. Raises UsageError."""

    target: str | None = option(
        None,
        "Column to predict; without it, attention predicts each column from the others",
        panel=INPUT,
        metavar="COLUMN",
    )
    test: str | None = option(
        None, "File with the test rows; without it, some rows are held out", panel=INPUT, metavar="FILE"
    )
    test_size: float = option(
        0.25, "Fraction of the rows to hold out for testing, without --test", panel=INPUT, least=0.01, most=0.99
    )
    missing: Sequence[str] | None = missing_option()
    columns: Sequence[str] | None = option(
        None,
        "Columns to use, besides the target",
        panel=INPUT,
        metavar="LIST",
        parse=_split_names,
        shown_default="all but those that identify rows",
    )
    drop: Sequence[str] = option((), "Columns to leave out", panel=INPUT, metavar="LIST", parse=_split_names)
    column_types: dict[str, Kind] = option(
        {},
        "Kind of a column: number, category, date, day-month or month-day (dates such as 01/02/2023)",
        panel=INPUT,
        flags=("--column-type",),
        metavar="COLUMN:KIND",
        parse=_split_types,
        repeated=True,
        shown_default="detected from its cells",
    )
    methods: Sequence[str] | None = methods_option("atn,lr")
    # A user's table is larger than those of the paper, and has cells that are in no other row.
    unseen: Unseen = option("category", UNSEEN, panel=COMPUTATION)
    min_frequency: int = least_rows_option(5)
    learning_rate: float = option(5e-3, "Learning rate of Adam", panel=OPTIMISATION, flags=("--lr",), least=0)
    batch_size: int | None = batch_option(None, "128 to 1024, depending on the rows")
    epoch_cells: int | None = epoch_option(50_000)
    hidden_share: float = hidden_option(0.5, "0.5; 0 with --target")
    validation_fraction: float = validation_option(0.1)
    random_state: int = option(
        0, "Seed of all random numbers", panel=OPTIMISATION, flags=("--seed",), least=0, most=2**32 - 1
    )

    save: str | None = option(
        None, "Save the attention model to a new folder, for attngeo tabular predict", panel=RESULTS, metavar="FOLDER"
    )

    def _check(self) -> None:
        methods = (OURS,) if self.target is None else tuple(METHOD_LABELS)
        if self.methods:
            methods = check_methods(self.methods)
        object.__setattr__(self, "methods", methods)
        # Labels gain nothing by rows with hidden cells.
        if self.target is not None and "hidden_share" not in self.model_fields_set:
            object.__setattr__(self, "hidden_share", 0.0)
        if self.target is None and methods != (OURS,):
            raise UsageError(
                f"$methods requires $target: without a target, {OURS} predicts each column",
                "methods",
                "target",
            )
        if OURS not in methods and self.save is not None:
            raise UsageError(f"$save requires {OURS} among the methods; others cannot be saved", "save")
