"""Training sequences: no token is lost, and the order is repeated exactly."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from support.messages import refuses
from support.toy_text import (
    WORDS,
    cut_by_hand,
    draw_documents,
    make_sequences,
    make_text,
    take_rows,
    word_tokenizer,
)
from tokenizers import Tokenizer, models, normalizers
from transformers import PreTrainedTokenizerFast

from attngeo.errors import DataError, UsageError
from attngeo.pretrain import text as module, text_source
from attngeo.pretrain.sources import open_text
from attngeo.pretrain.text import StreamedSequences, build_sequences, make_encoder
from attngeo.pretrain.text_source import TextSource

documents_of_words = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=20).map(" ".join), min_size=1)


@given(documents=documents_of_words, length=st.integers(2, 9), seed=st.integers(0, 99))
def test_packing_loses_no_token(documents: list[str], length: int, seed: int) -> None:
    expected = cut_by_hand(documents, length)
    if not expected:
        with refuses(DataError, "seq_len", "0 sequences", f"of {length} tokens"):
            make_sequences(documents, length=length)
        return
    found = make_sequences(documents, length=length, seed=seed)
    assert found.distinct == len(expected)
    assert found.distinct_tokens == length * len(expected)
    assert Counter(take_rows(found, found.distinct)) == Counter(expected)


@given(documents=documents_of_words, length=st.integers(2, 9), seed=st.integers(0, 99), epoch=st.integers(1, 3))
def test_later_epochs_cut_the_same_stream_elsewhere(documents: list[str], length: int, seed: int, epoch: int) -> None:
    stream = [token for (token,) in cut_by_hand(documents, 1)]
    assume(len(stream) >= length)
    found = make_sequences(documents, length=length, seed=seed)
    cut = Counter(take_rows(found, found.distinct, epoch * found.distinct))
    places = range(0, length * found.distinct, length)
    shifted = [
        [tuple(stream[start + min(shift, len(stream) - start - length) :][:length]) for start in places]
        for shift in range(length)
    ]
    assert any(cut == Counter(each) for each in shifted)


def test_epochs_have_different_pieces() -> None:
    found = make_sequences(draw_documents(), length=8)
    passes = [set(take_rows(found, found.distinct, epoch * found.distinct)) for epoch in range(6)]
    assert len({frozenset(each) for each in passes}) >= 4


@given(documents=documents_of_words, length=st.integers(2, 9))
def test_padded_documents_are_what_the_tokeniser_returns(documents: list[str], length: int) -> None:
    found = make_sequences(documents, length=length, pack=False)
    expected = word_tokenizer()(documents, truncation=True, max_length=length)["input_ids"]
    assert Counter(take_rows(found, len(documents))) == Counter(map(tuple, expected))
    assert found.distinct_tokens == sum(map(len, expected))


@pytest.mark.parametrize("pack", [True, False])
def test_documents_end_with_the_separator(pack: bool) -> None:
    start, end = word_tokenizer().cls_token_id, word_tokenizer().sep_token_id
    found = [*take_rows(make_sequences(["ba be", "bi", "bo bu"], length=8 if pack else 4, pack=pack), 1 if pack else 3)]
    ba, be, bi, bo, bu = word_tokenizer().convert_tokens_to_ids(["ba", "be", "bi", "bo", "bu"])
    if pack:
        assert found == [(ba, be, end, bi, end, bo, bu, end)]
    else:
        assert sorted(found) == sorted([(start, ba, be, end), (start, bi, end), (start, bo, bu, end)])


def test_epochs_and_seeds_have_different_orders() -> None:
    found = make_sequences(draw_documents())
    orders = {tuple(take_rows(make_sequences(draw_documents(), seed=seed), found.distinct, first * found.distinct))
              for seed in (0, 1) for first in (0, 1, 2)}  # fmt: skip
    assert len(orders) == 6
    padded = [take_rows(make_sequences(draw_documents(), pack=False), 40, first * 40) for first in (0, 1, 2)]
    assert len(set(map(tuple, padded))) == 3
    assert len({tuple(sorted(order)) for order in padded}) == 1


def test_the_order_depends_on_the_seed_whatever_was_read_before() -> None:
    found, again = make_sequences(draw_documents()), make_sequences(draw_documents(), count=500)
    expected = take_rows(found, 4 * found.distinct)
    for index in (3 * found.distinct + 1, 2, found.distinct, 2 * found.distinct - 1, 3 * found.distinct):
        assert take_rows(again, 1, index) == [expected[index]]
        assert take_rows(pickle.loads(pickle.dumps(again)), 1, index) == [expected[index]]


@pytest.mark.parametrize("pack", [True, False])
def test_tokens_are_counted_as_they_come(pack: bool) -> None:
    found = make_sequences(draw_documents(9), length=6, pack=pack)
    counted = np.cumsum([0, *map(len, take_rows(found, 3 * found.distinct))])
    assert [found.tokens_until(count) for count in range(3 * found.distinct + 1)] == counted.tolist()
    assert len(list(found)) == len(found) == 1000


def test_a_token_takes_four_bytes() -> None:
    found = make_sequences([" ".join(WORDS * 4)] * 500, length=64)
    assert found.distinct_tokens > 50_000
    assert len(pickle.dumps(found)) < 4.3 * found.distinct_tokens
    assert found[0]["input_ids"].dtype == np.int32


def test_too_little_text() -> None:
    with refuses(DataError, "novel", "12 tokens", "1 sequences", "2 of 8 tokens", "batch_size", "seq_len"):
        build_sequences(make_text(["ba be bi"] * 3, name="novel"), word_tokenizer(), length=8, count=9, least=2, seed=0)
    assert make_sequences(["ba be bi"] * 3, least=1).distinct == 1
    assert make_sequences(["ba be bi"] * 3, least=3, pack=False).distinct == 3
    for documents in ([], ["", " \n"]):
        with refuses(DataError, "0 tokens"):
            make_sequences(documents)


def test_long_documents_give_no_warning(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_tokenizer(), "model_max_length", 4)
    assert make_sequences([" ".join(WORDS)], length=5).distinct == 5
    assert capfd.readouterr() == ("", "")


def make_stream(documents: list[str], seed: int = 0, length: int = 8) -> StreamedSequences:
    text = make_text(documents, streaming=True)
    found = build_sequences(text, word_tokenizer(), length=length, count=1, least=10**6, seed=seed)
    assert isinstance(found, StreamedSequences)
    return found


@given(documents=documents_of_words, length=st.integers(2, 9), shuffled=st.integers(1, 30))
def test_a_stream_has_the_same_sequences_as_a_text_in_memory(documents: list[str], length: int, shuffled: int) -> None:
    expected = cut_by_hand(documents, length)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SHUFFLED", shuffled)
        if not expected:
            with refuses(DataError, "text", f"{length} tokens", "seq_len"):
                next(iter(make_stream(documents, length=length)))
            return
        once = take_rows(make_stream(documents, length=length), len(expected))
        assert Counter(once) == Counter(expected)
        # The tokens that are left at the end of the text come first when it is read again.
        thrice = cut_by_hand(documents * 3, length)
        assert Counter(take_rows(make_stream(documents, length=length), len(thrice))) == Counter(thrice)


def test_epochs_and_seeds_of_a_stream_have_different_orders() -> None:
    documents = ["ba be bi bo bu da de", *(f"{a} {b} ba be bi bo bu" for a in WORDS for b in WORDS)]
    size = len(documents)
    passes = [take_rows(make_stream(documents, seed), size, first * size) for seed in (0, 1) for first in (0, 1, 2)]
    assert len(set(map(tuple, passes))) == 6
    assert {tuple(sorted(each)) for each in passes} == {tuple(sorted(cut_by_hand(documents, 8)))}
    assert take_rows(make_stream(documents), 3 * size) == [row for each in passes[:3] for row in each]


def test_a_stream_is_shuffled_within_its_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHUFFLED", 50)
    documents = [f"{a} {b} {c} ba be bi bo" for a in WORDS for b in WORDS for c in WORDS[:2]]
    before = {row: place for place, row in enumerate(cut_by_hand(documents, 8))}
    examples = list(islice(make_stream(documents), len(documents)))
    places = np.array([before[tuple(example["input_ids"].tolist())] for example in examples])
    assert (np.diff(places) == 1).mean() < 0.05
    assert places[:100].max() < 150
    assert (np.arange(1, 101) + 50 > places[:100]).all()
    assert np.corrcoef(places, np.arange(len(places)))[0, 1] > 0.9
    assert all(example["input_ids"].base is None for example in examples)  # not views of whole batches


def test_a_stream_has_the_same_order_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHUFFLED", 100)
    monkeypatch.setattr(text_source, "BATCH_CHARACTERS", 20_000)
    stream = make_stream(draw_documents())
    expected = take_rows(stream, 300)
    assert take_rows(stream, 100, 200) == expected[200:]
    novels = StreamedSequences(open_text("austen"), make_encoder(word_tokenizer(), 16, pack=True), 16, seed=0)
    assert take_rows(pickle.loads(pickle.dumps(novels)), 20, 5) == take_rows(novels, 25)[5:]


def test_a_stream_reads_no_more_than_its_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHUFFLED", 10)
    monkeypatch.setattr(text_source, "BATCH_CHARACTERS", 20_000)
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield "ba be bi bo bu da de " * 100

    stream = build_sequences(TextSource("endless", endless, True), word_tokenizer(), length=8, count=1, least=1, seed=0)
    assert len(take_rows(stream, 1000)) == 1000
    assert taken < 40  # of 700 tokens each


def test_a_stream_must_be_packed() -> None:
    with refuses(UsageError, "text", "packed", "leave pack on"):
        build_sequences(
            make_text(["ba"], streaming=True), word_tokenizer(), length=8, count=1, least=1, seed=0, pack=False
        )


def test_a_stream_without_text_ends() -> None:
    for documents in ([], [" "], ["ba"]):
        with refuses(DataError, "text", "8 tokens", "seq_len"):
            next(iter(make_stream(documents)))


def test_documents_without_a_token_are_left_out() -> None:
    core = Tokenizer(models.WordLevel({"ba": 0, "be": 1}))
    core.normalizer = normalizers.BertNormalizer()
    found = make_sequences(["ba", "\x01", "be"], PreTrainedTokenizerFast(tokenizer_object=core), pack=False)
    assert sorted(take_rows(found, found.distinct)) == [(0,), (1,)]
