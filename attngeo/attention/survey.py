"""Survey of a model for `attngeo inspect`: its attention sites, and the bytes that scores read, from headers alone."""

from __future__ import annotations

from typing import Any

from attngeo.attention.opened import Attention
from attngeo.attention.options import ReadingOptions, SourceOptions
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.local_files import require_model
from attngeo.checkpoints.reference import Model
from attngeo.checkpoints.store import TensorStore
from attngeo.keywords import takes
from attngeo.layouts.layout import AttentionSite
from attngeo.progress import ProgressCallback
from attngeo.session import Session


class InspectKeywords(SourceOptions, HubAccess):
    """The keywords of `inspect`."""

    source: SourceOptions | None = None
    hub: HubAccess | None = None
    progress: ProgressCallback | None = None


@takes(InspectKeywords)
def inspect(  # noqa: D417 - the keywords are those of a session
    model: Model, source: SourceOptions, *, session: Session
) -> dict[str, Any]:
    """What `attngeo.score` would read from a model by default, and what it would leave out. Reads no weights.

    Args:
        model: a reference (`org/name[@revision]`, folder, file, `demo:NAME`) or a transformers model in memory.
        source: adapters and config.json; its fields are keywords, too:
            {source}
        hub: access to the Hub; its fields are keywords, too:
            {hub}
        progress: called before each file.

    Returns:
        A dictionary with `model`, `adapter` if given, `revision` and `model_type`; `bytes_to_read`, `bytes_total` and
        their ratio `share_to_read`, None if unknown; `left_out`, name pattern → reason; `sites`, a list with a
        dictionary for each attention module; `names`, a list of all tensor names.

    Raises:
        ModelUnavailableError: the model cannot be found or reached.
        CheckpointError: the model cannot be scored.

    >>> import attngeo
    >>> found = attngeo.inspect("demo:minilm")
    >>> found["bytes_to_read"], len(found["sites"])
    (7077888, 6)
    """
    require_model(model, source.adapter, source.config)
    return survey(model, session, source=source)


def survey(model: Model, session: Session = Session(), *, source: SourceOptions = SourceOptions()) -> dict[str, Any]:
    """The result of `inspect`."""
    options = ReadingOptions.of(source, device="cpu")
    with Attention.open(model, options, session) as attention:
        store = attention.store
        to_read = sum(store.count_nbytes(site.reads) for site in attention.sites)
        total = store.total_nbytes
        share = None
        if total and to_read <= total:  # an index may state too little
            share = to_read / total
        return {
            "model": attention.ref,
            **({"adapter": list(source.adapter)} if source.adapter else {}),
            "revision": store.revision,
            "model_type": store.config.get("model_type"),
            "bytes_to_read": to_read,
            "bytes_total": total,
            "share_to_read": share,
            "left_out": attention.left_out,
            "sites": [_describe_site(store, site) for site in attention.sites],
            "names": list(store.names),
        }


def _describe_site(store: TensorStore, site: AttentionSite) -> dict[str, Any]:
    tensors = {}
    for name in site.tensors.values():
        info = store.info(name)
        tensors[name] = {"dtype": info.packed or info.dtype, "shape": list(info.shape)}
    return {
        "stack": site.stack,
        "layer": site.layer,
        "module": site.module,
        "heads": site.heads,
        "key_heads": site.key_heads,
        "head_dim": site.head_dim,
        "d_model": site.d_model,
        "rule": site.rule,
        "source": site.family.source or None,
        "bytes": store.count_nbytes(site.reads),
        "notes": list(site.notes),
        "tensors": tensors,
    }
