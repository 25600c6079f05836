"""Many models or runs in one command: their progress, what is kept of them, and failures at the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from attngeo.session import Session
from attngeo.studies.engine import run_study
from attngeo.studies.results import cache_folder
from attngeo.studies.run import Function, RunOutcome

from .messages import TRACEBACK, describe_error, say
from .outputs import Outputs, Verbosity
from .progress import Bar

if TYPE_CHECKING:
    import pandas as pd

# The exit code if some of several models or runs failed.
SEVERAL_FAILED = 4


def run_all(
    name: str,
    function: Function[Any, Any],
    settings: Sequence[Any],
    session: Session,
    verbosity: Verbosity,
    *,
    names: Sequence[str] | None = None,
    unit: str = "runs",
    alone: bool = False,
    note: Callable[[RunOutcome[Any]], None] = lambda _: None,
) -> list[RunOutcome[Any]]:
    """The outcome of every run of `run_study`, with a progress bar.

    Says on stderr what comes from kept results, and at Ctrl-C how many runs are kept.

    Args:
        name: name of the progress bar.
        function: see `run_study`.
        settings: see `run_study`.
        session: see `run_study`.
        verbosity: whether progress and notes are shown.
        names: see `run_study`.
        unit: the runs in words, in the plural.
        alone: whether the error of the only run is raised.
        note: function to call with each outcome.
    """
    seen: list[RunOutcome[Any]] = []

    def count(outcome: RunOutcome[Any]) -> None:
        seen.append(outcome)
        raise_if_traced(outcome, alone=alone)
        note(outcome)
        if alone:
            for text in outcome.notes:
                verbosity.note(f"{outcome.name}: {text}; --fresh computes them again")

    try:
        with Bar(name, verbosity) as bar:
            outcomes = run_study(function, settings, replace(session, progress=bar), names=names, on_outcome=count)
    except KeyboardInterrupt:
        finished = sum(outcome.failure is None for outcome in seen)
        if finished and cache_folder() is not None:
            say(f"{finished} of {len(settings)} {unit} are finished; the same command resumes after them")
        raise
    kept = sum(bool(outcome.notes) for outcome in seen)
    if kept and not alone:
        verbosity.note(f"{kept} of {len(settings)} {unit} have kept results; --fresh computes them again")
    return outcomes


def raise_if_traced(outcome: RunOutcome[Any], *, alone: bool = False) -> None:
    """Raise the error of the only run, and of any if tracebacks are asked for."""
    if outcome.cause is not None and (alone or os.environ.get(TRACEBACK)):
        raise outcome.cause


def deliver(
    frame: pd.DataFrame,
    outcomes: Sequence[RunOutcome[Any]],
    outputs: Outputs,
    print_table: Callable[[pd.DataFrame], None],
    brief: Sequence[str] = (),
) -> None:
    """Write and print the rows, then report the runs that failed.

    Args:
        frame: the rows.
        outcomes: outcome of each run.
        outputs: the output files.
        print_table: see `Outputs.deliver`.
        brief: see `Outputs.deliver`.
    """
    if len(frame):
        outputs.deliver(frame, print_table, brief)
    failures = describe_failures(outcomes)
    for text in failures:
        say(text)
    if failures:
        raise typer.Exit(SEVERAL_FAILED)


def describe_failures(outcomes: Sequence[RunOutcome[Any]]) -> list[str]:
    """The reasons why runs failed, one line each, with the name of the run."""
    lines = []
    for outcome in outcomes:
        if outcome.failure is not None:
            text = describe_error(outcome.failure)
            needs_name = outcome.is_raised and not outcome.failure.is_about(outcome.name)
            lines.append(f"{outcome.name}: {text}" if needs_name else text)
    return lines
