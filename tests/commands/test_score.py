"""`attngeo score` as a user runs it: the installed command, its output, its files, its errors."""

from __future__ import annotations

import errno
import io
import json
import mmap
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
import torch
from attngeo.commands import asking
from conftest import Command
from support.checkpoints import CONFIG, link_many, weights, write_config, write_single
from support.messages import assert_fails, assert_states
from support.terminal import with_progress

import attngeo as library
from attngeo.bounds import machine
from attngeo.errors import AttnGeoError, CorruptCheckpointError, OutputError, UsageError

COLUMNS = [
    "model", "revision", "model_type", "stack", "layer", "head", "key_head", "d_model", "head_dim", "parameters",
    "format", "symmetry", "directionality", "frobenius_norm", "column_spread", "row_spread", "symmetry_z", "note",
]  # fmt: skip
Q0 = "model.layers.0.self_attn.q_proj.weight"


def golden() -> pd.DataFrame:
    return pd.read_csv(Path(__file__).parents[1] / "golden" / "minilm.csv", comment="#")


def test_minilm_published(inside: Command) -> None:
    run = inside("score", "demo:minilm", "--convention", "published", "--format", "json")
    assert (run.returncode, run.stderr) == (0, "")
    rows = pd.DataFrame(json.loads(run.stdout))
    assert rows["symmetry"].tolist() == pytest.approx(golden()["symmetry"].tolist(), abs=2e-6)
    assert rows["directionality"].tolist() == pytest.approx(golden()["directionality_published"].tolist(), abs=2e-6)


def test_minilm_corrected(inside: Command) -> None:
    run = inside("score", "demo:minilm", "--format", "json")
    rows = json.loads(run.stdout)
    assert list(rows[0]) == COLUMNS
    assert [row["head"] for row in rows] == [None] * 6
    assert [row["directionality"] for row in rows] == pytest.approx(golden()["directionality"].tolist(), abs=2e-6)
    assert {(row["model"], row["model_type"], row["stack"]) for row in rows} == {("demo:minilm", "bert", "encoder")}


def test_nothing_that_only_linux_has_is_required(
    inside: Command, saved: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["score", saved("bert"), "--per-head", "--format", "json"]
    expected = inside(*arguments).stdout
    read_text = Path.read_text

    def read_elsewhere(path: Path, *options: Any, **named: Any) -> str:
        if path.is_relative_to("/proc") or path.is_relative_to("/sys"):
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return read_text(path, *options, **named)

    monkeypatch.setattr(machine, "UNCHECKED", 0)
    monkeypatch.setattr(Path, "read_text", read_elsewhere)
    monkeypatch.setitem(sys.modules, "resource", None)
    for module, name in [
        (mmap, "MADV_HUGEPAGE"), (os, "getuid"), (os, "preadv"), (os, "sched_getaffinity"), (psutil, "RLIMIT_AS"),
        (select, "poll"),
    ]:  # fmt: skip
        monkeypatch.delattr(module, name, raising=False)
    done = inside(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")
    done = inside("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert {"processor", "cores"} <= {line.split()[0] for line in done.stdout.splitlines() if len(line.split()) > 1}


def test_the_table_fits_80_columns_and_sums_up(inside: Command) -> None:
    run = inside("score", "demo:minilm", "--per-head", "--layers", "0-1,4")
    assert (run.returncode, run.stderr) == (0, "")
    lines = run.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert_states(lines[0], "demo:minilm", "bert", "corrected")
    assert sum(" all " in line for line in lines) == 3
    summary = {line.partition("  ")[0]: line for line in lines[-5:]}
    assert_states(summary["encoder, 3 layers"], "+0.407 [+0.406, +0.524]")
    assert "encoder, 36 heads" in summary


def test_every_file_format_holds_the_same_rows(inside: Command, tmp_path: Path) -> None:
    names = ["t.csv", "t.json", "t.jsonl", "t.parquet", "t.md", "t.tex", "t.html"]
    options = [part for name in names for part in ("-o", name)]
    run = inside("score", "demo:minilm", "--per-head", "--layers", "2", "--quiet", *options, cwd=tmp_path)
    assert (run.returncode, run.stderr) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    expected = library.score("demo:minilm", per_head=True, layers=[2])
    read = {
        "csv": pd.read_csv(tmp_path / "t.csv"),
        "json": pd.read_json(tmp_path / "t.json"),
        "jsonl": pd.read_json(tmp_path / "t.jsonl", lines=True),
        "parquet": pd.read_parquet(tmp_path / "t.parquet"),
    }
    for kind, frame in read.items():
        assert list(frame.columns) == COLUMNS, kind
        assert len(frame) == 13
        assert frame["symmetry"].tolist() == pytest.approx(expected["symmetry"].tolist(), abs=1e-6), kind
        assert frame["head"].isna().tolist() == [True] + [False] * 12
    for name, shown in (("t.md", " 0.582 |"), ("t.tex", " 0.582 "), ("t.html", ">0.582<")):
        assert shown in (tmp_path / name).read_text()
    page = (tmp_path / "t.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "<dt>convention</dt><dd>corrected</dd>" in page


def test_several_models_make_one_table_and_one_may_fail(inside: Command, tmp_path: Path) -> None:
    good = write_single(tmp_path / "good")
    broken = write_single(tmp_path / "broken", weights() | {Q0: torch.ones(23, 24)})
    run = inside(
        "score", good, broken, "demo:minilm", tmp_path / "nothing", "--format", "json", "-o", tmp_path / "t.csv"
    )
    assert run.returncode == 4
    rows = json.loads(run.stdout)
    assert [row["model"] for row in rows] == [str(good)] * 2 + ["demo:minilm"] * 6
    assert len(pd.read_csv(tmp_path / "t.csv")) == 8
    first, second = run.stderr.splitlines()
    assert_states(first, broken, Q0, 23, 24)
    assert_states(second, tmp_path / "nothing")


def test_files_of_several_models_state_what_was_left_out_of_each(inside: Command, tmp_path: Path) -> None:
    whole = write_single(tmp_path / "whole")
    gap = write_single(tmp_path / "gap", {name: tensor for name, tensor in weights(3).items() if ".1." not in name})
    outputs = [tmp_path / "t.parquet", tmp_path / "t.html"]
    run = inside("score", whole, gap, "-o", outputs[0], "-o", outputs[1])
    assert run.returncode == 0, run.stderr
    about = pd.read_parquet(outputs[0]).attrs
    skipped = {str(model): library.score(model).attrs["skipped"] for model in (whole, gap)}
    assert (about["skipped"], skipped[str(whole)]) == (skipped, {})
    assert about["model"] == f"{whole}, {gap}"
    assert about["gamma"] == 2
    page = outputs[1].read_text("utf-8")
    ((pattern, reason),) = skipped[str(gap)].items()
    assert f"<dd>{gap}: {pattern}: {reason}</dd>" in page


def test_nan_and_zero_weights_empty_their_rows_only(inside: Command, tmp_path: Path) -> None:
    tensors = weights()
    tensors[Q0][7, 3] = torch.nan  # query head 1 of layer 0
    tensors["model.layers.1.self_attn.k_proj.weight"][:6] = 0  # key head 0 of layer 1, that heads 0 and 1 read
    run = inside("score", write_single(tmp_path / "model", tensors), "--per-head", "--format", "json")
    assert run.returncode == 0
    assert_states(run.stderr, tmp_path / "model", "4 of 10")
    rows = {(row["layer"], row["head"]): row for row in json.loads(run.stdout)}
    empty = {place for place, row in rows.items() if row["symmetry"] is None}
    assert empty == {(0, None), (0, 1), (1, 0), (1, 1)}
    for place in empty:
        assert rows[place]["directionality"] is None
        assert rows[place]["symmetry_z"] is None
    assert_states(rows[0, 1]["note"], "NaN or Inf")
    assert_states(rows[1, 0]["note"], "zero")
    assert rows[1, 0]["frobenius_norm"] == 0
    table = inside("score", tmp_path / "model", "--per-head")
    assert table.stdout.count("—") >= 8
    (note,) = (line for line in table.stderr.splitlines() if "zero" in line)
    assert_states(note, "decoder 1.0", "decoder 1.1")
    assert note not in table.stdout
    assert "decoder, 1 of 2 layers" in table.stdout
    assert "decoder, 5 of 8 heads" in table.stdout


def test_all_zero_weights(inside: Command, tmp_path: Path) -> None:
    zeros = {name: torch.zeros_like(tensor) for name, tensor in weights().items()}
    run = inside("score", write_single(tmp_path, zeros), "--format", "csv")
    assert run.returncode == 0
    rows = pd.read_csv(io.StringIO(run.stdout))
    assert rows["symmetry"].isna().tolist() == [True, True]
    assert rows["note"].str.contains("zero").all()


def test_variants_change_the_matrix(inside: Command, saved: Callable[[str], Path]) -> None:
    folder = saved("gpt_neox")
    plain = library.score(folder)
    for option, column in (
        (["--with-bias"], "symmetry"), (["--fold-norm"], "frobenius_norm"), (["--rope-offset", "5"], "symmetry"),
        (["--gamma", "1"], "directionality"),
    ):  # fmt: skip
        run = inside("score", folder, "--format", "json", *option)
        assert run.returncode == 0
        changed = [row[column] for row in json.loads(run.stdout)]
        assert changed != pytest.approx(plain[column].tolist(), abs=1e-3), option
    assert_states(inside("score", folder, "--rope-offset", "5").stderr, "rotary", 5)


USAGE: dict[str, tuple[list[str], list[object]]] = {
    "no model": ([], ["MODEL"]),
    "an unknown convention": (["demo:minilm", "--convention", "printed"], ["'printed'", "corrected", "published"]),
    "a gamma that is no number": (["demo:minilm", "--gamma", "two"], ["--gamma", "number"]),
    "an infinite gamma": (["demo:minilm", "--gamma", "inf"], ["--gamma", "inf"]),
    "layers that are no list": (["demo:minilm", "--layers", "3-1"], ["--layers", "'3-1'"]),
    "an unknown layer": (["demo:minilm", "--layers", "5-6"], ["demo:minilm", "layer 6", "from 0 to 5"]),
    "an unknown stack": (["demo:minilm", "--stack", "decoder"], ["demo:minilm", "'decoder'", "encoder"]),
    "an unknown device": (["demo:minilm", "--device", "cuda:99"], ["'cuda:99'", "auto, cpu"]),
    "a device without its number": (["demo:minilm", "--device", "cpu:"], ["'cpu:'", "auto, cpu"]),
    "an unknown file format": (["demo:minilm", "-o", "t.xlsx"], ["t.xlsx", ".csv", ".parquet"]),
    "an unknown folder": (["demo:minilm", "-o", "no/where/t.csv"], ["no/where/t.csv", "no/where"]),
    "a name that is too long": (["demo:minilm", "-o", "n" * 300 + ".csv"], [os.strerror(errno.ENAMETOOLONG)]),
    "an offset past all sense": (["demo:minilm", "--rope-offset", "9" * 12], ["--rope-offset", f"{2**31:,}"]),
    "a file twice": (["demo:minilm", "-o", "t.csv", "-o", "./t.csv"], ["twice"]),
    "a name that is none": (["org/na me"], ["'org/na me'", "org/name"]),
}


@pytest.mark.parametrize("case", USAGE)
def test_wrong_usage(case: str, inside: Command, tmp_path: Path) -> None:
    arguments, facts = USAGE[case]
    assert_fails(inside("score", *arguments, cwd=tmp_path), UsageError.exit_code, *facts)
    assert not list(tmp_path.iterdir())


def test_a_folder_for_an_output_file(inside: Command, tmp_path: Path) -> None:
    (tmp_path / "t.csv").mkdir()
    run = inside("score", "demo:minilm", "-o", tmp_path / "t.csv")
    assert_fails(run, OutputError, tmp_path / "t.csv", "folder")


def test_a_disk_that_fails_leaves_the_old_file(inside: Command, tmp_path: Path) -> None:
    """A name too long for its temporary neighbour stands in for a disk that refuses."""
    path = tmp_path / ("n" * 245 + ".csv")
    path.write_text("old")
    run = inside("score", "demo:minilm", "-o", path)
    assert_fails(run, OutputError, os.strerror(errno.ENAMETOOLONG))
    assert [p.read_text() for p in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize(
    ("prepare", "error", "facts"),
    [
        (lambda _: None, CorruptCheckpointError, ["config.json"]),
        (write_config, CorruptCheckpointError, ["model.safetensors", "pytorch_model.bin"]),
        (
            lambda f: (write_single(f) / "model.safetensors").write_bytes(b"short"),
            CorruptCheckpointError,
            ["model.safetensors", 5],
        ),
    ],
)
def test_a_model_that_cannot_be_read(
    prepare: Callable[[Path], object],
    error: type[AttnGeoError],
    facts: list[object],
    inside: Command,
    tmp_path: Path,
) -> None:
    prepare(tmp_path)
    run = inside("score", tmp_path, "-o", tmp_path / "t.csv")
    assert_fails(run, error, tmp_path, *facts)
    assert not (tmp_path / "t.csv").exists()


def test_an_interrupt_leaves_the_old_file(inside: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the layers of the second model."""
    begun: list[str] = []
    real = asking.ask

    def interrupt(question: Any, model: Any, *arguments: Any, **options: Any) -> pd.DataFrame:
        begun.append(str(model))
        if len(begun) == 2:
            signal.raise_signal(signal.SIGINT)
        return real(question, model, *arguments, **options)

    monkeypatch.setattr(asking, "ask", interrupt)
    output = tmp_path / "t.csv"
    output.write_text("old")
    run = inside("score", "demo:encoder", "demo:decoder", "demo:minilm", "-o", output)
    assert (run.returncode, run.stdout, begun) == (130, "", ["demo:encoder", "demo:decoder"])
    assert_states(run.stderr, "interrupted")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.slow
def test_ctrl_c_exits_130_and_leaves_no_file(tmp_path: Path) -> None:
    output = tmp_path / "out" / "t.csv"
    output.parent.mkdir()
    output.write_text("old")
    process = subprocess.Popen(
        [Path(sys.executable).with_name("attngeo"), "score", "-v", *link_many(tmp_path / "models"), "-o", output],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    assert "models/model-" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate()
    assert (process.returncode, stdout) == (130, "")
    assert_states(stderr.splitlines()[-1], "interrupted")
    assert stderr.count("models/model-") < 2000, "the run was over before it could be interrupted"
    assert [path.read_text() for path in output.parent.iterdir()] == ["old"]


def test_names_from_a_checkpoint_are_shown_and_not_obeyed(inside: Command, tmp_path: Path) -> None:
    """Markup in a path or a name is text; an escape sequence is taken out."""
    tensors = weights() | {"\x1b[31mred.att.qkv.weight": torch.ones(4, 4)}
    folder = write_single(tmp_path / "[/bold]", tensors, CONFIG | {"model_type": "[/red]x"})
    for command in ("score", "inspect"):
        run = inside(command, folder)
        assert run.returncode == 0, run.stderr
        assert "[/red]x" in run.stdout
        assert "\x1b[31m" not in run.stdout + run.stderr
        assert "red.att.qkv.weight" in run.stdout + run.stderr


@pytest.mark.slow
def test_output_that_cannot_be_printed_loses_no_file(attngeo: Command, tmp_path: Path) -> None:
    """A terminal without the characters, a full one, a closed one: the files are written, and no traceback is shown."""
    plain = attngeo("score", "demo:minilm", "-o", tmp_path / "a.csv", PYTHONIOENCODING="ascii")
    assert (plain.returncode, plain.stderr) == (0, "")
    assert "+0.405" in plain.stdout
    assert "-0.220" in plain.stdout
    executable = Path(sys.executable).with_name("attngeo")
    shell = f"{executable} score demo:minilm -o b.csv --format csv > /dev/full"
    full = subprocess.run(shell, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert full.returncode != 0
    assert_states(full.stderr, os.strerror(errno.ENOSPC))
    shell = f"{executable} score demo:minilm -o c.csv --format csv >&-"
    closed = subprocess.run(shell, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert closed.stderr == ""
    assert len({(tmp_path / name).read_text() for name in ("a.csv", "b.csv", "c.csv")}) == 1


def test_a_bar_names_the_layer_and_the_bytes(inside: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """On stderr; the results go to stdout."""
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    run = inside("score", "demo:minilm", "--format", "csv", TERM="xterm-256color", FORCE_COLOR="1")
    assert "encoder" in written.getvalue()
    assert "/7.1 MB" in written.getvalue()
    assert run.stdout.startswith("model,revision")


@pytest.mark.slow
def test_progress_goes_to_stderr_of_a_terminal_only() -> None:
    """On a terminal there is a bar; redirected or quiet, nothing of it is left."""
    shown, results = with_progress("score", "demo:minilm", "--format", "csv")
    assert "/7.1 MB" in shown
    assert results.startswith("model,revision")


def test_models_with_long_paths_are_told_apart_in_their_summary(inside: Command, tmp_path: Path) -> None:
    models = [write_single(tmp_path / "models of a long name in one folder" / name) for name in ("first", "second")]
    lines = inside("score", *models, COLUMNS="80").stdout.rpartition("\nstack ")[2].splitlines()
    assert lines[1::2] == [*map(str, models)]  # whole, to be copied
    assert [line.split()[0] for line in lines[2::2]] == ["decoder", "decoder"]
