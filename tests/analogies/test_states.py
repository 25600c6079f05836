"""Contextual vectors: hidden states of single words, against those that transformers gives for one word at a time."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from conftest import Command
from safetensors.torch import load_file, save_file
from support.messages import assert_states, refuses
from support.vectors import byte_level, random_vectors, table, word_piece, words, write_questions, write_text

import attngeo
from attngeo.errors import CorruptCheckpointError, UnsupportedModelError, UsageError

WIDTH = 16
LAYERS = 3
# Words of several tokens in every vocabulary below, beside words of one token.
WORD_PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "king", "queen", "man", "woman", "boy", "girl", "##s", "##ish"]
SHORT = ["king", "queen", "man", "woman"]
LONG = ["boys", "girls", "kingish"]


def _bert(vocabulary: int) -> Any:
    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=vocabulary, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=2,
            intermediate_size=24,
        )
    )  # fmt: skip


def _gpt2(vocabulary: int) -> Any:
    sizes = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": 2, "n_positions": 64}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=vocabulary, **sizes))


def _llama(vocabulary: int) -> Any:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=vocabulary, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=2,
            intermediate_size=24,
        )
    )  # fmt: skip


def _t5(vocabulary: int) -> Any:
    sizes = {"d_model": WIDTH, "d_kv": 8, "d_ff": 24, "num_layers": LAYERS, "num_decoder_layers": 1, "num_heads": 2}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=vocabulary, **sizes))


def _whisper(vocabulary: int) -> Any:
    ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 0)
    sizes = {"encoder_layers": 1, "decoder_layers": LAYERS, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    return transformers.WhisperForConditionalGeneration(
        transformers.WhisperConfig(
            vocab_size=vocabulary, d_model=WIDTH, num_mel_bins=4, max_source_positions=8, max_target_positions=16,
            **sizes, **heads, **ids,
        )
    )  # fmt: skip


# Model type → a small model, the part of it that runs words, and whether its tokeniser is WordPiece.
MODELS: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any], bool]] = {
    "bert": (_bert, lambda model: model.bert, True),
    "gpt2": (_gpt2, lambda model: model.transformer, False),
    "llama": (_llama, lambda model: model.model, False),
    "t5": (_t5, lambda model: model.encoder, False),
    "whisper": (_whisper, lambda model: model.model.decoder, False),
}


def frame_texts(path: Path, before: str, after: str) -> Any:
    """Let a tokenizer.json put these tokens around texts. Returns the tokeniser."""
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    library = Tokenizer.from_file(str(path))
    special = [(token, library.token_to_id(token)) for token in {before, after} - {""}]
    library.post_processor = TemplateProcessing(single=f"{before} $A {after}".strip(), special_tokens=special)
    library.save(str(path))
    return library


def save(folder: Path, kind: str, seed: int = 0) -> tuple[Path, Any, Any]:
    """A checkpoint with random weights and a tokeniser; also the running model and the tokeniser."""
    build, _, is_word_piece = MODELS[kind]
    path = folder / kind
    path.mkdir()
    if is_word_piece:
        word_piece(path / "tokenizer.json", WORD_PIECES)
        library = frame_texts(path / "tokenizer.json", "[CLS]", "[SEP]")
    else:
        byte_level(path / "tokenizer.json")
        framed = "<|endoftext|>" if kind == "whisper" else ""
        library = (
            frame_texts(path / "tokenizer.json", framed, framed) if framed else byte_level(path / "tokenizer.json")
        )
    torch.manual_seed(seed)
    model = build(library.get_vocab_size()).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(path)
    return path, model, library


def run_alone(model: Any, kind: str, library: Any, word: str, first_token: str = "") -> tuple[torch.Tensor, int]:
    """The hidden states of a word by transformers, mean over its tokens, [1 + layers, width]; the number of tokens."""
    text = word if MODELS[kind][2] else f" {word}"
    encoding = library.encode(text)
    inside = [place for place, is_special in enumerate(encoding.special_tokens_mask) if not is_special]
    ids = encoding.ids
    if first_token:
        ids = [library.token_to_id(first_token), *ids]
        inside = [1 + place for place in inside]
    with torch.no_grad():
        output = MODELS[kind][1](model)(input_ids=torch.tensor([ids]), output_hidden_states=True)
    states = torch.stack([state[0] for state in output.hidden_states])
    return states[:, inside].mean(1), len(inside)


def ask_by_hand(vectors: dict[str, torch.Tensor], lines: list[str]) -> list[list[float]]:
    """Of each layer, the cosine of each question's answer with b + c − a."""
    cosines = []
    for layer in range(1, LAYERS + 1):
        of_layer = []
        for line in lines:
            a, b, c, d = (vectors[word][layer].double() for word in line.split())
            of_layer.append(torch.cosine_similarity(b + c - a, d, dim=0).item())
        cosines.append(of_layer)
    return cosines


def ask(tmp_path: Path, model: Any, lines: list[str], **options: Any) -> attngeo.types.AnalogyResult:
    questions = write_questions(tmp_path / "q.txt", {"all": lines})
    return attngeo.analogy(model, questions=questions, n_draws=0, n_answers=1, **options)


@pytest.mark.parametrize("kind", MODELS)
def test_vectors_are_the_hidden_states_of_transformers_for_each_word_alone(kind: str, tmp_path: Path) -> None:
    """Of words of one token, and of several; the state at special tokens does not count."""
    path, model, library = save(tmp_path, kind)
    asked = SHORT + (LONG if MODELS[kind][2] else ["kingly", "queenly", "womanish"])
    states = {word: run_alone(model, kind, library, word) for word in asked}
    assert [length > 1 for _, length in states.values()].count(True) > 1
    lines = [" ".join(line) for line in itertools.permutations(asked, 4)][::17]
    result = ask(tmp_path, path, lines, layers=f"0-{LAYERS - 1}", subwords="mean", answers="all")
    by_layer = result.questions.groupby("layer")["cosine"]
    expected = ask_by_hand({word: vectors for word, (vectors, _) in states.items()}, lines)
    for layer, cosines in enumerate(expected):
        assert by_layer.get_group(layer).tolist() == pytest.approx(cosines, abs=2e-5), layer
    # Another layer's states would be noticed.
    assert np.abs(np.diff(expected, axis=0)).max() > 0.01


def test_the_last_layer_is_after_the_final_norm(tmp_path: Path) -> None:
    """As transformers gives it: the gain of the norm changes the last layer alone."""
    path, _, _ = save(tmp_path, "llama")
    before = ask(tmp_path, path, ["king queen man woman"], layers="0-2").questions["cosine"]
    weights = load_file(path / "model.safetensors")
    weights["model.norm.weight"] = 1 + 10 * torch.arange(WIDTH).float()
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    after = ask(tmp_path, path, ["king queen man woman"], layers="0-2").questions["cosine"]
    assert after[:3].tolist() == before[:3].tolist()
    assert abs(after[3] - before[3]) > 0.01


def test_the_table_is_layer_minus_1_and_equals_the_result_without_layers(tmp_path: Path) -> None:
    path, _, _ = save(tmp_path, "bert")
    lines = [" ".join(line) for line in itertools.permutations(SHORT, 4)]
    alone = ask(tmp_path, path, lines)
    result = ask(tmp_path, path, lines, layers=[2, 0, 2])
    assert result.rows["layer"].drop_duplicates().tolist() == [-1, 0, 2]
    assert tuple(result.rows) == attngeo.columns("analogy", layers="0-2")
    assert tuple(alone.rows) == attngeo.columns("analogy")
    for name in ("rows", "questions"):
        of_table = getattr(result, name).query("layer == -1").drop(columns="layer")
        pd.testing.assert_frame_equal(of_table, getattr(alone, name))
    assert alone.comparisons.empty
    pairs = result.comparisons[["layer", "other_layer"]].drop_duplicates()
    assert pairs.to_numpy().tolist() == [[0, -1], [2, -1]]


def test_a_difference_is_that_of_a_layer_and_the_table_of_the_same_model(tmp_path: Path) -> None:
    """Of several models, tables are compared with each other, and layers only with their own table."""
    paths = [save(tmp_path, kind)[0] for kind in ("bert", "gpt2")]
    lines = [" ".join(line) for line in itertools.permutations(SHORT, 4)]
    result = ask(tmp_path, paths, lines, layers=[1], own=True)
    rows = result.rows.query("level == 'overall' and questions == 'common'").set_index(["model", "layer"])["accuracy"]
    compared = result.comparisons.query("level == 'overall'")
    first, second = map(str, paths)
    expected = [(first, -1, second, -1), (first, 1, first, -1), (second, 1, second, -1)]
    assert list(compared[["model", "layer", "other", "other_layer"]].itertuples(index=False, name=None)) == expected
    for row in compared.itertuples():
        difference = rows[row.model, row.layer] - rows[row.other, row.other_layer]
        assert row.difference == pytest.approx(difference)
    assert set(result.questions["layer"]) == {-1, 1}


def test_a_token_before_each_word(tmp_path: Path) -> None:
    path, model, library = save(tmp_path, "gpt2")
    token = "<|endoftext|>"
    vectors = {word: run_alone(model, "gpt2", library, word, token)[0] for word in SHORT}
    lines = [" ".join(line) for line in itertools.permutations(SHORT, 4)]
    result = ask(tmp_path, path, lines, layers=[1], first_token=token)
    got = result.questions.query("layer == 1")["cosine"].tolist()
    assert got == pytest.approx(ask_by_hand(vectors, lines)[1], abs=2e-5)
    assert f"after {token}" in result.rows["note"][0]
    with refuses(UsageError, str(path), "'nix'", "first_token", "vocabulary"):
        ask(tmp_path, path, lines, layers=[1], first_token="nix")
    with refuses(UsageError, "first_token", "layers"):
        ask(tmp_path, path, lines, first_token=token)


def test_the_notes_say_how_words_are_run(tmp_path: Path) -> None:
    lines = ["king queen man woman"]
    notes = {}
    for kind in ("bert", "gpt2", "whisper"):
        notes[kind] = " ".join(ask(tmp_path, save(tmp_path, kind)[0], lines, layers=[0]).rows.attrs["notes"])
    assert_states(notes["bert"], "[CLS] WORD [SEP]")
    assert_states(notes["gpt2"], "no special tokens", "position 0")
    assert_states(notes["whisper"], "<|endoftext|> WORD <|endoftext|>", "WhisperDecoder", "cross-attention is left out")


def test_a_small_memory_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words run again for each layer that does not fit, and in small batches."""
    path, model, _ = save(tmp_path, "gpt2")
    lines = ["king queen man woman", "man woman king queen"]
    expected = ask(tmp_path, path, lines, layers="0-2")
    one_layer = 4 * WIDTH * model.config.vocab_size
    monkeypatch.setattr("attngeo.analogies.states.TOKENS_AT_ONCE", 3)
    got = ask(tmp_path, path, lines, layers="0-2", memory=one_layer + 1)
    for name in ("layer", "rank", "top"):
        assert got.questions[name].tolist() == expected.questions[name].tolist()
    assert got.questions["cosine"].tolist() == pytest.approx(expected.questions["cosine"].tolist(), abs=2e-5)


def test_what_has_no_layers_is_refused(tmp_path: Path) -> None:
    lines = ["aaa aab aac aad"]
    vectors = write_text(tmp_path / "own.vec", words(6), random_vectors(6, 4).numpy())
    for model, name in ((vectors, "own.vec"), (table(np.eye(6)), "table"), (f"cbow:{tmp_path / 'q.txt'}", "cbow:")):
        with refuses(UsageError, name, "no layers", "checkpoint", "layers"):
            ask(tmp_path, model, lines, layers=[0])
    path, _, _ = save(tmp_path, "bert")
    lines = ["king queen man woman"]
    with refuses(UsageError, str(path), "no layer 3", "from 0 to 2"):
        ask(tmp_path, path, lines, layers="0-3")
    with refuses(UsageError, str(path), "layers is empty"):
        ask(tmp_path, path, lines, layers=[])
    with refuses(UsageError, "layers", "'-1'"):
        ask(tmp_path, path, lines, layers="-1")


def test_a_model_that_does_not_run_is_refused(tmp_path: Path) -> None:
    """With lacking weights, with quantised ones, with a type that transformers lacks, or on a word that is too long."""
    path, _, _ = save(tmp_path, "bert")
    lines = ["king queen man woman"]
    weights = load_file(path / "model.safetensors")
    lacking = "bert.encoder.layer.1.attention.self.query.weight"
    kept = {name: weight for name, weight in weights.items() if name != lacking}
    save_file(kept, path / "model.safetensors", metadata={"format": "pt"})
    with refuses(CorruptCheckpointError, str(path), lacking, "random"):
        ask(tmp_path, path, lines, layers=[0])
    save_file(weights | {lacking: weights[lacking] * torch.nan}, path / "model.safetensors", metadata={"format": "pt"})
    with refuses(CorruptCheckpointError, str(path), "layer 1", "not finite"):
        ask(tmp_path, path, lines, layers="0-2")
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    for change, fact in (
        ({"model_type": "strange"}, "strange"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, "quantised"),
    ):
        (path / "config.json").write_text(json.dumps(config | change))
        with refuses(UnsupportedModelError, str(path), fact):
            ask(tmp_path, path, lines, layers=[0])
    path, _, _ = save(tmp_path, "gpt2")
    word = "xyz" * 40
    with refuses(UnsupportedModelError, str(path), "GPT2Model", "tokens alone", "layers"):
        ask(tmp_path, path, [f"king queen man {word}"], layers=[0], subwords="mean")


def test_the_command_prints_a_row_for_each_layer(inside: Command, tmp_path: Path) -> None:
    path, _, _ = save(tmp_path, "bert")
    other, _, _ = save(tmp_path, "gpt2")
    lines = [" ".join(line) for line in itertools.permutations(SHORT, 4)]
    questions = write_questions(tmp_path / "q.txt", {"all": lines})
    figure = tmp_path / "layers.json"
    asked = ("--questions", questions, "--n-answers", 1, "--layers", "0-2")
    run = inside("analogy", path, *asked, "--plot", figure)
    assert run.returncode == 0, run.stderr
    table = run.stdout.partition("───")[2]  # below the title, which begins with a number, too
    rows = [line.split() for line in table.splitlines() if line[:3].strip().lstrip("-").isdigit()]
    assert [row[0] for row in rows] == ["-1", "0", "1", "2"]
    expected = ask(tmp_path, path, lines, layers="0-2").rows.query("level == 'overall'")
    assert [float(row[2]) for row in rows] == pytest.approx(expected["accuracy"].tolist(), abs=5e-4)
    assert_states(run.stderr, "[CLS] WORD [SEP]")
    (trace,) = json.loads(figure.read_text())["data"]
    assert trace["type"] == "scatter"
    run = inside("analogy", path, other, *asked, "--n-draws", 0, "--own", "--format", "table")
    assert run.stdout.count("the questions that all models know") == 2
    run = inside("analogy", path, *asked, "--format", "csv", "--sort", "accuracy", "--top", 1)
    assert run.stdout.startswith("model,revision,layer,level,")
