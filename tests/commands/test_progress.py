"""Long work whose stderr is a file says now and then what it does."""

from __future__ import annotations

import io
import itertools
import re
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from attngeo.commands import progress as drawn
from attngeo.commands.outputs import Verbosity
from conftest import Command

from attngeo.progress import Progress

# A silence that a test can wait for. Lines are awaited for long, as other processes may keep the processor busy.
SHORT = 0.05
PATIENCE = 30.0


@pytest.fixture(autouse=True)
def _fast_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn, "LONGEST_SILENCE", SHORT)


def await_lines(capsys: pytest.CaptureFixture[str], wanted: int) -> list[str]:
    """The lines on stderr, when there are so many."""
    lines: list[str] = []
    end = time.monotonic() + PATIENCE
    while len(lines) < wanted and time.monotonic() < end:
        time.sleep(SHORT)
        lines += capsys.readouterr().err.splitlines()
    return lines


def test_the_last_report_is_printed_again_and_again(capsys: pytest.CaptureFixture[str]) -> None:
    """Also while a step goes on, in which nothing calls the bar."""
    with drawn.Bar("fit", Verbosity()) as bar:
        assert_all(await_lines(capsys, 1), "attngeo: fit: at work, ")
        bar(Progress("fit", "loss 0.5", 3, 1200, "steps"))
        capsys.readouterr()
        time.sleep(2 * SHORT)
        capsys.readouterr()
        assert_all(await_lines(capsys, 3), "attngeo: fit: loss 0.5, 3/1,200, ")
        bar(Progress("read", "model.safetensors", 250, 1000))
        time.sleep(2 * SHORT)
        capsys.readouterr()
        assert_all(await_lines(capsys, 1), "attngeo: fit: model.safetensors, 25%, ")
    capsys.readouterr()
    time.sleep(4 * SHORT)
    assert capsys.readouterr().err == ""


def assert_all(lines: list[str], beginning: str) -> None:
    assert lines
    assert all(line.startswith(beginning) and line.endswith(" s so far") for line in lines), lines


def test_no_line_is_added_while_others_are_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawn, "LONGEST_SILENCE", 3600)
    with drawn.Bar("pretrain", Verbosity()) as bar:
        for step in range(3):
            bar(Progress("train", "loss 2.0", step, 10, "steps"))
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_a_quiet_command_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with drawn.Bar("fit", Verbosity(quiet=True)) as bar:
        bar(Progress("fit", "loss 0.5", 3, 200, "steps"))
        time.sleep(4 * SHORT)
    assert capsys.readouterr().err == ""


def test_a_command_shows_its_epochs(inside: Command, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    table = pd.DataFrame({"size": random.choice(["s", "m"], 400), "age": random.integers(0, 9, 400)})
    table.assign(y=table["size"]).to_csv(tmp_path / "t.csv", index=False)
    run = inside(
        "tabular",
        "fit",
        "t.csv",
        "--target",
        "y",
        "--methods",
        "atn",
        "--epochs",
        "60",
        "--patience",
        "0",
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stderr
    epochs = [line.split(", ")[1].split("/") for line in run.stderr.splitlines() if line.endswith("s so far")]
    done = [int(one) for one, total in (pair for pair in epochs if len(pair) == 2) if total == "60"]
    assert done
    assert all(low <= high for low, high in itertools.pairwise(done))


def test_a_line_of_the_log_ends_the_silence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawn, "LONGEST_SILENCE", 1.0)
    with drawn.Bar("fit", Verbosity()):
        end = time.monotonic() + 1.2
        while time.monotonic() < end:
            drawn.LOGGER.warning("a warning")
            time.sleep(SHORT)
    assert set(capsys.readouterr().err.splitlines()) == {"attngeo: a warning"}


def test_a_bar_counts_nothing_before_the_amount_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, a step of unknown length has a name and no numbers."""
    for name, value in {"TERM": "xterm-256color", "FORCE_COLOR": "1", "COLUMNS": "100"}.items():
        monkeypatch.setenv(name, value)
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    with drawn.Bar("run", Verbosity()) as bar:
        bar(Progress("prepare", "reading austen"))
        time.sleep(3 * SHORT)
        bar(Progress("train", "loss 2.0", 3, 1200, "steps"))
        time.sleep(3 * SHORT)
    assert "reading austen" in written.getvalue()
    assert "3/1,200" in written.getvalue()
    assert "?" not in re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", written.getvalue())
