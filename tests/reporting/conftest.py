"""A small recipe that tests change."""

from __future__ import annotations

from pathlib import Path

import pytest

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
def _pictures_on_request(request: pytest.FixtureRequest) -> None:
    """Draw no pictures but in tests that ask for the fixture `pictures`."""
    if "pictures" not in request.fixturenames:
        request.getfixturevalue("no_pictures")


@pytest.fixture
def pictures() -> None:
    """Let a test draw pictures."""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """Scores of two demo models, a figure, a table and a check."""
    path = tmp_path / "demo.toml"
    path.write_text(RECIPE)
    return path
