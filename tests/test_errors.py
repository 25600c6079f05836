"""Facts that errors carry: the options, and the table, row and column; and the package that is missing."""

from __future__ import annotations

import ast
import pickle
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from conftest import Command
from packaging.requirements import Requirement
from support.messages import assert_fails, refuses

import attngeo
from attngeo import errors, estimators
from attngeo.errors import (
    EXTRAS,
    WITHOUT_WHEEL,
    AttnGeoError,
    CheckpointError,
    MissingPackageError,
    TableError,
    UnknownColumnError,
    UsageError,
    about,
    build_missing_package_error,
)
from attngeo.estimators import ExponentialFamilyAttention
from attngeo.pretrain import make_options

ROOT = Path(__file__).parents[1]
LONG = "x" * 100_000
# Commands with a name of 100,000 characters, on the command line or in a file, and their exit codes.
LONG_NAMES = {
    "score ./{}": 3,
    "score demo:{}": 3,
    "score demo:encoder -o {}.csv": 2,
    "score demo:encoder --stack {}": 2,
    "score demo:encoder --{} 1": 2,
    "score --models {}": 3,
    "score --models list.txt": 3,
    "analogy demo:minilm --questions {}": 3,
    "nearest words.txt b - c": 2,
    "plot {} demo:encoder": 2,
    "plot heatmap rows.csv": 4,
    "report recipe.toml": 3,
    "efa fit {}.csv": 3,
    "efa predict {} rows.csv": 3,
    "tabular fit rows.csv --target z": 2,
    "pretrain --model {}": 3,
    "cbow {} -o v.bin": 3,
    "theory {}": 2,
    "{}": 2,
}


@pytest.mark.parametrize("command", LONG_NAMES)
def test_an_error_is_a_line_of_bounded_length(command: str, inside: Command, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text(f"./{LONG}\n")
    (tmp_path / "words.txt").write_text(f"{LONG} 1 2 3\n")
    (tmp_path / "rows.csv").write_text(f"model,stack,{LONG}\n{LONG},b,1\n")
    (tmp_path / "recipe.toml").write_text(
        f'title = "x"\n[[results]]\nname = "a"\ncommand = "analogy"\nmodels = ["{"cbow:" * 5000}x"]\n'
    )
    run = inside(*(part.format(LONG) for part in command.split()), cwd=tmp_path)
    assert_fails(run, LONG_NAMES[command])
    assert len(run.stderr) < 1300
    assert "unexpected" not in run.stderr.replace("unexpected extra", "")


@pytest.mark.parametrize("text", [LONG, "a " * 50_000, f"m.csv: {LONG}: {LONG}"])
def test_the_text_of_an_error_is_bounded_in_python_too(text: str) -> None:
    for error in (UsageError(text), TableError(text, subject=text, row=3, column=text), UsageError(f"$x {text}", "x")):
        assert 200 < len(str(error)) < 1300
    assert str(UsageError("short: a b")) == "short: a b"


def test_an_error_begins_with_its_subject() -> None:
    """That of the innermost block, once; a file that is the subject itself is not named twice."""
    for own_subject, text in {
        "": "b/x.bin: broken",
        "x.bin": "b/x.bin: broken",
        "bin": "b/x.bin: bin: broken",
        "y": "b/x.bin: y: broken",
    }.items():
        with pytest.raises(CheckpointError) as caught, about("a"), about("b/x.bin"):
            raise CheckpointError("broken", subject=own_subject)
        assert str(caught.value) == str(pickle.loads(pickle.dumps(caught.value))) == text
    with pytest.raises(UsageError) as argument, about("a"):
        raise UsageError("$x is 1", "x")
    assert str(argument.value) == "x is 1"


def test_an_error_after_the_name_of_its_subject_does_not_repeat_it() -> None:
    """`about` is not asked for texts: a message that happens to begin with the name is no subject."""
    for subject, text, is_about in (
        ("", "a: b", False),
        ("a", "b", True),
        ("a: x.bin", "x.bin: b", True),
        ("a/x.bin", "a/x.bin: b", True),
        ("ab", "ab: b", False),
    ):
        error = CheckpointError("b" if subject else "a: b", subject=subject)
        assert (error.tell_after("a"), error.is_about("a")) == (text, is_about)
    table = TableError("b", subject="a", row=3)
    assert (str(table), table.tell_after("a")) == ("a: row 3: b", "row 3: b")


def test_an_error_names_its_options_as_python_does() -> None:
    with refuses(UsageError, "remove_top is -1") as caught:
        attngeo.nearest("demo:minilm", "king", remove_top=-1)
    assert caught.value.option == ("remove_top",)
    with refuses(UsageError, "steps and epochs contradict each other") as caught:
        make_options("vit-tiny", steps=2, epochs=1)
    assert caught.value.option == ("steps", "epochs")


def test_the_command_line_writes_the_options_of_an_error_as_flags(inside: Command, tmp_path: Path) -> None:
    run = inside("pretrain", "--model", "vit-tiny", "--steps", "2", "--epochs", "1", "-o", "run")
    assert_fails(run, 2, "--steps and --epochs contradict each other")
    assert_fails(inside("nearest", "demo:minilm", "king", "--remove-top", "-1"), 2, "--remove-top is -1")
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    assert_fails(
        inside("efa", "fit", tmp_path / "rows.csv"), 2, "no column 'item'", "with options such as --sequence and --item"
    )
    with refuses(UnknownColumnError, "with options such as sequence and item"):
        ExponentialFamilyAttention().fit(pd.DataFrame({"a": [1], "b": [2]}))


def test_a_choice_that_does_not_exist_is_refused_in_words_of_the_command_line(inside: Command) -> None:
    run = inside("score", "demo:minilm", "--precision", "fats")
    assert_fails(run, 2, "--precision is 'fats'", "did you mean fast?")
    assert_fails(inside("score", "demo:minilm", "--precision", "x"), 2, "'x'; expected one of: float32, float64, fast")


def find_unnamed_options(module: str) -> list[str]:
    """The options that a message of a module has with a $, but of which its error is not told: the $ would be shown.

    The options of a text outside of a call of an error are texts of their own somewhere in the module.
    """
    tree = ast.parse(module)
    told: dict[ast.AST, set[Any]] = {}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and hasattr(errors, ast.unparse(call.func)):
            options = {argument.value for argument in call.args[1:] if isinstance(argument, ast.Constant)}
            told |= dict.fromkeys(ast.walk(call), options)
    anywhere = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        f"line {text.lineno}: ${name}"
        for text in ast.walk(tree)
        if isinstance(text, ast.Constant) and isinstance(text.value, str) and text not in docstrings
        for name in re.findall(r"\$([a-z]\w*)", text.value)
        if name not in told.get(text, anywhere)
    ]


def test_an_error_is_told_the_options_that_its_message_names() -> None:
    assert find_unnamed_options('raise DataError("no rows; choose another $over")') == ["line 1: $over"]
    assert find_unnamed_options('raise DataError("no rows; choose another $over", "over")') == []
    modules = [path for folder in ("attngeo", "commands") for path in (ROOT / folder).rglob("*.py")]
    assert len(modules) > 100
    unnamed = {str(path): find_unnamed_options(path.read_text("utf-8")) for path in modules}
    assert {path: names for path, names in unnamed.items() if names} == {}


def test_text_of_a_user_is_no_option() -> None:
    error = UsageError("$where is '$HOME $wherever', expected COLUMN=VALUE", "where")
    assert str(error) == "where is '$HOME $wherever', expected COLUMN=VALUE"
    again: AttnGeoError = pickle.loads(pickle.dumps(error))
    assert (str(again), again.option) == (str(error), ("where",))


def test_an_error_about_a_table_names_table_row_and_column() -> None:
    rows = pd.DataFrame({"sequence": ["a", "a", "a"], "item": ["x", "y", "z"], "value": [1.0, float("inf"), 2.0]})
    with pytest.raises(TableError) as caught:
        ExponentialFamilyAttention(value="value", family="poisson").fit(rows)
    assert (caught.value.table, caught.value.row, caught.value.column) == ("the training table", 2, "value")
    assert all(fact in str(caught.value) for fact in ("the training table", "row 2", "'value'"))
    again: TableError = pickle.loads(pickle.dumps(caught.value))
    assert (again.row, str(again)) == (2, str(caught.value))


@pytest.mark.parametrize(
    ("use", "package", "importer", "extra"),
    [
        (
            lambda: estimators.__getattr__("AttentionClassifier"), "sklearn", "attngeo.estimators.tabular.classifier",
            "estimators",
        ),
        (lambda: attngeo.open_embedding(f"cbow:{attngeo.__file__}"), "gensim", None, "cbow"),
    ],
    ids=["estimators", "cbow"],
)  # fmt: skip
def test_a_missing_extra_is_named_in_python(
    use: Callable[[], object], package: str, importer: str | None, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """importer: the module that imports the package when it is imported itself, unless a function does."""
    for name in list(sys.modules):
        if name == importer or name.startswith(f"{package}."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr("attngeo.errors.WITHOUT_WHEEL", {})
    with pytest.raises(MissingPackageError) as caught:
        use()
    assert str(caught.value) == f"{package} is not installed; run: pip install 'attngeo[{extra}]'"


@pytest.mark.parametrize(("version", "advice"), [((3, 13, 9), "'attngeo[cbow]'"), ((3, 14, 0), "an older Python")])
def test_a_package_without_a_wheel_is_not_offered_as_an_extra(
    version: tuple[int, ...], advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "version_info", version)
        missing = build_missing_package_error(ModuleNotFoundError("No module named 'gensim'", name="gensim"))
    assert missing is not None
    assert "gensim is not installed" in str(missing)
    assert advice in str(missing)


def test_extras_leave_out_what_has_no_wheel() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
    for name, version in WITHOUT_WHEEL.items():
        listed = [Requirement(text) for text in project["optional-dependencies"][EXTRAS[name]]]
        (marker,) = (each.marker for each in listed if each.name == name)
        assert marker is not None
        assert not marker.evaluate({"python_version": f"{version[0]}.{version[1]}"})
        assert marker.evaluate({"python_version": f"{version[0]}.{version[1] - 1}"})
