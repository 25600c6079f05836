"""`attngeo.score`: head pairs, precisions and notes, against matrices that are formed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from support.checkpoints import weights, write_single
from support.dense import dense_directionality, dense_symmetry, form
from support.messages import assert_states, refuses
from support.tiny_models import BERT, TINY_MODELS, TinyModel, build

import attngeo
from attngeo.errors import ModelNotFoundError, UsageError
from attngeo.geometry.forms import Form, FormStatistics, form_statistics
from attngeo.scores import computing


def test_published_convention_pairs_heads_as_the_tables_did(tmp_path: Path) -> None:
    """Query head h with key head h mod K: told apart by making one key head stand for itself."""
    tensors = weights()
    tensors["model.layers.0.self_attn.k_proj.weight"][6:] = 0  # key head 1
    folder = write_single(tmp_path, tensors)
    empty = {}
    for convention in ("corrected", "published"):
        frame = attngeo.score(folder, per_head=True, layers=[0], convention=convention)  # type: ignore[arg-type]
        heads = frame[frame["head"].notna()]
        empty[convention] = heads[heads["symmetry"].isna()]["head"].tolist()
        assert heads["key_head"].tolist() == {"corrected": [0, 0, 1, 1], "published": [0, 1, 0, 1]}[convention]
    assert empty == {"corrected": [2, 3], "published": [1, 3]}


@pytest.mark.parametrize("convention", ["corrected", "published"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_and_heads_of_grouped_queries_against_formed_matrices(
    convention: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    """Every head's own matrix, and for the layer the sum of them all, formed and scored by the definition."""
    tensors = weights(dtype=dtype)
    folder = write_single(tmp_path, tensors)
    frame = attngeo.score(folder, per_head=True, convention=convention)  # type: ignore[arg-type]
    for layer in (0, 1):
        q, k = (tensors[f"model.layers.{layer}.self_attn.{name}_proj.weight"].reshape(-1, 6, 24) for name in "qk")
        paired = [h // 2 for h in range(4)] if convention == "corrected" else [h % 2 for h in range(4)]
        heads = [form(q[h].T, k[key].T) for h, key in enumerate(paired)]
        rows = frame[frame["layer"] == layer].to_dict("records")
        for row, m in zip(rows, [sum(heads), *heads], strict=True):
            assert row["symmetry"] == pytest.approx(dense_symmetry(m), abs=1e-5)
            assert row["directionality"] == pytest.approx(dense_directionality(m, 2.0, convention), abs=1e-5)
            assert row["frobenius_norm"] == pytest.approx(float((m**2).sum() ** 0.5), rel=1e-5)
            for axis, name in enumerate(("column_spread", "row_spread")):
                norms = np.linalg.norm(m, axis=axis)
                assert row[name] == pytest.approx(norms.var() / (norms**2).mean(), abs=1e-6)


def save_fused(tiny: TinyModel, folder: Path) -> list[np.ndarray]:
    """Save a model with random weights; its fused weights, [queries, keys and values, 32], layer by layer."""
    model = build(tiny)
    model.save_pretrained(folder)
    names = ("Wqkv.weight", "qkv_proj.weight")
    return [tensor.double().numpy() for name, tensor in model.state_dict().items() if name.endswith(names)]


@pytest.mark.parametrize("tiny", [TINY_MODELS["modernbert"], TinyModel("phi3", "Phi3ForCausalLM", BERT)])
def test_published_convention_leaves_fused_weights_untransposed_as_the_tables_did(
    tiny: TinyModel, tmp_path: Path
) -> None:
    """As in the authors' code: rows 0 to d of the weight, times the transpose of rows d to 2d."""
    fused = save_fused(tiny, tmp_path)
    frame = attngeo.score(tmp_path, convention="published", per_head=True)
    layers, heads = frame[frame["head"].isna()], frame[frame["head"].notna()]
    assert len(fused) == len(layers) > 1
    for weight, row in zip(fused, layers.to_dict("records"), strict=True):
        m = weight[:32] @ weight[32:64].T
        assert row["symmetry"] == pytest.approx((m * m.T).sum() / (m**2).sum(), abs=1e-5)
        assert row["directionality"] == pytest.approx(dense_directionality(m, 2.0, "published"), abs=1e-5)
        assert_states(row["note"], "matrix over outputs", "published convention")
    assert heads["symmetry"].isna().all()
    assert_states(heads["note"].iloc[0], "whole layers only")
    corrected = attngeo.score(tmp_path)
    for weight, value in zip(fused, corrected["symmetry"], strict=True):
        assert value == pytest.approx(dense_symmetry(weight[:32].T @ weight[32:64]), abs=1e-5)


def test_published_convention_has_no_square_matrix_of_fused_grouped_queries(tmp_path: Path) -> None:
    save_fused(TINY_MODELS["phi3"], tmp_path)  # 4 query heads of 8 dimensions, 2 key heads
    frame = attngeo.score(tmp_path, convention="published", per_head=True)
    assert frame["symmetry"].isna().all()
    assert_states(frame["note"].iloc[0], "not square", "queries have 32 outputs, keys 16")


@pytest.mark.parametrize("precision", ["float64", "fast"])
def test_precisions_agree(precision: str) -> None:
    exact, other = (attngeo.score("demo:minilm", per_head=True, precision=p) for p in ("float32", precision))  # type: ignore[arg-type]
    tolerance = {"float64": 1e-5, "fast": 5e-3}[precision]
    assert abs(exact["symmetry"] - other["symmetry"]).max() < tolerance
    if precision == "float64":
        assert abs(exact["directionality"] - other["directionality"]).max() < tolerance


@pytest.mark.parametrize(("per_head", "forms"), [(False, 1), (True, 13)])
def test_heads_are_computed_only_for_their_rows(per_head: bool, forms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a layer with 12 heads."""
    counts: list[int] = []

    def count(form: Form) -> FormStatistics:
        counts.append(len(form.left))
        return form_statistics(form)

    monkeypatch.setattr(computing, "form_statistics", count)
    assert len(attngeo.score("demo:minilm", layers=[0], per_head=per_head)) == forms == sum(counts)


def test_rows_name_the_options_that_are_not_at_their_defaults() -> None:
    frame = attngeo.score("demo:minilm", layers=[0], convention="published", gamma=1.5, with_bias=True)
    assert_states(frame["note"].item(), "biases", "published", "1.5")


@pytest.mark.slow  # a process that loads torch; import-linter has the same of imports that are written
def test_neither_scores_nor_pieces_of_words_import_transformers() -> None:
    code = (
        "import sys, attngeo\n"
        "attngeo.score('demo:minilm')\n"
        "print({'transformers', 'plotly'} & set(sys.modules))\n"
        "assert attngeo.open_embedding('demo:minilm').pieces('kings')\n"
        "print('transformers' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\nFalse\n"


def test_several_models_have_one_table() -> None:
    models = ["demo:encoder", "demo:decoder"]
    rows = attngeo.score(models, layers=[0])
    alone = pd.concat([attngeo.score(model, layers=[0]) for model in models], ignore_index=True)
    pd.testing.assert_frame_equal(rows, alone)
    assert rows.attrs["model"] == "demo:encoder, demo:decoder"
    assert rows.attrs["layers"] == (0,)


def test_of_several_models_the_first_that_fails_is_raised_when_all_are_done(tmp_path: Path) -> None:
    seen: list[str] = []
    with refuses(ModelNotFoundError, "missing"):
        attngeo.score(
            [str(tmp_path / "missing"), "demo:decoder"], layers=[0], progress=lambda step: seen.append(step.what)
        )
    assert any("2/2 demo:decoder" in what for what in seen)
    with refuses(UsageError, "no models"):
        attngeo.score([])


def test_the_tensors_of_a_model_are_no_list_of_models() -> None:
    with refuses(UsageError, "model", "dict", "org/name"):
        attngeo.score({"a.weight": torch.zeros(2, 2)})  # type: ignore[arg-type]
