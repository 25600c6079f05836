"""The table of what each statement of the papers gives.

A new statement is a function, seed → Residuals, and one more `Statement` in attngeo.theory.table.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from attngeo.errors import UsageError
from attngeo.options import takes
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.provenance import machine, software
from attngeo.theory.options import TheoryOptions
from attngeo.theory.table import PAPERS, Statement, list_statements

if TYPE_CHECKING:
    import pandas as pd

    from attngeo.theory.residuals import Residuals

COLUMNS = ("statement", "paper", "computed", "tolerance", "residual", "holds", "as_printed")

STATEMENTS: dict[str, Statement] = {each.name: each for each in list_statements()}


def select_statements(names: Sequence[str]) -> list[Statement]:
    """The statements of these names, in the table's order; all if there is none.

    A name also selects those that it begins: "theorem-2" selects "theorem-2-one-head", but not "theorem-2.3-norms".
    Raises UsageError for an unknown name.
    """
    selected = set()
    for name in names:
        found = [each for each in STATEMENTS if each == name or each.startswith(f"{name}-")]
        if not found:
            raise UsageError(_explain_unknown(name))
        selected |= {*found}
    return [each for name, each in STATEMENTS.items() if not names or name in selected]


def _explain_unknown(name: str) -> str:
    near = get_close_matches(name.lower(), STATEMENTS, 3, 0.5)
    advice = f"did you mean {' or '.join(near)}?" if near else f"expected some of: {', '.join(STATEMENTS)}"
    return f"no statement is named {name!r}; {advice}"


class TheoryKeywords(TheoryOptions):
    """The keywords of `check_statements`."""

    options: TheoryOptions | None = None
    progress: ProgressCallback = ignore_progress


@takes(TheoryKeywords)
def check_statements(
    names: Sequence[str] = (), options: TheoryOptions = TheoryOptions(), *, progress: ProgressCallback = ignore_progress
) -> pd.DataFrame:
    """Evaluate the statements of these names, or all: a row for each, with the columns COLUMNS.

    {options}
    progress: called before each statement.
    `residual` is the largest error, `holds` whether it is at most `tolerance`; a NaN does not hold. `as_printed` is
    False if that is true of a corrected form only, which is then what `residual` is about.
    Raises UsageError for an unknown name or a seed out of range.

    >>> row = check_statements(["lemma-1"]).iloc[0]
    >>> bool(row.holds and row.as_printed and row.residual < 1e-10)
    True
    """
    import pandas as pd

    chosen = select_statements(names)
    rows = []
    for done, statement in enumerate(chosen):
        progress(Progress("verify", statement.name, done, len(chosen), "steps"))
        rows.append(_make_row(statement, statement.evaluate(options.seed)))
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    about: dict[Any, Any] = {
        "title": "Statements of the papers",
        **software(),
        **machine(),
        **vars(options),
        "papers": PAPERS,
    }
    frame.attrs = about
    return frame


def _make_row(statement: Statement, found: Residuals) -> tuple[Any, ...]:
    residual = found.worst
    holds = residual <= statement.tolerance
    return (
        statement.name, f"{statement.paper}, {statement.place}", f"{statement.claim}: {found.found}",
        statement.tolerance, residual, holds, holds and found.worst_printed <= statement.tolerance,
    )  # fmt: skip
