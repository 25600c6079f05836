"""The report on pretrained models: the converter of Whisper, and the committed tables beside the models themselves."""

from __future__ import annotations

import json
import re
import runpy
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from support.readme import generate
from torch import Tensor

import attngeo
from attngeo.scores.summary import summary_columns

FOLDER = Path(__file__).parents[2] / "reports/pretrained"
fetch = runpy.run_path(str(FOLDER / "fetch.py"))
MODELS = {
    "all-MiniLM-L6-v2": "demo:minilm",
    "SmolLM2-135M-Instruct": fetch["TARGET"] / fetch["SMOLLM2"],
    "whisper-base": fetch["TARGET"] / fetch["WHISPER"],
}


def write_ctranslate2(variables: Mapping[str, Tensor], version: int = 6) -> bytes:
    """A file of CTranslate2 with these variables, and an alias at its end."""
    codes = {dtype: code for code, dtype in fetch["TYPES"].items()}

    def text(name: str) -> bytes:
        return struct.pack("<H", len(name) + 1) + name.encode() + b"\0"

    content = struct.pack("<I", version) + text("WhisperSpec") + struct.pack("<II", 3, len(variables))
    for name, variable in variables.items():
        data = variable.contiguous().numpy().tobytes()
        content += text(name) + struct.pack("<B", variable.dim()) + struct.pack(f"<{variable.dim()}I", *variable.shape)
        content += struct.pack("<BI", codes[variable.dtype], len(data)) + data
    return content + struct.pack("<I", 1) + text("decoder/projection/weight") + text("decoder/embeddings/weight")


def tiny_whisper() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors of a random Whisper of transformers, and the same as CTranslate2 stores them."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=50, num_mel_bins=5, d_model=16, encoder_layers=2, decoder_layers=3, encoder_attention_heads=2,
        decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=20, max_source_positions=9,
        max_target_positions=7, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config)
    for parameter in model.parameters():
        parameter.data.normal_()
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items() if name != "proj_out.weight"}
    variables = {
        "encoder/num_heads": torch.tensor(2, dtype=torch.int16),
        "decoder/num_heads": torch.tensor(4, dtype=torch.int16),
        "decoder/embeddings/weight": tensors["model.decoder.embed_tokens.weight"],
    }
    for stack in ("encoder", "decoder"):
        variables[f"{stack}/position_encodings/encodings"] = tensors[f"model.{stack}.embed_positions.weight"]
    for name, tensor in tensors.items():
        stored = name.removeprefix("model.").replace(".", "/").replace("layers/", "layer_")
        stored = stored.replace("self_attn", "self_attention").replace("encoder_attn", "attention")
        stored = re.sub(r"attention_layer_norm", "attention/layer_norm", stored)
        stored = stored.replace("final_layer_norm", "ffn/layer_norm").replace("fc1", "ffn/linear_0")
        stored = stored.replace("fc2", "ffn/linear_1")
        if "layer_norm" in stored:
            stored = stored.replace("norm/weight", "norm/gamma").replace("norm/bias", "norm/beta")
        if "_proj" not in stored and "embed_" not in stored:
            variables[stored] = tensor
    modules = {name.rpartition(".q_proj")[0] for name in tensors if "q_proj" in name}
    for module in modules:
        stored = module.removeprefix("model.").replace(".", "/").replace("layers/", "layer_")
        weights = [tensors[f"{module}.{letter}_proj.weight"] for letter in ("q", "k", "v", "out")]
        biases = [tensors.get(f"{module}.{letter}_proj.bias", torch.zeros(16)) for letter in ("q", "k", "v", "out")]
        ends = (3, 4) if module.endswith("self_attn") else (1, 3, 4)
        stored = stored.replace("self_attn", "self_attention").replace("encoder_attn", "attention")
        for number, (start, end) in enumerate(zip((0, *ends), ends, strict=False)):
            variables[f"{stored}/linear_{number}/weight"] = torch.cat(weights[start:end])
            variables[f"{stored}/linear_{number}/bias"] = torch.cat(biases[start:end])
    return tensors, variables


def test_a_whisper_of_ctranslate2_becomes_that_of_transformers() -> None:
    tensors, variables = tiny_whisper()
    read = fetch["read_ctranslate2"](write_ctranslate2(variables))
    assert all(torch.equal(read[name], variable) for name, variable in variables.items())
    converted, config = fetch["convert_whisper"](read)
    assert converted.keys() == tensors.keys()
    assert all(torch.equal(converted[name], tensor) for name, tensor in tensors.items())
    sizes = json.loads(json.dumps(config))
    assert (sizes["d_model"], sizes["encoder_layers"], sizes["decoder_layers"]) == (16, 2, 3)
    assert (sizes["encoder_attention_heads"], sizes["decoder_attention_heads"]) == (2, 4)
    assert (sizes["max_source_positions"], sizes["max_target_positions"], sizes["num_mel_bins"]) == (9, 7, 5)


def test_other_files_are_refused() -> None:
    _, variables = tiny_whisper()
    with pytest.raises(SystemExit, match="version 5, expected 6"):
        fetch["read_ctranslate2"](write_ctranslate2(variables, version=5))
    variables["encoder/layer_1/self_attention/linear_0/bias"][20] = 1
    with pytest.raises(SystemExit, match="encoder/layer_1/self_attention: the keys have a bias"):
        fetch["convert_whisper"](variables)


def test_the_tables_agree_with_one_another() -> None:
    """The summary of the weights is that of the table of layers and heads, and the pairings have its scores."""
    scores = pd.read_csv(FOLDER / "scores.csv", dtype={"head": "Int64"})
    summary = pd.read_csv(FOLDER / "summary.csv").query("variant == 'weights'").reset_index(drop=True)
    again = attngeo.summarize(scores.assign(parameters=0))
    columns = [name for name in summary_columns() if name not in ("model", "stack", "parameters")]
    assert summary[["model", "stack"]].equals(again[["model", "stack"]])
    assert np.abs(summary[columns] - again[columns]).to_numpy().max() < 2e-4
    layers = scores[scores["head"].isna()].reset_index(drop=True)
    pairings = pd.read_csv(FOLDER / "pairings.csv")
    assert pairings[["model", "stack", "layer"]].equals(layers[["model", "stack", "layer"]])
    assert np.abs(pairings["symmetry"] - layers["symmetry"]).max() < 2e-4


def test_the_page_has_the_summary() -> None:
    page = (FOLDER / "README.md").read_text("utf-8")
    assert all(line in page for line in generate("contrast").splitlines())


def test_the_page_has_the_pairings() -> None:
    page = (FOLDER / "README.md").read_text("utf-8")
    for (model, stack), part in pd.read_csv(FOLDER / "pairings.csv").groupby(["model", "stack"]):
        medians = part[["symmetry", "symmetry_shuffled_median", "heads_symmetry", "heads_symmetry_other"]].median()
        cells = ["0.00" if abs(value) < 0.005 else f"{value:+.2f}" for value in medians]
        chance = f"1 in {round(1 / part['own_first_chance'].iloc[0])}"
        line = f"| {stack} | {model} | {' | '.join(cells)} | {part['own_first'].mean():.0%} ({chance}) |"
        assert line in page
        own, shuffled = part[["directionality", "directionality_shuffled_median"]].median()
        sentence = f"{shuffled:+.2f} ({own:+.2f})".replace("-", "−")
        text = re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL)
        assert sentence in " ".join(text.replace("(own ", "(").split())


def test_the_gap_between_layers_is_that_of_the_runs() -> None:
    """Section 4.2 of the paper: it shrinks by whole layers on average, and grows by heads in each seed."""
    page = (FOLDER.parent / "symmetric-init/README.md").read_text("utf-8")
    rows = pd.read_csv(FOLDER.parent / "symmetric-init/layers.csv").query("objective == 'mlm'")
    lines = {"symmetry": "whole layers", "heads_symmetry_median": "medians over the heads of a layer"}
    for column, name in lines.items():
        gaps = rows.groupby(["init", "seed"])[column].agg(lambda scores: scores.max() - scores.min()).unstack("init")
        smaller = int((gaps["symmetric"] < gaps["default"]).sum())
        default, symmetric = gaps.mean()[["default", "symmetric"]]
        assert f"| {name} | {default:.3f} | {symmetric:.3f} | {smaller} of {len(gaps)} |" in page


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_the_models_have_the_scores_of_the_table(model: str) -> None:
    path = MODELS[model]
    if isinstance(path, Path) and not path.exists():
        pytest.skip("the pretrained models of reports/pretrained are missing (make real)")
    rows = attngeo.score(str(path), per_head=True, fresh=True)
    table = pd.read_csv(FOLDER / "scores.csv", dtype={"head": "Int64"}).query("model == @model").reset_index(drop=True)
    places = ["stack", "layer", "head"]
    pd.testing.assert_frame_equal(rows[places], table[places], check_dtype=False)
    assert np.abs(rows["symmetry"] - table["symmetry"]).max() < 1e-3
    assert set(attngeo.verify(str(path))["verdict"]) == {"agrees"}
