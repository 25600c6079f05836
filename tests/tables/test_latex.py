"""Tables for papers in LaTeX."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from attngeo.tables.write import AS_WRITTEN, escape_latex, to_html, to_latex, to_markdown

DOCUMENT = r"""
\documentclass[twocolumn]{article}
\usepackage[T1]{fontenc}
\usepackage{booktabs}
\begin{document}
\input{t.tex}
\end{document}
"""
HOSTILE = r"""\input{x} & 50% of $W_qk$ #1 {a} ~ ^ <b> |c| "d" [x] * é → −"""


def read_body(text: str) -> list[list[str]]:
    """The cells of the rows, after the heads."""
    body = text.partition("\\midrule\n")[2].partition("\\bottomrule")[0]
    return [line.removesuffix(" \\\\").split(" & ") for line in body.splitlines()]


def test_a_table_is_a_tabular_of_booktabs_with_numbers_on_the_right() -> None:
    frame = pd.DataFrame({"model": ["a_b"] * 60, "layer": range(60), "symmetry": [0.25] * 60, "empty": [None] * 60})
    lines = to_latex(frame).splitlines()
    assert lines[:5] == [
        r"% requires \usepackage{booktabs}",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"model & layer & symmetry \\",
        r"\midrule",
    ]
    assert lines[5] == r"a\_b & 0 & 0.250 \\"
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]
    assert len(lines) == 60 + 7


def test_markdown_and_pages_have_the_digits_of_latex_but_a_user_s_own_columns_their_own() -> None:
    frame = pd.DataFrame({"model_type": ["a_b", "c"], "symmetry": [0.4050839, -0.0004], "parameters": [22_713_216, 7]})
    *_, first, second = to_markdown(frame).splitlines()
    assert [cell.strip() for cell in first.split("|")] == ["", "a_b", "0.405", "22,713,216", ""]
    assert [cell.strip() for cell in second.split("|")] == ["", "c", "0.000", "7", ""]
    assert "| model_type " in to_markdown(frame)
    assert "<td>0.405</td>" in to_html(frame)
    own = pd.DataFrame({"year": [2023], "price": [1.23456]})
    own.attrs = {AS_WRITTEN: ["year", "price"]}
    assert to_markdown(own).splitlines()[-1] == "|   2023 | 1.23456 |"


@pytest.mark.parametrize(
    ("name", "numbers", "shown"),
    [
        ("symmetry", [0.4050839, -0.0004, -0.25], ["0.405", "0.000", "$-0.250$"]),
        ("frobenius_norm", [109.811, 84.7751, 9.0], ["109.8", "84.8", "9.0"]),
        ("large", [123456.7, 1.0], ["123457", "1"]),
        ("small", [0.00123456, 0.0001], ["0.0012", "0.0001"]),
        ("zero", [0.0, 0.0], ["0.000", "0.000"]),
        ("symmetry_z", [109.2849, -3.0], ["109.3", "$-3.0$"]),
        ("p_value", [0.005, 1.2e-7, 1e-5], ["0.005", r"$1.2\times 10^{-7}$", "$10^{-5}$"]),
        ("parameters", [22_713_216, 7], ["22{,}713{,}216", "7"]),
        ("gap", [1.0, float("nan"), float("-inf")], ["1.000", "--", r"$-\infty$"]),
    ],
)
def test_numbers_have_the_decimals_of_their_column(name: str, numbers: list[float], shown: list[str]) -> None:
    assert [row[0] for row in read_body(to_latex(pd.DataFrame({name: numbers})))] == shown


def test_a_median_between_its_quartiles_is_one_column() -> None:
    frame = pd.DataFrame(
        {"symmetry_lower": [0.1, None], "symmetry_median": [0.2, None], "symmetry_upper": [-0.3, None]}
    )
    text = to_latex(frame.assign(symmetry_max=0.5, change_median=1.0))
    assert "{rrr}" in text
    assert r"symmetry & symmetry max & change median \\" in text
    assert "% symmetry: median [quartiles]" in text
    assert read_body(text) == [["0.200 [0.100, $-0.300$]", "0.500", "1.000"], ["--", "0.500", "1.000"]]


def test_markdown_has_a_median_and_its_quartiles_in_one_column_too() -> None:
    frame = pd.DataFrame({"x_lower": [0.1, None], "x_median": [0.2, None], "x_upper": [-0.3, None], "x_max": [0.5, 1]})
    head, _, *rows = to_markdown(frame).splitlines()
    assert [cell.strip() for cell in head.split("|")[1:-1]] == [r"x \[quartiles\]", "x_max"]
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]
    assert cells == [["0.200 [0.100, -0.300]", "0.500"], ["", "1.000"]]


def test_special_characters_are_shown_as_they_are() -> None:
    escaped = escape_latex(HOSTILE)
    bare = re.sub(r"\\text\w+\{\}|\\[&%$#_{}]|\$\\rightarrow\$|\$-\$", "", escaped)
    assert not set(bare) & set("\\&%$#_{}~^<>|\u2192\u2212")
    assert r"\textbackslash{}input\{x\} \& 50\% of \$W\_qk\$ \#1" in escaped
    assert escape_latex("a\nb") == r"a\textbackslash{}nb"


def test_no_first_cell_is_an_option_of_the_line_before() -> None:
    """LaTeX takes [ and * behind two backslashes, and [ behind a rule, for theirs."""
    text = to_latex(pd.DataFrame({"token": ["[CLS]", "*", "x"]}))
    assert [row[0] for row in read_body(text)] == ["{}[CLS]", "{}*", "x"]
    assert to_latex(pd.DataFrame({"[CLS]": ["x"]})).splitlines()[3].startswith("{}[CLS]")


def test_truths_are_words() -> None:
    assert read_body(to_latex(pd.DataFrame({"related": [True, False]}))) == [["yes"], ["no"]]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is missing: install TeX Live")
def test_latex_reads_it(tmp_path: Path) -> None:
    numbers = {f"x_{quartile}": [-1.0, 2.0] for quartile in ("lower", "median", "upper")}
    frame = pd.DataFrame({"[token]": ["[CLS]", HOSTILE], **numbers})
    (tmp_path / "t.tex").write_text(to_latex(frame))
    (tmp_path / "d.tex").write_text(DOCUMENT)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "d.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_tiny_numbers_have_powers_of_ten_and_greek_letters_are_those_of_pdflatex() -> None:
    frame = pd.DataFrame({"residual": [4.1e-16, 0.0], "computed": ["‖Δσ‖² ≤ ω", "x·y"]})
    assert read_body(to_latex(frame)) == [
        [r"$4.1\times 10^{-16}$", r"$\|$$\Delta$$\sigma$$\|$$^2$ $\leq$ $\omega$"],
        ["0", r"x$\cdot$y"],
    ]
    assert [line.split("|")[1].strip() for line in to_markdown(frame).splitlines()[2:]] == ["4.1e-16", "0"]
