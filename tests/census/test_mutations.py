"""The census notices each of the ways in which a family can be read wrongly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support import check_model

from attngeo.attention import projections
from attngeo.layouts import layout, model_types, modules, outputs, rules
from attngeo.layouts.layout import Family, make_fused
from attngeo.layouts.sections import TowerSection
from attngeo.verification import checking
from census.examine import examine

pytestmark = pytest.mark.slow


def swap_queries_and_keys(patch: pytest.MonkeyPatch) -> None:
    original = projections.assemble

    def assemble(*args: Any) -> Any:
        parts = original(*args)
        return parts | {"q": parts["k"], "k": parts["q"]} if "q" in parts else parts

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


def cut_values_as_keys(patch: pytest.MonkeyPatch) -> None:
    original = projections.assemble

    def assemble(site: Any, tensors: Any, letters: Any = "qk") -> Any:
        parts = original(site, tensors, letters)
        return parts | {"v": original(site, tensors, "k")["k"]} if "v" in parts else parts

    patch.setattr(projections, "assemble", assemble)


def take_rows_of_another_head(patch: pytest.MonkeyPatch) -> None:
    original = layout._cut_outputs

    def cut_outputs(*args: Any) -> Any:
        heads = original(*args)
        return heads._replace(weight=heads.weight.roll(1, 0))

    patch.setattr(layout, "_cut_outputs", cut_outputs)


def pair_heads_of_values_in_turn(patch: pytest.MonkeyPatch) -> None:
    original = checking.predict_outputs

    def predict_outputs(store: Any, site: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            pair_heads_in_turn(inner)
            return original(store, site)

    patch.setattr(check_model, "predict_outputs", predict_outputs)


def transpose_the_output_projection(patch: pytest.MonkeyPatch) -> None:
    transposed = tuple(replace(output, transposed=True) for output in rules.OUTPUTS)
    patch.setattr(outputs, "OUTPUTS", transposed)


def forget_the_scale_of_values(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(model_types.TYPES, "mimo_v2_flash", Family(source="", more_key_heads=True))


def forget_the_note_about_a_gate(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(outputs, "OUTPUT_NOTES", ())


@pytest.mark.parametrize(
    ("model_type", "mutate"),
    [
        ("camembert", cut_values_as_keys),
        ("starcoder2", pair_heads_of_values_in_turn),
        ("camembert", transpose_the_output_projection),
        ("starcoder2", take_rows_of_another_head),
        ("mimo_v2_flash", forget_the_scale_of_values),
        ("afmoe", forget_the_note_about_a_gate),
    ],
)
def test_values_and_outputs_that_are_read_wrongly_are_wrong(
    model_type: str, mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert examine(model_type).outputs in ("right", "sink", "changed")
    mutate(monkeypatch)
    row = examine(model_type)
    assert row.outputs == "wrong"
    assert row.verdict in ("right", "rest listed")


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
