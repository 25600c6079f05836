"""How a study runs: options of every command that does the same for many settings."""

from __future__ import annotations

from attngeo.errors import UsageError
from attngeo.options import RUNNING, Options, option

# More processes than any machine has cores: a typing mistake.
MOST_JOBS = 1024


class StudyOptions(Options):
    """Options of a study. Raises UsageError for a value outside its limits, and for jobs together with a cluster."""

    jobs: int = option(
        1, "Number of processes that work at the same time", panel=RUNNING, metavar="N", least=1, most=MOST_JOBS,
    )  # fmt: skip
    cluster: str | None = option(
        None, "Address of a Dask scheduler whose workers do the work, for example tcp://host:8786", panel=RUNNING,
        metavar="ADDRESS",
    )  # fmt: skip
    fail_fast: bool = option(False, "Stop at the first run that fails", panel=RUNNING)

    @property
    def elsewhere(self) -> bool:
        """Whether runs are done in other processes than this one."""
        return self.jobs > 1 or self.cluster is not None

    def _check(self) -> None:
        if self.cluster is not None and self.jobs > 1:
            raise UsageError("jobs and cluster contradict each other; the number of workers is that of the cluster")
