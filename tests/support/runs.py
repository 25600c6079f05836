"""Small training runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attngeo.pretrain import TextPretrainOptions

# Smaller than any preset: a step takes milliseconds.
CONFIG: dict[str, Any] = {
    "model_type": "bert", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 64,
}  # fmt: skip


def write_config(folder: Path, **fields: Any) -> Path:
    """A config.json in `folder`: CONFIG with these fields instead."""
    path = folder / "config.json"
    path.write_text(json.dumps(CONFIG | fields), "utf-8")
    return path


def write_text(folder: Path, lines: int = 300) -> Path:
    """A text in which each word determines the next one, so that a model can learn it."""
    words = [f"{a}{b}" for a in "bdgklmnprst" for b in ("a", "e", "i", "o", "u")]
    path = folder / "text.txt"
    text = [" ".join(words[(7 * i + j) % len(words)] for j in range(12)) for i in range(lines)]
    path.write_text("\n".join(text), "utf-8")
    return path


def small_options(folder: Path, **given: Any) -> TextPretrainOptions:
    """Options of a run that takes about a second."""
    fields = {"steps": 20, "batch_size": 8, "grad_accum": 1, "seq_len": 16, "lr": 1e-3, "warmup": 2, "vocab_size": 120,
              "log_every": 5, "save_every": 10, "data": str(write_text(folder))}  # fmt: skip
    return TextPretrainOptions.of(str(write_config(folder)), **(fields | given))
