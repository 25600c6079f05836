"""Names and titles as plotly shows them. Imports nothing heavy."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from attngeo.bounds.names import printable

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

LONGEST_NAME, LONGEST_TITLE = 60, 300
ORGANISATION = re.compile(r"\S*/(?=\S)")
# The query-key matrix, as plotly sets it.
FORM = "W<sub>qk</sub>"


def name_form(rows: pd.DataFrame) -> str:
    """The matrix of some rows of scores, in plotly's mark-up; both matrices if the rows have both circuits."""
    if "circuit" not in rows:
        return FORM
    return " and ".join(f"W<sub>{circuit}</sub>" for circuit in rows["circuit"].unique())


def escape_name(text: object, longest: int = LONGEST_NAME) -> str:
    """A name that plotly shows letter for letter, without mark-up and templates; a long name loses its middle.

    >>> escape_name("a<b>"), escape_name("abcdefgh", 6)
    ('a&lt;b&gt;', 'ab…fgh')
    """
    name = str(text)
    if len(name) > longest:
        name = f"{name[: longest // 2 - 1]}…{name[-(longest // 2) :]}"
    return html.escape(printable(name), quote=False).replace("{", "&#123;")


def escape_names(names: Iterable[object], longest: int = LONGEST_NAME) -> list[str]:
    """Each name as plotly shows it; see `escape_name`."""
    return [escape_name(name, longest) for name in names]


def shorten_names(names: Sequence[str], longest: int) -> list[str]:
    """Names of models for a narrow place, escaped: without their organisations if that leaves them different.

    >>> shorten_names(["google-bert/bert-base-uncased", "openai-community/gpt2"], 20)
    ['bert-base-uncased', 'gpt2']
    """
    bare_names = [ORGANISATION.sub("", name, count=1) for name in names]
    is_long = any(len(name) > longest for name in names)
    if is_long and len(set(bare_names)) == len(set(names)):
        return escape_names(bare_names, longest)
    return escape_names(names, longest)


def replace_title(figure: Figure, title: str) -> None:
    """Give a figure another title, letter for letter; the details below it stay."""
    _, mark, details = (figure.layout.title.text or "").partition("<br><sup>")
    figure.update_layout(title_text=escape_name(title, LONGEST_TITLE) + mark + details)
