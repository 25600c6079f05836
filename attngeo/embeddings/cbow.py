"""CBOW, trained on a text with gensim: Mikolov et al. 2013, the model that the paper compares attention with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from attngeo.embeddings.embedding import Embedding
from attngeo.embeddings.streams import open_stream
from attngeo.embeddings.words import is_word
from attngeo.errors import CorruptCheckpointError, ModelNotFoundError, UsageError
from attngeo.files import check_writable, replacing
from attngeo.progress import Progress

if TYPE_CHECKING:
    from gensim.models import KeyedVectors

SUFFIXES = (".kv", ".txt", ".vec", ".bin")
SENTENCE = 1000
LONGEST_TEXT_LINE = 1 << 20


@dataclass(frozen=True)
class CbowOptions:
    """How CBOW is trained; the defaults are gensim's, but for 300 dimensions, which the paper's model has.

    dimensions: width of the vectors. window: words on each side. min_count: rarer words are left out. negative: words
    drawn for each true one. workers: threads; only one gives the same vectors every time. lower: fold case.
    """

    dimensions: int = 300
    window: int = 5
    min_count: int = 5
    negative: int = 5
    epochs: int = 5
    seed: int = 1
    workers: int = 1
    lower: bool = True

    def __post_init__(self) -> None:
        for name in ("dimensions", "window", "min_count", "negative", "epochs", "workers"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}, expected at least 1")
        if not 0 <= self.seed < 1 << 32:
            raise UsageError(f"seed is {self.seed}, expected from 0 to {(1 << 32) - 1}")


def train_cbow(
    path: Path, options: CbowOptions = CbowOptions(), progress: Callable[[Progress], None] = lambda _: None
) -> KeyedVectors:
    """Word vectors of CBOW with negative sampling over a text: plain, .gz or .zip, one paragraph or more a line.

    Words are runs of letters. Raises ModelNotFoundError, UsageError where no word is frequent enough.
    """
    if not path.is_file():
        raise ModelNotFoundError(f"{path}: no such file, expected a text to train on")
    from gensim.models import Word2Vec

    model = Word2Vec(
        sg=0, vector_size=options.dimensions, window=options.window, min_count=options.min_count,
        negative=options.negative, epochs=options.epochs, seed=options.seed, workers=options.workers,
    )  # fmt: skip
    model.build_vocab(_Sentences(path, options.lower, progress))
    if not len(model.wv):
        raise UsageError(
            f"{path}: none of its {model.corpus_total_words:,} words comes {options.min_count} times; "
            "expected a longer text, or a lower --min-count"
        )
    sentences = _Sentences(path, options.lower, progress)
    model.train(sentences, total_examples=model.corpus_count, epochs=model.epochs)
    return model.wv


def embedding_of(vectors: KeyedVectors, ref: str) -> Embedding:
    """The vectors of gensim as a table."""
    labels = list(vectors.index_to_key)
    words, entries = torch.tensor([is_word(label) for label in labels]), torch.ones(len(labels), dtype=torch.bool)
    return Embedding(ref, torch.from_numpy(vectors.vectors), labels, words, entries)


def check_vectors_output(path: Path) -> None:
    """Raise OutputError unless word vectors could be written to `path`: done before the training."""
    check_writable(path, SUFFIXES)


def save_vectors(vectors: KeyedVectors, path: Path) -> None:
    """Write vectors as gensim's KeyedVectors (.kv), word2vec's text (.txt, .vec) or its binary format (.bin).

    Written whole or not at all. Raises OutputError.
    """
    check_vectors_output(path)
    with replacing(path) as partial:
        if path.suffix.lower() == ".kv":
            vectors.save(str(partial), sep_limit=1 << 62)  # one file, which a rename can put in place
        else:
            vectors.save_word2vec_format(str(partial), binary=path.suffix.lower() == ".bin")


class _Sentences:
    """The words of each line, read anew each time they are asked for."""

    def __init__(self, path: Path, lower: bool, progress: Callable[[Progress], None]) -> None:
        self._path, self._lower, self._progress = path, lower, progress

    def __iter__(self) -> Iterator[list[str]]:
        from gensim.utils import tokenize

        with open_stream(self._path, None, str(self._path), self._progress) as stream:
            rest = b""
            for chunk in stream.chunks():
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > LONGEST_TEXT_LINE:  # a text may be one line; words that it is cut between are few
                    line, _, rest = rest.rpartition(b" ")
                    lines.append(line)
                for line in lines:
                    yield from self._cut(line, tokenize)
            yield from self._cut(rest, tokenize)

    def _cut(self, line: bytes, tokenize: Callable[..., Iterator[str]]) -> Iterator[list[str]]:
        try:
            words = list(tokenize(line.decode("utf-8"), lowercase=self._lower))
        except UnicodeDecodeError:
            raise CorruptCheckpointError(f"{self._path}: not a text in UTF-8; convert it first") from None
        # gensim cuts longer sentences off; texts without line ends would otherwise lose most of their words.
        for start in range(0, len(words), SENTENCE):
            yield words[start : start + SENTENCE]
