"""Estimators of scikit-learn's kind for tables: attention over the cells of a row, trained to fill in any of them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from pydantic import ConfigDict
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    OneToOneFeatureMixin,
    TransformerMixin,
)
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from attngeo.bounds.names import list_names
from attngeo.devices import pick_device, usable_device
from attngeo.errors import UnsupportedModelError, UsageError
from attngeo.estimators.shared import takes_keywords
from attngeo.estimators.shared.dates import DateColumn
from attngeo.estimators.tabular.cell_layout import MISSING, CellLayout
from attngeo.estimators.tabular.coding import (
    TableCoding,
    TrainingRows,
    hold_out,
    learn_table,
    read_labels,
    read_table,
    read_training_rows,
)
from attngeo.estimators.tabular.fitting import FittedTable, FittingPlan, fit_plans
from attngeo.estimators.tabular.network import TableAttention
from attngeo.estimators.tabular.options import ClassifierOptions, Unseen
from attngeo.estimators.tabular.reading import read_attention, read_cells
from attngeo.estimators.tabular.saving import describe_dates, read_classifier, write_classifier
from attngeo.progress import ProgressCallback, ignore_progress
from attngeo.training import TrainingOptions

# The least and the largest patience that is chosen, in epochs, and the held-out rows for a patience of 1.
LEAST_PATIENCE, MOST_PATIENCE, PATIENT_ROWS = 3, 10, 1500


class ClassifierKeywords(ClassifierOptions):
    """The keywords of the classifier."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    random_state: int | np.random.RandomState | None = None  # type: ignore[assignment]


class TableModel(BaseEstimator):  # type: ignore[misc]
    """Attention over the cells of a row, with or without a response: `AttentionClassifier` and `AttentionImputer`.

    Attributes:
        missing_texts: texts that marked missing cells in the training file; None for the defaults of `read_own_table`.
        missing_in: number or date column → texts that mark missing cells only there.
        partial_columns: columns that some training files lacked; rows to predict may lack them, too.
        dates: date columns of the training file; the model sees their parts.
        random_state: seed, or a NumPy generator.
        device: device for training.
        coding_: categories of the columns.
        network_: the trained network.
        train_loss_: mean cross-entropy of masked cells per epoch, [epochs].
        validation_loss_: the same for held-out rows; empty without them.
    """

    _has_response = True
    # Texts that marked missing cells in the training file; None for the defaults of `read_own_table`.
    missing_texts: tuple[str, ...] | None = None
    # Texts that mark missing cells only in this column of numbers or dates.
    missing_in: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    # Columns that some training files lacked, so that rows to predict may lack them, too.
    partial_columns: tuple[str, ...] = ()
    # The date columns of the training file; the model sees their parts.
    dates: Mapping[str, DateColumn] = MappingProxyType({})
    random_state: int | np.random.RandomState | None
    device: str
    coding_: TableCoding
    network_: TableAttention
    train_loss_: np.ndarray
    validation_loss_: np.ndarray
    # The seed of a model, and the data sets that it was trained on so far.
    _seed: int
    _data_sets: int

    @takes_keywords(ClassifierKeywords)
    def __init__(self) -> None:
        """An estimator that is not fitted.

        Args:
            {options}
        """

    def __sklearn_tags__(self) -> Tags:
        """The kinds of cells that scikit-learn's checks may give to the estimator."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        return tags

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:  # noqa: N803 - scikit-learn's name
        """Train on rows; a classifier also needs their labels.

        If training fails or is interrupted, the estimator stays unchanged.

        Args:
            X: cells, [rows, columns]; NaN or None if missing.
            y: labels for a classifier, [rows]; NaN or None if missing. An imputer ignores them.
            sample_weight: weight of each row in the loss and in the bin edges, [rows].

        Returns:
            The estimator.

        Raises:
            TableError: the table cannot be used.
            UsageError: a parameter is out of range.
            TrainingError: training failed, as in `training.loop.train`.
        """
        fit_together([self], [(X, y, sample_weight)])
        return self

    def impute(self, X: Any, y: Any = None) -> Any:  # noqa: N803
        """Fill in each missing cell with its most probable value given the observed cells of its row.

        In a column of bins, the value is the median of its bin. With unseen="mask", a value in no training row counts
        as missing while other cells are predicted, but is not replaced.

        Args:
            X: cells, [rows, columns]; NaN or None if missing.
            y: labels of the rows, [rows], if you know them.

        Returns:
            A DataFrame for a DataFrame, otherwise an array, [rows, columns].

        Raises:
            TableError: the table cannot be used.
        """
        cells = self.find_cells(X, y)
        frame = read_table(X)
        columns = []
        for number, name in enumerate(self.coding_.names):
            column = frame.iloc[:, number].astype(object)
            filled = cells[cells["column"] == name]
            column.iloc[filled["row"].to_numpy()] = filled["value"].to_numpy()
            columns.append(column.infer_objects())
        complete = pd.concat(columns, axis=1)
        return complete if isinstance(X, pd.DataFrame) else complete.to_numpy()

    def find_cells(self, X: Any, y: Any = None) -> pd.DataFrame:  # noqa: N803
        """List the missing cells, each with its most probable value given the observed cells of its row.

        Columns without values in training are left out.

        Args:
            X: cells, [rows, columns]; NaN or None if missing.
            y: labels of the rows, [rows]; if you give them, missing labels are listed, too.

        Returns:
            Columns: row (from 0), column, value, probability (of that value).

        Raises:
            TableError: the table cannot be used.
        """
        codes = self._code(X, y)
        frame = read_table(X)
        network = self._exact_network()
        is_missing = [*frame.isna().to_numpy().T]
        if y is not None:
            is_missing.append(codes[:, -1] == MISSING)
        tables = []
        for number, cells in enumerate(is_missing):
            coding = self.coding_.columns[number]
            rows = np.flatnonzero(cells & bool(coding.values))
            _, chances = read_cells(network, codes[rows], number)
            tables.append(
                pd.DataFrame(
                    {
                        "row": rows,
                        "column": pd.Series([coding.name] * len(rows), dtype=object),
                        "value": pd.Series(coding.decode(chances.argmax(1)), dtype=object),
                        "probability": chances.max(1),
                    }
                )
            )
        return pd.concat(tables, ignore_index=True)

    def predict_cell(self, X: Any, column: Hashable, y: Any = None) -> pd.DataFrame:  # noqa: N803
        """The probability of each value of a column given the other cells.

        Args:
            X: cells, [rows, columns].
            column: name of the column; for an array, its number.
            y: labels of the rows, [rows], if you know them.

        Returns:
            [rows, values], one column per value.

        Raises:
            UsageError: the model has no such column.
            TableError: the table cannot be used.
        """
        codes = self._code(X, y)
        names = self.coding_.names
        if column not in names:
            raise UsageError(f"$column is {column!r:.60}, expected one of: {list_names(names)}", "column")
        number = names.index(column)
        values = self.coding_.columns[number].decode_all()
        _, chances = read_cells(self._exact_network(), codes, number)
        return pd.DataFrame(chances, columns=pd.Index(values, dtype=object))

    def attention(self, X: Any, y: Any = None) -> np.ndarray:  # noqa: N803
        """How much each cell attends to all cells of its row while it is masked.

        Args:
            X: cells, [rows, columns].
            y: labels of the rows, [rows]; without them the response is [MASK].

        Returns:
            [rows, heads, K, K], the response last. Each row of a matrix adds up to 1.

        Raises:
            TableError: the table cannot be used.
        """
        codes = self._code(X, y)
        return read_attention(self._exact_network(), codes)

    @property
    def columns_(self) -> list[Hashable]:
        """Names of the columns, the response last."""
        return [column.name for column in self._fitted_coding().columns]

    @property
    def feature_encodings_(self) -> np.ndarray:
        """The vector of each column, the response last, [K, d]."""
        self._fitted_coding()
        return np.asarray(self.network_.weights["positions"][0].detach().cpu())

    @property
    def category_encodings_(self) -> pd.DataFrame:
        """The vector of each category, [categories, d]; the index is (column, value)."""
        index = []
        words = []
        for number, coding in enumerate(self._fitted_coding().columns):
            index += [(coding.name, value) for value in coding.decode_all()]
            words.append(self.network_.layout.to_words(torch.arange(coding.size), torch.tensor(number)))
        vectors = self.network_.weights["words"][0].detach().cpu()[torch.cat(words)]
        return pd.DataFrame(vectors.numpy(), index=pd.MultiIndex.from_tuples(index, names=["column", "value"]))

    def _fitted_coding(self) -> TableCoding:
        check_is_fitted(self, "coding_")
        return self.coding_

    def _check_options(self) -> ClassifierOptions:
        """The parameters, checked. Raises UsageError."""
        seed = self.random_state if isinstance(self.random_state, int | np.integer) else None
        return ClassifierOptions(**self.get_params() | {"random_state": seed})

    def _exact_network(self) -> TableAttention:
        """The network in double precision, so that its numbers of a row depend on no other row."""
        device = pick_device(self.device)
        return deepcopy(self.network_).to("cpu" if device.type == "mps" else device, torch.float64)

    def _code(self, X: Any, y: Any = None) -> np.ndarray:  # noqa: N803
        """Categories of rows to predict, [rows, K]; the response is missing without y."""
        coding = self._fitted_coding()
        frame = read_table(X)
        if y is not None and not self._has_response:
            raise UsageError("the model was fitted without a target and has no labels; leave out y")
        validate_data(self, X, skip_check_array=True, reset=False)
        labels = None if y is None else read_labels(y, len(frame), unlabelled=True)
        return coding.encode(frame, labels, _find_unseen(self._check_options(), self.network_.layout))

    def prepare(self, X: Any, y: Any, sample_weight: Any = None) -> FittingPlan:  # noqa: N803
        """Learn the categories, and plan the training that `fit` does.

        Args:
            X: cells, [rows, columns].
            y: labels, [rows]; None without a response.
            sample_weight: weight of each row, [rows].

        Returns:
            The plan, for `fit_plans`.

        Raises:
            TableError: the table cannot be used.
            UsageError: a parameter is out of range.
        """
        options = self._check_options()
        rows = self._learn(X, y, sample_weight, options, None)
        self._data_sets = 1
        plan = self._plan(rows, options, options.training(), self._seed, options.validation_fraction)
        patience = _choose_patience(len(plan.held_out_codes)) if options.patience is None else options.patience
        return replace(plan, training=options.training(patience=patience or None))

    def _learn(self, X: Any, y: Any, weight: Any, options: ClassifierOptions, classes: Any) -> TrainingRows:  # noqa: N803
        """Start a model of these rows."""
        rows = read_training_rows(read_table(X), y, weight, has_response=self._has_response)
        coding = learn_table(rows.frame, rows.labels, rows.weights, options.n_bins, classes, options.min_frequency)
        validate_data(self, X, skip_check_array=True, reset=True)
        self.coding_ = coding
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self._data_sets = 0
        return rows

    def _plan(
        self,
        rows: TrainingRows,
        options: ClassifierOptions,
        training: TrainingOptions,
        seed: int,
        fraction: float = 0.0,
        start: TableAttention | None = None,
    ) -> FittingPlan:
        """The training on rows. fraction: of the rows that are held out. start: the network that is trained further."""
        if start is None:
            layout = CellLayout(self.coding_.sizes, options.vocabulary == "shared", options.unseen == "category")
            # Of these rows, only values that are too rare have no category.
            unseen: Unseen = "mask" if options.unseen == "error" else options.unseen
        else:
            layout = start.layout
            unseen = _find_unseen(options, layout)
        codes = torch.from_numpy(self.coding_.encode(rows.frame, rows.labels, unseen))
        weights = torch.from_numpy(rows.weights.astype(np.float32))
        kept = np.arange(len(codes))
        out = kept[:0]
        if fraction:
            kept, out = hold_out(kept, fraction, seed, "validation_fraction")
        return FittingPlan(
            layout,
            codes[kept],
            weights[kept],
            codes[out],
            weights[out],
            options,
            training,
            seed,
            has_response=self._has_response and bool((codes[out, -1] >= 0).any()),
            start=start,
        )

    def save(self, folder: str | Path) -> None:
        """Write the model to a folder; `load` and `attngeo score` read it.

        Args:
            folder: folder to create.

        Raises:
            OutputError: the folder cannot be written.
            TableError: JSON cannot store a value.
            NotFittedError: the model is not fitted (an error of scikit-learn).
        """
        check_is_fitted(self, "network_")
        write_classifier(
            Path(folder),
            self._check_options(),
            self.coding_,
            self.network_,
            seed=self._seed,
            data_sets=self._data_sets,
            epochs=self.n_iter_,
            missing=self.missing_texts,
            # Both are unknown to older versions.
            **({"missing_in": dict(self.missing_in)} if self.missing_in else {}),
            **({"partial_columns": self.partial_columns} if self.partial_columns else {}),
            **describe_dates(self.dates),
        )

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Load a model that `save` wrote. `TableModel.load` loads classifiers and imputers.

        Args:
            folder: folder of the model.

        Raises:
            ModelNotFoundError: the folder has no model.
            UnsupportedModelError: the model is of another version or kind.
            CorruptCheckpointError: its files are broken or contradict each other.
            NotEnoughMemoryError: the model does not fit in memory.
        """
        saved, coding, network = read_classifier(Path(folder))
        kind: type[Any] = AttentionClassifier if saved.target else AttentionImputer
        if not issubclass(kind, cls):
            fitted, command = ("with", "predict") if saved.target else ("without", "impute")
            raise UnsupportedModelError(
                f"the model in {folder} was fitted {fitted} a target, expected a model of the other kind; load it with "
                f"{kind.__name__}.load, or use attngeo tabular {command}"
            )
        model: Self = kind(**dict(saved.parameters))
        model.set_params(device=usable_device(model.device))
        model.coding_ = coding
        model.network_ = network
        model.n_iter_ = saved.epochs
        model.missing_texts = saved.missing
        model.missing_in = saved.missing_in
        model.partial_columns = saved.partial_columns
        model.dates = saved.list_dates()
        model._seed = saved.seed
        model._data_sets = saved.data_sets
        model.train_loss_ = np.empty(0)
        model.validation_loss_ = np.empty(0)
        model.n_features_in_ = len(coding.names)
        if all(isinstance(name, str) for name in coding.names):
            model.feature_names_in_ = np.array(coding.names, dtype=object)
        return model

    def _take(self, fitted: FittedTable) -> None:
        """Keep the result of a training."""
        self.network_ = fitted.network
        self.train_loss_ = fitted.train
        self.validation_loss_ = fitted.validation
        self.n_iter_ = len(fitted.train)


class AttentionClassifier(
    ClassifierMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TableModel,
):
    """Bidirectional attention for tables of categories.

    A row with its response is a sentence: columns are positions, categories are words. In training, each cell is masked
    once per epoch and predicted from the others. So the model learns the joint distribution, and can fill in any
    missing cell. It has one block of attention, as in the published run (appendix E).

    Missing values (NaN, None) are [MASK]. A row without a label still trains the columns. Quantiles of the training
    rows cut a numeric column with fractions, or with more than `n_bins` values, into bins; with fewer whole numbers,
    each has its own bin. An unseen number goes to the nearest bin.

    Args:
        vocabulary: with "column", each column has its own categories; with "shared", columns with the same levels share
            the vectors of their categories by number, as in the paper.
        random_state: seed, or a NumPy generator.
        **options: the other fields of `ClassifierOptions`, which `__init__` describes.

    Attributes:
        classes_: labels, in the order of `predict_proba`.
        columns_: names of the columns, the response last.
        coding_: the categories of the columns.
        feature_encodings_: the vector of each column, [K, d], like positional encodings in a sentence. Columns with
            similar vectors play similar roles.
        category_encodings_: the vector of each category, a DataFrame.
        train_loss_: mean cross-entropy of masked cells per epoch, [epochs].
        validation_loss_: the same for held-out rows; empty without them.
        n_iter_: number of epochs.
        n_features_in_: as in scikit-learn.
        feature_names_in_: as in scikit-learn.

    Raises:
        TableError: a table cannot be used; also a ValueError.
        UsageError: an argument is out of range.

    Source: Wibisono & Wang 2023 (arXiv 2307.04057), section 3.

    >>> import numpy as np
    >>> x = np.array([["red", "small"], ["red", "large"], ["blue", "small"], ["blue", "large"]] * 20)
    >>> y = x[:, 0] == "red"
    >>> model = AttentionClassifier(max_epochs=20, random_state=0).fit(x, y)
    >>> model.predict([["red", "large"], ["blue", "small"]])
    array([ True, False])
    >>> model.impute([["red", "small"]], y=[True]).tolist()
    [['red', 'small']]
    """

    def partial_fit(
        self,
        X: Any,  # noqa: N803
        y: Any,
        classes: Any = None,
        sample_weight: Any = None,
        *,
        epochs: int = 1,
    ) -> Self:
        """Train further, on rows with the columns, categories and classes of the first call.

        In later calls, labels may be missing, and `unseen` decides whether a new value is an error or missing. Each
        call restarts Adam, as after `load`. If training fails or is interrupted, the model stays unchanged.

        Args:
            X: cells, [rows, columns].
            y: labels, [rows].
            classes: all labels, if y of the first call does not have all of them.
            sample_weight: weight of each row, [rows].
            epochs: passes over the rows.

        Returns:
            The estimator.

        Raises:
            TableError: the table cannot be used.
            UsageError: a parameter is out of range.
            TrainingError: training failed, as in `training.loop.train`.
        """
        draft = copy(self)
        options = draft._check_options()
        training = options.training(epochs=epochs)
        if hasattr(self, "network_"):
            validate_data(draft, X, skip_check_array=True, reset=False)
            rows = read_training_rows(read_table(X), y, sample_weight, unlabelled=True)
            start = deepcopy(self.network_)  # trained in place
        else:
            rows = draft._learn(X, y, sample_weight, options, classes)
            start = None
        plan = draft._plan(rows, options, training, draft._seed + draft._data_sets, start=start)
        draft._take(fit_plans([plan])[0])
        draft._data_sets += 1
        self.__dict__ = draft.__dict__
        return self

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """The most probable label of each row.

        Args:
            X: cells, [rows, columns].

        Returns:
            [rows].

        Raises:
            TableError: the table cannot be used.
        """
        best = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """The probability of each label given the row's cells.

        Args:
            X: cells, [rows, columns].

        Returns:
            [rows, classes], in the order of `classes_`.

        Raises:
            TableError: the table cannot be used.
        """
        _, chances = self._read_response(X)
        return chances

    def transform(self, X: Any) -> np.ndarray:  # noqa: N803
        """The vector of each row's masked response, from which the model predicts its label.

        Args:
            X: cells, [rows, columns].

        Returns:
            [rows, d].

        Raises:
            TableError: the table cannot be used.
        """
        vectors, _ = self._read_response(X)
        return vectors

    @property
    def classes_(self) -> np.ndarray:
        """The labels, [classes]."""
        return np.array(self._fitted_coding().response.values)

    @property
    def _n_features_out(self) -> int:
        return int(self.network_.width)

    def _read_response(self, X: Any) -> tuple[np.ndarray, np.ndarray]:  # noqa: N803
        """The vector of each row's masked response, [rows, d], and the probability of each label, [rows, classes]."""
        codes = self._code(X)
        return read_cells(self._exact_network(), codes, codes.shape[1] - 1)


class AttentionImputer(
    OneToOneFeatureMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    TableModel,
):
    """Bidirectional attention for tables without a response: fills in missing cells from the others.

    Parameters, kinds of columns, attributes and errors are the same as for `AttentionClassifier`, except that there is
    no classes_. To train on tables that share only some columns, stack them and leave the other cells missing.

    Source: Wibisono & Wang 2023 (arXiv 2307.04057), section 3.1, unsupervised settings.

    >>> import numpy as np
    >>> x = np.array([["red", "warm"], ["blue", "cold"]] * 40, dtype=object)
    >>> AttentionImputer(max_epochs=30, random_state=0).fit(x).transform([["red", None]]).tolist()
    [['red', 'warm']]
    """

    _has_response = False

    def transform(self, X: Any) -> Any:  # noqa: N803
        """Fill in each missing cell with its most probable value, as `impute` does.

        Args:
            X: cells, [rows, columns]; NaN or None if missing.

        Returns:
            A DataFrame for a DataFrame, otherwise an array, [rows, columns].

        Raises:
            TableError: the table cannot be used.
        """
        return self.impute(X)


def fit_together(
    estimators: Sequence[TableModel],
    tables: Sequence[tuple[Any, ...]],
    progress: ProgressCallback = ignore_progress,
) -> list[TableModel]:
    """Fit each estimator to its table.

    Tables of the same shape, with the same parameters except random_state, are trained in one batch, which is faster.
    The models are the same as from `fit`, up to the last digits of sums. If training fails or is interrupted, all
    estimators stay unchanged.

    Args:
        estimators: the estimators, fitted or not.
        tables: (X, y) or (X, y, sample_weight) per estimator.
        progress: called after each epoch.

    Returns:
        The estimators.

    Raises:
        TableError: a table cannot be used.
        UsageError: a parameter is out of range.
        TrainingError: training failed, as in `training.loop.train`.
    """
    drafts = [copy(estimator) for estimator in estimators]
    plans = [draft.prepare(*table) for draft, table in zip(drafts, tables, strict=True)]
    for draft, fitted in zip(drafts, fit_plans(plans, progress), strict=True):
        draft._take(fitted)
    for estimator, draft in zip(estimators, drafts, strict=True):
        estimator.__dict__ = draft.__dict__
    return list(estimators)


def _find_unseen(options: ClassifierOptions, layout: CellLayout) -> Unseen:
    """What a value without a category is: missing, if it should be one of its own and the network has none."""
    return "mask" if options.unseen == "category" and not layout.has_unseen else options.unseen


def _choose_patience(held_out: int) -> int:
    """Epochs without a lower loss, by the number of held-out rows: the loss of a few goes up and down by chance."""
    if not held_out:
        return 0
    return min(max(PATIENT_ROWS // held_out, LEAST_PATIENCE), MOST_PATIENCE)
