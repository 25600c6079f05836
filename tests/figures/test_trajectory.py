"""Figures of scores along a training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.messages import refuses

import attngeo
from attngeo.errors import DataError, UsageError
from attngeo.figures.kinds import PlotOptions
from attngeo.figures.style import MODEL_COLOURS, MOST_MODELS_TOGETHER, ROLES
from attngeo.figures.trajectory import choose_step_ticks, draw_trajectory, place_steps
from attngeo.scores.trajectory import find_departures

STEPS = (1000, 0, 1, 100)
LAYERS, HEADS = PlotOptions(), PlotOptions(over="heads")


def scores(models: tuple[str, ...] = ("org/a",), steps: tuple[int, ...] = STEPS, d_model: int = 64) -> pd.DataFrame:
    """Four layers and two heads; symmetry grows with the step, and directionality does not."""
    random = np.random.default_rng(0)
    return pd.DataFrame([
        {"model": f"{model}@step{step}", "stack": "decoder", "layer": layer, "head": head, "d_model": d_model,
         "symmetry": 0.02 * random.random() + min(step, 1000) / 2000, "directionality": 0.1 * random.random()}
        for model in models for step in steps for layer in range(4) for head in (None, 0, 1)
    ]).astype({"head": "Int64"})  # fmt: skip


def lines(figure: Any) -> list[Any]:
    return [trace for trace in figure.data if trace.name]


def rings(figure: Any) -> list[Any]:
    return [trace for trace in figure.data if trace.marker.symbol == "circle-open"]


@pytest.mark.parametrize("options", [LAYERS, HEADS], ids=["layers", "heads"])
def test_each_score_is_a_median_in_quartiles_in_a_panel_of_its_own(options: PlotOptions) -> None:
    rows = scores()
    figure = draw_trajectory(rows, options)
    chosen = rows[rows["head"].notna() == (options.over == "heads")]
    for line, score, axis in zip(lines(figure), ("symmetry", "directionality"), ("y", "y2"), strict=True):
        of_step = [chosen.loc[chosen["model"] == f"org/a@step{step}", score] for step in sorted(STEPS)]
        assert line.yaxis == axis
        assert list(line.y) == pytest.approx([values.median() for values in of_step])
        assert list(line.x)[1:] == [1, 100, 1000]
        lower, upper, steps = zip(*line.customdata, strict=True)
        assert list(steps) == [0, 1, 100, 1000]
        for bounds, share in ((lower, 0.25), (upper, 0.75)):
            assert list(bounds) == pytest.approx([values.quantile(share) for values in of_step])
        bands = [trace for trace in figure.data if trace.yaxis == axis and trace.mode == "lines"]
        assert [list(trace.y) for trace in bands] == [pytest.approx(list(upper)), pytest.approx(list(lower))]
        assert list(bands[0].x) == list(line.x)
    assert f"over {options.over};" in figure.layout.title.text


def test_step_0_is_left_of_the_others_and_has_its_tick() -> None:
    figure = draw_trajectory(scores(), LAYERS)
    axis = figure.layout.xaxis2
    place = lines(figure)[0].x[0]
    assert axis.type == "log"
    assert 0 < place < 1
    assert (axis.tickvals[0], axis.ticktext[0]) == (place, "0")
    assert dict(zip(axis.ticktext, axis.tickvals, strict=True))["1,000"] == 1000
    assert "step 0 is at the left end" in figure.layout.title.text
    without = draw_trajectory(scores(steps=(1, 10, 100)), LAYERS)
    assert "0" not in without.layout.xaxis2.ticktext
    assert "step 0" not in without.layout.title.text


@pytest.mark.parametrize(
    ("steps", "ticks"),
    [
        ([0], [0]),
        ([0, 7], [0, 7]),
        ([512], [512]),
        ([1, 2, 4, 8, 16, 32, 64, 128], [1, 10, 100]),
        ([0, 1, 143_000], [0, 1, 10, 100, 1000, 10_000, 100_000]),
        ([10, 20, 60], [10, 20, 50]),
        ([1000, 1500, 2000, 2600], [1000, 1500, 2000, 2600]),
        ([*range(1000, 1100, 5)], [1000, 1015, 1030, 1045, 1060, 1075, 1090]),
    ],
)
def test_ticks_of_steps_are_few_and_round(steps: list[int], ticks: list[int]) -> None:
    places = place_steps(reversed(steps))
    chosen = choose_step_ticks(places)
    assert chosen["ticktext"] == [f"{tick:,}" for tick in ticks]
    assert chosen["tickvals"] == sorted(chosen["tickvals"])  # type: ignore[type-var]
    assert list(places) == steps


def test_a_ring_is_where_the_median_leaves_the_chance_band() -> None:
    rows = scores()
    figure = draw_trajectory(rows, LAYERS)
    departures = find_departures(rows).set_index("score")
    assert departures["step"].isna().tolist() == [False, True]
    (ring,) = rings(figure)
    step = departures.loc["symmetry", "step"]
    assert (list(ring.x), list(ring.text), ring.yaxis) == ([step], [f"{step:,}"], "y")
    assert ring.y[0] == pytest.approx(rows.query(f"model == 'org/a@step{step}' and head.isna()")["symmetry"].median())
    of_symmetry, of_directionality = figure.layout.shapes
    # Means 1/n and 0, standard deviations √2/n and 3.4/√n of n = 64.
    assert (of_symmetry.yref, of_symmetry.layer) == ("y", "below")
    assert (of_symmetry.y0, of_symmetry.y1) == pytest.approx(((1 - 2 * 2**0.5) / 64, (1 + 2 * 2**0.5) / 64))
    assert (of_directionality.yref, of_directionality.layer) == ("y2", "below")
    assert (of_directionality.y0, of_directionality.y1) == pytest.approx((-2 * 3.4 / 8, 2 * 3.4 / 8))
    assert "ring:" in figure.layout.title.text
    assert "ring:" not in draw_trajectory(rows.assign(symmetry=0.0), LAYERS).layout.title.text


def test_a_score_without_a_chance_level_has_neither_band_nor_ring() -> None:
    figure = draw_trajectory(scores().assign(stable_rank=5.0), LAYERS)
    assert [axis.title.text for axis in figure.select_yaxes()] == ["symmetry", "directionality", "stable rank"]
    assert len(figure.layout.shapes) == 2
    assert figure.layout.height > 600
    assert len([*draw_trajectory(scores().drop(columns="directionality"), LAYERS).select_yaxes()]) == 1
    assert [axis.title.text for axis in figure.select_xaxes()] == [None, None, "step"]


def test_models_and_stacks_are_told_apart_and_other_revisions_are_named() -> None:
    rows = pd.concat([scores(("org/a", "org/b")), scores(("org/c",), d_model=32), scores().assign(model="org/a@main")])
    figure = draw_trajectory(rows, LAYERS)
    named = [line for line in lines(figure) if line.showlegend]
    assert [line.name for line in named] == ["org/a", "org/b", "org/c"]
    assert [line.line.color for line in named] == list(MODEL_COLOURS[:3])
    assert len(figure.layout.shapes) == 4  # of two widths
    assert "org/a@main" in figure.layout.title.text
    alone = draw_trajectory(scores(), LAYERS)
    assert alone.layout.title.text.startswith("org/a: ")
    assert lines(alone)[0].line.color == ROLES["decoder"]
    assert alone.layout.showlegend is False
    many = draw_trajectory(scores(tuple(f"org/m{number}" for number in range(5))), LAYERS)
    assert len(rings(many)) == 5
    assert all(ring.text is None for ring in rings(many))


def test_rows_that_are_no_trajectory_are_refused() -> None:
    with refuses(DataError, "org/a@main", "step1000"):
        attngeo.plot("trajectory", scores().query("model == 'org/a@step0'").assign(model="org/a@main"))
    with refuses(DataError, "heads", "over"):
        draw_trajectory(scores().query("head.isna()"), HEADS)
    with refuses(DataError, f"{MOST_MODELS_TOGETHER + 1} stacks", MOST_MODELS_TOGETHER, "where"):
        draw_trajectory(scores(tuple(f"org/m{number}" for number in range(MOST_MODELS_TOGETHER + 1))), LAYERS)
    with refuses(DataError, "no row has a score"):
        draw_trajectory(scores().assign(symmetry=np.nan, directionality=np.nan), LAYERS)
    stages = [scores(steps=(1,)).assign(model=f"org/a@stage{stage}-step1") for stage in (1, 2)]
    with refuses(DataError, "org/a@stage1-step1", "org/a@stage2-step1"):
        attngeo.plot("trajectory", pd.concat(stages))
    with refuses(DataError, "d_model"):
        attngeo.plot("trajectory", scores().drop(columns="d_model"))
    with refuses(UsageError, "over", "tails"):
        attngeo.plot("trajectory", scores(), over="tails")  # type: ignore[arg-type]


def test_names_are_shown_letter_for_letter() -> None:
    rows = pd.concat([scores(("<b>a</b>%{x}", "org/b")), scores(("<i>c</i>",)).assign(model="<i>c</i>@main")])
    figure = draw_trajectory(rows, LAYERS)
    text = str([figure.layout.title.text, *((trace.name, trace.hovertemplate) for trace in figure.data)])
    assert "<b>a" not in text
    assert "<i>c" not in text
    assert "%{x}" not in text


def test_both_circuits_are_stacks_of_one_trajectory() -> None:
    rows = pd.concat([scores().assign(circuit=circuit) for circuit in ("qk", "ov")])
    figure = attngeo.plot("trajectory", rows)
    assert [line.name for line in lines(figure) if line.showlegend] == ["decoder qk", "decoder ov"]
    assert len(rings(figure)) == 2
