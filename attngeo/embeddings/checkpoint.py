"""The token embeddings of a checkpoint: one tensor of it, and its tokeniser."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import torch

from attngeo.checkpoints.opening import open_store
from attngeo.checkpoints.store import TensorStore, float_shape
from attngeo.choices import Table
from attngeo.embeddings.embedding import Embedding, finite_rows
from attngeo.embeddings.tokeniser import Tokeniser, read_tokeniser, take_tokeniser
from attngeo.embeddings.words import labels_of
from attngeo.errors import CorruptCheckpointError, ShapeError, UnsupportedModelError
from attngeo.progress import Progress

# How families call their tables, the surest first; each may have a prefix. `make test` compares them with what
# transformers' get_input_embeddings and get_output_embeddings return for every family of the scoring side.
NAMES: Mapping[Table, tuple[str, ...]] = {
    "input": (
        "shared.weight", "word_embeddings.weight", "tok_embeddings.weight", "embed_tokens.weight", "wte.weight",
        "tokens_embed.weight", "embed_in.weight", "token_embedding.weight", "token_embeddings.weight",
        "word_embedding.weight", "transformer.embeddings.weight", "backbone.embeddings.weight",
        "rwkv.embeddings.weight", "transformer.w.weight",
    ),
    "output": (
        "lm_head.weight", "embed_out.weight", "predictions.decoder.weight", "lm_head.decoder.weight",
        "vocab_projector.weight", "lm_loss.weight", "pred_layer.proj.weight", "proj_out.weight", "output.weight",
        "decoder.weight", "head.weight",
    ),
}  # fmt: skip
NOT_TEXT = re.compile(r"(^|\.)(vision|visual|image|audio)[\w]*\.")
# Tables are padded to round sizes; with fewer tokens than this share of the rows, they are another model's tokens.
LEAST_COVERED = 0.8


def read_checkpoint(
    model: Any,
    table: Table = "input",
    *,
    tokeniser: Any = None,
    offline: bool = False,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Embedding:
    """The input embeddings, or the unembedding, of a checkpoint or of a transformers model in memory.

    Reads that one tensor. tokeniser: a fast one of transformers; the one beside the weights where None is given.
    Raises ModelUnavailableError, CheckpointError; ShapeError where the tokeniser is another's.
    """
    with closing(open_store(model, offline=offline)) as store:
        name, notes = find_table(store, table)
        rows = float_shape(store, name)[0]
        own = read_tokeniser(store) if tokeniser is None else take_tokeniser(tokeniser)
        notes += _check_match(own, rows, name, store)
        store.fetch([name], lambda file: progress(Progress("download", file)))
        progress(Progress("read", name, 0, store.info(name).nbytes))
        matrix = store.read(name)
        ref, revision = store.ref, store.revision
    labels, words = labels_of({n: text for n, text in own.tokens.items() if n < rows}, own.special)
    is_word, is_entry = torch.zeros(rows, dtype=torch.bool), torch.zeros(rows, dtype=torch.bool)
    is_word[list(words)], is_entry[list(labels)] = True, True
    finite = finite_rows(matrix)
    if broken := int((is_entry & ~finite).sum()):
        if broken == len(labels):
            raise CorruptCheckpointError(f"{ref}: {name} holds no finite row; download it again")
        notes.append(f"{broken} tokens left out: NaN or Inf in their vectors")
    return Embedding(
        ref, matrix, [labels.get(row, "") for row in range(rows)], is_word & finite, is_entry & finite,
        revision=revision, pieces=own.pieces, notes=tuple(notes),
    )  # fmt: skip


def find_table(store: TensorStore, table: Table) -> tuple[str, list[str]]:
    """The name of the tensor, and notes about the choice. Raises UnsupportedModelError with the names looked for."""
    found = _find(store, NAMES["input"]) or _only_of_its_size(store)
    if table == "output":
        for name in _matching(store, NAMES["output"]):
            if found is None or _rows(store, name) >= LEAST_COVERED * _rows(store, found):
                return name, []
        if found and store.config.get("tie_word_embeddings") is not False:
            return found, ["no unembedding of its own: tied to the input embeddings"]
        raise UnsupportedModelError(
            f"{store.ref}: no unembedding matrix, looked for {', '.join(NAMES['output'])}; use --table input"
        )
    if found is None:
        hints = [name for name in store.names if re.search(r"emb", name)]
        raise UnsupportedModelError(
            f"{store.ref}: no token embeddings, looked for {', '.join(NAMES['input'])}; "
            + (f"names with 'emb' found: {', '.join(hints[:6])}" if hints else "no tensor is named after embeddings")
        )
    return found, []


def _find(store: TensorStore, names: tuple[str, ...]) -> str | None:
    return next(iter(_matching(store, names)), None)


def _matching(store: TensorStore, names: tuple[str, ...]) -> list[str]:
    """The two-dimensional tensors of these names: in the order of `names`, then the encoder's first, not vision's."""
    found = sorted(store.names, key=lambda own: (own.count("."), "encoder" not in own, own))
    return [
        own
        for name in names
        for own in found
        if (own == name or own.endswith(f".{name}")) and not NOT_TEXT.search(own) and len(store.info(own).shape) == 2
    ]


def _rows(store: TensorStore, name: str) -> int:
    return store.info(name).shape[0]


def _only_of_its_size(store: TensorStore) -> str | None:
    """Of an unlisted family: the one table of embeddings that has as many rows as the configuration says."""
    size = store.config.get("vocab_size")
    sized = [
        name
        for name in store.names
        if "emb" in name
        and len(shape := store.info(name).shape) == 2
        and shape[0] == size
        and not NOT_TEXT.search(name)
    ]
    return sized[0] if len(sized) == 1 else None


def _check_match(tokeniser: Tokeniser, rows: int, name: str, store: TensorStore) -> list[str]:
    """Refuse a tokeniser that cannot be this matrix's; notes about what does not meet otherwise."""
    beyond = sorted(number for number in tokeniser.tokens if number >= rows)
    if trained := [number for number in beyond if number not in tokeniser.added]:
        raise ShapeError(
            f"{store.ref}: the tokeniser does not match {name}: token {tokeniser.tokens[trained[0]]!r} has the id "
            f"{trained[0]}, the matrix {rows:,} rows; expected the tokeniser that the model was trained with"
        )
    named = len(tokeniser.tokens) - len(beyond)
    if named < LEAST_COVERED * rows:
        raise ShapeError(
            f"{store.ref}: the tokeniser does not match {name}: it has {named:,} tokens, the matrix {rows:,} rows; "
            "expected the tokeniser that the model was trained with"
        )
    notes = [f"{len(beyond)} added tokens have no vector"] if beyond else []
    return [*notes, f"{rows - named} rows have no token"] if named < rows else notes
