"""Where text comes from: the embedded novels, files and folders, the Hub, and the paper's three data sets by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.resources import files

import datasets

from attngeo.checkpoints.reference import is_path
from attngeo.errors import UsageError
from attngeo.pretrain.hub_data import HUB_REFERENCE, explain_errors
from attngeo.pretrain.text.files import Source, open_path, opened, path_of, read_files, reader_of, reading_file
from attngeo.pretrain.text.hub import open_hub, read_table

# How much text `TextSource.batches` puts together, in characters.
BATCH = 1_000_000
# Source: https://huggingface.co/datasets/legacy-datasets/wikipedia. The files are named, as the repository also has a
# loading script, and for that `datasets` refuses the name of the repository.
WIKIPEDIA = "hf://datasets/legacy-datasets/wikipedia/data/20220301.en/*.parquet"
# Source: https://huggingface.co/datasets/togethercomputer/RedPajama-Data-V2, "To download the files".
REDPAJAMA = "https://data.together.xyz/redpajama-data-v2/v1.0.0"


@dataclass(frozen=True)
class TextSource:
    """The documents of a data set, which are read when they are asked for.

    documents: reads them anew, from the first on, at every call. streaming: they are too many to be held. tokenizer:
    a reference to the one that was published with this data set, else "train".
    """

    name: str
    documents: Callable[[], Iterator[str]]
    streaming: bool = False
    tokenizer: str = "train"
    space_characters: bool = False

    def batches(self) -> Iterator[list[str]]:
        """The documents in their order, about a million characters at a time; empty ones are left out.

        Raises DataUnavailableError or DataError where they cannot be read on.
        """
        batch, size = [], 0
        for document in self.documents():
            if not document.strip():
                continue
            whole = document.encode("utf-8", "replace").decode("utf-8")  # JSON may hold halves of surrogate pairs
            # The published code called " ".join on a text, which puts a space between any two characters.
            batch.append(" ".join(whole) if self.space_characters else whole)
            size += len(batch[-1])
            if size >= BATCH:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch


def open_text(reference: str, *, column: str = "", space_characters: bool = False) -> TextSource:
    """The documents that `reference` names: of a text file every line is one, of a table every row.

    reference: "austen" (embedded), a file, a folder, a Hub data set as `org/name[:config][@revision][#split]`, or
    "wikipedia", "redpajama" or "jigsaw:train.csv" for what Saponati et al. 2025 trained on. column: where a table keeps
    its text, if not in "text" or the only column of text. space_characters: join the characters with spaces.
    Raises DataUnavailableError, DataError or UsageError.
    """
    name, _, rest = reference.partition(":")
    if named := NAMED.get(name):
        if bool(rest) != ("PATH" in named.form):
            raise UsageError(f"{reference!r} names no data set, expected {named.form}")
        documents, streaming = named.open(rest, column or named.column)
        return TextSource(reference, documents, streaming, named.tokenizer, space_characters)
    hub = HUB_REFERENCE.fullmatch(reference)
    if hub and not (is_path(hub["name"]) or reader_of(reference) or path_of(reference).exists()):
        documents, streaming = open_hub(reference, column)
    else:
        documents, streaming = open_path(reference, column)
    return TextSource(reference, documents, streaming, space_characters=space_characters)


@dataclass(frozen=True)
class NamedSource:
    """A data set that has a name here: how it is opened, where its text is, the tokeniser it was published with."""

    form: str
    open: Callable[[str, str], Source]
    column: str = "text"
    tokenizer: str = "google-bert/bert-base-uncased"


def _austen(_: str, column: str) -> Source:
    return partial(read_files, [files("attngeo.pretrain.text").joinpath("corpora", "austen.txt.xz")], column), False


def _wikipedia(_: str, column: str) -> Source:
    with explain_errors("wikipedia"):
        found = datasets.load_dataset_builder("parquet", data_files=WIKIPEDIA).as_streaming_dataset(split="train")
    return partial(read_table, "wikipedia", found, column), True


def _redpajama(_: str, column: str) -> Source:
    """The English documents of snapshot 2023-14, better two thirds of them, as the data set's card lists them."""
    listing = f"{REDPAJAMA}/listings/en-2023-14-head_middle.txt"
    with reading_file(listing), opened(listing) as file:
        places = [f"{REDPAJAMA}/documents/{line}.json.gz" for line in file.read().decode("utf-8").split()]
    return partial(read_files, places, column), True


# By name; `form` is how a user writes it.
NAMED: Mapping[str, NamedSource] = {
    "austen": NamedSource("austen", _austen, tokenizer="train"),
    "wikipedia": NamedSource("wikipedia", _wikipedia),
    "redpajama": NamedSource("redpajama", _redpajama, "raw_content"),
    "jigsaw": NamedSource("jigsaw:PATH/train.csv", lambda path, column: open_path(path, column), "comment_text"),
}
