"""Data sets by name: from files of the user, from the cache folder, or downloaded and checked."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from attngeo.choices import one_of
from attngeo.efa.datasets.catalogue import DATASETS, DataSet, SourceFile, terms_of
from attngeo.efa.datasets.files import read_content
from attngeo.errors import DataError, UsageError
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.studies.downloads import downloads_folder, fetch

if TYPE_CHECKING:
    import pandas as pd

# The largest file has 5 MB.
MOST_BYTES = 20_000_000


def load_dataset(
    name: str, data: str | Path | None = None, progress: ProgressCallback = ignore_progress
) -> pd.DataFrame:
    """The rows of a data set, as its reader returns them; `EXPERIMENTS` has how they are divided.

    data: a file or a folder with the files of the data set; None downloads them once, and keeps them in the cache.
    progress: is told the terms of the data set as a note before a download, and each file.
    Raises UsageError if the name is unknown, or data is given of one without files; DataUnavailableError if a file is
    missing, or cannot be downloaded; DataError if it is another one than expected.
    """
    dataset = DATASETS[one_of("data set", name, DATASETS)]
    if data is not None:
        if not dataset.files:
            raise UsageError(f"the data set {name} is drawn, not read; give no data (--data)")
        return dataset.read(Path(data).expanduser())
    if not dataset.files:
        return dataset.read(Path())
    with downloads_folder() as downloads:
        folder = downloads / f"efa-{name}"
        _fetch_files(dataset, folder, progress)
        return dataset.read(folder)


def _fetch_files(dataset: DataSet, folder: Path, progress: ProgressCallback) -> None:
    """Download what is not kept. The terms are announced before the first one."""

    is_announced = False

    def announce_terms(step: Progress) -> None:
        nonlocal is_announced
        if not is_announced:
            progress(Progress("note", f"{dataset.name}: {terms_of(dataset.name)}"))
        is_announced = True
        progress(step)

    for file in dataset.files:
        these = "file" if len(dataset.files) == 1 else f"{len(dataset.files)} files, of which this is one, in a folder"
        fetch(
            file.address, folder / file.name, partial(_verify, file), what=dataset.name,
            advice=f"download {file.address} on another machine, and give the {these} as data (--data)",
            most_bytes=MOST_BYTES, progress=announce_terms,
        )  # fmt: skip


def _verify(file: SourceFile, path: Path) -> None:
    """Raise DataError if the content of a download is not what it was when the list was made."""
    content = read_content(path, MOST_BYTES, member=file.member)
    digest = hashlib.sha256(content).hexdigest()
    if digest != file.sha256:
        what = f"{file.member} of {file.address}" if file.member else file.address
        raise DataError(
            f"{what} has changed: expected {file.nbytes:,} bytes with SHA-256 {file.sha256}, got {len(content):,} with "
            f"{digest}; give the original as data (--data)"
        )
