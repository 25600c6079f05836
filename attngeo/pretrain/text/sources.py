"""What a reference to a text names: the embedded novels, a file or folder, a Hub data set, or a data set by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.resources import files

import datasets

from attngeo.checkpoints.reference import is_path
from attngeo.errors import UsageError
from attngeo.pretrain.hub_data import HUB_REFERENCE, explain_errors
from attngeo.pretrain.text.addresses import read_addresses, read_lines
from attngeo.pretrain.text.documents import TextSource
from attngeo.pretrain.text.files import open_path, read_files, resolve_path
from attngeo.pretrain.text.formats import find_reader
from attngeo.pretrain.text.hub import open_hub, read_table

# Source: https://huggingface.co/datasets/legacy-datasets/wikipedia. The files are named one by one, because `datasets`
# refuses a repository that also has a loading script.
WIKIPEDIA = "hf://datasets/legacy-datasets/wikipedia/data/20220301.en/*.parquet"
# Source: https://huggingface.co/datasets/togethercomputer/RedPajama-Data-V2, "To download the files".
REDPAJAMA = "https://data.together.xyz/redpajama-data-v2/v1.0.0"


def open_text(reference: str, *, column: str = "", space_characters: bool = False) -> TextSource:
    """Open the text that `reference` names. A document is a line of a text file, or a row of a table.

    reference: "austen" (embedded), a file, a folder, a Hub data set as `org/name[:config][@revision][#split]`, or
    "wikipedia", "redpajama" or "jigsaw:PATH/train.csv", the data sets of Saponati et al. 2025. column: the column that
    holds the text of a table; by default "text", or the only column of text. space_characters: join the characters of
    each document with spaces, as the published code did.
    Raises DataUnavailableError, DataError or UsageError.
    """
    name, _, rest = reference.partition(":")
    hub = HUB_REFERENCE.fullmatch(reference)
    if named := NAMED.get(name):
        source = _open_named(reference, named, rest, column)
    elif hub and not (is_path(hub["name"]) or find_reader(reference) or resolve_path(reference).exists()):
        source = open_hub(reference, column)
    else:
        source = open_path(reference, column)
    return dataclasses.replace(source, name=reference, space_characters=space_characters)


@dataclass(frozen=True)
class NamedSource:
    """A data set that has a name here.

    usage: how a user writes the reference. open: opens the data set, from what follows the colon and the column.
    column: the column that holds its text. tokenizer: the tokeniser that it was published with.
    """

    usage: str
    open: Callable[[str, str], TextSource]
    column: str = "text"
    tokenizer: str = "google-bert/bert-base-uncased"


def _open_named(reference: str, named: NamedSource, path: str, column: str) -> TextSource:
    if bool(path) != ("PATH" in named.usage):
        raise UsageError(f"{reference!r} names no data set, expected {named.usage}")
    return dataclasses.replace(named.open(path, column or named.column), tokenizer=named.tokenizer)


def _open_austen(_path: str, column: str) -> TextSource:
    corpus = files("attngeo.pretrain.text").joinpath("corpora", "austen.txt.xz")
    return TextSource("austen", partial(read_files, [corpus], column))


def _open_wikipedia(_path: str, column: str) -> TextSource:
    with explain_errors("wikipedia"):
        table = datasets.load_dataset_builder("parquet", data_files=WIKIPEDIA).as_streaming_dataset(split="train")
    return TextSource("wikipedia", partial(read_table, "wikipedia", table, column), streaming=True)


def _open_redpajama(_path: str, column: str) -> TextSource:
    """The English documents of snapshot 2023-14, without the third of lowest quality, as the data set's card says."""
    names = read_lines(f"{REDPAJAMA}/listings/en-2023-14-head_middle.txt")
    addresses = [f"{REDPAJAMA}/documents/{name}.json.gz" for name in names]
    return TextSource("redpajama", partial(read_addresses, addresses, column), streaming=True)


NAMED: Mapping[str, NamedSource] = {
    "austen": NamedSource("austen", _open_austen, tokenizer="train"),
    "wikipedia": NamedSource("wikipedia", _open_wikipedia),
    "redpajama": NamedSource("redpajama", _open_redpajama, "raw_content"),
    "jigsaw": NamedSource("jigsaw:PATH/train.csv", open_path, "comment_text"),
}
