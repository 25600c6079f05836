"""The numbers that the paper prints: Wibisono and Wang 2023, Table 3, over 9,522 questions that all its models know."""

from __future__ import annotations

from typing import Any

SOURCE = "paper, Table 3"
# Questions asked and known, by type; the two types make the whole.
COUNTS = {"semantic": (8869, 2278), "syntactic": (10675, 7244), "overall": (19544, 9522)}
# Model → accuracy and mean cosine of target and answer, by type.
TABLE_3 = {
    "BERT": {"semantic": (0.641, 0.500), "syntactic": (0.754, 0.610), "overall": (0.727, 0.584)},
    "GloVe": {"semantic": (0.759, 0.600), "syntactic": (0.692, 0.610), "overall": (0.708, 0.607)},
    "CBOW": {"semantic": (0.234, 0.504), "syntactic": (0.667, 0.582), "overall": (0.563, 0.564)},
}


def published_rows() -> list[dict[str, Any]]:
    """Table 3 as rows of the results' table; what it does not print is missing."""
    return [
        {
            "model": f"{model} ({SOURCE})", "questions": "published",
            "level": "overall" if name == "overall" else "type", "name": name,
            "asked": COUNTS[name][0], "known": COUNTS[name][1], "accuracy": accuracy, "mean_cosine": cosine, "note": "",
        }
        for model, values in TABLE_3.items()
        for name, (accuracy, cosine) in values.items()
    ]  # fmt: skip
