"""Writing a plotly figure to a file, in the format that the suffix names."""

from __future__ import annotations

import asyncio
import logging
import re
import struct
import zlib
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import TYPE_CHECKING, Any

import psutil

from attngeo.errors import OutputError, UsageError, first_line, require_extra
from attngeo.figures.fit import HEIGHT, WIDTH, fit_figure
from attngeo.figures.formats import IMAGES, check_figure, find_browser, load_browsers
from attngeo.figures.lengths import INCH, PAPER
from attngeo.tables.files import atomic_write

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# How the page of a white figure looks in a browser that prefers dark pages: inverted, with the same hues. An image that
# is downloaded from it is white.
DARK = "body{background:#1a1a1a}#figure{filter:invert(.9) hue-rotate(180deg)}"
# A .png image has twice as many pixels as its figure, for sharp screens: as many to an inch, and to a metre.
SCALE = 2
PER_INCH = SCALE * INCH
PER_METRE = round(PER_INCH / 0.0254)
# Settings of plotly for pages. By default, its tool bar offers to send the data to a cloud, and has a link to its
# maker; a name between two $ would be a formula if the page had MathJax.
SETTINGS = {"displaylogo": False, "showSendToCloud": False, "plotlyServerURL": "", "typesetMath": False}
# What a page may load: what it contains. The browser blocks everything else, such as the ground of a map.
POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:"
# Options of kaleido, which would load MathJax from a foreign server and draw what is between two $ as a formula. Its
# browser would ask servers of the browser's makers for updates; it reaches the network by a proxy that is not there.
OFFLINE = {"mathjax": False, "proxy_server": "127.0.0.1:9"}
# Seconds to wait for a browser, and for each of several images, and how many browsers are asked. Where the machine is
# busy, one takes a minute.
PATIENCE, PATIENCE_OF_ANOTHER, ATTEMPTS = 150, 15, 2
# What the command line of a browser has, or of the process that starts it.
BROWSERS = ("chrom", "choreographer")


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure to a .html page, a plotly .json file, or a .png, .svg or .pdf image.

    An image has the size of the figure's layout, by default 1000 × 600 pixels. On paper, 96 pixels are an inch: a .svg
    image has exactly that size, and a .pdf page, with embedded fonts, to 1/100 inch. A .png image has twice as many
    pixels, 192 to an inch. A .html page has that height and at least that width, contains plotly.js, and loads and
    sends nothing. In all formats, titles are wrapped, a small figure has small type, and a figure is higher if its
    panels or its legend need it. Images require an installed Chromium or Chrome, which does not use the network. The
    same figure gives the same page and the same JSON, byte for byte.

    Args:
        figure: a plotly figure, as `attngeo.plot` returns.
        path: the file, whose suffix names the format. It is written whole or not at all.

    Raises:
        UsageError: `figure` is not a figure, or `path` not a path.
        OutputError: the file cannot be written, or the image cannot be drawn.
        MissingPackageError: an image requires a package that is not installed.
    """
    if not isinstance(path, str | Path):
        raise UsageError(f"$path is {path!r:.60}, expected the name of a file", "path")
    if not hasattr(figure, "to_plotly_json"):
        raise UsageError(f"$figure is {figure!r:.60}, expected a plotly figure, as returned by attngeo.plot", "figure")
    path = Path(path)
    with require_extra():
        check_figure(path)
    suffix = path.suffix.lower()
    if suffix == ".json":
        content = (figure.to_json() + "\n").encode()
    else:
        fitted = fit_figure(figure)
        content = _draw_image(fitted, suffix, path) if suffix in IMAGES else build_page(fitted).encode()
    with atomic_write(path) as partial:
        partial.write_bytes(content)


def build_page(figure: Figure) -> str:
    """An HTML page of one figure, with plotly.js in it.

    It scrolls in a window too small for its texts. A white figure is dark if the browser prefers dark pages; a figure
    with another background stays unchanged.
    """
    width, height = figure.layout.width or WIDTH, figure.layout.height or HEIGHT
    figure = type(figure)(figure).update_layout(height=height)
    body = figure.to_html(include_plotlyjs=True, full_html=False, div_id="figure", config=dict(SETTINGS))
    # Without mark-up and details, in one line; names in it are escaped already.
    text = (figure.layout.title.text or "attngeo").replace("<sub>", "_")
    title = re.sub(r"<sup>.*|</?(?:b|sub)>", "", text).replace("<br>", " ").strip()
    background = figure.layout.paper_bgcolor or figure.layout.template.layout.paper_bgcolor
    dark = f"@media screen and (prefers-color-scheme:dark){{{DARK}}}" if background in (None, "white") else ""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f"<style>#figure{{min-width:{width}px}}{dark}</style></head>\n"
        f"<body>{body}</body></html>\n"
    )


def _draw_image(figure: Figure, suffix: str, path: Path) -> bytes:
    kaleido = _load_kaleido()
    size = _size_image(figure, suffix)
    try:
        content = bytes(_draw(kaleido.calc_fig, figure, opts=size, kopts=dict(OFFLINE)))
    except Exception as error:  # a browser that fails; it has many error classes of its own
        raise OutputError(f"{path} cannot be drawn: {_describe_failure(error)}") from error
    if suffix == ".svg":
        return _state_points(content, size["width"] / PAPER["pt"], size["height"] / PAPER["pt"])
    return _state_density(content) if suffix == ".png" else content


def _state_points(content: bytes, width: float, height: float) -> bytes:
    """A .svg image that states its size in points: programs differ in the size of a pixel."""
    size = f'width="{width:.6g}pt" height="{height:.6g}pt"'.encode()
    return re.sub(rb'width="[\d.]+" height="[\d.]+"', size, content, count=1)


def _state_density(content: bytes) -> bytes:
    """A .png image that states how many pixels an inch has, so that it has the figure's size in a document."""
    if not content.startswith(b"\x89PNG"):
        return content
    data = b"pHYs" + struct.pack(">IIB", PER_METRE, PER_METRE, 1)
    chunk = struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))
    end_of_header = 33  # 8 bytes of signature, and 25 of the first chunk
    return content[:end_of_header] + chunk + content[end_of_header:]


def save_images(figures: Mapping[Path, Figure]) -> None:
    """Write several images with one browser, which is faster than `save_figure` for each. figures: by their paths.

    Raises:
        OutputError: Chromium is missing, or an image cannot be drawn.
        MissingPackageError: a package is missing.
    """
    drawings = []
    with require_extra():
        for path, figure in figures.items():
            check_figure(path)
            fitted = fit_figure(figure)
            drawings.append({"fig": fitted, "path": path, "opts": _size_image(fitted, path.suffix)})
        kaleido = _load_kaleido()
    try:
        # By default, kaleido leaves out an image that cannot be drawn.
        more = PATIENCE_OF_ANOTHER * len(drawings)
        _draw(kaleido.write_fig_from_object, drawings, patience=more, cancel_on_error=True, kopts=dict(OFFLINE))
    except Exception as error:  # as above
        raise OutputError(f"the images cannot be drawn: {_describe_failure(error)}") from error


def _draw(function: Callable[..., Coroutine[Any, Any, Any]], *args: Any, patience: float = 0, **options: Any) -> Any:
    """What a function of kaleido returns, which starts a browser.

    Seldom a browser starts and never answers: it is ended, and another one is asked. patience: seconds to wait in
    addition to `PATIENCE`. Raises OutputError if that does not answer either, and what the function raises.
    """
    for _ in range(ATTEMPTS):
        answers: Queue[Any] = Queue()
        others = {process.pid for process in psutil.Process().children()}

        def run(answers: Queue[Any] = answers) -> None:
            try:
                answers.put(asyncio.run(function(*args, **options)))
            except BaseException as error:
                answers.put(error)

        # A thread of its own, as the caller may run an event loop; it does not keep the process from its end.
        thread = Thread(target=run, daemon=True)
        thread.start()
        try:
            answer = answers.get(timeout=PATIENCE + patience)
        except Empty:
            continue
        finally:  # also at Ctrl-C
            if answers.empty() and thread.is_alive():
                _end_browsers(others)
        if isinstance(answer, BaseException):
            raise answer
        return answer
    raise OutputError("the browser does not answer; repeat the command, or write .html or .json")


def _end_browsers(others: Collection[int]) -> None:
    """End the browsers that this process has started, but for processes of these numbers."""
    for process in psutil.Process().children():
        with suppress(psutil.Error):
            is_browser = any(name in " ".join(process.cmdline()).lower() for name in BROWSERS)
            if process.pid not in others and is_browser:
                for started in (*process.children(recursive=True), process):
                    started.kill()


def _describe_failure(error: Exception) -> str:
    """Why a browser drew nothing, in one line."""
    if isinstance(error, OutputError):
        return str(error)
    if isinstance(error, load_browsers().BrowserFailedError):
        browser = find_browser()
        return f"{browser} does not start; run {browser} --version to see why (a library may be missing)"
    return f"{type(error).__name__}: {first_line(error)}"


def _size_image(figure: Figure, suffix: str) -> dict[str, Any]:
    """The options of kaleido for an image of a figure: its format and its size."""
    return {
        "format": suffix.lower().removeprefix("."),
        "width": figure.layout.width or WIDTH,
        "height": figure.layout.height or HEIGHT,
        "scale": SCALE if suffix.lower() == ".png" else 1,
    }


def _load_kaleido() -> Any:
    """The package that draws images. The end of its browser may be read as a message: nothing is logged of it."""
    import kaleido

    for name in ("choreographer.channels.pipe", "choreographer.browser_async"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return kaleido
