"""Data sets of the Hugging Face Hub, read by the library `datasets`, with its errors in one line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
from datasets.exceptions import DatasetNotFoundError
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # that of its HTTP client

from attngeo.bounds.small_files import read_small_text
from attngeo.checkpoints.patience import require_answers
from attngeo.errors import AttnGeoError, DataError, DataUnavailableError, first_line
from attngeo.pretrain.text_formats import TABLE_ROWS, choose_text_column
from attngeo.pretrain.text_source import (
    HUB_REFERENCE,
    LARGEST_IN_MEMORY,
    PAPER_TOKENIZER,
    TextSource,
    silence_libraries,
)

# Source: https://huggingface.co/datasets/legacy-datasets/wikipedia. The files are named one by one, because `datasets`
# refuses a repository that also has a loading script.
WIKIPEDIA = "hf://datasets/legacy-datasets/wikipedia/data/20220301.en/*.parquet"
# Characters of a message of `datasets` that an error shows.
LONGEST_REASON = 200


def open_wikipedia(name: str, column: str = "") -> TextSource:
    """The text of the English Wikipedia of March 2022, streamed. Raises DataUnavailableError."""
    with explain_errors(name):
        table = datasets.load_dataset_builder("parquet", data_files=WIKIPEDIA).as_streaming_dataset("train")
    documents = partial(read_table, name, table, column or "text")
    return TextSource(name, documents, streaming=True, tokenizer=PAPER_TOKENIZER)


def open_hub(reference: str, column: str = "") -> TextSource:
    """The text of a Hub data set: downloaded if it is small, else streamed.

    reference: `org/name[:config][@revision][#split]`. column: see `choose_text_column`. Raises DataUnavailableError if
    the data set cannot be reached, DataError if it cannot be read or holds no text.
    """
    with explain_errors(reference):
        builder, split = open_builder(reference)
        size = builder.info.dataset_size
        streaming = size is None or size > LARGEST_IN_MEMORY
        if streaming:
            table: Any = builder.as_streaming_dataset(split=split or "train")
        else:
            builder.download_and_prepare(verification_mode="no_checks")  # many cards give the sizes of an older version
            table = builder.as_dataset(split=split or "train")
        sample = list(islice(table, TABLE_ROWS))
    chosen = choose_text_column(reference, sample, column)
    return TextSource(reference, partial(read_table, reference, table, chosen), streaming)


def read_table(reference: str, table: Any, column: str) -> Iterator[str]:
    """The documents in a column of a table of `datasets`. Raises DataUnavailableError or DataError."""
    with explain_errors(reference):
        batches = table.select_columns([column]).iter(batch_size=TABLE_ROWS)
    while True:
        with explain_errors(reference):
            batch = next(batches, None)
        if batch is None:
            return
        yield from (text for text in batch[column] if isinstance(text, str))


def open_builder(reference: str) -> tuple[Any, str | None]:
    """The builder with which `datasets` reads a Hub data set, and the split that the reference names.

    Call it inside `explain_errors`. Raises DataUnavailableError if the requested revision is not in the cache and the
    Hub cannot be reached, because `datasets` would use any revision in its cache.
    """
    match = HUB_REFERENCE.fullmatch(reference)
    assert match is not None
    name, config, revision, split = match.group("name", "config", "revision", "split")
    # With the scheme, a local folder of the same name is not taken instead.
    builder = datasets.load_dataset_builder(f"hf://datasets/{name}", config, revision=revision)
    if type(builder).__module__.endswith(".cache"):
        cache = Path(huggingface_hub.constants.HF_HUB_CACHE)
        ref = cache / f"datasets--{name.replace('/', '--')}" / "refs" / (revision or "main")
        commit = read_small_text(ref).strip() if ref.is_file() else revision
        if builder.hash != commit:
            raise DataUnavailableError(
                f"only revision {builder.hash} is in the cache, and the Hub cannot be reached; name that revision, or "
                "run once with a connection",
                subject=reference,
            )
    return builder, split


@contextmanager
def explain_errors(reference: str) -> Iterator[None]:
    """Turn an error of `datasets` into a DataUnavailableError or DataError that names the data set, in one line.

    Inside the block, `datasets` and huggingface_hub print nothing, and do not wait long for a server.
    """
    try:
        with silence_libraries(), require_answers(reference):
            yield
    except AttnGeoError:
        raise
    except Exception as error:
        raise _explain(reference, error) from error


def _explain(reference: str, error: Exception) -> AttnGeoError:
    """The error to raise for an error of `datasets`, with the library's own words in one line."""
    endpoint = huggingface_hub.constants.ENDPOINT
    reason = " ".join(str(error).split())[:LONGEST_REASON].rstrip(".") or type(error).__name__
    if isinstance(error, DatasetNotFoundError):
        return DataUnavailableError(
            f"{reason}; check the name at {endpoint}; a private or gated data set requires HF_TOKEN", subject=reference
        )
    if isinstance(error, OSError | HTTPError) and not isinstance(error, FileNotFoundError):
        if datasets.config.HF_HUB_OFFLINE:
            where = "not in the Hub cache, and offline mode is on; run once online"
        else:
            where = f"{endpoint} cannot be reached ({reason}); check the connection, HF_ENDPOINT and HF_TOKEN"
        return DataUnavailableError(f"no such file or folder here, and {where}", subject=reference)
    if type(error) is ValueError:  # a configuration or a split that does not exist
        name = re.split("[:@#]", reference)[0]
        return DataUnavailableError(f"{reason}; write it as {name}:CONFIG#SPLIT", subject=reference)
    cause = error.__cause__ or error
    return DataError(
        f"{reference} cannot be read ({type(cause).__name__}: {first_line(cause)}); expected text, JSON, CSV, Parquet "
        "or image files"
    )
