"""Compare where heads look by position alone with what running models attend to; see README.md beside it.

python reports/circuits/positions.py    # after reports/pretrained/fetch.py; a minute on one core
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots
from torch import Tensor
from transformers import AutoModel, AutoModelForCausalLM, WhisperForConditionalGeneration

import attngeo
from attngeo.attention.projections import key_heads_of
from attngeo.checkpoints.demos import locate_demo
from attngeo.figures.save import save_figure
from attngeo.figures.style import finish_figure
from attngeo.geometry.forms import Form
from attngeo.geometry.positions import FAST, PairStatistics, pair_statistics, previous_token, rotary_kernel
from attngeo.layouts.positions import SiteRotation, find_rotation

HERE = Path(__file__).parent
PRETRAINED = HERE.parents[1] / "build/pretrained"
SMOLLM2, WHISPER = PRETRAINED / "SmolLM2-135M-Instruct.Q4_1.gguf", PRETRAINED / "whisper-base"
# Sequences of random tokens that are repeated once, and how many tokens are drawn: the demo decoder was trained on 32.
SEQUENCES, DRAWN, DRAWN_FOR_DEMO = 16, 40, 16
SEED = 0
MEASURED = ("fast_share", "previous_token", "peak")


def load(kind: Any, folder: Path | None, **about: Any) -> Any:
    """A model of a class of transformers in float32, whose attention weights can be seen."""
    return kind.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32, **about).eval()


def draw_repeated(tokens: int, drawn: int) -> Tensor:
    """Sequences of random tokens, each followed by itself, [SEQUENCES, 2·drawn]. tokens: those to draw from."""
    generator = torch.Generator().manual_seed(SEED)
    first = torch.randint(0, tokens, (SEQUENCES, drawn), generator=generator)
    return torch.cat([first, first], 1)


def tabulate_attention(attentions: tuple[Tensor, ...]) -> pd.DataFrame:
    """The mean weight of each head on the previous token, and of repeated tokens on what followed their first copy.

    attentions: of each layer, [SEQUENCES, heads, tokens, tokens], on tokens that are repeated once.
    """
    rows = []
    for layer, weights in enumerate(attentions):
        drawn = weights.shape[-1] // 2
        previous = weights.diagonal(-1, dim1=2, dim2=3).mean((0, 2))
        followed = weights.diagonal(1 - drawn, dim1=2, dim2=3)[..., 1:].mean((0, 2))
        for head, (on_previous, on_followed) in enumerate(zip(previous.tolist(), followed.tolist(), strict=True)):
            rows.append({"layer": layer, "head": head, "previous": on_previous, "induction": on_followed})
    return pd.DataFrame(rows)


def run_smollm2() -> pd.DataFrame:
    """The attention of SmolLM2."""
    model = load(AutoModelForCausalLM, SMOLLM2.parent, gguf_file=SMOLLM2.name)
    return tabulate_attention(model(draw_repeated(model.config.vocab_size, DRAWN), output_attentions=True).attentions)


def run_whisper() -> pd.DataFrame:
    """The self-attention of Whisper's decoder, which hears noise."""
    model = load(WhisperForConditionalGeneration, WHISPER)
    noise = torch.randn(1, model.config.num_mel_bins, 3000, generator=torch.Generator().manual_seed(SEED)) / 10
    heard = model.model.encoder(noise).last_hidden_state.expand(SEQUENCES, -1, -1)
    tokens = draw_repeated(model.config.vocab_size, DRAWN)
    ran = model.model.decoder(tokens, encoder_hidden_states=heard, output_attentions=True)
    return tabulate_attention(ran.attentions)


def run_demo() -> pd.DataFrame:
    """The attention of `demo:decoder`."""
    model = load(AutoModelForCausalLM, locate_demo("decoder"))
    tokens = draw_repeated(model.config.vocab_size, DRAWN_FOR_DEMO)
    return tabulate_attention(model(tokens, output_attentions=True).attentions)


def run_minilm() -> pd.DataFrame:
    """The attention of MiniLM, an encoder."""
    model = load(AutoModel, locate_demo("minilm"))
    return tabulate_attention(model(draw_repeated(model.config.vocab_size, DRAWN), output_attentions=True).attentions)


def measure_fast_pairs(model: Any, stack: str, *, folded: bool) -> pd.DataFrame:
    """Of heads with rotary embeddings: κ(1) above the mean of κ(0), κ(2) and κ(3), of the fast pairs alone.

    In units of the norms of the fast pairs (`fast_previous`), and of all (`fast_previous_of_all`).
    """
    rows: list[dict[str, Any]] = []
    for site, wq, wk in attngeo.attention_sites(model, stack=stack, fold_norm=folded, with_bias=folded):
        rotation = find_rotation(site)
        if not isinstance(rotation, SiteRotation):
            continue
        form = Form(wq.mT.contiguous(), wk.mT.contiguous(), key_heads_of(site, "corrected"))
        frequencies = rotation.frequencies
        pairs = pair_statistics(form, len(frequencies), interleaved=rotation.interleaved, start=rotation.start)
        count = math.ceil(FAST * int(frequencies.count_nonzero()))
        fast = frequencies.argsort(descending=True)[:count]
        chosen = PairStatistics(pairs.norms[:, fast], pairs.cosines[:, fast], pairs.sines[:, fast], 0 * pairs.still)
        kernel = rotary_kernel(chosen, frequencies[fast], range(4))
        of_fast = previous_token(kernel, chosen.norms.sum(1)).tolist()
        of_all = previous_token(kernel, pairs.norms.sum(1)).tolist()
        rows += [
            {"layer": site.layer, "head": head, "fast_previous": own, "fast_previous_of_all": share}
            for head, (own, share) in enumerate(zip(of_fast, of_all, strict=True))
        ]
    return pd.DataFrame(rows, columns=["layer", "head", "fast_previous", "fast_previous_of_all"])


def join_measures(name: str, model: Any, attention: pd.DataFrame, stack: str = "decoder") -> pd.DataFrame:
    """A row for each head: what it attends to, and what its weights say without and with norms and biases."""
    place = ["layer", "head"]
    plain = attngeo.positions(model, stack=stack, fresh=True)[[*place, *MEASURED]]
    plain = plain.merge(measure_fast_pairs(model, stack, folded=False), "left", on=place)
    folded = attngeo.positions(model, stack=stack, fold_norm=True, with_bias=True, fresh=True)[[*place, *MEASURED]]
    folded = folded.merge(measure_fast_pairs(model, stack, folded=True), "left", on=place)
    folded = folded.rename(columns={column: f"folded_{column}" for column in folded if column not in place})
    rows = attention.merge(plain, on=place).merge(folded, on=place)
    rows.insert(0, "model", name)
    rows.insert(1, "stack", stack)
    return rows


def draw(rows: pd.DataFrame) -> go.Figure:
    """The attention of SmolLM2's heads against the share of their fast pairs."""
    shown = {"previous": "weight on the previous token", "induction": "weight on what followed the first copy"}
    figure = make_subplots(1, 2, subplot_titles=[*shown.values()])
    for column, name in enumerate(shown, 1):
        places = [f"layer {layer}, head {head}" for layer, head in zip(rows["layer"], rows["head"], strict=True)]
        points = go.Scatter(x=rows["fast_share"], y=rows[name], text=places, mode="markers", showlegend=False)
        figure.add_trace(points, 1, column)
        figure.update_xaxes(title_text="fast_share", row=1, col=column)
    finish_figure(figure, "Heads of SmolLM2-135M-Instruct: weights against the running model", top=70)
    return figure.update_layout(width=900, height=420)


def main() -> None:
    """Write positions.csv."""
    torch.set_num_threads(1)
    with torch.inference_mode():
        frames = [
            join_measures("SmolLM2-135M-Instruct", SMOLLM2, run_smollm2()),
            join_measures("whisper-base", WHISPER, run_whisper()),
            join_measures("demo:decoder", "demo:decoder", run_demo()),
            join_measures("all-MiniLM-L6-v2", "demo:minilm", run_minilm(), stack="encoder"),
        ]
    save_figure(draw(frames[0]), HERE / "positions.png")
    pd.concat(frames).to_csv(HERE / "positions.csv", index=False, float_format="%.5g")


if __name__ == "__main__":
    main()
