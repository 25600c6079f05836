"""`attngeo mirrors`: which heads are transposes of each other, as tables for people and files for programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from attngeo.bounds.names import list_names
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.reference import split_adapter_weight
from attngeo.circuits.mirror_options import CHECKS, MIRROR_COLUMNS, PLAIN, ROTARY, MirrorOptions
from attngeo.questions.frames import join_frames
from attngeo.questions.table import QUESTIONS
from attngeo.session import ResultOptions, Session, StudyOptions

from .asking import ask_models
from .checks import Checks, conclude, condition_option, parse_conditions, require_conditions
from .declare import with_options
from .models import ModelOutputs, Models, ModelsFile, list_all
from .outputs import Verbosity, plot_option
from .selection import Order, PrintedPairs, strongest_option
from .tables import Cell, Terminal, format_number, print_frame, print_table

if TYPE_CHECKING:
    import pandas as pd

Plots = Annotated[list[Path] | None, plot_option("the heads of the first layer as a map of mirrors")]
Conditions = Annotated[list[str] | None, condition_option("mirror.max > 0.5", CHECKS)]
# A p below this is evidence.
UNLIKELY = 0.05
# A row of the table.
Pair = dict[str, Any]
# The columns of a table in LaTeX.
BRIEF = ("layer", "head", "other_layer", "other_head", "mirror", "twin", "antisymmetric_cosine", "mirror_z")
COSINE = "antisymmetric_cosine"
FORMS = {ROTARY: "over rotary offsets", PLAIN: "plain"}
LIMITS = (
    "The test is about heads on average: opposite signs more often than chance say that heads are oriented as "
    "transposes. It confirms no single pair, which needs a running model. z is not normal if few singular values "
    "dominate, and trained streams are not isotropic, so a z of 10 occurs without a mirror. Heads that share a key "
    "head are no pair of the test."
)


class PrintedMirrors(PrintedPairs):
    """Options of the pairs that are written and printed."""

    top: int = strongest_option(10, "mirrors")


@with_options
def mirrors(
    *,
    options: MirrorOptions,
    models: Models = None,
    models_file: ModelsFile = None,
    printed: PrintedMirrors,
    outputs: ModelOutputs,
    order: Order,
    plot: Plots = None,
    fail_if: Conditions = None,
    checks: Checks = None,
    hub: HubAccess,
    results: ResultOptions,
    study: StudyOptions,
    verbosity: Verbosity,
) -> None:
    """Show which heads of a layer are transposes of each other (mirrors), and which are alike (twins).

    A pair is LAYER.HEAD–LAYER.HEAD. Mirror: 1 if one head's matrix is the transpose of the other's. Twin: 1 if both are
    equal. Symmetric heads are both; only the cosine of the antisymmetric parts tells a mirror (-1) from a twin (1).
    Strongest mirrors have the most negative cosine and a mirror above 0. Own symmetry: the share of the layer's
    symmetry that heads have alone; its pairs add the rest. z counts standard deviations above one of the heads turned
    at random. Sign test: heads are matched into disjoint partners by the size of the cosine; without any orientation,
    its signs are coins. With rotary embeddings, heads are compared over all offsets. Files, csv and json have all pairs
    without --top.

    Examples:
        attngeo mirrors demo:minilm
        attngeo mirrors demo:minilm --across --top 5
        attngeo mirrors HuggingFaceTB/SmolLM2-135M -o pairs.parquet
        attngeo mirrors HuggingFaceTB/SmolLM2-135M --form plain --layers 0-3
        attngeo mirrors ./checkpoint --fail-if 'mirror.max > 0.5'
    """
    figures = plot or []
    read = [models_file, options.config, *(split_adapter_weight(text)[0] for text in options.adapter)]
    outputs.check(*read, more=[checks], figures=figures)
    conditions = parse_conditions(fail_if, CHECKS)
    require_conditions(checks, conditions)
    order.check(MIRROR_COLUMNS)
    listed = list_all(models, models_file, hub, command="mirrors", verbosity=verbosity)
    outputs.check(*listed, more=[checks], figures=figures)
    outputs.check_labels(listed)
    session = Session(hub=hub, study=study, results=results)
    outcomes = ask_models(QUESTIONS["mirrors"], listed, session, verbosity, options=options)
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
                _print_stacks(outputs.name(frame), printed.top)

        outputs.deliver(_select(rows, printed, order), print_tables, brief)
        for frame in frames:
            for text in _list_notes(frame):
                verbosity.note(f"note: {frame.attrs['model']}: {text}")
        outputs.draw("mirror-map", frames, figures)
    conclude(rows, outcomes, conditions, verbosity, checks)


def _select(rows: pd.DataFrame, printed: PrintedMirrors, order: Order) -> pd.DataFrame:
    """The rows that are written: all of them, or those that --top names."""
    if printed.most is None:
        return order.select(rows)
    if order.sort is not None:
        return order.select(rows).head(printed.most)
    places = [
        place
        for _, pairs in rows.groupby(["model", "stack"], sort=False)
        for place in _list_strongest(pairs, printed.most).index
    ]
    strongest = rows.loc[places]
    strongest.attrs = rows.attrs
    return order.select(strongest)


def _list_strongest(pairs: pd.DataFrame, count: int) -> pd.DataFrame:
    """The pairs with the most negative cosine of those with a positive mirror, that are opposite."""
    is_mirror = (pairs["mirror"] > 0) & (pairs[COSINE] < 0)
    return pairs[is_mirror.fillna(value=False)].nsmallest(count, COSINE)


def _print_stacks(frame: pd.DataFrame, top: int) -> None:
    """Print the layers, the strongest mirrors and the sign test of each stack."""
    about = frame.attrs
    for test in about["sign_tests"]:
        stack = test["stack"]
        layers = [layer for layer in about["symmetries"] if layer["stack"] == stack]
        pairs = frame[frame["stack"] == stack]
        forms = [FORMS[form] for form in FORMS if any(layer["form"] == form for layer in layers)]
        folded = ["norm folded"] if about["fold_norm"] else []
        title = " · ".join([about["model"], stack, " and ".join(forms), *folded])
        _print_layers(layers, pairs, title, has_forms=len(forms) > 1)
        if top:
            _print_strongest(pairs, top)
        _print_test(test)


def _print_layers(layers: list[dict[str, Any]], pairs: pd.DataFrame, title: str, *, has_forms: bool) -> None:
    """Print a line for each layer: its symmetry, its strongest mirror, and the signs of its partners."""
    within = pairs[pairs["layer"] == pairs["other_layer"]]
    lines = []
    for layer in layers:
        of_layer = within[within["layer"] == layer["layer"]]
        partners = of_layer[of_layer["is_partner"]]
        counts = {"opposite": int((partners[COSINE] < 0).sum()), "alike": int((partners[COSINE] > 0).sum())}
        strongest = _list_strongest(of_layer, 1).to_dict("records")
        lines.append(layer | counts | {"pair": strongest[0] if strongest else None})
    columns: dict[str, Cell] = {"layer": "layer"}
    if has_forms:
        columns["form"] = "form"
    columns |= {
        "symmetry": "symmetry:+.3f",
        "own": "own_symmetry:+.3f",
        "strongest": lambda line: "" if line["pair"] is None else _name_pair(line["pair"]),
        "mirror": lambda line: _show_of_pair(line, "mirror"),
        "twin": lambda line: _show_of_pair(line, "twin"),
        "cosine": lambda line: _show_of_pair(line, COSINE),
        "opposite": "opposite",
        "alike": "alike",
    }
    expendable = ["form", "twin", "mirror", "alike", "opposite", "cosine"]
    print_table(lines, columns, title=title, texts=["form", "strongest"], expendable=expendable)


def _show_of_pair(line: dict[str, Any], column: str) -> str:
    pair = line["pair"]
    return "" if pair is None else format_number(pair[column], "+.2f")


def _name_pair(pair: Pair) -> str:
    dash = "-" if Terminal().options.ascii_only else "–"
    return f"{pair['layer']}.{pair['head']}{dash}{pair['other_layer']}.{pair['other_head']}"


def _print_strongest(pairs: pd.DataFrame, top: int) -> None:
    """Print the strongest mirrors, one line each."""
    strongest = _list_strongest(pairs, top)
    if strongest.empty:
        Terminal().print("no pair has a mirror above 0 and a negative cosine\n")
        return
    columns: dict[str, Cell] = {
        "strongest mirrors": _name_pair,
        "mirror": "mirror:+.3f",
        "twin": "twin:+.3f",
        "cosine": f"{COSINE}:+.3f",
        "z": "mirror_z:+.1f",
        "part of symmetry": "symmetry_part:+.3f",
        "shares keys": lambda pair: "yes" if pair["shares_key_head"] else "",
        "partners": lambda pair: "yes" if pair["is_partner"] else "",
    }
    if not bool(strongest["shares_key_head"].any()):
        del columns["shares keys"]
    print_table(strongest, columns, expendable=["part of symmetry", "shares keys", "z", "partners"], rule="tight")


def _print_test(test: dict[str, Any]) -> None:
    """Print the sign test of a stack in words, and what it cannot tell."""
    console = Terminal()
    console.print(f"\n{_describe_test(test)}")
    console.print(f"{LIMITS}\n", style="dim")


def _describe_test(test: dict[str, Any]) -> str:
    """The counts and the p of the sign test, and what follows."""
    where = "1 layer" if test["layers"] == 1 else f"{test['layers']} layers"
    partners = "1 disjoint pair" if test["partners"] == 1 else f"{test['partners']} disjoint pairs"
    text = f"sign test: of {partners} in {where}, {test['opposite']} opposite and {test['alike']} alike"
    if not test["partners"]:
        return f"{text}: nothing to test"
    text += f", p={test['p_value']:.2g}: "
    if test["p_value"] >= UNLIKELY:
        return f"{text}no evidence that heads are oriented as transposes, or as copies"
    if test["opposite"] > test["alike"]:
        return f"{text}heads of a layer are oriented as transposes more often than by chance"
    return f"{text}heads of a layer are oriented alike more often than by chance, and not as transposes"


def _list_notes(frame: pd.DataFrame) -> list[str]:
    """What the table does not say: caveats, layers without pairs, and what reading again costs."""
    about: dict[Any, Any] = frame.attrs
    notes = []
    lonely = [f"{layer['stack']} layer {layer['layer']}" for layer in about["symmetries"] if layer["heads"] == 1]
    if lonely:
        notes.append(f"one head, and so no pair: {list_names(lonely)}")
    if about["readings"] > about["layers_read"]:
        times = about["readings"] / about["layers_read"]
        notes.append(
            f"each layer was read {times:.1f} times, because the layers do not all fit in memory; allow more with "
            "--memory"
        )
    return notes + [note for note in frame["note"].unique() if note]
