"""A report as Markdown, for a pull request: what failed, then the beginning of every table."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

from attngeo.reporting.page import DIGITS, Content
from attngeo.tables.write import to_markdown

if TYPE_CHECKING:
    import pandas as pd

    from attngeo.scores.conditions import Outcome

MOST_ROWS = 50
SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~])")


def markdown(content: Content) -> str:
    """The report's text; names are shown letter for letter."""
    blocks = [f"# {_plain(content.title)}"]
    failed = [check for check in content.checks if check.failed]
    if content.checks:
        blocks.append(f"**{len(content.checks) - len(failed)} of {len(content.checks)} checks passed.**")
    blocks.append("\n".join([
        *(f"- ✗ {_of(check)}: {check.reason}; fails if `{check.expression}`" for check in failed),
        *(f"- missing: {_plain(failure)}" for failure in content.failures),
    ]))  # fmt: skip
    blocks.append(content.text.strip())
    for part in content.parts:
        blocks += [f"## {_plain(part.title)}", part.text.strip()]
        for figure in part.figures:
            blocks.append(f"*{_plain(figure.caption or figure.label)}*: a figure of index.html.")
        for table in part.tables:
            more = f" (the first {MOST_ROWS} of {len(table.rows):,} rows)" if len(table.rows) > MOST_ROWS else ""
            blocks += [f"{_plain(table.caption or table.name)}{more}:", _table(table.rows.head(MOST_ROWS))]
    blocks.append(f"Made with attngeo {content.provenance['software']['attngeo']}, {content.provenance['date']}.")
    return "\n\n".join(filter(None, blocks)) + "\n"


def _of(check: Outcome) -> str:
    return f"{_plain(check.model)} ({_plain(check.stack)})" if check.stack else _plain(check.model)


def _table(rows: pd.DataFrame) -> str:
    texts = rows.rename(columns=lambda name: _plain(str(name)))
    for name in texts.columns:
        if texts[name].dtype.kind not in "iufb":
            texts[name] = [_plain(value) if isinstance(value, str) else value for value in texts[name]]
    return to_markdown(texts, DIGITS).rstrip()


def _plain(text: str) -> str:
    """A name that Markdown leaves as it is."""
    escaped = SPECIAL.sub(r"\\\1", html.escape(" ".join(text.split()), quote=False))
    return escaped.replace("@", "&#64;")  # or it would call whoever has that name
