"""Each public function that returns a table says in its `attrs` how the table was made."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module

import pandas as pd
import pytest

import attngeo
from attngeo.provenance import machine, software

MODELS = ["demo:encoder", "demo:decoder"]
# Public function → a table of it, and the options that its attrs state.
TABLES: dict[str, tuple[Callable[[], pd.DataFrame], dict[str, object]]] = {
    "attngeo.score": (lambda: attngeo.score("demo:encoder", gamma=3.0), {"gamma": 3.0}),
    "attngeo.compare": (lambda: attngeo.compare(MODELS, per_head=True), {"per_head": True}),
    "attngeo.compose": (lambda: attngeo.compose("demo:encoder", kind="k"), {"kind": ("k",)}),
    "attngeo.lineage": (lambda: attngeo.lineage(*MODELS, n_permutations=19), {"n_permutations": 19}),
    "attngeo.nearest": (
        lambda: attngeo.nearest("demo:minilm", "king - man", top=2),
        {"top": 2, "words": "king - man", "answers": "words"},
    ),
    "attngeo.words": (
        lambda: attngeo.words("demo:encoder", layer=1, head=2, top=3, seed=4),
        {"layer": 1, "head": 2, "top": 3, "seed": 4, "circuit": "qk"},
    ),
    "attngeo.summarize": (lambda: attngeo.summarize(attngeo.score("demo:encoder", gamma=3.0)), {"gamma": 3.0}),
    "attngeo.mirrors": (lambda: attngeo.mirrors("demo:encoder", form="plain"), {"form": "plain", "across": False}),
    "attngeo.positions": (lambda: attngeo.positions("demo:encoder", fold_norm=True), {"fold_norm": True}),
}
# Functions whose table states other facts, and why.
OTHERS = {
    "attngeo.verify": "its outcome is the comparison with a running model",
}


def returns_a_table(function: object) -> bool:
    return inspect.isfunction(function) and inspect.unwrap(function).__annotations__.get("return") == "pd.DataFrame"


def test_every_public_function_that_returns_a_table_is_here() -> None:
    public = set()
    for package in ("attngeo", "attngeo.updates", "attngeo.pretrain"):
        module = import_module(package)
        public |= {f"{package}.{name}" for name in dir(module) if returns_a_table(getattr(module, name))}
    assert public == {*TABLES, *OTHERS}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_says_how_it_was_made(name: str) -> None:
    make, options = TABLES[name]
    attrs = make().attrs
    assert attrs["title"]
    assert {"model", "revision", "device"} <= attrs.keys()
    assert {*software(), *machine()} <= attrs.keys()
    assert {option: attrs[option] for option in options} == options


def test_updates_say_how_they_were_made() -> None:
    attrs = attngeo.gradients("demo:encoder", sequences=2, seq_len=8).rows.attrs
    assert attrs["title"]
    assert {"model", "revision", *software(), *machine()} <= attrs.keys()
