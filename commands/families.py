"""`attngeo families`: the supported model families."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from attngeo.bounds.names import dump_json
from attngeo.errors import PROJECT_FILES
from attngeo.options import RESULTS

from .tables import Terminal, print_table, show_text

if TYPE_CHECKING:
    from attngeo.layouts.layout import Family, LatentLayout, Layout


def families(
    format: Annotated[
        Literal["table", "json", "markdown"], typer.Option(help="Format on stdout", rich_help_panel=RESULTS)
    ] = "table",
) -> None:
    """List the model families of the table, the tensors of their queries and keys, and caveats.

    A model of another family is read if its tensor names match a rule. Otherwise attngeo refuses it and lists the names
    it found.

    Examples:
        attngeo families
        attngeo families --format markdown
    """
    rows = family_rows()
    if format == "json":
        sys.stdout.write(dump_json(rows, indent=2) + "\n")
    elif format == "markdown":
        sys.stdout.write(families_markdown(rows))
    else:
        _print(rows)


def family_rows() -> list[dict[str, str]]:
    """One row for each family: model type, projections and their order, caveats, and source."""
    from attngeo.layouts.families import COMPOSITES, FAMILIES

    rows = [
        {"family": name, "queries_and_keys": _projections(family), "caveats": _caveats(family), "source": family.source}
        for name, family in FAMILIES.items()
    ]
    rows += [
        {"family": name, "queries_and_keys": "towers: " + ", ".join(parts), "caveats": "", "source": ""}
        for name, parts in COMPOSITES.items()
    ]
    return sorted(rows, key=lambda row: row["family"])


def families_markdown(rows: list[dict[str, str]]) -> str:
    """The rows as a Markdown table; each family links to its source."""
    lines = ["| family | queries and keys | caveats |", "| --- | --- | --- |"]
    for row in rows:
        name = f"[{row['family']}]({row['source']})" if row["source"] else row["family"]
        lines.append(f"| {name} | {row['queries_and_keys']} | {row['caveats']} |")
    return "\n".join(lines) + "\n"


def _projections(family: Family) -> str:
    return " or ".join(_layout(layout) for layout in family.layouts) or "separate, by rule"


def _layout(layout: Layout | LatentLayout) -> str:
    if hasattr(layout, "kv_a"):
        return f"latent, {layout.kv_a.removesuffix('.weight')}"
    queries = layout.holder("q")
    names = dict.fromkeys(layout.holder(letter).name.removesuffix(".weight") for letter in "qk")
    order = ""
    if len(names) == 1:
        repeats = {1: "", "key_heads": " per key head"}.get(queries.blocks, f" in {queries.blocks} blocks")
        order = f" ({queries.slots}{repeats}{', one key head' if layout.key_heads == 'one' else ''})"
    when = "".join(f" if {name}={value}" for name, value in layout.when.items())
    return f"{' + '.join(names)}{order}{when}"


def _caveats(family: Family) -> str:
    caveats: list[Any] = list(family.notes)
    if family.rotary is not None:
        caveats.append(f"rotary, {'neighbouring' if family.rotary.interleaved else 'half-split'} pairs")
    if family.head_norm is not None:
        caveats.append(f"QK-norm ({'LayerNorm' if family.head_norm.centred else 'RMSNorm'}) where present")
    if family.shared is not None:
        caveats.append("shared layers, reported once")
    return "; ".join(caveats)


def _print(rows: list[dict[str, str]]) -> None:
    columns = {name.replace("_", " "): show_text(name) for name in ("family", "queries_and_keys", "caveats")}
    print_table(rows, columns, texts=columns)
    Terminal().print(
        "Other families are read if their tensor names match a rule. How to add one:\n"
        f"{PROJECT_FILES}/attngeo/layouts/README.md",
        highlight=False,
    )
