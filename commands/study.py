"""Many models or runs in one command: which ones, their progress, what is kept of them, and failures at the end."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attngeo.bounds.names import list_names
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.reference import ModelRef
from attngeo.errors import UsageError
from attngeo.options import INPUT, Options
from attngeo.papers.runs import perform
from attngeo.questions.asking import Subject, ask, name_subjects
from attngeo.questions.question import Question
from attngeo.session import Session
from attngeo.studies.engine import run_study
from attngeo.studies.models import list_models
from attngeo.studies.results import cache_folder
from attngeo.studies.run import Function, RunOutcome

from .messages import TRACEBACK, describe_error, say
from .outputs import MODEL_HELP, Outputs, Verbosity, model_argument
from .progress import Bar

if TYPE_CHECKING:
    import pandas as pd

# The exit code if some of several models or runs failed.
SEVERAL_FAILED = 4

Models = Annotated[
    list[str] | None,
    model_argument(f"{MODEL_HELP}; or a pattern in quotes, 'org/name@step*' or './checkpoints/*'"),
]
ModelsFile = Annotated[
    str | None,
    typer.Option(
        "--models",
        metavar="FILE",
        help="Take also the models of a file, one on each line",
        rich_help_panel=INPUT,
    ),
]


def list_all(
    models: list[str] | None,
    file: str | None,
    hub: HubAccess,
    *,
    command: str,
    verbosity: Verbosity | None = None,
    check: Callable[[str], object] = ModelRef.parse,
) -> list[str]:
    """The models of the command line and of the file. Raises UsageError if there are none.

    verbosity: if it is given, a model that is given twice is listed once, and a note says so. check: as of
    `list_models`.
    """
    if not models and file is None:
        raise UsageError(f"Missing argument 'MODEL...', or --models FILE (see attngeo {command} --help)")
    listed = list_models(models or [], file, hub=hub, check=check)
    if verbosity is None:
        return listed
    repeated = [model for model, times in Counter(listed).items() if times > 1]
    if repeated:
        verbosity.note(f"note: given twice, and read once: {list_names(repeated)}")
    return [*dict.fromkeys(listed)]


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
    """The outcome of every run of `run_study`, whose parameters these are, with a progress bar of that name.

    Says on stderr what comes from the result store, and at Ctrl-C how many runs are kept. unit: what the runs are, in
    the plural. alone: whether the error of the only run is raised. note: is called with each outcome.
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
        verbosity.note(
            f"{kept} of {len(settings)} {unit} with results from the result store; --fresh computes them again"
        )
    return outcomes


def ask_models(
    question: Question,
    subjects: Sequence[Subject],
    session: Session,
    verbosity: Verbosity,
    *,
    options: Options,
    note: Callable[[RunOutcome[pd.DataFrame]], None] = lambda _: None,
) -> list[RunOutcome[pd.DataFrame]]:
    """The outcomes of a question about models, or about pairs of them. note: as of `run_all`."""
    names = name_subjects(subjects)
    alone = len(subjects) == 1
    return run_all(
        names[0] if alone else question.name,
        partial(ask, question, options=options),
        subjects,
        session,
        verbosity,
        names=names,
        unit="models",
        alone=alone,
        note=note,
    )


def run_experiment(name: str, runs: Sequence[Any], session: Session, verbosity: Verbosity) -> list[RunOutcome[Any]]:
    """The outcomes of the runs of a paper's experiment."""
    return run_all(name, perform, runs, session, verbosity, names=[run.name for run in runs])


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
    """Write and print the rows, then report the runs that failed. print_table, brief: as of `Outputs.deliver`."""
    if len(frame):
        outputs.deliver(frame, print_table, brief)
    failures = describe_failures(outcomes)
    for text in failures:
        say(text)
    if failures:
        raise typer.Exit(SEVERAL_FAILED)


def describe_failures(outcomes: Sequence[RunOutcome[Any]]) -> list[str]:
    """Why runs failed, a line each, with the name of the run."""
    lines = []
    for outcome in outcomes:
        if outcome.failure is not None:
            text = describe_error(outcome.failure)
            needs_name = outcome.is_raised and not outcome.failure.is_about(outcome.name)
            lines.append(f"{outcome.name}: {text}" if needs_name else text)
    return lines
