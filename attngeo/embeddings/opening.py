"""Opening tables of vectors: by a reference, or from an object in memory.

The input embeddings of a model, or its unembedding, are found by the names of the known families.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attngeo.bounds.paths import CBOW, local_path
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.opening import open_store
from attngeo.checkpoints.store import TensorStore, float_shape
from attngeo.choices import Table
from attngeo.embeddings.embedding import Embedding, flag_finite_rows, label_tokens
from attngeo.embeddings.reference import find_vectors_file
from attngeo.embeddings.tokenizer import ModelTokenizer, read_tokenizer, take_tokenizer
from attngeo.embeddings.vectors import read_vectors
from attngeo.errors import (
    CorruptCheckpointError,
    ShapeError,
    UnsupportedModelError,
    UsageError,
    about,
)
from attngeo.keywords import takes
from attngeo.layouts.heads import load_defaults
from attngeo.layouts.sections import MAIN
from attngeo.progress import Progress, ProgressCallback
from attngeo.session import Session

FLOATS = ("f2", "f4", "f8")
# How the known families name the tables; a prefix before the name is allowed. The first name that a model has counts.
# The tests compare the choice with get_input_embeddings and get_output_embeddings of transformers for every family.
TABLE_NAMES: Mapping[Table, tuple[str, ...]] = {
    "input": (
        "shared.weight", "word_embeddings.weight", "tok_embeddings.weight", "embed_tokens.weight", "wte.weight",
        "tokens_embed.weight", "embed_in.weight", "token_embedding.weight", "token_embeddings.weight",
        "word_embedding.weight", "transformer.embeddings.weight", "backbone.embeddings.weight",
        "language_model.embeddings.weight", "rwkv.embeddings.weight", "transformer.w.weight", "input_embedding.weight",
    ),
    "output": (
        "lm_head.weight", "lm_head.out_proj.weight", "embed_out.weight", "predictions.decoder.weight",
        "lm_head.decoder.weight",
        "vocab_projector.weight", "lm_loss.weight", "pred_layer.proj.weight", "proj_out.weight", "output.weight",
        "decoder.weight", "head.weight",
    ),
}  # fmt: skip
NOT_TEXT = re.compile(r"(^|\.)(vision|visual|image|audio|protein)[\w]*\.")
# Tables are padded to round sizes. If fewer rows than this share have a token, the tokeniser is of another model.
LEAST_COVERED_SHARE = 0.8
SHOWN = 6
# The field of config.json that says whether one table serves for both.
TIED = "tie_word_embeddings"


class EmbeddingKeywords(HubAccess):
    """The keywords of `open_embedding`."""

    hub: HubAccess | None = None
    table: Table = "input"
    tokenizer: Any = None
    progress: ProgressCallback | None = None


@takes(EmbeddingKeywords)
def open_embedding(
    model: Any,
    *,
    table: Table = "input",
    tokenizer: Any = None,
    session: Session,
) -> Embedding:
    """Open a table of vectors.

    Args:
        model: one of these: a checkpoint, as for `score`; a file of word vectors, in the text format of GloVe or
            fastText (plain, .gz or .zip; `FILE.zip/MEMBER` names one of several files) or in word2vec's text or binary
            format; `cbow:TEXT`, to train CBOW on a text first; or, in memory, a transformers model, gensim's
            KeyedVectors or an Embedding.
        table: "input" for the input embeddings of a checkpoint, "output" for its unembedding.
        tokenizer: one from transformers or tokenizers, required for a model in memory; a checkpoint has its own.
        {hub}
        progress: called while files are downloaded and read.

    Returns:
        The table, on the CPU, as it was stored.

    Raises:
        ModelUnavailableError: a file cannot be found or reached.
        CheckpointError: the file cannot be read, or is not supported.
        UsageError: an argument does not apply to this model.
    """
    if isinstance(model, Embedding):
        return model
    if hasattr(model, "index_to_key") and hasattr(model, "vectors"):
        return _take_vectors(model, type(model).__name__)
    text = str(model) if isinstance(model, str | Path) else ""
    if text.startswith(CBOW):
        from attngeo.embeddings.cbow import train_cbow

        return _take_vectors(train_cbow(local_path(text.removeprefix(CBOW)), progress=session.progress), text)
    file = find_vectors_file(text)
    if file is None:
        return _read_checkpoint(model, table, tokenizer, session)
    if table == "output":
        raise UsageError("a file of word vectors has only one table; leave out $table", "table", subject=text)
    with about(text):
        return read_vectors(*file, text, session.progress)


def _take_vectors(vectors: Any, ref: str) -> Embedding:
    """The table of gensim's KeyedVectors. Raises CorruptCheckpointError unless each word has a floating-point row."""
    matrix = np.asarray(vectors.vectors)
    labels = list(vectors.index_to_key)
    with about(ref):
        if matrix.ndim != 2 or len(matrix) < len(labels) or matrix.dtype.str[1:] not in FLOATS:
            raise CorruptCheckpointError(
                f"it has {len(labels):,} words and a {matrix.dtype} array {matrix.shape}, expected one floating-point "
                "row for each word; save it again"
            )
        rows = np.ascontiguousarray(matrix[: len(labels)], matrix.dtype.newbyteorder("="))
        return Embedding.from_words(ref, rows, labels)


def _read_checkpoint(model: Any, table: Table, tokenizer: Any, session: Session) -> Embedding:
    """The input embeddings, or the unembedding, of a checkpoint or of a transformers model in memory.

    Reads this one tensor only. Raises ShapeError if the tokeniser belongs to another model.
    """
    with closing(open_store(model, session.hub)) as store, about(store.ref):
        name, notes = find_table(store, table)
        rows = float_shape(store, name)[0]
        vocabulary = read_tokenizer(store) if tokenizer is None else take_tokenizer(tokenizer)
        notes += _check_match(vocabulary, rows, name)
        store.open([name], lambda file: session.progress(Progress("download", file)))
        session.progress(Progress("read", name, 0, store.info(name).nbytes))
        matrix = store.read(name)
        tokens = {number: text for number, text in vocabulary.tokens.items() if number < rows}
        labels, words = label_tokens(tokens, vocabulary.special)
        is_word = torch.zeros(rows, dtype=torch.bool)
        is_word[list(words)] = True
        is_entry = torch.zeros(rows, dtype=torch.bool)
        is_entry[list(labels)] = True
        is_finite = flag_finite_rows(matrix)
        broken = int((is_entry & ~is_finite).sum())
        if broken:
            if broken == len(labels):
                raise CorruptCheckpointError(f"no row of {name} is finite; copy or download it again")
            notes.append(f"tokens with NaN or Inf in their vectors, left out: {broken:,}")
        return Embedding(
            store.ref,
            matrix,
            labels=[labels.get(row, "") for row in range(rows)],
            is_word=is_word & is_finite,
            is_entry=is_entry & is_finite,
            revision=store.revision,
            pieces=vocabulary.pieces,
            find_frame=vocabulary.find_frame,
            notes=tuple(notes),
        )


def find_table(store: TensorStore, table: Table) -> tuple[str, list[str]]:
    """The name of the tensor that holds the table, and notes about the choice.

    The unembedding is a matrix with about as many rows as the input embeddings. If the two are tied, either may be
    stored for both.
    Raises UnsupportedModelError with the names that were looked for.
    """
    inputs = next(_match_names(store, TABLE_NAMES["input"]), None) or _find_by_size(store)
    if table == "input" and inputs is not None:
        return inputs, []
    output = _find_output(store, inputs)
    are_tied = _are_tied(store.config)
    if table == "output":
        if output is not None:
            return output, []
        if inputs is not None and are_tied is not False:
            of_decoder = inputs.replace("encoder.", "decoder.")  # those of an encoder are other ones in T5Gemma
            tied = of_decoder if of_decoder in store.names else inputs
            return tied, ["no separate unembedding: tied to the input embeddings"]
        raise UnsupportedModelError(
            f"no unembedding matrix, looked for {', '.join(TABLE_NAMES['output'])}; set $table to input",
            "table",
        )
    if output is not None and are_tied and store.info(output).shape[0] in _list_vocabularies(store.config):
        return output, ["no separate input embeddings: tied to the unembedding"]
    names = [name for name in store.names if "emb" in name]
    shown = ", ".join(names[:SHOWN]) or "none"
    raise UnsupportedModelError(
        f"no token embeddings, looked for {', '.join(TABLE_NAMES['input'])}; names with 'emb' found: {shown}"
    )


def _find_output(store: TensorStore, inputs: str | None) -> str | None:
    """The unembedding that is stored; None if there is none. inputs: the input embeddings, if they are stored."""
    fewest_rows = 0 if inputs is None else LEAST_COVERED_SHARE * store.info(inputs).shape[0]
    outputs = _match_names(store, TABLE_NAMES["output"])
    return next((name for name in outputs if store.info(name).shape[0] >= fewest_rows), None)


def _are_tied(config: Mapping[str, Any]) -> bool | None:
    """Whether one table serves as input embeddings and unembedding: as config.json states, or its type by default.

    Of a model with parts, that of its text counts if the whole has none. None for a model type that transformers does
    not know.
    """
    parts = _list_text_sections(config)
    for fields in parts:
        if TIED in fields:
            return bool(fields[TIED])
    known = [load_defaults().get(str(fields.get("model_type"))) for fields in parts]
    stating = [defaults for defaults in known if defaults is not None]
    if not stating:
        return None
    return any(defaults.get(TIED, False) for defaults in stating)


def _list_text_sections(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The configuration, and the sections of it that describe text."""
    return [config, *(config[key] for key in MAIN if isinstance(config.get(key), Mapping))]


def _list_vocabularies(config: Mapping[str, Any]) -> list[Any]:
    """The sizes of vocabularies that the configuration states."""
    return [fields.get("vocab_size") for fields in _list_text_sections(config)]


def _match_names(store: TensorStore, names: tuple[str, ...]) -> Iterator[str]:
    """The two-dimensional tensors of these names, without those of vision or audio.

    In the order of `names`; for one name, short prefixes come first, then those of an encoder.
    """
    tensors = sorted(store.names, key=lambda tensor: (tensor.count("."), "encoder" not in tensor, tensor))
    for name in names:
        for tensor in tensors:
            has_name = tensor == name or tensor.endswith(f".{name}")
            if has_name and _is_table(store, tensor):
                yield tensor


def _is_table(store: TensorStore, name: str) -> bool:
    return not NOT_TEXT.search(name) and len(store.info(name).shape) == 2


def _find_by_size(store: TensorStore) -> str | None:
    """The table of an unknown family: the one tensor of embeddings with as many rows as config.json states tokens."""
    size = store.config.get("vocab_size")
    tables = (name for name in store.names if "emb" in name and _is_table(store, name))
    sized = [name for name in tables if store.info(name).shape[0] == size]
    return sized[0] if len(sized) == 1 else None


def _check_match(tokenizer: ModelTokenizer, rows: int, name: str) -> list[str]:
    """Raise ShapeError if the tokeniser cannot belong to this matrix; else return notes about smaller differences."""
    mismatch = f"the tokeniser does not match {name}"
    expected = "expected the tokeniser that the model was trained with"
    beyond = sorted(number for number in tokenizer.tokens if number >= rows)
    trained = [number for number in beyond if number not in tokenizer.added]
    if trained:
        raise ShapeError(
            f"the id of token {tokenizer.tokens[trained[0]]!r} is {trained[0]:,}, but the matrix has "
            f"{rows:,} rows; {expected}",
            subject=mismatch,
        )
    named = len(tokenizer.tokens) - len(beyond)
    if named < LEAST_COVERED_SHARE * rows:
        raise ShapeError(f"it has {named:,} tokens, but the matrix has {rows:,} rows; {expected}", subject=mismatch)
    notes = []
    if beyond:
        notes.append(f"added tokens without a vector: {len(beyond):,}")
    if named < rows:
        notes.append(f"rows without a token: {rows - named:,}")
    return notes
