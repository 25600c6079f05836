"""What `attngeo inspect` found, for people: stacks, modules that are read, and what is left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from attngeo.bounds import printable
from attngeo.layouts.names import pattern_of

from .tables import MISSING, Terminal, drop_columns, name_layers

if TYPE_CHECKING:
    from rich.console import Console


def print_findings(found: dict[str, Any], names: Iterable[str], *, verbose: bool) -> None:
    """Print a table of the stacks, then what is read and what is left out, one pattern of names after the other.

    names: of all tensors of the model. verbose: whether every single module is listed, too.
    """
    console = Terminal()
    revision = f"@{found['revision'][:12]}" if found["revision"] else ""
    title = printable(f"{found['model']}{revision} · {found['model_type'] or 'unknown'}")
    console.print(title, highlight=False, style="bold")
    for line in _describe_cost(found):
        console.print(line, highlight=False)
    stacks: dict[str, list[dict[str, Any]]] = {}
    for site in found["sites"]:
        stacks.setdefault(site["stack"], []).append(site)
    _print_stacks(console, stacks)
    console.print("read", style="bold")
    for sites in stacks.values():
        _print_modules(console, sites, verbose=verbose)
    if left_out := _list_left_out(names, found):
        console.print("left out", style="bold")
    for pattern, members in left_out.items():
        _print_wrapped(console, _describe(pattern, members), indent=2)
        _print_wrapped(console, found["left_out"][pattern], indent=4)
        for name in members if verbose else ():
            _print_line(console, f"    {name}", dim=True)
    for text in dict.fromkeys(text for site in found["sites"] for text in site["notes"]):
        _print_line(console, f"note: {text}", dim=True)
    for source in dict.fromkeys(filter(None, (site["source"] for site in found["sites"]))):
        _print_line(console, f"source: {source}", dim=True)


def _describe_cost(found: dict[str, Any]) -> Iterator[str]:
    """What score would read, and how often it would ask a server."""
    total = decimal(found["bytes_total"]) if found["bytes_total"] else "an unknown total"
    share = "" if found["share_to_read"] is None else f" ({found['share_to_read']:.1%})"
    yield f"to read: {decimal(found['bytes_to_read'])} of {total}{share}"
    if found["requests"]:
        requests, files = (
            f"{found[name]:,} {one if found[name] == 1 else one + 's'}"
            for name, one in (("requests", "request"), ("remote_files", "file"))
        )
        yield f"from the Hub: {requests} for ranges of {files}"


def print_costs(surveys: list[dict[str, Any]]) -> None:
    """A line for each model: layers, bytes to read and their share, requests; then their sum."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("model", "layers", "to read", "of", "share", "requests"):
        table.add_column(name, justify="left" if name == "model" else "right", overflow="fold")
    for found in surveys:
        table.add_row(Text(printable(found["model"])), *_cost_cells(found, len(found["sites"])))
    if len(surveys) > 1:
        table.add_section()
        layers = sum(len(found["sites"]) for found in surveys)
        table.add_row(f"{len(surveys)} models", *_cost_cells(_sum_costs(surveys), layers))
    console = Terminal()
    console.print(drop_columns(table, console, ["of", "layers"]))


def _sum_costs(surveys: list[dict[str, Any]]) -> dict[str, Any]:
    """The cost of all models; the total and the share are unknown if they are for one of them."""
    to_read, requests = (sum(found[name] for found in surveys) for name in ("bytes_to_read", "requests"))
    totals = [found["bytes_total"] for found in surveys]
    total = None if None in totals else sum(totals)
    known = total and all(found["share_to_read"] is not None for found in surveys)
    return {
        "bytes_to_read": to_read, "bytes_total": total, "requests": requests,
        "share_to_read": to_read / total if known else None,
    }  # fmt: skip


def _cost_cells(found: dict[str, Any], layers: int) -> list[str]:
    share, total = found["share_to_read"], found["bytes_total"]
    return [
        f"{layers:,}", decimal(found["bytes_to_read"]), decimal(total) if total else MISSING,
        MISSING if share is None else f"{share:.1%}", f"{found['requests']:,}",
    ]  # fmt: skip


def _print_stacks(console: Console, stacks: dict[str, list[dict[str, Any]]]) -> None:
    """A table of the stacks and the sizes of their modules."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("stack", "layers", "heads", "key heads", "head_dim", "d_model"):
        table.add_column(name, justify="left" if name == "stack" else "right", overflow="fold")
    for stack, sites in stacks.items():
        sizes = (_range(sites, name) for name in ("heads", "key_heads", "head_dim", "d_model"))
        table.add_row(*map(Text, (printable(stack), str(len(sites)), *sizes)))
    console.print(drop_columns(table, console, ["key heads", "head_dim"]))


def _print_modules(console: Console, sites: list[dict[str, Any]], *, verbose: bool) -> None:
    """The modules of one stack: their layers and heads, their tensors, and how they were found."""
    first, heads = sites[0], _range(sites, "heads")
    what = _describe(pattern_of(first["module"]), [site["module"] for site in sites])
    _print_wrapped(console, f"{what} · {heads} {'head' if heads == '1' else 'heads'}", indent=2)
    tensors = (
        f"{name.removeprefix(first['module'] + '.')} {info['dtype']} {info['shape']}"
        for name, info in first["tensors"].items()
    )
    _print_line(console, f"    {', '.join(tensors)} · by {first['rule'].partition(':')[0]}")
    for site in sites if verbose else ():
        sizes = f"{site['heads']} heads, {site['key_heads']} key heads, head_dim {site['head_dim']}"
        _print_line(console, f"    {site['module']} · {sizes}", dim=True)


def _print_wrapped(console: Console, text: str, *, indent: int) -> None:
    """A text in lines that fit the terminal."""
    lines = wrap(
        printable(text), console.width, initial_indent=" " * indent, subsequent_indent=" " * (indent + 2),
        break_on_hyphens=False,
    )  # fmt: skip
    for line in lines:
        console.print(line, highlight=False)


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
