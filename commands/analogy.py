"""`attngeo analogy`: do the embeddings of a model solve word analogies?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attngeo.analogies.options import AnalogyOptions, ExplainOptions
from attngeo.checkpoints.access import HubAccess
from attngeo.errors import UsageError
from attngeo.options import COMPUTATION, RESULTS, options_of

from .declare import take_options
from .messages import say
from .options import EMBEDDING_HELP, Output, OutputFormat, Quiet, RowsFormat, Verbose, complete_models
from .outputs import check_outputs, deliver_rows, print_rows

if TYPE_CHECKING:
    from attngeo.analogies.analogy import AnalogyResult


# What --explain takes of the options of analogies.
SHARED = ("questions", "seed")


@take_options(AnalogyOptions)
@take_options(ExplainOptions, "training", leave_out=SHARED)
@take_options(HubAccess, "hub")
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
        shared = {name: getattr(options, name) for name in SHARED}
        chosen = replace(training, **shared)
        notes = _explain(explain, chosen, output or [], format, quiet=quiet, verbose=verbose)
    else:
        if training != ExplainOptions():
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
    plain = AnalogyOptions()
    changed = [name for name in options_of(AnalogyOptions) if getattr(options, name) != getattr(plain, name)]
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
    from attngeo.analogies.explanation import explain

    from .progress import Bar
    from .render_explanation import print_explanation

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

    from .render_analogy import print_result

    return print_result(result)
