"""The shopping baskets of Instacart, as the authors' tables or from the files of Kaggle, and their division.

The authors made their tables of the baskets with at least 10 of the 63 products that are in 50,000 orders or more.
Source: Wibisono and Wang 2025 (arXiv 2501.16790), section 6.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from attngeo.bounds.small_files import require_regular_file
from attngeo.errors import DataError
from attngeo.papers.wibisono2025.files import explaining, find_file, folder_of, look_for, read_table, require_once
from attngeo.papers.wibisono2025.splits import Split, hold_out, start_draws, take_sequences
from attngeo.tables.read import require_csv_memory

SPLIT_FILES = {"train": "data_train_final.csv", "test": "data_test_final.csv"}
ITEM_NAMES = "items.csv"
BASKETS = ("order_id", "product_id", "rank")
FEWEST_ITEMS = 10
# The files of Kaggle, of which the authors' tables are a part: least orders of a product, and most bytes of a file.
RAW = {"train": "order_products__prior.csv", "test": "order_products__train.csv"}
RAW_COLUMNS = ("order_id", "product_id", "add_to_cart_order")
RAW_NAMES = "products.csv"
FEWEST_ORDERS = 50_000
MOST_RAW_BYTES = 2**31


def read_instacart(path: str | Path) -> pd.DataFrame:
    """The rows of all baskets: sequence (an order), position, item (a product), part ("train" or "test").

    Baskets with fewer than 10 items are left out. Items keep their numbers from the files.

    Args:
        path: a folder with data_train_final.csv and data_test_final.csv, also compressed with gzip; or one of the two
            files, with the other beside it. Or a folder with Kaggle's files order_products__prior.csv, to train, and
            order_products__train.csv, to test: only products in 50,000 orders of the first file or more are kept, in
            the order of the basket.

    Raises:
        DataUnavailableError: a file is missing.
        DataError: a file is not such a table.
        NotEnoughMemoryError: a table does not fit in memory.
    """
    folder = folder_of(path)
    is_raw = _is_raw(folder)
    names = RAW if is_raw else SPLIT_FILES
    files = {part: find_file(folder, name) for part, name in names.items()}
    if is_raw:
        tables = _read_orders(files)
    else:
        types = dict.fromkeys(BASKETS, "int64")
        tables = {part: read_table(file, BASKETS, dtype=types) for part, file in files.items()}
    train, test = (_list_baskets(files[part], table).assign(part=part) for part, table in tables.items())
    in_both = set(train["sequence"]) & set(test["sequence"])
    if in_both:
        shown = " and in ".join(file.name for file in files.values())
        raise DataError(f"order {min(in_both)} is in {shown}, expected in only one of them", subject=folder)
    return pd.concat([train, test], ignore_index=True)


def _is_raw(folder: Path) -> bool:
    """Whether a folder has files of Kaggle, and none of the authors."""
    return look_for(folder, *SPLIT_FILES.values()) is None and look_for(folder, *RAW.values()) is not None


def _read_orders(files: Mapping[str, Path]) -> dict[str, pd.DataFrame]:
    """The rows of the products that are in enough training orders, by part; ranks are those among such products."""
    frames = {}
    for part, file in files.items():
        require_regular_file(file, MOST_RAW_BYTES)
        with file.open("rb") as source:
            require_csv_memory(source, file)
        with explaining(file, f"a table with {','.join(RAW_COLUMNS)}"):
            frame = pd.read_csv(file, usecols=list(RAW_COLUMNS), dtype="int32", encoding="utf-8-sig")
        frames[part] = frame[list(RAW_COLUMNS)].set_axis(list(BASKETS), axis=1)
    counts = frames["train"]["product_id"].value_counts()
    kept = counts.index[counts >= FEWEST_ORDERS]
    if kept.empty:
        raise DataError(
            f"no product is in {FEWEST_ORDERS:,} orders; give the complete file from Kaggle", subject=files["train"]
        )
    for part, frame in frames.items():
        rows = frame[frame["product_id"].isin(kept)].astype("int64")
        ranks = rows.groupby("order_id")["rank"].rank("dense").astype("int64")  # equal ones are refused below
        frames[part] = rows.assign(rank=ranks).reset_index(drop=True)
    return frames


def _list_baskets(path: Path, frame: pd.DataFrame) -> pd.DataFrame:
    """The baskets of a table with the columns `BASKETS`. path: of its file. Raises DataError."""
    require_once(path, frame, ["order_id", "product_id"])
    require_once(path, frame, ["order_id", "rank"])
    sizes = frame.groupby("order_id")["rank"].transform("size")
    with explaining(path, "a table of baskets"):
        if (frame < 0).any(axis=None):
            raise ValueError("a number is negative")
        # With each rank once, the ranks of a basket are all there if none is above its size.
        if not frame["rank"].between(1, sizes).all():
            raise ValueError("the ranks within an order do not run from 1 without gaps")
        if (sizes < FEWEST_ITEMS).all():
            raise ValueError(f"no basket has {FEWEST_ITEMS} items")
    rows = frame[sizes >= FEWEST_ITEMS].sort_values(["order_id", "rank"], ignore_index=True)
    return pd.DataFrame({"sequence": rows["order_id"], "position": rows["rank"] - 1, "item": rows["product_id"]})


def read_item_names(path: str | Path) -> dict[int, str]:
    """Item number → name; empty without a file of names.

    path: a folder, or a file in it. Names are read from items.csv with the columns item and name, or for the files of
    Kaggle from products.csv. Raises DataUnavailableError or DataError.
    """
    folder = folder_of(path)
    if _is_raw(folder):
        file_name, item, name = RAW_NAMES, "product_id", "product_name"
    else:
        file_name, item, name = ITEM_NAMES, "item", "name"
    file = look_for(folder, file_name)
    if file is None:
        return {}
    frame = read_table(file, (item, name), dtype={item: "int64", name: str}, na_filter=False)
    frame = frame.rename(columns={item: "item", name: "name"})
    require_once(file, frame, ["item"])
    nameless = frame.index[frame["name"].str.strip() == ""]
    if len(nameless):
        raise DataError(f"row {nameless[0] + 1} has no name", subject=file)
    return dict(zip(frame["item"].tolist(), frame["name"], strict=True))


def split_instacart(frame: pd.DataFrame, seed: int = 0, *, published: bool = False) -> Split:
    """Split the baskets: 18,585 train, 6,196 validate (a random quarter of the training baskets), 1,433 test.

    frame: rows of `read_instacart`. published: draw the same validation baskets as the published runs.
    """
    is_test = frame["part"] == "test"
    baskets = np.sort(frame["sequence"][~is_test].unique())
    train, validation = hold_out(baskets, start_draws(seed, published=published))
    return take_sequences(frame, train, validation, frame["sequence"][is_test].unique())
