"""CBOW, trained on a text with gensim: the model of Mikolov et al. 2013, which the paper compares with attention.

Imports nothing heavy until it trains.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attngeo.embeddings.options import CbowOptions
from attngeo.embeddings.reference import require_text
from attngeo.errors import CorruptCheckpointError, DataError, about
from attngeo.keywords import takes
from attngeo.progress import ProgressCallback, ignore_progress
from attngeo.tables.files import atomic_write, check_writable

if TYPE_CHECKING:
    from gensim.models import KeyedVectors

SUFFIXES = (".txt", ".vec", ".bin")
LONGEST_SENTENCE = 1000
LONGEST_TEXT_LINE = 1 << 20


class CbowKeywords(CbowOptions):
    """The keywords of `train_cbow`."""

    options: CbowOptions | None = None
    progress: ProgressCallback = ignore_progress


@takes(CbowKeywords)
def train_cbow(path: Path, options: CbowOptions, *, progress: ProgressCallback = ignore_progress) -> KeyedVectors:
    """Train word vectors by CBOW with negative sampling on a text: plain, .gz or .zip. Each line is a sentence.

    {options}

    Raises ModelNotFoundError; DataError if no word is frequent enough; CorruptCheckpointError if the file is not text.
    """
    require_text(path)
    from gensim.models import Word2Vec

    model = Word2Vec(
        sg=0,
        vector_size=options.dimensions,
        window=options.window,
        min_count=options.min_count,
        negative=options.negative,
        epochs=options.epochs,
        seed=options.seed,
        workers=options.workers,
    )
    with about(str(path)):
        model.build_vocab(_Sentences(path, options, progress))
        if not len(model.wv):
            raise DataError(
                f"no word occurs at least {options.min_count} times in its {model.corpus_total_words:,} words; use a "
                "longer text, or a lower $min_count",
                "min_count",
            )
        model.train(
            _Sentences(path, options, progress, epochs=options.epochs),
            total_examples=model.corpus_count,
            epochs=model.epochs,
        )
    return model.wv


def check_vectors_output(path: Path) -> None:
    """Raise OutputError if word vectors cannot be written to `path`. Call it before the training."""
    check_writable(path, SUFFIXES)


def save_vectors(vectors: KeyedVectors, path: Path) -> None:
    """Write vectors as word2vec's text (.txt, .vec) or in its binary format (.bin).

    Written whole or not at all. Raises OutputError.
    """
    check_vectors_output(path)
    with atomic_write(path) as partial:
        vectors.save_word2vec_format(str(partial), binary=path.suffix.lower() == ".bin")


@dataclass
class _Sentences:
    """The words of each line. The text is read once to count words, and once in each epoch.

    Attributes:
        path: file of the text.
        options: how words are split.
        progress: called as the text is read.
        epochs: number of epochs; 0 while words are counted.
        passes: number of times that the text was read in this phase.
    """

    path: Path
    options: CbowOptions
    progress: ProgressCallback
    epochs: int = 0
    passes: int = 0

    def __iter__(self) -> Iterator[list[str]]:
        from attngeo.embeddings.vectors import read_chunks

        self.passes += 1
        what = f"epoch {self.passes} of {self.epochs}" if self.epochs else "counting words"
        with closing(read_chunks(self.path, None, self.progress, what)) as chunks:
            unfinished = b""
            for chunk in chunks:
                *lines, unfinished = (unfinished + chunk).split(b"\n")
                if len(unfinished) > LONGEST_TEXT_LINE:  # a text may be one long line, which is cut between two words
                    line, _, unfinished = unfinished.rpartition(b" ")
                    lines.append(line)
                for line in lines:
                    yield from self._cut(line)
            yield from self._cut(unfinished)

    def _cut(self, line: bytes) -> Iterator[list[str]]:
        from gensim.utils import tokenize

        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            raise CorruptCheckpointError("not UTF-8 text; convert it first") from None
        if not self.options.keep_case:
            text = text.lower()
        words = text.split() if self.options.tokenized else list(tokenize(text))
        # gensim truncates longer sentences, so a text without line ends would lose most of its words.
        for start in range(0, len(words), LONGEST_SENTENCE):
            yield words[start : start + LONGEST_SENTENCE]
