"""What a report shows, as a page of HTML that contains all it needs, and as Markdown for a pull request."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined, Template
from markdown_it import MarkdownIt
from markupsafe import Markup, escape
from plotly.graph_objects import Figure
from plotly.io.json import to_json_plotly
from plotly.offline import get_plotlyjs

from attngeo.bounds.names import escape_markdown, printable
from attngeo.figures.save import SETTINGS
from attngeo.reporting.results import ReportContent, ReportTable
from attngeo.reporting.sheet import break_words, fit_table
from attngeo.tables.write import format_for_people, numeric_columns, to_markdown

# Rows of a table that a page shows, and a text for a pull request; the table's files have all rows.
MOST_PAGE_ROWS, MOST_MARKDOWN_ROWS = 500, 50
# Times that a text is parsed to find its HTML; each time removes some. Then every line is escaped.
MOST_PARSING_PASSES = 20
# Significant digits of numbers in tables, and decimals of the scores of heat maps: these are most of a large page, and
# a picture and a hover show no more.
DIGITS, DECIMALS = 4, 3


def render_page(content: ReportContent) -> str:
    """The page as one self-contained HTML file.

    Names are shown letter for letter; HTML in Markdown texts is shown as text.
    """
    script = _read_file("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    figures: list[Figure] = []
    for section in content.sections:
        for block in section.figures:
            figures += [figure for _, figure in block.variants]
    return _load_template().render(
        content=content,
        provenance=content.provenance,
        origins=_list_provenance(content.provenance),
        css=Markup(_read_file("page.css")),
        script=Markup(script),
        script_hash=Markup(f"'sha256-{digest}'"),
        plotly=_pack_plotly() if figures else "",
        figures=pack_figures(figures) if figures else "",
        settings=Markup(json.dumps(SETTINGS)),
    )


@cache
def _load_template() -> Template:
    """The template of the page."""

    def show(value: Any) -> Any:
        return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=show
    )
    environment.filters["breakable"] = lambda name: escape(name).replace("_", Markup("_<wbr>"))
    to_html = MarkdownIt("commonmark", {"html": False}).enable("table").render  # HTML in Markdown is shown as text
    environment.filters["markdown"] = lambda text: Markup(to_html(text) if text else "")
    environment.filters["cells"] = _fill_cells
    return environment.from_string(_read_file("page.html"))


@cache
def _pack_plotly() -> str:
    """The library of figures as base64 text of gzip: packing it takes a third of the time of a small report."""
    return compress(get_plotlyjs())


def _read_file(name: str) -> str:
    return (files("attngeo.reporting") / name).read_text("utf-8")


def _fill_cells(table: ReportTable) -> dict[str, Any]:
    """What the page shows of a table: texts, each with the attribute of its side."""
    rows = table.rows.head(MOST_PAGE_ROWS)
    shown = format_for_people(rows, DIGITS)
    are_numeric = numeric_columns(rows, shown)
    sides = [Markup("" if numeric else ' class="text"') for numeric in are_numeric]
    cells = []
    for row in shown.itertuples(index=False, name=None):
        texts = [
            text if is_numeric else break_words(printable(text))
            for text, is_numeric in zip(row, are_numeric, strict=True)
        ]
        cells.append(list(zip(texts, sides, strict=True)))
    return {
        "name": table.name, "caption": table.caption, "columns": list(zip(shown.columns, sides, strict=True)),
        "rows": cells, "fit": fit_table(shown, are_numeric),
        "more": len(table.rows) if len(table.rows) > MOST_PAGE_ROWS else 0,
    }  # fmt: skip


def _list_provenance(provenance: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and value of each line of provenance: date, command, software, machine, then the parts of the results.

    A part has the model and its commit, then every option that is set and not shown elsewhere. Parts with the same
    options are one line.
    """
    common = provenance["software"] | provenance["machine"]
    lines = [
        (name, describe_value(value))
        for name, value in (provenance | common).items()
        if not isinstance(value, dict | list) and _is_set(value)
    ]
    elsewhere = {"results", "command", "title", "model", "revision", *common}
    models: dict[tuple[str, str], Counter[str]] = {}
    for origin in provenance["results"]:
        options = []
        for name, value in origin.items():
            if name not in elsewhere and _is_set(value):
                options.append(f"{name} {describe_value(value)}")
        line = f"{origin['results']}: {origin['command']}", ", ".join(options)
        models.setdefault(line, Counter())[name_commits(origin)] += 1
    for (name, described), counts in models.items():
        lines.append((name, f"{_count_names(counts)} · {described}"))
    return lines


def _count_names(counts: Counter[str]) -> str:
    """Names of which each has a count, in words.

    >>> _count_names(Counter(["a"])), _count_names(Counter(["a", "b, c"])), _count_names(Counter(["a"] * 50))
    ('a', '2 parts: a; b, c', 'a (50 times)')
    """
    texts = [f"{name} ({count} times)" if count > 1 else name for name, count in counts.items()]
    return texts[0] if len(texts) == 1 else f"{len(texts)} parts: {'; '.join(texts)}"


def _is_set(value: Any) -> bool:
    """Whether there is something to say of a value: a number, or what is neither empty nor off."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number or bool(value)


def describe_value(value: Any) -> str:
    """A value of an option in words, as a recipe could say it, without Python's marks.

    >>> describe_value(True), describe_value({"layers": ["0", "1"]}), describe_value(("a", "b"))
    ('yes', 'layers: 0; 1', 'a; b')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {describe_value(item)}" for name, item in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return "; ".join(map(describe_value, value))
    return "" if value is None else str(value)


def name_commits(origin: Mapping[str, Any]) -> str:
    """The models of a part of the results, each with its commit if it has one."""
    revision = origin.get("revision")
    commits = revision if isinstance(revision, Mapping) else {origin.get("model", ""): revision}
    return ", ".join(f"{model}@{commit}" if commit else str(model) for model, commit in commits.items())


def pack_figures(figures: Iterable[Figure]) -> str:
    """All figures as base64 text of gzip. The same figures give the same text."""
    return compress("\n".join(map(encode_figure, figures)))


def encode_figure(figure: Figure) -> str:
    """A figure as plotly JSON on one line, without the template; the page sets the colours."""
    content = figure.to_plotly_json()
    content["layout"].pop("template", None)
    for shown, trace in zip(content["data"], figure.data, strict=True):
        # As decimal text they compress to less than half of the base64 that plotly writes.
        if trace.type == "heatmap" and trace.coloraxis:
            shown["z"] = np.asarray(trace.z, dtype=float).round(DECIMALS).tolist()
    return str(to_json_plotly(content))


def compress(text: str) -> str:
    """Base64 text of gzip. The same text gives the same."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def disarm(text: str) -> str:
    """A Markdown text whose HTML is shown as text, as on the page, and whose links run no script.

    Code, and a "<" that does not begin HTML, stay unchanged.

    >>> disarm("a < b, <b>c</b>"), disarm("`<b>` <https://a.org>")
    ('a &lt; b, &lt;b>c&lt;/b>', '`<b>` <https://a.org>')
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")  # the line ends of Markdown
    for _ in range(MOST_PARSING_PASSES):
        numbers = _find_active_lines("\n".join(lines))
        if not numbers:
            return "\n".join(lines)
        for number in numbers:
            lines[number] = _escape_active(lines[number])
    return _escape_active("\n".join(lines))


def _escape_active(text: str) -> str:
    """A Markdown text without HTML and links."""
    return text.replace("<", "&lt;").replace("[", "&#91;")


def _find_active_lines(text: str) -> set[int]:
    """Numbers of the lines of the blocks that have HTML, or a link that a browser may run, from 0."""
    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    is_sound = parser.validateLink
    # By default, the parser takes a link that it does not allow for text. Others might follow it.
    parser.validateLink = lambda url: True  # type: ignore[method-assign] # noqa: ARG005
    numbers: set[int] = set()
    for token in parser.parse(text):
        parts = [token, *(token.children or [])]
        links = [part.attrGet("href") or part.attrGet("src") for part in parts]
        is_active = any(part.type.startswith("html_") for part in parts)
        if token.map is not None and (is_active or any(link and not is_sound(str(link)) for link in links)):
            numbers.update(range(*token.map))
    return numbers


def render_markdown(content: ReportContent, pictures: Sequence[str] = (), note: str = "") -> str:
    """The text of a report, for a pull request; names are shown letter for letter.

    Args:
        content: content of the report.
        pictures: path of the picture of each figure, beside the text; empty if there are none.
        note: why there are no pictures.
    """
    checks = [
        f"- {'✗' if check.failed else '✓'} {f'{check.of}: ' if check.of else ''}{escape_markdown(check.model)}"
        f"{f' ({escape_markdown(check.stack)})' if check.stack else ''}: {check.reason}; fails if `{check.expression}`"
        for check in sorted(content.checks, key=lambda check: not check.failed)
    ]
    failures = [f"- missing: {escape_markdown(failure)}" for failure in content.failures]
    verdict = f"**{content.verdict}.**" if content.verdict else ""
    blocks = [
        f"# {escape_markdown(content.title)}",
        verdict,
        "\n".join(checks + failures),
        content.text.strip(),
    ]
    remaining = iter(pictures)
    for section in content.sections:
        blocks += [f"## {escape_markdown(section.title)}", section.text.strip()]
        for figure in section.figures:
            title = escape_markdown(figure.caption or figure.label)
            picture = next(remaining, None)
            if picture is None:
                blocks.append(f"*{title}*: see the figure in [index.html](index.html).")
                continue
            models = [name for name, _ in figure.variants]
            others = f" ({escape_markdown(models[0])}; others in index.html)" if len(models) > 1 else ""
            blocks.append(f"![{escape_markdown(figure.label)}]({picture})\n\n*{title}*{others}")
        for table in section.tables:
            count = len(table.rows)
            shown = table.rows.head(MOST_MARKDOWN_ROWS)
            more = f" (the first {len(shown)} of {count:,} rows)" if count > len(shown) else ""
            blocks.append(f"{escape_markdown(table.caption or table.name)}{more}:")
            blocks.append(to_markdown(shown, DIGITS).rstrip())
    if note:
        blocks.append(f"Note: {note}.")
    blocks.append(f"Made with attngeo {content.provenance['software']['attngeo']}, {content.provenance['date']}.")
    return disarm("\n\n".join(filter(None, blocks))) + "\n"
