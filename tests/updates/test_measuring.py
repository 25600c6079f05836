"""From a model and a text to the table of updates."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

import attngeo
from attngeo.checkpoints.demos import locate_demo
from attngeo.errors import (
    AttnGeoError,
    CorruptCheckpointError,
    DataError,
    DataUnavailableError,
    UnsupportedModelError,
    UsageError,
)
from attngeo.pretrain.sources import open_text
from attngeo.updates import read_batches
from attngeo.updates.options import PAIR_COLUMNS, GradientOptions

SMALL: dict[str, Any] = {"sequences": 6, "seq_len": 16}


@pytest.fixture(autouse=True, scope="module")
def _short_text(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Part of the embedded novels, which takes less time to read than all of them."""
    path = tmp_path_factory.mktemp("text") / "part.txt"
    path.write_text("\n".join(islice(open_text("austen").read_documents(), 200, 500)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SMALL, "text", str(path))
        yield


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """A copy of demo:encoder."""
    folder = locate_demo("encoder")
    assert folder is not None
    return Path(shutil.copytree(folder, tmp_path / "encoder"))


def change_config(folder: Path, **fields: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return folder


@pytest.mark.parametrize(("model", "usual", "other"), [("demo:encoder", "mlm", "clm"), ("demo:decoder", "clm", "mlm")])
def test_a_model_is_measured_on_what_it_was_trained_on_or_on_the_other(model: str, usual: Any, other: Any) -> None:
    trained, foreign = attngeo.gradients(model, **SMALL).rows, attngeo.gradients(model, objective=other, **SMALL).rows
    assert trained.attrs["trained_on"] == foreign.attrs["trained_on"] == usual
    for rows, objective in ((trained, usual), (foreign, other)):
        assert list(rows.columns) == list(attngeo.columns("gradients"))
        assert set(rows["objective"]) == {objective}
        assert rows.groupby("layer").size().tolist() == [5, 5, 5]
        assert rows["beta_symmetry"].notna().all() == (objective == "mlm")
    # A loss far below and far above that of equal probabilities, log 1024 = 6.9.
    assert trained["loss"].max() < 6 < 8 < foreign["loss"].min()


def test_the_seed_draws_sequences_masks_and_shuffles() -> None:
    first, again, other = (attngeo.gradients("demo:encoder", seed=seed, **SMALL) for seed in (1, 1, 2))
    pd.testing.assert_frame_equal(first.rows, again.rows)
    assert first.tokens == again.tokens != other.tokens
    tokenizer = AutoTokenizer.from_pretrained(locate_demo("encoder"))
    masks = [
        torch.cat(
            [batch["labels"] for batch in read_batches(tokenizer, GradientOptions(objective="mlm", seed=seed, **SMALL))]
        )
        for seed in (1, 2)
    ]
    assert not torch.equal(masks[0] == -100, masks[1] == -100)


def test_pairs_are_those_of_the_first_sequence() -> None:
    gradients = attngeo.gradients("demo:decoder", **SMALL | {"sequences": 2, "seq_len": 8})
    pairs = gradients.tabulate_pairs()
    assert list(pairs.columns) == list(PAIR_COLUMNS)
    assert len(pairs) == 3 * 4 * 8 * 9 / 2
    assert (pairs["attended_position"] <= pairs["position"]).all()
    assert pairs["token"].unique().tolist() == list(dict.fromkeys(gradients.tokens))
    rows = pairs.groupby(["layer", "head", "position"])["beta"]
    assert rows.sum().abs().max() < 1e-5 * pairs["beta"].abs().max()


def test_a_model_in_memory_requires_a_tokeniser_and_is_left_as_it_was(built: Callable[[str], Any]) -> None:
    model, tokenizer = built("bert-decoder"), AutoTokenizer.from_pretrained(locate_demo("encoder"))
    with pytest.raises(UsageError, match="tokenizer"):
        attngeo.gradients(model)
    with pytest.raises(CorruptCheckpointError, match="vocabulary"):
        attngeo.gradients(model, tokenizer=tokenizer, **SMALL)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.resize_token_embeddings(1024)
    try:
        assert set(attngeo.gradients(model, tokenizer=tokenizer, **SMALL).rows["objective"]) == {"clm"}
    finally:
        model.resize_token_embeddings(64)
    assert not model.training
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in before.items() if "layer" in name)


def refuse(kind: type[AttnGeoError], *facts: str, model: Any = "demo:encoder", **options: Any) -> None:
    with pytest.raises(kind) as caught:
        attngeo.gradients(model, options=GradientOptions(**options))
    message = str(caught.value)
    assert "\n" not in message
    assert all(fact in message for fact in facts), message


def test_texts_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("a\n")
    refuse(DataError, "one.txt has 2 tokens", "32", "seq_len", text=str(tmp_path / "one.txt"))
    (tmp_path / "empty.txt").write_text("\n")
    refuse(DataError, "empty.txt", "no column holds text", "text_column", text=str(tmp_path / "empty.txt"))
    (tmp_path / "few.txt").write_text("words of a text\n" * 40)
    refuse(DataError, "few.txt has", "expected at least 24", "sequences", text=str(tmp_path / "few.txt"))
    refuse(DataUnavailableError, "none.txt", text=str(tmp_path / "none.txt"))
    text = SMALL["text"]
    refuse(UsageError, "seq_len 200", seq_len=200, text=text)
    refuse(DataError, "none of the 1 × 2 tokens is predicted", "sequences", sequences=1, seq_len=2, seed=1, text=text)
    for name in ("sequences", "seq_len", "seed"):
        with pytest.raises(UsageError, match=name):
            GradientOptions(**{name: -1})


def test_models_that_are_no_language_models_are_refused(encoder: Path, saved: Callable[[str], Path]) -> None:
    refuse(UnsupportedModelError, "BertModel has no language model head", "AutoModelForMaskedLM", model="demo:minilm")
    refuse(UnsupportedModelError, "BartForConditionalGeneration", "encoder–decoder model", model=str(saved("bart")))
    refuse(UnsupportedModelError, "ViTForImageClassification", "no language model head", model=str(saved("vit")))
    refuse(UnsupportedModelError, "no tokeniser", model=str(saved("gpt2")))
    tensors = load_file(encoder / "model.safetensors")
    kept = {name: x for name, x in tensors.items() if not name.startswith("cls.")}
    save_file(kept, encoder / "model.safetensors", {"format": "pt"})
    refuse(CorruptCheckpointError, "lacks", "cls.predictions", "random", model=str(encoder))


def test_the_objective_needs_a_mask_token(encoder: Path) -> None:
    path = encoder / "tokenizer_config.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "mask_token"}))
    refuse(UsageError, "mask token", "objective", model=str(encoder))
    assert set(attngeo.gradients(str(encoder), objective="clm", **SMALL).rows["objective"]) == {"clm"}
