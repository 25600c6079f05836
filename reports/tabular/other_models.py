"""The five attention models of Table 2 of Wibisono and Wang 2023, by pytorch_tabular with its defaults, on auto-mpg.

    python -m venv other && other/bin/pip install -r reports/tabular/requirements.txt
    other/bin/python reports/tabular/other_models.py auto-mpg.data --seeds 10 > others.csv

It needs an environment of its own, because pytorch_tabular requires pandas < 3 and attngeo requires pandas 3. The
division of the cars and the published numbers are those of attngeo's source beside it.
Source: Wibisono and Wang 2023 (arXiv 2307.04057), section 3.2.2: default parameters, batches of 128, up to 200 epochs.
The library holds out a fifth of the training rows for early stopping.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import logging
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[2]))

from attngeo.papers.wibisono2023.data import load_auto_mpg
from attngeo.papers.wibisono2023.options import FIRST_SEED

BATCH_SIZE, EPOCHS = 128, 200
RESPONSE = "y"
# Methods → classes of pytorch_tabular.models.
CONFIGS = {
    "category-embedding": "CategoryEmbeddingModelConfig", "ft-transformer": "FTTransformerConfig",
    "tab-transformer": "TabTransformerConfig", "auto-int": "AutoIntConfig", "tabnet": "TabNetModelConfig",
}  # fmt: skip
PUBLISHED = Path(__file__).parents[2] / "attngeo/papers/wibisono2023/published_auto_mpg.csv"
COLUMNS = ("data", "method", "seed", "accuracy", "mse", "published_accuracy", "published_mse")


def make_frame(x: np.ndarray, y: np.ndarray) -> pd.DataFrame:
    """Categories as texts: with columns of pandas' categories, the library would write to a copy."""
    return pd.DataFrame(x.astype(str), columns=[f"x{at}" for at in range(x.shape[1])]).assign(**{RESPONSE: y})


def make_model(name: str, columns: Sequence[str], folder: str) -> Any:
    """An untrained model of the library."""
    from pytorch_tabular import TabularModel, models
    from pytorch_tabular.config import DataConfig, OptimizerConfig, TrainerConfig

    return TabularModel(
        data_config=DataConfig(target=[RESPONSE], categorical_cols=list(columns)),
        model_config=getattr(models, CONFIGS[name])(task="classification"),
        optimizer_config=OptimizerConfig(),
        trainer_config=TrainerConfig(
            batch_size=BATCH_SIZE, max_epochs=EPOCHS, accelerator="cpu", progress_bar="none", checkpoints_path=folder,
            trainer_kwargs={"enable_model_summary": False, "default_root_dir": folder},
        ),
        verbose=False, suppress_lightning_logger=True,
    )  # fmt: skip


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """The library prints, logs and warns; nothing of it is about the result."""
    logging.disable(logging.WARNING)
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


def main() -> None:
    """Write a row for each method and seed to stdout, as `attngeo tabular auto-mpg` does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="UCI's auto-mpg.data, or a CSV file with the same columns")
    parser.add_argument("--seeds", type=int, default=10, help=f"number of seeds, from {FIRST_SEED} on")
    parser.add_argument("--methods", default=",".join(CONFIGS), help="for example tabnet,auto-int")
    options = parser.parse_args()
    train, test = (make_frame(rows.x, rows.y) for rows in load_auto_mpg(options.data).table)
    published = pd.read_csv(PUBLISHED).set_index("method")
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(COLUMNS)
    for name in options.methods.split(","):
        of_paper = published.loc[name, ["accuracy", "mse"]]
        for seed in range(FIRST_SEED, FIRST_SEED + options.seeds):
            with silence(), tempfile.TemporaryDirectory() as folder:
                model = make_model(name, list(train.columns[:-1]), folder)
                model.fit(train=train, seed=seed)
                errors = model.predict(test)[f"{RESPONSE}_prediction"].to_numpy(int) - test[RESPONSE].to_numpy()
            scores = float((errors == 0).mean()), float((errors**2).mean())
            writer.writerow(["auto-mpg", name, seed, *scores, *of_paper])


if __name__ == "__main__":
    main()
