"""What is wrong with a recipe: pydantic's errors in our words, and parts that contradict each other."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from attngeo.figures.kinds import FrameName
from attngeo.reporting.schema import (
    COMMANDS,
    REQUESTS,
    Check,
    FigureBlock,
    FileRequest,
    Recipe,
    Section,
    TableBlock,
)
from attngeo.reporting.toml_lines import Place
from attngeo.schemas import expected_of

# The commands whose results a figure is drawn from, by the frame that it takes first; others are drawn from files only.
COMMANDS_OF_FRAME: dict[FrameName, tuple[str, ...]] = {
    "scores": ("score",), "summary": ("score",), "analogies": ("analogy",), "curves": ("pretrain",),
    "methods": ("simulate", "auto-mpg"), "errors": ("efa",),
}  # fmt: skip
# The same of what a table shows; rows are those of any command.
COMMANDS_OF_TABLE: dict[str, tuple[str, ...]] = {
    "rows": (), "summary": ("score",), "published": ("score",), "methods": ("simulate", "auto-mpg"),
    "advantage": ("simulate", "auto-mpg"),
}  # fmt: skip
# The keys that say what a figure is drawn from; those of all other kinds name results, and models among them.
SOURCE_KEYS: dict[FrameName, tuple[str, ...]] = {
    "matrix": ("model",), "curves": ("of",), "methods": ("of",), "cells": ("of",), "encodings": ("of",),
    "weights": ("of",), "vectors": ("of", "model"), "places": ("of",), "errors": ("of",),
}  # fmt: skip
# The tables of a recipe that have a class of their own, by their key.
TABLES: dict[str, type[BaseModel]] = {"section": Section, "figures": FigureBlock, "tables": TableBlock, "check": Check}


def find_contradictions(recipe: Recipe) -> Iterator[tuple[Place, str]]:
    """Problems that only show when parts are put together: where each is, and what is wrong."""
    names = [each.name for each in recipe.results]
    for i, name in enumerate(names):
        if name in names[:i]:
            yield ("results", i, "name"), f"{name!r} is used twice, expected different names"
    for i, section in enumerate(recipe.section):
        for j, figure in enumerate(section.figures):
            yield from _check_figure(recipe, ("section", i, "figures", j), figure)
        for j, table in enumerate(section.tables):
            yield from _check_reference(recipe, ("section", i, "tables", j), table.of, COMMANDS_OF_TABLE[table.show])
    for i, check in enumerate(recipe.check):
        yield from _check_reference(recipe, ("check", i), check.of, ("score",), check.models)


def _check_figure(recipe: Recipe, place: Place, figure: FigureBlock) -> Iterator[tuple[Place, str]]:
    spec = figure.spec
    source = SOURCE_KEYS.get(spec.frames[0], ("of", "models"))
    known = (*spec.options, *source)
    for name in type(figure).model_fields:
        if name in figure.model_fields_set and name not in ("kind", "caption", *known):
            yield (*place, name), f"{figure.kind} has no {name}, expected some of: {', '.join(known)}"
    if "score" in figure.model_fields_set and figure.shown.score not in spec.scores:
        yield (*place, "score"), f"score is {figure.shown.score!r}, expected one of: {', '.join(spec.scores)}"
    if "model" in source and figure.model is not None:
        if "of" in source and figure.of is not None:
            yield (*place, "model"), f"{figure.kind} has of, too; expected results or a model"
    elif "of" not in source:
        yield (*place, "model"), f'{figure.kind} requires one model, expected model = "org/name"'
    elif figure.of is None and "model" in source:
        yield (*place, "of"), "is missing, expected the name of a [[results]] table; or model, the folder of one"
    elif figure.of is None:
        yield (*place, "of"), "is missing, expected the name of a [[results]] table"
    else:
        commands = COMMANDS_OF_FRAME.get(spec.frames[0], ("file",))
        yield from _check_reference(recipe, place, figure.of, commands, figure.models)


def _check_reference(
    recipe: Recipe, place: Place, name: str, commands: tuple[str, ...], models: list[str] | None = None
) -> Iterator[tuple[Place, str]]:
    """Whether there are results of that name, of one of the commands (none: any) or from a file, with these models."""
    request = recipe.find_request(name)
    if request is None:
        known = ", ".join(each.name for each in recipe.results) or "(none)"
        yield (*place, "of"), f"there are no results {name!r}, expected one of: {known}"
    elif commands and request.command not in (*commands, "file"):
        yield (*place, "of"), f"{name!r} are results of {request.command}, expected {' or '.join(commands)}"
    elif not isinstance(request, FileRequest):
        own = recipe.models_of(name)
        for model in models or ():
            if model not in own:
                yield (*place, "models"), f"{name!r} has no model {model!r}, expected one of: {', '.join(own)}"


def describe_problem(error: ValidationError) -> tuple[Place, str]:
    """The place and the description of what pydantic found first.

    A mistyped key makes the right one missing as well; the mistyped one says more.
    """
    problem = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    place = _locate(problem)
    details = problem.get("ctx", {})
    match problem["type"]:
        case "extra_forbidden":
            return place, _describe_unknown_key(place, _find_command(problem))
        case "union_tag_not_found" | "union_tag_invalid":
            got = f", got {details['tag']!r}" if "tag" in details else ""
            return (*place, "command"), f"expected one of: {', '.join(COMMANDS)}{got}"
        case "too_short":
            return place, f"expected at least {details['min_length']}"
        case "string_pattern_mismatch":
            return place, f"expected letters, digits, - and _, starting with a letter, got {problem['input']!r:.60}"
        case "model_type" | "dict_type":
            return place, f"expected a table, got {problem['input']!r:.60}"
        case "missing":
            return place, "is missing"
        case "value_error":
            return place, str(details["error"])
    return place, f"expected {expected_of(problem)}, got {problem['input']!r:.60}"


def _locate(problem: ErrorDetails) -> Place:
    """The keys that lead to a problem, without pydantic's names for the members of a union.

    An error about several options begins with the name of one of them.
    """
    place = problem["loc"]
    if _find_command(problem) is not None:
        place = (*place[:2], *place[3:])
    if "where" in place:
        place = place[: place.index("where") + 2]
    named = problem["msg"].removeprefix("Value error, ").partition(" ")[0]
    if place[-1:] == ("options",) and isinstance(problem["input"], dict) and named in problem["input"]:
        place = (*place, named)
    return place


def _find_command(problem: ErrorDetails) -> str | None:
    """The command of the results that a problem is about; pydantic names it as the member of a union."""
    place = problem["loc"]
    return str(place[2]) if place[:1] == ("results",) and len(place) > 2 and place[2] in COMMANDS else None


def _describe_unknown_key(place: Place, command: str | None) -> str:
    known = _list_keys(place[:-1], command)
    near = get_close_matches(str(place[-1]), known, 1)
    return f"unknown key; did you mean {near[0]}?" if near else f"unknown key, expected some of: {', '.join(known)}"


def _list_keys(place: Place, command: str | None) -> list[str]:
    """The keys that a table of a recipe may have. command: of the results that it belongs to."""
    name = next((part for part in reversed(place) if isinstance(part, str)), "")
    if name == "results":
        requests = dict(zip(COMMANDS, REQUESTS, strict=True))
        allowed = REQUESTS if command is None else [requests[command]]
        return sorted({key for request in allowed for key in request.model_fields})
    if name == "options" and command is not None:
        options: Any = dict(zip(COMMANDS, REQUESTS, strict=True))[command].model_fields["options"].annotation
        return sorted(options.model_fields)
    return list(TABLES.get(name, Recipe).model_fields)
