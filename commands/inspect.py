"""`attngeo inspect`: what `attngeo score` would read, and why."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

from attngeo.bounds.escape import dump_json
from attngeo.checkpoints.access import HubAccess

from .declare import take_options
from .options import FindingsFormat, Model, Quiet, Verbose

if TYPE_CHECKING:
    from attngeo.checkpoints.store import TensorStore


@take_options(HubAccess, "hub")
def inspect(
    model: Model,
    format: FindingsFormat = "table",
    hub: HubAccess = HubAccess(),
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Show what score would read of a model, what it leaves out, and why. Reads no weights.

    Begins with the cost: bytes that score would read, of how many, and for a model on the Hub the requests for them.
    Lists stacks and their sizes; then the modules that attend, by their names with # for a number, with their tensors
    and the rule that found them; then what is left out, with the reason. With -v, lists every single module.

    Examples:
        attngeo inspect demo:minilm
        attngeo inspect mistralai/Mistral-7B-v0.1 --format json
    """
    from attngeo.checkpoints.opening import open_store

    from .progress import Bar

    with Bar(model, quiet=quiet, verbose=verbose), closing(open_store(model, hub)) as store:
        found = _findings(store)
        names = list(store.names)
    if format == "json":
        sys.stdout.write(dump_json(found, indent=2) + "\n")
    else:
        from .render_inspect import print_findings

        print_findings(found, names, verbose=verbose)


def _findings(store: TensorStore) -> dict[str, Any]:
    from attngeo.scores.pipeline import site_nbytes
    from attngeo.scores.projections import sites_of

    sites, skipped = sites_of(store)
    to_read, total = sum(site_nbytes(store, site) for site in sites), store.total_nbytes
    requests = store.count_requests(site.reads for site in sites)
    return {
        "model": store.ref,
        "revision": store.revision,
        "model_type": store.config.get("model_type"),
        "bytes_to_read": to_read,
        "bytes_total": total,
        "share_to_read": to_read / total if total and to_read <= total else None,  # an index may state too little
        "requests": sum(requests.values()),
        "remote_files": len(requests),
        "left_out": skipped,
        "sites": [
            {
                "stack": site.stack, "layer": site.layer, "module": site.module, "heads": site.heads,
                "key_heads": site.key_heads, "head_dim": site.head_dim, "d_model": site.d_model, "rule": site.rule,
                "source": site.family.source or None, "bytes": site_nbytes(store, site), "notes": list(site.notes),
                "tensors": {
                    name: {"dtype": store.info(name).dtype, "shape": list(store.info(name).shape)}
                    for name in site.tensors.values()
                },
            }
            for site in sites
        ],
    }  # fmt: skip
