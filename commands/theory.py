"""`attngeo theory`: do the statements of the papers hold?"""

from __future__ import annotations

from typing import Annotated

import typer

from attngeo.theory.options import TheoryOptions
from attngeo.theory.statements import STATEMENTS, check_statements, select_statements

from .declare import with_options
from .messages import say
from .options import Output, OutputFormat, Quiet, RowsFormat, Verbose
from .outputs import check_outputs, deliver_rows

FAILED = 1


def complete_statements(incomplete: str) -> list[str]:
    """The names of statements that a shell may complete."""
    return [name for name in STATEMENTS if name.startswith(incomplete)]


@with_options
def theory(
    options: TheoryOptions,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            show_default=False,
            autocompletion=complete_statements,
            help="Statements to check, such as lemma-1, or theorem-2 for all of its forms; by default all",
        ),
    ] = None,
    output: Output = None,
    format: RowsFormat = OutputFormat.table,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Check the statements of the papers by computing both sides of each.

    The papers are Wibisono and Wang 2023 (arXiv 2307.04057), Saponati et al. 2025 (arXiv 2502.10927) and Wibisono and
    Wang 2025 (arXiv 2501.16790). Identities are computed in float64, claims about expectations are simulated. If a
    statement holds only in a corrected form, the column "as printed" says so, and the row is about the corrected form.
    Exit code 1 if a statement does not hold.

    Examples:
        attngeo theory
        attngeo theory theorem-2 lemma-11 --seed 3
        attngeo theory efa
        attngeo theory -o theory.csv -o theory.md
    """
    check_outputs(output or [])
    chosen = select_statements(names or [])

    from .progress import Bar
    from .render_theory import print_statements

    with Bar("theory", quiet=quiet, verbose=verbose) as progress:
        frame = check_statements([each.name for each in chosen], options=options, progress=progress)
    deliver_rows(frame, output or [], format, print_statements)
    failed = list(frame.loc[~frame["holds"], "statement"])
    if failed:
        say(f"check failed: {', '.join(failed)} {'does' if len(failed) == 1 else 'do'} not hold")
        raise typer.Exit(FAILED)
