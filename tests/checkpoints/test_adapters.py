"""A folder with an adapter is scored as the model that PEFT merges it into."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from conftest import Command
from safetensors.torch import load_file, save_file
from support.checkpoints import assert_refused, refuses_checkpoint, write_single
from support.circuits import assert_same_outputs
from support.dense import dense_growths
from support.hub_server import Hub
from support.measure import LargestTensor
from support.messages import assert_fails, assert_states, refuses
from support.packing import PACKINGS, pack_state
from support.peft_adapters import draw_updates
from support.tiny_models import TINY_MODELS, build

import attngeo
from attngeo.errors import AttnGeoError, CorruptCheckpointError, ModelNotFoundError, UnsupportedModelError, UsageError
from attngeo.reporting.report import build_report
from attngeo.scores.spec import layer_scores

# PEFT asks transformers for an attribute by its former name.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
SCORES = ["symmetry", "directionality", "frobenius_norm"]
LINEAR = ["q_proj", "k_proj"]


Adapt = Callable[..., tuple[Path, Path]]


@pytest.fixture(scope="module")
def adapt(tmp_path_factory: pytest.TempPathFactory) -> Adapt:
    """An adapter of a tiny model, beside its base, with random updates; and the model that PEFT merges them into.

    Each is made once, and copied into the folder that is given.
    """
    folders: dict[str, Path] = {}

    def copy(folder: Path, name: str, **options: Any) -> tuple[Path, Path]:
        key = f"{name} {options}"
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp("adapted")
            write_adapted(folders[key], name, **options)
        shutil.copytree(folders[key], folder, dirs_exist_ok=True)
        change_settings(base_model_name_or_path=str(folder / "base"))(folder / "adapter")
        return folder / "adapter", folder / "merged"

    return copy


def write_adapted(folder: Path, name: str, **options: Any) -> None:
    """The folders base, adapter and merged of `adapt`."""
    import peft  # here, as it takes two seconds, and not every worker needs it

    torch.manual_seed(0)
    build(TINY_MODELS[name]).save_pretrained(folder / "base")
    model = peft.get_peft_model(build(TINY_MODELS[name]), peft.LoraConfig(**{"r": 3, "lora_alpha": 5} | options))
    draw_updates(model)
    model.save_pretrained(folder / "adapter")
    model.merge_and_unload().save_pretrained(folder / "merged")


def assert_same(adapter: Path, merged: Path, **options: Any) -> None:
    scores, expected = (attngeo.score(folder, per_head=True, **options) for folder in (adapter, merged))
    assert len(scores) == len(expected) > 2
    assert scores["parameters"].tolist() == expected["parameters"].tolist()
    np.testing.assert_allclose(scores[SCORES[:2]], expected[SCORES[:2]], rtol=0, atol=2e-5)
    np.testing.assert_allclose(scores[SCORES[2]], expected[SCORES[2]], rtol=1e-5)
    base = attngeo.score(adapter.parent / "base", per_head=True, **options)
    assert (scores["symmetry"] - base["symmetry"]).abs().max() > 0.01


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "lora": ("llama", {"target_modules": LINEAR}),
    "rank-stabilised": ("llama", {"target_modules": LINEAR, "use_rslora": True}),
    "patterns": (
        "llama",
        {
            "target_modules": LINEAR, "rank_pattern": {r"layers\.0\..*q_proj": 2, "k_proj": 4},
            "alpha_pattern": {"k_proj": 7},
        },
    ),
    "queries only": ("qwen3", {"target_modules": ["q_proj"]}),
    "dora": ("llama", {"target_modules": LINEAR, "use_dora": True}),
    "fused": ("gpt_neox", {"target_modules": ["query_key_value"]}),
    "conv1d": ("gpt2", {"target_modules": ["c_attn"], "fan_in_fan_out": True}),
    "fused, one after the other": ("phi3", {"target_modules": ["qkv_proj"]}),
    "conv1d-dora": ("gpt2", {"target_modules": ["c_attn"], "fan_in_fan_out": True, "use_dora": True}),
    "encoder": ("bert", {"target_modules": ["query", "key"]}),
    "whole modules": ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["k_proj"]}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_the_merged_model(case: str, adapt: Adapt, tmp_path: Path) -> None:
    name, options = CASES[case]
    assert_same(*adapt(tmp_path, name, **options))


# Updates of values and outputs.
OUTPUT_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "lora": ("llama", {"target_modules": ["v_proj", "o_proj"]}),
    "dora": ("llama", {"target_modules": ["v_proj", "o_proj"], "use_dora": True}),
    "conv1d": ("gpt2", {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}),
    "fused": ("gpt_neox", {"target_modules": ["query_key_value", "dense"]}),
    "encoder": ("bert", {"target_modules": ["value", "attention.output.dense"]}),
    "whole modules": ("llama", {"target_modules": ["v_proj"], "modules_to_save": ["o_proj"]}),
}  # fmt: skip


@pytest.mark.parametrize("case", OUTPUT_CASES)
def test_values_and_outputs_are_those_of_the_merged_model(case: str, adapt: Adapt, tmp_path: Path) -> None:
    name, options = OUTPUT_CASES[case]
    adapter, merged = adapt(tmp_path, name, **options)
    assert_same_outputs(adapter, merged)
    with pytest.raises(AssertionError):
        assert_same_outputs(tmp_path / "base", merged)


def dense_updates(base: Path, merged: Path, **options: Any) -> Iterator[tuple[int, int | None, torch.Tensor]]:
    """The W_qk of a merged model less that of its base: layer, head and matrix; of no head for the sum of all."""
    sites = [attngeo.attention_sites(folder, dtype=torch.float64, **options) for folder in (base, merged)]
    for (site, *before), (_, *after) in zip(*sites, strict=True):
        updates = [
            sum(sign * (wq[head] @ wk[head * site.key_heads // site.heads].T) for sign, (wq, wk) in signed)
            for head in range(site.heads)
            for signed in [((-1, before), (1, after))]
        ]
        yield from ((site.layer, head, update) for head, update in [(None, sum(updates)), *enumerate(updates)])


def assert_updates(frame: pd.DataFrame, base: Path, merged: Path, **options: Any) -> None:
    """The rows are the scores of the difference of the merged model and its base."""
    rows = frame.set_index(["layer", frame["head"].fillna(-1)])
    for layer, head, update in dense_updates(base, merged, **options):
        row = rows.loc[layer, -1 if head is None else head]
        norm = float(update.norm())
        assert row["symmetry"] == pytest.approx(float(update.flatten() @ update.T.flatten()) / norm**2, abs=1e-4)
        assert row["frobenius_norm"] == pytest.approx(norm, rel=1e-4)
        assert row["directionality"] == pytest.approx(
            float(attngeo.geometry.directionality(update, torch.eye(len(update), dtype=update.dtype))), abs=1e-3
        )


@pytest.mark.parametrize("case", [case for case in CASES if "dora" not in case and case != "whole modules"])
def test_an_update_alone_is_the_difference_of_the_merged_model_and_its_base(
    case: str, adapt: Adapt, tmp_path: Path
) -> None:
    name, options = CASES[case]
    adapter, merged = adapt(tmp_path, name, **options)
    for variant in ({}, {"with_bias": True, "fold_norm": True}, {"rope_offset": 2}):
        if "rope_offset" in variant and name in ("gpt2", "bert"):
            continue
        frame = attngeo.score(tmp_path / "base", adapter=[str(adapter)], adapter_only=True, per_head=True, **variant)
        assert_updates(frame, tmp_path / "base", merged, **variant)


@pytest.mark.parametrize("case", ["lora", "fused"])
def test_growths_are_those_of_the_merged_heads_and_of_their_updates(case: str, adapt: Adapt, tmp_path: Path) -> None:
    name, options = CASES[case]
    adapter, merged = adapt(tmp_path, name, **options)
    scores, expected = (attngeo.score(folder, scores=layer_scores()) for folder in (adapter, merged))
    np.testing.assert_allclose(scores[[*layer_scores()]], expected[[*layer_scores()]], rtol=1e-5, atol=1e-5)
    updates: dict[int, list[np.ndarray]] = {}
    for layer, head, update in dense_updates(tmp_path / "base", merged):
        if head is not None:
            updates.setdefault(layer, []).append(update.numpy())
    alone = attngeo.score(tmp_path / "base", adapter=[str(adapter)], adapter_only=True, scores=layer_scores())
    for row, heads in zip(alone.to_dict("records"), updates.values(), strict=True):
        for score, value in dense_growths(heads).items():
            assert row[score] == pytest.approx(value, rel=1e-4, abs=1e-4)


def test_an_update_alone_never_becomes_a_matrix_of_all_inputs(tmp_path: Path) -> None:
    width, rows, rank = 1024, 16, 2
    config = {
        "model_type": "llama", "hidden_size": width, "num_attention_heads": 2, "head_dim": rows // 2,
        "num_hidden_layers": 1,
    }  # fmt: skip
    names = [f"model.layers.0.self_attn.{name}" for name in LINEAR]
    base = write_single(tmp_path / "base", {f"{name}.weight": torch.randn(rows, width) for name in names}, config)
    tensors = {f"base_model.model.{name}.lora_A.weight": torch.randn(rank, width) for name in names}
    tensors |= {f"base_model.model.{name}.lora_B.weight": torch.randn(rows, rank) for name in names}
    (tmp_path / "adapter").mkdir()
    save_file(tensors, tmp_path / "adapter/adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 4, "target_modules": LINEAR}
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(settings))
    with LargestTensor() as largest:
        attngeo.score(base, adapter=[str(tmp_path / "adapter")], adapter_only=True, per_head=True)
    assert largest.numbers < width**2 / 8


def adapt_twice(folder: Path, weights: list[float]) -> Path:
    """Two adapters `one` and `two` of a tiny LLaMA, and the model into which PEFT merges their weighted sum."""
    import peft

    torch.manual_seed(0)
    build(TINY_MODELS["llama"]).save_pretrained(folder / "base")
    settings = [peft.LoraConfig(r=rank, lora_alpha=5, target_modules=LINEAR) for rank in (2, 3)]
    model = peft.get_peft_model(build(TINY_MODELS["llama"]), settings[0], adapter_name="one")
    model.add_adapter("two", settings[1])
    draw_updates(model)
    model.save_pretrained(folder)
    model.add_weighted_adapter(["one", "two"], weights, "both", combination_type="cat")
    model.set_adapter("both")
    model.merge_and_unload().save_pretrained(folder / "merged")
    return folder / "merged"


def test_several_adapters_with_weights(tmp_path: Path, inside: Command) -> None:
    merged = adapt_twice(tmp_path, [0.5, 2.0])
    adapters = [f"{tmp_path / 'one'}=0.5", f"{tmp_path / 'two'}=2"]
    expected = attngeo.score(merged, per_head=True)
    scores = attngeo.score(tmp_path / "base", adapter=adapters, per_head=True)
    np.testing.assert_allclose(scores[SCORES], expected[SCORES], rtol=1e-4, atol=2e-5)
    assert_updates(
        attngeo.score(tmp_path / "base", adapter=adapters, adapter_only=True, per_head=True), tmp_path / "base", merged
    )
    flags = [part for adapter in adapters for part in ("--adapter", adapter)]
    run = inside("score", tmp_path / "base", *flags, "--per-head", "--format", "json")
    assert run.returncode == 0, run.stderr
    rows = json.loads(run.stdout)
    assert [row["symmetry"] for row in rows] == pytest.approx(scores["symmetry"].tolist(), abs=1e-6)
    assert rows[0]["format"] == "F32+lora"
    assert "two=2" in rows[0]["note"]


def test_adapters_on_the_hub_are_read_by_ranges(here: Hub, adapt: Adapt, tmp_path: Path) -> None:
    """By its own name, with the base that it names; and as an option."""
    adapter, merged = adapt(tmp_path, "llama", target_modules=[*LINEAR, "down_proj", "up_proj", "gate_proj"], r=64)
    here.repositories |= {"org/adapter": adapter, "org/base": tmp_path / "base"}
    change_settings(base_model_name_or_path="org/base")(adapter)
    size = (adapter / "adapter_model.safetensors").stat().st_size
    expected = attngeo.score(merged)
    for scores in (attngeo.score("org/adapter"), attngeo.score("org/base", adapter="org/adapter")):
        np.testing.assert_allclose(scores[SCORES], expected[SCORES], rtol=1e-3, atol=1e-4)
    assert 0 < here.sent["adapter_model.safetensors"] < 2 * 0.6 * size
    with pytest.raises(CorruptCheckpointError, match=r"org/base: the repository has no adapter_config.json"):
        attngeo.score("org/base", adapter="org/base")


def test_an_adapter_beside_config_json_on_the_hub_is_never_kept(
    here: Hub, adapt: Adapt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commit does not show that its base has changed."""
    monkeypatch.setenv("ATTNGEO_CACHE", str(tmp_path / "kept"))
    adapter, other = adapt(tmp_path, "llama")
    base = tmp_path / "base"
    shutil.copy(base / "config.json", adapter)
    change_settings(base_model_name_or_path=str(base))(adapter)
    here.repositories |= {"org/adapter": adapter, "org/other": other}
    questions: dict[str, Callable[[], pd.DataFrame]] = {
        "score": lambda: attngeo.score("org/adapter"),
        "positions": lambda: attngeo.positions("org/adapter"),
        "compare": lambda: attngeo.compare(["org/adapter", "org/other"]),
        "lineage": lambda: attngeo.lineage("org/other", "org/adapter", n_permutations=19),
    }
    before = {name: ask() for name, ask in questions.items()}
    for name, ask in questions.items():
        assert ask().equals(before[name]), name
    tensors = load_file(base / "model.safetensors")
    save_file({name: tensor.flip(0) for name, tensor in tensors.items()}, base / "model.safetensors")
    for name, ask in questions.items():
        assert not ask().equals(before[name]), name


def test_what_an_adapter_adds_to_a_base_is_inspected(adapt: Adapt, tmp_path: Path, inside: Command) -> None:
    adapter, merged = adapt(tmp_path, "llama", target_modules=LINEAR)
    base = tmp_path / "base"
    for (_, *found), (_, *expected) in zip(
        attngeo.attention_sites(base, adapter=str(adapter)), attngeo.attention_sites(merged), strict=True
    ):
        torch.testing.assert_close(found, expected)
    alone, given, plain = (
        json.loads(inside("inspect", *arguments, "--format", "json").stdout)
        for arguments in ((adapter,), (base, "--adapter", adapter), (base,))
    )
    assert given["adapter"] == [str(adapter)]
    assert given["bytes_to_read"] == alone["bytes_to_read"] > plain["bytes_to_read"]
    assert given["sites"] == alone["sites"]
    assert str(adapter) in inside("inspect", base, "--adapter", adapter, COLUMNS="400").stdout.splitlines()[0]
    (tmp_path / "alone").mkdir()
    (base / "model.safetensors").rename(tmp_path / "alone/model.safetensors")
    apart = inside("inspect", tmp_path / "alone/model.safetensors", "--config", base, "--format", "json")
    assert json.loads(apart.stdout)["sites"] == plain["sites"]
    missing = inside("inspect", merged, "--adapter", tmp_path / "alone")
    assert_refused(missing, tmp_path / "alone", CorruptCheckpointError, ("adapter_config.json",))
    with refuses_checkpoint(tmp_path / "alone", CorruptCheckpointError, ("adapter_config.json",)):
        attngeo.score(merged, adapter=str(tmp_path / "alone"))


def test_a_recipe_scores_adapters_beside_it(adapt: Adapt, tmp_path: Path) -> None:
    adapter, _ = adapt(tmp_path, "llama", target_modules=LINEAR)
    options = 'options = { adapter = ["adapter=0.5"], adapter_only = true, config = "base" }'
    (tmp_path / "r.toml").write_text(
        f'title = "T"\n[[results]]\nname = "a"\ncommand = "score"\nmodels = ["base"]\n{options}\n'
        '[[section]]\ntitle = "Shown"\ntables = [{ of = "a" }]\n'
    )
    build_report(tmp_path / "r.toml", tmp_path / "out")
    rows = pd.read_csv(tmp_path / "out/tables/a.csv")
    expected = attngeo.score(tmp_path / "base", adapter=[f"{adapter}=0.5"], adapter_only=True, per_head=True)
    np.testing.assert_allclose(rows["symmetry"], expected["symmetry"], atol=1e-6)
    assert rows["note"].str.endswith("update alone of adapter=0.5").all()


class Unfit(NamedTuple):
    """What is wrong with an adapter beside its base.

    error, facts: of the message. weight: that follows its name. change: of its folder. alone: whether
    the update alone is scored.
    """

    error: type[AttnGeoError]
    facts: tuple[str, ...]
    weight: str = ""
    change: Callable[[Path], object] = bool
    alone: bool = False


UNFIT = {
    "no number": Unfit(UsageError, ("adapter", "=x", "number"), "=x"),
    "no adapter": Unfit(
        CorruptCheckpointError, ("adapter_config.json",),
        change=lambda folder: (folder / "adapter_config.json").unlink(),
    ),
    "another size": Unfit(
        CorruptCheckpointError, ("A and B", "base"), change=lambda folder: save_wider(folder.parent / "base")
    ),
    "another base": Unfit(CorruptCheckpointError, ("was trained on",), change=lambda folder: use_other_base(folder)),
    "values only": Unfit(
        UnsupportedModelError,
        ("none of the weights read here", "v_proj", "circuit ov"),
        change=lambda folder: rename_modules(folder),
    ),
    "a changed base": Unfit(
        UnsupportedModelError, ("'pissa_niter_4'",),
        change=lambda folder: change_settings(init_lora_weights="pissa_niter_4")(folder),
    ),
    "dora alone": Unfit(
        UnsupportedModelError, ("DoRA", "adapter_only"), change=lambda folder: change_settings(use_dora=True)(folder),
        alone=True,
    ),
    "dora with a weight": Unfit(
        UsageError, ("DoRA", "weight"), "=2", lambda folder: change_settings(use_dora=True)(folder)
    ),
}  # fmt: skip


def save_wider(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text()) | {"hidden_size": 128, "head_dim": 32}
    transformers.AutoModel.from_config(transformers.AutoConfig.for_model(**config)).save_pretrained(folder)


def rename_modules(folder: Path) -> None:
    """Updates of values alone."""
    tensors = load_file(folder / "adapter_model.safetensors")
    values = {name.replace("q_proj", "v_proj"): tensor for name, tensor in tensors.items() if "k_proj" not in name}
    save_file(values, folder / "adapter_model.safetensors")


@pytest.mark.parametrize("case", UNFIT)
def test_what_adapter_does_not_take(case: str, adapt: Adapt, tmp_path: Path) -> None:
    unfit = UNFIT[case]
    adapter, _ = adapt(tmp_path, "llama", target_modules=LINEAR)
    unfit.change(adapter)
    with refuses(unfit.error) as refused:
        attngeo.score(tmp_path / "base", adapter=f"{adapter}{unfit.weight}", adapter_only=unfit.alone)
    message = str(refused.value).replace(str(adapter), "").replace(str(tmp_path / "base"), "")
    assert_states(message, *unfit.facts)


def test_the_command_says_which_flag_it_is(adapt: Adapt, tmp_path: Path, inside: Command) -> None:
    adapter, _ = adapt(tmp_path, "llama", target_modules=LINEAR)
    no_number = inside("score", tmp_path / "base", "--adapter", f"{adapter}=x")
    assert_fails(no_number, UsageError.exit_code, "--adapter", "=x", "number")
    change_settings(use_dora=True)(adapter)
    alone = inside("score", tmp_path / "base", "--adapter", adapter, "--adapter-only")
    assert_fails(alone, UnsupportedModelError.exit_code, "DoRA", "--adapter-only")


def test_an_update_alone_requires_an_adapter(inside: Command) -> None:
    run = inside("score", "demo:encoder", "--adapter-only")
    assert run.returncode == UsageError.exit_code
    assert "--adapter" in run.stderr


def test_a_base_is_not_verified_in_place_of_what_is_scored(tmp_path: Path, inside: Command) -> None:
    run = inside("score", "demo:encoder", "--adapter", tmp_path, "--verify")
    assert (run.returncode, run.stdout) == (UsageError.exit_code, "")
    assert "--verify" in run.stderr
    assert run.stderr.count("\n") == 1


def test_variants_and_the_base_s_own_format(adapt: Adapt, tmp_path: Path, inside: Command) -> None:
    adapter, merged = adapt(tmp_path, "llama", target_modules=LINEAR)
    assert_same(adapter, merged, with_bias=True, fold_norm=True, rope_offset=2)
    assert set(attngeo.score(adapter)["format"]) == {"F32+lora"}
    assert inside("inspect", adapter).returncode == 0
    assert "F32+lora" in inside("inspect", adapter, "--format", "json").stdout


def test_the_base_may_be_quantised(adapt: Adapt, tmp_path: Path) -> None:
    adapter, _ = adapt(tmp_path, "llama", target_modules=LINEAR)
    packing = PACKINGS["fp8-block"]
    state = load_file(tmp_path / "base/model.safetensors")
    stored, decoded = pack_state(state, packing, lambda name, tensor: "_proj" in name and tensor.ndim == 2)
    config = json.loads((tmp_path / "base/config.json").read_text())
    write_single(tmp_path / "base", decoded, config)
    expected = attngeo.score(adapter)
    write_single(tmp_path / "base", stored, config | packing.config)
    for scores in (attngeo.score(adapter), attngeo.score(tmp_path / "base", adapter=[str(adapter)])):
        assert set(scores["format"]) == {"fp8+lora"}
        np.testing.assert_allclose(scores[SCORES], expected[SCORES], rtol=1e-5, atol=1e-6)


def test_another_base_gives_other_scores_at_once(adapt: Adapt, tmp_path: Path) -> None:
    """Nothing is kept under the adapter alone."""
    adapter, _ = adapt(tmp_path, "llama", target_modules=LINEAR)
    before = attngeo.score(adapter)
    build(TINY_MODELS["llama"], seed=5).save_pretrained(tmp_path / "base")
    assert (attngeo.score(adapter)["symmetry"] - before["symmetry"]).abs().max() > 0.001


def change_settings(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def change_tensors(function: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        tensors = load_file(folder / "adapter_model.safetensors")
        function(tensors)
        save_file(tensors, folder / "adapter_model.safetensors")

    return change


def use_other_base(folder: Path) -> None:
    shutil.rmtree(folder.parent / "base")
    build(TINY_MODELS["bert"]).save_pretrained(folder.parent / "base")


Q0 = "base_model.model.model.layers.0.self_attn.q_proj"
REFUSED: dict[str, tuple[Callable[[Path], None], type[AttnGeoError], tuple[str, ...]]] = {
    "another method": (change_settings(peft_type="LOHA"), UnsupportedModelError, ("LOHA", "merge_and_unload")),
    "no base": (change_settings(base_model_name_or_path=None), CorruptCheckpointError, ("expected a model", "None")),
    "no weights": (
        lambda folder: (folder / "adapter_model.safetensors").unlink(), CorruptCheckpointError, ("adapter_model.bin",)
    ),
    "no settings": (
        lambda folder: (folder / "adapter_config.json").write_text("{"), CorruptCheckpointError, ("JSON",)
    ),  # type: ignore[dict-item]
    "another base": (use_other_base, CorruptCheckpointError, ("self_attn", "was trained on")),
    "another rank": (change_settings(r=4), CorruptCheckpointError, ("rank 3", "r = 4")),
    "no alpha": (change_settings(lora_alpha="x"), CorruptCheckpointError, ("lora_alpha = 'x'",)),
    "half of an update": (
        change_tensors(lambda tensors: tensors.pop(f"{Q0}.lora_A.weight")), CorruptCheckpointError,
        (Q0.removeprefix("base_model.model."), "expected"),
    ),
    "an update of another shape": (
        change_tensors(lambda tensors: tensors.update({f"{Q0}.lora_A.weight": torch.ones(3, 5)})),
        CorruptCheckpointError, (Q0.removeprefix("base_model.model."), "[3, 5]"),
    ),
    "no magnitudes": (change_settings(use_dora=True), CorruptCheckpointError, ("magnitudes",)),
    "something else": (
        change_tensors(lambda tensors: tensors.update({f"{Q0}.lora_E": torch.ones(3)})),
        UnsupportedModelError, ("lora_E",),
    ),
    "a pattern that is none": (
        change_settings(rank_pattern={r"(a\1q_proj": 3}), CorruptCheckpointError, ("rank_pattern", "regular expression")
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_fits_no_base_is_refused(case: str, adapt: Adapt, tmp_path: Path) -> None:
    damage, error, facts = REFUSED[case]
    adapter, _ = adapt(tmp_path, "llama", target_modules=LINEAR)
    damage(adapter)
    with refuses_checkpoint(adapter, error, facts):
        attngeo.score(adapter)


def test_a_base_that_is_missing_is_named(adapt: Adapt, tmp_path: Path, inside: Command) -> None:
    adapter, _ = adapt(tmp_path, "llama", target_modules=LINEAR)
    shutil.rmtree(tmp_path / "base")
    with refuses(ModelNotFoundError, tmp_path / "base"):
        attngeo.score(adapter)
    assert_fails(inside("score", adapter), ModelNotFoundError.exit_code, tmp_path / "base")


def test_a_folder_with_an_adapter_is_not_run(adapt: Adapt, tmp_path: Path) -> None:
    adapter, _ = adapt(tmp_path, "llama", target_modules=LINEAR)
    with pytest.raises(UnsupportedModelError, match="with an adapter cannot be run; give its base"):
        attngeo.verify(adapter)


def test_an_update_outside_of_layers_needs_no_names_of_transformers(
    adapt: Adapt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a head that the base does not store; to load transformers takes seconds."""
    adapter, merged = adapt(tmp_path, "llama", target_modules=LINEAR)
    stored = load_file(adapter / "adapter_model.safetensors")
    for factor in "AB":
        stored[f"base_model.model.other_head.lora_{factor}.weight"] = torch.zeros(3, 3)
    save_file(stored, adapter / "adapter_model.safetensors")
    monkeypatch.delattr("attngeo.checkpoints.renaming.find_renaming")
    assert_same(adapter, merged)
