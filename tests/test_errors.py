"""Facts that errors carry: the options, and the table, row and column; and the package that is missing."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from conftest import Command
from support.messages import assert_fails, refuses

import attngeo
from attngeo.errors import AttnGeoError, TableError, UsageError
from attngeo.estimators import ExponentialFamilyAttention
from attngeo.pretrain import make_options


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
        inside("efa", "fit", tmp_path / "rows.csv"), 4, "no column 'item'", "by options such as --sequence and --item"
    )
    with refuses(TableError, "by options such as sequence and item"):
        ExponentialFamilyAttention().fit(pd.DataFrame({"a": [1], "b": [2]}))


def test_a_choice_that_does_not_exist_is_refused_in_words_of_the_command_line(inside: Command) -> None:
    run = inside("score", "demo:minilm", "--precision", "fats")
    assert_fails(run, 2, "--precision is 'fats'", "did you mean fast?")
    assert_fails(inside("score", "demo:minilm", "--precision", "x"), 2, "'x'; expected one of: float32, float64, fast")


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
    ("code", "package", "extra"),
    [
        ("from attngeo.estimators import AttentionClassifier", "sklearn", "estimators"),
        ("import attngeo; attngeo.open_embedding(f'cbow:{attngeo.__file__}')", "gensim", "cbow"),
    ],
)
def test_a_missing_extra_is_named_in_python(code: str, package: str, extra: str) -> None:
    hide = "import sys; sys.modules |= dict.fromkeys(['sklearn', 'gensim'])"
    run = subprocess.run([sys.executable, "-c", f"{hide}; {code}"], capture_output=True, text=True, check=False)
    last = run.stderr.splitlines()[-1]
    assert last == (f"attngeo.errors.MissingPackageError: {package} is not installed: pip install 'attngeo[{extra}]'")
