"""Exponential family attention on tidy tables: fitted, then asked for probabilities, means, samples and weights."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from copy import copy, deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from pydantic import ConfigDict
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from torch import Tensor

from attngeo.choices import whole
from attngeo.devices import usable_device
from attngeo.errors import TableError, UsageError
from attngeo.estimators.efa.columns import (
    HELD_OUT,
    TABLE,
    TEST,
    TRAINING,
    choose_part,
    keep_whole,
    learn_items,
    require_frame,
)
from attngeo.estimators.efa.families import ExponentialFamily, parse_family
from attngeo.estimators.efa.model import PartModel, describe_data, make_model
from attngeo.estimators.efa.networks import Batch
from attngeo.estimators.efa.options import Architecture, EfaOptions, EfaSampleOptions
from attngeo.estimators.efa.prediction import (
    Measured,
    batch_similar,
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
from attngeo.options import takes
from attngeo.progress import ProgressCallback, ignore_progress
from attngeo.training.loop import History, draw_generator, remove_state, seeded, train


class SampleKeywords(EfaSampleOptions):
    """The keywords of `ExponentialFamilyAttention.sample`."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    options: EfaSampleOptions | None = None
    data: pd.DataFrame | None = None


class EfaKeywords(EfaOptions):
    """The keywords of the estimator."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    family: str | ExponentialFamily = "gaussian"  # type: ignore[assignment]
    random_state: int | np.random.RandomState | None = 0  # type: ignore[assignment]
    architecture: Architecture | None = None


class ExponentialFamilyAttention(BaseEstimator):  # type: ignore[misc]
    """The items of sequences, or the values of their items, each predicted from the others (section 2 of the paper).

    A row of a table is an observation: the sequence that it belongs to, its position there (without one, the rows of a
    sequence are a set, or for direction "uni" in order), an item, a value, coordinates, values at earlier times. With
    direction "bi", a position is predicted from all others, and the sum of log p is a pseudo-likelihood; with "uni",
    from those before it, and the sum is the likelihood.

        model = ExponentialFamilyAttention(family="poisson").fit(ratings)
        model.log_prob(ratings)

    The keywords are those of `EfaOptions`, which `__init__` describes, and

    Args:
        family: a text such as "gaussian", "poisson:1" or "binomial:10", or an `ExponentialFamily`.
        random_state: seed, or a generator of numpy.
        architecture: an `Architecture`; None for the default one.

    Attributes:
        model_: the torch model. part_: "items" or "values". items_: in the order of their numbers.
        history_: losses of each epoch. options_: the parameters as `EfaOptions`.

    Raises UsageError for parameters out of range, when it is fitted.

    Source: Wibisono and Wang 2025 (arXiv 2501.16790), section 2.

    >>> import pandas as pd
    >>> baskets = pd.DataFrame({"sequence": [1, 1, 1, 2, 2], "item": ["milk", "bread", "tea", "tea", "milk"]})
    >>> model = ExponentialFamilyAttention(max_epochs=2, validation_fraction=0, width=4).fit(baskets)
    >>> model.log_prob(baskets).shape
    (5,)
    """

    family: str | ExponentialFamily
    random_state: int | np.random.RandomState | None
    architecture: Architecture | None
    options_: EfaOptions
    architecture_: Architecture
    model_: PartModel
    items_: list[Any]
    history_: History
    _shape: DataShape
    # The sequences that trained, that were held out, and of the test table, by these names.
    _tables: dict[str, Sequences]

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
        options, family = self.options_, self._make_family()
        columns = list(tables[TRAINING].columns)
        part, uses_items = choose_part(options, columns)
        learned = {source: table for source, table in tables.items() if source != TEST}
        self.items_ = learn_items(learned, options.item) if uses_items else []
        # Tables without the positions that training rows have may be in another order.
        position = options.position or (POSITION if POSITION in columns else None)
        matters = options.gives_vectors(position) or options.causal
        self._shape = DataShape(part=part, items=len(self.items_), position=position if matters else None)
        sequences = {source: self._reader.read(table, source=source) for source, table in learned.items()}
        names = {TRAINING: "train", HELD_OUT: "validation", TEST: "test"}
        if HELD_OUT not in tables and options.validation_fraction:
            sequences[TRAINING], sequences[HELD_OUT] = hold_out(sequences[TRAINING], options)
            names[HELD_OUT] = "held-out"
        architecture, training = self.architecture_, list(sequences.values())
        self._shape = describe_data(options, architecture, family, self._shape, training)
        with seeded(draw_generator(options.random_state).initial_seed()):
            self.model_ = make_model(options, architecture, family, self._shape)
        if TEST in tables:
            sequences[TEST] = self._reader.read(tables[TEST], source=TEST)
        for source, rows in sequences.items():
            self.model_.check(rows, options.value, source if source in tables else TRAINING)
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

    def _make_family(self) -> ExponentialFamily:
        """A family of its own for the model. Raises UsageError."""
        if isinstance(self.family, ExponentialFamily):
            return deepcopy(self.family)
        return parse_family(self.family)

    @property
    def part_(self) -> str:
        """What is modelled: "items" or "values"."""
        self._require_fit()
        return self._shape.part

    def log_prob(self, data: pd.DataFrame, *, known_only: bool = False) -> pd.Series[float]:
        """Log p of each row given the others, constants of the family included.

        known_only: whether rows may lack what is modelled, as in `predict`; NaN for those that lack it.
        """
        sequences = self._read(data, fill=known_only)
        log_prob = read_all(self.model_, sequences, self.model_.log_prob, self.options_)
        spread = sequences.scatter(log_prob, len(data), sequences.known & sequences.asked)
        return pd.Series(spread, index=data.index, name="log_prob")

    def score(self, data: pd.DataFrame, y: None = None) -> float:
        """The mean of `log_prob`. y: for scikit-learn."""
        del y
        return float(self.log_prob(data).mean())

    def measure(self, data: pd.DataFrame, train: pd.DataFrame) -> Measured:
        """How probable the rows of a table are, beside what is known without a context from training rows."""
        self._require_fit()
        rows, train_rows = (self._reader.read(table) for table in (data, train))
        return measure_rows(self.model_, rows, train_rows, self.options_)

    def measure_fit(self, **tables: pd.DataFrame) -> dict[str, Measured]:
        """The same of the rows that trained ("train"), of those that did not ("held-out", or else "validation"), of
        those given as "test", and of further tables by name. Raises UsageError for a model that was loaded, and so
        has no rows.
        """
        self._require_fit()
        if not hasattr(self, "_tables"):
            raise UsageError("the model has no training rows; call fit, or measure with a training table")
        train = self._tables["train"]
        sequences = self._tables | {name: self._reader.read(table, source=name) for name, table in tables.items()}
        return {name: measure_rows(self.model_, table, train, self.options_) for name, table in sequences.items()}

    def predict(self, data: pd.DataFrame) -> pd.DataFrame:
        """What each row is expected to be, given the others.

        Values: the column mean. Items: the most likely item, and its probability. A row whose value or item is missing
        is predicted from the rows that have one; no row is predicted from it. It keeps its place in the sequence. Such
        rows may have the same position; without a column of positions, each one at the end of a sequence is asked for
        as the next. A factor model of places, which adds up all others, predicts nothing else in a sequence with a
        missing value.
        """
        if self.part_ == "values":
            return pd.DataFrame({"mean": self._predict_means(data)}, index=data.index)
        best = self._predict_means(data, best=True)
        items = [None if np.isnan(number) else self.items_[int(number)] for number in best[:, 1]]
        best_items = keep_whole(pd.Series(items, index=data.index, dtype=object))
        return pd.DataFrame({"item": best_items, "probability": best[:, 0]})

    def predict_proba(self, data: pd.DataFrame) -> pd.DataFrame:
        """The probability of each item at each row, given the others: [rows, items]. Missing items as in `predict`."""
        if self.part_ != "items":
            raise UsageError("the model is of values, which have no probability of each item; use predict")
        return pd.DataFrame(self._predict_means(data), index=data.index, columns=self.items_)

    def _predict_means(self, data: pd.DataFrame, *, best: bool = False) -> np.ndarray:
        """The mean of each row given the others, [rows, …]; NaN for rows that are not predicted.

        best: the largest probability instead, and the number of its item, [rows, 2].
        """
        sequences = self._read(data, fill=True)

        def read(batch: Batch) -> Tensor:
            means = self.model_.mean(batch)
            if not best:
                return means
            return torch.stack([part.cpu().double() for part in means.max(-1)], -1)  # some devices have no double

        return sequences.scatter(read_all(self.model_, sequences, read, self.options_), len(data), sequences.asked)

    @takes(SampleKeywords)
    def sample(self, options: EfaSampleOptions, *, data: pd.DataFrame | None = None) -> pd.DataFrame:
        """Sequences drawn from the model: one position after the other with direction "uni".

        With "bi", each position is drawn given the others, in a number of sweeps over all of them (Gibbs sampling).

        {options}
        data: for values, the table of sequences whose values are drawn; its own values are not read.

        Raises UsageError if what the part needs is missing.
        """
        if self.part_ == "items":
            if data is not None:
                raise UsageError("the model is of items, which are drawn without a table; leave out $data", "data")
            return self._sample_items(options)
        if data is None:
            raise UsageError("$data is missing, expected a table of sequences whose values are drawn", "data")
        if options.sequences is not None or options.length is not None:
            raise UsageError("the model is of values, whose table has the sequences; leave out sequences and length")
        return self._sample_values(data, options)

    def _sample_items(self, options: EfaSampleOptions) -> pd.DataFrame:
        usual = self._shape.trained or self._shape.longest
        length = whole("length", usual if options.length is None else options.length, 1, self._shape.longest)
        drawn = draw_items(self.model_.cpu().eval(), options.sequences or 1, length, **self._state_draws(options))
        names, places = np.indices(drawn.shape)
        return pd.DataFrame(
            {
                self.options_.sequence: names.ravel(), self.options_.position or POSITION: places.ravel(),
                self.options_.item: [self.items_[item] for item in drawn.ravel()],
            }
        )  # fmt: skip

    def _state_draws(self, options: EfaSampleOptions) -> dict[str, Any]:
        """How positions are drawn: keywords of `draw_items` and `draw_values`."""
        seed = draw_generator(options.seed, 1).initial_seed()
        return {"causal": self.options_.causal, "sweeps": options.sweeps, "seed": seed}

    def _sample_values(self, data: pd.DataFrame, options: EfaSampleOptions) -> pd.DataFrame:
        require_frame(data)
        model, name = self.model_.cpu().eval(), self.options_.value
        sequences = self._reader.read(data.assign(**{name: 0.0}))
        model.check(sequences, None, TABLE)
        drawn = draw_values(model, model.batch(sequences), **self._state_draws(options))
        spread = sequences.scatter(drawn[sequences.at], len(data), sequences.known)
        values: pd.Series[Any] = pd.Series(spread, index=data.index)
        return data.assign(**{name: values.astype("int64") if model.family.is_of_counts else values})

    def attention_weights(self, data: pd.DataFrame) -> pd.DataFrame:
        """How much each row, when it is masked, attends to each row of its sequence.

        Columns: sequence, layer, head, row and other (numbers of rows of the table, from 0), position, other_position,
        lag (0, or which of the earlier times), weight, and item and other_item if the table has a column of items.
        Raises UsageError for a factor model.
        """
        rows = tabulate_attention(self.model_.cpu().eval(), self._read(data), causal=self.options_.causal)
        if self.options_.item in data:
            items = data[self.options_.item].to_numpy()
            rows = rows.assign(item=items[rows["row"]], other_item=items[rows["other"]])
        return rows

    def embeddings(self) -> dict[str, pd.DataFrame]:
        """The vectors of the items: context and center, and query, key and value of the first layer.

        Each is a DataFrame [items, numbers]; the latter three have the heads one after the other. A factor model has
        the first two only. Raises UsageError if the model has no items.
        """
        self._require_fit()
        return tabulate_embeddings(self.model_, self.items_)

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

        Raises OutputError, and TableError for items that JSON lacks.
        """
        self._require_fit()
        write_efa(
            Path(folder), self.options_, self.architecture_, self.model_, self.items_, epochs=len(self.history_.train)
        )

    @classmethod
    def load(cls, folder: str | Path, family: ExponentialFamily | None = None) -> Self:
        """The model that `save` wrote. family: of a model whose family is not one of attngeo.

        Raises ModelNotFoundError if there is none, UnsupportedModelError if it is of another version or of a family
        that is not given, CorruptCheckpointError if its files are broken or contradict each other, and
        NotEnoughMemoryError.
        """
        saved, model = read_efa(Path(folder), family)
        options = saved.options.replace(device=usable_device(saved.options.device))
        loaded = cls(**dict(options) | {"architecture": saved.architecture, "family": family or options.family})
        loaded.options_, loaded.architecture_ = options, saved.architecture
        loaded.items_, loaded._shape, loaded.model_ = list(saved.items), model.shape, model.eval()
        loaded.history_ = History(np.full(saved.epochs, np.nan), *(np.empty(0) for _ in range(2)))
        return loaded

    def _require_fit(self) -> None:
        """Raise UsageError if there is no model."""
        if not hasattr(self, "model_"):
            raise UsageError("the model is not fitted; call fit first")

    def _read(self, data: pd.DataFrame, *, fill: bool = False) -> Sequences:
        """The sequences of a table, whose values the model can have; parameters as those of `TableReader.read`."""
        self._require_fit()
        sequences = self._reader.read(data, fill=fill)
        self.model_.check(sequences, self.options_.value, TABLE)
        return sequences

    @property
    def _reader(self) -> TableReader:
        return TableReader(self.options_, self.items_ or None, self._shape)


def hold_out(sequences: Sequences, options: EfaOptions) -> list[Sequences]:
    """Training sequences, and a random fraction that is held out. Raises TableError if one of them has none."""
    total = len(sequences)
    count = round(options.validation_fraction * total)
    if not 0 < count < total:
        raise TableError(
            f"{total} sequences, of which a fraction of {options.validation_fraction:g} cannot be held out; "
            "give more, or a validation table, or set validation_fraction to 0"
        )
    order = torch.randperm(total, generator=draw_generator(options.random_state, 2)).numpy()
    return [sequences.take(np.sort(some)) for some in (order[count:], order[:count])]


@dataclass(frozen=True)
class SequenceBatches:
    """Batches of sequences in a random order, each as long as its longest one.

    Those that are held out have no order: sequences of about one length are together, so that a long one is read with
    few others.
    """

    model: PartModel
    sequences: Sequences
    options: EfaOptions
    are_held_out: bool = False

    def epoch(self, number: int) -> Iterator[tuple[Any, ...]]:
        """The batches of an epoch, from 0."""
        if self.are_held_out:
            yield from ((batch,) for _, batch in batch_similar(self.model, self.sequences, self.options))
            return
        order = torch.randperm(len(self.sequences), generator=draw_generator(self.options.random_state, number))
        for some in torch.split(order, self.options.batch_size):
            yield (self.model.batch(self.sequences.take(some.numpy())),)


def train_model(
    model: PartModel, tables: list[Sequences], options: EfaOptions, architecture: Architecture,
    **about: Any,
) -> History:  # fmt: skip
    """Train on the first table, and end with the weights of the lowest loss on the second one, if there is one.

    about: folder and progress of `training.loop.train`, which raises as there.
    """
    digest = hashlib.sha256(f"{options.replace(device='cpu')!r} {architecture!r}".encode())
    for table in tables:
        digest.update(table.starts.tobytes())
        for name, tensor in table.tensors():
            digest.update(name.encode() + tensor.numpy().tobytes())
    batches = [SequenceBatches(model, table, options, at > 0) for at, table in enumerate(tables)]
    training = options.training(
        weight_decay=options.weight_decay, patience=options.patience or None, seed=options.random_state,
        precision=options.precision,
    )  # fmt: skip
    return train(
        model, batches[0], options=training, validation=batches[1] if len(tables) > 1 else None,
        identity=digest.hexdigest(), **about,
    )  # fmt: skip
