"""Runs on a Dask cluster.

By the client of distributed, not by joblib's backend for Dask: that waits for ever for a run whose worker was killed
too often, gives up if there is no worker within ten seconds, and groups short runs.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from attngeo.errors import ClusterError, StudyError, UsageError, first_line, require_extra
from attngeo.session import Session
from attngeo.studies.run import (
    LOGGER,
    Function,
    Outcomes,
    RunOutcome,
    StudyEnvironment,
    StudyTask,
    run_elsewhere,
    take_outcome,
)

if TYPE_CHECKING:
    from distributed import Client

# Seconds to wait for the scheduler. Workers may arrive later: a batch system takes hours to start one.
PATIENCE = 10
LOGGERS = ("distributed", "distributed.client", "tornado.application")


def run_on_cluster(
    function: Function[Any, Any], tasks: Sequence[StudyTask], session: Session, address: str
) -> Outcomes:
    """The outcome of each run as it arrives.

    Closing the iterator cancels the runs that no worker has started. If a worker is killed, another one repeats its
    runs; Dask gives up a run that has killed several workers (`distributed.scheduler.allowed-failures`).

    Raises UsageError if distributed is not installed or the address is invalid, ClusterError if the scheduler cannot
    be reached or is lost.
    """
    with require_extra():
        from distributed import as_completed
    with _silence(), _connect(address) as client:
        if not client.nthreads():
            LOGGER.warning("%s: no workers yet; waiting for the first", address)
        environment = StudyEnvironment(session)
        futures = {client.submit(run_elsewhere, function, task, environment, pure=False): task for task in tasks}
        try:
            for future, result in as_completed(list(futures), loop=client.loop, with_results=True, raise_errors=False):
                task = futures.pop(future)
                if future.status != "finished":
                    yield _explain_failure(task, address, future.status, result)
                    continue
                yield take_outcome(result)
        finally:
            client.cancel(list(futures))


def _explain_failure(task: StudyTask, address: str, status: str, result: Any) -> RunOutcome[Any]:
    """The outcome of a run whose function did not return. Raises ClusterError if the cluster is lost."""
    if status != "error":
        raise ClusterError(
            "the connection to the scheduler is lost; start the study again to resume it", subject=address
        )
    _, error, _ = result
    if not isinstance(error, StudyError):
        text = f"{task.name}: lost by the cluster ({type(error).__name__}: {first_line(error)})"
        error = StudyError(f"{text}; see the logs of its workers")
    return RunOutcome(task.number, task.name, failure=error)


@contextmanager
def _connect(address: str) -> Iterator[Client]:
    """A client of the scheduler. Raises UsageError or ClusterError."""
    from distributed import Client

    try:
        # A client that cannot connect is never closed, and then blocks those that come after it in this process.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(lambda: asyncio.run(_reach(address))).result()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            client = Client(address, timeout=PATIENCE, set_as_default=False)
    except (OSError, TimeoutError) as error:
        raise ClusterError(
            f"no Dask scheduler answered within {PATIENCE} seconds ({first_line(error)}); start one with "
            "dask scheduler, and check the address",
            subject=address,
        ) from None
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"$cluster is {address!r:.80}, expected an address such as tcp://host:8786 ({first_line(error)})", "cluster"
        ) from None
    for warning in caught:
        LOGGER.info("%s: %s", address, " ".join(str(warning.message).split()))
    try:
        yield client
    finally:
        with suppress(TimeoutError):
            client.close(timeout=PATIENCE)


async def _reach(address: str) -> None:
    """Connect to the scheduler, and close the connection. Raises OSError; ValueError or TypeError for the address."""
    from distributed import Security
    from distributed.comm.core import connect

    connection = await connect(address, timeout=PATIENCE, **Security().get_connection_args("client"))
    await connection.close()


@contextmanager
def _silence() -> Iterator[None]:
    """Silence what distributed logs about connections that are lost: the errors of a study say it."""
    with ExitStack() as levels:
        for name in LOGGERS:
            logger = logging.getLogger(name)
            levels.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL + 1)
        yield
