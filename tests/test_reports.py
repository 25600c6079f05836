"""Numbers in the texts of reports are those of the tables that are committed beside them.

A comment of Markdown names a table and computes numbers from it, as an expression of pandas in which `table` is the
table, `heads` its rows that are of one head, `layers` those that are of a whole layer, `read(file)` another table, and
`written(name)` the numbers in the text `computed` of a statement:

    The first half has 57% to 61%<!-- training.csv: [table.share.min(), table.share.max()] --> of the norm.

The numbers before the comment, as many as the expression has, must be these, rounded to the digits that are written. A
comment on the line above a table of Markdown computes all numbers of its rows.

A long computation is a function of a module beside the text, which the expression calls: `efa_statements.py` in the
folder `efa`. No two modules have the same name, as mypy knows modules in folders with a hyphen by their names alone.

A text with the comment ALL_MARKED has such a comment for each number with a point or a percent sign. A number that no
table gives names its source instead, where 2 is how many numbers come from there, 1 if it is left out:

    It was trained with a decay of 0.1<!-- given: build.py -->, and the paper has 26% and 69%<!-- given 2: Table 1 -->.
"""

from __future__ import annotations

import ast
import json
import re
import runpy
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[1]
ALL_MARKED = "<!-- every number with a point or a percent sign is computed or has a source -->"
# Texts that must say so.
COMPLETE = (
    "attngeo/analogies",
    "attngeo/papers",
    "attngeo/papers/saponati2025",
    "attngeo/papers/wibisono2023",
    "attngeo/papers/wibisono2025",
    "reports/analogies-by-layer",
    "reports/demo-models",
    "reports/efa",
    "reports/fine-tuning",
    "reports/gradients",
    "reports/growths",
    "reports/lineage",
    "reports/pretrained",
    "reports/pretraining",
    "reports/quantisation",
    "reports/symmetric-init",
    "reports/tabular",
    "reports/theory",
)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
MARKER = re.compile(r"<!-- (?P<file>(?!generated|given)[\w./-]+):\s+(?P<expression>.+?) -->", re.DOTALL)
GIVEN = re.compile(r"<!-- given(?: (?P<count>\d+))?:\s[^>]+ -->")
# What tests/test_readmes.py compares with the code.
GENERATED = re.compile(r"<!-- generated: (\w+) -->.*?<!-- end -->", re.DOTALL)
NUMBER = re.compile(r"(?<![\w.-])[−+-]?\d+(?:,\d{3})*(?:\.\d+)?%?")
TABLE_RULE = re.compile(r"^\|[\s|:-]+\|$")
# Parts of a text whose digits are no statements: comments, code, addresses, numbers of sections and versions.
SILENT = (
    COMMENT,
    re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL),
    re.compile(r"(?<=\]\()[^)\s]+"),
    re.compile(
        r"\b(?:Apache|arXiv|Corollary|Definition|Lemma|Proposition|Remark|[Ss]ection|Theorem|[Vv]ersion)s?"
        r" S?\d+\.\d+(?:\.\d+)?(?:(?:,| and| to) S?\d+\.\d+)*"
    ),
)


class Statement(NamedTuple):
    """Numbers of a text, and the expression that computes them.

    places: where the numbers are in the text. is_whole: whether these are all that the expression may compute.
    """

    folder: Path
    line: int
    numbers: list[str]
    places: list[int]
    is_whole: bool
    file: str
    expression: str

    def read(self, file: str) -> pd.DataFrame:
        """A table beside the text; a JSON file is a table of one row, with columns such as "settings.steps"."""
        return read_table(self.folder / file).copy()

    def list_written(self, name: str) -> list[float]:
        """The numbers in the text of a statement of this name, in the column `computed` of the table."""
        text = self.read(self.file).set_index("statement")["computed"][name]
        return [parse_number(number)[0] for number in NUMBER.findall(text)]

    def compute(self) -> list[float]:
        """The numbers that the table gives."""
        table = self.read(self.file)
        names = dict(load_functions(self.folder))
        names |= {"table": table, "read": self.read, "written": self.list_written, "np": np, "pd": pd}
        if "head" in table:
            names |= {"heads": table[table["head"].notna()], "layers": table[table["head"].isna()]}
        result = eval(f"({self.expression})", names)
        return [float(value) for value in np.ravel(np.asarray(result, dtype=float))]


@cache
def read_table(path: Path) -> pd.DataFrame:
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    if path.suffix == ".json":
        return pd.json_normalize(json.loads(path.read_text("utf-8")))
    return pd.read_csv(path)


@cache
def load_functions(folder: Path) -> dict[str, Any]:
    """The names of the modules of statements beside a text, if there are any."""
    names: dict[str, Any] = {}
    for module in sorted(folder.glob("*_statements.py")):
        names |= runpy.run_path(str(module))
    return names


def silence(text: str) -> str:
    """The text with spaces instead of what states no numbers; its places are the same."""
    for part in SILENT:
        text = part.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    return text


def read_statements(path: Path) -> Iterator[Statement]:
    """The statements of a text in their order."""
    text = path.read_text("utf-8")
    silent = silence(text)
    for marker in MARKER.finditer(text):
        line = text.count("\n", 0, marker.start()) + 1
        is_above_table = text[marker.end() :].startswith("\n|")
        numbers = (
            find_table_numbers(silent, marker.end() + 1) if is_above_table else find_numbers(silent, marker.start())
        )
        yield Statement(
            folder=path.parent,
            line=line,
            numbers=[number[0] for number in numbers],
            places=[number.start() for number in numbers],
            is_whole=is_above_table,
            file=marker["file"],
            expression=marker["expression"],
        )


def find_table_numbers(text: str, start: int) -> list[re.Match[str]]:
    """The numbers in the rows of the table of Markdown that starts here."""
    numbers = []
    end = text.find("\n\n", start) if "\n\n" in text[start:] else len(text)
    for number, line in enumerate(re.finditer(r".+", text[start:end])):
        is_head = number == 0 or TABLE_RULE.match(line[0])
        if not is_head:
            numbers += NUMBER.finditer(text, start + line.start(), start + line.end())
    return numbers


def find_numbers(text: str, end: int) -> list[re.Match[str]]:
    """The numbers before this place in its paragraph."""
    start = text.rfind("\n\n", 0, end) + 1
    return list(NUMBER.finditer(text, start, end))


def parse_number(text: str) -> tuple[float, float]:
    """The number that is written, and half a unit of its last digit."""
    digits = text.replace("−", "-").replace(",", "").rstrip("%")
    _, _, decimals = digits.partition(".")
    unit = 10.0 ** -len(decimals)
    scale = 0.01 if text.endswith("%") else 1.0
    return float(digits) * scale, unit / 2 * scale


def find_difference(statement: Statement) -> str | None:
    """The first number that is not what the table gives; None if all are."""
    computed = statement.compute()
    written_count = len(statement.numbers)
    if written_count < len(computed) or (statement.is_whole and written_count > len(computed)):
        return f"{len(computed)} numbers are computed, and {written_count} are written"
    for written, value in zip(statement.numbers[-len(computed) :], computed, strict=True):
        number, tolerance = parse_number(written)
        if not abs(number - value) <= tolerance * (1 + 1e-9) + 1e-12:
            return f"{written} is written, and {value:.6g} is computed"
    return None


def find_unmarked(path: Path) -> list[str]:
    """The numbers with a point or a percent sign that have neither a computation nor a source, with their lines."""
    text = path.read_text("utf-8")
    silent = silence(GENERATED.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text))
    marked = set[int]()
    for statement in read_statements(path):
        marked.update(statement.places[-len(statement.compute()) :])
    for given in GIVEN.finditer(text):
        numbers = find_numbers(silent, given.start())
        marked.update(number.start() for number in numbers[-int(given["count"] or 1) :])
    return [
        f"line {text.count(chr(10), 0, number.start()) + 1}: {number[0]}"
        for number in NUMBER.finditer(silent)
        if re.search(r"[.%]", number[0]) and number.start() not in marked
    ]


def find_unknown_comments(text: str) -> list[str]:
    """Comments that are no statement, no source and no bounds of a generated part: a slip in one of them."""
    kinds = (MARKER, GIVEN, re.compile(r"<!-- (?:generated: \w+|end) -->"), re.compile(re.escape(ALL_MARKED)))
    return [comment for comment in COMMENT.findall(text) if not any(kind.fullmatch(comment) for kind in kinds)]


READMES = sorted(path for folder in ("attngeo", "commands", "reports") for path in ROOT.glob(f"{folder}/**/*.md"))
STATEMENTS = [statement for path in READMES for statement in read_statements(path)]
# What computes the numbers of a text beside it.
MODULES = sorted((ROOT / "reports").glob("*/*_statements.py"))
# What draws the figures of a text from the tables beside it.
DRAWINGS = sorted((ROOT / "reports").glob("*/*_figures.py"))
ALL_MARKED_TEXTS = [path for path in READMES if ALL_MARKED in path.read_text("utf-8")]


def name_folder(path: Path) -> str:
    """The folder of a text, for the name of a test."""
    return str(path.parent.relative_to(ROOT))


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda one: f"{one.folder.name}:{one.line}")
def test_a_number_in_a_report_is_that_of_its_table(statement: Statement) -> None:
    assert find_difference(statement) is None


@pytest.mark.parametrize("path", MODULES, ids=name_folder)
def test_comments_call_the_functions_beside_the_text(path: Path) -> None:
    """They hold no computation of their own, and no function is left over."""
    expressions = [statement.expression for statement in STATEMENTS if statement.folder == path.parent]
    assert [expression for expression in expressions if "lambda" in expression or "\n" in expression] == []
    called = set(re.findall(r"\w+", " ".join(expressions)))
    tree = ast.parse(path.read_text("utf-8"))
    called.update(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert functions - called == set()


@pytest.mark.parametrize("path", DRAWINGS, ids=name_folder)
def test_figures_of_a_report_are_drawn_and_shown(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(path.parent)
    figures = runpy.run_path(str(path))["draw_figures"]()
    readme = (path.parent / "README.md").read_text("utf-8")
    for name, figure in figures.items():
        assert (ROOT / "reports/figures" / name).is_file()
        assert f"reports/figures/{name})" in readme
        assert all(len(trace.x) == len(trace.y) > 0 for trace in figure.data)


@pytest.mark.parametrize("path", ALL_MARKED_TEXTS, ids=name_folder)
def test_every_number_is_computed_or_has_a_source(path: Path) -> None:
    assert find_unmarked(path) == []


def test_these_reports_say_that_all_numbers_are_marked() -> None:
    assert {name_folder(path) for path in ALL_MARKED_TEXTS} >= set(COMPLETE)


@pytest.mark.parametrize("path", READMES, ids=name_folder)
def test_every_comment_is_understood(path: Path) -> None:
    assert find_unknown_comments(path.read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It has 31%<!-- t.csv: table.a.max() -->.", None),
        ("It has 30%<!-- t.csv: table.a.max() -->.", "30% is written, and 0.31 is computed"),
        ("From −0.5 to 0.3<!-- t.csv: [table.a.min(), table.a.max()] -->.", None),
        ("Only 1,200<!-- t.csv: table.b.sum() --> rows.", None),
        ("Nothing<!-- t.csv: table.a.max() -->.", "1 numbers are computed, and 0 are written"),
        ("Of 7 `a`, 0.31<!-- t.csv: heads.a.max() --> and −0.5<!-- t.csv: layers.a.max() -->.", None),
        ('It has 12<!-- t.json: table["sizes.layers"] --> layers.', None),
        ("<!-- t.csv: table[['a', 'b']] -->\n| a | b |\n| --- | ---: |\n| −0.50 | 500 |\n| 0.31 | 700 |\n\n8", None),
        (
            "<!-- t.csv: table[['a', 'b']] -->\n| a | b |\n| --- | ---: |\n| −0.5 | 500 |\n| 0.3 | 701 |\n",
            "701 is written, and 700 is computed",
        ),
        (
            "<!-- t.csv: table.a -->\n| a |\n| --- |\n| −0.5 |\n| 0.31 |\n| 0.4 |\n",
            "2 numbers are computed, and 3 are written",
        ),
    ],
)
def test_a_wrong_number_is_found(text: str, expected: str | None, tmp_path: Path) -> None:
    readme = write_report(tmp_path, text)
    differences = [find_difference(statement) for statement in read_statements(readme)]
    assert next(filter(None, differences), None) == expected


def write_report(folder: Path, text: str) -> Path:
    """A text beside two tables."""
    rows: dict[str, Any] = {"a": [-0.5, 0.31], "b": [500, 700], "head": [None, 0]}
    pd.DataFrame(rows).to_csv(folder / "t.csv", index=False)
    (folder / "t.json").write_text('{"sizes": {"layers": 12}}', "utf-8")
    readme = folder / "README.md"
    readme.write_text(text, "utf-8")
    return readme


def test_a_missing_table_is_found(tmp_path: Path) -> None:
    (statement,) = read_statements(write_report(tmp_path, "It has 31%<!-- u.csv: table.a.max() -->."))
    with pytest.raises(FileNotFoundError, match=r"u\.csv"):
        find_difference(statement)


@pytest.mark.parametrize(
    ("text", "unmarked"),
    [
        ("It has 31%<!-- t.csv: table.a.max() --> and 30%.", ["line 1: 30%"]),
        ("First.\n\nIt has 0.5.", ["line 3: 0.5"]),
        ("12 layers by `--lr 0.1`, Section 4.1, [here](https://a.org/0.5)", []),
        ("A decay of 0.1<!-- given: build.py -->.", []),
        ("From 0.2 to 0.1<!-- given: build.py -->.", ["line 1: 0.2"]),
        ("From 0.2 to 0.1<!-- given 2: build.py -->.", []),
        ("<!-- t.csv: table.a -->\n| a |\n| --- |\n| −0.5 |\n| 0.31 |\n\n0.4", ["line 7: 0.4"]),
        ("<!-- generated: demo -->\n0.5\n<!-- end -->\n\n0.4", ["line 5: 0.4"]),
    ],
)
def test_a_number_without_a_source_is_found(text: str, unmarked: list[str], tmp_path: Path) -> None:
    assert find_unmarked(write_report(tmp_path, text)) == unmarked


@pytest.mark.parametrize("slip", ["<!-- t.csv table.a -->", "<!-- t.csv: table.a-->", "<!-- given 2 build.py -->"])
def test_a_comment_with_a_slip_is_found(slip: str) -> None:
    text = f"{ALL_MARKED}\n<!-- generated: demo -->\n<!-- end -->\n0.1<!-- t.csv: table.a --><!-- given: b -->{slip}"
    assert find_unknown_comments(text) == [slip]
