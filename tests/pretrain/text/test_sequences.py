"""Tokenisers, and the sequences and masks that text is made into: nothing is lost, and all of it can be repeated."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from support.hub_server import serve
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from attngeo.errors import DataError, DataUnavailableError, UsageError
from attngeo.pretrain.text import sequences as module
from attngeo.pretrain.text.collator import SeededMaskingCollator
from attngeo.pretrain.text.sequences import ShuffledSequences, StreamedSequences, build_sequences, make_encoder
from attngeo.pretrain.text.sources import TextSource, open_text
from attngeo.pretrain.text.tokeniser import prepare_tokeniser, train_wordpieces

WORDS = [f"{a}{b}" for a in "bdfgk" for b in "aeiou"]
documents_of_words = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=20).map(" ".join), min_size=1)


def text_of(documents: list[str], *, streaming: bool = False, name: str = "text") -> TextSource:
    return TextSource(name, lambda: iter(documents), streaming)


@cache
def words() -> PreTrainedTokenizerBase:
    """A tokeniser of WORDS, trained on them: each is one piece."""
    return train_wordpieces(text_of([" ".join(WORDS)] * 9), 120)


def make(documents: list[str], tokeniser: PreTrainedTokenizerBase | None = None, **given: Any) -> Any:
    options = {"length": 8, "pack": True, "count": 1000, "batch": 1, "seed": 0}
    return build_sequences(text_of(documents), tokeniser or words(), **(options | given))


def rows(found: ShuffledSequences | StreamedSequences, count: int, first: int = 0) -> list[tuple[int, ...]]:
    """The tokens of `count` sequences from the one numbered `first` on, whose numbers are checked."""
    if isinstance(found, StreamedSequences):
        examples = list(islice(found, first, first + count))
    else:
        examples = [found[index] for index in range(first, first + count)]
    assert [example["index"] for example in examples] == list(range(first, first + count))
    return [tuple(example["input_ids"].tolist()) for example in examples]


def chunks(documents: list[str], length: int, tokeniser: Any = None) -> list[tuple[int, ...]]:
    """By hand: each document's pieces and a separator, all end to end, in parts of `length`."""
    tokeniser = tokeniser or words()
    end = tokeniser.sep_token_id if tokeniser.sep_token_id is not None else tokeniser.eos_token_id
    stream = [n for text in documents for n in (*tokeniser.encode(text, add_special_tokens=False), end)]
    return [tuple(stream[i : i + length]) for i in range(0, len(stream) - length + 1, length)]


def some_documents(count: int = 40, seed: int = 0) -> list[str]:
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, size=random.integers(1, 20))) for _ in range(count)]


# ShuffledSequences


@given(documents=documents_of_words, length=st.integers(2, 9), seed=st.integers(0, 99))
def test_packing_loses_no_token(documents: list[str], length: int, seed: int) -> None:
    expected = chunks(documents, length)
    if not expected:
        with pytest.raises(DataError, match=f"tokens, 0 sequences, expected at least one batch of 1 × {length}"):
            make(documents, length=length)
        return
    found = make(documents, length=length, seed=seed)
    assert found.distinct == len(expected)
    assert found.distinct_tokens == length * len(expected)
    assert Counter(rows(found, found.distinct)) == Counter(expected)


@given(documents=documents_of_words, length=st.integers(2, 9), seed=st.integers(0, 99), epoch=st.integers(1, 3))
def test_later_epochs_cut_the_same_stream_elsewhere(documents: list[str], length: int, seed: int, epoch: int) -> None:
    stream = [token for (token,) in chunks(documents, 1)]
    assume(len(stream) >= length)
    found = make(documents, length=length, seed=seed)
    cut = Counter(rows(found, found.distinct, epoch * found.distinct))
    places = range(0, length * found.distinct, length)
    shifted = [
        [tuple(stream[start + min(shift, len(stream) - start - length) :][:length]) for start in places]
        for shift in range(length)
    ]
    assert any(cut == Counter(each) for each in shifted)


def test_a_text_is_not_seen_in_the_same_pieces_again_and_again() -> None:
    found = make(some_documents(), length=8)
    passes = [set(rows(found, found.distinct, epoch * found.distinct)) for epoch in range(6)]
    assert len({frozenset(each) for each in passes}) >= 4


@given(documents=documents_of_words, length=st.integers(2, 9))
def test_padded_documents_are_the_tokenisers_own(documents: list[str], length: int) -> None:
    found = make(documents, length=length, pack=False)
    expected = words()(documents, truncation=True, max_length=length)["input_ids"]
    assert Counter(rows(found, len(documents))) == Counter(map(tuple, expected))
    assert found.distinct_tokens == sum(map(len, expected))


@pytest.mark.parametrize("pack", [True, False])
def test_documents_end_with_the_separator(pack: bool) -> None:
    start, end = words().cls_token_id, words().sep_token_id
    found = [*rows(make(["ba be", "bi", "bo bu"], length=8 if pack else 4, pack=pack), 1 if pack else 3)]
    ba, be, bi, bo, bu = words().convert_tokens_to_ids(["ba", "be", "bi", "bo", "bu"])
    if pack:
        assert found == [(ba, be, end, bi, end, bo, bu, end)]
    else:
        assert sorted(found) == sorted([(start, ba, be, end), (start, bi, end), (start, bo, bu, end)])


def test_every_epoch_is_another_order() -> None:
    found = make(some_documents())
    orders = {tuple(rows(make(some_documents(), seed=seed), found.distinct, first * found.distinct))
              for seed in (0, 1) for first in (0, 1, 2)}  # fmt: skip
    assert len(orders) == 6
    padded = [rows(make(some_documents(), pack=False), 40, first * 40) for first in (0, 1, 2)]
    assert len(set(map(tuple, padded))) == 3
    assert len({tuple(sorted(order)) for order in padded}) == 1


def test_the_order_is_that_of_the_seed_whatever_was_asked_before() -> None:
    found, again = make(some_documents()), make(some_documents(), count=500)
    expected = rows(found, 4 * found.distinct)
    for index in (3 * found.distinct + 1, 2, found.distinct, 2 * found.distinct - 1, 3 * found.distinct):
        assert rows(again, 1, index) == [expected[index]]
        assert rows(pickle.loads(pickle.dumps(again)), 1, index) == [expected[index]]


@pytest.mark.parametrize("pack", [True, False])
def test_tokens_are_counted_as_they_come(pack: bool) -> None:
    found = make(some_documents(9), length=6, pack=pack)
    counted = np.cumsum([0, *map(len, rows(found, 3 * found.distinct))])
    assert [found.tokens_until(count) for count in range(3 * found.distinct + 1)] == counted.tolist()
    assert (len(found), found.epochs) == (1000, 1000 / found.distinct)
    assert len(list(found)) == 1000


def test_a_token_takes_four_bytes() -> None:
    found = make([" ".join(WORDS * 4)] * 500, length=64)
    assert found.distinct_tokens > 50_000
    assert len(pickle.dumps(found)) < 4.3 * found.distinct_tokens
    assert found[0]["input_ids"].dtype == np.int32


def test_too_little_text() -> None:
    message = "novel has 12 tokens, 1 sequences, expected at least one batch of 2 × 8; give more text, or lower --batch"
    with pytest.raises(DataError, match=message):
        build_sequences(text_of(["ba be bi"] * 3, name="novel"), words(), length=8, pack=True, count=9, batch=2, seed=0)
    assert make(["ba be bi"] * 3, batch=1).distinct == 1
    assert make(["ba be bi"] * 3, batch=3, pack=False).distinct == 3
    for documents in ([], ["", " \n"]):
        with pytest.raises(DataError, match="text holds no text; give another with --data"):
            make(documents)


def test_long_documents_are_no_reason_to_warn(capfd: pytest.CaptureFixture[str]) -> None:
    tokeniser = words()
    tokeniser.model_max_length, before = 4, tokeniser.model_max_length
    assert make([" ".join(WORDS)], length=5).distinct == 5
    tokeniser.model_max_length = before
    assert capfd.readouterr() == ("", "")


# Masks


def batch_of(numbers: list[int], length: int = 64, **options: Any) -> dict[str, Any]:
    found = make([" ".join(WORDS * 3)] * 200, length=length, seed=options.get("keyed_by", 0))
    return SeededMaskingCollator(words(), **options)([found[number] for number in numbers])


@pytest.mark.parametrize("others", [[], [8], [3, 700, 8, 9], list(range(32))])
def test_a_mask_depends_on_the_seed_and_the_number_alone(others: list[int]) -> None:
    alone = batch_of([7])
    for numbers in ([7, *others], [*others, 7]):
        batch = batch_of(numbers)
        place = numbers.index(7)
        assert torch.equal(batch["input_ids"][place], alone["input_ids"][0])
        assert torch.equal(batch["labels"][place], alone["labels"][0])


def test_masks_do_not_depend_on_padding() -> None:
    documents = ["ba be bi bo bu da de", " ".join(WORDS)]
    found = make(documents, length=40, pack=False)
    masking = SeededMaskingCollator(words(), mlm_probability=0.5, packed=False)
    short, long = sorted(range(2), key=lambda index: len(found[index]["input_ids"]))
    alone, together = masking([found[short]]), masking([found[short], found[long]])
    size = alone["labels"].shape[1]
    assert size == 9
    for name, filling in (("input_ids", words().pad_token_id), ("labels", -100), ("attention_mask", 0)):
        assert torch.equal(together[name][0, :size], alone[name][0]), name
        assert (together[name][0, size:] == filling).all(), name
    assert together["attention_mask"].sum(1).tolist() == [9, len(WORDS) + 2]


def test_masks_of_numbers_epochs_and_seeds_differ() -> None:
    tokens = np.full(64, words().convert_tokens_to_ids("ba"), dtype=np.int32)
    seen = set()
    for seed in range(4):
        masking = SeededMaskingCollator(words(), keyed_by=seed)
        batch = masking([{"input_ids": tokens, "index": index} for index in range(500)])
        seen |= {tuple(row) for row in batch["labels"].tolist()}
    assert len(seen) == 4 * 500
    distinct = make([" ".join(WORDS * 3)] * 200, length=64).distinct
    assert not torch.equal(batch_of([0])["labels"], batch_of([distinct])["labels"])


def test_masks_are_the_same_on_every_machine() -> None:
    """As numpy documents its streams; a change here would change what a resumed run sees."""
    tokens = np.full(40, 9, dtype=np.int32)
    labels = SeededMaskingCollator(words(), keyed_by=3)([{"input_ids": tokens, "index": 5}])["labels"]
    assert (labels != -100).nonzero()[:, 1].tolist() == [1, 5, 26, 32]


def within(count: int, of: int, share: float) -> bool:
    """Within five standard deviations of a binomial."""
    return abs(count - of * share) < 5 * (of * share * (1 - share)) ** 0.5


@pytest.mark.parametrize("probability", [0.15, 0.3])
def test_the_rates_are_those_of_bert(probability: float) -> None:
    tokeniser = words()
    found = make([" ".join(WORDS * 3)] * 2000, length=64, count=2000)
    examples = [found[index] for index in range(2000)]
    batch = SeededMaskingCollator(tokeniser, mlm_probability=probability)(examples)
    before = torch.tensor(np.stack([example["input_ids"] for example in examples])).long()
    after, labels = batch["input_ids"], batch["labels"]
    special, chosen = before == tokeniser.sep_token_id, labels != -100
    assert special.any()
    assert not (special & chosen).any()
    assert torch.equal(after[~chosen], before[~chosen])
    assert torch.equal(labels[chosen], before[chosen])
    total = int(chosen.sum())
    assert within(total, int((~special).sum()), probability)
    masked = int((after[chosen] == tokeniser.mask_token_id).sum())
    kept = int((after[chosen] == before[chosen]).sum())
    by_chance = 0.1 / len(tokeniser)
    assert within(masked, total, 0.8 + by_chance)
    assert within(kept, total, 0.1 + by_chance)
    replaced = after[chosen & (after != before) & (after != tokeniser.mask_token_id)]
    assert within(len(replaced), total, 0.1 - 2 * by_chance)
    counts = torch.bincount(replaced, minlength=len(tokeniser)).float()
    assert len(counts) == len(tokeniser)
    assert (counts > 0).sum() == len(tokeniser) - 1  # any token but [MASK], which counts as masked
    places = chosen.float().mean(0)
    assert (places.sub(probability * 75 / 76).abs() < 5 * (probability / 2000) ** 0.5).all()


def test_unknown_words_are_neither_masked_nor_predicted() -> None:
    found = make(["日 ba ☃ be"] * 90)
    batch = SeededMaskingCollator(words(), mlm_probability=0.999)([found[index] for index in range(40)])
    unknown = words().unk_token_id
    assert (batch["input_ids"] == unknown).any()
    assert not (batch["labels"] == unknown).any()


@pytest.mark.parametrize("pack", [True, False])
def test_without_masks_every_token_but_the_first_is_predicted(pack: bool) -> None:
    found = make(some_documents(), length=10, pack=pack)
    examples = [found[index] for index in range(8)]
    batch = SeededMaskingCollator(words(), mlm=False, packed=pack)(examples)
    assert set(batch) == {"input_ids", "labels"} | (set() if pack else {"attention_mask"})
    for row, example in enumerate(examples):
        size = len(example["input_ids"])
        assert batch["input_ids"][row, :size].tolist() == example["input_ids"].tolist()
        assert batch["labels"][row, 1:size].tolist() == example["input_ids"][1:].tolist()
        assert (batch["labels"][row, [0, *range(size, batch["labels"].shape[1])]] == -100).all()
    assert all(tensor.dtype == torch.int64 for tensor in batch.values())


def test_batches_are_the_same_in_a_worker_process() -> None:
    found, masking = make(some_documents(), count=12), SeededMaskingCollator(words())
    here = DataLoader(found, batch_size=4, collate_fn=masking)
    there = DataLoader(found, batch_size=4, collate_fn=masking, num_workers=1, multiprocessing_context="spawn")
    for one, other in zip(here, there, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


# Data that are read as they come


def stream_of(documents: list[str], seed: int = 0, length: int = 8) -> StreamedSequences:
    text = text_of(documents, streaming=True)
    found = build_sequences(text, words(), length=length, pack=True, count=1, batch=10**6, seed=seed)
    assert isinstance(found, StreamedSequences)
    return found


@given(documents=documents_of_words, length=st.integers(2, 9), held=st.integers(1, 30))
def test_a_stream_has_the_sequences_that_a_table_has(documents: list[str], length: int, held: int) -> None:
    expected = chunks(documents, length)
    before, module.SHUFFLED = module.SHUFFLED, held
    try:
        if not expected:
            with pytest.raises(DataError, match=f"text has fewer than {length} tokens; lower --seq-len"):
                next(iter(stream_of(documents, length=length)))
            return
        once = rows(stream_of(documents, length=length), len(expected))
        assert Counter(once) == Counter(expected)
        # What is left at the end of the data is put before what comes when they are read again.
        thrice = chunks(documents * 3, length)
        assert Counter(rows(stream_of(documents, length=length), len(thrice))) == Counter(thrice)
    finally:
        module.SHUFFLED = before


def test_a_stream_is_shuffled_anew_in_every_pass_and_by_every_seed() -> None:
    documents = ["ba be bi bo bu da de", *(f"{a} {b} ba be bi bo bu" for a in WORDS for b in WORDS)]
    size = len(documents)
    passes = [rows(stream_of(documents, seed), size, first * size) for seed in (0, 1) for first in (0, 1, 2)]
    assert len(set(map(tuple, passes))) == 6
    assert {tuple(sorted(each)) for each in passes} == {tuple(sorted(chunks(documents, 8)))}
    assert rows(stream_of(documents), 3 * size) == [row for each in passes[:3] for row in each]


def test_a_stream_is_shuffled_among_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHUFFLED", 50)
    documents = [f"{a} {b} {c} ba be bi bo" for a in WORDS for b in WORDS for c in WORDS[:2]]
    before = {row: place for place, row in enumerate(chunks(documents, 8))}
    examples = list(islice(stream_of(documents), len(documents)))
    places = np.array([before[tuple(example["input_ids"].tolist())] for example in examples])
    assert (np.diff(places) == 1).mean() < 0.05
    assert places[:100].max() < 150
    assert (np.arange(1, 101) + 50 > places[:100]).all()
    assert np.corrcoef(places, np.arange(len(places)))[0, 1] > 0.9
    assert all(example["input_ids"].base is None for example in examples)  # not views of whole batches


def test_a_stream_goes_on_at_the_same_place() -> None:
    stream = stream_of(some_documents())
    expected = rows(stream, 300)
    assert rows(stream, 100, 200) == expected[200:]
    novels = StreamedSequences(open_text("austen"), make_encoder(words(), 16, pack=True), 16, seed=0)
    assert rows(pickle.loads(pickle.dumps(novels)), 20, 5) == rows(novels, 25)[5:]


def test_a_stream_reads_no_more_than_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHUFFLED", 10)
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield "ba be bi bo bu da de " * 10_000

    stream = build_sequences(
        TextSource("endless", endless, True), words(), length=8, pack=True, count=1, batch=1, seed=0
    )
    assert len(rows(stream, 1000)) == 1000
    assert taken < 20


def test_a_stream_of_padded_documents_is_refused() -> None:
    with pytest.raises(UsageError, match="text is read as it comes, which only packed sequences can be; leave --no-"):
        build_sequences(text_of(["ba"], streaming=True), words(), length=8, pack=False, count=1, batch=1, seed=0)


def test_a_stream_without_text_ends() -> None:
    for documents in ([], [" "], ["ba"]):
        with pytest.raises(DataError, match="text has fewer than 8 tokens; lower --seq-len"):
            next(iter(stream_of(documents)))


# Tokenisers


def test_a_trained_tokeniser() -> None:
    tokeniser = train_wordpieces(open_text("austen"), 1024)
    assert len(tokeniser) == 1024
    assert tokeniser.convert_ids_to_tokens(range(5)) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert sorted(tokeniser.all_special_ids) == [0, 1, 2, 3, 4]
    assert tokeniser.tokenize("Elizabeth, however") == ["elizabeth", ",", "however"]
    assert tokeniser.tokenize("[MASK] Été ÉTÉ 日x") == ["[MASK]", *tokeniser.tokenize("ete ete"), "[UNK]", "x"]
    assert tokeniser.decode(tokeniser.encode("It was.")) == "[CLS] it was. [SEP]"
    known = set(tokeniser.get_vocab())
    assert {f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz0123456789"} <= known
    assert not known & {"##.", "##,", "##-", "## ", " "}  # which are no part of a word


@pytest.mark.parametrize("size", [9, 10, 17, 50, 300, 5000])
def test_a_trained_tokeniser_has_at_most_so_many_pieces(size: int) -> None:
    everything = [" ".join(chr(point) * 2 for point in range(first, first + 64)) for first in range(0x21, 0x3000, 64)]
    tokeniser = train_wordpieces(text_of([*everything, *some_documents()]), size)
    assert len(tokeniser) <= size
    assert set(tokeniser.get_vocab().values()) == set(range(len(tokeniser)))
    assert len(make(some_documents(), tokeniser)) == 1000


def test_frequent_characters_are_kept() -> None:
    text = ["a b c " * 9, "d " * 8, "x y z"]
    known = set(train_wordpieces(text_of(text), 5 + 4 * 4).get_vocab())
    assert known == {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcd", "##a", "##b", "##c", "##d"}


@pytest.mark.parametrize("size", [1, 8])
def test_a_vocabulary_without_room_for_characters(size: int) -> None:
    with pytest.raises(UsageError, match=f"vocab_size is {size}, expected at least 9 to train a tokeniser"):
        train_wordpieces(text_of(["ba"]), size)


@pytest.mark.parametrize("documents", [[], [" ", ""], ["\u0301\u200b"]])
def test_nothing_to_train_on(documents: list[str]) -> None:
    with pytest.raises(DataError, match="text holds no text; give another with --data"):
        train_wordpieces(text_of(documents), 100)


def test_training_on_an_endless_text_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    from attngeo.pretrain.text import sources as texts
    from attngeo.pretrain.text import tokeniser

    monkeypatch.setattr(texts, "BATCH", 100)
    monkeypatch.setattr(tokeniser, "MOST_BATCHES", 3)
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        for word in WORDS * 10**6:
            taken += 1
            yield f"{word} "

    known = set(train_wordpieces(TextSource("endless", endless, True), 100).get_vocab())
    assert "ba" in known
    assert taken <= 2 * 3 * 35


def test_a_trained_tokeniser_is_saved_and_loaded(tmp_path: Path) -> None:
    tokeniser = train_wordpieces(open_text("austen"), 500)
    tokeniser.save_pretrained(tmp_path)
    for loaded in (AutoTokenizer.from_pretrained(tmp_path), prepare_tokeniser(str(tmp_path), text_of([]), 1, "mlm")):
        assert loaded.get_vocab() == tokeniser.get_vocab()
        assert loaded.special_tokens_map == tokeniser.special_tokens_map
        for text in ("It is a truth universally acknowledged", "Ünknown [MASK] 日本, [SEP]", ""):
            assert loaded(text) == tokeniser(text)
            assert loaded.decode(loaded.encode(text)) == tokeniser.decode(tokeniser.encode(text))


CHILD = """
import hashlib, json, sys
from attngeo.pretrain.text.collator import SeededMaskingCollator
from attngeo.pretrain.text.sequences import build_sequences
from attngeo.pretrain.text.sources import open_text
from attngeo.pretrain.text.tokeniser import train_wordpieces
text = open_text("austen")
tokeniser = train_wordpieces(text, 1024)
found = build_sequences(text, tokeniser, length=64, pack=True, count=99, batch=1, seed=7)
batch = SeededMaskingCollator(tokeniser, keyed_by=7)([found[index] for index in range(32)])
made = [json.dumps(tokeniser.get_vocab(), sort_keys=True).encode(), batch["input_ids"].numpy().tobytes()]
print(*(hashlib.sha256(each).hexdigest() for each in (*made, batch["labels"].numpy().tobytes())))
"""


def test_every_process_makes_the_same_tokeniser_sequences_and_masks(capsys: pytest.CaptureFixture[str]) -> None:
    exec(CHILD, {})
    expected = capsys.readouterr().out
    for seed, threads in (("1", "1"), ("random", "4")):
        environment = {"PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "true"}
        run = subprocess.run(
            [sys.executable, "-c", CHILD], capture_output=True, text=True, check=True, env={**os.environ, **environment}
        )
        assert run.stdout == expected


# Tokenisers that exist


@cache
def gpt2(pad: str | None = None, mask: str | None = None) -> PreTrainedTokenizerFast:
    """A byte-level BPE with one special token, as GPT-2 has."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = [each for each in ("<|endoftext|>", mask) if each]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        some_documents(),
        trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|endoftext|>", pad_token=pad, mask_token=mask)


def reference(tokeniser: PreTrainedTokenizerBase, folder: Path) -> str:
    tokeniser.save_pretrained(folder)
    return str(folder)


def test_one_without_a_mask_token_cannot_mask(tmp_path: Path) -> None:
    name = reference(gpt2(), tmp_path)
    with pytest.raises(UsageError, match="has no mask token, which mlm needs; give another or --objective clm"):
        prepare_tokeniser(name, text_of([]), 1, "mlm")
    assert prepare_tokeniser(name, text_of([]), 1, "clm").mask_token is None
    masked = prepare_tokeniser(reference(gpt2(mask="<mask>"), tmp_path / "mask"), text_of([]), 1, "mlm")
    assert masked.mask_token == "<mask>"


@pytest.mark.parametrize("pad", [None, "<|endoftext|>"])
@pytest.mark.parametrize("pack", [True, False])
def test_the_end_of_a_document_is_predicted_also_where_it_pads(pad: str | None, pack: bool, tmp_path: Path) -> None:
    tokeniser = prepare_tokeniser(reference(gpt2(pad), tmp_path), text_of([]), 1, "clm")
    documents = [f"{document}<|endoftext|>" for document in some_documents()] if not pack else some_documents()
    found = make(documents, tokeniser, length=16, pack=pack)
    examples = [found[index] for index in range(20)]
    batch = SeededMaskingCollator(tokeniser, mlm=False, packed=pack)(examples)
    ends = sum(int((example["input_ids"][1:] == tokeniser.eos_token_id).sum()) for example in examples)
    assert ends > 0
    assert int((batch["labels"] == tokeniser.eos_token_id).sum()) == ends
    assert int((batch["labels"] != -100).sum()) == sum(len(example["input_ids"]) - 1 for example in examples)
    if pack:
        assert torch.equal(batch["labels"][:, 1:], batch["input_ids"][:, 1:])
        assert Counter(rows(found, found.distinct)) == Counter(chunks(documents, 16, tokeniser))


def test_one_whose_numbers_have_gaps(tmp_path: Path) -> None:
    core = Tokenizer(models.WordLevel({"[UNK]": 0, "ba": 7, "be": 40}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    name = reference(PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]", mask_token="[MASK]"), tmp_path)
    tokeniser = prepare_tokeniser(name, text_of([]), 1, "mlm")
    found = make(["ba be ba be"] * 20, tokeniser, length=4)
    assert {token for row in rows(found, 20) for token in row} == {7, 40}
    assert SeededMaskingCollator(tokeniser)([found[0], found[1]])["input_ids"].shape == (2, 4)


def test_documents_without_a_token_are_left_out() -> None:
    core = Tokenizer(models.WordLevel({"ba": 0, "be": 1}))
    core.normalizer = normalizers.BertNormalizer()
    found = make(["ba", "\x01", "be"], PreTrainedTokenizerFast(tokenizer_object=core), pack=False)
    assert sorted(rows(found, found.distinct)) == [(0,), (1,)]


def test_tokenisers_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "tokenizer.json").write_text("{")
    code = tmp_path / "code"
    reference(gpt2(), code)
    config = json.loads((code / "tokenizer_config.json").read_text())
    config |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    (code / "tokenizer_config.json").write_text(json.dumps(config))
    (code / "own.py").write_text("raise SystemExit('run')")
    for name, error, message in (
        (str(tmp_path), DataError, "holds no tokeniser that can be read"),
        (str(broken), DataError, "holds no tokeniser that can be read"),
        (str(code), DataError, "holds no tokeniser that can be read"),
        ("./none", DataUnavailableError, r"tokenizer \./none: no such folder; give one, a Hub id, or --tokenizer"),
        ("org/none", DataUnavailableError, r"tokenizer org/none cannot be had \(.*\); give a folder or Hub id, or"),
        ("org/none@v1", DataUnavailableError, "tokenizer org/none@v1 cannot be had"),
        ("demo:minilm", UsageError, "tokenizer demo:minilm is a demo, expected a folder, a Hub id, or train"),
        ("no name", UsageError, "'no name' names no model"),
    ):
        with pytest.raises(error, match=message) as raised:
            prepare_tokeniser(name, text_of([]), 100, "clm")
        assert "\n" not in str(raised.value)


HUB_CHILD = """
import sys
from attngeo.errors import AttnGeoError
from attngeo.pretrain.text.sources import TextSource
from attngeo.pretrain.text.tokeniser import prepare_tokeniser
for name in sys.argv[1:]:
    try:
        print(*prepare_tokeniser(name, TextSource("none", lambda: iter([])), 1, "mlm").tokenize("ba be"))
    except AttnGeoError as error:
        print(type(error).__name__, error)
"""


def test_tokenisers_of_the_hub(tmp_path: Path) -> None:
    words().save_pretrained(tmp_path / "v1")
    with serve() as hub:
        hub.repositories |= {"org/name": tmp_path, "org/name@v1": tmp_path / "v1"}
        environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
        run = subprocess.run(
            [sys.executable, "-c", HUB_CHILD, "org/name@v1", "org/name", "org/none"],
            capture_output=True, text=True, check=True, env=os.environ | environment | {"HF_HUB_OFFLINE": "0"},
        )  # fmt: skip
    tagged, empty, none = run.stdout.splitlines()
    assert (tagged, run.stderr) == ("ba be", "")
    for answer, name in ((empty, "org/name"), (none, "org/none")):
        assert answer.startswith(f"DataUnavailableError tokenizer {name} cannot be had (")
        assert answer.endswith("; give a folder or Hub id, or --tokenizer train")


def test_a_data_set_brings_the_tokeniser_that_it_was_published_with(tmp_path: Path) -> None:
    name = reference(gpt2(), tmp_path)
    text = TextSource("own", lambda: iter(["ba"]), tokenizer=name)
    assert prepare_tokeniser("", text, 100, "clm").get_vocab() == gpt2().get_vocab()
    assert "[MASK]" in prepare_tokeniser("train", text, 100, "clm").get_vocab()
    assert "[MASK]" in prepare_tokeniser("", text_of(["ba"]), 100, "clm").get_vocab()
