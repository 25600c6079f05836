"""Text in data sets of the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import datasets

from attngeo.pretrain.hub_data import HUB_REFERENCE, check_cached_revision, explain_errors
from attngeo.pretrain.text.columns import kinds_of_features, kinds_of_rows, text_column
from attngeo.pretrain.text.files import LARGEST, SAMPLE, Source


def open_hub(reference: str, column: str) -> Source:
    """A data set of the Hub: downloaded where it is small, else read as it comes."""
    match = HUB_REFERENCE.fullmatch(reference)
    assert match is not None
    name, config, revision, split = match.group("name", "config", "revision", "split")
    with explain_errors(reference):
        # Without its scheme, a folder of that name would be taken instead.
        builder = datasets.load_dataset_builder(f"hf://datasets/{name}", config, revision=revision)
        check_cached_revision(reference, builder, name, revision)
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


def read_table(name: str, found: Any, column: str) -> Iterator[str]:
    """The documents in a column of a table of `datasets`."""
    with explain_errors(name):
        batches = found.select_columns([column]).iter(batch_size=SAMPLE)
    while True:
        with explain_errors(name):
            batch = next(batches, None)
        if batch is None:
            return
        yield from (text for text in batch[column] if isinstance(text, str))
