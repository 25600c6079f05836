"""The experiments of papers, run by run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attngeo.papers.runs import perform
from attngeo.session import Session
from attngeo.studies.run import RunOutcome

from .outputs import Verbosity
from .study import run_all


def run_experiment(name: str, runs: Sequence[Any], session: Session, verbosity: Verbosity) -> list[RunOutcome[Any]]:
    """The outcomes of the runs of a paper's experiment."""
    return run_all(name, perform, runs, session, verbosity, names=[run.name for run in runs])
