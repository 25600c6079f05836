"""Tables in, tables out: attention and the baselines on a user's own files, and what a fitted model says of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.decomposition import PCA
from sklearn.metrics import log_loss

from attngeo.bounds.names import list_names
from attngeo.errors import TableError, UsageError
from attngeo.estimators.shared.files import (
    count_missing_texts,
    describe_few_texts,
    find_index,
    keep_whole,
    list_missing,
    list_texts,
    name_new,
    naming,
    read_own_table,
    read_written,
    settle_table,
)
from attngeo.estimators.shared.paths import refuse_column
from attngeo.estimators.tabular.baselines import fit_baseline
from attngeo.estimators.tabular.classifier import AttentionClassifier, AttentionImputer, TableModel, fit_together
from attngeo.estimators.tabular.coding import describe_columns, hold_out, read_table
from attngeo.estimators.tabular.network import MISSING
from attngeo.estimators.tabular.options import (
    METHOD_LABELS,
    OURS,
    ClassifierOptions,
    FitOptions,
    PredictOptions,
    RowsOptions,
)
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.tables.write import AS_WRITTEN, write_table

CALIBRATION_BINS = 10
# Whole numbers that occur so often, on average, may be codes.
OFTEN = 5
MASK = "[MASK]"


class SplitTable(NamedTuple):
    """Features and responses of the training rows and of the test rows; None without a target."""

    train_x: pd.DataFrame
    train_y: pd.Series[Any] | None
    test_x: pd.DataFrame
    test_y: pd.Series[Any] | None


def fit_own_table(
    paths: str | Sequence[str], options: FitOptions, progress: ProgressCallback = ignore_progress
) -> pd.DataFrame:
    """The scores of `fit_table` for the rows of a file, or of several files with some columns in common; without a
    target, those of `fit_columns`. The options say whether the attention model is kept.

    Raises as `read_tables`, `fit_table`, `fit_columns` and `TableModel.save`.
    """
    tables = read_tables(paths, options, progress)
    rows, model = (fit_columns if tables.train_y is None else fit_table)(tables, options, progress)
    if options.save is not None:
        model.save(options.save)
        use = "impute" if tables.train_y is None else "predict"
        progress(Progress("note", f"{options.save}: saved; attngeo tabular {use} {options.save} ROWS.csv uses it"))
    return rows


def predict_own_table(folder: str | Path, path: str, options: PredictOptions) -> pd.DataFrame:
    """`predict_rows` of a saved model and a file. Raises as `read_rows`, and as `AttentionClassifier.load`."""
    model = AttentionClassifier.load(folder)
    frame = read_rows(model, path, options)
    with naming({"": path}):
        predicted = predict_rows(model, frame)
    if options.attention_output is not None:
        write_table(tabulate_attention(model, frame), Path(options.attention_output))
    return predicted


def read_tables(
    paths: str | Sequence[str], options: FitOptions, progress: ProgressCallback = ignore_progress
) -> SplitTable:
    """The rows of the files that train, and those that test. Raises UsageError, DataUnavailableError, TableError."""
    paths = [paths] if isinstance(paths, str) else paths
    frame = read_files(paths, options.missing, progress)
    x, y = (frame, None) if options.target is None else take_target(frame, options.target, paths[0])
    if options.test is not None:
        test_x, test_y = read_own_table(options.test, options.missing, list_texts(frame)), None
        if options.target is not None:
            test_x, test_y = take_target(test_x, options.target, options.test)
        absent = [name for name in x.columns if name not in test_x.columns]
        if absent and len(paths) == 1:
            raise TableError(f"no column {absent[0]!r}, which the training rows have", table=options.test)
        return SplitTable(x, y, test_x.reindex(columns=list(x.columns)), test_y)
    labelled = (np.ones(len(x), bool) if y is None else y.notna().to_numpy()).nonzero()[0]
    train, test_rows = hold_out(labelled, options.test_size, options.random_state, "test_size", paths[0])
    if y is not None:  # a label that no training row has could not be predicted
        test_rows = test_rows[y.iloc[test_rows].isin(y.iloc[train].unique()).to_numpy()]
    kept = np.delete(np.arange(len(frame)), test_rows)
    labels = [None, None] if y is None else [y.iloc[kept], y.iloc[test_rows]]
    return SplitTable(x.iloc[kept], labels[0], x.iloc[test_rows], labels[1])


def read_files(
    paths: Sequence[str], missing: Sequence[str] | None = None, progress: ProgressCallback = ignore_progress
) -> pd.DataFrame:
    """The rows of files with the columns of all, but an index; cells of a column that a file lacks are missing.

    progress: gets a note of what may be read otherwise than the user expects. A column that is of texts in one file is
    of texts in all text files. Raises as `read_own_table`, UsageError for a file that is given twice, and TableError
    for one without a column in common with the others, through which columns of both are in one space.
    """
    if len(set(paths)) < len(paths):
        raise UsageError(f"{next(path for path in paths if paths.count(path) > 1)} is given twice, expected each once")
    frames = [read_own_table(path, missing) for path in paths]
    for path, frame in zip(paths, frames, strict=True):
        for note in _describe_reading(path, frame, missing):
            progress(Progress("note", f"{path}: {note}"))
    if len(frames) == 1:
        return frames[0].drop(columns=find_index(frames[0]))
    texts = {name for frame in frames for name in list_texts(frame)}
    frames = [read_own_table(path, missing, texts) for path in paths]
    frames = [frame.drop(columns=find_index(frame)) for frame in frames]
    joined, left = list(frames[0].columns), [*range(1, len(frames))]
    while left:
        near = next((at for at in left if {*joined} & {*frames[at].columns}), None)
        if near is None:
            others = f"no column in common with {paths[0]}"
            raise TableError(f"{others}, expected one of: {list_names(joined)}; rename one", table=str(paths[left[0]]))
        joined += [name for name in frames[near].columns if name not in joined]
        left.remove(near)
    parts = [frame.dropna(axis=1, how="all") for frame in frames]  # whose kind would not be that of the values
    return pd.concat(parts, ignore_index=True).reindex(columns=joined)


def _describe_reading(path: str, frame: pd.DataFrame, missing: Sequence[str] | None) -> Iterator[str]:
    """What may be read otherwise than the user expects: an index, texts that are missing cells, numbers among texts."""
    for name in find_index(frame):
        yield f"{name!r}, a column without a name that numbers the rows, is left out; name it to keep it"
    found = count_missing_texts(path, frame) if missing is None else {}
    for name, counts in found.items():
        listed = ", ".join(f"{text!r:.40} in {count:,} rows" for text, count in counts.items())
        if listed:
            yield f"column {name!r:.60}: {listed} is a missing cell; --missing '' makes categories of such texts"
    yield from describe_few_texts(path, frame)


def take_target(frame: pd.DataFrame, target: str, path: str | Path) -> tuple[pd.DataFrame, pd.Series[Any]]:
    """The features, and the response. Raises TableError if there is no such column, or no other one."""
    if target not in frame.columns:
        raise refuse_column(target, frame.columns, path)
    if frame.shape[1] < 2:
        raise TableError(f"{path} has the column {target!r} only, expected one or more features beside it")
    labels = frame[target]
    return frame.drop(columns=target), keep_whole(labels)


def fit_table(
    tables: SplitTable, options: FitOptions, progress: ProgressCallback = ignore_progress
) -> tuple[pd.DataFrame, AttentionClassifier]:
    """Fit each method to the training rows, and measure it on the test rows that have a label.

    Rows: method, seed, train_rows, test_rows, accuracy, mse (of labels that are numbers or ordered), log_loss, and
    calibration_error, the mean difference of confidence and accuracy in ten bins of confidence. Baselines see the same
    categories, one-hot; a missing cell is a category of its own there. Beside the rows, the attention model, which is
    fitted if it is among the methods. Raises TableError, also for what a saved model cannot keep if it is to be saved.
    """
    assert tables.train_y is not None
    assert tables.test_y is not None
    model = AttentionClassifier(**_list_parameters(options))
    with naming({}, tables.train_x.index):
        model.prepare(tables.train_x, tables.train_y)  # learns the categories, so that bad rows are refused at once
    _note_bins(model, tables.train_x, progress)
    model.missing_texts = tuple(list_missing(options.missing))
    if options.save is not None:
        describe_columns(model.coding_)
    numbers = _number_classes(model.classes_, tables.train_y.dtype)
    known = tables.test_y.notna()
    test_x, test_y = tables.test_x[known], tables.test_y[known]
    if not len(test_y):
        raise TableError("no test row has a label, expected some that training rows have; give labelled test rows")
    train = model.coding_.encode(tables.train_x, tables.train_y, "mask")
    with naming({"": options.test or "the test rows"}, test_x.index):
        codes = model.coding_.encode(test_x, test_y, options.unseen)
    rows = []
    for name in options.method_names:
        if name == OURS:
            fit_together([model], [(tables.train_x, tables.train_y)], progress)
            chances = model.predict_proba(test_x)
        else:
            chances = _predict_baseline(name, train, codes, model, options.random_state, progress)
        scores = measure_chances(numbers, codes[:, -1], chances)
        sizes = {"train_rows": len(tables.train_y), "test_rows": len(test_y)}
        rows.append({"method": name, "seed": options.random_state, **sizes, **scores})
    return pd.DataFrame(rows), model


def fit_columns(
    tables: SplitTable, options: FitOptions, progress: ProgressCallback = ignore_progress
) -> tuple[pd.DataFrame, TableModel]:
    """Fit attention to the training rows without a target, and measure it on each cell of the test rows.

    Rows: column, method (atn, or frequencies: those of the training rows, one added to each count), seed, train_rows,
    test_rows (with a value in the column), and accuracy to calibration_error as of `fit_table`. Columns with one value,
    or none in the test rows, are left out. Raises as `fit_table`. Beside the rows, the model.
    """
    model, seed = AttentionImputer(**_list_parameters(options)), options.random_state
    with naming({}, tables.train_x.index):
        model.prepare(tables.train_x, None)
    _note_bins(model, tables.train_x, progress)
    model.missing_texts = tuple(list_missing(options.missing))
    if options.save is not None:
        describe_columns(model.coding_)
    measured = copy(model).set_params(unseen="mask" if options.test is None else options.unseen)
    with naming({"": options.test or "the test rows"}, tables.test_x.index):
        train, codes = (measured.coding_.encode(x, None, measured.unseen) for x in (tables.train_x, tables.test_x))
    fit_together([model], [(tables.train_x, None)], progress)
    measured.network_, rows = model.network_, []
    for at, coding in enumerate(model.coding_.columns):
        known = codes[:, at] >= 0
        if coding.size < 2 or not known.any():
            continue
        counts = np.bincount(train[train[:, at] >= 0, at], minlength=coding.size) + 1
        frequencies = np.tile(counts / counts.sum(), (int(known.sum()), 1))
        chances = measured.predict_cell(tables.test_x[known], coding.name).to_numpy()
        about = {"seed": seed, "train_rows": len(train), "test_rows": int(known.sum())}
        for method, of_method in {OURS: chances, "frequencies": frequencies}.items():
            scores = measure_chances(_number_classes(np.array(coding.decode_all())), codes[known, at], of_method)
            rows.append({"column": coding.name, "method": method, **about, **scores})
    if not rows:
        raise TableError("no test row has a value of a column that varies, expected some; give other test rows")
    return pd.DataFrame(rows), model


def _note_bins(model: TableModel, train: pd.DataFrame, progress: ProgressCallback) -> None:
    """Note the columns of whole numbers in bins whose values occur often, as those of codes do."""
    counts = {
        name: train[name].nunique()
        for name, column in zip(model.coding_.names, model.coding_.features, strict=True)
        if column.edges is not None and isinstance(column.values[0], int)
    }
    often = {name: count for name, count in counts.items() if count * OFTEN <= len(train)}
    if often:
        listed = ", ".join(f"{name!s:.60} ({count} values)" for name, count in often.items())
        advice = f"--bins {max(often.values())} keeps each value, which codes need"
        progress(Progress("note", f"whole numbers are cut into bins: {listed}; {advice}"))


def _list_parameters(options: FitOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in ClassifierOptions.model_fields}


def _predict_baseline(
    name: str, train: np.ndarray, test: np.ndarray, model: AttentionClassifier, seed: int, progress: ProgressCallback
) -> np.ndarray:
    """The chances of all classes, [rows, classes]. A baseline learns from labelled rows only."""
    labelled = train[train[:, -1] >= 0]
    fitted = fit_baseline(
        name, labelled[:, :-1], labelled[:, -1], seed=seed,
        report=lambda done, total: progress(Progress("fit", METHOD_LABELS[name], done, total, "steps")),
    )  # fmt: skip
    chances = np.zeros((len(test), len(model.classes_)))
    chances[:, fitted.classifier.classes_] = fitted.predict_proba(test[:, :-1])
    return chances


def _number_classes(classes: np.ndarray, dtype: Any = None) -> np.ndarray:
    """The number of each class in a squared error: its rank in an ordered dtype, or itself; NaN for other classes."""
    if isinstance(dtype, pd.CategoricalDtype) and dtype.ordered:
        used = set(classes.tolist())
        order = [value for value in dtype.categories if value in used]
        return np.array([order.index(value) for value in classes], dtype=float)
    return classes.astype(float) if np.issubdtype(classes.dtype, np.number) else np.full(len(classes), np.nan)


def measure_chances(numbers: np.ndarray, truth: np.ndarray, chances: np.ndarray) -> dict[str, float]:
    """Accuracy, mse, log_loss and calibration_error of the chances of classes, [rows, classes].

    numbers: of the classes, whose squared error mse is; NaN if they have none, [classes]. truth: the place of the right
    class of each row. calibration_error: the mean over rows of |accuracy − mean confidence| in bins of the confidence,
    of equal width (Guo et al. 2017, https://arxiv.org/abs/1706.04599, equation 3).
    """
    best = chances.argmax(1)
    right = best == truth
    confidence = chances[np.arange(len(best)), best]
    bins = np.minimum((confidence * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
    gaps = np.bincount(bins, right - confidence, CALIBRATION_BINS)
    return {
        "accuracy": float(right.mean()),
        "mse": float(np.mean((numbers[best] - numbers[truth]) ** 2)),
        "log_loss": float(log_loss(truth, chances, labels=np.arange(len(numbers)))),
        "calibration_error": float(np.abs(gaps).sum() / len(best)),
    }


def read_rows(model: AttentionClassifier, path: str, options: RowsOptions) -> pd.DataFrame:
    """The rows of a file with the columns that a saved model knows. Gives the model the option `unseen`.

    Raises DataUnavailableError, UsageError, and TableError if a column of the training rows is absent.
    """
    frame = _read_like(model, path, options)
    names = [str(name) for name in model.coding_.names]
    absent = [name for name in names if name not in frame.columns]
    if absent:
        raise TableError(
            f"no column {absent[0]!r:.60}; expected those of the training rows: {list_names(names)}", table=str(path)
        )
    return frame[names]


def _read_like(model: TableModel, path: str, options: RowsOptions) -> pd.DataFrame:
    """The rows of a file, whose columns of texts are those of the training. Gives the model the option `unseen`."""
    if options.unseen is not None:
        model.set_params(unseen=options.unseen)
    texts = [
        str(column.name) for column in model.coding_.columns if all(isinstance(value, str) for value in column.values)
    ]
    return read_own_table(path, options.missing or model.missing_texts, texts)


def impute_own_table(folder: str | Path, path: str, options: RowsOptions) -> pd.DataFrame:
    """`impute_rows` of a saved model and a file. Raises as they and their readers do, and TableError if the file has no
    column of the training rows.
    """
    model = TableModel.load(folder)
    frame, names = _read_like(model, path, options), [str(name) for name in model.columns_]
    if not set(names) & set(frame.columns):
        raise TableError(f"no column of the training rows, expected some of: {list_names(names)}", table=str(path))
    with naming({"": path}):
        return impute_rows(model, frame, read_written(path))


def impute_rows(model: TableModel, frame: pd.DataFrame, written: pd.DataFrame | None = None) -> pd.DataFrame:
    """The rows, with each missing cell of a column of the training rows filled as `TableModel.impute` does.

    Further columns, p(COLUMN), have the probability of each value that is filled in, and NaN for observed cells; such a
    name has "predicted_" before it if the rows have a column of the name. A column of features that the frame lacks is
    filled, too; one of labels only if the frame has it. written: the rows as their file has them; all cells that are
    not filled stay as they are there, or else as they are in the frame.
    """
    names = [str(name) for name in model.columns_]
    features = names[: len(model.coding_.names)]
    cells = model.find_cells(frame.reindex(columns=features), None if features == names else frame.get(names[-1]))
    filled = frame.copy() if written is None else written  # whose columns are at the same places
    chances: dict[str, np.ndarray] = {}
    for column, found in cells.groupby("column", sort=False):
        name = str(column)
        rows = found["row"]
        values = np.full(len(frame), None, dtype=object)
        if name in frame:
            place = int(frame.columns.get_loc(name))  # type: ignore[arg-type]
            values[:] = keep_whole(frame[name]).astype(object) if written is None else written.iloc[:, place]
        values[rows] = found["value"] if written is None else found["value"].map(str)
        complete = pd.Series(values, filled.index).infer_objects()
        if name in frame:
            filled.isetitem(place, complete.array)
        else:
            filled[name] = complete
        chances[name] = np.full(len(frame), np.nan)
        chances[name][rows] = found["probability"]
    if written is not None:
        filled = settle_table(filled)
    filled.attrs[AS_WRITTEN] = [*filled.columns[: frame.shape[1]]]
    for name, probabilities in chances.items():
        filled[name_new(f"p({name})", filled.columns)] = probabilities
    return filled


def predict_rows(model: AttentionClassifier, frame: pd.DataFrame) -> pd.DataFrame:
    """The predictions for rows: row (from 1), prediction, probability, and p(label) of each label.

    Raises TableError for values that no training row has, unless they are to be masked.
    """
    chances = model.predict_proba(frame)
    best = chances.argmax(1)
    return pd.DataFrame(
        {
            "row": range(1, len(frame) + 1), "prediction": model.classes_[best], "probability": chances.max(1),
            **{f"p({label})": chances[:, at] for at, label in enumerate(model.classes_)},
        }
    )  # fmt: skip


def tabulate_attention(model: TableModel, table: Any) -> pd.DataFrame:
    """The attention of each cell of each row, when it is masked, on the cells of its row.

    table: rows without the response, with the columns of the training rows. Columns: row (from 1), cell (that attends),
    on (the cell that it attends to), value (of that cell, as text; [MASK] for one that is masked), head, attention.
    Raises TableError as `model.predict`.
    """
    frame, weights = read_table(table), model.attention(table)  # [rows, heads, K, K]
    names = np.array([str(name) for name in model.columns_], dtype=object)
    codes = model.coding_.encode(frame, None, "mask")
    values = np.full(codes.shape, MASK, dtype=object)
    for at in range(frame.shape[1]):
        known = codes[:, at] != MISSING
        values[known, at] = frame.iloc[:, at][known].astype(str)
    row, head, cell, on = np.indices(weights.shape).reshape(4, -1)
    columns = {"row": row + 1, "cell": names[cell], "on": names[on], "value": values[row, on], "head": head}
    return pd.DataFrame(columns).assign(attention=weights.reshape(-1))


def tabulate_encodings(model: TableModel) -> pd.DataFrame:
    """The encoding of each category, projected on its two principal components; one row for each category.

    Encodings are the vectors that attention sees: of the category plus of its column. Columns: column, value (of a bin,
    the median of its training values), x, y.
    """
    columns = model.coding_.columns
    pairs = [(str(column.name), _name(value)) for column in columns for value in column.decode_all()]
    of_columns = np.repeat(model.feature_encodings_, [column.size for column in columns], axis=0)
    points = model.category_encodings_.to_numpy() + of_columns
    if points.shape[1] == 1:  # one head of size 1: all lie on a line
        points = np.pad(points, ((0, 0), (0, 1)))
    placed = PCA(2, svd_solver="full").fit_transform(points)  # with the largest number of each axis positive
    return pd.DataFrame(pairs, columns=["column", "value"]).assign(x=placed[:, 0], y=placed[:, 1])


def _name(value: Any) -> str:
    """A category as text. A median of whole numbers has no fraction."""
    return format(value, ".10g") if isinstance(value, float) else str(value)
