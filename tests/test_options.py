"""Options declared once: what a field declares is in the signature, the docstring, the command and the checks."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from attngeo.commands.app import load_command
from conftest import Command

import attngeo
from attngeo.analogies.options import AnalogyOptions, NearestOptions
from attngeo.attention.layers import parse_layers
from attngeo.changes.compare_options import CompareOptions
from attngeo.changes.lineage_options import LineageOptions
from attngeo.checkpoints.access import HubAccess
from attngeo.choices import RENAMED, advise
from attngeo.circuits.compose_options import ComposeOptions
from attngeo.circuits.mirror_options import MirrorOptions
from attngeo.circuits.word_options import WordOptions
from attngeo.embeddings.cbow import train_cbow
from attngeo.embeddings.options import CbowOptions
from attngeo.errors import UnknownOptionError, UsageError
from attngeo.figures.kinds import PlotOptions
from attngeo.keywords import takes
from attngeo.lazy import resolve
from attngeo.offsets.options import PositionOptions
from attngeo.options import PANELS, Options, make_keyword, option, options_of, parse_bytes
from attngeo.pretrain.options import ComparisonOptions
from attngeo.questions.table import QUESTIONS
from attngeo.scores.options import ScoreOptions
from attngeo.studies.revisions import RevisionOptions
from attngeo.updates.options import GradientOptions

FUNCTIONS = {
    ScoreOptions: attngeo.score, AnalogyOptions: attngeo.analogy, NearestOptions: attngeo.nearest,
    WordOptions: attngeo.words,
    CompareOptions: attngeo.compare,
    ComposeOptions: attngeo.compose,
    MirrorOptions: attngeo.mirrors,
    LineageOptions: attngeo.lineage,
    CbowOptions: train_cbow, PlotOptions: attngeo.plot,
    ComparisonOptions: attngeo.pretrain.compare_runs, GradientOptions: attngeo.gradients,
    PositionOptions: attngeo.positions,
    HubAccess: attngeo.open_embedding, RevisionOptions: attngeo.score,
}  # fmt: skip


class Soup(Options):
    """The options of an example."""

    spoons: int = option(2, "Number of spoons", panel="Input", least=1, most=5)
    heat: float = option(0.5, "Heat", panel="Computation")
    taste: Literal["salty", "sweet"] = option("salty", "Taste", panel="Computation")
    name: str | None = option(None, "Name", panel="Input")


class CookKeywords(Soup):
    options: Soup | None = None
    lid: bool = False


@takes(CookKeywords)
def cook(pot: str, options: Soup, *, lid: bool = False) -> tuple[str, Soup, bool]:
    """Cook.

    {options}
    """
    return pot, options, lid


def test_a_function_takes_options_as_keywords_or_as_one_object() -> None:
    assert cook("pot") == ("pot", Soup(), False)
    assert cook("pot", spoons=3, lid=True) == ("pot", Soup(spoons=3), True)
    assert cook("pot", options=Soup(heat=1.0), spoons=3) == ("pot", Soup(heat=1.0, spoons=3), False)


def test_options_know_what_was_given() -> None:
    """A default that is given counts, too; a copy with changes keeps what it is a copy of."""
    options = Soup(spoons=2, name="onion")
    assert options == Soup(name="onion")
    assert options.given == {"spoons": 2, "name": "onion"}
    assert options.replace(heat=1).given == {"spoons": 2, "heat": 1.0, "name": "onion"}
    assert Soup().given == {}


def test_numbers_of_numpy_are_numbers() -> None:
    options = Soup(spoons=np.int64(3), heat=np.float32(0.5))
    assert (options, type(options.spoons), type(options.heat)) == (Soup(spoons=3, heat=0.5), int, float)
    assert Soup(heat=1).heat == 1.0


def test_an_unknown_keyword_is_a_usage_error_with_the_nearest_name() -> None:
    with pytest.raises(UnknownOptionError, match=r"cook.*'spoon'.*spoons"):
        cook("pot", spoon=1)
    with pytest.raises(UnknownOptionError, match=r"cook.*'xyz'.*spoons, heat, taste"):
        cook("pot", xyz=1)
    with pytest.raises(TypeError):  # as Python raises
        attngeo.score("demo:minilm", gama=3)


def test_signature_and_docstring_list_every_option() -> None:
    parameters = inspect.signature(cook).parameters
    assert list(parameters) == ["pot", "spoons", "heat", "taste", "name", "lid", "options"]
    assert (parameters["spoons"].default, parameters["taste"].default) == (2, "salty")
    assert inspect.getdoc(cook).splitlines() == [
        "Cook.", "", "spoons: Number of spoons.", "heat: Heat.", "taste: Taste (salty, sweet).", "name: Name.",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        ({"spoons": 0}, ["spoons", "0", "1", "5"]),
        ({"spoons": 6}, ["spoons", "6", "5"]),
        ({"spoons": 2.5}, ["spoons", "2.5"]),
        ({"spoons": True}, ["spoons", "True"]),
        ({"heat": float("nan")}, ["heat", "nan"]),
        ({"heat": "hot"}, ["heat", "hot"]),
        ({"heat": "3"}, ["heat", "'3'", "number"]),
        ({"heat": True}, ["heat", "True", "number"]),
        ({"spoons": np.float64(2.5)}, ["spoons", "2.5"]),
        ({"name": 3}, ["name", "3", "text"]),
        ({"spoon": 3}, ["spoon", "spoons"]),
        ({"taste": "sour"}, ["taste", "sour", "salty", "sweet"]),
    ],
)
def test_values_outside_the_declaration_are_refused(given: dict[str, object], facts: list[str]) -> None:
    with pytest.raises(UsageError) as error:
        Soup(**given)  # type: ignore[arg-type]
    assert all(fact in str(error.value) for fact in facts)


@pytest.mark.parametrize("kind", FUNCTIONS, ids=lambda kind: kind.__name__)
def test_every_field_is_an_option_of_the_library_function(kind: type[Options]) -> None:
    declared = options_of(kind)
    assert set(declared) == {*kind.model_fields}
    parameters = inspect.signature(FUNCTIONS[kind]).parameters
    for name, each in declared.items():
        assert name in parameters
        assert each.help in " ".join(str(FUNCTIONS[kind].__doc__).split())
        assert each.panel in PANELS
        assert each.help[0].isupper()
        assert not each.help.endswith(".")


def test_options_are_frozen_and_can_be_replaced() -> None:
    options = ScoreOptions(gamma=3)
    with pytest.raises(ValueError, match="frozen"):
        options.gamma = 2
    assert options.replace(layers="0-2").layers == (0, 1, 2)


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-", "-1", "1,,2", "0.5"])
def test_a_list_of_layers_is_parsed_or_refused(text: str) -> None:
    assert parse_layers(" 0-3, 7,2 ") == [0, 1, 2, 3, 7]
    with pytest.raises(UsageError, match="layers"):
        parse_layers(text)


@pytest.mark.parametrize("text", ["", "lots", "-1GB", "1 PB", "1.2.3", "GB", "2", "999999"])
def test_an_amount_of_memory_is_parsed_or_refused(text: str) -> None:
    assert [parse_bytes(each) for each in ("1GB", "1.5 mb", "12b", "2KiB")] == [10**9, 1_500_000, 12, 2048]
    assert parse_bytes("1000000") == 10**6
    with pytest.raises(UsageError, match="memory"):
        parse_bytes(text)


# Questions about models, which Python, a command and a recipe ask.
ASKED = {
    "score": attngeo.score, "analogy": attngeo.analogy, "gradients": attngeo.gradients, "positions": attngeo.positions,
    "compare": attngeo.compare, "compose": attngeo.compose, "mirrors": attngeo.mirrors, "lineage": attngeo.lineage,
}  # fmt: skip
# Options of several questions whose types or defaults differ, and why.
DIFFERENT = {
    "circuit": "both circuits can be scored; one is compared, which has columns of its own",
    "rope_offset": "scores are at one offset; changes are over all of them, if none is given",
    "precision": "bfloat16 is precise enough for scores, not for their changes",
    "memory": "a part of the free memory holds weights; analogies have blocks beside a table that is in memory",
}


def describe_keyword(keyword: inspect.Parameter) -> tuple[str, str]:
    return repr(keyword.annotation), repr(keyword.default)


def test_an_option_of_several_questions_has_one_type_and_one_default() -> None:
    found: dict[str, set[tuple[str, str]]] = {}
    for name in ASKED:
        options_class = resolve(QUESTIONS[name].options)
        for each in options_of(options_class):
            found.setdefault(each, set()).add(describe_keyword(make_keyword(options_class, each)))
    assert {each for each, kinds in found.items() if len(kinds) > 1} == DIFFERENT.keys()


@pytest.mark.parametrize("name", ASKED)
def test_python_a_command_and_a_recipe_have_the_same_options(name: str) -> None:
    options_class = resolve(QUESTIONS[name].options)
    in_python = inspect.signature(ASKED[name]).parameters
    in_recipe = QUESTIONS[name].make_options_class()
    flags = {flag for param in load_command(name).params for flag in param.opts}
    for each, declared in options_of(options_class).items():
        expected = describe_keyword(make_keyword(options_class, each))
        assert describe_keyword(in_python[each]) == expected, each
        assert describe_keyword(make_keyword(in_recipe, each)) == expected, each
        assert (declared.flags or (f"--{each.replace('_', '-')}",))[0].partition("/")[0] in flags, each


@pytest.mark.parametrize("former", RENAMED)
def test_who_uses_a_former_name_is_told_the_new_one(former: str) -> None:
    new_names = RENAMED[former]
    for name in [new_names] if isinstance(new_names, str) else new_names:
        assert advise(former, [name.partition("=")[0], "another"]) == f"it is now called {name}"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="commands of tests are forks, which Windows lacks")
def test_former_names_are_answered_in_python_by_a_command_and_in_a_recipe(inside: Command, tmp_path: Path) -> None:
    with pytest.raises(UnknownOptionError, match="it is now called circuit"):
        attngeo.attention_sites("demo:encoder", parts="qk")  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="it is now called both"):
        attngeo.verify("demo:encoder", circuit="qkvo")  # type: ignore[arg-type]
    with pytest.raises(UnknownOptionError, match="it is now called tokenizer"):
        attngeo.words("demo:encoder", tokeniser=None)  # type: ignore[call-arg]
    for command, name in (
        (["efa", "run", "synthetic", "--published"], "--settings=code"),
        (["tabular", "simulate", "--convention", "published"], "--settings"),
        (["tabular", "simulate", "--settings", "published"], "code"),
    ):
        run = inside(*command)
        assert run.returncode == 2
        assert f"it is now called {name}" in run.stderr
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'title = "T"\n[[results]]\nname = "a"\ncommand = "efa"\nexperiment = "synthetic"\n'
        "options = { published = true }\n"
    )
    run = inside("report", recipe, "-o", tmp_path / "report")
    assert "it is now called settings=code" in run.stderr


def test_the_schema_of_recipes_has_both_forms_of_an_option() -> None:
    """As editors check a recipe by it: a text beside a list or a number."""
    properties = ScoreOptions.model_json_schema()["properties"]
    for name, kind in (("adapter", "array"), ("layers", "array"), ("memory", "integer"), ("config", "null")):
        kinds = [form["type"] for form in properties[name]["anyOf"]]
        assert {kind, "string"} <= {*kinds}, name
        assert len(kinds) == len({*kinds}), name
