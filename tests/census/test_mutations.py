"""The census notices each of the ways in which a family can be read wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from attngeo.layouts import model_types, modules
from attngeo.layouts.layout import Family, make_fused
from attngeo.layouts.sections import TowerSection
from attngeo.scores import projections
from attngeo.verification import checking
from census.examine import examine

pytestmark = pytest.mark.slow


def swap_queries_and_keys(patch: pytest.MonkeyPatch) -> None:
    original = projections.assemble

    def assemble(*args: Any) -> Any:
        parts = original(*args)
        return {"q": parts["k"], "k": parts["q"]}

    patch.setattr(projections, "assemble", assemble)


def cut_keys_before_queries(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(model_types.TYPES, "qwen2_vl_vision", Family(source="", layouts=(make_fused("qkv", "kqv"),)))


def drop_the_offset_of_a_gain(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(model_types.TYPES, "step3p5", Family(source=""))


def pair_heads_in_turn(patch: pytest.MonkeyPatch) -> None:
    original = checking.key_heads_of
    patch.setattr(checking, "key_heads_of", lambda site, _: original(site, "published"))


def take_the_heads_of_another_part(patch: pytest.MonkeyPatch) -> None:
    original = modules.find_section

    def find_section(module: str, config: dict[str, Any]) -> TowerSection:
        other = original("text_encoder_model.layers.0", config).section
        # Without its widths, which would be refused as those of another tower.
        heads = {name: value for name, value in other.fields.items() if "head" in name or name == "model_type"}
        return original(module, config)._replace(section=other._replace(fields=heads))

    patch.setattr(modules, "find_section", find_section)


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
