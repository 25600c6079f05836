"""Revisions of one repository with equal weights: they are found before any weights are read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
from conftest import Command
from huggingface_hub import snapshot_download
from safetensors.torch import save_file
from support.checkpoints import CONFIG, weights, write_config, write_sharded, write_single
from support.hub_client import connect, reach_hub
from support.hub_server import LARGE, Hub, serve
from support.messages import assert_fails, refuses

import attngeo
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.files import ADAPTER
from attngeo.errors import ModelNotFoundError, UsageError
from attngeo.session import Session
from attngeo.studies.revisions import RevisionOptions, refuse_repeated_revisions

NAME = "org/name"
# Gives a branch its folder.
Branch = Callable[[str], Path]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A server with a repository whose main branch has weights of its own; this process uses it."""
    with serve() as running:
        running.repositories[NAME] = write_single(tmp_path / "main", weights(seed=99))
        running.branches[NAME] = {}
        reach_hub(running.url, tmp_path / "home", monkeypatch)
        yield running


@pytest.fixture
def branch(hub: Hub, tmp_path: Path) -> Branch:
    """Adds a branch, and returns its empty folder."""

    def add(name: str) -> Path:
        branches = hub.branches[NAME]
        branches[name] = f"{len(branches) + 1:040x}"
        folder = hub.repositories[f"{NAME}@{name}"] = tmp_path / "branches" / name
        folder.mkdir(parents=True)
        return folder

    return add


@pytest.fixture
def repeated(branch: Branch) -> None:
    """Branches of five steps: 1 and 4 have the same weights, and so have 2 and 8; step 512 has its own."""
    for step, seed in ((1, 0), (2, 1), (4, 0), (8, 1), (512, 2)):
        write_single(branch(f"step{step}"), weights(seed=seed))


def check(*revisions: str, hub: HubAccess = HubAccess(), allow_repeats: bool = False) -> None:
    models = [f"{NAME}@{revision}" for revision in revisions]
    refuse_repeated_revisions(models, RevisionOptions(allow_repeats=allow_repeats), Session(hub=hub))


def read_weights(hub: Hub) -> list[str]:
    """The files of weights that were asked for."""
    return [request.file for request in (*hub.requests, *hub.stored) if request.file.endswith(LARGE)]


@pytest.mark.usefixtures("repeated")
def test_repeats_are_listed_before_any_weights_are_read(
    hub: Hub, inside: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected = connect(inside, hub.url, tmp_path / "home", monkeypatch)
    run = connected("score", f"{NAME}@step*", "-o", "rows.csv", cwd=tmp_path)
    assert_fails(run, 2, NAME, 4, "5 revisions", "(step1, step4), (step2, step8)", "--allow-repeats")
    assert read_weights(hub) == []
    assert sorted(hub.listed) == [f"{NAME}@step{step}" for step in (1, 2, 4, 512, 8)]
    assert not (tmp_path / "rows.csv").exists()
    allowed = connected("score", f"{NAME}@step*", "--allow-repeats", "--format", "json", "--quiet", cwd=tmp_path)
    assert allowed.returncode == 0, allowed.stderr
    rows = pd.DataFrame(json.loads(allowed.stdout))
    assert list(rows["model"].unique()) == [f"{NAME}@step{step}" for step in (1, 2, 4, 8, 512)]
    assert len(hub.listed) == 5  # they are not listed again


@pytest.mark.usefixtures("repeated")
def test_the_library_refuses_and_allows_them_as_the_command_does(hub: Hub) -> None:
    with refuses(UsageError, NAME, "(step1, step4), (step2, step8)", "allow_repeats"):
        attngeo.score([f"{NAME}@step*"])
    with refuses(UsageError, "2 of 3 revisions", "(step1, step4)"):
        attngeo.score([f"{NAME}@step1", f"{NAME}@step4", f"{NAME}@main"])
    assert read_weights(hub) == []
    rows = attngeo.score([f"{NAME}@step[14]"], allow_repeats=True)
    assert list(rows["model"].unique()) == [f"{NAME}@step1", f"{NAME}@step4"]
    assert len(attngeo.score([f"{NAME}@step1", NAME])["revision"].unique()) == 2


@pytest.mark.usefixtures("repeated")
def test_one_revision_and_other_repositories_cost_no_request(hub: Hub, tmp_path: Path) -> None:
    hub.repositories["org/copy"] = hub.repositories[f"{NAME}@step1"]
    folder = write_single(tmp_path / "folder", weights(seed=0))
    models = [f"{NAME}@step1", f"{NAME}@step1", "org/copy", str(folder), "demo:encoder", "./none", "a b"]
    refuse_repeated_revisions(models, RevisionOptions())
    check("step1", "step4", allow_repeats=True)
    assert (hub.listed, hub.requests) == ([], [])


def test_the_main_branch_has_its_name(hub: Hub, branch: Branch) -> None:
    shutil.copytree(hub.repositories[NAME], branch("step9"), dirs_exist_ok=True)
    with refuses(UsageError, "(main, step9)"):
        refuse_repeated_revisions([NAME, f"{NAME}@step9"], RevisionOptions())


def test_long_lists_are_cut(branch: Branch) -> None:
    for step in range(40):
        write_single(branch(f"step{step}"), weights(seed=step % 7 if step < 21 else 0))
    with refuses(UsageError, "40 of 40", "(step0, step7, step14, step21", "and 12 others", "3 other groups") as caught:
        check(*(f"step{step}" for step in range(40)))
    assert len(str(caught.value)) < 500


def test_shards_are_equal_only_if_all_of_them_are(hub: Hub, branch: Branch) -> None:
    for step in (1, 2, 3):
        write_sharded(branch(f"step{step}"))
    third = hub.repositories[f"{NAME}@step3"]
    last = third / "model-00003-of-00003.safetensors"
    save_file({name: tensor + 1 for name, tensor in weights().items() if ".1." in name}, last)
    with refuses(UsageError, "2 of 3", "(step1, step2)"):
        check("step1", "step2", "step3")
    # All of them have one index and one config.json, which are read once.
    assert [request.file for request in hub.requests if request.method == "HEAD"] == [
        "config.json", "model.safetensors.index.json",
    ]  # fmt: skip
    check("step1", "step3")


@pytest.mark.parametrize("command", [("score",), ("compare",)])
def test_revisions_that_share_some_shards_are_named(
    command: tuple[str], hub: Hub, branch: Branch, inside: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step, seed in ((1, 0), (2, 1), (3, 2)):
        write_sharded(branch(f"step{step}"), seed=seed)
    first, mixed = (hub.repositories[f"{NAME}@step{step}"] for step in (3, 1))
    shutil.copy(first / "model-00002-of-00003.safetensors", mixed)
    connected = connect(inside, hub.url, tmp_path / "home", monkeypatch)
    run = connected(*command, f"{NAME}@step*", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    (warning,) = [line for line in run.stderr.splitlines() if "may have the wrong weights" in line]
    for fact in (NAME, "1 of the 3", "step1", "step3", "model-00002-of-00003.safetensors"):
        assert fact in warning


def test_an_index_written_anew_makes_no_other_weights(hub: Hub, branch: Branch) -> None:
    for step in (1, 2):
        write_sharded(branch(f"step{step}"))
    index = hub.repositories[f"{NAME}@step2"] / "model.safetensors.index.json"
    index.write_text(json.dumps(json.loads(index.read_text()), indent=4))
    with refuses(UsageError, "(step1, step2)"):
        check("step1", "step2")


def test_only_the_files_that_are_read_count(hub: Hub, branch: Branch) -> None:
    """The weights of one format are read; another one, and other files of the same format, do not count."""
    for step, seed in ((1, 0), (2, 0), (3, 1)):
        folder = write_single(branch(f"step{step}"), weights(seed=seed))
        (folder / "pytorch_model.bin").write_bytes(f"step {step % 2}".encode())
        (folder / "optimizer.safetensors").write_bytes(b"one for all")
    with refuses(UsageError, "2 of 3", "(step1, step2)"):
        check("step1", "step2", "step3")
    for step in (1, 2, 3):
        (hub.repositories[f"{NAME}@step{step}"] / "model.safetensors").unlink()
    with refuses(UsageError, "2 of 3", "(step1, step3)"):
        check("step1", "step2", "step3")


def test_the_file_that_the_configuration_names_counts(branch: Branch) -> None:
    for step in (1, 2):
        folder = write_single(branch(f"step{step}"), config=CONFIG | {"transformers_weights": "own.safetensors"})
        save_file(weights(seed=step), folder / "own.safetensors")
    check("step1", "step2")


def test_adapters_and_files_in_a_repository_are_compared(hub: Hub, branch: Branch) -> None:
    for step in (1, 2):
        folder = branch(f"step{step}")
        (folder / ADAPTER).write_text(json.dumps({"r": step}))
        (folder / "adapter_model.safetensors").write_bytes(b"update")
        (folder / "quantised").mkdir()
        for part in (1, 2):
            (folder / "quantised" / f"q-0000{part}-of-00002.gguf").write_bytes(b"part %d" % step ** (part - 1))
        (folder / "quantised" / "other.gguf").write_bytes(b"other")
    with refuses(UsageError, "(step1, step2)"):
        check("step1", "step2")
    files = [f"{NAME}/quantised/q-00001-of-00002.gguf@step{step}" for step in (1, 2)]
    refuse_repeated_revisions(files, RevisionOptions())
    with refuses(UsageError, "(step1, step2)"):
        refuse_repeated_revisions([file.replace("q-00001-of-00002", "other") for file in files], RevisionOptions())
    assert read_weights(hub) == []


def test_what_cannot_be_compared_is_left_to_the_reading(branch: Branch) -> None:
    """Without weights, with a broken config.json, or with an index that names a missing shard."""
    for step in (1, 2):
        write_config(branch(f"empty{step}"))
        (write_single(branch(f"broken{step}")) / "config.json").write_text("{")
        (write_sharded(branch(f"short{step}")) / "model-00003-of-00003.safetensors").unlink()
    check("empty1", "empty2", "broken1", "broken2", "short1", "short2", "none1", "none2")
    refuse_repeated_revisions(["org/none@a", "org/none@b"], RevisionOptions())


@pytest.mark.usefixtures("repeated")
def test_a_revision_that_disappears_fails_alone(
    hub: Hub, inside: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was listed when the pattern was resolved, and is gone when it is read."""
    listed = hub.branches[NAME] | {"step64": f"{64:040x}"}
    monkeypatch.setattr("attngeo.checkpoints.hub.Repository.list_revisions", lambda _: [*listed])
    connected = connect(inside, hub.url, tmp_path / "home", monkeypatch)
    run = connected("score", f"{NAME}@step*[124]", "--allow-repeats", "--format", "csv", "--quiet")
    assert run.returncode == 4
    assert run.stdout.count(f"{NAME}@step1,") == 2
    assert run.stderr == f"attngeo: {NAME}@step64: the model has no revision 'step64'\n"
    alone = connected("score", f"{NAME}@step6*")
    assert_fails(alone, ModelNotFoundError, f"{NAME}@step64", "no revision", "'step64'")
    with refuses(ModelNotFoundError, "step64"):
        attngeo.score([f"{NAME}@step[56]*"])
    nothing = connected("score", f"{NAME}@stage*")
    assert_fails(nothing, ModelNotFoundError, f"{NAME}@stage*", "step512")


@pytest.mark.usefixtures("repeated")
def test_offline_the_cache_knows_the_hashes(hub: Hub, tmp_path: Path) -> None:
    """What is not in the cache is not compared, and neither is a copy without links."""
    offline = HubAccess(offline=True)
    check("step1", "step4", hub=offline)
    for step in (1, 4, 512):
        snapshot_download(NAME, revision=f"step{step}")
    asked = len(hub.requests), len(hub.listed)
    with refuses(UsageError, "2 of 4", "(step1, step4)"):
        check("step1", "step2", "step4", "step512", hub=offline)
    for link in [*(tmp_path / "home").rglob("snapshots/*/*.safetensors")]:
        content = link.read_bytes()
        link.unlink()
        link.write_bytes(content)
    check("step1", "step4", hub=offline)
    assert (len(hub.requests), len(hub.listed)) == asked


def test_few_revisions_are_listed_at_a_time(hub: Hub, branch: Branch) -> None:
    revisions = [f"step{step}" for step in range(12)]
    for step, revision in enumerate(revisions):
        write_single(branch(revision), weights(seed=step))
    hub.latency = 0.05
    check(*revisions)
    assert 1 < hub.busiest <= 4
