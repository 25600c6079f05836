"""Tokens of the singular directions of heads, compared with numpy's decomposition of matrices formed from the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import Command
from numpy.typing import NDArray
from support.messages import assert_fails, refuses
from support.tiny_models import TINY_MODELS, build
from support.vectors import word_piece
from torch import Tensor

import attngeo
from attngeo.circuits import directions
from attngeo.errors import UnsupportedModelError, UsageError
from attngeo.geometry.spectra import number_bands, singular_directions

VOCABULARY = ["[PAD]", "[UNK]", "##s", "##t", *(f"w{number}" for number in range(60))]
SHUFFLES = 20
# Of a head: the embeddings of both sides, and the matrix between them, with gains.
Formed = tuple[Tensor, Tensor, Tensor]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return word_piece(tmp_path_factory.mktemp("directions") / "tokenizer.json", VOCABULARY)


def form_llama(model: Any, layer: int, head: int, gain_offset: float = 0) -> Formed:
    """Grouped queries."""
    block = model.model.layers[layer]
    gain = block.input_layernorm.weight + gain_offset
    queries = block.self_attn.q_proj.weight.unflatten(0, (4, 12))[head] * gain
    keys = block.self_attn.k_proj.weight.unflatten(0, (2, 12))[head // 2] * gain
    table = model.model.embed_tokens.weight
    return table, table, queries.double().T @ keys.double()


def form_llama_outputs(model: Any, layer: int, head: int) -> Formed:
    block = model.model.layers[layer]
    values = block.self_attn.v_proj.weight.unflatten(0, (2, 12))[head // 2] * block.input_layernorm.weight
    outputs = block.self_attn.o_proj.weight.unflatten(1, (4, 12))[:, head] * model.model.norm.weight[:, None]
    return model.model.embed_tokens.weight, model.lm_head.weight, values.double().T @ outputs.double().T


def form_gemma(model: Any, layer: int, head: int) -> Formed:
    """A gain that is stored without its 1."""
    return form_llama(model, layer, head, 1)


def form_gpt2(model: Any, layer: int, head: int) -> Formed:
    """One fused matrix, transposed."""
    block = model.transformer.h[layer]
    queries, keys, _ = block.attn.c_attn.weight.double().split(32, dim=1)
    gain = block.ln_1.weight.double()[:, None]
    of_head = slice(8 * head, 8 * head + 8)
    table = model.transformer.wte.weight
    return table, table, (gain * queries[:, of_head]) @ (gain * keys[:, of_head]).T


def form_gpt_neox(model: Any, layer: int, head: int) -> Formed:
    """One fused matrix, head after head."""
    block = model.gpt_neox.layers[layer]
    fused = (block.attention.query_key_value.weight * block.input_layernorm.weight).double().unflatten(0, (4, 3, 8))
    table = model.gpt_neox.embed_in.weight
    return table, table, fused[head, 0].T @ fused[head, 1]


def form_t5(model: Any, layer: int, head: int) -> Formed:
    block = model.encoder.block[layer].layer[0]
    size = model.config.d_kv
    queries, keys = (
        (part.weight * block.layer_norm.weight).double().unflatten(0, (-1, size))[head]
        for part in (block.SelfAttention.q, block.SelfAttention.k)
    )
    return model.shared.weight, model.shared.weight, queries.T @ keys


def form_deepseek(model: Any, layer: int, head: int) -> Formed:
    """Latent queries and keys: 6 dimensions of a head from the latent, and 4 that rotate and that heads share."""
    block = model.model.layers[layer]
    part = block.self_attn
    gain = block.input_layernorm.weight.double()
    latent = part.q_a_layernorm.weight.double()[:, None] * part.q_a_proj.weight.double() * gain
    queries = part.q_b_proj.weight.double().unflatten(0, (4, 10))[head] @ latent
    compressed = part.kv_a_proj_with_mqa.weight.double() * gain
    latent_keys = part.kv_a_layernorm.weight.double()[:, None] * compressed[:10]
    keys = part.kv_b_proj.weight.double().unflatten(0, (4, 11))[head, :6] @ latent_keys
    table = model.model.embed_tokens.weight
    return table, table, queries.T @ torch.cat([keys, compressed[10:]])


FAMILIES: dict[str, tuple[str, str, Callable[[Any, int, int], Formed]]] = {
    "llama": ("llama", "qk", form_llama),
    "llama outputs": ("llama", "ov", form_llama_outputs),
    "gemma": ("gemma", "qk", form_gemma),
    "gpt2": ("gpt2", "qk", form_gpt2),
    "gpt_neox": ("gpt_neox", "qk", form_gpt_neox),
    "t5": ("t5", "qk", form_t5),
    "deepseek_v2": ("deepseek_v2", "qk", form_deepseek),
}


def decompose(formed: Formed) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Singular values, and the values of all tokens of both sides on each direction, [tokens, directions]."""
    table, other_table, matrix = (part.detach().double().numpy() for part in formed)
    u, values, vh = np.linalg.svd(matrix)
    return values, table @ u, other_table @ vh.T


@pytest.mark.parametrize("name", FAMILIES)
def test_directions_are_those_of_the_formed_matrix(name: str, tokenizer: Any) -> None:
    family, circuit, form = FAMILIES[name]
    model = build(TINY_MODELS[family])
    found = attngeo.words(
        model, layer=1, head=1, circuit=circuit, directions=4, top=6, tokenizer=tokenizer, device="cpu"
    )
    formed = form(model, 1, 1)
    values, left, right = decompose(formed)
    total = float(np.linalg.norm(formed[2].detach().numpy())) ** 2
    assert list(found) == list(attngeo.columns("words", directions=4))
    assert found["last_direction"].iloc[-1] >= 4
    for (first, last), rows in found.groupby(["direction", "last_direction"]):
        members = slice(first - 1, last)
        assert rows["singular_value"].iloc[0] == pytest.approx(values[first - 1], rel=1e-4)
        assert rows["last_singular_value"].iloc[0] == pytest.approx(values[last - 1], rel=1e-4)
        assert rows["norm_share"].iloc[0] == pytest.approx((values[members] ** 2).sum() / total, rel=1e-3)
        if first < last:
            assert set(rows["kind"]) == {"band"}
            check_side(rows, "token", np.linalg.norm(left[:, members], axis=1))
            check_side(rows, "target", np.linalg.norm(right[:, members], axis=1))
            continue
        assert rows["kind"].tolist() == ["largest"] * 6 + ["smallest"] * 6
        on_left = left[:, first - 1]
        sign = 1 if on_left.max() > -on_left.min() else -1
        check_side(rows, "token", sign * on_left)
        check_side(rows, "target", sign * right[:, first - 1])


def check_side(rows: pd.DataFrame, side: str, values: NDArray[Any]) -> None:
    """Compare the tokens of one side of a direction with the values of all tokens."""
    ordered = np.sort(values)
    expected = {"largest": ordered[::-1], "band": ordered[::-1], "smallest": ordered}
    for kind, of_kind in rows.groupby("kind"):
        listed = of_kind[f"{side}_value"].to_numpy()
        assert listed == pytest.approx(expected[str(kind)][: len(listed)], rel=1e-3, abs=1e-5)
        assert listed == pytest.approx(values[of_kind[f"{side}_id"].astype(int)], rel=1e-3, abs=1e-5)
        assert of_kind["rank"].tolist() == [*range(1, len(listed) + 1)]


def test_chance_is_the_mean_of_shuffled_dimensions(tokenizer: Any) -> None:
    """Each shuffle orders the dimensions of both sides, with one generator that has the seed."""
    model = build(TINY_MODELS["gpt2"])
    found = attngeo.words(model, layer=1, head=2, directions=1, top=5, seed=7, tokenizer=tokenizer, device="cpu")
    assert found["last_direction"].iloc[0] == 1
    table, _, matrix = (part.detach().double().numpy() for part in form_gpt2(model, 1, 2))
    u, _, vh = np.linalg.svd(matrix)
    sign = 1 if (table @ u[:, 0]).max() > -(table @ u[:, 0]).min() else -1
    generator = torch.Generator().manual_seed(7)
    shuffled: dict[str, list[NDArray[Any]]] = {"token": [], "target": []}
    for _ in range(SHUFFLES):
        for side, direction in (("token", u[:, 0]), ("target", vh[0])):
            order = torch.randperm(32, generator=generator).numpy()
            shuffled[side].append(np.sort(table @ (sign * direction[order])))
    for side, direction in (("token", u[:, 0]), ("target", vh[0])):
        means = np.mean(shuffled[side], axis=0)
        expected = [*means[::-1][:5], *means[:5]]
        assert found[f"{side}_value_chance"].tolist() == pytest.approx(expected, rel=1e-3)
        sizes = [values[-10:].mean() - values[:10].mean() for values in shuffled[side]]
        own = np.sort(table @ direction)
        ratio = (own[-10:].mean() - own[:10].mean()) / np.mean(sizes)
        assert found[f"{side}_ratio"].iloc[0] == pytest.approx(ratio, rel=1e-3)
        assert found[f"{side}_ratio_chance"].iloc[0] == pytest.approx(max(sizes) / np.mean(sizes), rel=1e-3)


def plant(model: Any, values: list[float]) -> tuple[Tensor, Tensor]:
    """Give head 0 of layer 0 of a GPT-2 these singular values, and return its directions, [8, 32] each."""
    generator = torch.Generator().manual_seed(3)
    left, right = (torch.linalg.qr(torch.randn(32, 8, generator=generator)).Q for _ in range(2))
    block = model.transformer.h[0]
    with torch.no_grad():
        block.ln_1.weight.fill_(1)
        block.attn.c_attn.weight[:, :8] = left * torch.tensor(values)
        block.attn.c_attn.weight[:, 32:40] = right
    return left.T, right.T


def test_tokens_along_a_direction_are_at_its_ends_and_above_chance(tokenizer: Any) -> None:
    """Queries of w0 and w1 attend to keys of w2 and w3, queries of w4 to those of w5: the other end."""
    model = build(TINY_MODELS["gpt2"])
    left, right = plant(model, [5, 3, 2, 1.5, 1, 0.8, 0.5, 0.3])
    with torch.no_grad():
        table = model.transformer.wte.weight
        table /= table.std()
        for numbers, direction in (([4, 5], left[1]), ([6, 7], right[1]), ([8], -left[1]), ([9], -right[1])):
            for place, number in enumerate(numbers):
                table[number] = (20 + place) * direction
    found = attngeo.words(model, directions=2, top=2, tokenizer=tokenizer, device="cpu")
    second = found[found["direction"] == 2]
    assert second["kind"].tolist() == ["largest", "largest", "smallest", "smallest"]
    assert second["token"].tolist()[:3] == ["w1", "w0", "w4"]
    assert second["target"].tolist()[:3] == ["w3", "w2", "w5"]
    of_second = second.iloc[0]
    assert of_second["token_ratio"] > of_second["token_ratio_chance"]
    assert of_second["target_ratio"] > of_second["target_ratio_chance"]


def test_random_directions_reach_their_chance_but_not_beyond(tokenizer: Any) -> None:
    """By chance, one ratio in 21 is above the largest of 20 shuffles: here 128 are compared, and 15 would be many."""
    found = attngeo.words(
        build(TINY_MODELS["gpt2"]), layer="all", head="all", directions=8, top=1, tokenizer=tokenizer, device="cpu"
    )
    bands = found.drop_duplicates(["layer", "head", "direction"])
    above = sum(int((bands[f"{side}_ratio"] > bands[f"{side}_ratio_chance"]).sum()) for side in ("token", "target"))
    assert 0.9 < bands[["token_ratio", "target_ratio"]].to_numpy().mean() < 1.1
    assert above < 15


@pytest.mark.parametrize(("ratio", "bands"), [(0.951, [1, 1]), (0.949, [1, 2])])
def test_values_within_five_percent_of_each_other_are_a_band(ratio: float, bands: list[int]) -> None:
    assert number_bands(torch.tensor([2.0, 2.0 * ratio])).tolist() == bands


def test_a_band_does_not_depend_on_the_basis_of_its_directions(tokenizer: Any) -> None:
    """Equal singular values: a rotation of queries and keys leaves the matrix, and any basis is one of the band."""
    model = build(TINY_MODELS["gpt2"])
    left, right = plant(model, [2, 1, 1, 1, 0.5, 0.4, 0.3, 0.2])
    found = attngeo.words(model, directions=2, top=5, tokenizer=tokenizer, device="cpu")
    assert found["kind"].tolist() == ["largest"] * 5 + ["smallest"] * 5 + ["band"] * 5
    assert found[["direction", "last_direction"]].iloc[-1].tolist() == [2, 4]
    table = model.transformer.wte.weight.detach().numpy()
    band = found[found["kind"] == "band"]
    check_side(band, "token", np.linalg.norm(table @ left[1:4].T.numpy(), axis=1))
    check_side(band, "target", np.linalg.norm(table @ right[1:4].T.numpy(), axis=1))
    rotation = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(1))).Q
    with torch.no_grad():
        for columns in (slice(0, 8), slice(32, 40)):
            weights = model.transformer.h[0].attn.c_attn.weight
            weights[:, columns] = weights[:, columns] @ rotation
    again = attngeo.words(model, directions=2, top=5, tokenizer=tokenizer, device="cpu")
    band_again = again[again["kind"] == "band"]
    assert band_again["token_id"].tolist() == band["token_id"].tolist()
    assert band_again["token_value"].tolist() == pytest.approx(band["token_value"].tolist(), rel=1e-3)


def test_factors_that_are_not_finite_have_no_directions() -> None:
    left = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    left[1, 0, 0] = torch.nan
    found = singular_directions(left, left)
    assert all(part[1].isnan().all() and part[0].isfinite().all() for part in found)


@pytest.mark.parametrize("options", [{"directions": 3}, {}, {"circuit": "ov"}], ids=str)
def test_all_heads_are_the_heads_one_by_one(options: dict[str, Any], tokenizer: Any) -> None:
    model = build(TINY_MODELS["llama"])
    together = attngeo.words(model, layer="all", head="all", top=3, tokenizer=tokenizer, device="cpu", **options)
    alone = [
        attngeo.words(model, layer=layer, head=head, top=3, tokenizer=tokenizer, device="cpu", **options)
        for layer in range(2)
        for head in range(4)
    ]
    pd.testing.assert_frame_equal(together, pd.concat(alone, ignore_index=True))
    if options.get("circuit") == "ov":
        scores = [frame.attrs["copying_score"] for frame in alone]
        assert [row["copying_score"] for row in together.attrs["copying_scores"]] == scores
    of_layer = attngeo.words(model, layer=1, head="all", top=3, tokenizer=tokenizer, device="cpu", **options)
    assert of_layer["head"].unique().tolist() == [0, 1, 2, 3]
    assert set(of_layer["layer"]) == {1}


def test_a_head_without_so_many_directions_is_named(tokenizer: Any) -> None:
    model = build(TINY_MODELS["gpt2"])
    with refuses(UsageError, "9", "8", "directions"):
        attngeo.words(model, directions=9, tokenizer=tokenizer)
    with refuses(UsageError, "9", "8", "directions"):
        attngeo.words(model, layer="all", head="all", directions=9, tokenizer=tokenizer)
    plant(model, [3, 2, 1, 0, 0, 0, 0, 0])
    with refuses(UsageError, "4", "3", "directions"):
        attngeo.words(model, directions=4, tokenizer=tokenizer)
    found = attngeo.words(model, layer=0, head="all", directions=4, top=1, tokenizer=tokenizer)
    assert found[found["head"] == 0]["last_direction"].max() == 3


def test_a_head_whose_matrix_is_zero_is_left_out_or_refused(tokenizer: Any) -> None:
    model = build(TINY_MODELS["gpt2"])
    plant(model, [0] * 8)
    with refuses(UnsupportedModelError, "0.0", "zero"):
        attngeo.words(model, directions=1, tokenizer=tokenizer)
    found = attngeo.words(model, layer="all", head="all", directions=1, top=1, tokenizer=tokenizer)
    assert set(zip(found["layer"], found["head"], strict=True)) == {(0, 1), (0, 2), (0, 3), *((1, n) for n in range(4))}
    assert any("zero" in note and "0.0" in note for note in found.attrs["notes"])


def test_a_model_without_token_embeddings_is_refused(tokenizer: Any) -> None:
    with refuses(UnsupportedModelError, "token"):
        attngeo.words(build(TINY_MODELS["vit"]), directions=1, tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["--directions", "0"], ("--directions", "0", "1")),
        (["--directions", "999"], ("--directions", "999")),
        (["--directions", "2", "--tokens", "names.txt"], ("--directions", "--tokens")),
        (["--layer", "first"], ("--layer", "first", "all")),
        (["--head", "-1"], ("--head", "-1", "all")),
        (["--layer", "all", "--head", "9"], ("head 9", "layer 0")),
        (["--directions", "1", "--columns", "value"], ("value", "--columns")),
    ],
    ids=str,
)
def test_wrong_options_are_named(arguments: list[str], facts: tuple[str, ...], inside: Command, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("a\n")
    assert_fails(inside("words", "demo:encoder", *arguments, cwd=tmp_path), UsageError.exit_code, *facts)


@pytest.mark.parametrize(
    "arguments",
    [["--layer", "1", "--head", "2"], ["--layer", "1", "--head", "2", "--circuit", "ov"], ["--layer", "all"]],
    ids=str,
)
def test_the_command_prints_directions_on_a_narrow_terminal(
    arguments: list[str], inside: Command, tmp_path: Path
) -> None:
    run = inside("words", "demo:encoder", *arguments, "--directions", "2", "-o", "rows.parquet", cwd=tmp_path)
    assert run.returncode == 0
    assert max(map(len, run.stdout.splitlines())) <= 80
    side = "outputs write" if "ov" in arguments else "keys read"
    assert side in run.stdout
    assert "by chance" in run.stdout
    rows = pd.read_parquet(tmp_path / "rows.parquet")
    assert list(rows) == list(attngeo.columns("words", directions=2))
    assert rows["token"].iloc[0] in run.stdout


def test_tables_of_several_heads_are_kept_and_finished_layers_resume(
    inside: Command, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["words", "demo:encoder", "--layer", "all", "--directions", "1", "--top", "2", "-o", "rows.csv"]
    layers: list[int] = []
    count = directions.find_bands

    def interrupt(*arguments: Any) -> Any:
        if len(layers) == 2:
            raise KeyboardInterrupt
        layers.append(0)
        return count(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("attngeo.circuits.words.find_bands", interrupt)
        assert inside(*command, cwd=tmp_path).returncode == 130
    assert "2 of 3 layers from kept results" in inside(*command, cwd=tmp_path).stderr
    first = (tmp_path / "rows.csv").read_text()
    again = inside(*command, cwd=tmp_path)
    assert "from kept results" in again.stderr
    assert "gain" in again.stderr
    assert (tmp_path / "rows.csv").read_text() == first
    assert "words" in inside("cache", "list").stdout
    assert "kept" not in inside(*command, "--fresh", cwd=tmp_path).stderr
    assert (tmp_path / "rows.csv").read_text() == first
    assert len([*cache.glob("words/*.parquet")]) == 1


def test_kept_rows_are_of_one_tokenizer_and_one_head_is_not_kept(cache: Path, tmp_path: Path) -> None:
    """The labels of tokens are those of the tokenizer, which may change beside the same weights."""
    model = tmp_path / "model"
    build(TINY_MODELS["gpt2"]).save_pretrained(model)
    for names in (VOCABULARY, [*VOCABULARY[:4], *(f"v{number}" for number in range(60))]):
        tokenizer = word_piece(tmp_path / "tokenizer.json", names)
        found = attngeo.words(model, layer="all", top=2, tokenizer=tokenizer)
        assert set(found["token"]) <= set(names)
        attngeo.words(model, layer=0, top=2, tokenizer=tokenizer)
    assert len([*cache.glob("words/*.parquet")]) == 2
