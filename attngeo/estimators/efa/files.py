"""A user's own tables: a model is fitted to one, saved and measured; a saved model predicts the rows of one."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attngeo.errors import TableError, UsageError
from attngeo.estimators.efa.options import EfaOptions, Short
from attngeo.estimators.shared.files import SUFFIXES, list_texts, read_own_table
from attngeo.options import INPUT, Options, device_option, missing_option, option, options_of
from attngeo.progress import Progress, ProgressCallback, ignore_progress

if TYPE_CHECKING:
    import pandas as pd

    from attngeo.estimators.efa.estimator import ExponentialFamilyAttention

COLUMNS = (
    "data", "part", "model", "direction", "family", "seed", "sequences", "rows", "log_prob", "without_context",
    "without_repeats",
)  # fmt: skip


class EfaFitOptions(EfaOptions):
    """What is fitted to a table, and how it is measured. Raises UsageError."""

    validation: str | None = option(
        None, "File of the validation rows; without it, some sequences are held out", panel=INPUT, metavar="FILE"
    )
    test: str | None = option(None, "File of rows that the fitted model is measured on", panel=INPUT, metavar="FILE")
    missing: Sequence[str] | None = missing_option()


class EfaPredictOptions(Options):
    """How a file is read that a saved model predicts, and where. Raises UsageError."""

    missing: Sequence[str] | None = missing_option()
    short: Short | None = option(
        None, "What to do with a sequence of one row, which no other row predicts: stop, or keep it", panel=INPUT,
        shown_default="as in fit",
    )  # fmt: skip
    device: str = device_option()


class OwnEfa(NamedTuple):
    """The scores of a fitted model on each table, and the model."""

    rows: pd.DataFrame
    model: ExponentialFamilyAttention


def fit_own_sequences(
    path: str,
    options: EfaFitOptions,
    *,
    folder: str | None = None,
    save: str | Path | None = None,
    progress: ProgressCallback = ignore_progress,
) -> OwnEfa:
    """Fit a model to the rows of a file, save it, and measure it.

    Rows: `COLUMNS`; data is train, held-out or validation, and test, log_prob the mean of a row, constants of the
    family included, and without_context that of the best distribution that does not see the other rows: one of the
    family for each item, learned from training rows. without_repeats, for items that occur once in a sequence, is that
    of their frequencies among the items that the context does not have. folder: keeps the state of an unfinished
    training. save: folder of the fitted model. Raises as `ExponentialFamilyAttention.fit` and `save`, and
    DataUnavailableError or TableError for files that cannot be read.
    """
    import pandas as pd

    from attngeo.estimators.efa.columns import HELD_OUT, TEST, TRAINING
    from attngeo.estimators.efa.estimator import ExponentialFamilyAttention

    paths = {TRAINING: path, HELD_OUT: options.validation, TEST: options.test}
    frames: dict[str, pd.DataFrame] = {}
    for source, file in paths.items():
        if file:
            frames[source] = _read_with(file, options, frames.get(TRAINING))
    own = {name: getattr(options, name) for name in options_of(EfaOptions)}
    model = ExponentialFamilyAttention.from_options(EfaOptions(**own))
    with _naming(paths):
        model.fit(
            frames[TRAINING], validation=frames.get(HELD_OUT), test=frames.get(TEST), folder=folder, progress=progress
        )
    if save is not None:
        model.save(save)
        scores = f", and attngeo score {save} scores its attention" if options.model == "efa" else ""
        progress(Progress("note", f"{save}: saved; attngeo efa predict {save} DATA uses it{scores}"))
    about = {
        "part": model.part_, "model": options.model, "direction": options.direction,
        "family": "categorical" if model.part_ == "items" else options.family, "seed": options.seed,
    }  # fmt: skip
    rows = [{"data": name, **about, **measured._asdict()} for name, measured in model.measure_fit().items()]
    return OwnEfa(pd.DataFrame(rows, columns=list(COLUMNS)), model)


def _read_with(path: str, options: EfaFitOptions, train: pd.DataFrame | None) -> pd.DataFrame:
    """The rows of a file. train: the training table, as whose items those of other files are read."""
    if train is None or options.item not in train:
        return read_own_table(path, options.missing, codes=[options.sequence, options.item])
    items = [options.item] if options.item in list_texts(train) else []
    return read_own_table(path, options.missing, texts=items, codes=[options.sequence])


def predict_file(folder: str | Path, path: str, options: EfaPredictOptions = EfaPredictOptions()) -> pd.DataFrame:
    """`predict_own_rows` of a saved model and a file. Raises as they and their readers do."""
    from attngeo.estimators.efa.columns import TABLE
    from attngeo.estimators.efa.estimator import ExponentialFamilyAttention

    model = ExponentialFamilyAttention.load(folder)
    short = options.short or model.options_.short
    model.options_ = model.options_.replace(device=options.device, short=short)
    with _naming({TABLE: path}):
        return predict_own_rows(model, read_like(model, path, options.missing))


def predict_own_rows(model: ExponentialFamilyAttention, frame: pd.DataFrame) -> pd.DataFrame:
    """The rows, with log_prob, and predicted_mean for values, or predicted_item and probability for items.

    Rows whose value or item is missing are predicted from the others, and have no log_prob. Columns of these names are
    replaced.
    """
    from attngeo.estimators.efa.columns import keep_whole

    table, item = frame.reset_index(drop=True), model.options_.item
    if model.items_ and item in table:
        table = table.assign(**{item: keep_whole(table[item])})
    predicted = model.predict(table).rename(columns={"mean": "predicted_mean", "item": "predicted_item"})
    log_prob = model.log_prob_of_known(table)
    return table.assign(log_prob=log_prob, **{str(name): predicted[name] for name in predicted}).set_axis(frame.index)


def find_item(model: ExponentialFamilyAttention, text: str) -> Any:
    """The item that a text of the command line names. Raises UsageError."""
    for item in model.items_:
        if str(item) == text:
            return item
    if not model.items_:
        raise UsageError("the model has no items; it was fitted to values of places")
    near = get_close_matches(text, [str(item) for item in model.items_], 1)
    advice = f"did you mean {near[0]}?" if near else f"expected one of {len(model.items_):,} items"
    raise UsageError(f"$item is {text!r:.60}, which the model was not fitted to; {advice}", "item")


def read_basket(model: ExponentialFamilyAttention, text: str) -> pd.DataFrame:
    """The rows of a file; or items with commas between them, as one sequence. Raises UsageError, TableError.

    An item that has a comma is in quotation marks.
    """
    import pandas as pd

    if text.lower().endswith(SUFFIXES) or _is_file(text):
        return read_like(model, text)
    if model.part_ != "items":
        raise UsageError(f"{text!r:.60} has no values, expected a file ({' '.join(SUFFIXES)}) for a model of values")
    names = next(csv.reader([text], skipinitialspace=True))
    items = [find_item(model, name.strip()) for name in names]
    options = model.options_
    if len(items) < 2 and not options.may_be_alone:
        raise UsageError(f"$basket is {text!r:.60}, one item, which no other predicts; expected two or more", "basket")
    position = options.position or "position"
    return pd.DataFrame({options.sequence: "basket", position: range(len(items)), options.item: items})


def _is_file(text: str) -> bool:
    """Whether a text is the path of a file."""
    try:
        return Path(text).expanduser().is_file()
    except (OSError, RuntimeError, ValueError):  # too long for a name, or it begins with ~ of nobody
        return False


def read_like(model: ExponentialFamilyAttention, path: str, missing: Sequence[str] | None = None) -> pd.DataFrame:
    """The rows of a file for a fitted model, whose items tell whether those of the file are texts.

    missing, and what it raises: as `read_own_table`.
    """
    options = model.options_
    items = [options.item] if all(isinstance(item, str) for item in model.items_) else []
    return read_own_table(path, missing, texts=items, codes=[options.sequence])


@contextmanager
def _naming(paths: Mapping[str, str | None]) -> Iterator[None]:
    """Let the errors of tables in the block name files. paths: what an error calls a table → its file."""
    try:
        yield
    except TableError as error:
        error.table = paths.get(error.table) or error.table
        raise
