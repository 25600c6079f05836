"""Keywords of public functions: a value of another type is refused, and a scalar of NumPy is a number."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.messages import refuses
from transformers import BertConfig, BertModel

import attngeo
from attngeo.circuits.word_options import WordOptions
from attngeo.errors import UnknownOptionError, UsageError
from attngeo.lazy import resolve
from attngeo.options import Options, options_of
from attngeo.pretrain import ImagePretrainOptions, TextPretrainOptions, make_options
from attngeo.questions.table import QUESTIONS
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
    "attention_sites circuit": (lambda value: list(attngeo.attention_sites(MODEL, circuit=value)), (*NO_TEXTS, "vo")),
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
    with pytest.raises(UnknownOptionError, match=f"has no option '{former}'; it is now called {name}$"):
        function(**{former: 1})


def test_the_new_name_of_a_former_keyword_is_that_of_its_function() -> None:
    functions: dict[str, Callable[..., Any]] = {"n_answers": attngeo.analogy, "top": attngeo.nearest}
    for name, function in functions.items():
        with pytest.raises(UnknownOptionError, match=f"has no option 'top_k'; it is now called {name}$"):
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


def list_functions() -> dict[str, Callable[..., Any]]:
    """The public functions that take options, by their names."""
    functions = {
        f"{package.__name__}.{name}": getattr(package, name)
        for package in (attngeo, attngeo.pretrain, attngeo.gradients, attngeo.positions)
        for name in dir(package)
    }
    return {name: function for name, function in functions.items() if hasattr(function, "__wrapped__")}


def test_signatures_have_types_that_can_be_read_and_what_is_returned() -> None:
    functions = list_functions()
    assert len(functions) > 12
    for name, function in functions.items():
        signature = str(inspect.signature(function))
        assert " -> " in signature, name
        assert not re.search(r"collections\.abc|attngeo\.|typing\.|<|'Model|Optional", signature), (name, signature)
    assert str(inspect.signature(attngeo.score)).startswith("(models: Model | Sequence[Model], *, ")
    assert str(inspect.signature(attngeo.score)).endswith(" -> pd.DataFrame")


def test_every_type_in_a_signature_or_docstring_can_be_imported() -> None:
    """From `attngeo.types`, if it is a class of the package."""
    classes = {
        name
        for module in [*sys.modules.values()]
        if module.__name__.startswith("attngeo.")
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__.startswith("attngeo.") and name.endswith(("Options", "Access"))
    }
    known = {*dir(attngeo.types), *dir(attngeo.errors), *dir(attngeo.pretrain), *dir(attngeo.gradients)}
    for name, function in list_functions().items():
        signature = str(inspect.signature(function))
        named = {*re.findall(r"(?<!pd\.)\b[A-Z]\w+", signature)}
        named -= {
            "None",
            "True",
            "False",
            "Literal",
            "Sequence",
            "Iterator",
            "Callable",
            "Mapping",
            "Path",
            "Any",
            "Figure",
        }
        named |= classes & {*re.findall(r"\b[A-Z]\w+", str(function.__doc__))}
        assert named <= known, (name, named - known)
        assert all(hasattr(attngeo.types, each) for each in named & {*dir(attngeo.types)})


@pytest.mark.parametrize("options_class", [TextPretrainOptions, ImagePretrainOptions, ScoreOptions])
def test_options_show_their_fields_in_their_signature(options_class: type[Options]) -> None:
    parameters = inspect.signature(options_class).parameters
    assert [*parameters] == [*options_class.model_fields]
    if options_class is ScoreOptions:
        assert parameters["gamma"].default == 2.0
        assert repr(parameters["memory"].annotation) == "int | str | None"
    else:
        assert parameters.keys() <= inspect.signature(make_options).parameters.keys()


def test_help_of_functions_has_no_words_of_the_command_line() -> None:
    for name, function in list_functions().items():
        text = str(function.__doc__)
        assert not re.search(r"--[a-z]|may be repeated|0-3,7\.|\(with |\(see attngeo ", text), name


# Option → the same in two forms, and how it is kept.
FORMS: tuple[tuple[str, Any, Any, Any], ...] = (
    ("memory", "2MB", 2_000_000, 2_000_000),
    ("layers", "0-1,3", [0, 1, 3], (0, 1, 3)),
    ("adapter", "folder/a", [Path("folder/a")], ("folder/a",)),
    ("adapter", Path("folder/a"), ["folder/a"], ("folder/a",)),
    ("config", Path("folder"), "folder", "folder"),
    ("text", Path("novel.txt"), "novel.txt", "novel.txt"),
    ("tokens", Path("words.txt"), "words.txt", "words.txt"),
    ("from_layers", "2", [2], (2,)),
    ("to_layers", "1-2", (1, 2), (1, 2)),
)


@pytest.mark.parametrize(("name", "first", "second", "kept"), FORMS)
def test_an_option_has_both_forms_wherever_it_is(name: str, first: Any, second: Any, kept: Any) -> None:
    classes = {resolve(question.options) for question in QUESTIONS.values()} | {WordOptions}
    # An option without `parse` is another of this name, such as the number of layers of an experiment's models.
    classes = {kind for kind in classes if name in options_of(kind) and options_of(kind)[name].parse is not None}
    assert classes
    for options_class in classes:
        for form in (first, second):
            assert getattr(options_class(**{name: form}), name) == kept, options_class


def test_sites_and_initialisation_take_layers_in_both_forms() -> None:
    for layers in ([0, 1], "0-1"):
        assert [site.layer for site, *_ in attngeo.attention_sites(MODEL, layers=layers)] == [0, 1]
        model = BertModel(BertConfig(hidden_size=8, num_hidden_layers=3, num_attention_heads=2, vocab_size=8))
        assert len(attngeo.pretrain.initialize(model, "symmetric", layers=layers)) == 2
