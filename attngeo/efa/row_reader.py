"""What a fitted network says about the rows of a table; of some of them, the value or the item may be missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from attngeo.efa.columns import TABLE, require_columns, require_frame, require_values
from attngeo.efa.missing import (
    check_others,
    check_single,
    copy_for_missing,
    drop_alone,
    rows_with_others,
)
from attngeo.efa.modelling import PartModel
from attngeo.efa.options import EfaOptions
from attngeo.efa.reading import keep_means, read_all, read_one
from attngeo.efa.sequences import NO_SEQUENCE, Sequences, TableReading, may_be_alone
from attngeo.errors import TableError

# What is kept of the means of a batch, which may be as many as items for each row.
Reduce = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class RowReader:
    """A fitted network, and how the tables that it is asked about are read."""

    model: PartModel
    reading: TableReading
    options: EfaOptions

    def read(
        self,
        table: pd.DataFrame,
        *,
        drawn: bool = False,
        numbers: np.ndarray | None = None,
        places: np.ndarray | None = None,
    ) -> Sequences:
        """The sequences of a table. drawn: whether its values are not read. numbers, places: of `TableReading.read`."""
        require_frame(table)
        sequences = self.reading.read(table, numbers=numbers, places=places)
        if drawn:
            self.model.check_places(sequences)
        else:
            self.model.check(sequences, self.options.value, TABLE)
        return sequences

    def find_missing(self, table: pd.DataFrame) -> np.ndarray:
        """Which rows have no value, or no item for a model of items, and can only be predicted: [rows].

        Raises TableError if the table lacks the column.
        """
        require_frame(table)
        require_columns(list(table.columns), [self.options.sequence, self._modelled], TABLE)
        require_values(table[self.options.sequence], TABLE, first=0)
        missing: np.ndarray = table[self._modelled].isna().to_numpy()
        return missing

    def read_means(self, table: pd.DataFrame, reduce: Reduce = keep_means) -> np.ndarray:
        """The mean of each row given the others, [rows, …]; NaN for rows that are left out.

        A missing row is predicted from those that are not, in a copy of its sequence. reduce: is applied to the means
        of each batch. Raises TableError.
        """
        missing = self.find_missing(table)
        self._check_missing(table, missing)
        table = table.reset_index(drop=True)
        places = self.reading.place_rows(table, missing)
        found = self._read_known(table, missing, places, lambda *batch: reduce(self.model.mean(*batch)))
        for some, copies in self._copy_missing(table, missing):
            means = self._read_missing(copies, places, some, reduce)
            if found is None:
                found = means
            found[some] = means[some]
        if found is None:
            raise TableError(f"{TABLE} {NO_SEQUENCE}")
        return found

    def read_log_prob(self, table: pd.DataFrame) -> np.ndarray:
        """Log p of each row given the others that are not missing, [rows]; NaN for missing rows and those left out.

        Raises TableError.
        """
        missing = self.find_missing(table)
        table = table.reset_index(drop=True)
        found = self._read_known(table, missing, self.reading.place_rows(table, missing), self.model.log_prob)
        return np.full(len(table), np.nan) if found is None else found

    @property
    def _modelled(self) -> str:
        """The column of what the network models."""
        return self.options.value if self.reading.has_values else self.options.item

    def _check_missing(self, table: pd.DataFrame, missing: np.ndarray) -> None:
        """Raise TableError if the network cannot predict the missing rows."""
        name = self.options.sequence
        if self.model.shape.places:
            check_single(table, missing, sequence=name)
        if self.options.direction == "bi" and self.options.short == "error":
            check_others(table, missing, sequence=name, what=self._modelled)

    def _copy_missing(self, table: pd.DataFrame, missing: np.ndarray) -> Iterator[tuple[np.ndarray, pd.DataFrame]]:
        """`copy_for_missing`, without the copies that are left out."""
        name = self.options.sequence
        fill = self.reading.items[0] if self.reading.items and not self.reading.has_values else 0.0
        for some, copies in copy_for_missing(table, missing, sequence=name, column=self._modelled, fill=fill):
            kept = drop_alone(copies, sequence=name) if self.options.short == "drop" else copies
            if len(kept):
                yield some, kept

    def _read_known(
        self, table: pd.DataFrame, missing: np.ndarray, places: np.ndarray, function: Callable[..., Tensor]
    ) -> np.ndarray | None:
        """A function of batches at the rows of a table that are not missing, [rows, …]; None if all are left out.

        places: [rows], of `place_rows`. A factor model of places reads whole sequences only.
        """
        name = self.options.sequence
        rows = rows_with_others(
            table, missing, sequence=name, whole=bool(self.model.shape.places),
            may_be_alone=may_be_alone(self.options, causal=self.reading.causal),
        )  # fmt: skip
        rows = drop_alone(rows, sequence=name) if self.options.short == "drop" else rows
        if not len(rows):
            return None
        numbers = rows.index.to_numpy()
        sequences = self.read(rows, numbers=numbers, places=places[numbers])
        return sequences.scatter(read_all(self.model, sequences, function, self.options), len(table))

    def _read_missing(self, copies: pd.DataFrame, places: np.ndarray, some: np.ndarray, reduce: Reduce) -> np.ndarray:
        """The means of some missing rows, from the copies of their sequences. places, some: [rows] of the table."""
        numbers = copies.index.to_numpy()
        sequences = self.reading.read(copies, numbers=numbers, places=places[numbers])
        asked = some[sequences.rows] & sequences.known.numpy()
        self.model.check_places(sequences)
        given = replace(sequences, known=sequences.known & ~torch.as_tensor(asked))
        self.model.check_values(given, self.options.value, TABLE)
        means = read_one(self.model, sequences, lambda *at: reduce(self.model.mean_at(*at)), asked, self.options)
        return replace(sequences, known=torch.as_tensor(asked)).scatter(means, len(some))
