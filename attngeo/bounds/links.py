"""Files that links give several paths, each once."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def without_links(paths: Iterable[Path]) -> list[Path]:
    """Existing files in their order, each once, even if links give it several paths; the path is not a link."""
    paths = list(paths)
    kept: dict[tuple[int, int], Path] = {}
    for path in sorted(paths, key=Path.is_symlink):
        status = path.stat()
        kept.setdefault((status.st_dev, status.st_ino), path)
    chosen = {*kept.values()}
    return [path for path in paths if path in chosen]
