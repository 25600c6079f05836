"""Public functions that get a value of a wrong type raise an error of attngeo, and none of Python's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

import pandas as pd
import pytest
import torch

import attngeo
from attngeo.errors import AttnGeoError

WRONG: tuple[Any, ...] = (3, 2.5, None, object(), b"x", [], {}, [3])
PACKAGES = ("attngeo", "attngeo.updates", "attngeo.pretrain")
# Values of the right type of required parameters, by name.
RIGHT: dict[str, Any] = {
    "model": "demo:encoder",
    "models": ["demo:encoder", "demo:decoder"],
    "candidates": "demo:decoder",
    "words": "king",
    "layer": 0,
    "wq": torch.eye(4)[:, :2],
    "wk": torch.eye(4)[:, :2],
    "kind": "heatmap",
    "inputs": pd.DataFrame({"model": ["a"]}),
    "figure": None,
    "path": "figure.html",
    "rows": pd.DataFrame({"model": ["a"]}),
}


def list_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    for package in PACKAGES:
        module = import_module(package)
        for name in dir(module):
            value = getattr(module, name)
            if not name.startswith("_") and inspect.isfunction(value):
                yield f"{package}.{name}", value


FUNCTIONS = dict(list_functions())


def list_required(function: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind not in several
    ]


def list_calls() -> Iterator[Any]:
    for name, function in FUNCTIONS.items():
        for wrong in list_required(function):
            yield pytest.param(name, wrong, id=f"{name}({wrong})")


@pytest.mark.parametrize(("name", "wrong"), [*list_calls()])
def test_a_value_of_a_wrong_type_is_refused_by_an_error_of_attngeo(name: str, wrong: str) -> None:
    function = FUNCTIONS[name]
    for value in WRONG:
        arguments = {other: RIGHT.get(other) for other in list_required(function)}
        with suppress(AttnGeoError):
            answer = function(**arguments | {wrong: value})
            if inspect.isgenerator(answer):
                next(answer, None)


def test_there_are_functions_to_call() -> None:
    assert {"attngeo.score", "attngeo.style", "attngeo.summarize", "attngeo.plot"} <= {*FUNCTIONS}
    assert attngeo.style.__name__ == "style"
