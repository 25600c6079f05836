"""Instacart: the products of shopping baskets in the order in which they were added.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), section 6.3, and the tables that its authors made: baskets with at
least 10 of the 63 products that are in 50,000 orders or more.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from attngeo.errors import DataError
from attngeo.papers.wibisono2025.files import (
    Split,
    explaining,
    find_file,
    folder_of,
    has_file,
    hold_out,
    read_table,
    require_once,
    start_draws,
    take_sequences,
)

if TYPE_CHECKING:
    import pandas as pd

PARTS = {"train": "data_train_final.csv", "test": "data_test_final.csv"}
ITEM_NAMES = "items.csv"
COLUMNS = ("order_id", "product_id", "rank")
FEWEST_ITEMS = 10


def read_instacart(path: str | Path) -> pd.DataFrame:
    """The rows of all baskets: sequence (an order), position, item (a product), part ("train" or "test").

    path: a folder with data_train_final.csv and data_test_final.csv, which gzip may have packed; or one of the two,
    beside the other. Baskets of less than 10 items are left out. The numbers of items are those of the files.
    Raises DataUnavailableError if a file is missing, DataError if it is not such a table.
    """
    import pandas as pd

    folder = folder_of(path)
    parts = [_read_baskets(find_file(folder, name)).assign(part=part) for part, name in PARTS.items()]
    both = set(parts[0]["sequence"]) & set(parts[1]["sequence"])
    if both:
        names = " and in ".join(PARTS.values())
        raise DataError(f"{folder}: order {min(both)} is in {names}, expected it in one of them")
    return pd.concat(parts, ignore_index=True)


def _read_baskets(path: Path) -> pd.DataFrame:
    import pandas as pd

    frame = read_table(path, COLUMNS, dtype=dict.fromkeys(COLUMNS, "int64"))
    require_once(path, frame, ["order_id", "product_id"])
    require_once(path, frame, ["order_id", "rank"])
    sizes = frame.groupby("order_id")["rank"].transform("size")
    with explaining(path, "a table of baskets"):
        if (frame < 0).any(axis=None):
            raise ValueError("a number is negative")
        # With each rank once, the ranks of a basket are all there if none is above its size.
        if not frame["rank"].between(1, sizes).all():
            raise ValueError("ranks are not from 1 on, none left out, in each order")
        if (sizes < FEWEST_ITEMS).all():
            raise ValueError(f"no basket has {FEWEST_ITEMS} items")
    kept = frame[sizes >= FEWEST_ITEMS].sort_values(["order_id", "rank"], ignore_index=True)
    return pd.DataFrame({"sequence": kept["order_id"], "position": kept["rank"] - 1, "item": kept["product_id"]})


def read_item_names(path: str | Path) -> dict[int, str]:
    """The names of the items, from a file items.csv with the columns item and name; none if it is not there.

    path: the file, or a folder. Raises DataUnavailableError or DataError.
    """
    place = Path(path).expanduser()
    if place.is_dir() and not has_file(place, ITEM_NAMES):
        return {}
    file = find_file(place, ITEM_NAMES)
    frame = read_table(file, ("item", "name"), dtype={"item": "int64", "name": str}, na_filter=False)
    require_once(file, frame, ["item"])
    nameless = frame.index[frame["name"].str.strip() == ""]
    if len(nameless):
        raise DataError(f"{file}: row {nameless[0] + 1} has no name")
    return dict(zip(frame["item"].tolist(), frame["name"], strict=True))


def split_instacart(frame: pd.DataFrame, seed: int = 0, *, published: bool = False) -> Split:
    """A random quarter of the training baskets validates: 18,585 train, 6,196 validate and 1,433 test.

    frame: rows of `read_instacart`. published: draw the baskets that validated in the published runs.
    """
    import numpy as np

    is_test = frame["part"] == "test"
    orders = np.sort(frame["sequence"][~is_test].unique())
    train, validation = hold_out(orders, start_draws(seed, published=published))
    return take_sequences(frame, train, validation, frame["sequence"][is_test].unique())
