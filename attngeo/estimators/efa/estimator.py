"""Exponential family attention on tidy tables: fitted, then asked for probabilities, means, samples and weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from pydantic import ConfigDict
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from torch import Tensor

from attngeo.devices import usable_device
from attngeo.errors import UsageError
from attngeo.estimators.efa.batches import hold_out, train_model
from attngeo.estimators.efa.columns import (
    HELD_OUT,
    TABLE,
    TEST,
    TRAINING,
    choose_parts,
    learn_covariates,
    learn_items,
    require_frame,
)
from attngeo.estimators.efa.families import ExponentialFamily
from attngeo.estimators.efa.model import JointModel, PartModel, describe_data, make_families, make_model
from attngeo.estimators.efa.networks import Batch
from attngeo.estimators.efa.options import Architecture, EfaOptions, EfaSampleOptions
from attngeo.estimators.efa.prediction import (
    Measured,
    add_up,
    draw_items,
    draw_values,
    measure_rows,
    read_all,
    tabulate_attention,
    tabulate_embeddings,
)
from attngeo.estimators.efa.saving import read_efa, write_efa
from attngeo.estimators.efa.sequences import POSITION, DataShape, Sequences, TableReader
from attngeo.estimators.shared import takes_keywords
from attngeo.estimators.shared.files import keep_whole
from attngeo.keywords import takes
from attngeo.progress import ProgressCallback, ignore_progress
from attngeo.training.loop import History, draw_generator, remove_state, seeded


class SampleKeywords(EfaSampleOptions):
    """The keywords of `ExponentialFamilyAttention.sample`."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    options: EfaSampleOptions | None = None
    data: pd.DataFrame | None = None


class EfaKeywords(EfaOptions):
    """The keywords of the estimator."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    family: str | ExponentialFamily | None = None  # type: ignore[assignment]
    random_state: int | np.random.RandomState | None = 0  # type: ignore[assignment]
    architecture: Architecture | None = None


class ExponentialFamilyAttention(BaseEstimator):  # type: ignore[misc]
    """The items of sequences, the values of their items, or both, predicted from the others (section 2 of the paper).

    A row of a table is an observation: the sequence that it belongs to, its position there (without one, the rows of a
    sequence are a set, or for direction "uni" in order), an item, values, covariates, coordinates, values at earlier
    times. With direction "bi", a position is predicted from all others, and the sum of log p is a pseudo-likelihood;
    with "uni", from those before it, and the sum is the likelihood. A row may lack some of its values.

        model = ExponentialFamilyAttention(family="poisson").fit(ratings)
        model.log_prob(ratings)

    The keywords are those of `EfaOptions`, which `__init__` describes, and

    Args:
        value: columns with their families, such as ("rating:poisson", "minutes:gaussian") or a dictionary.
        family: a text such as "gaussian", "poisson:1" or "binomial:10", or an `ExponentialFamily`.
        random_state: seed, or a generator of numpy.
        architecture: an `Architecture`; None for the default one.

    Attributes:
        model_: the torch model. part_: "items", "values" or "both". items_: in the order of their numbers.
        history_: losses of each epoch. options_: the parameters as `EfaOptions`.

    Raises UsageError for parameters out of range, when it is fitted.

    Source: Wibisono and Wang 2025 (arXiv 2501.16790), section 2.

    >>> import pandas as pd
    >>> baskets = pd.DataFrame({"sequence": [1, 1, 1, 2, 2], "item": ["milk", "bread", "tea", "tea", "milk"]})
    >>> model = ExponentialFamilyAttention(max_epochs=2, validation_fraction=0, width=4).fit(baskets)
    >>> model.log_prob(baskets).shape
    (5,)
    """

    family: str | ExponentialFamily | None
    random_state: int | np.random.RandomState | None
    architecture: Architecture | None
    options_: EfaOptions
    architecture_: Architecture
    model_: PartModel | JointModel
    items_: list[Any]
    history_: History
    # Of each part.
    _shapes: list[DataShape]
    # The sequences that trained, that were held out, and of the test table, by these names, as each part reads them.
    _tables: dict[str, list[Sequences]]

    @takes_keywords(EfaKeywords)
    def __init__(self) -> None:
        """An estimator that is not fitted.

        {options}
        """

    def fit(
        self,
        data: pd.DataFrame,
        y: None = None,
        *,
        validation: pd.DataFrame | None = None,
        test: pd.DataFrame | None = None,
        folder: str | Path | None = None,
        progress: ProgressCallback = ignore_progress,
    ) -> Self:
        """Train on a table. It ends with the weights of the lowest loss on the validation data.

        y: for scikit-learn; the table has all that is modelled. validation: another table; without it,
        `validation_fraction` of the sequences are held out. test: a table that the model is for, which is refused
        before the training if its rows cannot be used; nothing is learned from it. folder: keeps the state of an
        unfinished training, which a second call resumes. Raises TableError for tables that cannot be used, UsageError
        for parameters that do not fit them, and what `training.loop.train` raises; a model that was fitted before
        stays as it was.
        """
        del y
        tables = {TRAINING: data, HELD_OUT: validation, TEST: test}
        draft = copy(self)
        draft._fit({source: table for source, table in tables.items() if table is not None}, folder, progress)
        self.__dict__ = draft.__dict__
        if folder is not None:
            remove_state(Path(folder))
        return self

    def _fit(self, tables: dict[str, pd.DataFrame], folder: str | Path | None, progress: ProgressCallback) -> None:
        for source, table in tables.items():
            require_frame(table, source)
        self.options_, self.architecture_ = self._make_options(), self.architecture or Architecture()
        options, architecture = self.options_, self.architecture_
        own = self.family if isinstance(self.family, ExponentialFamily) else None
        families = make_families(options, own)
        columns = list(tables[TRAINING].columns)
        parts, has_items = choose_parts(options, columns)
        learned = {source: table for source, table in tables.items() if source != TEST}
        self.items_ = learn_items(learned, options.item) if has_items or "items" in parts else []
        covariates = learn_covariates(learned, options.kinds)
        # Tables without the positions that training rows have may be in another order.
        position = options.position or (POSITION if POSITION in columns else None)
        self._shapes = [
            DataShape(part=part, items=len(self.items_) if has_items or part == "items" else 0, covariates=covariates,
                      position=position if options.has_order(position) else None)
            for part in parts
        ]  # fmt: skip
        sequences = {source: self._read_table(table, source=source) for source, table in learned.items()}
        names = {TRAINING: "train", HELD_OUT: "validation", TEST: "test"}
        if HELD_OUT not in tables and options.validation_fraction:
            halves = [hold_out(rows, options) for rows in sequences[TRAINING]]
            sequences[TRAINING], sequences[HELD_OUT] = map(list, zip(*halves, strict=True))
            names[HELD_OUT] = "held-out"
        training = list(sequences.values())
        self._shapes = [
            describe_data(options, architecture, families, shape, [rows[at] for rows in training])
            for at, shape in enumerate(self._shapes)
        ]
        with seeded(draw_generator(options.random_state).initial_seed()):
            models = [make_model(options, architecture, families, shape) for shape in self._shapes]
        self.model_ = models[0] if len(models) == 1 else JointModel(models)
        if TEST in tables:
            sequences[TEST] = self._read_table(tables[TEST], source=TEST)
        for source, rows in sequences.items():
            self._check(rows, source if source in tables else TRAINING)
        self.history_ = train_model(self.model_, training, options, architecture, folder=folder, progress=progress)
        self._tables = {names[source]: rows for source, rows in sequences.items()}

    def _make_options(self) -> EfaOptions:
        """The parameters as options of commands. Raises UsageError."""
        parameters = self.get_params(deep=False)
        del parameters["architecture"]
        if isinstance(self.family, ExponentialFamily):
            parameters["family"] = self.family.text
        if self.random_state is None or isinstance(self.random_state, np.random.RandomState):
            parameters["random_state"] = int(check_random_state(self.random_state).randint(2**31 - 1))
        return EfaOptions(**parameters)

    @property
    def part_(self) -> str:
        """What is modelled: "items", "values" or "both"."""
        self._require_fit()
        return "both" if len(self._shapes) > 1 else self._shapes[0].part

    def log_prob(self, data: pd.DataFrame, *, known_only: bool = False) -> pd.Series[float]:
        """Log p of each row given the others, constants of the families included: the sum over values, and the item.

        known_only: whether rows may lack what is modelled, as in `predict`; NaN for those that lack it.
        """
        total = np.zeros(len(data))
        for model, sequences in zip(self._parts, self.read(data, fill=known_only), strict=True):
            log_prob = read_all(model, sequences, model.log_prob, self.options_).sum(-1)
            total += sequences.scatter(log_prob, len(data), sequences.known & sequences.asked)
        return pd.Series(total, index=data.index, name="log_prob")

    def score(self, data: pd.DataFrame, y: None = None) -> float:
        """The mean of `log_prob`. y: for scikit-learn."""
        del y
        return float(self.log_prob(data).mean())

    def measure(self, data: pd.DataFrame, train: pd.DataFrame) -> Measured:
        """How probable the rows of a table are, beside what is known without a context from training rows."""
        self._require_fit()
        return [*self._measure(self._read_table(data), self._read_table(train)).values()][-1]

    def measure_columns(self) -> dict[str, dict[tuple[str, str], Measured]]:
        """The same of the rows that trained ("train"), of those that did not ("held-out", or else "validation") and of
        those given as "test": by part, "items" or "values", and column of values; of "all" last, if there is more than
        one. Raises UsageError for a model that was loaded, and so has no rows.
        """
        self._require_fit()
        if not hasattr(self, "_tables"):
            raise UsageError("the model has no training rows; call fit, or measure with a training table")
        return {name: self._measure(rows, self._tables["train"]) for name, rows in self._tables.items()}

    def _measure(self, data: list[Sequences], train: list[Sequences]) -> dict[tuple[str, str], Measured]:
        found: dict[tuple[str, str], Measured] = {}
        for model, rows, known in zip(self._parts, data, train, strict=True):
            found |= measure_rows(model, rows, known, self.options_)
        return found if len(found) == 1 else found | {("all", ""): add_up(found, int(data[0].known.sum()))}

    def predict(self, data: pd.DataFrame) -> pd.DataFrame:
        """What each row is expected to be, given the others.

        Values: the column mean, or mean_COLUMN for each of several. Items: the most likely item, and its probability.
        A row whose values or item are missing is predicted from the rows that have some; no row is predicted from it.
        It keeps its place in the sequence. Such rows may have the same position; without a column of positions, each
        one at the end of a sequence is asked for as the next. A factor model of places, which adds up all others,
        predicts nothing else in a sequence with a missing value. Values of a row are not predicted from each other, and
        not without an item.
        """
        parts = self.read(data, fill=True)
        found, columns = pd.DataFrame(index=data.index), [*self.options_.families]
        for model, sequences in zip(self._parts, parts, strict=True):
            if model.is_of_items:
                best = self._read_means(model, sequences, len(data), partial(_pick_best, model))
                items = [None if np.isnan(number) else self.items_[int(number)] for number in best[:, 1]]
                found["item"] = keep_whole(pd.Series(items, index=data.index, dtype=object))
                found["probability"] = best[:, 0]
            else:
                names = [f"mean_{column}" for column in columns] if len(columns) > 1 else ["mean"]
                found[names] = self._read_means(model, sequences, len(data))
        return found

    def predict_proba(self, data: pd.DataFrame) -> pd.DataFrame:
        """The probability of each item at each row, given the others: [rows, items]. Missing items as in `predict`."""
        if self.part_ == "values":
            raise UsageError("the model is of values, which have no probability of each item; use predict")
        chances = self._read_means(self._parts[0], self.read(data, fill=True)[0], len(data))
        return pd.DataFrame(chances, index=data.index, columns=self.items_)

    def _read_means(
        self, model: PartModel, sequences: Sequences, rows: int, function: Callable[[Batch], Tensor] | None = None
    ) -> np.ndarray:
        """The means of each row given the others, [rows, …], or another function; NaN for rows not predicted."""
        means = read_all(model, sequences, function or model.mean, self.options_)
        return sequences.scatter(means, rows, sequences.asked)

    @takes(SampleKeywords)
    def sample(self, options: EfaSampleOptions, *, data: pd.DataFrame | None = None) -> pd.DataFrame:
        """Sequences drawn from the model: one position after the other with direction "uni".

        With "bi", each position is drawn given the others, in a number of sweeps over all of them (Gibbs sampling).
        Values are drawn given the items.

        {options}
        data: for values, and for items with covariates, the table of sequences; what the model predicts is drawn, and
            its own is not read.

        Raises UsageError if what the parts need is missing.
        """
        is_of_values, chosen = self.part_ != "items", self.options_
        needs = self.part_ == "values" or bool([*chosen.covariates, *chosen.coordinates, *chosen.lags])
        if data is None and needs:
            raise UsageError("$data is missing, expected a table of sequences whose values are drawn", "data")
        if data is not None and not (needs or is_of_values):
            raise UsageError("the model is of items, which are drawn without a table; leave out $data", "data")
        if data is not None and (options.sequences is not None or options.length is not None):
            raise UsageError("the table has the sequences that are drawn; leave out sequences and length")
        rows = self._lay_out(options) if data is None else data
        for model, reader in zip(self._parts, self._readers, strict=True):
            rows = self._draw(model, reader, rows, options)
        return rows

    def _lay_out(self, options: EfaSampleOptions) -> pd.DataFrame:
        """Rows without items. Raises UsageError."""
        shape = self._shapes[0]
        usual = shape.trained or shape.longest
        length = usual if options.length is None else options.length
        if length > shape.longest:
            raise UsageError(
                f"$length is {length}, expected at most {shape.longest}: the model has no longer sequences", "length"
            )
        names, places = np.indices((options.sequences or 1, length))
        position = self.options_.position or POSITION
        return pd.DataFrame({self.options_.sequence: names.ravel(), position: places.ravel()})

    def _draw(
        self, model: PartModel, reader: TableReader, rows: pd.DataFrame, options: EfaSampleOptions
    ) -> pd.DataFrame:
        """The rows with the items or values of a part."""
        require_frame(rows)
        columns, model = reader.modelled, model.cpu().eval()
        start = self.items_[0] if model.is_of_items else 0.0
        sequences = reader.read(rows.assign(**dict.fromkeys(columns, start)))
        model.check(sequences, (), TABLE)
        draw, seed = draw_items if model.is_of_items else draw_values, draw_generator(options.seed, 1).initial_seed()
        drawn = draw(model, model.batch(sequences), causal=self.options_.causal, sweeps=options.sweeps, seed=seed)
        spread = sequences.scatter(drawn[sequences.at], len(rows), sequences.known)
        if model.is_of_items:
            return rows.assign(**{self.options_.item: [self.items_[int(number)] for number in spread]})
        triples = zip(columns, model.families, spread.T, strict=True)
        return rows.assign(
            **{name: values.astype("int64") if family.is_of_counts else values for name, family, values in triples}
        )

    def attention_weights(self, data: pd.DataFrame) -> pd.DataFrame:
        """How much each row, when it is masked, attends to each row of its sequence.

        Columns: sequence, layer, head, row and other (numbers of rows of the table, from 0), position, other_position,
        lag (0, or which of the earlier times), weight, and item and other_item if the table has a column of items; part
        if there are both. Raises UsageError for a factor model.
        """
        tables = [
            tabulate_attention(model.cpu().eval(), sequences, causal=self.options_.causal)
            for model, sequences in zip(self._parts, self.read(data), strict=True)
        ]
        if len(tables) > 1:
            tables = [rows.assign(part=shape.part) for rows, shape in zip(tables, self._shapes, strict=True)]
        rows = pd.concat(tables, ignore_index=True)
        if self.options_.item in data:
            items = data[self.options_.item].to_numpy()
            rows = rows.assign(item=items[rows["row"]], other_item=items[rows["other"]])
        return rows

    def contexts(self, data: pd.DataFrame) -> dict[str, pd.DataFrame]:
        """The vector that each row is predicted from, given the others, by part: H(x) of items, K(y) of values, of
        which the natural parameters are linear maps (section 5.1).

        Each is a DataFrame [rows, numbers], NaN for rows that are not predicted. Raises UsageError for a factor model
        of values.
        """
        tables: dict[str, pd.DataFrame] = {}
        for model, sequences in zip(self._parts, self.read(data), strict=True):
            vectors = read_all(model, sequences, model.read, self.options_)
            spread = sequences.scatter(vectors, len(data), sequences.known & sequences.asked)
            tables[model.shape.part] = pd.DataFrame(spread, index=data.index)
        return tables

    def embeddings(self) -> dict[str, pd.DataFrame]:
        """The vectors of the items, those of the part of items if there are both: context and center, and query, key
        and value of the first layer.

        Each is a DataFrame [items, numbers]; the latter three have the heads one after the other. A factor model has
        the first two only. Raises UsageError if the model has no items.
        """
        self._require_fit()
        return tabulate_embeddings(self._parts[0], self.items_)

    def with_item_names(self, names: Mapping[Any, str]) -> Self:
        """A copy whose items have these names; the others, and those that would share one, stay as they are.

        Tables for the copy have the names in their column of items. It has no training rows.
        """
        self._require_fit()
        renamed = copy(self)
        renamed.__dict__.pop("_tables", None)
        pairs = [(item, names.get(item, item)) for item in self.items_]
        # Items are also found by their texts, so no name may be the text of another item.
        texts = Counter(text for pair in pairs for text in set(map(str, pair)))
        renamed.items_ = [item if texts[str(name)] > 1 else name for item, name in pairs]
        return renamed

    def save(self, folder: str | Path) -> None:
        """Write the model to a folder, which is created; `load` and `attngeo score` read it.

        Both parts are in folders of it, items and values, each a model by itself. Raises OutputError, and TableError
        for items that JSON lacks.
        """
        self._require_fit()
        write_efa(
            Path(folder), self.options_, self.architecture_, self._parts, self.items_, epochs=len(self.history_.train)
        )

    @classmethod
    def load(cls, folder: str | Path, family: ExponentialFamily | None = None) -> Self:
        """The model that `save` wrote. family: of a model whose family is not one of attngeo.

        Raises ModelNotFoundError if there is none, UnsupportedModelError if it is of another version or of a family
        that is not given, CorruptCheckpointError if its files are broken or contradict each other, and
        NotEnoughMemoryError.
        """
        saved, models = read_efa(Path(folder), family)
        options = saved.options.replace(device=usable_device(saved.options.device))
        loaded = cls(**dict(options) | {"architecture": saved.architecture, "family": family or options.family})
        loaded.options_, loaded.architecture_ = options, saved.architecture
        loaded.items_, loaded._shapes = list(saved.items), [model.shape for model in models]
        loaded.model_ = (models[0] if len(models) == 1 else JointModel(models)).eval()
        loaded.history_ = History(np.full(saved.epochs, np.nan), *(np.empty(0) for _ in range(2)))
        return loaded

    def _require_fit(self) -> None:
        """Raise UsageError if there is no model."""
        if not hasattr(self, "model_"):
            raise UsageError("the model is not fitted; call fit first")

    @property
    def _parts(self) -> list[PartModel]:
        """The model of each part. Raises UsageError if there is none."""
        self._require_fit()
        return list(self.model_.parts)

    @property
    def _readers(self) -> list[TableReader]:
        return [TableReader(self.options_, self.items_ if shape.items else None, shape) for shape in self._shapes]

    def _read_table(self, data: pd.DataFrame, *, source: str = TABLE, fill: bool = False) -> list[Sequences]:
        """The sequences of a table as each part reads them; parameters as those of `TableReader.read`."""
        return [reader.read(data, source=source, fill=fill) for reader in self._readers]

    def read(self, data: pd.DataFrame, *, fill: bool = False) -> list[Sequences]:
        """The sequences of a table as each part reads them, with values that the model can have."""
        self._require_fit()
        parts = self._read_table(data, fill=fill)
        self._check(parts, TABLE)
        return parts

    def _check(self, parts: list[Sequences], source: str) -> None:
        for model, sequences in zip(self._parts, parts, strict=True):
            model.check(sequences, [*self.options_.families], source)


def _pick_best(model: PartModel, batch: Batch) -> Tensor:
    """The largest probability and the number of its item, [B, I, 2]."""
    return torch.stack([part.cpu().double() for part in model.mean(batch).max(-1)], -1)  # some devices have no double
