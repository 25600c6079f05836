"""The spectrum of one matrix, as a table and as a figure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.checkpoints import weights, with_outputs, write_single
from support.dense import form
from support.messages import refuses

import attngeo
from attngeo.errors import CheckpointError, UnsupportedModelError, UsageError
from attngeo.scores.matrices import measure_spectrum


@pytest.mark.parametrize("head", [None, 3])
def test_the_values_are_those_of_the_formed_matrix(head: int | None, tmp_path: Path) -> None:
    folder = write_single(tmp_path, weights())
    (_, wq, wk), *_ = attngeo.attention_sites(folder, layers=[1], dtype=torch.float64)
    forms = [form(wq[number], wk[number * len(wk) // len(wq)]) for number in range(len(wq))]
    m = sum(forms) if head is None else forms[head]
    spectrum = measure_spectrum(folder, layer=1, head=head)
    expected = np.linalg.svd(m, compute_uv=False)[: len(spectrum)]
    np.testing.assert_allclose(spectrum["value"], expected, rtol=0, atol=1e-8 * expected[0])
    assert spectrum.attrs["frobenius_norm"] == pytest.approx(np.linalg.norm(m))
    assert (spectrum.attrs["layer"], spectrum.attrs["head"]) == (1, head)


@pytest.mark.parametrize("head", [None, 3])
def test_the_values_of_what_is_written(head: int | None, tmp_path: Path) -> None:
    folder = write_single(tmp_path, with_outputs(weights()))
    of_site = next(attngeo.attention_sites(folder, circuit="ov", dtype=torch.float64))
    group = len(of_site.wo) // len(of_site.wv)
    forms = [(of_site.wv[number // group] @ of_site.wo[number]).numpy() for number in range(len(of_site.wo))]
    expected = np.linalg.svd(sum(forms) if head is None else forms[head], compute_uv=False)
    spectrum = measure_spectrum(folder, layer=0, head=head, circuit="ov")
    np.testing.assert_allclose(spectrum["value"], expected[: len(spectrum)], rtol=0, atol=1e-8 * expected[0])
    title = attngeo.plot("spectrum", folder, circuit="ov").layout.title.text
    assert "W<sub>ov</sub>" in title
    with refuses(UnsupportedModelError, "output projection"):
        measure_spectrum(write_single(tmp_path / "b"), circuit="ov")


def test_bands_join_values_that_are_nearly_equal(tmp_path: Path) -> None:
    """Of a head whose form has the singular values 4, 3.9, 2 and 1 three times."""
    tensors = weights()
    q = torch.zeros_like(tensors["model.layers.0.self_attn.q_proj.weight"])
    k = torch.zeros_like(tensors["model.layers.0.self_attn.k_proj.weight"])
    sizes = torch.tensor([4.0, 3.9, 2.0, 1.0, 1.0, 1.0])
    q[:6, :6] = torch.diag(sizes)
    k[:6, :6] = torch.eye(6)
    tensors["model.layers.0.self_attn.q_proj.weight"] = q
    tensors["model.layers.0.self_attn.k_proj.weight"] = k
    spectrum = measure_spectrum(write_single(tmp_path, tensors), layer=0, head=0)
    assert spectrum["value"].tolist() == pytest.approx(sizes.tolist())
    assert spectrum["band"].tolist() == [1, 1, 2, 3, 3, 3]


def test_a_value_within_five_percent_of_the_one_before_is_in_its_band(tmp_path: Path) -> None:
    """However far the last one of a band is from its first one."""
    tensors = weights()
    values = [1.0]
    for share in (0.955, 0.945, 0.955, 0.955, 0.945):
        values.append(share * values[-1])
    projections = {"q": torch.diag(torch.tensor(values)), "k": torch.eye(6)}
    for letter, matrix in projections.items():
        name = f"model.layers.0.self_attn.{letter}_proj.weight"
        tensors[name] = torch.zeros_like(tensors[name])
        tensors[name][:6, :6] = matrix
    spectrum = measure_spectrum(write_single(tmp_path, tensors), layer=0, head=0)
    assert spectrum["band"].tolist() == [1, 1, 2, 2, 2, 3]


def test_the_figure_marks_what_is_above_the_edge_and_joins_bands() -> None:
    spectrum = measure_spectrum("demo:minilm", layer=2, head=5)
    figure = attngeo.plot("spectrum", "demo:minilm", layer=2, head=5)
    points = figure.data[-1]
    assert points.y.tolist() == spectrum["value"].tolist()
    marked = {
        colour for colour, value in zip(points.marker.color, points.y, strict=True) if value > spectrum.attrs["edge"]
    }
    others = {
        colour for colour, value in zip(points.marker.color, points.y, strict=True) if value < spectrum.attrs["edge"]
    }
    assert not marked & others
    joined = [len(bar.x) for bar in figure.data[:-1]]
    sizes = spectrum["band"].value_counts(sort=False)
    assert joined == [size for size in sizes if size > 1]
    assert "head 5 of layer 2" in figure.layout.title.text


def test_there_is_no_spectrum_of_what_is_not_there(tmp_path: Path) -> None:
    with refuses(UsageError, "head 99"):
        measure_spectrum("demo:minilm", head=99)
    with refuses(UsageError, "spectrum", "one model"):
        attngeo.plot("spectrum", ["demo:minilm", "demo:encoder"])
    tensors = weights()
    tensors["model.layers.0.self_attn.q_proj.weight"][0, 0] = float("nan")
    with refuses(CheckpointError, "NaN"):
        measure_spectrum(write_single(tmp_path, tensors))
