"""A FIFO or a device as an input: each option of each command refuses it, and does not wait for its end."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from attngeo.commands.app import app
from support.limits import at_most

Command = Callable[..., Any]

# A command, and the option or argument that gets the special file; {} stands for the file without its suffix.
CASES = {
    ("score", "models"): "score {}.safetensors",
    ("score", "--models"): "score --models {}.txt",
    ("score", "--adapter"): "score demo:encoder --adapter {}.safetensors",
    ("score", "--config"): "score demo:encoder --config {}.json",
    ("score", "--baseline"): "score demo:encoder --fail-if 'baseline.symmetry.median > 1' --baseline {}.csv",
    ("inspect", "models"): "inspect {}.bin",
    ("inspect", "--models"): "inspect --models {}.txt",
    ("inspect", "--adapter"): "inspect demo:encoder --adapter {}.safetensors",
    ("inspect", "--config"): "inspect demo:encoder --config {}.json",
    ("analogy", "--models"): "analogy --models {}.txt",
    ("analogy", "models"): "analogy {}.vec",
    ("analogy", "--questions"): "analogy demo:minilm --questions {}.txt",
    ("analogy", "--explain"): "analogy --explain {}.txt",
    ("nearest", "model"): "nearest {}.txt king",
    ("words", "model"): "words {}.gguf --layer 0 --head 0",
    ("words", "--tokens"): "words demo:encoder --layer 0 --head 0 --tokens {}.txt",
    ("compose", "models"): "compose {}.pt",
    ("compose", "--models"): "compose --models {}.txt",
    ("compose", "--adapter"): "compose demo:encoder --adapter {}.safetensors",
    ("compose", "--config"): "compose demo:encoder --config {}.json",
    ("compare", "models"): "compare demo:encoder {}.safetensors",
    ("compare", "--models"): "compare demo:encoder --models {}.txt",
    ("compare", "--adapter"): "compare demo:encoder demo:decoder --adapter {}.safetensors",
    ("compare", "--config"): "compare demo:encoder demo:decoder --config {}.json",
    ("lineage", "model"): "lineage {}.safetensors demo:encoder",
    ("lineage", "candidates"): "lineage demo:encoder {}.safetensors",
    ("lineage", "--models"): "lineage demo:encoder --models {}.txt",
    ("gradients", "models"): "gradients {}.safetensors --text wikitext-2",
    ("gradients", "--models"): "gradients --models {}.txt",
    ("gradients", "--text"): "gradients demo:encoder --text {}.txt",
    ("mirrors", "models"): "mirrors {}.safetensors",
    ("mirrors", "--models"): "mirrors --models {}.txt",
    ("mirrors", "--adapter"): "mirrors demo:decoder --adapter {}.safetensors",
    ("mirrors", "--config"): "mirrors demo:decoder --config {}.json",
    ("positions", "models"): "positions {}.safetensors",
    ("positions", "--models"): "positions --models {}.txt",
    ("positions", "--adapter"): "positions demo:decoder --adapter {}.safetensors",
    ("positions", "--config"): "positions demo:decoder --config {}.json",
    ("pretrain", "--init"): "pretrain --init {}.safetensors -o out",
    ("pretrain", "--data"): "pretrain --data {}.txt -o out",
    ("pretrain", "--tokenizer"): "pretrain --tokenizer {}.json -o out",
    ("cbow", "text"): "cbow {}.txt -o vectors.txt",
    ("plot", "inputs"): "plot layers {}.csv -o x.html",
    ("report", "recipe"): "report {}.toml -o out",
    ("efa fit", "data"): "efa fit {}.csv",
    ("efa fit", "--validation"): "efa fit rows.csv --validation {}.csv",
    ("efa fit", "--test"): "efa fit rows.csv --test {}.csv",
    ("efa fit", "--resume"): "efa fit rows.csv --resume {}",
    ("efa predict", "model"): "efa predict {} rows.csv",
    ("efa predict", "data"): "efa predict model {}.csv",
    ("efa sample", "model"): "efa sample {}",
    ("efa sample", "--data"): "efa sample model --data {}.csv",
    ("efa similar", "model"): "efa similar {} item",
    ("efa attention", "model"): "efa attention {} item",
    ("efa attention", "basket"): "efa attention model {}.csv",
    ("efa compare", "model"): "efa compare {} model rows.csv",
    ("efa compare", "other"): "efa compare model {} rows.csv",
    ("efa compare", "data"): "efa compare model model {}.csv",
    ("efa run", "--data"): "efa run movielens-ratings --data {}",
    ("tabular fit", "train"): "tabular fit {}.tsv --target item",
    ("tabular fit", "--test"): "tabular fit rows.csv --target item --test {}.csv",
    ("tabular predict", "model"): "tabular predict {} rows.csv",
    ("tabular predict", "rows"): "tabular predict model {}.parquet",
    ("tabular impute", "model"): "tabular impute {} rows.csv",
    ("tabular impute", "rows"): "tabular impute model {}.csv",
    ("tabular auto-mpg", "--data"): "tabular auto-mpg --data {}.csv",
    ("theory", "--text"): "theory --text {}.txt",
}  # fmt: skip
# What has a place for a path that is written, or for words.
OUTPUTS = ("--output", "--plot", "--questions-output", "--comparisons-output", "--pairs-output", "--places-output",
           "--attention-output", "--save", "--checks")  # fmt: skip
WORDS = ("kind", "words", "item", "experiment", "names", "action")
# Names of results, for `attngeo cache`.
KEPT = ("cache", "models")
PLACES: dict[str, Callable[[Path], object]] = {
    "FIFO": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
}


def list_inputs() -> Iterator[tuple[str, str]]:
    """Each command, and each of its options and arguments that names a file, a folder or a model to read."""

    def walk(command: Any, names: tuple[str, ...], parent: Any) -> Iterator[tuple[str, str]]:
        context = command.make_context(names[-1] if names else "attngeo", [], parent=parent, resilient_parsing=True)
        if hasattr(command, "list_commands"):
            for name in command.list_commands(context):
                yield from walk(command.get_command(context, name), (*names, name), context)
            return
        for param in command.params:
            name = max(param.opts, key=len)
            is_path = {"FILE", "FOLDER", "PATH", "REF", "DATA", "CORPUS"} & {*str(param.metavar).split("|")}
            if (is_path or param.param_type_name == "argument") and name not in (*OUTPUTS, *WORDS):
                yield " ".join(names), name

    return walk(typer.main.get_command(app), (), None)


def test_every_input_is_in_the_table() -> None:
    assert {*list_inputs()} - {KEPT} == {*CASES}


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory: pytest.TempPathFactory, attngeo: Command) -> Path:
    """A folder with rows.csv, and a saved model of each kind of estimator."""
    folder = tmp_path_factory.mktemp("models")
    rows = "".join(f"{number // 3},{'abc'[number % 3]},{number}\n" for number in range(60))
    (folder / "rows.csv").write_text(f"sequence,item,size\n{rows}", "utf-8")
    for words in ("efa fit rows.csv", "tabular fit rows.csv --target item --methods atn"):
        kind = words.partition(" ")[0]
        done = attngeo(*words.split(), "--epochs", 1, "--save", kind, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("place", ["FIFO", pytest.param("device", marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", CASES.values(), ids=[" ".join(case) for case in CASES])
def test_a_special_file_is_refused(case: str, place: str, inside: Command, saved_model: Path, tmp_path: Path) -> None:
    words = shlex.split(case)
    for name in ("rows.csv", "model"):
        if name in words:
            source = saved_model / (words[0] if name == "model" else name)
            (tmp_path / name).symlink_to(source)
    special = next(word for word in words if "{}" in word).format("special")
    PLACES[place](tmp_path / special)
    with at_most(100):  # the libraries are imported in it
        done = inside(*(word.format("special") for word in words), cwd=tmp_path)
    assert done.returncode in (2, 3, 4), done.stderr
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith("attngeo: ")
    assert "unexpected" not in last
    assert special in last
    assert {path.name for path in tmp_path.iterdir()} <= {special, "rows.csv", "model"}


# Text that is UTF-8 in its first line and not in its second: of no encoding that is found.
NO_TEXT = "é,b\n".encode() + b"\xff,\x81\n"
# Those that read a file, which has a suffix; the others, and a tokeniser, are a folder.
FILES = {" ".join(case): line for case, line in CASES.items() if "{}." in line and case != ("pretrain", "--tokenizer")}


@pytest.mark.parametrize("suffix", ["its own", ".xyz"])
@pytest.mark.parametrize("case", FILES)
def test_a_file_that_is_there_and_cannot_be_read_has_exit_code_4(
    case: str, suffix: str, inside: Command, saved_model: Path, tmp_path: Path
) -> None:
    """By the table of commands/README.md: 2 is for what is written wrongly, 3 for what is not found."""
    if case == "efa attention basket" and suffix == ".xyz":
        pytest.skip("a text with another suffix is a list of items")
    line = FILES[case] if suffix == "its own" else re.sub(r"\{\}\.\w+", "{}.xyz", FILES[case])
    words = shlex.split(line)
    for name in ("rows.csv", "model"):
        if name in words:
            (tmp_path / name).symlink_to(saved_model / (words[0] if name == "model" else name))
    words = [word.format("unreadable") for word in words]
    unreadable = next(word for word in words if word.startswith("unreadable"))
    (tmp_path / unreadable).write_bytes(NO_TEXT)
    done = inside(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (4, ""), done.stderr
    assert unreadable in done.stderr.splitlines()[-1]  # a slow command says before that it is at work
