"""Symmetry as a constraint of training: a penalty on the skew-symmetric part, and tied queries and keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.runs import small_options
from torch import Tensor
from transformers import AutoModelForMaskedLM

import attngeo
from attngeo.errors import InterruptedTrainingError, UnsupportedModelError, UsageError
from attngeo.pretrain import initialize, make_options, run
from attngeo.pretrain.constraints import SymmetryPenalty, TiedKeys
from attngeo.pretrain.runs import Run
from attngeo.progress import Progress

Build = Callable[[str], Any]


@pytest.fixture
def fresh(built: Build) -> Build:
    """A copy of a tiny model that a test may change."""
    return lambda name: deepcopy(built(name))


# The penalty


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "falcon-new", "deepseek_v2"])
def test_the_penalty_is_the_mean_share_that_is_not_symmetric(name: str, fresh: Build) -> None:
    """(1 − symmetry)/2 of each layer, as `score` measures it."""
    model = fresh(name)
    scores = attngeo.score(model).query("head.isna()")
    expected = 3 * ((1 - scores.symmetry) / 2).mean()
    assert SymmetryPenalty(model, 3.0)().item() == pytest.approx(expected, rel=1e-4)
    initialize(model, "symmetric")
    assert SymmetryPenalty(model, 3.0)().item() == pytest.approx(0, abs=1e-5)


def test_its_gradient_is_that_of_the_formula(fresh: Build) -> None:
    """The formula over the weights of BERT's own layers."""
    model = fresh("bert").double()
    weights: list[Tensor] = []
    shares = []
    for layer in model.bert.encoder.layer:
        q = layer.attention.self.query.weight
        k = layer.attention.self.key.weight
        m = q.T @ k
        shares.append(((m - m.T) / 2).norm() ** 2 / m.norm() ** 2)
        weights += [q, k]
    expected = torch.autograd.grad(0.7 * torch.stack(shares).mean(), weights)
    got = torch.autograd.grad(SymmetryPenalty(model, 0.7)(), weights)
    for own, by_formula in zip(got, expected, strict=True):
        assert torch.allclose(own, by_formula, rtol=1e-9, atol=1e-12)


def train(folder: Path, **options: Any) -> Run:
    folder.mkdir()
    return run(small_options(folder, lr=1e-2, **options), folder / "run")


def test_a_penalty_makes_a_decoder_symmetric_and_is_not_in_its_loss(tmp_path: Path) -> None:
    plain = train(tmp_path / "plain", objective="clm", log_every=1)
    penalised = train(tmp_path / "penalised", objective="clm", log_every=1, symmetry_penalty=100.0)
    assert penalised.summary["end"]["symmetry_median"] > 0.5 > plain.summary["end"]["symmetry_median"]
    losses = [trained.rows.query("step == 1").loss.iloc[0] for trained in (plain, penalised)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_accumulated_batches_are_penalised_once(tmp_path: Path) -> None:
    one = train(tmp_path / "one", batch_size=16, symmetry_penalty=10.0, weight_decay=0.0)
    two = train(tmp_path / "two", batch_size=8, grad_accum=2, symmetry_penalty=10.0, weight_decay=0.0)
    ends = [trained.summary["end"]["symmetry_median"] for trained in (one, two)]
    assert ends[0] == pytest.approx(ends[1], abs=0.02)


# Tied queries and keys


@pytest.mark.parametrize("objective", ["mlm", "clm"])
def test_tied_queries_and_keys_stay_equal(objective: str, tmp_path: Path) -> None:
    trained = train(tmp_path / "tied", objective=objective, tie_query_key=True)
    rows = trained.rows
    assert (rows.symmetry > 1 - 1e-6).all()
    saved = load_file(trained.folder / "model" / "model.safetensors")
    queries = [name for name in saved if name.endswith("query.weight")]
    assert len(queries) == 2
    for name in queries:
        assert torch.equal(saved[name], saved[name.replace("query", "key")])
    start = load_file(min(trained.folder.glob("checkpoint-*")) / "model.safetensors")
    assert not torch.equal(saved[queries[0]], start[queries[0]])


def test_one_matrix_gets_the_gradients_of_both(fresh: Build) -> None:
    model, apart = fresh("bert"), fresh("bert")
    initialize(apart, "symmetric")
    TiedKeys(model)
    ids = torch.randint(10, 60, (2, 9), generator=torch.Generator().manual_seed(0))
    for each in (model, apart):
        each.eval()
        each(input_ids=ids, labels=ids.flip(1)).loss.backward()
    own = model.bert.encoder.layer[1].attention.self
    other = apart.bert.encoder.layer[1].attention.self
    assert own.key.weight is own.query.weight
    both = other.query.weight.grad + other.key.weight.grad
    assert torch.allclose(own.query.weight.grad, both, rtol=1e-4, atol=1e-7)


def test_a_tied_run_is_loaded_by_transformers_and_resumed(tmp_path: Path) -> None:
    """The run that was interrupted ends as one that was not."""
    whole = train(tmp_path / "whole", tie_query_key=True, log_every=5, save_every=5)
    folder = tmp_path / "part"
    folder.mkdir()
    options = small_options(folder, lr=1e-2, tie_query_key=True, log_every=5, save_every=5)

    def interrupt(report: Progress) -> None:
        if report.phase == "train" and (folder / "run" / "checkpoint-10").exists():
            raise InterruptedTrainingError("stopped", "by the test")

    with pytest.raises(InterruptedTrainingError):
        run(options, folder / "run", progress=interrupt)
    resumed = run(options, folder / "run", resume=True)
    assert resumed.summary["final_loss"] == pytest.approx(whole.summary["final_loss"], rel=1e-4)
    model = AutoModelForMaskedLM.from_pretrained(resumed.folder / "model")
    own = model.bert.encoder.layer[0].attention.self
    assert torch.equal(own.key.weight, own.query.weight)


@pytest.mark.parametrize("name", ["gpt2", "llama", "deepseek_v2"])
def test_fused_and_grouped_keys_cannot_be_tied(name: str, fresh: Build) -> None:
    with pytest.raises(UnsupportedModelError, match="no two weights of one shape") as raised:
        TiedKeys(fresh(name))
    assert "\n" not in str(raised.value)


# Options


def test_a_run_keeps_the_scale_of_its_start(tmp_path: Path) -> None:
    trained = train(tmp_path / "scaled", init="symmetric", init_std="0.2,0.2,0.1", init_bias=0.3)
    settings = json.loads((trained.folder / "settings.json").read_text("utf-8"))
    assert (settings["init_std"], settings["init_bias"]) == ([0.2, 0.2, 0.1], [0.3, 0.3, 0.3])
    changed = trained.summary["changed_at_init"]
    for part in ("query", "key", "value"):
        assert f"bert.encoder.layer.0.attention.self.{part}.bias" in changed
    with pytest.raises(Exception, match="finished"):
        run(make_options(**dict(trained.options)), trained.folder, resume=True)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"init_std": "0.1,0.2"}, "init_std is '0.1,0.2', expected one number, or three"),
        ({"init_std": 0.1, "init": "identity"}, "init_std applies to init default and symmetric, not to identity"),
        ({"init_bias": True}, "init_bias is True"),
        ({"symmetry_penalty": -1.0}, "symmetry_penalty is -1"),
        ({"tie_query_key": True, "init": "identity"}, "tie_query_key applies to init default and symmetric"),
        ({"tie_query_key": True, "data": "digits"}, "tie_query_key applies to text"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected.replace("(", r"\(")):
        make_options(**options)
