"""Compare mirrors and twins among the heads of a model with what they do when it runs; see running.md beside it.

python reports/growths/running.py                       # five minutes on one core
python reports/growths/running.py WIKITEXT ENCODER...   # also ablate trained encoders on this text
python reports/growths/running.py --tokens              # write sentences.json, the tokens of sentences.txt

Models whose rows ablation.csv has are not ablated again; remove the file to do so.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name
from transformers import AutoTokenizer, BertForMaskedLM, BertModel

import attngeo
from attngeo.checkpoints.demos import locate_demo
from attngeo.figures.save import save_figure
from attngeo.figures.style import GUIDE, SIGNED, finish_figure
from attngeo.geometry.forms import Form
from attngeo.geometry.mirrors import cosines, multiply_pairs, multiply_themselves, pair_heads
from attngeo.pretrain.text import NO_LABEL
from attngeo.updates import read_batches
from attngeo.updates.options import GradientOptions

HERE = Path(__file__).parent
SENTENCES = HERE / "sentences.json"
ABLATED = HERE / "ablation.csv"
MINILM = "all-MiniLM-L6-v2"
# Pairs of heads that are called mirrors, and twins, and how many of each are shown in the figures.
STRONGEST = 10
# Bootstrap samples of the sentences, and the bounds of 95%.
SAMPLES, BOUNDS = 2_000, (0.025, 0.975)
# Orders of the tokens of each sentence, besides its own.
SHUFFLES = 5
# The share of the squared norm of the position table, without its mean, that its main directions have, and how often as
# many random directions are drawn instead.
MAIN_SHARE, RANDOM_DRAWS = 0.9, 20
# The farthest token that the weight of attention is averaged for.
FARTHEST = 6
# Masked sequences, and their tokens: the small encoders were trained on so many.
SEQUENCES, TOKENS = 512, 32
SEED = 0
# The kinds of pairs in the figures: their colors, and their names.
COLORS = {"other": GUIDE, "twin": SIGNED[-1][1], "mirror": SIGNED[0][1]}
LABELS = {
    "other": "other pairs",
    "twin": f"the {STRONGEST} strongest twins",
    "mirror": f"the {STRONGEST} strongest mirrors",
}
PAIR = ["layer", "head", "other"]
KINDS = ("mirror", "twin", "antisymmetric")


class Batch(NamedTuple):
    """Sentences of the same number of tokens.

    Attributes:
        places: their numbers in the list of sentences, [S].
        tokens: [S, N], with [CLS] first and [SEP] last.
    """

    places: list[int]
    tokens: Tensor


def write_tokens() -> None:
    """Write sentences.json: the tokens of each line of sentences.txt."""
    tokenizer: Any = AutoTokenizer.from_pretrained(locate_demo("minilm"))
    lines = (HERE / "sentences.txt").read_text("utf-8").splitlines()
    rows = ",\n".join(json.dumps(tokenizer(line)["input_ids"]) for line in lines)
    SENTENCES.write_text(f"[\n{rows}\n]\n", "utf-8")


def read_sentences() -> list[Batch]:
    """The committed sentences, by length."""
    sentences = json.loads(SENTENCES.read_text("utf-8"))
    lengths = sorted({len(tokens) for tokens in sentences})
    places = [[place for place, tokens in enumerate(sentences) if len(tokens) == length] for length in lengths]
    return [Batch(group, torch.tensor([sentences[place] for place in group])) for group in places]


def load(kind: Any, folder: Path | None) -> Any:
    """A model of a class of transformers in float32, whose attention weights can be seen."""
    return kind.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()


def find_pairs(model: Any, project: Callable[[Tensor], Tensor] = lambda wq: wq) -> pd.DataFrame:
    """A row for each pair of heads of a layer, by weights alone.

    project: changes queries and keys, [heads, d_model, head_dim] each.
    """
    rows = []
    for site, wq, wk in attngeo.attention_sites(model, dtype=torch.float64):
        heads = pair_heads(Form(project(wq).mT.contiguous(), project(wk).mT.contiguous(), [*range(site.heads)]))
        of_themselves = multiply_themselves(heads)
        measures = cosines(multiply_pairs(heads, heads), of_themselves, of_themselves)
        for head, other in itertools.combinations(range(site.heads), 2):
            values = {kind: measure[head, other].item() for kind, measure in zip(KINDS, measures, strict=True)}
            rows.append({"layer": site.layer, "head": head, "other": other, **values})
    return pd.DataFrame(rows)


def name_strongest(pairs: pd.DataFrame, count: int = STRONGEST) -> pd.Series:
    """The pairs that are called "mirror" or "twin", by weights alone: "other" for all others.

    Mirrors have the most negative cosines of antisymmetric parts, among pairs whose mirror is positive; twins have the
    most positive ones, among pairs whose twin is.
    """
    kinds = pd.Series("other", pairs.index)
    kinds[pairs[pairs["mirror"] > 0].nsmallest(count, "antisymmetric").index] = "mirror"
    kinds[pairs[pairs["twin"] > 0].nlargest(count, "antisymmetric").index] = "twin"
    return kinds


class Run(NamedTuple):
    """What the layers of an encoder computed on a batch, without the special tokens at both ends.

    Attributes:
        logits: q·k of each layer, [S, heads, N, N]; rows are the attending tokens.
        weights: the attention of each layer, of the same shape.
    """

    logits: list[Tensor]
    weights: list[Tensor]


def run(model: Any, tokens: Tensor) -> Run:
    """Run an encoder of BERT on sentences of one length."""
    seen: dict[str, Tensor] = {}
    hooks = []
    for number, layer in enumerate(model.encoder.layer):
        for name in ("query", "key"):
            module = getattr(layer.attention.self, name)
            keep = make_keeper(seen, f"{name}{number}")
            hooks.append(module.register_forward_hook(keep))
    weights = model(tokens, output_attentions=True).attentions
    for hook in hooks:
        hook.remove()
    heads = model.config.num_attention_heads
    logits = []
    for number in range(len(model.encoder.layer)):
        q, k = (split_heads(seen[f"{name}{number}"], heads).transpose(1, 2) for name in ("query", "key"))
        logits.append((q @ k.mT)[..., 1:-1, 1:-1].double())
    return Run(logits, [weight[..., 1:-1, 1:-1].double() for weight in weights])


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[..., heads·head_dim] as [..., heads, head_dim]."""
    return x.reshape(*x.shape[:-1], heads, -1)


def make_keeper(seen: dict[str, Tensor], name: str) -> Callable[..., None]:
    """A hook that keeps the output of a module."""

    def keep(_module: Any, _inputs: Any, output: Tensor) -> None:
        seen[name] = output

    return keep


def center(logits: Tensor) -> Tensor:
    """Logits without the means of their rows and of their columns, [..., N, N]."""
    rows = logits.mean(-1, keepdim=True)
    columns = logits.mean(-2, keepdim=True)
    return logits - rows - columns + logits.mean((-2, -1), keepdim=True)


def correlate(logits: Tensor, others: Tensor) -> Tensor:
    """The correlation over the pairs of tokens of each head with each other one, [S, heads, other heads].

    logits, others: [S, heads, N, N].
    """
    left, right = (F.normalize((x - x.mean((-2, -1), keepdim=True)).flatten(2), dim=-1) for x in (logits, others))
    return left @ right.mT


def drop_diagonal(logits: Tensor) -> Tensor:
    """The logits between different tokens, row by row, [..., N − 1, N]."""
    tokens = logits.shape[-1]
    return logits.flatten(-2)[..., 1:].reshape(*logits.shape[:-2], tokens - 1, tokens + 1)[..., :-1]


def compare_logits(logits: Tensor) -> dict[str, Tensor]:
    """Of one layer, the correlations of all pairs of heads, [S, heads, heads] each.

    `mirror` is that of A_h with the transpose of A_g, `twin` that of A_h with A_g, `antisymmetric` the cosine of
    (A_h − A_hᵀ) and (A_g − A_gᵀ); all centered. `raw_…`: without centering. `different_mirror`: centered, over pairs of
    different tokens, as A and Aᵀ have the same diagonal.

    logits: [S, heads, N, N].
    """
    centered = center(logits)
    skew = F.normalize((centered - centered.mT).flatten(2), dim=-1)
    return {
        "running_mirror": correlate(centered, centered.mT),
        "running_twin": correlate(centered, centered),
        "running_antisymmetric": skew @ skew.mT,
        "different_mirror": correlate(drop_diagonal(centered), drop_diagonal(centered.mT)),
        "raw_mirror": correlate(logits, logits.mT),
        "raw_twin": correlate(logits, logits),
    }


@cache
def draw_samples(count: int) -> np.ndarray[Any, Any]:
    """Weights of the sentences in each bootstrap sample, [SAMPLES, count], with a sum of 1."""
    drawn = np.random.default_rng(SEED).multinomial(count, np.full(count, 1 / count), SAMPLES)
    return drawn / count


def bound(values: np.ndarray[Any, Any]) -> tuple[float, float]:
    """The bounds of 95% of the means of bootstrap samples. values: of each sentence."""
    low, high = np.quantile(draw_samples(len(values)) @ values, BOUNDS)
    return float(low), float(high)


def compare_running(model: Any, pairs: pd.DataFrame, batches: Sequence[Batch]) -> pd.DataFrame:
    """A row for each pair of heads of a layer: what the weights say of it, and the correlations of its logits.

    Correlations are means over sentences. `above_others` is by how much the correlation with the transpose exceeds the
    median of the other pairs of the layer. Ranks are within the layer: 1 for the largest correlation, and for the most
    negative antisymmetric cosine.
    """
    count = sum(len(batch.places) for batch in batches)
    kept: dict[tuple[int, str], Tensor] = {}
    for batch in batches:
        for layer, logits in enumerate(run(model, batch.tokens).logits):
            for name, values in compare_logits(logits).items():
                of_all = kept.setdefault((layer, name), values.new_empty(count, *values.shape[1:]))
                of_all[batch.places] = values
    samples = draw_samples(count)
    frames = []
    for layer in range(len(model.encoder.layer)):
        rows = pairs[pairs["layer"] == layer]
        heads, others = (rows[name].to_numpy() for name in ("head", "other"))
        of_pairs = {name: of_all.numpy()[:, heads, others] for (at, name), of_all in kept.items() if at == layer}
        columns: dict[str, Any] = {name: of_sentences.mean(0) for name, of_sentences in of_pairs.items()}
        for name in ("running_mirror", "running_antisymmetric"):
            columns[f"{name}_low"], columns[f"{name}_high"] = np.quantile(samples @ of_pairs[name], BOUNDS, axis=0)
        columns["above_others"] = exceed_others(columns["running_mirror"][None])[0]
        exceeding = exceed_others(samples @ of_pairs["running_mirror"])
        columns["above_others_low"], columns["above_others_high"] = np.quantile(exceeding, BOUNDS, axis=0)
        frame = rows.assign(**columns)
        for name in ("mirror", "twin"):
            frame[f"{name}_rank"] = frame[f"running_{name}"].rank(ascending=False).astype(int)
            frame[f"raw_{name}_rank"] = frame[f"raw_{name}"].rank(ascending=False).astype(int)
        frame["antisymmetric_rank"] = frame["running_antisymmetric"].rank().astype(int)
        frames.append(frame)
    return pd.concat(frames)


def exceed_others(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Each value minus the median of the others of its row, [rows, values]."""
    others = [np.median(np.delete(values, number, axis=1), axis=1) for number in range(values.shape[1])]
    exceeding: np.ndarray[Any, Any] = values - np.stack(others, 1)
    return exceeding


def find_main_directions(table: Tensor) -> Tensor:
    """An orthonormal basis of the main directions of a table of positions, [directions, d_model]."""
    directions: Tensor
    _, sizes, directions = torch.linalg.svd(table - table.mean(0), full_matrices=False)
    shares = sizes.square().cumsum(0) / sizes.square().sum()
    return directions[: int((shares < MAIN_SHARE).sum()) + 1]


def make_projection(basis: Tensor) -> Callable[[Tensor], Tensor]:
    """A function that removes some directions from queries or keys, [heads, d_model, head_dim]. basis: orthonormal."""
    return lambda weight: weight - basis.mT @ (basis @ weight)


def project_positions(model: Any, pairs: pd.DataFrame) -> pd.DataFrame:
    """The mirror and the antisymmetric cosine of each pair without the main directions of positions.

    `…_without_random` is the mean over draws of as many random directions.
    """
    basis = find_main_directions(model.embeddings.position_embeddings.weight.detach().double())
    names = ["mirror", "antisymmetric"]
    without = find_pairs(model, make_projection(basis))[names].add_suffix("_without_positions")
    generator = torch.Generator().manual_seed(SEED)
    draws = []
    for _ in range(RANDOM_DRAWS):
        random, _ = torch.linalg.qr(torch.randn(*basis.T.shape, generator=generator, dtype=torch.float64))
        draws.append(find_pairs(model, make_projection(random.T))[names])
    of_random = sum(draws[1:], draws[0]) / RANDOM_DRAWS
    of_random = of_random.add_suffix("_without_random")
    return pairs.assign(directions=len(basis)).join(without).join(of_random)


def shuffle_tokens(model: Any, batches: Sequence[Batch]) -> pd.DataFrame:
    """A row for each pair of heads of a layer: correlations between a sentence and its tokens in another order.

    All are centered, and over pairs of different tokens: an order does not change the diagonal. `shuffled` is that of
    A_h with the transpose of A_g, both on the shuffled sentence. `by_position` is that of A_h on the sentence with the
    transpose of A_g on the shuffled one, at the same positions; `by_token` the same at the same tokens.
    `own_by_position` and `own_by_token` compare A_h with A_h, mean of both heads.
    """
    generator = torch.Generator().manual_seed(SEED)
    sums: dict[tuple[int, str], Tensor] = {}
    for batch in batches:
        logits = [center(x) for x in run(model, batch.tokens).logits]
        for _ in range(SHUFFLES):
            order = torch.rand(len(batch.tokens), batch.tokens.shape[1] - 2, generator=generator).argsort(1)
            tokens = batch.tokens.clone()
            tokens[:, 1:-1] = tokens[:, 1:-1].gather(1, order)
            for layer, shuffled in enumerate(run(model, tokens).logits):
                for name, values in compare_orders(logits[layer], center(shuffled), order).items():
                    sums[layer, name] = sums.get((layer, name), torch.tensor(0.0)) + values.sum(0)
    count = SHUFFLES * sum(len(batch.places) for batch in batches)
    rows = []
    for layer in range(len(model.encoder.layer)):
        means = {name: (values / count).numpy() for (number, name), values in sums.items() if number == layer}
        for head, other in itertools.combinations(range(model.config.num_attention_heads), 2):
            row: dict[str, Any] = {"layer": layer, "head": head, "other": other}
            for name, mean in means.items():
                is_own = name.startswith("own")
                row[name] = (mean[head, head] + mean[other, other]) / 2 if is_own else mean[head, other]
            rows.append(row)
    return pd.DataFrame(rows)


def compare_orders(logits: Tensor, shuffled: Tensor, order: Tensor) -> dict[str, Tensor]:
    """The correlations of `shuffle_tokens` of one layer, [S, heads, heads] each.

    Args:
        logits: centered, of the sentences, [S, heads, N, N].
        shuffled: centered, of the shuffled sentences, of the same shape.
        order: of each shuffled sentence, the places of its tokens in the sentence, [S, N].
    """
    sentences = torch.arange(len(order))[:, None, None]
    restored = torch.empty_like(shuffled).transpose(1, 3)
    restored[sentences, order[:, :, None], order[:, None]] = shuffled.permute(0, 2, 3, 1)
    restored = restored.permute(0, 3, 1, 2)
    result = {"shuffled": correlate(drop_diagonal(shuffled), drop_diagonal(shuffled.mT))}
    for name, compared in (("position", shuffled), ("token", restored)):
        crossed = correlate(drop_diagonal(logits), drop_diagonal(compared.mT))
        result[f"by_{name}"] = (crossed + crossed.mT) / 2
        result[f"own_by_{name}"] = correlate(drop_diagonal(logits), drop_diagonal(compared))
    return result


def find_offsets(model: Any, batches: Sequence[Batch]) -> pd.DataFrame:
    """A row for each head: the offset, key minus query, with the largest mean weight of attention, and this weight.

    The mean is over all tokens that have a token at this offset. `beside` and `beside_weight`: of offsets except 0.
    """
    offsets = [*range(-FARTHEST, FARTHEST + 1)]
    sums = torch.zeros(len(model.encoder.layer), model.config.num_attention_heads, len(offsets), dtype=torch.float64)
    counts = torch.zeros(len(offsets), dtype=torch.float64)
    for batch in batches:
        weights = run(model, batch.tokens).weights
        for column, offset in enumerate(offsets):
            diagonals = [weight.diagonal(offset, dim1=2, dim2=3) for weight in weights]
            counts[column] += diagonals[0][:, 0].numel()
            sums[..., column] += torch.stack([diagonal.sum((0, 2)) for diagonal in diagonals])
    means = sums / counts
    rows = []
    for layer, head in itertools.product(range(means.shape[0]), range(means.shape[1])):
        mean = pd.Series(means[layer, head].numpy(), offsets)
        beside = mean.drop(0)
        rows.append({
            "layer": layer, "head": head, "offset": mean.idxmax(), "weight": mean.max(),
            "beside": beside.idxmax(), "beside_weight": beside.max(),
        })  # fmt: skip
    return pd.DataFrame(rows)


def join_offsets(pairs: pd.DataFrame, offsets: pd.DataFrame) -> pd.DataFrame:
    """The pairs with the columns of both heads; those of the other one begin with `other_`."""
    of_other = offsets.rename(columns=lambda name: name if name == "layer" else f"other_{name}".removesuffix("_head"))
    return pairs.merge(offsets, on=["layer", "head"]).merge(of_other, on=["layer", "other"])


@contextmanager
def ablate(layer: Any, heads: Sequence[int], outputs: Tensor) -> Iterator[None]:
    """Replace what some heads of a layer write by constants. outputs: [heads, head_dim]."""

    def replace(_module: Any, inputs: tuple[Tensor]) -> tuple[Tensor]:
        written = split_heads(inputs[0], len(outputs)).clone()
        written[..., heads, :] = outputs[[*heads]]
        return (written.flatten(-2),)

    hook = layer.attention.output.dense.register_forward_pre_hook(replace)
    try:
        yield
    finally:
        hook.remove()


class Ablation:
    """The effects of ablating heads of an encoder of BERT.

    Args:
        model: the encoder.
        inputs: embeddings of batches of tokens, [S, N, d_model] each.
        judge: from final states and the number of their batch to the measures of each sentence, name → [S].
    """

    def __init__(self, model: Any, inputs: Sequence[Tensor], judge: Callable[[Tensor, int], dict[str, Tensor]]) -> None:
        self._layers = model.encoder.layer
        self._judge = judge
        self._heads = model.config.num_attention_heads
        self._states = [[*inputs]]
        self._means = []
        for layer in self._layers:
            seen: dict[str, Tensor] = {}
            hook = layer.attention.output.dense.register_forward_pre_hook(
                lambda _, given, seen=seen: seen.update(x=given[0])
            )
            states, written = [], []
            for x in self._states[-1]:
                states.append(layer(x))
                written.append(seen["x"].flatten(0, 1))
            hook.remove()
            self._states.append(states)
            self._means.append(split_heads(torch.cat(written).mean(0), self._heads))

    def measure(self, layer: int, heads: Sequence[int]) -> dict[str, np.ndarray[Any, Any]]:
        """The measures of each sentence, if these heads write the same for all tokens: their mean."""
        with ablate(self._layers[layer], heads, self._means[layer]):
            return self._run(layer)

    def measure_intact(self) -> dict[str, np.ndarray[Any, Any]]:
        """The measures of each sentence without ablation."""
        return self._run(len(self._layers))

    def _run(self, first: int) -> dict[str, np.ndarray[Any, Any]]:
        parts = []
        for number, x in enumerate(self._states[first]):
            state = x
            for layer in self._layers[first:]:
                state = layer(state)
            parts.append(self._judge(state, number))
        return {name: torch.cat([part[name] for part in parts]).double().numpy() for name in parts[0]}

    def tabulate(self, pairs: pd.DataFrame) -> pd.DataFrame:
        """A row for each pair and measure: the effects of one head, of the other one, and of both.

        `excess` is the effect of both minus the sum of the two, with bounds of 95% over sentences.
        """
        intact = self.measure_intact()
        rows = []
        for layer in range(len(self._layers)):
            members = pairs[pairs["layer"] == layer]
            single = [self.measure(layer, [head]) for head in range(self._heads)]
            for pair in members[[*PAIR, "kind", "antisymmetric"]].to_dict("records"):
                head, other = pair["head"], pair["other"]
                both = self.measure(layer, [head, other])
                for name, values in both.items():
                    effects = [x - intact[name] for x in (single[head][name], single[other][name], values)]
                    excess = effects[2] - effects[0] - effects[1]
                    low, high = bound(excess)
                    rows.append({
                        **pair, "measure": name, "intact": round(intact[name].mean(), 9),
                        "head_effect": effects[0].mean(), "other_effect": effects[1].mean(),
                        "both_effect": effects[2].mean(),
                        "excess": excess.mean(), "excess_low": low, "excess_high": high,
                    })  # fmt: skip
        return pd.DataFrame(rows)


def ablate_sentences(model: Any, pairs: pd.DataFrame, batches: Sequence[Batch]) -> pd.DataFrame:
    """The change of the final states of MiniLM, and of its embeddings of sentences, by ablating heads.

    `tokens` is 1 − cosine of the final state of a token, mean over the tokens of a sentence; `sentence` that of the
    mean of all its final states, which is how the model embeds sentences.
    """
    finals = [model(batch.tokens).last_hidden_state for batch in batches]

    def judge(state: Tensor, number: int) -> dict[str, Tensor]:
        final = finals[number]
        tokens = F.cosine_similarity(state.double(), final.double(), dim=-1)[:, 1:-1].mean(1)
        sentence = F.cosine_similarity(state.double().mean(1), final.double().mean(1), dim=-1)
        return {"tokens": 1 - tokens, "sentence": 1 - sentence}

    ablation = Ablation(model, [model.embeddings(batch.tokens) for batch in batches], judge)
    return ablation.tabulate(pairs)


def ablate_masked(name: str, folder: Path | None, text: str) -> pd.DataFrame:
    """The change of the loss of a masked language model by ablating heads, in nats per masked token.

    Its strongest mirror, and its strongest twin, are called so.
    """
    model = load(BertForMaskedLM, folder)
    options = GradientOptions(text=text, sequences=SEQUENCES, seq_len=TOKENS, objective="mlm", seed=SEED)
    batches = read_batches(AutoTokenizer.from_pretrained(folder), options)
    labels = [batch["labels"] for batch in batches]

    def judge(state: Tensor, number: int) -> dict[str, Tensor]:
        scores = model.cls(state).flatten(0, 1)
        losses = F.cross_entropy(scores, labels[number].flatten(), ignore_index=NO_LABEL, reduction="none")
        predicted = (labels[number] != NO_LABEL).double().mean()
        return {"loss": losses.double().reshape(labels[number].shape).mean(1) / predicted}

    pairs = find_pairs(model)
    pairs["kind"] = name_strongest(pairs, 1)
    inputs = [model.bert.embeddings(batch["input_ids"]) for batch in batches]
    return Ablation(model.bert, inputs, judge).tabulate(pairs).assign(model=name)


def ablate_all(model: Any, pairs: pd.DataFrame, batches: Sequence[Batch], trained: Sequence[str]) -> pd.DataFrame:
    """The effects of ablation on MiniLM, on `demo:encoder`, and on trained encoders; the rows of ABLATED are kept.

    Args:
        model: MiniLM.
        pairs: its pairs, with their kinds.
        batches: its sentences.
        trained: a text, and the folders of encoders that are ablated on it; or nothing.
    """
    frames = [pd.read_csv(ABLATED)] if ABLATED.exists() else []
    finished = {name for frame in frames for name in frame["model"]}
    if MINILM not in finished:
        frames.append(ablate_sentences(model, pairs, batches).assign(model=MINILM))
    masked: list[tuple[str, Path | None, str]] = [("demo:encoder", locate_demo("encoder"), "austen")]
    masked += [(Path(folder).parent.name, Path(folder), trained[0]) for folder in trained[1:]]
    frames += [ablate_masked(*about) for about in masked if about[0] not in finished]
    return pd.concat(frames, ignore_index=True)


def add_pairs(figure: go.Figure, rows: pd.DataFrame, x: pd.Series, y: pd.Series, column: int) -> None:
    """Add a point for each pair of heads to a panel, in the color of its kind.

    Args:
        figure: of one row of panels.
        rows: of the pairs.
        x: of each pair.
        y: of each pair.
        column: of the panel, from 1.
    """
    for kind, color in COLORS.items():
        chosen = rows[rows["kind"] == kind]
        text = [f"layer {row.layer}, heads {row.head} and {row.other}" for row in chosen.itertuples()]
        points = go.Scatter(
            x=x[chosen.index], y=y[chosen.index], text=text, mode="markers", name=LABELS[kind], legendgroup=kind,
            showlegend=column == 1, marker={"color": color, "size": 5 if kind == "other" else 8},
        )  # fmt: skip
        figure.add_trace(points, 1, column)


def draw_running(rows: pd.DataFrame) -> go.Figure:
    """What weights say of each pair of heads, against its logits."""
    figure = make_subplots(1, 2, subplot_titles=["a head, and the transpose of the other", "antisymmetric parts"])
    add_pairs(figure, rows, rows["mirror"], rows["running_mirror"], 1)
    add_pairs(figure, rows, rows["antisymmetric"], rows["running_antisymmetric"], 2)
    for column in (1, 2):
        figure.update_xaxes(title_text="cosine of the weights", row=1, col=column)
    figure.update_yaxes(title_text="correlation of the logits", row=1, col=1)
    finish_figure(figure, "Pairs of heads of MiniLM: weights against the running model", top=70)
    return figure.update_layout(width=900, height=420)


def draw_causes(position: pd.DataFrame, ablated: pd.DataFrame) -> go.Figure:
    """What is left of each pair in another order of the tokens, and the effect of ablating it."""
    titles = ["the same positions or tokens, in another order", "ablating both heads"]
    figure = make_subplots(1, 2, subplot_titles=titles, horizontal_spacing=0.14)
    add_pairs(figure, position, position["by_position"], position["by_token"], 1)
    ablated = ablated[ablated["measure"] == "tokens"]
    shares = ablated["excess"] / (ablated["head_effect"] + ablated["other_effect"])
    add_pairs(figure, ablated, ablated["antisymmetric"], shares, 2)
    figure.update_xaxes(title_text="correlation at the same positions", row=1, col=1)
    figure.update_yaxes(title_text="at the same tokens", row=1, col=1)
    figure.update_xaxes(title_text="cosine of the antisymmetric weights", row=1, col=2)
    figure.update_yaxes(title_text="effect beyond the sum", tickformat=".0%", row=1, col=2)
    finish_figure(figure, "Pairs of heads of MiniLM: positions, and ablation", top=70)
    return figure.update_layout(width=900, height=420)


def main(arguments: Sequence[str]) -> None:
    """Write running.csv, position.csv, ablation.csv and the figures, or sentences.json."""
    if arguments == ["--tokens"]:
        write_tokens()
        return
    torch.set_num_threads(1)
    model = load(BertModel, locate_demo("minilm"))
    batches = read_sentences()
    with torch.inference_mode():
        pairs = find_pairs(model)
        pairs["kind"] = name_strongest(pairs)
        running = compare_running(model, pairs, batches)
        position = project_positions(model, pairs).merge(shuffle_tokens(model, batches), on=PAIR)
        position = join_offsets(position, find_offsets(model, batches))
        ablated = ablate_all(model, pairs, batches, arguments)
    running.to_csv(HERE / "running.csv", index=False, float_format="%.4g")
    position.to_csv(HERE / "position.csv", index=False, float_format="%.4g")
    ablated.to_csv(ABLATED, index=False, float_format="%.4g")
    save_figure(draw_running(running), HERE / "running.png")
    save_figure(draw_causes(position, ablated[ablated["model"] == MINILM]), HERE / "causes.png")


if __name__ == "__main__":
    main(sys.argv[1:])
