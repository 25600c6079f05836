"""Scores of what heads write, Wv·Wo: of matrices that are formed, and wherever a table of scores is used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.checkpoints import weights, with_outputs, write_single
from support.dense import dense_directionality, dense_symmetry
from support.messages import assert_states, refuses

import attngeo
from attngeo.errors import UnsupportedModelError, UsageError
from attngeo.figures.names import name_form
from attngeo.scores.score import score_columns
from attngeo.scores.summary import summarize

Run = Callable[..., CompletedProcess[str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of two layers of 4 heads, two of which share values."""
    return write_single(tmp_path / "model", with_outputs(weights()))


@pytest.mark.parametrize("name", ["llama", "gpt2", "deepseek_v3", "gpt_neox"])
def test_scores_are_those_of_the_formed_products(name: str, built: Callable[[str], Any]) -> None:
    model = built(name)
    sites = {w.site.layer: w for w in attngeo.attention_sites(model, circuit="ov", dtype=torch.float64)}
    rows = attngeo.score(model, circuit="ov", per_head=True, precision="float64", scores="all")
    assert (rows["circuit"] == "ov").all()
    for row in rows.to_dict("records"):
        of_site = sites[row["layer"]]
        group = len(of_site.wo) // len(of_site.wv)
        forms = [(of_site.wv[head // group] @ of_site.wo[head]).numpy() for head in range(len(of_site.wo))]
        m = sum(forms) if pd.isna(row["head"]) else forms[int(row["head"])]
        assert row["symmetry"] == pytest.approx(dense_symmetry(m), abs=1e-8)
        assert row["directionality"] == pytest.approx(dense_directionality(m), abs=1e-8)
        assert row["frobenius_norm"] == pytest.approx(np.linalg.norm(m), rel=1e-8)
        assert row["spectral_norm"] == pytest.approx(np.linalg.norm(m, 2), rel=1e-8)
        assert row["column_spread"] == pytest.approx(
            1 - np.mean(norms := np.linalg.norm(m, axis=0)) ** 2 / np.mean(norms**2)
        )
        assert pd.isna(row["head"]) or row["key_head"] == row["head"] // group
        assert row["head_dim"] == of_site.wv.shape[2]


def test_both_circuits_are_the_rows_of_each(folder: Path) -> None:
    both = attngeo.score(folder, circuit="both", per_head=True)
    assert list(both.columns) == list(score_columns(circuit="both"))
    for circuit in ("qk", "ov"):
        alone = attngeo.score(folder, circuit=circuit, per_head=True)  # type: ignore[arg-type]
        rows = both[both["circuit"] == circuit].reset_index(drop=True)
        pd.testing.assert_frame_equal(rows[list(alone.columns)], alone)
    assert "circuit" not in attngeo.score(folder)
    assert summarize(both)["stack"].tolist() == ["decoder qk", "decoder ov"]
    assert name_form(both) == "W<sub>qk</sub> and W<sub>ov</sub>"


def test_rotations_of_values_and_scalings_leave_the_scores(folder: Path, tmp_path: Path) -> None:
    tensors = with_outputs(weights())
    rotation = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(3))).Q
    name = "model.layers.0.self_attn.{}_proj.weight"
    values = tensors[name.format("v")].reshape(2, 6, 24)
    outputs = tensors[name.format("o")].reshape(24, 4, 6)
    tensors[name.format("v")] = (3 * rotation @ values).reshape(12, 24)
    tensors[name.format("o")] = (outputs @ rotation.T).reshape(24, 24)
    before, after = (
        attngeo.score(path, circuit="ov", per_head=True) for path in (folder, write_single(tmp_path / "b", tensors))
    )
    names = ["symmetry", "directionality"]
    np.testing.assert_allclose(after[names], before[names], atol=1e-5)


def test_gains_are_folded_into_values(tmp_path: Path) -> None:
    tensors = with_outputs(weights())
    gain = torch.rand(24, generator=torch.Generator().manual_seed(4)) + 0.5
    gains = {f"model.layers.{layer}.input_layernorm.weight": gain.clone() for layer in range(2)}
    folded = {
        name: x * gain if name.split(".")[-2] in ("q_proj", "k_proj", "v_proj") else x for name, x in tensors.items()
    }
    got = attngeo.score(write_single(tmp_path / "a", tensors | gains), circuit="both", fold_norm=True, per_head=True)
    expected = attngeo.score(write_single(tmp_path / "b", folded), circuit="both", per_head=True)
    np.testing.assert_allclose(got["symmetry"], expected["symmetry"], atol=1e-5)


def test_stacks_are_named_with_their_circuits_once(folder: Path) -> None:
    """A figure of sizes summarises rows whose stacks are named already."""
    rows = attngeo.score(folder, circuit="both")
    figure = attngeo.plot("size", rows, published=False)
    stacks = [stack for trace in figure.data for _, stack, *_ in trace.customdata]
    assert stacks == [*summarize(rows)["stack"]] == ["decoder qk", "decoder ov"]


def test_a_model_without_outputs_is_refused_and_has_notes_beside_its_queries_and_keys(tmp_path: Path) -> None:
    folder = write_single(tmp_path)
    with refuses(UnsupportedModelError, "output projection"):
        attngeo.score(folder, circuit="ov")
    rows = attngeo.score(folder, circuit="both")
    assert rows["symmetry"].notna().tolist() == [True, False, True, False]
    assert rows["note"].str.contains("outputs cannot be read").tolist() == [False, True, False, True]


def test_one_refused_model_of_a_study_does_not_stop_the_others(inside: Run, folder: Path, tmp_path: Path) -> None:
    refused = write_single(tmp_path / "refused")
    done = inside("score", refused, folder, "--circuit", "ov", "-o", tmp_path / "s.csv", "-q")
    assert done.returncode == 4
    assert_states(done.stderr, "refused")
    rows = pd.read_csv(tmp_path / "s.csv")
    assert rows["model"].nunique() == 1
    assert rows["symmetry"].notna().all()


def test_nan_in_values_empties_the_rows_of_what_they_write_only(tmp_path: Path) -> None:
    tensors = with_outputs(weights())
    tensors["model.layers.0.self_attn.v_proj.weight"][0, 0] = float("nan")
    rows = attngeo.score(write_single(tmp_path, tensors), circuit="both", per_head=True, layers=[0])
    is_ov = rows["circuit"] == "ov"
    assert rows[~is_ov]["symmetry"].notna().all()
    assert rows[is_ov]["symmetry"].notna().tolist() == [False, False, False, True, True]
    assert rows[is_ov]["note"].iloc[0] == "NaN or Inf in the value or output weights"


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"circuit": "vo"}, ("circuit", "it is now called ov")),
        ({"circuit": "vq"}, ("circuit", "ov", "both")),
        ({"circuit": "ov", "with_bias": True}, ("with_bias", "circuit")),
        ({"circuit": "ov", "rope_offset": 3}, ("rope_offset",)),
        ({"circuit": "both", "adapter": "a", "adapter_only": True}, ("adapter_only",)),
    ],
)
def test_options_that_contradict_a_circuit_are_refused(options: dict[str, Any], facts: tuple[str, ...]) -> None:
    with refuses(UsageError, *facts):
        attngeo.score("demo:none", **options)


def test_the_command_prints_checks_selects_and_draws_circuits(inside: Run, tmp_path: Path) -> None:
    done = inside(
        "score", "demo:encoder", "--circuit", "both", "-o", tmp_path / "s.csv", "--plot", tmp_path / "s.html",
        "--fail-if", "heads.symmetry.max > 2", "--sort", "symmetry", "--columns", "circuit,layer,symmetry",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "(encoder ov)" in done.stderr
    assert list(pd.read_csv(tmp_path / "s.csv").columns) == ["circuit", "layer", "symmetry"]
    table = inside("score", "demo:encoder", "--circuit", "ov", "-q", COLUMNS="80")
    assert "encoder ov" in table.stdout
    refused = inside("score", "demo:none", "--columns", "circuit")
    assert_states(refused.stderr, "circuit")


@pytest.mark.parametrize("kind", ["heatmap", "layers", "heads", "size"])
def test_figures_tell_circuits_apart(kind: str, folder: Path) -> None:
    rows = attngeo.score(folder, circuit="both", per_head=True).assign(parameters=1000)
    figure = attngeo.plot(kind, rows)
    assert "W<sub>ov</sub>" in figure.layout.title.text
    texts = [trace.name or "" for trace in figure.data] + [note.text for note in figure.layout.annotations]
    assert kind == "size" or any("ov" in text for text in texts)


def test_a_default_run_reads_no_byte_more(folder: Path) -> None:
    survey = attngeo.score(folder)
    assert "circuit" not in survey
    (site, *_), *_ = attngeo.attention_sites(folder)
    assert not any("v_proj" in name or "o_proj" in name for name in site.reads)
