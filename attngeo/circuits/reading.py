"""The heads whose tokens `attngeo.words` lists: their sites, and their matrices as factors, gains included."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attngeo.attention.finding import select
from attngeo.attention.opened import Attention, SiteForms
from attngeo.attention.projections import require_outputs
from attngeo.bounds.names import list_names
from attngeo.checkpoints.store import TensorStore
from attngeo.circuits.products import HeadFactors
from attngeo.circuits.word_options import ALL, WordOptions
from attngeo.embeddings.embedding import Embedding
from attngeo.errors import CorruptCheckpointError, UnsupportedModelError, UsageError
from attngeo.layouts.layout import AttentionSite
from attngeo.layouts.model_types import list_unembeddings
from attngeo.layouts.names import join
from attngeo.progress import ignore_progress

# Stacks that read no embeddings of tokens; keys of cross-attention read what an encoder makes of them.
WITHOUT_TOKENS = ("vision", "audio", "cross")
FIRST_NUMBER = re.compile(r"\d+(?=\.|$)")


class NamedHead(NamedTuple):
    """A head and its matrix.

    Attributes:
        site: its layer.
        number: its number in the layer.
        factors: its matrix.
    """

    site: AttentionSite
    number: int
    factors: HeadFactors


def choose_sites(attention: Attention, table: str, options: WordOptions) -> list[AttentionSite]:
    """The sites of the layers, in the requested stack, or the first one whose tokens the circuit can connect.

    Args:
        attention: the open model.
        table: name of its token embeddings.
        options: which layers and heads.

    Raises:
        UsageError: there is no such layer or head.
        UnsupportedModelError: tokens say nothing of the stack, or its values and outputs are unknown.
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
    chosen = select(sites, stack, None if options.layer == ALL else [options.layer], store.ref)
    for site in chosen:
        if options.head != ALL and options.head >= site.heads:
            raise UsageError(
                f"no head {options.head} in layer {site.layer}, expected 0 to {site.heads - 1}", "head", "layer"
            )
    if explain(stack):
        raise UnsupportedModelError(f"{explain(stack)}; choose another stack with $stack", "stack")
    for site in chosen:
        require_outputs(site)
    return chosen


def read_layers(
    attention: Attention, sites: Sequence[AttentionSite], options: WordOptions
) -> Generator[list[NamedHead]]:
    """The heads of one site after the other, with the gains of the normalisations around them.

    Raises CorruptCheckpointError for a head with NaN or Inf in its weights.
    """
    gains = {}
    if options.circuit == "ov":
        gains = {site.module: _read_final_gain(attention.store, site) for site in sites}
    for forms in attention.read(sites, progress=ignore_progress):
        site = forms.site
        heads = []
        for number in list_heads(site, options):
            factors = _make_factors(forms, number, gains.get(site.module))
            if not all(factor.isfinite().all() for factor in (factors.left, factors.right)):
                raise CorruptCheckpointError(f"{site.module} has NaN or Inf in its weights; download the model again")
            heads.append(NamedHead(site, number, factors))
        yield heads


def list_heads(site: AttentionSite, options: WordOptions) -> Sequence[int]:
    """The numbers of the requested heads of a site."""
    return range(site.heads) if options.head == ALL else [options.head]


def _make_factors(forms: SiteForms, head: int, final_gain: tuple[Tensor, str] | None) -> HeadFactors:
    """The two factors of one head. final_gain: of the last normalisation, and a note, for values and outputs."""
    key_head = forms.key_heads[head]
    if forms.output is None or final_gain is None:
        assert forms.query_key is not None
        q, k, notes = forms.query_key
        return HeadFactors(q[head], k[key_head], notes)
    gain, note = final_gain
    outputs = forms.output
    return HeadFactors(outputs.v[key_head], outputs.o[head] * gain, [*outputs.notes, note])


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


def require_width(site: AttentionSite, embedding: Embedding, factor: Tensor) -> None:
    """Raise UnsupportedModelError unless the embeddings have as many dimensions as the factor [rank, d_model]."""
    width = embedding.matrix.shape[1]
    if width != factor.shape[1]:
        raise UnsupportedModelError(
            f"token embeddings have {width} dimensions, but {site.module} has {factor.shape[1]}: attngeo does not read "
            "the projection between them; choose another model"
        )
