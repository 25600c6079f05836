"""Figures to files."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.browser import needs_browser
from support.messages import refuses

import attngeo
from attngeo.errors import OutputError
from attngeo.figures.save import OFFLINE, save_figure, save_images
from attngeo.reporting.plots import plot

STARTS = {"png": b"\x89PNG", "svg": b"<svg", "pdf": b"%PDF"}
# A name that MathJax would show as a formula.
DOLLARS = "cost in $x_1$ and $x_2$"


@needs_browser
@pytest.mark.parametrize("kind", ["png", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("svg", "pdf"))])
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_images_are_drawn_by_a_browser(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"figure.{kind}"
    save_figure(plot("layers", "demo:minilm").update_layout(width=500, height=300), path)
    content = path.read_bytes()
    assert content.startswith(STARTS[kind])
    if kind == "png":
        assert [int.from_bytes(content[i : i + 4]) for i in (16, 20)] == [1000, 600]
        save_figure(plot("layers", "demo:minilm").update_layout(height=350), path)  # its own height, the usual width
        assert [int.from_bytes(path.read_bytes()[i : i + 4]) for i in (16, 20)] == [2000, 700]


@needs_browser
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_a_figure_has_its_size_on_paper(tmp_path: Path) -> None:
    figure = plot("layers", "demo:minilm", width="3.4in", height="171.3pt", font_size="8pt", title="")
    for kind in STARTS:
        save_figure(figure, tmp_path / f"figure.{kind}")
    content = (tmp_path / "figure.pdf").read_bytes()
    *_, box = re.findall(rb"/MediaBox \[(\S+) (\S+) (\S+) (\S+)\]", content)
    left, bottom, right, top = map(float, box)
    # The browser rounds to 1/300 inch.
    assert (right - left, top - bottom) == (pytest.approx(244.8, abs=0.24), pytest.approx(171.3, abs=0.24))
    # Each font has its letters in the file.
    fonts = content.count(b"/Type /FontDescriptor")
    assert fonts == len(re.findall(rb"/FontFile\d? ", content)) > 0
    assert b'width="244.8pt" height="171.3pt"' in (tmp_path / "figure.svg").read_bytes()
    image = (tmp_path / "figure.png").read_bytes()
    assert [int.from_bytes(image[i : i + 4]) for i in (16, 20)] == [652, 456]
    place = image.index(b"pHYs") + 4
    assert [int.from_bytes(image[i : i + 4]) for i in (place, place + 4)] == [7559, 7559]  # 192 to an inch


def test_the_end_of_a_browser_is_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import kaleido
    from choreographer.channels import pipe

    async def draw(*_: object, **__: object) -> bytes:
        pipe._logger.error("JSONError decoding message. Ignoring")
        return b"drawn"

    monkeypatch.setattr("attngeo.figures.save.check_figure", lambda _: None)
    monkeypatch.setattr(kaleido, "calc_fig", draw)
    save_figure(plot("layers", "demo:minilm"), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes() == b"drawn"
    assert caplog.records == []


@pytest.mark.parametrize("hangs", [1, 2])
def test_a_browser_that_never_answers_is_ended_and_another_one_asked(
    hangs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import kaleido

    started: list[subprocess.Popen[bytes]] = []

    async def draw(*_: object, **__: object) -> bytes:
        if len(started) == hangs:
            return b"drawn"
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "chromium"]))
        await asyncio.to_thread(started[-1].wait)  # as kaleido, in a thread that the process waits for
        await asyncio.sleep(600)
        return b""

    monkeypatch.setattr("attngeo.figures.save.check_figure", lambda _: None)
    monkeypatch.setattr("attngeo.figures.save.PATIENCE", 0.5)
    monkeypatch.setattr(kaleido, "calc_fig", draw)
    figure = plot("layers", "demo:minilm")
    if hangs == 1:
        save_figure(figure, tmp_path / "a.png")
        assert (tmp_path / "a.png").read_bytes() == b"drawn"
    else:
        with refuses(OutputError, "a.png", "does not answer", ".html"):
            save_figure(figure, tmp_path / "a.png")
        assert not (tmp_path / "a.png").exists()
    assert [process.wait(60) for process in started] == [-signal.SIGKILL] * hangs


@pytest.fixture
def drawings(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of each browser that kaleido would start. Its images are empty."""
    import kaleido

    options: list[dict[str, Any]] = []

    class Drawer:
        def __init__(self, **given: Any) -> None:
            options.append(given)

        async def __aenter__(self) -> Drawer:
            return self

        async def __aexit__(self, *_: object) -> None: ...

        async def calc_fig(self, *_: object, **__: object) -> bytes:
            return b""

        async def write_fig_from_object(self, *_: object, **__: object) -> None: ...

    monkeypatch.setattr(kaleido, "Kaleido", Drawer)
    monkeypatch.setattr("attngeo.figures.save.check_figure", lambda _: None)
    return options


def test_images_need_no_network(drawings: list[dict[str, Any]], tmp_path: Path) -> None:
    """The page that draws has scripts of this machine alone, and its browser has a proxy that is not there."""
    import kaleido

    figure = plot("layers", "demo:minilm")
    save_figure(figure, tmp_path / "a.svg")
    save_images({tmp_path / "b.png": figure})
    assert len(drawings) == 2
    for options in drawings:
        page = kaleido.PageGenerator(mathjax=options.get("mathjax"), plotly=options.get("plotlyjs")).generate_index()
        scripts = re.findall(r'<script src="([^"]*)"', page)
        assert scripts[0].endswith("/plotly.min.js")
        assert {urlsplit(script).scheme for script in scripts} == {"file"}
        proxy = urlsplit(f"//{options['proxy_server']}")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((proxy.hostname, proxy.port), timeout=5)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The first line of each request of a browser that draws images. None is answered."""
    lines: list[str] = []

    class Proxy(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            lines.append(self.rfile.readline().decode("latin-1").strip())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setitem(OFFLINE, "proxy_server", f"127.0.0.1:{server.server_address[1]}")
        yield lines
        server.shutdown()


@pytest.mark.slow
@needs_browser
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_an_image_asks_for_no_formulas_and_shows_names_with_dollars(
    requests: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = plot("layers", attngeo.score("demo:minilm").assign(model=DOLLARS))
    save_figure(figure, tmp_path / "a.svg")
    texts = re.findall(r">([^<]*)<", (tmp_path / "a.svg").read_text())
    assert any(DOLLARS in text for text in texts)
    assert not any("mathjax" in line or "cdn" in line for line in requests)
    # The proxy sees what kaleido asks for by default.
    monkeypatch.delitem(OFFLINE, "mathjax")
    save_figure(figure, tmp_path / "b.svg")
    assert any("cdn" in line for line in requests)


@pytest.mark.slow
@needs_browser
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_an_image_that_cannot_be_drawn_is_an_error_among_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = plot("layers", "demo:minilm")
    monkeypatch.setattr("attngeo.figures.save._size_image", lambda *_: {"format": "none"})
    with pytest.raises(OutputError, match="'none'"):
        save_images({tmp_path / "a.svg": figure})


def test_pages_and_json_are_the_same_for_the_same_figure(tmp_path: Path) -> None:
    figure = plot("layers", "demo:minilm")
    for name in ("a.html", "b.html", "a.json", "b.json"):
        save_figure(figure, tmp_path / name)
    for kind in ("html", "json"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()
    page = (tmp_path / "a.html").read_text()
    assert 'lang="en"' in page
    assert "<title>demo:minilm: symmetry of W_qk in each layer<" in page
    assert 'src="http' not in page
    assert len(json.loads((tmp_path / "a.json").read_text())["data"]) == 4


@pytest.mark.parametrize(
    ("browser", "facts"),
    [
        (None, r"a\.png: .*Chromium.* kaleido_get_chrome .*apt install chromium.*\.html"),
        ("none/chromium", r"a\.png: .* none/chromium.* BROWSER_PATH .* kaleido_get_chrome"),
        (sys.executable, r"a\.png .*python\S* does not start; run \S*python\S* --version"),
    ],
)
def test_without_a_browser_images_are_refused_with_advice(
    browser: str | None, facts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No browser, a variable that names one in vain, and a program that ends at once, as one without its libraries."""
    from choreographer.browsers.chromium import Chromium

    monkeypatch.setattr(Chromium, "find_browser", lambda **_: browser)
    with pytest.raises(OutputError, match=facts) as raised:
        save_figure(plot("layers", "demo:minilm"), tmp_path / "a.png")
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "fact"), [("a.gif", r"\.svg"), ("none/a.html", "none")])
def test_files_that_cannot_be_written(name: str, fact: str, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=fact):
        save_figure(plot("layers", "demo:minilm"), tmp_path / name)
