"""References to models: what they mean, and which name is suggested for one that names nothing."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from support.checkpoints import write_single

import attngeo
from attngeo.checkpoints.opening import open_store
from attngeo.checkpoints.reference import ModelRef
from attngeo.checkpoints.suggestions import did_you_mean, hub_models
from attngeo.errors import AttnGeoError, ModelNotFoundError, UnsupportedModelError, UsageError
from attngeo.papers.saponati2025.published import published_scores


@pytest.mark.parametrize(
    ("text", "kind", "name", "revision"),
    [
        ("org/name", "hub", "org/name", None),
        ("org/name@refs/pr/3", "hub", "org/name", "refs/pr/3"),
        ("org/name@v1.0", "hub", "org/name", "v1.0"),
        ("gpt2", "hub", "gpt2", None),
        ("demo:minilm", "demo", "minilm", None),
    ],
)
def test_references(text: str, kind: str, name: str, revision: str | None) -> None:
    ref = ModelRef.parse(text)
    assert (ref.kind, ref.name, ref.revision) == (kind, name, revision)


def test_a_reference_keeps_its_meaning_in_copies_and_in_other_processes() -> None:
    ref = ModelRef.parse("org/name/model.safetensors@v1")
    for same in (ModelRef.parse(ref), copy.deepcopy(ref), pickle.loads(pickle.dumps(ref))):
        assert same == ref == "org/name/model.safetensors@v1"
        assert vars(same) == {"kind": "hub", "name": "org/name", "revision": "v1", "file": "model.safetensors"}
    assert (ref.pin("abc"), ref.pin("abc").revision) == (ref, "abc")


@pytest.mark.parametrize(
    ("command", "times"),
    [("score demo:encoder demo:decoder", 2), ("compare demo:encoder demo:decoder", 2), ("positions demo:decoder", 1)],
)
def test_a_command_parses_each_reference_once(
    command: str, times: int, inside: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a text means may change while a command works, and is looked up among its files each time."""
    parsed: list[str] = []
    make = ModelRef.__new__

    def count(cls: type[ModelRef], text: str, *meaning: Any) -> ModelRef:
        parsed.append(text)
        return make(cls, text, *meaning)

    monkeypatch.setattr(ModelRef, "__new__", count)
    assert inside(*command.split()).returncode == 0
    assert len(parsed) == times


def test_a_path_that_exists_comes_before_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_single(tmp_path / "org/name")
    monkeypatch.chdir(tmp_path)
    assert ModelRef.parse("org/name").kind == "folder"
    assert ModelRef.parse("org/name/model.safetensors").kind == "file"
    assert ModelRef.parse("org/other").kind == "hub"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("./nowhere", ModelNotFoundError),
        ("/no/where", ModelNotFoundError),
        ("a/b/c/d", ModelNotFoundError),
        ("nowhere/", ModelNotFoundError),
        ("no/where/", ModelNotFoundError),
        ("weights.safetensors", ModelNotFoundError),
        ("weights.gguf", ModelNotFoundError),
        ("n" * 5000, ModelNotFoundError),
        ("~nobody-of-this-name/x", ModelNotFoundError),
        ("", UsageError),
        ("org/na me", UsageError),
        ("org/name@", UsageError),
        ("demo:nothing", ModelNotFoundError),
    ],
)
def test_references_that_name_nothing(text: str, error: type[AttnGeoError]) -> None:
    with pytest.raises(error) as raised:
        open_store(text)
    assert text[:80] in str(raised.value)


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(UsageError, match=r"model.*int"):
        attngeo.score(5)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("google-bert/bert-base-uncase", "google-bert/bert-base-uncased"),
        ("bert-base-uncaseed", "google-bert/bert-base-uncased"),
        ("mistralai/Mistral-7B-v01@main", "mistralai/Mistral-7B-v0.1"),
        ("minilm", "demo:minilm"),
        ("minilmwxy", "demo:minilm"),  # 0.8 similar
        ("minilmwxyz", None),  # 0.75
        ("mistralai/Mistral-7B-v0.1", None),
        ("bert-base-uncased", None),
        ("someone/unlike-any-other", None),
    ],
)
def test_a_similar_name_is_suggested(text: str, meant: str | None) -> None:
    suggestion = did_you_mean(text)
    assert (meant in suggestion) if meant else (suggestion == "")


def test_every_published_model_of_the_hub_may_be_suggested() -> None:
    """The list is one of its own, because checkpoints know no scores."""
    published = {model for model in published_scores()["model"] if "/" in model}
    assert len(published) > 100
    names = hub_models()
    assert published <= set(names)
    assert len(names) == len(set(names))


def test_a_file_of_a_repository_is_no_path() -> None:
    ref = ModelRef.parse("org/name/sub/model-Q4_K_M.gguf@v1")
    assert (ref.kind, ref.name, ref.file, ref.revision) == ("hub", "org/name", "sub/model-Q4_K_M.gguf", "v1")
    with pytest.raises(UnsupportedModelError, match="NumPy"):
        open_store("org/name/model.npz")


@pytest.mark.parametrize(
    ("address", "reference"),
    [
        ("https://huggingface.co/org/name", "org/name"),
        ("https://huggingface.co/org/name/", "org/name"),
        ("https://huggingface.co/gpt2", "gpt2"),
        ("huggingface.co/gpt2/blob/main/config.json", "gpt2"),
        ("huggingface.co/org/name/tree/main", "org/name"),
        ("https://hf.co/org/name/tree/v1", "org/name@v1"),
        (
            "https://mirror.example/org/name/blob/v1/sub/model.safetensors?download=true",
            "org/name/sub/model.safetensors@v1",
        ),
        ("https://huggingface.co/org/name/blob/main/config.json#L3", "org/name"),
        ("hf://org/name", "org/name"),
        ("s3://bucket/org/name", None),
        ("https://huggingface.co/datasets/org/name", None),
    ],
)
def test_the_address_of_a_model_names_its_reference(address: str, reference: str | None) -> None:
    with pytest.raises(AttnGeoError) as refused:
        ModelRef.parse(address)
    assert str(refused.value).startswith(address)
    if reference is not None:
        assert isinstance(refused.value, UsageError)
        assert str(refused.value).endswith(f"; give {reference}")
