"""A full disk: one line says which file cannot be written, and nothing is left of it. Kept results fail no command."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import full_disk
from support.messages import assert_states

from attngeo.errors import OutputError
from attngeo.figures.formats import SUFFIXES as FIGURES
from attngeo.tables.write import SUFFIXES as TABLES

pytestmark = pytest.mark.slow

ALONE = ["unshare", "--mount", "--map-root-user"]
RECIPE = """
title = "One"
[[results]]
name = "scores"
command = "score"
models = ["demo:encoder"]
[[section]]
title = "Layers"
figures = [{ kind = "layers", of = "scores" }]
tables = [{ of = "scores" }]
"""
ROWS = "sequence,item\n" + "".join(f"{number // 3},{'abc'[number % 3]}\n" for number in range(60))
TEXT = "the king and the queen went to the house\n" * 100
TRAIN = "--steps 2 --batch-size 8 --grad-accum 1 --seq-len 16 --vocab-size 120"
# A command, and the output that it names. Each writes its file by one of few functions; here is a command for each.
OUTPUTS = {
    **{f"score demo:encoder -o disk/t{suffix}": f"disk/t{suffix}" for suffix in TABLES},
    **{f"score demo:encoder --per-head --plot disk/t{suffix}": f"disk/t{suffix}" for suffix in FIGURES},
    "score demo:encoder --fail-if symmetry.median>5 -q --checks disk/t.csv": "disk/t.csv",
    "plot heatmap demo:encoder -o disk/t.html": "disk/t.html",
    "gradients demo:encoder --text text.txt --pairs-output disk/t.csv": "disk/t.csv",
    "cbow text.txt --min-count 1 --epochs 1 -o disk/t.txt": "disk/t.txt",
    "cbow text.txt --min-count 1 --epochs 1 -o disk/t.bin": "disk/t.bin",
    "report --init -o disk/new.toml": "disk/new.toml",
    "report recipe.toml -o disk/report": "disk/report",
    "tabular fit rows.csv --target item --methods atn --epochs 1 -q --save disk/model": "disk/model",
    "efa fit rows.csv --epochs 1 -q --save disk/model": "disk/model",
    f"pretrain --data text.txt {TRAIN} -q -o disk/run": "disk/run",
}
# Outputs that must not exist, or that are folders.
NEW = ("disk/new.toml", "disk/report", "disk/model", "disk/run")
CACHED = ["score demo:encoder", "compare demo:encoder demo:decoder", "positions demo:decoder"]
Ask = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Run a command on a full disk: its exit code, the lines on stderr, and what is on the disk afterwards."""
    if sys.platform != "linux" or subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("requires Linux, and the right to mount a file system of one's own (unshare --mount)")
    folder = tmp_path_factory.mktemp("full")
    for name, text in (("recipe.toml", RECIPE), ("rows.csv", ROWS), ("text.txt", TEXT)):
        (folder / name).write_text(text)
    with subprocess.Popen(
        [*ALONE, sys.executable, full_disk.__file__, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(command: str, *names: str, room: int = 0, **environment: str) -> list[Any]:
            assert process.stdin is not None
            assert process.stdout is not None
            variables = {"COLUMNS": "80", "HF_HUB_OFFLINE": "1", **environment}
            process.stdin.write(json.dumps([command.split(), variables, names, room]) + "\n")
            process.stdin.flush()
            code, stderr, left = json.loads(process.stdout.readline())
            return [code, stderr.splitlines(), left]

        yield ask
        process.stdin.close()


@pytest.mark.parametrize("command", OUTPUTS)
def test_an_output_on_a_full_disk_is_one_line_and_leaves_nothing(command: str, ask: Ask) -> None:
    output = OUTPUTS[command]
    former = [] if output in NEW else [Path(output).name]
    code, lines, left = ask(command, *former)
    assert code == OutputError.exit_code, lines
    assert_states("\n".join(lines), "attngeo", Path(output).name)
    assert left == dict.fromkeys(former, "old")


@pytest.mark.parametrize("command", [command for command, output in OUTPUTS.items() if output in NEW])
def test_a_disk_that_fills_while_it_is_written_keeps_no_part_of_a_folder(command: str, ask: Ask) -> None:
    code, lines, left = ask(command, room=8192)
    assert code in (0, OutputError.exit_code), lines
    if code:
        assert_states("\n".join(lines), "attngeo", "disk")
        # The results of a report are kept until it is finished.
        assert {name for name, text in left.items() if text is not None and ".parts" not in name} == set()


@pytest.mark.parametrize("command", CACHED)
def test_a_cache_on_a_full_disk_is_a_note(command: str, ask: Ask) -> None:
    code, lines, left = ask(command, ATTNGEO_CACHE="disk/cache")
    assert code == 0
    notes = [line for line in lines if "not kept" in line]
    assert_states("\n".join(notes), "ATTNGEO_CACHE")
    assert [name for name, text in left.items() if text is not None or name.endswith(".parts")] == []
