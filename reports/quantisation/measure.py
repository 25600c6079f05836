"""Score three models in every packed format that attngeo decodes; see README.md beside it.

PYTHONPATH=tests python reports/quantisation/measure.py    # trains the LLaMA, then a few minutes on two cores
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import pandas as pd
import plotly.graph_objects as go
import torch
from k_quants import PACKERS
from plotly.subplots import make_subplots
from support.checkpoints import write_single
from support.packing import (
    Packing,
    autoround,
    awq,
    bitnet,
    bitsandbytes,
    compressed,
    fp8,
    gptq,
    hqq,
    mlx,
    nvfp4,
    plain_int8,
    quanto,
    quark,
    torchao,
)
from torch import Tensor

import attngeo
from attngeo.checkpoints.opening import open_store
from attngeo.figures.save import save_figure
from attngeo.figures.style import finish_figure

HERE = Path(__file__).parent
LLAMA = "llama-4x256"
ENDS = ("query.weight", "key.weight", "q_proj.weight", "k_proj.weight")
SCORES = ("symmetry", "directionality")
# Groups have the sizes that most published files have: 128 inputs, 64 for MLX and 32 or 16 for the formats of floats.
PACKINGS: Mapping[str, Packing] = {
    "bitsandbytes int8": bitsandbytes("int8"), "compressed-tensors int8": plain_int8(),
    "fp8, one scale": fp8("tensor"), "fp8, a scale for each row": fp8("channel"), "mxfp8": fp8("mx", "u8"),
    "nvfp4": nvfp4("compressed-tensors"), "AWQ": awq("gemm", 128), "nf4": bitsandbytes("nf4"),
    "nf4, packed scales": bitsandbytes("nf4", double=True), "fp4": bitsandbytes("fp4"),
    **{f"GPTQ-{bits}": gptq(bits, size=128) for bits in (8, 4, 3, 2)},
    "GPTQ-2, groups of 32": gptq(2), "GPTQ-3, groups of 32": gptq(3),
    **{f"MLX-{bits}": mlx(bits, 64) for bits in (8, 6, 4, 3, 2)},
    **{f"compressed-tensors int{bits}": compressed(bits, group=128) for bits in (4, 3, 2)},
    **{f"AutoRound-{bits}": autoround(bits, "auto_round:auto_gptq", size=128) for bits in (4, 2)},
    "AutoRound, packed as AWQ": autoround(4, "auto_round:auto_awq", size=128),
    "torchao int8": torchao("int8"), "torchao fp8": torchao("float8"), "torchao int4": torchao("int4", 128),
    **{f"HQQ-{bits}": hqq(bits, 1) for bits in (8, 4, 3, 2)}, "BitNet": bitnet("autobitlinear"),
    "quanto int8": quanto("int8"), "quanto fp8": quanto("float8"), "Quark fp8": quark("per_channel"),
}  # fmt: skip
# A change of directionality of this size is that of one outlier more or less.
MOVED = 0.05
BLOCKS = ("Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "MXFP4")
GGUF_NAMES = {
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
}  # fmt: skip
COLOURS = {"demo:minilm": "#0072B2", "demo:decoder": "#CC79A7", LLAMA: "#009E73"}


class Written(NamedTuple):
    """A model in one format.

    path: of the file or folder. bits: stored bits for each weight. error: of the weights, ‖W − Ŵ‖ / ‖W‖ over all of
    them.
    """

    path: Path
    bits: float
    error: float


def train_llama() -> Path:
    """A decoder with rotary embeddings and fewer key heads, wide enough for K-quants; resumed if it was begun."""
    folder = HERE / "runs" / LLAMA
    options = {
        "model": HERE / f"{LLAMA}.json", "objective": "clm", "vocab-size": 1024, "steps": 800, "batch-size": 32,
        "grad-accum": 1, "seq-len": 32, "lr": 2e-3, "warmup": 100, "weight-decay": 0.1, "output": folder,
    }  # fmt: skip
    flags = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    if folder.exists():
        flags.append("--resume")
    if not (folder / "model").exists():
        subprocess.run(["attngeo", "pretrain", *flags, "--quiet"], check=True, stdout=subprocess.DEVNULL)
    return folder / "model"


def read_weights(ref: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The query and key weights of a model, and its configuration."""
    store = open_store(ref)
    return {name: store.read(name).float() for name in store.names if name.endswith(ENDS)}, dict(store.config)


def relative_error(weights: Mapping[str, Tensor], decoded: Mapping[str, np.ndarray]) -> float:
    """‖W − Ŵ‖ / ‖W‖ over all weights."""
    difference = sum(float(np.square(decoded[name] - w.double().numpy()).sum()) for name, w in weights.items())
    return float((difference / sum(float(w.double().square().sum()) for w in weights.values())) ** 0.5)


def write_packed(folder: Path, packing: Packing, weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> Written:
    """A folder of safetensors."""
    stored, decoded = dict[str, Tensor](), dict[str, np.ndarray]()
    for name, weight in weights.items():
        parts, decoded[name] = packing.pack(weight)
        stored |= {name.removesuffix(".weight") + end: part.contiguous() for end, part in parts.items()}
    count = sum(weight.numel() for weight in weights.values())
    bits = 8 * sum(tensor.nbytes for tensor in stored.values()) / count
    path = write_single(folder, stored, {**config, **packing.config})
    return Written(path, bits, relative_error(weights, decoded))


def write_gguf(path: Path, kind: str, weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> Written:
    """A .gguf file, with the rows of a LLaMA in the order of llama.cpp."""
    family, heads = config["model_type"], config["num_attention_heads"]
    writer, code = gguf.GGUFWriter(path, family), gguf.GGMLQuantizationType[kind]
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads", heads))
    nbytes, decoded = 0, dict[str, np.ndarray]()
    for name, weight in weights.items():
        stem = name.removesuffix(".weight")
        layer = next(part for part in stem.split(".") if part.isdigit())
        inner = next(own for end, own in GGUF_NAMES.items() if stem.endswith(end))
        order = np.arange(len(weight))
        if family == "llama":
            order = order.reshape(-1, 2, config["hidden_size"] // heads // 2).swapaxes(1, 2).flatten()
        numbers = weight.numpy()[order]
        if kind in PACKERS:
            packed = PACKERS[kind](numbers.reshape(-1, 256)).reshape(len(numbers), -1)
        else:
            packed = gguf.quantize(numbers, code)
        writer.add_tensor(f"blk.{layer}.{inner}.weight", packed, raw_dtype=code)
        decoded[name] = np.empty(weight.shape)
        decoded[name][order] = gguf.dequantize(packed, code)
        nbytes += packed.nbytes
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    bits = 8 * nbytes / sum(weight.numel() for weight in weights.values())
    return Written(path, bits, relative_error(weights, decoded))


def write_all(folder: Path, ref: str) -> Iterator[tuple[str, Written]]:
    """The model in each format, and first as it is. K-quants need rows of whole blocks."""
    weights, config = read_weights(ref)
    yield "float32", Written(write_single(folder / "plain", weights, config), 32.0, 0.0)
    for name, packing in PACKINGS.items():
        yield name, write_packed(folder / name, packing, weights, config)
    for kind in BLOCKS + (tuple(PACKERS) if config["hidden_size"] % 256 == 0 else ()):
        yield f"GGUF {kind}", write_gguf(folder / f"{kind}.gguf", kind, weights, config)


def measure(models: Mapping[str, str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A row for each model, format, layer and head (empty: the whole layer); and one for each model and format."""
    rows, formats = [], []
    for model, ref in models.items():
        with tempfile.TemporaryDirectory() as folder:
            for name, written in write_all(Path(folder), ref):
                scores = attngeo.score(written.path, per_head=True, fresh=True)
                kept = scores[["layer", "head", *SCORES, "frobenius_norm"]]
                rows.append(kept.assign(model=model, format=name))
                formats.append((model, name, written.bits, written.error))
    frame = pd.concat(rows, ignore_index=True)
    return frame, pd.DataFrame(formats, columns=["model", "format", "bits", "weight_error"])


def compare(rows: pd.DataFrame, formats: pd.DataFrame) -> pd.DataFrame:
    """How far each format moved the scores of heads and of whole layers from those of float32.

    moved: share of heads whose score changed by more than MOVED. rank: Spearman's correlation over heads. attenuation:
    of the symmetry of all forms, the slope of a line through 0. unexplained: the median of |s·(‖M‖² / ‖M̂‖²) − ŝ|, what
    is left of the change after that of the norm.
    """
    plain = rows[rows["format"] == "float32"].drop(columns="format")
    pairs = rows.merge(plain, on=["model", "layer", "head"], suffixes=("", "_plain"))
    summary = []
    for (model, name), part in pairs.groupby(["model", "format"], sort=False):
        if name == "float32":
            continue
        line: dict[str, Any] = {"model": model, "format": name}
        for over, group in (("heads", part[part["head"].notna()]), ("layers", part[part["head"].isna()])):
            for score in SCORES:
                change = (group[score] - group[f"{score}_plain"]).abs()
                line |= {f"{over}_{score}_median": change.median(), f"{over}_{score}_max": change.max()}
                if over == "heads":
                    line[f"{over}_{score}_moved"] = (change > MOVED).mean()
                    line[f"{over}_{score}_rank"] = group[score].corr(group[f"{score}_plain"], method="spearman")
            s, before = group["symmetry"], group["symmetry_plain"]
            line[f"{over}_attenuation"] = (s * before).sum() / (before**2).sum()
            shrunk = before * (group["frobenius_norm_plain"] / group["frobenius_norm"]) ** 2
            line[f"{over}_unexplained_median"] = (s - shrunk).abs().median()
        summary.append(line)
    return formats.merge(pd.DataFrame(summary), on=["model", "format"])


def draw_changes(summary: pd.DataFrame) -> go.Figure:
    """Median change over heads against the bits that a weight takes, both scores."""
    figure = make_subplots(1, 2, subplot_titles=["symmetry", "directionality"], shared_yaxes=True)
    for column, score in enumerate(SCORES, 1):
        for model, part in summary.groupby("model", sort=False):
            figure.add_scatter(
                x=part["bits"], y=part[f"heads_{score}_median"], text=part["format"], mode="markers", name=model,
                marker={"color": COLOURS[str(model)], "size": 8}, legendgroup=model, showlegend=column == 1,
                row=1, col=column,
            )  # fmt: skip
    figure.update_yaxes(type="log", title_text="median |change| over heads", col=1)
    figure.update_yaxes(type="log", exponentformat="power")
    figure.update_xaxes(title_text="stored bits for each weight, scales included")
    return finish_figure(figure, "Change of the scores by quantisation", top=90)


def draw_heads(rows: pd.DataFrame, model: str) -> go.Figure:
    """Scores of each head in GPTQ's format against those of the original, 8 to 2 bits."""
    widths = (8, 4, 3, 2)
    figure = make_subplots(2, 4, subplot_titles=[f"{bits} bits" for bits in widths], vertical_spacing=0.16)
    rows = rows[(rows["model"] == model) & rows["head"].notna()]
    plain = rows[rows["format"] == "float32"]
    for column, bits in enumerate(widths, 1):
        packed = rows[rows["format"] == f"GPTQ-{bits}"]
        for row, score in enumerate(SCORES, 1):
            ends = [plain[score].min(), plain[score].max()]
            figure.add_scatter(
                x=ends, y=ends, mode="lines", line={"color": "#9AA1AB", "dash": "dot"}, showlegend=False, row=row,
                col=column,
            )  # fmt: skip
            figure.add_scatter(
                x=plain[score], y=packed[score], mode="markers", showlegend=False, row=row, col=column,
                marker={"color": plain["layer"], "colorscale": "Cividis", "size": 6, "showscale": row == column == 1,
                        "colorbar": {"title": "layer"}},
            )  # fmt: skip
            figure.update_xaxes(title_text=f"{score}, float32", row=row, col=column)
    for row, score in enumerate(SCORES, 1):
        figure.update_yaxes(title_text=f"{score}, quantised", row=row, col=1)
    return finish_figure(figure, f"{model}: each head in GPTQ's format", top=90)


if __name__ == "__main__":
    torch.manual_seed(0)
    models = {"demo:minilm": "demo:minilm", "demo:decoder": "demo:decoder", LLAMA: str(train_llama())}
    rows, formats = measure(models)
    summary = compare(rows, formats)
    columns = ["model", "format", "layer", "head", *SCORES, "frobenius_norm"]
    rows.astype({"head": "Int64"})[columns].to_csv(HERE / "rows.csv", index=False, float_format="%.5g")
    summary.to_csv(HERE / "summary.csv", index=False, float_format="%.4g")
    save_figure(draw_changes(summary).update_layout(width=900, height=450), HERE / "changes.png")
    save_figure(draw_heads(rows, "demo:minilm").update_layout(width=1000, height=600), HERE / "heads.png")
