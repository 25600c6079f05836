"""A report as Markdown, for a pull request: the checks, what is missing, then the first rows of every table."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

from attngeo.reporting.page import DIGITS, ReportContent
from attngeo.tables.write import to_markdown

if TYPE_CHECKING:
    import pandas as pd

    from attngeo.scores.conditions import Outcome

MOST_ROWS = 50
SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~])")


def render_markdown(content: ReportContent) -> str:
    """The text of a report; names are shown letter for letter."""
    blocks = [f"# {_escape(content.title)}"]
    if content.verdict:
        blocks.append(f"**{content.verdict}.**")
    blocks.append("\n".join([
        *map(_render_check, sorted(content.checks, key=lambda check: not check.failed)),
        *(f"- missing: {_escape(failure)}" for failure in content.failures),
    ]))  # fmt: skip
    blocks.append(content.text.strip())
    for section in content.sections:
        blocks += [f"## {_escape(section.title)}", section.text.strip()]
        for figure in section.figures:
            blocks.append(f"*{_escape(figure.caption or figure.label)}*: see the figure in index.html.")
        for table in section.tables:
            more = f" (the first {MOST_ROWS} of {len(table.rows):,} rows)" if len(table.rows) > MOST_ROWS else ""
            blocks += [f"{_escape(table.caption or table.name)}{more}:", _render_table(table.rows.head(MOST_ROWS))]
    blocks.append(f"Made with attngeo {content.provenance['software']['attngeo']}, {content.provenance['date']}.")
    return "\n\n".join(filter(None, blocks)) + "\n"


def _render_check(check: Outcome) -> str:
    """The result of a check, its values and its condition, which needs no escapes."""
    mark = "✗" if check.failed else "✓"
    return f"- {mark} {_name_model(check)}: {check.reason}; fails if `{check.expression}`"


def _name_model(check: Outcome) -> str:
    return f"{_escape(check.model)} ({_escape(check.stack)})" if check.stack else _escape(check.model)


def _render_table(rows: pd.DataFrame) -> str:
    texts = rows.rename(columns=lambda name: _escape(str(name)))
    for name in texts.columns:
        if texts[name].dtype.kind not in "iufb":
            texts[name] = [_escape(value) if isinstance(value, str) else value for value in texts[name]]
    return to_markdown(texts, DIGITS).rstrip()


def _escape(text: str) -> str:
    """A name that Markdown shows letter for letter."""
    escaped = SPECIAL.sub(r"\\\1", html.escape(" ".join(text.split()), quote=False))
    return escaped.replace("@", "&#64;")  # otherwise GitHub would notify the person of that name
