"""Files at http addresses: RedPajama, on a server of this machine."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from support.hub_server import Hub
from support.messages import refuses
from support.text_files import read_documents, write_file

from attngeo.errors import DataUnavailableError
from attngeo.pretrain.text import addresses, sources
from attngeo.pretrain.text.sources import open_text


@pytest.fixture
def redpajama(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """Three documents in two shards, at an address that stands for RedPajama's."""
    hub.repositories["datasets/org/redpajama"] = tmp_path
    write_file(tmp_path / "listings" / "en-2023-14-head_middle.txt", "2023-14/0000/en_head\n2023-14/0000/en_middle\n")
    for name, rows in (("en_head", ["one", "two"]), ("en_middle", ["three"])):
        lines = "".join(json.dumps({"url": "u", "raw_content": row}) + "\n" for row in rows)
        write_file(
            tmp_path / "documents" / "2023-14" / "0000" / f"{name}.json.gz", gzip.compress(lines.encode(), mtime=0)
        )
    monkeypatch.setattr(sources, "REDPAJAMA", f"{hub.url}/datasets/org/redpajama/resolve/main")
    monkeypatch.setattr(addresses, "WAITS", (0, 0, 0))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    return hub


def test_redpajama_is_read_shard_by_shard(redpajama: Hub) -> None:
    text = open_text("redpajama")
    assert (text.streaming, text.tokenizer) == (True, "google-bert/bert-base-uncased")
    assert redpajama.downloaded == ["listings/en-2023-14-head_middle.txt"]
    documents = text.read_documents()
    assert list(islice(documents, 2)) == ["one", "two"]
    assert redpajama.downloaded[1:] == ["documents/2023-14/0000/en_head.json.gz"]
    assert list(documents) == ["three"]
    assert redpajama.downloaded[2:] == ["documents/2023-14/0000/en_middle.json.gz"]


@pytest.mark.usefixtures("redpajama")
def test_nothing_is_lost_or_repeated_if_the_connection_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, left = addresses._read_rows, 3

    def break_connection(address: str, column: str) -> Iterator[Any]:
        nonlocal left
        with closing(whole(address, column)) as rows:
            yield next(rows)
            if left:
                left -= 1
                raise ConnectionResetError(104, "Connection reset by peer")
            yield from rows

    monkeypatch.setattr(addresses, "_read_rows", break_connection)
    assert read_documents("redpajama") == ["one", "two", "three"]
    left = 4
    with refuses(DataUnavailableError, "en_head.json.gz", "Connection reset"):
        read_documents("redpajama")


def test_addresses_that_cannot_be_reached(redpajama: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "documents" / "2023-14" / "0000" / "en_middle.json.gz").unlink()
    with refuses(DataUnavailableError, "en_middle.json.gz", 404):
        read_documents("redpajama")
    assert redpajama.downloaded.count("documents/2023-14/0000/en_middle.json.gz") == 1
    monkeypatch.setattr(sources, "REDPAJAMA", "http://127.0.0.1:9")
    with refuses(DataUnavailableError, "http://127.0.0.1:9/listings", "refused", "connection"):
        open_text("redpajama")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with refuses(DataUnavailableError, "http://127.0.0.1:9/listings", "offline"):
        open_text("redpajama")
