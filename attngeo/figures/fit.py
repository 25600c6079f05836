"""Figures that fit their size: titles are wrapped, and small figures have small type and the legend below.

Plotly wraps no text, and shares the room between legend and panels without looking at either. Imports nothing heavy.
"""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Any

from attngeo.figures.names import shorten_names

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Pixels above the panels: for the title, and for titles of panels.
TITLE_HEIGHT, PANEL_TITLE_HEIGHT = 70, 26
# And without a title.
NO_TITLE = 10
# The legend in the last lines of a figure: names of models are long.
BELOW = {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0, "xanchor": "left"}

# Pixels of a figure whose layout does not say.
WIDTH, HEIGHT = 1000, 600
# A figure that is narrower or lower than this is small.
NARROW, LOW = 700, 400
# Pixels that a line of panels needs in a small figure, and below them the axis and a line of the legend, in small type.
PANEL_HEIGHT, AXIS_HEIGHT, ENTRY_HEIGHT = 85, 40, 20
# Pixels around a small figure, which ticks and titles of axes widen; of a scale of colours; and between two groups of a
# legend there.
EDGE, BAR, GROUP_GAP = 8, 10, 2
# Pixels of an entry of a legend in a figure that is not small, where each is a group.
GROUP_HEIGHT = 29
# Pixels of the type if nothing else is asked for: of titles, and of everything else in a usual and in a small figure.
TITLE, SMALL_TITLE, USUAL, SMALL = 17, 13, 12, 9
# The width of a letter, as a share of the size of the type; the size of details, as a share of the title's; and the
# height of a line.
LETTER, DETAILS, LINE = 0.54, 0.7, 1.3
# The width of a letter of wide type: a legend whose names are wider than expected has a column less, and is cut.
WIDE_LETTER = 0.6
# Pixels around the title, above a title of several lines, which starts higher, and of an entry beside its name.
MARGIN, SEVERAL_LINES, ENTRY = 10, 20, 50
# Pixels at the left and the right of the panels; and in a small figure, whose entries of a legend are narrower, too.
BESIDE, SMALL_BESIDE, SMALL_ENTRY = 110, 50, 40
# Pixels between the names of panels beside each other.
BETWEEN_NAMES = 5
# Names of a legend in a small figure: columns, letters that are worth a column less, and the least letters. So many
# names may have a line each.
LEGEND_COLUMNS, ENOUGH_LETTERS, LEAST_LETTERS, MOST_LINES = 3, 20, 12, 8
# Distances of ticks that are thinned out.
TICK_STEPS = (1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100)
MARK = re.compile(r"<[^>]*>")
ENDS_OF_AXIS = re.compile(r"<br><span.*</span>")


def fit_figure(figure: Figure) -> Figure:
    """A copy of a figure whose texts fit into the size of its layout, by default 1000 × 600 pixels.

    It is higher if its rows of panels or its legend need it. A font size set in its layout is kept.
    """
    fitted = type(figure)(figure)
    width = fitted.layout.width or WIDTH
    height = fitted.layout.height or HEIGHT
    is_small = width < NARROW or height < LOW
    asked = fitted.layout.font.size
    font = asked or (SMALL if is_small else USUAL)
    title_size = font * (SMALL_TITLE / SMALL if is_small else TITLE / USUAL)
    _fit_title(fitted, width, title_size, is_small=is_small)
    if asked or is_small:
        _set_type(fitted, font)
    if not is_small:
        needed = 2 * _legend_height(fitted, width, font)
        if height < needed:
            fitted.update_layout(height=needed)
        return fitted
    _narrow_edges(fitted)
    legend_lines = _shorten_names(fitted, width, font)
    needed = _least_height(fitted, font, legend_lines)
    if height < needed:
        fitted.update_layout(height=needed)
    _wrap_axes(fitted, width, max(height, needed), font)
    _thin_ticks(fitted, width, max(height, needed), font)
    return fitted


def remove_title(figure: Figure) -> None:
    """Remove the title of a figure, the details below it, and their space above the panels."""
    figure.update_layout(title_text="", margin_t=PANEL_TITLE_HEIGHT if _has_panel_names(figure) else NO_TITLE)


def _names_panel(annotation: Any) -> bool:
    """Whether an annotation is the title of a panel."""
    return bool(annotation.xref == annotation.yref == "paper")


def _has_panel_names(figure: Figure) -> bool:
    return any(_names_panel(annotation) and annotation.text for annotation in figure.layout.annotations)


def _set_type(figure: Figure, font: float) -> None:
    """Give all texts but the title a size of type; those that are smaller or larger than usual stay so."""
    figure.update_layout(font_size=font)
    figure.update_annotations(font_size=font)
    figure.update_xaxes(title_font_size=font)
    figure.update_yaxes(title_font_size=font)
    figure.update_coloraxes(colorbar_title_font_size=font)
    figure.update_traces(colorbar_title_font_size=font, selector={"type": "heatmap"})
    for axis in (*figure.select_xaxes(), *figure.select_yaxes()):
        if axis.tickfont.size:
            axis.tickfont.size = _scale_type(axis.tickfont.size, font)
    for trace in figure.select_traces(lambda trace: "textfont" in trace and trace.textfont.size):
        trace.textfont.size = _scale_type(trace.textfont.size, font)


def _scale_type(size: float, font: float) -> float:
    """The size of a text that has a size of its own in a figure of the usual type, in one of another type."""
    return min(size * max(font / USUAL, 1), font)


def _narrow_edges(figure: Figure) -> None:
    """Leave a small figure little room around its panels, which their ticks and titles widen, and narrow scales."""
    figure.update_layout(margin={"l": EDGE, "r": EDGE, "b": EDGE})
    figure.update_xaxes(title_standoff=4, automargin=True)
    figure.update_yaxes(title_standoff=4, automargin=True)
    figure.update_coloraxes(colorbar_thickness=BAR)
    # A scale that has a height of its own would be cut.
    figure.update_coloraxes(colorbar={"lenmode": "fraction", "len": 1, "y": 0.5, "yanchor": "middle"})
    figure.update_traces(colorbar_thickness=BAR, selector={"type": "heatmap"})


def _least_height(figure: Figure, font: float, legend_lines: int) -> int:
    """Pixels that the lines of panels of a small figure need, with what is above and below them.

    Plotly shows at most half a figure of its legend.
    """
    lines = {axis.domain for axis in figure.select_yaxes()}
    categories = max((len(axis.categoryarray or ()) for axis in figure.select_yaxes()), default=0)
    panels = max(len(lines) * PANEL_HEIGHT, PANEL_HEIGHT, categories * LINE * font)
    legend = legend_lines * ENTRY_HEIGHT * font / SMALL
    below = AXIS_HEIGHT * font / SMALL + legend
    above = TITLE_HEIGHT if figure.layout.margin.t is None else figure.layout.margin.t
    return max(int(above + panels + below), int(2 * legend))


def _wrap_axes(figure: Figure, width: float, height: float, font: float) -> None:
    """Wrap the titles of axes of a small figure to the size of its panels, without the ends that have no room."""
    letter = LETTER * font
    columns = {axis.domain for axis in figure.select_xaxes()}
    lines = {axis.domain for axis in figure.select_yaxes()}
    categories = [str(name) for axis in figure.select_yaxes() for name in axis.categoryarray or ()]
    beside = max([SMALL_BESIDE, *(count_letters(name) * letter + 3 * EDGE for name in categories)])
    panel_width = (width - beside) / max(len(columns), 1)
    panel_height = (height - (figure.layout.margin.t or TITLE_HEIGHT) - AXIS_HEIGHT) / max(len(lines), 1)
    for axes, room in ((figure.select_xaxes(), panel_width), (figure.select_yaxes(), panel_height)):
        for axis in axes:
            text = axis.title.text or ""
            ends = ENDS_OF_AXIS.search(text)
            if ends is not None and (height < LOW or count_letters(ends[0]) * letter * DETAILS > room):
                text = ENDS_OF_AXIS.sub("", text)
            if text and "<br>" not in text:
                axis.title.text = "<br>".join(wrap(text, room / letter))


def _thin_ticks(figure: Figure, width: float, height: float, font: float) -> None:
    """Leave out ticks of layers, heads and names in a small figure that would be over each other."""
    above = TITLE_HEIGHT if figure.layout.margin.t is None else figure.layout.margin.t
    for axes, room in (
        (figure.select_xaxes(), width - SMALL_BESIDE),
        (figure.select_yaxes(), height - above - AXIS_HEIGHT),
    ):
        for axis in axes:
            ticks = axis.tickvals
            if not ticks or not all(isinstance(tick, int) for tick in ticks):
                continue
            digits = len(str(max(ticks))) + 1  # and a space
            is_line = axis.plotly_name.startswith("yaxis") or axis.tickangle
            needs = LINE * font if is_line else LETTER * font * digits
            start, end = axis.domain or (0, 1)
            most = max(int(room * (end - start) / needs), 1)
            if len(ticks) <= most:
                continue
            if axis.ticktext is None:
                axis.tickvals = list_ticks(max(ticks), most)
            elif is_line:
                kept = list_ticks(len(ticks) - 1, most)
                axis.ticktext = [axis.ticktext[number] for number in kept]
                axis.tickvals = [ticks[number] for number in kept]


def list_ticks(last: int, most: int) -> list[int]:
    """Whole numbers from 0 to the last one, at even distances: at most this many.

    >>> list_ticks(11, 4)
    [0, 4, 8]
    """
    step = next(step for step in (*TICK_STEPS, last + 1) if last < most * step)
    return list(range(0, last + 1, step))


def _legend_height(figure: Figure, width: float, font: float) -> int:
    """Pixels of a legend below the panels of a usual figure; plotly shows at most half a figure of it."""
    names = _list_entries(figure)
    if not names or figure.layout.legend.orientation != "h":
        return 0
    longest = max(map(count_letters, names))
    columns = max(int((width - BESIDE) / (longest * LETTER * font + ENTRY)), 1)
    return int(-(-len(names) // columns) * GROUP_HEIGHT * max(font / USUAL, 1))


def _list_entries(figure: Figure) -> list[str]:
    """The names that the legend shows; none if the figure has no legend."""
    if not figure.layout.showlegend:
        return []
    return [trace.name for trace in figure.data if trace.name and trace.showlegend is not False]


def _fit_title(figure: Figure, width: float, size: float, *, is_small: bool) -> None:
    """Wrap the title, and move the panels down or up by its height."""
    if not figure.layout.title.text:
        return
    room = (width - 2 * MARGIN) / (LETTER * size)
    text, _, small_text = figure.layout.title.text.partition("<br><sup>")
    lines = wrap(text, room)
    details = wrap(small_text.removesuffix("</sup>"), room / DETAILS) if small_text else []
    needed = int(LINE * size * (len(lines) + DETAILS * len(details))) + (3 if details else 2) * MARGIN
    above_panels = (figure.layout.margin.t or TITLE_HEIGHT) - TITLE_HEIGHT
    least = TITLE_HEIGHT
    if is_small:
        least = 0
        above_panels = PANEL_TITLE_HEIGHT if _has_panel_names(figure) else 0
    title = {
        "text": "<br>".join(lines),
        "font": {"size": size},
        "subtitle": {"text": "<br>".join(details), "font": {"size": DETAILS * size}},
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
    """The lines of a text in a figure, each at most this many letters unless a word is longer.

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


def _shorten_names(figure: Figure, width: float, font: float) -> int:
    """Put the legend below the panels, and shorten its names, and those of panels, to the room that they have.

    A legend of a few names has so few columns that all are whole. Returns the lines of the legend.
    """
    letter = LETTER * font
    figure.update_layout(legend=BELOW | {"tracegroupgap": GROUP_GAP})
    room = width - SMALL_BESIDE
    wide_letter = WIDE_LETTER * font
    names = list(dict.fromkeys(trace.name for trace in figure.data if trace.name and not MARK.search(trace.name)))
    least_columns = 1
    if len(names) > MOST_LINES:
        is_narrow = (room / LEGEND_COLUMNS - SMALL_ENTRY) / wide_letter < ENOUGH_LETTERS
        least_columns = LEGEND_COLUMNS - 1 if is_narrow else LEGEND_COLUMNS
    shortened = names
    for columns in range(LEGEND_COLUMNS, least_columns - 1, -1):
        longest = max(int((room / columns - SMALL_ENTRY) / wide_letter), LEAST_LETTERS)
        shortened = shorten_names([html.unescape(name) for name in names], longest)
        if "".join(shortened).count("…") == "".join(names).count("…"):
            break
    short_names = dict(zip(names, shortened, strict=True))
    for trace in figure.data:
        trace.name = short_names.get(trace.name, trace.name)
    domains = {axis.domain for axis in figure.select_xaxes() if axis.domain}
    titles = [each for each in figure.layout.annotations if _names_panel(each) and not MARK.search(each.text or "")]
    of_titles = [(start, end) for start, end in domains if any(start <= each.x <= end for each in titles if each.text)]
    narrowest = min((end - start for start, end in of_titles), default=1)
    longest = max(int((narrowest * (width - BESIDE) - BETWEEN_NAMES) / letter), LEAST_LETTERS)
    texts = shorten_names([html.unescape(each.text or "") for each in titles], longest)
    for annotation, text in zip(titles, texts, strict=True):
        annotation.text = text
    entries = _list_entries(figure)
    widest = max((count_letters(name) * wide_letter + SMALL_ENTRY for name in entries), default=1)
    return -(-len(entries) // max(int(room / widest), 1))
