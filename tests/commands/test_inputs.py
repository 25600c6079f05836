"""No command overwrites a file that it reads: it ends before it reads anything, and names the file."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from conftest import Command
from support.messages import assert_fails

from attngeo.errors import CorruptCheckpointError

CONTENT = "The only copy of a user.\n"
RECIPE = 'title = "x"\n[[results]]\nname = "rows"\ncommand = "file"\npath = "{path}"\n'
# Command → the file that it would overwrite. Folders of models are "model", of data "data".
COMMANDS = {
    "score --models list.csv -o list.csv": "list.csv",
    "score --models list.csv -o rows.csv -o ./list.csv": "list.csv",
    "score --models list.json --plot list.json": "list.json",
    "score demo:encoder ./model -o model/config.json": "model/config.json",
    "score ./model -o model/model.safetensors.index.json": "model/model.safetensors.index.json",
    "score ./model -o model/README.md": "model/README.md",
    "score --models models.txt -o model/config.json": "model/config.json",
    "score demo:encoder --config settings.json -o settings.json": "settings.json",
    "score demo:encoder --adapter model=0.5 -o model/adapter_config.json": "model/adapter_config.json",
    "analogy vectors.csv -o vectors.csv": "vectors.csv",
    "analogy cbow:text.md -o text.md": "text.md",
    "analogy demo:minilm --questions list.csv -o list.csv": "list.csv",
    "analogy demo:minilm --questions list.csv --questions-output list.csv": "list.csv",
    "analogy --explain text.md --questions list.csv -o list.csv": "list.csv",
    "analogy --explain text.md -o text.md": "text.md",
    "positions ./model -o model/config.json": "model/config.json",
    "mirrors ./model -o model/config.json": "model/config.json",
    "gradients ./model -o model/config.json": "model/config.json",
    "gradients demo:encoder --text rows.jsonl -o rows.jsonl": "rows.jsonl",
    "gradients demo:encoder --text data --pairs-output data/part.parquet": "data/part.parquet",
    "plot heatmap list.json -o list.json": "list.json",
    "plot training model -o model/settings.json": "model/settings.json",
    "cbow text.txt -o text.txt": "text.txt",
    "theory --text text.md -o text.md": "text.md",
    "efa fit list.csv -o list.csv": "list.csv",
    "efa fit list.csv --test rows.csv -o rows.csv": "rows.csv",
    "efa predict model list.csv -o list.csv": "list.csv",
    "efa predict model list.csv -o model/config.json": "model/config.json",
    "efa sample model --data list.csv -o list.csv": "list.csv",
    "efa compare model other list.csv -o list.csv": "list.csv",
    "efa run instacart --data data -o data/products.csv": "data/products.csv",
    "tabular fit list.csv --test rows.csv -o rows.csv": "rows.csv",
    "tabular predict model list.csv --attention-output list.csv": "list.csv",
    "tabular impute model list.csv -o list.csv": "list.csv",
    "tabular auto-mpg --data list.csv -o list.csv": "list.csv",
    "report recipe.toml -o .": "tables/rows.csv",
    "report report.md -o .": "report.md",
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_is_read_is_not_overwritten(command: str, inside: Command, tmp_path: Path) -> None:
    (tmp_path / "models.txt").write_text("./model\n", "utf-8")
    (tmp_path / "recipe.toml").write_text(RECIPE.format(path="tables/rows.csv"), "utf-8")
    path = tmp_path / COMMANDS[command]
    path.parent.mkdir(exist_ok=True)
    content = RECIPE.format(path="rows.csv") if path.name == "report.md" else CONTENT
    path.write_text(content, "utf-8")
    assert_fails(inside(*shlex.split(command), cwd=tmp_path), 2, path.name, "input")
    assert path.read_text("utf-8") == content


# Commands that train into a folder → a file of their inputs there.
TRAININGS = {
    "pretrain --data texts -o texts": "texts/a.txt",
    "pretrain --data texts -o ./texts/../texts": "texts/a.txt",
    "pretrain --data run/summary.json -o run": "run/summary.json",
    "pretrain --init run/model -o run": "run/model/config.json",
    "pretrain --data texts --compare default,symmetric -o texts": "texts/a.txt",
}


@pytest.mark.parametrize("command", TRAININGS)
def test_a_training_does_not_write_among_what_it_reads(command: str, inside: Command, tmp_path: Path) -> None:
    path = tmp_path / TRAININGS[command]
    path.parent.mkdir(parents=True)
    path.write_text('{"text": "a b c"}\n', "utf-8")
    assert_fails(
        inside(*shlex.split(command), "--steps", "1", cwd=tmp_path), 2, "input", Path(command.split()[-1]).name
    )
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_results_may_be_written_again_into_the_folder_of_their_model(inside: Command, tmp_path: Path) -> None:
    """The first rows are no input of the second command."""
    (tmp_path / "scores.csv").write_text("old\n", "utf-8")
    run = inside("score", tmp_path, "-o", tmp_path / "scores.csv")
    assert_fails(run, CorruptCheckpointError, "config.json")
