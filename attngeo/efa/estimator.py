"""Exponential family attention on tidy tables: fitted, then asked for probabilities, means, samples and weights."""

from __future__ import annotations

from collections import Counter
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from attngeo.choices import whole
from attngeo.efa.columns import TABLE, TRAINING, learn_items, require_frame
from attngeo.efa.description import DataShape, describe_data
from attngeo.efa.embeddings import tabulate_embeddings
from attngeo.efa.fitting import hold_out, train_model
from attngeo.efa.measuring import Measured, measure_rows
from attngeo.efa.missing import keep_whole
from attngeo.efa.modelling import PartModel, make_model
from attngeo.efa.options import EfaOptions
from attngeo.efa.parts import choose_part
from attngeo.efa.reading import find_best, read_all, split_sequences
from attngeo.efa.row_reader import RowReader
from attngeo.efa.sampling import draw_items, draw_values
from attngeo.efa.sequences import POSITION, Sequences, TableReading
from attngeo.efa.stores import SequenceStore, open_store
from attngeo.efa.weights import read_weights, tabulate_weights
from attngeo.errors import UsageError
from attngeo.options import takes
from attngeo.progress import ProgressCallback, ignore_progress
from attngeo.training import draw_generator
from attngeo.training.state import remove_state

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attngeo.training import History

NOT_FITTED = "the model is not fitted; call fit first"
HELD_OUT, TEST = "the validation table", "the test table"


class EfaKeywords(EfaOptions):
    """The keywords of `ExponentialFamilyAttention`."""

    options: EfaOptions | None = None


class ExponentialFamilyAttention:
    """The items of sequences, or the values of their items, each predicted from the others (section 2 of the paper).

    A row of a table is an observation: the sequence that it belongs to, its position there (without one, the rows of a
    sequence are a set, or for direction "uni" in order), an item, a value, coordinates, values at earlier times. With
    direction "bi", a position is predicted from all others, and the sum of log p is a pseudo-likelihood; with "uni",
    from those before it, and the sum is the likelihood.

        model = ExponentialFamilyAttention(family="poisson").fit(ratings)
        model.log_prob(ratings)

    Attributes after `fit`: model_ (torch), part_ ("items" or "values"), items_ (in the order of their numbers),
    history_ (losses of each epoch). `options` has what was asked for.

    Source: Wibisono and Wang 2025 (arXiv 2501.16790), section 2.

    >>> import pandas as pd
    >>> baskets = pd.DataFrame({"sequence": [1, 1, 1, 2, 2], "item": ["milk", "bread", "tea", "tea", "milk"]})
    >>> model = ExponentialFamilyAttention(epochs=2, validation_fraction=0, width=4).fit(baskets)
    >>> model.log_prob(baskets).shape
    (5,)
    """

    model_: PartModel
    items_: list[Any]
    _shape: DataShape
    _parts: dict[str, SequenceStore]
    history_: History

    @takes(EfaKeywords)
    def __init__(self, *, options: EfaOptions = EfaOptions()) -> None:
        """{options}"""
        self.options = options

    def fit(
        self,
        data: pd.DataFrame | str | Path,
        validation: pd.DataFrame | str | Path | None = None,
        *,
        test: pd.DataFrame | str | Path | None = None,
        folder: str | Path | None = None,
        progress: ProgressCallback = ignore_progress,
    ) -> Self:
        """Train on a table. It ends with the weights of the lowest loss on the validation data.

        data: a DataFrame; or the path of a Parquet file in which the rows of each sequence are together, which is read
        in parts and may be larger than memory. validation: another table; without it, `validation_fraction` of the
        sequences are held out. test: a table that the model is for, which is refused before the training if its rows
        cannot be used; nothing is learned from it. folder: keeps the state of an unfinished training, which a second
        call resumes. Raises TableError for tables that cannot be used, UsageError for options that do not fit them, and
        what `attngeo.training.train` raises; a model that was fitted before stays as it was.
        """
        draft = copy(self)
        draft._fit(data, validation, test, folder, progress)
        self.__dict__ = draft.__dict__
        if folder is not None:
            remove_state(Path(folder))
        return self

    def _fit(
        self,
        data: pd.DataFrame | str | Path,
        validation: pd.DataFrame | str | Path | None,
        test: pd.DataFrame | str | Path | None,
        folder: str | Path | None,
        progress: ProgressCallback,
    ) -> None:
        given = [(data, TRAINING), *([(validation, HELD_OUT)] if validation is not None else [])]
        stores = [open_store(each, self.options.sequence, source) for each, source in given]
        columns = stores[0].columns()
        part, uses_items = choose_part(self.options, columns)
        self.items_ = learn_items(stores, self.options.item, [source for _, source in given]) if uses_items else []
        # Tables without the positions that training rows have may be in another order.
        position = self.options.position or (POSITION if POSITION in columns else None)
        matters = self.options.gives_vectors(position) or self.options.direction == "uni"
        position = position if matters else None
        self._shape = DataShape(part=part, items=len(self.items_), position=position)
        reading = self._reading
        if validation is None and self.options.validation_fraction:
            stores = hold_out(stores[0], reading, self.options)
        parts = [partial(each.parts, reading) for each in stores]  # of training and held-out rows
        self._shape = replace(describe_data(self.options, part, len(self.items_), parts), position=position)
        with torch.random.fork_rng([]):
            torch.manual_seed(draw_generator(self.options.seed).initial_seed())
            model = make_model(self.options, self._shape)
        names = ("train", "held-out" if validation is None else "validation")
        found = dict(zip(names, stores, strict=False))
        if test is not None:
            found["test"] = open_store(test, self.options.sequence, TEST)
        for name, store in found.items():
            for some in store.parts(self._reading):
                model.check(some, self.options.value, {"validation": HELD_OUT, "test": TEST}.get(name, TRAINING))
        self.history_ = train_model(model, stores, reading, self.options, folder=folder, progress=progress)
        self.model_ = model
        self._parts = found

    @property
    def part_(self) -> str:
        """What is modelled: "items" or "values"."""
        if not hasattr(self, "_shape"):
            raise UsageError(NOT_FITTED)
        return self._shape.part

    @property
    def reader_(self) -> RowReader:
        """How the rows of tables are read, and those found that lack a value or an item."""
        return RowReader(self._fitted, self._reading, self.options)

    def log_prob(self, data: pd.DataFrame) -> pd.Series[float]:
        """Log p of each row given the others, constants of the family included; NaN for rows that are left out."""
        sequences = self.reader_.read(data)
        found = read_all(self.model_, sequences, self.model_.log_prob, self.options)
        return self._as_rows(data, sequences, found, "log_prob")

    def score(self, data: pd.DataFrame) -> float:
        """The mean of `log_prob`."""
        return float(self.log_prob(data).mean())

    def measure(self, data: pd.DataFrame | str | Path, train: pd.DataFrame | str | Path) -> Measured:
        """How probable the rows of a table are, beside what is known without a context from training rows.

        data, train: as in `fit`.
        """
        model, reading = self._fitted, self._reading
        asked, learned = (open_store(each, self.options.sequence, TABLE) for each in (data, train))
        return measure_rows(model, asked, learned, reading, self.options)

    def measure_fit(self, **tables: pd.DataFrame | str | Path) -> dict[str, Measured]:
        """The same of the rows that trained ("train"), of those that did not ("held-out", or else "validation"), of
        those given as "test", and of further tables by name. Raises UsageError for a model that was loaded, and so
        has no rows.
        """
        if not hasattr(self, "_parts"):
            raise UsageError("the model has no training rows; call fit, or measure with a training table")
        stores = self._parts | {name: open_store(each, self.options.sequence, name) for name, each in tables.items()}
        model, train, reading = self._fitted, self._parts["train"], self._reading
        return {name: measure_rows(model, store, train, reading, self.options) for name, store in stores.items()}

    def predict(self, data: pd.DataFrame) -> pd.DataFrame:
        """What each row is expected to be, given the others.

        Values: the column mean. Items: the most likely item, and its probability. A row whose value or item is missing
        is predicted from the rows that have one; no row is predicted from it. It keeps its place in the sequence. Such
        rows may have the same position; without a column of positions, each one at the end of a sequence is asked for
        as the next. A factor model of places, which adds up all others, predicts nothing else in a sequence with a
        missing value.
        """
        if self.part_ == "values":
            return pd.DataFrame({"mean": self.reader_.read_means(data)}, index=data.index)
        best = self.reader_.read_means(data, find_best)
        items = [None if np.isnan(number) else self.items_[int(number)] for number in best[:, 1]]
        best_items = keep_whole(pd.Series(items, index=data.index, dtype=object))
        return pd.DataFrame({"item": best_items, "probability": best[:, 0]})

    def predict_proba(self, data: pd.DataFrame) -> pd.DataFrame:
        """The probability of each item at each row, given the others: [rows, items]. Missing items as in `predict`."""
        if self.part_ != "items":
            raise UsageError("the model is of values, which have no probability of each item; use predict")
        return pd.DataFrame(self.reader_.read_means(data), index=data.index, columns=self.items_)

    def sample(
        self,
        sequences: int = 1,
        length: int | None = None,
        *,
        given: pd.DataFrame | None = None,
        sweeps: int = 20,
        seed: int = 0,
    ) -> pd.DataFrame:
        """Sequences drawn from the model: one position after the other with direction "uni".

        With "bi", each position is drawn given the others, in a number of sweeps over all of them (Gibbs sampling).

        sequences, length: of items. given: for values, the table of sequences whose values are drawn; its own values
        are not read. Raises UsageError if what the part needs is missing.
        """
        whole("sweeps", sweeps, 1)
        seed = draw_generator(whole("seed", seed, 0), 1).initial_seed()
        if self.part_ == "items":
            if given is not None:
                raise UsageError("the model is of items, which are drawn without a table; leave out given")
            usual = self._shape.trained or self._shape.longest
            return self._sample_items(sequences, usual if length is None else length, sweeps, seed)
        if given is None:
            raise UsageError("the model is of values, expected a table of sequences whose values are drawn (given)")
        require_frame(given)
        if sequences != 1 or length is not None:
            raise UsageError("the model is of values, whose table has the sequences; leave out sequences and length")
        return self._sample_values(given, sweeps, seed)

    def _sample_items(self, sequences: int, length: int, sweeps: int, seed: int) -> pd.DataFrame:
        sequences, length = whole("sequences", sequences, 1), whole("length", length, 1, self._shape.longest)
        model, causal = self._fitted.cpu().eval(), self.options.direction == "uni"
        drawn = draw_items(model, sequences, length, causal=causal, sweeps=sweeps, seed=seed)
        names, places = np.indices(drawn.shape)
        return pd.DataFrame(
            {
                self.options.sequence: names.ravel(), self.options.position or "position": places.ravel(),
                self.options.item: [self.items_[i] for i in drawn.ravel()],
            }
        )  # fmt: skip

    def _sample_values(self, given: pd.DataFrame, sweeps: int, seed: int) -> pd.DataFrame:
        model, causal = self._fitted.cpu().eval(), self.options.direction == "uni"
        known = self.reader_.read(given.assign(**{self.options.value: 0.0}), drawn=True)
        values = draw_values(model, model.tensors(known), causal=causal, sweeps=sweeps, seed=seed)
        found: pd.Series[Any] = self._as_rows(given, known, values[known.at], self.options.value)
        if model.family.is_of_counts:
            found = found.astype("Int64" if found.isna().any() else "int64")
        return given.assign(**{self.options.value: found})

    def attention_weights(self, data: pd.DataFrame) -> pd.DataFrame:
        """How much each row, when it is masked, attends to each row of its sequence.

        Columns: sequence, layer, head, row and other (numbers of rows of the table, from 0), position, other_position,
        lag (0, or which of the earlier times), weight, and item and other_item if the table has a column of items.
        Raises UsageError for a factor model.
        """
        sequences = self.reader_.read(data)
        model = self.model_.cpu().eval()
        causal = self.options.direction == "uni"
        parts = []
        shape = model.attention.shape
        costs = shape.layers * shape.heads * (1 + model.shape.lags) * sequences.lengths**2
        for chunk in split_sequences(sequences, costs):
            weights = read_weights(model.attention, model.embed(*model.tensors(chunk)), causal=causal)
            parts.append(tabulate_weights(chunk, weights.numpy(), causal=causal))
        found = pd.concat(parts, ignore_index=True)
        if self.options.item in data:
            items = data[self.options.item].to_numpy()
            found = found.assign(item=items[found["row"]], other_item=items[found["other"]])
        return found

    def embeddings(self) -> dict[str, pd.DataFrame]:
        """The vectors of the items: context and center, and query, key and value of the first layer.

        Each is a DataFrame [items, numbers]; the latter three have the heads one after the other. A factor model has
        the first two only. Raises UsageError if the model has no items.
        """
        return tabulate_embeddings(self._fitted, self.items_)

    def with_item_names(self, names: Mapping[Any, str]) -> Self:
        """A copy whose items have these names; the others, and those that would share one, stay as they are.

        Tables for the copy have the names in their column of items. It has no training rows.
        """
        self._fitted  # noqa: B018 - checks
        given = [names.get(item, item) for item in self.items_]
        found = copy(self)
        found.__dict__.pop("_parts", None)
        # Items are also found by their texts, so no name may be the text of another item.
        texts = Counter(text for pair in zip(self.items_, given, strict=True) for text in set(map(str, pair)))
        found.items_ = [item if texts[str(name)] > 1 else name for item, name in zip(self.items_, given, strict=True)]
        return found

    def save(self, folder: str | Path) -> None:
        """Write the model to a folder that `load_model` reads. Raises OutputError."""
        from attngeo.efa.saving import save_model

        self._fitted  # noqa: B018 - checks
        save_model(self, folder)

    @property
    def _fitted(self) -> PartModel:
        """The model. Raises UsageError if there is none."""
        if not hasattr(self, "model_"):
            raise UsageError(NOT_FITTED)
        return self.model_

    @property
    def _reading(self) -> TableReading:
        causal, position = self.options.direction == "uni", self.options.position or self._shape.position
        has_vectors = self.options.gives_vectors(position)
        return TableReading(
            self.options.replace(position=position), self.items_ or None, self.part_ == "values", causal,
            self._shape.longest if has_vectors else 0, is_ordered=has_vectors or causal or not self.items_,
        )  # fmt: skip

    def _as_rows(self, data: pd.DataFrame, sequences: Sequences, found: Tensor, name: str) -> pd.Series[float]:
        return pd.Series(sequences.scatter(found, len(data)), index=data.index, name=name)
