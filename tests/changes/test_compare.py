"""Changes between models: against formed matrices, and under what does and does not change a running model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from support.checkpoints import CONFIG, weights, with_outputs, write_single
from support.gguf_files import CONFIG as GGUF_CONFIG, Q4_0, draw_state, write_gguf
from support.kept import write_layers
from support.messages import refuses
from support.packing import awq, pack_state, plain_int8
from support.peft_adapters import load_by_peft, make_llama, write_adapter, write_base
from torch import Tensor

import attngeo
from attngeo.changes.compare_options import OVERLAPS, number_columns
from attngeo.checkpoints.file_store import FileStore
from attngeo.checkpoints.opening import open_store
from attngeo.errors import ModelNotFoundError, UnsupportedModelError, UsageError

HEADS, KEY_HEADS, HEAD_DIM, WIDTH = 4, 2, 6, 24
GROUPS = [0, 0, 1, 1]
# Enough for rounding of the stored float32 weights of two models that compute the same.
NOTHING = 1e-6
State = dict[str, Tensor]


def name(layer: int, letter: str) -> str:
    return f"model.layers.{layer}.self_attn.{letter}_proj.weight"


def cut(state: Mapping[str, Tensor], layer: int, letter: str) -> Tensor:
    """A projection as heads: [heads, 6, 24], float64; outputs transposed."""
    weight = state[name(layer, letter)].double()
    return (weight.T if letter == "o" else weight).reshape(-1, HEAD_DIM, WIDTH)


def join(heads: Tensor) -> Tensor:
    return heads.reshape(-1, WIDTH).float().contiguous()


def edit(state: State, change: Callable[[str, Tensor], Tensor], letters: str = "qk") -> State:
    """The tensors with the heads of some letters changed."""
    edited = dict(state)
    for layer in (0, 1):
        for letter in letters:
            heads = join(change(letter, cut(state, layer, letter)))
            edited[name(layer, letter)] = heads.T.contiguous() if letter == "o" else heads
    return edited


def add_noise(state: State, scale: float) -> State:
    generator = torch.Generator().manual_seed(5)
    noise = {key: torch.randn(tensor.shape, generator=generator) for key, tensor in state.items()}
    return {key: tensor + scale * noise[key] for key, tensor in state.items()}


def compare(tmp_path: Path, state: State, other: State, **options: Any) -> pd.DataFrame:
    """The changes between two checkpoints with these tensors, in float64."""
    first = write_single(tmp_path / "first", state)
    second = write_single(tmp_path / "second", other)
    return attngeo.compare([str(first), str(second)], **{"precision": "float64"} | options)


def form_matrices(q: Tensor, k: Tensor) -> list[tuple[float, Tensor]]:
    """All forms of a head over offsets, formed: the weight of each, and C and S of each pair, [24, 24]."""
    pairs = HEAD_DIM // 2
    forms = []
    for i in range(pairs):
        q1, q2, k1, k2 = q[i], q[i + pairs], k[i], k[i + pairs]
        forms += [(0.5, torch.outer(q1, k1) + torch.outer(q2, k2)), (0.5, torch.outer(q1, k2) - torch.outer(q2, k1))]
    return forms


def measure(forms: list[list[tuple[float, Tensor]]]) -> tuple[float, float]:
    """Change and cosine of two families of formed matrices."""
    mine, others = forms
    product = sum(weight * float((a * b).sum()) for (weight, a), (_, b) in zip(mine, others, strict=True))
    squares = [sum(weight * float(a.square().sum()) for weight, a in family) for family in forms]
    apart = sum(weight * float((b - a).square().sum()) for (weight, a), (_, b) in zip(mine, others, strict=True))
    return math.sqrt(apart / squares[0]), product / math.sqrt(squares[0] * squares[1])


def sum_forms(families: list[list[tuple[float, Tensor]]]) -> list[tuple[float, Tensor]]:
    return [(forms[0][0], sum((form for _, form in forms), torch.zeros(()))) for forms in zip(*families, strict=True)]


def project(x: Tensor, y: Tensor) -> float:
    """The projection kernel by orthonormal bases of NumPy."""
    u, v = np.linalg.qr(x.T.numpy())[0], np.linalg.qr(y.T.numpy())[0]
    return float(((u.T @ v) ** 2).sum()) / HEAD_DIM


def assert_close(got: Any, expected: Any, tolerance: float = 1e-8) -> None:
    assert float(got) == pytest.approx(float(expected), rel=tolerance, abs=tolerance)


def test_changes_are_those_of_formed_matrices_over_all_offsets(tmp_path: Path) -> None:
    state, other = weights(), add_noise(weights(), 0.3)
    rows = compare(tmp_path, state, other, per_head=True)
    assert list(rows.columns) == list(attngeo.columns("compare"))
    assert len(rows) == 2 * (1 + HEADS)
    for layer in (0, 1):
        q, k = cut(state, layer, "q"), cut(state, layer, "k")
        other_q, other_k = cut(other, layer, "q"), cut(other, layer, "k")
        mine = [form_matrices(q[head], k[GROUPS[head]]) for head in range(HEADS)]
        others = [form_matrices(other_q[head], other_k[GROUPS[head]]) for head in range(HEADS)]
        of_layer = rows[(rows.layer == layer) & rows["head"].isna()].iloc[0]
        change, cosine = measure([sum_forms(mine), sum_forms(others)])
        assert_close(of_layer.change, change)
        assert_close(of_layer.cosine, cosine)
        for head in range(HEADS):
            row = rows[(rows.layer == layer) & (rows["head"] == head)].iloc[0]
            change, cosine = measure([mine[head], others[head]])
            assert_close(row.change, change)
            assert_close(row.cosine, cosine)
            assert_close(row.query_overlap, project(q[head], other_q[head]))
            assert_close(row.key_overlap, project(k[GROUPS[head]], other_k[GROUPS[head]]))
    assert rows["note"].unique().tolist() == [""]
    assert rows[rows["head"].isna()][[*OVERLAPS["qk"]]].isna().all(axis=None)


def test_overlaps_are_those_of_values_and_of_outputs(tmp_path: Path) -> None:
    state = with_outputs(weights())
    other = add_noise(state, 0.3)
    rows = compare(tmp_path, state, other, circuit="ov", per_head=True)
    for row in rows[rows["head"].notna()].itertuples():
        v, o = cut(state, row.layer, "v")[GROUPS[row.head]], cut(state, row.layer, "o")[row.head]
        other_v, other_o = cut(other, row.layer, "v")[GROUPS[row.head]], cut(other, row.layer, "o")[row.head]
        assert_close(row.value_overlap, project(v, other_v))
        assert_close(row.output_overlap, project(o, other_o))


@pytest.mark.parametrize("offset", [0, 3, -2])
def test_one_offset_is_the_form_at_it(tmp_path: Path, offset: int) -> None:
    state, other = weights(), add_noise(weights(), 0.3)
    rows = compare(tmp_path, state, other, rope_offset=offset, per_head=True)
    sites = [attngeo.attention_sites(str(tmp_path / folder), rope_offset=offset, dtype=torch.float64)
             for folder in ("first", "second")]  # fmt: skip
    for first, second in zip(*sites, strict=True):
        for head in range(HEADS):
            mine, others = (w.wq[head] @ w.wk[GROUPS[head]].T for w in (first, second))
            row = rows[(rows.layer == first.site.layer) & (rows["head"] == head)].iloc[0]
            assert_close(row.change, (others - mine).norm() / mine.norm())
            assert_close(row.cosine, (mine * others).sum() / mine.norm() / others.norm())


def test_scores_are_those_of_each_model(tmp_path: Path) -> None:
    rows = compare(tmp_path, weights(), weights(seed=4), per_head=True)
    for folder, suffix in (("first", ""), ("second", "_other")):
        scores = attngeo.score(str(tmp_path / folder), per_head=True, precision="float64")
        for score in ("symmetry", "directionality"):
            expected = scores[score].astype("float64").tolist()
            assert rows[score + suffix].tolist() == pytest.approx(expected, rel=1e-9)


def turn_pairs(heads: Tensor) -> Tensor:
    """Each head turned inside its rotary pairs, one angle a pair and key head."""
    groups = len(heads) // KEY_HEADS
    angles = torch.tensor([[0.3, 1.2, -0.7], [2.0, -1.5, 0.4]], dtype=torch.float64).repeat_interleave(groups, 0)
    first, second = heads[:, :3], heads[:, 3:]
    cosine, sine = angles.cos()[..., None], angles.sin()[..., None]
    return torch.cat([cosine * first - sine * second, sine * first + cosine * second], 1)


def draw_rotation() -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.linalg.qr(torch.randn(HEAD_DIM, HEAD_DIM, generator=generator, dtype=torch.float64)).Q


def test_a_rotation_inside_pairs_changes_nothing(tmp_path: Path) -> None:
    turned = edit(weights(), lambda _, heads: turn_pairs(heads))
    rows = compare(tmp_path, weights(), turned, per_head=True)
    assert rows.change.max() < NOTHING
    assert rows.cosine.min() > 1 - NOTHING
    assert rows[[*OVERLAPS["qk"]]].min(axis=None) > 1 - NOTHING


def test_a_rotation_across_pairs_is_seen_over_offsets_but_not_at_offset_0(tmp_path: Path) -> None:
    rotation = draw_rotation()
    turned = edit(weights(), lambda _, heads: rotation @ heads)
    assert compare(tmp_path, weights(), turned, per_head=True).change.min() > 0.3
    assert compare(tmp_path, weights(), turned, per_head=True, rope_offset=0).change.max() < NOTHING


def test_values_and_outputs_may_be_turned_by_any_matrix(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(9)
    inner = torch.randn(HEAD_DIM, HEAD_DIM, generator=generator, dtype=torch.float64) + 3 * torch.eye(HEAD_DIM)
    state = with_outputs(weights())

    def turn(letter: str, heads: Tensor) -> Tensor:
        return (inner if letter == "v" else torch.linalg.inv(inner).T) @ heads

    turned = edit(state, turn, "vo")
    rows = compare(tmp_path, state, turned, circuit="ov", per_head=True)
    assert list(rows.columns) == list(attngeo.columns("compare", circuit="ov"))
    assert rows.change.max() < 10 * NOTHING
    assert rows[[*OVERLAPS["ov"]]].min(axis=None) > 1 - NOTHING
    noisy = add_noise(state, 0.2)
    rows = compare(tmp_path, state, noisy, circuit="ov", per_head=True)
    for layer in (0, 1):
        mine, others = (
            torch.stack([cut(part, layer, "v")[GROUPS[head]].T @ cut(part, layer, "o")[head] for head in range(HEADS)])
            for part in (state, noisy)
        )
        for row in rows[rows.layer == layer].itertuples():
            a, b = (mine.sum(0), others.sum(0)) if pd.isna(row.head) else (mine[row.head], others[row.head])
            assert_close(row.change, (b - a).norm() / a.norm())
            assert_close(row.cosine, (a * b).sum() / a.norm() / b.norm())


@pytest.mark.parametrize("circuit", ["qk", "ov"])
def test_the_same_weights_have_not_changed_at_all(tmp_path: Path, circuit: Any) -> None:
    state = with_outputs(weights(dtype=torch.bfloat16))
    rows = compare(tmp_path, state, state, circuit=circuit, per_head=True, precision="float32")
    assert rows.change.tolist() == [0.0] * len(rows)
    assert rows.cosine.tolist() == [1.0] * len(rows)


def test_a_copy_has_not_changed_at_all(tmp_path: Path) -> None:
    rows = attngeo.compare(["demo:minilm", write_copy(tmp_path)], per_head=True)
    assert rows.change.max() == 0


def write_copy(folder: Path) -> str:
    """The demo minilm again."""
    store = open_store("demo:minilm")
    tensors = {key: store.read(key) for key in store.names}
    config = store.config
    store.close()
    return str(write_single(folder / "copy", tensors, config))


def test_a_small_change_keeps_its_digits_in_float32(tmp_path: Path) -> None:
    state = weights()
    moved = add_noise(state, 1e-4)
    exact = compare(tmp_path, state, moved, per_head=True)
    usual = compare(tmp_path, state, moved, per_head=True, precision="float32")
    assert exact.change.max() < 1e-3
    assert usual.change.tolist() == pytest.approx(exact.change.tolist(), rel=1e-6)


PERMUTATIONS = {"groups": [2, 3, 0, 1], "inside groups": [1, 0, 2, 3], "both": [3, 2, 1, 0]}


@pytest.mark.parametrize("order", PERMUTATIONS.values(), ids=PERMUTATIONS.keys())
@pytest.mark.parametrize("circuit", ["qk", "ov"])
def test_heads_in_another_order_are_found(tmp_path: Path, order: list[int], circuit: Any) -> None:
    state = with_outputs(weights())
    groups = [GROUPS[head] for head in order][:: HEADS // KEY_HEADS]
    moved = edit(state, lambda letter, heads: heads[order if letter in "qo" else groups], "qkvo")
    rows = compare(tmp_path, state, moved, circuit=circuit, per_head=True)
    assert rows.change.max() < NOTHING
    assert rows.dropna(subset="head")[[*OVERLAPS[circuit]]].min(axis=None) > 1 - NOTHING
    assert rows.symmetry_other.tolist() == pytest.approx(rows.symmetry.tolist(), abs=1e-9)
    for row in rows.dropna(subset="head").itertuples():
        place = order.index(row.head)
        is_moved = place != row.head
        assert (f"head {row.head} corresponds to its head {place}" in row.note) == is_moved


@pytest.mark.parametrize("factor", [0.0, 1e-9, math.nan], ids=["zero", "tiny", "nan"])
@pytest.mark.parametrize("is_pruned_in", [["first", "other"], ["other"]], ids=["both", "other"])
def test_a_head_without_a_cosine_does_not_hide_the_order_of_the_others(
    factor: float, is_pruned_in: list[str], tmp_path: Path
) -> None:
    """Head 0 is zero, as pruning leaves it, or tiny, or not finite. In the other model it is head 2."""
    order = PERMUTATIONS["groups"]
    pruned = edit(weights(), lambda _, heads: torch.cat([factor * heads[:1], heads[1:]]), "q")
    first = pruned if "first" in is_pruned_in else weights()
    moved = edit(pruned, lambda letter, heads: heads[order if letter == "q" else [1, 0]])
    rows = compare(tmp_path, first, moved, per_head=True).dropna(subset="head").set_index(["layer", "head"])
    assert rows.drop(index=0, level="head").change.max() < NOTHING
    for head, place in enumerate(order):
        assert rows.xs(head, level="head").note.str.contains(f"head {head} corresponds to its head {place}").all()


def test_heads_of_unrelated_models_keep_their_numbers(tmp_path: Path) -> None:
    rows = compare(tmp_path, weights(), weights(seed=8), per_head=True)
    assert rows.cosine.abs().max() < 0.5
    assert not rows.note.str.contains("order").any()


def write_heads(folder: Path, queries: Tensor) -> str:
    """A BERT of one layer whose heads have one query direction each [4, 24], and one key for all."""
    key = torch.zeros(4, 6, 24)
    key[:, 0, 0] = 1
    query = torch.zeros(4, 6, 24)
    query[:, 0] = queries
    layer = "bert.encoder.layer.0.attention.self"
    state = {f"{layer}.query.weight": query.flatten(0, 1), f"{layer}.key.weight": key.flatten(0, 1)}
    config = {"model_type": "bert", "hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 1}
    return str(write_single(folder, state, config))


@pytest.mark.parametrize(
    ("with_same", "with_next", "are_moved"),
    [
        (0.1, 0.55, True),
        (0.1, 0.45, False),  # no head there is like it
        (0.45, 0.8, True),
        (0.55, 0.8, False),  # the head of its number is like it
    ],
)
def test_heads_are_another_one_from_half_a_cosine_on(
    with_same: float, with_next: float, are_moved: bool, tmp_path: Path
) -> None:
    """Cosines of each head with the head of its number and with the next one in the other model."""
    directions = torch.eye(24)
    rest = math.sqrt(1 - with_same**2 - with_next**2)
    order = [1, 2, 3, 0]  # head h is head order[h] there
    others = with_same * directions[:4] + rest * directions[4:8]
    others[order] += with_next * directions[:4]
    models = [write_heads(tmp_path / "first", directions[:4]), write_heads(tmp_path / "other", others)]
    rows = attngeo.compare(models, per_head=True).dropna(subset="head")
    assert rows.cosine.tolist() == pytest.approx([with_next if are_moved else with_same] * 4, rel=1e-5)
    assert rows.note.str.contains("corresponds").tolist() == [are_moved] * 4


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_lora_against_merged_weights(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base")
    adapter = write_adapter(tmp_path / "adapter", base)
    merged = load_by_peft(base, adapter)
    merged.save_pretrained(tmp_path / "merged")
    adapted = attngeo.compare(str(base), adapter=str(adapter), per_head=True)
    expected = attngeo.compare([str(base), str(tmp_path / "merged")], per_head=True)
    in_memory = attngeo.compare([make_llama(), merged], per_head=True)
    assert expected.change.min() > 0.01
    for rows in (adapted, in_memory):
        assert rows.change.tolist() == pytest.approx(expected.change.tolist(), rel=1e-5)
        assert rows.cosine.tolist() == pytest.approx(expected.cosine.tolist(), rel=1e-5)
    assert (adapted.note == f"other: with the update of {adapter}").all()


def test_gguf_whose_rotary_pairs_are_neighbours_is_the_same_model(tmp_path: Path) -> None:
    state = draw_state()
    folder = write_single(tmp_path / "model", state, GGUF_CONFIG | {"model_type": "llama"})
    write_gguf(tmp_path / "same.gguf", state)
    rows = attngeo.compare([str(folder), str(tmp_path / "same.gguf")], per_head=True)
    assert rows.change.max() < NOTHING
    assert rows.note.unique().tolist() == [""]
    decoded = write_gguf(tmp_path / "four.gguf", state, Q4_0)
    quantised = attngeo.compare([str(folder), str(tmp_path / "four.gguf")], per_head=True)
    expected = attngeo.compare(
        [str(folder), str(write_single(tmp_path / "decoded", decoded, GGUF_CONFIG | {"model_type": "llama"}))],
        per_head=True,
    )
    assert 0.02 < expected.change.min() < expected.change.max() < 0.3
    assert quantised.change.tolist() == pytest.approx(expected.change.tolist(), rel=1e-5)


@pytest.mark.parametrize("packing", [awq("gemm"), plain_int8()], ids=["int4", "int8"])
def test_quantised_weights_change_by_their_rounding(tmp_path: Path, packing: Any) -> None:
    state = draw_state()
    config = GGUF_CONFIG | {"model_type": "llama"}
    stored, decoded = pack_state(state, packing, lambda key, _: "_proj" in key)
    first = write_single(tmp_path / "model", state, config)
    packed = write_single(tmp_path / "packed", stored, config | dict(packing.config))
    rows = attngeo.compare([str(first), str(packed)], per_head=True)
    expected = attngeo.compare([str(first), str(write_single(tmp_path / "rounded", decoded, config))], per_head=True)
    assert 1e-4 < expected.change.min() < expected.change.max() < 0.3
    assert rows.change.tolist() == pytest.approx(expected.change.tolist(), rel=1e-4)


def test_other_frequencies_are_compared_pair_by_pair(tmp_path: Path) -> None:
    first = write_single(tmp_path / "first", weights())
    longer = write_single(tmp_path / "longer", weights(), CONFIG | {"rope_theta": 500_000.0})
    rows = attngeo.compare([str(first), str(longer)])
    assert rows.change.tolist() == [0.0, 0.0]
    assert rows.note.str.contains("frequencies differ").all()
    assert attngeo.compare([str(first), str(longer)], rope_offset=5).change.min() > 0.01


@pytest.mark.parametrize(("share", "differ"), [(0.9e-4, False), (1.1e-4, True)])
def test_frequencies_differ_from_a_ten_thousandth_on(share: float, differ: bool, tmp_path: Path) -> None:
    """Those of the slowest pair, base**(-2/3)."""
    base = 10_000.0 * (1 + share) ** (-3 / 2)
    first = write_single(tmp_path / "first", weights())
    other = write_single(tmp_path / "other", weights(), CONFIG | {"rope_theta": base})
    rows = attngeo.compare([str(first), str(other)])
    assert rows.note.str.contains("frequencies differ").tolist() == [differ] * 2


def test_other_numbers_of_rotating_dimensions_are_compared_at_offset_0(tmp_path: Path) -> None:
    config = {"model_type": "gpt_neox", "hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 1}
    tensors = {"gpt_neox.layers.0.attention.query_key_value.weight": torch.randn(72, 24)}
    first = write_single(tmp_path / "first", tensors, config | {"rotary_pct": 1.0})
    other = write_single(tmp_path / "other", tensors, config | {"rotary_pct": 1 / 3})
    rows = attngeo.compare([str(first), str(other)])
    assert rows.change.tolist() == [0.0]
    assert rows.note[0] == "6 and 2 dimensions rotate: compared only at relative offset 0"


def write_size(folder: Path, heads: int, layers: int) -> str:
    """A LLaMA of other sizes, with as many key heads as heads."""
    generator = torch.Generator().manual_seed(heads)
    width = 6 * heads
    tensors = {name(layer, letter): torch.randn(width, width, generator=generator)
               for layer in range(layers) for letter in "qk"}  # fmt: skip
    config = CONFIG | {"hidden_size": width, "num_attention_heads": heads, "num_key_value_heads": heads}
    return str(write_single(folder, tensors, config | {"num_hidden_layers": layers}))


def test_other_sizes_are_side_by_side_by_depth(tmp_path: Path) -> None:
    first, other = write_size(tmp_path / "first", 4, 5), write_size(tmp_path / "other", 3, 3)
    rows = attngeo.compare([first, other], per_head=True)
    assert rows[["change", "cosine"]].isna().all(axis=None)
    of_layers = rows[rows["head"].isna()]
    others = attngeo.score(other).symmetry
    expected = [others[layer] for layer in (0, 1, 1, 2, 2)]
    assert of_layers.symmetry_other.tolist() == pytest.approx(expected)
    assert rows[rows["head"].notna()].symmetry_other.isna().all()
    assert "5 and 3 layers: paired with layer 1 of the other model" in of_layers.note.iloc[1]
    narrow = attngeo.compare([first, write_size(tmp_path / "narrow", 3, 5)])
    assert narrow.change.isna().all()
    assert "4 and 3 heads" in narrow.note[0]
    assert "24 and 18 inputs" in narrow.note[0]
    assert attngeo.compare([other, first]).layer.tolist() == [0, 1, 2]


def test_some_layers_of_the_first_model(tmp_path: Path) -> None:
    rows = compare(tmp_path, weights(), add_noise(weights(), 0.1), layers=[1])
    assert rows.layer.tolist() == [1]
    with refuses(UsageError, "layer 7"):
        compare(tmp_path, weights(), weights(), layers=[7])


def test_stacks_of_other_names_are_compared_if_each_model_has_one() -> None:
    rows = attngeo.compare(["demo:encoder", "demo:decoder"])
    assert rows.note.str.contains("compared with the stack decoder of the other model").all()
    with refuses(UsageError, "decoder", "encoder"):
        attngeo.compare(["demo:decoder", "demo:encoder"], stack="decoder")


def test_stacks_of_one_model_alone_are_said_to_be_left_out(tmp_path: Path) -> None:
    tensors = {f"model.{tower}.layers.0.self_attn.{letter}_proj.weight": torch.randn(24, 24)
               for tower in ("encoder", "decoder") for letter in "qk"}  # fmt: skip
    config = {"model_type": "bart", "d_model": 24, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    both = str(write_single(tmp_path / "both", tensors, config | {"encoder_layers": 1, "decoder_layers": 1}))
    rows = attngeo.compare(["demo:encoder", both])
    left_out = {"stack decoder": "the other model has no such stack"}
    assert (rows.attrs["skipped"], rows.attrs["other_skipped"]) == ({}, left_out)
    assert attngeo.compare([both, "demo:encoder"]).attrs["skipped"] == left_out
    assert attngeo.compare([both, "demo:encoder"], stack="encoder").attrs["skipped"] == {}
    assert attngeo.compare(["demo:encoder", "demo:decoder"]).attrs["skipped"] == {}


def test_models_without_a_common_stack(tmp_path: Path) -> None:
    tensors = {f"{tower}.layers.0.self_attn.{letter}_proj.weight": torch.randn(24, 24)
               for tower in ("model.encoder", "model.decoder") for letter in "qk"}  # fmt: skip
    config = {"model_type": "bart", "d_model": 24, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    other = write_single(tmp_path / "seq2seq", tensors, config | {"encoder_layers": 1, "decoder_layers": 1})
    renamed = {key.replace("model.encoder", "vision_model.encoder"): tensor for key, tensor in tensors.items()
               if "encoder" in key}  # fmt: skip
    first = write_single(tmp_path / "first", renamed, {"model_type": "clip_vision_model", "hidden_size": 24,
                                                       "num_attention_heads": 4})  # fmt: skip
    with refuses(UnsupportedModelError, "vision", "encoder", "decoder"):
        attngeo.compare([str(first), str(other)])


def write_composite(folder: Path, tensors: dict[str, torch.Tensor]) -> str:
    """A model with the layers of `weights` as its language model, and a tower of other heads."""
    text = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    tower = {
        f"model.vision_tower.vision_model.encoder.layers.{layer}.self_attn.{letter}_proj.weight": torch.randn(16, 16)
        for layer in (0, 1) for letter in "qk"
    }  # fmt: skip
    vision = {"model_type": "clip_vision_model", "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    config = {"model_type": "llava", "text_config": CONFIG, "vision_config": vision}
    return str(write_single(folder, text | tower, config))


def test_a_part_of_a_model_beside_that_part_alone(tmp_path: Path) -> None:
    """One stack under two names; nothing has to be said where only one can be meant."""
    alone = str(write_single(tmp_path / "alone", weights()))
    composite = write_composite(tmp_path / "composite", weights())
    for models, mine, other in (((alone, composite), "decoder", "text"), ((composite, alone), "text", "decoder")):
        for stack in (None, f"{mine}={other}"):
            rows = attngeo.compare(models, stack=stack)
            assert rows["stack"].tolist() == [mine, mine]
            assert rows.change.tolist() == [0, 0]
            assert rows.note.str.contains(f"compared with the stack {other} of the other model").all()
        row = attngeo.lineage(*models, n_permutations=19).iloc[0]
        assert row["layers"] == f"{mine} layers 0-1"
        assert f"stack {mine} compared with stack {other} of the candidate" in row["note"]
        assert row["similarity"] > 0.99
        chosen = attngeo.lineage(*models, n_permutations=19, stack=f"{mine}={other}").iloc[0]
        assert chosen.equals(row)
    second = write_composite(tmp_path / "second", weights())
    same = attngeo.compare([composite, second])
    assert same["stack"].unique().tolist() == ["text", "vision"]
    layers = {
        stack: attngeo.lineage(composite, second, n_permutations=19, stack=stack)["layers"].item()
        for stack in (None, "text", "vision")
    }
    assert layers == {None: "text layers 0-1", "text": "text layers 0-1", "vision": ""}  # nothing is known of the tower


def test_the_encoder_of_a_speech_model_beside_that_of_another_one(tmp_path: Path) -> None:
    """Whisper's, and Qwen2-Audio's, which is made from it, under another type and name."""
    from transformers import Qwen2AudioConfig, Qwen2AudioForConditionalGeneration, WhisperConfig, WhisperModel

    encoder = {
        "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 32, "num_mel_bins": 16,
        "max_source_positions": 20,
    }  # fmt: skip
    text = {
        "model_type": "qwen2", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 20,
    }  # fmt: skip
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    decoder = {"decoder_layers": 1, "decoder_attention_heads": 4, "decoder_ffn_dim": 32, "vocab_size": 20}
    whisper = WhisperModel(WhisperConfig(**encoder, **decoder, **ids))
    config = Qwen2AudioConfig(
        audio_config={"model_type": "qwen2_audio_encoder"} | encoder, text_config=text, audio_token_index=5
    )
    audio = Qwen2AudioForConditionalGeneration(config)
    audio.model.audio_tower.load_state_dict(whisper.encoder.state_dict(), strict=False)
    whisper.save_pretrained(tmp_path / "whisper")
    audio.save_pretrained(tmp_path / "audio")
    models = [str(tmp_path / "whisper"), str(tmp_path / "audio")]
    for stack in (None, "encoder=audio"):
        rows = attngeo.compare(models, stack=stack)
        assert rows["stack"].tolist() == ["encoder", "encoder"]
        assert rows.change.tolist() == [0, 0]
        row = attngeo.lineage(*models, stack=stack, n_permutations=19).iloc[0]
        assert "sinusoid" in row["note"]  # its positions are fixed: the test does not apply, whoever is asked


def test_stacks_that_are_named_for_both_models(tmp_path: Path) -> None:
    """Whatever they are; a name that one of them lacks is refused with those that there are."""
    alone = str(write_single(tmp_path / "alone", weights()))
    composite = write_composite(tmp_path / "composite", weights())
    for stack, facts in (
        ("decoder=words", ("'words'", "text, vision")), ("text=decoder", ("'text'", "decoder")),
        ("decoder=", ("''", "text, vision")),
    ):  # fmt: skip
        with refuses(UsageError, *facts):
            attngeo.compare([alone, composite], stack=stack)
        with refuses(UsageError, *facts):
            attngeo.lineage(alone, composite, stack=stack)
    with refuses(UsageError, "'vision'", "decoder", "vision=OTHER"):
        attngeo.compare([composite, alone], stack="vision")
    with refuses(UsageError, "'vision'", "decoder", "vision=OTHER"):
        attngeo.lineage(composite, alone, stack="vision")
    wider = {name: torch.cat([tensor, tensor]) if "q_proj" in name else tensor for name, tensor in weights().items()}
    other = str(write_single(tmp_path / "wider", wider, CONFIG | {"num_attention_heads": 8}))
    with refuses(UnsupportedModelError, "decoder", "text, vision", "decoder=text"):
        attngeo.compare([other, composite])
    assert len(attngeo.compare([other, composite], stack="decoder=text")) == 2


def test_bad_models(tmp_path: Path) -> None:
    first = str(write_single(tmp_path / "first"))
    with refuses(UsageError, "at least two models"):
        attngeo.compare(first)
    with refuses(UsageError, first, "twice"):
        attngeo.compare([first, first])
    with refuses(UsageError, "demo:minilm", "twice"):
        attngeo.compare([first, "demo:minilm", "demo:minilm"])
    with refuses(ModelNotFoundError, "missing"):
        attngeo.compare([first, str(tmp_path / "missing")])
    with refuses(UsageError, "rope_offset", "circuit"):
        attngeo.compare([first, "demo:decoder"], circuit="ov", rope_offset=1)


def test_weights_that_are_zero_or_not_finite_have_no_change(tmp_path: Path) -> None:
    zero, broken = weights(), weights()
    zero[name(0, "q")] = torch.zeros(24, 24)
    broken[name(1, "q")][0, 0] = torch.inf
    rows = compare(tmp_path, zero, broken, per_head=True)
    assert rows[rows.layer == 0][["change", "cosine"]].isna().all(axis=None)
    assert rows[rows.layer == 0].note.str.startswith("the form is zero").all()
    of_layer = rows[rows.layer == 1].set_index("head")
    assert of_layer.change.isna().tolist() == [True, True, False, False, False]
    assert "other: NaN or Inf" in of_layer.note.iloc[0]


def test_forms_of_very_different_sizes_have_no_cosine_and_say_so(tmp_path: Path) -> None:
    small = {key: tensor * 1e-30 for key, tensor in weights().items()}
    rows = compare(tmp_path, weights(), small)
    assert rows.cosine.isna().all()
    assert rows.note.str.startswith("cosine not computed").all()
    back = attngeo.compare([str(tmp_path / "second"), str(tmp_path / "first")])
    assert back.change.isna().all()
    assert back.note.str.startswith("change and cosine not computed").all()


def test_several_models_and_the_adapter_of_the_others(tmp_path: Path) -> None:
    folders = [str(write_single(tmp_path / f"{seed}", add_noise(weights(), seed / 10))) for seed in range(4)]
    rows = attngeo.compare(folders)
    assert rows.other.tolist() == [folder for folder in folders[1:] for _ in (0, 1)]
    assert rows.model.unique().tolist() == [folders[0]]
    assert (rows.attrs["model"], rows.attrs["other"]) == (folders[0], ", ".join(folders[1:]))
    assert (rows.attrs["revision"], rows.attrs["other_revision"]) == (None, None)
    assert rows.groupby("other").change.mean().is_monotonic_increasing


@pytest.mark.slow  # each process loads the libraries
def test_several_processes_give_the_same_table(tmp_path: Path) -> None:
    folders = [str(write_single(tmp_path / f"{seed}", weights(seed=seed))) for seed in range(3)]
    pd.testing.assert_frame_equal(attngeo.compare(folders, jobs=2), attngeo.compare(folders))


def test_only_queries_and_keys_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, other = (write_single(tmp_path / folder, with_outputs(weights())) for folder in ("first", "other"))
    read: list[str] = []
    read_all = FileStore.read_all

    def note(self: Any, names: Any) -> Any:
        read.extend(names)
        return read_all(self, names)

    monkeypatch.setattr(FileStore, "read_all", note)
    attngeo.compare([str(first), str(other)], per_head=True)
    assert sorted(read) == sorted(2 * [name(layer, letter) for layer in (0, 1) for letter in "qk"])


def test_changes_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNGEO_CACHE", str(tmp_path / "cache"))
    first, other = write_layers(tmp_path / "first"), write_layers(tmp_path / "other")
    steps: list[str] = []
    before = attngeo.compare([str(first), str(other)], progress=lambda step: steps.append(step.what))
    count = len(steps)
    again = attngeo.compare([str(first), str(other)], progress=lambda step: steps.append(step.what))
    pd.testing.assert_frame_equal(before, again)
    assert len(steps) == count > 0
    assert len(list((tmp_path / "cache" / "changes").iterdir())) == 1
    save_file({key: value + 1 for key, value in weights(6).items()}, other / "model-00001-of-00006.safetensors")
    changed = attngeo.compare([str(first), str(other)])
    assert changed.change[0] > 0
    assert number_columns()[0] == "change"
