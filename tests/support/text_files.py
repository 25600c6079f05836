"""Files of text, written for a test and read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from attngeo.pretrain.sources import open_text


def write_file(path: Path, content: bytes | str | dict[str, list[Any]]) -> Path:
    """Write a file with these bytes, this text, or these columns as Parquet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, dict):
        parquet.write_table(pa.table(content), path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read_documents(reference: object, **options: Any) -> list[str]:
    """All documents of the text that a reference names."""
    return [document for batch in open_text(str(reference), **options).read_batches() for document in batch]
