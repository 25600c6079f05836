"""The result of a run and how it was made: `summary.json`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pandas as pd
import torch

from attngeo.pretrain.callback import AttentionGeometryCallback
from attngeo.pretrain.options import PretrainOptions
from attngeo.pretrain.tasks import TrainingTask
from attngeo.pretrain.trainer import RunTrainer
from attngeo.provenance import machine, software
from attngeo.scores.summary import spread_of

DIGITS = 6


def summarise_run(
    options: PretrainOptions, task: TrainingTask, trainer: RunTrainer, geometry: AttentionGeometryCallback
) -> dict[str, Any]:
    """Losses, statistics of the scores at the start and at the end, sizes, data, software and hardware."""
    scores = geometry.frame
    losses = scores[["step", "loss"]].dropna().drop_duplicates()
    world = trainer.args.world_size
    sequences = trainer.state.global_step * options.batch_size * options.grad_accum * world
    return {
        "settings": dict(options) | {"steps": task.steps, "warmup": task.warmup},
        "final_loss": float(losses["loss"].iloc[-1]), "first_loss": float(losses["loss"].iloc[0]),
        "start": spread_at(scores, 0), "end": spread_at(scores, trainer.state.global_step),
        "parameters": sum(parameter.numel() for parameter in task.model.parameters()),
        "d_model": geometry.d_model, "changed_at_init": task.changed, "data": task.about,
        "sequences": sequences, "seconds": round(trainer.seconds, 1),
        "processes": world, "device": str(trainer.args.device), "threads": torch.get_num_threads(),
        "precision": {"no": "fp32"}.get(trainer.args.mixed_precision, trainer.args.mixed_precision),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"), **software(), **machine(),
        **task.count_rates(sequences, trainer.seconds),
    }  # fmt: skip


def spread_at(geometry: pd.DataFrame, step: int) -> dict[str, float]:
    """Every statistic of the scores at one step, by name, rounded to six digits: see `attngeo.scores.summary`."""
    spread = spread_of(geometry[geometry["step"] == step])
    return {name: round(value, DIGITS) for name, value in spread.items()}
