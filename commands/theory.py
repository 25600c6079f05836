"""`attngeo theory`: checks of the papers' statements, and counts of a text's tokens as contexts and as predicted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.padding import Padding
from rich.text import Text

from attngeo.errors import UsageError
from attngeo.options import INPUT
from attngeo.papers.statements import ROUNDING, STATEMENTS, TheoryOptions, check_statements, select_statements
from attngeo.papers.wibisono2023.options import require_corpus

from .declare import with_options
from .messages import say
from .outputs import Outputs, Verbosity
from .progress import Bar
from .tables import Cell, Terminal, print_table

if TYPE_CHECKING:
    import pandas as pd

FAILED = 1
# Rows of --text that a terminal shows.
MOST_ROWS_SHOWN = 20


@with_options
def theory(
    *,
    options: TheoryOptions,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            autocompletion=lambda: list(STATEMENTS),
            help="Statements to check, such as lemma-1, or theorem-2 for all its forms; default: all",
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            "--text",
            metavar="FILE",
            help="Instead of checking statements, count how often each token of a text is a context and how often it "
            "is predicted (Remark S1.10). FILE has one sequence per line, split at white space; or toy",
            rich_help_panel=INPUT,
        ),
    ] = None,
    outputs: Outputs,
    verbosity: Verbosity,
) -> None:
    """Check each statement of the papers by computing both of its sides.

    The papers are Wibisono and Wang 2023 (arXiv 2307.04057), Saponati et al. 2025 (arXiv 2502.10927) and Wibisono and
    Wang 2025 (arXiv 2501.16790). Identities are computed in float64; claims about expectations are simulated. If a
    statement holds only in a corrected form, the column "as printed" says no, and the row describes the corrected form.
    The exit code is 1 if a statement does not hold.

    With --text, counts how often each token of a text is a context and how often it is predicted, and lists the tokens
    whose counts differ most (largest z). Theorem 2.3 of Saponati et al. concerns tokens that come early in a sequence.

    Examples:
        attngeo theory
        attngeo theory theorem-2 lemma-11 --seed 3
        attngeo theory efa
        attngeo theory -o theory.csv -o theory.md
        attngeo theory --text sentences.txt -o tokens.csv
    """
    outputs.check(text)
    if text is not None:
        if names:
            raise UsageError(
                f"$text counts tokens and checks no statements; leave out {', '.join(names)}", "text", "seed"
            )
        if options.model_fields_set:
            raise UsageError("$text counts tokens and uses no $seed; leave out one of them", "text", "seed")
        require_corpus(text)

        from attngeo.papers.saponati2025.roles import count_roles

        roles = count_roles(text)
        outputs.deliver(roles, print_roles)
        if len(roles) > MOST_ROWS_SHOWN and outputs.format == "table":
            verbosity.note(f"note: {MOST_ROWS_SHOWN} of {len(roles):,} tokens are shown; -o FILE writes all")
        return
    chosen = select_statements(names or [])
    with Bar("theory", verbosity) as progress:
        frame = check_statements(chosen, options=options, progress=progress)
    outputs.deliver(frame, print_statements)
    failed = list(frame.loc[~frame["holds"], "statement"])
    if failed:
        verb = "does" if len(failed) == 1 else "do"
        say(f"check failed: {', '.join(failed)} {verb} not hold")
        raise typer.Exit(FAILED)


def print_statements(frame: pd.DataFrame) -> None:
    """Print a line for each statement, then the measurements of statements that are no identity or fail as printed."""
    console = Terminal()
    titles = frame["paper"].str.partition(", ")
    rows = frame.assign(paper=titles[0], place=titles[2])
    columns: dict[str, Cell] = {
        "statement": "statement",
        "in the paper": "place",
        "residual": "residual:.2g",
        "tolerance": "tolerance:.2g",
        "holds": lambda row: "yes" if row["holds"] else "no",
        "as printed": lambda row: "yes" if row["as_printed"] else "no",
    }
    print_table(
        rows,
        columns,
        texts=["statement", "in the paper"],
        section=["paper"],
        is_headed=True,
        style=lambda row: "" if row["holds"] else "bold red",
        expendable=["in the paper"],
        last_resort=["tolerance"],
    )
    for row in frame.to_dict("records"):
        if not row["holds"] or not row["as_printed"] or row["tolerance"] != ROUNDING:
            console.print(Text(row["statement"], style="bold"))
            console.print(Padding(Text(row["computed"]), (0, 0, 0, 2)))
    holding = int(frame["holds"].sum())
    as_printed = int(frame["as_printed"].sum())
    console.print(f"\n{holding} of {len(frame)} hold, {as_printed} of them as printed")


def print_roles(frame: pd.DataFrame) -> None:
    """Print the tokens whose counts differ most."""
    columns: dict[str, Cell] = {
        "token": "token",
        "count": "count:,d",
        "mean position": "position:.2f",
        "of": "length:.2f",
        "as context": "context:,d",
        "predicted": "predicted:,d",
        "ratio": "ratio:.2f",
        "z": "z:+.1f",
    }
    title = f"{frame.attrs['text']}: {len(frame):,} different tokens, {frame['count'].sum():,} in all"
    print_table(frame.head(MOST_ROWS_SHOWN), columns, title=title, expendable=["predicted", "as context"])
