"""Model types rotate as the census says: the running layer at several offsets, with every kind of rotary scaling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from torch import Tensor

from attngeo.layouts.families import FAMILIES
from attngeo.layouts.model_types import list_rotary_types
from attngeo.layouts.rotary import rotary_frequencies
from census.build import build
from census.rotary import SCALINGS, find_rotation
from census.test_census import read_census

ROTATING = {name: row for name, row in read_census().items() if row["rotary"]}
READ = {name: row for name, row in ROTATING.items() if row["rotary"] not in ("gain", "other")}


def slow(*values: Any) -> Any:
    """Parameters of a test that are slow: others have another order of pairs, or all scalings."""
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("model_type", "kinds"),
    [
        ("starcoder2", [*SCALINGS]),
        ("glm4", ["yarn", "longrope"]),
        slow("cohere2", ["linear"]),
        slow("smollm3", ["llama3"]),
        slow("nanochat", ["dynamic"]),
        slow("blt_local_decoder", ["linear"]),
        slow("minicpm3", ["yarn"]),
        ("gemma4_text", ["proportional"]),
        slow("qwen3_vl_text", ["default"]),
        ("esm", []),
        ("qwen2_5_vl_vision", []),
        ("hunyuan_v1_dense", []),
    ],
)
def test_a_type_rotates_as_the_census_says(model_type: str, kinds: list[str]) -> None:
    order, right = find_rotation(build(model_type), kinds)
    assert order == ROTATING[model_type]["rotary"]
    assert right.split() == kinds


@pytest.mark.parametrize(
    "model_type",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in [*ROTATING][::10]),
        *(pytest.param(name, marks=pytest.mark.explore) for name in [*ROTATING][5::10]),
    ],
)
def test_every_fifth_type_rotates_as_the_census_says(model_type: str) -> None:
    assert find_rotation(build(model_type), ())[0] == ROTATING[model_type]["rotary"]


def test_the_census_notices_a_scaling_that_is_read_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_without_llama3(section: Mapping[str, Any], *args: Any) -> Tensor:
        rope = section["rope_parameters"]
        if rope.get("rope_type") == "llama3":
            section = {**section, "rope_parameters": {"rope_theta": rope["rope_theta"]}}
        return rotary_frequencies(section, *args)

    monkeypatch.setattr("attngeo.layouts.positions.rotary_frequencies", read_without_llama3)
    assert find_rotation(build("starcoder2"), ["linear", "llama3"]) == ("halves", "linear")


def test_the_table_of_families_agrees_with_the_census() -> None:
    found = list_rotary_types()
    stated = {name: family.rotary for name, family in FAMILIES.items() if family.rotary is not None and name in found}
    assert len(stated) > 20
    assert {name: found[name] for name in stated} == stated


def test_most_types_take_an_offset_with_every_kind_of_scaling() -> None:
    assert len(READ) >= 205
    flat = [row["scalings"].split() for row in READ.values() if "axes" not in row["rotary"]]
    assert len([kinds for kinds in flat if {"linear", "dynamic", "yarn", "llama3"} <= {*kinds}]) >= 165
