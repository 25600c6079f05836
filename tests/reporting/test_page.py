"""The page of a report, and every kind of figure, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.browser import needs_browser, opened
from support.runs import small_settings

from attngeo import tables
from attngeo.drawing import draw
from attngeo.plots import plot
from attngeo.pretrain import compare
from attngeo.reporting import report
from attngeo.reporting.payload import Payload

NASTY = "<img src=x onerror=alert(1)>\"'&{{ 7 * 7 }}"
RECIPE = """
title = "Two models <b>"
text = "Some *text* with <script>alert(1)</script>."
[[results]]
name = "scores"
command = "file"
path = "scores.parquet"
[[section]]
title = "Figures"
figures = [
    { kind = "heatmap", of = "scores" },
    { kind = "layers", of = "scores", score = "directionality" },
    { kind = "heads", of = "scores", models = ["demo:encoder"] },
    { kind = "size", of = "scores" },
    { kind = "matrix", model = "demo:encoder", layer = 1 },
]
tables = [{ of = "scores", show = "summary" }, { of = "scores" }]
[[check]]
of = "scores"
fail_if = "symmetry.median < 0.2"
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import attngeo

    folder = tmp_path_factory.mktemp("report")
    frames = [attngeo.score(f"demo:{name}", per_head=True) for name in ("encoder", "decoder")]
    frames.append(frames[1].assign(model=NASTY))
    tables.write(pd.concat(frames, ignore_index=True), folder / "scores.parquet")
    (folder / "recipe.toml").write_text(RECIPE)
    report(folder / "recipe.toml", folder / "report")
    return folder / "report/index.html"


def ready(page: Any) -> None:
    page.wait_for_function("document.documentElement.dataset.ready === 'yes'")


@needs_browser
@pytest.mark.parametrize("width", [1400, 380])
def test_every_figure_is_drawn_offline_and_nothing_complains(made: Path, width: int) -> None:
    with opened(made, width=width) as (page, complaints):
        ready(page)
        charts = page.locator(".chart")
        assert charts.count() == 5
        for chart in charts.all():
            chart.scroll_into_view_if_needed()
            page.wait_for_function("c => c.dataset.drawn === 'yes'", arg=chart.element_handle())
            drawn = chart.evaluate(
                "c => [c.querySelectorAll('svg.main-svg').length, "
                "c.querySelectorAll('.trace path, .hm image, .point, .js-line').length]"
            )
            assert min(drawn) > 0, chart.get_attribute("id")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert complaints == []


@needs_browser
def test_a_hover_says_what_a_cell_is(made: Path) -> None:
    with opened(made) as (page, complaints):
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
        assert complaints == []


@needs_browser
def test_the_model_is_chosen_and_its_name_is_text(made: Path) -> None:
    with opened(made) as (page, complaints):
        ready(page)
        page.locator("#figure-1-1").scroll_into_view_if_needed()
        page.wait_for_selector("#figure-1-1[data-drawn=yes]")
        page.select_option("#figure-1-1-model", label=NASTY)
        page.wait_for_function("document.querySelector('#figure-1-1 .gtitle').textContent.includes('onerror')")
        assert NASTY in page.locator("#figure-1-1 .gtitle").text_content()
        assert page.locator("img").count() == 0
        assert page.locator("h1").text_content() == "Two models <b>"
        assert "<script>alert(1)</script>" in page.locator("main").text_content()
        assert complaints == []


@needs_browser
def test_a_table_sorts_by_mouse_and_by_keyboard(made: Path) -> None:
    with opened(made) as (page, _):
        ready(page)
        table = page.locator("section table").nth(1)
        heading = table.locator("th", has_text="frobenius_norm")
        place = heading.evaluate("h => h.cellIndex")

        def column() -> list[float]:
            cells = table.evaluate(f"t => [...t.tBodies[0].rows].map(r => r.cells[{place}].textContent)")
            return [float(cell) for cell in cells]

        assert column() != sorted(column())
        heading.locator("button").click()
        assert column() == sorted(column())
        assert heading.get_attribute("aria-sort") == "ascending"
        page.keyboard.press("Enter")
        assert column() == sorted(column(), reverse=True)


@needs_browser
def test_light_and_dark(made: Path) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    with opened(made, scheme="dark") as (page, _):
        ready(page)
        dark = page.evaluate(colour)
        for expected in ("rgb(255, 255, 255)", dark, dark):
            page.locator("#theme").click()
            assert page.evaluate(colour) == expected
    with opened(made) as (page, _):
        assert page.evaluate(colour) == "rgb(255, 255, 255)" != dark


@needs_browser
@pytest.mark.parametrize("kind", ["heatmap", "training", "training-layers", "analogies"])
def test_figures_are_pages_of_their_own(kind: Any, tmp_path: Path) -> None:
    """One kind that the report above has, and all that it has not."""
    given: Any = "demo:encoder"
    if kind.startswith("training"):
        given = tmp_path / "both"
        compare(small_settings(tmp_path, steps=4, log_every=2, save_every=100), given, ["default", "symmetric"])
    if kind == "analogies":
        given = pd.DataFrame({
            "model": "m", "level": ["overall", "type"], "name": ["overall", "semantic"], "asked": 3, "known": 2,
            "accuracy": [0.5, 0.4], "accuracy_low": 0.3, "accuracy_high": 0.6, "questions": "own",
        })  # fmt: skip
    draw(plot(kind, given), tmp_path / "figure.html")
    with opened(tmp_path / "figure.html") as (page, complaints):
        page.wait_for_selector(".cartesianlayer .mlayer > *", state="attached")
        assert page.locator(".legend .traces").count() != 1
        assert complaints == []


def test_long_arrays_are_taken_out_of_the_json_and_scores_kept_to_thousandths() -> None:
    import base64
    import gzip
    import json

    import plotly.graph_objects as go

    scores = np.array([[0.1234567, np.nan], [-1, 1]])
    figure = go.Figure().add_heatmap(z=scores, coloraxis="coloraxis").add_scatter(x=np.arange(20.0), y=[1, 2])
    payload = Payload()
    assert payload.add(figure) == 0
    packed = gzip.decompress(base64.b64decode(payload.encoded()))
    length = int.from_bytes(packed[:8], "little")
    ((heat, line),) = (each["data"] for each in json.loads(packed[8 : 8 + length]))
    arrays = packed[8 + length :]
    where = heat["z"]
    whole = np.frombuffer(arrays, "int16", 4, where["at"]).reshape(where["shape"])
    assert (whole == [[123, where["missing"]], [-1000, 1000]]).all()
    assert np.frombuffer(arrays, "float64", 20, line["x"]["at"]).tolist() == list(range(20))
    assert line["y"] == [1, 2]
    again = Payload()
    again.add(figure)
    assert again.encoded() == payload.encoded()
