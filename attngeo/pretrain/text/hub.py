"""Text in data sets of the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import datasets

from attngeo.pretrain.hub_data import HUB_REFERENCE, check_cached_revision, explain_errors
from attngeo.pretrain.text.columns import choose_text_column, classify_columns, classify_features
from attngeo.pretrain.text.documents import LARGEST_IN_MEMORY, TextSource

# Rows that are read at once, and rows by which columns of an unknown type are classified.
TABLE_ROWS = 100


def open_hub(reference: str, column: str = "") -> TextSource:
    """The text of a Hub data set: downloaded if it is small, else streamed.

    reference: `org/name[:config][@revision][#split]`. column: see `choose_text_column`. Raises DataUnavailableError if
    the data set cannot be reached, DataError if it cannot be read or holds no text.
    """
    match = HUB_REFERENCE.fullmatch(reference)
    assert match is not None
    name, config, revision, split = match.group("name", "config", "revision", "split")
    with explain_errors(reference):
        # With the scheme, a local folder of the same name is not taken instead.
        builder = datasets.load_dataset_builder(f"hf://datasets/{name}", config, revision=revision)
        check_cached_revision(reference, builder, name, revision)
        size = builder.info.dataset_size
        streaming = size is None or size > LARGEST_IN_MEMORY
        if streaming:
            table: Any = builder.as_streaming_dataset(split=split or "train")
        else:
            builder.download_and_prepare(verification_mode="no_checks")  # many cards give the sizes of an older version
            table = builder.as_dataset(split=split or "train")
        if table.features is None:
            kinds = classify_columns(list(islice(table, TABLE_ROWS)))
        else:
            kinds = classify_features(table.features)
    chosen = choose_text_column(reference, kinds, column)
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
