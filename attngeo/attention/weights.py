"""The weights of the attention sites of a model, one site after the other: `attngeo.attention_sites`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Self

import torch
from torch import Tensor

from attngeo.attention.opened import Attention, SiteForms
from attngeo.attention.options import ReadingOptions
from attngeo.attention.projections import require_outputs
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.reference import Model
from attngeo.choices import PARTS_OF, Circuit
from attngeo.errors import UsageError
from attngeo.keywords import takes
from attngeo.layouts.layout import AttentionSite
from attngeo.options import Layers, Reference, References
from attngeo.session import Session


class _QueryKeyWeights(NamedTuple):
    """The values of `SiteWeights` as a tuple.

    Attributes:
        site: the attention site.
        wq: query weights, [heads, d_model, head_dim].
        wk: key weights, [key_heads, key_width, head_dim].
    """

    site: AttentionSite
    wq: Tensor
    wk: Tensor


class SiteWeights(_QueryKeyWeights):
    """One attention site and its weights. Unpacks as a tuple (site, wq, wk).

    Query head h reads key head and value head g(h) = h // (heads / key_heads). A token x is a row vector: its query is
    x @ wq[h], its key x @ wk[g(h)], and a head that attends to it with weight 1 writes x @ wv[g(h)] @ wo[h].

    Weights that you did not ask for have no heads: their first dimension is 0.

    Attributes:
        site: the attention site.
        wq: [heads, d_model, head_dim].
        wk: [key_heads, key_width, head_dim].
        wv: [key_heads, key_width, value_dim].
        wo: [heads, value_dim, output_width].
        bo: bias of the output projection, [output_width]; None without with_bias, or if it has none.

    With biases, the input widths of queries, keys and values are larger by one.
    """

    wv: Tensor
    wo: Tensor
    bo: Tensor | None

    def __new__(
        cls,
        site: AttentionSite,
        wq: Tensor,
        wk: Tensor,
        wv: Tensor | None = None,
        wo: Tensor | None = None,
        bo: Tensor | None = None,
    ) -> Self:
        """Create it from queries and keys, and perhaps values and outputs."""
        weights = super().__new__(cls, site, wq, wk)
        weights.wv = wk.new_empty(0, *wk.shape[1:]) if wv is None else wv
        weights.wo = wk.new_empty(0, site.head_dim, site.d_model) if wo is None else wo
        weights.bo = bo
        return weights


class SiteKeywords(HubAccess):
    """The keywords of `attention_sites`."""

    hub: HubAccess | None = None
    circuit: Circuit = "qk"
    stack: str | None = None
    layers: Layers | None = None
    with_bias: bool = False
    fold_norm: bool = False
    rope_offset: int = 0
    adapter: References = ()
    config: Reference | None = None
    dtype: torch.dtype = torch.float32


@takes(SiteKeywords)
def attention_sites(
    model: Model,
    *,
    circuit: Circuit = "qk",
    stack: str | None = None,
    layers: Layers | None = None,
    with_bias: bool = False,
    fold_norm: bool = False,
    rope_offset: int = 0,
    adapter: References = (),
    config: Reference | None = None,
    dtype: torch.dtype = torch.float32,
    hub: HubAccess,
) -> Iterator[SiteWeights]:
    """Iterate over the attention sites of a model, with their weights. Holds one site in memory at a time.

    Args:
        model: a reference (`org/name[@revision]`, folder, file, `demo:NAME`) or a transformers model in memory.
        circuit: the weights to read: "qk" for queries and keys, "ov" for values and outputs, "both" for all four.
        stack: read only this stack.
        layers: read only these layers, as numbers or as "0-3,7".
        with_bias: as for `score`.
        fold_norm: as for `score`.
        rope_offset: as for `score`.
        adapter: as for `score`.
        config: as for `score`.
        dtype: number type of the returned weights.
        hub: access to the Hub; its fields are keywords, too:
            {hub}

    Yields:
        Each site, with wq [heads, d_model, head_dim] and wk [key_heads, d_model, head_dim]; also, as attributes, wv
        [key_heads, d_model, value_dim] and wo [heads, value_dim, d_model].

    Raises:
        ModelUnavailableError: the model cannot be found or reached.
        CheckpointError: the model cannot be scored.
        UnsupportedModelError: you asked for values or outputs, and those of a site are unknown.
        UsageError: a value is invalid, or there is no such stack or layer.

    >>> import attngeo
    >>> [(site.layer, tuple(wq.shape)) for site, wq, wk in attngeo.attention_sites("demo:minilm", layers=[0, 1])]
    [(0, (12, 384, 32)), (1, (12, 384, 32))]
    >>> weights = next(attngeo.attention_sites("demo:minilm", circuit="both"))
    >>> (weights.wv @ weights.wo).shape  # what each head writes
    torch.Size([12, 384, 384])
    """
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise UsageError(f"$dtype is {dtype!r:.60}, expected a floating-point type, such as torch.float32", "dtype")
    options = ReadingOptions(
        stack=stack,
        layers=layers,
        with_bias=with_bias,
        fold_norm=fold_norm,
        rope_offset=rope_offset,
        adapter=adapter,
        config=config,
        device="cpu",
    )
    with Attention.open(model, options, Session(hub=hub), parts=PARTS_OF[circuit], dtype=dtype) as attention:
        for site in attention.sites:
            require_outputs(site)
            yield _build_weights(attention.read_site(site), dtype)


def _build_weights(forms: SiteForms, dtype: torch.dtype) -> SiteWeights:
    """The requested weights of a site."""
    site = forms.site
    q = torch.empty(0, site.head_dim, site.d_model, dtype=dtype)
    k = torch.empty(0, site.head_dim, site.key_width, dtype=dtype)
    if forms.query_key is not None:
        q, k, _ = forms.query_key
    if forms.output is None:
        return SiteWeights(site, q.mT, k.mT)
    v, o, bias, _ = forms.output
    return SiteWeights(site, q.mT, k.mT, v.mT, o, bias)
