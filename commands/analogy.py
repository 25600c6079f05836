"""`attngeo analogy`: do the embeddings of a model solve word analogies?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from attngeo.analogies.options import AnalogyOptions, ExplainOptions
from attngeo.bounds import printable
from attngeo.checkpoints.access import HubAccess
from attngeo.errors import UsageError
from attngeo.options import COMPUTATION, RESULTS, options_of

from .declare import with_options
from .messages import say
from .outputs import (
    EMBEDDING_HELP,
    Output,
    OutputFormat,
    Quiet,
    RowsFormat,
    Verbose,
    check_outputs,
    complete_models,
    deliver_rows,
    print_rows,
)
from .tables import Terminal, drop_columns, format_number, is_missing

if TYPE_CHECKING:
    import pandas as pd

    from attngeo.analogies.analogy import AnalogyResult


# What --explain takes of the options of analogies.
SHARED = ("questions", "seed")


@with_options
def analogy(
    options: AnalogyOptions,
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL", help=EMBEDDING_HELP, show_default=False, autocompletion=complete_models),
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option(
            "--explain",
            metavar="CORPUS",
            help="Train CBOW and attention on a text with one sentence a line, or on toy, and report the paraphrase "
            "errors of each question, instead of asking models",
            rich_help_panel=COMPUTATION,
        ),
    ] = None,
    training: ExplainOptions = ExplainOptions(),
    output: Output = None,
    questions_output: Annotated[
        Path | None,
        typer.Option(
            "--questions-output",
            metavar="FILE",
            help="Write each question with its rank and the best candidates",
            rich_help_panel=RESULTS,
        ),
    ] = None,
    comparisons_output: Annotated[
        Path | None,
        typer.Option(
            "--comparisons-output",
            metavar="FILE",
            help="Write the tests between each two models",
            rich_help_panel=RESULTS,
        ),
    ] = None,
    format: RowsFormat = OutputFormat.table,
    hub: HubAccess = HubAccess(),
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Test embeddings on word analogies: a is to b as c is to which word?

    The answer is the word with the largest cosine with b + c - a. Several models are compared on the questions that all
    of them know. By default, as in the paper, Wibisono and Wang 2023 (arXiv 2307.04057), vectors are used as they are
    and only whole words may be answers.

    With --explain, the error terms of the paper's section 4.2 are computed instead, for embeddings that are trained on
    a small text.

    Examples:
        attngeo analogy demo:minilm
        attngeo analogy google-bert/bert-base-uncased glove.6B.300d.txt -o a.csv
        attngeo analogy vectors.bin --normalise --candidates all --keep-duplicates
        attngeo analogy --explain toy -o terms.csv
    """
    files = [("scores", path) for path in output or []]
    files += [("questions", questions_output)] if questions_output else []
    files += [("comparisons", comparisons_output)] if comparisons_output else []
    check_outputs((path for _, path in files), inputs=[] if explain is None else [explain])
    if explain is not None:
        _refuse_others(models, options, files)
        notes = _explain(explain, training, output or [], format, quiet=quiet, verbose=verbose)
    else:
        if "dimensions" in training.model_fields_set:
            raise UsageError("dimensions requires explain, which trains the embeddings")
        if not models:
            raise UsageError("missing argument MODEL, expected models, or --explain CORPUS")
        notes = _ask(models, options, files, format, hub, quiet=quiet, verbose=verbose)
    for note in [] if quiet else notes:
        say(f"note: {note}")


def _ask(
    models: list[str],
    options: AnalogyOptions,
    files: list[tuple[str, Path]],
    format: OutputFormat,
    hub: HubAccess,
    *,
    quiet: bool,
    verbose: bool,
) -> list[str]:
    """Ask the models, write and print the results. Returns notes."""
    from attngeo.analogies.analogy import analogy as ask_analogies

    from .progress import Bar

    with Bar("analogy", quiet=quiet, verbose=verbose) as progress:
        result = ask_analogies(models, options=options, hub=hub, progress=progress)
    _deliver(result, files, format)
    return list(result.scores.attrs["notes"])


def _refuse_others(models: list[str] | None, options: AnalogyOptions, files: list[tuple[str, Path]]) -> None:
    """Raise UsageError for what has no effect with --explain."""
    if models:
        raise UsageError(
            f"explain trains its own embeddings, but models are named: {', '.join(models)}; leave them out"
        )
    changed = [name for name in options_of(AnalogyOptions) if name in options.model_fields_set]
    changed += [f"{name}_output" for name, _ in files if name != "scores"]
    wrong = [name for name in changed if name not in SHARED]
    if wrong:
        raise UsageError(f"{wrong[0]} has no effect with --explain; leave it out")


def _explain(
    corpus: str,
    options: ExplainOptions,
    output: list[Path],
    format: OutputFormat,
    *,
    quiet: bool,
    verbose: bool,
) -> list[str]:
    """Train on the corpus, write and print the error terms. Returns notes."""
    from attngeo.papers.wibisono2023.analogies import explain

    from .progress import Bar

    with Bar("explain", quiet=quiet, verbose=verbose) as progress:
        frame = explain(corpus, options=options, progress=progress)
    deliver_rows(frame, output, format, print_explanation)
    return list(frame.attrs["notes"])


def _deliver(result: AnalogyResult, files: list[tuple[str, Path]], format: OutputFormat) -> None:
    """Write the files, then print, so that a closed pipe loses nothing."""
    from attngeo.tables.write import write_table

    for name, path in files:
        write_table(getattr(result, name), path)
    if format is not OutputFormat.table:
        return print_rows(result.scores, format)

    return print_result(result)


class Measure(NamedTuple):
    """A measure as a column: its title, its column of the results, the format of its numbers, and its width."""

    title: str
    column: str
    form: str
    width: int


# The most important first. Those that fit are shown, in ORDER.
MEASURES = (
    Measure("cosine", "mean_cosine", ".3f", 8),
    Measure("top 5", "top5", ".3f", 7),
    Measure("MRR", "mrr", ".3f", 7),
    Measure("rank", "mean_rank", ",.1f", 11),
)
ORDER = ("top 5", "MRR", "rank", "cosine")
KNOWN, ACCURACY, WITH_INTERVAL = 8, 8, 22
LONGEST_NAME = 24


def print_result(result: AnalogyResult) -> None:
    """Print one model in full, or several models side by side with tests of their differences."""
    console = Terminal()
    for part in _build_parts(result, console.width):
        console.print(part, highlight=False)
        console.print()


def _build_parts(result: AnalogyResult, width: int) -> Iterator[Group | Table]:
    scores = result.scores
    models = list(dict.fromkeys(result.questions["model"]))
    common, own, published = (scores[scores["questions"] == which] for which in ("common", "own", "published"))
    if len(models) == 1:
        yield Group(Text(_describe_models(scores, models[0]), style="bold"), _tabulate_all(own, width))
    else:
        title = Text(_describe_models(scores, f"{len(models)} models"), style="bold")
        yield Group(title, _count_known(result.questions, models))
        yield from _tabulate_side_by_side(common, models, width)
        yield _tabulate_types(common, models, "the questions that all models know", width)
        yield _tabulate_comparisons(result.comparisons, models, width)
        if len(own):
            yield _tabulate_types(own, models, "all questions that a model knows", width)
    if len(published):
        yield _tabulate_types(published, list(dict.fromkeys(published["model"])), "9,522 questions of the paper", width)


def _make_grid(title: str | None = None) -> Table:
    return Table(
        box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, title=title, title_justify="left",
        title_style="bold",
    )  # fmt: skip


def _describe_models(scores: pd.DataFrame, name: str) -> str:
    overall = scores[(scores["level"] == "overall") & (scores["questions"] != "published")].iloc[0]
    known = f"{overall['known']:,} of {overall['asked']:,} questions"
    return printable(" · ".join([name, f"{scores.attrs['questions']}: {known}", *overall["note"].split("; ")]))


def _count_known(questions: pd.DataFrame, models: list[str]) -> Text:
    """The number of questions that each model knows. The smallest one limits the common questions."""
    known = questions.groupby("model")["known"].sum()
    return Text("known to each: " + " · ".join(f"{_shorten(model, models)} {int(known[model]):,}" for model in models))


def _tabulate_all(rows: pd.DataFrame, width: int) -> Table:
    """Each category, each type and the whole, with every measure that fits."""
    table = _make_grid()
    table.add_column("category", overflow="fold")
    measures = _add_measures(table, width - max(map(len, rows["name"])))
    for row in _separate_levels(table, rows):
        table.add_row(*map(Text, (printable(row["name"]), *measures(row))), style=_choose_style(row))
    return table


def _tabulate_side_by_side(rows: pd.DataFrame, models: list[str], width: int) -> Iterator[Table]:
    """The accuracy of each model in each category, each type and the whole; in several tables if one is too wide."""
    values = {(row["model"], row["level"], row["name"]): row["accuracy"] for row in rows.to_dict("records")}
    names = {model: _shorten(model, models) for model in models}
    room = width - max(map(len, rows["name"])) - KNOWN
    widths = [min(max(len(name), ACCURACY), LONGEST_NAME) + 2 for name in names.values()]
    for group in _group_models(models, widths, room):
        table = _make_grid()
        table.add_column("accuracy", overflow="fold")
        table.add_column("known", justify="right", no_wrap=True)
        for model in group:
            table.add_column(Text(names[model]), justify="right", overflow="fold", max_width=LONGEST_NAME)
        for row in _separate_levels(table, rows[rows["model"] == models[0]]):
            numbers = [format_number(values[model, row["level"], row["name"]]) for model in group]
            table.add_row(*map(Text, (printable(row["name"]), f"{row['known']:,}", *numbers)), style=_choose_style(row))
        yield table


def _group_models(models: list[str], widths: list[int], room: int) -> Iterator[list[str]]:
    """Groups of models, each as large as fits one table."""
    group: list[str] = []
    taken = 0
    for model, width in zip(models, widths, strict=True):
        if group and taken + width > room:
            yield group
            group, taken = [], 0
        group.append(model)
        taken += width
    yield group


def _tabulate_types(rows: pd.DataFrame, models: list[str], over: str, width: int) -> Table:
    """The measures of each model for each type and the whole."""
    table = _make_grid(f"over {over}")
    names = [_shorten(model, models) for model in models]
    longest = min(max(map(len, names)), LONGEST_NAME)
    table.add_column("model", overflow="fold", max_width=LONGEST_NAME, min_width=longest)
    table.add_column("", overflow="fold")
    kinds = rows.loc[rows["level"] != "category", "name"]
    measures = _add_measures(table, width - longest - 2 - max(map(len, kinds)))
    for model, name in zip(models, names, strict=True):
        own = rows[(rows["model"] == model) & (rows["level"] != "category")]
        for place, row in enumerate(own.to_dict("records")):
            table.add_row(*map(Text, ("" if place else name, printable(row["name"]), *measures(row))))
        table.add_section()
    return table


def _add_measures(table: Table, room: int) -> Callable[[Any], list[str]]:
    """Add columns for known questions, accuracy and the measures that fit. Returns the function that makes cells."""
    room -= KNOWN
    interval = room >= WITH_INTERVAL
    room -= WITH_INTERVAL if interval else ACCURACY
    shown = []
    for measure in MEASURES:
        if room >= measure.width:
            shown.append(measure)
            room -= measure.width
    shown.sort(key=lambda measure: ORDER.index(measure.title))
    for name in ("known", "accuracy [95%]" if interval else "accuracy", *(measure.title for measure in shown)):
        table.add_column(name, justify="right", no_wrap=True)

    def make_cells(row: Any) -> list[str]:
        accuracy = _format_accuracy(row) if interval else format_number(row["accuracy"])
        return [f"{row['known']:,}", accuracy, *(format_number(row[each.column], each.form) for each in shown)]

    return make_cells


def _tabulate_comparisons(comparisons: pd.DataFrame, models: list[str], width: int) -> Table:
    """The overall differences of accuracy between models, with their tests."""
    table = _make_grid("differences of accuracy, overall")
    counts = width >= 80
    name = max(8, (width - (52 if counts else 36)) // 2)
    table.add_column("model", overflow="fold", max_width=name)
    table.add_column("against", overflow="fold", max_width=name)
    for title in ("difference [95%]", *(["only one right"] if counts else []), "p (Holm)"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in comparisons[comparisons["level"] == "overall"].to_dict("records"):
        difference = _format_interval(row["difference"], row["difference_low"], row["difference_high"], "+.3f")
        only = [f"{row['only_model']:,} : {row['only_other']:,}"] if counts else []
        pair = (_shorten(row["model"], models), _shorten(row["other"], models))
        table.add_row(*map(Text, (*pair, difference, *only, _format_p_value(row["p_corrected"]))))
    return table


def _separate_levels(table: Table, rows: pd.DataFrame) -> Any:
    """The rows as records; a line separates levels."""
    previous = None
    for row in rows.to_dict("records"):
        if previous not in (None, row["level"]):
            table.add_section()
        previous = row["level"]
        yield row


def _choose_style(row: Any) -> str:
    return "" if row["level"] == "category" else "bold"


def _shorten(model: str, models: list[str]) -> str:
    """The last part of a path or Hub id, if these parts differ between the models."""
    parts = [name.rstrip("/").rsplit("/", 1)[-1] for name in models]
    return printable(model.rstrip("/").rsplit("/", 1)[-1] if len(set(parts)) == len(parts) else model)


def _format_accuracy(row: Any) -> str:
    return _format_interval(row["accuracy"], row["accuracy_low"], row["accuracy_high"], ".3f")


def _format_interval(value: float, low: float, high: float, form: str) -> str:
    bounds = "" if is_missing(low) else f" [{format_number(low, form)}, {format_number(high, form)}]"
    return f"{format_number(value, form)}{bounds}"


def _format_p_value(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


# Column of the results → its title.
TITLES = {
    "cosine_error": "1 - cos", "rank": "rank", "rho": "ρ", "sigma": "σ", "sigma_star": "σ*", "delta": "δ", "xi": "ξ",
    "zeta_spread": "ζ range", "contexts": "contexts",
}  # fmt: skip
WHOLE = ("rank", "contexts")
# What a narrow terminal does not show.
EXPENDABLE = ("contexts", "rank")


def print_explanation(frame: pd.DataFrame) -> None:
    """Print a table for each model: the questions with their cosine errors and error terms."""
    console = Terminal()
    counts = (f"{frame.attrs[name]:,} {name}" for name in ("sentences", "words", "dimensions"))
    console.print(", ".join(counts), style="bold", highlight=False)
    for model, rows in frame.groupby("model", sort=False):
        table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        table.add_column(Text(str(model)), overflow="fold")
        for title in TITLES.values():
            table.add_column(title, justify="right", no_wrap=True)
        for row in rows.to_dict("records"):
            question = printable(f"{row['a']} : {row['b']} = {row['c']} : {row['answer']}")
            numbers = [format_number(row[name], "d" if name in WHOLE else ".2f") for name in TITLES]
            table.add_row(Text(question), *map(Text, numbers))
        console.print(drop_columns(table, console, EXPENDABLE))
    console.print(Text("ρ to ξ are norms over the contexts in which all probabilities are positive", style="dim"))
    if (frame["contexts"] == 0).any():
        console.print(Text("—: there is no such context; a larger corpus has more", style="dim"))
