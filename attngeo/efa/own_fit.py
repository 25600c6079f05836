"""A model of a user's own table: fitted, measured beside what is known without a context, and asked for new rows."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attngeo.efa.options import EfaOptions, Short
from attngeo.errors import UsageError
from attngeo.options import INPUT, Options, device_option, missing_option, option, parse_bytes
from attngeo.progress import Progress, ProgressCallback, ignore_progress, is_first_process
from attngeo.tables.own import SUFFIXES, list_texts, read_own_table

if TYPE_CHECKING:
    import pandas as pd

    from attngeo.efa.estimator import ExponentialFamilyAttention

COLUMNS = (
    "data", "part", "model", "direction", "family", "seed", "sequences", "rows", "log_prob", "without_context",
    "without_repeats",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class EfaFitOptions(EfaOptions):
    """What is fitted to a table, and how it is measured. Raises UsageError."""

    validation: str | None = option(
        None, "File of the validation rows; without it, some sequences are held out", panel=INPUT, metavar="FILE"
    )
    test: str | None = option(None, "File of rows that the fitted model is measured on", panel=INPUT, metavar="FILE")
    in_memory: int = option(
        256_000_000, "Largest Parquet file that is read at once; a larger one is read in parts", panel=INPUT,
        metavar="SIZE", parse=partial(parse_bytes, name="in_memory"), shown_default="256MB",
    )  # fmt: skip
    missing: Iterable[str] | None = missing_option()


@dataclass(frozen=True, kw_only=True)
class EfaPredictOptions(Options):
    """How a file is read that a saved model predicts, and where. Raises UsageError."""

    missing: Iterable[str] | None = missing_option()
    short: Short | None = option(
        None, "What a sequence of one row is, which no other row predicts: an error, left out, or kept", panel=INPUT,
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
    training. save: folder of the fitted model; the first of several processes writes it. Raises as
    `ExponentialFamilyAttention.fit` and `save`, and DataUnavailableError or TableError for files that cannot be read.
    """
    import pandas as pd

    from attngeo.efa.estimator import ExponentialFamilyAttention
    from attngeo.efa.saving import check_items

    paths = {"train": path, "validation": options.validation, "test": options.test}
    frames: dict[str, pd.DataFrame | str] = {}
    for name, each in paths.items():
        if each:
            frames[name] = _open(each, options, frames.get("train"))
    if save is not None and not isinstance(frames["train"], str) and options.item in frames["train"]:
        check_items(frames["train"][options.item].dropna().unique().tolist())
    own = {each.name: getattr(options, each.name) for each in fields(EfaOptions)}
    model = ExponentialFamilyAttention(**own)
    model.fit(frames["train"], frames.get("validation"), test=frames.get("test"), folder=folder, progress=progress)
    if save is not None and is_first_process():
        model.save(save)
        scores = f", and attngeo score {save} scores its attention" if options.model == "efa" else ""
        progress(Progress("note", f"{save}: saved; attngeo efa predict {save} DATA uses it{scores}"))
    rows = [
        {"data": name, **_describe(model), "sequences": measured.sequences, "rows": measured.rows,
         "log_prob": measured.log_prob, "without_context": measured.without_context,
         "without_repeats": measured.without_repeats}
        for name, measured in model.measure_fit().items()
    ]  # fmt: skip
    return OwnEfa(pd.DataFrame(rows, columns=list(COLUMNS)), model)


def predict_file(folder: str | Path, path: str, options: EfaPredictOptions = EfaPredictOptions()) -> pd.DataFrame:
    """`predict_own_rows` of a saved model and a file. Raises as they and their readers do."""
    from attngeo.efa.saving import load_model

    model = load_model(folder)
    model.options = replace(model.options, device=options.device, short=options.short or model.options.short)
    return predict_own_rows(model, read_like(model, path, options.missing))


def predict_own_rows(model: ExponentialFamilyAttention, frame: pd.DataFrame) -> pd.DataFrame:
    """The rows, with log_prob, and predicted_mean for values, or predicted_item and probability for items.

    Rows whose value or item is missing are predicted from the others, and have no log_prob. Columns of these names are
    replaced.
    """
    from attngeo.efa.missing import keep_whole

    table = frame.reset_index(drop=True)
    if model.items_ and model.options.item in table:
        table = table.assign(**{model.options.item: keep_whole(table[model.options.item])})
    found = model.predict(table).rename(columns={"mean": "predicted_mean", "item": "predicted_item"})
    known = model.leave_missing(table)
    log_prob = model.log_prob(known).reindex(table.index) if len(known) else float("nan")
    return table.assign(log_prob=log_prob, **{str(name): found[name] for name in found}).set_axis(frame.index)


def find_item(model: ExponentialFamilyAttention, text: str) -> Any:
    """The item that a text of the command line names. Raises UsageError."""
    for item in model.items_:
        if str(item) == text:
            return item
    if not model.items_:
        raise UsageError("the model has no items; it was fitted to values of places")
    near = get_close_matches(text, [str(item) for item in model.items_], 1)
    advice = f"did you mean {near[0]}?" if near else f"expected one of {len(model.items_):,} items"
    raise UsageError(f"item is {text!r:.60}, which the model was not fitted to; {advice}")


def read_basket(model: ExponentialFamilyAttention, text: str) -> pd.DataFrame:
    """The rows of a file; or items with commas between them, as one sequence. Raises UsageError, TableError.

    An item that has a comma is in quotation marks.
    """
    import pandas as pd

    if text.lower().endswith(SUFFIXES) or Path(text).expanduser().is_file():
        return read_like(model, text)
    if model.part_ != "items":
        raise UsageError(f"{text!r:.60} has no values, expected a file ({' '.join(SUFFIXES)}) for a model of values")
    from attngeo.efa.sequences import may_be_alone

    names = next(csv.reader([text], skipinitialspace=True))
    items = [find_item(model, each.strip()) for each in names]
    if len(items) < 2 and not may_be_alone(model.options, causal=model.options.direction == "uni"):
        raise UsageError(f"basket is {text!r:.60}, one item, which no other item predicts; expected two or more")
    position = model.options.position or "position"
    return pd.DataFrame({model.options.sequence: "basket", position: range(len(items)), model.options.item: items})


def _open(path: str, options: EfaFitOptions, train: pd.DataFrame | str | None) -> pd.DataFrame | str:
    """The rows of a file; or its path, if it is a large Parquet file, which is read in parts.

    train: the training table; items of other files are read as its items.
    """
    place = Path(path).expanduser()
    if place.suffix.lower() == ".parquet" and place.is_file() and place.stat().st_size > options.in_memory:
        return path
    if train is None or isinstance(train, str) or options.item not in train:
        return read_own_table(path, options.missing, codes=[options.sequence, options.item])
    items = [options.item] if options.item in list_texts(train) else []
    return read_own_table(path, options.missing, texts=items, codes=[options.sequence])


def read_like(model: ExponentialFamilyAttention, path: str, missing: Iterable[str] | None = None) -> pd.DataFrame:
    """The rows of a file for a fitted model, whose items tell whether those of the file are texts.

    missing, and what it raises: as `read_own_table`.
    """
    options = model.options
    items = [options.item] if all(isinstance(item, str) for item in model.items_) else []
    return read_own_table(path, missing, texts=items, codes=[options.sequence])


def _describe(model: ExponentialFamilyAttention) -> dict[str, Any]:
    options = model.options
    return {
        "part": model.part_, "model": options.model, "direction": options.direction,
        "family": "categorical" if model.part_ == "items" else options.family, "seed": options.seed,
    }  # fmt: skip
