"""Exponential family attention fitted to tables in a user's own files, and their rows predicted by a saved model."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from attngeo.choices import advise
from attngeo.errors import UsageError
from attngeo.estimators.efa.columns import HELD_OUT, TABLE, TEST, TRAINING
from attngeo.estimators.efa.comparison import compare_fits
from attngeo.estimators.efa.covariates import describe_times
from attngeo.estimators.efa.estimator import ExponentialFamilyAttention
from attngeo.estimators.efa.measuring import Measured
from attngeo.estimators.efa.options import EfaDrawOptions, EfaFitOptions, EfaOptions, EfaPredictOptions
from attngeo.estimators.efa.sequences import POSITION
from attngeo.estimators.shared.files import (
    MISSING_TEXTS,
    describe_few_texts,
    describe_units,
    keep_form,
    keep_whole,
    list_missing,
    list_texts,
    name_new,
    naming,
    read_own_table,
    read_written,
    settle_table,
)
from attngeo.estimators.shared.forms import AS_FOUND, FormOptions
from attngeo.estimators.shared.paths import SUFFIXES
from attngeo.options import options_of
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.tables.write import AS_WRITTEN

AS_FITTED = EfaPredictOptions()
# Mean log p that differ by less, or by a smaller share, are equal: the model computes in single precision.
LOG_ROUNDING = 1e-6


def fit_own_sequences(path: str, options: EfaFitOptions, progress: ProgressCallback = ignore_progress) -> pd.DataFrame:
    """Fit a model to the rows of a file, save it, and measure it on each table: one row per table, part and value.

    Columns: data, part, value, model, direction, family, seed, the fields of `Measured`, and for each part its training
    epochs, best_epoch (the epoch whose weights it keeps, from 1) and stopped_early (whether patience ended training).

    - data is train, held-out or validation, or test.
    - part is items, values (then value is the column), or all, the sum.
    - log_prob is the mean per row, constants of the family included.
    - without_context is the same for the best distribution that ignores the other rows, one per item, learned from the
      training rows.
    - without_repeats, if items occur once per sequence, is the same for item frequencies without the context's items.

    Also raises what `ExponentialFamilyAttention.fit` and `save` raise.

    Args:
        path: file with the training rows.
        options: how to read the files, the model, and the other files.
        progress: called with notes and epochs.

    Raises:
        DataUnavailableError: a file cannot be reached.
        TableError: a file cannot be read.
    """
    paths = {TRAINING: path, HELD_OUT: options.validation, TEST: options.test}
    frames = _read_tables(paths, options, progress)
    train = frames[TRAINING]
    guessed = [options.item, *(name for name, kind in options.kinds.items() if kind is None)]
    measured_columns = [*options.families, *options.coordinates, *options.lags]
    for note in (
        *describe_few_texts(path, train.filter(items=guessed)),
        *describe_units(train.filter(measured_columns)),
    ):
        progress(Progress("note", f"{path}: {note}"))
    model = ExponentialFamilyAttention(**{name: getattr(options, name) for name in options_of(EfaOptions)})
    with naming(paths):
        model.fit(
            train,
            validation=frames.get(HELD_OUT),
            test=frames.get(TEST),
            folder=options.resume,
            progress=progress,
        )
        for source, frame in frames.items():
            _report_times(model, frame, source, paths[source] or "", progress)
    if options.missing:
        model.missing_texts = tuple(list_missing(options.missing))
    if options.save is not None:
        model.save(options.save)
        note = f"{options.save}: saved; to use it: attngeo efa predict {options.save} DATA"
        if options.model == "efa":
            scored = f"{options.save}/values" if model.part_ == "both" else options.save
            note += f"; to score its attention: attngeo score {scored}"
        progress(Progress("note", note))
    epochs = _describe_epochs(model)
    rows = []
    for table, columns in model.measure_columns().items():
        for (part, column), measured in columns.items():
            rows.append(
                {
                    "data": table,
                    "part": part,
                    "value": column,
                    "model": options.model,
                    "direction": options.direction,
                    "family": {"items": "categorical", "values": options.families.get(column), "all": ""}[part],
                    "seed": options.random_state,
                    **measured._asdict(),
                    **epochs.get(part, {}),
                }
            )
            note = _describe_baseline(table, column or part, measured)
            if note:
                progress(Progress("note", note))
    kinds = {"epochs": "Int64", "best_epoch": "Int64", "stopped_early": "boolean"}
    return pd.DataFrame(rows).astype(kinds)


def _describe_baseline(table: str, what: str, measured: Measured) -> str:
    """A note if a baseline without a context predicts the rows of a table better that did not train; "" otherwise."""
    baselines = {
        "a baseline that ignores the other rows": measured.without_context,
        "the frequencies of items that are not in the context": measured.without_repeats,
    }
    name = max(baselines, key=lambda baseline: np.nan_to_num(baselines[baseline], nan=-np.inf))
    rounding = LOG_ROUNDING * max(1.0, abs(baselines[name]))
    if table == "train" or not measured.log_prob < baselines[name] - rounding:
        return ""
    return (
        f"{what}, {table}: the model is worse than {name}: mean log p per row {measured.log_prob:.4g}, against "
        f"{baselines[name]:.4g}; the context does not help yet: fit to more rows, or for longer"
    )


def _read_tables(
    paths: Mapping[str, str | None], options: EfaFitOptions, progress: ProgressCallback
) -> dict[str, pd.DataFrame]:
    """The tables of files, by what they are for; items that are texts in one file are texts in all text files."""
    codes = _list_codes(options)
    values = [*options.families, *options.coordinates, *options.lags]
    if options.position is not None:
        values.append(options.position)
    codes.append(options.item)
    frames = {}
    for source, file in paths.items():
        if file:
            frames[source] = read_own_table(
                file, options.missing, codes=codes, named=values, options=options, progress=progress
            )
    has_texts = [options.item in list_texts(frame) for frame in frames.values()]
    if any(has_texts) and not all(has_texts):
        for source in frames:
            file = str(paths[source])
            frames[source] = read_own_table(file, options.missing, [options.item], codes, values, options)
    return frames


def _describe_epochs(model: ExponentialFamilyAttention) -> dict[str, dict[str, Any]]:
    """How the training of each part ended, as columns of `fit_own_sequences`."""
    history = model.history_
    described = {}
    parts = [part.shape.part for part in model.model_.parts]
    for part, losses, best in zip(parts, np.atleast_2d(history.train.T), history.best_epoch, strict=True):
        epochs = int((~np.isnan(losses)).sum())
        described[part] = {
            "epochs": epochs,
            "best_epoch": int(best) + 1,
            "stopped_early": epochs < model.options_.max_epochs,
        }
    return described


def _list_codes(options: EfaOptions) -> list[str]:
    """Columns that may have codes such as 01: of sequences, and of categories beside items."""
    return [options.sequence, *(name for name, kind in options.kinds.items() if kind in (None, "category"))]


def _report_times(
    model: ExponentialFamilyAttention, frame: pd.DataFrame, source: str, path: str, progress: ProgressCallback
) -> None:
    """Note which times of a file have zones unlike those of the training rows. source: what messages call the table."""
    covariates = dict(zip(model.options_.kinds, model.model_.parts[0].shape.covariates, strict=True))
    for note in describe_times(frame, covariates, source):
        progress(Progress("note", f"{path}: {note}"))


def predict_file(
    folder: str | Path,
    path: str,
    options: EfaPredictOptions = AS_FITTED,
    progress: ProgressCallback = ignore_progress,
) -> pd.DataFrame:
    """Predict the rows of a file with a saved model: see `predict_own_rows`. Raises what it and the readers raise.

    Args:
        folder: folder of the saved model.
        path: file with the rows.
        options: how to read the rows, and the device.
        progress: called with notes.
    """
    model = ExponentialFamilyAttention.load(folder)
    model.options_ = model.options_.replace(device=options.device, short=options.short or model.options_.short)
    with naming({TABLE: path}):
        frame = read_like(model, path, options.missing, options, progress)
        predicted = predict_own_rows(model, frame, read_written(path, options=options))
        return keep_form(predicted, frame, path, progress)


def predict_own_rows(
    model: ExponentialFamilyAttention, frame: pd.DataFrame, written: pd.DataFrame | None = None
) -> pd.DataFrame:
    """The rows with their log p and predictions.

    New columns: log_prob; for values predicted_mean (with several value columns, one predicted_mean_COLUMN per column);
    for items predicted_item and probability. If the rows already have a column with such a name, the new one gets the
    prefix "predicted_". Rows without the values or item are predicted from the others, and have no log_prob.

    written: the rows as written in their file, which stay unchanged; without it, the rows of the frame.
    """
    table = frame.reset_index(drop=True)
    item = model.options_.item
    if model.items_ and item in table:
        table = table.assign(**{item: keep_whole(table[item])})
    predicted = model.predict(table)
    predicted.insert(0, "log_prob", model.log_prob(table, known_only=True))
    rows = table.copy() if written is None else settle_table(written)
    rows.attrs[AS_WRITTEN] = [*rows.columns]
    for name in predicted:
        rows[name_new(str(name), rows.columns)] = predicted[name]
    return rows.set_axis(frame.index)


def sample_file(
    folder: str | Path, options: EfaDrawOptions, progress: ProgressCallback = ignore_progress
) -> pd.DataFrame:
    """Draw items and values from a saved model, for the rows of a file if the options name one.

    Other columns stay unchanged. Raises what `ExponentialFamilyAttention.load`, `sample` and the readers raise.

    Args:
        folder: folder of the saved model.
        options: what is drawn, and for which rows.
        progress: called with notes.
    """
    model = ExponentialFamilyAttention.load(folder)
    if options.data is None:
        return model.sample(options=options)
    with naming({TABLE: options.data}):
        frame = read_like(model, options.data, form=options, progress=progress)
        drawn = model.sample(options=options, data=frame)
    written = read_written(options.data, options=options)
    if written is None:
        return drawn
    rows = settle_table(written)
    drawn_values = () if model.part_ == "items" else model.options_.families
    rows.attrs[AS_WRITTEN] = [name for name in rows.columns if name not in drawn_values]
    if model.part_ != "values":
        rows[model.options_.item] = drawn[model.options_.item]
    for name in drawn_values:
        rows[name] = drawn[name]
    return keep_form(rows, frame, options.data, progress)


def compare_files(
    first: str | Path,
    second: str | Path,
    path: str,
    options: FormOptions = AS_FOUND,
    progress: ProgressCallback = ignore_progress,
) -> pd.DataFrame:
    """Compare two saved models on the rows of a file: see `compare_fits`. Raises what it and the readers raise.

    Args:
        first: folder of the first model.
        second: folder of the second model.
        path: file with the rows.
        options: how a text file is written.
        progress: called with notes.
    """
    model = ExponentialFamilyAttention.load(first)
    other = ExponentialFamilyAttention.load(second)
    with naming({TABLE: path}):
        return compare_fits(model, other, read_like(model, path, form=options, progress=progress))


def find_item(model: ExponentialFamilyAttention, text: str) -> Any:
    """The item with this name on the command line. Raises UsageError."""
    items = {str(item): item for item in reversed(model.items_)}
    if not items:
        raise UsageError("the model has no items; it was fitted to values of places")
    if text not in items:
        advice = advise(text, items, f"expected one of {len(items):,} items")
        raise UsageError(f"$item is {text!r:.60}, which is not an item of the training data; {advice}", "item")
    return items[text]


def read_basket(
    model: ExponentialFamilyAttention,
    text: str,
    form: FormOptions = AS_FOUND,
    progress: ProgressCallback = ignore_progress,
) -> pd.DataFrame:
    """The rows of a file; or a list of items, separated by commas, as one sequence.

    An item with a comma is in quotation marks.

    Args:
        model: the model to use on the rows.
        text: path of a file, or items.
        form: how a text file is written.
        progress: called with notes.

    Raises:
        UsageError: an item is unknown, or the model needs a file or more items.
        TableError: the file cannot be read.
    """
    is_file = text.lower().endswith(SUFFIXES)
    with suppress(OSError, RuntimeError, ValueError):  # too long for a name, or it begins with ~ of nobody
        is_file = is_file or Path(text).expanduser().is_file()
    if is_file:
        return read_like(model, text, form=form, progress=progress)
    if model.part_ != "items" or model.options_.covariates:
        lacks = "covariates" if model.part_ == "items" else "values"
        problem = f"{text!r:.60} has no {lacks}, which the model needs; give a file ({' '.join(SUFFIXES)})"
        if model.part_ == "both" and not model.options_.covariates:
            problem += '; if you have only items, give the subfolder "items" of the model'
        raise UsageError(problem)
    names = next(csv.reader([text], skipinitialspace=True))
    items = [find_item(model, name.strip()) for name in names]
    options = model.options_
    if len(items) < 2 and not options.may_be_alone:
        raise UsageError(
            f"$basket is {text!r:.60}, a single item, which no other item predicts; expected two or more", "basket"
        )
    position = options.position or POSITION
    return pd.DataFrame({options.sequence: "basket", position: range(len(items)), options.item: items})


def read_like(
    model: ExponentialFamilyAttention,
    path: str,
    missing: Sequence[str] | None = None,
    form: FormOptions = AS_FOUND,
    progress: ProgressCallback = ignore_progress,
) -> pd.DataFrame:
    """The rows of a file for a fitted model. Items are read as texts if all the model's items are texts.

    missing, form (`options` there), progress and errors are as for `read_own_table`; progress also gets notes about
    times that are read in another way than in training. The missing texts add to the texts of the training; a text such
    as NA that the model knows as an item or a category is not missing.
    """
    options = model.options_
    items = [options.item] if all(isinstance(item, str) for item in model.items_) else []
    values = set(model.items_)
    for covariate in model.model_.parts[0].shape.covariates:
        values.update(covariate.categories)
    known = MISSING_TEXTS if model.missing_texts is None else model.missing_texts
    texts = list_missing(missing, [text for text in known if text not in values])
    frame = read_own_table(path, texts, items, _list_codes(options), options=form, progress=progress)
    with naming({TABLE: path}):
        _report_times(model, frame, TABLE, path, progress)
    return frame
