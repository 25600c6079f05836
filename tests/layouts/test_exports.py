"""Files of programs other than transformers: rotary pairs in their order, by the formula of each program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from support.checkpoints import CONFIG, write_single
from torch import Tensor

import attngeo
from attngeo.errors import UnsupportedModelError
from attngeo.layouts.exports import EXPORTS

HEADS, KEY_HEADS, WIDTH, D = 4, 2, 6, 24
THETA = 10_000.0


class Names(NamedTuple):
    """How a program names queries, keys and the norm before attention, by the number of a layer."""

    query: str
    key: str
    norm: str

    def __str__(self) -> str:
        return f"{self.query} {self.norm}".replace(".{}", "").replace(".weight", "")


def show(value: object) -> str:
    return getattr(value, "__name__", str(value))


HUB = Names(
    *(f"model.layers.{{}}.{name}.weight" for name in ("self_attn.q_proj", "self_attn.k_proj", "input_layernorm"))
)
META = Names(*(f"layers.{{}}.{name}.weight" for name in ("attention.wq", "attention.wk", "attention_norm")))
MLX = META._replace(query="layers.{}.attention.query_proj.weight", key="layers.{}.attention.key_proj.weight")
TORCHTUNE = Names("layers.{}.attn.q_proj.weight", "layers.{}.attn.k_proj.weight", "layers.{}.sa_norm.scale")
FAIRSEQ2 = Names(
    *(f"decoder.layers.{{}}.{name}.weight" for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn_layer_norm"))
)
FAIRSEQ = Names(*(name.replace("decoder", "encoder") for name in FAIRSEQ2))
# The names of queries of programs that are not known, with the norm of another one.
OTHERS = {
    "norm of another name": META._replace(norm="layers.{}.norm.weight"),
    "module of another name": HUB._replace(
        query="model.layers.{}.attn.q_proj.weight", key="model.layers.{}.attn.k_proj.weight"
    ),
    "to_q": Names("blocks.{}.attention.to_q.weight", "blocks.{}.attention.to_k.weight", "blocks.{}.norm.weight"),
    "query": Names("layers.{}.attention.query.weight", "layers.{}.attention.key.weight", "layers.{}.norm.weight"),
}


def turn_as_complex(x: Tensor, angles: Tensor) -> Tensor:
    """Meta's rotation of x [..., width]: neighbours are complex numbers, which are multiplied by unit ones."""
    numbers = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(numbers * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def turn_halves(x: Tensor, angles: Tensor) -> Tensor:
    """The rotation of transformers' LLaMA: x·cos + rotate_half(x)·sin."""
    first, second = x.chunk(2, -1)
    both = torch.cat([angles, angles])
    return x * both.cos() + torch.cat([-second, first], -1) * both.sin()


def by_definition(
    tensors: dict[str, Tensor], names: Names, turn: Callable[[Tensor, Tensor], Tensor], offset: int
) -> list[float]:
    """The symmetry of the form of each head at an offset, on full matrices."""
    angles = offset * THETA ** (-torch.arange(0, WIDTH, 2).double() / WIDTH)
    symmetries = []
    for layer in range(2):
        wq = tensors[names.query.format(layer)].double().view(HEADS, WIDTH, D)
        wk = tensors[names.key.format(layer)].double().view(KEY_HEADS, WIDTH, D)
        for head in range(HEADS):
            form = turn(wq[head].T, angles) @ wk[head // (HEADS // KEY_HEADS)]
            symmetries.append(float((form * form.T).sum() / form.square().sum()))
    return symmetries


def make_tensors(names: Names, key_heads: int = KEY_HEADS) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for layer in range(2):
        tensors[names.query.format(layer)] = torch.randn(HEADS * WIDTH, D, generator=generator)
        tensors[names.key.format(layer)] = torch.randn(key_heads * WIDTH, D, generator=generator)
        tensors[names.norm.format(layer)] = 1 + torch.rand(D, generator=generator)
    return tensors


def symmetries(folder: Path, **options: Any) -> list[float]:
    frame = attngeo.score(folder, per_head=True, **options)
    return [float(value) for value in frame[frame["head"].notna()]["symmetry"]]


KNOWN = [
    *(("llama", names, turn_as_complex) for names in (META, MLX, TORCHTUNE, FAIRSEQ2)),
    *(("mistral", names, turn_as_complex) for names in (META, MLX, TORCHTUNE, FAIRSEQ2)),
    *((name, META, turn_as_complex) for name in ("mixtral", "ministral", "ministral3", "mllama_text_model")),
    *((name, TORCHTUNE, turn_as_complex) for name in ("gemma", "gemma2")),
    *((name, TORCHTUNE, turn_halves) for name in ("qwen2", "qwen3")),
    *((name, HUB, turn_halves) for name in ("llama", "mistral", "qwen2", "ministral3")),
]


@pytest.mark.parametrize(("model_type", "names", "turn"), KNOWN, ids=show)
def test_pairs_are_those_of_the_program_that_named_the_tensors(
    model_type: str, names: Names, turn: Callable[[Tensor, Tensor], Tensor], tmp_path: Path
) -> None:
    """Both formulas agree at offset 0, so that only the right one does at others."""
    tensors = make_tensors(names)
    folder = write_single(tmp_path, tensors, CONFIG | {"model_type": model_type, "rope_theta": THETA})
    for offset in (0, 1, 3, -2):
        expected = by_definition(tensors, names, turn, offset)
        assert symmetries(folder, rope_offset=offset) == pytest.approx(expected, abs=1e-5), offset


def test_halves_of_fairseq_are_those_of_esm(tmp_path: Path) -> None:
    tensors = make_tensors(FAIRSEQ, HEADS)
    config = CONFIG | {"model_type": "esm", "position_embedding_type": "rotary", "num_key_value_heads": HEADS}
    got = symmetries(write_single(tmp_path / "fairseq", tensors, config), rope_offset=2)
    own = {name.replace("encoder.layers", "esm.encoder.layer").replace("self_attn.q_proj", "attention.self.query")
           .replace("self_attn.k_proj", "attention.self.key"): tensor for name, tensor in tensors.items()}  # fmt: skip
    assert got == symmetries(write_single(tmp_path / "own", own, config), rope_offset=2)


@pytest.mark.parametrize(
    ("model_type", "names"),
    [
        # A name alone decides nothing: other programs use it for models of their own.
        *(("llama", names) for names in OTHERS.values()),
        *((model_type, META) for model_type in ("qwen2", "cohere", "gptj", "glm4", "starcoder2", "internlm2")),
        ("phi", MLX), ("cohere", TORCHTUNE), ("qwen3", FAIRSEQ2), ("ernie4_5", OTHERS["query"]),
    ],
    ids=str,
)  # fmt: skip
def test_an_order_that_is_not_known_is_refused(model_type: str, names: Names, tmp_path: Path) -> None:
    folder = write_single(tmp_path, make_tensors(names), CONFIG | {"model_type": model_type, "rope_theta": THETA})
    assert len(symmetries(folder)) == 2 * HEADS
    with pytest.raises(UnsupportedModelError, match="rope_offset"):
        attngeo.score(folder, rope_offset=1)


@pytest.mark.parametrize("names", [META, MLX, TORCHTUNE, FAIRSEQ2], ids=str)
def test_a_model_is_itself_in_the_form_of_any_program(names: Names, tmp_path: Path) -> None:
    """The rows of its heads are in another order, and its norms have other names: the forms are the same."""
    of_program = make_tensors(names)
    renamed = {}
    for layer in range(2):
        for old, new in zip(names[:2], HUB[:2], strict=True):
            rows = of_program[old.format(layer)].view(-1, WIDTH // 2, 2, D)
            renamed[new.format(layer)] = rows.transpose(1, 2).reshape(-1, D)
        renamed[HUB.norm.format(layer)] = of_program[names.norm.format(layer)].clone()
    config = CONFIG | {"rope_theta": THETA}
    one = write_single(tmp_path / "program", of_program, config)
    other = write_single(tmp_path / "hub", renamed, config)
    for options in ({"rope_offset": 1}, {"fold_norm": True}, {"fold_norm": True, "rope_offset": 3}):
        assert symmetries(one, **options) == pytest.approx(symmetries(other, **options), abs=1e-5), options
    assert symmetries(one, fold_norm=True) != pytest.approx(symmetries(one), abs=1e-3)
    frame = attngeo.compare([one, other])
    assert frame["change"].max() < 1e-3


def test_every_export_has_a_source_and_its_own_types() -> None:
    for export in EXPORTS:
        assert export.source.startswith("https://")
        assert export.neighbors or export.halves
        assert not export.neighbors & export.halves
