"""What makes symmetric initialisation faster, and what symmetry does as a constraint: trainings of small BERTs.

    python reports/symmetric-init/experiments.py factors WIKITEXT          # 3 to 5 minutes for each run on a core
    python reports/symmetric-init/experiments.py factors WIKITEXT &        # a second process shares the work
    python reports/symmetric-init/experiments.py masked WIKITEXT
    python reports/symmetric-init/experiments.py constraints WIKITEXT

WIKITEXT is a folder with WikiText-2's validation and test texts, as for build.sh. Each experiment writes a table beside
this file (factors.parquet and so on), which grows by one run after the other: a row for each layer at each log. Runs in
the table are not repeated, so the same command resumes after an interruption.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from filelock import FileLock

from attngeo.errors import FolderInUseError
from attngeo.pretrain import make_options
from attngeo.pretrain.runs import run_or_read
from attngeo.tables.write import write_table

HERE = Path(__file__).resolve().parent
RUNS = HERE / "runs"
SEEDS = range(3)
# The options of build.sh, with fewer steps: fixed before the first run.
STEPS = 1_200
BASE: dict[str, Any] = {
    "vocab_size": 1024, "batch_size": 64, "grad_accum": 1, "seq_len": 32, "lr": 2e-3, "warmup": 200,
    "weight_decay": 0.01, "log_every": 50, "save_every": 1000, "precision": "fp32",
}  # fmt: skip
WIDTH = 128
# The standard deviation of all weights in bert-4x128.json.
DEFAULT = 0.088
# How much larger the query, key and value weights of the authors' symmetric start are in their model of 4 layers.
RATIO = 1.8
# The size of queries and keys in that model by default: BERT's 0.02 at a width of 256, for a width of 128.
PAPER_DEFAULT = 0.02 * (256 / WIDTH) ** 0.5
LAMBDAS = (0.1, 1.0, 10.0)
# The columns that tell the runs of an experiment apart.
KEYS = {
    "factors": ["base", "symmetric", "query_key", "value", "biases", "seed"],
    "masked": ["init", "seed"],
    "constraints": ["objective", "constraint", "seed"],
}


def list_factors() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Settings and options of each run: half of all 16 combinations of four factors, from two sizes of the start.

    The half is symmetric·query_key·value·biases = +1, where a factor counts as −1 or +1: it estimates the four effects
    separately. From the size of this folder's models one seed shows enough: with larger weights they hardly learn.
    """
    for base, seeds in ((DEFAULT, SEEDS[:1]), (PAPER_DEFAULT, SEEDS)):
        for seed, chosen in product(seeds, product((0, 1), repeat=4)):
            if sum(chosen) % 2 == 0:
                yield _make_factors(base, chosen, seed)


def _make_factors(base: float, chosen: tuple[int, ...], seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    symmetric, query_key, value, biases = chosen
    setting = {
        "base": round(base, 4), "symmetric": symmetric, "query_key": query_key, "value": value, "biases": biases,
        "seed": seed,
    }  # fmt: skip
    options: dict[str, Any] = {"init": "symmetric" if symmetric else "default", "steps": STEPS, "seed": seed}
    if base != DEFAULT or query_key or value:
        q = base * (RATIO if query_key else 1)
        options["init_std"] = (q, q, base * (RATIO if value else 1))
    if biases:
        options["init_bias"] = base * RATIO
    return setting, options


def list_masked() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Decoders that read masked inputs; build.sh trains them on whole inputs with the same options."""
    for seed in SEEDS:
        options = {"objective": "clm", "masked_decoder": True, "steps": 3_000, "seed": seed}
        yield {"init": "default", "seed": seed}, options


def list_constraints() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """No constraint, one matrix for queries and keys, and three penalties; encoders and decoders."""
    constraints: dict[str, dict[str, Any]] = {"none": {}, "tied": {"tie_query_key": True}}
    constraints |= {f"penalty {weight:g}": {"symmetry_penalty": weight} for weight in LAMBDAS}
    for seed, objective, (constraint, options) in product(SEEDS, ("mlm", "clm"), constraints.items()):
        setting = {"objective": objective, "constraint": constraint, "seed": seed}
        yield setting, {"objective": objective, "steps": STEPS, "seed": seed, **options}


EXPERIMENTS = {"factors": list_factors, "masked": list_masked, "constraints": list_constraints}


def main(experiment: str, text: str) -> None:
    """Train what the table lacks, and add it to the table."""
    table = HERE / f"{experiment}.parquet"
    folders = RUNS / experiment
    folders.mkdir(parents=True, exist_ok=True)
    for setting, options in EXPERIMENTS[experiment]():
        if _has(table, setting):
            continue
        name = "-".join(str(value).replace(" ", "") for value in setting.values())
        print(f"{experiment}: {setting}", flush=True)
        try:
            chosen = make_options(str(HERE / "bert-4x128.json"), data=text, **BASE, **options)
            trained = run_or_read(chosen, folders / name)
        except FolderInUseError:  # another process trains it
            continue
        with FileLock(folders / "table.lock"):
            _add(table, setting, trained.rows)


def _has(table: Path, setting: dict[str, Any]) -> bool:
    """Whether the table has the rows of a run."""
    if not table.is_file():
        return False
    rows = pd.read_parquet(table)
    return bool((rows[[*setting]] == pd.Series(setting)).all(axis=1).any())


def _add(table: Path, setting: dict[str, Any], rows: pd.DataFrame) -> None:
    """Add the rows of a run to the table: its whole layers at each log."""
    rows = rows[rows["head"].isna()]
    rows = rows[["step", "layer", "symmetry", "directionality", "loss"]].assign(**setting)
    rows = rows[[*setting, "step", "layer", "symmetry", "directionality", "loss"]]
    if table.is_file():
        rows = pd.concat([pd.read_parquet(table), rows])
    rows = rows.drop_duplicates([*setting, "step", "layer"]).sort_values([*setting, "step", "layer"], ignore_index=True)
    write_table(rows, table)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in EXPERIMENTS:
        sys.exit(f"usage: experiments.py {'|'.join(EXPERIMENTS)} WIKITEXT")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    main(sys.argv[1], str(Path(sys.argv[2]).resolve()))
