"""The data of the paper's experiments by name: their files, their terms, how they are read and divided; and downloads.

A data set is a tidy table with one row for each observation. Columns: sequence (a user, a basket or a day), position
(from 0 in each sequence), item (a movie, a product or a city), and value (a rating or a temperature), if there is one.
Importing this module loads no other library.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), section 6 and appendix H, and the code that made its tables for what
the text leaves open.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from attngeo.choices import one_of
from attngeo.errors import DataError, UsageError
from attngeo.papers.wibisono2025.files import Split, find_file, folder_of, has_file, read_content
from attngeo.papers.wibisono2025.instacart import PARTS, read_instacart, read_item_names, split_instacart
from attngeo.papers.wibisono2025.movielens import (
    MEMBER,
    MOVIELENS_ARCHIVE,
    read_movie_titles,
    read_movielens,
    split_movielens_ratings,
    split_movielens_sequences,
)
from attngeo.papers.wibisono2025.simulated import draw_known_sequences, split_known, split_synthetic, synthetic_ratings
from attngeo.papers.wibisono2025.temperature import (
    ARCHIVE,
    COORDINATES,
    OCTOBER_FILE,
    list_sites,
    read_temperatures,
    split_temperatures,
)
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.studies.results import downloads_folder, fetch

if TYPE_CHECKING:
    import pandas as pd

# The largest file has 5 MB.
MOST_BYTES = 20_000_000
GITHUB = "https://raw.githubusercontent.com"
PAPER_TABLES = f"{GITHUB}/yixinw-lab/EFA/c5b78f9fca5d797fc86cc1777286b6664d1b416c"
SITES = f"{GITHUB}/gabriel-wolf/temperature-data-analyzer/5eb591835abb2eac58c78c9af9ce88f0a1e10743/allsites"
CITIES_OF_2019 = f"{GITHUB}/waiwasabi/bees/91587f6902d439a2e3ea60a8b5d7e6b48fad9be8"
GROUPLENS = "https://files.grouplens.org/datasets/movielens"


@dataclass(frozen=True)
class SourceFile:
    """A file that is downloaded: its address, and the size and the SHA-256 of its content.

    member: if the file is a zip archive, the file in it that is read, of which these are. replaced_by: a file of the
    user that is read in place of it.
    """

    name: str
    address: str
    nbytes: int
    sha256: str
    member: str = ""
    replaced_by: str = ""


@dataclass(frozen=True)
class DataSet:
    """A data set. terms: on which it may be used. citation: what to cite. read: reads a folder of its files.

    name_items: reads the names of its items from such a folder; none if they have none there.
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

    split: called with the rows, a seed and the keyword `published`: as it was run, not as the text says.
    """

    dataset: str
    split: Callable[..., Split]


def _sources_of_instacart() -> tuple[SourceFile, ...]:
    content = {
        "train": (3_486_363, "3278d6507c533a27f655c151fae6169b8c66b9eb4a63e30b8f99cbb8795484b9"),
        "test": (202_757, "2ae63357cc4b1101d261f5c91cc3ad78d928ffe3e01657cfb4407baf908df4bd"),
    }
    return tuple(SourceFile(name, f"{PAPER_TABLES}/instacart/{name}", *content[part]) for part, name in PARTS.items())


def _sources_of_temperature() -> tuple[SourceFile, ...]:
    return (
        SourceFile(
            COORDINATES, f"{PAPER_TABLES}/temperature/efa/{COORDINATES}", 1_992,
            "3e3ac21ebd0c3f78ed1248c58fccbcccd8000ea486b0f90ff26648c965b8b462",
        ),
        SourceFile(
            ARCHIVE, f"{CITIES_OF_2019}/{ARCHIVE}", 2_859_921,
            "cc99f89f4a827d00ac77911e75158ae0d613121a1ff63b83ca4cffc21ff7f884", replaced_by=OCTOBER_FILE,
        ),
        *(SourceFile(site.file, f"{SITES}/{site.file}", site.nbytes, site.sha256, replaced_by=OCTOBER_FILE)
          for site in list_sites()),
    )  # fmt: skip


MOVIELENS_FILE = SourceFile(
    MOVIELENS_ARCHIVE, f"{GROUPLENS}/{MOVIELENS_ARCHIVE}", 1_979_173,
    "06416e597f82b7342361e41163890c81036900f418ad91315590814211dca490", MEMBER,
)  # fmt: skip
PAPER = "Wibisono and Wang 2025, arXiv 2501.16790"
_SYNTHETIC = DataSet(
    "synthetic",
    terms="Drawn by a program; there are no terms.",
    citation=f"{PAPER}, appendix H.1",
    read=lambda _: synthetic_ratings(),
)
_MOVIELENS = DataSet(
    "movielens",
    terms="MovieLens-100K of GroupLens, University of Minnesota, is for research: cite it, and ask GroupLens before "
    "you redistribute it or use it commercially.",
    citation="Harper and Konstan 2015, The MovieLens Datasets: History and Context, https://doi.org/10.1145/2827872",
    read=read_movielens,
    files=(MOVIELENS_FILE,),
    name_items=read_movie_titles,
)
_INSTACART = DataSet(
    "instacart",
    terms="Derived from the Instacart Online Grocery Shopping Dataset 2017 by the authors of the paper; no licence is "
    "stated: use it for non-commercial purposes only, and do not redistribute it.",
    citation=f"The Instacart Online Grocery Shopping Dataset 2017; {PAPER}, section 6.3",
    read=read_instacart,
    files=_sources_of_instacart(),
    name_items=lambda place: read_item_names(folder_of(place)),
)
_TEMPERATURE = DataSet(
    "temperature",
    terms="The archive of average daily temperatures of the University of Dayton, from data of NOAA, is for research "
    "and non-commercial purposes only.",
    citation="University of Dayton, Environmental Protection Agency Average Daily Temperature Archive; "
    f"{PAPER}, section 6.4",
    read=read_temperatures,
    files=_sources_of_temperature(),
)
_KNOWN = DataSet(
    "known-model",
    terms="Drawn by a program; there are no terms.",
    citation=f"{PAPER}, section 2.1, for the model",
    read=lambda _: draw_known_sequences(),
)
DATASETS: Mapping[str, DataSet] = MappingProxyType(
    {dataset.name: dataset for dataset in (_SYNTHETIC, _MOVIELENS, _INSTACART, _TEMPERATURE, _KNOWN)}
)
EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType(
    {
        "synthetic": Experiment("synthetic", split_synthetic),
        "movielens-sequence": Experiment("movielens", split_movielens_sequences),
        "movielens-ratings": Experiment("movielens", split_movielens_ratings),
        "instacart": Experiment("instacart", split_instacart),
        "temperature": Experiment("temperature", split_temperatures),
        "recovery": Experiment("known-model", split_known),
    }
)


def terms_of(name: str) -> str:
    """On which terms a data set may be used, and what to cite: two sentences. Raises UsageError if it is unknown."""
    dataset = DATASETS[one_of("data set", name, DATASETS)]
    return f"{dataset.terms} Cite: {dataset.citation}"


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
            raise UsageError(f"the data set {name} is drawn, not read; leave out $data", "data")
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
            f"{digest}; give the original as $data",
            "data",
        )
