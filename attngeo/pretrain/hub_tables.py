"""Tables of the Hugging Face Hub, by the `datasets` library, and what can go wrong with it in one line."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
from datasets.exceptions import DataFilesNotFoundError, DatasetNotFoundError
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # httpx's, whichever

from attngeo.errors import AttnGeoError, DataError, DataUnavailableError, first_line
from attngeo.pretrain.columns import kinds_of_features, kinds_of_rows, listed, text_column
from attngeo.pretrain.text_files import LARGEST, SAMPLE, Source

HUB_REFERENCE = re.compile(
    r"(?P<name>\w[\w.-]*/\w[\w.-]*)(?::(?P<config>[^@#]+))?(?:@(?P<revision>[^#]+))?(?:#(?P<split>.+))?", re.ASCII
)


def open_hub(reference: str, column: str) -> Source:
    """A data set of the Hub: downloaded where it is small, else read as it comes."""
    match = HUB_REFERENCE.fullmatch(reference)
    assert match is not None
    name, config, revision, split = match.group("name", "config", "revision", "split")
    with reading(reference):
        # Without its scheme, a folder of that name would be taken instead.
        builder = datasets.load_dataset_builder(f"hf://datasets/{name}", config, revision=revision)
        check_cached(reference, builder, name, revision)
        size = builder.info.dataset_size
        streaming = size is None or size > LARGEST
        if streaming:
            found: Any = builder.as_streaming_dataset(split=split or "train")
        else:
            builder.download_and_prepare(verification_mode="no_checks")  # many cards tell sizes of another version
            found = builder.as_dataset(split=split or "train")
        sample = list(islice(found, SAMPLE)) if found.features is None else []
    kinds = kinds_of_rows(sample) if found.features is None else kinds_of_features(found.features)
    return partial(read_table, reference, found, text_column(reference, kinds, column)), streaming


def check_cached(reference: str, builder: Any, name: str, revision: str | None) -> None:
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


def read_table(name: str, found: Any, column: str) -> Iterator[str]:
    """The documents in a column of a table of `datasets`."""
    with reading(name):
        batches = found.select_columns([column]).iter(batch_size=SAMPLE)
    while True:
        with reading(name):
            batch = next(batches, None)
        if batch is None:
            return
        yield from (text for text in batch[column] if isinstance(text, str))


@contextmanager
def reading(reference: str) -> Iterator[None]:
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
            f"{reference}: expected a {asked} that it has, {name}{mark} with one of {listed(names)}"
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
    return DataError(f"{reference} cannot be read ({type(cause).__name__}: {first_line(cause)})")


def _unreached(reference: str, error: OSError | HTTPError) -> AttnGeoError:
    if datasets.config.HF_HUB_OFFLINE:
        return DataUnavailableError(f"{reference}: not in the cache, and offline mode is on; run once without it")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return DataUnavailableError(f"{reference}: access refused ({status}); check HF_TOKEN")
    reason = "" if isinstance(error, ConnectionError) else f" ({first_line(error)})"  # which says no more
    return DataUnavailableError(
        f"{reference} cannot be had from {huggingface_hub.constants.ENDPOINT}{reason}; check the connection, "
        "HF_ENDPOINT and proxies, or give a file"
    )
