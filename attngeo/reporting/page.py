"""The page of a report: one HTML file that contains all it needs; and the same as Markdown, for a pull request."""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.bounds import escape_markdown, printable
from attngeo.reporting.blocks import ReportFigure, ReportTable
from attngeo.scores.summary import Outcome
from attngeo.tables.write import format_for_people, numeric_columns, to_markdown

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

# Rows of a table that a page shows; the table's files have all rows.
MOST_ROWS = 500
# The same of the text for a pull request.
MOST_MARKDOWN_ROWS = 50
# Significant digits of numbers in tables.
DIGITS = 4
# The scores of heat maps, which are most of a large page, are whole thousandths: a picture and a hover show no more,
# and as decimal text they compress to less than half of the base64 that plotly writes.
THOUSANDTHS = 1000
# The `meta` of a heat map in thousandths, for the script of the page.
META = {"thousandths": True}


@dataclass(frozen=True)
class ReportSection:
    """A section of a report with its figures and tables. text: Markdown."""

    title: str
    text: str
    figures: list[ReportFigure]
    tables: list[ReportTable]


@dataclass(frozen=True)
class ReportContent:
    """All that a report shows. text: Markdown. failures: what is missing, one line each."""

    title: str
    text: str
    sections: list[ReportSection]
    checks: list[Outcome]
    failures: list[str]
    provenance: dict[str, Any]

    @property
    def verdict(self) -> str:
        """How many checks passed, and how much is missing; empty if there are no checks and nothing is missing."""
        passed, missing = sum(not check.failed for check in self.checks), len(self.failures)
        counts = [f"{passed} of {len(self.checks)} checks passed"] if self.checks else []
        if missing:
            counts.append(f"{missing} {'part' if missing == 1 else 'parts'} missing")
        return ", ".join(counts)


def render_page(content: ReportContent) -> str:
    """The page as HTML. Names are shown letter for letter; HTML in Markdown texts is shown as text."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup, escape

    def show(value: Any) -> Any:
        return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=show
    )
    environment.filters["breakable"] = lambda name: escape(name).replace("_", Markup("_<wbr>"))
    script = _read_file("page.js")
    figures: list[Figure] = []
    sections = [_describe_section(number, section, figures) for number, section in enumerate(content.sections, 1)]
    return environment.from_string(_read_file("page.html")).render(
        title=content.title, text=Markup(_to_html(content.text)), sections=sections,
        checks=content.checks, verdict=content.verdict, failures=content.failures,
        provenance=content.provenance, made=_list_provenance(content.provenance),
        css=Markup(_read_file("page.css")), script=Markup(script), script_hash=Markup(_hash(script)),
        plotly=_pack_plotly() if figures else "", figures=pack_figures(figures) if figures else "",
    )  # fmt: skip


def _describe_section(number: int, section: ReportSection, figures: list[Figure]) -> dict[str, Any]:
    """What the template shows of a section; its figures are added to `figures`, the template has their numbers."""
    from markupsafe import Markup

    return {
        "id": f"section-{number}", "title": section.title, "text": Markup(_to_html(section.text)),
        "figures": [
            _describe_figure(f"figure-{number}-{i}", figure, figures) for i, figure in enumerate(section.figures, 1)
        ],
        "tables": [_describe_table(table) for table in section.tables],
    }  # fmt: skip


def _describe_figure(name: str, figure: ReportFigure, figures: list[Figure]) -> dict[str, Any]:
    variants = []
    for label, each in figure.variants:
        variants.append((label, len(figures)))
        figures.append(each)
    return {
        "id": name, "caption": figure.caption, "variants": variants, "label": figure.label,
        "file": f"tables/{figure.source}.csv" if figure.source else None,
    }  # fmt: skip


def _describe_table(table: ReportTable) -> dict[str, Any]:
    from markupsafe import Markup

    rows: pd.DataFrame = table.rows.head(MOST_ROWS)
    shown = format_for_people(rows, DIGITS, separated=True)
    left = Markup(' class="text"')
    sides = ["" if numeric else left for numeric in numeric_columns(rows, shown)]
    return {
        "name": table.name, "caption": table.caption, "columns": list(zip(shown.columns, sides, strict=True)),
        "rows": [list(zip(row, sides, strict=True)) for row in shown.itertuples(index=False, name=None)],
        "more": len(table.rows) if len(table.rows) > MOST_ROWS else 0,
    }  # fmt: skip


def _list_provenance(provenance: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and value of each line of provenance: date, command, software, machine, then each part of the results."""
    lines = [("date", provenance["date"]), ("command", provenance["command"]), ("recipe", provenance["recipe"])]
    for name in ("software", "machine"):
        lines += [(key, str(value)) for key, value in provenance[name].items()]
    common = {*provenance["software"], *provenance["machine"]}
    return lines + [
        (f"{each['results']}: {each['command']}", _describe_part(each, common)) for each in provenance["results"]
    ]


def _describe_part(made: Mapping[str, Any], common: Collection[str]) -> str:
    """The model and its commit, then every option that is set; `common` is shown elsewhere."""
    elsewhere = ("results", "command", "title", "model", "revision", *common)
    options = []
    for name, value in made.items():
        if name in elsewhere or value is None or value is False or value in ("", []):
            continue
        options.append(f"{name} {'; '.join(map(str, value)) if isinstance(value, list) else value}")
    commit = f"@{made['revision']}" if made.get("revision") else ""
    return f"{made.get('model', '')}{commit} · {', '.join(options)}"


def _to_html(markdown: str) -> str:
    """Markdown as HTML. HTML in it is shown as text."""
    from markdown_it import MarkdownIt

    return str(MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)) if markdown else ""


def _pack_plotly() -> str:
    from plotly.offline import get_plotlyjs

    return compress(get_plotlyjs().encode())


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _read_file(name: str) -> str:
    return (files("attngeo.reporting") / name).read_text("utf-8")


def pack_figures(figures: Iterable[Figure]) -> str:
    """All figures as base64 text of gzip. The same figures give the same text."""
    return compress("\n".join(map(encode_figure, figures)).encode())


def encode_figure(figure: Figure) -> str:
    """A figure as plotly's JSON, in one line, without the template; the page sets the colours."""
    from plotly.io.json import to_json_plotly

    content = figure.to_plotly_json()
    content["layout"].pop("template", None)
    for trace in content["data"]:
        if trace["type"] == "heatmap" and "coloraxis" in trace:
            trace |= {"z": count_thousandths(trace["z"]), "meta": META}
    return str(to_json_plotly(content))


def count_thousandths(scores: Any) -> list[list[int | None]]:
    """Scores as whole thousandths; None for a missing one.

    >>> count_thousandths(np.array([[0.1234, np.nan], [-1.0, 0.0]]))
    [[123, None], [-1000, 0]]
    """
    rounded = np.round(_as_array(scores) * THOUSANDTHS)
    return [[int(value) if np.isfinite(value) else None for value in row] for row in rounded.tolist()]


def compress(content: bytes) -> str:
    """Base64 text of gzip. The same content gives the same text."""
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


def _as_array(values: Any) -> np.ndarray:
    """The array of a trace: plotly keeps it as it is, or as base64 with its type and shape."""
    if not isinstance(values, dict):
        return np.asarray(values, dtype=float)
    shape = [int(size) for size in str(values["shape"]).split(",")]
    return np.frombuffer(base64.b64decode(values["bdata"]), dtype=values["dtype"]).reshape(shape).astype(float)


def render_markdown(content: ReportContent) -> str:
    """The text of a report; names are shown letter for letter."""
    blocks = [f"# {escape_markdown(content.title)}"]
    if content.verdict:
        blocks.append(f"**{content.verdict}.**")
    blocks.append("\n".join([
        *map(_render_check, sorted(content.checks, key=lambda check: not check.failed)),
        *(f"- missing: {escape_markdown(failure)}" for failure in content.failures),
    ]))  # fmt: skip
    blocks.append(content.text.strip())
    for section in content.sections:
        blocks += [f"## {escape_markdown(section.title)}", section.text.strip()]
        for figure in section.figures:
            blocks.append(f"*{escape_markdown(figure.caption or figure.label)}*: see the figure in index.html.")
        for table in section.tables:
            more = (
                f" (the first {MOST_MARKDOWN_ROWS} of {len(table.rows):,} rows)"
                if len(table.rows) > MOST_MARKDOWN_ROWS
                else ""
            )
            blocks += [
                f"{escape_markdown(table.caption or table.name)}{more}:",
                to_markdown(table.rows.head(MOST_MARKDOWN_ROWS), DIGITS).rstrip(),
            ]
    blocks.append(f"Made with attngeo {content.provenance['software']['attngeo']}, {content.provenance['date']}.")
    return "\n\n".join(filter(None, blocks)) + "\n"


def _render_check(check: Outcome) -> str:
    """The result of a check, its values and its condition, which needs no escapes."""
    mark = "✗" if check.failed else "✓"
    return f"- {mark} {_name_model(check)}: {check.reason}; fails if `{check.expression}`"


def _name_model(check: Outcome) -> str:
    model = escape_markdown(check.model)
    return f"{model} ({escape_markdown(check.stack)})" if check.stack else model
