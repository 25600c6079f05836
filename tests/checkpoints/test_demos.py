"""The demo models that attngeo contains."""

from __future__ import annotations

from importlib.resources import files

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

import attngeo
from attngeo.pretrain.sources import open_text


@pytest.mark.parametrize(("name", "head"), [("encoder", AutoModelForMaskedLM), ("decoder", AutoModelForCausalLM)])
def test_a_demo_is_small_and_has_learned_to_predict(name: str, head: type) -> None:
    folder = files("attngeo") / "demos" / name
    assert sum(file.stat().st_size for file in folder.iterdir()) < 2_000_000  # type: ignore[attr-defined]
    model, tokenizer = head.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)  # type: ignore[attr-defined]
    text = " ".join(next(open_text("austen").read_batches())[200:400])
    ids = torch.tensor(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    ids = ids[: len(ids) // 32 * 32].reshape(-1, 32)
    with torch.no_grad():
        if name == "decoder":
            loss = model(ids, labels=ids).loss.item()
        else:
            masked = torch.rand(ids.shape, generator=torch.Generator().manual_seed(0)) < 0.15
            given = torch.where(masked, tokenizer.mask_token_id, ids)
            loss = model(given, labels=torch.where(masked, ids, -100)).loss.item()
    counts = ids.flatten().bincount()
    frequencies = -(counts / counts.sum() * (counts / counts.sum()).log()).nansum().item()
    assert loss < frequencies - 1  # e times likelier than by token frequencies alone


def test_the_encoder_is_symmetric_and_the_decoder_is_not() -> None:
    """What Saponati et al. 2025 found in large models, Fig. 2a."""
    encoder, decoder = (attngeo.score(f"demo:{name}") for name in ("encoder", "decoder"))
    assert (encoder["stack"].unique().tolist(), decoder["stack"].unique().tolist()) == (["encoder"], ["decoder"])
    assert (encoder["symmetry"] > 0.1).all()
    assert (decoder["symmetry"].abs() < 0.1).all()
    assert encoder["symmetry"].median() > 5 * decoder["symmetry"].median()
