"""`attngeo analogy`: do the embeddings of a model solve word analogies?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attngeo.analogies.options import AnalogyOptions
from attngeo.checkpoints.access import HubAccess
from attngeo.options import RESULTS

from .declare import take_options
from .messages import say
from .options import EMBEDDING_HELP, Output, OutputFormat, Quiet, RowsFormat, Verbose, complete_models
from .outputs import check_outputs, print_rows

if TYPE_CHECKING:
    from attngeo.analogies.analogy import AnalogyResult


@take_options(AnalogyOptions)
@take_options(HubAccess, "hub")
def analogy(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL", help=EMBEDDING_HELP, show_default=False, autocompletion=complete_models),
    ],
    options: AnalogyOptions,
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

    Examples:
        attngeo analogy demo:minilm
        attngeo analogy google-bert/bert-base-uncased glove.6B.300d.txt -o a.csv
        attngeo analogy vectors.kv --normalise --candidates all --keep-duplicates
    """
    files = [("scores", path) for path in output or []]
    files += [("questions", questions_output)] if questions_output else []
    files += [("comparisons", comparisons_output)] if comparisons_output else []
    check_outputs(path for _, path in files)

    from attngeo.analogies.analogy import analogy as ask_analogies

    from .progress import Bar

    with Bar("analogy", quiet=quiet, verbose=verbose) as progress:
        result = ask_analogies(models, options=options, hub=hub, progress=progress)
    _deliver(result, files, format)
    if not quiet:
        for note in result.scores.attrs["notes"]:
            say(f"note: {note}")


def _deliver(result: AnalogyResult, files: list[tuple[str, Path]], format: OutputFormat) -> None:
    """Write the files, then print, so that a closed pipe loses nothing."""
    from attngeo.tables.write import write_table

    for name, path in files:
        write_table(getattr(result, name), path)
    if format is not OutputFormat.table:
        return print_rows(result.scores, format)

    from .render_analogy import print_result

    return print_result(result)
