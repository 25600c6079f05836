"""`attngeo analogy`: how well embeddings solve word analogies."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attngeo.analogies.options import (
    CHECKS,
    LAYER,
    SIGNS,
    TABLE_LAYER,
    AnalogyOptions,
    ExplainOptions,
    analogy_columns,
    describe_settings,
)
from attngeo.analogies.questions import require_questions
from attngeo.bounds.paths import local_path
from attngeo.bounds.small_files import open_regular
from attngeo.checkpoints.access import HubAccess
from attngeo.embeddings.reference import parse_reference, require_embedding
from attngeo.errors import UsageError
from attngeo.options import COMPUTATION, options_of
from attngeo.papers.wibisono2023.options import require_corpus
from attngeo.questions.frames import join_frames
from attngeo.questions.table import QUESTIONS
from attngeo.session import Session, StudyOptions
from attngeo.tables.write import write_table

from .asking import ask_models
from .checks import Checks, conclude, condition_option, parse_conditions, require_conditions
from .declare import with_options
from .models import EMBEDDING_HELP, ModelsFile, list_all, model_argument
from .outputs import Outputs, Verbosity, file_option, plot_option
from .progress import Bar
from .selection import Selection
from .tables import Cell, Terminal, format_number, is_missing, print_frame, print_table

if TYPE_CHECKING:
    import pandas as pd

    from attngeo.analogies.analogy import AnalogyResult

# What --explain takes of the options of analogies.
SHARED = ("questions", "seed")
# The columns of a table of selected rows.
BRIEF = ("level", "name", "questions", "known", "accuracy", "top5", "mrr", "mean_cosine")
LONGEST_NAME = 24
ALL_KNOW = "the questions that all models know"
# The first line of a file of questions, and the bytes of it that are read. In a file of vectors, a number follows ":".
HEADING, LONGEST_HEADING = re.compile(r": *[^\W\d]"), 200
# What a narrow terminal does not show, of measures and of error terms.
EXPENDABLE = ("rank", "MRR", "top 5", "cosine")
EXPENDABLE_TERMS = ("1 - cos c", "1 - cos c̃", "p̄ skew", "added", "contexts", "rank")
MEASURES: dict[str, Cell] = {
    "known": "known:,d",
    "accuracy [95%]": lambda row: _format_interval(row["accuracy"], row["accuracy_low"], row["accuracy_high"], ".3f"),
    "top 5": "top5:.3f",
    "MRR": "mrr:.3f",
    "rank": "mean_rank:,.1f",
    "cosine": "mean_cosine:.3f",
}
TERMS: dict[str, Cell] = {
    "1 - cos": "cosine_error:.2f",
    "rank": "rank:d",
    "ρ": "rho:.2f",
    "σ": "sigma:.2f",
    "σ*": "sigma_star:.2f",
    "δ": "delta:.2f",
    "ξ": "xi:.2f",
    "ζ range": "zeta_spread:.2f",
    "added": "remainder:.2f",
    "1 - cos c": "context_error:.2f",
    "1 - cos c̃": "scaled_error:.2f",
    "p̄ skew": "asymmetry:.2f",
    "contexts": "contexts:d",
}
print_rows = partial(print_table, rule="tight")
Plots = Annotated[list[Path] | None, plot_option("the accuracy in each category")]
Conditions = Annotated[list[str] | None, condition_option("accuracy.min < 0.1", CHECKS)]

Explain = Annotated[
    str | None,
    typer.Option(
        "--explain",
        metavar="CORPUS",
        help="Train CBOW and attention on CORPUS (a text with one sentence per line, or toy) and report the "
        "paraphrase errors of each question, instead of asking models",
        rich_help_panel=COMPUTATION,
    ),
]


@with_options
def analogy(
    *,
    options: AnalogyOptions,
    models: Annotated[list[str] | None, model_argument(EMBEDDING_HELP)] = None,
    models_file: ModelsFile = None,
    explain: Explain = None,
    training: ExplainOptions,
    outputs: Outputs,
    selection: Selection,
    plot: Plots = None,
    fail_if: Conditions = None,
    checks: Checks = None,
    questions_output: Annotated[
        Path | None, file_option("--questions-output", help="Write each question with its rank and the best answers")
    ] = None,
    comparisons_output: Annotated[
        Path | None, file_option("--comparisons-output", help="Write the significance test of each pair of models")
    ] = None,
    hub: HubAccess,
    study: StudyOptions,
    verbosity: Verbosity,
) -> None:
    """Test embeddings on word analogies: a is to b as c is to which word?

    The answer is the word whose vector has the largest cosine with b + c - a. Several models are compared on the
    questions that all of them know. By default, as in Wibisono and Wang 2023 (arXiv 2307.04057), vectors are used
    unchanged and only whole words may be answers.

    With --layers, the model runs on each word alone, and its hidden states are asked beside the table of vectors.

    With --explain, computes the error terms of the paper's section 4.2 instead, for embeddings trained on a small text.

    Examples:
        attngeo analogy demo:minilm
        attngeo analogy google-bert/bert-base-uncased glove.6B.300d.txt -o a.csv
        attngeo analogy vectors.bin --normalize --answers all
        attngeo analogy demo:minilm --layers 0-5
        attngeo analogy './checkpoints/*' --jobs 2 --plot a.html
        attngeo analogy demo:minilm --fail-if 'accuracy.max < 0.5'
        attngeo analogy --explain toy -o terms.csv
    """  # noqa: D400 - it ends with a question
    more = {"questions": questions_output, "comparisons": comparisons_output}
    extra = {name: path for name, path in more.items() if path is not None}
    questions = options.questions if explain is None else training.questions
    read = [explain, models_file, questions if isinstance(questions, str | Path) else None]
    figures = plot or []
    outputs.check(*read, more=[*extra.values(), checks], figures=figures)
    of_models = {"plot": figures, "fail_if": fail_if, **selection.given, **study.given}
    named = [*(models or []), *([models_file] if models_file is not None else [])]
    _check_subject(named, explain, options, training, extra, [name for name, value in of_models.items() if value])
    conditions = parse_conditions(fail_if, CHECKS)
    require_conditions(checks, conditions)
    selection.check(analogy_columns(options.layers))
    require_questions(questions)
    _refuse_words(models or [])
    if explain is not None:
        require_corpus(explain)
        _explain(explain, training, outputs, verbosity)
        return
    listed = list_all(models, models_file, hub, command="analogy", verbosity=verbosity, parse=parse_reference)
    outputs.check(*listed, more=[*extra.values(), checks], figures=figures)
    if len(listed) == 1:
        require_embedding(listed[0])  # one of several fails alone
    outcomes = ask_models(QUESTIONS["analogy"], listed, Session(hub, study), verbosity, options=options)
    frames = [outcome.result for outcome in outcomes if outcome.result is not None]
    rows = join_frames([])
    if frames:
        from attngeo.analogies.analogy import join_answers

        result = join_answers(frames, options)
        rows = result.rows
        for name, path in extra.items():
            write_table(getattr(result, name), path)
        if selection.is_given:
            several = ["model"] if rows["model"].nunique() > 1 else []
            layers = [] if options.layers is None else [LAYER]
            brief = selection.choose([*several, *layers, *BRIEF])
            outputs.deliver(selection.select(rows), lambda selected: print_frame(selected[brief]), brief)
        else:
            outputs.deliver(rows, lambda _: print_result(result, options))
        for note in rows.attrs["notes"]:
            verbosity.note(f"note: {note}")
        outputs.draw("analogies", [rows], figures)
    conclude(rows, outcomes, conditions, verbosity, checks)


def _explain(corpus: str, training: ExplainOptions, outputs: Outputs, verbosity: Verbosity) -> None:
    """Report the error terms of questions in embeddings that are trained on a text."""
    with Bar("explain", verbosity) as progress:
        from attngeo.papers.wibisono2023.analogies import explain as explain_analogies

        rows = explain_analogies(corpus, options=training, progress=progress)
    outputs.deliver(rows, print_explanation)
    for note in rows.attrs["notes"]:
        verbosity.note(f"note: {note}")


def _check_subject(
    named: Sequence[str],
    explain: str | None,
    options: AnalogyOptions,
    training: ExplainOptions,
    extra: Iterable[str],
    of_models: Iterable[str],
) -> None:
    """Raise UsageError unless there are models or a corpus, and for what has no effect on them.

    named: the models, and the file of models. extra: further tables. of_models: other options about models alone.
    """
    if explain is None:
        for name in sorted(training.model_fields_set - {*SHARED}):
            raise UsageError(f"${name} requires $explain, which trains the embeddings", name, "explain")
        if not named:
            raise UsageError("missing argument MODEL; name a model, or add $explain CORPUS", "explain")
        return
    if named:
        raise UsageError(
            f"$explain trains its own embeddings and uses no models; leave out {', '.join(named)}", "explain"
        )
    chosen = [name for name in options_of(AnalogyOptions) if name in options.model_fields_set]
    for name in (*chosen, *(f"{name}_output" for name in extra), *of_models):
        if name not in SHARED:
            raise UsageError(f"${name} has no effect with $explain; leave it out", name, "explain")


def _refuse_words(models: Sequence[str]) -> None:
    """Raise UsageError for a sum of words after the model, and for a file of questions among the models."""
    if not SIGNS.keys().isdisjoint(models):
        raise UsageError(f"expected models, got a sum of words; type: attngeo nearest {_quote(models)}")
    for model in models:
        if not _holds_questions(model):
            continue
        asked = [other for other in models if other != model] or ["MODEL"]
        raise UsageError(
            f"{model} contains questions, expected word vectors; type: attngeo analogy {_quote(asked)} "
            f"--questions {shlex.quote(model)}"
        )


def _quote(arguments: Iterable[str]) -> str:
    """Arguments as a shell takes them."""
    return " ".join(map(shlex.quote, arguments))


def _holds_questions(model: str) -> bool:
    """Whether a file begins as one of questions does, with `: category`. A row of vectors has a number there."""
    path = local_path(model)
    if path.suffix.lower() != ".txt" or not path.is_file():
        return False
    try:
        with open_regular(path) as file:
            heading = file.readline(LONGEST_HEADING).decode(errors="replace")
    except OSError:  # reading the vectors says why
        return False
    return HEADING.match(heading) is not None


def print_result(result: AnalogyResult, options: AnalogyOptions) -> None:
    """Print one model in full, or several models side by side with tests of their differences."""
    scores = result.rows
    models = list(dict.fromkeys(result.questions["model"]))
    common, alone, published = (scores[scores["questions"] == which] for which in ("common", "own", "published"))
    if options.layers is not None:
        for model in models:
            title = _describe_models(scores, model, options)
            _print_layers(scores[scores["model"] == model], result.comparisons, title)
    elif len(models) == 1:
        title = _describe_models(scores, models[0], options)
        columns = {"category": "name", **MEASURES}
        print_rows(alone, columns, title=title, section=["level"], style=_style, expendable=EXPENDABLE)
    else:
        names = _shorten(models)
        _print_side_by_side(result, common, names, options)
        _print_totals(common, names, ALL_KNOW)
        _print_comparisons(result.comparisons, names)
        if len(alone):
            _print_totals(alone, names, "all questions that each model knows")
    if len(published):
        _print_totals(published, _shorten(list(dict.fromkeys(published["model"]))), "the paper's 9,522 questions")


def _print_layers(rows: pd.DataFrame, comparisons: pd.DataFrame, title: str) -> None:
    """The measures of a model on all questions in each layer, and the accuracy in each less that of the table.

    rows: of one model.
    """
    overall = rows[rows["level"] == "overall"]
    of_layers = comparisons[(comparisons["level"] == "overall") & comparisons["model"].isin(rows["model"])]
    gains = of_layers[of_layers[LAYER] != TABLE_LAYER].set_index(LAYER).to_dict("index")

    def show_gain(row: Any) -> str:
        gain = gains.get(row[LAYER])
        if gain is None:
            return "" if row[LAYER] == TABLE_LAYER else format_number(None)
        return _format_interval(gain["difference"], gain["difference_low"], gain["difference_high"], "+.3f")

    columns: dict[str, Cell] = {"layer": "layer:d", **MEASURES, "less the table [95%]": show_gain}
    for questions, shown in overall.groupby("questions", sort=False):
        heading = f"{title}\nover {ALL_KNOW}" if questions == "common" else title
        print_rows(shown, columns, title=heading, expendable=EXPENDABLE)


def _style(row: Any) -> str:
    """The style of a row: bold if it is about a type or the whole."""
    return "bold" if row["level"] != "category" else ""


def _describe_models(scores: pd.DataFrame, name: str, options: AnalogyOptions) -> str:
    """What was asked, of which models, and how."""
    overall = scores[(scores["level"] == "overall") & (scores["questions"] != "published")].iloc[0]
    known = f"{overall['known']:,} of {overall['asked']:,} questions"
    return " · ".join([name, f"{scores.attrs['questions']}: {known}", *describe_settings(options)])


def _print_side_by_side(
    result: AnalogyResult, rows: pd.DataFrame, names: dict[str, str], options: AnalogyOptions
) -> None:
    """The accuracy of each model in each category, each type and the whole; in several tables if one is too wide."""
    known = result.questions.groupby("model")["known"].sum()
    counts = " · ".join(f"{name} {known[model]:,}" for model, name in names.items())
    title = f"{_describe_models(result.rows, f'{len(names)} models', options)}\nknown by each: {counts}"
    accuracies = {(row["model"], row["level"], row["name"]): row["accuracy"] for row in rows.to_dict("records")}

    def show_accuracy(model: str, row: Any) -> str:
        return format_number(accuracies[model, row["level"], row["name"]])

    models = list(names)
    widest = max(map(len, names.values()))
    at_once = max(1, (Terminal().width - LONGEST_NAME) // (min(widest, LONGEST_NAME) + 2))
    for start in range(0, len(models), at_once):
        columns: dict[str, Cell] = {"accuracy": "name", "known": MEASURES["known"]}
        for model in models[start : start + at_once]:
            columns[names[model]] = partial(show_accuracy, model)
        print_rows(rows[rows["model"] == models[0]], columns, title=title, section=["level"], style=_style)
        title = "\n"


def _print_totals(rows: pd.DataFrame, names: dict[str, str], over: str) -> None:
    """The measures of each model for each type and the whole."""
    totals = rows[rows["level"] != "category"].assign(short=rows["model"].map(names))
    columns = {"model": "short", "": "name", **MEASURES}
    title = f"\nover {over}"
    print_rows(totals, columns, title=title, texts=["model", ""], section=["model"], expendable=EXPENDABLE)


def _print_comparisons(comparisons: pd.DataFrame, names: dict[str, str]) -> None:
    """The overall differences of accuracy between models, with their tests."""
    columns: dict[str, Cell] = {
        "model": lambda row: names[row["model"]],
        "against": lambda row: names[row["other"]],
        "difference [95%]": lambda row: _format_interval(
            row["difference"], row["difference_low"], row["difference_high"], "+.3f"
        ),
        "only one right": lambda row: f"{row['only_model']:,} : {row['only_other']:,}",
        "p (Holm)": lambda row: "< 0.001" if row["p_corrected"] < 0.001 else f"{row['p_corrected']:.3f}",
    }
    overall = comparisons[comparisons["level"] == "overall"]
    print_rows(
        overall,
        columns,
        title="\ndifferences in overall accuracy",
        texts=["model", "against"],
        expendable=["only one right"],
    )


def _shorten(models: list[str]) -> dict[str, str]:
    """Each model → the last part of its path or Hub id, if these parts differ between the models."""
    parts = [name.rstrip("/").rsplit("/", 1)[-1] for name in models]
    return dict(zip(models, parts if len(set(parts)) == len(parts) else models, strict=True))


def _format_interval(value: float, low: float, high: float, form: str) -> str:
    bounds = "" if is_missing(low) else f" [{format_number(low, form)}, {format_number(high, form)}]"
    return f"{format_number(value, form)}{bounds}"


def print_explanation(frame: pd.DataFrame) -> None:
    """Print a table for each model: the questions with their cosine errors and error terms."""
    console = Terminal()
    counts = (f"{frame.attrs[name]:,} {name}" for name in ("sentences", "words", "dimensions"))
    console.print(", ".join(counts), style="bold")
    for model, rows in frame.groupby("model", sort=False):
        columns = {str(model): lambda row: f"{row['a']} : {row['b']} = {row['c']} : {row['answer']}", **TERMS}
        print_rows(rows, columns, expendable=EXPENDABLE_TERMS)
    console.print("ρ to ξ are norms over the contexts in which all probabilities are positive", style="dim")
    if (frame["contexts"] == 0).any():
        console.print("—: no such context; a larger corpus has more", style="dim")
