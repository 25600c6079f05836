"""Numbers in the texts of reports are those of the tables that are committed beside them.

A comment of Markdown names a table and computes numbers from it, as an expression of pandas in which `table` is the
table, `heads` its rows that are of one head, and `read(file)` another table:

    The first half has 57% to 61%<!-- training.csv: [table.share.min(), table.share.max()] --> of the norm.

The numbers before the comment, as many as the expression has, must be these, rounded to the digits that are written. A
comment on the line above a table of Markdown computes all numbers of its rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[1]
MARKER = re.compile(r"<!-- (?P<file>[\w./-]+): (?P<expression>.+?) -->", re.DOTALL)
NUMBER = re.compile(r"(?<![\w.-])[−+-]?\d+(?:,\d{3})*(?:\.\d+)?%?")
TABLE_RULE = re.compile(r"^\|[\s|:-]+\|$")


class Statement(NamedTuple):
    """Numbers of a text, and the expression that computes them."""

    folder: Path
    line: int
    numbers: list[str]
    file: str
    expression: str

    def read(self, file: str) -> pd.DataFrame:
        """A table beside the text."""
        path = self.folder / file
        return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)

    def compute(self) -> list[float]:
        """The numbers that the table gives."""
        table = self.read(self.file)
        heads = table[table["head"].notna()] if "head" in table else None
        names = {"table": table, "heads": heads, "read": self.read, "np": np, "pd": pd}
        result = eval(f"({self.expression})", names)
        return [float(value) for value in np.ravel(np.asarray(result, dtype=float))]


def read_statements(path: Path) -> Iterator[Statement]:
    """The statements of a text in their order."""
    text = path.read_text("utf-8")
    for marker in MARKER.finditer(text):
        line = text.count("\n", 0, marker.start()) + 1
        is_above_table = text[marker.end() :].startswith("\n|")
        if is_above_table:
            table, _, _ = text[marker.end() + 1 :].partition("\n\n")
            rows = [row for row in table.splitlines()[1:] if not TABLE_RULE.match(row)]
            numbers = NUMBER.findall("\n".join(rows))
        else:
            paragraph = text[: marker.start()].rpartition("\n\n")[2]
            numbers = NUMBER.findall(MARKER.sub("", paragraph))
        yield Statement(path.parent, line, numbers, marker["file"], marker["expression"])


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
    if len(statement.numbers) < len(computed):
        return f"{len(computed)} numbers are computed, and {len(statement.numbers)} are written"
    for written, value in zip(statement.numbers[-len(computed) :], computed, strict=True):
        number, tolerance = parse_number(written)
        if not abs(number - value) <= tolerance * (1 + 1e-9) + 1e-12:
            return f"{written} is written, and {value:.6g} is computed"
    return None


STATEMENTS = [statement for path in sorted(ROOT.glob("reports/**/README.md")) for statement in read_statements(path)]


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda one: f"{one.folder.name}:{one.line}")
def test_a_number_in_a_report_is_that_of_its_table(statement: Statement) -> None:
    assert find_difference(statement) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It has 31%<!-- t.csv: table.a.max() -->.", None),
        ("It has 30%<!-- t.csv: table.a.max() -->.", "30% is written, and 0.31 is computed"),
        ("From −0.5 to 0.3<!-- t.csv: [table.a.min(), table.a.max()] -->.", None),
        ("Only 1,200<!-- t.csv: table.b.sum() --> rows.", None),
        ("Nothing<!-- t.csv: table.a.max() -->.", "1 numbers are computed, and 0 are written"),
        ("<!-- t.csv: table -->\n| a | b |\n| --- | ---: |\n| −0.50 | 500 |\n| 0.31 | 700 |\n\n8", None),
        (
            "<!-- t.csv: table -->\n| a | b |\n| --- | ---: |\n| −0.5 | 500 |\n| 0.3 | 701 |\n",
            "701 is written, and 700 is computed",
        ),
    ],
)
def test_a_wrong_number_is_found(text: str, expected: str | None, tmp_path: Path) -> None:
    rows: dict[str, Any] = {"a": [-0.5, 0.31], "b": [500, 700]}
    pd.DataFrame(rows).to_csv(tmp_path / "t.csv", index=False)
    readme = tmp_path / "README.md"
    readme.write_text(text, "utf-8")
    (statement,) = read_statements(readme)
    assert find_difference(statement) == expected
