"""`attngeo nearest`: one analogy by hand."""

from __future__ import annotations

from typing import Annotated

import typer

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
)
from .messages import printable, say
from .options import Device, Format, Offline, Quiet, RowsFormat, Verbose, model_names
from .outputs import print_rows


def nearest(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help=EMBEDDING_HELP, show_default=False, autocompletion=model_names)
    ],
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="WORDS", help="Words with + and - between them, spaces around those.", show_default=False
        ),
    ],
    top_k: Annotated[int, typer.Option("--top-k", help="How many words to show.")] = 10,
    table: TableOption = "input",
    candidates: CandidatesOption = "words",
    case: CaseOption = "auto",
    compose: ComposeOption = "none",
    limit: Limit = None,
    normalise: Normalise = False,
    centre: Centre = False,
    whiten: Whiten = 0,
    device: Device = "auto",
    format: RowsFormat = Format.table,
    offline: Offline = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Show the words nearest to a sum of words.

    Nearest by cosine, the words of the sum left out.

    Examples:
        attngeo nearest demo:minilm king - man + woman
        attngeo nearest glove.6B.300d.txt paris - france + italy --top-k 5
    """
    from attngeo.analogies.nearest import nearest as nearest_words

    from .progress import Bar

    with Bar(model, quiet=quiet, verbose=verbose) as progress:
        frame = nearest_words(
            model, " ".join(words), table=table, candidates=candidates, case=case,
            compose=compose, limit=limit, normalise=normalise, centre=centre, whiten=whiten, top_k=top_k, device=device,
            offline=offline, progress=progress,
        )  # fmt: skip
    if not quiet:
        for note in frame.attrs["notes"]:
            say(f"note: {model}: {note}")
    if format is not Format.table:
        return print_rows(frame, format)

    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    from .console import Terminal

    grid = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    grid.add_column("word", overflow="fold")
    grid.add_column("cosine", justify="right")
    for row in frame.to_dict("records"):
        grid.add_row(Text(printable(row["word"])), f"{row['cosine']:+.3f}")
    console = Terminal()
    console.print(
        printable(" · ".join([model, " ".join(words), *frame.attrs["how"]])),
        style="bold",
        highlight=False,
        markup=False,
    )
    return console.print(grid)
