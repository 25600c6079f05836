"""Which scores of cross-attention rank the heads of Whisper that align words with sound; see README.md beside it.

python reports/circuits/whisper.py    # after reports/pretrained/fetch.py; a minute on one core
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

import attngeo
from attngeo.scores.spec import SCORES

HERE = Path(__file__).parent
WHISPER = HERE.parents[1] / "build/pretrained/whisper-base"
# (layer, head) of whisper-base, by the timing of words that they give.
# Source: `alignment_heads`, https://huggingface.co/openai/whisper-base/blob/main/generation_config.json
ALIGNING = {(3, 1), (4, 2), (4, 3), (4, 7), (5, 1), (5, 2), (5, 4), (5, 6)}
# The layers that have such heads.
LATE = (3, 4, 5)
# Random choices of heads.
DRAWS = 400
MEASURES = (*SCORES, "frobenius_norm", "column_spread", "row_spread")


def rank(values: pd.Series, aligning: pd.Series) -> float:
    """The area under the ROC curve: the share of pairs of an aligning head and another one with the larger value."""
    of_aligning = values[aligning].to_numpy()
    of_others = values[~aligning].to_numpy()
    larger: float = np.greater.outer(of_aligning, of_others).mean()
    return larger


def rank_all(heads: pd.DataFrame, aligning: pd.Series) -> pd.Series:
    """The area of each score of each circuit. aligning: whether a head aligns, by (layer, head)."""
    areas = {}
    for circuit, rows in heads.groupby("circuit"):
        places = pd.MultiIndex.from_frame(rows[["layer", "head"]].astype(int))
        is_aligning = pd.Series(aligning.reindex(places).to_numpy(dtype=bool), rows.index)
        for score in MEASURES:
            areas[circuit, score] = rank(rows[score], is_aligning)
    return pd.Series(areas)


def main() -> None:
    """Write whisper.csv: a row for each circuit and score, with the areas over all heads, and over those of LATE.

    The last row has the distance from 0.5 that the farthest of all scores exceeds for 5% of random choices of as many
    heads.
    """
    scores = attngeo.score(WHISPER, stack="cross", per_head=True, scores="all", circuit="both", fresh=True)
    heads = scores[scores["head"].notna()]
    draw = np.random.default_rng(0)
    columns = {}
    for name, chosen in {"all_layers": heads, "late_layers": heads[heads["layer"].isin(LATE)]}.items():
        places = sorted(set(zip(chosen["layer"], chosen["head"], strict=True)))
        aligning = pd.Series([place in ALIGNING for place in places], pd.MultiIndex.from_tuples(places))
        areas = rank_all(chosen, aligning)
        farthest = []
        for _ in range(DRAWS):
            shuffled = pd.Series(draw.permutation(aligning.to_numpy()), aligning.index)
            farthest.append((rank_all(chosen, shuffled) - 0.5).abs().max())
        areas["both", "farthest by chance"] = np.quantile(farthest, 0.95)
        columns[name] = areas
    table = pd.DataFrame(columns).rename_axis(["circuit", "score"]).reset_index()
    table.to_csv(HERE / "whisper.csv", index=False, float_format="%.3f")


if __name__ == "__main__":
    main()
