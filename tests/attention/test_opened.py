"""A model that is open: what the layers in flight may take of the memory, whatever is asked."""

from __future__ import annotations

from typing import Any

import pytest
from support.messages import refuses

from attngeo.attention import opened
from attngeo.attention.opened import Attention
from attngeo.attention.options import ReadingOptions
from attngeo.changes.compare_options import CompareOptions
from attngeo.changes.lineage_options import LineageOptions
from attngeo.circuits.compose_options import ComposeOptions
from attngeo.circuits.mirror_options import MirrorOptions
from attngeo.errors import UsageError
from attngeo.offsets.options import PositionOptions
from attngeo.questions.asking import ask
from attngeo.questions.table import QUESTIONS
from attngeo.scores.matrices import count_outliers
from attngeo.scores.options import ScoreOptions
from attngeo.session import Session, StudyOptions

FREE = 2**40
MODEL, OTHER = "demo:encoder", "demo:decoder"
PAIR = CompareOptions(stack="encoder=decoder")
# Question → what it is asked about, and with which options.
ASKED: dict[str, tuple[Any, Any]] = {
    "score": (MODEL, ScoreOptions()),
    "positions": (MODEL, PositionOptions()),
    "compose": (MODEL, ComposeOptions()),
    "mirrors": (MODEL, MirrorOptions()),
    "compare": ((MODEL, OTHER), PAIR),
    "lineage": ((MODEL, MODEL), LineageOptions(n_permutations=19)),
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


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("jobs", [1, 8])
def test_every_question_shares_a_quarter_of_the_free_memory_among_processes_and_models(
    given: list[int], name: str, jobs: int
) -> None:
    subject, options = ASKED[name]
    readers = len(QUESTIONS[name].subjects)
    ask(QUESTIONS[name], subject, Session(study=StudyOptions(jobs=jobs)), options=options)
    assert given == [FREE // 4 // jobs // readers] * readers


@pytest.mark.parametrize("jobs", [1, 8])
def test_the_count_of_outliers_shares_it_too(given: list[int], jobs: int) -> None:
    count_outliers(MODEL, Session(study=StudyOptions(jobs=jobs)))
    assert given == [FREE // 4 // jobs]


def test_the_memory_that_is_asked_for_is_that_of_a_process(given: list[int]) -> None:
    session = Session(study=StudyOptions(jobs=8))
    ask(QUESTIONS["score"], MODEL, session, options=ScoreOptions(memory=1000))
    ask(QUESTIONS["compare"], (MODEL, OTHER), session, options=PAIR.replace(memory=1000))
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
