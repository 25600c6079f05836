"""GGUF files against what transformers multiplies when it loads them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest
from conftest import Command
from support.hub_client import reach_hub
from support.hub_server import serve
from support.messages import assert_states, refuses
from torch import Tensor

import attngeo
from attngeo.checkpoints.opening import open_store
from attngeo.checkpoints.store import TensorStore
from attngeo.errors import MissingPackageError, UnsupportedModelError

WIDTH, HEADS, KEY_HEADS, HEAD, INNER, TOKENS = 64, 4, 2, 16, 32, 40
SIZES = {
    "embedding_length": WIDTH, "block_count": 2, "attention.head_count": HEADS, "attention.head_count_kv": KEY_HEADS,
    "attention.key_length": HEAD, "attention.value_length": HEAD, "feed_forward_length": INNER, "context_length": 32,
    "rope.dimension_count": HEAD, "vocab_size": TOKENS,
}  # fmt: skip
SHAPES = {
    "attn_q": (HEADS * HEAD, WIDTH), "attn_k": (KEY_HEADS * HEAD, WIDTH), "attn_v": (KEY_HEADS * HEAD, WIDTH),
    "attn_output": (WIDTH, HEADS * HEAD), "ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH),
    "ffn_down": (WIDTH, INNER), "attn_norm": (WIDTH,), "ffn_norm": (WIDTH,),
}  # fmt: skip


def write_llama(path: Path, kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32) -> Path:
    """A LLaMA of random weights, of this type; vectors and embeddings in float32."""
    writer, generator = gguf.GGUFWriter(path, "llama"), np.random.default_rng(0)
    for key, value in SIZES.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32("llama.rope.freq_base", 10000.0)
    writer.add_array("tokenizer.ggml.tokens", [f"t{number}" for number in range(TOKENS)])
    shapes = {"token_embd": (TOKENS, WIDTH), "output": (TOKENS, WIDTH), "output_norm": (WIDTH,)}
    shapes |= {f"blk.{layer}.{name}": shape for layer in (0, 1) for name, shape in SHAPES.items()}
    for name, shape in shapes.items():
        numbers = generator.standard_normal(shape, dtype=np.float32)
        if name.startswith("blk") and len(shape) == 2:
            writer.add_tensor(f"{name}.weight", gguf.quantize(numbers, kind), raw_dtype=kind)
        else:
            writer.add_tensor(f"{name}.weight", numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", ["F32", "Q8_0"])
def test_a_gguf_file_agrees_with_the_model_that_transformers_makes_of_it(name: str, tmp_path: Path) -> None:
    path = write_llama(tmp_path / "model.gguf", gguf.GGMLQuantizationType[name])
    frame = attngeo.verify(path)
    assert frame["verdict"].tolist() == ["agrees", "agrees"]
    assert (frame.attrs["problem"], frame.attrs["unexplained"]) == ("", [])


def test_a_gguf_file_of_the_hub_agrees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_llama(tmp_path / "model.gguf")
    (tmp_path / "README.md").write_text("a model")
    with serve() as hub:
        reach_hub(hub.url, tmp_path / "home", monkeypatch)
        hub.repositories["org/name"] = tmp_path
        assert attngeo.verify("org/name/model.gguf")["verdict"].tolist() == ["agrees", "agrees"]


def test_the_command_verifies_a_gguf_file(tmp_path: Path, inside: Command) -> None:
    run = inside("score", write_llama(tmp_path / "model.gguf"), "--verify", "--format", "csv")
    assert run.returncode == 0, run.stderr
    assert_states(run.stderr, "all 2 sites agree")


def test_weights_of_a_gguf_file_that_are_read_wrongly_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the heads of the queries had another order."""
    path = write_llama(tmp_path / "model.gguf")
    kind = type(open_store(path))
    read_all = kind.read_all

    def misread(store: TensorStore, reads: Mapping[str, slice]) -> dict[str, Tensor]:
        return {name: x.flip(0) if "q_proj" in name else x for name, x in read_all(store, reads).items()}

    monkeypatch.setattr(kind, "read_all", misread)
    assert set(attngeo.verify(path)["verdict"]) == {"differs"}


def test_gradients_of_a_gguf_file_are_refused_for_what_is_missing(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m.gguf")
    with refuses(UnsupportedModelError, "m.gguf", "GGUF", "without its language model head"):
        attngeo.gradients(str(path))


def test_a_folder_and_a_missing_package_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_llama(tmp_path / "model.gguf")
    with refuses(UnsupportedModelError, tmp_path, "config.json"):
        attngeo.verify(tmp_path)  # transformers finds no weights in it
    monkeypatch.setitem(sys.modules, "gguf", None)
    with refuses(MissingPackageError, "gguf", "quantised"):
        attngeo.verify(path)
