"""The settings with which questions are answered: access to the Hub, processes, kept results and progress.

A session is made once, where a command, a recipe or a call of the library begins, and is handed down as one thing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from attngeo.checkpoints.access import HubAccess
from attngeo.errors import UsageError
from attngeo.options import RUNNING, Options, option
from attngeo.progress import ProgressCallback, ignore_progress

# More processes than any machine has cores: a typing mistake.
MOST_JOBS = 1024


class StudyOptions(Options):
    """Options for many runs. Raises UsageError for a value outside its limits, and for jobs together with a cluster."""

    jobs: int = option(1, "Number of parallel processes", panel=RUNNING, metavar="N", least=1, most=MOST_JOBS)
    cluster: str | None = option(
        None,
        "Run on the workers of this Dask scheduler, for example tcp://host:8786",
        advanced=True,
        panel=RUNNING,
        metavar="ADDRESS",
    )
    fail_fast: bool = option(False, "Stop at the first failed run", advanced=True, panel=RUNNING)

    @property
    def elsewhere(self) -> bool:
        """Whether runs use other processes than this one."""
        return self.jobs > 1 or self.cluster is not None

    def _check(self) -> None:
        if self.cluster is not None and self.jobs > 1:
            raise UsageError(
                "$jobs and $cluster contradict each other; the cluster sets the number of workers, so leave out $jobs",
                "jobs",
                "cluster",
            )


class ResultOptions(Options):
    """Options for results kept on this machine."""

    fresh: bool = option(
        False,
        "Compute again instead of using kept results",
        in_command=" (see attngeo cache)",
        advanced=True,
        panel=RUNNING,
    )


@dataclass(frozen=True)
class Session:
    """The settings with which a question is answered.

    In another process, a session has no callback.

    Attributes:
        hub: how models on the Hub are read.
        study: number of processes, or the cluster, for many runs.
        results: whether kept results are used.
        progress: called as the work proceeds.
    """

    hub: HubAccess = field(default_factory=HubAccess)
    study: StudyOptions = field(default_factory=StudyOptions)
    results: ResultOptions = field(default_factory=ResultOptions)
    progress: ProgressCallback = ignore_progress

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: a callback would not reach this process."""
        return vars(self) | {"progress": ignore_progress}
