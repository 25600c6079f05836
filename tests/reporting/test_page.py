"""The page of a report, and every kind of figure, in a real browser."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from plotly.graph_objects import Figure
from support.browser import needs_browser, open_page, start_browser
from support.runs import small_options

import attngeo
from attngeo.figures.save import save_figure
from attngeo.pretrain import compare_runs
from attngeo.reporting.plots import plot
from attngeo.reporting.report import build_report
from attngeo.tables import write as tables

NASTY = "<img src=x onerror=alert(1)>\"'&{{ 7 * 7 }} $x$"
RECIPE = """
title = "Two models <b>"
text = "Some *text* with <script>alert(1)</script>."
[[results]]
name = "scores"
command = "file"
path = "scores.parquet"
[[results]]
name = "curves"
command = "file"
path = "both/curves.parquet"
[[results]]
name = "analogies"
command = "file"
path = "analogies.csv"
[[section]]
title = "Figures"
figures = [
    { kind = "heatmap", of = "scores" },
    { kind = "layers", of = "scores", score = "directionality" },
    { kind = "heads", of = "scores", models = ["demo:encoder"] },
    { kind = "size", of = "scores" },
    { kind = "matrix", model = "demo:encoder", layer = 1 },
    { kind = "training", of = "curves" },
    { kind = "training-layers", of = "curves" },
    { kind = "analogies", of = "analogies" },
]
tables = [{ of = "scores", show = "summary" }, { of = "scores" }]
[[check]]
of = "scores"
fail_if = "symmetry.median < 0.2"
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    frames = [attngeo.score(f"demo:{name}", per_head=True) for name in ("encoder", "decoder")]
    frames.append(frames[1].assign(model=NASTY))
    tables.write_table(pd.concat(frames, ignore_index=True), folder / "scores.parquet")
    options = small_options(folder, steps=4, log_every=2, save_every=100)
    compare_runs(options, folder / "both", compare=["default", "symmetric"])
    analogies = pd.DataFrame({
        "model": "m", "level": ["overall", "type"], "name": ["overall", "semantic"], "asked": 3, "known": 2,
        "accuracy": [0.5, 0.4], "accuracy_low": 0.3, "accuracy_high": 0.6, "questions": "own",
    })  # fmt: skip
    tables.write_table(analogies, folder / "analogies.csv")
    (folder / "recipe.toml").write_text(RECIPE)
    build_report(folder / "recipe.toml", folder / "report")
    return folder / "report/index.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with start_browser() as browser:
        yield browser


def ready(page: Any) -> None:
    page.wait_for_function("document.documentElement.dataset.ready === 'yes'")


@needs_browser
@pytest.mark.parametrize("width", [1400, 380])
def test_every_figure_is_drawn_offline_without_errors(browser: Any, made: Path, width: int) -> None:
    with open_page(browser, made, width=width) as (page, complaints):
        ready(page)
        charts = page.locator(".chart")
        assert charts.count() == 8
        for chart in charts.all():
            chart.scroll_into_view_if_needed()
            page.wait_for_function("c => c.dataset.drawn === 'yes'", arg=chart.element_handle())
            drawn = chart.evaluate(
                "c => [c.querySelectorAll('svg.main-svg').length, "
                "c.querySelectorAll('.trace path, .hm image, .point, .js-line').length]"
            )
            assert min(drawn) > 0, chart.get_attribute("id")
            top, bottom, plot_top = chart.evaluate(
                "c => { const title = c.querySelector('.gtitle').getBoundingClientRect(), { top } = "
                "c.getBoundingClientRect(); return [title.top - top, title.bottom - top, c._fullLayout._size.t]; }"
            )
            assert 0 <= top < bottom <= plot_top, chart.get_attribute("id")
            assert chart.locator(".legend .traces").count() != 1, chart.get_attribute("id")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert complaints == []


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of twelve models with long names."""
    folder = tmp_path_factory.mktemp("many")
    rows = attngeo.score("demo:encoder", per_head=True)
    frames = [rows.assign(model=f"organisation/encoder-base-multilingual-{number}") for number in range(12)]
    tables.write_table(pd.concat(frames, ignore_index=True), folder / "scores.parquet")
    source = '[[results]]\nname = "scores"\ncommand = "file"\npath = "scores.parquet"\n'
    figures = ", ".join(f'{{ kind = "{kind}", of = "scores" }}' for kind in ("layers", "heads", "size"))
    recipe = folder / "recipe.toml"
    recipe.write_text(f'title = "Twelve"\n{source}[[section]]\ntitle = "All"\nfigures = [{figures}]\n')
    build_report(recipe, folder / "report")
    return folder / "report/index.html"


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (380, "dark")])
def test_twelve_long_names_have_room(browser: Any, many: Path, width: int, scheme: str) -> None:
    """No legend scrolls or crowds the panels, and no title of a panel covers another."""
    with open_page(browser, many, width=width, scheme=scheme) as (page, complaints):
        ready(page)
        for chart in page.locator(".chart").all():
            chart.scroll_into_view_if_needed()
            page.wait_for_function("c => c.dataset.drawn === 'yes'", arg=chart.element_handle())
            bars = chart.evaluate("c => [...c.querySelectorAll('.legend .scrollbar')].map(b => b.getBBox().height)")
            assert max(bars, default=0) == 0
            height, panels = chart.evaluate(
                "c => [c._fullLayout._size.h, new Set(Object.keys(c._fullLayout)"
                ".filter(k => /^yaxis/.test(k)).map(k => String(c._fullLayout[k].domain))).size]"
            )
            assert height / panels >= 80, chart.get_attribute("id")
            boxes = chart.evaluate(
                "c => [...c.querySelectorAll('.annotation-text')].map(t => "
                "{ const b = t.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; })"
            )
            assert not any(overlap(one, other) for one, other in itertools.combinations(boxes, 2))
        assert complaints == []


def overlap(one: list[float], other: list[float]) -> bool:
    """Whether two rectangles (left, top, right, bottom) have a common area."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


@needs_browser
def test_on_a_narrow_screen_a_figure_that_scrolls_says_so_and_titles_of_axes_fit(browser: Any, tmp_path: Path) -> None:
    """A matrix fits, with the titles below its two panels apart; five panels beside each other scroll."""
    rows = attngeo.score("demo:encoder", per_head=True)
    frames = [rows.assign(model=f"model-{number}") for number in range(5)]
    tables.write_table(pd.concat(frames, ignore_index=True), tmp_path / "scores.parquet")
    figures = '{ kind = "matrix", model = "demo:encoder" }, { kind = "heads", of = "scores" }'
    (tmp_path / "r.toml").write_text(
        'title = "x"\n[[results]]\nname = "scores"\ncommand = "file"\npath = "scores.parquet"\n'
        f'[[section]]\ntitle = "y"\nfigures = [{figures}]\n'
    )
    made = build_report(tmp_path / "r.toml", tmp_path / "out")
    with open_page(browser, made.page, width=400) as (page, complaints):
        ready(page)
        for chart in page.locator(".chart").all():
            chart.scroll_into_view_if_needed()
            page.wait_for_function("c => c.dataset.drawn === 'yes'", arg=chart.element_handle())
        hints = page.locator("figure .scrolls")
        assert [hint.is_visible() for hint in hints.all()] == [False, True]
        assert hints.nth(1).text_content() == "Scroll the figure to the right for more panels."
        titles, right = page.evaluate(
            "() => [[...document.querySelectorAll('#figure-1-1 .infolayer [class^=x][class$=title]')]"
            ".map(t => t.getBoundingClientRect()).map(b => [b.left, b.top, b.right, b.bottom]),"
            "document.querySelector('#figure-1-1').getBoundingClientRect().right]"
        )
        assert len(titles) > 1
        assert not any(overlap(one, other) for one, other in itertools.combinations(titles, 2))
        assert all(title[2] <= right for title in titles)
        page.set_viewport_size({"width": 1400, "height": 900})
        page.reload()
        ready(page)
        page.locator("#figure-1-2").scroll_into_view_if_needed()
        page.wait_for_selector("#figure-1-2[data-drawn=yes]")
        assert not hints.nth(1).is_visible()
        assert complaints == []


@needs_browser
def test_a_hover_says_what_a_cell_is_and_a_model_is_chosen_whose_name_is_text(browser: Any, made: Path) -> None:
    with open_page(browser, made) as (page, complaints):
        ready(page)
        chart = page.locator("#figure-1-1")
        chart.scroll_into_view_if_needed()
        page.wait_for_selector("#figure-1-1[data-drawn=yes]")
        box = chart.locator(
            ".xy2 .heatmaplayer image, .x2y2 .heatmaplayer image, .heatmaplayer image"
        ).last.bounding_box()
        page.mouse.move(box["x"] + 10, box["y"] + 10)
        page.wait_for_selector("#figure-1-1 .hovertext")
        said = chart.locator(".hovertext").first.text_content()
        assert "demo:encoder" in said
        assert "layer 0, head 0" in said
        assert "symmetry +0.0" in said
        page.select_option("#figure-1-1-model", label=NASTY)
        page.wait_for_function("document.querySelector('#figure-1-1 .gtitle').textContent.includes('onerror')")
        assert NASTY in page.locator("#figure-1-1 .gtitle").text_content()
        assert page.locator("img").count() == 0
        assert page.locator("h1").text_content() == "Two models <b>"
        assert "<script>alert(1)</script>" in page.locator("main").text_content()
        assert complaints == []


@needs_browser
def test_a_table_sorts_by_mouse_and_by_keyboard(browser: Any, made: Path) -> None:
    with open_page(browser, made) as (page, _):
        ready(page)
        table = page.locator("section table").nth(1)
        heading = table.locator("th", has_text="frobenius_norm")
        place = heading.evaluate("h => h.cellIndex")

        def column() -> list[float]:
            cells = table.evaluate(f"t => [...t.tBodies[0].rows].map(r => r.cells[{place}].textContent)")
            return [float(cell) for cell in cells]

        assert column() != sorted(column())
        # Without a pointer, which misses the button if a figure above it still changes its height.
        heading.locator("button").dispatch_event("click")
        assert column() == sorted(column())
        assert heading.get_attribute("aria-sort") == "ascending"
        heading.locator("button").press("Enter")
        assert column() == sorted(column(), reverse=True)


@pytest.mark.slow
@needs_browser
def test_a_table_that_scrolls_says_so(browser: Any, made: Path) -> None:
    with open_page(browser, made, width=500) as (page, _):
        ready(page)
        hints = [hint.text_content() for hint in page.locator("section .wide + .scrolls").all()]
        assert hints[1] == "Scroll the table down for more rows and to the right for more columns."
        page.set_viewport_size({"width": 3000, "height": 900})
        page.wait_for_function("document.querySelector('main > .scrolls').hidden")  # of the checks


@pytest.mark.slow
@needs_browser
def test_colours_are_those_of_the_page(browser: Any, made: Path) -> None:
    """The third model has a colour that black would swallow: dark lines are light on a dark page.

    Maps start at the colour of the page: on a dark one, white cells would be the brightest thing, and dark ones
    invisible.
    """
    colours = {}
    for scheme in ("light", "dark"):
        with open_page(browser, made, scheme=scheme) as (page, _):
            ready(page)
            chart = page.locator("#figure-1-2")
            chart.scroll_into_view_if_needed()
            page.wait_for_selector("#figure-1-2[data-drawn=yes]")
            colours[scheme] = chart.evaluate("c => c.data.filter(t => t.showlegend).map(t => t.line.color)")
            chart = page.locator("#figure-1-1")
            chart.scroll_into_view_if_needed()
            page.wait_for_selector("#figure-1-1[data-drawn=yes]")
            scale = chart.evaluate("c => c.layout.coloraxis.colorscale")
            sheet = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--paper').trim()")
            middle = next(colour for place, colour in scale if place == 0.5)
            assert middle.lower() == ("#ffffff" if scheme == "light" else sheet)
            ends = [sum(int(colour[at : at + 2], 16) for at in (1, 3, 5)) for _, colour in (scale[0], scale[-1])]
            assert all((end > 400) == (scheme == "dark") for end in ends)
    luminance = [[int(colour[at : at + 2], 16) for at in (1, 3, 5)] for colour in colours["dark"]]
    assert colours["light"] != colours["dark"]
    assert all(0.3 * red + 0.59 * green + 0.11 * blue >= 0.44 * 255 for red, green, blue in luminance)


@pytest.mark.slow
@needs_browser
def test_light_and_dark(browser: Any, made: Path) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    with open_page(browser, made, scheme="dark") as (page, _):
        ready(page)
        dark = page.evaluate(colour)
        for expected in ("rgb(255, 255, 255)", dark, dark):
            page.locator("#theme").click()
            assert page.evaluate(colour) == expected
    with open_page(browser, made) as (page, _):
        assert page.evaluate(colour) == "rgb(255, 255, 255)" != dark


@pytest.mark.slow
@needs_browser
def test_a_figure_is_a_page_of_its_own(browser: Any, tmp_path: Path) -> None:
    rows = attngeo.score("demo:encoder", per_head=True).assign(model=NASTY)
    save_figure(plot("heatmap", rows), tmp_path / "figure.html")
    with open_page(browser, tmp_path / "figure.html") as (page, complaints):
        page.wait_for_selector(".cartesianlayer .mlayer > *", state="attached")
        assert NASTY in page.locator(".gtitle").text_content()
        assert complaints == []


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize(
    ("scheme", "template"), [("light", "plotly_white"), ("dark", "plotly_white"), ("light", "plotly_dark")]
)
def test_a_page_of_a_white_figure_is_dark_in_a_dark_browser(
    browser: Any, tmp_path: Path, scheme: str, template: str
) -> None:
    """What the reader sees in the lower left corner; a figure that is dark by itself stays so."""
    figure = plot("layers", "demo:encoder").update_layout(template=template)
    save_figure(figure, tmp_path / "figure.html")
    with open_page(browser, tmp_path / "figure.html", scheme=scheme) as (page, _):
        page.wait_for_selector(".main-svg")
        corner = {"x": 12, "y": 560, "width": 4, "height": 4}
        image = Image.open(io.BytesIO(page.screenshot(clip=corner))).convert("L")
    is_dark = image.getpixel((1, 1)) < 60
    assert is_dark == (scheme == "dark" or template == "plotly_dark")


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize(("width", "expected"), [(500, 1000), (1400, 1384)])
def test_a_page_of_a_figure_is_as_large_as_its_texts_need(
    browser: Any, tmp_path: Path, width: int, expected: int
) -> None:
    save_figure(plot("layers", "demo:encoder"), tmp_path / "figure.html")
    with open_page(browser, tmp_path / "figure.html", width=width) as (page, _):
        page.wait_for_selector(".main-svg")
        size = page.evaluate(
            "() => { const l = document.getElementById('figure')._fullLayout; return [l.width, l.height]; }"
        )
    assert size == [expected, 600]


def name_buttons(page: Any) -> list[str]:
    """The names of the buttons of all tool bars, once the figures are drawn."""
    page.wait_for_selector(".modebar-btn", state="attached")
    names: list[str] = page.evaluate("[...document.querySelectorAll('.modebar-btn')].map(b => b.dataset.title)")
    return names


@needs_browser
def test_no_page_contacts_a_server_or_offers_to_upload(browser: Any, made: Path, tmp_path: Path) -> None:
    """A report, a figure of ours and any other, a table, and what plotly itself shows of a figure, as in a notebook."""
    rows = attngeo.score("demo:encoder", per_head=True)
    pages = [made]
    for name, figure in (("heatmap", plot("heatmap", rows)), ("any", Figure({"y": [1, 2]}))):
        pages.append(tmp_path / f"{name}.html")
        save_figure(figure, pages[-1])
    tables.write_table(rows, tmp_path / "table.html")
    pages.append(tmp_path / "table.html")
    pages.append(tmp_path / "plotly.html")
    plot("layers", rows).write_html(pages[-1])
    for path in pages:
        with open_page(browser, path) as (page, complaints):
            if path.name != "table.html":
                if path == made:
                    ready(page)
                    page.locator("#figure-1-1").scroll_into_view_if_needed()
                names = name_buttons(page)
                assert "Download plot as a PNG" in names
                assert not re.search("share|cloud|send|upload", " ".join(names), re.IGNORECASE), path
                if path.name != "plotly.html":
                    assert page.locator(".modebar a[href^=http]").count() == 0
                    settings = page.evaluate("document.querySelector('.js-plotly-plot')._context")
                    assert [settings["showSendToCloud"], settings["plotlyServerURL"] == ""] == [False, path == made]
            assert complaints == []


@pytest.mark.slow
@needs_browser
def test_a_page_of_any_figure_asks_no_server_for_its_ground(browser: Any, tmp_path: Path) -> None:
    """Plotly loads the coasts of a map from a server; the policy of the page stops it before the network is asked."""
    figure = Figure({"type": "scattergeo", "lat": [47], "lon": [8]})
    figure.write_html(tmp_path / "plotly.html")
    save_figure(figure, tmp_path / "figure.html")
    empty = tmp_path / "empty.html"
    empty.write_text("")
    reasons = {}
    for name in ("plotly", "figure"):
        with open_page(browser, empty) as (page, _):
            with page.expect_event("requestfailed", lambda request: "plot.ly" in request.url) as failed:
                page.goto((tmp_path / f"{name}.html").as_uri())
            reasons[name] = failed.value.failure
    assert reasons == {"plotly": "net::ERR_INTERNET_DISCONNECTED", "figure": "csp"}


def test_the_page_loads_nothing_and_describes_its_figures(made: Path) -> None:
    page = made.read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    rules = dict(rule.strip().partition(" ")[::2] for rule in policy[1].split(";"))
    assert rules["default-src"] == "'none'"
    assert re.fullmatch(r"'sha256-[\w+/=]+' blob: 'unsafe-eval'", rules["script-src"])
    assert (rules["connect-src"], rules["base-uri"], rules["form-action"]) == ("data:", "'none'", "'none'")
    assert 'aria-label="Symmetry of every layer and head, as a map of layers × heads"' in page
    assert "1 of 3 checks" in page
    for link in re.findall(r'href="(tables/[^"]*)"', page):
        assert (made.parent / link).is_file()


def test_long_tables_are_cut_and_say_so(tmp_path: Path) -> None:
    frame = pd.DataFrame({"model": [f"m{i}" for i in range(501)], "value": np.arange(501) * 12345})
    tables.write_table(frame, tmp_path / "rows.csv")
    (tmp_path / "r.toml").write_text(
        'title = "x"\ntext = "| a | b |\\n| - | - |\\n| 1 | 2 |"\n[[results]]\nname = "a"\ncommand = "file"\n'
        'path = "rows.csv"\n[[section]]\ntitle = "y"\ntables = [{ of = "a", caption = "All of them" }]\n'
    )
    made = build_report(tmp_path / "r.toml", tmp_path / "out")
    page = made.page.read_text()
    assert re.search("All of them .*500 of 501 rows", page)
    assert page.count("<tr>") == 1 + 500 + 2  # the heading, the rows, and the table of the text
    assert "<td>6,160,155</td>" in page
    assert re.search("All of them .*50 of 501 rows", (tmp_path / "out/report.md").read_text())
    assert "<td>1</td>" in page
    assert 'id="plotly"' not in page


# What breaks a word of a cell apart: a piece of it is on two lines. Marks, where it may break, end a piece.
BROKEN = """() => {
  const broken = [];
  for (const cell of document.querySelectorAll("table:not(.split) :is(td, th)")) {
    const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    for (let node; (node = walker.nextNode());) {
      for (const { 0: word, index } of node.data.matchAll(/[^\\s-]+-?/g)) {
        const range = document.createRange();
        range.setStart(node, index);
        range.setEnd(node, index + word.length);
        if (new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1) broken.push(word);
      }
    }
  }
  return broken;
}"""


@needs_browser
def test_it_prints_whole(browser: Any, made: Path) -> None:
    """On a sheet of A4, at once, from a dark page: all figures, none cut, in the light colours, and whole words."""
    with open_page(browser, made, scheme="dark") as (page, complaints):
        assert page.evaluate("document.documentElement.dataset.ready") == "yes"  # the load event waits for it
        page.locator("#figure-1-2").scroll_into_view_if_needed()
        page.wait_for_selector("#figure-1-2[data-drawn=yes]")
        ink = page.evaluate("document.querySelector('#figure-1-2')._fullLayout.font.color")
        # A print does not wait: what is seen is what the event has drawn when it returns.
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.set_viewport_size({"width": 703, "height": 1032})
        page.emulate_media(media="print")
        for chart in page.locator(".chart").all():
            width, height, room, letters = chart.evaluate(
                "c => { const box = c.querySelector('.main-svg').getBoundingClientRect();"
                "return [box.width, box.height, c.getBoundingClientRect().height, c._fullLayout.font.color]; }"
            )
            assert 650 < width <= 703
            assert height == pytest.approx(room, abs=1)
            assert height < 700
            assert letters == "#1c2024" != ink
        for region in page.locator(".wide").all():
            assert region.evaluate("r => r.scrollWidth - r.clientWidth") <= 1
        assert page.evaluate(BROKEN) == []
        assert page.locator("figure").first.evaluate("f => getComputedStyle(f).breakInside") == "avoid"
        head = page.locator("section thead").first
        assert head.evaluate("h => [getComputedStyle(h).display, getComputedStyle(h).breakInside]") == [
            "table-header-group",
            "avoid",
        ]
        # Chromium repeats a heading without the buttons in it.
        assert head.locator("button").first.evaluate("b => getComputedStyle(b).display") == "contents"
        assert page.locator("nav").is_hidden()
        assert page.locator(".modebar").count() == 0
        page.emulate_media(media="screen")
        page.set_viewport_size({"width": 1400, "height": 900})
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        page.wait_for_selector("#figure-1-2[data-drawn=yes]")
        assert page.evaluate("document.querySelector('#figure-1-2')._fullLayout.width") > 900
        assert page.evaluate("document.querySelector('#figure-1-2')._fullLayout.font.color") == ink
        assert page.locator("#figure-1-8 .main-svg").count() == 0  # drawn when it is scrolled to
        assert complaints == []


@needs_browser
def test_each_figure_of_a_menu_is_printed_with_its_name(browser: Any, made: Path) -> None:
    """In the order of the menu, whatever is chosen; then the screen shows what it showed before."""
    with open_page(browser, made) as (page, complaints):
        ready(page)
        figures = page.locator("section").nth(0).locator("figure")
        before = figures.count()
        page.select_option("#figure-1-1-model", label="demo:decoder")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")  # as when the reader changes a setting of the print
        assert figures.count() == before + 2
        for figure, name in zip(figures.all()[:3], ("demo:encoder", "demo:decoder", NASTY), strict=True):
            assert figure.locator(".gtitle").text_content().startswith(name)
            assert figure.locator("figcaption").text_content().startswith(f"{name}: Symmetry of every layer")
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert figures.count() == before
        assert figures.first.locator("figcaption").text_content().startswith("Symmetry of every layer")
        page.locator("#figure-1-1").scroll_into_view_if_needed()
        page.wait_for_function("document.querySelector('#figure-1-1 .gtitle')?.textContent.startsWith('demo:decoder')")
        assert complaints == []


@pytest.mark.slow
@needs_browser
def test_a_browser_prints_all_figures_on_full_sheets(browser: Any, made: Path) -> None:
    """Eight figures, one of them for each of three models, need at most a sheet for two; the tables need four more."""
    with open_page(browser, made) as (page, _):
        count = "[...document.querySelectorAll('.chart')].filter(c => c.querySelector('.main-svg')).length"
        page.evaluate(f"addEventListener('beforeprint', () => {{ window.printed = {count}; }})")
        content = page.pdf(prefer_css_page_size=True)
        assert page.evaluate("window.printed") == 8 + 2
    sizes = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", content)
    assert 4 <= len(sizes) <= 9
    assert {(round(float(width)), round(float(height))) for width, height in sizes} == {(595, 842)}


@needs_browser
def test_a_table_wider_than_the_sheet_is_printed_in_parts(browser: Any, tmp_path: Path) -> None:
    names = [f"a_measurement_{number}" for number in range(30)]
    models = [f"organisation/encoder-base-multilingual-{number}" for number in range(3)]
    frame = pd.DataFrame({"model": models, **{name: np.arange(3) / 7 for name in names}})
    tables.write_table(frame, tmp_path / "rows.csv")
    (tmp_path / "r.toml").write_text(
        'title = "x"\n[[results]]\nname = "a"\ncommand = "file"\npath = "rows.csv"\n'
        '[[section]]\ntitle = "y"\ntables = [{ of = "a" }]\n'
    )
    made = build_report(tmp_path / "r.toml", tmp_path / "out")
    with open_page(browser, made.page, width=703) as (page, complaints):
        before = page.locator("main").inner_html()
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")  # as when the reader changes a setting of the print
        page.emulate_media(media="print")
        parts = page.locator("table:visible")
        assert parts.count() > 1
        heads = [part.locator("th").all_text_contents() for part in parts.all()]
        assert all(head[0] == "model" for head in heads)
        assert list(itertools.chain.from_iterable(head[1:] for head in heads)) == names
        assert f"(part 2 of {len(heads)})" in parts.nth(1).locator("caption").text_content()
        assert [part.evaluate("t => t.offsetWidth <= 703") for part in parts.all()] == [True] * len(heads)
        assert page.evaluate(BROKEN) == []
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        page.emulate_media(media="screen")
        assert page.locator("main").inner_html().replace(' class=""', "") == before
        assert complaints == []


@needs_browser
def test_the_focus_of_the_keyboard_is_seen_on_a_tool_bar(browser: Any, made: Path) -> None:
    with open_page(browser, made) as (page, _):
        page.locator("#figure-1-1").scroll_into_view_if_needed()
        button = page.locator("#figure-1-1 .modebar-btn").first
        button.wait_for(state="attached")
        page.keyboard.press("Tab")  # the browser shows the focus of the keyboard alone
        button.focus()
        assert button.evaluate("b => getComputedStyle(b).outlineWidth") == "3px"


@needs_browser
def test_the_second_line_of_an_axis_title_has_room(browser: Any, made: Path) -> None:
    """The meaning of a score's ends is beside the labels of the ticks, and not on them."""
    with open_page(browser, made) as (page, _):
        page.locator("#figure-1-2").scroll_into_view_if_needed()
        page.wait_for_selector("#figure-1-2[data-drawn=yes]")
        title, ticks = page.evaluate(
            "() => { const find = (name) => [...document.querySelectorAll('#figure-1-2 ' + name)]"
            ".map(t => t.getBoundingClientRect());"
            "return [Math.max(...find('.ytitle').map(b => b.right)),"
            "Math.min(...find('.ytick text').map(b => b.left))]; }"
        )
        assert ticks - title > 5
