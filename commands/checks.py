"""Conditions on results that fail a command: the option, and the messages about them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attngeo.errors import AttnGeoError, UsageError
from attngeo.options import RESULTS
from attngeo.questions.checks import parse_condition
from attngeo.questions.conditions import HEADS, LAYERS, Checkable, Condition
from attngeo.tables.write import write_table

from .messages import describe_error, say
from .outputs import Verbosity
from .study import SEVERAL_FAILED, describe_failures

if TYPE_CHECKING:
    import pandas as pd

    from attngeo.studies.run import RunOutcome

# The exit code if a condition is true.
CHECK_FAILED = 1
# Of the table of checks.
CHECK_COLUMNS = ("check", "model", "stack", "values", "fails_if")


Checks = Annotated[
    Path | None,
    typer.Option(
        "--checks",
        metavar="FILE",
        help="Write the checks of --fail-if to a .csv .json .jsonl .parquet .md .tex or .html file",
        rich_help_panel=RESULTS,
        hidden=True,
    ),
]


def condition_option(example: str, checks: Checkable, *, has_per_head: bool = False) -> Any:
    """The option --fail-if.

    Args:
        example: example of a condition, for the help.
        checks: what conditions may say of the command's table.
        has_per_head: whether the command has the option --per-head.
    """
    text = f"Exit with 1 if this condition is true, for example '{example}'; may be repeated; {checks.describe()}"
    if has_per_head:
        text += f"; with --per-head, names begin with {LAYERS}. or {HEADS}."
    if checks.has_baseline:
        text += "; and baseline.NAME, with --baseline FILE (see --help-all)"
    return typer.Option("--fail-if", metavar="CONDITION", help=text, rich_help_panel=RESULTS)


def parse_conditions(texts: Sequence[str] | None, checks: Checkable) -> list[Condition]:
    """The conditions on a table without a baseline. Raises UsageError if a condition names one."""
    conditions = [parse_condition(text, checks) for text in texts or ()]
    for condition in conditions:
        if condition.needs_baseline:
            raise UsageError(
                f"the condition {condition.expression!r} names a baseline, but only attngeo score has --baseline"
            )
    return conditions


def require_conditions(checks: Path | None, conditions: Sequence[Condition]) -> None:
    """Raise UsageError for --checks without conditions. checks: the file of that option."""
    if checks is not None and not conditions:
        raise UsageError("--checks writes the results of --fail-if; add --fail-if")


def check_conditions(
    conditions: list[Condition],
    rows: pd.DataFrame,
    baseline: pd.DataFrame | None,
    verbosity: Verbosity,
    path: Path | None = None,
) -> list[str]:
    """The failed checks, one line each. Prints the passed ones on stderr.

    Args:
        conditions: the conditions.
        rows: rows of all models.
        baseline: earlier table; None if there is none.
        verbosity: whether notes are shown.
        path: file for a table of all checks; None for no table.

    Raises:
        UsageError: the baseline lacks a stack.
    """
    complaints = []
    lines = []
    for condition in conditions:
        for check in condition.outcomes(rows, baseline):
            if check.failed:
                complaints.append(check.verdict)
            else:
                verbosity.note(check.verdict)
            verdict = "failed" if check.failed else "passed"
            lines.append((verdict, check.model, check.stack, check.reason, check.expression))
    lines.sort(key=lambda line: line[0])  # those that fail first, in a table that may be cut
    if path is not None:
        write_table(type(rows)(lines, columns=[*CHECK_COLUMNS]), path)
    return complaints


def conclude(
    rows: pd.DataFrame,
    outcomes: Sequence[RunOutcome[pd.DataFrame]],
    conditions: list[Condition],
    verbosity: Verbosity,
    checks: Path | None = None,
) -> None:
    """Check the conditions. If a check or a model failed, print each failure and exit with its code.

    Args:
        rows: rows of all models.
        outcomes: outcome of each model.
        conditions: the conditions.
        verbosity: whether notes are shown.
        checks: file for a table of all checks; None for no table.
    """
    failures = describe_failures(outcomes)
    complaints: list[str] = []
    try:
        if len(rows):
            complaints = check_conditions(conditions, rows, None, verbosity, checks)
    finally:  # an error of a condition hides no failure
        for text in dict.fromkeys((*complaints, *failures)):
            say(text)
    if failures:
        raise typer.Exit(SEVERAL_FAILED)
    if complaints:
        raise typer.Exit(CHECK_FAILED)


def end_with_failures(complaints: Sequence[str], failures: Sequence[AttnGeoError], *, alone: bool) -> None:
    """Print the failures, if any, and exit with their code.

    Args:
        complaints: failed checks, one line each.
        failures: errors of models.
        alone: whether there is one model.
    """
    for text in dict.fromkeys((*complaints, *map(describe_error, failures))):  # the first of compare fails for each
        say(text)
    if failures:
        raise typer.Exit(failures[0].exit_code if alone else SEVERAL_FAILED)
    if complaints:
        raise typer.Exit(CHECK_FAILED)
