"""Ask whether a simpler reason explains that the symmetric parts of a layer's heads agree; see README.md beside it.

python reports/growths/refute.py      # a few minutes on a core; after reports/pretrained/fetch.py

Writes refute.csv with a row for each layer and each variant, null or test, also of the trained models in build/growths.

Variants are measured:

- "as measured"; "norms 1": every part of a head has norm 1; "without one head": the one whose absence makes the
  symmetric growth least; "key heads": sums of heads that share keys.
- "without top 1": without the first direction of queries and keys; "without eigenvector": without the first eigenvector
  of the layer's symmetric part; "without singular pair" (or the first FEW): without the first left and right singular
  vectors of the layer's matrix, each on its side alone; "only top R": only the first R directions of queries and keys.
- "norm folded": the gain before attention is part of the weights; "norm folded, centred": and the direction that a
  LayerNorm empties is removed.
- of BERTs only, "in use": M becomes Σ^½ M Σ^½ with the covariance Σ of what the layer reads in TEXT; "in use, with
  mean": with second moments; "without mean": without the direction of the mean of what it reads.

Nulls are expectations, computed and not drawn, over heads that keep their own matrix and lose their orientation.
Antisymmetric parts have no mean then, so that their growth is 1:

- "turned": each head's basis is rotated at random; "turned in top R": so, in the first R directions of queries and
  keys, and apart from that in the others; "turned in steps": so in each of the steps of STEPS; "turned in each": in
  every direction by itself, which keeps the diagonal and nothing else.
- "turned inside only top R": all other directions are gone. Standard deviations are known here. positive_heads: the
  share of heads with a positive trace there.
- "one covariance": M_h = C^½ N_h C^½ with C the sum of QᵀQ + KᵀK over the layer, and N_h rotated at random.

"explained" is the share of the measured symmetric surplus (of the same variant) that a null has; it can exceed 1.

"signs" is a test: every head negated or not (for antisymmetric parts this is a transposition), all patterns. p: how
many have a growth as large. "signs of key heads" and "signs in use" are the same of those variants.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

import attngeo
from attngeo.checkpoints.demos import require_demo
from attngeo.updates import read_batches
from attngeo.updates.options import GradientOptions

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PRETRAINED = ROOT / "build/pretrained"
RUNS = ROOT / "build/growths"
MODELS = {
    "all-MiniLM-L6-v2": "demo:minilm",
    "whisper-base": str(PRETRAINED / "whisper-base"),
    "SmolLM2-135M-Instruct": str(PRETRAINED / "SmolLM2-135M-Instruct.Q4_1.gguf"),
    "demo:encoder": "demo:encoder",
    "demo:decoder": "demo:decoder",
}
LAYER_NORM = ("all-MiniLM-L6-v2", "whisper-base", "demo:encoder", "demo:decoder", "mlm", "clm")
BERTS = ("all-MiniLM-L6-v2", "demo:encoder", "demo:decoder", "mlm", "clm")
# What BERTs read: as much for all of them, and no longer than any was trained on.
TEXT, SEQUENCES, TOKENS, SEED = "austen", 128, 32, 0
TOP = (20, 50, 100)
FEW = 5
STEPS = (0, 5, 20, 50, 100, 200)


class Layer(NamedTuple):
    """The heads of one layer, [heads, head_dim, width] in float64; heads that share keys repeat them."""

    model: str
    stack: str
    layer: int
    key_heads: int
    q: Tensor
    k: Tensor


class Parts(NamedTuple):
    """Inner products of all pairs of heads: of symmetric, and of antisymmetric parts."""

    symmetric: Tensor
    antisymmetric: Tensor


def read_models() -> dict[str, str]:
    """All models: the pretrained ones, and trained ones that are there."""
    trained = sorted(path.parent for path in RUNS.glob("*/model") if any(path.glob("*.safetensors")))
    return MODELS | {path.name: str(path / "model") for path in trained}


def read_layers(model: str, path: str, *, fold_norm: bool = False) -> Iterator[Layer]:
    """The layers of a model with self-attention."""
    for site, wq, wk in attngeo.attention_sites(path, dtype=torch.float64, fold_norm=fold_norm):
        if not site.is_cross:
            k = wk.mT.repeat_interleave(len(wq) // len(wk), dim=0)
            yield Layer(model, site.stack, site.layer, len(wk), wq.mT, k)


def multiply(q: Tensor, k: Tensor) -> Parts:
    """The inner products of the parts of all pairs of heads, without forming a matrix of the stream."""
    qk = torch.einsum("hin,gjn->hgij", q, k)
    twins = (torch.einsum("hin,gjn->hgij", q, q) * torch.einsum("hin,gjn->hgij", k, k)).sum((2, 3))
    mirrors = (qk * qk.permute(1, 0, 3, 2)).sum((2, 3))
    return Parts((twins + mirrors) / 2, (twins - mirrors) / 2)


def surplus(table: Tensor) -> float:
    """The sum of the inner products of different heads."""
    return float(table.sum() - table.trace())


def growth(table: Tensor) -> float:
    """The squared norm of a sum by the sum of squared norms."""
    return float(table.sum() / table.trace())


def cosines(table: Tensor) -> Tensor:
    """The cosines of a table of inner products."""
    norms = table.diagonal().clamp_min(1e-300).sqrt()
    return table / norms / norms[:, None]


def describe(parts: Parts) -> dict[str, float]:
    """Growths; and over pairs of heads, mean cosines and the roots of mean squared cosines.

    mirror_to_twin: Σtr(M_h M_g) by Σ⟨M_h, M_g⟩ over different heads. 1 if heads are as near to others' transposes
    as to the others, and 0 if only to the others.
    """
    own = [float(table.trace()) for table in parts]
    size = sum(float(table.sum()) for table in parts)
    row = {
        "symmetry": float(parts.symmetric.sum() - parts.antisymmetric.sum()) / size,
        "own": (own[0] - own[1]) / size,
        "agreement": surplus(parts.symmetric) / size,
        "cancellation": -surplus(parts.antisymmetric) / size,
    }
    for name, table in parts._asdict().items():
        pairs = cosines(table)[tuple(torch.triu_indices(len(table), len(table), 1))]
        row |= {f"{name}_growth": growth(table), f"{name}_cosine": float(pairs.mean())}
        row[f"{name}_cosine_rms"] = float(pairs.square().mean().sqrt())
    symmetric, antisymmetric = map(surplus, parts)
    return row | {"mirror_to_twin": (symmetric - antisymmetric) / (symmetric + antisymmetric)}


def find_directions(layer: Layer) -> Tensor:
    """The singular directions of a layer's queries and keys, the largest first, [width, width]."""
    # Heads that share keys count them once.
    keys = layer.k[:: len(layer.k) // layer.key_heads]
    weights = torch.cat([layer.q.flatten(0, 1), keys.flatten(0, 1)])
    vectors: Tensor = torch.linalg.eigh(weights.T @ weights).eigenvectors
    return vectors.flip(1)


def drop(layer: Layer, directions: Tensor) -> Parts:
    """The products without some orthonormal directions, [width, count]."""
    return multiply(*(x - x @ directions @ directions.T for x in (layer.q, layer.k)))


def join(layer: Layer, parts: Parts) -> Parts:
    """The products of the sums of heads that share keys."""
    size = len(layer.q) // layer.key_heads
    groups = torch.eye(layer.key_heads, dtype=torch.float64).repeat_interleave(size, 0)
    return Parts(*(groups.T @ table @ groups for table in parts))


def measure_variants(layer: Layer, parts: Parts, basis: Tensor) -> Iterator[tuple[str, Parts]]:
    """The names and products of variants of a layer."""
    yield "as measured", parts
    yield "norms 1", Parts(*map(cosines, parts))
    heads = torch.arange(len(layer.q))
    without = [Parts(*(table[heads != head][:, heads != head] for table in parts)) for head in heads]
    yield "without one head", min(without, key=lambda some: growth(some.symmetric))
    if layer.key_heads < len(heads):
        yield "key heads", join(layer, parts)
    yield "without top 1", drop(layer, basis[:, :1])
    matrix = torch.einsum("hin,him->nm", layer.k, layer.q)
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    yield "without eigenvector", drop(layer, vectors[:, values.abs().argmax(), None])
    of_keys, _, of_queries = torch.linalg.svd(matrix)
    for name, count in (("without singular pair", 1), (f"without {FEW} singular pairs", FEW)):
        kept = [
            side - side @ directions[:, :count] @ directions[:, :count].T
            for side, directions in ((layer.q, of_queries.T), (layer.k, of_keys))
        ]
        yield name, multiply(*kept)


def turn_in_blocks(layer: Layer, parts: Parts, basis: Tensor, edges: list[int]) -> dict[str, float]:
    """The growth that is expected if heads are rotated inside blocks of directions, from each edge to the next."""
    diagonals = torch.einsum("hin,hin->hn", layer.q @ basis, layer.k @ basis)
    expected = torch.zeros_like(parts.symmetric)
    for start, end in pairwise(edges):
        traces = diagonals[:, start:end].sum(1)
        expected += traces[:, None] * traces / (end - start)
    return explain(surplus(expected), float(parts.symmetric.trace()), parts)


def turn_inside(layer: Layer, basis: Tensor, rank: int) -> Iterator[tuple[str, dict[str, float]]]:
    """What is measured in the first directions alone; and what is expected there, with standard deviations."""
    q, k = layer.q @ basis[:, :rank], layer.k @ basis[:, :rank]
    parts = multiply(q, k)
    yield f"only top {rank}", describe(parts)
    traces = torch.einsum("hin,hin->h", q, k)
    row = explain(surplus(traces[:, None] * traces / rank), float(parts.symmetric.trace()), parts)
    sizes = [parts.symmetric.diagonal() - traces.square() / rank, parts.antisymmetric.diagonal()]
    dimensions = [(rank - 1) * (rank + 2) / 2, rank * (rank - 1) / 2]
    for name, table, size, dimension in zip(Parts._fields, parts, sizes, dimensions, strict=True):
        # Inner products of different pairs are uncorrelated, and each is twice in the sum.
        variance = 2 * surplus(size[:, None] * size) / dimension
        row[f"{name}_sd"] = variance**0.5 / float(table.trace())
    row["positive_heads"] = float((traces > 0).double().mean())
    yield f"turned inside only top {rank}", row


def share_covariance(layer: Layer, parts: Parts) -> dict[str, float]:
    """The growth that is expected of C^½ N_h C^½ with N_h rotated at random."""
    covariance = sum(torch.einsum("hin,him->nm", x, x) for x in (layer.q, layer.k))
    values, vectors = torch.linalg.eigh(covariance)
    is_kept = values > values.max() * 1e-10
    values, vectors = values[is_kept], vectors[:, is_kept]
    q, k = (x @ vectors / values.sqrt() for x in (layer.q, layer.k))
    width = len(values)
    traces = torch.einsum("hin,hin->h", q, k)
    squares = multiply(q, k).symmetric.diagonal()
    # E X_ij X_kl = a δ_ij δ_kl + b (δ_ik δ_jl + δ_il δ_jk) of a rotated symmetric X.
    a = ((width + 1) * traces**2 - 2 * squares) / (width * (width - 1) * (width + 2))
    b = (width * squares - traces**2) / (width * (width - 1) * (width + 2))
    of_square = values.square().sum()
    norms = a * of_square + b * (of_square + values.sum() ** 2)
    return explain(surplus(traces[:, None] * traces * of_square / width**2), float(norms.sum()), parts)


def explain(expected: float, norms: float, parts: Parts) -> dict[str, float]:
    """Growths of a null of which the surplus and the sum of squared norms are known; and the share explained."""
    null = expected / norms
    row = {"symmetric_growth": 1 + null, "antisymmetric_growth": 1.0}
    return row | {"explained": null / (growth(parts.symmetric) - 1)}


def test_signs(parts: Parts) -> dict[str, float]:
    """The share of patterns of signs of heads whose growth is at least the measured one."""
    count = len(parts.symmetric)
    patterns = np.array(np.meshgrid(*(count - 1) * [[1.0, -1.0]])).reshape(count - 1, -1).T
    signs = torch.tensor(np.column_stack([np.ones(len(patterns)), patterns]))
    row = {}
    for name, table in parts._asdict().items():
        sums = torch.einsum("nh,hg,ng->n", signs, table, signs)
        row[f"{name}_p"] = float((sums >= table.sum() * (1 - 1e-12)).double().mean())
    return row


def measure_layer(layer: Layer) -> Iterator[tuple[str, dict[str, float]]]:
    """The name and the values of every variant and null of a layer."""
    parts = multiply(layer.q, layer.k)
    basis = find_directions(layer)
    width = len(basis)
    for name, variant in measure_variants(layer, parts, basis):
        yield name, describe(variant)
    yield "signs", test_signs(parts)
    if layer.key_heads < len(layer.q):
        yield "signs of key heads", test_signs(join(layer, parts))
    yield "turned", turn_in_blocks(layer, parts, basis, [0, width])
    for rank in TOP:
        if rank < width:
            yield f"turned in top {rank}", turn_in_blocks(layer, parts, basis, [0, rank, width])
            yield from turn_inside(layer, basis, rank)
    steps = [step for step in STEPS if step < width]
    yield "turned in steps", turn_in_blocks(layer, parts, basis, [*steps, width])
    yield "turned in each", turn_in_blocks(layer, parts, basis, [*range(width + 1)])
    yield "one covariance", share_covariance(layer, parts)


def remove(layer: Layer, direction: Tensor) -> Parts:
    """The products without one direction, [width]."""
    return drop(layer, direction[:, None] / direction.norm())


def fold(layer: Layer) -> Iterator[tuple[str, dict[str, float]]]:
    """The variants of a layer that was read with a folded norm."""
    yield "norm folded", describe(multiply(layer.q, layer.k))
    if layer.model.startswith(LAYER_NORM):
        yield "norm folded, centred", describe(remove(layer, torch.ones(layer.q.shape[-1], dtype=torch.float64)))


def read_states(model: str, path: str) -> list[Tensor]:
    """What each layer of a BERT reads in TEXT, [tokens, width]; of other models nothing."""
    if not model.startswith(BERTS):
        return []
    folder = require_demo(path.removeprefix("demo:")) if path.startswith("demo:") else Path(path)
    options = GradientOptions(text=TEXT, sequences=SEQUENCES, seq_len=TOKENS, objective="clm", seed=SEED)
    network = AutoModel.from_pretrained(folder).eval()
    batches = read_batches(AutoTokenizer.from_pretrained(folder), options)
    with torch.inference_mode():
        states = [network(input_ids=batch["input_ids"], output_hidden_states=True).hidden_states for batch in batches]
    return [
        torch.cat([some.flatten(0, 1) for some in of_layer]).double().clone() for of_layer in zip(*states, strict=True)
    ]


def use(layer: Layer, states: Tensor) -> Iterator[tuple[str, dict[str, float]]]:
    """The variants of a layer that depend on what it reads."""
    mean = states.mean(0)
    for name, seen in (("in use", states - mean), ("in use, with mean", states)):
        values, vectors = torch.linalg.eigh(seen.T @ seen / len(seen))
        root = vectors * values.clamp_min(0).sqrt()
        parts = multiply(layer.q @ root, layer.k @ root)
        yield name, describe(parts)
        if name == "in use":
            yield "signs in use", test_signs(parts)
    yield "without mean", describe(remove(layer, mean))


def measure_model(model: str, path: str) -> Iterator[dict[str, Any]]:
    """The rows of a model."""
    states = read_states(model, path)
    for layer, folded in zip(read_layers(model, path), read_layers(model, path, fold_norm=True), strict=True):
        place = {"model": model, "stack": layer.stack, "layer": layer.layer}
        values = [*measure_layer(layer), *fold(folded), *(use(layer, states[layer.layer]) if states else ())]
        yield from (place | {"null": name} | row for name, row in values)


def main() -> None:
    """Write refute.csv."""
    rows: list[dict[str, Any]] = []
    for model, path in read_models().items():
        print(model, file=sys.stderr, flush=True)
        rows += measure_model(model, path)
    pd.DataFrame(rows).to_csv(HERE / "refute.csv", index=False, float_format="%.4g")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
