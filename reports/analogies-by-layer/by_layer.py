"""Word analogies by the hidden states of single words, layer by layer, in three models; see README.md beside it.

    python reports/analogies-by-layer/by_layer.py MODELS

MODELS: the folder that reports/pretrained/fetch.py wrote. Writes accuracy.csv (each layer) and comparisons.csv (each
layer against the table of its model) beside this file. Settings whose rows are there are not measured again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

import attngeo

HERE = Path(__file__).parent
ACCURACY = HERE / "accuracy.csv"
COMPARISONS = HERE / "comparisons.csv"
MINILM = "all-MiniLM-L6-v2"
SMOLLM2 = "SmolLM2-135M-Instruct"
WHISPER = "whisper-base"
# The token with which texts begin, by the header of SmolLM2's file. Its tokeniser does not put it there.
START = "<|im_start|>"
# Answers of the settings of frequent words: the first ones of the vocabulary, whose order is that of merges.
FREQUENT = 10_000
# All layers of SmolLM2 are kept of one run.
MEMORY = "4GB"
DIGITS = "%.6g"


class Setting(NamedTuple):
    """What is measured.

    Attributes:
        model: its name in the tables.
        name: of the setting, in the tables.
        layers: all layers of the model; None for its table of vectors alone.
        options: further options of `attngeo.analogy`.
    """

    model: str
    name: str
    layers: str | None
    options: dict[str, Any]


ALL = {MINILM: "0-5", WHISPER: "0-5", SMOLLM2: "0-29"}
SETTINGS = (
    *(Setting(model, "all words", layers, {}) for model, layers in ALL.items()),
    *(Setting(model, "table, unit vectors", None, {"normalize": True}) for model in ALL),
    *(Setting(model, "table, centred", None, {"center": True}) for model in ALL),
    Setting(SMOLLM2, "frequent words", ALL[SMOLLM2], {"limit": FREQUENT}),
    Setting(SMOLLM2, "frequent words, start token", ALL[SMOLLM2], {"limit": FREQUENT, "first_token": START}),
    Setting(WHISPER, "all words, centred", ALL[WHISPER], {"center": True}),
    Setting(MINILM, "all words, centred", ALL[MINILM], {"center": True}),
)


def measure(setting: Setting, path: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The accuracies of a setting in each layer, and their differences from the table: by type, and overall."""
    result = attngeo.analogy(path, layers=setting.layers, memory=MEMORY, **setting.options)
    accuracies = _tidy(result.rows, setting)
    if setting.layers is None:
        accuracies.insert(2, "layer", -1)
    return accuracies, _tidy(result.comparisons, setting)


def _tidy(table: pd.DataFrame, setting: Setting) -> pd.DataFrame:
    """The rows of types and of all questions, under the names of the model and the setting."""
    rows = table[table["level"] != "category"].drop(columns=["revision", "other", "other_revision"], errors="ignore")
    rows = rows.assign(model=setting.model)
    rows.insert(1, "setting", setting.name)
    return rows


def append(rows: pd.DataFrame, path: Path) -> None:
    """Write rows behind those of a file."""
    before = [pd.read_csv(path)] if path.is_file() else []
    pd.concat([*before, rows], ignore_index=True).to_csv(path, index=False, float_format=DIGITS)


def list_measured() -> set[tuple[str, str]]:
    """The models and settings of the rows that are there."""
    if not ACCURACY.is_file():
        return set()
    rows = pd.read_csv(ACCURACY)
    return set(zip(rows["model"], rows["setting"], strict=True))


if __name__ == "__main__":
    [models] = sys.argv[1:]
    paths = {
        MINILM: "demo:minilm",
        SMOLLM2: str(Path(models) / f"{SMOLLM2}.Q4_1.gguf"),
        WHISPER: str(Path(models) / WHISPER),
    }
    measured = list_measured()
    for setting in SETTINGS:
        if (setting.model, setting.name) in measured:
            continue
        accuracies, differences = measure(setting, paths[setting.model])
        append(differences, COMPARISONS)
        append(accuracies, ACCURACY)
        print(f"{setting.model}, {setting.name}", flush=True)
