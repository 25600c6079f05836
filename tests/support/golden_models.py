"""Saved models of a released format, with their predictions: tests/golden/<name>. Run this file to write them anew.

    PYTHONPATH=tests .venv/bin/python tests/support/golden_models.py

A later version must read the files as they are. Write them anew for a new format only, and keep the old ones beside it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from attngeo.estimators import AttentionClassifier, ExponentialFamilyAttention
from support.sequences import make_efa

GOLDEN = Path(__file__).parents[1] / "golden"
ROWS, NUMBERS = "rows.json", "predictions.json"
BASKETS = pd.DataFrame(
    {
        "sequence": ["a", "a", "a", "b", "b", "b", "b", "c", "c"], "position": [0, 1, 2, 0, 1, 2, 3, 0, 1],
        "item": ["tea", "milk", "bread", "milk", "tea", "bread", "milk", "bread", "tea"],
        "value": [1.5, 0.25, -2.0, 1.0, 0.5, 0.0, 3.0, -1.0, 2.0], "x": [0.0, 1.0, 2.0, 0.5, 0.1, 2.5, 1.5, 3.0, 0.2],
        "before": [1.0, 0.5, -1.5, 0.5, 1.0, 0.0, 2.0, -0.5, 1.0],
    }
)  # fmt: skip
EFA: dict[str, dict[str, Any]] = {
    "efa-items": {"part": "items", "n_layers": 2, "norm": True, "feed_forward": 3},
    "efa-values": {
        "part": "values", "direction": "uni", "coordinates": ("x",), "lags": ("before",), "n_layers": 1, "join": 4,
        "output_units": (3,),
    },
    "efa-mixed": {
        "part": "both", "value": ("count:poisson", "value:gaussian"), "covariates": ("shop", "x", "day:time"),
        "n_layers": 1,
    },
}  # fmt: skip
MIXED = BASKETS.assign(
    count=[1, 0, None, 2, 3, 1, 0, 4, 2],
    shop=["near", "near", "near", *["far"] * 4, "near", "near"],
    day=[f"2024-01-0{day}" for day in (1, 1, 1, 2, 2, 2, 2, 6, 6)],
)
CELLS = pd.DataFrame(
    {
        "size": ["s", "m", None, "l", "m", "s"] * 4, "age": [1, 2, 3, 1, 2, 3] * 4,
        "mass": [0.5 * number for number in range(24)], "é_b": ["<b>", "a,b", "a\nb", "a,b", "<b>", "a\nb"] * 4,
    }
)  # fmt: skip
LABELS = ["no", "yes", "no", "maybe", "yes", "no"] * 4
TABULAR = "tabular"


def read_rows(name: str) -> pd.DataFrame:
    """The rows that the predictions of a golden model are about."""
    return pd.DataFrame(json.loads((GOLDEN / name / ROWS).read_text("utf-8")))


def predict(name: str, rows: pd.DataFrame) -> dict[str, list[Any]]:
    """What the golden model says about rows: numbers by name, in the order of the rows."""
    folder = GOLDEN / name
    if name == TABULAR:
        classifier = AttentionClassifier.load(folder)
        return {"probabilities": classifier.predict_proba(rows).ravel().tolist()}
    model = ExponentialFamilyAttention.load(folder)
    means = model.predict_proba(rows) if model.part_ == "items" else model.predict(rows).select_dtypes("number")
    return {"log_prob": model.log_prob(rows).tolist(), "means": means.to_numpy().ravel().tolist()}


def assert_golden(name: str) -> None:
    """A golden model says of its rows what it said when it was saved; efa computes in single precision."""
    said = json.loads((GOLDEN / name / NUMBERS).read_text("utf-8"))
    found = predict(name, read_rows(name))
    assert found.keys() == said.keys()
    for key, numbers in said.items():
        np.testing.assert_allclose(found[key], numbers, rtol=1e-4, atol=1e-5, err_msg=f"{name}: {key}")


def main() -> None:
    """Fit, save and ask all models."""
    sizes = {"n_heads": 2, "head_size": 2, "feed_forward": 3, "n_bins": 3}
    classifier = AttentionClassifier(**sizes, max_epochs=60, learning_rate=0.02, random_state=0, device="cpu")
    classifier.fit(CELLS, np.array(LABELS)).save(GOLDEN / TABULAR)
    _write(TABULAR, CELLS[:8])
    for name, options in EFA.items():
        given: dict[str, Any] = {"width": 4, "max_epochs": 40, "learning_rate": 0.03, "validation_fraction": 0.0}
        rows = MIXED if options["part"] == "both" else BASKETS
        make_efa(**given | options, device="cpu").fit(rows).save(GOLDEN / name)
        _write(name, rows)


def _write(name: str, rows: pd.DataFrame) -> None:
    columns = rows.astype(object).where(rows.notna(), None).to_dict("list")
    for file, content in ((ROWS, columns), (NUMBERS, predict(name, rows))):
        (GOLDEN / name / file).write_text(json.dumps(content, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
