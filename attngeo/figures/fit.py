"""Figures that fit their size: titles are wrapped, and small figures have small type and the legend below.

Plotly wraps no text, and shares the room between legend and panels without looking at either. Imports nothing heavy.
"""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

from attngeo.figures.names import escape_name, shorten_names

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Pixels above the panels: for the title, and for titles of panels.
TITLE_HEIGHT, PANEL_TITLE_HEIGHT = 70, 26
# The legend in the last lines of a figure: names of models are long.
BELOW = {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0, "xanchor": "left"}

# Pixels of a figure whose layout does not say.
WIDTH, HEIGHT = 1000, 600
# A figure that is narrower or lower than this is small.
NARROW, LOW = 700, 400
# Pixels that a line of panels needs, an entry of a legend, and what is around them.
PANEL_HEIGHT, ENTRY_HEIGHT, AROUND = 85, 20, 140
# Pixels of an entry of a legend in a figure that is not small, where each is a group.
GROUP_HEIGHT = 29
# Pixels of the type: of titles, and of everything else in a usual and in a small figure.
TITLE, SMALL_TITLE, USUAL, SMALL = 17, 13, 12, 9
# The width of a letter, as a share of the size of the type; the size of details, as a share of the title's; and the
# height of a line.
LETTER, DETAILS, LINE = 0.54, 0.7, 1.3
# Pixels around the title, above a title of several lines, which starts higher, and of an entry beside its name.
MARGIN, SEVERAL_LINES, ENTRY = 10, 20, 50
# Pixels at the left and the right of the panels.
BESIDE = 110
# Pixels between the names of panels beside each other.
BETWEEN_NAMES = 15
# Names of a legend in a small figure: columns, and the least letters.
LEGEND_COLUMNS, LEAST_LETTERS = 3, 12
MARK = re.compile(r"<[^>]*>")
ENDS_OF_AXIS = re.compile(r"<br><span.*</span>")


def fit_figure(figure: Figure) -> Figure:
    """A copy of a figure whose texts have room in the size of its layout, by default 1000 × 600 pixels.

    It is higher than that if its lines of panels or its legend need it.
    """
    fitted = type(figure)(figure)
    width = fitted.layout.width or WIDTH
    height = fitted.layout.height or HEIGHT
    is_small = width < NARROW or height < LOW
    _fit_title(fitted, width, SMALL_TITLE if is_small else TITLE, is_low=height < LOW)
    if not is_small:
        needed = 2 * _legend_height(fitted, width)
        if height < needed:
            fitted.update_layout(height=needed)
        return fitted
    fitted.update_layout(font_size=SMALL)
    fitted.update_xaxes(title_standoff=4)
    fitted.update_yaxes(title_standoff=4)
    fitted.update_annotations(font_size=SMALL)
    _shorten_names(fitted, width)
    needed = _least_height(fitted)
    if height < needed:
        fitted.update_layout(height=needed)
    if height < LOW:  # the ends of an axis are longer than its panel
        for axis in fitted.select_yaxes():
            if axis.title.text:
                axis.title.text = ENDS_OF_AXIS.sub("", axis.title.text)
    return fitted


def _least_height(figure: Figure) -> int:
    """Pixels that the lines of panels of a small figure need, with its legend."""
    lines = {axis.domain for axis in figure.select_yaxes()}
    legend_lines = -(-len(_list_entries(figure)) // LEGEND_COLUMNS)
    return max(len(lines), 1) * PANEL_HEIGHT + legend_lines * ENTRY_HEIGHT + AROUND


def _legend_height(figure: Figure, width: int) -> int:
    """Pixels of a legend below the panels, in type of the usual size; plotly shows at most half a figure of it."""
    names = _list_entries(figure)
    if not names or figure.layout.legend.orientation != "h":
        return 0
    longest = max(map(count_letters, names))
    columns = max(int((width - BESIDE) / (longest * LETTER * USUAL + ENTRY)), 1)
    return -(-len(names) // columns) * GROUP_HEIGHT


def _list_entries(figure: Figure) -> list[str]:
    """The names that the legend shows; none if the figure has no legend."""
    if not figure.layout.showlegend:
        return []
    return [trace.name for trace in figure.data if trace.name and trace.showlegend is not False]


def _fit_title(figure: Figure, width: int, size: int, *, is_low: bool) -> None:
    """Wrap the title, and move the panels down or up by its height."""
    if not figure.layout.title.text:
        return
    room = (width - 2 * MARGIN) / (LETTER * size)
    lines: list[str] = []
    title_height = 0.0
    for part in figure.layout.title.text.split("<br>"):
        is_detail = part.startswith("<sup>")
        wrapped = wrap(part.removeprefix("<sup>").removesuffix("</sup>"), room / DETAILS if is_detail else room)
        lines += [f"<sup>{line}</sup>" for line in wrapped] if is_detail else wrapped
        title_height += LINE * size * len(wrapped) * (DETAILS if is_detail else 1)
    needed = int(title_height) + 2 * MARGIN
    above_panels = (figure.layout.margin.t or TITLE_HEIGHT) - TITLE_HEIGHT
    least = 0 if is_low else TITLE_HEIGHT
    if is_low:
        above_panels = min(above_panels, PANEL_TITLE_HEIGHT)
    title = {
        "text": "<br>".join(lines),
        "font": {"size": size},
        "x": 0,
        "xref": "container",
        "xanchor": "left",
        "y": 1,
        "yref": "container",
        "yanchor": "top",
        "pad": {"t": SEVERAL_LINES if len(lines) > 1 else MARGIN, "l": MARGIN},
    }
    figure.update_layout(title=title, margin={"t": max(needed, least) + above_panels})


def wrap(text: str, room: float) -> list[str]:
    """The lines of a text of a figure, of at most so many letters each unless a word is longer.

    >>> wrap("symmetry of W<sub>qk</sub> in each layer", 16)
    ['symmetry of W<sub>qk</sub>', 'in each layer']
    """
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".lstrip()
        if lines[-1] and count_letters(longer) > room:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def count_letters(text: str) -> int:
    """The letters of a text of a figure, without its marks.

    >>> count_letters("a<sub>b</sub>&lt;")
    3
    """
    return len(html.unescape(MARK.sub("", text)))


def _shorten_names(figure: Figure, width: int) -> None:
    """Put the legend below the panels, and shorten its names, and those of panels, to the room that they have."""
    letter = LETTER * SMALL
    figure.update_layout(legend=BELOW)
    room = width - BESIDE
    longest = max(int((room / LEGEND_COLUMNS - ENTRY) / letter), LEAST_LETTERS)
    names = list(dict.fromkeys(trace.name for trace in figure.data if trace.name and not MARK.search(trace.name)))
    shortened = dict(zip(names, shorten_names([html.unescape(name) for name in names], longest), strict=True))
    for trace in figure.data:
        trace.name = shortened.get(trace.name, trace.name)
    columns = {axis.domain for axis in figure.select_xaxes() if axis.domain}
    longest = max(int((room / max(len(columns), 1) - BETWEEN_NAMES) / letter), LEAST_LETTERS)
    for annotation in figure.layout.annotations:
        is_panel_title = annotation.xref == annotation.yref == "paper"
        text = annotation.text or ""
        if is_panel_title and not MARK.search(text):
            annotation.text = escape_name(html.unescape(text), longest)
