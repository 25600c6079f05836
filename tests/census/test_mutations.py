"""The census notices each of the ways in which a family can be read wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from attngeo.layouts import families, modules, sites
from attngeo.layouts.config import Place
from attngeo.layouts.layout import HeadNorm, make_fused
from attngeo.scores import weights
from attngeo.verification import checking
from census.examine import examine

pytestmark = pytest.mark.slow


def swap_queries_and_keys(patch: pytest.MonkeyPatch) -> None:
    original = weights.assemble

    def assemble(*args: Any) -> Any:
        parts = original(*args)
        return {"q": parts["k"], "k": parts["q"]}

    patch.setattr(weights, "assemble", assemble)


def cut_keys_before_queries(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(families.LAYOUTS, "qwen2_vl_vision", (make_fused("qkv", "kqv"),))


def drop_the_offset_of_a_gain(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(families.NORMS_BY_TYPE, "step3p5", HeadNorm())


def pair_heads_in_turn(patch: pytest.MonkeyPatch) -> None:
    original = checking.key_heads_of
    patch.setattr(checking, "key_heads_of", lambda site, _: original(site, "published"))


def take_the_heads_of_another_part(patch: pytest.MonkeyPatch) -> None:
    original = modules.find_section

    def find_section(module: str, config: dict[str, Any]) -> Place:
        place = original(module, config)
        return place._replace(section=original("text_encoder_model.layers.0", config).section)

    patch.setattr(modules, "find_section", find_section)
    patch.setattr(sites, "_check_description", lambda *_: None)  # it would refuse what does not fit the widths


@pytest.mark.parametrize(
    ("model_type", "mutate"),
    [
        ("camembert", swap_queries_and_keys),
        ("qwen2_vl_vision", cut_keys_before_queries),
        ("step3p5", drop_the_offset_of_a_gain),
        ("starcoder2", pair_heads_in_turn),
        ("clvp", take_the_heads_of_another_part),
    ],
)
def test_a_family_that_is_read_wrongly_is_wrong(
    model_type: str, mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert examine(model_type).verdict in ("right", "rest listed")
    mutate(monkeypatch)
    assert examine(model_type).verdict == "wrong"
