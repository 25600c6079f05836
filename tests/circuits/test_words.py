"""The tokens that a head connects, compared with matrices that are formed from the weights of transformers models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from census.build import construct
from census.exceptions import Exceptional
from census.norms import find_offset, list_head_classes
from census.shrink import Plan
from conftest import Command
from support.messages import assert_fails, refuses
from support.tiny_models import TINY_MODELS, build
from support.vectors import word_piece
from torch import Tensor

import attngeo
from attngeo.errors import DataUnavailableError, UnsupportedModelError, UsageError

VOCABULARY = ["[PAD]", "[UNK]", "##s", "be\x1bll", *(f"w{number}" for number in range(60))]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return word_piece(tmp_path_factory.mktemp("words") / "tokenizer.json", VOCABULARY)


def form_llama(model: Any, layer: int, head: int) -> Tensor:
    """E·W_qk·Eᵀ of a head, with the gain before attention, in float64."""
    block = model.model.layers[layer]
    embeddings = model.model.embed_tokens.weight.double() * block.input_layernorm.weight.double()
    heads = block.self_attn.q_proj.weight.double().unflatten(0, (4, 12))
    key_heads = block.self_attn.k_proj.weight.double().unflatten(0, (2, 12))
    queries, keys = embeddings @ heads[head].T, embeddings @ key_heads[head // 2].T
    product: Tensor = queries @ keys.T
    return product.detach()


@pytest.mark.parametrize("head", [0, 1, 2])
def test_pairs_are_the_largest_of_the_formed_matrix(head: int, tokenizer: Any) -> None:
    model = build(TINY_MODELS["llama"])
    found = attngeo.words(model, layer=1, head=head, top=20, tokenizer=tokenizer, device="cpu")
    formed = form_llama(model, 1, head)
    expected = formed.flatten().sort(descending=True).values[:20]
    assert found["value"].tolist() == pytest.approx(expected.tolist(), rel=1e-5)
    assert found["value"].tolist() == pytest.approx(formed[found["token_id"], found["target_id"]].tolist(), rel=1e-5)
    assert found["rank"].tolist() == list(range(1, 21))
    assert set(found["kind"]) == {"attends"}
    named = found.loc[found["token_id"] > 3, ["token", "token_id"]].to_numpy().tolist()
    assert named == [[VOCABULARY[number], number] for _, number in named]


def form_outputs(model: Any, layer: int, head: int) -> Tensor:
    """E·Wv·Wo·Uᵀ of a head, with the gains before attention and before the unembedding, in float64."""
    block = model.model.layers[layer]
    embeddings = model.model.embed_tokens.weight.double() * block.input_layernorm.weight.double()
    values = block.self_attn.v_proj.weight.double().unflatten(0, (2, 12))[head // 2]
    outputs = block.self_attn.o_proj.weight.double().unflatten(1, (4, 12))[:, head]
    product: Tensor = (
        embeddings @ values.T @ outputs.T * model.model.norm.weight.double() @ model.lm_head.weight.double().T
    )
    return product.detach()


def test_what_a_head_writes_is_that_of_the_formed_matrix(tokenizer: Any) -> None:
    model = build(TINY_MODELS["llama"])
    found = attngeo.words(model, layer=1, head=2, circuit="ov", top=15, tokenizer=tokenizer, device="cpu")
    formed = form_outputs(model, 1, 2)
    assert found["kind"].tolist() == ["promotes"] * 15 + ["suppresses"] * 15
    ordered = formed.flatten().sort().values.tolist()
    assert found["value"].tolist() == pytest.approx([*ordered[:-16:-1], *ordered[:15]], rel=1e-4)
    assert found["value"].tolist() == pytest.approx(formed[found["token_id"], found["target_id"]].tolist(), rel=1e-4)
    eigenvalues = torch.linalg.eigvals(formed)
    expected = (eigenvalues.real.sum() / eigenvalues.abs().sum()).item()
    assert found.attrs["copying_score"] == pytest.approx(expected, abs=1e-4)
    assert "gain of the last normalisation folded" in found.attrs["notes"]


def test_a_head_that_copies_promotes_what_it_attends_to(tokenizer: Any) -> None:
    """Values and outputs that pass the embeddings on to an unembedding that is tied to them."""
    model = build(TINY_MODELS["gpt2"])
    block = model.transformer.h[0]
    with torch.no_grad():
        values = block.attn.c_attn.weight[:, 64:72]
        values.copy_(torch.linalg.qr(torch.randn(32, 8, generator=torch.Generator().manual_seed(0))).Q)
        block.attn.c_proj.weight[:8] = values.T
        for gain in (block.ln_1.weight, model.transformer.ln_f.weight):
            gain.fill_(1)
    heads = [attngeo.words(model, head=head, circuit="ov", top=3, tokenizer=tokenizer) for head in (0, 1)]
    assert heads[0].attrs["copying_score"] == pytest.approx(1, abs=1e-5)
    assert abs(heads[0].attrs["copying_score_chance"]) < 0.9
    assert abs(heads[1].attrs["copying_score"]) < 0.9


FINAL_NORMS = {
    "llama": "model.norm", "gpt2": "transformer.ln_f", "gpt_neox": "gpt_neox.final_layer_norm",
    "mpt": "transformer.norm_f", "phi": "model.final_layernorm", "gemma": "model.norm",
    "t5": "decoder.final_layer_norm", "whisper": "model.decoder.layer_norm",
}  # fmt: skip
# Types that are in no table of families.
OTHER_NORMS = {
    "ctrl": "transformer.layernorm", "lfm2": "model.embedding_norm", "nemotron": "model.norm",
    "qwen3_next": "model.norm", "vaultgemma": "model.norm",
}  # fmt: skip


@pytest.mark.parametrize("name", [*FINAL_NORMS, *OTHER_NORMS])
def test_the_gain_before_the_unembedding_is_found(name: str, tokenizer: Any) -> None:
    """Weights that double what the running norm gives double what heads of the decoder write."""
    if name in TINY_MODELS:
        model = build(TINY_MODELS[name])
    else:
        model = construct(name, list_head_classes(name)[0], Plan(), Exceptional(fields={"vocab_size": 64}), 0)
    norm = model.get_submodule((FINAL_NORMS | OTHER_NORMS)[name])
    layer = next(site.site.layer for site in attngeo.attention_sites(model, stack="decoder"))

    def ask() -> pd.DataFrame:
        return attngeo.words(
            model, stack="decoder", layer=layer, circuit="ov", top=3, tokenizer=tokenizer, device="cpu"
        )

    before = ask()
    assert "gain of the last normalisation folded" in before.attrs["notes"]
    offset = find_offset(norm, torch.randn(2, norm.weight.shape[0], generator=torch.Generator().manual_seed(0)))
    with torch.no_grad():
        norm.weight.copy_(2 * norm.weight + offset)
    assert ask()["value"].tolist() == pytest.approx([2 * value for value in before["value"]], rel=1e-4)


@pytest.mark.parametrize(
    ("name", "layer"),
    [("bert", "transform.dense"), ("distilbert", "vocab_transform"), ("modernbert", "head.dense")],
)
def test_a_layer_before_the_unembedding_is_said_to_be_left_out(name: str, layer: str, tokenizer: Any) -> None:
    found = attngeo.words(build(TINY_MODELS[name]), circuit="ov", top=3, tokenizer=tokenizer)
    assert any("left out" in note and "unembedding" in note and layer in note for note in found.attrs["notes"])


def test_no_norm_of_an_unknown_model_type_is_folded(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(TINY_MODELS["llama"])
    monkeypatch.setattr(type(model.config), "model_type", "llama_of_mine")
    found = attngeo.words(model, circuit="ov", top=3, tokenizer=tokenizer)
    assert any("llama_of_mine" in note and "does not know" in note for note in found.attrs["notes"])


@pytest.mark.parametrize("name", ["bart", "t5", "whisper"])
def test_what_heads_write_is_read_where_the_stream_is_unembedded(name: str, tokenizer: Any) -> None:
    model = build(TINY_MODELS[name])
    assert set(attngeo.words(model, circuit="ov", top=1, tokenizer=tokenizer)["stack"]) == {"decoder"}
    with refuses(UnsupportedModelError, "encoder", "stack"):
        attngeo.words(model, circuit="ov", stack="encoder", tokenizer=tokenizer)


def test_an_encoder_without_a_decoder_is_unembedded(tokenizer: Any) -> None:
    found = attngeo.words(build(TINY_MODELS["bert"]), circuit="ov", top=1, tokenizer=tokenizer)
    assert set(found["stack"]) == {"encoder"}


def test_tokens_of_a_file_have_pairs_of_their_own(tokenizer: Any, tmp_path: Path) -> None:
    model = build(TINY_MODELS["llama"])
    (tmp_path / "tokens.txt").write_text("w5\n\n##s\nw5\n")
    file = str(tmp_path / "tokens.txt")
    found = attngeo.words(model, layer=0, head=3, tokens=file, top=4, tokenizer=tokenizer, device="cpu")
    formed = form_llama(model, 0, 3)
    assert found["token"].tolist() == ["w5"] * 4 + ["##s"] * 4
    for token, rows in found.groupby("token_id"):
        expected = formed[token].sort(descending=True)
        assert rows["target_id"].tolist() == expected.indices[:4].tolist()
        assert rows["value"].tolist() == pytest.approx(expected.values[:4].tolist(), rel=1e-5)


def test_a_head_that_compares_tokens_is_above_chance_and_a_random_one_is_not(tokenizer: Any) -> None:
    """Queries equal to keys: tokens attend to themselves. Averages over seeds, as single draws may differ."""
    model = build(TINY_MODELS["bert"])
    attention = model.bert.encoder.layer[0].attention.self

    def excess() -> float:
        found = [
            attngeo.words(model, layer=0, head=1, top=5, seed=seed, tokenizer=tokenizer, device="cpu")
            for seed in range(20)
        ]
        joined = pd.concat(found)
        return float(joined["value"].mean() / joined["value_chance"].mean())

    assert 0.8 < excess() < 1.25
    with torch.no_grad():
        attention.key.weight.copy_(attention.query.weight)
    found = attngeo.words(model, layer=0, head=1, top=5, tokenizer=tokenizer, device="cpu")
    assert excess() > 1.25
    assert found["token"].tolist() == found["target"].tolist()


def test_chance_is_that_of_shuffled_dimensions(tokenizer: Any) -> None:
    """The dimensions of both sides are shuffled, each in its own order, by a generator with the seed."""
    model = build(TINY_MODELS["llama"])
    found = attngeo.words(model, layer=1, head=2, top=12, seed=7, tokenizer=tokenizer, device="cpu")
    generator = torch.Generator().manual_seed(7)
    orders = [torch.randperm(32, generator=generator) for _ in range(2)]
    block = model.model.layers[1]
    embeddings = model.model.embed_tokens.weight.double()
    gain = block.input_layernorm.weight.double()
    queries = block.self_attn.q_proj.weight.double().unflatten(0, (4, 12))[2] * gain
    keys = block.self_attn.k_proj.weight.double().unflatten(0, (2, 12))[1] * gain
    formed = (embeddings @ queries[:, orders[0]].T) @ (embeddings @ keys[:, orders[1]].T).T
    expected = formed.flatten().sort(descending=True).values[:12]
    assert found["value_chance"].tolist() == pytest.approx(expected.tolist(), rel=1e-4)


def test_the_same_seed_gives_the_same_chance() -> None:
    first, second, other = (attngeo.words("demo:encoder", layer=0, head=0, top=3, seed=seed) for seed in (1, 1, 2))
    pd.testing.assert_frame_equal(first, second)
    assert first["value"].tolist() == other["value"].tolist()
    assert first["value_chance"].tolist() != other["value_chance"].tolist()


def test_labels_are_printable(tokenizer: Any) -> None:
    model = build(TINY_MODELS["llama"])
    with torch.no_grad():
        model.model.embed_tokens.weight[3] *= 100
    found = attngeo.words(model, layer=0, head=0, top=1, tokenizer=tokenizer)
    assert found["token"].item() == "be\\x1bll"


@pytest.mark.parametrize(
    ("name", "options", "facts"),
    [
        ("albert", {}, ("8", "32")),  # a projection between embeddings and layers
        ("whisper", {"stack": "encoder"}, ("encoder", "stack")),
        ("whisper", {"stack": "cross"}, ("cross", "stack")),
        ("clip", {"stack": "vision"}, ("vision", "stack")),
    ],
)
def test_stacks_that_read_no_tokens_are_refused(
    name: str, options: dict[str, Any], facts: tuple[str, ...], tokenizer: Any
) -> None:
    with refuses(UnsupportedModelError, *facts):
        attngeo.words(build(TINY_MODELS[name]), **options, tokenizer=tokenizer)


def test_a_missing_list_of_tokens_is_named(inside: Command, tmp_path: Path) -> None:
    run = inside("words", "demo:encoder", "--tokens", "none.txt", cwd=tmp_path)
    assert_fails(run, DataUnavailableError.exit_code, "none.txt", "one token per line")


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["--head", "4"], ("head 4", "0", "3")),
        (["--layer", "9"], ("layer 9",)),
        (["--stack", "cross"], ("cross", "encoder")),
        (["--tokens", "empty.txt"], ("empty.txt",)),
        (["--tokens", "unknown.txt"], ("unknown.txt:2", "kqzx")),
        (["--tokens", "parts.txt"], ("parts.txt:1", "'king'", "'k', '##ing'", "kind")),
        (["--circuit", "kq"], ("kq", "qk")),
    ],
)
def test_wrong_options_are_named(arguments: list[str], facts: tuple[str, ...], inside: Command, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "unknown.txt").write_text("a\nkqzx\n")
    (tmp_path / "parts.txt").write_text("king\n")
    assert_fails(inside("words", "demo:encoder", *arguments, cwd=tmp_path), UsageError.exit_code, *facts)


def test_the_command_prints_the_rows_of_the_function(inside: Command, tmp_path: Path) -> None:
    run = inside("words", "demo:encoder", "--layer", "1", "--top", "4", "-o", "pairs.csv", cwd=tmp_path)
    assert run.returncode == 0
    assert "chance" in run.stdout
    assert "no normalisation gain" in run.stderr
    written = pd.read_csv(tmp_path / "pairs.csv", keep_default_na=False)
    found = attngeo.words("demo:encoder", layer=1, top=4)
    assert written["value"].tolist() == pytest.approx(found["value"].tolist(), rel=1e-5)
    assert list(written) == list(found)
