"""A model that is open: what the layers in flight may take of the memory, whatever is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.messages import refuses

from attngeo.attention import opened
from attngeo.attention.opened import Attention
from attngeo.attention.options import ReadingOptions
from attngeo.changes.compare_options import CompareOptions
from attngeo.changes.comparing import compare_models
from attngeo.changes.lineage_options import LineageOptions
from attngeo.changes.relating import relate_models
from attngeo.circuits.compose_options import ComposeOptions
from attngeo.circuits.composing import compose_model
from attngeo.errors import UsageError
from attngeo.positions.computing import compute as measure_positions
from attngeo.positions.options import PositionOptions
from attngeo.scores.computing import compute as compute_scores
from attngeo.scores.matrices import count_outliers
from attngeo.scores.options import ScoreOptions
from attngeo.session import Session, StudyOptions

FREE = 2**40
MODEL, OTHER = "demo:encoder", "demo:decoder"
PAIR = CompareOptions(stack="encoder=decoder")
# Question → the models that it reads at the same time, and how it is asked.
QUESTIONS: dict[str, tuple[int, Callable[[Session], Any]]] = {
    "score": (1, lambda session: compute_scores(MODEL, ScoreOptions(), session)),
    "positions": (1, lambda session: measure_positions(MODEL, PositionOptions(), session, None)),
    "compose": (1, lambda session: compose_model(MODEL, ComposeOptions(), session)),
    "outliers": (1, lambda session: count_outliers(MODEL, session)),
    "compare": (
        2,
        lambda session: compare_models((MODEL, OTHER), PAIR, session, None),
    ),
    "lineage": (2, lambda session: relate_models(MODEL, MODEL, LineageOptions(permutations=19), session)),
}


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The memory of each reader of layers, on a machine with so much of it."""
    memory: list[int] = []
    read_ahead = opened.read_ahead

    def watch(*arguments: Any, **keywords: Any) -> Any:
        memory.append(keywords["memory"])
        return read_ahead(*arguments, **keywords)

    monkeypatch.setattr(opened, "available_memory", lambda: FREE)
    monkeypatch.setattr(opened, "read_ahead", watch)
    return memory


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("jobs", [1, 8])
def test_every_question_shares_a_quarter_of_the_free_memory_among_processes_and_models(
    given: list[int], name: str, jobs: int
) -> None:
    readers, ask = QUESTIONS[name]
    ask(Session(study=StudyOptions(jobs=jobs)))
    assert given == [FREE // 4 // jobs // readers] * readers


def test_the_memory_that_is_asked_for_is_that_of_a_process(given: list[int]) -> None:
    session = Session(study=StudyOptions(jobs=8))
    compute_scores(MODEL, ScoreOptions(memory=1000), session)
    compare_models((MODEL, OTHER), PAIR.replace(memory=1000), session, None)
    assert given == [1000, 500, 500]


def test_a_model_is_closed_when_its_sites_cannot_be_selected(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    open_adapted = opened.open_adapted

    def watch(*arguments: Any, **keywords: Any) -> Any:
        store = open_adapted(*arguments, **keywords)
        close = store.close
        monkeypatch.setattr(store, "close", lambda: closed.append(close()))
        return store

    monkeypatch.setattr(opened, "open_adapted", watch)
    with refuses(UsageError, "layer 9", "0 to 2"), Attention.open(MODEL, ReadingOptions(layers=[9])):
        pass
    assert len(closed) == 1
