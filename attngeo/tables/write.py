"""A DataFrame as text, and as a file in the format that its suffix names."""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngeo.bounds.names import dump_json, escape_markdown, printable
from attngeo.tables.files import atomic_write, check_writable

if TYPE_CHECKING:
    import pandas as pd

# The entry of `attrs` that lists the columns of a user's own file: a file that is written has their texts as they are.
AS_WRITTEN = "as_written"
# The entry of `attrs` with the form of that file, in which a .csv file is written: separator, decimal and encoding.
FORM = "file_form"
# The entry of `attrs` with the notes that each text of the column `note` is made of.
NOTES = "notes_by_text"
STYLE = (
    "body{font:14px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:80rem;padding:0 1rem;color:#1c2024}"
    "div{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}"
    "th,td{padding:.3rem .6rem;border-bottom:1px solid #e2e4e8;text-align:right;white-space:nowrap}"
    "th{position:sticky;top:0;background:#fff;border-bottom:2px solid #9aa1ab}"
    "dl{display:grid;grid-template-columns:max-content auto;gap:.1rem 1rem;color:#5a626d}dd{margin:0}"
)

# Characters that LaTeX takes for something else, or shows as another one.
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "\u2192": r"$\rightarrow$", "\u2212": r"$-$", "\u2026": r"\dots{}", "\u00b7": r"$\cdot$",
    "\u2016": r"$\|$", "\u2264": r"$\leq$", "\u2265": r"$\geq$", "\u00d7": r"$\times$", "\u00b2": "$^2$",
    "\u2248": r"$\approx$", "\u221a": r"$\surd$", "\u1d40": "$^T$",
}  # fmt: skip
# Capital Greek letters that are no Latin ones.
CAPITALS = ("gamma", "delta", "theta", "lambda", "xi", "pi", "sigma", "upsilon", "phi", "psi", "omega")
# The format of columns whose meaning asks for fewer digits: standard deviations from chance, shares of random draws.
FORMS = {"z": ".1f", "p_value": ".2g"}
# Decimals of other columns of numbers, and the digits of the largest number of a column whose numbers are larger.
DECIMALS, LARGEST_DIGITS = 3, 4
# Digits of the numbers of a user's own columns, and of columns that have texts, too.
OWN_DIGITS = 6
# A small number of a column is still seen with so many digits.
SMALLEST_DIGITS = 2
# Numbers with more zeros behind the point than this are written with a power of ten.
MOST_ZEROS = 6
MISSING_IN_LATEX = "--"
# How the names of a median and its quartiles end.
QUARTILES = ("_lower", "_median", "_upper")


def to_csv(frame: pd.DataFrame, as_written: Collection[Any] = (), separator: str = ",", decimal: str = ".") -> str:
    """Cells with separators; missing scores are empty. Texts are made printable, except in the columns `as_written`.

    Args:
        frame: the table.
        as_written: columns that keep their texts, and the decimal points of their numbers.
        separator: text between cells.
        decimal: decimal mark of the numbers of all other columns.
    """
    columns: dict[Any, Any] = {}
    for name in frame.columns:
        if frame[name].dtype.kind == "f" and name in as_written and decimal != ".":
            columns[name] = frame[name].astype(object)
        if frame[name].dtype.kind in "iufb":
            continue
        texts = [value for value in frame[name] if isinstance(value, str)]
        if not texts:
            continue
        # A lone carriage return would end the line.
        if name not in as_written or any("\r" in text for text in texts):
            columns[name] = [printable(value) if isinstance(value, str) else value for value in frame[name]]
    names = {name: printable(name) for name in frame.columns if name not in as_written}
    printed = frame.assign(**columns).rename(columns=names)
    return str(printed.to_csv(index=False, lineterminator="\n", sep=separator, decimal=decimal))


def to_json(frame: pd.DataFrame) -> str:
    """A JSON array with one object for each row. Numbers have all digits; missing or infinite values are null."""
    return dump_json(_records(frame), indent=2, allow_nan=False, default=str) + "\n"


def to_jsonl(frame: pd.DataFrame) -> str:
    """One JSON object for each row, a line each."""
    return "".join(dump_json(row, allow_nan=False, default=str) + "\n" for row in _records(frame))


def _records(frame: pd.DataFrame) -> list[dict[Hashable, Any]]:
    """The rows as dicts, with None for what is missing or infinite."""
    values = frame.replace([math.inf, -math.inf], math.nan).rename(columns=str).astype(object)
    return values.where(values.notna(), None).to_dict("records")


def to_markdown(frame: pd.DataFrame, digits: int | None = None) -> str:
    """A Markdown table, with numbers as in `format_for_people`. A median and its quartiles share one column."""
    shown = format_for_people(frame, digits)
    sides = []
    columns: dict[str, Sequence[str]] = {}
    names = [*shown.columns]
    while names:
        group = _take_quartiles(names)
        is_numeric = frame[group[0]].dtype.kind in "iuf"
        sides.append("right" if is_numeric else "left")
        if len(group) == 1:
            [name] = group
            columns[escape_markdown(name)] = shown[name] if is_numeric else shown[name].map(escape_markdown)
        else:
            head = f"{str(group[1]).removesuffix(QUARTILES[1])} [quartiles]"
            cells = [_join_quartiles(*quartiles) for quartiles in shown[group].to_numpy()]
            columns[escape_markdown(head)] = cells
        del names[: len(group)]
    joined = type(shown)(columns)
    return str(joined.to_markdown(index=False, disable_numparse=True, colalign=sides)) + "\n"


def to_latex(frame: pd.DataFrame) -> str:
    r"""A LaTeX table for \input in a paper with booktabs: a tabular, with numbers on the right.

    All numbers of a column have the same decimals: three, or four digits in total if the largest number is above 10; z
    has one decimal. A median and its quartiles share one column. Missing values are dashes, and empty columns are left
    out.
    """
    names = [name for name in frame.columns if frame[name].notna().any()]
    heads = []
    sides = ""
    columns = []
    notes = ["requires \\usepackage{booktabs}"]
    while names:
        group = _take_quartiles(names)
        is_numeric = frame[group[0]].dtype.kind in "iuf"
        sides += "r" if is_numeric else "l"
        form = choose_form(str(group[0]), frame[group]) if is_numeric else ""
        texts = [_show_column(frame[name], form) for name in group]
        if len(group) == 1:
            columns.append(texts[0])
            heads.append(str(group[0]).replace("_", " "))
        else:
            columns.append([_join_quartiles(*quartiles) for quartiles in zip(*texts, strict=True)])
            heads.append(str(group[1]).removesuffix(QUARTILES[1]).replace("_", " "))
            notes.append(f"{heads[-1]}: median [quartiles]")
        del names[: len(group)]
    rows = [_join_latex(cells) for cells in zip(*columns, strict=True)]
    body = ["\\toprule", _join_latex([escape_latex(head) for head in heads]), "\\midrule", *rows, "\\bottomrule"]
    top = [f"% {printable(note)}" for note in notes]
    return "\n".join([*top, f"\\begin{{tabular}}{{{sides}}}", *body, "\\end{tabular}", ""])


def _show_column(values: pd.Series, form: str) -> list[str]:
    """The cells of a column in LaTeX. form: of its numbers, "" for texts."""
    cells = []
    for value, is_missing in zip(values, values.isna(), strict=True):
        if is_missing:
            cells.append(MISSING_IN_LATEX)
        else:
            cells.append(_set_number(f"{value:{form}}") if form else _show_text(value))
    return cells


def _show_text(value: object) -> str:
    """A text, or a truth in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return escape_latex(value)


def _join_quartiles(lower: str, median: str, upper: str) -> str:
    return median if median in (MISSING_IN_LATEX, "") else f"{median} [{lower}, {upper}]"


def _take_quartiles(names: Sequence[Any]) -> list[Any]:
    """The first of some columns; if it is a lower quartile, with the median and the upper quartile that follow it."""
    first = str(names[0])
    base = first.removesuffix(QUARTILES[0])
    group = [*names[: len(QUARTILES)]]
    return group if group == [base + quartile for quartile in QUARTILES] else [names[0]]


def escape_latex(text: object) -> str:
    r"""A text as LaTeX shows it letter for letter.

    >>> escape_latex("50% of W_qk")
    '50\\% of W\\_qk'
    """
    return "".join(LATEX.get(character) or _set_letter(character) for character in printable(text))


def _set_letter(character: str) -> str:
    r"""A Greek letter as pdfLaTeX knows it, and any other character as it is.

    >>> _set_letter("Δ"), _set_letter("σ"), _set_letter("a")
    ('$\\Delta$', '$\\sigma$', 'a')
    """
    match unicodedata.name(character, "").split():
        case ["GREEK", "SMALL" | "CAPITAL" as size, "LETTER", letter]:
            name = letter.lower().replace("lamda", "lambda")
            if name in ("omicron", "final") or (size == "CAPITAL" and name not in CAPITALS):
                return character
            return f"$\\{name.capitalize() if size == 'CAPITAL' else name}$"
        case _:
            return character


def _join_latex(cells: Sequence[str]) -> str:
    r"""A row of a table. In front of a first cell that \\ would take for its own option, there is an empty group."""
    row = " & ".join(cells)
    return f"{'{}' if row.startswith(('[', '*')) else ''}{row} \\\\"


def choose_form(name: str, values: pd.DataFrame) -> str:
    """The readable format of the numbers of a column, or of several similar columns; name: of the first."""
    if values[values.columns[0]].dtype.kind in "iu":
        return ","
    if name.endswith("_z"):
        name = "z"
    if name in FORMS:
        return FORMS[name]
    sizes = values.to_numpy("float64", na_value=math.nan).ravel()
    largest = max((abs(size) for size in map(float, sizes) if abs(size) < math.inf), default=0.0)
    place = math.floor(math.log10(largest)) if largest > 0 else 0
    if place < -MOST_ZEROS:
        return f".{SMALLEST_DIGITS - 1}e"
    decimals = min(DECIMALS, LARGEST_DIGITS - 1 - place)
    return f".{max(decimals, SMALLEST_DIGITS - 1 - place, 0)}f"


def _set_number(text: str) -> str:
    """A number in LaTeX: a true minus, commas without a space behind them, and powers of ten.

    >>> _set_number("-0.25"), _set_number("1e-05"), _set_number("1,024"), _set_number("-0.000")
    ('$-0.25$', '$10^{-5}$', '1{,}024', '0.000')
    """
    digits, exponential, power = text.partition("e")
    if not any(digit in digits for digit in "123456789") and digits.strip("-0.") == "":
        return "0" if exponential else digits.removeprefix("-")
    if exponential:
        factor = "" if digits in ("1", "-1") else f"{digits}\\times "
        return f"${'-' if digits == '-1' else ''}{factor}10^{{{int(power)}}}$"
    if text.lstrip("-") in ("inf", "nan"):
        return "$" + text.replace("inf", r"\infty") + "$"
    number = digits.replace(",", "{,}")
    return f"${number}$" if number.startswith("-") else number


def to_html(frame: pd.DataFrame) -> str:
    """A complete page: the title from `attrs`, the table, and its provenance from `attrs`."""
    provenance = ""
    for name, value in frame.attrs.items():
        text = describe_origin(value)
        if text and name not in ("title", AS_WRITTEN, FORM, NOTES):
            provenance += f"<dt>{_escape_html(name)}</dt><dd>{_escape_html(text)}</dd>"
    title = _escape_html(frame.attrs.get("title", "attngeo"))
    shown = format_for_people(frame)
    table = shown.rename(columns=printable).to_html(index=False, border=0)
    columns_of_texts = [
        f"td:nth-child({number}),th:nth-child({number})"
        for number, is_numeric in enumerate(numeric_columns(frame, shown), 1)
        if not is_numeric
    ]
    style = STYLE
    if columns_of_texts:
        style += f"{','.join(columns_of_texts)}{{text-align:left}}"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{style}</style>'
        f"</head><body>\n<h1>{title}</h1>\n<div>{table}</div>\n"
        f"<h2>How it was made</h2>\n<dl>{provenance}</dl>\n</body></html>\n"
    )


def describe_origin(value: object) -> str:
    """An entry of provenance as text, "" for an empty one. Empty entries of a dict are left out.

    >>> describe_origin({"a": {"lm_head": "no queries"}, "b": None})
    'a: lm_head: no queries'
    """
    if not isinstance(value, Mapping):
        return "" if value is None or value == [] or value == () else str(value)
    texts = {name: describe_origin(item) for name, item in value.items()}
    return "; ".join(f"{name}: {text}" for name, text in texts.items() if text)


def _escape_html(text: object) -> str:
    return html.escape(printable(text))


def format_for_people(frame: pd.DataFrame, digits: int | None = None) -> pd.DataFrame:
    """The frame as text: missing values are empty, empty columns are left out, and whole numbers have commas.

    digits: of other numbers; by default, all numbers of a column have the same decimals, as in `to_latex`. A user's own
    columns have no commas, because their whole numbers may be years.
    """
    own = frame.attrs.get(AS_WRITTEN, ())
    columns = {}
    for name in frame.columns:
        values = frame[name]
        form = f".{digits or OWN_DIGITS}g"
        if digits is None and values.dtype.kind in "iuf" and name not in own:
            form = choose_form(str(name), frame[[name]])
        separator = "" if name in own else ","
        texts = [
            "" if is_missing else printable(_format_value(value, form, separator))
            for value, is_missing in zip(values, values.isna(), strict=True)
        ]
        if any(texts):
            columns[name] = texts
    return type(frame)(columns)


def numeric_columns(frame: pd.DataFrame, shown: pd.DataFrame) -> list[bool]:
    """Which of the shown columns hold numbers, and so are aligned to the right."""
    return [frame[name].dtype.kind in "iuf" for name in shown.columns]


def _format_value(value: object, form: str, separator: str) -> str:
    """A value as text. form: of numbers that are not whole, whose zero has no sign. separator: of thousands."""
    if isinstance(value, float):
        return "0" if value == 0 and form.endswith("e") else f"{value:z{form}}"
    if isinstance(value, Integral) and not isinstance(value, bool):
        return f"{value:{separator}}"
    return str(value)


WRITERS: dict[str, Callable[[pd.DataFrame], str]] = {
    ".csv": to_csv,
    ".json": to_json,
    ".jsonl": to_jsonl,
    ".md": to_markdown,
    ".tex": to_latex,
    ".html": to_html,
}
SUFFIXES = (*WRITERS, ".parquet")
# Formats in which models have their labels, if they have some.
FOR_PEOPLE = (".md", ".tex", ".html")


def check_output(path: Path) -> None:
    """Raise OutputError if a table cannot be written to `path`. Call it before the work that fills the table."""
    check_writable(path, SUFFIXES)


def write_table(frame: pd.DataFrame, path: Path) -> None:
    """Write `frame` to `path` in the format of its suffix, whole or not at all. Raises OutputError."""
    check_output(path)
    suffix = path.suffix.lower()
    with atomic_write(path) as partial:
        if suffix == ".parquet":
            frame.to_parquet(partial, index=False)
        elif suffix == ".csv":
            form = {"separator": ",", "decimal": ".", "encoding": "utf-8", **frame.attrs.get(FORM, {})}
            text = to_csv(frame, frame.attrs.get(AS_WRITTEN, ()), form["separator"], form["decimal"])
            partial.write_text(text, form["encoding"], newline="\n")
        else:
            partial.write_text(WRITERS[suffix](frame), "utf-8", newline="\n")
