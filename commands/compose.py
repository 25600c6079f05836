"""`attngeo compose`: which heads read what which earlier heads write, as tables for people and files for programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any

from attngeo.bounds.names import list_names
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.reference import split_adapter_weight
from attngeo.circuits.compose_options import CHECKS, COMPOSE_COLUMNS, KINDS, ComposeOptions
from attngeo.questions.frames import join_frames
from attngeo.questions.table import QUESTIONS
from attngeo.session import ResultOptions, Session, StudyOptions

from .asking import ask_models
from .checks import Checks, conclude, condition_option, parse_conditions, require_conditions
from .declare import with_options
from .models import ModelOutputs, Models, ModelsFile, list_all
from .outputs import Verbosity
from .selection import Order, PrintedPairs, strongest_option
from .tables import Cell, Terminal, format_number, print_frame, print_table

if TYPE_CHECKING:
    import pandas as pd

Conditions = Annotated[list[str] | None, condition_option("composition.max > 0.9", CHECKS)]
# From so many impossible pairs on, the threshold is not just the largest z of them.
ENOUGH = 1_000
# Rows and columns of a map of layers; each is one layer if there are no more.
MAP = 12
# Marks of a map by the share of the pairs of two layers that are above the threshold, and from which share on.
SHADES = {0.2: ("█", "#"), 0.05: ("▓", "+"), 0.01: ("▒", "-"), 0.0: ("░", ".")}
# On a terminal with fewer columns for each kind, each kind has a table of its own.
WIDTH_OF_KIND = 24
# A row of the table.
Pair = dict[str, Any]
# The columns of which each value has pairs of its own: those of a model that can compose, of one kind.
GROUPS = ("model", "from_stack", "to_stack", "kind")
# The columns of a table in LaTeX.
BRIEF = ("kind", "from_layer", "from_head", "to_layer", "to_head", "composition", "composition_z", "above_threshold")
NAMES = {"q": "queries", "k": "keys", "v": "values"}
MEANING = (
    "a pair above the threshold shares more directions than 99.9% of this model's impossible pairs; more such pairs "
    "than expected by chance show that later layers read what earlier ones write, but do not prove a circuit: only the "
    "running model shows what a head uses"
)


class PrintedCompositions(PrintedPairs):
    """Options of the pairs that are written and printed."""

    top: int = strongest_option(20, "pairs of each kind")


@with_options
def compose(
    *,
    options: ComposeOptions,
    models: Models = None,
    models_file: ModelsFile = None,
    printed: PrintedCompositions,
    outputs: ModelOutputs,
    order: Order,
    fail_if: Conditions = None,
    checks: Checks = None,
    hub: HubAccess,
    results: ResultOptions,
    study: StudyOptions,
    verbosity: Verbosity,
) -> None:
    """Measure how much of each head's output later heads read, from the weights alone.

    A pair is LAYER.HEAD→LAYER.HEAD: the head that writes, then the head that reads. A head reads with its queries (q),
    keys (k) and values (v). z counts standard deviations above randomly rotated heads with the same singular values.
    Trained heads have a high z even if they cannot compose. The threshold is therefore the 99.9% quantile of z over
    impossible pairs, whose writer is in a later layer than the reader. Pairs above it have a star. Without --top,
    files, csv and json have all pairs. Source: Elhage et al. 2021 (A mathematical framework for transformer circuits).

    Examples:
        attngeo compose demo:minilm
        attngeo compose openai-community/gpt2 --kind k --fold-norm -o pairs.parquet
        attngeo compose ./checkpoint --from-layers 0-11 --to-layers 12-23
        attngeo compose ./checkpoint --sort composition_z --top 20
        attngeo compose ./checkpoint --fail-if 'composition.max > 0.9'
    """
    read = [models_file, options.config, *(split_adapter_weight(text)[0] for text in options.adapter)]
    outputs.check(*read, more=[checks])
    conditions = parse_conditions(fail_if, CHECKS)
    require_conditions(checks, conditions)
    order.check(COMPOSE_COLUMNS)
    listed = list_all(models, models_file, hub, command="compose", verbosity=verbosity)
    outputs.check(*listed, more=[checks])
    outputs.check_labels(listed)
    session = Session(hub=hub, study=study, results=results)
    outcomes = ask_models(QUESTIONS["compose"], listed, session, verbosity, options=options)
    frames = [outcome.result for outcome in outcomes if outcome.result is not None]
    rows = join_frames(frames)
    if frames:
        several = ["model"] if len(frames) > 1 else []
        brief = order.choose([*several, *BRIEF])

        def print_tables(selected: pd.DataFrame) -> None:
            if order.is_given:
                print_frame(selected[brief].head(printed.top) if printed.most is None else selected[brief])
                return
            for frame in frames:
                _print_routes(outputs.name(frame), printed.top)

        outputs.deliver(_select(rows, printed, order), print_tables, brief)
        for frame in frames:
            for text in _list_notes(frame):
                verbosity.note(f"note: {frame.attrs['model']}: {text}")
    conclude(rows, outcomes, conditions, verbosity, checks)


def _select(rows: pd.DataFrame, printed: PrintedCompositions, order: Order) -> pd.DataFrame:
    """The rows that are written: all of them, or those that --top names."""
    if printed.most is None:
        return order.select(rows)
    if order.sort is not None:
        return order.select(rows).head(printed.most)
    places = [
        place
        for _, pairs in rows.dropna(subset="composition_z").groupby([*GROUPS], sort=False)
        for place in pairs.nlargest(printed.most, "composition_z").index
    ]
    strongest = rows.loc[places]
    strongest.attrs = rows.attrs
    return order.select(strongest)


def _print_routes(frame: pd.DataFrame, top: int) -> None:
    """Print the strongest pairs, the thresholds and the maps of each pair of stacks."""
    about = frame.attrs
    routes = dict.fromkeys((found["from_stack"], found["to_stack"]) for found in about["thresholds"])
    for from_stack, to_stack in routes:
        place = from_stack if from_stack == to_stack else f"{from_stack} to {to_stack}"
        title = " · ".join([about["model"], place, *(["norm folded"] if about["fold_norm"] else [])])
        pairs = frame[(frame["from_stack"] == from_stack) & (frame["to_stack"] == to_stack)]
        thresholds = [
            found for found in about["thresholds"] if (found["from_stack"], found["to_stack"]) == (from_stack, to_stack)
        ]
        by_kind = {kind: pairs[pairs["kind"] == kind] for kind in KINDS if (pairs["kind"] == kind).any()}
        if top:
            tables = [by_kind]
            if Terminal().width < WIDTH_OF_KIND * len(by_kind):
                tables = [{kind: rows} for kind, rows in by_kind.items()]
            for number, kinds in enumerate(tables):
                _print_strongest(kinds, top, "" if number else title)
        _print_thresholds(thresholds, "" if top else title)
        _print_maps(by_kind)


def _print_strongest(by_kind: dict[str, pd.DataFrame], top: int, title: str) -> None:
    """One line for each rank, and in it the pair of each kind."""
    strongest = []
    for rows in by_kind.values():
        kept = rows.dropna(subset="composition_z").nlargest(top, "composition_z")
        strongest.append(kept.to_dict("records"))
    lines = [dict(zip(by_kind, pairs, strict=True)) for pairs in zip_longest(*strongest)]
    columns: list[tuple[str, Cell]] = []
    for kind in by_kind:
        columns += [
            (f"{NAMES[kind]} read", partial(_show_pair, kind, _name_pair)),
            ("c", partial(_show_pair, kind, lambda pair: format_number(pair["composition"]))),
            ("z", partial(_show_pair, kind, _show_z)),
        ]
    print_table(lines, columns, title=title, texts=[f"{NAMES[kind]} read" for kind in by_kind], expendable=["c"])


def _show_pair(kind: str, show: Callable[[Pair], str], line: dict[str, Pair | None]) -> str:
    """A cell about the pair of this kind, if there is one."""
    pair = line[kind]
    return "" if pair is None else show(pair)


def _name_pair(pair: Pair) -> str:
    arrow = "->" if Terminal().options.ascii_only else "→"
    return f"{pair['from_layer']}.{pair['from_head']}{arrow}{pair['to_layer']}.{pair['to_head']}"


def _show_z(pair: Pair) -> str:
    return format_number(pair["composition_z"], "+.1f") + ("*" if pair["above_threshold"] else " ")


def _print_thresholds(thresholds: list[dict[str, Any]], title: str) -> None:
    """One line for each kind: the threshold, and how many pairs are above it and expected there."""
    columns: dict[str, Cell] = {
        "read by": lambda found: NAMES[found["kind"]],
        "threshold z": "threshold:.1f",
        "impossible pairs": "impossible:,",
        "above": "above:,",
        "expected by chance": _show_expected,
    }
    print_table(thresholds, columns, title=title, rule="tight", expendable=["impossible pairs", "expected by chance"])


def _show_expected(found: Mapping[str, Any]) -> str:
    """How many pairs are above the threshold by chance, and of how many; two digits of a number below 10."""
    expected = found["expected"]
    return f"{expected:{',.0f' if expected >= 10 else '.2g'}} of {found['pairs']:,} pairs"


def _print_maps(by_kind: dict[str, pd.DataFrame]) -> None:
    """A map for each kind: layers that write down, those that read across, shaded by the share above the threshold."""
    console = Terminal()
    plain = console.options.ascii_only
    rows = next(iter(by_kind.values()))
    first = min(rows["from_layer"].min(), rows["to_layer"].min())
    last = max(rows["from_layer"].max(), rows["to_layer"].max())
    step = -(-(last + 1 - first) // MAP)
    starts = range(first, last + 1, step)
    shares = {}
    for kind, pairs in by_kind.items():
        writing = (pairs["from_layer"] - first) // step
        reading = (pairs["to_layer"] - first) // step
        shares[kind] = pairs.groupby([writing, reading])["above_threshold"].mean()
    names = [_name_bin(start, step, last) for start in starts]
    margin = max(map(len, names))
    titles = "  ".join(f"{NAMES[kind]:{2 * len(starts)}}" for kind in by_kind)
    console.print(f"\n{'':{margin}}  {titles}".rstrip())
    for i, name in enumerate(names):
        cells = {
            kind: [_shade(of_kind.get((i, j)), plain) for j in range(len(starts))] for kind, of_kind in shares.items()
        }
        console.print(f"{name:>{margin}}  {'  '.join(map(''.join, cells.values()))}".rstrip())
    marks = [f"{marks[plain]} >{least:.0%}" for least, marks in reversed(SHADES.items())]
    console.print(f"rows: layers that write, columns: layers that read; pairs above: {', '.join(marks)}\n")


def _name_bin(start: int, step: int, last: int) -> str:
    """The layers of one row of a map."""
    end = min(start + step - 1, last)
    return f"{start}" if start == end else f"{start}-{end}"


def _shade(share: float | None, plain: bool) -> str:
    """Two characters for a share of pairs; blank if there is no pair, dots if none is above the threshold."""
    if share is None:
        return "  "
    for least, marks in SHADES.items():
        if share > least:
            return 2 * marks[plain]
    return "  " if plain else "··"


def _list_notes(frame: pd.DataFrame) -> list[str]:
    """What the table does not say: the meaning, what is left out, and what reading again costs."""
    about: dict[Any, Any] = frame.attrs
    notes = [MEANING]
    uncertain: dict[int, list[str]] = {}
    for found in about["thresholds"]:
        if found["impossible"] < ENOUGH:
            uncertain.setdefault(found["impossible"], []).append(NAMES[found["kind"]])
    notes += [
        f"the threshold of {list_names([*dict.fromkeys(names)])} comes from only {count} impossible pairs and is near "
        "their largest z: pairs above it are weak evidence"
        for count, names in uncertain.items()
    ]
    if about["readings"] > about["layers_read"]:
        times = about["readings"] / about["layers_read"]
        notes.append(
            f"each layer was read {times:.1f} times, because the layers do not all fit in memory; allow more with "
            "--memory"
        )
    return notes + [note for note in frame["note"].unique() if note]
