"""The study of an experiment: runs with their progress, rows to files and stdout, failures at the end."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attngeo.scores.options import ResultOptions
from attngeo.studies.options import StudyOptions
from attngeo.studies.tasks import RunOutcome

from ..messages import TRACEBACK, describe_error, say
from ..models import SEVERAL_FAILED
from ..options import OutputFormat
from ..outputs import print_rows

if TYPE_CHECKING:
    import pandas as pd

    from attngeo.tabular.runs import MethodRun

Outcome = RunOutcome[list[dict[str, Any]]]


def run_experiment(
    name: str, runs: Sequence[MethodRun], results: ResultOptions, study: StudyOptions, *, quiet: bool, verbose: bool
) -> list[Outcome]:
    """The outcome of every run. Says on stderr what comes from the result store."""
    from attngeo.studies.results import cache_folder
    from attngeo.tabular.experiments import run_methods

    from ..progress import Bar

    finished, kept = 0, 0

    def note(outcome: Outcome) -> None:
        nonlocal finished, kept
        finished += outcome.failure is None
        kept += bool(outcome.notes)
        if outcome.cause is not None and os.environ.get(TRACEBACK):
            raise outcome.cause

    with Bar(name, quiet=quiet, verbose=verbose) as progress:
        try:
            outcomes = run_methods(runs, results=results, study=study, progress=progress, on_outcome=note)
        except KeyboardInterrupt:
            if finished and cache_folder() is not None:
                say(f"{finished} of {len(runs)} runs are finished; the same command resumes after them")
            raise
    if kept and not quiet:
        say(f"{kept} of {len(runs)} runs with scores from the result store; --fresh computes them again")
    return outcomes


def deliver(frame: pd.DataFrame, outcomes: Sequence[Outcome], outputs: Sequence[Path], format: OutputFormat) -> None:
    """Write the files, then print, so that a closed pipe loses nothing; then report the runs that failed."""
    from attngeo.tables.write import write_table

    if len(frame):
        for path in outputs:
            write_table(frame, path)
        if format is OutputFormat.table:
            from .render import print_experiment

            print_experiment(frame)
        else:
            print_rows(frame, format)
    failures = [outcome for outcome in outcomes if outcome.failure is not None]
    for outcome in failures:
        assert outcome.failure is not None
        say(f"{outcome.name}: {describe_error(outcome.failure).removeprefix(f'{outcome.name}: ')}")
    if failures:
        raise typer.Exit(SEVERAL_FAILED)
