"""Tables of word vectors: the token embeddings of a checkpoint, files of word vectors, and CBOW trained on a text.

    align_streams(store, other)   the coordinate of one model's stream for each of the other's, by their embeddings

Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.lazy import import_when_used

if TYPE_CHECKING:
    from attngeo.embeddings.aligning import align_streams as align_streams
else:
    __getattr__, __dir__ = import_when_used(__name__)
