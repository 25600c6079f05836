"""Keywords of public functions: a value of another type is refused, and a scalar of NumPy is a number."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.messages import refuses

import attngeo
from attngeo.errors import UnknownOptionError, UsageError
from attngeo.scores.options import ScoreOptions

MODEL = "demo:encoder"
FACTOR = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0))
TEXT_AND_MORE: tuple[Any, ...] = ("a", b"x", [1], {}, object(), np.array([1, 2]), 1j)
NO_NUMBERS = (*TEXT_AND_MORE, True, None, float("nan"), float("inf"), np.float32("nan"), 10**400)
NO_WHOLE_NUMBERS = (*TEXT_AND_MORE, True, 1.5, float("nan"), np.float64(1.5), np.True_)
NO_TEXTS = (*TEXT_AND_MORE[1:], True, 1.5)

# Function and keyword → a call with a value, and the values that it refuses.
CALLS: dict[str, tuple[Callable[[Any], Any], tuple[Any, ...]]] = {
    "query_key_matrix layer": (lambda value: attngeo.query_key_matrix(MODEL, layer=value), NO_WHOLE_NUMBERS),
    "query_key_matrix, layer": (lambda value: attngeo.query_key_matrix(MODEL, value), NO_WHOLE_NUMBERS),
    "query_key_matrix head": (lambda value: attngeo.query_key_matrix(MODEL, head=value), NO_WHOLE_NUMBERS),
    "query_key_matrix cells": (lambda value: attngeo.query_key_matrix(MODEL, cells=value), NO_WHOLE_NUMBERS),
    "query_key_matrix stack": (lambda value: attngeo.query_key_matrix(MODEL, stack=value), NO_TEXTS),
    "query_key_matrix gamma": (lambda value: attngeo.query_key_matrix(MODEL, gamma=value), (*NO_NUMBERS, -1)),
    "directionality gamma": (lambda value: attngeo.directionality(FACTOR, FACTOR, gamma=value), (*NO_NUMBERS, -1)),
    "score gamma": (lambda value: attngeo.score(MODEL, gamma=value), (*NO_NUMBERS, -1)),
    "score stack": (lambda value: attngeo.score(MODEL, stack=value), NO_TEXTS),
    "attention_sites stack": (lambda value: list(attngeo.attention_sites(MODEL, stack=value)), NO_TEXTS),
    "attention_sites parts": (lambda value: list(attngeo.attention_sites(MODEL, parts=value)), (*NO_TEXTS, "ov")),
    "attention_sites layers": (lambda value: list(attngeo.attention_sites(MODEL, layers=value)), ("a", 1, [1.5], {})),
    "attention_sites fold_norm": (lambda value: list(attngeo.attention_sites(MODEL, fold_norm=value)), ("no", 2, [])),
    "attention_sites dtype": (
        lambda value: list(attngeo.attention_sites(MODEL, dtype=value)), ("float32", float, torch.int8, None),
    ),
    "open_embedding table": (lambda value: attngeo.open_embedding("demo:minilm", table=value), (*NO_TEXTS, "inputs")),
    "nearest words": (lambda value: attngeo.nearest("demo:minilm", value), (*NO_TEXTS, None)),
    "analogy questions": (lambda value: attngeo.analogy("demo:minilm", questions=value), (1, None, [1], b"x", ["a"])),
    "plot kind": (lambda value: attngeo.plot(value, MODEL), (*NO_TEXTS, None, "heatmp")),
    "plot where": (lambda value: attngeo.plot("heatmap", MODEL, where=value), ([1], "layer", 3)),
    "summarize rows": (attngeo.summarize, (*NO_TEXTS, "rows.csv", None)),
    "save_figure path": (lambda value: attngeo.save_figure(figure(), value), (1.5, None, b"a.html", [])),
    "save_figure figure": (lambda value: attngeo.save_figure(value, "never.html"), (None, "a", 1)),
}  # fmt: skip


def figure() -> Any:
    rows = pd.DataFrame({
        "model": "a", "stack": "encoder", "layer": [0, 1], "head": [None, None], "symmetry": [0.1, 0.2], "note": "",
    })  # fmt: skip
    return attngeo.plot("layers", rows)


@pytest.mark.parametrize("call", CALLS)
def test_a_value_of_another_type_is_refused(call: str) -> None:
    function, values = CALLS[call]
    for value in values:
        with pytest.raises(UsageError) as caught:
            function(value)
        assert len(str(caught.value).splitlines()) == 1, value
        assert len(str(caught.value)) < 400, value
    assert not Path("never.html").exists()


def test_an_error_names_the_keyword_and_what_is_expected() -> None:
    with refuses(UsageError, "head is 'a', expected a whole number") as caught:
        attngeo.query_key_matrix(MODEL, head="a")
    assert caught.value.option == ("head",)
    with refuses(UsageError, "gamma is -1, expected at least 0"):
        attngeo.score(MODEL, gamma=-1)
    with refuses(UsageError, "gamma is '2', expected a number of at least 0"):
        attngeo.directionality(FACTOR, FACTOR, gamma="2")


FORMER: dict[str, tuple[Callable[..., Any], str]] = {
    "normalise": (attngeo.analogy, "normalize"), "centre": (attngeo.nearest, "center"),
    "candidates": (attngeo.nearest, "answers"), "compose": (attngeo.analogy, "subwords"),
    "draws": (attngeo.analogy, "n_draws"), "permutations": (attngeo.lineage, "n_permutations"),
    "neighbours": (attngeo.ExponentialFamilyAttention, "n_neighbors"),
    "standardise": (attngeo.ExponentialFamilyAttention, "standardize"),
}  # fmt: skip


@pytest.mark.parametrize("former", FORMER)
def test_a_former_keyword_is_answered_with_the_new_one(former: str) -> None:
    function, name = FORMER[former]
    with pytest.raises(UnknownOptionError, match=f"has no option '{former}'; it is called {name} now$"):
        function(**{former: 1})


def test_the_new_name_of_a_former_keyword_is_that_of_its_function() -> None:
    functions: dict[str, Callable[..., Any]] = {"n_answers": attngeo.analogy, "top": attngeo.nearest}
    for name, function in functions.items():
        with pytest.raises(UnknownOptionError, match=f"has no option 'top_k'; it is called {name} now$"):
            function(top_k=1)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int8, np.uint64, np.array])
def test_a_scalar_of_numpy_is_a_number(kind: Callable[[Any], Any]) -> None:
    expected = attngeo.directionality(FACTOR, FACTOR.flip(0), gamma=1)
    assert torch.equal(attngeo.directionality(FACTOR, FACTOR.flip(0), gamma=kind(1)), expected)
    cells, _ = attngeo.query_key_matrix(MODEL, gamma=kind(1), cells=4)
    assert cells.attrs["gamma"] == 1
    if kind not in (np.float16, np.float32, np.float64):
        again, _ = attngeo.query_key_matrix(MODEL, kind(1), head=kind(2), cells=kind(4))
        assert again.equals(attngeo.query_key_matrix(MODEL, 1, head=2, cells=4).cells)


def test_options_may_follow_the_model() -> None:
    options = ScoreOptions(layers=(1,))
    rows = attngeo.score("demo:minilm", options)  # type: ignore[call-arg]
    assert list(rows["layer"].unique()) == [1]
    pd.testing.assert_frame_equal(rows, attngeo.score("demo:minilm", options=options))
    rows = attngeo.score("demo:minilm", options, layers=[0])  # type: ignore[call-arg]
    assert list(rows["layer"].unique()) == [0]
    with refuses(UsageError, "options", "ScoreOptions", "'layers'"):
        attngeo.score("demo:minilm", "layers")  # type: ignore[call-arg]
    with refuses(UsageError, "options", "ScoreOptions", "''"):
        attngeo.score("demo:minilm", "")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="options"):
        attngeo.score("demo:minilm", options, options=options)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        attngeo.score("demo:minilm", options, options)  # type: ignore[call-arg]


def test_help_names_what_a_model_is() -> None:
    """Not the alias of its types, which is a text."""
    functions = [getattr(attngeo, name) for name in dir(attngeo)]
    signatures = [str(inspect.signature(function)) for function in functions if inspect.isfunction(function)]
    assert not [signature for signature in signatures if re.search(r"\bModel\b", signature)]
    assert str(inspect.signature(attngeo.verify)).startswith("(model: 'str | Path | ModelRef | torch.nn.Module', ")
