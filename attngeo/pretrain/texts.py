"""Where text comes from: the embedded novels, files and folders, the Hub, and the paper's three data sets by name."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import logging
import lzma
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import islice
from pathlib import Path
from typing import IO, Any
from urllib.request import urlopen

import datasets
import huggingface_hub
import pyarrow  # type: ignore[import-untyped]
from datasets.exceptions import DataFilesNotFoundError, DatasetNotFoundError
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # httpx's, whichever

from attngeo.checkpoints.reference import is_path, local_path
from attngeo.errors import AttnGeoError, DataError, DataUnavailableError, ModelNotFoundError, UsageError

# More bytes than these are not held in memory, or downloaded before the first is used: they are read as they come.
LARGEST = 2_000_000_000
# How much text `Text.batches` puts together, in characters.
BATCH = 1_000_000
# Rows from which the columns of a file are known.
SAMPLE = 100
# Source: https://huggingface.co/datasets/legacy-datasets/wikipedia. The files are named, as the repository also has a
# loading script, and for that `datasets` refuses the name of the repository.
WIKIPEDIA = "hf://datasets/legacy-datasets/wikipedia/data/20220301.en/*.parquet"
# Source: https://huggingface.co/datasets/togethercomputer/RedPajama-Data-V2, "To download the files".
REDPAJAMA = "https://data.together.xyz/redpajama-data-v2/v1.0.0"
# Seconds without an answer after which an address is given up, and between attempts.
TIMEOUT, WAITS = 60, (1, 5, 30)

Row = Mapping[str, Any]
Place = Path | Traversable | str  # a string is an address


@dataclass(frozen=True)
class Text:
    """The documents of a data set, which are read when they are asked for.

    documents: reads them anew, from the first on, at every call. streaming: they are too many to be held. tokenizer:
    a reference to the one that was published with this data set, else "train".
    """

    name: str
    documents: Callable[[], Iterator[str]]
    streaming: bool = False
    tokenizer: str = "train"
    joined_characters: bool = False

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
            batch.append(" ".join(whole) if self.joined_characters else whole)
            size += len(batch[-1])
            if size >= BATCH:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch


def open_text(reference: str, *, column: str = "", published: bool = False) -> Text:
    """The documents that `reference` names: of a text file every line is one, of a table every row.

    reference: "austen" (embedded), a file, a folder, a Hub data set as `org/name[:config][@revision][#split]`, or
    "wikipedia", "redpajama" or "jigsaw:train.csv" for what Saponati et al. 2025 trained on. column: where a table keeps
    its text, if not in "text" or the only column of text. published: join the characters with spaces.
    Raises DataUnavailableError, DataError or UsageError.
    """
    name, _, rest = reference.partition(":")
    if named := NAMED.get(name):
        if bool(rest) != ("PATH" in named.form):
            raise UsageError(f"{reference!r} names no data set, expected {named.form}")
        documents, streaming = named.open(rest, column or named.column)
        return Text(reference, documents, streaming, named.tokenizer, published)
    hub = HUB_REFERENCE.fullmatch(reference)
    if hub and not (is_path(hub["name"]) or _reader(reference) or _path(reference).exists()):
        documents, streaming = _open_hub(reference, column)
    else:
        documents, streaming = _open_path(reference, column)
    return Text(reference, documents, streaming, joined_characters=published)


# Data sets with a name

Source = tuple[Callable[[], Iterator[str]], bool]


@dataclass(frozen=True)
class Named:
    """A data set that has a name here: how it is opened, where its text is, the tokeniser it was published with."""

    form: str
    open: Callable[[str, str], Source]
    column: str = "text"
    tokenizer: str = "google-bert/bert-base-uncased"


def _austen(_: str, column: str) -> Source:
    return partial(_read_files, [files("attngeo.pretrain").joinpath("corpora", "austen.txt.xz")], column), False


def _wikipedia(_: str, column: str) -> Source:
    with _reading("wikipedia"):
        found = datasets.load_dataset_builder("parquet", data_files=WIKIPEDIA).as_streaming_dataset(split="train")
    return partial(_read_table, "wikipedia", found, column), True


def _redpajama(_: str, column: str) -> Source:
    """The English documents of snapshot 2023-14, better two thirds of them, as the data set's card lists them."""
    listing = f"{REDPAJAMA}/listings/en-2023-14-head_middle.txt"
    with _reading_file(listing), _opened(listing) as file:
        places = [f"{REDPAJAMA}/documents/{line}.json.gz" for line in file.read().decode("utf-8").split()]
    return partial(_read_files, places, column), True


# By name; `form` is how a user writes it.
NAMED: Mapping[str, Named] = {
    "austen": Named("austen", _austen, tokenizer="train"),
    "wikipedia": Named("wikipedia", _wikipedia),
    "redpajama": Named("redpajama", _redpajama, "raw_content"),
    "jigsaw": Named("jigsaw:PATH/train.csv", lambda path, column: _open_path(path, column), "comment_text"),
}
FORMS = f"a text file, a folder, org/name of the Hub, or one of {', '.join(named.form for named in NAMED.values())}"


# Files


def _path(text: str) -> Path:
    try:
        return local_path(text)
    except ModelNotFoundError:
        raise DataUnavailableError(f"{text[:80]}: no such file or folder; give {FORMS}") from None


def _open_path(reference: str, column: str) -> Source:
    """A file, or all files of a folder, which have to be of one kind."""
    path = _path(reference)
    if not reference or not path.exists():
        raise DataUnavailableError(f"{reference or repr(reference)}: no such file or folder; give {FORMS}")
    places = sorted(filter(_reader, _inside(path))) if path.is_dir() else [path]
    kinds = {_reader(place): _ending(place) for place in places}
    if len(kinds) != 1 or None in kinds:
        got = " ".join(sorted(kinds.values())) or "none"
        raise DataError(f"{reference}: expected files of one kind, ending in one of {' '.join(READERS)}; got {got}")
    sample = next(filter(None, map(_first_rows, places)), None)
    if sample is None:
        raise DataError(f"{reference} is empty, expected text; give another with --data")
    size = sum(place.stat().st_size for place in places)
    return partial(_read_files, places, _text_column(reference, _kinds(sample), column)), size > LARGEST


def _inside(folder: Path) -> Iterator[Path]:
    """The files of a folder and those below it, but for hidden ones and what describes the others."""
    for path in folder.rglob("*"):
        hidden = any(part.startswith((".", "__")) for part in path.relative_to(folder).parts)
        if not hidden and path.name.lower() != "readme.md" and path.is_file():
            yield path


def _first_rows(place: Path) -> list[Row]:
    with _reading_file(place):
        return list(islice(_rows(place, ""), SAMPLE))


def _read_files(places: Sequence[Place], column: str) -> Iterator[str]:
    """The documents in a column of one file after the other; none is opened before its turn."""
    for place in places:
        with _reading_file(place):
            rows = _rows_from(place, column) if isinstance(place, str) else _rows(place, column)
            columns = None
            for row in rows:
                columns = row.keys() if columns is None or column in row else columns
                if isinstance(text := row.get(column), str):
                    yield text
            if columns is not None and column not in columns:
                raise DataError(f"{place} has no column {column!r}; its columns are {_listed(columns)}")


def _rows_from(address: str, column: str) -> Iterator[Row]:
    """The rows of a file that is read over the network; where the connection breaks, it is read on after a while."""
    done = 0
    for wait in (*WAITS, None):
        try:
            for row in islice(_rows(address, column), done, None):
                yield row
                done += 1
            return
        except (OSError, EOFError, HTTPException) as error:
            if wait is None or getattr(error, "code", 500) < 500:
                raise
            time.sleep(wait)


def _rows(place: Place, column: str) -> Iterator[Row]:
    """The rows of one file; of a Parquet file with `column` only, if it is given."""
    reader = _reader(place)
    assert reader is not None
    with _opened(place) as file:
        yield from reader(file, column)


@contextmanager
def _opened(place: Place) -> Iterator[IO[bytes]]:
    """A file, unpacked."""
    if isinstance(place, str) and huggingface_hub.constants.is_offline_mode():
        raise ConnectionError("offline mode is on")
    unpack = COMPRESSED.get(Path(str(place)).suffix.lower())
    with urlopen(place, timeout=TIMEOUT) if isinstance(place, str) else place.open("rb") as packed:
        if unpack is None:
            yield packed
        else:
            with unpack(packed) as file:
                yield file


def _lines(file: IO[bytes], _: str) -> Iterator[Row]:
    with io.TextIOWrapper(file, "utf-8-sig") as text:
        for line in text:
            if "\0" in line:
                raise ValueError("it has NUL characters, which no text has")
            yield {"text": line.rstrip("\n")}


def _json(file: Any, _: str) -> Iterator[Row]:
    """An object or a string on every line, or a list of them."""
    is_list = file.peek(64).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
    with io.TextIOWrapper(file, "utf-8-sig") as text:
        found = json.load(text) if is_list else (_line_of_json(n, line) for n, line in enumerate(text, 1))
        for number, row in enumerate(found, 1):
            if not isinstance(row, dict | str):
                where = "item" if is_list else "line"
                raise ValueError(f"{where} {number} is a {type(row).__name__}, expected an object or a string")
            yield row if isinstance(row, dict) else {"text": row}


def _line_of_json(number: int, line: str) -> Any:
    try:
        return json.loads(line) if line.strip() else {}
    except ValueError as error:
        problem = str(error).rpartition(": line ")[0] or error
        raise ValueError(f"line {number}: {problem}; expected an object on every line") from None


def _csv(file: IO[bytes], _: str, delimiter: str = ",") -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)  # a document may be longer than the usual 128 kB
    with io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
        lines = csv.reader(text, delimiter=delimiter, strict=True)
        try:
            header = next(lines, [])
            for values in filter(None, lines):
                if len(values) != len(header):
                    raise csv.Error(f"{len(values)} fields, expected {len(header)} as in the first line")
                yield dict(zip(header, values, strict=True))
        except csv.Error as error:
            raise ValueError(f"line {lines.line_num}: {error}") from None


def _parquet(file: IO[bytes], column: str) -> Iterator[Row]:
    from pyarrow import parquet

    for batch in parquet.ParquetFile(file).iter_batches(SAMPLE, columns=[column] if column else None):
        yield from batch.to_pylist()


# File name endings → what reads the rows of such a file; a compressed file has one more ending.
READERS: Mapping[str, Callable[[IO[bytes], str], Iterator[Row]]] = {
    ".txt": _lines, ".text": _lines, ".md": _lines, ".json": _json, ".jsonl": _json, ".csv": _csv,
    ".tsv": partial(_csv, delimiter="\t"), ".parquet": _parquet,
}  # fmt: skip
COMPRESSED: Mapping[str, Callable[[Any], Any]] = {
    ".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open,
    ".zst": lambda file: io.BufferedReader(pyarrow.CompressedInputStream(file, "zstd")),
}  # fmt: skip


def _reader(place: Place) -> Callable[[IO[bytes], str], Iterator[Row]] | None:
    return READERS.get(_ending(place))


def _ending(place: Place) -> str:
    path = Path(str(place).lower())
    return path.with_suffix("").suffix if path.suffix in COMPRESSED else path.suffix


# The Hub

HUB_REFERENCE = re.compile(
    r"(?P<name>\w[\w.-]*/\w[\w.-]*)(?::(?P<config>[^@#]+))?(?:@(?P<revision>[^#]+))?(?:#(?P<split>.+))?", re.ASCII
)


def _open_hub(reference: str, column: str) -> Source:
    """A data set of the Hub: downloaded where it is small, else read as it comes."""
    match = HUB_REFERENCE.fullmatch(reference)
    assert match is not None
    name, config, revision, split = match.group("name", "config", "revision", "split")
    with _reading(reference):
        # Without its scheme, a folder of that name would be taken instead.
        builder = datasets.load_dataset_builder(f"hf://datasets/{name}", config, revision=revision)
        _check_cached(reference, builder, name, revision)
        size = builder.info.dataset_size
        streaming = size is None or size > LARGEST
        if streaming:
            found: Any = builder.as_streaming_dataset(split=split or "train")
        else:
            builder.download_and_prepare(verification_mode="no_checks")  # many cards tell sizes of another version
            found = builder.as_dataset(split=split or "train")
        sample = list(islice(found, SAMPLE)) if found.features is None else []
    kinds = _kinds(sample) if found.features is None else _kinds_of_features(found.features)
    return partial(_read_table, reference, found, _text_column(reference, kinds, column)), streaming


def _check_cached(reference: str, builder: Any, name: str, revision: str | None) -> None:
    """Raise DataUnavailableError where `datasets`, without a connection, takes what it has of another revision."""
    if not type(builder).__module__.endswith(".cache"):
        return
    ref = Path(
        huggingface_hub.constants.HF_HUB_CACHE, f"datasets--{name.replace('/', '--')}", "refs", revision or "main"
    )
    commit = ref.read_text("utf-8").strip() if ref.is_file() else revision
    if builder.hash != commit:
        raise DataUnavailableError(
            f"{reference}: only revision {builder.hash} is in the cache, and the Hub is not reached; name that one, or "
            "run once with a connection"
        )


def _read_table(name: str, found: Any, column: str) -> Iterator[str]:
    """The documents in a column of a table of `datasets`."""
    with _reading(name):
        batches = found.select_columns([column]).iter(batch_size=SAMPLE)
    while True:
        with _reading(name):
            batch = next(batches, None)
        if batch is None:
            return
        yield from (text for text in batch[column] if isinstance(text, str))


# Columns: name → "text", "numbers" where every string is a number, or "other"

NUMBER = re.compile(r"\s*[-+]?[\d.,]+(?:[eE][-+]?\d+)?\s*")


def _kinds(sample: Sequence[Row]) -> dict[str, str]:
    kinds: dict[str, str] = {}
    for row in sample:
        for name, value in row.items():
            string = isinstance(value, str) and value.strip()
            kind = "other" if not string else "numbers" if NUMBER.fullmatch(value) else "text"
            kinds[name] = max(kind, kinds.get(name, kind), key=("other", "numbers", "text").index)
    return kinds


def _kinds_of_features(features: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: "text" if getattr(kind, "dtype", "") in ("string", "large_string") else "other"
        for name, kind in features.items()
    }


def _text_column(reference: str, kinds: Mapping[str, str], column: str) -> str:
    texts = [name for name, kind in kinds.items() if kind == "text"]
    wanted = column or ("text" if kinds.get("text", "other") != "other" else texts[0] if len(texts) == 1 else "")
    if wanted and kinds.get(wanted, "other") != "other":
        return wanted
    if wanted:
        problem = f"column {wanted!r} holds no text" if wanted in kinds else f"there is no column {wanted!r}"
    else:
        problem = "which column holds the text is not clear" if texts else "no column holds text"
    raise DataError(f"{reference}: {problem}, its columns are {_listed(kinds)}; choose with --text-column")


def _listed(names: Any) -> str:
    names = list(names)
    return ", ".join(names[:20]) + (f" and {len(names) - 20} others" if len(names) > 20 else "")


# Faults


@contextmanager
def _reading_file(place: Place) -> Iterator[None]:
    """What goes wrong with a file, as one of attngeo's errors."""
    try:
        yield
    except AttnGeoError:
        raise
    except UnicodeDecodeError as error:
        raise DataError(
            f"{place} is no UTF-8 text (byte 0x{error.object[error.start]:02x}); convert it, for example with iconv"
        ) from None
    except Exception as error:
        if isinstance(place, str) and isinstance(error, OSError | EOFError | HTTPException):
            raise DataUnavailableError(
                f"{place} cannot be read ({_first_line(error)}); check the connection"
            ) from error
        if isinstance(error, OSError) and error.errno:
            raise DataUnavailableError(f"{place} cannot be read ({error.strerror})") from error
        raise DataError(f"{place} cannot be read ({_first_line(error)})") from error


@contextmanager
def _reading(reference: str) -> Iterator[None]:
    """What goes wrong with a data set of the Hub, as one of attngeo's errors."""
    try:
        with quiet():
            yield
    except AttnGeoError:
        raise
    except Exception as error:
        raise _explained(reference, error) from error


@contextmanager
def quiet() -> Iterator[None]:
    """`datasets` and huggingface_hub print nothing, and afterwards again as much as before."""
    libraries = (datasets.utils, huggingface_hub.utils)
    loud = [each for each in libraries if not each.are_progress_bars_disabled()]
    levels = [(each.logging, each.logging.get_verbosity()) for each in libraries]
    for each in loud:
        each.disable_progress_bars()
    for log, _ in levels:
        log.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        for each in loud:
            each.enable_progress_bars()
        for log, level in levels:
            log.set_verbosity(level)


def _explained(reference: str, error: Exception) -> AttnGeoError:
    """What went wrong inside `datasets`, in one line."""
    text, endpoint = str(error), huggingface_hub.constants.ENDPOINT
    name = re.split("[:@#]", reference)[0]
    if isinstance(error, DatasetNotFoundError) and "gated" in text:
        return DataUnavailableError(
            f"{reference}: gated; accept its terms at {endpoint}/datasets/{name} and set HF_TOKEN to a token of that "
            "account"
        )
    if isinstance(error, DatasetNotFoundError) and text.startswith("Revision"):
        return DataUnavailableError(f"{reference}: the data set has no such revision")
    if isinstance(error, DatasetNotFoundError):
        return DataUnavailableError(
            f"{reference}: no such data set at {endpoint}, and no such file or folder here; a private one needs "
            "HF_TOKEN"
        )
    if choice := re.search(r"(?:vailable(?: \w+)?|one of):? \[(?P<names>[^\]]*)\]", text):
        asked, mark = ("configuration", ":CONFIG") if "onfig" in text else ("split", "#SPLIT")
        names = re.sub("['\" ]", "", choice["names"]).split(",")
        return DataUnavailableError(
            f"{reference}: expected a {asked} that it has, {name}{mark} with one of {_listed(names)}"
        )
    if "data_files are invalid" in text:
        return DataUnavailableError(
            f"{reference}: none of its files is at {endpoint}; check the connection, or HF_TOKEN"
        )
    if isinstance(error, DataFilesNotFoundError | datasets.data_files.EmptyDatasetError):
        return DataError(f"{reference} holds no files that can be read, expected text, JSON, CSV or Parquet")
    if "scripts are no longer supported" in text:
        return DataError(
            f"{reference} is read by a script of its own, which is not run; name a data set of plain files"
        )
    if isinstance(error, OSError | HTTPError):
        return _unreached(reference, error)
    cause = error.__cause__ or error
    return DataError(f"{reference} cannot be read ({type(cause).__name__}: {_first_line(cause)})")


def _unreached(reference: str, error: OSError | HTTPError) -> AttnGeoError:
    if datasets.config.HF_HUB_OFFLINE:
        return DataUnavailableError(f"{reference}: not in the cache, and offline mode is on; run once without it")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return DataUnavailableError(f"{reference}: access refused ({status}); check HF_TOKEN")
    reason = "" if isinstance(error, ConnectionError) else f" ({_first_line(error)})"  # which says no more
    return DataUnavailableError(
        f"{reference} cannot be had from {huggingface_hub.constants.ENDPOINT}{reason}; check the connection, "
        "HF_ENDPOINT and proxies, or give a file"
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
