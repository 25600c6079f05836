"""A report as Markdown, for a pull request: the checks, what is missing, then the first rows of every table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.bounds import escape_markdown
from attngeo.reporting.page import DIGITS, ReportContent
from attngeo.tables.write import to_markdown

if TYPE_CHECKING:
    from attngeo.scores.conditions import Outcome

MOST_ROWS = 50


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
            more = f" (the first {MOST_ROWS} of {len(table.rows):,} rows)" if len(table.rows) > MOST_ROWS else ""
            blocks += [
                f"{escape_markdown(table.caption or table.name)}{more}:",
                to_markdown(table.rows.head(MOST_ROWS), DIGITS).rstrip(),
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
