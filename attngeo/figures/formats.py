"""The files that a figure can be written to, and whether this machine can. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attngeo.errors import GET_BROWSER, OutputError
from attngeo.tables.files import check_writable

IMAGES = (".png", ".svg", ".pdf")
SUFFIXES = (".html", ".json", *IMAGES)


def check_figure(path: Path) -> None:
    """Raise OutputError unless a figure can be written to `path`. Call it before the work that makes the figure."""
    check_writable(path, SUFFIXES)
    if path.suffix.lower() in IMAGES:
        browser = find_browser()
        if browser is None or not Path(browser).is_file():
            place = "" if browser is None else f" at {browser}, which BROWSER_PATH names"
            raise OutputError(
                f"a {path.suffix.lower()} image requires Chromium or Chrome, and none was found{place}: "
                f"{GET_BROWSER}, or write .html or .json",
                subject=path,
            )


def load_browsers() -> Any:
    """The package by which kaleido finds and starts a browser."""
    from choreographer import browsers

    return browsers


def find_browser() -> str | None:
    """The browser that kaleido starts: one of kaleido_get_chrome, of the variable BROWSER_PATH, or of the system."""
    browser: str | None = load_browsers().Chromium.find_browser(skip_local=False)
    return browser
