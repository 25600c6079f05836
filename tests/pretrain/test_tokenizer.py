"""Tokenisers: trained ones are the same in each process, and existing ones are loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from support.hub_client import environment_of
from support.hub_server import serve
from support.messages import assert_states, refuses
from support.toy_text import (
    WORDS,
    draw_documents,
    make_gpt2,
    make_sequences,
    make_text,
    save_tokenizer,
    take_rows,
    word_tokenizer,
)
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from attngeo.errors import DataError, DataUnavailableError, UsageError
from attngeo.pretrain.sources import open_text
from attngeo.pretrain.text import SeededMaskingCollator
from attngeo.pretrain.text_source import TextSource
from attngeo.pretrain.tokenizer import prepare_tokenizer, train_wordpieces


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """A tokeniser of the embedded novels, which tests only read."""
    return train_wordpieces(open_text("austen"), 1024)


def test_a_trained_tokeniser(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(tokenizer) == 1024
    assert tokenizer.convert_ids_to_tokens(range(5)) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert sorted(tokenizer.all_special_ids) == [0, 1, 2, 3, 4]
    assert tokenizer.tokenize("Elizabeth, however") == ["elizabeth", ",", "however"]
    assert tokenizer.tokenize("[MASK] Été ÉTÉ 日x") == ["[MASK]", *tokenizer.tokenize("ete ete"), "[UNK]", "x"]
    assert tokenizer.decode(tokenizer.encode("It was.")) == "[CLS] it was. [SEP]"
    known = set(tokenizer.get_vocab())
    assert {f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz0123456789"} <= known
    assert not known & {"##.", "##,", "##-", "## ", " "}  # these are not part of a word


@pytest.mark.parametrize("size", [9, 10, 17, 50, 300, 5000])
def test_a_trained_tokeniser_has_at_most_as_many_pieces_as_asked_for(size: int) -> None:
    everything = [" ".join(chr(point) * 2 for point in range(first, first + 64)) for first in range(0x21, 0x3000, 64)]
    tokenizer = train_wordpieces(make_text([*everything, *draw_documents()]), size)
    assert len(tokenizer) <= size
    assert set(tokenizer.get_vocab().values()) == set(range(len(tokenizer)))
    assert len(make_sequences(draw_documents(), tokenizer)) == 1000


def test_frequent_characters_are_kept() -> None:
    text = ["a b c " * 9, "d " * 8, "x y z"]
    known = set(train_wordpieces(make_text(text), 5 + 4 * 4).get_vocab())
    assert known == {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcd", "##a", "##b", "##c", "##d"}


@pytest.mark.parametrize("size", [1, 8])
def test_a_vocabulary_without_room_for_characters(size: int) -> None:
    with refuses(UsageError, "vocab_size", size, 9):
        train_wordpieces(make_text(["ba"]), size)


@pytest.mark.parametrize("documents", [[], [" ", ""], ["\u0301\u200b"]])
def test_nothing_to_train_on(documents: list[str]) -> None:
    with refuses(DataError, "no text"):
        train_wordpieces(make_text(documents), 100)


def test_training_on_an_endless_text_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    from attngeo.pretrain import text_source, tokenizer

    monkeypatch.setattr(text_source, "BATCH_CHARACTERS", 100)
    monkeypatch.setattr(tokenizer, "MOST_BATCHES", 3)
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        for word in WORDS * 10**4:
            taken += 1
            yield f"{word} "

    known = set(train_wordpieces(TextSource("endless", endless, True), 100).get_vocab())
    assert "ba" in known
    assert taken <= 2 * 3 * 35


def test_a_trained_tokeniser_is_saved_and_loaded(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    for loaded in (AutoTokenizer.from_pretrained(tmp_path), prepare_tokenizer(str(tmp_path), make_text([]), 1, "mlm")):
        assert loaded.get_vocab() == tokenizer.get_vocab()
        assert loaded.special_tokens_map == tokenizer.special_tokens_map
        for text in ("It is a truth universally acknowledged", "Ünknown [MASK] 日本, [SEP]", ""):
            assert loaded(text) == tokenizer(text)
            assert loaded.decode(loaded.encode(text)) == tokenizer.decode(tokenizer.encode(text))


CHILD = """
import hashlib, json, sys
from attngeo.pretrain.text import SeededMaskingCollator
from attngeo.pretrain.text import build_sequences
from attngeo.pretrain.sources import open_text
from attngeo.pretrain.tokenizer import train_wordpieces
text = open_text("austen")
tokeniser = train_wordpieces(text, 1024)
found = build_sequences(text, tokeniser, length=64, count=99, least=1, seed=7)
batch = SeededMaskingCollator(tokeniser, mask_seed=7)([found[index] for index in range(32)])
made = [json.dumps(tokeniser.get_vocab(), sort_keys=True).encode(), batch["input_ids"].numpy().tobytes()]
print(*(hashlib.sha256(each).hexdigest() for each in (*made, batch["labels"].numpy().tobytes())))
"""


@pytest.mark.slow
def test_every_process_makes_the_same_tokeniser_sequences_and_masks() -> None:
    shown = set()
    for seed, threads in (("1", "1"), ("2", "4")):
        environment = {"PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "true"}
        run = subprocess.run(
            [sys.executable, "-c", CHILD], capture_output=True, text=True, check=True, env={**os.environ, **environment}
        )
        shown.add(run.stdout)
    assert len(shown) == 1


def test_a_tokeniser_without_a_mask_token_cannot_mask(tmp_path: Path) -> None:
    name = save_tokenizer(make_gpt2(), tmp_path)
    with refuses(UsageError, name, "mask token", "mlm", "objective clm"):
        prepare_tokenizer(name, make_text([]), 1, "mlm")
    assert prepare_tokenizer(name, make_text([]), 1, "clm").mask_token is None
    masked = prepare_tokenizer(save_tokenizer(make_gpt2(mask="<mask>"), tmp_path / "mask"), make_text([]), 1, "mlm")
    assert masked.mask_token == "<mask>"


def test_token_ids_may_have_gaps(tmp_path: Path) -> None:
    core = Tokenizer(models.WordLevel({"[UNK]": 0, "ba": 7, "be": 40}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    name = save_tokenizer(
        PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]", mask_token="[MASK]"), tmp_path
    )
    tokenizer = prepare_tokenizer(name, make_text([]), 1, "mlm")
    found = make_sequences(["ba be ba be"] * 20, tokenizer, length=4)
    assert {token for row in take_rows(found, 20) for token in row} == {7, 40}
    assert SeededMaskingCollator(tokenizer)([found[0], found[1]])["input_ids"].shape == (2, 4)


def test_tokenisers_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "tokenizer.json").write_text("{")
    code = tmp_path / "code"
    save_tokenizer(make_gpt2(), code)
    config = json.loads((code / "tokenizer_config.json").read_text())
    config |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    (code / "tokenizer_config.json").write_text(json.dumps(config))
    (code / "own.py").write_text("raise SystemExit('run')")
    for name, error, *facts in (
        (str(tmp_path), DataError, "tokeniser"),
        (str(broken), DataError, "tokeniser"),
        (str(code), DataError, "tokeniser"),
        ("./none", DataUnavailableError, "no such folder", "tokenizer train"),
        ("org/none", DataUnavailableError, "tokenizer train"),
        ("org/none@v1", DataUnavailableError, "tokenizer train"),
        ("demo:minilm", UsageError, "demo", "folder", "Hub", "train"),
        ("no name", UsageError),
    ):
        with refuses(error, name, *facts):
            prepare_tokenizer(name, make_text([]), 100, "clm")


HUB_CHILD = """
import sys
from attngeo.errors import AttnGeoError
from attngeo.pretrain.text_source import TextSource
from attngeo.pretrain.tokenizer import prepare_tokenizer
for name in sys.argv[1:]:
    try:
        print(*prepare_tokenizer(name, TextSource("none", lambda: iter([])), 1, "mlm").tokenize("ba be"))
    except AttnGeoError as error:
        print(type(error).__name__, error)
"""


@pytest.mark.slow
def test_tokenisers_of_the_hub(tmp_path: Path) -> None:
    word_tokenizer().save_pretrained(tmp_path / "v1")
    with serve() as hub:
        hub.repositories |= {"org/name": tmp_path, "org/name@v1": tmp_path / "v1"}
        environment = environment_of(hub.url, tmp_path / "home")
        run = subprocess.run(
            [sys.executable, "-c", HUB_CHILD, "org/name@v1", "org/name", "org/none"],
            capture_output=True, text=True, check=True, env=os.environ | environment | {"HF_HUB_OFFLINE": "0"},
        )  # fmt: skip
    tagged, empty, none = run.stdout.splitlines()
    assert (tagged, run.stderr) == ("ba be", "")
    for answer, name in ((empty, "org/name"), (none, "org/none")):
        assert_states(answer, "DataUnavailableError", name, "or tokenizer train")


def test_the_default_is_the_tokeniser_that_the_data_set_was_published_with(tmp_path: Path) -> None:
    name = save_tokenizer(make_gpt2(), tmp_path)
    text = TextSource("own", lambda: iter(["ba"]), tokenizer=name)
    assert prepare_tokenizer("", text, 100, "clm").get_vocab() == make_gpt2().get_vocab()
    assert "[MASK]" in prepare_tokenizer("train", text, 100, "clm").get_vocab()
    assert "[MASK]" in prepare_tokenizer("", make_text(["ba"]), 100, "clm").get_vocab()


def test_a_tokeniser_whose_rules_take_all_memory_is_refused(tmp_path: Path) -> None:
    core = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    core.normalizer = normalizers.Sequence([normalizers.Replace(a, b * 1000) for a, b in ("ab", "bc", "cd")])
    name = save_tokenizer(PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]"), tmp_path)
    with refuses(DataError, name, "memory"):
        prepare_tokenizer(name, make_text([]), 1, "clm")


def test_a_tokeniser_that_panics_is_an_error_of_it(tmp_path: Path) -> None:
    core = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("(x+x+)+y"), "isolated")
    name = save_tokenizer(PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]"), tmp_path)
    tokenizer = prepare_tokenizer(name, make_text([]), 1, "clm")
    with refuses(DataError, name, "retry-limit-in-match", "tokenizer"):
        make_sequences(["x" * 40], tokenizer, length=4)
