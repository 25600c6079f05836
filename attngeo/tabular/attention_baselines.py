"""Other attention models for tables as methods of the experiments: those of pytorch_tabular, with its defaults.

Source: Wibisono and Wang 2023 (arXiv 2307.04057), section 3.2.2: default parameters, batches of 128, up to 200 epochs.
The library holds out a fifth of the training rows for early stopping.
"""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from attngeo.progress import Progress, ProgressCallback
from attngeo.tabular.problems import Answer, Problem

BATCH_SIZE, EPOCHS = 128, 200
RESPONSE = "y"
# Methods → classes of pytorch_tabular.models.
CONFIGS = {
    "category-embedding": "CategoryEmbeddingModelConfig", "ft-transformer": "FTTransformerConfig",
    "tab-transformer": "TabTransformerConfig", "auto-int": "AutoIntConfig", "tabnet": "TabNetModelConfig",
}  # fmt: skip


def answer(name: str, problems: Sequence[Problem], progress: ProgressCallback) -> list[Answer]:
    """The answers of one of these models."""
    answers = []
    for at, ((train, test), seed) in enumerate(problems):
        progress(Progress("fit", name, at, len(problems), "steps"))
        frames = [_make_frame(rows.x, rows.y) for rows in (train, test)]
        with _silence(), tempfile.TemporaryDirectory() as folder:
            model = _make_model(name, list(frames[0].columns[:-1]), folder)
            model.fit(train=frames[0], seed=seed)
            train_y, test_y = (model.predict(frame)[f"{RESPONSE}_prediction"].to_numpy(int) for frame in frames)
        answers.append(Answer(train_y, test_y))
    return answers


def _make_frame(x: np.ndarray, y: np.ndarray) -> pd.DataFrame:
    """Categories as texts: with columns of pandas' categories, the library would write to a copy."""
    return pd.DataFrame(x.astype(str), columns=[f"x{at}" for at in range(x.shape[1])]).assign(**{RESPONSE: y})


def _make_model(name: str, columns: list[str], folder: str) -> Any:
    from pytorch_tabular import TabularModel, models
    from pytorch_tabular.config import DataConfig, OptimizerConfig, TrainerConfig

    return TabularModel(
        data_config=DataConfig(target=[RESPONSE], categorical_cols=columns),
        model_config=getattr(models, CONFIGS[name])(task="classification"),
        optimizer_config=OptimizerConfig(),
        trainer_config=TrainerConfig(
            batch_size=BATCH_SIZE, max_epochs=EPOCHS, accelerator="cpu", progress_bar="none", checkpoints_path=folder,
            trainer_kwargs={"enable_model_summary": False, "default_root_dir": folder},
        ),
        verbose=False, suppress_lightning_logger=True,
    )  # fmt: skip


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """The library prints, logs and warns; nothing of it is about the result."""
    before = logging.root.manager.disable
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)
