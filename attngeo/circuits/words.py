"""The tokens that a head connects, from its weights and the token embeddings: `attngeo.words`."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from attngeo.attention.finding import select
from attngeo.attention.opened import Attention
from attngeo.attention.options import ReadingOptions
from attngeo.attention.projections import require_outputs
from attngeo.bounds.names import list_names, printable
from attngeo.bounds.small_files import read_small_text
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.reference import Model
from attngeo.checkpoints.store import TensorStore
from attngeo.choices import PARTS_OF, advise
from attngeo.circuits.products import HeadFactors, Side, copying_score, find_pairs
from attngeo.circuits.word_options import WORD_COLUMNS, WordOptions
from attngeo.devices import pick_device
from attngeo.embeddings.embedding import Embedding
from attngeo.embeddings.opening import find_table, open_embedding
from attngeo.errors import (
    CorruptCheckpointError,
    DataError,
    DataUnavailableError,
    UnsupportedModelError,
    UsageError,
    about,
)
from attngeo.keywords import takes
from attngeo.layouts.layout import AttentionSite
from attngeo.layouts.model_types import list_unembeddings
from attngeo.layouts.names import join
from attngeo.progress import ProgressCallback
from attngeo.provenance import machine, software
from attngeo.questions.frames import set_types
from attngeo.session import Session

# Stacks that read no embeddings of tokens; keys of cross-attention read what an encoder makes of them.
WITHOUT_TOKENS = ("vision", "audio", "cross")
FOLDED = ReadingOptions(fold_norm=True, device="cpu")
# The kinds of pairs of a circuit.
KINDS = {"qk": ("attends",), "ov": ("promotes", "suppresses")}
FIRST_NUMBER = re.compile(r"\d+(?=\.|$)")


class WordKeywords(WordOptions, HubAccess):
    """The keywords of `words`."""

    options: WordOptions | None = None
    hub: HubAccess | None = None
    tokenizer: Any = None
    progress: ProgressCallback | None = None


@takes(WordKeywords)
def words(model: Model, options: WordOptions, *, tokenizer: Any = None, session: Session) -> pd.DataFrame:
    """The token pairs that one head connects most, computed from its weights and the token embeddings.

    With embeddings E and unembedding U, [tokens, d_model] each, E·W_qk·Eᵀ says which token attends to which, and
    E·Wv·Wo·Uᵀ how much an attended token raises the logit of each token. The gains of the normalisations before and
    after attention and of the last one are folded in; their divisions, biases, positions and the work of other layers
    are left out. Only a block of the matrix is in memory at a time.

    Args:
        model: as for `attngeo.score`; it needs token embeddings.
        {options}
        {hub}
        tokenizer: a tokenizer from transformers or tokenizers; required for a model in memory.
        progress: called while files are read.

    Returns:
        A DataFrame with one row per pair, the largest values of each kind first:

            model, revision, stack, layer, head, circuit
            kind               "attends" (qk): `token` attends to `target`; "promotes" and "suppresses" (ov): an
                               attended `token` raises or lowers the logit of `target`
            token, token_id    label (`##` marks a piece inside a word) and number of the token
            target, target_id  the same for the target
            rank               from 1, among all pairs of a kind, or among the pairs of the token
            value              value of the pair
            value_chance       value of the same rank with shuffled embedding dimensions, in a different order for
                               `token` and `target`
            note               caveats

        Its `attrs` say how it was made, with notes and, for ov, the `copying_score` of the head and its
        `copying_score_chance`: Σ Re λ / Σ |λ| over the eigenvalues λ of E·Wv·Wo·Uᵀ, and the same with shuffled
        dimensions.

    Raises:
        ModelUnavailableError: the model cannot be found or reached.
        CheckpointError: the model cannot be read or has no token embeddings, or the layer does not read them.
        UsageError: the layer, head or token does not exist.

    >>> import attngeo
    >>> found = attngeo.words("demo:encoder", layer=1, head=1, top=1)
    >>> found.token.item(), found.target.item()
    ('"', 'continued')
    """
    device = pick_device(options.device)
    labels = None if options.tokens is None else _read_labels(options.tokens)
    with torch.inference_mode():
        with Attention.open(model, FOLDED, session, parts=PARTS_OF[options.circuit]) as attention, about(attention.ref):
            store = attention.store
            table, _ = find_table(store, "input")
            output_table, table_notes = find_table(store, "output") if options.circuit == "ov" else (table, [])
            site = _choose_site(attention, table, options)
            circuit = _read_circuit(attention, site, options.head)
        open_table = partial(open_embedding, model, tokenizer=tokenizer, hub=session.hub, progress=session.progress)
        inputs = open_table()
        outputs = inputs if output_table == table else open_table(table="output")
        with about(inputs.ref):
            tokens = Side(inputs, inputs.answer_rows("all"))
            others = Side(outputs, outputs.answer_rows("all"))
            for side, factor in ((tokens, circuit.left), (others, circuit.right)):
                _require_width(site, side.embedding, factor)
            asked = tokens if labels is None else Side(inputs, _find_rows(labels, inputs))
            shuffled = circuit.shuffle(options.seed)
            parts = []
            for kind in KINDS[options.circuit]:
                find = partial(
                    find_pairs,
                    asked,
                    others,
                    count=options.top,
                    each=labels is not None,
                    largest=kind != "suppresses",
                    device=device,
                    progress=session.progress,
                )
                parts.append(pd.DataFrame(find(circuit)).assign(kind=kind, value_chance=find(shuffled)["value"]))
            copying: dict[str, float] = {}
            if options.circuit == "ov":
                copying["copying_score"] = copying_score(tokens, others, circuit)
                copying["copying_score_chance"] = copying_score(tokens, others, shuffled)
    notes = [str(note) for note in dict.fromkeys([*circuit.notes, *table_notes, *inputs.notes, *outputs.notes])]
    place = {
        "model": inputs.ref,
        "revision": inputs.revision,
        "stack": site.stack,
        "layer": site.layer,
        "head": options.head,
        "circuit": options.circuit,
        "note": "; ".join(notes),
    }
    frame = set_types(pd.concat(parts, ignore_index=True).assign(**place)[[*WORD_COLUMNS]])
    origin: dict[Any, Any] = {"title": "Tokens that a head connects"}
    origin |= software() | machine() | dict(options)
    origin |= {"model": inputs.ref, "revision": inputs.revision, "stack": site.stack, "device": str(device)}
    frame.attrs = origin | {"notes": notes} | copying
    return frame


def _choose_site(attention: Attention, table: str, options: WordOptions) -> AttentionSite:
    """The site of the layer, in the stack that is asked for, or the first one whose tokens the circuit can connect.

    table: the token embeddings. Raises UsageError if there is no such layer or head, UnsupportedModelError if tokens
    say nothing of the stack.
    """
    sites = attention.sites
    store = attention.store
    has_decoder = any(site.is_cross for site in sites) or store.config.get("is_encoder_decoder") is True

    def explain(stack: str) -> str:
        """Why the circuit connects no tokens in a stack; "" if it does."""
        of_other_stack = stack.startswith("encoder") and ".decoder." in f".{table}"
        if stack.startswith("decoder") and ".encoder." in f".{table}":  # the decoder may have its own
            of_other_stack = table.replace("encoder.", "decoder.") in store.names
        if of_other_stack or stack.startswith(WITHOUT_TOKENS):
            return f"stack {stack!r} does not read the token embeddings {table}"
        if options.circuit == "ov" and has_decoder and stack.startswith("encoder"):
            return f"stack {stack!r} writes for a decoder, not for the unembedding"
        return ""

    stacks = dict.fromkeys(site.stack for site in sites)
    stack = options.stack or next((name for name in stacks if not explain(name)), sites[0].stack)
    site = select(sites, stack, [options.layer], store.ref)[0]
    if options.head >= site.heads:
        raise UsageError(
            f"no head {options.head} in layer {site.layer}, expected 0 to {site.heads - 1}", "head", "layer"
        )
    if explain(stack):
        raise UnsupportedModelError(f"{explain(stack)}; choose another stack with $stack", "stack")
    return site


def _read_circuit(attention: Attention, site: AttentionSite, head: int) -> HeadFactors:
    """The two factors of one head, with the gains of the normalisations around them."""
    require_outputs(site)
    forms = attention.read_site(site)
    key_head = forms.key_heads[head]
    if forms.output is None:
        assert forms.query_key is not None
        q, k, notes = forms.query_key
        circuit = HeadFactors(q[head], k[key_head], notes)
    else:
        gain, note = _read_final_gain(attention.store, site)
        outputs = forms.output
        circuit = HeadFactors(outputs.v[key_head], outputs.o[head] * gain, [*outputs.notes, note])
    if not all(factor.isfinite().all() for factor in (circuit.left, circuit.right)):
        raise CorruptCheckpointError(f"{site.module} has NaN or Inf in its weights; download the model again")
    return circuit


def _read_final_gain(store: TensorStore, site: AttentionSite) -> tuple[Tensor, str]:
    """The gain of the last normalisation of the stack of a site, [output_width], or ones; and a note."""
    nothing = torch.ones(site.output_width)
    types = [str(fields.get("model_type")) for fields in (site.section, store.config)]
    known = list_unembeddings()
    before = next((known[name] for name in types if name in known), None)
    if before is None:
        unknown = f"attngeo does not know the last norm of model type {types[-1]!r:.40}"
        return nothing, f"no norm folded before the unembedding: {unknown}"
    if before.layers:
        names = list_names(before.layers)
        return nothing, f"left out, between the last layer and the unembedding: {names}"
    if not before.norm:
        return nothing, "the last normalisation has no gain"
    around = FIRST_NUMBER.split(site.module)[0]  # the list of layers, as in "model.layers.0.self_attn"
    name = join(around.rstrip(".").rpartition(".")[0], f"{before.norm}.weight")
    if name not in store.names:
        return nothing, f"gain of the last normalisation not folded: no tensor {name}"
    store.open([name])
    return store.read(name).float() + before.gain_offset, "gain of the last normalisation folded"


def _require_width(site: AttentionSite, embedding: Embedding, factor: Tensor) -> None:
    """Raise UnsupportedModelError unless the embeddings have as many dimensions as the factor [rank, d_model]."""
    width = embedding.matrix.shape[1]
    if width != factor.shape[1]:
        raise UnsupportedModelError(
            f"token embeddings have {width} dimensions, but {site.module} has {factor.shape[1]}: attngeo does not read "
            "the projection between them; choose another model"
        )


def _read_labels(file: str) -> dict[str, str]:
    """The tokens in a file, one on a line, and where each is. Raises DataUnavailableError, DataError or UsageError."""
    try:
        lines = read_small_text(Path(file), encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise DataUnavailableError(
            f"the list of tokens cannot be read ({error.strerror}); expected a text file with one token per line",
            subject=file,
        ) from None
    except ValueError as error:
        raise DataError(f"{error}; expected one token per line", subject=file) from None
    labels: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        label = line.strip()
        if label:
            labels.setdefault(label, f"{file}:{number}")
    if not labels:
        raise UsageError("no tokens, expected one per line", "tokens", subject=file)
    return labels


def _find_rows(labels: dict[str, str], embedding: Embedding) -> Tensor:
    """The rows of tokens in the embeddings, int64. Raises UsageError for one that the model does not have."""
    rows = {printable(embedding.labels[row]): row for row in reversed(embedding.answer_rows("all").tolist())}
    for label, place in labels.items():
        if label not in rows:
            advice = advise(label, rows, 'run without $tokens, and see the column "token" for how tokens are written')
            pieces = embedding.pieces(label) if embedding.pieces is not None else None
            written = [repr(printable(embedding.labels[row])) for row in pieces or []]
            parts = f", which the model writes as {list_names(written)}" if len(written) > 1 else ""
            raise UsageError(f"no token {label!r:.60}{parts}; {advice}", "tokens", subject=place)
    return torch.tensor([rows[label] for label in labels])
