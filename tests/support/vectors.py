"""Small tables of vectors in every format, tokenisers, and checkpoints for them."""

from __future__ import annotations

import itertools
import string
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attngeo.analogies.questions import google_text
from attngeo.embeddings.embedding import Embedding, is_single_word
from support.checkpoints import write_single

TEXT = (
    "the king and the queen of the old city saw a man and a woman near the river while children were playing "
    "unbelievable games of chess and checkers with kings and queens carved from the whitest marble in Athens Greece "
)


def words(count: int) -> list[str]:
    """Different words of three letters."""
    return [
        "".join(letters) for letters in itertools.islice(itertools.product(string.ascii_lowercase, repeat=3), count)
    ]


def table(vectors: Any, labels: Sequence[str] | None = None, ref: str = "table") -> Embedding:
    """An Embedding of these vectors, [rows, width]."""
    matrix = torch.as_tensor(np.asarray(vectors))
    labels = words(len(matrix)) if labels is None else labels
    entries = torch.ones(len(matrix), dtype=torch.bool)
    return Embedding(ref, matrix, labels, torch.tensor([is_single_word(label) for label in labels]), entries)


def planted(pairs: int = 8, width: int = 20, noise: float = 0.0, seed: int = 0) -> tuple[Embedding, list[str]]:
    """A table in which pairs of words differ by one vector, with as many other words; and the lines of their questions.

    noise: standard deviation of what is added to the second word of each pair.
    """
    generator = np.random.default_rng(seed)
    first = generator.standard_normal((pairs, width))
    second = first + generator.standard_normal(width) + noise * generator.standard_normal((pairs, width))
    labels = words(4 * pairs)
    vectors = np.concatenate([first, second, generator.standard_normal((2 * pairs, width))])
    lines = [
        f"{labels[i]} {labels[pairs + i]} {labels[j]} {labels[pairs + j]}"
        for i, j in itertools.permutations(range(pairs), 2)
    ]
    return table(vectors, labels), lines


def sample_google() -> str:
    """Every 24th of Google's questions of each category, as a file has them."""
    kept = []
    for category in google_text().split(": ")[1:]:
        name, *questions = category.splitlines()
        kept += [f": {name}", *questions[::24]]
    return "\n".join(kept) + "\n"


def write_questions(path: Path, categories: Mapping[str, Iterable[str]]) -> Path:
    """Write a question file with these categories of lines."""
    path.write_text(
        "".join(f": {name}\n" + "".join(f"{line}\n" for line in lines) for name, lines in categories.items())
    )
    return path


def write_text(path: Path, labels: Sequence[str], vectors: Any, *, header: bool = False) -> Path:
    """Write word vectors as text: GloVe's form, or with a header that of word2vec and fastText."""
    rows = [" ".join([label, *(f"{value:.6f}" for value in row)]) for label, row in zip(labels, vectors, strict=True)]
    first = [f"{len(rows)} {len(vectors[0])}"] if header else []
    path.write_text("\n".join([*first, *rows]) + "\n", "utf-8")
    return path


def keyed(labels: Sequence[str], vectors: Any) -> Any:
    """The KeyedVectors of gensim for these words and vectors. Skips the test if gensim is missing."""
    kept = pytest.importorskip("gensim.models").KeyedVectors(len(vectors[0]))
    kept.add_vectors(list(labels), np.asarray(vectors, np.float32))
    return kept


def word_piece(
    path: Path,
    vocabulary: Sequence[str] = ("[PAD]", "[UNK]", "king", "queen", "man", "##s", "woman"),
    *,
    lowercase: bool = True,
    strip_accents: bool | None = None,
) -> Any:
    """A WordPiece tokeniser with this vocabulary, saved as tokenizer.json."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer

    library = Tokenizer(WordPiece({token: number for number, token in enumerate(vocabulary)}, unk_token="[UNK]"))
    library.pre_tokenizer = BertPreTokenizer()
    library.normalizer = BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    library.add_special_tokens([token for token in vocabulary if token.startswith("[") and token.isupper()])
    library.save(str(path))
    return library


def byte_level(path: Path) -> Any:
    """A byte-level BPE tokeniser (GPT-2's kind) trained on TEXT, saved as tokenizer.json."""
    from tokenizers import ByteLevelBPETokenizer

    library = ByteLevelBPETokenizer(add_prefix_space=False)
    library.train_from_iterator(
        [TEXT], vocab_size=400, min_frequency=1, special_tokens=["<|endoftext|>"], show_progress=False
    )
    library.save(str(path))
    return library


def sentence_piece(folder: Path, kind: str = "unigram") -> Path:
    """A SentencePiece model trained on TEXT."""
    import sentencepiece

    text = folder / "text.txt"
    text.write_text("the old king and the old queen of the city\n" * 50 + "\n".join(TEXT.split(" while ")) + "\n")
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(folder / kind), model_type=kind, minloglevel=2,
        vocab_size=60 if kind == "unigram" else 330, byte_fallback=kind == "bpe",
        hard_vocab_limit=False,
    )  # fmt: skip
    return folder / f"{kind}.model"


def random_vectors(rows: int, width: int, seed: int = 0) -> torch.Tensor:
    """Normal random numbers, [rows, width]; the same for the same seed."""
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def checkpoint(
    folder: Path, rows: int, width: int = 8, *, seed: int = 0, model_type: str = "llama", **config: Any
) -> Path:
    """A checkpoint with a random table of embeddings and no other tensor; the test adds the tokeniser."""
    return write_single(
        folder,
        {"model.embed_tokens.weight": random_vectors(rows, width, seed)},
        {"model_type": model_type, "vocab_size": rows, **config},
    )
