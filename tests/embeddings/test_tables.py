"""The tables that are found, compared with the ones that transformers says the model uses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints import write_single
from support.tiny_models import TINY_MODELS
from support.vectors import random_vectors

from attngeo.checkpoints.opening import open_store
from attngeo.embeddings.opening import Table, find_table
from attngeo.errors import UnsupportedModelError

NO_TEXT = {
    "vit", "deit", "beit", "dinov2", "vit_mae", "swin", "detr", "sam", "mask2former", "wav2vec2", "hubert", "wavlm",
    "unispeech",
}  # fmt: skip


def own_table(model: Any, table: Table) -> Any:
    try:
        module = model.get_input_embeddings() if table == "input" else model.get_output_embeddings()
    except (AttributeError, NotImplementedError):
        module = None
    return getattr(module, "weight", None)


@pytest.mark.parametrize("name", sorted(TINY_MODELS.keys() - NO_TEXT))
def test_the_tables_are_the_models_own(name: str, built: Callable[[str], Any], saved: Callable[[str], Path]) -> None:
    model = built(name)
    expected = own_table(model, "input")
    if name == "clip":  # it has two towers, and neither is the model's own
        expected = model.text_model.embeddings.token_embedding.weight
    for source in (model, saved(name)):
        store = open_store(source)
        found, notes = find_table(store, "input")
        assert torch.equal(store.read(found), expected), found
        assert notes == []
        if (output := own_table(model, "output")) is not None:
            found, notes = find_table(store, "output")
            assert torch.equal(store.read(found), output), found
            assert notes == [] or output is expected


@pytest.mark.parametrize("name", sorted(NO_TEXT))
def test_a_model_without_tokens_is_refused(name: str, built: Callable[[str], Any]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"embed_tokens\.weight"):
        find_table(open_store(built(name)), "input")


def test_an_unlisted_family_is_read_by_the_size_of_its_vocabulary(tmp_path: Path) -> None:
    tensors = {"net.token_emb.table": random_vectors(50, 8), "net.pos_emb.table": random_vectors(40, 8)}
    store = open_store(write_single(tmp_path / "a", tensors, {"model_type": "own", "vocab_size": 50}))
    assert find_table(store, "input")[0] == "net.token_emb.table"
    tensors["net.type_emb.table"] = random_vectors(50, 8)
    store = open_store(write_single(tmp_path / "b", tensors, {"model_type": "own", "vocab_size": 50}))
    with pytest.raises(UnsupportedModelError, match=r"net\.pos_emb"):
        find_table(store, "input")


def test_an_untied_model_without_an_unembedding_is_refused(tmp_path: Path) -> None:
    tensors = {"model.embed_tokens.weight": random_vectors(50, 8)}
    config = {"model_type": "llama", "tie_word_embeddings": False}
    with pytest.raises(UnsupportedModelError, match=r"lm_head\.weight"):
        find_table(open_store(write_single(tmp_path, tensors, config)), "output")
    tied = open_store(write_single(tmp_path, tensors, config | {"tie_word_embeddings": True}))
    found, (note,) = find_table(tied, "output")
    assert found == "model.embed_tokens.weight"
    assert "tied" in note


# A model type that ties by default, one that does not, and one of parts, whose text says so.
LLAVA = {"model_type": "llava", "text_config": {"model_type": "llama", "tie_word_embeddings": True}}


@pytest.mark.parametrize(
    ("config", "are_tied"),
    [
        ({"model_type": "llama"}, False),
        ({"model_type": "mistral"}, False),
        ({"model_type": "qwen3"}, False),
        ({"model_type": "gemma3_text"}, True),
        ({"model_type": "gpt2"}, True),
        ({"model_type": "bert"}, True),
        ({"model_type": "t5"}, True),
        ({"model_type": "llama", "tie_word_embeddings": True}, True),
        ({"model_type": "gpt2", "tie_word_embeddings": False}, False),
        ({"model_type": "gpt2", "tie_word_embeddings": None}, False),
        ({"model_type": "llava", "text_config": {"model_type": "llama"}}, False),
        (LLAVA, True),
        (LLAVA | {"tie_word_embeddings": False}, False),
    ],
    ids=str,
)
def test_one_table_serves_for_both_only_if_they_are_tied(
    config: dict[str, Any], are_tied: bool, tmp_path: Path
) -> None:
    """As in transformers, the default of the model type decides if config.json states nothing."""
    config = config | {"vocab_size": 50}
    for stored, asked in (("model.embed_tokens.weight", "output"), ("lm_head.weight", "input")):
        store = open_store(write_single(tmp_path, {stored: random_vectors(50, 8)}, config))
        if are_tied:
            name, (note,) = find_table(store, asked)
            assert (name, "tied" in note) == (stored, True)
        else:
            with pytest.raises(UnsupportedModelError, match="looked for"):
                find_table(store, asked)


def test_a_classifier_is_no_table_of_tokens(tmp_path: Path) -> None:
    store = open_store(write_single(tmp_path, {"head.weight": random_vectors(50, 8)}, {"model_type": "vit"}))
    with pytest.raises(UnsupportedModelError, match="looked for"):
        find_table(store, "input")
