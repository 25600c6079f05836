"""The data of the paper's experiments by name: their files, their terms, how they are read and divided; and downloads.

A data set is a tidy table with one row for each observation. Columns: sequence (a user, a basket or a day), position
(from 0 in each sequence), item (a movie, a product or a city), and value (a rating or a temperature), if there is one.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), section 6 and appendix H, and the code that made its tables for what
the text leaves open.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pandas as pd

from attngeo.choices import one_of
from attngeo.errors import DataError, UsageError
from attngeo.papers.wibisono2025.files import folder_of, look_for, read_content
from attngeo.papers.wibisono2025.instacart import SPLIT_FILES, read_instacart, read_item_names, split_instacart
from attngeo.papers.wibisono2025.movielens import (
    MEMBER,
    MOVIELENS_ARCHIVE,
    read_movie_titles,
    read_movielens,
    split_movielens_ratings,
    split_movielens_sequences,
)
from attngeo.papers.wibisono2025.splits import Split
from attngeo.papers.wibisono2025.synthetic import split_synthetic, synthetic_ratings
from attngeo.papers.wibisono2025.temperature import (
    ARCHIVE,
    COORDINATES,
    OCTOBER_FILE,
    list_sites,
    read_temperatures,
    split_temperatures,
)
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.studies.downloads import downloads_folder, fetch

# The largest file has 5 MB.
MOST_DOWNLOAD_BYTES = 20_000_000
GITHUB = "https://raw.githubusercontent.com"
PAPER_TABLES = f"{GITHUB}/yixinw-lab/EFA/c5b78f9fca5d797fc86cc1777286b6664d1b416c"
SITES = f"{GITHUB}/gabriel-wolf/temperature-data-analyzer/5eb591835abb2eac58c78c9af9ce88f0a1e10743/allsites"
CITIES_OF_2019 = f"{GITHUB}/waiwasabi/bees/91587f6902d439a2e3ea60a8b5d7e6b48fad9be8"
GROUPLENS = "https://files.grouplens.org/datasets/movielens"


@dataclass(frozen=True)
class SourceFile:
    """A file to download.

    Attributes:
        name: name of the file.
        folder: address of its folder.
        sha256: SHA-256 of its content, or of `member`.
        member: the file to read from a zip archive.
        replaced_by: the user's file to read instead.
    """

    name: str
    folder: str
    sha256: str
    member: str = ""
    replaced_by: str = ""

    @property
    def address(self) -> str:
        """Where it is downloaded from."""
        return f"{self.folder}/{self.name}"


@dataclass(frozen=True)
class DataSet:
    """A data set.

    Attributes:
        name: name of the data set.
        terms: terms of its use.
        citation: what to cite.
        read: function that reads a folder of its files.
        files: its files.
        name_items: function that reads item names from such a folder; empty if there are none.
    """

    name: str
    terms: str
    citation: str
    read: Callable[[Path], pd.DataFrame]
    files: tuple[SourceFile, ...] = ()
    name_items: Callable[[Path], Mapping[int, str]] = field(default=lambda _: {})


@dataclass(frozen=True)
class Experiment:
    """An experiment: the name of its data set, and how its rows are divided.

    split: called with the rows, a seed and the keyword `published`: as the authors ran it, not as the text says.
    """

    dataset: str
    split: Callable[..., Split]


PAPER = "Wibisono and Wang 2025, arXiv 2501.16790"
DATASETS: Mapping[str, DataSet] = {
    dataset.name: dataset
    for dataset in (
        DataSet(
            "synthetic",
            terms="Simulated, so there are no terms.",
            citation=f"{PAPER}, appendix H.1",
            read=lambda _: synthetic_ratings(),
        ),
        DataSet(
            "movielens",
            terms="MovieLens-100K, from GroupLens at the University of Minnesota, is for research: cite it, and ask "
            "GroupLens before you redistribute it or use it commercially.",
            citation="Harper and Konstan 2015, The MovieLens Datasets: History and Context, "
            "https://doi.org/10.1145/2827872",
            read=read_movielens, name_items=read_movie_titles,
            files=(
                SourceFile(
                    MOVIELENS_ARCHIVE, GROUPLENS, "06416e597f82b7342361e41163890c81036900f418ad91315590814211dca490",
                    MEMBER,
                ),
            ),
        ),
        DataSet(
            "instacart",
            terms="Derived from the Instacart Online Grocery Shopping Dataset 2017 by the authors of the paper; no "
            "licence is stated: use it for non-commercial purposes only, and do not redistribute it.",
            citation=f"The Instacart Online Grocery Shopping Dataset 2017; {PAPER}, section 6.3",
            read=read_instacart, name_items=read_item_names,
            files=tuple(
                SourceFile(SPLIT_FILES[part], f"{PAPER_TABLES}/instacart", sha256)
                for part, sha256 in {
                    "train": "3278d6507c533a27f655c151fae6169b8c66b9eb4a63e30b8f99cbb8795484b9",
                    "test": "2ae63357cc4b1101d261f5c91cc3ad78d928ffe3e01657cfb4407baf908df4bd",
                }.items()
            ),
        ),
        DataSet(
            "temperature",
            terms="The University of Dayton's archive of average daily temperatures, based on NOAA data, is for "
            "research and non-commercial purposes only.",
            citation="University of Dayton, Environmental Protection Agency Average Daily Temperature Archive; "
            f"{PAPER}, section 6.4",
            read=read_temperatures,
            files=(
                SourceFile(
                    COORDINATES, f"{PAPER_TABLES}/temperature/efa",
                    "3e3ac21ebd0c3f78ed1248c58fccbcccd8000ea486b0f90ff26648c965b8b462",
                ),
                SourceFile(
                    ARCHIVE, CITIES_OF_2019, "cc99f89f4a827d00ac77911e75158ae0d613121a1ff63b83ca4cffc21ff7f884",
                    replaced_by=OCTOBER_FILE,
                ),
                *(SourceFile(site.file, SITES, site.sha256, replaced_by=OCTOBER_FILE) for site in list_sites()),
            ),
        ),
    )
}  # fmt: skip
EXPERIMENTS: Mapping[str, Experiment] = {
    "synthetic": Experiment("synthetic", split_synthetic),
    "movielens-sequence": Experiment("movielens", split_movielens_sequences),
    "movielens-ratings": Experiment("movielens", split_movielens_ratings),
    "instacart": Experiment("instacart", split_instacart),
    "temperature": Experiment("temperature", split_temperatures),
}


def find_dataset(name: str) -> DataSet:
    """The data set with this name. Raises UsageError if the name is unknown."""
    return DATASETS[one_of("data set", name, DATASETS)]


def terms_of(name: str) -> str:
    """The terms of use of a data set, and its citation: two sentences. Raises UsageError if the name is unknown."""
    dataset = find_dataset(name)
    return f"{dataset.terms} Cite: {dataset.citation}"


def load_dataset(
    name: str, data: str | Path | None = None, progress: ProgressCallback = ignore_progress
) -> pd.DataFrame:
    """The rows of a data set, as its reader returns them. To divide them, see `EXPERIMENTS`.

    Args:
        name: a key of DATASETS.
        data: a file or a folder with the files of the data set; None downloads them once, and keeps them in the cache.
        progress: gets the terms as a note before a download, each file, and a note about your own files that differ
            from the published ones.

    Raises:
        UsageError: the name is unknown, or `data` is given for a simulated data set.
        DataUnavailableError: a file is missing, or cannot be downloaded.
        DataError: a file does not have the expected content.
    """
    dataset = find_dataset(name)
    if data is not None:
        if not dataset.files:
            raise UsageError(f"the data set {name} is simulated, not read from a file; leave out $data", "data")
        path = Path(data).expanduser()
        frame = dataset.read(path)
        for changed in _list_changed(dataset, path):
            progress(Progress("note", f"{changed} is not the published file, so numbers differ from the paper's"))
        return frame
    with downloads_folder() as downloads:
        folder = downloads / f"efa-{name}"
        _fetch_files(dataset, folder, progress)
        return dataset.read(folder)


def load_item_names(name: str, data: str | Path | None = None) -> Mapping[int, str]:
    """Item number → name, for items with a name; empty if the data set has no names.

    data: as in `load_dataset`; None looks only at kept downloads. Raises DataError for a broken file of names,
    DataUnavailableError if `data` is neither a file nor a folder.
    """
    dataset = find_dataset(name)
    if data is not None:
        return dataset.name_items(Path(data).expanduser())
    with downloads_folder() as downloads:
        folder = downloads / f"efa-{name}"
        return dataset.name_items(folder) if folder.exists() else {}


def _list_changed(dataset: DataSet, data: Path) -> list[Path]:
    """The files of the user, of those that a download would get, that have another content."""
    folder = folder_of(data)
    changed = []
    for file in dataset.files:
        if file.replaced_by and look_for(folder, file.replaced_by):
            continue
        if len(dataset.files) == 1 and data.is_file():
            path: Path | None = data
        else:
            names = (Path(file.member).name, file.member, file.name) if file.member else (file.name,)
            path = look_for(folder, *names)
        if path is None:
            continue
        try:
            _verify(file, path)
        except DataError:
            changed.append(path)
    return changed


def _fetch_files(dataset: DataSet, folder: Path, progress: ProgressCallback) -> None:
    """Download what is not kept. The terms are announced before the first one."""
    terms = [Progress("note", f"{dataset.name}: {terms_of(dataset.name)}")]

    def report(step: Progress) -> None:
        while terms:
            progress(terms.pop())
        progress(step)

    count = len(dataset.files)
    noun = "file" if count == 1 else f"folder with all {count} files of the data set"
    for file in dataset.files:
        fetch(
            file.address,
            folder / file.name,
            partial(_verify, file),
            what=dataset.name,
            advice=f"download {file.address} on another machine, and give the {noun} as data (--data)",
            most_bytes=MOST_DOWNLOAD_BYTES,
            progress=report,
        )


def _verify(file: SourceFile, path: Path) -> None:
    """Raise DataError if the content of a download is not what it was when the list was made."""
    content = read_content(path, MOST_DOWNLOAD_BYTES, member=file.member)
    digest = hashlib.sha256(content).hexdigest()
    if digest != file.sha256:
        what = f"{file.member} of {file.address}" if file.member else file.address
        raise DataError(
            f"{what} has changed: expected SHA-256 {file.sha256}, got {digest} of {len(content):,} bytes; give the "
            "original as $data",
            "data",
        )
