"""Attention fitted to tables in a user's own files, and their rows predicted or filled by a saved model."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from attngeo.bounds.names import list_names
from attngeo.errors import TableError, UsageError
from attngeo.estimators.shared.cells import name_missing, read_numbers, show_value
from attngeo.estimators.shared.dates import DateColumn
from attngeo.estimators.shared.files import (
    TAKEN,
    describe_units,
    find_code,
    find_decimal,
    find_equal_texts,
    find_few_texts,
    find_index,
    find_left_out,
    keep_form,
    keep_whole,
    list_missing,
    list_texts,
    name_new,
    naming,
    read_own_table,
    read_written,
    settle_labels,
    settle_numbers,
    settle_table,
    write_like,
)
from attngeo.estimators.shared.forms import SEPARATORS
from attngeo.estimators.shared.paths import refuse_column
from attngeo.estimators.tabular.classifier import AttentionClassifier, TableModel
from attngeo.estimators.tabular.coding import hold_out
from attngeo.estimators.tabular.joining import PARTIAL, describe_kinds, describe_values, join_tables
from attngeo.estimators.tabular.kinds import (
    as_numbers,
    find_free_texts,
    find_likely_kind,
    find_row_names,
    ignore_note,
    list_lost_texts,
    list_parts,
    list_sources,
    select_columns,
    set_kinds,
    split_dates,
)
from attngeo.estimators.tabular.measuring import SplitTable, fit_columns, fit_table, report_cells
from attngeo.estimators.tabular.options import FitOptions, PredictOptions, RowsOptions
from attngeo.estimators.tabular.views import tabulate_attention
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.tables.write import AS_WRITTEN, FORM, write_table

# What becomes of dates, for a note.
PARTS_NOTE = "its days, months, weekdays and hours become columns"
# Whole numbers of so many values are categories rather than quantities, for a note.
FEW_VALUES = 20
# The column of the probabilities of a filled column, as `impute_rows` names it.
PROBABILITY = re.compile(rf"(?:{TAKEN})*p\((.*)\)", re.DOTALL)


def fit_own_table(
    paths: str | Sequence[str], options: FitOptions, progress: ProgressCallback = ignore_progress
) -> pd.DataFrame:
    """Fit methods to the rows of files, with `fit_table`, or without a target, `fit_columns`; their scores.

    The attention model is saved before the other methods are fitted. Raises what `read_tables`, `fit_table`,
    `fit_columns` and `TableModel.save` raise.

    Args:
        paths: one file, or several with some columns in common.
        options: the methods, how to fit them, and where to save the attention model.
        progress: called with notes and epochs.
    """
    tables = read_tables(paths, options, progress)

    def keep(model: TableModel) -> None:
        if options.save is None:
            return
        model.save(options.save)
        command = "impute" if tables.train_y is None else "predict"
        progress(
            Progress("note", f"{options.save}: saved; to use it: attngeo tabular {command} {options.save} ROWS.csv")
        )

    if tables.train_y is not None:
        rows, _ = fit_table(tables, options, progress, keep)
        return rows
    rows, model = fit_columns(tables, options, progress)
    keep(model)
    return rows


def predict_own_table(
    folder: str | Path, path: str, options: PredictOptions, progress: ProgressCallback = ignore_progress
) -> pd.DataFrame:
    """Predict the labels of a file's rows with a saved model: see `predict_rows`.

    Raises what `read_own_table` and `AttentionClassifier.load` raise, and TableError if a column is missing that all
    training files have.

    Args:
        folder: folder of the saved model.
        path: file with the rows.
        options: how to read the rows, and further outputs.
        progress: called with notes about cells that are read in an unexpected way.
    """
    model = AttentionClassifier.load(folder)
    frame = _read_like(model, path, options, progress)
    with naming({"": path}):
        frame = split_dates(frame, model.dates, model.unseen, partial(_report, path, progress))
    names = [str(name) for name in model.coding_.names]
    absent = list_sources([name for name in names if name not in frame], model.dates)
    expected = list_sources(names, model.dates)
    needed = [name for name in absent if name not in model.partial_columns]
    if needed or absent == expected:
        missing = (needed or absent)[0]
        problem = f"no column {missing!r:.60}; expected those of the training rows: {list_names(expected)}"
        raise TableError(problem, subject=path)
    if absent:
        note = f"columns that some training files lacked, too, count as missing: {list_names(absent)}"
        _report(path, progress, note)
    report_cells(model, frame, path, progress)
    features = frame.reindex(columns=names)
    with naming({"": path}):
        predicted = predict_rows(model, features)
    if options.attention_output is not None:
        write_table(tabulate_attention(model, features), Path(options.attention_output))
    return keep_form(predicted, frame, path, progress)


def impute_own_table(
    folder: str | Path, path: str, options: RowsOptions, progress: ProgressCallback = ignore_progress
) -> pd.DataFrame:
    """Fill in the missing cells of a file with a saved model: see `impute_rows`.

    Raises what it and the readers raise, and TableError if the file has no column of the training rows.

    Args:
        folder: folder of the saved model.
        path: file with the rows.
        options: how to read the rows.
        progress: called with notes about cells that are read in an unexpected way.
    """
    model = TableModel.load(folder)
    frame = _read_like(model, path, options, progress)
    names = [str(name) for name in model.columns_]
    if not {*names, *model.dates} & set(frame.columns):
        expected = list_names(list_sources(names, model.dates))
        raise TableError(f"no column of the training rows, expected some of: {expected}", subject=path)
    report_cells(model, frame, path, progress)
    with naming({"": path}):
        filled = impute_rows(model, frame, read_written(path, options=options), partial(_report, path, progress))
        filled = keep_form(filled, frame, path, progress)
    left = [f"{name} {count:,}" for name, count in frame.isna().sum().items() if count and name not in names]
    if left:
        note = f"cells left empty, because they are in date columns or in columns new to the model: {list_names(left)}"
        _report(path, progress, note)
    return filled


def read_tables(
    paths: str | Sequence[str], options: FitOptions, progress: ProgressCallback = ignore_progress
) -> SplitTable:
    """The rows of the files that train, and those that test. Raises UsageError, DataUnavailableError, TableError."""
    paths = [paths] if isinstance(paths, str) else paths
    chosen = [*(options.columns or ()), *options.column_types]
    named = chosen if options.target is None else [*chosen, options.target]
    frame = read_files(paths, options, progress, named)
    partial_columns = frame.attrs.get(PARTIAL, ())
    x: pd.DataFrame = frame
    y: pd.Series[Any] | None = None
    if options.target is not None:
        x, y = take_target(frame, options.target, paths[0])
    x, dates, missing_in = _arrange(x, options, paths[0], progress)
    if options.test is None:
        split = _split_rows(x, y, options, paths[0])
        return split._replace(dates=dates, missing_in=missing_in, partial_columns=partial_columns)
    texts = [name for name in list_texts(frame) if name not in missing_in]
    test_x = read_own_table(
        options.test, options.missing, texts, options=options, progress=progress, missing_in=missing_in
    )
    test_x = settle_numbers(test_x, [name for name in x.columns if pd.api.types.is_numeric_dtype(x[name].dtype)])
    test_y = None
    if options.target is not None:
        if options.target not in test_x:
            problem = f"no column {options.target!r}, which the training rows have; test rows need labels"
            raise TableError(problem, subject=options.test)
        test_x, test_y = take_target(test_x, options.target, options.test)
        test_y = keep_whole(test_y)
    with naming({"": options.test}):
        test_x = split_dates(test_x, dates, options.unseen, partial(_report, options.test, progress))
    absent = [name for name in x.columns if name not in test_x.columns]
    if absent and len(paths) == 1:
        missing = list_sources(absent, dates)[0]
        raise TableError(f"no column {missing!r}, which the training rows have", subject=options.test)
    return SplitTable(x, y, test_x.reindex(columns=list(x.columns)), test_y, dates, missing_in, partial_columns)


def _report(path: str, progress: ProgressCallback, note: str) -> None:
    """Note something about a file."""
    progress(Progress("note", f"{path}: {note}"))


def _arrange(
    frame: pd.DataFrame, options: FitOptions, path: str, progress: ProgressCallback
) -> tuple[pd.DataFrame, dict[str, DateColumn], dict[str, tuple[str, ...]]]:
    """The features that are used, in their kinds, with the parts of dates; columns of dates; and `list_lost_texts`.

    A column that names rows is left out, unless the user chose it or its kind. Raises TableError.
    """
    # A column of lists is left out already; its file says so.
    nested = find_left_out(path)
    dropped = [name for name in options.drop if name in frame or name not in nested]
    frame = select_columns(frame, options.columns, dropped, path)
    as_read = frame
    for name, texts in find_few_texts(frame):
        if name not in options.column_types:
            numbers = as_numbers(frame[name], find_decimal(frame))
            what = f"cells of column {name!r:.60} that are not numbers count as missing: {texts}"
            is_other = (numbers != read_numbers(frame[name])) & numbers.notna()
            if is_other.any():
                row = is_other.to_numpy(bool).argmax()
                what += f"; {show_value(frame[name].iloc[row])} is read as {numbers.iloc[row]:.15g}"
            frame = frame.assign(**{name: numbers})
            progress(Progress("note", f"{path}: {what}; --column-type {name}:category makes all of them categories"))
    frame, dates = set_kinds(frame, options.column_types, path, partial(_report, path, progress))
    for name, found in dates.items():
        how = f", written as {found.written}" if found.written else ""
        if found.zone:
            how += f", as times in {found.zone}{', because it has several zones' if found.has_several_zones else ''}"
        progress(Progress("note", f"{path}: column {name!r:.60} has dates{how}; {PARTS_NOTE}"))
    if options.columns is None:
        frame = _leave_out(frame, {*options.column_types, *dates}, options.min_frequency, path, progress)
    return split_dates(frame, dates), dates, list_lost_texts(as_read, frame)


def _leave_out(
    frame: pd.DataFrame, kept: Collection[str], least: int, path: str, progress: ProgressCallback
) -> pd.DataFrame:
    """The columns that say something of other rows, and those in `kept`. Raises TableError if none remains.

    least: as of `_describe_texts`, whose notes are reported.
    """
    left_out = []
    for name, reason in find_row_names(frame):
        if name in kept:
            continue
        left_out.append(name)
        if len(left_out) == frame.shape[1]:
            cell = show_value(frame[name].iloc[0])
            problem = f"{reason}, such as {cell}, and no other column remains"
            advice = f"--column-type {name}:category keeps it; --decimal sets the decimal mark"
            raise TableError(f"{problem}; {advice}", subject=path, column=name)
        progress(Progress("note", f"{path}: column {name!r:.60} {reason} and is left out; --column-type keeps it"))
    frame = select_columns(frame, None, left_out, path)
    for note in _describe_texts(frame.drop(columns=[*kept], errors="ignore"), least):
        progress(Progress("note", f"{path}: {note}"))
    return frame


def _describe_texts(frame: pd.DataFrame, least: int) -> Iterator[str]:
    """Notes of columns of texts that look like numbers or dates, or say little. least: the rows of a category."""
    free = dict(find_free_texts(frame))
    for name in list_texts(frame):
        what = f"column {name!r:.60}"
        kind, is_other = find_likely_kind(frame[name], find_decimal(frame))
        if is_other.any():
            row = int(is_other.argmax())
            cell = frame[name].iloc[row]
            what += f": all cells are categories, because {is_other.sum():,} of {frame[name].count():,} are not {kind}s"
            what += f", such as {show_value(cell)} in row {row + 1}"
            advice = f"{name_missing([str(cell)])} treats such values as missing"
            if kind == "number":
                advice = f"--column-type {name}:number reads the others as numbers, and these as missing"
        elif name in free:
            what += f" has {free[name]:,} different values in {len(frame):,} rows"
            advice = "--drop leaves it out"
            if kind == "number":
                advice = f"--column-type {name}:number reads them as numbers"
        else:
            counts = frame[name].value_counts()
            rare = int(counts[counts < least].sum())
            if 2 * rare <= frame[name].count():
                continue
            what += f": {rare:,} of {frame[name].count():,} cells have values that occur in fewer than {least} rows"
            advice = "they share one category; --min-frequency sets this number"
        yield f"{what}; {advice}"


def _split_rows(x: pd.DataFrame, y: pd.Series[Any] | None, options: FitOptions, path: str) -> SplitTable:
    """A random fraction of the rows tests, and the others train. Raises TableError."""
    usable = np.arange(len(x)) if y is None else np.flatnonzero(y.notna())
    trained, test_rows = hold_out(usable, options.test_size, options.random_state, "test_size", path)
    if y is not None:
        # A label that no training row has could not be predicted.
        test_rows = test_rows[y.iloc[test_rows].isin(y.iloc[trained].unique()).to_numpy()]
    train_rows = np.delete(np.arange(len(x)), test_rows)
    train_y = None if y is None else y.iloc[train_rows]
    test_y = None if y is None else y.iloc[test_rows]
    return SplitTable(x.iloc[train_rows], train_y, x.iloc[test_rows], test_y)


def read_files(
    paths: Sequence[str],
    options: FitOptions,
    progress: ProgressCallback = ignore_progress,
    named: Sequence[str] = (),
) -> pd.DataFrame:
    """The rows of files, with the columns of all files but an index; if a file lacks a column, its cells are missing.

    progress: gets notes about cells that may be read in an unexpected way. named: columns that options name, which must
    not hold lists. Labels are written as in the files. A text column in one file is a text column in all text files.
    Raises what `read_own_table` raises, UsageError for a file given twice, and TableError for a file without a column
    in common with the others, because only shared columns put both files in the same space.
    """
    twice = [path for path in paths if paths.count(path) > 1]
    if twice:
        raise UsageError(f"{twice[0]} is given twice, expected each file once")
    target = options.target
    labels = [] if target is None else [target]
    frames = []
    for path in paths:
        frame = read_own_table(path, options.missing, labels, named=named, options=options, progress=progress)
        frames.append(frame)
        for note in _describe_reading(path, frame, options, named):
            progress(Progress("note", f"{path}: {note}"))
        if len(paths) == 1:
            for note in _describe_absent(path, frame, options):
                progress(Progress("note", f"{path}: {note}"))
    alone = frames
    if len(frames) > 1:
        texts = {*labels}.union(*map(list_texts, frames))
        frames = [read_own_table(path, options.missing, texts, options=options) for path in paths]
    frames = [frame.drop(columns=find_index(frame)) for frame in frames]
    if target is not None:
        frames = _settle_target(paths, frames, target, progress)
    if len(frames) == 1:
        return frames[0]
    joined = join_tables(paths, frames)
    used = _select_described(joined.columns, options)
    for path, note in (*describe_kinds(paths, alone, used), *describe_values(paths, frames, used, target)):
        _report(path, progress, note)
    return joined


def _select_described(names: Iterable[str], options: FitOptions) -> list[str]:
    """The columns that are used, in kinds that the user did not choose."""
    left = {*options.drop, *options.column_types}
    if options.columns is not None:
        left.update(name for name in names if name not in options.columns and name != options.target)
    return [name for name in names if name not in left]


def _settle_target(
    paths: Sequence[str], frames: Sequence[pd.DataFrame], target: str, progress: ProgressCallback
) -> list[pd.DataFrame]:
    """The frames with the labels of text files as `settle_labels` reads those of all; typed ones stay as they are."""
    text_files = {path for path in paths if Path(path).suffix.lower() in SEPARATORS}
    is_text = [path in text_files and target in frame for path, frame in zip(paths, frames, strict=True)]
    texts = [frame[target] for frame, has_texts in zip(frames, is_text, strict=True) if has_texts]
    settled: pd.Series[Any] = pd.Series(dtype=object)
    if texts:
        joined = pd.concat(texts, ignore_index=True)
        settled = settle_labels(joined)
        equal = find_equal_texts(joined, settled)
        if equal:
            what = f"the labels {list_names(equal)} of column {target!r:.60} are the same number, so they are one class"
            progress(Progress("note", f"{paths[0]}: {what}"))
    complete = []
    start = 0
    for frame, has_texts in zip(frames, is_text, strict=True):
        if has_texts:
            labels = settled.iloc[start : start + len(frame)]
            start += len(frame)
            frame = frame.assign(**{target: labels.set_axis(frame.index)})
        elif target in frame:
            frame = frame.assign(**{target: keep_whole(frame[target])})
        complete.append(frame)
    return complete


def _describe_reading(path: str, frame: pd.DataFrame, options: FitOptions, named: Collection[str]) -> Iterator[str]:
    """Notes of what may be read otherwise than the user expects: an index, codes, and missing cells.

    named: columns of which the user knows.
    """
    for name in find_index(frame):
        yield f"{name!r}, an unnamed column that numbers the rows, is left out; to keep it, give it a name"
    if Path(path).suffix.lower() in SEPARATORS:
        yield from _describe_codes(frame, {*named})
        yield from _describe_equal(path, frame, options)
        yield from describe_units(frame.drop(columns=options.target or [], errors="ignore"))
    names = [name for name in frame.columns if frame[name].isna().any()]
    written = read_written(path, names, options) if names else None
    if written is not None:
        texts = list_texts(frame)
        asked = ["", *(options.missing or ())]
        for name in names:
            # In a column of numbers, such a text could be nothing else.
            advice = "; --missing '' keeps such values as categories" if name in texts else ""
            counts = written[name][frame[name].isna() & ~written[name].isin(asked)].value_counts()
            listed = ", ".join(f"{text!r:.40} ({count:,}×)" for text, count in counts.items())
            if listed:
                yield f"column {name!r:.60}: counted as missing: {listed}{advice}"


def _describe_absent(path: str, frame: pd.DataFrame, options: FitOptions) -> Iterator[str]:
    """Notes of texts that the user names as missing cells and no cell has, such as two of them with a comma."""
    # A number may be written in several ways.
    texts = [text for text in options.missing or () if text and np.isnan(read_numbers(pd.Series([text]))).all()]
    names = [name for name in frame.columns if frame[name].isna().any()]
    written = read_written(path, names, options) if texts and names else None
    if Path(path).suffix.lower() not in SEPARATORS:
        return
    for text in texts:
        if written is None or not (written == text).any(axis=None):
            yield f"no cell is {text!r:.40}, which --missing names; give --missing once for each value"


def _describe_codes(frame: pd.DataFrame, named: Collection[str]) -> Iterator[str]:
    """Notes of columns that are of texts because a whole number in them begins with 0. named: those without a note."""
    for name in list_texts(frame):
        cells = frame[name].dropna()
        code = "" if name in named else find_code(cells)
        if code and not np.isnan(read_numbers(cells)).any():
            yield (
                f"column {name!r:.60} has codes such as {code!r:.40}, so its cells are categories; --column-type "
                f"{name}:number reads them as numbers"
            )


def _describe_equal(path: str, frame: pd.DataFrame, options: FitOptions) -> Iterator[str]:
    """Notes of columns of a few whole numbers, which are categories, of which some are written in two ways."""
    names = []
    for name in frame.columns.difference(list_texts(frame), sort=False):
        numbers = frame[name].dropna()
        if numbers.dtype.kind in "iuf" and numbers.nunique() <= FEW_VALUES and (numbers % 1 == 0).all():
            names.append(name)
    written = read_written(path, names, options) if names else None
    if written is not None:
        for name in names:
            equal = find_equal_texts(written[name].where(frame[name].notna()), frame[name])
            if equal:
                yield f"column {name!r:.60}: {list_names(equal)} are the same number, so they are one category"


def take_target(frame: pd.DataFrame, target: str, path: str | Path) -> tuple[pd.DataFrame, pd.Series[Any]]:
    """The features and the response. Raises TableError if the response is missing, or the only column."""
    if target not in frame.columns:
        raise refuse_column(target, frame.columns, path)
    if frame.shape[1] < 2:
        raise TableError(f"{path} has only the column {target!r}, expected at least one feature, too")
    return frame.drop(columns=target), frame[target]


def _read_like(model: TableModel, path: str, options: RowsOptions, progress: ProgressCallback) -> pd.DataFrame:
    """The rows of a file, whose columns of texts are those of the training. Gives the model the option `unseen`."""
    if options.unseen is not None:
        model.set_params(unseen=options.unseen)
    texts = [str(coding.name) for coding in model.coding_.columns if coding.is_of_texts]
    # One that holds lists is no missing column.
    known = list_sources(map(str, model.coding_.names), model.dates)
    missing = list_missing(options.missing, model.missing_texts)
    frame = read_own_table(
        path, missing, texts, named=known, options=options, progress=progress, missing_in=model.missing_in
    )
    return settle_numbers(frame, [str(coding.name) for coding in model.coding_.features if coding.edges is not None])


def predict_rows(model: AttentionClassifier, frame: pd.DataFrame) -> pd.DataFrame:
    """The predictions for rows: row (from 1), prediction, probability, and p(label) for each label.

    Raises TableError for values in no training row, unless the model masks them.
    """
    chances = model.predict_proba(frame)
    columns = {
        "row": range(1, len(frame) + 1),
        "prediction": model.classes_[chances.argmax(1)],
        "probability": chances.max(1),
    }
    for number, label in enumerate(model.classes_):
        columns[f"p({label})"] = chances[:, number]
    return pd.DataFrame(columns)


def impute_rows(
    model: TableModel,
    frame: pd.DataFrame,
    written: pd.DataFrame | None = None,
    report: Callable[[str], None] = ignore_note,
) -> pd.DataFrame:
    """The rows with their missing cells filled in, as `TableModel.impute` does, in all columns of the training rows.

    New columns p(COLUMN) have the probability of each filled value, and NaN for observed cells. If the rows already
    have a column with that name, it gets the prefix "predicted_"; `find_probabilities` finds it. A feature column that
    the frame lacks is filled, too; the label column only if the frame has it. Dates are not filled.

    Args:
        model: the fitted model.
        frame: the rows.
        written: the rows as written in their file, whose other cells stay unchanged; without it, the frame's cells.
        report: as for `split_dates`.
    """
    names = [str(name) for name in model.columns_]
    features = names[: len(model.coding_.names)]
    labels = None if features == names else frame.get(names[-1])
    filled = frame.copy() if written is None else written  # whose columns have the same numbers
    chances: dict[str, np.ndarray] = {}
    parts = list_parts(model.dates)
    known = split_dates(frame, model.dates, model.unseen, report).reindex(columns=features)
    for column, cells in model.find_cells(known, labels).groupby("column", sort=False):
        name = str(column)
        if name in parts:
            continue
        values = np.full(len(frame), None, dtype=object)
        if name in frame:
            number = int(frame.columns.get_loc(name))  # type: ignore[arg-type]
            values[:] = keep_whole(filled.iloc[:, number]).astype(object)
        if written is None:
            values[cells["row"]] = cells["value"]
        else:
            observed: pd.Series[Any] = pd.Series(dtype="str")
            texts = observed
            if name in frame:
                observed = frame[name]
                texts = filled.iloc[:, number]
            # An added column has numbers until it is written.
            mark = frame.attrs.get(FORM, {}).get("decimal", ".") if name in frame else "."
            values[cells["row"]] = write_like(cells["value"], observed, texts, mark)
        complete = pd.Series(values, filled.index).infer_objects()
        if name in frame:
            filled.isetitem(number, complete.array)
        else:
            filled[name] = complete
        chances[name] = np.full(len(frame), np.nan)
        chances[name][cells["row"]] = cells["probability"]
    if written is not None:
        filled = settle_table(filled)
    filled.attrs[AS_WRITTEN] = list(filled.columns[: frame.shape[1]])
    for name, probabilities in chances.items():
        filled[name_new(f"p({name})", filled.columns)] = probabilities
    return filled


def find_probabilities(filled: pd.DataFrame) -> dict[str, str]:
    """The columns that `impute_rows` filled → the columns with their probabilities."""
    probabilities = {}
    for added in filled.columns.drop(filled.attrs[AS_WRITTEN]):
        match = PROBABILITY.fullmatch(added)
        if match is not None:  # the last one, as others of the name were there before
            probabilities[match[1]] = added
    return {name: probabilities[name] for name in filled.columns if name in probabilities}
