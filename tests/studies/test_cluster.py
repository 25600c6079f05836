"""Studies on a Dask cluster: a real scheduler, and workers that are processes of their own."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.dask_cluster import Cluster, start_cluster
from support.messages import assert_states, refuses
from support.study_runs import end_its_process, note_and_wait, square_or_fail, tell

import attngeo
from attngeo.errors import ClusterError, CorruptCheckpointError, StudyError, UnexpectedError, UsageError
from attngeo.session import Session, StudyOptions
from attngeo.studies.engine import run_study
from attngeo.studies.run import StudyEnvironment

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with start_cluster(tmp_path_factory.mktemp("cluster"), workers=2) as cluster:
        yield cluster


def test_results_failures_and_logs_come_back_in_order(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options = StudyOptions(cluster=cluster.address)
    outcomes = run_study(square_or_fail, range(8), Session(study=options), names=list("abcdefgh"))
    assert [each.result for each in outcomes] == [0, None, 4, None, 16, None, 36, None]
    failures = [type(each.failure) for each in outcomes[1::2]]
    assert failures == [CorruptCheckpointError, UnexpectedError] * 2
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.WARNING, "attngeo"):
        told = [each.result for each in run_study(tell, ["x", "y"], Session(study=options), names=["x", "y"])]
    assert {"warned about x", "warned about y"} <= set(caplog.messages)
    for result in told:
        assert result is not None
        assert result[0] != os.getpid()
        assert result[1] == str(tmp_path)


def test_the_runs_of_a_worker_that_is_killed_are_repeated(cluster: Cluster, tmp_path: Path) -> None:
    options = StudyOptions(cluster=cluster.address)
    settings = [(tmp_path / f"{number}.run", 0.3) for number in range(8)]
    victim: list[int] = []
    lost: list[Path] = []

    def kill(_: Any) -> None:
        """When the first run ends, kill the worker of a run that has not ended."""
        if not victim:
            busy = [path for path in tmp_path.glob("*.run") if not path.with_suffix(".done").exists()]
            lost.append(busy[0])
            victim.append(int(busy[0].read_text()))
            os.kill(victim[0], 9)

    names = [path.name for path, _ in settings]
    outcomes = run_study(note_and_wait, settings, Session(study=options), names=names, on_outcome=kill)
    assert [each.result for each in outcomes] == names
    assert victim[0] in [worker.pid for worker in cluster.workers]
    assert int(lost[0].read_text()) != victim[0], "the run that it had begun was repeated on another worker"
    cluster.add_worker()


def test_workers_need_the_same_version(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StudyEnvironment, "__init__", fake_version(StudyEnvironment.__init__))
    (outcome,) = run_study(tell, ["x"], Session(study=StudyOptions(cluster=cluster.address)), names=["x"])
    assert isinstance(outcome.failure, StudyError)
    assert_states(str(outcome.failure), "99.0", attngeo.__version__)


def fake_version(real: Any) -> Any:
    def init(self: Any, session: Session) -> None:
        real(self, session, version="99.0")

    return init


def test_no_scheduler_is_one_line_in_bounded_time_and_harms_no_later_study(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attngeo.studies.cluster.PATIENCE", 1)
    for address, kind in (
        ("tcp://127.0.0.1:1", ClusterError), ("nowhere.invalid:8786", ClusterError), ("what://x:1", UsageError),
        ("", UsageError), ("tls://127.0.0.1:1", UsageError),
    ):  # fmt: skip
        with refuses(kind, *([address] if address else ["cluster"])):
            run_study(tell, ["x"], Session(study=StudyOptions(cluster=address)), names=["x"])
        (outcome,) = run_study(tell, ["x"], Session(study=StudyOptions(cluster=cluster.address)), names=["x"])
        assert outcome.failure is None


def test_a_run_that_kills_its_workers_is_given_up_and_the_others_are_not(tmp_path: Path) -> None:
    with start_cluster(tmp_path, workers=5) as cluster:
        options = StudyOptions(cluster=cluster.address)
        outcomes = run_study(end_its_process, [1, -2, 3], Session(study=options), names=list("abc"))
    assert [each.result for each in outcomes] == [1, None, 3]
    assert_states(str(outcomes[1].failure), "b", "KilledWorker")


def test_a_scheduler_that_is_lost_ends_the_study(tmp_path: Path) -> None:
    with start_cluster(tmp_path, workers=1) as cluster:
        settings = [(tmp_path / f"{number}.run", 0.3) for number in range(50)]
        seen: list[int] = []

        def lose(outcome: Any) -> None:
            seen.append(outcome.number)
            cluster.scheduler.kill()

        with refuses(ClusterError, cluster.address, "lost"):
            run_study(
                note_and_wait,
                settings,
                Session(study=StudyOptions(cluster=cluster.address)),
                names=["x"] * 50,
                on_outcome=lose,
            )
    assert 0 < len(seen) < 50
