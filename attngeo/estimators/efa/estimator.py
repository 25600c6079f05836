"""`ExponentialFamilyAttention`, an estimator of scikit-learn's kind for sequences in tidy tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from attngeo.estimators.efa.batches import hold_out
from attngeo.estimators.efa.columns import HELD_OUT, TABLE, TEST, TRAINING, check_columns, learn_items
from attngeo.estimators.efa.counts import ItemCounts, count_items
from attngeo.estimators.efa.covariates import learn_covariates
from attngeo.estimators.efa.describing import describe_data
from attngeo.estimators.efa.families import ExponentialFamily
from attngeo.estimators.efa.making import make_families, make_model
from attngeo.estimators.efa.measuring import Measured, add_up, measure_rows
from attngeo.estimators.efa.model import JointModel, PartModel
from attngeo.estimators.efa.networks import Batch
from attngeo.estimators.efa.options import Architecture, EfaOptions, EfaSampleOptions, EfaSimilarOptions
from attngeo.estimators.efa.parts import choose_parts, refuse_architecture
from attngeo.estimators.efa.prediction import draw_sequences, read_all, tabulate_attention
from attngeo.estimators.efa.reading import TableReader
from attngeo.estimators.efa.saving import read_efa, write_efa
from attngeo.estimators.efa.sequences import POSITION, DataShape, Sequences
from attngeo.estimators.efa.similar import explain_no_probability, rank_beside
from attngeo.estimators.efa.training import remove_states, train_parts
from attngeo.estimators.efa.vectors import rank_similar, tabulate_embeddings
from attngeo.estimators.shared import takes_keywords
from attngeo.estimators.shared.files import keep_whole
from attngeo.keywords import takes, takes_after_two
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.training.loop import History, draw_generator, seeded

# Items of a sequence that is drawn.
MOST_ITEMS_DRAWN = 10_000


class SampleKeywords(EfaSampleOptions):
    """The keywords of `ExponentialFamilyAttention.sample`."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    options: EfaSampleOptions | None = None
    data: pd.DataFrame | None = None


class SimilarKeywords(EfaSimilarOptions):
    """The keywords of `ExponentialFamilyAttention.similar`."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    options: EfaSimilarOptions | None = None
    progress: ProgressCallback | None = None


class EfaKeywords(EfaOptions):
    """The keywords of the estimator."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    family: str | ExponentialFamily | None = None  # type: ignore[assignment]
    random_state: int | np.random.RandomState | None = 0  # type: ignore[assignment]
    architecture: Architecture | None = None


class ExponentialFamilyAttention(BaseEstimator):  # type: ignore[misc]
    """Predicts the items of sequences, their values, or both, from the rest of the sequence (section 2 of the paper).

    Each row of a table is an observation: its sequence, its position there, an item, values, covariates, coordinates,
    values at earlier times. Without a position, the rows of a sequence are a set; with direction "uni", they keep the
    order of the table. With direction "bi", the model predicts a row from all others, and the sum of log p is a
    pseudo-likelihood; with "uni", from the rows before it, and the sum is the likelihood. A row may lack some values.

        model = ExponentialFamilyAttention(family="poisson").fit(ratings)
        model.log_prob(ratings)

    Args:
        value: columns of values with their families, such as ("rating:poisson", "minutes:gaussian") or a dictionary.
        family: a text such as "gaussian", "poisson:1" or "binomial:10", or an `ExponentialFamily`.
        random_state: seed, or a NumPy generator.
        architecture: an `Architecture`; None for the default one.
        **options: the other fields of `EfaOptions`, which `__init__` describes.

    Attributes:
        model_: the torch model.
        part_: "items", "values" or "both".
        items_: the items in the order of their numbers.
        counts_: number of training sequences with an item, and with a pair of items: an `ItemCounts`; None for a model
            of values, or one saved by an older version.
        history_: losses per epoch; with two parts, [epochs, parts], NaN after a part has stopped.
        options_: the parameters as `EfaOptions`.
        architecture_: the architecture of the networks.
        missing_texts: texts that marked missing cells in the training file; None for the defaults of `read_own_table`.

    Raises:
        UsageError: a parameter is out of range; raised by `fit`.

    Source: Wibisono and Wang 2025 (arXiv 2501.16790), section 2.

    >>> import pandas as pd
    >>> baskets = pd.DataFrame({"sequence": [1, 1, 1, 2, 2], "item": ["milk", "bread", "tea", "tea", "milk"]})
    >>> model = ExponentialFamilyAttention(max_epochs=2, validation_fraction=0, width=4).fit(baskets)
    >>> model.log_prob(baskets).shape
    (5,)
    """

    # Texts that marked missing cells in the training file; None for the defaults of `read_own_table`.
    missing_texts: tuple[str, ...] | None = None
    family: str | ExponentialFamily | None
    random_state: int | np.random.RandomState | None
    architecture: Architecture | None
    options_: EfaOptions
    architecture_: Architecture
    model_: PartModel | JointModel
    items_: list[Any]
    counts_: ItemCounts | None
    history_: History
    # The tables of the fit by the names of `measure_columns`: the sequences of each part.
    _tables: dict[str, list[Sequences]]

    @takes_keywords(EfaKeywords)
    def __init__(self) -> None:
        """An unfitted estimator.

        Args:
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
        """Train on a table. Each part keeps the weights of the epoch with the lowest validation loss.

        If training fails, a model that was already fitted stays unchanged.

        Args:
            data: the training table, one row per observation.
            y: ignored; for scikit-learn.
            validation: the validation table; without it, `validation_fraction` of the sequences are held out.
            test: a table to use the model on later. It is only checked, so that unusable rows fail before training.
            folder: folder for the state of an unfinished training; a second call resumes it.
            progress: called after each epoch.

        Returns:
            The estimator.

        Raises:
            TableError: a table cannot be used.
            UsageError: a parameter is out of range, or does not fit the tables.
            TrainingError: training failed, as in `training.loop.train`.
        """
        del y
        draft = copy(self)
        options = draft.options_ = self._make_options()
        architecture = draft.architecture_ = _check_architecture(self.architecture or Architecture())
        families = make_families(options, self.family if isinstance(self.family, ExponentialFamily) else None)
        learned = {TRAINING: data}
        if validation is not None:
            learned[HELD_OUT] = validation
        shapes = draft._learn_columns(learned)
        refuse_architecture(architecture, [shape.part for shape in shapes])
        tables = []
        for source, table in learned.items():
            readers = [TableReader(options, draft.items_, shape, families) for shape in shapes]
            tables.append([reader.read(table, source=source) for reader in readers])
        draft.counts_ = None
        if shapes[0].part == "items":
            draft.counts_ = count_items(tables[0][0], len(draft.items_))
        names = ["train", "validation"]
        if validation is None and options.validation_fraction:
            halves = [hold_out(part, options) for part in tables[0]]
            tables = [list(half) for half in zip(*halves, strict=True)]
            names = ["train", "held-out"]
        shapes = [
            describe_data(options, architecture, families, shape, parts)
            for shape, *parts in zip(shapes, *tables, strict=True)
        ]
        models = []
        for shape in shapes:
            with seeded(draw_generator(options.random_state).initial_seed()):  # each part starts as it does alone
                models.append(make_model(options, architecture, families, shape))
        draft.model_ = models[0] if len(models) == 1 else JointModel(models)
        draft._tables = dict(zip(names, tables, strict=False))
        if test is not None:
            draft._tables["test"] = draft.read(test, source=TEST)
        draft.history_ = train_parts(models, tables, options, architecture, folder=folder, progress=progress)
        self.__dict__ = draft.__dict__
        remove_states(folder, models)
        return self

    def _make_options(self) -> EfaOptions:
        """The parameters as options of commands. Raises UsageError."""
        parameters = self.get_params(deep=False)
        del parameters["architecture"]
        if isinstance(self.family, ExponentialFamily):
            parameters["family"] = self.family.text
        if self.random_state is None or isinstance(self.random_state, np.random.RandomState):
            parameters["random_state"] = int(check_random_state(self.random_state).randint(2**31 - 1))
        return EfaOptions(**parameters)

    def _learn_columns(self, tables: dict[str, pd.DataFrame]) -> list[DataShape]:
        """Learn the items, and the parts with their covariates and positions, of training and validation tables.

        Raises TableError, and UsageError for options that do not fit the columns.
        """
        options = self.options_
        parts, has_items = choose_parts(options, tables[TRAINING])
        self.items_ = learn_items(tables, options.item) if has_items or "items" in parts else []
        covariates = learn_covariates(tables, options.kinds)
        # Tables without the positions that training rows have may be in another order.
        position = options.position or (POSITION if POSITION in tables[TRAINING] else None)
        if not options.has_order(position):
            position = None
        shapes = []
        for part in parts:
            items = len(self.items_) if has_items or part == "items" else 0
            repeats = part == "values" or options.repeats is not False
            shape = DataShape(part=part, items=items, covariates=covariates, position=position, repeats=repeats)
            shapes.append(shape)
        return shapes

    @property
    def part_(self) -> str:
        """What the model predicts: "items", "values" or "both"."""
        parts = self._parts
        return "both" if len(parts) > 1 else parts[0].shape.part

    def log_prob(self, data: pd.DataFrame, *, known_only: bool = False) -> pd.Series[float]:
        """Log p of each row given the others: the sum over its item and values, including constants of the families.

        Args:
            data: rows as in training.
            known_only: whether rows without the item or values are allowed, as in `predict`.

        Returns:
            [rows], with the index of the table; NaN for a row without the item or values.

        Raises:
            TableError: the table cannot be read.
            UsageError: the model is not fitted.
        """

        def add_columns(model: PartModel, batch: Batch) -> Tensor:
            return model.log_prob(batch).sum(-1).masked_fill(~batch.known, torch.nan)

        total = np.zeros(len(data))
        for _, log_prob in self._read_rows(data, add_columns, fill=known_only):
            total += log_prob
        return pd.Series(total, index=data.index, name="log_prob")

    def score(self, data: pd.DataFrame, y: None = None) -> float:
        """The mean of `log_prob`.

        Args:
            data: rows as in training.
            y: ignored; for scikit-learn.
        """
        del y
        return float(self.log_prob(data).mean())

    def measure_columns(self) -> dict[str, dict[tuple[str, str], Measured]]:
        """Measure how well the model predicts the tables of `fit`, beside baselines that ignore the context.

        Returns:
            Table → (part, column) → measures. Tables are "train", "held-out" (or "validation", if you gave a table),
            and "test", if you gave one. Parts are "items" and "values"; the column is a value column. With more than
            one entry, the last one is ("all", "").

        Raises:
            UsageError: the model was loaded, so it has no rows.
        """
        if not hasattr(self, "_tables"):
            raise UsageError("a loaded model has no training rows; call fit")
        measured: dict[str, dict[tuple[str, str], Measured]] = {}
        for name, parts in self._tables.items():
            columns: dict[tuple[str, str], Measured] = {}
            for model, data, train in zip(self._parts, parts, self._tables["train"], strict=True):
                columns |= measure_rows(model, data, train, self.options_)
            if len(columns) > 1:
                columns["all", ""] = add_up(columns, int(parts[0].known.sum()))
            measured[name] = columns
        return measured

    def predict(self, data: pd.DataFrame) -> pd.DataFrame:
        """Predict the expected values and the most likely item of each row, given the others.

        A row without the values or the item is predicted from complete rows, and no row is predicted from it. It keeps
        its position in the sequence. Several such rows may share a position; without a position column, each one at
        the end of a sequence is treated as the next row. A factor model of places adds up all other rows, so it
        predicts only the incomplete row of a sequence. Values of a row are never predicted from each other, nor
        without an item.

        Args:
            data: rows as in training; cells of the item or values may be missing.

        Returns:
            For values, the column predicted_mean, or with several value columns, predicted_mean_COLUMN per column.
            For items, the columns predicted_item, the most likely one, and probability. NaN for a row that cannot be
            predicted.

        Raises:
            TableError: the table cannot be read.
            UsageError: the model is not fitted.
        """
        predicted: dict[str, Any] = {}
        for model, means in self._read_rows(data, PartModel.summarize, fill=True):
            if model.is_of_items:
                items = [None if np.isnan(number) else self.items_[int(number)] for number in means[:, 1]]
                predicted["predicted_item"] = keep_whole(pd.Series(items, index=data.index, dtype=object))
                predicted["probability"] = means[:, 0]
            else:
                columns = list(self.options_.families)
                names = [f"predicted_mean_{column}" for column in columns] if len(columns) > 1 else ["predicted_mean"]
                predicted |= zip(names, means.T, strict=True)
        return pd.DataFrame(predicted, index=data.index)

    def predict_proba(self, data: pd.DataFrame) -> pd.DataFrame:
        """The probability of each item at each row, given the others; for missing items, see `predict`.

        Args:
            data: rows as in training; items may be missing.

        Returns:
            [rows, items], one column per item of `items_`.

        Raises:
            TableError: the table cannot be read.
            UsageError: the model is of values, or not fitted.
        """
        if self.part_ == "values":
            raise UsageError("the model predicts values and has no item probabilities; use predict")
        _, chances = next(self._read_rows(data, PartModel.mean, fill=True))
        return pd.DataFrame(chances, index=data.index, columns=self.items_)

    def _read_rows(
        self, data: pd.DataFrame, function: Callable[[PartModel, Batch], Tensor], *, fill: bool = False
    ) -> Iterator[tuple[PartModel, np.ndarray]]:
        """The model of each part, and a function of it at each row, [rows, …]; NaN for rows that are not predicted."""
        for model, sequences in zip(self._parts, self.read(data, fill=fill), strict=True):
            numbers = read_all(model, sequences, partial(function, model), self.options_)
            yield model, sequences.scatter(numbers, len(data), sequences.asked)

    @takes(SampleKeywords)
    def sample(self, options: EfaSampleOptions, *, data: pd.DataFrame | None = None) -> pd.DataFrame:
        """Draw sequences from the model.

        With direction "uni", positions are drawn one after the other. With "bi", each position is redrawn given the
        others, in several sweeps over all positions (Gibbs sampling). Values are drawn given the items. Pass options as
        keywords, or as an `EfaSampleOptions`:

        {options}

        Args:
            options: the options as one object.
            data: the table of sequences to draw for; needed for values, and for items with covariates. Its items or
                values are not read: the drawn ones replace them.

        Returns:
            The rows of `data` with the drawn items and values; without `data`, also a sequence and a position per row.

        Raises:
            UsageError: `data` is missing, but the model needs it; or an option does not fit the model.
        """
        part = self.part_
        fitted = self.options_
        needs_table = part == "values" or bool(fitted.covariates or fitted.coordinates or fitted.lags)
        if data is None and needs_table:
            raise UsageError("$data is missing, expected a table of the sequences to draw values for", "data")
        if data is not None and part == "items" and not needs_table:
            raise UsageError("the model draws items, which needs no table; leave out $data", "data")
        if data is not None and (options.sequences is not None or options.length is not None):
            problem = "the table already states the sequences to draw; leave out $sequences and $length"
            raise UsageError(problem, "sequences", "length")
        rows = self._make_rows(options) if data is None else data
        for model in self._parts:
            rows = self._draw(model, rows, options)
        return rows

    def _make_rows(self, options: EfaSampleOptions) -> pd.DataFrame:
        """A row for each sequence and position that is drawn. Raises UsageError if the model has no such sequences."""
        fitted = self.options_
        shape = self._parts[0].shape
        length = options.length or shape.trained or shape.longest
        longest, reason = MOST_ITEMS_DRAWN, "longer sequences need too much memory"
        if fitted.gives_vectors(fitted.position or shape.position):
            longest, reason = shape.longest, "later positions have no vectors"
        if not shape.repeats and shape.items < longest:
            longest, reason = shape.items, "no item occurs twice"
        if length > longest:
            raise UsageError(f"$length is {length}, expected at most {longest}: {reason}", "length")
        sequences, positions = np.indices((options.sequences or 1, length))
        position = fitted.position or POSITION
        return pd.DataFrame({fitted.sequence: sequences.ravel(), position: positions.ravel()})

    def _draw(self, model: PartModel, rows: pd.DataFrame, options: EfaSampleOptions) -> pd.DataFrame:
        """The rows with the items or values of a part."""
        check_columns(rows, [], TABLE)
        shape = model.shape.model_copy(update={"repeats": True})  # all rows have the first item before it is drawn
        reader = TableReader(self.options_, self.items_, shape)
        start = self.items_[0] if model.is_of_items else 0.0
        sequences = reader.read(rows.assign(**dict.fromkeys(reader.modelled, start)))
        model = model.cpu().eval()
        seed = draw_generator(options.seed, 1).initial_seed()
        batch = model.batch(sequences)
        drawn = draw_sequences(model, batch, causal=self.options_.causal, sweeps=options.sweeps, seed=seed)
        spread = sequences.scatter(drawn[sequences.index], len(rows), sequences.known)
        if model.is_of_items:
            return rows.assign(**{self.options_.item: [self.items_[int(number)] for number in spread]})
        for name, family, values in zip(reader.modelled, model.families, spread.T, strict=True):
            rows = rows.assign(**{name: values.astype("int64") if family.support.is_discrete else values})
        return rows

    def attention_weights(self, data: pd.DataFrame) -> pd.DataFrame:
        """How much each row attends to each row of its sequence while it is masked.

        Args:
            data: rows as in training.

        Returns:
            Columns: sequence, layer, head, row and attended_row (row numbers of the table, from 0), position,
            attended_position, lag (0, or the number of the earlier time), weight; item and attended_item if the table
            has an item column; part if the model has both parts.

        Raises:
            TableError: the table cannot be read.
            UsageError: the model is a factor model.
        """
        tables = []
        for model, sequences in zip(self._parts, self.read(data), strict=True):
            weights = tabulate_attention(model.cpu().eval(), sequences, causal=self.options_.causal)
            if len(self._parts) > 1:
                weights = weights.assign(part=model.shape.part)
            tables.append(weights)
        rows = pd.concat(tables, ignore_index=True)
        if self.options_.item in data:
            items = data[self.options_.item].to_numpy()
            rows = rows.assign(item=items[rows["row"]], attended_item=items[rows["attended_row"]])
        return rows

    def contexts(self, data: pd.DataFrame) -> dict[str, pd.DataFrame]:
        """The vector from which each row is predicted: H(x) for items, K(y) for values (section 5.1).

        The natural parameters are linear maps of it, except for items that may not occur again.

        Args:
            data: rows as in training.

        Returns:
            Part, "items" or "values" → [rows, numbers]; NaN for a row that cannot be predicted.

        Raises:
            TableError: the table cannot be read.
            UsageError: the model is a factor model of values.
        """
        tables: dict[str, pd.DataFrame] = {}
        for model, vectors in self._read_rows(data, PartModel.read):
            tables[model.shape.part] = pd.DataFrame(vectors, index=data.index)
        return tables

    def embeddings(self) -> dict[str, pd.DataFrame]:
        """The vectors of the items. With both parts, they come from the part that predicts items.

        Returns:
            "context" and "center", and "query", "key" and "value" of the first layer, each [items, numbers]; in the
            last three, the heads follow one after the other. A factor model has only the first two.

        Raises:
            UsageError: the model has no items.
        """
        return tabulate_embeddings(self._parts[0], self.items_)

    @takes_after_two(SimilarKeywords)
    def similar(
        self, item: Any, options: EfaSimilarOptions, *, progress: ProgressCallback | None = None
    ) -> pd.DataFrame:
        """Rank the items that go with an item, such as products bought together, best first, without the item itself.

        By "probability", the score is p(other | item) / p(other): how much more probable an item is as the next row
        after this item alone than after another item, on average. By "vectors", the score is the sum of the
        products δ·β of both items, in both orders. With attention, it is large for items that the model treats alike,
        even if they never occur together. Pass options as keywords, or as an `EfaSimilarOptions`:

        {options}

        Args:
            item: an item of `items_`.
            options: the options as one object.
            progress: called with notes.

        Returns:
            Columns: rank, item, score. By probability, also probability, p(other | item); sequences, the number of
            training sequences with both items; and lift, the share of sequences with both items, divided by the product
            of each item's share. The last two are missing if the model has no counts.

        Raises:
            UsageError: the item is unknown, or the model cannot rank by probabilities or by vectors.
        """
        report = progress or ignore_progress
        part = self._parts[0]
        problem = explain_no_probability(part)
        if options.by == "vectors" or (options.by is None and problem):
            ranked = rank_similar(part, self.items_, item, options.top)
            if options.by is None:
                report(Progress("note", f"ranked by vectors: {problem}"))
            return ranked
        if problem:
            raise UsageError(f"{problem}; or set $by to vectors", "by")
        counts = self.counts_
        if counts is None:
            note = (
                'the model was saved by an older version, without counts: the columns "sequences" and "lift" are empty'
            )
            report(Progress("note", f"{note}; fit it again to get them"))
        elif counts.least > 1:
            note = f"only pairs of items in {counts.least:,} or more sequences are counted"
            report(Progress("note", f'{note}: the columns "sequences" and "lift" are empty for other pairs'))
        return rank_beside(part, self.items_, item, counts, self.options_, options.top)

    def save(self, folder: str | Path) -> None:
        """Write the model to a folder; `load` and `attngeo score` read it.

        Args:
            folder: folder to create. With both parts, it gets two subfolders, items and values, each a complete model.

        Raises:
            OutputError: the folder cannot be written.
            TableError: JSON cannot store an item.
            UsageError: the model is not fitted.
        """
        parts = self._parts
        write_efa(
            Path(folder),
            self.options_,
            self.architecture_,
            parts,
            self.items_,
            self.counts_,
            epochs=len(self.history_.train),
            missing=self.missing_texts,
        )

    @classmethod
    def load(cls, folder: str | Path, family: ExponentialFamily | None = None) -> Self:
        """Load a model that `save` wrote.

        Args:
            folder: folder of the model.
            family: the family, if the model was fitted with your own.

        Raises:
            ModelNotFoundError: the folder has no model.
            UnsupportedModelError: another version saved the model, or its family is your own and not given.
            CorruptCheckpointError: its files are broken or contradict each other.
            NotEnoughMemoryError: the model does not fit in memory.
        """
        saved, models, counts = read_efa(Path(folder), family)
        options = saved.options.replace(device=usable_device(saved.options.device))
        loaded = cls(**dict(options) | {"architecture": saved.architecture, "family": family or options.family})
        loaded.options_ = options
        loaded.architecture_ = saved.architecture
        loaded.items_ = list(saved.items)
        loaded.counts_ = counts
        loaded.missing_texts = saved.missing
        loaded.model_ = (models[0] if len(models) == 1 else JointModel(models)).eval()
        loaded.history_ = History(np.full(saved.epochs, np.nan), np.empty(0), np.empty(0))
        return loaded

    @property
    def _parts(self) -> list[PartModel]:
        """The model of each part. Raises UsageError if there is none."""
        if not hasattr(self, "model_"):
            raise UsageError("the model is not fitted; call fit first")
        return list(self.model_.parts)

    def read(self, data: pd.DataFrame, *, source: str = TABLE, fill: bool = False) -> list[Sequences]:
        """Read the sequences of a table for each part, and check that the model allows their values.

        Args:
            data: rows as in training.
            source: name of the table in messages.
            fill: whether rows without the item or values are allowed.

        Raises:
            TableError: the table cannot be read.
            UsageError: the model is not fitted.
        """
        sequences = []
        for model in self._parts:
            reader = TableReader(self.options_, self.items_, model.shape, model.families)
            sequences.append(reader.read(data, source=source, fill=fill))
        return sequences


def _check_architecture(architecture: object) -> Architecture:
    """The architecture. Raises UsageError for anything else."""
    if not isinstance(architecture, Architecture):
        raise UsageError(f"architecture is {architecture!r:.60}, expected attngeo.estimators.efa.options.Architecture")
    return architecture
