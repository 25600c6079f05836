"""Data sets by name: from files of the user, from the cache folder, or downloaded and checked."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from attngeo.choices import one_of
from attngeo.efa.datasets.catalogue import DATASETS, DataSet, SourceFile, terms_of
from attngeo.efa.datasets.files import find_file, folder_of, has_file, read_content
from attngeo.errors import DataError, UsageError
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.studies.results import downloads_folder, fetch

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

# The largest file has 5 MB.
MOST_BYTES = 20_000_000


def load_dataset(
    name: str, data: str | Path | None = None, progress: ProgressCallback = ignore_progress
) -> pd.DataFrame:
    """The rows of a data set, as its reader returns them; `EXPERIMENTS` has how they are divided.

    data: a file or a folder with the files of the data set; None downloads them once, and keeps them in the cache.
    progress: is told the terms of the data set as a note before a download, each file, and which file of the user has
    other content than the published one.
    Raises UsageError if the name is unknown, or data is given of one without files; DataUnavailableError if a file is
    missing, or cannot be downloaded; DataError if it is another one than expected.
    """
    dataset = DATASETS[one_of("data set", name, DATASETS)]
    if data is not None:
        if not dataset.files:
            raise UsageError(f"the data set {name} is drawn, not read; give no data (--data)")
        place = Path(data).expanduser()
        frame = dataset.read(place)
        _note_changes(dataset, place, progress)
        return frame
    if not dataset.files:
        return dataset.read(Path())
    with downloads_folder() as downloads:
        folder = _folder_of_downloads(downloads, dataset)
        _fetch_files(dataset, folder, progress)
        return dataset.read(folder)


def load_item_names(name: str, data: str | Path | None = None) -> Mapping[int, str]:
    """The names of the items of a data set by their numbers: of those that have one, or none.

    data: as in `load_dataset`; None looks at the downloads that are kept. Raises DataError for a broken file of names,
    DataUnavailableError if data is no file or folder.
    """
    dataset = DATASETS[one_of("data set", name, DATASETS)]
    if data is not None:
        return dataset.name_items(Path(data).expanduser())
    with downloads_folder() as downloads:
        folder = _folder_of_downloads(downloads, dataset)
        return dataset.name_items(folder) if folder.exists() else {}


def _folder_of_downloads(downloads: Path, dataset: DataSet) -> Path:
    return downloads / f"efa-{dataset.name}"


def _note_changes(dataset: DataSet, place: Path, progress: ProgressCallback) -> None:
    """Tell which files of the user, of those that a download would get, have another content."""
    folder = folder_of(place)
    for file in dataset.files:
        if file.replaced_by and has_file(folder, file.replaced_by):
            continue
        names = [name for name in (Path(file.member).name, file.member, file.name) if name and has_file(folder, name)]
        single = len(dataset.files) == 1 and place.is_file()
        if not single and not names:
            continue
        found = place if single else find_file(folder, *names)  # as it is read
        try:
            _verify(file, found)
        except DataError:
            note = f"{found} is not the published file, so numbers differ from the paper's"
            progress(Progress("note", note))


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
