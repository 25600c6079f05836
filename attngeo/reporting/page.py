"""The page of a report: one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from attngeo.reporting.blocks import Drawn, Tabled
from attngeo.reporting.payload import Payload, compressed
from attngeo.scores.conditions import Outcome
from attngeo.tables.write import for_people, numeric_columns

if TYPE_CHECKING:
    import pandas as pd

# Rows of a table that a page shows; the files have them all.
MOST_ROWS = 500
# Of scores in tables: as many as tell models apart.
DIGITS = 4


@dataclass(frozen=True)
class Part:
    """A section of a report, made."""

    title: str
    text: str
    figures: list[Drawn]
    tables: list[Tabled]


@dataclass(frozen=True)
class Content:
    """All that a report says. text: Markdown. failures: what is missing, a line each."""

    title: str
    text: str
    parts: list[Part]
    checks: list[Outcome]
    failures: list[str]
    provenance: dict[str, Any]


def page(content: Content) -> str:
    """The page as HTML. Names and texts are shown letter for letter; Markdown may not hold HTML."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup, escape

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["breakable"] = lambda name: escape(name).replace("_", Markup("_<wbr>"))
    script = _file("page.js")
    payload = Payload()
    sections = [_section(number, part, payload) for number, part in enumerate(content.parts, 1)]
    drawn = any(section["figures"] for section in sections)
    return environment.from_string(_file("page.html")).render(
        title=content.title, text=Markup(_html(content.text)), sections=sections,
        checks=content.checks, passed=sum(not check.failed for check in content.checks), failures=content.failures,
        provenance=content.provenance, made=_made(content.provenance),
        css=Markup(_file("page.css")), script=Markup(script), script_hash=Markup(_hash(script)),
        plotly=_plotly() if drawn else "", figures=payload.encoded() if drawn else "",
    )  # fmt: skip


def _section(number: int, part: Part, payload: Payload) -> dict[str, Any]:
    from markupsafe import Markup

    return {
        "id": f"section-{number}", "title": part.title, "text": Markup(_html(part.text)),
        "figures": [_figure(f"figure-{number}-{i}", figure, payload) for i, figure in enumerate(part.figures, 1)],
        "tables": [_table(table) for table in part.tables],
    }  # fmt: skip


def _figure(name: str, figure: Drawn, payload: Payload) -> dict[str, Any]:
    variants = [(label, payload.add(each)) for label, each in figure.variants]
    return {
        "id": name, "caption": figure.caption, "variants": variants, "label": figure.label,
        "file": f"tables/{figure.of}.csv" if figure.of else None,
    }  # fmt: skip


def _table(table: Tabled) -> dict[str, Any]:
    from markupsafe import Markup

    rows: pd.DataFrame = table.rows.head(MOST_ROWS)
    shown = for_people(rows, DIGITS, separated=True)
    left = Markup(' class="text"')
    sides = ["" if numeric else left for numeric in numeric_columns(rows, shown)]
    return {
        "name": table.name, "caption": table.caption, "columns": list(zip(shown.columns, sides, strict=True)),
        "rows": [list(zip(row, sides, strict=True)) for row in shown.itertuples(index=False, name=None)],
        "more": len(table.rows) if len(table.rows) > MOST_ROWS else 0,
    }  # fmt: skip


def _made(provenance: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Provenance as lines: what was run, with what, on what."""
    lines = [("date", provenance["date"]), ("command", provenance["command"]), ("recipe", provenance["recipe"])]
    for name in ("software", "machine"):
        lines += [(key, str(value)) for key, value in provenance[name].items()]
    common = {*provenance["software"], *provenance["machine"]}
    return lines + [
        (f"{each['results']}: {each['command']}", _described(each, common)) for each in provenance["results"]
    ]


def _described(made: Mapping[str, Any], common: Collection[str]) -> str:
    """The model and its commit, then every option; not what all have in common."""
    elsewhere = ("results", "command", "title", "model", "revision", *common)
    own = {key: value for key, value in made.items() if key not in elsewhere}
    own = {
        key: value for key, value in own.items() if value is not None and value is not False and value not in ("", [])
    }
    own = {key: "; ".join(map(str, value)) if isinstance(value, list) else value for key, value in own.items()}
    commit = f"@{made['revision']}" if made.get("revision") else ""
    return f"{made.get('model', '')}{commit} · " + ", ".join(f"{key} {value}" for key, value in own.items())


def _html(markdown: str) -> str:
    """Markdown as HTML; what looks like HTML in it is text, and links lead to the web or to places beside the page."""
    from markdown_it import MarkdownIt

    return str(MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)) if markdown else ""


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return compressed(get_plotlyjs().encode())


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _file(name: str) -> str:
    return (files("attngeo.reporting") / name).read_text("utf-8")
