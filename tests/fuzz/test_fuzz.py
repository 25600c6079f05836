"""Mutated inputs give the right numbers or an AttnGeoError, within bounds of time and memory.

An input that gives anything else is saved in `found/`, whose files these tests repeat.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from fuzz import process
from fuzz.found import Input, list_found
from fuzz.process import draw, judge_inputs, prepare_inputs, run_inputs
from fuzz.targets import TARGETS

from attngeo.errors import UsageError

# How many inputs of each target `make test` and `make slow` run, the same ones each time, and `make explore`, new ones.
FEW = 20
MANY = dict.fromkeys(TARGETS, 300) | {"recipes": 200, "tokenizers": 60}
NEW = dict.fromkeys(TARGETS, 5_000) | {"tokenizers": 1_000}
# `make test` runs none of them: PEFT, which judges adapters, takes seconds to load, and each tokeniser has a process.
SLOW = ("adapters", "tokenizers")
# Targets that share a process, whose start takes as long as hundreds of inputs.
GROUPS = [tuple(TARGETS)[start::3] for start in range(3)]


@pytest.mark.filterwarnings("ignore")
def test_mutated_inputs_are_read_rightly_or_refused(tmp_path: Path) -> None:
    """In this process, which has loaded the libraries; without the bound of memory."""
    drawn = {target: range(FEW) for target in TARGETS if target not in SLOW}
    saved = [path for path in list_found() if Input.load(path).target not in SLOW]
    wrong: dict[str, str] = {}
    prepare_inputs(drawn)
    judge_inputs(drawn, saved, tmp_path, wrong.__setitem__)
    assert wrong == {}


@pytest.mark.slow
@pytest.mark.parametrize("targets", GROUPS, ids=" and ".join)
def test_hundreds_of_mutated_inputs(targets: tuple[str, ...]) -> None:
    saved = [path for path in list_found() if Input.load(path).target in targets]
    assert not run_inputs({target: range(FEW, FEW + MANY[target]) for target in targets}, saved, 1800)


@pytest.mark.explore
@pytest.mark.parametrize("target", TARGETS)
def test_new_mutated_inputs(target: str) -> None:
    first = random.randrange(FEW + MANY[target], 2**62)
    assert not run_inputs({target: range(first, first + NEW[target])}, [], 1800)


def draw_input(target: str, number: int, folder: Path) -> Input:
    folder.mkdir()
    draw(target, number)(folder)
    return Input.read(target, folder)


@pytest.mark.parametrize(
    "target", [pytest.param(target, marks=[pytest.mark.slow] if target in SLOW else []) for target in TARGETS]
)
def test_an_input_follows_from_its_number_and_is_saved_whole(target: str, tmp_path: Path) -> None:
    inputs = [draw_input(target, number, tmp_path / f"first {number}") for number in range(5)]
    again = [draw_input(target, number, tmp_path / f"again {number}") for number in range(5)]
    assert inputs == again
    assert [Input.load(drawn.save("wrong", tmp_path)) for drawn in inputs] == inputs
    inputs[0].write(tmp_path / "loaded")
    assert Input.read(target, tmp_path / "loaded") == inputs[0]


def raise_planted(_: Path) -> None:
    raise ValueError("planted")


def refuse_in_lines(_: Path) -> None:
    raise UsageError("two\nlines")


def never_end(_: Path) -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("read", "fact"),
    [(raise_planted, "planted"), (refuse_in_lines, "several lines"), (never_end, "more than 0.1 s")],
)
def test_no_other_outcome_is_allowed(
    read: Callable[[Path], None], fact: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(process, "SECONDS", 0.1)
    outcome = process.judge(TARGETS["lists"]._replace(read=read), tmp_path)
    assert isinstance(outcome, str)
    assert fact in outcome


PLANTED = """
import os
from fuzz.targets import TARGETS

from attngeo.errors import UsageError

def fail(folder):
    raise ValueError("planted")

def die(folder):
    os._exit(9)

TARGETS["lists"] = TARGETS["lists"]._replace(read=fail)
TARGETS["settings"] = TARGETS["settings"]._replace(read=die)
"""


@pytest.mark.slow
def test_a_wrong_input_is_saved_and_repeated_until_the_fault_is_mended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    facts = {"lists": "planted", "settings": "died (9)"}
    with monkeypatch.context() as patch:
        patch.setattr(process, "CODE", PLANTED + process.CODE)
        wrong = run_inputs({"lists": range(1), "settings": range(1)}, [], 300, tmp_path)
        paths = list_found(tmp_path)
        assert [Input.load(path).target for path in paths] == list(facts)
        again = run_inputs({}, paths, 300, tmp_path)
        for path, (target, fact) in zip(paths, facts.items(), strict=True):
            assert str(path) in wrong[f"{target}:0"]
            assert fact in wrong[f"{target}:0"]
            assert fact in again[path.name]
        assert list_found(tmp_path) == paths
    assert run_inputs({}, paths, 300) == {}
