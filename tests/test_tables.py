"""All tables about models begin alike, and a column has one type in all of them: in Python, in files and in reports."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess

import pandas as pd
import pytest
from pyarrow import parquet
from support.messages import refuses

import attngeo
from attngeo.errors import UnknownOptionError, UsageError
from attngeo.questions.table import QUESTIONS, TABLES
from attngeo.reporting.report import build_report

ENCODER, DECODER = MODELS = ["demo:encoder", "demo:decoder"]
LEADING, OF_BOTH = ("model", "revision"), ("model", "revision", "other", "other_revision")
SMALL = {"sequences": 2, "seq_len": 8}
FAMILY = [["man", "woman", "king", "queen"], ["king", "queen", "man", "woman"]]
Frames = Callable[[], pd.DataFrame]
# Command → the table that its function returns.
MADE: dict[str, Frames] = {
    "score": lambda: attngeo.score(MODELS, layers=[0]),
    "compare": lambda: attngeo.compare(MODELS, layers=[0]),
    "compose": lambda: attngeo.compose(ENCODER, kind="k", from_layers=[0], to_layers=[1]),
    "lineage": lambda: attngeo.lineage(*MODELS, n_permutations=19),
    "mirrors": lambda: attngeo.mirrors(MODELS, layers=[0]),
    "positions": lambda: attngeo.positions(MODELS, layers=[0]),
    "gradients": lambda: attngeo.gradients(ENCODER, **SMALL).rows,  # type: ignore[arg-type]
    "words": lambda: attngeo.words(ENCODER, layer=0, head=0, top=2),
    "verify": lambda: attngeo.verify(ENCODER),
    "analogy": lambda: attngeo.analogy("demo:minilm", questions=FAMILY, n_draws=0).rows,
}
# Command → what it is asked on the command line, and in a recipe; none is no question.
ASKED: dict[str, tuple[list[str], str]] = {
    "score": ([*MODELS, "--layers", "0"], "{ layers = [0] }"),
    "compare": ([*MODELS, "--layers", "0"], "{ layers = [0] }"),
    "compose": ([ENCODER, "--kind", "k", "--from-layers", "0"], '{ kind = "k", from_layers = [0] }'),
    "lineage": ([*MODELS, "--n-permutations", "19"], "{ n_permutations = 19 }"),
    "mirrors": ([*MODELS, "--layers", "0"], "{ layers = [0] }"),
    "positions": ([*MODELS, "--layers", "0"], "{ layers = [0] }"),
    "gradients": ([ENCODER, "--sequences", "2", "--seq-len", "8"], "{ sequences = 2, seq_len = 8 }"),
    "words": ([ENCODER, "--layer", "0", "--head", "0", "--top", "2"], ""),
}
# Questions about other things than models, whose tables begin otherwise.
OF_OTHERS = {"pretrain", "theory", "simulate", "auto-mpg", "efa", "file"}
# Its rows are words of one model, which `attrs` name.
OF_WORDS = {"nearest"}


@cache
def make(name: str) -> pd.DataFrame:
    return MADE[name]()


def test_every_table_about_models_is_here() -> None:
    assert {*QUESTIONS, *TABLES} == {*MADE, *OF_OTHERS, *OF_WORDS}


@pytest.mark.parametrize("name", MADE)
def test_a_table_begins_with_the_models_and_their_revisions(name: str) -> None:
    columns = tuple(make(name).columns)
    leading = OF_BOTH if "other" in columns else LEADING
    assert columns[: len(leading)] == leading
    assert columns[-1] == "note"
    assert columns == attngeo.columns(name)


def test_a_column_has_one_type_in_all_tables() -> None:
    types: dict[str, set[str]] = {}
    for name in MADE:
        for column, dtype in make(name).dtypes.items():
            types.setdefault(str(column), set()).add(str(dtype))
    assert {column: found for column, found in types.items() if len(found) > 1} == {}
    shared = {
        "model": "str",
        "revision": "str",
        "note": "str",
        "layer": "Int64",
        "head": "Int64",
        "similarity_z": "float64",
    }
    assert {column: types[column] for column in shared} == {column: {dtype} for column, dtype in shared.items()}
    assert {dtype for found in types.values() for dtype in found} == {"str", "Int64", "float64", "boolean"}


def test_files_of_commands_have_these_columns_and_types(
    inside: Callable[..., CompletedProcess[str]], tmp_path: Path
) -> None:
    types: dict[str, set[str]] = {}
    for command, (arguments, _) in ASKED.items():
        files = [tmp_path / f"{command}.csv", tmp_path / f"{command}.parquet"]
        done = inside(command, *arguments, "-o", files[0], "-o", files[1])
        assert done.returncode == 0, done.stderr
        assert tuple(pd.read_csv(files[0], nrows=0).columns) == attngeo.columns(command)
        schema = parquet.read_schema(files[1])
        assert tuple(schema.names) == attngeo.columns(command)
        for field in schema:
            types.setdefault(field.name, set()).add(str(field.type))
    assert {column: found for column, found in types.items() if len(found) > 1} == {}
    assert (types["layer"], types["related"], types["similarity_z"]) == ({"int64"}, {"bool"}, {"double"})
    assert "string" in types["revision"].pop()


def test_tables_of_a_report_have_these_columns(tmp_path: Path, cache: Path, no_pictures: None) -> None:  # noqa: ARG001 - fixtures
    questions = [command for command, (_, options) in ASKED.items() if options]
    requests = [
        f'[[results]]\nname = "{command}"\ncommand = "{command}"\n'
        f"models = {MODELS if '--' not in ASKED[command][0][1] else [ENCODER]}\noptions = {ASKED[command][1]}\n"
        for command in questions
    ]
    (tmp_path / "r.toml").write_text('title = "x"\n' + "".join(requests))
    for _ in range(2):  # made, and from the store
        build_report(tmp_path / "r.toml", tmp_path / "out")
        for command in questions:
            read = pd.read_csv(tmp_path / f"out/tables/{command}.csv", nrows=0)
            assert tuple(read.columns) == attngeo.columns(command)


def test_columns_depend_on_options_and_refuse_unknown_ones() -> None:
    assert "circuit" not in attngeo.columns("score")
    assert attngeo.columns("score", circuit="both", scores="trace_z").index("circuit") == 4
    assert "trace_z" in attngeo.columns("score", scores="trace_z")
    assert attngeo.columns("compare", circuit="ov", per_head=True)[-3:-1] == ("value_overlap", "output_overlap")
    assert attngeo.columns("nearest") == ("rank", "word", "cosine")
    with refuses(UsageError, "scores", "score"):
        attngeo.columns("scores")
    with refuses(UsageError, "command"):
        attngeo.columns("file")
    with refuses(UsageError, "circuit", "ov"):
        attngeo.columns("compare", circuit="vo")
    with refuses(UnknownOptionError, "compare", "circiut", "circuit"):
        attngeo.columns("compare", circiut="ov")


def test_functions_have_the_names_of_the_commands_whatever_was_imported() -> None:
    import attngeo.offsets.options
    import attngeo.updates.options

    for name in (*MADE, "nearest", "inspect"):
        assert getattr(attngeo, name).__name__ == name
    assert all(len(attngeo.columns(name)) > 2 for name in MADE)


def test_former_names_are_answered_with_the_new_ones(inside: Callable[..., CompletedProcess[str]]) -> None:
    for function in (attngeo.score, attngeo.positions, attngeo.compose, attngeo.mirrors):
        with refuses(UnknownOptionError, "'model'", "models"):
            function(model=ENCODER)  # type: ignore[call-arg]
    done = inside("lineage", ENCODER, DECODER, "--n-permutations", "19", "--sort", "candidate")
    assert done.returncode == 2
    assert "it is now called other" in done.stderr
    with pytest.raises(AttributeError):
        attngeo.score_columns  # type: ignore[attr-defined]  # noqa: B018
