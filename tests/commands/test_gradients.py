"""`attngeo gradients` as a user runs it: by command, by recipe, and its figures."""

from __future__ import annotations

import io
import json
import shutil
from itertools import islice
from pathlib import Path

import pandas as pd
import pytest
from conftest import Command
from support.messages import assert_fails, refuses
from transformers import BloomConfig, BloomForCausalLM

import attngeo as library
from attngeo.checkpoints.demos import locate_demo
from attngeo.errors import (
    AttnGeoError,
    DataError,
    DataUnavailableError,
    ModelNotFoundError,
    UnsupportedModelError,
    UsageError,
)
from attngeo.pretrain.sources import open_text
from attngeo.reporting.recipe import read_recipe
from attngeo.reporting.report import build_report
from attngeo.updates.options import gradient_columns

SIZE = ("--sequences", 4, "--seq-len", 12)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Part of the embedded novels."""
    path = tmp_path_factory.mktemp("text") / "part.txt"
    path.write_text("\n".join(islice(open_text("austen").read_documents(), 200, 400)))
    return path


def test_the_table_fits_80_columns_and_files_have_the_rows_of_heads(
    inside: Command, text: Path, tmp_path: Path
) -> None:
    files = tmp_path / "u.csv", tmp_path / "pairs.parquet"
    run = inside("gradients", "demo:encoder", "--text", text, *SIZE, "-o", files[0], "--pairs-output", files[1])
    assert (run.returncode, run.stderr) == (0, "")
    assert max(map(len, run.stdout.splitlines())) <= 80
    assert "· mlm · loss" in run.stdout
    assert "encoder, 12 heads" in run.stdout
    rows = pd.read_csv(files[0])
    assert list(rows.columns) == list(gradient_columns())
    assert len(rows) == 15
    lines = [line.removeprefix(" encoder ").split() for line in run.stdout.splitlines()]
    shown = [line for line in lines if line[:1] in (["0"], ["1"], ["2"])]
    layers = rows[rows["head"].isna()]
    scores = [*layers["symmetry"], *layers["change_symmetry"]]
    assert [float(line[1]) for line in shown] == pytest.approx(scores, abs=1e-3)
    assert "change of W_qk by a step" in run.stdout
    assert len(pd.read_parquet(files[1])) == 3 * 4 * 12 * 12


def test_the_part_of_the_own_token_is_a_table_and_columns_of_files(inside: Command, text: Path, tmp_path: Path) -> None:
    file = tmp_path / "u.csv"
    arguments = ("gradients", "demo:decoder", "--text", text, *SIZE)
    plain = inside(*arguments)
    run = inside(*arguments, "--own-token", "-o", file, "--fail-if", "own_token_share.min > 0.95")
    assert (run.returncode, run.stderr.count("check passed")) == (0, 1)
    assert max(map(len, run.stdout.splitlines())) <= 80
    assert run.stdout.startswith(plain.stdout.rstrip("\n"))
    added = run.stdout.removeprefix(plain.stdout.rstrip("\n"))
    rows = pd.read_csv(file)
    assert list(rows.columns) == list(gradient_columns(own_token=True))
    layers = rows[rows["head"].isna()]
    shown = [line.split() for line in added.splitlines() if line.split()[:1] == ["decoder"]]
    assert [float(line[2]) for line in shown] == pytest.approx(layers["own_token_share"].tolist(), abs=1e-3)
    assert [float(line[3]) for line in shown] == pytest.approx(layers["other_tokens_share"].tolist(), abs=1e-3)
    assert layers["own_token_share"].iloc[-1] == pytest.approx(1, abs=1e-6)
    assert layers["own_token_share"].iloc[0] < 0.95
    assert "own token" not in plain.stdout


def test_columns_of_the_own_token_need_their_option(inside: Command, text: Path) -> None:
    arguments = ("gradients", "demo:decoder", "--text", text)
    for more in (("--columns", "model,own_token_share"), ("--fail-if", "own_token_cosine.min < 0.5")):
        assert_fails(inside(*arguments, *more), UsageError, "optional column", "--own-token")


def test_rows_for_programs_are_those_of_the_library(inside: Command, text: Path) -> None:
    run = inside("gradients", "demo:decoder", "--text", text, *SIZE, "--seed", 3, "--format", "csv")
    assert run.returncode == 0
    rows = library.gradients("demo:decoder", text=str(text), sequences=4, seq_len=12, seed=3).rows
    printed = pd.read_csv(io.StringIO(run.stdout))
    assert printed["symmetry"].tolist() == pytest.approx(rows["symmetry"].tolist(), abs=1e-5)
    foreign = inside("gradients", "demo:decoder", "--text", text, *SIZE, "--objective", "mlm", "--format", "json")
    assert json.loads(foreign.stdout)[0]["loss"] > 8
    assert "the model was trained on clm" in foreign.stderr


def test_what_cannot_be_measured_is_one_line_with_an_exit_code(inside: Command, text: Path, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("a\n")
    bloom, tokenizer = tmp_path / "bloom", locate_demo("encoder")
    (tmp_path / "empty.txt").touch()
    assert tokenizer is not None
    BloomForCausalLM(BloomConfig(vocab_size=1024, hidden_size=16, n_layer=1, n_head=2)).save_pretrained(bloom)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, bloom / name)
    cases: list[tuple[type[AttnGeoError], list[object], list[object]]] = [
        (UnsupportedModelError, ["demo:minilm"], ["BertModel", "head"]),
        (DataError, ["demo:encoder", "--text", tmp_path / "one.txt"], ["one.txt", 2, 32, "--seq-len"]),
        (DataError, ["demo:encoder", "--text", text, "--sequences", 99_999], ["99999", "--sequences"]),
        (DataUnavailableError, ["demo:encoder", "--text", tmp_path / "none.txt"], ["none.txt"]),
        (DataError, ["demo:encoder", "--text", tmp_path / "empty.txt"], ["empty.txt", "give another file"]),
        (UsageError, ["demo:encoder", "--sequences", 0], ["--sequences", 1]),
        (UsageError, ["demo:encoder", "--seq-len", 1], ["--seq-len", 2]),
        (UsageError, ["demo:encoder", "--text", text, "--seq-len", 200], ["--seq-len", 200]),
        (UsageError, ["demo:encoder", "-o", "a.csv", "--pairs-output", "a.csv"], ["twice"]),
        (ModelNotFoundError, ["demo:unknown"], ["demo:unknown"]),
    ]
    for error, arguments, facts in cases:
        assert_fails(inside("gradients", *arguments, cwd=tmp_path), error, *facts)
    model = (bloom, "--text", text, "--objective", "clm", *SIZE)
    assert_fails(inside("gradients", *model), UnsupportedModelError, "BloomForCausalLM", "attention functions")


RECIPE = """
title = "Updates"
[[results]]
name = "updates"
command = "gradients"
models = ["demo:encoder", "demo:decoder"]
options = { text = "./part.txt", sequences = 4, seq_len = 12 }
[[results]]
name = "pairs"
command = "file"
path = "pairs.csv"
[[section]]
title = "Both"
figures = [
    { kind = "updates", of = "updates", score = "directionality" },
    { kind = "pairs", of = "pairs", layer = 1, head = 2 },
]
tables = [{ of = "updates", show = "summary" }]
"""


def test_a_recipe_that_names_columns_of_the_own_token_has_the_option(tmp_path: Path) -> None:
    check = '[[check]]\nof = "updates"\nfail_if = "own_token_share.min < 0"\n'
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE + check)
    with refuses(UsageError, "own_token_share", "own_token = true"):
        read_recipe(recipe)
    recipe.write_text(RECIPE.replace("seq_len = 12", "seq_len = 12, own_token = true") + check)
    read_recipe(recipe)


@pytest.mark.usefixtures("no_pictures")
def test_a_recipe_asks_and_draws(text: Path, tmp_path: Path) -> None:
    shutil.copy(text, tmp_path / "part.txt")
    gradients = library.gradients("demo:encoder", text=str(text), sequences=4, seq_len=12)
    gradients.tabulate_pairs().to_csv(tmp_path / "pairs.csv", index=False)
    (tmp_path / "r.toml").write_text(RECIPE)
    made = build_report(tmp_path / "r.toml", tmp_path / "out")
    assert made.failures == []
    assert made.page.read_text().count('class="chart"') == 2
    rows = pd.read_csv(tmp_path / "out/tables/updates.csv")
    assert rows.groupby(["model", "objective"], sort=False).ngroups == 2
    assert rows[rows["model"] == "demo:encoder"]["symmetry"].tolist() == pytest.approx(
        gradients.rows["symmetry"].tolist(), abs=1e-5
    )


def test_a_file_of_pairs_that_an_older_version_wrote_is_met_with_the_former_name() -> None:
    names = ("model", "stack", "layer", "head", "position", "token", "other_position", "other_token", "beta")
    with refuses(DataError, "no column 'attended_position'", "called this column other_position before version 0.4"):
        library.plot("pairs", pd.DataFrame([["m", "s", 0, 0, 0, "a", 1, "b", 0.5]], columns=names))


def test_figures_show_both_objectives_and_the_pairs_of_one_head(text: Path) -> None:
    both = [
        library.gradients("demo:encoder", text=str(text), sequences=4, seq_len=12, objective=each)
        for each in ("mlm", "clm")
    ]
    figure = library.plot("updates", [gradients.rows for gradients in both])
    named = [trace for trace in figure.data if trace.showlegend is not False]
    assert [trace.name for trace in named] == ["encoder (mlm)", "decoder (clm)"]
    heads = both[1].rows.dropna(subset="head")
    assert list(named[1].y) == pytest.approx(heads.groupby("layer")["symmetry"].median().tolist())
    for axis in ("x", "x2"):
        is_line = [trace.mode == "lines+markers" for trace in figure.data if trace.xaxis == axis]
        assert is_line.index(True) == 4  # below all lines are both bands, of two edges each
    changes = [trace for trace in figure.data if trace.xaxis == "x2" and trace.mode == "lines+markers"]
    assert list(changes[1].y) == pytest.approx(heads.groupby("layer")["change_symmetry"].median().tolist())
    earlier = [gradients.rows.filter(regex="^(?!change_)") for gradients in both]
    assert not [trace for trace in library.plot("updates", earlier).data if trace.xaxis == "x2"]
    pairs = both[1].tabulate_pairs()
    for head in (None, 3):
        drawn = library.plot("pairs", pairs, layer=2, head=head)
        assert list(drawn.layout.xaxis.ticktext) == both[1].tokens
        (trace,) = drawn.data
        part = pairs[(pairs["layer"] == 2) & (pairs["head"] == head if head is not None else True)]
        total = part[(part["position"] == 5) & (part["attended_position"] == 4)]["beta"].sum()
        assert trace.z[5][4] == pytest.approx(total)
        assert pd.isna(trace.z[4][5])
    for options, facts in (({"layer": 7}, ["layer", 7]), ({"layer": 0, "head": 9}, ["head", 9])):
        with refuses(UsageError, *facts):
            library.plot("pairs", pairs, **options)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="rows for heads"):
        library.plot("updates", both[0].rows[both[0].rows["head"].isna()])
    with pytest.raises(DataError, match="model"):
        library.plot("pairs", [pairs, pairs.assign(model="other")])
