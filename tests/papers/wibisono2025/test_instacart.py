"""Instacart baskets: the published counts and division where the files are present, and bad files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import train_test_split
from support.data import DATA, needs
from support.messages import refuses

from attngeo.errors import DataError, DataUnavailableError
from attngeo.papers.wibisono2025 import instacart
from attngeo.papers.wibisono2025.instacart import read_instacart, read_item_names, split_instacart

FILES = ("data_train_final.csv", "data_test_final.csv")
HEADER = "order_id,product_id,rank"


@needs("instacart")
def test_the_published_baskets_are_read_and_divided() -> None:
    frame = read_instacart(DATA / "instacart")
    baskets = frame.groupby("part")["sequence"].nunique()
    assert baskets.to_dict() == {"train": 24_781, "test": 1_433}
    assert sorted(frame["item"].unique()) == list(range(1, 64))
    split = split_instacart(frame, published=True)
    assert [part["sequence"].nunique() for part in split] == [18_585, 6_196, 1_433]
    # Batches of 256 copies of an epoch and of the test, and a basket that trains, as the published code printed.
    assert [-(-len(part) // 256) for part in (split.train, split.test)] == [807, 63]
    everyone = frame[frame["part"] == "train"].groupby("sequence")["item"].agg(list)
    train, validation = train_test_split(everyone.index.to_numpy(), test_size=0.25, random_state=42)
    assert everyone[train[0]] == [55, 54, 12, 20, 4, 1, 29, 21, 11, 8, 23]
    assert [set(part["sequence"]) for part in split[:2]] == [set(train), set(validation)]
    as_text = split_instacart(frame, seed=1)
    assert [part["sequence"].nunique() for part in as_text] == [18_585, 6_196, 1_433]
    assert not as_text.validation.equals(split.validation)
    names = read_item_names(DATA / "instacart")
    assert (len(names), names[1]) == (63, "Organic Baby Spinach")


def make_rows(order: int, items: int = 10, shift: int = 0) -> list[tuple[int, int, int]]:
    return [(order, (at + shift) % 20 + 1, at + 1) for at in range(items)]


def write(folder: Path, train: list[tuple[object, ...]] | str, test: list[tuple[object, ...]] | str) -> Path:
    for name, rows in zip(FILES, (train, test), strict=True):
        if not isinstance(rows, str):
            rows = "\n".join([HEADER, *(",".join(map(str, row)) for row in rows), ""])
        (folder / name).write_text(rows)
    return folder


def test_baskets_of_ten_are_kept_in_their_order(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    train = [*make_rows(7, 12), *make_rows(3, 10, 5), *make_rows(5, 9)]
    write(tmp_path, [train[at] for at in draw.permutation(len(train))], make_rows(9))
    frame = read_instacart(tmp_path)
    assert frame.groupby("sequence").size().to_dict() == {3: 10, 7: 12, 9: 10}
    assert frame["item"][:10].tolist() == list(range(6, 16))
    assert frame["position"][:10].tolist() == list(range(10))
    assert frame["part"].tolist() == ["train"] * 22 + ["test"] * 10
    for name in FILES:
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress((tmp_path / name).read_bytes()))
        (tmp_path / name).unlink()
    pd.testing.assert_frame_equal(read_instacart(tmp_path / f"{FILES[0]}.gz"), frame)


def test_the_files_of_kaggle_are_filtered_as_the_authors_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of few orders are left out before the baskets of ten items are."""
    monkeypatch.setattr(instacart, "FEWEST_ORDERS", 2)
    kept = {"prior": [*make_rows(7, 12), *make_rows(3, 12), *make_rows(5, 9)], "train": make_rows(9, 11)}
    (tmp_path / "final").mkdir()
    (tmp_path / "raw").mkdir()
    write(tmp_path / "final", kept["prior"], kept["train"])
    for part, rows in kept.items():
        # A rare product is first in order 7, and many are in order 5, which they do not fill up.
        rare = [(7, 900, 1), *((5, 800 + at, 20 + at) for at in range(9))] if part == "prior" else [(9, 900, 7)]
        lines = [f"{order},{item},{rank + (order == 7) + (order == 9 and rank > 6)},0" for order, item, rank in rows]
        lines += [",".join(map(str, row)) + ",1" for row in rare]
        text = "\n".join(["order_id,product_id,add_to_cart_order,reordered", *lines, ""])
        (tmp_path / "raw" / f"order_products__{part}.csv.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "raw" / "products.csv").write_text('product_id,product_name,aisle_id\n1,"Tea, green",3\n2,Limes,4\n')
    frame = read_instacart(tmp_path / "raw")
    pd.testing.assert_frame_equal(frame, read_instacart(tmp_path / "final"))
    assert read_item_names(tmp_path / "raw") == {1: "Tea, green", 2: "Limes"}
    assert frame.groupby("sequence").size().to_dict() == {3: 12, 7: 12, 9: 11}
    monkeypatch.setattr(instacart, "FEWEST_ORDERS", 4)
    with refuses(DataError, "order_products__prior.csv", 4):
        read_instacart(tmp_path / "raw")
    file = tmp_path / "raw" / "order_products__train.csv"
    (tmp_path / "raw" / "order_products__train.csv.gz").unlink()
    with refuses(DataUnavailableError, "order_products__train.csv"):
        read_instacart(tmp_path / "raw")
    for text in ("order_id,product_id\n1,2\n", "order_id,product_id,add_to_cart_order\n1,x,1\n", ""):
        file.write_text(text)
        with refuses(DataError, "order_products__train.csv"):
            read_instacart(tmp_path / "raw")


@pytest.mark.parametrize(
    "train",
    [
        "",
        HEADER + "\n",
        "order_id,product_id\n1,2\n",
        HEADER + "\n1,2,3,4\n",
        HEADER + "\n1,2,1\n1,2,3,4\n",
        HEADER + "\n1,2,1\n1,nan,2\n",
        HEADER + "\n1,,1\n",
        HEADER + "\n1,1.5,1\n",
        HEADER + "\n1,-2,1\n",
        HEADER + "\n1,99999999999999999999,1\n",
        HEADER + "\n1,2,0\n",
        HEADER + "\n1,2\n",
        [*make_rows(1), (1, 1, 11)],
        [*make_rows(1), (1, 15, 4)],
        [*make_rows(1), (1, 15, 12)],
        make_rows(1, 9),
        make_rows(9),
        "\x00\xff",
    ],
)  # fmt: skip
def test_bad_files_are_one_line(tmp_path: Path, train: list[tuple[object, ...]] | str) -> None:
    write(tmp_path, train, make_rows(9))
    with refuses(DataError, tmp_path.name):
        read_instacart(tmp_path)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with refuses(DataUnavailableError, "nowhere"):
        read_instacart(tmp_path / "nowhere")
    write(tmp_path, make_rows(1), make_rows(2))
    (tmp_path / FILES[1]).unlink()
    with refuses(DataUnavailableError, FILES[1]):
        read_instacart(tmp_path)


def test_names_are_read_if_they_are_there(tmp_path: Path) -> None:
    assert read_item_names(tmp_path) == {}
    path = tmp_path / "items.csv"
    path.write_text('item,product_id,name\n2,7,"Half & Half, organic"\n1,9,Limes\n')
    assert read_item_names(tmp_path) == read_item_names(path) == {2: "Half & Half, organic", 1: "Limes"}
    for text, facts in {
        "item,name\n1,a\n1,b\n": ["row 2", "item 1"],
        "item,name\n1, \n": ["row 1", "name"],
        "item,title\n1,a\n": ["'name'"],
        "item,name\nx,a\n": [],
    }.items():
        path.write_text(text)
        with refuses(DataError, "items.csv", *facts):
            read_item_names(tmp_path)
    with refuses(DataUnavailableError, "no.csv"):
        read_item_names(tmp_path / "no.csv")
