"""`attngeo inspect`: what `attngeo score` would read, and why."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

from .messages import printable
from .options import FindingsFormat, Model, Offline, Quiet, Verbose

if TYPE_CHECKING:
    from attngeo.checkpoints.store import TensorStore


def inspect(
    model: Model,
    format: FindingsFormat = "table",
    offline: Offline = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Show what score would read of a model. Reads no weights.

    Lists the stacks, layers and heads, the rule that found them, the tensors, and the number of bytes to read.

    Examples:
        attngeo inspect demo:minilm
        attngeo inspect mistralai/Mistral-7B-v0.1 --format json
    """
    from attngeo.checkpoints.opening import open_store

    from .progress import Bar

    with Bar(model, quiet=quiet, verbose=verbose), closing(open_store(model, offline=offline)) as store:
        found = _findings(store)
    if format == "json":
        sys.stdout.write(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    else:
        _print(found)


def _findings(store: TensorStore) -> dict[str, Any]:
    from attngeo.scores.projections import sites_of
    from attngeo.scores.scoring import site_nbytes

    sites, skipped = sites_of(store)
    return {
        "model": store.ref,
        "revision": store.revision,
        "model_type": store.config.get("model_type"),
        "bytes_to_read": sum(site_nbytes(store, site) for site in sites),
        "bytes_total": store.total_nbytes,
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


def _print(found: dict[str, Any]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.filesize import decimal
    from rich.table import Table
    from rich.text import Text

    from .console import Terminal, drop_columns

    console = Terminal(markup=False)
    revision = f"@{found['revision'][:12]}" if found["revision"] else ""
    total = decimal(found["bytes_total"]) if found["bytes_total"] else "an unknown total"
    console.print(f"{found['model']}{revision} · {found['model_type'] or 'unknown'}", highlight=False, style="bold")
    console.print(f"to read: {decimal(found['bytes_to_read'])} of {total}", highlight=False)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("stack", "layers", "heads", "key heads", "head_dim", "d_model"):
        table.add_column(name, justify="left" if name == "stack" else "right", overflow="fold")
    stacks: dict[str, list[dict[str, Any]]] = {}
    for site in found["sites"]:
        stacks.setdefault(site["stack"], []).append(site)
    for stack, sites in stacks.items():
        sizes = (_range(sites, name) for name in ("heads", "key_heads", "head_dim", "d_model"))
        table.add_row(*map(Text, (printable(stack), str(len(sites)), *sizes)))
    console.print(drop_columns(table, console, ["key heads", "head_dim"]))
    for stack, sites in stacks.items():
        first = sites[0]
        console.print(f"{stack}: {first['rule']}", highlight=False, style="bold")
        if first["source"]:
            console.print(f"  read from {first['source']}", highlight=False, style="dim", soft_wrap=True)
        for name, info in first["tensors"].items():
            console.print(f"  {printable(name)}  {info['dtype']} {info['shape']}", highlight=False, soft_wrap=True)
        for text in dict.fromkeys(text for site in sites for text in site["notes"]):
            console.print(f"  note: {text}", highlight=False, style="dim", soft_wrap=True)
    for pattern, reason in found["left_out"].items():
        console.print(f"left out: {printable(pattern)}: {printable(reason)}", highlight=False)


def _range(sites: list[dict[str, Any]], name: str) -> str:
    values = sorted({site[name] for site in sites})
    return str(values[0]) if len(values) == 1 else f"{values[0]}–{values[-1]}"
