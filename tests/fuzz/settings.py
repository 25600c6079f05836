"""Mutated settings of a run: those that are accepted are the values of the file, of the types that are declared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fuzz.outcome import Wrong
from fuzz.recipes import REAL
from support.mutate import choose_junk, mutate_bytes, mutate_json, mutate_value

from attngeo.options import Options
from attngeo.pretrain import make_options
from attngeo.pretrain.settings import SETTINGS
from attngeo.scores.options import parse_scores


def write_settings(rng: Random, folder: Path) -> None:
    """The settings of a run on text or on images."""
    (folder / SETTINGS).write_bytes(mutate_settings(rng, rng.choice(list_settings())))


def check_settings(folder: Path, options: Options) -> None:
    stated: dict[str, Any] = json.loads((folder / SETTINGS).read_text())
    values = dict(options)
    hints = get_type_hints(type(options))
    for name, value in stated.items():
        is_real = name in REAL and type(value) is int
        expected = float(value) if is_real else value
        if name in ("init_std", "init_bias") and value is not None:
            expected = expand(value)
        if name == "scores":
            expected = parse_scores(value)
        if name not in values or values[name] != expected:
            raise Wrong(f"{name}: {values.get(name)!r:.80} instead of {expected!r:.80}")
    for name, value in values.items():
        if not has_type(value, hints[name]):
            raise Wrong(f"{name}: {value!r:.80} is not of type {hints[name]}")


def expand(value: Any) -> tuple[float, ...]:
    """Three numbers from one or three, which may be a text with commas between them."""
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
    numbers = tuple(map(float, parts))
    return numbers if len(numbers) == 3 else numbers * 3


@cache
def list_settings() -> list[dict[str, Any]]:
    """The settings of two runs, as their files hold them."""
    return [dict(make_options(model, steps=50)) for model in ("bert-mini", "vit-6")]


def mutate_settings(rng: Random, given: dict[str, Any]) -> bytes:
    """The bytes of settings: one value exchanged for any other, or any part changed."""
    match rng.choice(("value", "number", "parts", "json", "bytes")):
        case "value":
            given = given | {rng.choice(list(given)): choose_junk(rng)}
        case "number":
            name = rng.choice([name for name, value in given.items() if type(value) in (int, float)])
            given = given | {name: rng.choice((given[name] * 2, given[name] + 1, float(given[name]), 7, 0.25, True))}
        case "parts":
            given = mutate_value(rng, given)
        case "json":
            return mutate_json(rng, given)
        case "bytes":
            return mutate_bytes(rng, json.dumps(given, indent=2).encode())
    return json.dumps(given).encode()


def has_type(value: Any, hint: Any) -> bool:
    """Whether a value has a declared type; a whole number is also a real one, a truth value is no number."""
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) is tuple:
        kinds = get_args(hint)
        return type(value) is tuple and len(value) == len(kinds) and all(map(has_type, value, kinds))
    if get_origin(hint) is Sequence:
        return type(value) is tuple and all(has_type(each, *get_args(hint)) for each in value)
    if get_origin(hint) is UnionType or get_args(hint):
        return any(has_type(value, each) for each in get_args(hint))
    return type(value) in ((int, float) if hint is float else (hint,))
