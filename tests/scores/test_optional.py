"""Optional scores: of matrices that are formed, and wherever a table of scores is used."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pandas as pd
import pytest
from support.checkpoints import weights, write_single
from support.dense import form
from support.messages import assert_states, refuses

import attngeo
from attngeo.errors import UsageError
from attngeo.reporting.recipe import read_recipe
from attngeo.scores.score import score_columns
from attngeo.scores.spec import SCORES, head_scores, score_names

Run = Callable[..., CompletedProcess[str]]
OPTIONAL = [name for name, spec in SCORES.items() if spec.is_optional]

RECIPE = """
title = "Spectra"

[[results]]
command = "score"
name = "scores"
models = ["demo:encoder"]
options = { scores = ["stable_rank"] }

[[section]]
title = "Ranks"
figures = [{ kind = "heatmap", of = "scores", score = "FIGURE" }]
tables = [{ of = "scores", show = "summary" }]

[[check]]
of = "scores"
fail_if = "CHECK.max > 1000"
"""


def test_optional_scores_are_those_of_the_formed_matrices(tmp_path: Path) -> None:
    """Grouped queries, and weights so small that the factors are rescaled."""
    tensors = weights()
    for name in tensors:
        if "q_proj" in name:
            tensors[name] = tensors[name] * 1e-9
    folder = write_single(tmp_path, tensors)
    sites = {site.layer: (wq, wk) for site, wq, wk in attngeo.attention_sites(folder)}
    rows = attngeo.score(folder, per_head=True, scores="all")
    for row in rows.to_dict("records"):
        wq, wk = sites[row["layer"]]
        forms = [form(wq[head], wk[head * len(wk) // len(wq)]) for head in range(len(wq))]
        m = sum(forms) if pd.isna(row["head"]) else forms[int(row["head"])]
        assert row["spectral_norm"] == pytest.approx(np.linalg.norm(m, 2), rel=1e-5)
        assert row["stable_rank"] == pytest.approx((np.linalg.norm(m) / np.linalg.norm(m, 2)) ** 2, rel=1e-5)
        assert row["trace_z"] == pytest.approx(math.sqrt(len(m)) * np.trace(m) / np.linalg.norm(m), abs=1e-4)
        eigenvalues = np.linalg.eigvals(m)
        share = eigenvalues.real.sum() / np.abs(eigenvalues).sum()
        assert row["positive_eigenvalues"] == pytest.approx(share, abs=1e-4)


def test_by_default_there_is_none_of_them() -> None:
    assert not {*OPTIONAL} & {*attngeo.score("demo:encoder").columns}
    assert score_columns() == attngeo.columns("score", scores=["symmetry"])


@pytest.mark.parametrize("chosen", ["stable_rank, trace_z", ["stable_rank", "trace_z"], ("trace_z", "stable_rank")])
def test_chosen_scores_are_columns_in_the_order_of_the_table(chosen: object) -> None:
    frame = attngeo.score("demo:encoder", scores=chosen, per_head=True)  # type: ignore[arg-type]
    assert list(frame.columns) == list(score_columns(["trace_z", "stable_rank"]))
    summary = attngeo.summarize(frame)
    layers = frame[frame["head"].isna()]
    assert summary["stable_rank_median"].item() == pytest.approx(layers["stable_rank"].median())
    assert "spectral_norm_median" not in summary


def test_a_head_that_is_not_finite_has_no_optional_score_and_the_others_do(tmp_path: Path) -> None:
    tensors = weights()
    tensors["model.layers.0.self_attn.q_proj.weight"][0, 0] = float("nan")
    rows = attngeo.score(write_single(tmp_path, tensors), layers=[0], per_head=True, scores="all")
    of_heads = [*head_scores(OPTIONAL)]
    assert rows[rows["head"] == 0][of_heads].isna().all(axis=None)
    assert rows[rows["head"] > 0][of_heads].notna().all(axis=None)


@pytest.mark.parametrize("wrong", ["beauty", ["trace_z", "beauty"], "", 3, [1]])
def test_unknown_scores_are_refused_with_the_list(wrong: object) -> None:
    facts = ["scores", *(["stable_rank", "all"] if wrong not in (3, [1]) else [])]
    with refuses(UsageError, *facts):
        attngeo.score("demo:none", scores=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments",
    [["--columns", "layer,stable_rank"], ["--sort", "-stable_rank"], ["--fail-if", "heads.stable_rank.max > 2"]],
)
def test_what_needs_an_optional_score_says_so_before_anything_is_read(arguments: list[str], inside: Run) -> None:
    done = inside("score", "demo:none", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert_states(done.stderr, "stable_rank", "--scores")


def test_the_command_prints_selects_and_checks_optional_scores(inside: Run, tmp_path: Path) -> None:
    done = inside("score", "demo:encoder", "--scores", "all", "-o", tmp_path / "s.csv", COLUMNS="80")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert all(SCORES[name].label in done.stdout for name in OPTIONAL)
    assert pd.read_csv(tmp_path / "s.csv")[OPTIONAL].notna().all(axis=None)
    checked = inside(
        "score", "demo:encoder", "--scores", "stable_rank", "--sort", "stable_rank", "--top", "1", "--fail-if",
        "stable_rank.max > 1", "-q",
    )  # fmt: skip
    assert checked.returncode == 1
    assert_states(checked.stderr, "stable_rank.max")


@pytest.mark.parametrize("name", OPTIONAL)
def test_an_optional_score_is_drawn_of_a_model_and_of_rows(name: str) -> None:
    rows = attngeo.score("demo:encoder", per_head=True, scores=[name])
    drawn = attngeo.plot("heatmap", "demo:encoder", score=name)
    assert drawn.data[-1].z.tolist() == attngeo.plot("heatmap", rows, score=name).data[-1].z.tolist()
    assert len(attngeo.plot("layers", rows, score=name).data)
    assert len(attngeo.plot("size", rows, score=name).data)
    assert attngeo.style(rows).to_html()


def test_kinds_without_optional_scores_refuse_them() -> None:
    with refuses(UsageError, "stable_rank", "symmetry"):
        attngeo.plot("updates", "somewhere", score="stable_rank")


def test_kept_scores_are_those_that_were_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNGEO_CACHE", str(tmp_path / "kept"))
    for circuit in ("qk", "ov"):
        for scores, expected in (("trace_z", ["trace_z"]), ("all", OPTIONAL), ("symmetry", [])):
            computed, kept = (
                attngeo.score("demo:encoder", scores=scores, circuit=circuit)  # type: ignore[arg-type]
                for _ in range(2)
            )
            assert [name for name in OPTIONAL if name in kept] == expected
            assert ("circuit" in kept) == (circuit == "ov")
            pd.testing.assert_frame_equal(kept, computed)
    assert len(list((tmp_path / "kept").glob("scores/*.parquet"))) == 6


@pytest.mark.usefixtures("no_pictures")
def test_recipes_know_the_optional_scores_of_their_results(inside: Run, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE.replace("FIGURE", "stable_rank").replace("CHECK", "stable_rank"))
    done = inside("report", path, "-o", tmp_path / "report", "-q")
    assert done.returncode == 0, done.stderr
    assert "stable rank" in (tmp_path / "report" / "report.md").read_text("utf-8").lower()
    for figure, check in (("trace_z", "stable_rank"), ("stable_rank", "trace_z")):
        path.write_text(RECIPE.replace("FIGURE", figure).replace("CHECK", check))
        with refuses(UsageError, "trace_z", "scores"):
            read_recipe(path)


def test_the_names_are_those_of_the_table() -> None:
    assert score_names(OPTIONAL) == tuple(SCORES)
