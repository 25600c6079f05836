"""The Markdown of a report runs nothing in a reader's browser, and shows what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from attngeo.reporting.page import disarm
from attngeo.reporting.report import build_report

FENCE = "```"
# Active HTML and links, alone and beside what could hide them.
ACTIVE = [
    "Some *text* with <script>alert(1)</script>.",
    "<img src=x onerror=alert(1)>",
    "<div onclick='alert(1)'>\n\n# x\n\n</div>",
    "<!-- a\n\ncomment -->",
    "<script>\nalert(1)\n</script>\n\n`<b>`",
    "<iframe srcdoc='",
    "- a\n  - <b>b</b>\n\n> <u>c</u>",
    "| a | <b>x</b> |\n| - | - |\n| <i>y</i> | z |",
    f"<div>\n{FENCE}\n</div>\n\n{FENCE}\n<script>alert(1)</script>\n{FENCE}",
    "a\rb <b>c</b>\r\nd",
    "[x](javascript:alert(1))",
    "![x](vbscript:a)",
    "[x][y]\n\n[y]: javascript:alert(1)",
    "[y]\n\n[y]: JavaScript:alert(1)",
    "<javascript:alert(1)>",
    "[x](data:text/html;base64,PHNjcmlwdD4=)",
]
# Texts that stay as they are.
SOUND = [
    "a < b and c > d, `<b>`, **bold**, [x](https://a.org), <https://a.org>, ![x](a.png)",
    f"{FENCE}html\n<script>alert(1)</script>\n{FENCE}\n\n    <b>indented</b>",
    "| a | b |\n| - | - |\n| 1 | <2 |",
]


def render(text: str, *, html: bool) -> str:
    parser = MarkdownIt("commonmark", {"html": html}).enable("table")
    return parser.render(text)


@pytest.mark.parametrize("text", ACTIVE)
def test_html_is_shown_as_text_and_links_run_no_script(text: str) -> None:
    """As text, "<" and "&lt;" are one; a parser that allows HTML and every link finds none."""
    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    parser.validateLink = lambda url: True  # type: ignore[method-assign] # noqa: ARG005
    shown = parser.render(disarm(text))
    allowed = ("<p>", "</p>", "<ul>", "</ul>", "<li>", "</li>", "<blockquote>", "</blockquote>", "<table>", "</table>",
               "<thead>", "</thead>", "<tbody>", "</tbody>", "<tr>", "</tr>", "<th>", "</th>", "<td>", "</td>", "<pre>",
               "</pre>", "<code>", "</code>", "<em>", "</em>", "<h1>", "</h1>")  # fmt: skip
    for tag in allowed:
        shown = shown.replace(tag, "")
    assert "<" not in shown
    assert disarm(disarm(text)) == disarm(text)


@pytest.mark.parametrize("text", SOUND)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert disarm(text) == text
    assert render(text, html=True) == render(text, html=False)


def test_a_long_text_of_many_parts_takes_no_long_time() -> None:
    """Each part hides the HTML of the next one until its own is gone."""
    part = f"<div>\n{FENCE}\n</div>\n\n{FENCE}\n<b>x</b>\n{FENCE}\n\n"
    text = disarm(part * 300)
    assert render(text, html=True).count("<b>") == 0


def test_texts_of_a_recipe_are_disarmed_together(tmp_path: Path) -> None:
    """A link of one text may be defined in another."""
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n", "utf-8")
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        'title = "<b>"\ntext = "See [here], <b>now</b>."\n[[results]]\nname = "rows"\ncommand = "file"\n'
        'path = "rows.csv"\n[[section]]\ntitle = "s"\ntext = "[here]: javascript:alert(1)"\n'
        '[[section.tables]]\nof = "rows"\n',
        "utf-8",
    )
    build_report(recipe, tmp_path / "out")
    text = (tmp_path / "out/report.md").read_text("utf-8")
    assert "See &#91;here], &lt;b>now&lt;/b>." in text
