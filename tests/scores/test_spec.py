"""The table of scores: a new entry is found in every table, and chance levels agree with simulation."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from support.toy_score import TOY, add_toy_score

import attngeo
from attngeo.geometry.forms import Form, form_statistics
from attngeo.questions.conditions import Condition
from attngeo.scores.options import CHECKS, ScoreOptions
from attngeo.scores.score import score_columns
from attngeo.scores.spec import SCORES, ScoreSpec
from attngeo.scores.summary import statistics


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> ScoreSpec:
    """A third score, which no module of the project knows."""
    return add_toy_score(monkeypatch)


def test_a_new_score_is_in_the_frame_the_summary_and_conditions(toy: ScoreSpec) -> None:
    frame = attngeo.score("demo:encoder", per_head=True)
    assert list(frame.columns) == list(score_columns())
    assert frame[toy.name].between(0, 1).all()
    summary = attngeo.summarize(frame)
    layers = frame.loc[frame["head"].isna(), toy.name]
    heads = frame.loc[frame["head"].notna(), toy.name]
    assert summary["toy_median"].item() == layers.median()
    assert summary["heads_toy_max"].item() == heads.max()
    outcome = next(Condition("toy.median > 0 and heads.toy.max < 1", CHECKS).outcomes(frame))
    assert outcome.holds
    assert outcome.values["toy.median"] == layers.median()


def test_a_new_score_is_in_the_terminal_table_and_in_files(toy: ScoreSpec, inside, tmp_path) -> None:  # type: ignore[no-untyped-def]
    run = inside(
        "score", "demo:encoder", "-o", tmp_path / "s.csv", "--fail-if", "toy.max > 1", "--plot",
        tmp_path / "t.html", COLUMNS="120",
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert toy.label in run.stdout
    assert pd.read_csv(tmp_path / "s.csv")["toy"].notna().all()


def test_without_it_there_is_no_trace_of_it() -> None:
    assert TOY.name not in score_columns()
    assert not any(TOY.name in name for name in statistics())


def test_every_score_stays_in_its_range_and_names_its_ends() -> None:
    frame = attngeo.score("demo:minilm", per_head=True, scores=sorted(SCORES))
    for name, spec in SCORES.items():
        rows = frame[frame["head"].isna()] if spec.is_of_layers else frame
        assert rows[name].between(spec.low, spec.high).all(), name
        assert spec.negative in spec.axis_title
        assert spec.positive in spec.axis_title


@pytest.mark.parametrize("name", [name for name, spec in SCORES.items() if spec.chance is not None])
def test_chance_levels_agree_with_random_forms(name: str) -> None:
    spec, d_model, count = SCORES[name], 128, 200
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(count, d_model, d_model, generator=generator) for _ in range(2))
    values = spec.compute(form_statistics(Form(q, k, list(range(count)))), ScoreOptions())
    assert spec.chance is not None
    mean, deviation = spec.chance(d_model)
    assert abs(float(values.mean()) - mean) < 4 * deviation / count**0.5
    assert float(values.std()) == pytest.approx(deviation, rel=0.25)
