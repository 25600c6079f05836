"""The study of an experiment: runs with their progress, rows to files and stdout, failures at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attngeo.progress import is_first_process
from attngeo.scores.options import ResultOptions
from attngeo.studies.engine import RunOutcome, StudyOptions

from .messages import describe_error, say
from .models import SEVERAL_FAILED
from .options import OutputFormat
from .outputs import deliver_rows
from .tally import StudyTally

if TYPE_CHECKING:
    import pandas as pd

Outcome = RunOutcome[list[dict[str, Any]]]


def run_all(
    name: str,
    runs: Sequence[Any],
    function: Callable[..., list[Outcome]],
    results: ResultOptions,
    study: StudyOptions,
    *,
    quiet: bool,
    verbose: bool,
) -> list[Outcome]:
    """The outcome of every run. Says on stderr what comes from the result store.

    function: takes the runs, and results, study, progress and on_outcome by name, as `run_study` does.
    """
    from .progress import Bar

    tally = StudyTally(len(runs), "runs")
    with Bar(name, quiet=quiet, verbose=verbose) as progress, tally:
        outcomes = function(runs, results=results, study=study, progress=progress, on_outcome=tally.count)
    if not quiet:
        tally.say_kept()
    return outcomes


def deliver(
    frame: pd.DataFrame,
    outcomes: Sequence[Outcome],
    outputs: Sequence[Path],
    format: OutputFormat,
    print_table: Callable[[pd.DataFrame], None],
) -> None:
    """Write and print the rows, then report the runs that failed. print_table: prints rows for people.

    Of several processes that accelerate starts, the first one does.
    """
    if len(frame) and is_first_process():
        deliver_rows(frame, outputs, format, print_table)
    failures = [outcome for outcome in outcomes if outcome.failure is not None]
    for outcome in failures:
        assert outcome.failure is not None
        say(f"{outcome.name}: {describe_error(outcome.failure).removeprefix(f'{outcome.name}: ')}")
    if failures:
        raise typer.Exit(SEVERAL_FAILED)
