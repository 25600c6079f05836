"""Sequences of items: MovieLens-100K, the shopping baskets of Instacart, and two simulations; and their divisions.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), sections 2.1 and 6.1 to 6.3, appendix H.1, and the code that made its
tables for what the text leaves open. Its authors made the tables of baskets: those with at least 10 of the 63 products
that are in 50,000 orders or more.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from attngeo.bounds.machine import require_memory
from attngeo.bounds.small_files import check_small
from attngeo.errors import DataError
from attngeo.papers.wibisono2025.files import (
    PUBLISHED_SEED,
    Split,
    explaining,
    find_file,
    folder_of,
    hold_out,
    look_for,
    read_content,
    read_table,
    require_once,
    start_draws,
    take_sequences,
)

# Of MovieLens.
RATINGS = ("user", "item", "rating", "time")
MOVIELENS_ARCHIVE, MEMBER = "ml-100k.zip", "ml-100k/u.data"
TITLES = "ml-100k/u.item"
# The movies that are kept, the lowest rating of the second experiment, and what is subtracted from it.
TOP_MOVIES, LOWEST_RATING, RATING_SHIFT = 50, 3, 2
# Of Instacart.
PARTS = {"train": "data_train_final.csv", "test": "data_test_final.csv"}
ITEM_NAMES = "items.csv"
BASKETS = ("order_id", "product_id", "rank")
FEWEST_ITEMS = 10
# Of Instacart on Kaggle, of which the authors' tables are a part: least orders of a product, and most bytes of a file.
RAW = {"train": "order_products__prior.csv", "test": "order_products__train.csv"}
RAW_COLUMNS, RAW_NAMES = ("order_id", "product_id", "add_to_cart_order"), "products.csv"
FEWEST_ORDERS, MOST_RAW_BYTES = 50_000, 2**31
# Of the synthetic ratings.
SYNTHETIC_MOVIES = 5
# Of the known model, and of its sequences: those that train at most, that validate, and that test.
ITEMS, WIDTH, HEADS, LENGTH = 12, 8, 2, 8
TRAINING, VALIDATION, TEST = 6400, 1000, 2000


def read_movielens(path: str | Path) -> pd.DataFrame:
    """The ratings of MovieLens-100K: user, item, rating (1 to 5), time (seconds).

    path: the file u.data, the archive ml-100k.zip, or a folder with one of them.
    Raises DataUnavailableError if it cannot be read, and DataError if it is another table.
    """
    file = find_file(path, "u.data", MEMBER, MOVIELENS_ARCHIVE)
    frame = read_table(file, RATINGS, member=MEMBER, sep="\t", names=list(RATINGS), dtype="int64")
    if not frame["rating"].between(1, 5).all():
        raise DataError(f"{file} is not u.data of MovieLens-100K: ratings are not from 1 to 5")
    require_once(file, frame, ["user", "item"])
    return frame


def read_movie_titles(path: str | Path) -> dict[int, str]:
    """The titles of the movies by their numbers, from u.item of MovieLens-100K; none if it is not there.

    path: as for `read_movielens`; u.item is in the archive, or beside u.data. Raises DataError for another table.
    """
    place, folder = Path(path).expanduser(), folder_of(path)
    file: Path | None = place
    if not _has_titles(place):
        archive = folder / MOVIELENS_ARCHIVE
        file = look_for(folder, "u.item", TITLES) or (archive if _has_titles(archive) else None)
    if file is None:
        return {}
    titles: dict[int, str] = {}
    for row, line in enumerate(read_content(file, member=TITLES).decode("latin-1").split("\n"), 1):
        if not line.strip():
            continue
        number, title, *_ = [*line.split("|"), ""]
        if not (number.isascii() and number.isdecimal() and title.strip()):
            raise DataError(f"{file}: row {row} is {line!r:.40}, expected a movie's number and its title: 1|Title|")
        titles[int(number)] = title.strip()
    return titles


def _has_titles(path: Path) -> bool:
    """Whether a path is a zip archive with the titles."""
    try:
        if not path.is_file():
            return False
        with zipfile.ZipFile(path) as archive:
            return TITLES in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def movielens_sequences(frame: pd.DataFrame, seed: int = 0, *, published: bool = False) -> pd.DataFrame:
    """The movies that each user rated, in order of time (section 6.2.1).

    frame: rows of `read_movielens`. Kept are the 50 movies with most ratings (of equal counts, that with the lowest
    number) and users with less than two ratings for each time. Of several ratings at one time one is taken: at random
    with the seed, or the one that the published runs took.
    """
    return _order(_keep_top(frame), seed, published=published)


def movielens_ratings(frame: pd.DataFrame, seed: int = 0, *, published: bool = False) -> pd.DataFrame:
    """The same for ratings of 3, 4 and 5, whose values are 1, 2 and 3 (section 6.2.2); users with one are left out."""
    high = frame[frame["rating"] >= LOWEST_RATING]
    top = _keep_top(high.assign(rating=high["rating"] - RATING_SHIFT))
    return _order(top[top.groupby("user")["item"].transform("size") > 1], seed, published=published)


def _keep_top(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the movies with most ratings, and of users who do not rate many of them at once."""
    counts = frame.groupby("item").size()
    top = counts.sort_values(ascending=False, kind="stable").index[:TOP_MOVIES]
    frame = frame[frame["item"].isin(top)]
    times = frame.groupby("user")["time"]
    return frame[times.transform("size") < 2 * times.transform("nunique")]


def _order(frame: pd.DataFrame, seed: int, *, published: bool) -> pd.DataFrame:
    """One rating for each time of each user, in order."""
    groups = frame.groupby(["user", "time"])
    sizes = groups["item"].transform("size")
    if published:  # there, each time starts the same random numbers, so that the choice follows from its size
        draw = np.random.RandomState
        picks = {int(n): int(draw(PUBLISHED_SEED).choice(n, 1, replace=False)[0]) for n in sizes.unique()}
        chosen = frame[groups.cumcount() == sizes.map(picks)]
    else:
        order = np.random.default_rng(seed).permutation(len(frame))
        chosen = frame.iloc[order].drop_duplicates(["user", "time"])
    chosen = chosen.sort_values(["user", "time"]).rename(columns={"user": "sequence", "rating": "value"})
    chosen = chosen.assign(position=chosen.groupby("sequence").cumcount())
    return chosen[["sequence", "position", "item", "value"]].reset_index(drop=True)


def split_movielens_sequences(frame: pd.DataFrame, seed: int = 0, *, published: bool = False) -> Split:
    """`movielens_sequences` of users at random: 56.25 % train, 18.75 % validate and 25 % test (section 6.2.1).

    frame: rows of `read_movielens`. published: as it was run. There, positions in the list of users were taken for
    numbers of users: of 902, 480 train, 161 validate and 219 test, and 42 are in no part.
    """
    return _split_users(movielens_sequences(frame, seed, published=published), seed, published=published)


def split_movielens_ratings(frame: pd.DataFrame, seed: int = 0, *, published: bool = False) -> Split:
    """The same of `movielens_ratings`: as it was run, of 893 users 631 train or validate, 211 test, 51 are in no part.

    published: here, the 631 users are divided as those of `split_movielens_sequences`. The published runs divided
    masked copies of them, not users.
    """
    return _split_users(movielens_ratings(frame, seed, published=published), seed, published=published)


def _split_users(frame: pd.DataFrame, seed: int, *, published: bool) -> Split:
    users = np.sort(frame["sequence"].unique())
    draw = start_draws(seed, published=published)
    if published:
        order = draw.permutation(len(users))
        count = 3 * len(users) // 4
        known, test = np.intersect1d(users, order[order[:count]]), order[order[count:]]
        draw = start_draws(seed, published=True)  # each division starts the same random numbers
    else:
        known, test = hold_out(users, draw)
    return take_sequences(frame, *hold_out(known, draw), test)


def read_instacart(path: str | Path) -> pd.DataFrame:
    """The rows of all baskets: sequence (an order), position, item (a product), part ("train" or "test").

    path: a folder with data_train_final.csv and data_test_final.csv, which gzip may have packed; or one of the two,
    beside the other. Without them, a folder with the files of Kaggle, order_products__prior.csv, which trains, and
    order_products__train.csv: the products that are in 50,000 orders of the former are kept, in the order of a basket.
    Baskets of less than 10 items are left out. The numbers of items are those of the files. Raises DataUnavailableError
    if a file is missing, DataError if it is not such a table, and NotEnoughMemoryError.
    """
    folder = folder_of(path)
    is_raw = _is_raw(folder)
    files = {part: find_file(folder, name) for part, name in (RAW if is_raw else PARTS).items()}
    if is_raw:
        frames = _read_orders(files)
    else:
        frames = {
            part: read_table(file, BASKETS, dtype=dict.fromkeys(BASKETS, "int64")) for part, file in files.items()
        }
    parts = [_list_baskets(files[part], frame).assign(part=part) for part, frame in frames.items()]
    both = set(parts[0]["sequence"]) & set(parts[1]["sequence"])
    if both:
        names = " and in ".join(file.name for file in files.values())
        raise DataError(f"{folder}: order {min(both)} is in {names}, expected it in one of them")
    return pd.concat(parts, ignore_index=True)


def _is_raw(folder: Path) -> bool:
    """Whether a folder has files of Kaggle, and none of the authors."""
    return look_for(folder, *PARTS.values()) is None and look_for(folder, *RAW.values()) is not None


def _read_orders(files: Mapping[str, Path]) -> dict[str, pd.DataFrame]:
    """The rows of the products that are in enough training orders, by part; ranks are those among such products."""
    frames = {}
    for part, file in files.items():
        require_memory(check_small(file, MOST_RAW_BYTES), f"the table {file}")
        with explaining(file, f"a table with {','.join(RAW_COLUMNS)}"):
            frame = pd.read_csv(file, usecols=list(RAW_COLUMNS), dtype="int32", encoding="utf-8-sig")
        frames[part] = frame[list(RAW_COLUMNS)].set_axis(list(BASKETS), axis=1)
    counts = frames["train"]["product_id"].value_counts()
    kept = counts.index[counts >= FEWEST_ORDERS]
    if kept.empty:
        raise DataError(f"{files['train']}: no product is in {FEWEST_ORDERS:,} orders; give the file of Kaggle whole")
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
            raise ValueError("ranks are not from 1 on, none left out, in each order")
        if (sizes < FEWEST_ITEMS).all():
            raise ValueError(f"no basket has {FEWEST_ITEMS} items")
    rows = frame[sizes >= FEWEST_ITEMS].sort_values(["order_id", "rank"], ignore_index=True)
    return pd.DataFrame({"sequence": rows["order_id"], "position": rows["rank"] - 1, "item": rows["product_id"]})


def read_item_names(path: str | Path) -> dict[int, str]:
    """The names of the items, from a file items.csv with the columns item and name, or for the files of Kaggle from
    products.csv; none if neither is there.

    path: a folder, or a file in it. Raises DataUnavailableError or DataError.
    """
    folder = folder_of(path)
    known, item, name = (RAW_NAMES, "product_id", "product_name") if _is_raw(folder) else (ITEM_NAMES, "item", "name")
    file = look_for(folder, known)
    if file is None:
        return {}
    frame = read_table(file, (item, name), dtype={item: "int64", name: str}, na_filter=False)
    frame = frame.rename(columns={item: "item", name: "name"})
    require_once(file, frame, ["item"])
    nameless = frame.index[frame["name"].str.strip() == ""]
    if len(nameless):
        raise DataError(f"{file}: row {nameless[0] + 1} has no name")
    return dict(zip(frame["item"].tolist(), frame["name"], strict=True))


def split_instacart(frame: pd.DataFrame, seed: int = 0, *, published: bool = False) -> Split:
    """A random quarter of the training baskets validates: 18,585 train, 6,196 validate and 1,433 test.

    frame: rows of `read_instacart`. published: draw the baskets that validated in the published runs.
    """
    is_test = frame["part"] == "test"
    train, validation = hold_out(np.sort(frame["sequence"][~is_test].unique()), start_draws(seed, published=published))
    return take_sequences(frame, train, validation, frame["sequence"][is_test].unique())


def synthetic_ratings(users: int = 10_000, seed: int = PUBLISHED_SEED) -> pd.DataFrame:
    """Ratings of five movies by users who saw them in a random order, which some ratings depend on (appendix H.1).

    A rating is normal with variance 1. Its mean is 3; but 1 for movie 2 after movie 1, and 5 for movie 2 before it; 1
    for movies 3 and 4 directly after each other; 5 for movie 5 if it is the last one. `mean` is a further column: the
    mean of the rating given the order. With the defaults these are the numbers of the published runs.
    """
    draw = np.random.RandomState(seed)
    orders, values, means = np.empty((3, users, SYNTHETIC_MOVIES))
    for user in range(users):
        orders[user] = order = draw.permutation(SYNTHETIC_MOVIES) + 1
        means[user] = mean = _mean_ratings(order)
        values[user] = draw.normal(mean, 1)
    sequence, position = np.indices(orders.shape).reshape(2, -1)
    return pd.DataFrame(
        {"sequence": sequence, "position": position, "item": orders.reshape(-1).astype(int),
         "value": values.reshape(-1), "mean": means.reshape(-1)}
    )  # fmt: skip


def _mean_ratings(order: np.ndarray) -> list[float]:
    means = []
    for at, movie in enumerate(order):
        before = order[at - 1] if at else 0
        if movie == 2:
            mean = 1.0 if 1 in order[:at] else 5.0
        elif (movie, before) in ((3, 4), (4, 3)):
            mean = 1.0
        else:
            mean = 5.0 if movie == 5 and at == len(order) - 1 else 3.0
        means.append(mean)
    return means


def split_synthetic(frame: pd.DataFrame, seed: int = 0, *, published: bool = False) -> Split:
    """Of 10,000 users, 5,625 train, 1,875 validate and 2,500 test: the last quarter, and a random one of the others.

    frame: rows of `synthetic_ratings`. published: draw users with the seed of the published runs. These had the same
    test users, but divided masked copies of the others, not users.
    """
    users = frame["sequence"].unique()
    count = 3 * len(users) // 4
    return take_sequences(frame, *hold_out(users[:count], start_draws(seed, published=published)), users[count:])


def draw_known_sequences() -> pd.DataFrame:
    """Sequences of a known model: sequence, position, item, and log_prob, the true one of the item given those before.

    The model is one layer of attention with a residual connection, in one direction, with random parameters of variance
    1/width. Embeddings have variance 1, and queries are three times larger, so that a context says much about the next
    item.
    """
    import torch

    from attngeo.estimators.efa.attention import AttentionShape
    from attngeo.estimators.efa.networks import Batch, ItemAttention

    model = ItemAttention(ITEMS, AttentionShape(width=WIDTH, heads=HEADS, scale="head"), positions=LENGTH, causal=True)
    of_weights, of_items = (torch.Generator().manual_seed(seed) for seed in (0, 1))
    items = torch.zeros(TRAINING + VALIDATION + TEST, LENGTH, dtype=torch.long)
    log_probs = torch.zeros(items.shape, dtype=torch.float64)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            scale = 1.0 if name.startswith(("context", "center")) else WIDTH**-0.5
            scale *= 3 if "query" in name else 1
            weight.copy_(torch.randn(weight.shape, generator=of_weights) * scale)
        model = model.double().eval()
        for position in range(LENGTH):
            seen = items[:, : position + 1]
            chances = model(Batch(torch.ones_like(seen, dtype=torch.bool), seen))[:, position].softmax(-1)
            drawn = torch.multinomial(chances, 1, generator=of_items)
            items[:, position], log_probs[:, position] = drawn[:, 0], chances.gather(1, drawn)[:, 0].log()
    sequence, place = np.indices(items.shape).reshape(2, -1)
    return pd.DataFrame(
        {"sequence": sequence, "position": place, "item": items.flatten().numpy(),
         "log_prob": log_probs.flatten().numpy()}
    )  # fmt: skip


def split_known(frame: pd.DataFrame, seed: int = 0, *, published: bool = False) -> Split:
    """The first sequences train, the next 1,000 validate and the last 2,000 test.

    seed, published: change nothing; they are what all experiments take.
    """
    del seed, published
    names = frame["sequence"].unique()
    edge = len(names) - TEST - VALIDATION
    return take_sequences(frame, names[:edge], names[edge : edge + VALIDATION], names[edge + VALIDATION :])
