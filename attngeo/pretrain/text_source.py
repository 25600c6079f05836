"""The text of a data set as a stream of documents, and how a data set of the Hugging Face Hub is named."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import huggingface_hub

HUB_REFERENCE = re.compile(
    r"(?P<name>\w[\w.-]*/\w[\w.-]*)(?::(?P<config>[^@#]+))?(?:@(?P<revision>[^#]+))?(?:#(?P<split>.+))?", re.ASCII
)
# Characters in one batch of documents, about.
BATCH_CHARACTERS = 1_000_000
# A text of more bytes is streamed: it is read again in every epoch, and not held in memory.
LARGEST_IN_MEMORY = 2_000_000_000
# The tokeniser of the data sets of Saponati et al. 2025.
PAPER_TOKENIZER = "google-bert/bert-base-uncased"


@dataclass(frozen=True)
class TextSource:
    """The documents of a data set, read on demand.

    Attributes:
        name: the data set as the user wrote it, for messages.
        read_documents: function that starts with the first document in each call.
        streaming: whether the text may be too large for memory.
        tokenizer: reference to the tokeniser published with the data set; "train" if there is none.
        space_characters: whether to join the characters of each document with spaces.
    """

    name: str
    read_documents: Callable[[], Iterator[str]]
    streaming: bool = False
    tokenizer: str = "train"
    space_characters: bool = False

    def read_batches(self) -> Iterator[list[str]]:
        """Read the documents in order, in lists of about a million characters. Empty documents are left out.

        Raises DataUnavailableError or DataError if a document cannot be read.
        """
        batch: list[str] = []
        size = 0
        for document in self.read_documents():
            if not document.strip():
                continue
            # JSON may hold halves of surrogate pairs, which the tokenisers do not accept: each becomes a "?".
            valid = document.encode("utf-8", "replace").decode("utf-8")
            # Like the published code, which called " ".join on a string.
            batch.append(" ".join(valid) if self.space_characters else valid)
            size += len(batch[-1])
            if size >= BATCH_CHARACTERS:
                yield batch
                batch = []
                size = 0
        if batch:
            yield batch


@contextmanager
def silence_libraries() -> Iterator[None]:
    """Let `datasets` and huggingface_hub print nothing inside the block; restore their settings after it."""
    libraries: list[Any] = [huggingface_hub.utils]
    if "datasets" in sys.modules:
        libraries.append(sys.modules["datasets"].utils)
    with ExitStack() as settings:
        for library in libraries:
            if not library.are_progress_bars_disabled():
                library.disable_progress_bars()
                settings.callback(library.enable_progress_bars)
            settings.callback(library.logging.set_verbosity, library.logging.get_verbosity())
            library.logging.set_verbosity(logging.CRITICAL)
        yield
