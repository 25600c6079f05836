"""`attngeo report` as it is used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from support.messages import assert_fails

from attngeo.errors import ModelNotFoundError, UsageError

Run = Callable[..., CompletedProcess[str]]


CHECKED = """
title = "Two models"
[[results]]
name = "scores"
command = "score"
models = ["demo:encoder", "demo:decoder"]
[[section]]
title = "All"
tables = [{ of = "scores", show = "summary" }]
[[check]]
of = "scores"
models = ["demo:encoder"]
fail_if = "symmetry.median < 0.2"
"""


def test_from_the_starter_to_a_page(inside: Run, tmp_path: Path) -> None:
    assert inside("report", "--init", "-o", "r.toml", cwd=tmp_path).returncode == 0
    done = inside("report", "r.toml", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "r/index.html\n", "")
    assert (tmp_path / "r/index.html").stat().st_size < 4_000_000


@pytest.mark.parametrize(
    ("old", "new", "code", "said"),
    [
        (
            "symmetry.median < 0.2",
            "symmetry.median < 0.9",
            1,
            "demo:encoder (encoder): symmetry.median is 0.3",
        ),
        ('"demo:decoder"', '"demo:none"', 4, 'results "scores": demo:none: '),
        ('["demo:encoder", "demo:decoder"]', '["demo:none", "demo:encoder"]', 4, 'results "scores": demo:none: '),
        ("tables = [", 'figures = [{ kind = "layers", of = "scores", where = { layer = 9 } }]\ntables = [', 4, "layer"),
    ],
)
def test_checks_and_missing_models_decide_the_exit_code(
    old: str, new: str, code: int, said: str, inside: Run, tmp_path: Path
) -> None:
    (tmp_path / "r.toml").write_text(CHECKED.replace(old, new))
    done = inside("report", "r.toml", "-o", "out", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "out/index.html\n")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_report_of_which_all_failed_has_the_code_of_its_error(inside: Run, tmp_path: Path) -> None:
    """As a command about one model; there is no page."""
    alone = CHECKED.replace('["demo:encoder", "demo:decoder"]', '["demo:none"]').partition("[[check]]")[0]
    (tmp_path / "r.toml").write_text(alone)
    assert_fails(inside("report", "r.toml", "-o", "out", cwd=tmp_path), ModelNotFoundError.exit_code, "demo:none")


def test_a_starter_is_written_to_the_named_file_once(inside: Run, tmp_path: Path) -> None:
    done = inside("report", "--init", "-o", "r.toml", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    text = (tmp_path / "r.toml").read_text()
    assert text == inside("report", "--init").stdout
    again = inside("report", "--init", "-o", "r.toml", cwd=tmp_path)
    assert_fails(again, UsageError.exit_code, "r.toml", "--init")
    named = inside("report", "a.toml", "--init", "-o", "b.toml", cwd=tmp_path)
    assert_fails(named, UsageError.exit_code, "a.toml", "-o")
    assert [path.name for path in tmp_path.iterdir()] == ["r.toml"]
    assert (tmp_path / "r.toml").read_text() == text


def test_bad_input_is_one_line(inside: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text('title = "x"\ntext = 3\n')
    for arguments, code, fact in (
        (["report"], 2, "attngeo report --init"),
        (["report", "none.toml"], 3, "none.toml"),
        (["report", "bad.toml"], 2, "bad.toml: text: "),
        (["report", "."], 2, "folder"),
    ):
        done = inside(*arguments, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (code, "")
        assert fact in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["..toml", "...toml"])
def test_no_report_is_written_over_the_working_folder_or_outside(name: str, inside: Run, tmp_path: Path) -> None:
    folder = tmp_path / "working"
    folder.mkdir()
    (folder / name).write_text(CHECKED)
    assert_fails(inside("report", name, cwd=folder), UsageError.exit_code, name, "-o")
    assert [path.name for path in tmp_path.rglob("*")] == ["working", name]
