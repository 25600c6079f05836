"""The runs of a paper's experiments: each is computed once, and its table has the paper's numbers beside it.

Numbers are kept under all that they depend on: the data, the seed, the options, the code, and the version of the
package that computes them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from attngeo.progress import Progress
from attngeo.provenance import machine, software
from attngeo.session import Session
from attngeo.studies.engine import run_study
from attngeo.studies.results import ResultRecord
from attngeo.studies.run import RunOutcome

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

Rows = list[dict[str, Any]]
Outcome = RunOutcome[Rows]
# The rows of a case, and what is kept beside them.
Answer = tuple[Rows, Mapping[str, Any]]


class ExperimentRun(Protocol):
    """One run of an experiment."""

    @property
    def name(self) -> str:
        """The run, for people."""
        ...

    def perform(self, session: Session) -> Rows:
        """The rows of the run's table."""
        ...


def perform_runs(runs: Sequence[ExperimentRun], session: Session = Session()) -> list[Outcome]:
    """The rows of each run, or its error. Errors are those of `run_study`."""
    return run_study(perform, runs, session, names=[run.name for run in runs])


def perform(run: ExperimentRun, session: Session) -> Rows:
    """The rows of one run, in this process or in another one."""
    return run.perform(session)


def answer_cases(
    name: str,
    records: Sequence[ResultRecord | None],
    compute: Callable[[list[int]], Sequence[Answer]],
    session: Session,
    *,
    fresh: bool = False,
) -> list[Rows]:
    """The rows of each case of a run: kept rows, or else computed rows, which are then kept.

    Args:
        name: name of the run.
        records: the kept result of each case; None for a case that is not kept.
        compute: called once with the numbers of the missing cases.
        session: decides whether to use kept results; its progress gets their number.
        fresh: compute all cases again, whatever the session says.
    """
    is_fresh = fresh or session.results.fresh
    rows: dict[int, Rows] = {}
    missing = []
    for case, record in enumerate(records):
        kept = None if record is None or is_fresh else record.load()
        if kept is None:
            missing.append(case)
        else:
            rows[case] = kept.rows
    if rows:
        session.progress(Progress("kept", f"{name}: {len(rows)} of {len(records)} from kept results"))
    if missing:
        started = time.perf_counter()
        answers = compute(missing)
        seconds = time.perf_counter() - started
        log.info("%s: %.1f s", name, seconds)
        timing = {"seconds": round(seconds / len(missing), 3), "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")}
        for case, (computed, about) in zip(missing, answers, strict=True):
            rows[case] = computed
            record = records[case]
            if record is not None:
                record.keep(computed, {**software(), **machine(), "model": name, **about, **timing})
    return [rows[case] for case in range(len(records))]


def build_frame(outcomes: Sequence[Outcome], columns: Sequence[str], published: pd.DataFrame) -> pd.DataFrame:
    """The rows of all runs in the order of their plan, with the paper's numbers beside them.

    published: the paper's numbers, with columns that the rows share, to match them.
    """
    import pandas as pd

    rows: Rows = []
    for outcome in sorted(outcomes, key=lambda outcome: outcome.number):
        rows += outcome.result or []
    keys = [name for name in columns if name in published and not name.startswith("published")]
    computed = [name for name in columns if name in keys or name not in published]
    frame = pd.DataFrame(rows, columns=computed).astype(dict(published[keys].dtypes))
    return frame.merge(published, how="left", on=keys)[list(columns)]
