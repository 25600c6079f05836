"""A small recipe that tests change."""

from __future__ import annotations

from pathlib import Path

import pytest

from attngeo.errors import OutputError

RECIPE = """\
title = "Demo"
text = "A *report*."

[[results]]
name = "scores"
command = "score"
models = ["demo:encoder", "demo:decoder"]

[[section]]
title = "Layers"
figures = [{ kind = "layers", of = "scores" }]
tables = [{ of = "scores", show = "summary" }]

[[check]]
of = "scores"
models = ["demo:encoder"]
fail_if = "symmetry.median < 0.2"
"""


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Draw no pictures, which takes seconds, but in tests that ask for the fixture `pictures`."""
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr("attngeo.reporting.report.save_images", refuse_images)


def refuse_images(figures: object) -> None:  # noqa: ARG001 - as if there was no browser
    """Raise what a machine without Chromium raises."""
    raise OutputError("Chromium is missing")


@pytest.fixture
def pictures() -> None:
    """Let a test draw pictures."""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """Scores of two demo models, a figure, a table and a check."""
    path = tmp_path / "demo.toml"
    path.write_text(RECIPE)
    return path
