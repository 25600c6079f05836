"""Saved models: they say the same when they are loaded, their attention is scored, and broken ones are refused."""

from __future__ import annotations

import datetime
import json
import os
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from support import golden_models
from support.messages import refuses
from support.sequences import make_efa

from attngeo.errors import CorruptCheckpointError, OutputError, TableError, UnsupportedModelError
from attngeo.estimators import ExponentialFamilyAttention
from attngeo.estimators.shared.paths import CONFIG
from attngeo.estimators.shared.saving import WEIGHTS
from attngeo.scores.score import score

ROWS = pd.DataFrame(
    {
        "sequence": ["a", "a", "a", "b", "b"], "item": [3, 1, 2, 2, 3], "value": [1.0, 0.0, 2.0, 1.0, 0.0],
        "x": [0.0, 1.0, 2.0, 0.5, 0.1], "y": [1.0, 0.0, 2.0, 0.3, 0.2],
    }
)  # fmt: skip
PLACES = pd.DataFrame(
    {"sequence": [1, 1, 1, 2, 2, 2], "x": [0.0, 1.0, 5.0] * 2, "y": [0.0, 2.0, 1.0] * 2, "value": range(6)}
)
KINDS: dict[str, tuple[pd.DataFrame, dict[str, Any]]] = {
    "values": (ROWS, {"family": "poisson"}),
    "learned variance": (ROWS, {"family": "gaussian", "direction": "uni"}),
    "items": (ROWS, {"part": "items", "head_size": 3}),
    "coordinates": (ROWS, {"coordinates": ("x", "y"), "lags": ("x",), "join": 6, "norm": True, "feed_forward": 3}),
    "levels": (ROWS, {"value_embedding": "lookup", "family": "ordinal:3"}),
    "factors": (ROWS, {"model": "fm", "part": "items", "start": True}),
    "places": (PLACES, {"model": "fm", "coordinates": ("x", "y"), "n_neighbors": 1}),
}


def fit(data: pd.DataFrame = ROWS, **options: Any) -> ExponentialFamilyAttention:
    given: dict[str, Any] = {"width": 4, "max_epochs": 2, "validation_fraction": 0, "device": "cpu"}
    return make_efa(**given | options).fit(data)


@cache
def fit_once(kind: str) -> ExponentialFamilyAttention:
    data, options = KINDS[kind]
    return fit(data, **options)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    fit_once("items").save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_model_says_the_same(kind: str, tmp_path: Path) -> None:
    data, model = KINDS[kind][0], fit_once(kind)
    model.save(tmp_path / "m")
    loaded = ExponentialFamilyAttention.load(tmp_path / "m")
    assert loaded.options_ == model.options_
    assert loaded.items_ == model.items_
    assert loaded.log_prob(data).equals(model.log_prob(data))
    assert loaded.predict(data).equals(model.predict(data))
    again = tmp_path / "again"
    loaded.save(again)
    assert load_file(again / WEIGHTS).keys() == load_file(tmp_path / "m" / WEIGHTS).keys()


@pytest.mark.parametrize("name", golden_models.EFA)
def test_a_model_of_an_earlier_version_says_what_it_said(name: str) -> None:
    golden_models.assert_golden(name)


@pytest.mark.parametrize(("direction", "stack"), [("bi", "encoder"), ("uni", "decoder")])
def test_its_attention_is_scored_as_that_of_any_model(direction: str, stack: str, tmp_path: Path) -> None:
    model = fit(part="items", n_layers=2, n_heads=2, direction=direction)
    model.save(tmp_path / "m")
    rows = score(str(tmp_path / "m"), per_head=True)
    for number, layer in enumerate(model.model_.attention.layers):
        product = (layer.query.weight.T @ layer.key.weight).detach().double()
        whole = rows[(rows["layer"] == number) & rows["head"].isna()]
        assert whole["symmetry"].item() == pytest.approx(
            float((product * product.T).sum() / product.square().sum()), abs=1e-5
        )
    assert rows["head"].notna().sum() == 4
    assert set(rows["stack"]) == {stack}
    assert set(rows["note"]) == {""}


def test_a_model_of_a_gpu_is_used_without_one(saved: Path) -> None:
    options = json.loads((saved / CONFIG).read_text())["options"]
    change_config(saved, options=options | {"device": "cuda:77"})
    assert ExponentialFamilyAttention.load(saved).log_prob(ROWS).notna().all()


def change_config(folder: Path, **changes: object) -> None:
    about = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(about | changes))


def test_options_have_their_new_names_in_a_model_of_an_earlier_version(saved: Path) -> None:
    """An option that has both names is refused for the former one."""
    options = json.loads((saved / CONFIG).read_text())["options"]
    former = {"standardize": "standardise", "n_neighbors": "neighbours"}
    change_config(saved, options={former.get(name, name): value for name, value in options.items()})
    change_config(saved, options=json.loads((saved / CONFIG).read_text())["options"] | {"standardise": False})
    assert ExponentialFamilyAttention.load(saved).options_.standardize is False
    change_config(saved, options=options | {"standardise": False})
    with refuses(CorruptCheckpointError, CONFIG, "standardise"):
        ExponentialFamilyAttention.load(saved)


def test_a_factor_model_has_no_attention_to_score(tmp_path: Path) -> None:
    fit(part="items", model="fm").save(tmp_path / "m")
    with refuses(UnsupportedModelError, "factor model", "--model efa"):
        score(str(tmp_path / "m"))


@pytest.mark.parametrize(
    ("changes", "kind", "facts"),
    [
        ({"format": 3}, UnsupportedModelError, [3, 5]),
        ({"model_type": "attngeo_tabular"}, UnsupportedModelError, ["attngeo_tabular", "attngeo_efa"]),
        ({"items": [1]}, CorruptCheckpointError, [CONFIG, "items is 3, expected 1"]),
        ({"options": {"width": "many"}}, CorruptCheckpointError, ["width"]),
        ({"options": {"part": "items", "width": 6}}, CorruptCheckpointError, [WEIGHTS]),
        ({"shape": {}}, CorruptCheckpointError, ["part"]),
        ({"num_hidden_layers": 3}, CorruptCheckpointError, ["num_hidden_layers is 3", "as its other keys say"]),
    ],
)
def test_a_model_of_another_version_or_kind_is_refused(
    changes: dict[str, object], kind: type[Any], facts: list[object], saved: Path
) -> None:
    change_config(saved, **changes)
    with refuses(kind, *facts):
        ExponentialFamilyAttention.load(saved)


def set_value(folder: Path, place: str, value: object) -> None:
    """Exchange one value of the configuration, for example "options.width"."""
    about = json.loads((folder / CONFIG).read_text())
    *holders, key = place.split(".")
    holder = about
    for name in holders:
        holder = holder[int(name) if name.isdigit() else name]
    holder[key] = value
    (folder / CONFIG).write_text(json.dumps(about))


@pytest.mark.parametrize(
    ("place", "value", "facts"),
    [
        ("options.order", "", ["options.order", "expected true or false"]),
        ("options.width", True, ["options.width", "expected a whole number", True]),
        ("options.width", "4", ["options.width", "expected a whole number", "'4'"]),
        ("options.n_heads", 0, ["options.n_heads", "at least 1", "got 0"]),
        (
            "architecture.output_units",
            [0.5],
            ["architecture.output_units", "architecture.output_units", "0.5", "expected a whole number"],
        ),
        ("options.position", ["x"], ["options.position", "expected a text"]),
        ("options.sequence", "\ud800", ["cannot be read", "JSON"]),
        ("options." + "a" * 100_000, 1, ["unknown key"]),
        ("architecture.scale", "a" * 100_000, ["scale", "width"]),
        ("architecture.longest", 7, ["longest is 3", 7]),
        ("options.lags", ["x"], ["lags is 0", 1]),
        ("options.coordinates", ["x"], ["coordinates is 2", 1]),
        ("options.n_neighbors", 10**30, ["n_neighbors"]),
        ("shape.items", 10**15, ["shape.items"]),
        ("shape.levels", 3, ["levels is 3", "expected 0"]),
        ("shape.values.0.scale", [0.0, 0.0], ["shape.values.0.scale.1", "0.0"]),
        ("shape.place_scale", [[0.0, 1.0], [float("nan"), 1.0]], ["shape.place_scale.1.0", "finite"]),
        ("shape.values.0.variance", None, ["shape.values.0.variance"]),
        ("shape.values", [], ["values is 0", "expected 1"]),
        ("shape.covariates", [{"kind": "number"}], ["covariates is 1", "expected 0"]),
        ("shape.places", [[0.0, 0.0]] * 20_000, ["places is 20000", 3]),
        ("shape.places", [[0.0, 0.0], [1.0], [2.0, 0.0]], ["place", "2 coordinates"]),
        ("items", [1, 1], ["items is 0", 2]),
        ("epochs", 10**12, ["epochs"]),
        ("x", 1, ["unknown key"]),
    ],
)
def test_a_value_that_no_model_saves_is_refused(place: str, value: object, facts: list[object], tmp_path: Path) -> None:
    folder = tmp_path / "m"
    fit_once("places").save(folder)
    set_value(folder, place, value)
    with refuses(CorruptCheckpointError, folder / CONFIG, *facts) as caught:
        ExponentialFamilyAttention.load(folder)
    assert len(str(caught.value)) < len(str(folder)) + 400


@pytest.mark.parametrize("items", [[1, 1, 2], [1, 2, float("nan")], [1, 2, None], [1, 2, [3]], {"1": 2}])
def test_items_that_no_model_saves_are_refused(items: object, saved: Path) -> None:
    change_config(saved, items=items)
    with refuses(CorruptCheckpointError, saved / CONFIG, "items"):
        ExponentialFamilyAttention.load(saved)


@pytest.mark.parametrize("family", ["gaussian:1e-300", "binomial:0", "gamma:1e308", "poisson:inf", "ordinal:1"])
def test_a_family_with_a_number_that_it_cannot_have_is_refused(family: str, saved: Path) -> None:
    fit_once("values").save(saved)
    set_value(saved, "options.family", family)
    with refuses(CorruptCheckpointError, saved / CONFIG, "expected"):
        ExponentialFamilyAttention.load(saved)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    with refuses(OutputError, tmp_path / "file"):
        fit().save(tmp_path / "file")


def test_broken_files_are_refused(saved: Path) -> None:
    whole = (saved / WEIGHTS).read_bytes()
    tensors = {name: each.clone() for name, each in load_file(saved / WEIGHTS).items()}
    (saved / WEIGHTS).write_bytes(whole[:100])
    with refuses(CorruptCheckpointError, saved / WEIGHTS):
        ExponentialFamilyAttention.load(saved)
    name = "network.context.weight"
    save_file(tensors | {name: tensors[name] * float("nan")}, saved / WEIGHTS)
    with refuses(CorruptCheckpointError, name, "finite"):
        ExponentialFamilyAttention.load(saved)
    other = "network.center.weight"
    for changed, facts in (
        ({name: tensors[name].double()}, [name, "float64[4, 4]", "float32[4, 4]"]),
        ({name: tensors[name].to(torch.float8_e4m3fn)}, [name, "float8_e4m3fn[4, 4]"]),
        ({other: tensors[other].T.contiguous()}, [other, "float32[4, 3]", "float32[3, 4]"]),
        ({"x": torch.ones(1)}, ["x is unknown"]),
    ):
        save_file(tensors | changed, saved / WEIGHTS)
        with refuses(CorruptCheckpointError, saved / WEIGHTS, *facts):
            ExponentialFamilyAttention.load(saved)
    (saved / WEIGHTS).unlink()
    os.mkfifo(saved / WEIGHTS)  # it never ends
    with refuses(CorruptCheckpointError, saved / WEIGHTS, "regular file"):
        ExponentialFamilyAttention.load(saved)
    (saved / CONFIG).unlink()
    with refuses(CorruptCheckpointError, saved, "attngeo efa fit --save"):
        ExponentialFamilyAttention.load(saved)


@pytest.mark.parametrize("item", [datetime.date(2020, 1, 2), pd.Timestamp("2020-01-02"), b"tea", (1, 2)])
def test_items_that_a_saved_model_cannot_keep_are_refused_before_the_training(item: Any) -> None:
    rows = ROWS.assign(item=pd.Series([item] * len(ROWS)))
    said: list[object] = []
    model = ExponentialFamilyAttention(width=4, max_epochs=1, validation_fraction=0)
    with refuses(TableError, "'item'", f"has a {type(item).__name__}", "strings or numbers"):
        model.fit(rows, progress=said.append)
    assert said == []


def test_a_text_that_no_file_can_keep_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    model = copy(fit_once("items"))
    model.items_ = ["\ud800", *model.items_[1:]]
    with refuses(TableError, r"'\ud800'", "replace"):
        model.save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_the_name_of_a_missing_column_is_shortened(saved: Path) -> None:
    set_value(saved, "options.item", "a" * 100_000)
    with pytest.raises(TableError) as caught:
        ExponentialFamilyAttention.load(saved).predict(ROWS)
    assert len(str(caught.value)) < 400
