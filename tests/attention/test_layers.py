"""Lists of layers: whatever is asked for, the answer comes at once."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
from conftest import Command
from support.messages import assert_fails

import attngeo
from attngeo.attention.layers import parse_layers
from attngeo.errors import UsageError
from attngeo.scores.options import ScoreOptions

REFUSED: dict[str, Any] = {
    "a range without end": "0-99999999999",
    "a number beyond any model": "12345678901",
    "the first number beyond the bound": "10000",
    "a range beyond the bound": "0-10000",
    "five thousand digits": "9" * 5000,
    "a range to five thousand digits": "0-" + "9" * 5000,
    "many ranges": "0-9999," * 100_000 + "1",
    "digits of another script": "\N{ARABIC-INDIC DIGIT TWO}",
    "no digit": "\N{SUPERSCRIPT TWO}",
    "an endless collection": itertools.count(),
    "a long collection": range(10**12),
    "a collection of texts": ["1"],
    "a collection of truths": [True],
    "no collection": 3,
}


@pytest.mark.parametrize("case", REFUSED)
def test_layers_that_no_model_has_are_refused_at_once(case: str) -> None:
    started = time.perf_counter()
    with pytest.raises(UsageError, match="layers is") as caught:
        ScoreOptions(layers=REFUSED[case])
    assert time.perf_counter() - started < 5
    assert len(str(caught.value)) < 200


def test_layers_that_a_model_may_have_are_taken() -> None:
    assert parse_layers(" 0 - 2, 7 ,9999") == [0, 1, 2, 7, 9999]
    assert len(attngeo.score("demo:minilm", layers="0-1,3")) == 3
    with pytest.raises(UsageError, match="no layer 6"):
        attngeo.score("demo:minilm", layers=range(7000))


@pytest.mark.parametrize("layers", ["0-99999999999", "9" * 5000])
def test_the_command_says_wrong_usage(layers: str, inside: Command) -> None:
    run = inside("score", "demo:minilm", "--layers", layers)
    assert_fails(run, 2, "--layers")
    assert len(run.stderr) < 400
