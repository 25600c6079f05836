"""Pages in a headless Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from choreographer.browsers.chromium import Chromium

from attngeo.errors import GET_BROWSER

# The browser that draws images.
CHROMIUM = Chromium.find_browser(skip_local=False)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason=f"Chromium or Chrome is missing: {GET_BROWSER}")


@contextmanager
def start_browser() -> Iterator[Any]:
    """A headless Chromium, which ends with the block."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@contextmanager
def open_page(browser: Any, path: Path, *, width: int = 1400, scheme: str = "light") -> Iterator[tuple[Any, list[str]]]:
    """A page without network, and its complaints: errors, warnings and requests to other places."""
    complaints: list[str] = []
    viewport = {"width": width, "height": 900}
    with browser.new_context(viewport=viewport, color_scheme=scheme, offline=True) as context:
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on(
            "console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: _note_request(request.url, path, complaints))
        page.goto(path.absolute().as_uri())
        yield page, complaints


def _note_request(url: str, path: Path, complaints: list[str]) -> None:
    if not url.startswith(("data:", "blob:")) and url != path.absolute().as_uri():
        complaints.append(f"requested {url}")
