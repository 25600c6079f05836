"""Data sets of the Hugging Face Hub, read by the library `datasets`, with its errors explained in one line."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
from datasets.exceptions import DataFilesNotFoundError, DatasetNotFoundError
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # that of its HTTP client

from attngeo.bounds import read_small_text
from attngeo.checkpoints.remote import require_answers
from attngeo.errors import AttnGeoError, DataError, DataUnavailableError, first_line

HUB_REFERENCE = re.compile(
    r"(?P<name>\w[\w.-]*/\w[\w.-]*)(?::(?P<config>[^@#]+))?(?:@(?P<revision>[^#]+))?(?:#(?P<split>.+))?", re.ASCII
)
# How `datasets` lists the configurations or splits that exist, in several messages.
CHOICES = re.compile(r"(?:vailable(?: \w+)?|one of):? \[(?P<names>[^\]]*)\]")
MOST_NAMES = 20


def list_names(names: Iterable[str]) -> str:
    """Names in one line: the first twenty, and the number of the others."""
    listed = list(names)
    others = len(listed) - MOST_NAMES
    line = ", ".join(listed[:MOST_NAMES])
    return f"{line} and {others} others" if others > 0 else line


def check_cached_revision(reference: str, builder: Any, name: str, revision: str | None) -> None:
    """Raise DataUnavailableError if a builder of `datasets` took another revision than the one that was asked for.

    Without a connection, `datasets` takes whatever revision is in its cache. reference: for the message. name: the
    `org/name` of the data set. revision: a commit, branch or tag; None for the main branch.
    """
    from_cache = type(builder).__module__.endswith(".cache")
    if not from_cache:
        return
    cache = Path(huggingface_hub.constants.HF_HUB_CACHE)
    ref = cache / f"datasets--{name.replace('/', '--')}" / "refs" / (revision or "main")
    commit = read_small_text(ref).strip() if ref.is_file() else revision
    if builder.hash != commit:
        raise DataUnavailableError(
            f"{reference}: only revision {builder.hash} is in the cache, and the Hub cannot be reached; give that "
            "revision, or run once with a connection"
        )


@contextmanager
def explain_errors(reference: str) -> Iterator[None]:
    """Turn an error of `datasets` into a DataUnavailableError or DataError that names the data set in one line.

    Inside the block, `datasets` and huggingface_hub print nothing, and wait for no server for long.
    """
    try:
        with silence_libraries(), require_answers(reference):
            yield
    except AttnGeoError:
        raise
    except Exception as error:
        raise _explain(reference, error) from error


@contextmanager
def silence_libraries() -> Iterator[None]:
    """Let `datasets` and huggingface_hub print nothing inside the block; restore their settings after it."""
    libraries = (datasets.utils, huggingface_hub.utils)
    with_bars = [library for library in libraries if not library.are_progress_bars_disabled()]
    levels = [(library.logging, library.logging.get_verbosity()) for library in libraries]
    for library in with_bars:
        library.disable_progress_bars()
    for log, _ in levels:
        log.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        for library in with_bars:
            library.enable_progress_bars()
        for log, level in levels:
            log.set_verbosity(level)


def _explain(reference: str, error: Exception) -> AttnGeoError:
    """The error to raise for an error of `datasets`."""
    text, endpoint = str(error), huggingface_hub.constants.ENDPOINT
    name = re.split("[:@#]", reference)[0]
    if isinstance(error, DatasetNotFoundError):
        return _explain_missing(reference, name, text)
    if choices := CHOICES.search(text):
        asked, mark = ("configuration", ":CONFIG") if "onfig" in text else ("split", "#SPLIT")
        names = re.sub("['\" ]", "", choices["names"]).split(",")
        return DataUnavailableError(
            f"{reference}: expected {name}{mark} with a {asked} that exists: {list_names(names)}"
        )
    if "data_files are invalid" in text:
        return DataUnavailableError(
            f"{reference}: none of its files was found at {endpoint}; check the connection and HF_TOKEN"
        )
    if isinstance(error, DataFilesNotFoundError | datasets.data_files.EmptyDatasetError):
        return DataError(f"{reference} has no files of a known format, expected text, JSON, CSV or Parquet")
    if "scripts are no longer supported" in text:
        return DataError(
            f"{reference} requires its own loading script, which is not run; give a data set of text or Parquet files"
        )
    if isinstance(error, OSError | HTTPError):
        return _explain_connection(reference, error)
    cause = error.__cause__ or error
    return DataError(f"{reference} cannot be read ({type(cause).__name__}: {first_line(cause)})")


def _explain_missing(reference: str, name: str, text: str) -> AttnGeoError:
    """The error for a data set that the Hub does not show, from the message of `datasets`."""
    endpoint = huggingface_hub.constants.ENDPOINT
    if "gated" in text:
        return DataUnavailableError(
            f"{reference} is gated; accept its terms at {endpoint}/datasets/{name} and set HF_TOKEN to a token of that "
            "account"
        )
    if text.startswith("Revision"):
        return DataUnavailableError(f"{reference}: the data set has no such revision")
    return DataUnavailableError(
        f"{reference}: no such data set at {endpoint}, and no such local file or folder; a private one requires "
        "HF_TOKEN"
    )


def _explain_connection(reference: str, error: OSError | HTTPError) -> AttnGeoError:
    """The error for a data set that cannot be reached."""
    if datasets.config.HF_HUB_OFFLINE:
        return DataUnavailableError(
            f"{reference}: no such file or folder here, and not in the cache of the Hub, while offline mode is on; run "
            "once without it"
        )
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return DataUnavailableError(f"{reference}: access refused ({status}); check HF_TOKEN")
    reason = "" if isinstance(error, ConnectionError) else f" ({first_line(error)})"  # its text gives no reason
    return DataUnavailableError(
        f"{reference}: no such file or folder here, and {huggingface_hub.constants.ENDPOINT} cannot be reached"
        f"{reason}; check the connection, HF_ENDPOINT and proxies, or give a file"
    )
