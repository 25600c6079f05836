"""`attngeo score --verify`: what it says on stderr, its exit codes, and that the scores are delivered all the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from conftest import Command
from support.messages import assert_states

from attngeo.errors import NotEnoughMemoryError, UnsupportedModelError, UsageError
from attngeo.layouts.families import FAMILIES
from attngeo.layouts.layout import make_fused
from attngeo.verification import drives, loading

Save = Callable[[str], Path]
CHECK_FAILED, SEVERAL_FAILED = 1, 4


@pytest.fixture
def misread(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the table of families said that the keys of Phi-3 come before its queries."""
    monkeypatch.setitem(FAMILIES, "phi3", replace(FAMILIES["phi3"], layouts=(make_fused("qkv_proj", "kqv"),)))


def test_a_model_of_which_all_sites_agree(inside: Command) -> None:
    run = inside("score", "demo:minilm", "--verify", "--format", "json")
    assert run.returncode == 0, run.stderr
    assert len(json.loads(run.stdout)) == 6
    assert_states(run.stderr, "demo:minilm", "all 6 sites agree")


def test_several_models_each_have_their_line_and_their_counts(inside: Command, saved: Save, tmp_path: Path) -> None:
    run = inside(
        "score", saved("bert"), saved("t5"), "--verify", "-o", tmp_path / "t.parquet", "-o", tmp_path / "t.html"
    )
    assert run.returncode == 0, run.stderr
    first, second = (line for line in run.stderr.splitlines() if "agree" in line)
    assert_states(first, saved("bert"), "all 2 sites agree")
    assert_states(second, saved("t5"), "sites agree")
    counts = pd.read_parquet(tmp_path / "t.parquet").attrs["verified"]
    assert counts[str(saved("bert"))] == {"agrees": 2}
    assert "<dt>verified</dt>" in (tmp_path / "t.html").read_text()


@pytest.mark.usefixtures("misread")
@pytest.mark.parametrize("options", [(), ("-q",)])
def test_sites_that_differ_are_named_and_fail(options: tuple[str, ...], inside: Command, saved: Save) -> None:
    run = inside("score", saved("bert"), saved("phi3"), "--verify", "--format", "json", *options)
    assert run.returncode == CHECK_FAILED
    assert {row["model"] for row in json.loads(run.stdout)} == {str(saved("bert")), str(saved("phi3"))}
    (line,) = (line for line in run.stderr.splitlines() if "differs" in line)
    assert_states(line, saved("phi3"), "model.layers.#.self_attn", "decoder", "layers 0-1", "difference")
    notes = [line for line in run.stderr.splitlines() if "agree with" in line]
    assert len(notes) == (0 if options else 2)
    assert options or "0 of 2 sites agree" in notes[1]


def test_sites_that_were_not_run_are_named_and_do_not_fail(
    inside: Command, saved: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drives, "combine_inputs", lambda *_: iter([{"input_ids": "text"}]))
    run = inside("score", saved("bert"), "--verify", "--format", "json")
    assert run.returncode == 0
    where, why, count = run.stderr.splitlines()
    assert_states(where, "bert.encoder.layer.#.attention.self", "encoder", "layers 0-1", "not run")
    assert_states(why, "does not run", "AttributeError")
    assert_states(count, "0 of 2 sites agree")


def test_a_model_that_cannot_be_verified_is_scored(
    inside: Command, saved: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "available_memory", lambda: 10_000)
    one = inside("score", saved("bert"), "--verify", "--format", "json")
    assert (one.returncode, len(json.loads(one.stdout))) == (NotEnoughMemoryError.exit_code, 2)
    assert_states(one.stderr, saved("bert"), "float32", "available")
    two = inside("score", saved("bert"), "demo:encoder", "--verify", "--format", "json")
    assert two.returncode == SEVERAL_FAILED
    assert len(two.stderr.splitlines()) == 2


def test_another_config_is_not_verified(inside: Command, saved: Save, tmp_path: Path) -> None:
    """Transformers would run the model with the config.json beside its weights."""
    config = json.loads((saved("bert") / "config.json").read_text()) | {"num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    run = inside("score", saved("bert"), "--config", tmp_path, "--verify")
    assert (run.returncode, run.stdout) == (UsageError.exit_code, "")
    assert_states(run.stderr, "--verify", "--config")


def test_code_of_the_hub_is_refused_in_one_line(inside: Command, saved: Save, tmp_path: Path) -> None:
    config = json.loads((saved("bert") / "config.json").read_text())
    config |= {"model_type": "mystery", "auto_map": {"AutoConfig": "trap.Trap"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((saved("bert") / "model.safetensors").read_bytes())
    run = inside("score", tmp_path, "--verify", "--format", "json")
    assert (run.returncode, len(json.loads(run.stdout))) == (UnsupportedModelError.exit_code, 2)
    assert_states(run.stderr, tmp_path, "'mystery'", "code", "not run")


def test_a_condition_and_a_disagreement_both_fail_with_one_code(inside: Command, saved: Save, misread: None) -> None:  # noqa: ARG001
    run = inside("score", saved("phi3"), "--verify", "--fail-if", "symmetry.median < 2", "--format", "json", "-q")
    assert run.returncode == CHECK_FAILED
    assert len(run.stderr.splitlines()) == 2


def test_the_circuits_that_are_scored_are_verified(inside: Command) -> None:
    for circuit, count in (("ov", "all 3"), ("both", "all 6")):
        run = inside("score", "demo:encoder", "--circuit", circuit, "--verify", "--format", "json")
        assert run.returncode == 0, run.stderr
        assert count in run.stderr
