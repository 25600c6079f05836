"""Figures to files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.browser import needs_browser

from attngeo.errors import OutputError
from attngeo.figures.save import save_figure
from attngeo.reporting.plots import plot

STARTS = {"png": b"\x89PNG", "svg": b"<svg", "pdf": b"%PDF"}


@needs_browser
@pytest.mark.parametrize("kind", STARTS)
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


def test_the_end_of_a_browser_is_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import kaleido
    from choreographer.channels import pipe

    def draw(*_: object, **__: object) -> bytes:
        pipe._logger.error("JSONError decoding message. Ignoring")
        return b"drawn"

    monkeypatch.setattr("attngeo.figures.save.check_figure", lambda _: None)
    monkeypatch.setattr(kaleido, "calc_fig_sync", draw)
    save_figure(plot("layers", "demo:minilm"), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes() == b"drawn"
    assert caplog.records == []


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


def test_without_a_browser_images_are_refused_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from choreographer.browsers.chromium import Chromium

    monkeypatch.setattr(Chromium, "find_browser", lambda **_: None)
    with pytest.raises(OutputError, match=r"\.png .*Chromium"):
        save_figure(plot("layers", "demo:minilm"), tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "fact"), [("a.gif", r"\.svg"), ("none/a.html", "none")])
def test_files_that_cannot_be_written(name: str, fact: str, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=fact):
        save_figure(plot("layers", "demo:minilm"), tmp_path / name)
