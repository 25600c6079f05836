"""The classifier of scikit-learn's kind: attention over the cells of a row, trained to fill in any masked cell."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from copy import deepcopy
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import train_test_split
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import validate_data

from attngeo.bounds import list_names
from attngeo.errors import TableError, UsageError
from attngeo.progress import ProgressCallback, ignore_progress
from attngeo.tabular.encoding import TableCoding, learn_table
from attngeo.tabular.fitting import FittedTable, FittingPlan, fit_plans
from attngeo.tabular.growth import grow_network
from attngeo.tabular.network import CellLayout, TableAttention
from attngeo.tabular.options import ClassifierOptions
from attngeo.tabular.reading import TableReader
from attngeo.tabular.tables import TrainingRows, is_frame, read_labels, read_table, read_training_rows
from attngeo.training import TrainingOptions, make_optimizer


class AttentionClassifier(
    ClassifierMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Bidirectional attention for tables of categories.

    A row with its response is a sentence: its columns are positions, its categories are words. In training, each cell
    is masked once in an epoch and predicted from the others. So the model is one of the joint distribution, and fills
    in any missing cell. One block of attention, as in the published run (appendix E).

    Missing values (NaN, None) are [MASK]. A row whose label is missing is trained on without it. A numeric column with
    fractions, or more than `n_bins` values, is cut into bins by the quantiles of the training rows.

    Args:
        n_heads, head_size: heads of attention and the size of each; a cell is a vector of n_heads·head_size numbers.
        feed_forward: hidden units of the feed-forward layer.
        dropout: probability in the attention and feed-forward outputs.
        vocabulary: "column": each column has categories of its own; "shared": columns share the vectors of their
            categories by number, as in the paper, for columns that have the same levels.
        n_bins: bins of a numeric column.
        unseen: what a value is at prediction that no training row has: "error", or "mask" for a missing one.
        epochs, batch_size, learning_rate: of Adam. A batch is of masked copies of rows.
        validation_fraction, patience: the fraction of rows that are held out, and the epochs without a lower loss on
            them after which training stops. 0 and None: train all epochs on all rows.
        random_state: seed, or a generator of numpy, of the start, the batches, the dropout and the held-out rows.
        device: where to train: auto, cpu, cuda, cuda:N or mps.

    Attributes:
        classes_: labels, in the order of `predict_proba`.
        columns_: names of the columns, the response last. coding_: their categories.
        feature_encodings_: the vector of each column, [K, d]: what positional encodings are in a sentence. Columns
            with close ones play similar roles, also across data sets (`partial_fit`).
        category_encodings_: the vector of each category, a DataFrame.
        train_loss_, validation_loss_: mean cross-entropy of masked cells in each epoch. n_iter_: epochs.
        n_features_in_, feature_names_in_: as in scikit-learn.

    Raises TableError (a ValueError) for tables that cannot be used, UsageError for arguments out of range.

    Source: Wibisono & Wang 2023 (arXiv 2307.04057), section 3.

    >>> import numpy as np
    >>> x = np.array([["red", "small"], ["red", "large"], ["blue", "small"], ["blue", "large"]] * 20)
    >>> y = x[:, 0] == "red"
    >>> model = AttentionClassifier(epochs=20, random_state=0).fit(x, y)
    >>> model.predict([["red", "large"], ["blue", "small"]])
    array([ True, False])
    >>> model.impute([["red", "small"]], y=[True]).tolist()
    [['red', 'small']]
    """

    # Texts that are missing cells in the file that it was fitted to; None for those of `read_own_table`.
    missing_texts: tuple[str, ...] | None = None
    coding_: TableCoding
    network_: TableAttention
    train_loss_: np.ndarray
    validation_loss_: np.ndarray
    # The seed of a model, the data sets that it was trained on so far, and the optimizer for the next one.
    _seed: int
    _data_sets: int
    _optimizer: torch.optim.Optimizer | None

    def __init__(
        self,
        *,
        n_heads: int = 5,
        head_size: int = 4,
        feed_forward: int = 5,
        dropout: float = 0.1,
        vocabulary: str = "column",
        n_bins: int = 10,
        unseen: str = "error",
        epochs: int = 200,
        batch_size: int = 128,
        learning_rate: float = 1e-3,
        validation_fraction: float = 0.0,
        patience: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
    ) -> None:
        self.n_heads = n_heads
        self.head_size = head_size
        self.feed_forward = feed_forward
        self.dropout = dropout
        self.vocabulary = vocabulary
        self.n_bins = n_bins
        self.unseen = unseen
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.random_state = random_state
        self.device = device

    def __sklearn_tags__(self) -> Tags:
        """What scikit-learn's checks may give to the estimator."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.categorical = tags.input_tags.string = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803 - scikit-learn's name
        """Train on rows X ([rows, columns]) and their labels y ([rows]); missing ones are NaN or None.

        sample_weight: weight of each row in the loss and in the edges of bins, [rows]. If the training fails or is
        interrupted, the estimator stays as it was.
        """
        fit_together([self], [(X, y, sample_weight)])
        return self

    def partial_fit(
        self,
        X: Any,  # noqa: N803
        y: Any,
        classes: Any = None,
        sample_weight: Any = None,
        *,
        epochs: int = 1,
    ) -> Self:
        """Train further, for one epoch or more. A DataFrame may lack columns of the ones before, and have new ones.

        New columns, categories and classes are added to the model; bins stay as they were learned. A row takes part
        with the columns of its own data set. classes: all labels, at the first call, if they are not all in y. If it
        fails or is interrupted, the model stays as it was.
        """
        draft = self._draft()
        draft._train_further(X, y, classes, sample_weight, epochs)
        self.__dict__ = draft.__dict__
        return self

    def _train_further(self, X: Any, y: Any, classes: Any, sample_weight: Any, epochs: int) -> None:  # noqa: N803
        options = self._check_options()
        training = TrainingOptions(epochs=epochs, learning_rate=options.learning_rate, device=options.device)
        is_first = not hasattr(self, "network_")
        if is_first:
            rows = self._learn(X, y, sample_weight, options, classes)
        else:
            self.network_, self._optimizer = deepcopy((self.network_, self._optimizer))  # trained in place
            rows = self._extend(X, y, sample_weight, options)
        plan = self._plan(rows, options, training, self._seed + self._data_sets)
        self.network_ = plan.new_network() if is_first else self.network_
        self._optimizer = self._optimizer or make_optimizer(self.network_, training)
        self._take(fit_plans([plan.going_on(self.network_, self._optimizer)])[0])
        self._data_sets += 1

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """The most probable label of each row, [rows]."""
        best = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """The probability of each label given the row's cells, [rows, classes]."""
        return self._read_response(X)[1]

    def transform(self, X: Any) -> np.ndarray:  # noqa: N803
        """The vector of each row's masked response, from which its label is predicted, [rows, d]."""
        return self._read_response(X)[0]

    def impute(self, X: Any, y: Any = None) -> Any:  # noqa: N803
        """X with each missing cell replaced by its most probable value given the observed cells of its row.

        y: labels of the rows, if they are known. In a column of bins, a value is the median of its bin. A value that
        no training row has is masked with unseen="mask" as others are predicted, and stays. Gives a DataFrame for a
        DataFrame, otherwise an array.
        """
        codes, frame, reader = self._code(X, y), read_table(X), self._reader()
        columns = []
        for at, place in enumerate(self.coding_.place(frame)):
            column = frame.iloc[:, at].astype(object)
            rows = np.flatnonzero(column.isna())
            if len(rows):
                best = reader.read_cells(codes[rows], place)[1].argmax(1)
                column.iloc[rows] = self.coding_.columns[place].decode(best)
            columns.append(column.infer_objects())
        filled = pd.concat(columns, axis=1)
        return filled if is_frame(X) else filled.to_numpy()

    def predict_cell(self, X: Any, column: Hashable, y: Any = None) -> pd.DataFrame:  # noqa: N803
        """The probability of each value of a column given the other cells, [rows, values], one column for each value.

        y: labels of the rows, if they are known. A column of an array is named by its number.
        """
        codes, names = self._code(X, y), self.coding_.names
        if column not in names:
            raise UsageError(f"column is {column!r:.60}, expected one of: {list_names(names)}")
        at = names.index(column)
        values = self.coding_.columns[at].decode_all()
        return pd.DataFrame(self._reader().read_cells(codes, at)[1], columns=pd.Index(values, dtype=object))

    def attention(self, X: Any, y: Any = None) -> np.ndarray:  # noqa: N803
        """The attention of each cell, when it is masked, on all cells: [rows, heads, K, K], the response last.

        Each row of a matrix has the sum 1. y: labels of the rows; without them the response is [MASK].
        """
        codes = self._code(X, y)
        return self._reader().read_attention(codes)

    @property
    def classes_(self) -> np.ndarray:
        """The labels, [classes]."""
        return self._own_coding().response.labels()

    @property
    def columns_(self) -> list[Hashable]:
        """Names of the columns, the response last."""
        return [column.name for column in self._own_coding().columns]

    @property
    def feature_encodings_(self) -> np.ndarray:
        """The vector of each column, the response last, [K, d]."""
        self._own_coding()
        return np.asarray(self.network_.weights["positions"][0].detach().cpu())

    @property
    def category_encodings_(self) -> pd.DataFrame:
        """The vector of each category, [categories, d]; the index is (column, value)."""
        coding, layout = self._own_coding(), self.network_.layout
        index = [(column.name, value) for column in coding.columns for value in column.decode_all()]
        words = [layout.to_words(torch.arange(size), torch.tensor(at)) for at, size in enumerate(coding.sizes)]
        vectors = self.network_.weights["words"][0].detach().cpu()[torch.cat(words)]
        return pd.DataFrame(vectors.numpy(), index=pd.MultiIndex.from_tuples(index, names=["column", "value"]))

    @property
    def _n_features_out(self) -> int:
        return int(self.network_.width)

    def _own_coding(self) -> TableCoding:
        if not hasattr(self, "coding_"):  # not check_is_fitted, which looks at properties
            raise NotFittedError(f"This {type(self).__name__} is not fitted yet; call fit first")
        return self.coding_

    def _check_options(self) -> ClassifierOptions:
        """The parameters, checked. Raises UsageError."""
        return ClassifierOptions(**{name: value for name, value in self.get_params().items() if name != "random_state"})

    def _reader(self) -> TableReader:
        return TableReader(self.network_, self.device)

    def _read_response(self, X: Any) -> tuple[np.ndarray, np.ndarray]:  # noqa: N803
        codes = self._code(X)
        return self._reader().read_cells(codes, codes.shape[1] - 1)

    def _code(self, X: Any, y: Any = None) -> np.ndarray:  # noqa: N803
        """Categories of rows to predict, [rows, K]; the response is missing without y."""
        coding, frame = self._own_coding(), read_table(X)
        if not (coding.named and self._data_sets > 1):  # a model of several data sets knows columns by name
            validate_data(self, X, skip_check_array=True, reset=False)
        return coding.encode(frame, None if y is None else read_labels(y, len(frame)), self._check_options().unseen)

    def prepare(self, X: Any, y: Any, sample_weight: Any = None) -> FittingPlan:  # noqa: N803
        """Learn what the categories are, and return the training that `fit` does."""
        options = self._check_options()
        rows = self._learn(X, y, sample_weight, options, None)
        self._data_sets = 1
        training = TrainingOptions(
            epochs=options.epochs, learning_rate=options.learning_rate, patience=options.patience, device=options.device
        )
        return self._plan(rows, options, training, self._seed, options.validation_fraction)

    def _learn(
        self,
        X: Any,  # noqa: N803
        y: Any,
        sample_weight: Any,
        options: ClassifierOptions,
        classes: Any,
    ) -> TrainingRows:
        """Start a model of these rows."""
        rows = read_training_rows(read_table(X), y, sample_weight)
        coding = learn_table(rows.frame, rows.labels, rows.weights, options.n_bins, classes)
        validate_data(self, X, skip_check_array=True, reset=True)
        self.coding_ = coding
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self._data_sets = 0
        self._optimizer = None
        return rows

    def _extend(self, X: Any, y: Any, sample_weight: Any, options: ClassifierOptions) -> TrainingRows:  # noqa: N803
        """Add the columns, categories and classes of more rows to the model; those may have no label."""
        if not is_frame(X):
            validate_data(self, X, skip_check_array=True, reset=False)
        rows = read_training_rows(read_table(X), y, sample_weight, unlabelled=True)
        old = self.coding_
        self.coding_ = old.extend(rows.frame, rows.labels, rows.weights, options.n_bins)
        self.n_features_in_ = len(self.coding_.names)
        if self.coding_.named:
            self.feature_names_in_ = np.array(self.coding_.names, dtype=object)
        layout = CellLayout(self.coding_.sizes, options.vocabulary == "shared")
        if layout != self.network_.layout:
            places = [*range(len(old.names)), len(self.coding_.names)]
            self.network_ = grow_network(self.network_, layout, places, self._seed + self._data_sets)
            self._optimizer = None
        return rows

    def _plan(
        self,
        rows: TrainingRows,
        options: ClassifierOptions,
        training: TrainingOptions,
        seed: int,
        held_out: float = 0.0,
    ) -> FittingPlan:
        layout = CellLayout(self.coding_.sizes, options.vocabulary == "shared")
        codes = torch.from_numpy(self.coding_.encode(rows.frame, rows.labels, "mask"))
        weights = torch.from_numpy(rows.weights.astype(np.float32))
        other = None
        if held_out:
            if len(codes) - math.ceil(held_out * len(codes)) < 1:
                raise TableError(
                    f"{len(codes)} rows, of which a fraction of {held_out:g} cannot be held out; give more, or set "
                    "validation_fraction to less"
                )
            kept, out = train_test_split(np.arange(len(codes)), test_size=held_out, random_state=seed)
            other, codes, weights = (codes[out], weights[out]), codes[kept], weights[kept]
        return FittingPlan(
            layout, codes, weights, held_out=other,
            network={"heads": options.n_heads, "head_size": options.head_size, "feed_forward": options.feed_forward},
            dropout=options.dropout, batch_size=options.batch_size, seed=seed, options=training,
        )  # fmt: skip

    def _draft(self) -> Self:
        """A copy to fit, which replaces the estimator's attributes once it is finished."""
        draft = type(self).__new__(type(self))
        draft.__dict__ |= self.__dict__
        return draft

    def _take(self, fitted: FittedTable) -> None:
        """Keep what a training gave."""
        self.network_ = fitted.network
        self.train_loss_, self.validation_loss_ = fitted.train, fitted.validation
        self.n_iter_ = len(fitted.train)

    def __getstate__(self) -> dict[str, Any]:
        """Without the moments of the optimizer."""
        state: dict[str, Any] = super().__getstate__()
        return {**state, "_optimizer": None} if "_optimizer" in state else state


def fit_together(
    estimators: Sequence[AttentionClassifier],
    tables: Sequence[tuple[Any, ...]],
    progress: ProgressCallback = ignore_progress,
) -> list[AttentionClassifier]:
    """Fit each estimator to its table, (X, y) or (X, y, sample_weight). Returns the estimators.

    Tables of one shape, with equal parameters but for random_state, are trained as one batch of models, which is
    faster. Each model is the one that `fit` gives, but for the last digits of sums. If the training fails or is
    interrupted, all stay as they were.
    """
    drafts = [estimator._draft() for estimator in estimators]
    plans = [draft.prepare(*table) for draft, table in zip(drafts, tables, strict=True)]
    for draft, fitted in zip(drafts, fit_plans(plans, progress), strict=True):
        draft._take(fitted)
    for estimator, draft in zip(estimators, drafts, strict=True):
        estimator.__dict__ = draft.__dict__
    return list(estimators)
