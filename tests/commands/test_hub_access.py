"""The options for models on the Hub: what is read, what stays in the cache, and what it costs."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Command
from support.checkpoints import write_sharded
from support.hub_server import Fault, Hub, serve
from support.messages import assert_fails, refuses
from support.vectors import word_piece

import attngeo as library
from attngeo.checkpoints.access import HubAccess
from attngeo.errors import NetworkError, UsageError
from attngeo.reporting.report import build_report

WORDS = [f"w{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(48)]
EMBEDDINGS, LAYER_0, LAYER_1 = (f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3))
INDEX = "model.safetensors.index.json"
RECIPE = 'title = "Own"\n[[results]]\nname = "scores"\ncommand = "score"\nmodels = ["org/name"]\n'
# Command line → the files of weights whose headers it needs, and the other files.
COMMANDS = {
    "score org/name --format csv": ([LAYER_0, LAYER_1], []),
    "inspect org/name": ([LAYER_0, LAYER_1], []),
    "nearest org/name waa --format csv": ([EMBEDDINGS], ["tokenizer.json"]),
    "analogy org/name --questions q.txt --format csv": ([EMBEDDINGS], ["tokenizer.json"]),
    "plot matrix org/name --layer 1 -o m.json": ([LAYER_0, LAYER_1], []),
    "report recipe.toml -o report": ([LAYER_0, LAYER_1], []),
}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """A server with a sharded model that has a tokeniser."""
    with serve() as running:
        folder = running.repositories["org/name"] = write_sharded(tmp_path / "remote")
        word_piece(folder / "tokenizer.json", ["[PAD]", "[UNK]", *WORDS])
        yield running


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A working directory with the files that the commands name."""
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "q.txt").write_text(": own\n" + "\n".join(" ".join(WORDS[i : i + 4]) for i in range(40)))
    return tmp_path


def cached(work: Path) -> set[str]:
    """The names of the files in the cache."""
    return {path.name for path in work.glob("home/hub/models--*/snapshots/*/*")}


@pytest.mark.parametrize(
    "line", [line if line.startswith("score") else pytest.param(line, marks=pytest.mark.slow) for line in COMMANDS]
)
def test_download_keeps_whole_files_and_the_default_keeps_none(
    line: str, hub: Hub, work: Path, connected: Command
) -> None:
    """Ranges and whole files give the same answer; after a download, no connection is needed."""
    weights, others = COMMANDS[line]
    ranged = connected(*line.split(), cwd=work)
    assert ranged.returncode == 0, ranged.stderr
    assert cached(work) == {"config.json", INDEX, *others}
    downloading = connected(*line.split(), "--download", cwd=work)
    assert downloading.returncode == 0, downloading.stderr
    assert cached(work) == {"config.json", INDEX, *others, *weights}
    hub.requests.clear()
    offline = connected(*line.split(), "--download", "--offline", cwd=work)
    assert (offline.returncode, hub.requests) == (0, []), offline.stderr
    if not line.startswith("inspect"):  # shows what is left to read
        assert ranged.stdout == downloading.stdout == offline.stdout


def test_offline_wins_over_download(hub: Hub, work: Path, connected: Command) -> None:
    assert connected("score", "org/name", cwd=work).returncode == 0
    hub.requests.clear()
    run = connected("score", "org/name", "--download", "--offline", cwd=work)
    assert_fails(run, NetworkError.exit_code, "org/name", LAYER_0, "offline", "cache")
    assert hub.requests == []


# A command → what offline mode lacks if the command has read the model before.
LACKING = {
    "score org/name --format csv": LAYER_0,
    "positions org/name --format csv": LAYER_0,
    "mirrors org/name --format csv": LAYER_0,
    "nearest org/name waa --format csv": EMBEDDINGS,
}


@pytest.mark.parametrize("is_read_before", [False, True])
@pytest.mark.parametrize("line", LACKING)
def test_what_is_not_in_the_cache_names_the_command_that_then_works(
    line: str, is_read_before: bool, hub: Hub, connected: Command
) -> None:
    """Without --download, ranges of the weights are read and nothing is kept, so that "run once without it" fails."""
    if is_read_before:
        assert connected(*line.split()).returncode == 0
    refused = connected(*line.split(), "--offline")
    assert_fails(
        refused, NetworkError, "org/name", "offline", "--download", *([LACKING[line]] if is_read_before else [])
    )
    by_variable = connected(*line.split(), HF_HUB_OFFLINE="1")
    assert_fails(by_variable, NetworkError, "org/name", "HF_HUB_OFFLINE", "--download")
    followed = connected(*line.split(), "--download")
    assert followed.returncode == 0, followed.stderr
    hub.requests.clear()
    offline = connected(*line.split(), "--offline")
    assert (offline.returncode, offline.stdout, hub.requests) == (0, followed.stdout, []), offline.stderr


def call(code: str, environment: dict[str, str]) -> str:
    """What a program prints that uses the library."""
    program = f"import attngeo\nfrom attngeo.checkpoints.access import HubAccess\n{code}"
    run = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | environment, capture_output=True, text=True, check=True
    )
    return run.stdout


@pytest.mark.slow
@pytest.mark.parametrize("keywords", ["download=True", "hub=HubAccess(download=True)"])
def test_the_library_downloads_too(keywords: str, hub: Hub, online: dict[str, str], work: Path) -> None:
    shown = "[['layer', 'symmetry']].to_csv(index=False), end='')"
    ranged = call(f"print(attngeo.score('org/name'){shown}", online)
    assert cached(work) == {"config.json", INDEX}
    assert call(f"print(attngeo.score('org/name', {keywords}){shown}", online) == ranged
    assert cached(work) == {"config.json", INDEX, LAYER_0, LAYER_1}
    hub.requests.clear()
    assert call(f"print(attngeo.score('org/name', offline=True){shown}", online) == ranged
    assert hub.requests == []


@pytest.mark.parametrize("line", COMMANDS)
@pytest.mark.parametrize("given", ["-1", "21"])
def test_a_number_of_retries_outside_its_limits_is_wrong_usage(line: str, given: str, inside: Command) -> None:
    assert_fails(inside(*line.split(), "--retries", given), UsageError.exit_code, "retries", given, 0, 20)


@pytest.mark.parametrize("retries", [0, 1])
def test_a_failed_request_is_repeated_as_often_as_the_option_says(
    retries: int, hub: Hub, work: Path, connected: Command
) -> None:
    hub.faults[LAYER_1] = Fault(storage="drop")
    run = connected("score", "org/name", "--retries", retries, cwd=work)
    assert_fails(run, NetworkError.exit_code, "org/name", LAYER_1, f"{retries + 1} times", "--download")
    assert len([request for request in hub.stored if request.file == LAYER_1]) == retries + 1


FUNCTIONS: list[Callable[..., object]] = [
    library.score, library.verify, library.attention_sites, library.query_key_matrix, library.analogy,
    library.nearest, library.words, library.compose, library.mirrors, library.compare, library.lineage,
    library.open_embedding, library.plot, build_report,
]  # fmt: skip
# What they take by place, if it is more than a model.
PLACES = {
    "nearest": ("demo:minilm", "king"), "lineage": ("demo:minilm", "demo:encoder"), "plot": ("heatmap", "demo:minilm"),
    "build_report": ("r.toml", "page"),
}  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_every_function_that_opens_models_takes_the_options(function: Callable[..., object]) -> None:
    parameters = inspect.signature(function).parameters
    defaults = {name: parameters[name].default for name in ("offline", "download", "retries", "hub")}
    assert defaults == {"offline": False, "download": False, "retries": 5, "hub": None}
    with refuses(UsageError, "retries", 21, 0, 20):
        function(*PLACES.get(function.__name__, ("demo:minilm",)), retries=21)


def test_keywords_win_over_the_object() -> None:
    with refuses(UsageError, "retries", 21):
        library.score("demo:minilm", hub=HubAccess(offline=True), retries=21)


def test_files_in_the_cache_need_no_requests(hub: Hub, work: Path, connected: Command) -> None:
    assert connected("score", "org/name", "--download", "--layers", "1").returncode == 0
    assert cached(work) >= {LAYER_0, LAYER_1}
    hub.requests.clear()
    assert connected("inspect", "org/name").returncode == 0
    assert not [file for _, file, _, _ in hub.requests if file.endswith(".safetensors")]
