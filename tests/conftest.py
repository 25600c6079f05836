"""Fixtures shared by all tests."""

from __future__ import annotations

import collections
import functools
import gc
import logging
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

if "PYTEST_XDIST_WORKER" in os.environ:
    # One worker for each core: more threads would only wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest
from support import products, seeds
from support.forks import Forks, start_forks

if TYPE_CHECKING:
    from support.hub_server import Hub

# No deadline, because time is for the benchmarks to judge. The same examples in each run: those of a failed run are
# found again without a database.
hypothesis.settings.register_profile("attngeo", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("attngeo")
# `make explore`: the examples follow from --hypothesis-seed.
hypothesis.settings.register_profile("explore", hypothesis.settings.get_profile("attngeo"), derandomize=False)

ROOT = Path(__file__).parents[1]
# What is tested is the installed package, not the folder that pytest happens to run in.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]

Command = Callable[..., subprocess.CompletedProcess[str]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--draw-seed", type=int, default=0, help="seed of the numbers that tests draw; default: 0")
    parser.addoption(
        "--rounding", type=int, metavar="SEED", help="round products of tensors as another processor could"
    )
    parser.addoption("--products", choices=("check", "write", "only"), default="check", help=products.__doc__)


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell; commands would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # "auto" is the CPU, on every machine
    os.environ.pop("LC_ALL", None)  # tables have the lines of a terminal with UTF-8, in the locale C, too
    os.environ["ATTNGEO_CACHE"] = ""  # no test finds the scores that another one has kept
    runs_tests = config.getoption("dist", "no") == "no" or hasattr(config, "workerinput")
    if (seed := config.getoption("rounding")) is not None and runs_tests:
        products.start(config, seed)
    config.option.randomly_reset_seed = False  # instead of pytest-randomly, `seeds` does it
    config.pluginmanager.register(seeds)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("products") == "only":
        products.select(config, items)
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu:
        return
    import torch  # not at the top: the process that hands out the tests to workers loads this module, too

    if not torch.cuda.device_count():
        for item in gpu:
            item.add_marker(pytest.mark.skip(reason="requires a CUDA device (make test-gpu)"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was skipped: each reason once. It says how to have what is missing."""
    reasons = collections.Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", ())
        if isinstance(report.longrepr, tuple)
    )
    if not reasons:
        return
    terminalreporter.section("skipped tests, and how to run them")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:4}  {reason}")


def pytest_collection_finish() -> None:
    gc.freeze()  # what is loaded stays loaded: the garbage collector need not look at it during the tests
    gc.set_threshold(10_000, 20, 50)  # nor at what they make as often as by default, which takes up to a tenth of them


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Processes that have loaded the libraries and fork for each command."""
    with start_forks() as forks:
        yield forks


@pytest.fixture(scope="session")
def attngeo(forks: Forks) -> Command:
    """Run the installed command in a process of its own; keywords are added to its environment.

    timeout: seconds after which a command that hangs fails its test.
    """

    def run(
        *arguments: object, cwd: Path | None = None, timeout: float = 600, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        variables = {**os.environ, "COLUMNS": "80", "HF_HUB_OFFLINE": "1", **environment}
        if any(name.startswith("PYTHON") for name in environment):  # what Python reads when it starts
            script = Path(sys.executable).with_name("attngeo")
            return subprocess.run(
                [script, *map(str, arguments)],
                capture_output=True, text=True, check=False, cwd=cwd, timeout=timeout, env=variables,
            )  # fmt: skip
        own_hub = any(name.startswith("HF_") for name in environment)
        return forks.run(arguments, cwd=cwd, timeout=timeout, environment=variables, libraries=not own_hub)[0]

    return run


@pytest.fixture(autouse=True)
def _keeps_logging() -> Iterator[None]:
    """A test that leaves the log silent takes the messages from all tests that follow in its process."""

    from huggingface_hub import logging as hub_logging  # sets its level when it is loaded

    def read_levels() -> tuple[int, int, int]:
        return logging.root.manager.disable, logging.getLogger("attngeo").level, hub_logging.get_verbosity()

    before = read_levels()
    yield
    assert read_levels() == before, "the test changed the level of the log and did not restore it"


@pytest.fixture(autouse=True)
def _keeps_environment() -> Iterator[None]:
    """A test that leaves a variable changes the processes of all tests that follow."""
    # Libraries set variables of their own when they are loaded.
    names = ("ATTNGEO", "COLUMNS", "CUDA", "HF_", "PATH", "PYTHON")

    def read() -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if name.startswith(names)}

    before = read()
    yield
    assert read() == before, "the test changed variables of the environment and did not restore them"


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run the console script's function in this process, which is faster than `attngeo`: imports are done already."""
    from attngeo.commands.app import main

    def run(*arguments: object, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        given = list(map(str, arguments))
        own = {"COLUMNS": "80", "HF_HUB_VERBOSITY": "error"}
        # Also those that the command sets are as before afterwards.
        with monkeypatch.context() as patch, mock.patch.dict(os.environ, own | environment):
            patch.setattr(sys, "argv", ["attngeo", *given])
            patch.setattr(sys, "excepthook", sys.excepthook)  # typer replaces it
            patch.setattr(sys, "unraisablehook", sys.unraisablehook)
            patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", environment.get("HF_HUB_OFFLINE") != "0")
            if cwd is not None:
                patch.chdir(cwd)
            capfd.readouterr()
            handler = signal.getsignal(signal.SIGINT)
            try:
                with pytest.raises(SystemExit) as stop:
                    main()
            finally:
                signal.signal(signal.SIGINT, handler)
        ran = subprocess.CompletedProcess(given, int(stop.value.code or 0), *capfd.readouterr())
        ran.error = stop.value.__context__  # type: ignore[attr-defined]  # for `assert_fails`
        return ran

    return run


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of kept results, for this test; without it, nothing is kept."""
    monkeypatch.setenv("ATTNGEO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports draw no pictures, which takes seconds, as on a machine without Chromium."""
    from attngeo.errors import OutputError

    def refuse(_: object) -> None:
        raise OutputError("Chromium is missing")

    monkeypatch.setattr("attngeo.reporting.report.save_images", refuse)


@pytest.fixture(scope="module")
def without_collecting() -> Iterator[None]:
    """Trainings of transformers begin without a garbage collection: 0.3 s each in a process that has run tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("accelerate.utils.memory.clear_device_cache", lambda **_: None)
        yield


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A Hub on this machine, without repositories."""
    from support.hub_server import serve

    with serve() as running:
        yield running


@pytest.fixture
def online(hub: Hub, tmp_path: Path) -> dict[str, str]:
    """The environment of a machine that reaches the server, with a cache of its own."""
    from support.hub_client import environment_of

    return environment_of(hub.url, tmp_path / "home")


@pytest.fixture
def connected(hub: Hub, inside: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run the command in this process, which reaches the server, with the cache of `online`."""
    from support.hub_client import connect

    return connect(inside, hub.url, tmp_path / "home", monkeypatch)


@pytest.fixture(scope="session")
def built() -> Callable[[str], Any]:
    """A tiny model of a family, in memory; made once."""
    import torch
    from support.tiny_models import TINY_MODELS, build

    @functools.cache
    def make(name: str) -> Any:
        # Tests that run later draw the same numbers, whether the model was built before or not.
        with warnings.catch_warnings(), torch.random.fork_rng():
            warnings.simplefilter("ignore")  # transformers warns about random token ids
            return build(TINY_MODELS[name])

    return make


@pytest.fixture(scope="session")
def saved(built: Callable[[str], Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model of a family, as transformers saves it; made once."""

    @functools.cache
    def save(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        built(name).save_pretrained(folder)
        return folder

    return save
