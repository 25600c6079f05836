"""The base installation: the packages that pyproject.toml requires, what these require, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from support.messages import assert_fails
from support.vectors import planted, write_questions, write_text

from attngeo.errors import WITHOUT_WHEEL

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
RECIPE = """
title = "Base"
[[results]]
name = "scores"
command = "score"
models = ["demo:encoder"]
[[section]]
title = "Scores"
figures = [{ kind = "layers", of = "scores" }]
"""
# Each argument is a command. They share a process, which loads the libraries once.
CALL_EACH = """
for command in sys.argv[1:]:
    sys.argv = ["attngeo", *command.split()]
    try:
        main()
    except SystemExit as stop:
        if stop.code:
            raise
    print(f"\\ndone {command}", file=sys.stderr)
"""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def required_distributions() -> set[str]:
    """The names of all distributions that attngeo requires without extras."""
    names: set[str] = set()
    left = [Requirement("attngeo")]
    while left:
        requirement = left.pop()
        name = requirement.name.lower()
        if name in names and not requirement.extras:
            continue
        names.add(name)
        try:
            listed = map(Requirement, distribution(name).requires or [])
        except PackageNotFoundError:  # of another platform
            continue
        left += [
            other
            for other in listed
            if not other.marker or any(other.marker.evaluate({"extra": extra}) for extra in requirement.extras or [""])
        ]
    return names


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run attngeo by an interpreter that finds the required packages only."""
    site = tmp_path_factory.mktemp("site")
    for name in required_distributions() - {"attngeo"}:
        for file in distribution(name).files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (site / top).exists():
                (site / top).symlink_to(Path(str(file.locate())).parents[len(file.parts) - 1] / top)
    package = site / "attngeo"
    package.mkdir()
    for path in (ROOT / "attngeo").iterdir():
        (package / path.name).symlink_to(path)
    (package / "commands").symlink_to(ROOT / "commands")
    files = next(path for path in distribution("attngeo").files or () if path.name == "METADATA")
    folder = Path(str(files.locate())).parent
    (site / folder.name).symlink_to(folder)

    def run(*arguments: object, cwd: Path, call: str = "main()") -> subprocess.CompletedProcess[str]:
        code = f"import sys; sys.path.insert(0, {str(site)!r}); from attngeo.commands.app import main\n{call}"
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "80", "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [sys.executable, "-S", "-c", code, *map(str, arguments)],
            cwd=cwd, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip

    return run


def test_what_reads_pretrained_models_needs_no_extra(base: Run, tmp_path: Path) -> None:
    embedding, lines = planted()
    write_text(tmp_path / "vectors.txt", embedding.labels, embedding.matrix)
    write_questions(tmp_path / "questions.txt", {"planted": lines})
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog ran to the door\n" * 300)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    commands = (
        "score demo:encoder --per-head -o scores.csv -o scores.md",
        "inspect demo:encoder",
        "analogy vectors.txt --questions questions.txt",
        "plot layers scores.csv -o layers.html",
        "report recipe.toml -o page",
        "pretrain --steps 2 --log-every 1 --batch-size 2 --warmup 1 --vocab-size 200 --data text.txt -o run",
    )
    done = base(*commands, cwd=tmp_path, call=CALL_EACH)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\ndone ") == len(commands), done.stderr


@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [
        ("score demo:encoder --plot heads.png", "choreographer", "images"),
        pytest.param(
            "cbow text.txt -o vectors.txt",
            "gensim",
            "cbow",
            marks=pytest.mark.skipif(sys.version_info >= WITHOUT_WHEEL["gensim"], reason="its message names no extra"),
        ),
        ("tabular fit rows.csv --target y", "sklearn", "estimators"),
        ("pretrain --model vit-tiny --data digits -o run", "datasets", "data"),
        ("score demo:encoder demo:decoder --cluster 127.0.0.1:1", "distributed", "cluster"),
    ],
)
def test_a_missing_package_is_named_in_one_line(
    command: str, package: str, extra: str, base: Run, tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text("a b c d e f g\n" * 100)
    (tmp_path / "rows.csv").write_text("a,y\n" + "1,0\n2,1\n" * 20)
    done = base(*command.split(), cwd=tmp_path)
    assert_fails(done, 2, package, f"pip install 'attngeo[{extra}]'")
    assert ("Chromium" in done.stderr) == (extra == "images")
