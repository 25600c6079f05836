"""Tables of the Hugging Face Hub, by the `datasets` library, and what can go wrong with it in one line."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
from datasets.exceptions import DataFilesNotFoundError, DatasetNotFoundError
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # httpx's, whichever

from attngeo.errors import AttnGeoError, DataError, DataUnavailableError, first_line

HUB_REFERENCE = re.compile(
    r"(?P<name>\w[\w.-]*/\w[\w.-]*)(?::(?P<config>[^@#]+))?(?:@(?P<revision>[^#]+))?(?:#(?P<split>.+))?", re.ASCII
)


def check_cached_revision(reference: str, builder: Any, name: str, revision: str | None) -> None:
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


def list_names(names: Any) -> str:
    """Names in a line, the first twenty of them."""
    names = list(names)
    return ", ".join(names[:20]) + (f" and {len(names) - 20} others" if len(names) > 20 else "")


@contextmanager
def explain_errors(reference: str) -> Iterator[None]:
    """What goes wrong with a data set of the Hub, as one of attngeo's errors."""
    try:
        with silence_libraries():
            yield
    except AttnGeoError:
        raise
    except Exception as error:
        raise _explain(reference, error) from error


@contextmanager
def silence_libraries() -> Iterator[None]:
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


def _explain(reference: str, error: Exception) -> AttnGeoError:
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
            f"{reference}: expected a {asked} that it has, {name}{mark} with one of {list_names(names)}"
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
