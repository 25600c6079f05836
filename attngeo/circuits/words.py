"""The tokens that a head connects, from its weights and the token embeddings: `attngeo.words`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from attngeo.bounds.names import printable
from attngeo.bounds.small_files import read_small_text
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.opening import open_store
from attngeo.checkpoints.reference import Model
from attngeo.choices import advise
from attngeo.circuits.word_options import WordOptions
from attngeo.devices import pick_device
from attngeo.embeddings.embedding import Embedding
from attngeo.embeddings.opening import find_table, open_embedding
from attngeo.errors import CorruptCheckpointError, DataUnavailableError, UnsupportedModelError, UsageError, about
from attngeo.geometry.pairs import largest_of_all, largest_of_rows
from attngeo.keywords import takes
from attngeo.layouts.layout import AttentionSite, Tensors
from attngeo.progress import Progress, ProgressCallback
from attngeo.scores.options import ScoreOptions
from attngeo.scores.projections import key_heads_of, projections
from attngeo.scores.weights import read, select, sites_of
from attngeo.session import Session

COLUMNS = (
    "model", "revision", "stack", "layer", "head", "circuit", "kind", "token", "token_id", "other", "other_id", "rank",
    "value", "chance",
)  # fmt: skip
# Stacks that read no embeddings of tokens; keys of cross-attention read what an encoder makes of them.
WITHOUT_TOKENS = ("vision", "audio", "cross")
FOLDED = ScoreOptions(fold_norm=True)
# Rows of the embeddings that are multiplied at a time, so that no second table of them is in memory.
ROWS = 8192


class WordKeywords(WordOptions, HubAccess):
    """The keywords of `words`."""

    options: WordOptions | None = None
    hub: HubAccess | None = None
    tokeniser: Any = None
    progress: ProgressCallback | None = None


class Circuit(NamedTuple):
    """A head's matrix as two factors [rank, d_model]: its value for two tokens is (left·x)·(right·y)."""

    left: Tensor
    right: Tensor


@takes(WordKeywords)
def words(model: Model, options: WordOptions, *, tokeniser: Any = None, session: Session) -> pd.DataFrame:
    """The pairs of tokens that one head connects most, by its weights and the token embeddings alone.

    E·W_qk·Eᵀ, for embeddings E [tokens, d_model], says which token attends to which. The gain of the normalisation
    before attention is folded in; its division, biases and positions are left out, and so is all that other layers add
    to the embeddings. No more than a block of the matrix is in memory.

    Args:
        model: as for `attngeo.score`; it needs token embeddings.
        {options}
        {hub}
        tokeniser: of transformers or tokenizers, required for a model in memory; a checkpoint has its own.
        progress: called while files are read.

    Returns:
        One row for each pair, the largest values first:

            model, revision, stack, layer, head, circuit
            kind              "attends": `token` attends to `other`
            token, token_id   its label (`##` marks a piece inside a word), and its number
            other, other_id
            rank              from 1, among all pairs, or among those of the token
            value             of the pair
            chance            the value of this rank if the dimensions of the embeddings are shuffled, those of `token`
                              and of `other` each on their own

        Its `attrs` have the notes.

    Raises:
        ModelUnavailableError: the model cannot be found or reached.
        CheckpointError: it cannot be read, has no token embeddings, or this layer does not read them.
        UsageError: there is no such layer, head or token.

    >>> import attngeo
    >>> found = attngeo.words("demo:minilm", layer=0, head=0, top=1)
    >>> found.token.item(), found.other.item()
    ('', '')
    """
    device = pick_device(options.device)
    labels = None if options.tokens is None else _read_labels(options.tokens)
    with torch.inference_mode():
        with closing(open_store(model, session.hub)) as store, about(store.ref):
            sites, _ = sites_of(store, FOLDED)
            site = select(sites, options.stack or sites[0].stack, [options.layer], store.ref)[0]
            _require_tokens(site, find_table(store, "input")[0], options)
            circuit, notes = _read_circuit(site, read(store, site), options.head)
        embedding = open_embedding(model, tokeniser=tokeniser, hub=session.hub, progress=session.progress)
        with about(embedding.ref):
            _require_width(site, embedding)
            asked = None if labels is None else _find_rows(labels, embedding)
            pairs = _find_pairs(circuit, embedding, asked, options.top, device, session.progress)
            shuffled = _shuffle(circuit, options.seed)
            chance = _find_pairs(shuffled, embedding, asked, options.top, device, session.progress)
    first = {
        "model": embedding.ref,
        "revision": embedding.revision,
        "stack": site.stack,
        "layer": site.layer,
        "head": options.head,
        "circuit": options.circuit,
        "kind": "attends",
    }
    frame = pd.DataFrame(pairs).assign(chance=[pair["value"] for pair in chance], **first)[[*COLUMNS]]
    frame.attrs = {"notes": [*notes, *embedding.notes], "seed": options.seed, "device": str(device)}
    return frame


def _require_tokens(site: AttentionSite, table: str, options: WordOptions) -> None:
    """Raise unless there is such a head, and its layer is in a stack that reads the token embeddings `table`."""
    if options.head >= site.heads:
        raise UsageError(
            f"no head {options.head} in layer {site.layer}, expected from 0 to {site.heads - 1}", "head", "layer"
        )
    of_other_stack = site.stack.startswith("encoder") and ".decoder." in f".{table}"
    if of_other_stack or site.stack.startswith(WITHOUT_TOKENS):
        raise UnsupportedModelError(
            f"stack {site.stack!r} does not read the token embeddings {table}; choose another stack with $stack",
            "stack",
        )


def _read_circuit(site: AttentionSite, tensors: Tensors, head: int) -> tuple[Circuit, list[str]]:
    """The queries and keys of one head, and notes about them."""
    q, k, notes = projections(site, tensors, FOLDED, dtype=torch.float32)
    circuit = Circuit(q[head], k[key_heads_of(site, "corrected")[head]])
    if not all(factor.isfinite().all() for factor in circuit):
        raise CorruptCheckpointError(f"{site.module} has NaN or Inf in its weights; download the model again")
    return circuit, notes


def _require_width(site: AttentionSite, embedding: Embedding) -> None:
    width = embedding.matrix.shape[1]
    if width != site.d_model:
        raise UnsupportedModelError(
            f"token embeddings have {width} dimensions, but {site.module} reads {site.d_model}: a projection that is "
            "not read lies between them; choose another model"
        )


def _read_labels(file: str) -> dict[str, str]:
    """The tokens in a file, one on a line, and where each is. Raises DataUnavailableError or UsageError."""
    try:
        lines = read_small_text(Path(file), encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise DataUnavailableError(f"{file}: the list of tokens cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise UsageError(f"{file}: expected UTF-8 text with one token on each line, but {error}", "tokens") from None
    labels: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        label = line.strip()
        if label:
            labels.setdefault(label, f"{file}:{number}")
    if not labels:
        raise UsageError(f"{file}: no tokens, expected one on each line", "tokens")
    return labels


def _find_rows(labels: dict[str, str], embedding: Embedding) -> list[int]:
    """The rows of tokens in the embeddings. Raises UsageError for one that the model does not have."""
    rows = {printable(embedding.labels[row]): row for row in reversed(embedding.candidate_rows("all").tolist())}
    for label, place in labels.items():
        if label not in rows:
            advice = advise(label, rows, "the column token of a run without $tokens has tokens as they are written")
            raise UsageError(f"{place}: no token {label!r:.60}; {advice}", "tokens")
    return [rows[label] for label in labels]


def _shuffle(circuit: Circuit, seed: int) -> Circuit:
    """The circuit whose value for two tokens is that of their embeddings with shuffled dimensions."""
    generator = torch.Generator().manual_seed(seed)
    return Circuit(*(factor[:, torch.randperm(factor.shape[1], generator=generator)] for factor in circuit))


def _find_pairs(
    circuit: Circuit,
    embedding: Embedding,
    asked: list[int] | None,
    top: int,
    device: torch.device,
    progress: ProgressCallback,
) -> list[dict[str, Any]]:
    """The pairs of tokens with the largest values: of all, or for each token that is asked about."""
    others = embedding.candidate_rows("all")
    tokens = others if asked is None else torch.tensor(asked)
    left = _project(embedding.matrix, tokens, circuit.left, device)
    right = _project(embedding.matrix, others, circuit.right, device)
    if asked is None:
        entries = largest_of_all(
            left,
            right,
            top,
            progress=lambda done: progress(Progress("ask", "pairs of tokens", done, len(left), "steps")),
        )
        ranks = [*range(1, len(entries.values) + 1)]
    else:
        entries = largest_of_rows(left, right, top)
        ranks = [*range(1, entries.values.shape[1] + 1)] * len(asked)
    token_ids = tokens[entries.rows.cpu()].flatten().tolist()
    other_ids = others[entries.columns.cpu()].flatten().tolist()
    values = entries.values.flatten().tolist()
    return [
        {
            "token": printable(embedding.labels[token]),
            "token_id": token,
            "other": printable(embedding.labels[other]),
            "other_id": other,
            "rank": rank,
            "value": value,
        }
        for token, other, rank, value in zip(token_ids, other_ids, ranks, values, strict=True)
    ]


def _project(matrix: Tensor, rows: Tensor, factor: Tensor, device: torch.device) -> Tensor:
    """The rows of the embeddings times a factor [rank, d_model]: [rows, rank], float32, on the device."""
    weight = factor.T.to(device)
    return torch.cat([matrix[block].to(device, torch.float32) @ weight for block in torch.split(rows, ROWS)])
