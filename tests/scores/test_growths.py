"""How the heads of a layer add up: growths and shares of the symmetry, against matrices that are formed in float64."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.checkpoints import weights, write_heads, write_single
from support.dense import Matrix, dense_growths, form
from support.messages import assert_states, refuses
from support.tiny_models import TINY_MODELS, build
from torch import Tensor

import attngeo
from attngeo.errors import DataError, UsageError
from attngeo.figures.kinds import GROWTHS as DRAWN, SHARES as DRAWN_SHARES
from attngeo.geometry import growths as geometry
from attngeo.geometry.forms import Form, FormTraces, form_statistics, form_traces, layer_form
from attngeo.geometry.growths import LayerStatistics, growths_of
from attngeo.reporting.recipe import read_recipe
from attngeo.scores import computing
from attngeo.scores.options import ScoreOptions
from attngeo.scores.spec import SCORES as SPECS, layer_scores
from attngeo.scores.summary import brief_columns, statistics

Run = Callable[..., CompletedProcess[str]]
GROWTHS = ["symmetric_growth", "antisymmetric_growth"]
SHARES = ["own_symmetry", "agreement", "cancellation"]
SCORES = [*GROWTHS, *SHARES]
WIDTH, HEAD = 24, 6
# One of each kind of queries and keys: fused, grouped, latent, normed, with an encoder's output, windowed …
FAMILIES = [
    "bert", "distilbert", "albert", "deberta-v2", "modernbert", "bart", "t5", "gpt_neox", "codegen", "gpt_bigcode",
    "gpt_bigcode-mha", "falcon-new", "falcon-multi-query", "llama", "gemma2", "qwen3", "phi3", "deepseek_v3", "vit",
    "swin", "siglip", "whisper",
]  # fmt: skip


def expect(rows: pd.DataFrame, layers: Sequence[Iterable[Matrix]], tolerance: float = 1e-6) -> None:
    """The layers have the growths of these matrices of heads; and their heads have none."""
    of_layers = rows[rows["head"].isna()].to_dict("records")
    assert len(of_layers) == len(layers) > 0
    for row, heads in zip(of_layers, layers, strict=True):
        expected = dense_growths([*heads])
        for name in SCORES:
            assert row[name] == pytest.approx(expected[name], rel=tolerance, abs=tolerance), name
        assert sum(row[name] for name in SHARES) == pytest.approx(row["symmetry"], abs=tolerance)
    assert rows[rows["head"].notna()][SCORES].isna().all(axis=None)


def form_heads(queries: Tensor, keys: Tensor) -> list[Matrix]:
    """The matrices of heads, [heads, width, head_dim] and [key_heads, width, head_dim]."""
    return [form(query, keys[head * len(keys) // len(queries)]) for head, query in enumerate(queries)]


@pytest.mark.parametrize("name", FAMILIES)
def test_growths_are_those_of_the_formed_matrices(name: str, built: Callable[[str], Any]) -> None:
    model = built(name)
    layers = [form_heads(wq, wk) for _, wq, wk in attngeo.attention_sites(model)]
    expect(attngeo.score(model, scores=SCORES), layers)


@pytest.mark.parametrize("name", ["llama", "gpt2", "deepseek_v3"])
@pytest.mark.parametrize("circuit", ["ov", "both"])
def test_growths_of_outputs_are_those_of_the_formed_products(
    name: str, circuit: str, built: Callable[[str], Any]
) -> None:
    model = built(name)
    layers = []
    for site in attngeo.attention_sites(model, circuit="both"):
        group = len(site.wo) // len(site.wv)
        if circuit == "both":
            layers.append(form_heads(site.wq, site.wk))
        layers.append([form(site.wv[head // group], wo.T) for head, wo in enumerate(site.wo)])
    expect(attngeo.score(model, scores=SCORES, circuit=circuit, per_head=True), layers)  # type: ignore[arg-type]


@pytest.mark.parametrize("variant", [{"with_bias": True}, {"rope_offset": 3}, {"fold_norm": True}])
def test_growths_of_other_forms(variant: dict[str, Any], built: Callable[[str], Any]) -> None:
    model = built("qwen2" if "qwen2" in TINY_MODELS else "phi3")
    layers = [form_heads(wq, wk) for _, wq, wk in attngeo.attention_sites(model, **variant)]
    rows = attngeo.score(model, scores=SCORES, **variant)
    expect(rows, layers)
    plain = attngeo.score(model, scores=SCORES)
    assert (rows["symmetric_growth"] - plain["symmetric_growth"]).abs().min() > 1e-4


def test_published_growths_are_those_of_heads_as_they_were_paired(tmp_path: Path) -> None:
    """Query head h with key head h mod K."""
    tensors = weights()
    rows = attngeo.score(write_single(tmp_path, tensors), scores=SCORES, convention="published")
    layers = []
    for layer in (0, 1):
        q, k = (tensors[f"model.layers.{layer}.self_attn.{name}_proj.weight"].reshape(-1, 6, 24) for name in "qk")
        layers.append([form(q[head].T, k[head % 2].T) for head in range(4)])
    expect(rows, layers)


def test_published_matrices_over_outputs_have_no_heads_to_add(tmp_path: Path) -> None:
    build(TINY_MODELS["modernbert"]).save_pretrained(tmp_path)
    rows = attngeo.score(tmp_path, scores=SCORES, convention="published", per_head=True)
    assert rows[rows["head"].isna()]["symmetry"].notna().all()
    assert rows[SCORES].isna().all(axis=None)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def score_layer(folder: Path, queries: Tensor, keys: Tensor, **options: Any) -> dict[str, Any]:
    """The row of the layer of a model with these heads."""
    [row] = attngeo.score(write_heads(folder, queries, keys), scores=SCORES, **options).to_dict("records")
    return {str(name): value for name, value in row.items()}


def test_equal_heads_grow_as_their_number(tmp_path: Path) -> None:
    queries = draw(1, HEAD, WIDTH).repeat(4, 1, 1)
    keys = draw(1, HEAD, WIDTH, seed=1)
    row = score_layer(tmp_path, queries, keys)
    assert [row[name] for name in GROWTHS] == pytest.approx([4, 4], rel=1e-6)


def test_a_head_and_its_mirror_have_no_antisymmetric_part(tmp_path: Path) -> None:
    first, second = draw(2, HEAD, WIDTH)
    row = score_layer(tmp_path, torch.stack([first, second]), torch.stack([second, first]))
    assert row["antisymmetric_growth"] == pytest.approx(0, abs=1e-6)
    assert row["symmetric_growth"] == pytest.approx(2, rel=1e-6)
    assert row["symmetry"] == pytest.approx(1, abs=1e-6)


def test_heads_on_other_inputs_are_unrelated(tmp_path: Path) -> None:
    queries, keys = draw(3, HEAD, WIDTH), draw(3, HEAD, WIDTH, seed=1)
    for head in range(3):
        outside = torch.ones(WIDTH, dtype=torch.bool)
        outside[head * 8 : (head + 1) * 8] = False
        queries[head, :, outside] = 0
        keys[head, :, outside] = 0
    row = score_layer(tmp_path, queries, keys)
    assert [row[name] for name in GROWTHS] == pytest.approx([1, 1], abs=1e-6)
    assert [row["own_symmetry"], row["agreement"], row["cancellation"]] == pytest.approx(
        [row["symmetry"], 0, 0], abs=1e-6
    )


def test_a_single_head_neither_gains_nor_loses(tmp_path: Path) -> None:
    row = score_layer(tmp_path, draw(1, HEAD, WIDTH), draw(1, HEAD, WIDTH, seed=1))
    assert [row[name] for name in SCORES] == pytest.approx([1, 1, row["symmetry"], 0, 0], abs=1e-6)


def test_symmetric_heads_have_no_antisymmetric_growth(tmp_path: Path) -> None:
    """As at a symmetric start. What does not divide by the antisymmetric parts stays."""
    queries = draw(4, HEAD, WIDTH)
    row = score_layer(tmp_path, queries, queries.clone())
    expected = dense_growths([form(query.T, query.T) for query in queries])
    assert math.isnan(row["antisymmetric_growth"])
    for name in ("symmetric_growth", "own_symmetry", "agreement"):
        assert row[name] == pytest.approx(expected[name], rel=1e-6)
    assert row["cancellation"] == pytest.approx(0, abs=1e-12)


def test_skew_symmetric_heads_have_no_symmetric_growth(tmp_path: Path) -> None:
    a, b = draw(2, 4, HEAD, WIDTH)
    row = score_layer(tmp_path, torch.cat([a, b], 1), torch.cat([b, -a], 1))
    assert math.isnan(row["symmetric_growth"])
    assert row["antisymmetric_growth"] > 0
    assert row["symmetry"] == pytest.approx(-1, abs=1e-6)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("deviation", [0.3, 0.1, 1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize("width", [24, 96])  # the tiled form and the Gram form
def test_nearly_symmetric_heads_keep_their_digits(sign: int, deviation: float, width: int, tmp_path: Path) -> None:
    """Of skew-symmetric ones, the symmetric parts; float32 sums would have none left of a part of 1e-8."""
    a, b = draw(2, 4, HEAD, width)
    queries = torch.cat([a, b], 1)
    keys = torch.cat([b, sign * a], 1) + deviation * draw(4, 2 * HEAD, width, seed=2)
    row = score_layer(tmp_path, queries, keys)
    expected = dense_growths([form(q.T, k.T) for q, k in zip(queries, keys, strict=True)])
    for name in SCORES:
        assert row[name] == pytest.approx(expected[name], rel=1e-6, abs=1e-6), name


def test_what_is_symmetric_up_to_rounding_is_not_divided_by(tmp_path: Path) -> None:
    """On both sides of the limit: the antisymmetric part of the sums, 1e-6 and 1e-5 of the symmetric one, squared."""
    defined = []
    for deviation in (1e-6, 1e-4):
        queries = draw(4, HEAD, WIDTH).double()
        keys = queries + deviation * draw(4, HEAD, WIDTH, seed=1).double()
        row = score_layer(tmp_path / str(deviation), queries, keys, precision="float64")
        defined.append(not math.isnan(row["antisymmetric_growth"]))
    assert defined == [False, True]


def test_float64_is_used_where_float32_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """And only there, because it takes as long as the scores."""
    repeated: list[int] = []

    def repeat(form: Form) -> FormTraces:
        repeated.append(len(form.left))
        return form_traces(Form(form.left.double(), form.right.double(), form.key_heads))

    monkeypatch.setattr(geometry, "exact_traces", repeat)
    queries = draw(4, HEAD, WIDTH)
    for keys, expected in ((draw(4, HEAD, WIDTH, seed=1), []), (queries + 0.1 * draw(4, HEAD, WIDTH), [1, 4])):
        heads = Form(queries, keys, [*range(4)])
        layer = layer_form(heads)
        joined = LayerStatistics.join(form_statistics(layer), torch.ones(1), form_traces(heads), torch.ones(4))
        growths = growths_of(joined)
        assert growths.symmetric.shape == (1,)
        assert repeated == expected


@pytest.mark.parametrize("scales", [[1e-9] * 4, [1e12] * 4, [1e-8, 1.0, 1.0, 1.0], [1e-6, 1e-3, 1e3, 1e5]])
def test_heads_of_any_size_are_brought_to_one_unit(scales: list[float], tmp_path: Path) -> None:
    factor = torch.tensor(scales)[:, None, None]
    queries, keys = draw(4, HEAD, WIDTH) * factor, draw(4, HEAD, WIDTH, seed=1) * factor.sqrt()
    row = score_layer(tmp_path, queries, keys)
    expected = dense_growths([form(q.T, k.T) for q, k in zip(queries, keys, strict=True)])
    for name in SCORES:
        assert row[name] == pytest.approx(expected[name], rel=1e-6, abs=1e-6), name


def test_a_zero_head_adds_nothing_and_a_head_that_is_not_finite_leaves_none(tmp_path: Path) -> None:
    queries, keys = draw(4, HEAD, WIDTH), draw(4, HEAD, WIDTH, seed=1)
    queries[1] = 0
    row = score_layer(tmp_path / "zero", queries, keys)
    expected = dense_growths([form(q.T, k.T) for q, k in zip(queries, keys, strict=True)])
    assert [row[name] for name in SCORES] == pytest.approx([expected[name] for name in SCORES], rel=1e-6, abs=1e-6)
    queries[2, 0, 0] = math.nan
    row = score_layer(tmp_path / "nan", queries, keys, per_head=False)
    assert all(math.isnan(row[name]) for name in SCORES)
    assert_states(row["note"], "NaN")


def test_a_zero_layer_has_no_growths(tmp_path: Path) -> None:
    """Also if its heads are not zero and cancel."""
    query = draw(1, HEAD, WIDTH)
    for name, queries in (("zero", torch.zeros(2, HEAD, WIDTH)), ("cancelled", torch.cat([query, -query]))):
        row = score_layer(tmp_path / name, queries, draw(1, HEAD, WIDTH, seed=1))
        assert all(math.isnan(row[score]) for score in SCORES)
        assert_states(row["note"], "zero")


def test_a_form_that_is_not_square_has_no_growths(built: Callable[[str], Any]) -> None:
    site, wq, wk = next(attngeo.attention_sites(built("llama")))
    rows = [*computing.score_site(site, wq.mT, wk.mT[..., 1:], [], ScoreOptions(scores=SCORES))]
    assert all(math.isnan(row[name]) for row in rows for name in SCORES)
    assert_states(str(rows[0]["note"]), "not square")


def test_growths_are_the_same_with_and_without_rows_of_heads() -> None:
    layers = attngeo.score("demo:minilm", scores=SCORES)
    rows = attngeo.score("demo:minilm", scores=SCORES, per_head=True)
    np.testing.assert_allclose(rows[rows["head"].isna()][SCORES], layers[SCORES], rtol=1e-6, atol=1e-6)
    for precision, tolerance in (("float64", 1e-6), ("fast", 2e-2)):
        other = attngeo.score("demo:minilm", scores=SCORES, precision=precision)  # type: ignore[arg-type]
        np.testing.assert_allclose(other[SCORES], layers[SCORES], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("per_head", "full", "partial"), [(False, 1, 12), (True, 13, 0)])
def test_heads_are_computed_once(per_head: bool, full: int, partial: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a layer with 12 heads; without their rows, only their traces and norms."""
    counts = Counter[str]()

    def count(form: Form, compute: Callable[[Form], Any]) -> Any:
        counts[compute.__name__] += len(form.left)
        return compute(form)

    for compute in (form_statistics, form_traces):
        monkeypatch.setattr(computing, compute.__name__, functools.partial(count, compute=compute))
    attngeo.score("demo:minilm", layers=[0], per_head=per_head, scores=["agreement"])
    assert (counts["form_statistics"], counts["form_traces"]) == (full, partial)


def test_the_scores_of_layers_are_these() -> None:
    assert [*DRAWN, *DRAWN_SHARES] == SCORES
    assert [*layer_scores()] == [*SCORES, "rotary_symmetric_growth", "rotary_antisymmetric_growth"]


def test_summaries_have_them_over_layers_only() -> None:
    rows = attngeo.score("demo:minilm", scores=["symmetric_growth", "trace_z"], per_head=True)
    summary = attngeo.summarize(rows)
    layers = rows[rows["head"].isna()]
    assert summary["symmetric_growth_median"].item() == pytest.approx(layers["symmetric_growth"].median())
    assert "heads_trace_z_median" in summary
    assert not [name for name in summary if str(name).startswith("heads_symmetric_growth")]
    assert "heads_symmetric_growth_median" not in brief_columns("symmetric_growth", per_head=True)
    assert "heads_symmetric_growth_max" not in statistics(scores=["symmetric_growth"])


def test_conditions_know_that_heads_have_none(inside: Run) -> None:
    command = ["score", "demo:encoder", "--scores", "symmetric_growth", "--per-head", "-q"]
    for condition, code in (("symmetric_growth.median < 1.2", 0), ("symmetric_growth.min < 2", 1)):
        assert inside(*command, "--fail-if", condition).returncode == code
    done = inside(*command, "--fail-if", "heads.symmetric_growth.max > 1")
    assert done.returncode == 2
    assert_states(done.stderr, "heads.symmetric_growth.max", "whole layers")


def test_the_command_prints_them_of_layers(inside: Run, tmp_path: Path) -> None:
    done = inside(
        "score", "demo:encoder", "--scores", ",".join(SCORES), "--per-head", "-o", tmp_path / "s.csv", COLUMNS="200"
    )
    assert done.returncode == 0, done.stderr
    assert all(SPECS[name].label in done.stdout for name in SCORES)
    rows = pd.read_csv(tmp_path / "s.csv")
    assert (rows[SCORES].notna().all(axis="columns") == rows["head"].isna()).all()
    summary = inside("score", "demo:encoder", "--scores", "agreement", "--per-head", "--summary", "--format", "json")
    assert "agreement_median" in summary.stdout
    assert "heads_agreement_median" not in summary.stdout


def test_scores_that_are_added_later_are_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNGEO_CACHE", str(tmp_path))
    for scores in ((), ("symmetric_growth",), tuple(SCORES)):
        computed, kept = (attngeo.score("demo:encoder", scores=scores) for _ in range(2))
        assert kept[[*scores]].notna().all(axis=None)
        assert [name for name in SCORES if name in kept] == [*scores]
        pd.testing.assert_frame_equal(kept, computed)


def test_the_figure_has_growths_and_shares_of_each_stack() -> None:
    rows = attngeo.score(["demo:encoder", "demo:decoder"], scores=SCORES, per_head=True)
    figure = attngeo.plot("growths", rows)
    assert len(figure.data) == 2 * 6
    layers = rows[rows["head"].isna() & (rows["model"] == "demo:encoder")]
    for score, label in zip(SCORES, ["symmetric growth", "antisymmetric growth", *["own symmetry", *SHARES[1:]]],
                            strict=True):  # fmt: skip
        trace = next(figure.select_traces({"name": label}))
        np.testing.assert_allclose(trace.y, layers[score], rtol=1e-6)
    bars = [*figure.select_traces({"type": "bar"})][:3]
    (line,) = figure.select_traces({"name": "symmetry", "yaxis": bars[0].yaxis})
    np.testing.assert_allclose(sum(np.array(bar.y) for bar in bars), line.y, atol=1e-6)
    assert figure.layout.barmode == "relative"
    drawn = attngeo.plot("growths", ["demo:encoder", "demo:decoder"])
    assert [list(trace.y) for trace in drawn.data] == [list(trace.y) for trace in figure.data]
    assert len(attngeo.plot("growths", rows, stack="encoder").data) == 6


def test_the_figure_requires_the_scores(inside: Run, tmp_path: Path) -> None:
    assert inside("score", "demo:encoder", "-q", "-o", tmp_path / "s.csv").returncode == 0
    done = inside("plot", "growths", tmp_path / "s.csv", "-o", tmp_path / "g.html")
    assert done.returncode == 4
    assert_states(done.stderr, "symmetric_growth", f"--scores {','.join(SCORES)}")
    rows = attngeo.score("demo:encoder", scores=SCORES)
    with refuses(DataError, "growths", "note"):
        attngeo.plot("growths", rows.assign(**dict.fromkeys(SCORES, math.nan)))


def test_other_figures_leave_out_heads_that_have_no_such_score() -> None:
    rows = attngeo.score("demo:encoder", scores=["symmetric_growth"], per_head=True)
    assert len(attngeo.plot("layers", rows, score="symmetric_growth").data) == 1
    assert len(attngeo.plot("heatmap", rows, score="symmetric_growth").data) == 1


RECIPE = """
title = "Growths"

[[results]]
command = "score"
name = "scores"
models = ["demo:encoder"]
options = { scores = ["SCORES"], per_head = true }

[[section]]
title = "Growths"
figures = [{ kind = "growths", of = "scores" }]
tables = [{ of = "scores", show = "summary" }]

[[check]]
of = "scores"
fail_if = "symmetric_growth.median < 1.2"
"""


@pytest.mark.usefixtures("no_pictures")
def test_recipes_draw_check_and_summarise_them(inside: Run, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE.replace("SCORES", "all"))
    done = inside("report", path, "-o", tmp_path / "report", "-q")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "report" / "report.md").read_text("utf-8")
    assert "Growth of the symmetric and antisymmetric parts" in page
    assert "symmetric_growth \\[quartiles\\]" in page
    path.write_text(RECIPE.replace("SCORES", "symmetric_growth"))
    with refuses(UsageError, "antisymmetric_growth", "scores"):
        read_recipe(path)


def test_a_table_for_a_notebook_shows_them() -> None:
    assert "agreement" in attngeo.style(attngeo.score("demo:encoder", scores=SCORES)).to_html()


def test_the_first_rows_by_a_score_of_layers_are_layers(inside: Run, tmp_path: Path) -> None:
    options = ["--scores", ",".join(SCORES), "--per-head", "--top", 2, "-q"]
    for score, has_heads in (("agreement", False), ("symmetry", True)):
        done = inside("score", "demo:encoder", *options, "--sort", f"-{score}", "-o", tmp_path / "s.csv")
        assert done.returncode == 0, done.stderr
        rows = pd.read_csv(tmp_path / "s.csv")
        assert rows["head"].notna().tolist() == [has_heads] * 2
        assert rows[score].is_monotonic_increasing
