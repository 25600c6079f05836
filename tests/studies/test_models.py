"""The models of a study: files of references, and globs of revisions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.checkpoints import write_single
from support.hub_client import reach_hub
from support.hub_server import Hub, serve
from support.messages import refuses

from attngeo.bounds.small_files import MOST_CONFIG_BYTES
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.reference import ModelRef
from attngeo.errors import DataError, DataUnavailableError, ModelNotFoundError, NetworkError, UsageError
from attngeo.studies.models import list_models, match_models

STEPS = ("step1000", "step2", "step10", "step0", "other", "a/step3")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A repository with a branch for each of some steps, and a tag v1."""
    folder = write_single(tmp_path / "repository")
    with serve() as hub:
        reach_hub(hub.url, tmp_path, monkeypatch)
        hub.repositories |= {"org/name": folder, "org/name@v1": folder}
        hub.branches["org/name"] = {step: f"{number:040x}" for number, step in enumerate(STEPS)}
        yield hub


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "models.txt"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_file_has_comments_blank_lines_and_duplicates(tmp_path: Path) -> None:
    text = "\ufeff# all\r\n\r\n  org/b # the second\n\t# more\norg/b\ndemo:minilm\n./no where/x\n"
    models = ["org/b", "demo:minilm", "./no where/x"]
    assert list_models(file=write(tmp_path, text)) == models
    assert list_models(["demo:minilm", "demo:minilm"], write(tmp_path, "demo:minilm\norg/a\n")) == [
        "demo:minilm", "demo:minilm", "org/a",
    ]  # fmt: skip
    (tmp_path / "a#b").mkdir()
    assert list_models(file=write(tmp_path, f"{tmp_path}/a#b\n")) == [f"{tmp_path}/a#b"]


@pytest.mark.usefixtures("hub")
def test_a_glob_is_all_revisions_that_match_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    steps = [f"org/name@step{step}" for step in (0, 2, 10, 1000)]
    assert list_models(["org/name@step*"]) == steps
    assert list_models(["org/name@step[0-9]", "org/name@v?"]) == [*steps[:2], "org/name@v1"]
    assert list_models(file=write(tmp_path, "org/name@step10\norg/name@step*\n")) == [steps[2], *steps[:2], steps[3]]


@pytest.mark.usefixtures("hub")
def test_a_glob_that_matches_nothing_names_what_there_is(tmp_path: Path) -> None:
    file = write(tmp_path, "demo:minilm\n\norg/name@stage*\n")
    with refuses(ModelNotFoundError, f"{file}:3", "org/name@stage*", "main", "step2"):
        list_models(file=file)
    with refuses(ModelNotFoundError, "org/other@step*"):
        list_models(["org/other@step*"])
    with refuses(NetworkError, "org/name@step*", "offline"):
        list_models(["org/name@step*"], hub=HubAccess(offline=True))


def test_a_pattern_of_paths_is_what_could_be_a_model_in_the_order_of_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named as a shell names them; one that matches nothing says where it looked."""
    for step in (1000, 20, 0, 100):
        write_single(tmp_path / f"run/checkpoint-{step}")
    (tmp_path / "run/weights.safetensors").touch()
    (tmp_path / "run/log.txt").touch()
    steps = [f"./run/checkpoint-{step}" for step in (0, 20, 100, 1000)]
    for folder, file in (
        ("adapter", "adapter_config.json"),
        ("half", "config.json"),
        ("logs", "events.out.tfevents"),
        ("quantised", "model.Q4_K_M.gguf"),
        ("shards", "model.safetensors.index.json"),
    ):
        (tmp_path / "run" / folder).mkdir()
        (tmp_path / "run" / folder / file).touch()
    folders = ["./run/adapter", *steps, "./run/half", "./run/quantised", "./run/shards"]
    monkeypatch.chdir(tmp_path)
    assert list_models(["./run/*", "demo:minilm"]) == [*folders, "./run/weights.safetensors", "demo:minilm"]
    assert list_models(["./run/l*"]) == ["./run/l*"]
    assert list_models([f"{tmp_path}/run/*0"]) == [str(tmp_path / step) for step in steps]
    assert list_models(file=write(tmp_path, "run/checkpoint-?0\n")) == ["run/checkpoint-20"]
    assert match_models("checkpoint-?0", HubAccess(), tmp_path / "run") == ["checkpoint-20"]
    for pattern, problem in (
        ("run/step*", f"it is a pattern that matches nothing in {tmp_path}/run"),
        ("no/*", f"no folder {tmp_path}/no"),
    ):
        assert list_models([pattern]) == [pattern]
        with refuses(ModelNotFoundError, pattern, problem):
            ModelRef.parse(pattern)


def test_a_path_with_the_characters_of_a_glob_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_single(tmp_path / "run@step*")
    monkeypatch.chdir(tmp_path)
    assert list_models(["run@step*"]) == ["run@step*"]


def test_files_that_are_no_lists_of_models(tmp_path: Path) -> None:
    missing = tmp_path / "missing.txt"
    for file, kind, facts in (
        (missing, DataUnavailableError, [missing, "No such file or directory"]),
        (tmp_path, DataUnavailableError, [tmp_path]),
        (write(tmp_path, "demo:minilm\norg/na me\n"), UsageError, [f"{tmp_path}/models.txt:2", "'org/na me'"]),
    ):
        with refuses(kind, *facts):
            list_models(file=file)
    for content, kind, fact in (
        (b"org/a\n\xff\n", DataError, "UTF-8"),
        ("# nothing\n\n", UsageError, "no models"),
        (b"", UsageError, "no models"),
    ):
        with refuses(kind, tmp_path / "models.txt", fact):
            list_models(file=write(tmp_path, content))
    big = write(tmp_path, b"org/name\n" * (MOST_CONFIG_BYTES // 9 + 1))
    with refuses(DataError, big, re.sub(r"\B(?=(\d{3})+$)", ",", str(MOST_CONFIG_BYTES))):
        list_models(file=big)
