"""`attngeo.compose`: compositions of formed matrices, thresholds, and what must not change either."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from support.checkpoints import CONFIG, weights, with_outputs, write_single
from support.hub_client import reach_hub
from support.hub_server import serve
from support.messages import refuses
from support.mistral import write_mistral
from torch import Tensor

import attngeo
from attngeo.attention.weights import SiteWeights
from attngeo.circuits import composing
from attngeo.circuits.compose_options import COMPOSE_COLUMNS, ComposeOptions
from attngeo.circuits.composing import count_bytes
from attngeo.circuits.pairs import list_pairs
from attngeo.circuits.planning import plan_readings
from attngeo.errors import UnsupportedModelError, UsageError
from attngeo.geometry.composition import fold

Built = Callable[[str], Any]
LAYERS = 4


def write_model(folder: Path, tensors: dict[str, Tensor] | None = None) -> Path:
    """A model of four layers of 4 heads, two of which share keys and values."""
    made = with_outputs(weights(LAYERS)) if tensors is None else tensors
    return write_single(folder, made, CONFIG | {"num_hidden_layers": LAYERS})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("compose") / "model")


def form_heads(of_site: SiteWeights) -> list[tuple[Tensor, Tensor]]:
    """M and O of each head."""
    group = len(of_site.wq) // len(of_site.wk)
    forms = []
    for head in range(len(of_site.wq)):
        m = of_site.wq[head] @ of_site.wk[head // group].T
        o = of_site.wv[head // group] @ of_site.wo[head]
        forms.append((m, o))
    return forms


def compose_formed(writer: Tensor, m: Tensor, o: Tensor, kind: str) -> float:
    """The definition, on formed matrices."""
    read = {"q": m, "k": m.T, "v": o}[kind]
    return float((writer @ read).norm() / writer.norm() / read.norm())


@pytest.mark.parametrize("name", ["llama", "gpt2", "deepseek_v3", "gpt_neox"])
def test_every_pair_is_that_of_the_formed_matrices(name: str, built: Built) -> None:
    model = built(name)
    sites = {w.site.layer: form_heads(w) for w in attngeo.attention_sites(model, circuit="both", dtype=torch.float64)}
    rows = attngeo.compose(model, precision="float64")
    assert list(rows.columns) == list(COMPOSE_COLUMNS)
    heads = {layer: len(of_layer) for layer, of_layer in sites.items()}
    assert len(rows) == 3 * sum(heads[a] * heads[b] for a in sites for b in sites if a < b)
    for row in rows.to_dict("records"):
        _, writer = sites[row["from_layer"]][row["from_head"]]
        expected = compose_formed(writer, *sites[row["to_layer"]][row["to_head"]], row["kind"])
        assert row["composition"] == pytest.approx(expected, rel=1e-8)


def test_the_threshold_is_the_quantile_of_pairs_whose_writer_comes_later(folder: Path) -> None:
    rows = attngeo.compose(folder, precision="float64")
    sites = [form_heads(w) for w in attngeo.attention_sites(folder, circuit="both", dtype=torch.float64)]
    width = 24
    for found in rows.attrs["thresholds"]:
        impossible = []
        for later in range(LAYERS):
            for earlier in range(later):
                for _, writer in sites[later]:
                    for m, o in sites[earlier]:
                        read = m if found["kind"] == "q" else m.T if found["kind"] == "k" else o
                        impossible.append(find_z(writer, read, width))
        assert found["impossible"] == len(impossible)
        assert found["threshold"] == pytest.approx(np.quantile(impossible, 0.999), rel=1e-6)
        of_kind = rows[rows["kind"] == found["kind"]]
        assert found["pairs"] == len(of_kind)
        assert (
            found["above"] == (of_kind["composition_z"] > found["threshold"]).sum() == of_kind["above_threshold"].sum()
        )
        # The mean of the quantile of uniform numbers is the share of further ones that it exceeds.
        drawn = np.random.default_rng(0).uniform(size=(40_000, found["impossible"]))
        share = 1 - np.quantile(drawn, 0.999, axis=1).mean()
        assert found["expected"] == pytest.approx(len(of_kind) * share, rel=0.02)


def find_z(writer: Tensor, read: Tensor, n: int) -> float:
    """The z of a formed writer and reader, by the exact mean and variance of one of them rotated at random."""
    p, r = writer.T @ writer, read @ read.T
    p0, r0 = (x - x.trace() / n * torch.eye(n) for x in (p, r))
    square = (writer @ read).norm() ** 2 / writer.norm() ** 2 / read.norm() ** 2
    variance = 2 * p0.norm() ** 2 * r0.norm() ** 2 / ((n - 1) * (n + 2) * (p.trace() * r.trace()) ** 2)
    return float((square - 1 / n) / variance.sqrt())


def test_z_is_right_for_a_model_of_random_weights(folder: Path) -> None:
    rows = attngeo.compose(folder)
    assert rows["composition_z"].mean() == pytest.approx(0, abs=0.15)
    assert rows["composition_z"].std() == pytest.approx(1, rel=0.15)


def test_changes_of_basis_inside_heads_leave_all_compositions(folder: Path, tmp_path: Path) -> None:
    tensors = with_outputs(weights(LAYERS))
    generator = torch.Generator().manual_seed(5)
    for layer in range(LAYERS):
        q, k, v, o = (f"model.layers.{layer}.self_attn.{letter}_proj.weight" for letter in "qkvo")
        inside = torch.randn(6, 6, generator=generator)
        rotation = torch.linalg.qr(torch.randn(6, 6, generator=generator)).Q
        tensors[v] = (inside.T @ tensors[v].reshape(2, 6, 24)).reshape(12, 24)
        tensors[o] = (tensors[o].reshape(24, 4, 6) @ torch.linalg.inv(inside).T).reshape(24, 24)
        tensors[q] = (rotation @ tensors[q].reshape(4, 6, 24)).reshape(24, 24)
        tensors[k] = (7 * rotation @ tensors[k].reshape(2, 6, 24)).reshape(12, 24)
    changed = attngeo.compose(write_model(tmp_path, tensors), precision="float64")
    expected = attngeo.compose(folder, precision="float64")
    np.testing.assert_allclose(changed["composition"], expected["composition"], rtol=1e-3)


def test_gains_are_folded_into_what_heads_read(tmp_path: Path) -> None:
    tensors = with_outputs(weights(LAYERS))
    gain = torch.rand(24, generator=torch.Generator().manual_seed(4)) + 0.5
    gains = {f"model.layers.{layer}.input_layernorm.weight": gain.clone() for layer in range(LAYERS)}
    reading = ("q_proj", "k_proj", "v_proj")
    folded = {name: x * gain if name.split(".")[-2] in reading else x for name, x in tensors.items()}
    got = attngeo.compose(write_model(tmp_path / "a", tensors | gains), fold_norm=True)
    plain = attngeo.compose(write_model(tmp_path / "b", folded))
    np.testing.assert_allclose(got["composition"], plain["composition"], rtol=1e-4)
    unfolded = attngeo.compose(write_model(tmp_path / "c", tensors | gains))
    assert not np.allclose(got["composition"], unfolded["composition"], rtol=1e-2)


def test_layers_and_kinds_are_chosen_and_the_threshold_is_among_the_chosen_layers(folder: Path) -> None:
    everything = attngeo.compose(folder)
    rows = attngeo.compose(folder, kind="k", from_layers=[0, 1], to_layers="2-3")
    chosen = (everything["kind"] == "k") & (everything["from_layer"] < 2) & (everything["to_layer"] > 1)
    columns = ["from_layer", "from_head", "to_layer", "to_head", "composition"]
    pd.testing.assert_frame_equal(rows[columns], everything[chosen][columns].reset_index(drop=True))
    (found,) = rows.attrs["thresholds"]
    assert found["impossible"] == 6 * 16
    (found,) = attngeo.compose(folder, kind="k", from_layers=[0], to_layers=[3]).attrs["thresholds"]
    assert found["impossible"] == 16


def test_with_little_memory_layers_are_read_again_and_nothing_else_changes(folder: Path) -> None:
    expected = attngeo.compose(folder)
    assert (expected.attrs["layers_read"], expected.attrs["readings"]) == (LAYERS, LAYERS)
    rows = attngeo.compose(folder, memory=1, fresh=True)
    assert rows.attrs["readings"] > LAYERS
    pd.testing.assert_frame_equal(rows, expected)


@pytest.mark.parametrize("memory", [1, 20_000, 40_000, 10**9])
def test_every_pair_is_in_memory_once(memory: int, folder: Path) -> None:
    sites = [of_site.site for of_site in attngeo.attention_sites(folder, circuit="both")]
    pairs = [(pair.a, pair.b) for pair in list_pairs(sites, ComposeOptions())]
    sizes = [count_bytes(site, torch.float32) for site in sites]
    met: list[tuple[int, int]] = []
    in_memory: list[int] = []
    for reading in plan_readings(sizes, pairs, memory):
        if reading.begins_part:
            in_memory = []
        met += [(other, reading.number) for other in in_memory]
        if reading.stays:
            in_memory.append(reading.number)
    assert sorted(met) == sorted(pairs)


@pytest.mark.parametrize("name", ["llama", "deepseek_v3", "t5"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_all_layers_stay_in_memory_if_their_folded_heads_fit_and_not_if_a_byte_is_missing(
    name: str, dtype: torch.dtype, built: Built
) -> None:
    """Heads in memory are those that are folded: for queries, keys, values and what is written."""
    read = list(attngeo.attention_sites(built(name), circuit="both", dtype=dtype))
    needed = 0
    for weights_of_site in read:
        groups = weights_of_site.site.heads // len(weights_of_site.wk)
        q = weights_of_site.wq.mT
        k = weights_of_site.wk.mT.repeat_interleave(groups, 0)
        v = weights_of_site.wv.mT.repeat_interleave(groups, 0)
        o = weights_of_site.wo
        needed += sum(fold(*pair).nbytes for pair in ((q, k), (k, q), (v, o), (o, v)))
    sites = [weights_of_site.site for weights_of_site in read]
    sizes = [count_bytes(site, dtype) for site in sites]
    pairs = [(pair.a, pair.b) for pair in list_pairs(sites, ComposeOptions())]
    assert [reading.stays for reading in plan_readings(sizes, pairs, needed)] == [True] * len(sites)
    assert not all(reading.stays for reading in plan_readings(sizes, pairs, needed - 1))


def test_an_encoder_is_composed_with_the_cross_attention_that_reads_it(built: Built) -> None:
    model = built("t5")
    rows = attngeo.compose(model)
    routes = rows[["kind", "from_stack", "to_stack"]].drop_duplicates()
    found = {stacks: "".join(of_route["kind"]) for stacks, of_route in routes.groupby(["from_stack", "to_stack"])}
    assert found == {
        ("encoder", "encoder"): "qkv",
        ("decoder", "decoder"): "qkv",
        ("cross", "cross"): "q",
        ("encoder", "cross"): "kv",
    }
    by_route = {(of["kind"], of["from_stack"], of["to_stack"]): of for of in rows.attrs["thresholds"]}
    assert all(math.isfinite(of["threshold"]) and of["impossible"] for of in by_route.values())
    sites = {(w.site.stack, w.site.layer): form_heads(w) for w in attngeo.attention_sites(model, circuit="both")}
    for row in rows[rows["to_stack"] == "cross"].sample(20, random_state=0).to_dict("records"):
        _, writer = sites[row["from_stack"], row["from_layer"]][row["from_head"]]
        expected = compose_formed(writer, *sites["cross", row["to_layer"]][row["to_head"]], row["kind"])
        assert row["composition"] == pytest.approx(expected, rel=1e-4)


def test_heads_that_are_zero_or_not_finite_have_no_composition_and_no_place_in_the_threshold(tmp_path: Path) -> None:
    tensors = with_outputs(weights(LAYERS))
    tensors["model.layers.1.self_attn.o_proj.weight"][:, :6] = 0  # head 0 writes nothing
    tensors["model.layers.2.self_attn.q_proj.weight"][6, 0] = float("nan")  # head 1
    rows = attngeo.compose(write_model(tmp_path, tensors))
    writes_nothing = (rows["from_layer"] == 1) & (rows["from_head"] == 0)
    reads_nothing = (rows["to_layer"] == 2) & (rows["to_head"] == 1) & (rows["kind"] != "v")
    values_of_nothing = (rows["to_layer"] == 1) & (rows["to_head"] == 0) & (rows["kind"] == "v")
    missing = writes_nothing | reads_nothing | values_of_nothing
    assert rows[missing][["composition", "composition_z"]].isna().all(axis=None)
    assert not rows[missing]["above_threshold"].any()
    assert rows[~missing][["composition", "composition_z"]].notna().all(axis=None)
    assert all(math.isfinite(of_kind["threshold"]) for of_kind in rows.attrs["thresholds"])


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"from_layers": [2, 3], "to_layers": [0, 1]}, ("from_layers", "to_layers")),
        ({"from_layers": [9]}, ("from_layers", 9, 3)),
        ({"kind": "x"}, ("kind", "'x'")),
        ({"kind": ""}, ("kind",)),
        ({"precision": "fast"}, ("precision", "float64")),
        ({"stack": "encoder"}, ("stack", "decoder")),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], facts: tuple[object, ...], folder: Path) -> None:
    with refuses(UsageError, *facts):
        attngeo.compose(folder, **options)


def test_models_whose_heads_cannot_compose_are_refused(tmp_path: Path, built: Built) -> None:
    with refuses(UnsupportedModelError, "output projection"):
        attngeo.compose(write_single(tmp_path / "no_outputs"))
    one = write_single(tmp_path / "one", with_outputs(weights(1)), CONFIG | {"num_hidden_layers": 1})
    with refuses(UnsupportedModelError, "two or more", "decoder"):
        attngeo.compose(one)
    with refuses(UnsupportedModelError, "widths", "stack"):
        attngeo.compose(built("swin"))


def test_what_is_finished_is_kept_and_resumed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNGEO_CACHE", str(tmp_path / "kept"))
    expected = attngeo.compose(folder, kind="q", fresh=True)
    seen: list[str] = []
    again = attngeo.compose(folder, kind="q", progress=lambda report: seen.append(report.phase))
    assert seen == ["kept"]
    pd.testing.assert_frame_equal(again, expected)

    real = composing._compose
    calls = 0

    def stop_after_three(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 6:  # two directions each
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(composing, "_compose", stop_after_three)
    with pytest.raises(KeyboardInterrupt):
        attngeo.compose(folder, kind="v")
    calls = 0
    rows = attngeo.compose(folder, kind="v")
    assert calls == 6
    monkeypatch.setattr(composing, "_compose", real)
    pd.testing.assert_frame_equal(rows, attngeo.compose(folder, kind="v", fresh=True))


def test_each_byte_is_read_once_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_mistral(tmp_path / "remote", layers=3, width=1024, outputs=True)
    needed = sum(of_site.numel() * 2 for of_site in load_file(folder / "model.safetensors").values())
    with serve() as hub:
        hub.repositories["org/name"] = folder
        reach_hub(hub.url, tmp_path / "home", monkeypatch)
        rows = attngeo.compose("org/name")
        assert rows["composition_z"].notna().all()
        assert needed <= hub.sent.total() <= 1.02 * needed
