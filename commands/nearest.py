"""`attngeo nearest`: one analogy by hand."""

from __future__ import annotations

from typing import Annotated

import typer

from attngeo.analogies.options import NearestOptions
from attngeo.bounds import printable
from attngeo.checkpoints.reference import HubAccess

from .declare import with_options
from .messages import say
from .outputs import EMBEDDING_HELP, OutputFormat, Quiet, RowsFormat, Verbose, complete_models, print_rows


@with_options
def nearest(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help=EMBEDDING_HELP, show_default=False, autocompletion=complete_models)
    ],
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="WORDS", help="Words joined by + and -, with spaces around the signs", show_default=False
        ),
    ],
    options: NearestOptions,
    format: RowsFormat = OutputFormat.table,
    hub: HubAccess = HubAccess(),
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Show the words nearest to a sum of words.

    Words are ranked by cosine similarity. The words of the sum are left out.

    Examples:
        attngeo nearest demo:minilm king - man + woman
        attngeo nearest glove.6B.300d.txt paris - france + italy --top-k 5
    """
    from attngeo.analogies.nearest import nearest as find_nearest

    from .progress import Bar

    with Bar(model, quiet=quiet, verbose=verbose) as progress:
        frame = find_nearest(model, " ".join(words), options=options, hub=hub, progress=progress)
    if not quiet:
        for note in frame.attrs["notes"]:
            say(f"note: {model}: {note}")
    if format is not OutputFormat.table:
        return print_rows(frame, format)

    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    from .tables import Terminal

    grid = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    grid.add_column("word", overflow="fold")
    grid.add_column("cosine", justify="right")
    for row in frame.to_dict("records"):
        grid.add_row(Text(printable(row["word"])), f"{row['cosine']:+.3f}")
    console = Terminal()
    title = printable(" · ".join([model, " ".join(words), *frame.attrs["how"]]))
    console.print(title, style="bold", highlight=False)
    return console.print(grid)
