"""Scores that are kept: never computed twice, and never those of another content, other options or other code."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import Command
from pyarrow import parquet
from safetensors.torch import load_file, save_file
from support.checkpoints import CONFIG, weights, write_config, write_single
from support.forks import Forks
from support.hub_client import environment_of, reach_hub
from support.hub_server import Hub, serve
from support.kept import LAYERS, file_of, write_layers
from support.messages import assert_fails, assert_states, refuses

import attngeo as library
from attngeo import provenance
from attngeo.errors import CorruptCheckpointError, NetworkError, UsageError
from attngeo.progress import Progress
from attngeo.questions import asking
from attngeo.scores.score import score

pytestmark = pytest.mark.usefixtures("cache")


def list_kept(cache: Path) -> tuple[list[Path], list[Path]]:
    """The results in a cache folder, and the finished parts of others."""
    return sorted(cache.glob("scores/*.parquet")), sorted(cache.glob("scores/*.parts/*.parquet"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A checkpoint of six layers."""
    return write_layers(tmp_path / "model")


class Watcher:
    """A progress callback that remembers what it is told. interrupt_at: the layer before which it interrupts."""

    def __init__(self, interrupt_at: int | None = None) -> None:
        self.layers: list[str] = []
        self.notes: list[str] = []
        self._interrupt_at = interrupt_at

    def __call__(self, progress: Progress) -> None:
        if progress.phase == "kept":
            self.notes.append(progress.what)
        elif progress.phase == "score" and progress.what != "done":
            if len(self.layers) == self._interrupt_at:
                raise KeyboardInterrupt
            self.layers.append(progress.what)


def computed(model: Any, **options: Any) -> int:
    """How many layers are computed for the scores."""
    watcher = Watcher()
    score(model, progress=watcher, **options)
    return len(watcher.layers)


def assert_equal(frame: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Equal to the last bit, and made in the same way."""
    pd.testing.assert_frame_equal(frame, expected, check_exact=True)
    assert frame.attrs == expected.attrs


def test_the_second_time_the_kept_scores_are_the_answer(model: Path, cache: Path) -> None:
    first = score(model, per_head=True)
    assert [len(found) for found in list_kept(cache)] == [1, 0]
    watcher = Watcher()
    again = score(model, per_head=True, progress=watcher)
    assert_equal(again, first)
    assert watcher.layers == []
    assert len(watcher.notes) == 1
    assert_states(watcher.notes[0], "kept results")


def test_what_is_kept_is_the_answer_until_fresh_is_given(model: Path) -> None:
    right = score(model)
    assert (computed(model), computed(model, fresh=True), computed(model)) == (0, LAYERS, 0)
    assert_equal(score(model, fresh=True), right)


def test_an_interrupted_fresh_run_leaves_what_is_kept(model: Path) -> None:
    right = score(model)
    with pytest.raises(KeyboardInterrupt):
        score(model, fresh=True, progress=Watcher(interrupt_at=4))
    assert computed(model) == 0
    assert_equal(score(model), right)


@pytest.mark.parametrize(
    "options",
    [
        {"gamma": 3.0}, {"convention": "published"}, {"precision": "float64"}, {"with_bias": True}, {"fold_norm": True},
        {"rope_offset": 2}, {"per_head": True}, {"layers": [1]}, {"stack": "decoder"}, {"device": "cpu"},
    ],
    ids=lambda options: next(iter(options)),
)  # fmt: skip
def test_other_options_have_other_scores(model: Path, options: dict[str, Any]) -> None:
    assert computed(model) == LAYERS
    assert computed(model, **options) in (1, LAYERS)
    assert computed(model, **options) == computed(model) == 0


def test_how_an_option_is_written_does_not_matter(model: Path) -> None:
    assert computed(model, layers="0-1", gamma=2) == 2
    two = torch.arange(3).numpy()
    numpy = {"layers": two[:2], "gamma": np.float64(2), "rope_offset": two[0], "per_head": np.False_}
    assert computed(model, **numpy) == 0
    assert len(score(model, per_head=np.True_, rope_offset=two[2], layers=[0], progress=Watcher())) == 5


def test_the_bound_of_memory_does_not_matter(model: Path) -> None:
    assert computed(model, memory="1GB") == LAYERS
    assert computed(model, memory=1) == computed(model) == 0


def test_files_that_change_have_other_scores(model: Path) -> None:
    before = score(model)
    path, other = model / file_of(0), model / file_of(1)
    state = path.stat()
    save_file({name: tensor + 1 for name, tensor in load_file(path).items()}, path)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))  # as tools that copy files with their times do
    assert path.stat().st_size == state.st_size
    changed = score(model)
    assert changed.symmetry[0] != before.symmetry[0]
    assert changed.symmetry[1] == before.symmetry[1]
    shutil.copy(path, other.with_suffix(".new"))
    other.with_suffix(".new").replace(other)
    with refuses(CorruptCheckpointError, "index"):
        score(model)


def test_a_changed_configuration_has_other_scores(tmp_path: Path) -> None:
    folder = write_single(tmp_path / "other")
    four = score(folder, per_head=True)
    write_config(folder, CONFIG | {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 12})
    assert len(score(folder, per_head=True)) == len(four) - 4


def test_a_change_while_it_is_read_is_not_kept(model: Path, cache: Path) -> None:
    def touch(progress: Progress) -> None:
        if progress.phase == "score" and progress.what.endswith("3"):
            (model / "config.json").touch()

    score(model, progress=touch)
    whole, parts = list_kept(cache)
    assert whole == []
    assert len(parts) <= 3
    assert computed(model) == LAYERS


def test_other_code_has_other_scores(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert computed(model) == LAYERS
    changed = provenance.describe_code("torch") | {"code": "changed"}
    monkeypatch.setattr(asking, "describe_code", lambda _: changed)
    assert computed(model) == LAYERS


def test_the_digest_of_the_code_is_of_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = Path(library.__file__).parent
    copy = shutil.copytree(package, tmp_path / "attngeo", ignore=shutil.ignore_patterns("__pycache__"))

    def digest() -> str:
        monkeypatch.setattr(provenance, "__file__", str(copy / "provenance.py"))
        return provenance.digest_code.__wrapped__()  # without its cache

    found = {provenance.digest_code()}
    assert found == {digest()}
    names = ("options.py", "geometry/forms.py", "layouts/census.csv", "training/loop.py")
    for name in names:
        with (copy / name).open("a") as file:
            file.write("# changed\n")
        found.add(digest())
    assert len(found) == 1 + len(names)


def test_an_interrupted_run_is_resumed_after_the_last_finished_layer(model: Path, cache: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        score(model, per_head=True, progress=Watcher(interrupt_at=4))
    whole, parts = list_kept(cache)
    assert (whole, len(parts)) == ([], 4)
    watcher = Watcher()
    resumed = score(model, per_head=True, progress=watcher)
    assert watcher.layers == ["decoder 4", "decoder 5"]
    assert_states(watcher.notes[0], "4 of 6 layers", "kept results")
    assert [len(found) for found in list_kept(cache)] == [1, 0]
    assert_equal(resumed, score(model, per_head=True, fresh=True))


def test_fresh_also_ignores_the_layers_of_an_interrupted_run(model: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        score(model, progress=Watcher(interrupt_at=4))
    assert computed(model, fresh=True) == LAYERS


@pytest.mark.slow
def test_a_killed_run_reads_no_finished_layer_again(attngeo: Command, tmp_path: Path, cache: Path) -> None:
    with serve() as hub:
        hub.repositories["org/name"] = write_layers(tmp_path / "remote")
        online = environment_of(hub.url, tmp_path / "home")
        command = ["score", "org/name", "--format", "csv", "--per-head"]
        whole = attngeo(*command, ATTNGEO_CACHE="", **online)
        hub.held = lambda request: request.file == file_of(3) and not str(request.part).startswith("bytes=0-")
        process = subprocess.Popen(
            [Path(sys.executable).with_name("attngeo"), *command],
            env=os.environ | online, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        with process:
            while len(list_kept(cache)[1]) < 3 and process.poll() is None:
                time.sleep(0.005)
            os.kill(process.pid, signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        assert [int(path.stem) for path in list_kept(cache)[1]] == [0, 1, 2]
        hub.held = lambda _: False
        hub.stored.clear()
        again = attngeo(*command, **online)
    assert (again.returncode, again.stdout) == (0, whole.stdout)
    assert_states(again.stderr, f"3 of {LAYERS} layers")
    for layer in range(LAYERS):
        parts = [str(part) for _, file, part, _ in hub.stored if file == file_of(layer)]
        assert any(not part.startswith("bytes=0-") for part in parts) == (layer >= 3), (layer, parts)


@pytest.mark.parametrize("damage", [b"", b"PAR1 but no more", "half", "other columns", "fewer rows", "no description"])
def test_a_damaged_result_is_computed_again(model: Path, cache: Path, damage: bytes | str) -> None:
    right = score(model)
    ((path,), _) = list_kept(cache)
    table = parquet.read_table(path)
    if isinstance(damage, bytes):
        path.write_bytes(damage)
    elif damage == "half":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        changed = {"other columns": table.drop(["note"]), "fewer rows": table.slice(0, 2)}
        parquet.write_table(changed.get(damage, table.replace_schema_metadata({})), path)
    assert computed(model) == LAYERS
    assert_equal(score(model), right)
    assert computed(model) == 0


def test_no_bit_of_a_result_can_change_unnoticed(tmp_path: Path, cache: Path) -> None:
    model = write_single(tmp_path / "small", weights(1), CONFIG | {"num_hidden_layers": 1})
    right, rng = score(model), Random(0)
    ((path,), _) = list_kept(cache)
    content = path.read_bytes()
    for _ in range(60):
        at = rng.randrange(len(content))
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :])
        assert_equal(score(model), right)


@pytest.mark.parametrize("name", ["file", "x" * 300, "x\udcff"], ids=["a file", "a long name", "not UTF-8"])
def test_a_cache_that_cannot_be_written_costs_one_warning(
    name: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: Command
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ATTNGEO_CACHE", str(tmp_path / name))
    run = inside("score", model, "--format", "csv")
    assert (run.returncode, run.stderr.count("\n")) == (0, 1)
    assert_states(run.stderr, "not kept", "ATTNGEO_CACHE")
    monkeypatch.setenv("ATTNGEO_CACHE", "")
    assert run.stdout == inside("score", model, "--format", "csv").stdout
    assert (tmp_path / "file").read_text() == ""


def test_nothing_is_kept_if_the_variable_is_empty(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNGEO_CACHE", "")
    assert computed(model) == computed(model) == LAYERS
    assert not cache.exists()


def test_nothing_is_kept_without_a_home(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs with a user who is not listed."""

    def fail(*_: Any, **__: Any) -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv("ATTNGEO_CACHE")
    monkeypatch.setattr("attngeo.studies.results.user_cache_path", fail)
    assert computed(model) == computed(model) == LAYERS


def test_a_folder_that_cannot_be_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNGEO_CACHE", "~nobody-of-this-name/x")
    with refuses(UsageError, "ATTNGEO_CACHE", "folder"):
        score(model)


def test_a_model_in_memory_is_not_kept(built: Any, cache: Path) -> None:
    score(built("llama"))
    assert not cache.exists()


def test_two_runs_at_once_keep_one_right_result(forks: Forks, inside: Command, model: Path, cache: Path) -> None:
    command = ["score", model, "--format", "csv", "-q"]
    runs = forks.run(command, command)  # which begin to write their files at the same moment
    assert [run.returncode for run in runs] == [0, 0]
    assert {run.stdout for run in runs} == {inside("score", model, "--format", "csv", "--fresh").stdout}
    assert [len(found) for found in list_kept(cache)] == [1, 0]
    assert [path.name for path in cache.glob("scores/.*")] == []


@pytest.mark.slow  # a process that loads pandas and Arrow
def test_the_stored_answer_needs_no_torch_and_no_threads(model: Path) -> None:
    """Arrow aborts a process that ends while one of its threads starts."""
    score(model)
    script = (
        "import sys, attngeo, pandas, psutil, pyarrow.compute, pyarrow.parquet\n"
        "before = psutil.Process().num_threads()\n"
        f"frame = attngeo.score({str(model)!r})\n"
        "threads = psutil.Process().num_threads() - before\n"
        "print(len(frame), threads, 'torch' in sys.modules, 'transformers' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == f"{LAYERS} 0 False False\n"


def test_the_command_says_where_its_answer_is_from(inside: Command, model: Path) -> None:
    first = inside("score", model, "--per-head")
    again = inside("score", model, "--per-head")
    assert again.stdout == first.stdout
    (added,) = set(again.stderr.splitlines()) - set(first.stderr.splitlines())
    assert_states(added, model, "kept results", "--fresh")
    assert inside("score", model, "--per-head", "-q").stderr == ""
    assert inside("score", model, "--per-head", "--fresh").stderr == first.stderr


class TestRemote:
    """Scores of models on the Hub are kept by commit."""

    @pytest.fixture
    def hub(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
        """A server with a model, reached by this process."""
        with serve() as running:
            running.repositories["org/name"] = write_layers(tmp_path / "remote")
            reach_hub(running.url, tmp_path, monkeypatch)
            yield running

    def test_nothing_but_the_commit_is_requested_again(self, hub: Hub) -> None:
        first = score("org/name")
        hub.requests.clear()
        hub.stored.clear()
        again = score("org/name@main")
        assert hub.stored == []
        assert {request.file for request in hub.requests} == {"config.json"}
        assert set(again.model) == {"org/name@main"}
        assert again.attrs["model"] == "org/name@main"
        pd.testing.assert_frame_equal(again.drop(columns="model"), first.drop(columns="model"), check_exact=True)

    def test_the_commit_is_asked_for_once(self, hub: Hub) -> None:
        """A branch that moves after that does not give other scores to it."""
        score("org/name")
        assert [request.method for request in hub.requests if request.file == "config.json"] == ["HEAD", "GET"]

    def test_another_commit_has_other_scores(self, hub: Hub, tmp_path: Path) -> None:
        main = score("org/name")
        hub.repositories["org/name@v1"] = write_single(tmp_path / "v1", weights(6, seed=1), CONFIG)
        assert score("org/name@v1").symmetry[0] != main.symmetry[0]
        hub.repositories["other/name"] = hub.repositories["org/name"]
        assert computed("other/name") == LAYERS  # another repository may name the same commit

    def test_what_is_computed_offline_is_not_kept(self, hub: Hub, tmp_path: Path) -> None:
        """The cache may have other weights of the same commit than the Hub gives."""
        folder = hub.repositories["org/name"] = write_single(tmp_path / "both")
        torch.save(weights(seed=1), folder / "pytorch_model.bin")
        score("org/name/pytorch_model.bin", download=True)
        offline = score("org/name", offline=True, fresh=True)
        online = score("org/name", fresh=True)
        assert offline.symmetry[0] != online.symmetry[0]
        score("org/name", offline=True, fresh=True)
        assert_equal(score("org/name"), online)

    def test_the_answer_needs_no_connection(self, hub: Hub) -> None:
        first = score("org/name")
        hub.repositories.clear()
        assert_equal(score("org/name", offline=True), first)
        with refuses(NetworkError, "cache"):
            score("org/name", offline=True, fresh=True)


class TestCommand:
    """`attngeo cache`."""

    @pytest.fixture
    def kept(self, model: Path, cache: Path) -> Path:
        """A cache with two results, one that is not finished, and a file that is none of attngeo's."""
        score(model, gamma=3)
        score("demo:encoder", per_head=True)
        with pytest.raises(KeyboardInterrupt):
            score(model, progress=Watcher(interrupt_at=2))
        (cache / "scores/own.parquet").write_text("not a result")
        return cache

    def test_list_shows_each_result_with_its_size(self, inside: Command, kept: Path, model: Path) -> None:
        run = inside("cache", "list", "--format", "json")
        entries = {(each["model"], each["finished_layers"]): each for each in json.loads(run.stdout)}
        assert set(entries) == {(str(model), LAYERS), (str(model), 2), ("demo:encoder", 3)}
        whole, parts = list_kept(kept)
        own = [path for path in (*whole, *parts) if path.name != "own.parquet"]
        assert sum(each["bytes"] for each in entries.values()) == sum(path.stat().st_size for path in own)
        assert entries[str(model), LAYERS]["options"]["gamma"] == 3
        assert [each["layers"] for each in entries.values() if each["finished_layers"] == 2] == [LAYERS]
        table = inside("cache", "list", cwd=kept)
        for text in ("gamma=3", "2 of 6", "demo:encoder"):
            assert text in table.stdout
        assert {each["command"] for each in entries.values()} == {"score"}
        assert sum(line.startswith("score ") for line in table.stdout.splitlines()) == 3
        assert "adapter" not in table.stdout  # which is at its default
        assert max(map(len, table.stdout.splitlines())) <= 80
        assert_states(table.stderr, "3 results", kept)

    def test_list_shows_the_newest_and_how_many_are_older(
        self, inside: Command, kept: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of 3 results, 1; all if models are named, and as JSON."""
        monkeypatch.setattr("attngeo.commands.cache.MOST_RESULTS_LISTED", 1)
        newest, *older = json.loads(inside("cache", "list", "--format", "json").stdout)
        assert (newest["finished_layers"], len(older)) == (2, 2)
        run = inside("cache", "list", COLUMNS="200")
        *_, last = run.stdout.splitlines()
        assert ("2 of 6" in run.stdout, "demo:encoder" in run.stdout) == (True, False)
        assert_states(last, "2 results", "older", "'*'")
        assert_states(run.stderr, "3 results", kept)
        assert inside("cache", "list", "*", COLUMNS="200").stdout.count("score ") == 3

    def test_clear_removes_what_is_named_and_nothing_else(self, inside: Command, kept: Path, model: Path) -> None:
        assert_fails(inside("cache", "clear", "--format", "json"), 2, "format", "list")
        assert_fails(inside("cache", "clear", "demo:encodr"), 2, "'demo:encodr'", "did you mean demo:encoder?")
        assert_states(inside("cache", "clear", "demo:*").stderr, "1 result", kept)
        left = json.loads(inside("cache", "list", "--format", "json").stdout)
        assert {each["model"] for each in left} == {str(model)}
        assert_fails(inside("cache", "clear", model, "demo:encoder"), 2, "'demo:encoder'", kept)
        assert json.loads(inside("cache", "list", "--format", "json").stdout) == left
        (kept / "scores" / f".{'0' * 64}.parquet.12ab.partial").write_text("of a process that was killed")
        assert_states(inside("cache", "clear").stderr, "2 results", kept)
        assert_fails(inside("cache", "clear", "demo:*"), 2, "nothing is kept")
        assert [path.name for path in (kept / "scores").iterdir()] == ["own.parquet"]
        assert computed(model) == LAYERS

    @pytest.mark.usefixtures("kept")
    def test_models_are_named_as_they_were_or_by_their_place(self, inside: Command, model: Path) -> None:
        def count(*patterns: object, **where: Path) -> int:
            return len(json.loads(inside("cache", "list", *patterns, "--format", "json", **where).stdout))

        assert count() == 3
        assert count(model) == count(f"{model}/") == count("./model", cwd=model.parent) == 2
        assert count(f"{model.parent}/*", "demo:encoder") == 3
        assert count("nothing") == 0
        assert_states(inside("cache", "list", "nothing").stderr.splitlines()[0], "'nothing'")

    def test_what_is_no_answer_any_more_can_be_removed(self, inside: Command, kept: Path, model: Path) -> None:
        assert json.loads(inside("cache", "list", "--outdated", "--format", "json").stdout) == []
        (model / "config.json").touch()
        assert inside("cache", "list").stdout.count("(outdated)") == 2
        assert_states(inside("cache", "clear", "--outdated").stderr, "2 results", kept)
        left = json.loads(inside("cache", "list", "--format", "json").stdout)
        assert [each["model"] for each in left] == ["demo:encoder"]

    def test_what_cannot_be_removed_is_an_error(
        self, inside: Command, kept: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: Any, **__: Any) -> None:
            raise PermissionError(13, "not yours")

        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", fail)
            run = inside("cache", "clear", "demo:*")
        assert run.returncode == UsageError.exit_code
        assert_states(run.stderr, kept)
        assert len(list_kept(kept)[0]) == 3

    def test_a_file_that_says_nothing_is_listed_and_removed(self, inside: Command, kept: Path) -> None:
        for path in list_kept(kept)[0]:
            if path.name != "own.parquet":
                parquet.write_table(
                    parquet.read_table(path).replace_schema_metadata({"attngeo": '{"revision": 5}'}), path
                )
        run = inside("cache", "list", COLUMNS="200")
        assert (run.returncode, run.stdout.count("unreadable")) == (0, 2)
        assert_states(inside("cache", "clear").stderr, "3 results", kept)

    def test_an_empty_cache_has_no_results(self, inside: Command, cache: Path) -> None:
        listed = inside("cache", "list")
        assert (listed.returncode, listed.stdout) == (0, "")
        assert_states(listed.stderr, "0 results", cache)
        assert inside("cache", "list", "--format", "json").stdout == "[]\n"
        assert inside("cache", "clear").returncode == 0
        assert not cache.exists()

    def test_bad_input_is_refused(self, inside: Command) -> None:
        nowhere = inside("cache", "list", ATTNGEO_CACHE="")
        assert (nowhere.returncode, nowhere.stdout) == (UsageError.exit_code, "")
        assert_states(nowhere.stderr, "ATTNGEO_CACHE")
        unknown = inside("cache", "sell")
        assert unknown.returncode == UsageError.exit_code
        assert_states(unknown.stderr, "list", "clear")
