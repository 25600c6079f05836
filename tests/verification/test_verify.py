"""`attngeo.verify`: a checkpoint, or a model in memory, against what the running model multiplies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import write_index
from support.hub_client import reach_hub
from support.hub_server import serve
from support.messages import refuses
from support.tiny_models import LLAMA, VIT, TinyModel, build

import attngeo
from attngeo.bounds import machine
from attngeo.checkpoints import files, hub as hub_module
from attngeo.errors import CorruptCheckpointError, NotEnoughMemoryError, UnsupportedModelError, UsageError
from attngeo.layouts import outputs
from attngeo.layouts.families import FAMILIES
from attngeo.layouts.layout import AttentionSite, make_fused
from attngeo.progress import Progress
from attngeo.verification import drives, loading, probing, verify as verifying
from attngeo.verification.comparing import Prediction
from attngeo.verification.verify import (
    AGREEING,
    SitePlace,
    describe_verification,
    match_places,
)

Build = Callable[[str], Any]
Save = Callable[[str], Path]


def edit(folder: Path, target: Path, **fields: Any) -> Path:
    """A copy of a checkpoint with other fields in its config.json. A field that is None is taken out."""
    target.mkdir()
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    config = json.loads((target / "config.json").read_text()) | fields
    (target / "config.json").write_text(json.dumps({name: v for name, v in config.items() if v is not None}))
    return target


def verdicts(frame: pd.DataFrame) -> dict[int, str]:
    return dict(zip(frame["layer"], frame["verdict"], strict=True))


# Models whose outputs are verified, too.
BOTH_CIRCUITS = ["bert", "gpt2", "phi3", "deepseek_v3", "t5", "whisper", "clip", "swin", "wav2vec2"]


def assert_every_site_agrees(frame: pd.DataFrame, folder: Path) -> None:
    """The rows are those of the scores, and all agree."""
    scores = attngeo.score(folder)
    assert list(zip(frame["stack"], frame["layer"], strict=True)) == list(
        zip(scores["stack"], scores["layer"], strict=True)
    )
    assert set(frame["verdict"]) <= set(AGREEING)
    assert frame["difference"].max() < 1e-4
    assert (frame.attrs["unexplained"], frame.attrs["problem"]) == ([], "")
    assert set(frame["model"]) == {str(folder)} == {frame.attrs["model"]}


@pytest.mark.parametrize("name", ["bert", "qwen3", "sam", "detr"])
def test_every_site_that_is_scored_agrees(name: str, saved: Save) -> None:
    frame = attngeo.verify(saved(name))
    assert list(frame.columns) == list(attngeo.columns("verify"))
    assert_every_site_agrees(frame, saved(name))


@pytest.mark.parametrize("name", BOTH_CIRCUITS)
def test_both_circuits_of_every_site_agree(name: str, saved: Save) -> None:
    frame = attngeo.verify(saved(name), circuit="both")
    assert list(frame.columns) == list(attngeo.columns("verify", circuit="both"))
    assert set(frame["verdict"]) <= {"agrees", "directions agree"}
    of_circuits = [rows.drop(columns=["circuit", "verdict", "difference"]) for _, rows in frame.groupby("circuit")]
    assert len(of_circuits) == 2
    pd.testing.assert_frame_equal(*(rows.reset_index(drop=True) for rows in of_circuits))
    for _, rows in frame.groupby("circuit"):
        assert_every_site_agrees(rows, saved(name))
    complaints, notes = describe_verification(frame)
    assert complaints == []
    assert notes[-1].endswith(f"all {len(frame)} circuits agree with the running model")


@pytest.mark.parametrize("name", ["bert", "deepseek_v3", "whisper"])
def test_outputs_alone_agree(name: str, saved: Save) -> None:
    alone = attngeo.verify(saved(name), circuit="ov")
    assert set(alone["circuit"]) == {"ov"}
    assert alone["difference"].max() < 1e-4


def test_a_sink_is_told_from_weights_that_sum_to_1(saved: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = attngeo.verify(saved("gpt_oss"), circuit="ov")
    assert set(frame["verdict"]) == {"heads agree"}
    assert frame["difference"].max() < 1e-4
    # Without its note, it is a difference.
    monkeypatch.setattr(outputs, "OUTPUT_NOTES", ())
    frame = attngeo.verify(saved("gpt_oss"), circuit="ov")
    assert set(frame["verdict"]) == {"differs"}
    complaints, _ = describe_verification(frame)
    assert "values and outputs" in complaints[0]


def test_outputs_that_are_not_known_leave_queries_and_keys(saved: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "OUTPUTS", ())
    frame = attngeo.verify(saved("llama"), circuit="both")
    assert frame.groupby("circuit")["verdict"].unique().map(list).to_dict() == {"qk": ["agrees"], "ov": ["not known"]}
    complaints, notes = describe_verification(frame)
    assert complaints == []
    assert any("no layout describes" in note for note in notes)


def test_the_scaling_of_what_rotates_is_that_of_the_running_model(saved: Save, tmp_path: Path) -> None:
    """As Phi-4-mini states it. It was left out: the products of plain weights are others."""
    scaling = {"type": "longrope", "short_factor": [1.0] * 2, "long_factor": [2.0] * 2}
    fields = {
        "rope_parameters": None,
        "rope_scaling": scaling,
        "partial_rotary_factor": 0.5,
        "max_position_embeddings": 4096,
    }
    frame = attngeo.verify(edit(saved("phi3"), tmp_path / "model", original_max_position_embeddings=32, **fields))
    assert verdicts(frame) == {0: "agrees", 1: "agrees"}


BLT_PART = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 24}
BLT_BYTES = BLT_PART | {"vocab_size": 64, "cross_attn_all_layers": True, "hidden_size_global": 64}
NORMED = {
    # Norms over the width of all heads; queries and keys are fused, under another name than the norms.
    "qianfan_ocr": TinyModel(
        "qianfan_ocr", "QianfanOCRForConditionalGeneration", {"image_token_id": 5, "image_seq_length": 1},
        sub_configs={
            "vision_config": (
                "qianfan_ocr_vision", VIT | {"patch_size": 8, "num_hidden_layers": 1, "use_qk_norm": True},
            ),
            "text_config": ("qwen3", LLAMA | {"num_hidden_layers": 1}),
        },
    ),
    # Norms of the input of cross-attention, as wide as all heads together.
    "blt": TinyModel(
        "blt", "BltForCausalLM",
        {"vocab_size": 64, "encoder_hash_byte_group_size": [3], "encoder_hash_byte_group_vocab": 50, "patch_size": 2},
        sub_configs={
            "patcher_config": (None, BLT_PART | {"vocab_size": 64}), "encoder_config": (None, BLT_BYTES),
            "decoder_config": (None, BLT_BYTES), "global_config": (None, BLT_PART | {"hidden_size": 64}),
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "sites"), [("qianfan_ocr", 2), ("blt", 6)])
@pytest.mark.filterwarnings("ignore")
def test_a_norm_named_after_queries_is_what_the_running_model_makes_of_it(
    name: str, sites: int, tmp_path: Path
) -> None:
    build(NORMED[name]).save_pretrained(tmp_path)
    frame = attngeo.verify(tmp_path)
    assert frame["verdict"].tolist() == ["agrees"] * sites
    assert (frame.attrs["skipped"], frame.attrs["unexplained"]) == ({}, [])


def test_a_pretrained_model_agrees_and_reports_its_progress() -> None:
    seen: list[Progress] = []
    frame = attngeo.verify("demo:minilm", progress=seen.append)
    assert verdicts(frame) == dict.fromkeys(range(6), "agrees")
    assert frame["module"][3] == "encoder.layer.3.attention.self"
    assert {each.phase for each in seen} == {"download", "load", "verify"}


def test_a_model_in_memory_is_left_as_it_was(built: Build) -> None:
    model = deepcopy(built("bert")).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.random.get_rng_state()
    assert set(attngeo.verify(model)["verdict"]) == {"agrees"}
    assert all(module.training for module in model.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_model_in_half_precision_is_compared_as_a_copy(saved: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModel

    model = AutoModel.from_pretrained(saved("llama"), dtype=torch.bfloat16)
    assert set(attngeo.verify(model)["verdict"]) == {"agrees"}
    assert model.dtype == torch.bfloat16
    monkeypatch.setattr(loading, "available_memory", lambda: 1000)
    with refuses(NotEnoughMemoryError, "0.0 GB"):
        attngeo.verify(model)


def test_a_model_without_values_or_no_model_is_refused(built: Build) -> None:
    bert = built("bert")
    with torch.device("meta"):
        model = type(bert)(bert.config)
    with refuses(CorruptCheckpointError, "meta"):
        attngeo.verify(model)
    with refuses(UsageError, "int"):
        attngeo.verify(3)


def test_products_that_do_not_fit_in_memory_are_refused(saved: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "available_memory", lambda: 1000)
    with refuses(NotEnoughMemoryError, "queries and keys", "0.0 GB"):
        attngeo.verify(saved("phi3"))


def test_weights_that_are_read_wrongly_are_named(saved: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the table of families said that keys come before queries."""
    wrong = replace(FAMILIES["phi3"], layouts=(make_fused("qkv_proj", "kqv"),))
    assert set(attngeo.verify(saved("phi3"))["verdict"]) == {"agrees"}
    monkeypatch.setitem(FAMILIES, "phi3", wrong)
    frame = attngeo.verify(saved("phi3"))
    assert set(frame["verdict"]) == {"differs"}
    assert frame["difference"].min() > 0.1
    assert frame.attrs["unexplained"] == []


def _without_vision(read: Callable[..., Any], *, of: str) -> Callable[..., Any]:
    """What finds sites, but those of images are neither found nor left out in stores whose class has this name."""

    def find(store: Any, *rest: Any, **more: Any) -> tuple[list[AttentionSite], dict[str, str]]:
        sites, skipped = read(store, *rest, **more)
        return [site for site in sites if of not in (type(store).__name__, "") or site.stack != "vision"], skipped

    return find


def test_sites_that_only_the_running_model_has_are_named(saved: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "sites_of", _without_vision(verifying.sites_of, of="FileStore"))
    frame = attngeo.verify(saved("clip"))
    assert dict(zip(frame["stack"], frame["verdict"], strict=True)) == {"text": "agrees", "vision": "only in memory"}
    assert frame.attrs["unexplained"] == []


def test_attention_that_nothing_reads_is_named(saved: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    find = _without_vision(verifying.sites_of, of="FileStore")
    monkeypatch.setattr(verifying, "sites_of", _without_vision(find, of="ModuleStore"))
    frame = attngeo.verify(saved("clip"))
    assert set(frame["verdict"]) == {"agrees"}
    assert frame.attrs["unexplained"] == ["vision_model.encoder.layers.#.self_attn"]


def test_sites_that_the_running_model_lacks_are_named(saved: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "sites_of", _without_vision(verifying.sites_of, of="ModuleStore"))
    frame = attngeo.verify(saved("clip"))
    assert dict(zip(frame["stack"], frame["verdict"], strict=True)) == {"text": "agrees", "vision": "only in the file"}


@pytest.mark.parametrize("name", ["bert", "llama", "gpt2"])
def test_layers_that_transformers_does_not_make_are_left_out(name: str, saved: Save, tmp_path: Path) -> None:
    field = "n_layer" if name == "gpt2" else "num_hidden_layers"
    frame = attngeo.verify(edit(saved(name), tmp_path / "short", **{field: 1}))
    assert verdicts(frame) == {0: "agrees"}
    assert ["layer 1 never runs" in reason for reason in frame.attrs["skipped"].values()] == [True]
    assert frame.attrs["unexplained"] == []


def test_a_model_that_does_not_run_is_not_run(saved: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drives, "combine_inputs", lambda *_: iter([{"wrong": 1}]))
    frame = attngeo.verify(saved("bert"))
    assert verdicts(frame) == {0: "not run", 1: "not run"}
    assert "input_ids" in frame.attrs["problem"]


@pytest.mark.parametrize(
    ("fields", "error", "facts"),
    [
        ({"model_type": "mystery", "auto_map": {"AutoModel": "x.Y"}}, UnsupportedModelError, ["mystery", "code"]),
        ({"model_type": "mystery"}, UnsupportedModelError, ["mystery", "transformers"]),
        ({"quantization_config": {"quant_method": "awq"}}, UnsupportedModelError, ["awq", "quantised"]),
        ({"num_hidden_layers": 3}, CorruptCheckpointError, ["BertForMaskedLM", "2.attention.self.query.weight"]),
        ({"vocab_size": 65}, CorruptCheckpointError, ["[64, 32]", "[65, 32]"]),
    ],
)  # fmt: skip
def test_a_checkpoint_that_transformers_does_not_load_is_refused(
    fields: dict[str, Any], error: type[attngeo.AttnGeoError], facts: list[str], saved: Save, tmp_path: Path
) -> None:
    folder = edit(saved("bert"), tmp_path / "model", **fields)
    with refuses(error, folder, *facts):
        attngeo.verify(folder)


def test_code_of_a_checkpoint_is_not_run_for_a_known_type(saved: Save, tmp_path: Path) -> None:
    folder = edit(
        saved("bert"), tmp_path / "model", auto_map={"AutoModel": "trap.Trap", "AutoConfig": "trap.Trap"},
        attn_implementation="someone/kernel", experts_implementation="someone/kernel",
    )  # fmt: skip
    (folder / "trap.py").write_text("raise SystemExit('the code of the checkpoint was run')")
    assert set(attngeo.verify(folder)["verdict"]) == {"agrees"}


def test_a_model_that_does_not_fit_is_refused_before_its_weights_are_read(
    saved: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "available_memory", lambda: 10_000)
    read = "transformers.PreTrainedModel.from_pretrained"
    monkeypatch.setattr(read, lambda *_, **__: pytest.fail("the weights were read"))
    with refuses(NotEnoughMemoryError, saved("bert"), "float32", "available"):
        attngeo.verify(saved("bert"))


def test_a_file_that_is_named_is_the_one_that_is_loaded(saved: Save, tmp_path: Path) -> None:
    folder = edit(saved("bert"), tmp_path / "model", architectures=None)
    (folder / "model.safetensors").rename(folder / "epoch-3.safetensors")
    assert len(attngeo.score(folder)) == 2
    with refuses(UnsupportedModelError, folder, "epoch-3.safetensors", "model.safetensors"):
        attngeo.verify(folder)  # transformers finds no weights in it
    tensors = load_file(folder / "epoch-3.safetensors")
    torch.save(tensors, folder / "pytorch_model.bin")
    save_file({name: t + 1 for name, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    for name in ("pytorch_model.bin", "epoch-3.safetensors"):
        assert set(attngeo.verify(folder / name)["verdict"]) == {"agrees"}
    named = edit(folder, tmp_path / "named", transformers_weights="model.safetensors")
    assert set(attngeo.verify(named / "pytorch_model.bin")["verdict"]) == {"agrees"}
    (folder / "pytorch_model.bin").rename(folder / "epoch-3.bin")
    with refuses(UnsupportedModelError, "epoch-3.bin", "pytorch_model.bin"):
        attngeo.verify(folder / "epoch-3.bin")


@pytest.mark.parametrize("case", ["folder", "named in config.json", "repository"])
def test_the_model_is_loaded_by_its_reference_alone(
    case: str, saved: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if attngeo opened another file than transformers: the index that is stale beside the one file."""
    fields = {"transformers_weights": "ema.safetensors"} if case == "named in config.json" else {}
    folder = edit(saved("bert"), tmp_path / "model", **fields)
    tensors = load_file(folder / "model.safetensors")
    other = {name: t + torch.randn(t.shape, generator=torch.Generator().manual_seed(0)) for name, t in tensors.items()}
    save_file(other, folder / "ema.safetensors", {"format": "pt"})
    save_file(other, folder / "model-00001-of-00001.safetensors", {"format": "pt"})
    write_index(folder, dict.fromkeys(other, "model-00001-of-00001.safetensors"))
    with ExitStack() as opened:
        model: str | Path = folder
        if case == "repository":
            hub = opened.enter_context(serve())
            reach_hub(hub.url, tmp_path / "home", monkeypatch)
            hub.repositories[model := "org/name"] = folder
        assert set(attngeo.verify(model)["verdict"]) == {"agrees"}
        for module in (files, hub_module, loading):
            monkeypatch.setattr(module, "usual_names", lambda: ("model.safetensors.index.json", "model.safetensors"))
        expected = "agrees" if fields else "differs"
        assert set(attngeo.verify(model)["verdict"]) == {expected}


def test_a_pickle_on_the_hub_is_verified_and_not_converted(
    saved: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers would ask the Hub, in a thread, to write safetensors files into the repository."""
    folder = edit(saved("bert"), tmp_path / "model")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    asked: list[Any] = []
    monkeypatch.setattr("transformers.modeling_utils.auto_conversion", lambda *_, **options: asked.append(options))
    with serve() as hub:
        reach_hub(hub.url, tmp_path / "home", monkeypatch)
        hub.repositories["org/name"] = folder
        assert set(attngeo.verify("org/name")["verdict"]) == {"agrees"}
    assert asked == []
    assert "DISABLE_SAFETENSORS_CONVERSION" not in os.environ


def test_a_layer_of_zeros_agrees(saved: Save, tmp_path: Path) -> None:
    folder = edit(saved("bert"), tmp_path / "model")
    path = folder / "model.safetensors"
    tensors = {name: t * ("layer.0.attention.self.query" not in name) for name, t in load_file(path).items()}
    save_file(tensors, path, {"format": "pt"})
    assert verdicts(attngeo.verify(folder)) == {0: "agrees", 1: "agrees"}


def test_sites_under_other_names_are_matched_by_their_weights() -> None:
    def draw(seed: int) -> Prediction:
        query, key = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(seed))
        return Prediction(query, key, query, key)

    file = {SitePlace("encoder", 0, 0): draw(0), SitePlace("vision", 0, 0): draw(1), SitePlace("vision", 1, 0): draw(2)}
    loaded = {SitePlace("encoder", 0, 0): draw(3), SitePlace("image", 7, 0): draw(1), SitePlace("image", 8, 0): draw(4)}
    loaded[SitePlace("image", 9, 0)] = draw(1)
    assert match_places(file, loaded) == {
        SitePlace("encoder", 0, 0): SitePlace("encoder", 0, 0),  # it is compared with the running model, and differs
        SitePlace("image", 7, 0): SitePlace("vision", 0, 0),
        SitePlace("image", 9, 0): SitePlace("vision", 0, 0),  # shared weights are in the file only once
    }


@pytest.mark.parametrize(
    ("groups", "files", "left"),
    [
        ("0::/a/b\n", {"a/memory.max": "3000", "a/memory.current": "1500", "a/memory.stat": "inactive_file 500"}, 2000),
        ("0::/a/b\n", {"a/memory.max": "max", "a/memory.current": "1500", "a/memory.stat": ""}, None),
        ("4:cpu:/\n7:memory:/d\n", {"memory/memory.limit_in_bytes": "900", "memory/memory.usage_in_bytes": "400",
                                    "memory/memory.stat": "total_inactive_file 100"}, 600),
        ("", {}, None),
    ],
)  # fmt: skip
def test_the_limit_of_a_container_counts(
    groups: str, files: dict[str, str], left: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"own": groups, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(machine, "OWN_GROUPS", tmp_path / "missing")
    unlimited = machine.available_memory()
    monkeypatch.setattr(machine, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(machine, "GROUPS", tmp_path)
    found = machine.available_memory()
    assert found == left if left is not None else found > unlimited / 2


def test_the_limit_of_address_space_counts() -> None:
    if not hasattr(psutil, "RLIMIT_AS"):
        pytest.skip("only Linux has a limit of address space that psutil can set")
    code = (
        "import psutil; psutil.Process().rlimit(psutil.RLIMIT_AS, (2**31, 2**31))\n"
        "from attngeo.bounds.machine import available_memory; print(available_memory())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 2**31
