"""`attngeo.lineage`: which models are related, what the test does not see and says so, and what is read and kept."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import transformers
from support.checkpoints import CONFIG, weights, write_single
from support.hub_client import reach_hub
from support.hub_server import serve
from support.messages import refuses
from support.origins import (
    Tensors,
    add_noise,
    permutation,
    prune,
    reorder_heads,
    rotation,
    round_to,
    turn_stream,
    write_model,
)
from support.packing import PACKINGS, pack_state
from support.peft_adapters import write_adapter, write_base
from support.tiny_models import SEQ2SEQ, TINY_MODELS
from transformers import IJepaConfig, IJepaModel

import attngeo
import attngeo.embeddings
from attngeo.attention.finding import sites_of
from attngeo.checkpoints.opening import open_store
from attngeo.errors import ModelNotFoundError, UnsupportedModelError, UsageError
from attngeo.geometry.lineage import draw_coordinates
from attngeo.geometry.matching import match_heads
from attngeo.geometry.positions import are_sinusoids
from attngeo.layouts.positions import find_table, find_unlike_coordinates
from attngeo.progress import Progress

Built = Callable[[str], Any]
Saved = Callable[[str], Path]
LAYERS, HEADS, KEY_HEADS, HEAD_DIM, WIDTH = 3, 4, 2, 8, 64
MODEL = {
    "model_type": "llama", "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS,
    "head_dim": HEAD_DIM, "num_hidden_layers": LAYERS,
}  # fmt: skip


def draw(seed: int, layers: int = LAYERS, width: int = WIDTH) -> Tensors:
    """Random queries, keys, gains before them, and embeddings of a LLaMA."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {"model.embed_tokens.weight": torch.randn(200, width, generator=generator)}
    for layer in range(layers):
        for letter, heads in (("q", HEADS), ("k", KEY_HEADS)):
            weight = torch.randn(heads * HEAD_DIM, width, generator=generator)
            tensors[f"model.layers.{layer}.self_attn.{letter}_proj.weight"] = weight
        gain = torch.rand(width, generator=generator) + 0.5
        tensors[f"model.layers.{layer}.input_layernorm.weight"] = gain
    return tensors


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("lineage") / "model", draw(0), MODEL)


def measure_formed(folder: Path, other: Path, bases: list[torch.Tensor]) -> list[float]:
    """The similarity with the other model in each basis of its stream, from forms of pairs in double precision."""

    def form_pairs(path: Path) -> list[torch.Tensor]:
        """q̄·kᵀ of each pair of each head, [heads, pairs, n, n] of each layer."""
        forms = []
        for _, wq, wk in attngeo.attention_sites(path, fold_norm=True, dtype=torch.float64):
            half = HEAD_DIM // 2
            q = torch.complex(wq[..., :half], wq[..., half:]).conj()
            k = torch.complex(wk[..., :half], wk[..., half:])
            forms.append(torch.einsum("hnp,hmp->hpnm", q, k[[0, 0, 1, 1]]))
        return forms

    groups = [0, 0, 1, 1]
    similarities = []
    for basis in bases:
        means = []
        for ours, theirs in zip(form_pairs(folder), form_pairs(other), strict=True):
            moved = basis.T.to(theirs) @ theirs @ basis.to(theirs)
            products = torch.einsum("hpnm,gpnm->hg", ours, moved.conj()).real
            norms = ours.flatten(1).norm(dim=1)[:, None] * moved.flatten(1).norm(dim=1)
            cosines = products / norms
            matched = match_heads(cosines, groups, groups)
            means.append(float(cosines[range(HEADS), matched].mean()))
        similarities.append(sum(means) / len(means))
    return similarities


def test_similarity_p_and_z_are_those_of_formed_matrices(folder: Path, tmp_path: Path) -> None:
    other = write_model(tmp_path, add_noise(draw(0), 6, seed=1), MODEL)
    drawn = draw_coordinates(WIDTH, 19, seed=4)
    identity = torch.eye(WIDTH)
    observed, *permuted = measure_formed(folder, other, [identity, *(identity[:, order] for order in drawn.orders)])
    flipped = measure_formed(folder, other, [signs.diag() for signs in drawn.signs])
    row = attngeo.lineage(folder, other, n_permutations=19, seed=4).iloc[0]
    assert row["similarity"] == pytest.approx(observed, rel=1e-5)
    assert row["p_value"] == (1 + sum(value >= observed for value in permuted)) / 20
    spreads = [torch.tensor(values, dtype=torch.float64) for values in (permuted, flipped)]
    expected = min(float((observed - spread.mean()) / spread.std()) for spread in spreads)
    assert row["similarity_z"] == pytest.approx(expected, rel=1e-4)


DESCENDANTS: dict[str, Callable[[Tensors], Tensors]] = {
    "noise": lambda tensors: add_noise(tensors, 1, seed=1),
    "pruned 80%": lambda tensors: prune(tensors, 0.8),
    "int3": lambda tensors: round_to(tensors, 3),
    "half precision": lambda tensors: {name: tensor.bfloat16() for name, tensor in tensors.items()},
    "merged": lambda tensors: {
        name: (tensor + add_noise(tensors, 1, seed=3)[name]) / 2
        for name, tensor in add_noise(tensors, 1, seed=2).items()
    },
    "heads": lambda tensors: reorder_heads(tensors, HEADS, KEY_HEADS, seed=1),
}


@pytest.mark.parametrize("make", DESCENDANTS.values(), ids=DESCENDANTS.keys())
def test_descendants_are_related(make: Callable[[Tensors], Tensors], folder: Path, tmp_path: Path) -> None:
    row = attngeo.lineage(folder, write_model(tmp_path, make(draw(0)), MODEL)).iloc[0]
    assert row["related"]
    assert row["similarity_z"] > 10
    assert row["p_value"] == 1 / 200
    assert row["similarity"] > 0.4
    assert row["layers"] == "decoder layers 0-2"
    assert "drawn independently" in row["note"]
    assert "cannot tell which model came first" in row["note"]


def test_reordered_turned_and_rescaled_heads_are_the_same(folder: Path, tmp_path: Path) -> None:
    other = write_model(tmp_path, reorder_heads(draw(0), HEADS, KEY_HEADS, seed=2), MODEL)
    assert attngeo.lineage(folder, other)["similarity"].item() == pytest.approx(1, abs=1e-6)


def test_quantised_checkpoints_and_models_in_memory_are_candidates(folder: Path, tmp_path: Path, built: Built) -> None:
    packing = PACKINGS["int8-plain"]
    stored, _ = pack_state(draw(0), packing, lambda name, _: "proj" in name)
    packed = write_single(tmp_path / "packed", stored, MODEL | packing.config)
    assert attngeo.lineage(folder, packed, n_permutations=19)["related"].tolist() == [True]
    model = built("llama")
    saved = tmp_path / "saved"
    model.save_pretrained(saved)
    row = attngeo.lineage(model, saved, n_permutations=19).iloc[0]
    assert (row["related"], row["model"]) == (True, type(model).__name__)


def test_adapters_are_candidates(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base")
    row = attngeo.lineage(base, write_adapter(tmp_path / "adapter", base), n_permutations=19).iloc[0]
    assert row["p_value"] == 1 / 20  # the least that 19 permutations can give
    assert 0.2 < row["similarity"] < 0.999


def test_strangers_are_no_evidence_of_anything(folder: Path, tmp_path: Path) -> None:
    others = [write_model(tmp_path / str(seed), draw(seed), MODEL) for seed in range(1, 6)]
    rows = attngeo.lineage(folder, others)
    assert list(rows.columns) == list(attngeo.columns("lineage"))
    assert str(rows["related"].dtype) == "boolean"
    assert rows["related"].tolist() == [False] * 5
    assert rows["verdict"].tolist() == ["no evidence"] * 5
    assert rows["similarity_z"].abs().max() < 5
    for note in rows["note"]:
        assert "no evidence: this test misses copies with a rotated stream" in note
        assert not re.search("independent(?!ly)|confirm", note)


@pytest.mark.parametrize(("noise", "related"), [(6.6, True), (6.9, False)])
def test_models_are_related_from_ten_standard_deviations_on(
    noise: float, related: bool, folder: Path, tmp_path: Path
) -> None:
    other = write_model(tmp_path, add_noise(draw(0), noise, seed=1), MODEL)
    row = attngeo.lineage(folder, other, n_permutations=29).iloc[0]
    assert row["similarity_z"] == pytest.approx(10.5 if related else 9.5, abs=0.4)
    # What is above all strangers, but not above the limit, is no evidence of independence, either.
    assert row["verdict"] == ("related" if related else "suspicious")
    assert pd.isna(row["related"]) if not related else row["related"]
    assert ("between 5 (never exceeded by independent models so far)" in row["note"]) is not related


@pytest.mark.parametrize(("width", "note"), [(512, False), (513, True)])
def test_up_to_512_coordinates_are_compared(width: int, note: bool, tmp_path: Path) -> None:
    config = MODEL | {"hidden_size": width, "num_hidden_layers": 1}
    folders = [write_model(tmp_path / str(seed), draw(seed, 1, width), config) for seed in (0, 1)]
    row = attngeo.lineage(*folders, n_permutations=19).iloc[0]
    assert (f"512 of {width} coordinates" in row["note"]) is note
    assert row["p_value"] > 1 / 20


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("kind", ["permuted", "rotated"])
def test_another_stream_is_never_called_unrelated(kind: str, align: bool, folder: Path, tmp_path: Path) -> None:
    matrix = permutation(WIDTH, 1) if kind == "permuted" else rotation(WIDTH, 1)
    other = write_model(tmp_path, turn_stream(add_noise(draw(0), 1e-3, seed=1), matrix), MODEL)
    row = attngeo.lineage(folder, other, align=align).iloc[0]
    if kind == "permuted" and align:
        assert row["related"]
        assert row["similarity"] == pytest.approx(1, abs=1e-3)
        assert "200 rows of the embeddings" in row["note"]
        assert row["p_value"] == 1 / 20  # none of 19 other bases is as similar
    else:
        assert row.isna()["related"]
        assert row["verdict"] == "suspicious"
        assert row["note"].startswith("heads have equal singular values")
        assert ("run again with --align" in row["note"]) is not align
        assert ("a rotated copy cannot be excluded" in row["note"]) is align
        assert row["similarity_z"] < 10


@pytest.mark.parametrize("lacking", ["model", "candidate"])
def test_to_align_is_advised_only_if_it_can_decide(lacking: str, tmp_path: Path) -> None:
    tensors = {"model": draw(0), "candidate": turn_stream(draw(0), permutation(WIDTH, 1))}
    del tensors[lacking]["model.embed_tokens.weight"]
    folders = {name: write_model(tmp_path / name, stored, MODEL) for name, stored in tensors.items()}
    row = attngeo.lineage(folders["model"], folders["candidate"], n_permutations=19).iloc[0]
    assert row["verdict"] == "suspicious"
    assert "run again" not in row["note"]
    assert "--align cannot look for a permuted copy: it needs token embeddings" in row["note"]


def test_strangers_stay_strangers_if_their_streams_are_aligned(folder: Path, tmp_path: Path) -> None:
    others = [write_model(tmp_path / str(seed), draw(seed), MODEL) for seed in range(1, 6)]
    rows = attngeo.lineage(folder, others, align=True)
    assert rows["related"].tolist() == [False] * 5
    assert rows["similarity_z"].abs().max() < 6


def test_strangers_that_use_tokens_alike_stay_strangers_if_their_streams_are_aligned(
    folder: Path, tmp_path: Path
) -> None:
    """Embeddings and forms are the same functions of tokens, in bases that have nothing to do with each other."""
    shared = turn_stream(draw(0), rotation(WIDTH, 1))
    rows = attngeo.lineage(folder, write_model(tmp_path, add_noise(shared, 0.5, seed=1), MODEL), align=True)
    assert rows["related"].tolist() == [False]
    assert rows["p_value"].item() > 0.05
    assert rows["similarity"].item() > 0.02  # far above what permutations give


def test_strangers_whose_gains_are_alike_stay_strangers(tmp_path: Path) -> None:
    """Which coordinates are large is no sign of an origin: a tool may have sorted them."""
    gain = torch.randn(WIDTH, generator=torch.Generator().manual_seed(99)).exp()
    models = []
    for seed in range(4):
        tensors = draw(seed)
        for name in tensors:
            if name.endswith("layernorm.weight"):
                tensors[name] = gain.clone()
        models.append(write_model(tmp_path / str(seed), tensors, MODEL))
    rows = attngeo.lineage(models[0], models[1:])
    assert rows["related"].tolist() == [False] * 3
    assert rows["similarity_z"].max() < 5


def test_strangers_whose_large_coordinates_are_aligned_stay_strangers(tmp_path: Path) -> None:
    """Few coordinates are much larger than others in both models, and mean the same, for example how common a token is.

    Turned streams have none, so that heads of strangers that are matched are more similar than those in turned ones.
    """
    models = []
    shared = torch.randn(200, 4, generator=torch.Generator().manual_seed(99))
    for seed in range(4):
        tensors = draw(seed)
        chosen = permutation(WIDTH, seed).argmax(1)[:4]
        tensors["model.embed_tokens.weight"][:, chosen] += 5 * shared
        for name, gain in tensors.items():
            if name.endswith("layernorm.weight"):
                gain[chosen] = 6
        models.append(write_model(tmp_path / str(seed), tensors, MODEL))
    rows = attngeo.lineage(models[0], models[1:], align=True)
    assert rows["related"].tolist() == [False] * 3
    assert rows["similarity_z"].max() < 6


def test_layers_that_both_have_are_compared(folder: Path, tmp_path: Path) -> None:
    shorter = write_model(tmp_path / "a", draw(0, layers=2), MODEL | {"num_hidden_layers": 2})
    row = attngeo.lineage(folder, shorter, n_permutations=19).iloc[0]
    assert (row["related"], row["layers"]) == (True, "decoder layers 0-1")
    # The stack of an encoder that was made a decoder has another name.
    row = attngeo.lineage("demo:encoder", "demo:decoder", n_permutations=19).iloc[0]
    assert row["layers"] == "encoder layers 0-2"


def test_models_that_the_test_does_not_apply_to_are_missing_with_a_reason(
    folder: Path, tmp_path: Path, saved: Saved
) -> None:
    wider = write_model(tmp_path / "wider", draw(0, width=80), MODEL | {"hidden_size": 80})
    same = write_model(tmp_path / "same", draw(0), MODEL)
    rows = attngeo.lineage(folder, [wider, saved("bart"), same], n_permutations=19)
    assert rows["related"].isna().tolist() == [True, True, False]
    assert rows["verdict"].tolist() == ["not testable", "not testable", "related"]
    assert rows[["similarity", "p_value", "similarity_z"]].isna().all(axis=1).tolist() == [True, True, False]
    assert rows["layers"].tolist() == ["", "", "decoder layers 0-2"]
    for row, facts in zip(rows.to_dict("records"), (("64", "80", "sizes"), ("sizes",)), strict=False):
        assert row["note"].startswith("the test does not apply: ")
        assert all(fact in row["note"] for fact in facts)


def test_weights_that_are_zero_have_no_outcome(folder: Path, tmp_path: Path) -> None:
    nothing = {name: torch.zeros_like(tensor) for name, tensor in draw(0).items()}
    row = attngeo.lineage(folder, write_model(tmp_path, nothing, MODEL), n_permutations=19).iloc[0]
    assert row.isna()["related"]
    assert row["verdict"] == "not testable"
    assert row.isna()["similarity_z"]
    assert "same similarity" in row["note"]
    assert row["note"].endswith(
        "12 of 12 heads of the candidate are zero or not finite, and count as similar to no head"
    )


def test_heads_without_a_form_are_counted(folder: Path, tmp_path: Path) -> None:
    tensors = draw(0)
    tensors["model.layers.0.self_attn.k_proj.weight"][0, 0] = torch.nan  # heads 0 and 1 share this key head
    tensors["model.layers.1.self_attn.q_proj.weight"][:HEAD_DIM] = 0
    broken = write_model(tmp_path / "broken", tensors, MODEL)
    row = attngeo.lineage(folder, broken, n_permutations=19).iloc[0]
    assert (row["related"], row["similarity"]) == (True, pytest.approx(9 / 12))
    assert row["note"].endswith(
        "3 of 12 heads of the candidate are zero or not finite, and count as similar to no head"
    )
    row = attngeo.lineage(broken, folder, n_permutations=19).iloc[0]
    assert row["note"].endswith("3 of 12 heads of the model are zero or not finite, and count as similar to no head")


def test_other_rotations_are_in_the_note(folder: Path, tmp_path: Path) -> None:
    longer = write_model(tmp_path / "longer", draw(0), MODEL | {"rope_theta": 1e6})
    partial = write_model(tmp_path / "partial", draw(0), MODEL | {"partial_rotary_factor": 0.5})
    notes = attngeo.lineage(folder, [longer, partial], n_permutations=19)["note"]
    assert "rotary frequencies differ: compared pair by pair" in notes[0]
    assert "8 and 4 dimensions rotate: compared only at relative offset 0" in notes[1]


TINY_SIZES = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
}  # fmt: skip


def test_streams_with_fixed_sinusoids_are_left_out(saved: Saved, tmp_path: Path, built: Built) -> None:
    row = attngeo.lineage(built("whisper"), saved("whisper"), n_permutations=19).iloc[0]
    assert row["layers"].startswith("decoder")
    assert "left out: encoder: its position embeddings are fixed sinusoids" in row["note"]
    row = attngeo.lineage(built("vit_mae"), saved("vit_mae"), n_permutations=19).iloc[0]
    assert row.isna()["related"]
    assert "its position embeddings are fixed sinusoids" in row["note"]
    # The tables of published models are sinusoids that were not trained; a new model of transformers has random ones.
    sizes = {name: size for name, size in TINY_SIZES.items() if name != "vocab_size"}
    model = IJepaModel(IJepaConfig(image_size=16, patch_size=4, **sizes))
    row = attngeo.lineage(model, deepcopy(model), n_permutations=19).iloc[0]
    assert row.isna()["related"]
    assert "its position embeddings are fixed sinusoids" in row["note"]
    unknown = write_single(tmp_path, weights(), CONFIG | {"model_type": "unknown"})
    row = attngeo.lineage(unknown, write_single(tmp_path / "b", weights(), CONFIG), n_permutations=19).iloc[0]
    assert row.isna()["related"]
    assert "is unknown" in row["note"]


# Model types whose embeddings are parts beside each other: the part that a coordinate is in tells it apart.
JOINED: dict[str, dict[str, Any]] = {
    "canine": TINY_SIZES,
    "layoutlmv3": TINY_SIZES | {"coordinate_size": 4, "shape_size": 8, "max_2d_position_embeddings": 64},
    "reformer": {
        "hidden_size": 32,
        "num_attention_heads": 2,
        "attention_head_size": 16,
        "attn_layers": ["local"],
        "axial_pos_embds_dim": [16, 16],
        "feed_forward_size": 8,
    },
}


@pytest.mark.parametrize("model_type", JOINED)
@pytest.mark.filterwarnings("ignore")
def test_streams_whose_embeddings_are_joined_are_left_out(model_type: str) -> None:
    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(model_type, **JOINED[model_type]))
    row = attngeo.lineage(model, deepcopy(model), n_permutations=19).iloc[0]
    assert row.isna()["related"]
    assert "its embeddings are concatenated from parts" in row["note"]


SERIES = {name: value for name, value in SEQ2SEQ.items() if "layers" in name or "ffn" in name or name == "d_model"} | {
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "prediction_length": 4, "context_length": 8,
}  # fmt: skip
XLM = {"vocab_size": 64, "emb_dim": 32, "n_layers": 1, "n_heads": 4, "sinusoidal_embeddings": True}
# Model types that store sinusoids, made by transformers.
SINUSOIDAL: dict[str, dict[str, Any]] = {
    "marian": SEQ2SEQ, "pegasus": SEQ2SEQ, "fsmt": SEQ2SEQ | {"langs": ["en", "de"], "tgt_vocab_size": 64},
    "informer": SERIES, "time_series_transformer": SERIES,
    "xlm": XLM, "flaubert": XLM,
    "distilbert": {
        "vocab_size": 64, "dim": 32, "n_layers": 1, "n_heads": 4, "hidden_dim": 16, "sinusoidal_pos_embds": True,
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("model_type", SINUSOIDAL)
@pytest.mark.filterwarnings("ignore")
def test_stored_sinusoids_are_known_by_the_type_of_the_model(model_type: str) -> None:
    config = transformers.AutoConfig.for_model(model_type, **SINUSOIDAL[model_type])
    model = transformers.AutoModel.from_config(config)
    with closing(open_store(model)) as store:
        found = [site for site in sites_of(store)[0] if not site.is_cross and find_table(site, store.names)]
        assert found
        for site in found:
            assert are_sinusoids(store.read(find_table(site, store.names) or ""))
            assert "sinusoids" in find_unlike_coordinates(site, store.names)


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY_MODELS)
@pytest.mark.filterwarnings("ignore")
def test_no_stored_sinusoids_are_taken_for_learned_positions(name: str, saved: Saved) -> None:
    with closing(open_store(saved(name))) as store:
        for site in sites_of(store)[0]:
            table = find_table(site, store.names)
            if table is None or site.rotary is not None or find_unlike_coordinates(site, store.names):
                continue
            positions = store.read(table)
            if positions.shape[-1] == site.d_model:  # else they are not added to the stream
                assert not are_sinusoids(positions), (site.module, table)


def draw_sinusoids(width: int, side: int) -> torch.Tensor:
    """Positions of a class token and of a square image, as those of MAE: sines and cosines of column and row."""
    frequencies = 10_000 ** -torch.linspace(0, 1, width // 4 + 1)[:-1]
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    angles = [place.flatten()[:, None] * frequencies for place in (columns, rows)]
    positions = torch.cat([part for angle in angles for part in (angle.sin(), angle.cos())], 1)
    return torch.cat([torch.zeros(1, width), positions])[None]


def test_sinusoids_are_seen_whatever_the_model_type(tmp_path: Path) -> None:
    """Vision transformers with positions of MAE that are saved as model type vit."""
    sizes = {"hidden_size": 48, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 8}
    image = {"image_size": 32, "patch_size": 8}
    folders = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = transformers.ViTModel(transformers.ViTConfig(**sizes, **image))
        table = model.embeddings.position_embeddings
        assert not are_sinusoids(torch.randn(table.shape))
        with torch.no_grad():
            table.copy_(draw_sinusoids(48, 4))
        folder = tmp_path / str(seed)
        model.save_pretrained(folder)
        folders.append(folder)
    row = attngeo.lineage(*folders, n_permutations=19).iloc[0]
    assert row.isna()["related"]
    assert "does not apply" in row["note"]
    assert "sinusoids" in row["note"]


def test_only_bytes_of_queries_and_keys_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    width = 192
    tensors = {
        name: (torch.cat([tensor] * 100) if "embed" in name else tensor).bfloat16()
        for name, tensor in draw(0, width=width).items()
    }
    config = MODEL | {"hidden_size": width}
    folder = write_model(tmp_path / "remote", tensors, config)
    queries_and_keys = sum(tensor.numel() * 2 for name, tensor in tensors.items() if "embed" not in name)
    with serve() as hub:
        hub.repositories["org/one"] = hub.repositories["org/two"] = folder
        reach_hub(hub.url, tmp_path / "home", monkeypatch)
        assert attngeo.lineage("org/one", "org/two", n_permutations=19)["related"].tolist() == [True]
        needed = 2 * queries_and_keys
        assert needed <= hub.sent.total() <= needed + 30_000
        before = hub.sent.total()
        assert attngeo.lineage("org/one", "org/two", n_permutations=19, align=True)["related"].tolist() == [True]
        rows = 16384 * width * 2
        assert needed + 2 * rows <= hub.sent.total() - before <= needed + 2 * rows + 30_000


def count_readings(*arguments: Any, **options: Any) -> tuple[pd.DataFrame, int]:
    """The table of lineage, and how many layers were read for it."""
    steps: list[Progress] = []
    rows = attngeo.lineage(*arguments, **options, progress=steps.append)
    return rows, len([step for step in steps if step.phase == "score"])


def test_results_are_kept_under_both_models(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNGEO_CACHE", str(tmp_path / "kept"))
    other = write_model(tmp_path / "other", draw(1), MODEL)
    few = {"n_permutations": 19}
    first, count = count_readings(folder, other, **few)
    assert count >= LAYERS
    again, count = count_readings(folder, other, **few)
    assert count == 0
    assert again.equals(first)
    assert count_readings(folder, other, **few, fresh=True)[1] >= LAYERS
    assert count_readings(folder, other, **few, seed=1)[1] >= LAYERS
    assert count_readings(folder, other, n_permutations=20)[1] >= LAYERS
    write_model(tmp_path / "other", draw(0), MODEL)
    changed, count = count_readings(folder, other, **few)
    assert count >= LAYERS
    assert changed["related"].tolist() == [True]


@pytest.mark.slow  # each process loads the libraries
def test_several_processes_give_the_same_table(folder: Path, tmp_path: Path) -> None:
    others = [write_model(tmp_path / str(seed), draw(seed), MODEL) for seed in (1, 2)]
    alone = attngeo.lineage(folder, others, n_permutations=19)
    assert attngeo.lineage(folder, others, n_permutations=19, jobs=2).equals(alone)


def test_what_cannot_be_compared_is_an_error(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refuses(UsageError, "demo:encoder", "itself"):
        attngeo.lineage("demo:encoder", ["demo:encoder"])
    with refuses(UsageError, "demo:decoder", "twice"):
        attngeo.lineage("demo:encoder", ["demo:decoder", "demo:decoder"])
    with refuses(UsageError, "no candidates"):
        attngeo.lineage("demo:encoder", [])
    with refuses(ModelNotFoundError, "none"):
        attngeo.lineage(tmp_path / "none", folder)
    with refuses(UsageError, "n_permutations", "18", "19"):
        attngeo.lineage("demo:encoder", "demo:decoder", n_permutations=18)
    monkeypatch.setenv("ATTNGEO_CACHE", str(tmp_path / "kept"))
    no_attention = write_single(tmp_path / "mlp", {"model.layers.0.mlp.up_proj.weight": torch.randn(8, 8)})
    with refuses(UnsupportedModelError, "no query-key attention"):
        attngeo.lineage(folder, [no_attention, write_model(tmp_path / "other", draw(1), MODEL)])
    assert count_readings(folder, tmp_path / "other")[1] == 0  # it was compared and kept
    no_embeddings = {name: tensor for name, tensor in draw(1).items() if "proj" in name}
    with refuses(UnsupportedModelError, "no token embeddings"):
        attngeo.lineage(folder, write_model(tmp_path / "headless", no_embeddings, MODEL), align=True)


def test_without_scipy_the_extra_is_named(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = write_model(tmp_path, draw(1), MODEL)
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    monkeypatch.delitem(sys.modules, "attngeo.embeddings.aligning", raising=False)
    monkeypatch.delitem(vars(attngeo.embeddings), "align_streams", raising=False)  # of an earlier use
    with pytest.raises(UsageError, match=r"attngeo\[estimators\]"):
        attngeo.lineage(folder, other, align=True)
    assert attngeo.lineage(folder, other, n_permutations=19)["related"].tolist() == [False]
