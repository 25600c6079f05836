"""What came of a run, and how it was made: `summary.json`."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import torch

from attngeo.pretrain.callback import AttentionGeometryCallback
from attngeo.pretrain.settings import Settings
from attngeo.pretrain.tasks import Task
from attngeo.pretrain.trainer import RunTrainer
from attngeo.provenance import machine, software


def summarise(
    settings: Settings, task: Task, trainer: RunTrainer, geometry: AttentionGeometryCallback
) -> dict[str, Any]:
    """Losses, scores at the start and the end, sizes, and what trained where."""
    scores = geometry.frame
    losses = scores[["step", "loss"]].dropna().drop_duplicates()
    world = trainer.args.world_size
    sequences = trainer.state.global_step * settings.batch_size * settings.grad_accum * world
    return {
        "settings": asdict(settings) | {"steps": task.steps, "warmup": task.warmup},
        "final_loss": float(losses["loss"].iloc[-1]), "first_loss": float(losses["loss"].iloc[0]),
        "start": spread_of(scores, 0), "end": spread_of(scores, trainer.state.global_step),
        "parameters": sum(parameter.numel() for parameter in task.model.parameters()),
        "d_model": geometry.d_model, "changed_at_init": task.changed, "data": task.about,
        "sequences": sequences, "seconds": round(trainer.seconds, 1),
        "processes": world, "device": str(trainer.args.device), "threads": torch.get_num_threads(),
        "precision": {"no": "fp32"}.get(trainer.args.mixed_precision, trainer.args.mixed_precision),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"), **software(), **machine(),
        **task.rates(sequences, trainer.seconds),
    }  # fmt: skip


def spread_of(geometry: pd.DataFrame, step: int) -> dict[str, Any]:
    """Quartiles of both scores at one step, over whole layers and over heads: [lower, median, upper]."""
    rows = geometry[geometry["step"] == step]
    heads = rows["head"].notna()
    return {
        kind: {
            score: [round(float(rows.loc[chosen, score].quantile(share)), 6) for share in (0.25, 0.5, 0.75)]
            for score in ("symmetry", "directionality")
        }
        for kind, chosen in (("layers", ~heads), ("heads", heads))
    }
