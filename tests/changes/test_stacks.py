"""Which stacks of two models are compared, if no option says it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from attngeo.changes.stacks import pair_stacks


def make_stacks(**types: str) -> dict[str, list[Any]]:
    """Stacks with a site each. types: the model type of each by its name, with the number of heads if it is not 4."""
    stacks: dict[str, list[Any]] = {}
    for name, text in types.items():
        model_type, _, heads = text.partition(" ")
        stacks[name] = [
            SimpleNamespace(
                stack=name, section={"model_type": model_type}, is_cross="cross" in name, heads=int(heads or 4),
                key_heads=4, head_dim=6, d_model=24,
            )
        ]  # fmt: skip
    return stacks


@pytest.mark.parametrize(
    ("stacks", "others", "expected"),
    [
        ({"text": "llama", "vision": "clip"}, {"text": "mistral", "audio": "clip"}, {"text": "text"}),
        ({"encoder": "bert"}, {"decoder": "gpt2"}, {"encoder": "decoder"}),
        ({"text": "llama", "vision": "clip 8"}, {"decoder": "mistral"}, {"text": "decoder"}),
        ({"text": "llama", "vision": "clip"}, {"tower": "clip", "head": "t5"}, {"vision": "tower"}),
        ({"text": "llama", "vision": "clip"}, {"tower": "clip 8", "head": "t5"}, {}),
        ({"text": "llama", "vision": "clip"}, {"tower": "clip", "decoder": "mistral"}, {}),
        ({"text": "llama", "vision": "clip"}, {"tower": "clip", "image": "clip"}, {}),
        ({"text": "llama", "vision": "clip"}, {"cross": "clip", "head": "t5"}, {}),
        ({"text": "", "vision": "clip"}, {"tower": "", "head": "t5"}, {}),
    ],
    ids=["one name", "one each", "two names of a part", "one type", "other sizes", "two pairs", "two of a type",
         "cross", "no type"],
)  # fmt: skip
def test_stacks_of_two_models_are_paired_if_one_pair_can_be_meant(
    stacks: dict[str, str], others: dict[str, str], expected: dict[str, str]
) -> None:
    assert pair_stacks(make_stacks(**stacks), make_stacks(**others)) == expected
