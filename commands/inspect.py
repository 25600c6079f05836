"""`attngeo inspect`: what `attngeo score` would read, and why."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial
from itertools import chain
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import typer
from rich.filesize import decimal

from attngeo.attention.options import SourceOptions
from attngeo.bounds.names import dump_json, printable
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.local_files import require_model
from attngeo.layouts.names import name_layers, pattern_of
from attngeo.session import Session, StudyOptions
from attngeo.studies.engine import run_study

from .declare import with_options
from .messages import describe_error, say
from .models import Models, ModelsFile, list_all
from .outputs import FindingsFormat, Verbosity
from .progress import Bar
from .study import SEVERAL_FAILED, raise_if_traced
from .tables import Terminal, print_table

if TYPE_CHECKING:
    from rich.console import Console

# Of the heads of a stack.
SIZES = ("heads", "key_heads", "head_dim", "d_model")


@with_options
def inspect(
    *,
    models: Models = None,
    models_file: ModelsFile = None,
    source: SourceOptions,
    format: FindingsFormat = "table",
    hub: HubAccess,
    study: StudyOptions,
    verbosity: Verbosity,
) -> None:
    """Show what score would read from a model, what it leaves out, and why. Reads no weights.

    Shows the cost first: the bytes that score would read, and the total. Then lists the stacks and their sizes; the
    attention modules (# stands for numbers in their names), with their tensors and the rule that found them; and what
    is left out, with the reason. With -v, lists every module on its own.

    For several models, or with --models, shows only the cost: one line per model, and the sum.

    Examples:
        attngeo inspect demo:minilm
        attngeo inspect mistralai/Mistral-7B-v0.1 --format json
        attngeo inspect --models models.txt --jobs 4
    """
    listed = list_all(models, models_file, hub, command="inspect", verbosity=verbosity)
    alone = len(listed) == 1 and models_file is None
    with Bar(listed[0] if alone else "inspect", verbosity) as bar:
        outcomes = run_study(
            partial(survey_model, source=source),
            listed,
            Session(hub=hub, study=study, progress=bar),
            on_outcome=partial(raise_if_traced, alone=alone),
        )
    failures = [outcome.failure for outcome in outcomes if outcome.failure is not None]
    surveys = [outcome.result for outcome in outcomes if outcome.result is not None]
    names = [survey.pop("names") for survey in surveys]
    if format == "json":
        sys.stdout.write(dump_json(surveys[0] if alone else surveys, indent=2) + "\n")
    elif alone:
        _print_findings(surveys[0], names[0], verbose=verbosity.verbose)
    elif surveys:
        _print_costs(surveys)
    for failure in failures:
        say(describe_error(failure))
    if failures:
        raise typer.Exit(SEVERAL_FAILED)


def survey_model(model: str, session: Session, *, source: SourceOptions) -> dict[str, Any]:
    """What score would read of a model. A missing file is an error before torch is loaded."""
    require_model(model, source.adapter, source.config)
    from attngeo.attention.survey import survey

    return survey(model, session, source=source)


def _print_findings(survey: dict[str, Any], names: Iterable[str], *, verbose: bool) -> None:
    """Print a table of the stacks, then what is read and what is left out, one pattern of names after the other.

    names: of all tensors of the model. verbose: whether every single module is listed, too.
    """
    console = Terminal()
    revision = f"@{survey['revision'][:12]}" if survey["revision"] else ""
    name = " + ".join([f"{survey['model']}{revision}", *survey.get("adapter", ())])
    title = printable(f"{name} · {survey['model_type'] or 'unknown'}")
    console.print(title, style="bold")
    cost = _sum_costs([survey])
    share = f" ({cost['share']})" if cost["share"] else ""
    console.print(f"to read: {cost['to read']} of {cost['of'] or 'an unknown total'}{share}")
    stacks: dict[str, list[dict[str, Any]]] = {}
    for site in survey["sites"]:
        stacks.setdefault(site["stack"], []).append(site)
    rows = []
    for stack, sites in stacks.items():
        rows.append({"stack": stack, "layers": len(sites), **{name: _range(sites, name) for name in SIZES}})
    columns = {name.replace("key_heads", "key heads"): name for name in ("stack", "layers", *SIZES)}
    print_table(rows, columns, expendable=["key heads", "head_dim"])
    console.print("read", style="bold")
    for sites in stacks.values():
        _print_modules(console, sites, verbose=verbose)
    if left_out := _list_left_out(names, survey):
        console.print("left out", style="bold")
    for pattern, members in left_out.items():
        _print_wrapped(console, _describe(pattern, members), indent=2)
        _print_wrapped(console, survey["left_out"][pattern], indent=4)
        if verbose:
            for name in members:
                _print_line(console, f"    {name}")
    for text in dict.fromkeys(chain.from_iterable(site["notes"] for site in survey["sites"])):
        _print_line(console, f"note: {text}")
    for source in dict.fromkeys(filter(None, (site["source"] for site in survey["sites"]))):
        _print_line(console, f"source: {source}")


def _print_costs(surveys: list[dict[str, Any]]) -> None:
    """A line for each model: layers, bytes to read, of how many, and their share; then all models together."""
    rows = [{"model": survey["model"], "of all": False, **_sum_costs([survey])} for survey in surveys]
    if len(surveys) > 1:
        rows.append({"model": f"{len(surveys)} models", "of all": True, **_sum_costs(surveys)})
    columns = {name: name for name in ("model", "layers", "to read", "of", "share")}
    print_table(rows, columns, section=["of all"], expendable=["of", "layers"], names="model")


def _sum_costs(surveys: list[dict[str, Any]]) -> dict[str, str | None]:
    """Layers, bytes to read, of how many, and their share, of models together; None if unknown for one of them."""
    to_read = sum(survey["bytes_to_read"] for survey in surveys)
    totals = [survey["bytes_total"] for survey in surveys]
    costs = {"layers": f"{sum(len(survey['sites']) for survey in surveys):,}", "to read": decimal(to_read)}
    if not all(totals):
        return {**costs, "of": None, "share": None}
    has_share = None not in [survey["share_to_read"] for survey in surveys]
    return {**costs, "of": decimal(sum(totals)), "share": f"{to_read / sum(totals):.1%}" if has_share else None}


def _print_modules(console: Console, sites: list[dict[str, Any]], *, verbose: bool) -> None:
    """The modules of one stack: their layers and heads, their tensors, and how they were found."""
    first = sites[0]
    heads = _range(sites, "heads")
    what = _describe(pattern_of(first["module"]), [site["module"] for site in sites])
    _print_wrapped(console, f"{what} · {heads} {'head' if heads == '1' else 'heads'}", indent=2)
    tensors = (
        f"{name.removeprefix(first['module'] + '.')} {info['dtype']} {info['shape']}"
        for name, info in first["tensors"].items()
    )
    _print_line(console, f"    {', '.join(tensors)} · by {first['rule'].partition(':')[0]}", style="")
    if not verbose:
        return
    for site in sites:
        sizes = f"heads {site['heads']}, key heads {site['key_heads']}, head_dim {site['head_dim']}"
        _print_line(console, f"    {site['module']} · {sizes}")


def _print_wrapped(console: Console, text: str, *, indent: int) -> None:
    """A text in lines that fit the terminal."""
    lines = wrap(
        printable(text),
        console.width,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2),
        break_on_hyphens=False,
    )
    for line in lines:
        console.print(line)


def _print_line(console: Console, text: str, style: str = "dim") -> None:
    """One line that is not cut, so that names can be copied."""
    console.print(printable(text), soft_wrap=True, style=style)


def _list_left_out(names: Iterable[str], survey: dict[str, Any]) -> dict[str, list[str]]:
    """Pattern that is left out → the names of its modules or tensors, without those that are read all the same."""
    read = {site["module"] for site in survey["sites"]}
    members: dict[str, dict[str, None]] = {pattern: {} for pattern in survey["left_out"]}
    for name in names:
        parts = name.split(".")
        for pattern in members:
            inside = ".".join(parts[: pattern.count(".") + 1])
            if pattern_of(inside) == pattern and inside not in read:
                members[pattern][inside] = None
    return {pattern: sorted(inside, key=_numbers_in) for pattern, inside in members.items()}


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
