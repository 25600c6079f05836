"""Each function that lists the columns of a table lists those of the frame, for every option that they depend on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, get_args

import pandas as pd
import pytest
from support.messages import refuses

import attngeo
from attngeo.changes.compare_options import (
    compare_columns,
    summarize_changes,
    summary_columns as change_summary_columns,
)
from attngeo.choices import Circuit, OneCircuit
from attngeo.errors import UsageError
from attngeo.offsets.options import summarize_positions, summary_columns as position_summary_columns
from attngeo.papers.saponati2025.comparison import compare_with_published, published_columns
from attngeo.papers.statements import STATEMENT_COLUMNS, STATEMENTS, check_statements
from attngeo.questions.table import QUESTIONS, VIEWS
from attngeo.scores.options import ScoreOptions
from attngeo.scores.score import score_columns
from attngeo.scores.spec import SCORES
from attngeo.scores.summary import brief_columns, summarize_briefly, summary_columns
from attngeo.scores.trajectory import DEPARTURE_COLUMNS as TRAJECTORY_COLUMNS, find_departures

MODELS = ["demo:encoder", "demo:decoder"]
# Values of `scores`, as users write them.
CHOSEN: tuple[Any, ...] = (
    (),
    "all",
    ["all"],
    "trace_z",
    "stable_rank, trace_z",
    ["positive_eigenvalues", "symmetry"],
    ("spectral_norm",),
    tuple(SCORES),
    {"trace_z"},
)
# Every option of `score` that chooses rows or numbers, each with another value than its default.
OTHER_OPTIONS: tuple[dict[str, Any], ...] = (
    {"per_head": True},
    {"layers": [0]},
    {"stack": "encoder"},
    {"gamma": 3.0},
    {"convention": "published"},
    {"fold_norm": True},
    {"precision": "float64"},
    {"memory": "1GB"},
)


def score_steps() -> pd.DataFrame:
    """Scores of a training of three steps."""
    rows = attngeo.score("demo:encoder", layers=[0])
    return pd.concat([rows.assign(model=f"run/step{step}") for step in (0, 1, 2)], ignore_index=True)


Frames = Callable[[], pd.DataFrame]
# Table → the columns that are promised, and the table.
TABLES: dict[str, tuple[Sequence[str], Frames]] = {
    "compose": (attngeo.columns("compose"), lambda: attngeo.compose("demo:encoder", kind="k")),
    "gradients": (attngeo.columns("gradients"), lambda: attngeo.gradients("demo:encoder", sequences=2, seq_len=8).rows),
    "gradients with own tokens": (
        attngeo.columns("gradients", own_token=True),
        lambda: attngeo.gradients("demo:encoder", sequences=2, seq_len=8, own_token=True).rows,
    ),
    "lineage": (attngeo.columns("lineage"), lambda: attngeo.lineage(*MODELS, n_permutations=19)),
    "mirrors": (attngeo.columns("mirrors"), lambda: attngeo.mirrors("demo:encoder", layers=[0])),
    "positions": (attngeo.columns("positions"), lambda: attngeo.positions("demo:encoder", layers=[0])),
    "theory": (STATEMENT_COLUMNS, lambda: check_statements([next(iter(STATEMENTS))])),
    "published": (published_columns(), lambda: compare_with_published(attngeo.score("demo:encoder", per_head=True))),
    "trajectory": (TRAJECTORY_COLUMNS, lambda: find_departures(score_steps())),
    "words": (attngeo.columns("words"), lambda: attngeo.words("demo:encoder", layer=0, head=0, top=2)),
    "words with directions": (
        attngeo.columns("words", directions=2),
        lambda: attngeo.words("demo:encoder", layer=0, head=0, top=2, directions=2),
    ),
}
# Question or view → the test of its columns, if it is not here, or why there is none.
ELSEWHERE = {
    "score": "test_score_columns_are_those_of_the_frame_for_every_choice",
    "compare": "test_compare_columns_are_those_of_the_frame",
    "summary": "test_columns_of_summaries_are_those_of_the_frames",
    "analogy": "tests/commands/test_analogy.py",
    "pretrain": "tests/pretrain/test_curves.py",
    "layers": "tests/pretrain/test_curves.py",
    "simulate": "tests/papers/wibisono2023/test_tables.py",
    "auto-mpg": "tests/papers/wibisono2023/test_tables.py",
    "methods": "tests/papers/wibisono2023/test_tables.py",
    "advantage": "tests/papers/wibisono2023/test_tables.py",
    "efa": "tests/papers/wibisono2025",
}


def test_every_question_and_view_has_a_test_of_its_columns() -> None:
    known = {name for name, question in QUESTIONS.items() if question.columns is not None}
    known |= {name for name, views in VIEWS.items() if any(view.columns is not None for view in views)}
    assert known <= {*TABLES, *ELSEWHERE}


@pytest.mark.parametrize("name", TABLES)
def test_columns_are_those_of_the_frame(name: str) -> None:
    columns, make = TABLES[name]
    assert list(make().columns) == list(columns)


@pytest.mark.parametrize(("scores", "circuit"), [*product(CHOSEN, get_args(Circuit))], ids=str)
def test_score_columns_are_those_of_the_frame_for_every_choice(scores: Any, circuit: Any) -> None:
    frame = attngeo.score("demo:encoder", layers=[0], scores=scores, circuit=circuit)
    assert list(frame.columns) == list(attngeo.columns("score", scores=scores, circuit=circuit))


@pytest.mark.parametrize("options", OTHER_OPTIONS, ids=str)
def test_no_other_option_of_score_changes_its_columns(options: dict[str, Any]) -> None:
    assert options.keys() <= ScoreOptions.model_fields.keys()
    frame = attngeo.score("demo:encoder", **options)
    assert list(frame.columns) == list(attngeo.columns("score"))


@pytest.mark.parametrize(("circuit", "per_head"), [*product(get_args(OneCircuit), (False, True))])
def test_compare_columns_are_those_of_the_frame(circuit: Any, per_head: bool) -> None:
    frame = attngeo.compare(MODELS, circuit=circuit, per_head=per_head)
    assert list(frame.columns) == list(attngeo.columns("compare", circuit=circuit))


@pytest.mark.parametrize("scores", CHOSEN, ids=str)
def test_columns_of_summaries_are_those_of_the_frames(scores: Any) -> None:
    rows = attngeo.score("demo:encoder", layers=[0], per_head=True, scores=scores)
    assert list(attngeo.summarize(rows).columns) == list(summary_columns(scores))
    assert list(summarize_briefly(rows).columns) == list(brief_columns(scores))


@pytest.mark.parametrize("circuit", get_args(OneCircuit))
def test_columns_of_summaries_of_changes_are_those_of_the_frame(circuit: Any) -> None:
    rows = attngeo.compare(MODELS, circuit=circuit, per_head=True)
    assert list(summarize_changes(rows).columns) == list(change_summary_columns())


def test_columns_of_summaries_of_positions_are_those_of_the_frame() -> None:
    rows = attngeo.positions("demo:encoder", layers=[0])
    assert list(summarize_positions(rows).columns) == list(position_summary_columns())


@pytest.mark.parametrize("list_columns", [score_columns, summary_columns, brief_columns])
@pytest.mark.parametrize(
    ("wrong", "fact"),
    [
        ("trace-z", "trace_z"),
        ("all trace_z", "all trace_z"),
        ("al", "all"),
        ("symmetry trace_z stable_rank", "scores"),
        ("", "scores"),
        (["stable_ranks"], "stable_rank"),
        ([1], "scores"),
        (3, "scores"),
        (None, "scores"),
    ],
)
def test_unknown_scores_are_refused_with_the_nearest_one(list_columns: Any, wrong: Any, fact: str) -> None:
    with refuses(UsageError, fact):
        list_columns(wrong)


@pytest.mark.parametrize("list_columns", [lambda circuit: attngeo.columns("score", circuit=circuit), compare_columns])
@pytest.mark.parametrize(("wrong", "fact"), [("qkk", "qk"), ("k", "circuit"), (1, "circuit"), (None, "circuit")])
def test_unknown_circuits_are_refused_with_the_nearest_one(list_columns: Any, wrong: Any, fact: str) -> None:
    with refuses(UsageError, fact):
        list_columns(wrong)
