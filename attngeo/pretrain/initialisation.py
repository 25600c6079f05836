"""The start of training: sets the query and key weights of a model in memory, and nothing else of it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack, closing
from typing import Any

import torch

from attngeo.checkpoints.opening import open_store
from attngeo.checkpoints.reference import ModelRef
from attngeo.errors import UsageError
from attngeo.pretrain.options import INITS
from attngeo.pretrain.starts import CopiedStart, IdentityStart, LiveParameters, SymmetricStart
from attngeo.scores.weights import select, sites_of


def initialise(
    model: Any,
    init: Any,
    *,
    stack: str | None = None,
    layers: Iterable[int] | None = None,
    seed: int | torch.Generator | None = None,
) -> list[str]:
    """Set the query and key weights of a transformers model in memory; returns the names of the changed parameters.

    Biases, norms, values and the rest of a fused tensor stay bit for bit as they are. No parameter becomes an alias of
    another, so Wq and Wk differ after the first training step. With Wq, Wk [d_model, head_dim] of a head, M = Wq·Wkᵀ,
    and g(h) the key head of head h, `init` is one of:

    "default"     change nothing.
    "symmetric"   Wk := Wq; with fewer key heads than heads, Wq_h := Wk_g(h). M is symmetric, also with QK-norm, whose
                  two gains only put a diagonal between the factors. With rotary embeddings, M is that of equal
                  positions. Latent attention: the factors of Wq are set to those of Wk, up to rounding; if the query
                  latent is narrower than that of the keys, the keys first stop reading what it has no room for.
                  Source: Saponati et al. 2025 (arXiv 2502.10927), S2.1.
    "identity"    M := the nearest matrix of rank head_dim to 0.7·Z + 0.7·I, with Z of independent N(0, 1/d_model), as
                  Wq = U√Σ, Wk = V√Σ of its SVD. It is M before the model's own scale of the logits. Each key head has
                  one Z, which its query heads share, because one Wk can be the best for one M only. QK-norm: the gains
                  are undone, and if the norm subtracts the mean, the rank is head_dim − 1. This is the query and key
                  part of Trockman & Kolter 2023 (arXiv 2305.09828); values and projections stay as they are.
    a checkpoint  a reference (`org/name`, folder, file, `demo:NAME`, or a ModelRef) or another model in memory: Wq and
                  Wk of the same stack and layer, rounded to the model's dtype. Norm gains stay the model's own.

    stack, layers: change only these. seed: of "identity"; if it is None, torch's global generator is used. "symmetric"
    and "identity" skip cross-attention over inputs of another width, which has no square M.
    All checks are done before anything is written. Raises UsageError, the errors of reading a checkpoint
    (ModelUnavailableError, CheckpointError), ShapeError if the checkpoint's heads differ from the model's, and
    UnsupportedModelError if there is no exact form.

    >>> from transformers import BertConfig, BertModel
    >>> import attngeo
    >>> model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, vocab_size=16))
    >>> initialise(model, "symmetric")
    ['encoder.layer.0.attention.self.key.weight']
    >>> round(attngeo.score(model).symmetry.item(), 6)
    1.0
    """
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"model is a {type(model).__name__}, expected a transformers model in memory")
    named = isinstance(init, str) and init in INITS
    if named and init == "default":
        return []
    with ExitStack() as opened, torch.no_grad():
        store = opened.enter_context(closing(open_store(model)))
        live = LiveParameters(model, store)
        sites = select(sites_of(store)[0], stack, layers, store.ref)
        start: SymmetricStart | IdentityStart | CopiedStart
        if named:
            sites = [site for site in sites if site.d_model == site.key_width]
            start = SymmetricStart(live) if init == "symmetric" else IdentityStart(live, _make_generator(seed))
        else:
            start = CopiedStart(live, opened.enter_context(closing(open_store(_parse_checkpoint(init)))))
        for site in sites:
            live.check(site)
            start.check(site)
        for site in sites:
            start.write(site)
    return live.written


def check_init(init: str) -> None:
    """Raise as `initialise` does if `init` has no meaning, or is a checkpoint that cannot be opened."""
    if init not in INITS:
        open_store(_parse_checkpoint(init)).close()


def _parse_checkpoint(init: Any) -> Any:
    """The checkpoint that `init` names. Raises UsageError for a single word that is no file, which is often a typo."""
    if not isinstance(init, str):
        return init
    try:
        reference = ModelRef.parse(init)
    except UsageError:
        reference = None
    if reference is None or (reference.kind == "hub" and "/" not in reference.name):
        raise UsageError(
            f"init is {init!r}, expected one of: {', '.join(INITS)}; or org/name, demo:encoder, a folder or a file"
        )
    return reference


def _make_generator(seed: int | torch.Generator | None) -> torch.Generator | None:
    if seed is None or isinstance(seed, torch.Generator):
        return seed
    if type(seed) is not int:
        raise UsageError(f"seed is {seed!r}, expected an integer or a torch.Generator")
    return torch.Generator().manual_seed(seed)
