"""Defaults of every model type: they count where transformers would use them, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest

from attngeo.errors import AttnGeoError, CorruptCheckpointError, ShapeError, UnsupportedModelError
from attngeo.layouts.heads import HEAD_DIM, HEADS, list_numbers, load_defaults
from attngeo.layouts.layout import AttentionSite
from attngeo.layouts.sites import find_sites
from attngeo.layouts.sizes import DEFAULT_WIDTH

# Fields of other programs than transformers, which state the same.
FOREIGN = {"n_audio_state": 96, "n_text_head": 4, "n_audio_head": 8, "attn_heads_count": 4}
LAYERS = 3


def find(config: Mapping[str, Any], width: int, key_rows: int | None = None) -> list[AttentionSite]:
    """The sites of a model with separate queries and keys, known by names and shapes alone."""
    shapes = {}
    for layer in range(LAYERS):
        for letter, rows in (("q", width), ("k", key_rows or width), ("v", key_rows or width)):
            shapes[f"layers.{layer}.self_attn.{letter}_proj.weight"] = (rows, width)
    sites, _ = find_sites(shapes.keys(), config, shape_of=shapes.__getitem__)
    return sites


def list_types() -> dict[str, tuple[int, int, str]]:
    """Model type → default heads, default width and its field, of types with one of each."""
    types = {}
    for model_type, fields in load_defaults().items():
        heads = {value for name, value in fields.items() if name in HEADS and isinstance(value, int)}
        widths = {name: value for name, value in fields.items() if DEFAULT_WIDTH.fullmatch(name)}
        if len(heads) == len(widths) == 1 and all(isinstance(value, int) for value in widths.values()):
            (field, width), *_ = widths.items()
            types[model_type] = (heads.pop(), width, field)
    return types


TYPES = list_types()


def test_most_types_have_a_default_of_heads_and_width() -> None:
    assert len(TYPES) > 350


def test_defaults_count_only_with_a_width_that_is_stated_or_the_default() -> None:
    """Any number of heads that divides the width fits the weights: the default was taken for what was stated."""
    counts = {"default width": 0, "stated width": 0, "refused": 0, "no such layers": 0}
    for model_type, (heads, width, field) in TYPES.items():
        plain = {"model_type": model_type}
        try:
            sites = find(plain, width)
        except UnsupportedModelError:
            counts["no such layers"] += 1  # its queries have other names
            continue
        except (ShapeError, CorruptCheckpointError):  # its head_dim does not fit such weights
            counts["no such layers"] += 1
            continue
        other = 3 * heads * sites[0].head_dim
        if all(site.heads == heads for site in sites):
            counts["default width"] += 1
        if other in {width * 2**stage for stage in range(6)}:
            other *= 5
        head_dims = list_numbers(load_defaults()[model_type], HEAD_DIM)
        if head_dims:  # so that the weights tell the number of heads
            with suppress(AttnGeoError):
                assert {site.head_dim for site in find(plain | FOREIGN, other)} <= {*head_dims}, model_type
        else:
            with pytest.raises(CorruptCheckpointError, match=r"n_text_head, n_audio_head, attn_heads_count") as caught:
                find(plain | FOREIGN, other)
            assert all(name in str(caught.value) for name in load_defaults()[model_type] if name in HEADS)
            counts["refused"] += 1
        try:
            stated = find({**plain, **FOREIGN, field: other}, other)
        except AttnGeoError:  # its default head_dim does not fit
            continue
        counts["stated width"] += all(site.heads == heads for site in stated)
    assert counts["default width"] + counts["no such layers"] == len(TYPES)
    assert counts["refused"] > 200
    assert counts["stated width"] > 200


def test_whisper_with_the_dimensions_of_its_first_program_is_refused() -> None:
    """OpenAI and MLX state n_audio_head and n_text_head; the default is that of whisper-tiny."""
    shapes = {}
    for stack, modules in (("encoder", ("attn",)), ("decoder", ("attn", "cross_attn"))):
        for module in modules:
            for name in ("query", "key", "value", "out"):
                shapes[f"{stack}.blocks.0.{module}.{name}.weight"] = (48, 48)
    dims = {"n_audio_state": 48, "n_audio_head": 4, "n_text_state": 48, "n_text_head": 2, "model_type": "whisper"}
    with pytest.raises(CorruptCheckpointError, match=r"encoder_attention_heads.*n_audio_head, n_text_head"):
        find_sites(shapes.keys(), dims, shape_of=shapes.__getitem__)
    stated = dims | {"encoder_attention_heads": 4, "decoder_attention_heads": 2}
    sites, _ = find_sites(shapes.keys(), stated, shape_of=shapes.__getitem__)
    assert {site.stack: site.heads for site in sites} == {"encoder": 4, "decoder": 2, "cross": 2}


def test_layers_after_the_default_number_never_run() -> None:
    """Transformers builds as many layers as the type has by default, if config.json states no number."""
    checked = 0
    for model_type, (_, width, _) in TYPES.items():
        count = load_defaults()[model_type].get("num_hidden_layers")
        if count is None or model_type == "albert":  # whose layers share weights
            continue
        shapes = {f"layers.{layer}.self_attn.{letter}_proj.weight": (width, width)
                  for layer in range(count + 2) for letter in "qkv"}  # fmt: skip
        try:
            sites, skipped = find_sites(shapes.keys(), {"model_type": model_type}, shape_of=shapes.__getitem__)
        except AttnGeoError:
            continue
        assert max(site.layer for site in sites) < count, model_type
        assert any(f"transformers builds {count}" in reason for reason in skipped.values()), model_type
        checked += 1
    assert checked > 200


@pytest.mark.slow
def test_the_table_of_defaults_is_that_of_transformers() -> None:
    from census.defaults import read_defaults

    assert load_defaults() == read_defaults()
