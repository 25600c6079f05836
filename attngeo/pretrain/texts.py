"""Where text comes from: the embedded novels, files and folders, the Hub, and the paper's three data sets by name."""

from __future__ import annotations

import lzma
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import datasets
from datasets.exceptions import DatasetNotFoundError
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

from attngeo.checkpoints.reference import HUB_ID, is_path, local_path
from attngeo.errors import AttnGeoError, DataError, DataUnavailableError, ModelNotFoundError, UsageError

# File name endings → the reader of `datasets` that takes them; a compressed file may have one more ending.
READERS = {".txt": "text", ".text": "text", ".md": "text", ".json": "json", ".jsonl": "json", ".csv": "csv",
           ".tsv": "csv", ".parquet": "parquet"}  # fmt: skip
COMPRESSED = (".gz", ".xz", ".bz2", ".zst")
# A Hub data set larger than this, or of unknown size, is read as it comes instead of being downloaded first.
LARGEST_DOWNLOAD = 2_000_000_000
REDPAJAMA = "https://data.together.xyz/redpajama-data-v2/v1.0.0"


@dataclass(frozen=True)
class Text:
    """Documents of a data set, and the name of the column that holds them; `streaming`: they are read as they come."""

    name: str
    documents: Any
    column: str
    streaming: bool
    joined_characters: bool = False

    def batches(self, size: int = 1000) -> Iterator[list[str]]:
        """The documents in their order, `size` at a time; empty ones are left out."""
        for batch in self.documents.select_columns([self.column]).iter(batch_size=size):
            texts = [text for text in batch[self.column] if isinstance(text, str) and text.strip()]
            # The published code called " ".join on a text, which puts a space between any two characters.
            yield [" ".join(text) for text in texts] if self.joined_characters else texts


def open_text(reference: str, *, column: str = "", published: bool = False) -> Text:
    """The documents that `reference` names: of a text file every line is one, of a table every row.

    reference: "austen" (embedded), a file, a folder, a Hub data set as `org/name[:config][@revision][#split]`, or
    "wikipedia", "redpajama" or "jigsaw:train.csv" for what Saponati et al. 2025 trained on. column: where a table keeps
    its text, if not in "text" or the only column of strings. published: join the characters with spaces.
    Raises DataUnavailableError, DataError or UsageError.
    """
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    name, _, rest = reference.partition(":")
    try:
        if name == "jigsaw":
            found, column = _jigsaw(rest), column or "comment_text"
        elif reference in NAMED:
            found, column = NAMED[reference].open(), column or NAMED[reference].column
        elif is_path(reference) or local_path(reference).exists():
            found = _open_path(local_path(reference), reference)
        else:
            found = _open_hub(reference)
    except AttnGeoError:
        raise
    except Exception as error:
        raise _explained(reference, error) from error
    return Text(
        reference, found, _text_column(reference, found, column), isinstance(found, datasets.IterableDataset), published
    )


def _embedded() -> datasets.Dataset:
    packed = files("attngeo.pretrain").joinpath("corpora", "austen.txt.xz").read_bytes()
    return datasets.Dataset.from_dict({"text": lzma.decompress(packed).decode("utf-8").splitlines()})


def _wikipedia() -> datasets.IterableDataset:
    return datasets.load_dataset("legacy-datasets/wikipedia", "20220301.en", split="train", streaming=True)


def _redpajama() -> datasets.IterableDataset:
    """The English documents of snapshot 2023-14, from the addresses that the data set's card gives."""
    from fsspec import open as open_url

    with open_url(f"{REDPAJAMA}/listings/en-2023-14-head_middle.txt", "rt") as listing:
        urls = [f"{REDPAJAMA}/documents/{line.strip()}.json.gz" for line in listing if line.strip()]
    return datasets.load_dataset("json", data_files=urls, split="train", streaming=True)


@dataclass(frozen=True)
class Named:
    """A data set that has a name here: how it is opened, where its text is, the tokeniser it was published with."""

    open: Callable[[], Any]
    column: str = "text"
    tokenizer: str = "google-bert/bert-base-uncased"


NAMED: Mapping[str, Named] = {
    "austen": Named(_embedded, tokenizer="train"),
    "wikipedia": Named(_wikipedia),
    "redpajama": Named(_redpajama, "raw_content"),
}


def _jigsaw(path: str) -> datasets.Dataset:
    if not path:
        raise UsageError("jigsaw needs the file that Kaggle gives: --data jigsaw:PATH/train.csv")
    return _open_path(local_path(path), path)


def _open_path(path: Path, reference: str) -> datasets.Dataset:
    if not path.exists():
        raise DataUnavailableError(
            f"{reference}: no such file or folder; give a text file, a folder, a Hub data set or one of {', '.join(NAMED)}"
        )
    paths = sorted(each for each in path.rglob("*") if each.is_file() and _reader(each)) if path.is_dir() else [path]
    readers = {_reader(each) for each in paths}
    if len(readers) != 1 or None in readers:
        got = f"files of several kinds ({', '.join(sorted(map(str, readers)))})" if len(readers) > 1 else "none"
        raise DataError(f"{reference}: {got}, expected files of one kind ending in one of: {' '.join(READERS)}")
    options = {"delimiter": "\t"} if paths[0].name.removesuffix(".gz").endswith(".tsv") else {}
    return datasets.load_dataset(readers.pop(), data_files=[str(each) for each in paths], split="train", **options)


def _reader(path: Path) -> str | None:
    suffix = path.with_suffix("").suffix if path.suffix in COMPRESSED else path.suffix
    return READERS.get(suffix.lower())


def _open_hub(reference: str) -> Any:
    """A data set of the Hub: downloaded where it is small, else read as it comes."""
    rest, _, split = reference.partition("#")
    rest, _, revision = rest.partition("@")
    name, _, config = rest.partition(":")
    if not HUB_ID.fullmatch(name):
        raise UsageError(f"{reference!r} names no data set, expected a file, a folder or org/name[:config][#split]")
    where = {"path": name, "name": config or None, "revision": revision or None}
    size = datasets.load_dataset_builder(**where).info.dataset_size
    streaming = size is None or size > LARGEST_DOWNLOAD
    return datasets.load_dataset(**where, split=split or "train", streaming=streaming)


def _text_column(reference: str, found: Any, column: str) -> str:
    columns: Mapping[str, Any] = found.features or dict.fromkeys(next(iter(found), {}))
    strings = [name for name, kind in columns.items() if getattr(kind, "dtype", "string") in ("string", "large_string")]
    wanted = column or ("text" if "text" in strings else strings[0] if len(strings) == 1 else "")
    if wanted not in columns:
        problem = f"no column {wanted!r}" if wanted else "which column holds the text is not clear"
        raise DataError(f"{reference}: {problem}; its columns are {', '.join(columns)}; choose with --text-column")
    return wanted


def _explained(reference: str, error: Exception) -> AttnGeoError:
    """What went wrong inside `datasets`, in one line."""
    if isinstance(error, DatasetNotFoundError | HFValidationError | ModelNotFoundError):
        return DataUnavailableError(f"{reference}: there is no such data set on the Hub, or it is private or gated")
    if isinstance(error, FileNotFoundError):
        return DataUnavailableError(f"{reference}: there are no data files that can be read ({_first_line(error)})")
    if isinstance(error, OfflineModeIsEnabled | ConnectionError | TimeoutError | HfHubHTTPError | OSError):
        return DataUnavailableError(f"{reference} cannot be reached ({_first_line(error)}); check the connection")
    cause = error.__cause__ or error
    return DataError(f"{reference} cannot be read ({type(cause).__name__}: {_first_line(cause)})")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
