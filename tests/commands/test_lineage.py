"""`attngeo lineage` as a user runs it: by command and by recipe."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import pytest
import torch
from conftest import Command
from support.checkpoints import CONFIG, weights, write_single
from support.messages import assert_fails
from support.origins import add_noise, permutation, rotation, turn_stream

import attngeo as library
from attngeo.changes.lineage_options import VERDICTS
from attngeo.errors import ModelNotFoundError, UnsupportedModelError
from attngeo.reporting.report import build_report

FEW = ("--n-permutations", "19")


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a model, a descendant, a stranger, a wider one and reordered copies."""
    monkeypatch.chdir(tmp_path)
    write_single(tmp_path / "base", weights(), CONFIG)
    write_single(tmp_path / "tuned", add_noise(weights(), 0.1, seed=1), CONFIG)
    write_single(tmp_path / "stranger", weights(seed=1), CONFIG)
    wider = {name: torch.cat([tensor, tensor], 1) for name, tensor in weights().items()}
    write_single(tmp_path / "wider", wider, CONFIG | {"hidden_size": 48})
    write_single(tmp_path / "permuted", turn_stream(weights(), permutation(24, 1)), CONFIG)
    write_single(tmp_path / "rotated", turn_stream(weights(), rotation(24, 1)), CONFIG)
    return tmp_path


# Candidate → its verdict without --align, and facts of the paragraph that explains it.
EXPLAINED = {
    "./tuned": ("related", "not drawn independently", "cannot tell which came first"),
    "./stranger": ("no evidence", "does not show that the models are independent", "run the test again with --align"),
    "./permuted": ("suspicious", "neither is proof of a common origin", "--align recognises a reordered copy"),
    "./wider": ("not testable", "says nothing for or against", "--stack"),
}


def test_the_table_fits_and_a_sentence_says_what_it_means(inside: Command, models: Path) -> None:  # noqa: ARG001
    arguments = ("lineage", "./base", "./tuned", "./stranger", "./wider", *FEW)
    for width in (80, 60):
        run = inside(*arguments, COLUMNS=str(width))
        assert run.returncode == 0
        assert max(map(len, run.stdout.splitlines())) <= width
        lines = [line.split() for line in run.stdout.splitlines()]
        answers = {line[0]: line[1:3] for line in lines if line and line[0].startswith("./") and len(line) > 1}
        assert answers["./tuned"][0] == "related"
        assert answers["./stranger"] == ["no", "evidence"]
        assert answers["./wider"] == ["not", "testable"]
        table, _, meaning = " ".join(run.stdout.split()).partition(" related: ")
        assert meaning
        assert "the test" in table.partition("./wider")[2]  # its reason, the first words of a cell that is wrapped
        assert run.stderr == ""
    assert inside(*arguments, "-q").stderr == ""


@pytest.mark.parametrize("candidate", EXPLAINED)
def test_each_verdict_that_occurs_is_explained_and_no_other(candidate: str, inside: Command, models: Path) -> None:  # noqa: ARG001
    run = inside("lineage", "./base", candidate, *FEW, COLUMNS="500")
    table, *paragraphs = [
        line for line in run.stdout.splitlines() if line.partition(":")[0] in VERDICTS or "./" in line
    ][1:]
    verdict, *facts = EXPLAINED[candidate]
    assert verdict in table
    assert len(paragraphs) == 1
    assert paragraphs[0].startswith(f"{verdict}: ")
    for fact in facts:
        assert fact in paragraphs[0]
    has_reason = verdict in ("suspicious", "not testable")
    rows = library.lineage("./base", candidate, n_permutations=19)
    reason, _, caveats = rows["note"].item().partition("; ")
    assert (reason in table) is has_reason
    assert reason not in run.stderr
    assert caveats in run.stderr


def test_after_align_it_is_not_advised_again(inside: Command, models: Path) -> None:  # noqa: ARG001
    run = inside("lineage", "./base", "./permuted", "./rotated", "./stranger", "--align", *FEW, COLUMNS="300")
    assert "test again with" not in " ".join(run.stdout.split())
    verdicts = {name: name in run.stdout for name in VERDICTS}
    assert verdicts == {"related": True, "no evidence": True, "suspicious": True, "not testable": False}
    assert "no option recognises rotated copies" in " ".join(run.stdout.split())


def test_files_and_formats_have_all_columns(inside: Command, models: Path) -> None:
    run = inside("lineage", "./base", "./tuned", "./wider", *FEW, "-o", "l.csv", "-o", "l.parquet", "--format", "csv")
    assert (run.returncode, run.stderr) == (0, "")
    rows = library.lineage(models / "base", models / "tuned", n_permutations=19)
    for read in (pd.read_csv(io.StringIO(run.stdout)), pd.read_csv("l.csv"), pd.read_parquet("l.parquet")):
        assert list(read.columns) == list(library.columns("lineage"))
        assert read["related"].isna().tolist() == [False, True]
        assert read["verdict"].tolist() == ["related", "not testable"]
        assert bool(read["related"][0])
        assert read["similarity_z"][0] == pytest.approx(rows["similarity_z"][0])


def test_candidates_of_a_file_and_one_that_fails_costs_its_row(inside: Command, models: Path) -> None:
    write_single(models / "mlp", {"model.layers.0.mlp.up_proj.weight": torch.randn(8, 8)})
    (models / "list.txt").write_text("./stranger  # of another seed\n./mlp\n./tuned\n")
    run = inside("lineage", "./base", "./tuned", "--models", "list.txt", *FEW, "--format", "csv")
    assert run.returncode == 4
    assert pd.read_csv(io.StringIO(run.stdout))["other"].tolist() == ["./tuned", "./stranger"]
    assert "./mlp: no query-key attention" in run.stderr
    run = inside("lineage", "./base", "./mlp", "./none", *FEW)
    assert (run.returncode, run.stdout) == (4, "")
    assert [line.count(name) for line, name in zip(run.stderr.splitlines(), ("./mlp:", "./none:"), strict=True)] == [
        1,
        1,
    ]
    assert_fails(inside("lineage", "./base", "./mlp", *FEW), UnsupportedModelError, "./mlp", "no query-key attention")
    assert_fails(inside("lineage", "./mlp", "./base", *FEW), UnsupportedModelError, "./mlp", "no query-key attention")
    assert_fails(inside("lineage", "./base", "./none", *FEW), ModelNotFoundError, "./none")
    assert_fails(inside("lineage", "./base", "./base"), 2, "./base", "itself")
    assert_fails(inside("lineage", "./base", "./tuned", "-o", "tuned/config.json"), 2, "config.json", "input")
    no_table = {name: tensor for name, tensor in weights().items() if "embed" not in name}
    write_single(models / "headless", no_table, CONFIG)
    assert_fails(
        inside("lineage", "./base", "./headless", "--align"), UnsupportedModelError, "./headless", "no token embeddings"
    )


def test_what_is_kept_is_said(inside: Command, models: Path) -> None:
    arguments = ("lineage", "./base", "./tuned", *FEW)
    environment = {"ATTNGEO_CACHE": str(models / "kept")}
    first = inside(*arguments, **environment)
    again = inside(*arguments, **environment)
    assert again.stdout == first.stdout
    assert "from kept results; --fresh computes them again" in again.stderr
    assert "kept results" not in inside(*arguments, "--fresh", **environment).stderr


RECIPE = """
title = "Lineage"
[[results]]
name = "lineage"
command = "lineage"
models = ["./base", "./tuned", "./stranger", "./none"]
options = { n_permutations = 19 }
[[section]]
title = "Origins"
tables = [{ of = "lineage" }]
"""


def test_a_recipe_compares_the_first_model_with_the_others(models: Path) -> None:
    recipe = models / "r.toml"
    recipe.write_text(RECIPE)
    made = build_report(recipe, models / "page")
    assert len(made.failures) == 1
    assert "./none" in str(made.failures[0])
    rows = pd.read_csv(models / "page/tables/lineage.csv")
    assert rows["other"].tolist() == ["./tuned", "./stranger"]
    assert rows["model"].unique().tolist() == ["./base"]
    assert "no evidence" in made.page.read_text()
