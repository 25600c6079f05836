"""`attngeo analogy`: do the embeddings of a model solve word analogies?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attngeo.choices import Method, Resample

from .embedding_options import (
    EMBEDDING_HELP,
    CandidatesOption,
    CaseOption,
    Centre,
    ComposeOption,
    Limit,
    Normalise,
    TableOption,
    Whiten,
    parse_bytes,
)
from .messages import say
from .options import Device, Format, Offline, Output, Quiet, RowsFormat, Verbose, model_names
from .outputs import check_outputs, print_rows

if TYPE_CHECKING:
    from attngeo.analogies.analogy import AnalogyResult


def analogy(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL", help=EMBEDDING_HELP, show_default=False, autocompletion=model_names)
    ],
    questions: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE|FOLDER", help="google (19,544 questions), a file of the same form, or a folder of BATS."
        ),
    ] = "google",
    keep_duplicates: Annotated[
        bool, typer.Option("--keep-duplicates", help="Ask a question as often as the file has it.")
    ] = False,
    table: TableOption = "input",
    candidates: CandidatesOption = "words",
    case: CaseOption = "auto",
    compose: ComposeOption = "none",
    limit: Limit = None,
    method: Annotated[Method, typer.Option(help="How a candidate is scored.")] = "3cosadd",
    normalise: Normalise = False,
    centre: Centre = False,
    whiten: Whiten = 0,
    top_k: Annotated[int, typer.Option("--top-k", help="Best candidates that --questions-output gives.")] = 5,
    own: Annotated[
        bool, typer.Option("--own", help="Besides the questions that all models know, each one's on all it knows.")
    ] = False,
    published: Annotated[bool, typer.Option("--published", help="Add the paper's Table 3.")] = False,
    resample: Annotated[
        Resample, typer.Option(help="What the bootstrap draws: pairs of words, or questions as if independent.")
    ] = "pairs",
    draws: Annotated[int, typer.Option(help="Bootstrap draws; 0 for no intervals.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Of the bootstrap.")] = 0,
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="For blocks of the computation, beside the table.")
    ] = "1GB",
    device: Device = "auto",
    output: Output = None,
    questions_output: Annotated[
        Path | None,
        typer.Option("--questions-output", metavar="FILE", help="Write every question, its rank and the top answers."),
    ] = None,
    comparisons_output: Annotated[
        Path | None,
        typer.Option("--comparisons-output", metavar="FILE", help="Write the tests between every two models."),
    ] = None,
    format: RowsFormat = Format.table,
    offline: Offline = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Ask embeddings word analogies: a is to b as c is to which word?

    The answer is the word of largest cosine with b + c - a. Several models are compared on the questions that all of
    them know. By default, as the paper describes it, vectors are taken as they are and only words may be answers.

    Examples:
        attngeo analogy demo:minilm
        attngeo analogy google-bert/bert-base-uncased glove.6B.300d.txt -o a.csv
        attngeo analogy vectors.kv --normalise --candidates all --keep-duplicates
    """
    size = parse_bytes(memory)
    files = [("scores", path) for path in output or []]
    files += [("questions", questions_output)] if questions_output else []
    files += [("comparisons", comparisons_output)] if comparisons_output else []
    check_outputs(path for _, path in files)

    from attngeo.analogies.analogy import analogy as ask_analogies
    from attngeo.analogies.statistics import Bootstrap

    from .progress import Bar

    with Bar("analogy", quiet=quiet, verbose=verbose) as progress:
        result = ask_analogies(
            models, questions=questions, keep_duplicates=keep_duplicates, table=table,
            candidates=candidates, case=case, compose=compose, limit=limit, method=method,
            normalise=normalise, centre=centre, whiten=whiten, top_k=top_k, own=own, published=published,
            bootstrap=Bootstrap(resample, draws, seed), memory=size, device=device, offline=offline,
            progress=progress,
        )  # fmt: skip
    _deliver(result, files, format)
    if not quiet:
        for note in result.scores.attrs["notes"]:
            say(f"note: {note}")


def _deliver(result: AnalogyResult, files: list[tuple[str, Path]], format: Format) -> None:
    """Write the tables to files, then print: a closed pipe loses nothing."""
    from attngeo.tables import write as tables

    for name, path in files:
        tables.write_table(getattr(result, name), path)
    if format is not Format.table:
        return print_rows(result.scores, format)

    from .render_analogy import print_result

    return print_result(result)
