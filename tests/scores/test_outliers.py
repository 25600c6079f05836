"""Outliers that layers and heads share, against matrices that are formed, and their chance against simulation."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom
from support.checkpoints import weights, write_single
from support.messages import refuses

import attngeo
from attngeo.errors import UnsupportedModelError, UsageError
from attngeo.scores.matrices import count_outliers, expect_shared

Build = Callable[[str], Any]


def form_matrices(model: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """W_qk of each layer and of each head."""
    layers, heads = [], []
    for _, wq, wk in attngeo.attention_sites(model):
        products = (wq.double() @ wk.repeat_interleave(len(wq) // len(wk), 0).double().mT).numpy()
        layers.append(products.sum(0))
        heads += list(products)
    return layers, heads


def find_outliers(matrices: list[np.ndarray], axis: str, gamma: float) -> np.ndarray:
    """Whether each row or column of each matrix is an outlier, [matrices, d_model]."""
    norms = np.linalg.norm(matrices, axis=2 if axis == "row" else 1)
    return norms > norms.mean(1, keepdims=True) + gamma * norms.std(1, keepdims=True)


@pytest.mark.parametrize(("model", "gamma"), [("demo:decoder", 2.0), ("llama", 1.0)])
def test_counts_are_those_of_matrices_that_are_formed(model: str, gamma: float, built: Build) -> None:
    source = model if model.startswith("demo:") else built(model)
    table = count_outliers(source, gamma=gamma)
    layers, heads = form_matrices(source)
    d_model = len(layers[0])
    assert table.attrs["d_model"] == d_model
    assert (table.attrs["of_layers"], table.attrs["of_heads"]) == (len(layers), len(heads))
    for axis in ("row", "column"):
        rows = table[table["axis"] == axis].set_index("index")
        for unit, matrices in (("layers", layers), ("heads", heads)):
            outliers = find_outliers(matrices, axis, gamma)
            counts = rows[unit].reindex(range(d_model), fill_value=0)
            assert counts.tolist() == outliers.sum(0).tolist()
            draws = np.random.default_rng(0)
            places = np.stack([draws.permuted(outliers, axis=1).sum(0) for _ in range(2000)])
            for count in {1, 2, int(counts.max())}:
                expected = (places >= count).sum(1).mean()
                chance = rows.loc[rows[unit] == count, f"{unit}_chance"].unique()
                assert len(chance) == 0 or chance == pytest.approx(expected, abs=0.15 + 0.02 * expected)
    assert table["layers"].is_monotonic_decreasing


def test_a_dimension_that_every_layer_shares_comes_first(tmp_path: Path) -> None:
    tensors = weights(layers=5)
    for layer in range(5):
        tensors[f"model.layers.{layer}.self_attn.q_proj.weight"][:, 7] *= 30
        tensors[f"model.layers.{layer}.self_attn.k_proj.weight"][:, layer] *= 30
    table = count_outliers(write_single(tmp_path, tensors))
    first = table.iloc[0]
    assert (first["axis"], first["index"], first["layers"], first["heads"]) == ("row", 7, 5, 20)
    assert first["layers_chance"] == pytest.approx(24 / 24**5)
    columns = table[(table["axis"] == "column") & (table["layers"] > 0)]
    assert sorted(columns["index"]) == [0, 1, 2, 3, 4]
    assert (columns["layers"] == 1).all()
    assert columns["layers_chance"].tolist() == pytest.approx([24 * (1 - (23 / 24) ** 5)] * 5)


def test_broken_and_zero_layers_have_no_outliers(tmp_path: Path) -> None:
    tensors = weights(layers=3)
    for layer, value in enumerate((math.nan, math.inf, 0.0)):
        tensors[f"model.layers.{layer}.self_attn.k_proj.weight"][:] = value
    table = count_outliers(write_single(tmp_path, tensors))
    assert table.empty
    assert (table.attrs["of_layers"], table.attrs["of_heads"]) == (3, 12)


@pytest.mark.parametrize("factor", [2.0**-80, 2.0**80])
def test_the_size_of_weights_changes_no_outlier(factor: float, tmp_path: Path) -> None:
    """The squares of W_qk leave the range of float32."""
    usual = weights(layers=2)
    scaled = {name: tensor * factor if "k_proj" in name else tensor for name, tensor in usual.items()}
    expected = count_outliers(write_single(tmp_path / "usual", usual)).drop(columns="model")
    counts = count_outliers(write_single(tmp_path / "scaled", scaled)).drop(columns="model")
    pd.testing.assert_frame_equal(counts, expected)


def test_what_is_expected_is_binomial_if_all_have_as_many() -> None:
    expected = expect_shared([6] * 40, 384)
    assert expected.tolist() == pytest.approx((384 * binom.sf(np.arange(41) - 1, 40, 6 / 384)).tolist(), rel=1e-9)
    assert expect_shared([], 3).tolist() == [3]


def test_stacks_and_numbers_are_checked(saved: Callable[[str], Path]) -> None:
    assert set(count_outliers(saved("t5"), stack="decoder", gamma=0.5)["stack"]) == {"decoder"}
    with refuses(UsageError, "'vision'", "encoder"):
        count_outliers(saved("t5"), stack="vision")
    with refuses(UsageError, "gamma", "-1"):
        count_outliers(saved("t5"), gamma=-1)
    with refuses(UnsupportedModelError, "12, 24", "stack"):
        count_outliers(saved("swin"))


@pytest.mark.parametrize("side", [-1, 1])
def test_a_norm_near_the_threshold_is_on_its_side(side: int, tmp_path: Path) -> None:
    """γ is set so that a norm of a head misses the threshold by 1e-9 of it, which float32 cannot tell."""
    folder = write_single(tmp_path, weights(layers=1))
    _, heads = form_matrices(folder)
    norms = np.sort(np.linalg.norm(heads[0], axis=1))
    gamma = (norms[-3] * (1 + side * 1e-9) - norms.mean()) / norms.std()
    rows = count_outliers(folder, gamma=gamma).query("axis == 'row'").set_index("index")
    expected = find_outliers(heads, "row", gamma).sum(0)
    assert rows["heads"].reindex(range(24), fill_value=0).tolist() == expected.tolist()
