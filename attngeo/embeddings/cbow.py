"""CBOW, trained on a text with gensim: Mikolov et al. 2013, the model that the paper compares attention with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attngeo.embeddings.streams import open_stream
from attngeo.errors import CorruptCheckpointError, ModelNotFoundError, UsageError
from attngeo.progress import Progress
from attngeo.tables.atomic import atomic_write, check_writable

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
    tokenised: the words of the text are what stands between spaces; else they are its runs of letters and underscores.
    """

    dimensions: int = 300
    window: int = 5
    min_count: int = 5
    negative: int = 5
    epochs: int = 5
    seed: int = 1
    workers: int = 1
    lower: bool = True
    tokenised: bool = False

    def __post_init__(self) -> None:
        for name in ("dimensions", "window", "min_count", "negative", "epochs", "workers"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}, expected at least 1")
        if not 0 <= self.seed < 1 << 32:
            raise UsageError(f"seed is {self.seed}, expected from 0 to {(1 << 32) - 1}")


def train_cbow(
    path: Path, options: CbowOptions = CbowOptions(), progress: Callable[[Progress], None] = lambda _: None
) -> KeyedVectors:
    """Word vectors of CBOW with negative sampling over a text: plain, .gz or .zip, each line taken for a sentence.

    Raises ModelNotFoundError, UsageError where no word is frequent enough, CorruptCheckpointError for what is no text.
    """
    if not path.is_file():
        found = "a folder" if path.is_dir() else "no such file"
        raise ModelNotFoundError(f"{path}: {found}, expected a text to train on")
    from gensim.models import Word2Vec

    model = Word2Vec(
        sg=0, vector_size=options.dimensions, window=options.window, min_count=options.min_count,
        negative=options.negative, epochs=options.epochs, seed=options.seed, workers=options.workers,
    )  # fmt: skip
    model.build_vocab(_Sentences(path, options, progress))
    if not len(model.wv):
        raise UsageError(
            f"{path}: none of its {model.corpus_total_words:,} words comes {options.min_count} times; "
            "expected a longer text, or a lower --min-count"
        )
    model.train(
        _Sentences(path, options, progress, epochs=options.epochs),
        total_examples=model.corpus_count,
        epochs=model.epochs,
    )
    return model.wv


def check_vectors_output(path: Path) -> None:
    """Raise OutputError unless word vectors could be written to `path`: done before the training."""
    check_writable(path, SUFFIXES)


def save_vectors(vectors: KeyedVectors, path: Path) -> None:
    """Write vectors as gensim's KeyedVectors (.kv), word2vec's text (.txt, .vec) or its binary format (.bin).

    Written whole or not at all. Raises OutputError.
    """
    check_vectors_output(path)
    with atomic_write(path) as partial:
        if path.suffix.lower() == ".kv":
            vectors.save(str(partial), sep_limit=1 << 62)  # one file, which a rename can put in place
        else:
            vectors.save_word2vec_format(str(partial), binary=path.suffix.lower() == ".bin")


class _Sentences:
    """The words of each line, read anew each time they are asked for: once to count them, once in each epoch."""

    def __init__(
        self, path: Path, options: CbowOptions, progress: Callable[[Progress], None], *, epochs: int = 0
    ) -> None:
        from gensim.utils import tokenize

        self._path, self._options, self._progress, self._epochs, self._passes = path, options, progress, epochs, 0
        self._tokenize = str.split if options.tokenised else tokenize

    def __iter__(self) -> Iterator[list[str]]:
        self._passes += 1
        what = f"epoch {self._passes} of {self._epochs}" if self._epochs else "counting words"
        with open_stream(self._path, None, str(self._path), self._progress, what) as stream:
            rest = b""
            for chunk in stream.chunks():
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > LONGEST_TEXT_LINE:  # a text may be one line; words that it is cut between are few
                    line, _, rest = rest.rpartition(b" ")
                    lines.append(line)
                for line in lines:
                    yield from self._cut(line)
            yield from self._cut(rest)

    def _cut(self, line: bytes) -> Iterator[list[str]]:
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            raise CorruptCheckpointError(f"{self._path}: not a text in UTF-8; convert it first") from None
        words = list(self._tokenize(text.lower() if self._options.lower else text))
        # gensim cuts longer sentences off; texts without line ends would otherwise lose most of their words.
        for start in range(0, len(words), SENTENCE):
            yield words[start : start + SENTENCE]
