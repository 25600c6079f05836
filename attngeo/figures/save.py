"""A plotly figure to a file, in the format that its suffix names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from attngeo.errors import OutputError, first_line
from attngeo.tables.atomic import atomic_write, check_writable

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

IMAGES = (".png", ".svg", ".pdf")
SUFFIXES = (".html", ".json", *IMAGES)
# Pixels where the figure itself does not say; images are drawn at twice that, for sharp screens and print.
WIDTH, HEIGHT, SCALE = 1000, 600, 2


def check_figure(path: Path) -> None:
    """Raise OutputError unless a figure could be written to `path`: done before the work that fills it."""
    check_writable(path, SUFFIXES)
    if path.suffix.lower() in IMAGES:
        from choreographer.browsers.chromium import Chromium

        if Chromium.find_browser(skip_local=False) is None:
            raise OutputError(
                f"{path}: no Chromium or Chrome was found to draw a {path.suffix.lower()} with; install one "
                "(apt install chromium, or kaleido_get_chrome), or write .html or .json"
            )


def save_figure(figure: Figure, path: Path, *, width: int | None = None, height: int | None = None) -> None:
    """Write a figure to a .html page that needs nothing else, a .json file of plotly's, or a .png, .svg or .pdf image.

    width, height: pixels of an image. Images are drawn by a Chromium or Chrome that is installed. The same figure gives
    the same page and the same JSON. Raises OutputError.
    """
    check_figure(path)
    kind = path.suffix.lower()
    if kind in IMAGES:
        content = _image(
            figure, kind, path, width or figure.layout.width or WIDTH, height or figure.layout.height or HEIGHT
        )
    elif kind == ".json":
        content = (figure.to_json() + "\n").encode()
    else:
        content = page(figure).encode()
    with atomic_write(path) as partial:
        partial.write_bytes(content)


def page(figure: Figure) -> str:
    """A page of its own, with plotly.js in it."""
    body = figure.to_html(include_plotlyjs=True, full_html=False, div_id="figure", config={"displaylogo": False})
    title = re.sub(r"<br>.*|</?(?:b|sup)>", "", figure.layout.title.text or "attngeo")  # names in it are escaped
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>\n'
        f"<body>{body}</body></html>\n"
    )


def _image(figure: Figure, kind: str, path: Path, width: int, height: int) -> bytes:
    import kaleido

    options = {"format": kind.removeprefix("."), "width": width, "height": height, "scale": SCALE}
    try:
        return bytes(kaleido.calc_fig_sync(figure, opts=options))
    except Exception as error:  # a browser that starts but fails: its own error classes are many
        raise OutputError(f"{path} cannot be drawn ({type(error).__name__}: {first_line(error)})") from error
