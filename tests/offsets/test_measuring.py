"""Positions of whole models: against the running attention of transformers, and against what their weights are."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from support.checkpoints import CONFIG, weights, write_single
from support.messages import refuses
from support.running_model import linear_latent_norms, record
from support.tiny_models import BERT, LLAMA, MLA, SEQ2SEQ, TINY_MODELS, VIT, TinyModel, build
from torch import Tensor

import attngeo
from attngeo.errors import CorruptCheckpointError, UsageError
from attngeo.geometry.factors import rotate
from attngeo.offsets.options import KERNEL

TOKENS = 8
YARN = {"rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 10}
# Halves and neighbours; all dimensions or a part; factors of yarn and longrope; heads of one, several and all queries;
# the last dimensions of a latent head; a bidirectional encoder.
ROTATING = {
    "llama": TinyModel("llama", "LlamaForCausalLM", LLAMA),
    "llama, MHA": TinyModel("llama", "LlamaForCausalLM", LLAMA | {"num_key_value_heads": 4}),
    "llama, MQA": TinyModel("llama", "LlamaForCausalLM", LLAMA | {"num_key_value_heads": 1}),
    "llama, linear": TinyModel("llama", "LlamaForCausalLM", LLAMA | {"rope_parameters": {
        "rope_type": "linear", "rope_theta": 50.0, "factor": 4.0}}),
    "llama3": TinyModel("llama", "LlamaForCausalLM", LLAMA | {"rope_parameters": {
        "rope_type": "llama3", "rope_theta": 50.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 10}}),
    "cohere": TINY_MODELS["cohere"],
    "gpt_neox": TINY_MODELS["gpt_neox"],
    "glm": TinyModel("glm", "GlmForCausalLM", LLAMA | {"head_dim": 8, "num_key_value_heads": 2}),
    "stablelm, yarn": TinyModel("stablelm", "StableLmForCausalLM", BERT | {
        "num_key_value_heads": 2, "rope_parameters": YARN | {"partial_rotary_factor": 0.5}}),
    "phi3, longrope": TinyModel("phi3", "Phi3ForCausalLM", BERT | {"num_key_value_heads": 2, "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 50.0, "partial_rotary_factor": 0.75, "short_factor": [1.0, 1.5, 2.0],
        "long_factor": [4.0] * 3, "factor": 4.0, "original_max_position_embeddings": 10}}),
    "deepseek_v3": TinyModel("deepseek_v3", "DeepseekV3ForCausalLM", {**MLA, "q_lora_rank": 7}),
    "modernbert": TINY_MODELS["modernbert"],
}  # fmt: skip


def show_each_direction(model: Any) -> Tensor:
    """Sequences that repeat one token each, whose embeddings are an orthonormal basis of the inputs of attention.

    The norms on the way multiply all of them by one factor: queries and keys read nothing of what centring takes away.
    """
    table = model.get_input_embeddings().weight
    width = table.shape[1]
    with torch.no_grad():
        table.zero_()
        table[:width] = torch.eye(width)
        for name, parameter in model.named_parameters():
            if "norm" in name.lower() and parameter.ndim == 1 and "q_a" not in name and "kv_a" not in name:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)
            elif parameter.ndim == 2 and parameter.shape[1] == width and parameter is not table:
                parameter -= parameter.mean(1, keepdim=True)
            elif name.endswith("bias"):
                parameter.zero_()
    return torch.arange(width)[:, None].expand(width, TOKENS)


def read_kernel(rows: pd.DataFrame) -> Tensor:
    """The columns of the kernel, [heads, offsets]."""
    return torch.tensor(rows[list(KERNEL)].to_numpy("float64"))


def assert_proportional(got: Tensor, expected: Tensor) -> None:
    """Equal but for one positive factor, that of the model's logits."""
    factor = (got * expected).sum() / got.square().sum()
    assert factor > 0
    assert (factor * got - expected).norm() / expected.norm() < 1e-4


@pytest.mark.parametrize("name", ROTATING)
@pytest.mark.filterwarnings("ignore")
def test_kernels_are_the_logits_of_running_attention_over_all_directions(name: str) -> None:
    """κ(Δ) is the sum, over an orthonormal basis of tokens, of the logit of a token with itself Δ positions earlier."""
    model = build(ROTATING[name])
    ids = show_each_direction(model)
    rows = attngeo.positions(model, layers=[0])
    [site] = [site for site, _, _ in attngeo.attention_sites(model, layers=[0])]
    with linear_latent_norms(model):
        ran = record(model, {"input_ids": ids})[site.module]
    assert ran.query is not None
    assert ran.key is not None
    logits = (ran.query @ ran.key.mT).reshape(len(ids), -1, TOKENS, TOKENS).sum(0)
    assert len(logits) == len(rows)
    running = torch.stack([logits.diagonal(-offset, dim1=1, dim2=2).mean(1) for offset in range(TOKENS)], 1)
    kernel = read_kernel(rows)[:, :TOKENS]
    assert_proportional(kernel, running.double())
    # What is the same at all offsets may not be all that agrees.
    assert_proportional(kernel - kernel.mean(1, keepdim=True), (running - running.mean(1, keepdim=True)).double())


# A rotation the other way; a QK-norm; neighbours; neighbours in a part of each head; rows and columns of an image.
OTHERS = {
    "nanochat": TinyModel("nanochat", "NanoChatForCausalLM", BERT | {"num_key_value_heads": 2}),
    "qwen3": TINY_MODELS["qwen3"],
    "roformer": TINY_MODELS["roformer"],
    "gptj": TINY_MODELS["gptj"],
    "mlcd": TinyModel("mlcd_vision_model", "MLCDVisionModel", VIT, "image"),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.filterwarnings("ignore")
def test_kernels_are_the_traces_of_the_forms_at_offsets(name: str) -> None:
    """Other tests compare these forms with the running models."""
    model = build(OTHERS[name])
    kernel = read_kernel(attngeo.positions(model, layers=[0]))
    for offset in range(len(KERNEL)):
        of_offset = attngeo.attention_sites(model, layers=[0], rope_offset=offset, dtype=torch.float64)
        [(site, wq, wk)] = list(of_offset)
        traces = (wq * wk.repeat_interleave(site.heads // site.key_heads, 0)).sum((1, 2))
        torch.testing.assert_close(kernel[:, offset], traces, rtol=1e-4, atol=1e-4)
    assert (kernel.std(1) > 1e-2).all()


def look(*turns: int) -> dict[str, Tensor]:
    """A model whose heads look as far back as the turn of their layer."""
    frequencies = 10_000.0 ** (-torch.arange(0, 6, 2) / 6)
    tensors = weights()
    for layer, turn in enumerate(turns):
        name = f"model.layers.{layer}.self_attn"
        one = tensors[f"{name}.q_proj.weight"].reshape(2, 2, 6, 24)[:, 0]
        angles = turn * frequencies
        tensors[f"{name}.q_proj.weight"] = one.repeat_interleave(2, 0).flatten(0, 1).contiguous()
        tensors[f"{name}.k_proj.weight"] = rotate(one, angles.cos(), angles.sin(), interleaved=False).flatten(0, 1)
    return tensors


def test_peaks_are_searched_as_far_as_64_tokens_back_and_ahead(tmp_path: Path) -> None:
    both_ways = CONFIG | {"use_bidirectional_attention": True}
    at_the_end = attngeo.positions(write_single(tmp_path / "end", look(64, -64), both_ways))
    assert at_the_end["peak"].tolist() == [64] * 4 + [-64] * 4
    assert attngeo.positions(write_single(tmp_path / "causal", look(64, 64)))["peak"].tolist() == [64] * 8
    beyond = attngeo.positions(write_single(tmp_path / "beyond", look(65, -65), both_ways))
    assert beyond["peak"].abs().max() <= 64


def test_a_head_that_is_made_to_look_back_or_ahead_has_its_peak_there(tmp_path: Path) -> None:
    """Keys that are queries turned by five positions; heads that share them, too."""
    tensors = look(5, -5)
    causal = attngeo.positions(write_single(tmp_path / "causal", tensors))
    both_ways = attngeo.positions(
        write_single(tmp_path / "both", tensors, CONFIG | {"use_bidirectional_attention": True})
    )
    assert causal["peak"].tolist()[:4] == [5] * 4
    assert all(peak >= 0 for peak in causal["peak"])
    assert both_ways["peak"].tolist() == [5] * 4 + [-5] * 4
    assert causal["key_head"].tolist() == [0, 0, 1, 1] * 2
    assert list(causal.columns) == list(attngeo.columns("positions"))
    assert set(causal["note"]) == {"rotary embeddings"}
    assert read_kernel(causal).equal(read_kernel(both_ways))


@pytest.mark.parametrize(
    ("name", "causal", "both_ways"),
    [
        ("bert", (), ("encoder",)),
        ("bert-decoder", ("decoder",), ()),
        ("bart", ("decoder",), ("encoder",)),
        ("clip", ("text",), ("vision",)),
        ("siglip", (), ("text", "vision")),
        ("git", ("text",), ("vision",)),
        ("llama", ("decoder",), ()),
        ("modernbert", (), ("encoder",)),
    ],
)
def test_the_peak_is_ahead_only_if_tokens_see_later_ones(
    saved: Callable[[str], Path], name: str, causal: tuple[str, ...], both_ways: tuple[str, ...]
) -> None:
    """The heads of a model with random weights look ahead as often as back."""
    peaks = attngeo.positions(saved(name)).groupby("stack")["peak"].min()
    assert all(peaks[stack] >= 0 for stack in causal)
    assert all(peaks[stack] < 0 for stack in both_ways)


def test_each_tower_has_the_table_that_is_nearest_to_it(saved: Callable[[str], Path]) -> None:
    """That of the text of GIT holds the tower of images, too, which has its own."""
    tables = attngeo.positions(saved("git")).groupby("stack")["note"].first().str.split().str[3]
    assert tables["text"] == "git.embeddings.position_embeddings.weight,"
    assert tables["vision"] == "git.image_encoder.vision_model.embeddings.position_embedding.weight,"


def test_pairs_that_stand_still_count_in_no_measure(tmp_path: Path) -> None:
    """With this scaling, half of the pairs have the frequency 0."""
    rope = {"rope_type": "proportional", "rope_theta": 50.0, "partial_rotary_factor": 0.7}
    folder = write_single(tmp_path, config=CONFIG | {"rope_parameters": rope})
    rows = attngeo.positions(folder, layers=[0])
    assert rows["note"][0] == "rotary embeddings in 4 of 6 dimensions"
    [(_, wq, wk)] = attngeo.attention_sites(folder, layers=[0], dtype=torch.float64)
    parts = [wq[:, :, [pair, 3 + pair]] @ wk[[0, 0, 1, 1]][:, :, [pair, 3 + pair]].mT for pair in (0, 1)]
    norms = torch.stack([part.norm(dim=(1, 2)) for part in parts], 1)
    kernel = read_kernel(rows)
    preference = (kernel[:, 1] - kernel[:, [0, 2, 3]].mean(1)) / norms.sum(1)
    assert rows["previous_token"].tolist() == pytest.approx(preference.tolist(), rel=1e-4)
    assert rows["fast_share"].tolist() == pytest.approx((norms[:, 0] / norms.sum(1)).tolist(), rel=1e-4)


def orthogonal_rows(count: int, width: int) -> Tensor:
    """Rows of one length that centring does not change."""
    basis = torch.randn(width, count, generator=torch.Generator().manual_seed(0))
    orthonormal, _ = torch.linalg.qr(basis - basis.mean(0))
    return orthonormal.T


# The tables of positions, and how many of their first rows are no positions.
LEARNED = {
    "gpt2": (TINY_MODELS["gpt2"], "transformer.wpe", 0),
    "opt": (TINY_MODELS["opt"], "model.decoder.embed_positions", 2),
    "bert": (TINY_MODELS["bert-decoder"], "bert.embeddings.position_embeddings", 0),
    "roberta": (TINY_MODELS["roberta"], "embeddings.position_embeddings", 1),
}


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.filterwarnings("ignore")
def test_learned_positions_give_the_logits_of_the_running_model(name: str) -> None:
    """Of tokens that are positions alone. The norm on the way multiplies all of them by one factor."""
    tiny, module, unused = LEARNED[name]
    model = build(tiny)
    table = model.get_submodule(module).weight
    count = 12
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias"):
                parameter.zero_()
            elif "norm" in parameter_name.lower() or "ln_" in parameter_name:
                parameter.fill_(1.0)
            elif "embed" in parameter_name or "wte" in parameter_name:
                parameter.zero_()
        table.data = torch.zeros(unused + count, table.shape[1])
        table[unused:] = orthogonal_rows(count, table.shape[1])
    if name == "opt":
        model.config.max_position_embeddings = count
    rows = attngeo.positions(model, layers=[0])
    assert f"{count} positions of {module}.weight" in rows["note"][0]
    [site] = [site for site, _, _ in attngeo.attention_sites(model, layers=[0])]
    ran = record(model, {"input_ids": torch.full((1, count), 5)})[site.module]
    assert ran.query is not None
    assert ran.key is not None
    logits = ran.query @ ran.key.mT
    running = torch.stack([logits.diagonal(-offset, dim1=1, dim2=2).mean(1) for offset in range(len(KERNEL))], 1)
    assert_proportional(read_kernel(rows), running.double())
    spread = logits.std((1, 2), correction=0).double()
    preference = (running[:, 1] - running[:, [0, 2, 3]].mean(1)) / spread
    assert rows["previous_token"].tolist() == pytest.approx(preference.tolist(), rel=1e-3)
    assert rows["fast_share"].isna().all()


@pytest.mark.parametrize(("unused", "first"), [(0, 0), (1, 1), (2, 2), (3, 0)])
def test_up_to_two_rows_before_the_stated_positions_are_none(unused: int, first: int, tmp_path: Path) -> None:
    """More are positions that the configuration does not state."""
    positions = torch.randn(8 + unused, 24, generator=torch.Generator().manual_seed(0))
    layer = "model.decoder.layers.0.self_attn"
    tensors = {f"{layer}.{letter}_proj.weight": torch.eye(24) for letter in "qkv"}
    tensors["model.decoder.embed_positions.weight"] = positions
    config = {"model_type": "opt", "hidden_size": 24, "num_attention_heads": 4, "max_position_embeddings": 8}
    rows = attngeo.positions(write_single(tmp_path, tensors, config))
    assert rows["note"].str.startswith(f"{8 + unused - first} positions of").all()
    of_head = positions[first:, :6] @ positions[first:, :6].T
    assert rows["kernel_1"][0] == pytest.approx(float(of_head.diagonal(-1).mean()), rel=1e-4)


ALIBI = {
    "bloom": TinyModel("bloom", "BloomModel", {"vocab_size": 64, "hidden_size": 24, "n_layer": 1, "n_head": 3}),
    "mpt": TinyModel("mpt", "MptModel", {"vocab_size": 64, "d_model": 24, "n_layers": 1, "n_heads": 6,
                                         "max_seq_len": 16}),
}  # fmt: skip


@pytest.mark.parametrize("name", ALIBI)
@pytest.mark.filterwarnings("ignore")
def test_alibi_is_read_by_its_slopes(name: str) -> None:
    """Without queries, the logarithms of attention fall by the slope."""
    model = build(ALIBI[name])
    rows = attngeo.positions(model)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith(("query_key_value.weight", "query_key_value.bias", "Wqkv.weight")):
                parameter.zero_()
    attention = model(torch.full((1, TOKENS), 5), output_attentions=True).attentions[0][0]
    fall = (attention[:, -1, -1].log() - attention[:, -1, -2].log()).double()
    assert rows["kernel_0"].tolist() == [0] * len(rows)
    assert rows["kernel_1"].tolist() == pytest.approx((-fall).tolist(), rel=1e-2)
    assert rows["kernel_8"].tolist() == pytest.approx((8 * rows["kernel_1"]).tolist())
    assert rows["peak"].tolist() == [0] * len(rows)
    assert rows[["fast_share", "previous_token"]].isna().all(axis=None)
    assert set(rows["note"].str.split(";").str[0]) == {"ALiBi: the kernel is −slope·Δ, with fixed slopes"}


@pytest.mark.parametrize("heads", [1, 4, 6, 71])
def test_slopes_are_those_of_transformers(heads: int, tmp_path: Path) -> None:
    """Falcon divides them as its logits, which are in other units than the kernel, too."""
    from transformers.models.falcon.modeling_falcon import build_alibi_tensor

    width = 2 * heads
    tensors = {"transformer.h.0.self_attention.query_key_value.weight": torch.randn(width + 4, width)}
    config = {"model_type": "falcon", "num_attention_heads": heads, "hidden_size": width, "alibi": True}
    rows = attngeo.positions(write_single(tmp_path, tensors, config))
    slopes = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    assert rows["kernel_1"].tolist() == pytest.approx((-slopes).tolist(), rel=1e-2)  # it rounds to bfloat16


def test_alibi_that_sees_later_tokens_falls_both_ways(tmp_path: Path) -> None:
    tensors = {
        f"bert.encoder.layer.0.attention.self.{name}.weight": torch.randn(24, 24) for name in ("query", "key", "value")
    }
    config = {"model_type": "bert", "num_attention_heads": 4, "position_embedding_type": "alibi"}
    rows = attngeo.positions(write_single(tmp_path, tensors, config))
    assert rows["peak"].tolist() == [0] * 4
    assert rows["kernel_2"].tolist() == [-0.5, -0.125, -0.03125, -0.0078125]


@pytest.mark.parametrize(
    ("name", "stacks", "reason"),
    [
        ("t5", ("encoder", "decoder"), "no known table of positions; relative-position terms are not read"),
        ("bart", ("cross",), "cross-attention: queries and keys come from different sequences"),
        ("albert", ("encoder",), "is [40, 8], but queries read 32 inputs"),
        ("siglip", ("vision_pooling",), "pooling: queries are not tokens of the sequence"),
        ("wav2vec2", ("encoder",), "no rotary embeddings, no ALiBi and no known table of positions"),
    ],
)
def test_what_has_no_kernel_says_why(
    saved: Callable[[str], Path], name: str, stacks: tuple[str, ...], reason: str
) -> None:
    rows = attngeo.positions(saved(name))
    chosen = rows[rows["stack"].isin(stacks)]
    assert len(chosen)
    assert chosen["note"].str.contains(reason, regex=False).all()
    assert chosen[["fast_share", "previous_token", "peak", *KERNEL]].isna().all(axis=None)


def test_encoder_and_decoder_have_tables_of_their_own() -> None:
    model = build(TinyModel("bart", "BartForConditionalGeneration", SEQ2SEQ))
    rows = attngeo.positions(model)
    for stack in ("encoder", "decoder"):
        assert rows[rows["stack"] == stack]["note"].str.startswith(f"40 positions of model.{stack}.embed_posit").all()
        of_stack = attngeo.attention_sites(model, stack=stack, layers=[0], dtype=torch.float64)
        [(site, wq, wk)] = list(of_stack)
        table = model.get_submodule(f"model.{stack}.embed_positions").weight.detach().double()[2:]
        logits = table @ wq @ wk.mT @ table.T
        first = rows[(rows["stack"] == stack) & (rows["layer"] == 0)]
        assert first["kernel_3"].tolist() == pytest.approx(
            logits.diagonal(-3, dim1=1, dim2=2).mean(1).tolist(), rel=1e-5, abs=1e-6
        )
        assert len(first) == site.heads


def test_layers_that_do_not_rotate_are_told_from_those_that_do() -> None:
    smollm3 = TinyModel("smollm3", "SmolLM3ForCausalLM", LLAMA | {"no_rope_layers": [1, 0]})
    rows = attngeo.positions(build(smollm3))
    by_layer = rows.groupby("layer")["fast_share"].count().tolist()
    assert by_layer == [4, 0]
    assert rows["note"].iloc[-1].startswith("no rotary embeddings, no ALiBi and no known table of positions")


def test_options_change_the_form_as_those_of_score_do(saved: Callable[[str], Path]) -> None:
    folder = saved("gpt2")
    plain = attngeo.positions(folder, layers=[0])
    folded = attngeo.positions(folder, layers=[0], with_bias=True, fold_norm=True)
    [(_, wq, wk)] = attngeo.attention_sites(folder, layers=[0], with_bias=True, fold_norm=True, dtype=torch.float64)
    table = load_file(folder / "model.safetensors")["transformer.wpe.weight"].double()
    ones = torch.cat([table, torch.ones(len(table), 1)], 1)
    logits = ones @ wq @ wk.mT @ ones.T
    assert folded["kernel_1"].tolist() == pytest.approx(logits.diagonal(-1, dim1=1, dim2=2).mean(1).tolist(), rel=1e-4)
    assert not read_kernel(plain).allclose(read_kernel(folded), rtol=1e-3)
    assert {"biases included", "input gain folded"} <= set(folded["note"][0].split("; "))


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [("q", math.nan, "NaN or Inf"), ("k", math.inf, "NaN or Inf"), ("q", 0.0, "the form is zero")],
)
def test_broken_weights_are_missing_values_with_a_reason(name: str, value: float, reason: str, tmp_path: Path) -> None:
    tensors = weights()
    tensors[f"model.layers.0.self_attn.{name}_proj.weight"][:12] = value
    rows = attngeo.positions(write_single(tmp_path, tensors))
    is_broken = rows["note"].str.contains(reason)
    assert is_broken.tolist()[:2] == [True, True]
    assert not is_broken[4:].any()
    assert rows[is_broken]["fast_share"].isna().all()
    assert rows[~is_broken][["fast_share", "peak", *KERNEL]].notna().all(axis=None)


def test_a_model_of_one_layer_and_one_head_is_measured(tmp_path: Path) -> None:
    config = CONFIG | {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 2}
    tensors = {f"model.layers.0.self_attn.{name}_proj.weight": torch.ones(2, 24) for name in "qkv"}
    rows = attngeo.positions(write_single(tmp_path, tensors, config))
    assert rows["fast_share"].tolist() == [1.0]
    assert rows["kernel_1"].tolist() == pytest.approx([48 * math.cos(1)])


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    folder = write_single(tmp_path / "rope", config=CONFIG | {"rope_theta": "many"})
    with refuses(CorruptCheckpointError, folder, "invalid rotary embedding", "'many' is not a number"):
        attngeo.positions(folder)
    with refuses(UsageError, "layer 9", "0 to 1"):
        attngeo.positions(write_single(tmp_path / "plain"), layers=[9])
    with refuses(UsageError, "stack 'encoder'"):
        attngeo.positions(tmp_path / "plain", stack="encoder")


def test_a_rotation_that_is_not_known_is_noted(tmp_path: Path) -> None:
    wobbly = CONFIG | {"rope_scaling": {"rope_type": "wobbly"}}
    rows = attngeo.positions(write_single(tmp_path / "wobbly", config=wobbly))
    assert rows["note"][0] == "no position kernel: rotary scaling 'wobbly' is unsupported"
    assert rows["fast_share"].isna().all()
    mystery = attngeo.positions(
        write_single(tmp_path / "mystery", config=CONFIG | {"model_type": "mystery", "rope_theta": 1e4})
    )
    assert mystery["note"].str.startswith("no position kernel: the order of its rotary dimensions is unknown").all()


def test_tables_are_kept_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNGEO_CACHE", str(tmp_path / "kept"))
    folder = write_single(tmp_path / "model")
    steps: list[str] = []
    first = attngeo.positions(folder, progress=lambda step: steps.append(step.phase))
    assert "kept" not in steps
    again = attngeo.positions(folder, progress=lambda step: steps.append(step.phase))
    assert steps[-1] == "kept"
    pd.testing.assert_frame_equal(first, again)
    assert len(list((tmp_path / "kept" / "positions").glob("*.parquet"))) == 1
    attngeo.positions(folder, fold_norm=True)
    assert len(list((tmp_path / "kept" / "positions").glob("*.parquet"))) == 2


def test_only_queries_keys_and_the_table_of_positions_are_read(saved: Callable[[str], Path], tmp_path: Path) -> None:
    """What else the file has may be broken."""
    tensors = load_file(saved("llama") / "model.safetensors")
    for name in tensors:
        if not any(part in name for part in ("q_proj", "k_proj")):
            tensors[name] = torch.zeros(1)
    config = (saved("llama") / "config.json").read_text()
    folder = write_single(tmp_path, tensors)
    (folder / "config.json").write_text(config)
    pd.testing.assert_frame_equal(
        attngeo.positions(folder).drop(columns="model"),
        attngeo.positions(saved("llama")).drop(columns="model"),
        check_exact=True,
    )
