"""Saved classifiers: they say the same when they are loaded, and broken ones are refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file, save_file
from sklearn.exceptions import NotFittedError
from support import golden_models
from support.messages import refuses
from torch import nn

from attngeo.errors import CorruptCheckpointError, ModelNotFoundError, TableError, UnsupportedModelError
from attngeo.estimators import AttentionClassifier, AttentionImputer
from attngeo.estimators.shared.paths import CONFIG
from attngeo.estimators.shared.saving import WEIGHTS
from attngeo.estimators.tabular.classifier import TableModel
from attngeo.scores.score import score

ROWS = pd.DataFrame({"size": ["s", "m", None, "l"] * 10, "age": [1, 2, 3, 1] * 10, "mass": np.linspace(0, 1, 40)})
LABELS = np.array(["no", "yes", "no", "maybe"] * 10)

COLUMN: dict[str, object] = {"name": "size", "values": ["s", "m"], "edges": None}


def fit(**parameters: Any) -> AttentionClassifier:
    given = {"max_epochs": 2, "n_heads": 2, "head_size": 3, "random_state": 0, "device": "cpu", **parameters}
    return AttentionClassifier(**given).fit(ROWS, LABELS)


@pytest.fixture(scope="module")
def fitted() -> AttentionClassifier:
    return fit()


@pytest.fixture
def saved(fitted: AttentionClassifier, tmp_path: Path) -> Path:
    fitted.save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("vocabulary", ["column", "shared"])
def test_a_loaded_model_says_the_same(vocabulary: str, tmp_path: Path) -> None:
    model = fit(vocabulary=vocabulary, n_bins=4, unseen="mask")
    model.save(tmp_path / "m")
    loaded = AttentionClassifier.load(tmp_path / "m")
    assert loaded.get_params() == model.get_params()
    assert loaded.columns_ == model.columns_
    rows = ROWS.assign(size=["xxl", *ROWS["size"][1:]])
    np.testing.assert_array_equal(loaded.predict_proba(rows), model.predict_proba(rows))
    assert loaded.predict(rows).tolist() == model.predict(rows).tolist()
    pd.testing.assert_frame_equal(loaded.impute(ROWS), model.impute(ROWS))
    for same in (model, loaded):
        with pytest.raises(ValueError, match="feature names"):
            same.predict(ROWS.assign(extra="x"))
    again = pickle.loads(pickle.dumps(model)).partial_fit(ROWS, LABELS)
    loaded.partial_fit(ROWS, LABELS)
    np.testing.assert_array_equal(loaded.predict_proba(ROWS), again.predict_proba(ROWS))


def test_a_model_without_a_target_is_loaded_as_such(saved: Path, tmp_path: Path) -> None:
    model = AttentionImputer(max_epochs=2, device="cpu", random_state=0).fit(ROWS)
    model.save(tmp_path / "m")
    loaded = TableModel.load(tmp_path / "m")
    assert isinstance(loaded, AttentionImputer)
    assert loaded.columns_ == ["size", "age", "mass"]
    pd.testing.assert_frame_equal(loaded.find_cells(ROWS), model.find_cells(ROWS))
    with refuses(UnsupportedModelError, tmp_path / "m", "without a target", "AttentionImputer.load"):
        AttentionClassifier.load(tmp_path / "m")
    with refuses(UnsupportedModelError, saved, "with a target", "AttentionClassifier.load"):
        AttentionImputer.load(saved)


def test_a_model_of_an_earlier_version_says_what_it_said() -> None:
    golden_models.assert_golden(golden_models.TABULAR)


def test_a_model_of_an_array_and_of_numbers_as_labels(tmp_path: Path) -> None:
    x = np.array([[0, 1.5], [1, np.nan], [0, 0.5], [1, 2.5]] * 5)
    model = AttentionClassifier(max_epochs=2, random_state=np.random.RandomState(1), device="cpu").fit(
        x, [3, 7, 3, 7] * 5
    )
    model.save(tmp_path / "m")
    loaded = AttentionClassifier.load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.predict_proba(x), model.predict_proba(x))
    assert loaded.classes_.tolist() == [3, 7]
    assert loaded.random_state is None


def test_its_attention_is_scored_as_that_of_any_model(saved: Path) -> None:
    """The linear layers of the file multiply as those of torch do."""
    rows = score(str(saved), per_head=True)
    tensors = load_file(saved / WEIGHTS)
    query, key = (tensors[f"encoder.layer.0.attention.self.{name}.weight"] for name in ("query", "key"))
    product = query.T.double() @ key.double()
    assert rows.loc[rows["head"].isna(), "symmetry"].item() == pytest.approx(
        float((product * product.T).sum() / product.square().sum()), abs=1e-5
    )
    assert rows["head"].notna().sum() == 2
    model = AttentionClassifier.load(saved)
    linear = nn.Linear(6, 6)
    linear.weight.data = query
    inputs = model.network_.weights["words"][0]
    weight = model.network_.weights["query"][0]
    np.testing.assert_allclose((linear(inputs) - linear.bias).detach(), (inputs @ weight).detach(), atol=1e-6)


def change_config(folder: Path, **changes: object) -> None:
    about = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(about | changes))


def test_a_model_of_a_gpu_is_used_without_one(saved: Path) -> None:
    parameters = json.loads((saved / CONFIG).read_text())["parameters"]
    change_config(saved, parameters=parameters | {"device": "cuda:77"})
    assert AttentionClassifier.load(saved).device == "auto"


@pytest.mark.parametrize("seed", [-1, float("inf"), "a"])
def test_a_seed_that_is_none_is_refused(seed: object, saved: Path) -> None:
    change_config(saved, seed=seed)
    with refuses(CorruptCheckpointError, saved / CONFIG, "seed"):
        AttentionClassifier.load(saved)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with refuses(ModelNotFoundError, tmp_path / "none", "--save"):
        AttentionClassifier.load(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with refuses(ModelNotFoundError, tmp_path / "file"):
        AttentionClassifier.load(tmp_path / "file")


@pytest.mark.parametrize(
    ("changes", "kind", "facts"),
    [
        ({"format": 3, "attngeo_version": "9.1"}, UnsupportedModelError, [3, "9.1", 2]),
        ({"model_type": "bert"}, UnsupportedModelError, ["bert", "attngeo_tabular"]),
        ({"columns": []}, CorruptCheckpointError, [CONFIG, "columns"]),
        ({"columns": [COLUMN, COLUMN, COLUMN | {"name": "y"}]}, CorruptCheckpointError, ["columns", "repeated name"]),
        (
            {"columns": [COLUMN | {"values": ["s", "s"]}, COLUMN]},
            CorruptCheckpointError,
            ["columns.0", "repeated value"],
        ),
        ({"columns": [COLUMN | {"values": [["s"]]}, COLUMN]}, CorruptCheckpointError, ["columns.0.values.0"]),
        ({"columns": [COLUMN | {"name": None}, COLUMN]}, CorruptCheckpointError, ["columns.0.name"]),
        ({"columns": [COLUMN, COLUMN | {"values": ["a"]}]}, CorruptCheckpointError, ["response", 2]),
        ({"columns": [COLUMN, COLUMN], "a" * 100_000: 1}, CorruptCheckpointError, ["unknown key"]),
        ({"columns": [COLUMN, COLUMN], "named": True}, CorruptCheckpointError, ["named", "unknown key"]),
        ({"data_sets": 0}, CorruptCheckpointError, ["data_sets", 1]),
        ({"epochs": True}, CorruptCheckpointError, ["epochs", "expected a whole number"]),
        ({"missing": "NA"}, CorruptCheckpointError, ["missing"]),
        ({"hidden_size": 5}, CorruptCheckpointError, ["hidden_size is 5", 6]),
        ({"num_hidden_layers": 2}, CorruptCheckpointError, ["num_hidden_layers"]),
        ({"parameters": {"random_state": -1}}, CorruptCheckpointError, ["random_state", "-1"]),
        (
            {"parameters": {"dropout": "0.1"}},
            CorruptCheckpointError,
            ["parameters.dropout", "expected a finite number"],
        ),
        ({"parameters": {"patience": 3}}, CorruptCheckpointError, ["patience", "validation_fraction"]),
        ({"parameters": {"head_size": 10**15}}, CorruptCheckpointError, ["num_attention_heads is 2, expected 5"]),
        ({"columns": [{"name": "a"}]}, CorruptCheckpointError, ["values"]),
        ({"parameters": {"heads": 2}}, CorruptCheckpointError, ["heads"]),
        ({"parameters": {"n_heads": 3}}, CorruptCheckpointError, ["num_attention_heads is 2, expected 3"]),
        ({"parameters": {"n_heads": "many"}}, CorruptCheckpointError, [CONFIG]),
    ],
)
def test_a_model_of_another_version_or_kind_is_refused(
    changes: dict[str, object], kind: type[Any], facts: list[object], saved: Path
) -> None:
    change_config(saved, **changes)
    with refuses(kind, *facts) as caught:
        AttentionClassifier.load(saved)
    assert len(str(caught.value)) < len(str(saved)) + 400


def test_broken_files_are_refused(saved: Path) -> None:
    whole, text = (saved / WEIGHTS).read_bytes(), (saved / CONFIG).read_text()
    tensors = {name: each.clone() for name, each in load_file(saved / WEIGHTS).items()}  # not a map of the file
    (saved / WEIGHTS).write_bytes(whole[:200])
    with refuses(CorruptCheckpointError, saved / WEIGHTS):
        AttentionClassifier.load(saved)
    save_file(tensors | {"classifier.bias": tensors["classifier.bias"] * np.nan}, saved / WEIGHTS)
    with refuses(CorruptCheckpointError, "classifier.bias", "finite"):
        AttentionClassifier.load(saved)
    name = "encoder.layer.0.intermediate.dense.weight"
    save_file(tensors | {name: tensors[name].T.contiguous()}, saved / WEIGHTS)
    with refuses(CorruptCheckpointError, name, "float32[6, 5]", "float32[5, 6]"):
        AttentionClassifier.load(saved)
    save_file(tensors | {name: tensors[name].half()}, saved / WEIGHTS)
    with refuses(CorruptCheckpointError, name, "float16[5, 6]"):
        AttentionClassifier.load(saved)
    (saved / WEIGHTS).unlink()
    with refuses(CorruptCheckpointError, saved / WEIGHTS):
        AttentionClassifier.load(saved)
    (saved / CONFIG).write_text(text[:50])
    with refuses(CorruptCheckpointError, saved / CONFIG):
        AttentionClassifier.load(saved)


@pytest.mark.parametrize("change", ["reversed", "longer"])
def test_edges_that_do_not_part_the_bins_are_refused(change: str, saved: Path) -> None:
    columns = json.loads((saved / CONFIG).read_text())["columns"]
    edges = columns[2]["edges"]
    columns[2]["edges"] = edges[::-1] if change == "reversed" else [*edges, edges[-1] + 1]
    change_config(saved, columns=columns)
    with refuses(CorruptCheckpointError, saved / CONFIG, "mass"):
        AttentionClassifier.load(saved)


def test_huge_sizes_are_refused_before_their_memory_is_taken(saved: Path) -> None:
    wide = {"name": "wide", "values": list(range(20_000)), "edges": None}
    empty = [{"name": str(number), "values": [], "edges": None} for number in range(20_000)]
    change_config(saved, columns=[wide, *empty, COLUMN])  # 1.6 GB of which words a column has
    with refuses(CorruptCheckpointError, saved / WEIGHTS, "float32[20, 6]", "float32[40003, 6]"):
        AttentionClassifier.load(saved)
    sizes = {"n_heads": 2**30, "head_size": 1, "feed_forward": 2**30}
    about = {"num_attention_heads": 2**30, "hidden_size": 2**30, "intermediate_size": 2**30}
    change_config(saved, parameters=sizes, **about)
    with refuses(CorruptCheckpointError, saved):
        AttentionClassifier.load(saved)


def test_parameters_of_numpy_are_saved_and_others_may_read_the_files(tmp_path: Path) -> None:
    fit(max_epochs=np.int64(1), dropout=np.float32(0.5), random_state=np.int64(3)).save(tmp_path / "m")
    assert AttentionClassifier.load(tmp_path / "m").get_params()["dropout"] == 0.5
    assert (tmp_path / "m" / WEIGHTS).stat().st_mode == (tmp_path / "m" / CONFIG).stat().st_mode


def test_a_model_without_a_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        AttentionClassifier().save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_values_that_json_lacks_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    rows = pd.DataFrame({"pair": [(1, 2), (3, 4)] * 4})
    model = AttentionClassifier(max_epochs=1, device="cpu").fit(rows, ["a", "b"] * 4)
    with refuses(TableError, "'pair'", "tuple"):
        model.save(tmp_path / "m")
    assert not (tmp_path / "m").exists()
