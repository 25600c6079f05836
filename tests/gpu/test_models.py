"""Questions about vectors, gradients and training on a CUDA device against the CPU (`make test-gpu`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.golden_models import EFA, GOLDEN, TABULAR, read_rows
from support.images import small_image_options, write_images
from support.runs import small_options
from support.sequences import make_efa
from support.tiny_models import TINY_MODELS, build
from support.vectors import planted, write_questions

import attngeo
from attngeo.estimators import AttentionClassifier, ExponentialFamilyAttention
from attngeo.pretrain.comparison import compare_runs
from attngeo.pretrain.initialisation import initialize
from attngeo.pretrain.runs import run
from attngeo.progress import Progress
from attngeo.updates.recording import record_gradients

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:datasets"),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),  # torch's DataLoader forks it
]

DEVICES = ("cpu", "cuda")


@pytest.mark.parametrize("method", ["3cosadd", "3cosmul"])
@pytest.mark.parametrize("remove_top", [0, 2])
def test_answers_to_questions(method: Any, remove_top: int, tmp_path: Path) -> None:
    """In float64: equal ranks and words, too."""
    embedding, lines = planted(pairs=30, noise=0.8)
    questions = write_questions(tmp_path / "q.txt", {"made": lines})
    cpu, cuda = (
        attngeo.analogy(embedding, questions=questions, method=method, remove_top=remove_top, device=device)
        for device in DEVICES
    )
    pd.testing.assert_frame_equal(cuda.questions, cpu.questions, rtol=0, atol=1e-9)
    here, there = (attngeo.nearest(embedding, "aaa - aab + aac", top=9, device=device) for device in DEVICES)
    pd.testing.assert_frame_equal(there, here, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["bert", "llama", "gpt_neox"])
def test_gradients(name: str) -> None:
    """Of a model on the device, in float64, but for rotary angles, which transformers computes in float32."""
    model = build(TINY_MODELS[name]).double()
    ids = torch.randint(3, 64, (3, 9), generator=torch.Generator().manual_seed(0))
    batches = [{"input_ids": ids, "labels": ids}]
    cpu, cuda = (record_gradients(model.to(device), batches, "mlm" if name == "bert" else "clm") for device in DEVICES)
    assert cuda.loss == pytest.approx(cpu.loss)
    for there, here in zip(cuda.sites, cpu.sites, strict=True):
        for found, expected in zip(there[1:], here[1:], strict=True):
            assert found.device.type == "cuda"
            torch.testing.assert_close(found.cpu(), expected, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", EFA)
def test_what_a_model_says_of_sequences(name: str) -> None:
    """Also after its weights were asked for, which happens on the CPU."""
    model, rows = ExponentialFamilyAttention.load(GOLDEN / name), read_rows(name)
    said: list[list[Any]] = []
    for device in DEVICES:
        model.options_ = model.options_.replace(device=device)
        means = model.predict_proba(rows) if model.part_ == "items" else model.predict(rows).select_dtypes("number")
        weights = model.attention_weights(rows)["weight"]
        said.append([means, weights, *model.contexts(rows).values(), model.log_prob(rows)])
    for found, expected in zip(*said, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_predictions_of_rows() -> None:
    """In float64 on both devices."""
    model, rows = AttentionClassifier.load(GOLDEN / TABULAR), read_rows(TABULAR)
    cpu, cuda = (model.set_params(device=device).predict_proba(rows) for device in DEVICES)
    np.testing.assert_allclose(cuda, cpu, rtol=0, atol=1e-9)


@pytest.mark.parametrize("options", [
    {"part": "items"}, {"part": "items", "position": "place", "direction": "uni", "n_layers": 2},
    {"part": "values"}, {"part": "values", "value": "count:poisson", "n_heads": 2}, {"part": "both"},
    {"part": "items", "precision": "bf16"},
], ids=str)  # fmt: skip
def test_sequences_are_learned(options: dict[str, Any]) -> None:
    """As on the CPU, but for rounding, which training magnifies."""
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"sequence": sequence, "place": place, "item": item, "value": draw.normal(), "count": draw.poisson(2)}
        for sequence in range(60)
        for place, item in enumerate(draw.permutation(list("abcd" if sequence % 2 else "defg"))[: draw.integers(2, 5)])
    )
    given = {"width": 8, "max_epochs": 15, "learning_rate": 0.01, "validation_fraction": 0.2, "random_state": 0}
    cpu, cuda = (make_efa(**given | options, device=device).fit(frame) for device in DEVICES)
    near = 0.05 if "precision" in options else 1e-3
    assert cuda.history_.train == pytest.approx(cpu.history_.train, abs=near)
    assert cuda.history_.train[-1] < cuda.history_.train[0]
    np.testing.assert_allclose(cuda.log_prob(frame), cpu.log_prob(frame), rtol=0, atol=20 * near)


def test_rows_are_learned() -> None:
    draw = np.random.default_rng(0)
    rows = pd.DataFrame(
        {"a": draw.choice(list("xyz"), 300), "b": draw.choice(list("uv"), 300), "c": draw.normal(size=300)}
    )
    label = (rows["a"] == "x") ^ (rows["c"] > 0)
    cpu, cuda = (
        AttentionClassifier(max_epochs=30, learning_rate=0.01, dropout=0, random_state=0, device=device).fit(
            rows, label
        )
        for device in DEVICES
    )
    assert cuda.train_loss_ == pytest.approx(cpu.train_loss_, abs=0.01)
    assert (cuda.predict(rows) == label).mean() > 0.7


def test_models_on_the_device_are_initialised() -> None:
    model = build(TINY_MODELS["bert"]).cuda()
    initialize(model, "symmetric")
    assert attngeo.score(model, per_head=True)["symmetry"].tolist() == pytest.approx([1.0] * 10, abs=1e-5)
    cpu, cuda = (build(TINY_MODELS["llama"]).to(device) for device in DEVICES)
    for each in (cpu, cuda):
        initialize(each, "identity", seed=0)
    for name, parameter in cuda.state_dict().items():
        torch.testing.assert_close(parameter.cpu(), cpu.state_dict()[name], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("precision", ["auto", "fp32", "bf16", "fp16"])
@pytest.mark.parametrize("objective", ["mlm", "clm"])
def test_a_text_is_learned(objective: str, precision: str, tmp_path: Path) -> None:
    options = small_options(tmp_path, objective=objective, steps=20, lr=5e-3, precision=precision, init="symmetric")
    done = run(options, tmp_path / "run")
    losses = done.rows.drop_duplicates("step")["loss"].tolist()[1:]
    assert losses[-1] < losses[0]
    assert done.summary["device"].startswith("cuda")
    assert done.summary["precision"] == ("bf16" if precision == "auto" else precision)
    scored = attngeo.score(str(tmp_path / "run/model"), per_head=True)
    last = done.rows[done.rows["step"] == 20]
    assert last["symmetry"].tolist() == pytest.approx(scored["symmetry"].tolist(), abs=1e-5)


def test_images_are_learned(tmp_path: Path) -> None:
    """Other processes read them."""
    data = write_images(tmp_path / "images", "abc")
    done = run(small_image_options(tmp_path, data=str(data), init="symmetric"), tmp_path / "run")
    assert done.summary["device"].startswith("cuda")


def test_an_interrupted_run_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    """With the generator of the device, from which dropout is drawn."""
    given = {"steps": 12, "save_every": 4, "log_every": 4, "precision": "fp32"}
    whole = run(small_options(tmp_path, **given), tmp_path / "whole")

    def stop(progress: Progress) -> None:
        if progress.unit == "steps" and progress.done == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(small_options(tmp_path, **given), tmp_path / "run", progress=stop)
    resumed = run(small_options(tmp_path, **given), tmp_path / "run", resume=True)
    numbers = ["loss", "symmetry", "directionality"]
    pd.testing.assert_frame_equal(resumed.rows[numbers], whole.rows[numbers], rtol=1e-3, atol=1e-4)


def test_two_runs_at_a_time_share_the_device(tmp_path: Path) -> None:
    """Each in a process of its own."""
    options = small_options(tmp_path, steps=6, log_every=3, precision="fp32")
    both, alone = (
        compare_runs(options, tmp_path / str(jobs), compare=["default", "symmetric"], jobs=jobs).rows for jobs in (2, 1)
    )
    numbers = both.select_dtypes("number").columns.difference(["seconds", "tokens_per_second"])
    pd.testing.assert_frame_equal(both[numbers], alone[numbers], check_exact=False, rtol=1e-3, atol=1e-4)
