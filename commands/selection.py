"""Which rows and columns of a table a command writes and prints."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

from attngeo.errors import UsageError
from attngeo.options import RESULTS, Options, option
from attngeo.questions.spread import QUANTILES, statistic
from attngeo.tables.read import explain_unknown_column

from .outputs import Outputs
from .tables import print_frame

if TYPE_CHECKING:
    import pandas as pd

# Columns of a summary that are no results.
SIZES = ("parameters", "layers", "heads")
# How the columns of a summary end that a terminal has room for.
SHOWN = ("_min", "_median", "_max")
# How those end that a table in LaTeX has of all quantities, as the smallest cosine.
SMALLEST = "_min"


def strongest_option(default: int, what: str) -> Any:
    """The option `top` of a command about pairs of heads. what: which pairs it prints, as in "pairs of each kind"."""
    return option(
        default,
        f"Print the N strongest {what}, or with --sort the first N rows; 0 prints none. If you give N, files also "
        "contain only these pairs",
        panel=RESULTS,
        metavar="N",
        least=0,
    )


class PrintedPairs(Options):
    """Options of the pairs of heads that are written and printed."""

    top: int = strongest_option(10, "pairs")

    @property
    def most(self) -> int | None:
        """The number of pairs that are written; None for all."""
        return self.top if self.top and "top" in self.model_fields_set else None


class Order(Options):
    """The columns of a table to write and print, and the order of its rows; by default unchanged."""

    columns: Sequence[str] = option(
        (),
        "Write and print only these columns, separated by commas",
        panel=RESULTS,
        metavar="LIST",
        parse=lambda names: tuple(filter(None, (name.strip() for name in names.split(",")))),
    )
    sort: str | None = option(
        None, "Sort by this column, the largest value first; -COLUMN for the smallest", panel=RESULTS, metavar="COLUMN"
    )

    @property
    def is_given(self) -> bool:
        """Whether the user selected or sorted anything."""
        return bool(self.model_fields_set)

    @property
    def named_columns(self) -> dict[str, str]:
        """Each column that the user named, and the option that names it."""
        columns = dict.fromkeys(self.columns, "columns")
        return columns if self.sort is None else columns | {self.sort.removeprefix("-"): "sort"}

    def choose(self, usual: Iterable[str]) -> list[str]:
        """The columns to print: the ones the user named, or the usual ones and the column that sorts the rows."""
        return list(self.columns) or [*dict.fromkeys((*usual, *self.named_columns))]

    def of_summary(self, known: Collection[str]) -> Self:
        """The same for a summary: a score stands for all columns of its statistics, and --sort sorts by its median.

        known: the columns of the summary.
        """
        columns: list[str] = []
        for name in self.columns:
            spread = [statistic(name, quantile) for quantile in QUANTILES]
            columns += [name] if name in known else [column for column in known if column in spread] or [name]
        given: dict[str, Any] = {"columns": ",".join(columns)} if self.columns else {}
        if self.sort is not None and statistic(self.sort.removeprefix("-"), "median") in known:
            given["sort"] = statistic(self.sort, "median")
        return self.replace(**given)

    def check(self, known: Collection[str]) -> None:
        """Raise UsageError for an unknown column, and for an empty list of columns."""
        if "columns" in self.model_fields_set and not self.columns:
            raise UsageError("$columns names no column, expected names separated by commas", "columns")
        for column, name in self.named_columns.items():
            if column not in known:
                raise UsageError(f"${name}: {explain_unknown_column(column, known)}", name)

    def select(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The selected columns of the rows in their order; missing values are sorted to the end."""
        about = rows.attrs
        if self.sort is not None:
            ascending = self.sort.startswith("-")
            rows = rows.sort_values(self.sort.removeprefix("-"), ascending=ascending, kind="stable")
        if self.columns:
            rows = rows[[*self.columns]]
        rows = rows.reset_index(drop=True)
        rows.attrs = about
        return rows


class Selection(Order):
    """The rows and columns of a table to write and print; by default all."""

    top: int | None = option(None, "Write and print only the first N rows", panel=RESULTS, metavar="N", least=1)

    def select(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The selected rows and columns; missing values are sorted to the end."""
        return super().select(rows).iloc[: self.top]


class HeadSelection(Selection):
    """The selection for commands with --per-head."""

    top: int | None = option(
        None,
        "Write and print only the first N rows; with --per-head, only rows of heads",
        panel=RESULTS,
        metavar="N",
        least=1,
    )


def print_summary(rows: pd.DataFrame, keys: Sequence[str]) -> None:
    """Print the rows of a summary. A narrow terminal drops sizes and names that all rows share first, results last.

    keys: the columns that tell stacks apart.
    """
    sizes = [name for name in SIZES if name in rows]
    shared = [key for key in reversed(keys) if key in rows and rows[key].nunique() <= 1]
    print_frame(rows, [*sizes, *shared])


def deliver_summary(
    summarized: pd.DataFrame, columns: Sequence[str], keys: Sequence[str], outputs: Outputs, selection: Selection
) -> None:
    """Write and print a summary: one row for each stack, with the spread of these columns over its layers and heads.

    keys: the columns that tell stacks apart. A table in LaTeX has the spread of the first of the columns that has
    numbers, and minima; the terminal has the medians and the extremes of all.
    """
    names = [key for key in keys if summarized[key].nunique() > 1]
    known = [str(name) for name in summarized if name not in keys and summarized[name].notna().any()]
    first = next((column for column in columns if any(column in name for name in known)), columns[0])
    paper = [*names, *(name for name in known if first in name or name.endswith(SMALLEST))]
    brief = [*keys, "layers", "heads", *(name for name in known if name.endswith(SHOWN))]

    def print_rows(selected: pd.DataFrame) -> None:
        print_summary(selected[selection.choose(brief)], keys)

    outputs.deliver(selection.select(summarized), print_rows, selection.choose(paper))
