"""Text in data sets of the Hub, on a server of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.hub_server import COMMIT, V1_COMMIT, Hub
from support.messages import assert_states
from support.text_files import write_file

from attngeo.errors import AttnGeoError
from attngeo.pretrain.sources import open_text

CARD = """---
dataset_info:
  features: [{{name: text, dtype: string}}]
  splits: [{{name: train, num_bytes: {size}, num_examples: 2}}]
  download_size: {size}
  dataset_size: {size}
configs: [{{config_name: default, data_files: [{{split: train, path: "data/train-*"}}]}}]
---
"""


CONFIGS = """---
configs:
- {config_name: english, data_files: [{split: train, path: en.csv}, {split: test, path: test.csv}]}
- {config_name: french, data_files: [{split: train, path: fr.csv}]}
---
"""


# Without sleep, because huggingface_hub waits 23 seconds in all between attempts.
CHILD = """
import json, sys, time
time.sleep = lambda _: None
from attngeo.errors import AttnGeoError
from attngeo.pretrain.sources import open_text
for reference in sys.argv[1:]:
    try:
        text = open_text(reference)
        answer = [text.streaming, [document for batch in text.read_batches() for document in batch]]
    except AttnGeoError as error:
        answer = [type(error).__name__, str(error)]
    print(json.dumps(answer))
"""


def ask(references: list[str], home: Path, code: str = CHILD, **environment: str) -> list[Any]:
    """The answer to each reference, from another process, which prints nothing else."""
    terminal, stderr = os.openpty()
    termios.tcsetwinsize(stderr, (24, 80))  # progress bars would be shown only if they have room
    quick = {"HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0", "HF_UPDATE_DOWNLOAD_COUNTS": "0"}
    run = subprocess.run(
        [sys.executable, "-c", code, *references], stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=100,
        env={**os.environ, **quick, **environment}, check=False, cwd=home.parent,
    )  # fmt: skip
    os.write(stderr, b"\n")
    assert os.read(terminal, 10_000) == b"\r\n"
    os.close(stderr)
    os.close(terminal)
    assert run.returncode == 0
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.fixture
def reached(
    remote: Hub, reach_data_sets: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Hub:
    """The Hub, which this process reaches."""
    reach_data_sets(remote.url)
    monkeypatch.chdir(tmp_path)
    return remote


def answer_here(reference: str) -> list[Any]:
    """The answer of this process to a reference, as CHILD prints it."""
    try:
        text = open_text(reference)
        return [text.streaming, [document for batch in text.read_batches() for document in batch]]
    except AttnGeoError as error:
        return [type(error).__name__, str(error)]


def assert_refused(answer: list[str], kind: str, *facts: object) -> None:
    """The answer is an error of this class that states the facts."""
    assert answer[0] == kind, answer
    assert_states(answer[1], *facts)


@pytest.fixture
def remote(hub: Hub, tmp_path: Path) -> Hub:
    """Data sets of all kinds."""

    def add(name: str, **contents: Any) -> None:
        hub.repositories[f"datasets/{name}"] = folder = tmp_path / "remote" / name
        for file, content in contents.items():
            write_file(folder / file, content)

    two, data = {"text": ["one", "two"]}, "data/train-00000-of-00001.parquet"
    add("org/small", **{"README.md": CARD.format(size=100), data: two})
    add("org/small@v1", **{"README.md": CARD.format(size=100), data: {"text": ["the first version"]}})
    add("org/large", **{"README.md": CARD.format(size=10**13), data: two})
    add("org/unknown", **{"train.parquet": {"n": [1, 2], "body": ["one", "two"]}})
    add("org/gated", **{"train.parquet": two})
    hub.gated["datasets/org/gated"] = "hf_secret"
    add("org/script", **{"script.py": "raise SystemExit", "README.md": ""})
    add("org/nothing", **{"README.md": "", "weights.bin": "x"})
    add("org/numbers", **{"train.parquet": {"n": [1, 2]}})
    add("org/broken", **{"README.md": CARD.format(size=100), data: b"PAR1, or is it?"})
    add("org/tables", **{"README.md": CONFIGS, "en.csv": "id,body\n1,one\n2,2\n", "fr.csv": "id,body\n1,un\n",
                         "test.csv": "id,body\n1,three\n"})  # fmt: skip
    for shard in range(2):
        rows = {"title": ["A"] * 150, "text": [f"article {150 * shard + n}" for n in range(150)]}
        add("legacy-datasets/wikipedia", **{f"data/20220301.en/train-0000{shard}-of-00002.parquet": rows})
    add("legacy-datasets/wikipedia", **{"wikipedia.py": "", "data/20220301.de/train.parquet": {"text": ["nein"]}})
    return hub


@pytest.mark.usefixtures("reached")
def test_data_sets_of_the_hub(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    expected: dict[str, Any] = {
        "org/small": [False, ["one", "two"]],
        "org/small#train[:50%]": [False, ["one"]],
        "org/small@v1": [False, ["the first version"]],
        f"org/small@{COMMIT}": [False, ["one", "two"]],
        "org/large": [True, ["one", "two"]],
        "org/unknown": [True, ["one", "two"]],
        "org/tables:english": [True, ["one", "2"]],
        "org/tables:french#train": [True, ["un"]],
        "org/tables:english@main#test": [True, ["three"]],
        "wikipedia": [True, [f"article {n}" for n in range(300)]],
    }
    write_file(tmp_path / "org" / "tables" / "here.txt", "not this folder, which is no configuration")
    assert {reference: answer_here(reference) for reference in expected} == expected
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("revision", "commit", "other", "environment"),
    [("", COMMIT, "@v1", {"HF_HUB_OFFLINE": "1"}), ("@v1", V1_COMMIT, "", {"HF_ENDPOINT": "http://127.0.0.1:9"})],
    ids=["offline", "unreachable"],
)
def test_a_downloaded_data_set_is_read_without_a_connection(
    revision: str, commit: str, other: str, environment: dict[str, str], remote: Hub, tmp_path: Path
) -> None:
    """It is never taken for another revision."""
    home, cached = tmp_path / "home", f"org/small{revision}"
    (before,) = ask([cached], home, HF_ENDPOINT=remote.url)
    remote.requests.clear()
    asked = [cached, f"org/small@{commit}", f"org/small{other}", f"{cached}#test"]
    same, by_commit, another, no_split = ask(asked, home, **{"HF_ENDPOINT": remote.url} | environment)
    assert same == by_commit == before
    assert_refused(another, "DataUnavailableError", f"org/small{other}", commit, "cache")
    assert_refused(no_split, "DataUnavailableError", f"{cached}#test", "split", "org/small:CONFIG#SPLIT", "train")
    assert remote.requests == []


def test_wikipedia_is_read_shard_by_shard(reached: Hub) -> None:
    assert next(open_text("wikipedia").read_documents()) == "article 0"
    assert {file for _, file, *_ in reached.requests} == {"data/20220301.en/train-00000-of-00002.parquet"}


@pytest.mark.slow
def test_data_sets_that_cannot_be_read(
    reached: Hub, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    url = reached.url
    unavailable: dict[str, list[str]] = {
        "org/none": ["exist", url, "HF_TOKEN"],
        "org/small@v9": ["v9", "exist"],
        "org/gated": ["gated", url, "HF_TOKEN"],
        "org/small:other": ["other", "org/small:CONFIG#SPLIT", "default"],
        "org/tables": ["Config", "org/tables:CONFIG#SPLIT", "english", "french"],
        "org/small#test": ["split", "org/small:CONFIG#SPLIT", "train"],
        "org/tables:english#dev": ["split", "org/tables:CONFIG#SPLIT", "train", "test"],
    }
    unreadable: dict[str, list[str]] = {
        "org/nothing": ["text", "JSON", "CSV", "Parquet"],
        "org/script": ["script"],
        "org/numbers": ["columns", "n", "text_column"],
        "org/broken": ["ArrowInvalid"],
    }
    for kind, expected in (("DataUnavailableError", unavailable), ("DataError", unreadable)):
        for reference, facts in expected.items():
            assert_refused(answer_here(reference), kind, reference, *facts)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert answer_here("org/gated") == [True, ["one", "two"]]
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_without_a_connection(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.csv", "id,body\n1,one\n")
    home = tmp_path / "home"
    local = [[False, ["one"]], [False, ["one"]]]
    assert ask([str(path), f"jigsaw:{path}"], home, CHILD.replace("(reference)", "(reference, column='body')")) == local
    assert not home.exists()  # files are not copied into a cache
    answers = ask(["org/name", "wikipedia"], home, HF_ENDPOINT="http://127.0.0.1:9")
    for name, answer in zip(("org/name", "wikipedia"), answers, strict=True):
        assert_refused(answer, "DataUnavailableError", name, "http://127.0.0.1:9", "HF_ENDPOINT", "connection")
    assert_states(answers[1][1], "refused")
    names = ("org/name", "wikipedia", "redpajama")
    for name, answer in zip(names, ask([*names], home, HF_HUB_OFFLINE="1"), strict=True):
        assert_refused(answer, "DataUnavailableError", "offline")
        assert name in answer[1]
