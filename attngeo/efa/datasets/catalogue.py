"""The data sets by name: where their files are, under which terms, how they are read, and the paper's experiments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from attngeo.choices import one_of
from attngeo.efa.datasets.dayton import ARCHIVE, list_sites
from attngeo.efa.datasets.files import folder_of
from attngeo.efa.datasets.instacart import PARTS, read_instacart, read_item_names, split_instacart
from attngeo.efa.datasets.known_model import draw_known_sequences, split_known
from attngeo.efa.datasets.movielens import (
    MEMBER,
    MOVIELENS_ARCHIVE,
    read_movie_titles,
    read_movielens,
    split_movielens_ratings,
    split_movielens_sequences,
)
from attngeo.efa.datasets.splits import Split
from attngeo.efa.datasets.synthetic import split_synthetic, synthetic_ratings
from attngeo.efa.datasets.temperature import COORDINATES, OCTOBER_FILE, read_temperatures, split_temperatures

if TYPE_CHECKING:
    import pandas as pd

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
    {each.name: each for each in (_SYNTHETIC, _MOVIELENS, _INSTACART, _TEMPERATURE, _KNOWN)}
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
