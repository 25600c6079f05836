"""The tables of several files as one: columns with the same name are the same, and other cells are missing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pandas as pd

from attngeo.bounds.names import list_names
from attngeo.errors import TableError
from attngeo.estimators.shared.cells import show_value
from attngeo.estimators.shared.files import find_decimal, list_texts
from attngeo.estimators.tabular.kinds import find_free_texts, find_likely_kind

# The key in a frame's attrs of the columns that some of its files lack.
PARTIAL = "partial_columns"


def join_tables(paths: Sequence[str], frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The rows of all tables, with the columns of all; a cell of a column that its table lacks is missing.

    `attrs[PARTIAL]` has the columns that some table lacks. Raises TableError for a table without a column in common
    with the others.
    """
    columns = _join_columns(paths, frames)
    filled = [frame.dropna(axis=1, how="all") for frame in frames]  # empty ones have another kind than the values
    joined = pd.concat(filled, ignore_index=True).reindex(columns=columns)
    joined.attrs[PARTIAL] = tuple(name for name in columns if any(name not in frame for frame in frames))
    return joined


def _join_columns(paths: Sequence[str], frames: Sequence[pd.DataFrame]) -> list[str]:
    """The columns of all frames. Raises TableError for one without a column in common with the others."""
    columns = list(frames[0].columns)
    remaining = list(range(1, len(frames)))
    while remaining:
        near = next((number for number in remaining if {*columns} & {*frames[number].columns}), None)
        if near is None:
            raise TableError(
                f"no column in common with {paths[0]}, expected one of: {list_names(columns)}; rename a column",
                subject=paths[remaining[0]],
            )
        columns += [name for name in frames[near].columns if name not in columns]
        remaining.remove(near)
    return columns


def describe_kinds(
    paths: Sequence[str], frames: Sequence[pd.DataFrame], names: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Notes about columns of texts in one file and numbers in another, each with the path that it is about.

    Args:
        paths: path of each file.
        frames: rows of each file, as they are read from it alone.
        names: columns that are used.
    """
    numbers: dict[str, str] = {}
    for path, frame in zip(paths, frames, strict=True):
        for name in frame.columns:
            if pd.api.types.is_numeric_dtype(frame[name].dtype) and frame[name].notna().any():
                numbers.setdefault(name, path)
    for path, frame in zip(paths, frames, strict=True):
        for name in list_texts(frame):
            cells = frame[name].dropna()
            if name not in names or name not in numbers or cells.empty:
                continue
            if find_likely_kind(cells, find_decimal(frame))[0] != "number":
                what = f"texts such as {show_value(cells.iloc[0])} here, and numbers in {numbers[name]}"
                yield path, f"column {name!r:.60} has {what}; rename it if it is not the same quantity"


def describe_values(
    paths: Sequence[str], frames: Sequence[pd.DataFrame], names: Collection[str], target: str | None
) -> Iterator[tuple[str, str]]:
    """Notes about columns whose categories in a file are in no earlier file, each with the path that it is about.

    Columns of free texts, dates or numbers get no note, but the target does.

    Args:
        paths: path of each file.
        frames: rows of each file, of which a column of texts in one is a column of texts in all.
        names: columns that are used.
        target: column of the labels.
    """
    earlier: dict[str, tuple[str, pd.Series[Any]]] = {}
    for path, frame in zip(paths, frames, strict=True):
        for name in _list_categories(frame, target):
            if name not in names:
                continue
            cells = frame[name].dropna()
            first, known = earlier.get(name, (path, cells))
            if not cells.isin(known).any():
                values = f"{show_value(cells.iloc[0])} here, {show_value(known.iloc[0])} there"
                advice = "write equal values alike, or rename the column if it is not the same"
                yield path, f"column {name!r:.60} has no value in common with {first}: {values}; {advice}"
            earlier[name] = first, pd.concat([known, cells])


def _list_categories(frame: pd.DataFrame, target: str | None) -> Iterator[str]:
    """The columns of categories with a value, the target among them."""
    texts = list_texts(frame)
    free = dict(find_free_texts(frame))
    for name in frame.columns:
        cells = frame[name].dropna()
        if cells.empty:
            continue
        is_of_categories = name in texts and name not in free
        if name == target or (is_of_categories and not find_likely_kind(cells, find_decimal(frame))[0]):
            yield name
