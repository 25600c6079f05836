"""A Dask cluster on this machine: a scheduler and workers, each a process of its own, as a user starts them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

TESTS = Path(__file__).parents[1]
DASK = Path(sys.executable).with_name("dask")
PATIENCE = 60


@dataclass
class Cluster:
    """A running cluster. address: of its scheduler. workers: their processes."""

    address: str
    scheduler: subprocess.Popen[bytes]
    folder: Path
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def add_worker(self) -> None:
        """Start a worker. Without a nanny, which would start another one in the place of one that is killed."""
        self.workers.append(
            start(
                ["worker", self.address, "--name", len(self.workers), "--nthreads", 1, "--no-nanny",
                 "--no-dashboard", "--local-directory", self.folder / f"worker-{len(self.workers)}"]
            )
        )  # fmt: skip

    @contextlib.contextmanager
    def killing_a_worker(self) -> Iterator[list[str]]:
        """Kill the worker that is first to have runs to do. Gives these runs, which have to be repeated."""
        from distributed import Client

        lost: list[str] = []

        def watch() -> None:
            with Client(self.address, set_as_default=False) as client:
                while not lost and not ended.wait(0.01):
                    names = {worker: about["name"] for worker, about in client.scheduler_info()["workers"].items()}
                    busy = [(names[at], runs) for at, runs in client.processing().items() if runs and at in names]
                    for name, runs in busy[:1]:
                        self.workers[int(name)].kill()
                        lost.extend(map(str, runs))

        ended = threading.Event()
        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield lost
        finally:
            ended.set()
            watcher.join()


def start(arguments: Sequence[object]) -> subprocess.Popen[bytes]:
    # Workers import the functions of runs from the tests.
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(
        [str(part) for part in (DASK, *arguments)],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
    )  # fmt: skip


@contextlib.contextmanager
def start_cluster(folder: Path, workers: int) -> Iterator[Cluster]:
    """A cluster whose processes end with the block. Its first worker may still be on its way."""
    file = folder / "scheduler.json"
    scheduler = start(
        ["scheduler", "--host", "127.0.0.1", "--port", 0, "--no-dashboard", "--no-jupyter", "--scheduler-file", file]
    )
    cluster = Cluster("", scheduler, folder)
    try:
        cluster.address = wait_for_address(file)
        for _ in range(workers):
            cluster.add_worker()
        yield cluster
    finally:
        for process in (*cluster.workers, scheduler):
            process.kill()
            process.wait()


def wait_for_address(file: Path) -> str:
    """The address in the file that the scheduler writes when it has started."""
    import json

    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError):
            return str(json.loads(file.read_text())["address"])
        time.sleep(0.05)
    raise TimeoutError("the scheduler of the test has not started")
