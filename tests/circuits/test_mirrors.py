"""`attngeo.mirrors`: pairs of heads of formed matrices, planted pairs, the sign test, and what has no pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import binomtest
from support.checkpoints import CONFIG, weights, write_single
from support.dense import form_heads
from support.gguf_files import CONFIG as GGUF_CONFIG, Q4_0, draw_state, write_gguf
from support.messages import refuses
from support.packing import awq, pack_state, plain_int8
from support.peft_adapters import load_by_peft, write_adapter, write_base
from torch import Tensor

import attngeo
from attngeo.attention.weights import SiteWeights
from attngeo.circuits import mirrors as table, orientation
from attngeo.circuits.mirror_options import MIRROR_COLUMNS, ORIENTATION_COLUMNS
from attngeo.circuits.planning import meet, plan_readings
from attngeo.errors import CorruptCheckpointError, DataError, UnsupportedModelError, UsageError
from attngeo.layouts.positions import SiteRotation, find_rotation

# Fused weights, latent attention, GPT-2's orientation, ALiBi, tables, no positions, images, sound, encoder-decoders;
# rotary embeddings in halves, in neighbours, in a part of a head, and of one, several or all query heads.
FAMILIES = (
    "bert", "albert", "deberta", "modernbert", "roformer", "t5", "gpt2", "gptj", "gpt_neox", "bloom", "falcon-new",
    "llama", "qwen3", "gemma3_text", "olmo2", "phi3", "stablelm", "cohere", "deepseek_v2", "deepseek_v3", "vit",
    "whisper",
)  # fmt: skip
NUMBERS = ["mirror", "twin", "antisymmetric_cosine"]
Matrices = np.ndarray[Any, np.dtype[np.float64]]
Built = Callable[[str], Any]
# Stack, layer, head, other layer, other head.
Place = tuple[str, int, int, int, int]


def average(one: SiteWeights, two: SiteWeights, form: str) -> tuple[Matrices, Matrices]:
    """The means over offsets of tr(M_Δ·M'_−Δ) and ⟨M_Δ, M'_Δ⟩ of all heads of two sites."""
    points = one.wq.shape[-1] + 1 if form == "rotary" else 0
    offsets = range(points or 1)
    crossed, inner = [], []
    for offset in offsets:
        mine = form_heads(one, offset, points)
        ahead = form_heads(two, offset, points)
        back = form_heads(two, -offset, points).swapaxes(1, 2)
        crossed.append(mine.reshape(len(mine), -1) @ back.reshape(len(back), -1).T)
        inner.append(mine.reshape(len(mine), -1) @ ahead.reshape(len(ahead), -1).T)
    return np.mean(crossed, axis=0), np.mean(inner, axis=0)


def measure_pairs(one: SiteWeights, two: SiteWeights, form: str) -> dict[str, Matrices]:
    """The columns of all pairs of heads of two sites, by their definitions."""
    crossed, inner = average(one, two, form)
    of_one = (crossed, inner) if one is two else average(one, one, form)
    of_two = of_one if one is two else average(two, two, form)
    with np.errstate(invalid="ignore", divide="ignore"):
        sizes = np.sqrt(np.outer(*(products[1].diagonal() for products in (of_one, of_two))))
        skew = [(products[1] - products[0]).diagonal() / 2 for products in (of_one, of_two)]
        return {
            "mirror": crossed / sizes,
            "twin": inner / sizes,
            "antisymmetric_cosine": (inner - crossed) / 2 / np.sqrt(np.outer(*skew)),
            "symmetry_part": 2 * crossed / of_one[1].sum(),
        }


def read_sites(model: Any, **options: Any) -> dict[tuple[str, int], SiteWeights]:
    sites = attngeo.attention_sites(model, dtype=torch.float64, **options)
    return {
        (of.site.stack, of.site.layer): of for of in sites if not of.site.is_cross and of.wq.shape[1] == of.wk.shape[1]
    }


def assert_formed(rows: pd.DataFrame, sites: Mapping[tuple[str, int], SiteWeights], *, exact: float = 1e-6) -> None:
    """Every row is that of the formed matrices, and there are no others."""
    assert list(rows.columns) == list(MIRROR_COLUMNS)
    expected: dict[Place, dict[str, float]] = {}
    forms = dict(zip(zip(rows["stack"], rows["layer"], rows["other_layer"], strict=True), rows["form"], strict=True))
    for (stack, layer, other_layer), form in forms.items():
        values = measure_pairs(sites[stack, layer], sites[stack, other_layer], form)
        heads = len(sites[stack, layer].wq)
        pairs = combinations(range(heads), 2)
        if layer != other_layer:
            values["symmetry_part"] = np.full_like(values["mirror"], np.nan)
            pairs = product(range(heads), range(len(sites[stack, other_layer].wq)))
        for head, other in pairs:
            place = (stack, layer, head, other_layer, other)
            expected[place] = {name: column[head, other] for name, column in values.items()}
    assert len(rows) == len(expected)
    for row in rows.to_dict("records"):
        formed = expected[row["stack"], row["layer"], row["head"], row["other_layer"], row["other_head"]]
        got = {name: row[name] for name in formed}
        assert got == pytest.approx(formed, abs=exact, nan_ok=True), row


def assert_adds_up(rows: pd.DataFrame, scores: pd.DataFrame) -> None:
    """The symmetry of each layer is that of its heads alone and the parts of its pairs."""
    symmetry = scores.set_index(["stack", "layer"])["symmetry"]
    for layer in rows.attrs["symmetries"]:
        place = (layer["stack"], layer["layer"])
        of_layer = rows[(rows["stack"] == place[0]) & (rows["layer"] == place[1]) & (rows["other_layer"] == place[1])]
        assert layer["own_symmetry"] + of_layer["symmetry_part"].sum() == pytest.approx(layer["symmetry"], abs=1e-6)
        assert layer["symmetry"] == pytest.approx(symmetry[place], abs=1e-6)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_pair_is_that_of_formed_matrices(name: str, built: Built) -> None:
    """At offset 0, and over all rotary offsets."""
    model = built(name)
    sites = read_sites(model)
    plain = attngeo.mirrors(model, form="plain", precision="float64")
    assert set(plain["form"]) == {"plain"}
    assert_formed(plain, sites)
    assert_adds_up(plain, attngeo.score(model, precision="float64"))
    rotates = any(isinstance(find_rotation(of.site), SiteRotation) for of in sites.values())
    rows = attngeo.mirrors(model, precision="float64")
    assert ("rotary" in set(rows["form"])) == rotates
    assert_formed(rows, sites)
    assert not np.allclose(rows["mirror"], plain["mirror"], atol=1e-3) or not rotates


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "gemma3_text", "deepseek_v3"])
@pytest.mark.parametrize("form", ["auto", "plain"])
def test_heads_of_two_layers_are_compared_too(name: str, form: Any, built: Built) -> None:
    """Frequencies of two layers that differ count as equal, as for `compare`."""
    model = built(name)
    rows = attngeo.mirrors(model, across=True, form=form, precision="float64")
    across = rows[rows["layer"] != rows["other_layer"]]
    assert (across["layer"] < across["other_layer"]).all()
    assert not across["is_partner"].any()
    assert not across["shares_key_head"].any()
    assert_formed(rows, read_sites(model))
    within = attngeo.mirrors(model, form=form, precision="float64")
    same = rows[rows["layer"] == rows["other_layer"]].reset_index(drop=True)
    pd.testing.assert_frame_equal(same, within, check_exact=False)


@pytest.mark.parametrize("with_bias", [False, True])
def test_biases_and_gains_are_included(with_bias: bool, built: Built) -> None:
    options = {"with_bias": with_bias, "fold_norm": True}
    rows = attngeo.mirrors(built("gpt2"), precision="float64", across=True, **options)
    assert_formed(rows, read_sites(built("gpt2"), **options))


def write_files(name: str, folder: Path) -> tuple[str, dict[str, Any], Any]:
    """A model in files of a kind, the options that read it, and the model with the weights that these stand for."""
    if name == "adapter":
        base = write_base(folder / "base")
        adapter = write_adapter(folder / "adapter", base)
        return str(base), {"adapter": str(adapter)}, load_by_peft(base, adapter)
    config = GGUF_CONFIG | {"model_type": "llama"}
    if name == "gguf":
        path = folder / "four.gguf"
        decoded = write_gguf(path, draw_state(), Q4_0)
    else:
        packing: Any = {"int4": awq("gemm"), "int8": plain_int8()}[name]
        stored, decoded = pack_state(draw_state(), packing, lambda key, _: "_proj" in key)
        path = write_single(folder / "packed", stored, config | dict(packing.config))
    return str(path), {}, write_single(folder / "decoded", decoded, config)


@pytest.mark.parametrize("name", ["adapter", "gguf", "int4", "int8"])
def test_files_of_all_kinds_are_read(name: str, tmp_path: Path) -> None:
    path, options, decoded = write_files(name, tmp_path)
    rows = attngeo.mirrors(path, precision="float64", **options)
    assert set(rows["form"]) == {"rotary"}
    expected = attngeo.mirrors(decoded, precision="float64")
    columns = [*NUMBERS, "mirror_z", "symmetry_part"]
    np.testing.assert_allclose(rows[columns], expected[columns], rtol=1e-5, atol=1e-6)
    assert rows["note"].str.contains("with the update of").all() == (name == "adapter")


def plant(change: Callable[[Tensor, Tensor], None], folder: Path, *, layers: int = 2) -> str:
    """A LLaMA with 4 heads and 4 key heads, whose queries and keys [layers, 4, 6, 24] are changed."""
    config = CONFIG | {"num_key_value_heads": 4, "num_hidden_layers": layers}
    generator = torch.Generator().manual_seed(3)
    q, k = torch.randn(2, layers, 4, 6, 24, generator=generator)
    change(q, k)
    tensors = {}
    for layer in range(layers):
        for letter, x in (("q", q), ("k", k), ("v", q)):
            name = f"model.layers.{layer}.self_attn.{letter}_proj.weight"
            tensors[name] = x[layer].reshape(24, 24).clone()
    return str(write_single(folder, tensors, config))


def find_pair(rows: pd.DataFrame, *place: int) -> dict[str, Any]:
    """The row of layer, head, other_layer, other_head."""
    names = ["layer", "head", "other_layer", "other_head"]
    [row] = rows[(rows[names].to_numpy(int) == place).all(axis=1)].to_dict("records")
    return row


def test_heads_whose_queries_and_keys_are_exchanged_are_mirrors_and_copies_twins(tmp_path: Path) -> None:
    """Scaled, in one layer and in two. Exchanged across rotary pairs, they are mirrors at offset 0 only."""

    def change(q: Tensor, k: Tensor) -> None:
        q[0, 3], k[0, 3] = 2 * k[0, 0], q[0, 0].clone()
        q[0, 2], k[0, 2] = q[0, 1].clone(), 3 * k[0, 1]
        q[1, 0], k[1, 0] = k[0, 0].clone(), q[0, 0].clone()
        q[1, 1], k[1, 1] = q[0, 1].clone(), k[0, 1].clone()
        q[1, 2], k[1, 2] = k[0, 0].roll(1, 0), q[0, 0].roll(1, 0)

    path = plant(change, tmp_path)
    rows = attngeo.mirrors(path, across=True, precision="float64")
    for place in ((0, 0, 0, 3), (0, 0, 1, 0)):
        row = find_pair(rows, *place)
        assert (row["mirror"], row["antisymmetric_cosine"]) == (pytest.approx(1), pytest.approx(-1))
        assert row["twin"] < 0.5
        assert row["mirror_z"] > 8
    for place in ((0, 1, 0, 2), (0, 1, 1, 1)):
        row = find_pair(rows, *place)
        assert (row["twin"], row["antisymmetric_cosine"]) == (pytest.approx(1), pytest.approx(1))
    assert find_pair(rows, 0, 0, 0, 3)["is_partner"]
    assert find_pair(rows, 0, 1, 0, 2)["is_partner"]
    assert find_pair(rows, 0, 0, 1, 2)["mirror"] < 0.7
    plain = attngeo.mirrors(path, across=True, precision="float64", form="plain")
    assert find_pair(plain, 0, 0, 1, 2)["mirror"] == pytest.approx(1)


def test_the_order_of_heads_changes_only_their_numbers(tmp_path: Path) -> None:
    order = [2, 0, 3, 1]

    def permute(q: Tensor, k: Tensor) -> None:
        for x in (q, k):
            x[:] = x[:, order].clone()

    rows = attngeo.mirrors(plant(lambda _, __: None, tmp_path / "a"), precision="float64")
    moved = attngeo.mirrors(plant(permute, tmp_path / "b"), precision="float64")
    for row in moved.to_dict("records"):
        pair = sorted((order[row["head"]], order[row["other_head"]]))
        before = find_pair(rows, row["layer"], pair[0], row["other_layer"], pair[1])
        for name in (*NUMBERS, "mirror_z", "symmetry_part"):
            assert row[name] == pytest.approx(before[name], rel=1e-6, abs=1e-9)
        assert row["is_partner"] == before["is_partner"]


def test_transposed_heads_leave_everything_but_the_sign(tmp_path: Path) -> None:
    """Of one head, queries and keys exchanged: mirrors become twins, and partners stay."""

    def transpose(q: Tensor, k: Tensor) -> None:
        q[:, 1], k[:, 1] = k[:, 1].clone(), q[:, 1].clone()

    rows = attngeo.mirrors(plant(lambda _, __: None, tmp_path / "a"), precision="float64")
    turned = attngeo.mirrors(plant(transpose, tmp_path / "b"), precision="float64")
    has_head = (rows["head"] == 1) | (rows["other_head"] == 1)
    np.testing.assert_allclose(turned["mirror"], rows["mirror"].where(~has_head, rows["twin"]), atol=1e-6)
    sign = np.where(has_head, -1, 1)
    np.testing.assert_allclose(turned["antisymmetric_cosine"], sign * rows["antisymmetric_cosine"], atol=1e-6)
    assert turned["is_partner"].tolist() == rows["is_partner"].tolist()


def test_heads_that_share_keys_are_no_partners() -> None:
    rows = attngeo.mirrors(make_llama())
    assert rows["shares_key_head"].tolist() == [True, False, False, False, False, True] * 2
    assert not (rows["shares_key_head"] & rows["is_partner"]).any()
    partners = rows[rows["is_partner"]]
    assert partners.groupby("layer").size().tolist() == [2, 2]
    for _, pairs in partners.groupby("layer"):
        assert sorted([*pairs["head"], *pairs["other_head"]]) == [0, 1, 2, 3]


def make_llama() -> Any:
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    sizes = CONFIG | {"vocab_size": 50, "intermediate_size": 8}
    return LlamaModel(LlamaConfig(**{name: value for name, value in sizes.items() if name != "model_type"}))


def test_known_pairs_of_minilm() -> None:
    """The values of formed matrices, and the sign test over all layers."""
    rows = attngeo.mirrors("demo:minilm")
    for place, mirror, twin in (((4, 6, 4, 7), 0.69, 0.06), ((1, 8, 1, 9), 0.52, 0.12), ((2, 8, 2, 11), 0.51, 0.11)):
        row = find_pair(rows, *place)
        assert row["mirror"] == pytest.approx(mirror, abs=0.005)
        assert row["twin"] == pytest.approx(twin, abs=0.005)
    [test] = rows.attrs["sign_tests"]
    assert (test["layers"], test["partners"], test["opposite"], test["alike"]) == (6, 36, 12, 24)
    assert test["p_value"] == pytest.approx(binomtest(12, 36).pvalue)
    assert_adds_up(rows, attngeo.score("demo:minilm"))


@pytest.mark.parametrize("suffix", ["parquet", "csv", "json"])
def test_a_file_gives_the_same_sign_test(suffix: str, tmp_path: Path, inside: Callable[..., Any]) -> None:
    """Of each stack of each model."""
    path = tmp_path / f"pairs.{suffix}"
    models = ["demo:encoder", "demo:decoder"]
    done = inside("mirrors", *models, "-o", path, "-q")
    assert done.returncode == 0, done.stderr
    read: dict[str, Callable[[Path], pd.DataFrame]] = {
        "parquet": pd.read_parquet, "csv": pd.read_csv, "json": pd.read_json,
    }  # fmt: skip
    judged = orientation.judge_orientation(read[suffix](path))
    assert list(judged.columns) == list(ORIENTATION_COLUMNS)
    for model, test in zip(models, judged.to_dict("records"), strict=True):
        assert [{"model": model} | expected for expected in attngeo.mirrors(model).attrs["sign_tests"]] == [test]


def test_a_table_without_partners_is_refused() -> None:
    rows = attngeo.mirrors("demo:encoder", layers=[0])
    with pytest.raises(DataError, match="is_partner"):
        orientation.judge_orientation(rows.drop(columns="is_partner"))


def test_heads_that_are_zero_symmetric_or_not_finite_say_so(tmp_path: Path) -> None:
    def change(q: Tensor, k: Tensor) -> None:
        q[0, 1] = 0
        k[0, 2] = q[0, 2]
        q[1, 3, 0, 0] = torch.nan

    rows = attngeo.mirrors(plant(change, tmp_path), form="plain", across=True)
    for row in rows.to_dict("records"):
        heads = {(row["layer"], row["head"]), (row["other_layer"], row["other_head"])}
        is_missing = bool(heads & {(0, 1), (1, 3)})
        assert math.isnan(row["mirror"]) == math.isnan(row["twin"]) == math.isnan(row["mirror_z"]) == is_missing
        assert math.isnan(row["antisymmetric_cosine"]) == (is_missing or (0, 2) in heads)
        assert ("head 1 of layer 0 is zero" in row["note"]) == ((0, 1) in heads)
        assert ("head 3 of layer 1 has NaN or Inf" in row["note"]) == ((1, 3) in heads)
        assert ("symmetric" in row["note"]) == ((0, 2) in heads and not is_missing)
        assert not (is_missing and row["is_partner"])
    first, second = rows.attrs["symmetries"]
    assert math.isfinite(first["symmetry"])
    assert math.isnan(second["symmetry"])
    [test] = rows.attrs["sign_tests"]
    assert test["partners"] == test["opposite"] + test["alike"] == 2


def test_cross_attention_and_unknown_rotations_are_named(built: Built, tmp_path: Path) -> None:
    rows = attngeo.mirrors(built("t5"))
    assert set(rows["stack"]) == {"encoder", "decoder"}
    assert all("cross-attention" in reason for reason in rows.attrs["skipped"].values())
    with refuses(UnsupportedModelError, "cross-attention"):
        attngeo.mirrors(built("t5"), stack="cross")
    unknown = CONFIG | {"rope_scaling": {"rope_type": "unheard", "factor": 2.0}}
    path = write_single(tmp_path, weights(), unknown)
    rows = attngeo.mirrors(path)
    assert set(rows["form"]) == {"plain"}
    assert rows["note"].str.contains("only at relative offset 0: .*unheard").all()
    with refuses(UsageError, "form", "unheard", "plain"):
        attngeo.mirrors(path, form="rotary")


def test_a_model_without_pairs_says_so(tmp_path: Path) -> None:
    config = CONFIG | {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 24}
    one = {name: torch.randn(24, 24) for name in weights() if "_proj" in name}
    path = write_single(tmp_path, one, config)
    with refuses(UnsupportedModelError, "two heads", "across"):
        attngeo.mirrors(path)
    rows = attngeo.mirrors(path, across=True)
    assert rows[["layer", "head", "other_layer", "other_head"]].values.tolist() == [[0, 0, 1, 0]]
    with refuses(UnsupportedModelError, "two heads"):
        attngeo.mirrors(path, across=True, layers=[1])


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"form": "both"}, ("form", "both", "rotary")),
        ({"form": "rotary"}, ("form", "no rotary embeddings", "plain")),
        ({"layers": [9]}, ("layers", 9)),
        ({"stack": "decoder"}, ("stack", "decoder", "encoder")),
        ({"precision": "fast"}, ("precision", "float64")),
        ({"memory": "much"}, ("memory", "much")),
    ],
)
def test_wrong_options(options: dict[str, Any], facts: tuple[object, ...]) -> None:
    with refuses(UsageError, *facts):
        attngeo.mirrors("demo:minilm", **options)


def test_an_invalid_rotation_is_an_error_that_plain_does_not_meet(tmp_path: Path) -> None:
    path = write_single(tmp_path, weights(), CONFIG | {"rope_theta": "many"})
    with refuses(CorruptCheckpointError, "rotary"):
        attngeo.mirrors(path)
    assert len(attngeo.mirrors(path, form="plain")) == 12


@pytest.mark.usefixtures("cache")
def test_with_little_memory_layers_are_read_again_and_nothing_else_changes() -> None:
    expected = attngeo.mirrors("demo:encoder", across=True)
    assert (expected.attrs["layers_read"], expected.attrs["readings"]) == (3, 3)
    rows = attngeo.mirrors("demo:encoder", across=True, memory=1, fresh=True)
    assert rows.attrs["readings"] > 3
    pd.testing.assert_frame_equal(rows, expected)
    assert attngeo.mirrors("demo:encoder", memory=1).attrs["readings"] == 3


def test_finished_layers_are_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an interruption, those that are left are read alone; then nothing is."""
    from attngeo.circuits import mirroring

    expected = attngeo.mirrors("demo:encoder", fresh=True)
    for file in cache.rglob("*.parquet"):
        file.unlink()
    compare = mirroring._compare_within
    count = 0

    def interrupt(measured: mirroring.MeasuredHeads) -> Any:
        nonlocal count
        count += 1
        if count > 1:
            raise KeyboardInterrupt
        return compare(measured)

    monkeypatch.setattr(mirroring, "_compare_within", interrupt)
    with pytest.raises(KeyboardInterrupt):
        attngeo.mirrors("demo:encoder")
    monkeypatch.setattr(mirroring, "_compare_within", compare)
    rows = attngeo.mirrors("demo:encoder")
    assert rows.attrs["layers_read"] == 2
    pd.testing.assert_frame_equal(rows, expected)
    monkeypatch.delattr(mirroring, "_compare_within")
    kept = attngeo.mirrors("demo:encoder")
    pd.testing.assert_frame_equal(kept, expected)
    assert kept.attrs["sign_tests"] == expected.attrs["sign_tests"]
    assert kept.attrs["symmetries"] == expected.attrs["symmetries"]


def test_a_kept_record_with_missing_pairs_is_damaged() -> None:
    record: dict[str, Any] = {"heads": 3, "other_heads": 3, "layer": 0, "other_layer": 0}
    record |= {name: [0.0] * 3 for name in (*table.OF_PAIRS, *table.OF_HEADS)}
    assert table.MIRROR_FORM.is_sound is not None
    assert table.MIRROR_FORM.is_sound(record)
    assert not table.MIRROR_FORM.is_sound(record | {"twin": [0.0] * 2})
    assert not table.MIRROR_FORM.is_sound(record | {"norms": [0.0]})
    assert not table.MIRROR_FORM.is_sound(record | {"other_layer": 1})
    assert not table.MIRROR_FORM.is_sound(record | {"mirror": None})


@pytest.mark.parametrize("memory", [1, 2, 3, 10])
@pytest.mark.parametrize("done", [(), ((0, 0), (1, 1), (0, 1), (2, 3)), ((0, 1), (0, 2), (0, 3), (0, 0))])
def test_each_site_and_pair_of_sites_is_met_once(memory: int, done: tuple[tuple[int, int], ...]) -> None:
    """Also those that an interruption left."""
    pairs = [pair for pair in [*zip(range(4), range(4), strict=True), *combinations(range(4), 2)] if pair not in done]
    plan = plan_readings([1] * 4, pairs, memory)

    def read() -> Iterator[int]:
        for reading in plan:
            yield reading.number

    met = [(one, two) for _, one, two in meet(plan, read(), dict(enumerate(pairs)))]
    assert sorted(met) == sorted(pairs)


def test_sites_by_themselves_do_not_stay_in_memory() -> None:
    plan = plan_readings([1] * 4, [(number, number) for number in range(4)], 10)
    assert [(reading.number, reading.stays) for reading in plan] == [(number, False) for number in range(4)]


def test_bytes_are_those_of_the_heads_in_memory(built: Built) -> None:
    from attngeo.circuits.mirroring import count_bytes

    for name in ("llama", "gpt2"):
        for of in attngeo.attention_sites(built(name)):
            factors = of.wq.nbytes + of.wk.nbytes
            assert factors <= count_bytes(of.site, torch.float32) <= 20 * factors


def test_the_weights_of_a_file_are_not_changed(tmp_path: Path) -> None:
    path = write_single(tmp_path, weights())
    before = load_file(path / "model.safetensors")
    attngeo.mirrors(path)
    after = load_file(path / "model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)
