"""Curves of training: what their lines are of, and how they differ."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from support.messages import refuses

from attngeo.errors import DataError, UsageError
from attngeo.figures.kinds import PlotOptions
from attngeo.figures.style import DASHES, INITIALISATIONS, OBJECTIVES
from attngeo.figures.training import draw_training, draw_training_layers
from attngeo.scores.spec import layer_scores

SYMMETRY, DIRECTIONALITY = PlotOptions(score="symmetry"), PlotOptions(score="directionality")
LOSS = PlotOptions(score="loss")


def curves(objectives: tuple[str, ...], inits: tuple[str, ...], seeds: int = 3) -> pd.DataFrame:
    """Two layers and a head, three uneven seeds."""
    random = np.random.default_rng(0)
    return pd.DataFrame([
        {"objective": objective, "init": init, "seed": seed, "step": step, "stack": "encoder", "layer": layer,
         "head": head, "symmetry": random.random() ** 3, "directionality": -random.random(),
         "loss": 5 - step / 10 + seed**2}
        for objective in objectives for init in inits for seed in range(seeds) for step in (0, 10)
        for layer in (0, 1) for head in (None, 0)
    ]).astype({"head": "Int64"})  # fmt: skip


def named(figure: object) -> dict[str, object]:
    return {trace.name: trace for trace in figure.data if trace.name}  # type: ignore[attr-defined]


def test_a_line_is_the_median_over_whole_layers_and_seeds_in_a_band_of_quartiles() -> None:
    rows = curves(("mlm",), ("default",))
    upper, lower, line = draw_training(rows, SYMMETRY).data
    layers = rows[rows["head"].isna()].groupby("step")["symmetry"]
    for trace, share in ((lower, 0.25), (line, 0.5), (upper, 0.75)):
        assert list(trace.y) == pytest.approx(layers.quantile(share).tolist())
    assert line.customdata.tolist() == pytest.approx(np.column_stack([lower.y, upper.y]))
    assert lower.fill == "tonexty"
    assert lower.fillcolor.endswith(",0.2)")


def test_a_loss_is_the_mean_over_seeds_in_a_band_of_their_range() -> None:
    rows = curves(("clm",), ("default", "symmetric"))
    line = named(draw_training(rows, LOSS))["symmetric init"]
    assert list(line.y) == pytest.approx([5 + 5 / 3, 4 + 5 / 3])
    assert line.customdata.tolist() == [[5, 9], [4, 8]]
    assert line.line.color == INITIALISATIONS["symmetric"]


@pytest.mark.parametrize(
    ("objectives", "inits", "looks", "details"),
    [
        (("mlm",), ("default",), {"encoder (mlm)": (OBJECTIVES["mlm"], "solid")}, "encoder (mlm), default init, "),
        (
            ("mlm", "clm"), ("default",),
            {"encoder (mlm)": (OBJECTIVES["mlm"], "solid"), "decoder (clm)": (OBJECTIVES["clm"], "solid")},
            "default init, ",
        ),
        (
            ("mlm",), ("default", "symmetric"),
            {f"{init} init": (INITIALISATIONS[init], "solid") for init in ("default", "symmetric")},
            "encoder (mlm), ",
        ),
        (
            ("mlm", "clm"), ("default", "symmetric"),
            {f"{name}, {init} init": (OBJECTIVES[objective], DASHES[i])
             for objective, name in (("mlm", "encoder (mlm)"), ("clm", "decoder (clm)"))
             for i, init in enumerate(("default", "symmetric"))},
            "",
        ),
    ],
)  # fmt: skip
def test_colours_and_dashes_distinguish_runs(
    objectives: tuple[str, ...], inits: tuple[str, ...], looks: dict[str, tuple[str, str]], details: str
) -> None:
    figure = draw_training(curves(objectives, inits), SYMMETRY)
    assert {name: (trace.line.color, trace.line.dash) for name, trace in named(figure).items()} == looks
    assert figure.layout.showlegend is (len(looks) > 1)
    said = figure.layout.title.text.partition("<sup>")[2]
    assert said == f"{details}median and quartiles over 2 layers and 3 seeds</sup>"


def test_runs_with_unlike_numbers_of_seeds_are_counted_apart() -> None:
    rows = curves(("mlm", "clm"), ("default",))
    figure = draw_training(rows[(rows["objective"] == "mlm") | (rows["seed"] == 2)], SYMMETRY)
    assert "and 1 to 3 seeds" in figure.layout.title.text


def test_layers_have_a_line_each_in_a_panel_for_each_run() -> None:
    rows = curves(("mlm", "clm"), ("default", "symmetric"))
    figure = draw_training_layers(rows, DIRECTIONALITY)
    lines = [trace for trace in figure.data if trace.name]
    assert len(lines) == 4 * 2
    assert [each.text for each in figure.layout.annotations[:4]] == [
        "encoder (mlm)<br>default init", "encoder (mlm)<br>symmetric init", "decoder (clm)<br>default init",
        "decoder (clm)<br>symmetric init",
    ]  # fmt: skip
    own = rows.query("objective == 'mlm' and init == 'symmetric' and layer == 1 and step == 10")
    assert lines[3].y[1] == pytest.approx(own[own["head"].isna()]["directionality"].median())
    assert [trace.name for trace in figure.data if trace.showlegend] == ["layer 0", "layer 1"]
    alone = draw_training_layers(
        rows.query("layer == 0 and init == 'default' and objective == 'mlm' and seed == 0"), SYMMETRY
    )
    assert alone.layout.showlegend is False
    assert "<sup>encoder (mlm), default init; points: " in alone.layout.title.text


@pytest.mark.parametrize("score", layer_scores())
def test_a_score_of_layers_has_no_heads_to_draw(score: str) -> None:
    rows = curves(("mlm",), ("default",))
    rows[score] = rows["symmetry"].where(rows["head"].isna())
    drawn = draw_training_layers(rows, PlotOptions(score=score))
    layer = rows[rows["head"].isna() & (rows["layer"] == 1)].groupby("step")[score].median()
    assert list(named(drawn)["layer 1"].y) == pytest.approx(layer.tolist())  # type: ignore[attr-defined]
    with refuses(UsageError, "over", score, "whole layers"):
        draw_training_layers(rows, PlotOptions(score=score, over="heads"))


def test_layers_over_heads_have_a_band_and_a_point_from_which_on_they_change_little() -> None:
    """Quartiles by numpy, and the step at which a median settles.

    That of layer 1 comes within 10% of its last value at step 20, leaves it, and settles at step 40.
    """
    medians = {0: [1.0, 1.0, 1.0, 1.0, 1.0], 1: [0.0, 0.1, 0.5, 0.4, 0.5]}
    rows = pd.DataFrame([
        {"objective": "clm", "init": "default", "seed": 0, "step": 10 * place, "stack": "decoder", "layer": layer,
         "head": head, "symmetry": -9.0 if head is None else median + (head - 1) ** 3, "loss": 1.0}
        for layer, values in medians.items() for place, median in enumerate(values) for head in (None, 0, 1, 3)
    ]).astype({"head": "Int64"})  # fmt: skip
    figure = draw_training_layers(rows, PlotOptions(over="heads"))
    assert "median and quartiles over heads" in figure.layout.title.text
    lines = {trace.name: trace for trace in figure.data if trace.name}
    assert {name: list(trace.y) for name, trace in lines.items()} == {
        f"layer {layer}": values for layer, values in medians.items()
    }
    points = [trace for trace in figure.data if trace.mode == "markers"]
    assert [(trace.x[0], trace.y[0]) for trace in points] == [(0, 1.0), (40, 0.5)]
    bands = [trace for trace in figure.data if trace.legendgroup == "layer 1" and trace.mode == "lines"]
    expected = np.quantile(np.subtract.outer([-1, 0, 8], -np.array(medians[1])), [0.75, 0.25], axis=0)
    assert [list(trace.y) for trace in bands] == [pytest.approx(values.tolist()) for values in expected]
    assert bands[1].fillcolor.endswith(",0.2)")
    with refuses(DataError, "over"):
        draw_training_layers(rows[rows["head"].isna()], PlotOptions(over="heads"))


def test_a_missing_score_settles_nowhere() -> None:
    rows = curves(("mlm",), ("default",)).assign(symmetry=np.nan)
    assert not [trace for trace in draw_training_layers(rows, SYMMETRY).data if trace.mode == "markers"]


def test_names_of_runs_are_shown_letter_for_letter() -> None:
    nasty = '<a href="https://evil.example">x</a>%{x}'
    one, several = curves((nasty,), ("a", nasty)), curves((nasty, "clm"), (nasty,))
    figures = [draw(rows, SYMMETRY) for rows in (one, several) for draw in (draw_training, draw_training_layers)]
    for figure in (*figures, draw_training(one, LOSS)):
        text = figure.to_json()
        assert "<a " not in text.replace("\\u003c", "<")
        assert "%{x}" not in text.replace("step %{x:,}", "").replace("%{x:,}", "")


def test_losses_of_several_objectives_are_refused() -> None:
    with pytest.raises(UsageError, match="mlm, clm"):
        draw_training(curves(("mlm", "clm"), ("default",)), LOSS)
