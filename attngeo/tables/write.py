"""A DataFrame as text, and as a file in the format that its suffix names."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Collection, Mapping
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngeo.bounds.names import dump_json, escape_markdown, printable
from attngeo.tables.files import atomic_write, check_writable

if TYPE_CHECKING:
    import pandas as pd

# Digits of scores in tables for people; files for programs have all digits.
DIGITS = 6
# The entry of `attrs` that lists the columns of a user's own file: a file that is written has their texts as they are.
AS_WRITTEN = "as_written"
STYLE = (
    "body{font:14px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:80rem;padding:0 1rem;color:#1c2024}"
    "div{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}"
    "th,td{padding:.3rem .6rem;border-bottom:1px solid #e2e4e8;text-align:right;white-space:nowrap}"
    "th{position:sticky;top:0;background:#fff;border-bottom:2px solid #9aa1ab}"
    "dl{display:grid;grid-template-columns:max-content auto;gap:.1rem 1rem;color:#5a626d}dd{margin:0}"
)


def to_csv(frame: pd.DataFrame, kept: Collection[Any] = ()) -> str:
    """Comma-separated values; missing scores are empty. Texts are made printable, but those of the columns `kept`."""
    names = {name: name if name in kept else printable(name) for name in frame.columns}
    return str(_print_texts(frame, kept).rename(columns=names).to_csv(index=False, lineterminator="\n"))


def to_json(frame: pd.DataFrame) -> str:
    """A JSON array with one object for each row. Numbers have all digits; missing or infinite values are null."""
    return dump_json(_records(frame), indent=2, allow_nan=False, default=str) + "\n"


def to_jsonl(frame: pd.DataFrame) -> str:
    """One JSON object for each row, a line each."""
    return "".join(dump_json(row, allow_nan=False, default=str) + "\n" for row in _records(frame))


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    columns = []
    for name in frame.columns:
        values = frame[name]
        gone = values.isna() | (values.isin([math.inf, -math.inf]) if values.dtype.kind == "f" else False)
        columns.append(values.astype(object).where(~gone, None).tolist())
    names = list(map(str, frame.columns))
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def to_markdown(frame: pd.DataFrame, digits: int = DIGITS) -> str:
    """A Markdown table; scores have `digits` digits."""
    shown = format_for_people(frame, digits)
    numeric = numeric_columns(frame, shown)
    sides = ["right" if is_numeric else "left" for is_numeric in numeric]
    texts = [name for name, is_numeric in zip(shown.columns, numeric, strict=True) if not is_numeric]
    shown = shown.assign(**{name: shown[name].map(escape_markdown) for name in texts}).rename(columns=escape_markdown)
    return str(shown.to_markdown(index=False, disable_numparse=True, colalign=sides)) + "\n"


def to_latex(frame: pd.DataFrame) -> str:
    """A LaTeX tabular for booktabs; scores have six digits."""
    return format_for_people(frame).rename(columns=printable).to_latex(index=False, escape=True) + "\n"


def to_html(frame: pd.DataFrame) -> str:
    """A complete page: the title from `attrs`, the table, and its provenance from `attrs`."""
    described = {
        name: describe_origin(value) for name, value in frame.attrs.items() if name not in ("title", AS_WRITTEN)
    }
    provenance = "".join(
        f"<dt>{_escape_html(name)}</dt><dd>{_escape_html(text)}</dd>" for name, text in described.items() if text
    )
    shown, title = format_for_people(frame), _escape_html(frame.attrs.get("title", "attngeo"))
    texts = [place for place, numeric in enumerate(numeric_columns(frame, shown), 1) if not numeric]
    table = shown.rename(columns=printable).to_html(index=False, border=0)
    left = ",".join(f"td:nth-child({place}),th:nth-child({place})" for place in texts)
    style = STYLE + (f"{left}{{text-align:left}}" if left else "")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{style}</style>'
        f"</head><body>\n<h1>{title}</h1>\n<div>{table}</div>\n"
        f"<h2>How it was made</h2>\n<dl>{provenance}</dl>\n</body></html>\n"
    )


def describe_origin(value: object) -> str:
    """An entry of provenance as text, "" for an empty one. What is empty in a dict is left out.

    >>> describe_origin({"a": {"lm_head": "no queries"}, "b": None})
    'a: lm_head: no queries'
    """
    if not isinstance(value, Mapping):
        return "" if value is None or value == [] or value == () else str(value)
    texts = {name: describe_origin(item) for name, item in value.items()}
    return "; ".join(f"{name}: {text}" for name, text in texts.items() if text)


def _escape_html(text: object) -> str:
    return html.escape(printable(text))


def format_for_people(frame: pd.DataFrame, digits: int = DIGITS, *, separated: bool = False) -> pd.DataFrame:
    """The frame as text: scores have `digits` digits, missing values are empty, empty columns are left out.

    separated: whole numbers have commas between thousands.
    """
    columns = {}
    for name in frame.columns:
        values = frame[name]
        texts = [
            "" if missing else printable(_text(value, digits, separated))
            for value, missing in zip(values, values.isna(), strict=True)
        ]
        if any(texts):
            columns[name] = texts
    return type(frame)(columns)


def _print_texts(frame: pd.DataFrame, kept: Collection[Any]) -> pd.DataFrame:
    """The frame with its texts made printable, and everything else as it is, as are texts of the columns `kept`."""
    columns: dict[Any, list[Any]] = {}
    for name in frame.columns:
        values = [] if frame[name].dtype.kind in "iufb" else [*frame[name]]
        texts = [value for value in values if isinstance(value, str)]
        # A lone carriage return would end the line.
        if texts and (name not in kept or any("\r" in text for text in texts)):
            columns[name] = [printable(value) if isinstance(value, str) else value for value in values]
    return frame.assign(**columns)


def numeric_columns(frame: pd.DataFrame, shown: pd.DataFrame) -> list[bool]:
    """Which of the shown columns hold numbers, and so are aligned to the right."""
    return [frame[name].dtype.kind in "iuf" for name in shown.columns]


def _text(value: object, digits: int, separated: bool) -> str:
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    return f"{value:,}" if separated and isinstance(value, Integral) and not isinstance(value, bool) else str(value)


WRITERS: dict[str, Callable[[pd.DataFrame], str]] = {
    ".csv": to_csv,
    ".json": to_json,
    ".jsonl": to_jsonl,
    ".md": to_markdown,
    ".tex": to_latex,
    ".html": to_html,
}
SUFFIXES = (*WRITERS, ".parquet")


def check_output(path: Path) -> None:
    """Raise OutputError if a table cannot be written to `path`. Call it before the work that fills the table."""
    check_writable(path, SUFFIXES)


def write_table(frame: pd.DataFrame, path: Path) -> None:
    """Write `frame` to `path` in the format of its suffix, whole or not at all. Raises OutputError."""
    check_output(path)
    with atomic_write(path) as partial:
        if path.suffix.lower() == ".parquet":
            frame.to_parquet(partial, index=False)
        elif path.suffix.lower() == ".csv":
            partial.write_text(to_csv(frame, frame.attrs.get(AS_WRITTEN, ())), "utf-8")
        else:
            partial.write_text(WRITERS[path.suffix.lower()](frame), "utf-8")
