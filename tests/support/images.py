"""Small images and small runs on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from attngeo.pretrain import ImagePretrainOptions

VIT: dict[str, Any] = {
    "model_type": "vit", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
    "image_size": 16, "patch_size": 4,
}  # fmt: skip


def write_images(folder: Path, labels: str = "ab", count: int = 6) -> Path:
    """PNGs of several sizes and modes, in a sub-folder for each label."""
    random = np.random.default_rng(0)
    for label in labels:
        (folder / label).mkdir(parents=True)
        for number in range(count):
            values = random.integers(0, 255, (20 + number, 30 - number, 3), dtype=np.uint8)
            Image.fromarray(values).convert(("RGB", "L", "RGBA")[number % 3]).save(folder / label / f"{number}.png")
    return folder


def write_vit_config(folder: Path, config: dict[str, Any] = VIT) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return str(path)


def small_image_options(folder: Path, *, config: dict[str, Any] = VIT, **given: Any) -> ImagePretrainOptions:
    """Options of a run of milliseconds a step."""
    fields = {"data": "digits", "steps": 4, "warmup": 1, "batch_size": 4, "lr": 1e-3, "log_every": 2,
              "save_every": 100}  # fmt: skip
    return ImagePretrainOptions.of(write_vit_config(folder, config), **(fields | given))
