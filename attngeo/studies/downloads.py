"""Downloads: files of data sets that are kept on this machine, so that none is downloaded twice."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from attngeo.errors import DataError, DataUnavailableError, OutputError, first_line
from attngeo.progress import Progress, ProgressCallback
from attngeo.studies.results import VARIABLE, cache_folder
from attngeo.tables.files import atomic_write

# Seconds that a server may take for an answer.
TIMEOUT = 30
Content = TypeVar("Content")


@contextmanager
def downloads_folder() -> Iterator[Path]:
    """The folder of downloads in the cache folder or, if nothing is kept, a folder that is removed after the block."""
    cache = cache_folder()
    if cache is not None:
        yield cache / "downloads"
        return
    with tempfile.TemporaryDirectory(prefix="attngeo-") as folder:
        yield Path(folder)


def fetch(
    address: str,
    path: Path,
    read: Callable[[Path], Content],
    *,
    what: str,
    advice: str,
    most_bytes: int,
    progress: ProgressCallback,
) -> Content:
    """The content that `read` makes of the file at an address, which is downloaded unless it is kept.

    Args:
        address: address of the file.
        path: path of the kept file.
        read: reads the file, and raises DataError for a wrong file; a kept file is then downloaded again, and a new one
            is not kept.
        what: name of the data set, for messages.
        advice: what to do if the data set cannot be reached, for messages.
        most_bytes: limit of the download.
        progress: called during the download.

    Raises:
        DataUnavailableError: offline, or the address cannot be reached.
        DataError: the file is too large, or another one.
        OutputError: the file cannot be kept.
    """
    if path.is_file():
        try:
            return read(path)
        except (DataError, DataUnavailableError):
            pass  # damaged: it is replaced
    from huggingface_hub import constants

    if constants.is_offline_mode():
        raise DataUnavailableError(f"offline mode is on (HF_HUB_OFFLINE); {advice}", subject=what)
    progress(Progress("prepare", f"download {address}"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise OutputError(f"{path.parent} cannot be created ({reason}); set {VARIABLE} to another folder") from None
    with atomic_write(path) as partial:
        _download(address, partial, advice, most_bytes)
        return read(partial)


def _download(address: str, path: Path, advice: str, most_bytes: int) -> None:
    """Write the file in parts, so that one without an end does not fill memory or the disk."""
    from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # re-exported

    # Nothing is compressed on the way: few bytes could then become many.
    headers = {"Accept-Encoding": "identity"}
    try:
        with (
            httpx.stream("GET", address, timeout=TIMEOUT, follow_redirects=True, headers=headers) as answer,
            path.open("wb") as file,
        ):
            answer.raise_for_status()
            for part in answer.iter_bytes():
                file.write(part)
                if file.tell() > most_bytes:
                    raise DataError(f"{address} has more than the limit of {most_bytes:,} bytes; {advice}")
    except httpx.HTTPError as error:
        raise DataUnavailableError(f"{address} cannot be read ({first_line(error)}); {advice}") from None
