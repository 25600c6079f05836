"""`attngeo inspect`: what `attngeo score` would read, and why."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

from attngeo.layouts.modules import pattern_of

from .cells import name_layers
from .messages import printable
from .options import FindingsFormat, Model, Offline, Quiet, Verbose

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from attngeo.checkpoints.store import TensorStore


def inspect(
    model: Model,
    format: FindingsFormat = "table",
    offline: Offline = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Show what score would read of a model, what it leaves out, and why. Reads no weights.

    Lists stacks and their sizes; then the modules that attend, by their names with # for a number, with their tensors
    and the rule that found them; then what is left out, with the reason. With -v, lists every single module.

    Examples:
        attngeo inspect demo:minilm
        attngeo inspect mistralai/Mistral-7B-v0.1 --format json
    """
    from attngeo.checkpoints.opening import open_store

    from .progress import Bar

    with Bar(model, quiet=quiet, verbose=verbose), closing(open_store(model, offline=offline)) as store:
        found = _findings(store)
        left_out = _list_left_out(store.names, found)
    if format == "json":
        sys.stdout.write(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    else:
        _print(found, left_out, verbose=verbose)


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


def _print(found: dict[str, Any], left_out: dict[str, list[str]], *, verbose: bool) -> None:
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
    console.print("read", style="bold")
    for sites in stacks.values():
        _print_modules(console, sites, verbose=verbose)
    if left_out:
        console.print("left out", style="bold")
    for pattern, names in left_out.items():
        _print_line(console, f"  {_describe(pattern, names)}")
        console.print(f"    {printable(found['left_out'][pattern])}", highlight=False)
        for name in names if verbose else ():
            _print_line(console, f"    {name}", dim=True)
    for text in dict.fromkeys(text for site in found["sites"] for text in site["notes"]):
        _print_line(console, f"note: {text}", dim=True)
    for source in dict.fromkeys(filter(None, (site["source"] for site in found["sites"]))):
        _print_line(console, f"source: {source}", dim=True)


def _print_modules(console: Console, sites: list[dict[str, Any]], *, verbose: bool) -> None:
    """The modules of one stack: their layers and heads, their tensors, and how they were found."""
    first, heads = sites[0], _range(sites, "heads")
    what = _describe(pattern_of(first["module"]), [site["module"] for site in sites])
    _print_line(console, f"  {what} · {heads} {'head' if heads == '1' else 'heads'}")
    tensors = (
        f"{name.removeprefix(first['module'] + '.')} {info['dtype']} {info['shape']}"
        for name, info in first["tensors"].items()
    )
    _print_line(console, f"    {', '.join(tensors)} · by {first['rule'].partition(':')[0]}")
    for site in sites if verbose else ():
        sizes = f"{site['heads']} heads, {site['key_heads']} key heads, head_dim {site['head_dim']}"
        _print_line(console, f"    {site['module']} · {sizes}", dim=True)


def _print_line(console: Console, text: str, *, dim: bool = False) -> None:
    """One line that is not cut, so that names can be copied."""
    console.print(printable(text), highlight=False, soft_wrap=True, style="dim" if dim else "")


def _list_left_out(names: Iterable[str], found: dict[str, Any]) -> dict[str, list[str]]:
    """Pattern that is left out → the names of its modules or tensors, without those that are read all the same."""
    read = {site["module"] for site in found["sites"]}
    members: dict[str, dict[str, None]] = {pattern: {} for pattern in found["left_out"]}
    for name in names:
        parts = name.split(".")
        for pattern in members:
            own = ".".join(parts[: pattern.count(".") + 1])
            if pattern_of(own) == pattern and own not in read:
                members[pattern][own] = None
    return {pattern: sorted(own, key=_numbers_in) for pattern, own in members.items()}


def _describe(pattern: str, names: list[str]) -> str:
    """The pattern, and which layers it stands for: if several of its numbers vary, how many modules."""
    numbers = [set(values) for values in zip(*map(_numbers_in, names), strict=True)]
    varying = [values for values in numbers if len(values) > 1] or numbers[:1]
    if not varying:
        return pattern or "the model itself"
    return f"{pattern} · {name_layers(varying[0]) if len(varying) == 1 else f'{len(names)} modules'}"


def _numbers_in(name: str) -> list[int]:
    return [int(part) for part in name.split(".") if part.isdecimal()]


def _range(sites: list[dict[str, Any]], name: str) -> str:
    values = sorted({site[name] for site in sites})
    return str(values[0]) if len(values) == 1 else f"{values[0]}–{values[-1]}"
