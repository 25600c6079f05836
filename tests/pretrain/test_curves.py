"""What curves say of runs and of layers, by arithmetic on curves that are made up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from attngeo.pretrain.curves import EVALUATION, RUN_COLUMNS, layer_columns, summarize_layers, summarize_runs
from attngeo.scores.spec import layer_scores, score_names
from attngeo.scores.summary import find_settled


def make_curves(losses: dict[tuple[str, str, int], list[float]], **scores: list[float]) -> pd.DataFrame:
    """A log at every 10 steps. scores: of each layer, "layer_0" …; heads have it plus -0.2, 0 and 0.6."""
    layers = scores or {"layer_0": [0.0] * 9}
    return pd.DataFrame([
        dict(zip(RUN_COLUMNS, run, strict=True))
        | {"step": 10 * log, "stack": "encoder", "layer": int(name[-1]), "head": head, "loss": loss}
        | dict.fromkeys(score_names(), values[log] + (0.0 if head is None else (-0.2, 0.0, 0.6)[head]))
        for run, logged in losses.items() for log, loss in enumerate([np.nan, *logged])
        for name, values in layers.items() for head in (None, 0, 1, 2)
    ]).astype({"head": "Int64"})  # fmt: skip


def test_runs_are_compared_with_the_first_initialisation_of_their_objective_and_seed() -> None:
    curves = make_curves({
        ("mlm", "default", 0): [4.0, 3.0, 2.0, 1.0], ("mlm", "symmetric", 0): [3.0, 0.9, 0.8, 0.7],
        ("clm", "default", 0): [4.0, 3.0, 2.0, 0.5], ("clm", "symmetric", 0): [3.0, 0.9, 0.8, 0.7],
    })  # fmt: skip
    rows = summarize_runs(curves)
    assert rows["steps_to_baseline"].tolist() == [40, 20, 40, pd.NA]
    assert rows["speed_up"].tolist() == [0, 0.5, 0, 0]
    assert rows["final_loss"].tolist() == [1.0, 0.7, 0.5, 0.7]
    assert not {*EVALUATION} & {*rows.columns}
    alone = summarize_runs(curves[curves["init"] == "symmetric"])
    assert alone["speed_up"].tolist() == [0, 0]


def test_the_evaluation_of_images_is_that_of_the_last_step() -> None:
    curves = make_curves({("image", "default", 0): [2.0, 1.0]})
    curves["eval_accuracy"] = np.where(curves["step"] == 20, 0.75, np.nan)
    assert summarize_runs(curves)["eval_accuracy"].tolist() == [0.75]


def test_layers_have_their_last_scores_and_the_steps_at_which_these_settle() -> None:
    early, late = [0.0, 0.5, 0.51, 0.5, 0.5], [0.0, 0.1, 0.5, 0.2, 0.5]
    rows = summarize_layers(make_curves({("mlm", "default", 3): [4.0, 3.0, 2.0, 1.0]}, layer_0=early, layer_1=late))
    assert list(rows.columns) == list(layer_columns())
    assert rows[["layer", "seed"]].to_numpy().tolist() == [[0, 3], [1, 3]]
    for score in score_names():
        assert rows[score].tolist() == [0.5, 0.5]
        assert rows[f"{score}_settled"].tolist() == rows[f"heads_{score}_settled"].tolist() == [10, 40]
        assert rows[f"heads_{score}_lower"].tolist() == pytest.approx([0.4, 0.4])
        assert rows[f"heads_{score}_upper"].tolist() == pytest.approx([0.8, 0.8])


def test_recorded_scores_are_summarised_as_the_others() -> None:
    """Those of layers only over layers."""
    growth, _ = layer_scores()[:2]
    curves = make_curves({("mlm", "default", 3): [2.0, 1.0]}, layer_0=[1.0, 2.0, 4.0], layer_1=[1.0, 4.0, 8.0])
    plain_runs, plain_layers = summarize_runs(curves), summarize_layers(curves)
    curves["stable_rank"] = curves["symmetry"] + 1
    curves[growth] = curves["symmetry"].where(curves["head"].isna())
    runs = summarize_runs(curves)
    assert {*runs.columns} - {*plain_runs.columns} == {
        f"{name}_{quartile}" for name in (growth, "stable_rank", "heads_stable_rank")
        for quartile in ("lower", "median", "upper")
    }  # fmt: skip
    assert runs[f"{growth}_median"].tolist() == [6.0]
    assert runs["heads_stable_rank_median"].tolist() == pytest.approx([7.2])
    layers = summarize_layers(curves)
    assert [name for name in layers.columns if growth in name] == [growth, f"{growth}_settled"]
    assert layers[growth].tolist() == [4.0, 8.0]
    assert layers[f"{growth}_settled"].tolist() == [20, 20]
    assert layers["heads_stable_rank_upper"].tolist() == pytest.approx([5.3, 9.3])
    assert tuple(layers.columns) == layer_columns((growth, "stable_rank"))
    pd.testing.assert_frame_equal(layers[plain_layers.columns], plain_layers)


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ([1.0, 1.0], 0),
        ([0.0, 0.95, 0.5, 0.95, 1.0], 3),  # it came near, and left again
        ([0.0, -0.92, -1.0], 1),
        ([0.0, 0.91, 1.09, 1.0], 1),
        ([0.0, 0.89, 1.0], 2),
        ([0.0, 1.11, 1.0], 2),
        ([0.3, 0.2, 0.0], 2),
        ([np.nan, 0.5, 1.0, np.nan], 2),
        ([np.nan], None),
        ([], None),
    ],
)
def test_a_curve_settles_where_it_stays(values: list[float], step: Any) -> None:
    assert find_settled(pd.Series(values, dtype=float)) == step
    assert find_settled(pd.Series(values, dtype=float) * 7) == step
