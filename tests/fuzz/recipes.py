"""Mutated recipes: each that is accepted has every value that tomllib reads, with its type, and no other."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

from fuzz.outcome import check_equal
from pydantic import BaseModel
from support.mutate import mutate_bytes, mutate_value

from attngeo.reporting.recipe import Recipe, read_recipe

SCORE = {
    "per_head": True, "stack": "encoder", "layers": [0, 2], "gamma": 2.5, "convention": "published", "with_bias": False,
    "fold_norm": True, "rope_offset": 3, "precision": "float64", "device": "cpu",
    "memory": "1.5GiB",
}  # fmt: skip
ANALOGY = {
    "table": "output", "answers": "all", "case": "keep", "subwords": "mean", "limit": 500, "normalize": True,
    "center": False, "remove_top": 2, "questions": "google", "keep_duplicates": True, "method": "3cosmul",
    "n_answers": 3, "own": True, "n_draws": 100, "seed": 1, "published": False, "memory": "2GB",
}  # fmt: skip
TEXT = {
    "compare": ["default", "symmetric"], "objectives": ["mlm"], "seeds": 2, "model": "bert-mini", "steps": 40,
    "batch_size": 8, "lr": 0.001, "warmup": 3, "weight_decay": 0.1, "mlm_probability": 0.2, "pack": False, "seed": 7,
}  # fmt: skip
IMAGES = {"data": "digits", "epochs": 2, "mixup": 0.5, "ema_decay": 0.9, "precision": "fp32", "log_every": 5}
RECIPE: dict[str, Any] = {
    "title": "A report", "text": "Some *text*.",
    "results": [
        {"name": "s", "command": "score", "models": ["demo:encoder", "demo:decoder"], "options": SCORE},
        {"name": "all", "command": "score", "models": ["demo:encoder"], "options": {"layers": "0-2,5", "gamma": 3}},
        {"name": "a", "command": "analogy", "models": ["demo:minilm"], "options": ANALOGY},
        {"name": "t", "command": "pretrain", "options": TEXT},
        {"name": "i", "command": "pretrain", "options": IMAGES},
        {"name": "f", "command": "file", "path": "scores.csv"},
    ],
    "section": [
        {
            "title": "One", "text": "x",
            "figures": [
                {"kind": "layers", "of": "s", "score": "directionality", "models": ["demo:encoder"], "stack": "x"},
                {"kind": "heatmap", "of": "f", "where": {"layer": 1, "symmetry": 0.5, "model": "m"}, "caption": "C"},
                {"kind": "matrix", "model": "demo:encoder", "layer": 1, "head": 2},
                {"kind": "size", "of": "all", "published": False},
                {"kind": "training", "of": "t", "score": "loss"},
            ],
            "tables": [
                {"of": "s", "columns": ["layer", "symmetry"], "where": {"head": 1}},
                {"of": "s", "show": "published", "caption": "C"},
            ],
        },
    ],
    "check": [{"of": "s", "models": ["demo:decoder"], "fail_if": "layers.symmetry.median < 0.2"}],
}  # fmt: skip
# The options of real numbers; a whole one arrives as a real one.
REAL = (
    "gamma", "lr", "weight_decay", "mlm_probability", "symmetry_penalty", "mixup", "cutmix", "label_smoothing",
    "ema_decay",
)  # fmt: skip
UNITS = {"": 1, "GB": 10**9, "GiB": 2**30}
VALUES = (
    True, False, 0, 1, 2, -1, 7, 2**40, 0.0, 0.5, 1.0, 1e308, math.nan, math.inf, "", "1", "0-1,4", "3, 4", "é", [],
)  # fmt: skip
FILE = "recipe.toml"


def write_recipe(rng: Random, folder: Path) -> None:
    """A recipe with an option of each kind."""
    (folder / FILE).write_bytes(mutate_recipe(rng))


def read_folder(folder: Path) -> Recipe:
    return read_recipe(folder / FILE).recipe


def check_recipe(folder: Path, recipe: Recipe) -> None:
    check_part("recipe", recipe, tomllib.loads((folder / FILE).read_bytes().decode()))


def mutate_recipe(rng: Random) -> bytes:
    """A recipe with one to three values changed, tables and keys among them; or with changed bytes."""
    recipe = json.loads(json.dumps(RECIPE))
    if rng.random() < 0.5:
        for _ in range(rng.choice((1, 1, 2))):
            table = rng.choice([table for table in list_tables(recipe) if table])
            key = rng.choice(list(table))
            same = [value for value in VALUES if type(value) is type(table[key])]
            table[key] = rng.choice(same if rng.random() < 0.7 and same else VALUES)
    elif rng.random() < 0.5:
        recipe = mutate_value(rng, recipe)
    text = "".join(f"{write_toml(key)} = {write_toml(value)}\n" for key, value in recipe.items())
    data = text.encode(errors="replace")
    return mutate_bytes(rng, data) if rng.random() < 0.3 else data


def list_tables(value: Any) -> list[dict[str, Any]]:
    """The tables in a value, itself included."""
    if isinstance(value, dict):
        return [value, *list_tables(list(value.values()))]
    if isinstance(value, list):
        return [table for part in value for table in list_tables(part)]
    return []


def write_toml(value: Any) -> str:
    """A value in TOML, which has no null."""
    match value:
        case dict():
            return "{" + ", ".join(f"{write_toml(str(key))} = {write_toml(each)}" for key, each in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(write_toml, value)) + "]"
        case bool() | str():
            return json.dumps(value, ensure_ascii=False)
        case None:
            return '""'
    return repr(value)


def check_part(where: str, found: Any, stated: Any, name: str = "") -> None:
    """Raise Wrong unless a part of a recipe is what its file states."""
    if isinstance(found, BaseModel):
        found = {key: getattr(found, key) for key in found.model_fields_set}
    if isinstance(stated, dict) and isinstance(found, Mapping):
        check_equal(where, sorted(found), sorted(stated))
        for key, value in stated.items():
            check_part(f"{where}.{key}", found[key], value, key if where.endswith(".options") else "")
    elif isinstance(stated, list) and isinstance(found, list | tuple):
        check_equal(f"{where}: length", len(found), len(stated))
        for number, (one, other) in enumerate(zip(found, stated, strict=True)):
            check_part(f"{where}[{number}]", one, other)
    elif name == "layers" and isinstance(stated, str):
        check_equal(where, list(found), read_layers(stated))
    elif name in ("compare", "objectives") and isinstance(stated, str):
        check_equal(where, found, [each.strip() for each in stated.split(",")])
    elif name == "memory" and isinstance(stated, str):
        check_equal(where, found, read_bytes_of(stated))
    elif name in REAL and type(stated) is int:
        check_equal(where, found, float(stated))
    else:
        check_equal(where, found, stated)


def read_bytes_of(text: str) -> int:
    """The bytes of an amount such as "1.5GiB", in one of the units that the recipes have."""
    unit = text.lstrip("0123456789. ")
    return int(Fraction(text.removesuffix(unit).strip()) * UNITS[unit])


def read_layers(text: str) -> list[int]:
    """The layers of a list such as "0-3,7"."""
    ranges = [part.partition("-") for part in text.split(",")]
    return sorted({each for first, _, last in ranges for each in range(int(first), int(last or first) + 1)})
