"""Files of others: limits of bytes, packed or not, and what is no file."""

from __future__ import annotations

import gzip
import os
import zipfile
from pathlib import Path

import pytest
from support.messages import refuses

from attngeo.errors import DataError, DataUnavailableError
from attngeo.papers.wibisono2025.files import read_content, read_table


def test_a_small_packed_file_cannot_become_a_large_one(tmp_path: Path) -> None:
    (tmp_path / "zeros.csv.gz").write_bytes(gzip.compress(bytes(100_000)))
    assert len(read_content(tmp_path / "zeros.csv.gz", 100_000)) == 100_000
    with refuses(DataError, "zeros.csv.gz", "99,999", "unpacked"):
        read_content(tmp_path / "zeros.csv.gz", 99_999)
    with zipfile.ZipFile(tmp_path / "zeros.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(100_000))
    with refuses(DataError, "zeros.zip", "99,999", "unpacked"):
        read_content(tmp_path / "zeros.zip", 99_999, member="zeros")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with refuses(DataUnavailableError, "none"):
        read_content(tmp_path / "none")
    with refuses(DataError, tmp_path.name):
        read_content(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    with refuses(DataError, "fifo"):
        read_content(tmp_path / "fifo")
    (tmp_path / "text.gz").write_text("text")
    with refuses(DataError, "text.gz"):
        read_content(tmp_path / "text.gz")


@pytest.mark.parametrize("content", [b"a,b\n\xff,1\n", b"\xef\xbb\xbfa,b\n1,2\n", b'a,b\n"1,2\n'])
def test_cells_are_texts_of_utf_8(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "table.csv").write_bytes(content)
    if content.startswith(b"\xef"):
        assert read_table(tmp_path / "table.csv", ("a", "b"), dtype=str).to_numpy().tolist() == [["1", "2"]]
    else:
        with refuses(DataError, "table.csv"):
            read_table(tmp_path / "table.csv", ("a", "b"), dtype=str)
