"""How many threads a command has, and how long they wait: variables that the libraries read when they are loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from attngeo.commands import threads

from attngeo.bounds import machine

NAMES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment, with none of the variables set."""
    variables = {name: value for name, value in os.environ.items() if name not in NAMES}
    monkeypatch.setattr(os, "environ", variables)
    return variables


def allow_cores(monkeypatch: pytest.MonkeyPatch, folder: Path, own: str, files: dict[str, str]) -> None:
    """Let the machine have 8 cores, and this process be in these control groups."""
    for name, text in {"own": own, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setattr(machine, "visible_cores", lambda: 8)
    monkeypatch.setattr(threads, "visible_cores", lambda: 8)
    monkeypatch.setattr(machine, "OWN_GROUPS", folder / "own")
    monkeypatch.setattr(machine, "GROUPS", folder)


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "5000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
        ("0::/\n", {"cpu.max": "1600000 100000\n"}, 8),
        ("0::/\n", {}, 8),
        ("0::/\n", {"cpu.max": "broken"}, 8),
        ("0::/\n", {"cpu.max": "100000 0\n"}, 8),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "max 100000\n"}, 3),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "100000 100000\n"}, 1),
        (
            "4:memory:/\n3:cpu,cpuacct:/docker/1\n",
            {"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"},
            4,
        ),
        ("3:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ("3:cpuset:/\n", {"cpuset/cpu.cfs_quota_us": "100000\n", "cpuset/cpu.cfs_period_us": "100000\n"}, 8),
        ("", {}, 8),
    ],
)  # fmt: skip
def test_threads_follow_the_limits_of_a_container(
    own: str, files: dict[str, str], cores: int, environment: dict[str, str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    allow_cores(monkeypatch, tmp_path, own, files)
    assert machine.available_cores() == cores
    threads.prepare_threads(1)
    # Without a limit the libraries choose: one thread for each physical core of the affinity.
    assert environment.get("OMP_NUM_THREADS") == (None if cores == 8 else str(cores))


def test_several_processes_share_the_cores_by_joblib(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow_cores(monkeypatch, tmp_path, "0::/\n", {"cpu.max": "200000 100000\n"})
    threads.prepare_threads(2)
    assert "OMP_NUM_THREADS" not in environment
    assert environment["GOMP_SPINCOUNT"] == threads.SPINS


@pytest.mark.parametrize("given", [{name: "1"} for name in NAMES], ids=NAMES)
def test_what_the_user_has_set_stays(
    given: dict[str, str], environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow_cores(monkeypatch, tmp_path, "0::/\n", {"cpu.max": "200000 100000\n"})
    environment |= given
    threads.prepare_threads(1)
    assert environment.items() >= given.items()
    # GNU's library would take the count of rounds before the policy.
    assert ("GOMP_SPINCOUNT" in environment) == ("OMP_WAIT_POLICY" not in given)


@pytest.mark.slow  # two processes that load torch
@pytest.mark.skipif(sys.platform != "linux", reason="torch's wheels for Linux have GNU's library, which prints this")
def test_the_libraries_read_what_a_command_sets_and_python_sets_nothing() -> None:
    variables = {name: value for name, value in os.environ.items() if name not in NAMES}
    variables |= {"OMP_DISPLAY_ENV": "VERBOSE", "HF_HUB_OFFLINE": "1"}

    def read_settings(*command: object) -> str:
        run = subprocess.run([*map(str, command)], capture_output=True, text=True, check=True, env=variables)
        return run.stderr

    script = Path(sys.executable).with_name("attngeo")
    assert f"GOMP_SPINCOUNT = '{threads.SPINS}'" in read_settings(script, "score", "demo:encoder")
    code = (
        "import os; before = dict(os.environ); import attngeo; attngeo.score('demo:encoder'); "
        "assert dict(os.environ) == before"
    )
    assert f"GOMP_SPINCOUNT = '{threads.SPINS}'" not in read_settings(sys.executable, "-c", code)
