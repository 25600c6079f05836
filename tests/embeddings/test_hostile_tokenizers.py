"""Tokenisers whose rules take all memory or hours, or make `tokenizers` panic or abort, are errors of the file."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import psutil
import pytest
from attngeo.commands import app
from conftest import Command
from support.messages import assert_fails, refuses
from support.vectors import byte_level, checkpoint, write_questions
from tokenizers import Tokenizer, models

from attngeo.embeddings import isolated
from attngeo.embeddings.isolated import FastTokens, IsolatedTokenizer
from attngeo.embeddings.opening import open_embedding
from attngeo.errors import CorruptCheckpointError, NotEnoughMemoryError, UnexpectedError
from attngeo.session import Session
from attngeo.studies.run import StudyTask, run_task


def write_json(**parts: Any) -> str:
    """A tokenizer.json of two tokens, with these parts in place of its own."""
    sound = json.loads(Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]")).to_str())
    return json.dumps(sound | parts)


def replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def map_characters(content: bytes) -> dict[str, Any]:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(content).decode()}


# Three rules of a thousand letters each: 10⁹ letters of one.
EXPLODING = {"type": "Sequence", "normalizers": [replace(a, b * 1000) for a, b in ("ab", "bc", "cd")]}
ADDED = {
    "id": 5, "content": "a", "single_word": False, "lstrip": False, "rstrip": False, "normalized": True,
    "special": False,
}  # fmt: skip
PREFIX = {
    "type": "BPE",
    "vocab": {"t": 0, "h": 1, "th": 2},
    "merges": [["t", "h"]],
    "continuing_subword_prefix": "####",
}
# Name → the file, and what the message states.
WHEN_READ = {
    "explodes in an added token": (write_json(normalizer=EXPLODING, added_tokens=[ADDED]), ["MB of memory", "read"]),
    "panics": (write_json(model=PREFIX), ["out of range"]),
    "aborts": (write_json(normalizer=map_characters(b"\xff" * 4 + bytes(8))), ["crashes", "read"]),
    "no object": ("[]", ["sequence"]),
    "deep": ('{"normalizer":' * 5000, []),
}
WHEN_IT_CUTS = {
    "explodes": (write_json(normalizer=EXPLODING), ["MB of memory"]),
    "doubles": (write_json(normalizer={"type": "Sequence", "normalizers": [{"type": "ByteLevel"}] * 60}), ["memory"]),
    "panics": (write_json(normalizer=map_characters(bytes(4))), ["out of bounds"]),
    "backtracks": (write_json(pre_tokenizer=split("(x+x+)+y")), ["retry-limit-in-match"]),
    "repeats": (
        write_json(
            post_processor={
                "type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 20_000, "pair": [],
                "special_tokens": {},
            }
        ),
        ["20,000 tokens"],
    ),
}  # fmt: skip
WORD = "a" + "x" * 40 + "é"


@pytest.mark.parametrize("name", WHEN_READ)
def test_a_file_that_fails_when_it_is_read(name: str) -> None:
    text, facts = WHEN_READ[name]
    with refuses(CorruptCheckpointError, "org/name", "tokenizer.json", *facts):
        IsolatedTokenizer(text, "tokenizer.json", "org/name")


@pytest.mark.parametrize("name", WHEN_IT_CUTS)
def test_a_file_that_fails_on_a_word(name: str) -> None:
    text, facts = WHEN_IT_CUTS[name]
    tokenizer = IsolatedTokenizer(text, "tokenizer.json", "org/name")
    with refuses(CorruptCheckpointError, "org/name", "tokenizer.json", *facts):
        tokenizer.encode(WORD)


def test_a_word_has_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The regular expression tries every part of 3,000 letters. Its process is given a second instead of three."""
    lower = "from attngeo.embeddings import isolated; isolated.SECONDS_FOR_WORD = 0; isolated.serve()"
    monkeypatch.setattr(isolated, "PROGRAM", f"import sys; sys.path += sys.argv[1:]; {lower}")
    text = write_json(normalizer=replace("a", "x" * 3000), pre_tokenizer=split("(x+x+)y"))
    tokenizer = IsolatedTokenizer(text, "tokenizer.json", "org/name")
    assert tokenizer.encode("b") == [0]
    with refuses(CorruptCheckpointError, "tokenizer.json", "takes more than 2 s", "tokenises"):
        tokenizer.encode("a")
    with refuses(CorruptCheckpointError, "tokenizer.json", "takes more than 2 s"):  # its process has ended
        tokenizer.encode("b")


def test_it_says_what_the_library_says_in_this_process(tmp_path: Path) -> None:
    library = byte_level(tmp_path / "tokenizer.json")
    tokenizer = IsolatedTokenizer(library.to_str(), "tokenizer.json", "org/name")
    here = FastTokens(Tokenizer.from_str(library.to_str()))
    assert (tokenizer.tokens, tokenizer.special, tokenizer.added) == (here.tokens, here.special, here.added)
    for word in ("the", " the", "日本", "", "line\nend", "\ud800"):
        assert tokenizer.encode(word) == here.encode(word), word


def test_its_process_ends_with_it() -> None:
    tokenizer = IsolatedTokenizer(write_json(), "tokenizer.json", "org/name")
    number = tokenizer._process.pid
    assert psutil.pid_exists(number)
    del tokenizer
    assert not psutil.pid_exists(number)


def test_a_process_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(isolated.subprocess, "Popen", refuse)
    with refuses(NotEnoughMemoryError, "org/name", "tokenizer.json", "Resource temporarily unavailable"):
        IsolatedTokenizer(write_json(), "tokenizer.json", "org/name")


def test_no_module_is_found_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json", "signal", "tokenizers", "attngeo", "subprocess", "resource"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert IsolatedTokenizer(write_json(), "tokenizer.json", "org/name").encode("a") == [1]
    assert not (tmp_path / "ran").exists()


def test_the_command_says_so_in_one_line(inside: Command, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model", 2)
    questions = write_questions(tmp_path / "questions.txt", {"all": ["a ab a ab"]})
    (folder / "tokenizer.json").write_text(WHEN_READ["panics"][0])
    assert_fails(inside("analogy", folder, "--questions", questions), 4, "tokenizer.json", "out of range")
    (folder / "tokenizer.json").write_text(WHEN_IT_CUTS["explodes"][0])
    assert_fails(inside("nearest", folder, "ab"), 4, "tokenizer.json", "memory")


class PanicException(BaseException):
    """What pyo3 raises, by its name."""


def panic(*_: Any, **__: Any) -> None:
    raise PanicException("called `Option::unwrap()` on a `None` value")


def test_any_other_panic_is_one_line(monkeypatch: pytest.MonkeyPatch, inside: Command) -> None:
    monkeypatch.setattr(app, "app", panic)
    assert_fails(inside("score", "model"), 4, "PanicException")


def test_a_panic_in_a_run_is_its_failure() -> None:
    outcome = run_task(panic, StudyTask(0, "first", None), Session())
    assert type(outcome.failure) is UnexpectedError
    assert "first" in str(outcome.failure)


def test_a_tokeniser_in_memory_is_read_in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the user's own, and may be one that no file describes."""
    byte_level(tmp_path / "tokenizer.json")
    library = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    monkeypatch.setattr(isolated.subprocess, "Popen", panic)
    embedding = open_embedding(checkpoint(tmp_path, library.get_vocab_size()), tokenizer=library)
    assert embedding.pieces is not None
    assert embedding.pieces("Athens") == library.encode(" Athens").ids
