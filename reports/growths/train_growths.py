"""Growths of small models that are trained from the default and from a symmetric start; see README.md beside it.

python reports/growths/train_growths.py WIKITEXT      # 24 trainings of 3 to 5 minutes on a core
python reports/growths/train_growths.py WIKITEXT &    # a second process shares the work

WIKITEXT is a folder with WikiText-2's validation and test texts. Writes training.csv, the scores at the end, and
along.csv, those along the training, which grow by one run after the other. When all runs are there, it writes
strangers.csv, heads of models of different seeds, unless it is there, and signs.csv, the orientation of partners. Runs
in training.csv are not repeated, so the same command resumes after an interruption. The first runs of training.csv
recorded no growths on their way, and are not in along.csv.
"""

from __future__ import annotations

import os
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from filelock import FileLock
from measure_growths import SEED, choose, draw_growths, name_quantiles

import attngeo
from attngeo.errors import FolderInUseError
from attngeo.geometry.forms import Form
from attngeo.geometry.mirrors import multiply_pairs, pair_heads
from attngeo.pretrain import make_options
from attngeo.pretrain.runs import run_or_read
from attngeo.tables.write import write_table

HERE = Path(__file__).resolve().parent
RUNS = HERE.parents[1] / "build/growths"
TABLE = HERE / "training.csv"
ALONG = HERE / "along.csv"
STRANGERS = HERE / "strangers.csv"
SIGNS = HERE / "signs.csv"
CONFIG = HERE.parent / "symmetric-init/bert-4x128.json"
# The options of reports/symmetric-init/build.sh, with fewer steps.
STEPS = 1_200
OPTIONS: dict[str, Any] = {
    "vocab_size": 1024, "batch_size": 64, "grad_accum": 1, "seq_len": 32, "lr": 2e-3, "warmup": 200,
    "weight_decay": 0.01, "log_every": 50, "save_every": 1000, "precision": "fp32", "steps": STEPS,
}  # fmt: skip
KEYS = ["objective", "init", "seed"]
GROWTHS = ("symmetric_growth", "antisymmetric_growth", "own_symmetry", "agreement", "cancellation")
SCORES = ["symmetry", *GROWTHS]
# Updates between two steps of along.csv; a run records twice as many.
ALONG_EVERY = 100
SEEDS = range(6)
# Those of the models whose heads are joined: a model has four heads to compare them with.
STRANGER_SEEDS = SEEDS[:3]
SETTINGS = [
    {"objective": objective, "init": init, "seed": seed}
    for init, seed, objective in product(("default", "symmetric"), SEEDS, ("mlm", "clm"))
]


def name_run(setting: dict[str, Any]) -> Path:
    """The folder of a run."""
    return RUNS / "-".join(str(setting[key]) for key in KEYS)


def train(setting: dict[str, Any], text: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Train a model: the scores of its layers at the end, and along the training."""
    options = make_options(str(CONFIG), data=text, scores=GROWTHS, **OPTIONS, **setting)
    curves = run_or_read(options, name_run(setting)).rows
    along = curves[curves["head"].isna() & (curves["step"] % ALONG_EVERY == 0)]
    scores = attngeo.score(name_run(setting) / "model", scores=GROWTHS)
    return scores.assign(**setting), along.assign(**setting)


def list_missing() -> list[dict[str, Any]]:
    """The settings that the table lacks."""
    if not TABLE.is_file():
        return SETTINGS
    there = pd.read_csv(TABLE)[KEYS].drop_duplicates().to_dict("records")
    return [setting for setting in SETTINGS if setting not in there]


def add(rows: pd.DataFrame, path: Path, places: list[str]) -> None:
    """Add the rows of a run to a table. places: columns that tell the rows of a run apart."""
    if path.is_file():
        rows = pd.concat([pd.read_csv(path), rows])
    rows = rows.sort_values([*KEYS, *places])[[*KEYS, *places, *SCORES]]
    write_table(rows.round(5), path)


def measure_strangers() -> pd.DataFrame:
    """A row for each objective and layer: growths of one head of each model, and of as many heads of one model."""
    generator = np.random.default_rng(SEED)
    rows = []
    for objective in ("mlm", "clm"):
        folders = [name_run({"objective": objective, "init": "default", "seed": seed}) for seed in STRANGER_SEEDS]
        models = [[*attngeo.attention_sites(folder / "model", dtype=torch.float64)] for folder in folders]
        for layer, sites in enumerate(zip(*models, strict=True)):
            heads = len(sites[0].wq)
            q = torch.cat([site.wq.mT for site in sites])
            k = torch.cat([site.wk.mT for site in sites])
            pairs = pair_heads(Form(q, k, [*range(len(q))]))
            products = multiply_pairs(pairs, pairs)

            def draw(products: Any = products, count: int = len(sites), heads: int = heads) -> Any:
                """One head of each model, at random."""
                chosen = np.arange(count) * heads + generator.integers(heads, size=count)
                return choose(products, torch.tensor(chosen))

            def draw_own(products: Any = products, count: int = len(sites), heads: int = heads) -> Any:
                """As many heads of one of the models."""
                of_model = generator.permutation(heads)[:count]
                return choose(products, torch.tensor(generator.integers(count) * heads + of_model))

            row: dict[str, Any] = {"objective": objective, "layer": layer, "heads": len(sites)}
            row |= name_quantiles(draw_growths(draw), "strangers")
            rows.append(row | name_quantiles(draw_growths(draw_own), "one_model"))
    return pd.DataFrame(rows)


def measure_signs() -> pd.DataFrame:
    """A row for each model: in how many pairs of partners the heads of a layer are opposite, and in how many alike."""
    rows = []
    for setting in SETTINGS:
        model = name_run(setting) / "model"
        if model.is_dir():
            [test] = attngeo.mirrors(model).attrs["sign_tests"]
            rows.append(setting | {name: test[name] for name in ("opposite", "alike")})
    return pd.DataFrame(rows).sort_values(KEYS)


def main(text: str) -> None:
    """Train what the table lacks."""
    RUNS.mkdir(parents=True, exist_ok=True)
    for setting in list_missing():
        if setting not in list_missing():  # another process has trained it meanwhile
            continue
        print(setting, flush=True)
        try:
            last, along = train(setting, text)
        except FolderInUseError:  # another process trains it
            continue
        with FileLock(RUNS / "table.lock"):
            add(along, ALONG, ["step", "layer"])
            add(last, TABLE, ["layer"])
    if not list_missing() and not STRANGERS.is_file():
        write_table(measure_strangers().round(5), STRANGERS)
        write_table(measure_signs(), SIGNS)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: train_growths.py WIKITEXT")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    main(str(Path(sys.argv[1]).resolve()))
