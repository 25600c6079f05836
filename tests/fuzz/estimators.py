"""Mutated saved models: each that is loaded is the one of its file, and predicts finite numbers."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from fuzz.checkpoints import mutate_safetensors
from fuzz.outcome import Wrong, check_error
from safetensors.torch import load, load_file, save
from support.mutate import choose_junk, mutate_json
from support.sequences import make_efa
from torch import Tensor

from attngeo.errors import AttnGeoError
from attngeo.estimators import AttentionClassifier, ExponentialFamilyAttention
from attngeo.estimators.shared.paths import CONFIG
from attngeo.estimators.shared.saving import WEIGHTS

ROWS = pd.DataFrame(
    {
        "sequence": ["a", "a", "a", "b", "b"], "item": ["tea", "milk", "tea", "bread", "milk"],
        "value": [1.0, 0.0, 2.0, 1.0, 0.0], "x": [0.0, 1.0, 2.0, 0.5, 0.1], "y": [1.0, 0.0, 2.0, 0.3, 0.2],
        "before": [0.0, 1.0, 1.0, 2.0, 0.0], "before_day": pd.date_range("2020-01-01", periods=5),
    }
)  # fmt: skip
PLACES = pd.DataFrame(
    {"sequence": [1, 1, 1, 2, 2, 2], "x": [0.0, 1.0, 5.0] * 2, "y": [0.0, 2.0, 1.0] * 2, "value": range(6)}
)
EFA: tuple[tuple[pd.DataFrame, dict[str, Any]], ...] = (
    (ROWS, {"family": "poisson"}),
    (ROWS, {"family": "gaussian", "direction": "uni", "coordinates": ("x", "y"), "lags": ("before",), "join": 4}),
    (ROWS, {"family": "binomial:2", "value_embedding": "lookup", "output_units": (3,)}),
    (ROWS, {"value": ("value:poisson", "before:gaussian"), "covariates": ("x", "y:category", "before_day:time")}),
    (ROWS, {"part": "items", "covariates": ("y:category", "x")}),
    (ROWS, {"part": "items", "head_size": 3, "norm": True, "feed_forward": 3}),
    (ROWS, {"model": "fm", "part": "items", "start": True}),
    (PLACES, {"model": "fm", "coordinates": ("x", "y"), "n_neighbors": 1}),
)
CELLS = pd.DataFrame({"size": ["s", "m", None, "l"] * 5, "age": [1, 2, 3, 1] * 5, "mass": np.linspace(0, 1, 20)})
LABELS = np.array(["no", "yes", "no", "maybe"] * 5)
TABULAR: tuple[dict[str, Any], ...] = ({}, {"vocabulary": "shared", "n_bins": 4, "unseen": "mask"})
# The units of a model's numbers, and the largest weight of those above: other ones may be right, and overflow.
SCALES, LARGEST = ("values", "covariates", "place_scale"), 10.0
LONG = "a" * 100_000
FAMILIES = (
    "poisson:1", "gaussian:0.5", "gaussian:1e-300", "gaussian:nan", "bernoulli", "binomial:" + "9" * 300,
    "binomial:0", "gamma:1e308", "gamma:2", "negative-binomial:1e308", "ordinal:3", "ordinal:99999999999",
    "poisson-from-1", "poisson:1e400", "waiting", "", ":", "poisson:", "poisson: 1", "\ud800",
)  # fmt: skip
DTYPES = (
    torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn,
)  # fmt: skip
# A mutated model is in a folder beside the one that it was, whose predictions it must have if nothing changed.
BEFORE, MUTATED = "before", "mutated"


class Saved(NamedTuple):
    """The files of a model: its configuration, and the bytes of its tensors."""

    config: dict[str, Any]
    weights: bytes


def save_model(model: ExponentialFamilyAttention | AttentionClassifier) -> Saved:
    with tempfile.TemporaryDirectory() as place:
        model.save(place)
        folder = Path(place)
        return Saved(json.loads((folder / CONFIG).read_text("utf-8")), (folder / WEIGHTS).read_bytes())


@cache
def train_efa() -> list[Saved]:
    """Some models of sequences."""
    shared = {"width": 4, "max_epochs": 1, "validation_fraction": 0, "device": "cpu"}
    return [save_model(make_efa(**shared | options).fit(rows)) for rows, options in EFA]


@cache
def train_tabular() -> list[Saved]:
    """Some models of tables."""
    shared: dict[str, Any] = {"max_epochs": 1, "n_heads": 2, "head_size": 3, "random_state": 0, "device": "cpu"}
    return [save_model(AttentionClassifier(**shared | parameters).fit(CELLS, LABELS)) for parameters in TABULAR]


def write_efa(rng: Random, folder: Path) -> None:
    """A model of `attngeo efa fit --save`."""
    write_mutated(rng, rng.choice(train_efa()), folder)


def write_tabular(rng: Random, folder: Path) -> None:
    """A model of `attngeo tabular fit --save`."""
    write_mutated(rng, rng.choice(train_tabular()), folder)


def read_efa(folder: Path) -> ExponentialFamilyAttention:
    return ExponentialFamilyAttention.load(folder / MUTATED)


def read_tabular(folder: Path) -> AttentionClassifier:
    return AttentionClassifier.load(folder / MUTATED)


def check_efa(folder: Path, model: ExponentialFamilyAttention) -> None:
    stated = read_config(folder / MUTATED)
    check_stated(stated["options"], dict(model.options_))
    check_stated({"items": stated["items"]}, {"items": model.items_})
    predictions = predict_rows(model)
    if predictions is not None:
        if not np.isfinite(predictions).all() and has_usual_sizes(folder, model):
            raise Wrong(f"predictions that are not finite: {predictions}")
        if is_same(folder):
            check_same(predictions, predict_rows(ExponentialFamilyAttention.load(folder / BEFORE)))
    with tempfile.TemporaryDirectory() as place:
        model.save(place)
        ExponentialFamilyAttention.load(place)


def check_tabular(folder: Path, model: AttentionClassifier) -> None:
    stated = read_config(folder / MUTATED)
    check_stated(stated["parameters"], model.get_params())
    for column, coding in zip(stated["columns"], model.coding_.columns, strict=True):
        check_stated(column, dataclasses.asdict(coding))
    predictions = predict_cells(model)
    if predictions is not None and is_same(folder):
        check_same(predictions, predict_cells(AttentionClassifier.load(folder / BEFORE)))
    with tempfile.TemporaryDirectory() as place:
        model.save(place)
        AttentionClassifier.load(place)


def has_usual_sizes(folder: Path, model: ExponentialFamilyAttention) -> bool:
    """Whether the numbers of a model are of the size that training gives them."""
    before, after = (read_config(folder / name)["shape"] for name in (BEFORE, MUTATED))
    weights = model.model_.state_dict().values()
    return all(after.get(name) == before[name] for name in SCALES) and all(
        bool((weight.abs() <= LARGEST).all()) for weight in weights
    )


def is_same(folder: Path) -> bool:
    """Whether the files of the mutated model say what those of the model before say."""
    if read_config(folder / BEFORE) != read_config(folder / MUTATED):
        return False
    old, new = (load_file(folder / name / WEIGHTS) for name in (BEFORE, MUTATED))
    return old.keys() == new.keys() and all(torch.equal(old[name], new[name]) for name in old)


def check_same(predictions: np.ndarray, expected: np.ndarray | None) -> None:
    if expected is None or not np.array_equal(predictions, expected):
        raise Wrong(f"other predictions: {predictions} instead of {expected}")


def read_config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / CONFIG).read_text("utf-8"))
    return config


def predict_rows(model: ExponentialFamilyAttention) -> np.ndarray | None:
    """Log p and the prediction of some rows; None if the model refuses them."""
    options, places = model.options_, model._parts[0].shape.places
    rows = PLACES if places else ROWS
    columns: dict[str, Any] = {options.sequence: rows["sequence"], options.position or "position": rows.index}
    columns |= dict.fromkeys(options.lags, np.arange(len(rows)) % 2.0)
    columns |= {
        name: [place[at] for place in places] * 2 if places else rows["x" if at else "y"]
        for at, name in enumerate(options.coordinates)
    }
    columns |= dict.fromkeys(options.families, np.ones(len(rows)))
    shapes = dict(zip(options.kinds, model._parts[0].shape.covariates, strict=True))
    columns |= {
        name: ROWS["before_day"][0] if shape.kind == "time" else [*shape.categories, 1.0][0]
        for name, shape in shapes.items()
    }
    if model.items_:
        columns |= {options.item: pd.Series([model.items_[at % len(model.items_)] for at in rows.index], dtype=object)}
    try:
        table = pd.DataFrame(columns)
        return np.array([*model.log_prob(table), *model.predict(table).select_dtypes("number").to_numpy().ravel()])
    except AttnGeoError as error:
        check_error(error)
        return None


def predict_cells(model: AttentionClassifier) -> np.ndarray | None:
    """The probabilities of some rows; None if the model refuses them. Raises Wrong unless each row has the sum 1."""
    columns = [
        pd.Series([coding.values[at % len(coding.values)] if coding.values else None for at in range(4)], dtype=object)
        for coding in model.coding_.columns[:-1]
    ]
    named = all(isinstance(name, str) for name in model.coding_.names)
    table = pd.concat(columns, axis=1, keys=model.coding_.names if named else range(len(columns)))
    try:
        found = model.predict_proba(table if named else table.to_numpy())
        model.predict(table if named else table.to_numpy())
    except AttnGeoError as error:
        check_error(error)
        return None
    if found.shape != (4, len(model.coding_.response.values)) or not np.allclose(found.sum(1), 1):
        raise Wrong(f"probabilities {found}")
    return found


def check_stated(stated: dict[str, Any], found: dict[str, Any]) -> None:
    """Raise Wrong unless values are those that a file states, of the same types."""
    for name, value in stated.items():
        own = found.get(name)
        wanted = list(map(float, value)) if name == "edges" and value else float(value) if type(own) is float else value
        if name != "device" and write_plain(own) != write_plain(wanted):
            raise Wrong(f"{name}: {own!r:.80} instead of {value!r:.80}")


def write_plain(value: Any) -> str:
    """A value as JSON, in which 1, 1.0 and true differ."""
    return json.dumps(value, default=list)


def write_saved(saved: Saved, folder: Path) -> None:
    """Write the files of a model to a folder, which is created."""
    folder.mkdir()
    (folder / CONFIG).write_text(json.dumps(saved.config))
    (folder / WEIGHTS).write_bytes(saved.weights)


def write_mutated(rng: Random, before: Saved, folder: Path) -> None:
    """Write the files of a model, and again with a changed configuration, changed tensors, or both."""
    write_saved(before, folder / BEFORE)
    write_saved(before, folder / MUTATED)
    how = rng.choice(("json", "values", "values", "weights", "weights", "both"))
    if how == "json":
        (folder / MUTATED / CONFIG).write_bytes(mutate_json(rng, before.config))
    if how in ("values", "both"):
        config = json.loads(json.dumps(before.config))
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            change_value(rng, config)
        (folder / MUTATED / CONFIG).write_text(json.dumps(config))
    if how in ("weights", "both"):
        (folder / MUTATED / WEIGHTS).write_bytes(mutate_weights(rng, before.weights))


def change_value(rng: Random, config: dict[str, Any]) -> None:
    """Exchange one value of a configuration for another of its type, or of one that looks like it."""
    holder, key = rng.choice(list(list_places(config)))
    value = holder[key]
    if key == "family":
        holder[key] = rng.choice(FAMILIES)
        return
    match value:
        case bool():
            changed = rng.choice((not value, int(value), str(value), "", None))
        case int() | float():
            numbers = (str(value), bool(value), float(value), value + 1, value * 2, value / 3, -value, 0, 1, 10**7)
            changed = rng.choice((*numbers, 10**9, 10**15, 10**40, 1e30, 1e-30, 1e308, float("nan"), [value], None))
        case str():
            changed = rng.choice((value + "\ud800", value + "\x1b[31m\n", LONG, value.upper(), "", 1, [value], None))
        case list() if value:
            some = value[rng.randrange(len(value)) :]
            changed = rng.choice((value[::-1], value * 2, some, [*value, value[-1]], [*value, choose_junk(rng)]))
            changed = value * 10_000 if rng.random() < 0.03 else changed
        case _:
            changed = choose_junk(rng)
    holder[key] = changed


def list_places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each list or object in a value, with each of its keys."""
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from list_places(value[key])


def mutate_weights(rng: Random, data: bytes) -> bytes:
    """The bytes of tensors, with one changed: its numbers, shape, type or name; or with changed bytes."""
    if rng.random() < 0.3:
        return mutate_safetensors(rng, data, header_share=0.5)
    tensors = dict(sorted(load(data).items()))  # load gives them in another order each time
    name = rng.choice(list(tensors))
    tensor = tensors[name]
    generator = torch.Generator().manual_seed(rng.getrandbits(32))
    changes: list[Callable[[], Tensor]] = [
        lambda: tensor.mT if tensor.ndim > 1 else tensor[None],
        lambda: tensor.flatten() if tensor.ndim != 1 else tensor[:, None],
        lambda: tensor[:-1] if tensor.ndim else tensor[None],
        lambda: torch.cat([tensor, tensor]) if tensor.ndim else torch.zeros(0),
        lambda: tensor.to(rng.choice(DTYPES)),
        lambda: torch.where(
            torch.rand(tensor.shape, generator=generator) < 0.3, rng.choice((torch.nan, torch.inf)), tensor
        ),
        lambda: -tensor,
        lambda: torch.zeros_like(tensor),
    ]
    match rng.choice(("change", "change", "change", "remove", "rename", "add", "swap")):
        case "change":
            tensors[name] = rng.choice(changes)().contiguous()
        case "remove":
            del tensors[name]
        case "rename":
            tensors[rng.choice((name + "x", "x", name.upper()))] = tensors.pop(name)
        case "add":
            tensors[rng.choice(("x", f"{name}_bias", "encoder.layer.7.output.weight"))] = tensor.clone()
        case _:
            other = rng.choice(list(tensors))
            tensors[name], tensors[other] = tensors[other], tensors[name]
    return save(tensors)
