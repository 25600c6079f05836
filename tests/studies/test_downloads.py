"""Downloads: kept once they are checked, replaced if they are damaged, and limited; nothing unfinished is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.file_server import Answer, serve
from support.messages import refuses

from attngeo.errors import DataError, DataUnavailableError, OutputError
from attngeo.progress import Progress, ignore_progress
from attngeo.studies.downloads import downloads_folder, fetch

CONTENT = b"the file"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """answer: of the server. asked: the paths that it was asked for."""
    state: dict[str, Any] = {"answer": Answer(CONTENT), "asked": []}

    def answer(path: str) -> Answer | None:
        state["asked"].append(path)
        return state["answer"]

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with serve(answer) as address:
        state["address"] = f"{address}/file.txt"
        yield state


def read_right(path: Path) -> bytes:
    if path.read_bytes() != CONTENT:
        raise DataError("another file")
    return path.read_bytes()


def fetch_it(address: str, path: Path, most_bytes: int = 100, **options: Any) -> bytes:
    options = {"progress": ignore_progress, **options}
    return fetch(address, path, read_right, what="it", advice="do this", most_bytes=most_bytes, **options)


def test_a_file_is_downloaded_once_and_again_if_it_is_damaged(server: dict[str, Any], tmp_path: Path) -> None:
    kept, steps = tmp_path / "new" / "file.txt", list[Progress]()
    for _ in range(2):
        assert fetch_it(server["address"], kept, progress=steps.append) == CONTENT
    assert (server["asked"], [step.what for step in steps]) == (["/file.txt"], [f"download {server['address']}"])
    kept.write_bytes(b"damaged")
    assert fetch_it(server["address"], kept) == kept.read_bytes() == CONTENT
    assert len(server["asked"]) == 2


@pytest.mark.parametrize(
    ("answer", "error", "facts"),
    [
        (Answer(b"wrong"), DataError, ["another file"]),
        (Answer(CONTENT, length=99), DataUnavailableError, ["do this"]),
        (Answer(b"x" * 500_000), DataError, ["100", "do this"]),
        (None, DataUnavailableError, ["404", "do this"]),
    ],
)
def test_another_answer_is_not_kept(
    server: dict[str, Any], tmp_path: Path, answer: Answer | None, error: type[DataError], facts: list[str]
) -> None:
    server["answer"] = answer
    with refuses(error, *facts):
        fetch_it(server["address"], tmp_path / "file.txt")
    assert list(tmp_path.iterdir()) == []


def test_offline_asks_nobody_and_reads_what_is_kept(
    server: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with refuses(DataUnavailableError, "it", "HF_HUB_OFFLINE", "do this"):
        fetch_it(server["address"], tmp_path / "file.txt")
    (tmp_path / "file.txt").write_bytes(CONTENT)
    assert fetch_it(server["address"], tmp_path / "file.txt") == CONTENT
    assert server["asked"] == []


def test_a_folder_that_cannot_be_made_is_one_line(server: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with refuses(OutputError, "cache", "ATTNGEO_CACHE"):
        fetch_it(server["address"], tmp_path / "cache" / "file.txt")


def test_the_folder_is_in_the_cache_or_removed_after_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNGEO_CACHE", str(tmp_path))
    with downloads_folder() as folder:
        assert folder == tmp_path / "downloads"
    monkeypatch.setenv("ATTNGEO_CACHE", "")
    with downloads_folder() as folder:
        (folder / "file").write_text("")
    assert not folder.exists()
