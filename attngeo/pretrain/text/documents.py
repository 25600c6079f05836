"""The documents of a text, read in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

# Characters in one batch of documents, about.
BATCH_CHARACTERS = 1_000_000
# A text of more bytes is streamed: it is read again in every epoch, and not held in memory.
LARGEST_IN_MEMORY = 2_000_000_000


@dataclass(frozen=True)
class TextSource:
    """The documents of a data set, read on demand.

    name: how the user wrote it, for messages. read_documents: starts from the first document at each call. streaming:
    the text may be too large for the memory. tokenizer: a reference to the tokeniser that was published with the data
    set, or "train" if there is none. space_characters: join the characters of each document with spaces.
    """

    name: str
    read_documents: Callable[[], Iterator[str]]
    streaming: bool = False
    tokenizer: str = "train"
    space_characters: bool = False

    def read_batches(self) -> Iterator[list[str]]:
        """Read the documents in their order, in lists of about a million characters. Empty documents are left out.

        Raises DataUnavailableError or DataError if a document cannot be read.
        """
        batch, size = [], 0
        for document in self.read_documents():
            if not document.strip():
                continue
            # JSON may hold halves of surrogate pairs, which the tokenisers do not accept: each becomes a "?".
            whole = document.encode("utf-8", "replace").decode("utf-8")
            # Like the published code, which called " ".join on a string.
            batch.append(" ".join(whole) if self.space_characters else whole)
            size += len(batch[-1])
            if size >= BATCH_CHARACTERS:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch
