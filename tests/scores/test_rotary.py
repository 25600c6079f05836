"""Scores over all rotary offsets: against matrices that are formed at every offset, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.checkpoints import CONFIG, weights, write_heads, write_single
from support.dense import dense_rotary
from support.messages import assert_states, refuses
from support.peft_adapters import write_adapter, write_base
from torch import Tensor

import attngeo
from attngeo.errors import CorruptCheckpointError
from attngeo.geometry import rotary
from attngeo.geometry.mirrors import pair_heads
from attngeo.scores.spec import rotary_scores

Run = Callable[..., CompletedProcess[str]]
Built = Callable[[str], Any]
SCORES = ["rotary_symmetry", "rotary_symmetric_growth", "rotary_antisymmetric_growth"]
# In halves, in neighbours, in a part of a head, behind a part of it, and of one, several or all query heads.
ROTATING = (
    "roformer", "gptj", "gpt_neox", "codegen", "falcon-new", "falcon-multi-query", "llama", "qwen3", "gemma3_text",
    "olmo2", "phi3", "stablelm", "cohere", "modernbert", "deepseek_v2", "deepseek_v3",
)  # fmt: skip
STILL = ("bert", "gpt2", "t5", "bloom", "vit", "whisper")


def expect(rows: pd.DataFrame, model: Any, **options: Any) -> None:
    """The table has the scores of the formed matrices of all layers and heads."""
    sites = [*attngeo.attention_sites(model, dtype=torch.float64, **options)]
    assert rows["head"].isna().sum() == len(sites) > 0
    for (stack, layer), of_site in rows.groupby(["stack", "layer"]):
        [site] = [site for site in sites if (site.site.stack, site.site.layer) == (stack, layer)]
        of_heads, of_layer = dense_rotary(site)
        whole, heads = of_site[of_site["head"].isna()], of_site[of_site["head"].notna()]
        for name, value in of_layer.items():
            assert whole[name].item() == pytest.approx(value, rel=1e-6, abs=1e-6), name
        assert heads["rotary_symmetry"].tolist() == pytest.approx(of_heads, abs=1e-6)
        assert heads[SCORES[1:]].isna().all(axis=None)


@pytest.mark.parametrize("name", [*ROTATING, *STILL])
def test_scores_are_those_of_the_formed_matrices_at_all_offsets(name: str, built: Built) -> None:
    model = built(name)
    expect(attngeo.score(model, scores=SCORES, per_head=True), model)


@pytest.mark.parametrize("name", STILL)
def test_without_rotary_embeddings_they_are_the_plain_scores(name: str, built: Built) -> None:
    plain = ["symmetry", "symmetric_growth", "antisymmetric_growth"]
    rows = attngeo.score(built(name), scores=[*plain, *SCORES], per_head=True)
    np.testing.assert_allclose(rows[SCORES], rows[plain], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["llama", "gptj", "deepseek_v3"])
def test_they_differ_from_the_scores_at_offset_0(name: str, built: Built) -> None:
    rows = attngeo.score(built(name), scores=SCORES)
    assert (rows["rotary_symmetry"] - rows["symmetry"]).abs().min() > 1e-4


@pytest.mark.parametrize("name", ["llama", "gptj", "phi3", "deepseek_v3"])
def test_an_offset_of_the_other_scores_does_not_change_them(name: str, built: Built) -> None:
    model = built(name)
    rows = attngeo.score(model, scores=SCORES, per_head=True, rope_offset=7)
    expected = attngeo.score(model, scores=SCORES, per_head=True)
    np.testing.assert_allclose(rows[SCORES], expected[SCORES], atol=1e-5)
    assert (rows["symmetry"] - expected["symmetry"]).abs().max() > 1e-4


@pytest.mark.parametrize("variant", [{"with_bias": True}, {"fold_norm": True}])
def test_scores_of_other_forms(variant: dict[str, Any], built: Built) -> None:
    model = built("qwen2")
    expect(attngeo.score(model, scores=SCORES, per_head=True, **variant), model, **variant)


def test_they_are_those_of_a_model_with_its_adapter_and_not_of_the_update_alone(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base")
    adapter = write_adapter(tmp_path / "adapter", base)
    rows = attngeo.score(base, scores=SCORES, per_head=True, adapter=[adapter])
    expect(rows, base, adapter=[adapter])
    update = attngeo.score(base, scores=SCORES, adapter=[adapter], adapter_only=True)
    assert update[SCORES].isna().all(axis=None)
    assert_states(update["note"].iloc[0], "no rotary scores")


def test_values_and_outputs_have_none(built: Built) -> None:
    rows = attngeo.score(built("llama"), scores=SCORES, circuit="ov")
    assert rows[SCORES].isna().all(axis=None)
    assert rows["symmetry"].notna().all()


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_equal_queries_and_keys_are_symmetric_over_all_offsets(tmp_path: Path) -> None:
    """And skew-symmetric if keys are a quarter turn ahead. With conjugate keys, only offset 0 is symmetric."""
    queries = draw(4, 6, 24)
    first, second = queries[:, :3], queries[:, 3:]
    keys = {
        "equal": queries.clone(),
        "ahead": torch.cat([-second, first], 1),
        "conjugate": torch.cat([first, -second], 1),
    }
    rows = {name: attngeo.score(write_heads(tmp_path / name, queries, keys[name]), scores=SCORES) for name in keys}
    assert [rows[name]["rotary_symmetry"].item() for name in ("equal", "ahead")] == pytest.approx([1, -1], abs=1e-6)
    assert rows["equal"]["rotary_antisymmetric_growth"].isna().all()
    assert rows["ahead"]["rotary_symmetric_growth"].isna().all()
    assert rows["conjugate"]["symmetry"].item() == pytest.approx(1, abs=1e-6)
    assert abs(rows["conjugate"]["rotary_symmetry"].item()) < 0.5


@pytest.mark.parametrize("scales", [[1e-9] * 4, [1e12] * 4, [1e-8, 1.0, 1.0, 1.0], [1e-6, 1e-3, 1e3, 1e5]])
def test_heads_of_any_size_are_brought_to_one_unit(scales: list[float], tmp_path: Path) -> None:
    factor = torch.tensor(scales)[:, None, None]
    folder = write_heads(tmp_path, draw(4, 6, 24) * factor, draw(4, 6, 24, seed=1) * factor.sqrt())
    expect(attngeo.score(folder, scores=SCORES, per_head=True), folder)


@pytest.mark.parametrize("deviation", [0.1, 1e-2, 1e-3])
def test_layers_that_cancel_keep_their_digits(deviation: float, tmp_path: Path) -> None:
    """Of heads with opposite queries for nearly the same keys; float32 would have 1e-7/deviation² left."""
    queries, keys = draw(2, 6, 24), draw(2, 6, 24, seed=1)
    folder = write_heads(tmp_path, torch.cat([queries, -queries]), torch.cat([keys, keys + deviation * draw(2, 6, 24)]))
    expect(attngeo.score(folder, scores=SCORES, per_head=True), folder)


def test_float64_is_used_where_float32_is_not_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.dtype] = []

    def note(form: Any, layout: Any) -> Any:
        seen.append(form.left.dtype)
        return pair_heads(form, layout)

    monkeypatch.setattr(rotary, "pair_heads", note)
    queries, keys = draw(4, 6, 24), draw(4, 6, 24, seed=1)
    attngeo.score(write_heads(tmp_path / "random", queries, keys), scores=SCORES)
    assert seen == [torch.float32]
    cancelled = torch.cat([keys[:2], keys[:2] + 1e-2 * keys[2:]])
    attngeo.score(write_heads(tmp_path / "near", torch.cat([queries[:2], -queries[:2]]), cancelled), scores=SCORES)
    assert seen[1:] == [torch.float32, torch.float64]


def test_a_zero_head_adds_nothing_and_a_head_that_is_not_finite_leaves_none(tmp_path: Path) -> None:
    queries, keys = draw(4, 6, 24), draw(4, 6, 24, seed=1)
    queries[1] = 0
    rows = attngeo.score(write_heads(tmp_path / "zero", queries, keys), scores=SCORES, per_head=True)
    _, expected = dense_rotary(next(attngeo.attention_sites(tmp_path / "zero", dtype=torch.float64)))
    assert rows.loc[rows["head"].isna(), SCORES].iloc[0].to_dict() == pytest.approx(expected, abs=1e-6)
    assert rows.set_index("head")["rotary_symmetry"].isna().tolist() == [False, False, True, False, False]
    queries[2, 0, 0] = math.nan
    rows = attngeo.score(write_heads(tmp_path / "nan", queries, keys), scores=SCORES, per_head=True)
    assert rows.loc[rows["head"].isna(), SCORES].isna().all(axis=None)
    assert rows.set_index("head")["rotary_symmetry"].isna().tolist() == [True, False, True, True, False]


def test_half_precision_is_nearly_enough(built: Built) -> None:
    rows, fast = (attngeo.score(built("llama"), scores=SCORES, precision=name) for name in ("float64", "fast"))  # type: ignore[arg-type]
    np.testing.assert_allclose(fast[SCORES], rows[SCORES], atol=2e-2)


def test_rotations_that_are_not_known_leave_them_empty(tmp_path: Path) -> None:
    folder = write_single(tmp_path, weights(), CONFIG | {"rope_scaling": {"rope_type": "unheard-of", "factor": 2.0}})
    rows = attngeo.score(folder, scores=SCORES)
    assert rows[SCORES].isna().all(axis=None)
    assert rows["symmetry"].notna().all()
    assert_states(rows["note"].iloc[0], "no rotary scores")


def test_an_invalid_rotary_embedding_is_refused(tmp_path: Path) -> None:
    folder = write_single(tmp_path, weights(), CONFIG | {"rope_theta": "ten"})
    with refuses(CorruptCheckpointError, "rotary embedding"):
        attngeo.score(folder, scores=SCORES)


def test_the_rotary_scores_are_these() -> None:
    assert [*rotary_scores()] == SCORES


def test_the_command_prints_and_checks_them(inside: Run, tmp_path: Path) -> None:
    folder = write_single(tmp_path / "model", weights())
    run = inside(
        "score", folder, "--scores", ",".join(SCORES), "--fail-if", "rotary_symmetric_growth.min < 0", COLUMNS="120"
    )
    assert run.returncode == 0, run.stderr
    assert "rotary symmetric growth" in run.stdout
