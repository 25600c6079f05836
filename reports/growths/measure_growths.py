"""Measure why layers of pretrained models are symmetric: growths, their nulls and directions; see README.md beside it.

python reports/pretrained/fetch.py     # SmolLM2 and Whisper, once
python reports/growths/measure_growths.py      # a few minutes on a core
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import attngeo
from attngeo.checkpoints.opening import open_store
from attngeo.circuits.orientation import judge_signs, match_pairs
from attngeo.geometry.forms import Form
from attngeo.geometry.mirrors import Products, cosines, multiply_pairs, pair_heads

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "pretrained"))
from fetch import SMOLLM2, TARGET, WHISPER  # noqa: E402 - from the folder of another report

MODELS = {
    "all-MiniLM-L6-v2": "demo:minilm",
    "whisper-base": str(TARGET / WHISPER),
    "SmolLM2-135M-Instruct": str(TARGET / SMOLLM2),
    "demo:encoder": "demo:encoder",
    "demo:decoder": "demo:decoder",
}
SEED = 0
DRAWS = 500
QUANTILES = {"lower": 0.05, "median": 0.5, "upper": 0.95}
TOP_DIRECTIONS = (5, 20)
FORM_SCORES = [
    "symmetric_growth",
    "antisymmetric_growth",
    "rotary_symmetry",
    "rotary_symmetric_growth",
    "rotary_antisymmetric_growth",
]


class Layer(NamedTuple):
    """The heads of one layer, in float64.

    model, stack, layer: its place. q: [heads, head_dim, width]. k: [key heads, head_dim, width].
    """

    model: str
    stack: str
    layer: int
    q: Tensor
    k: Tensor

    @property
    def form(self) -> Form:
        """The forms of the heads."""
        group = len(self.q) // len(self.k)
        return Form(self.q, self.k, [head // group for head in range(len(self.q))])


def read_stacks() -> Iterator[list[Layer]]:
    """The layers of each stack with self-attention."""
    for model, path in MODELS.items():
        stacks: dict[str, list[Layer]] = {}
        for site, wq, wk in attngeo.attention_sites(path, dtype=torch.float64):
            if not site.is_cross:
                stacks.setdefault(site.stack, []).append(Layer(model, site.stack, site.layer, wq.mT, wk.mT))
        yield from stacks.values()


def multiply_stack(layers: list[Layer]) -> Products:
    """Both inner products of all pairs of heads of a stack, [all heads, all heads]."""
    heads = [pair_heads(layer.form) for layer in layers]
    count = len(layers[0].q)
    mirrors = torch.zeros(2 * [len(layers) * count], dtype=torch.float64)
    twins = mirrors.clone()
    for a, b in combinations_with_replacement(range(len(layers)), 2):
        of_a, of_b = (slice(layer * count, (layer + 1) * count) for layer in (a, b))
        products = multiply_pairs(heads[a], heads[b])
        for table, values in ((mirrors, products.mirrors), (twins, products.twins)):
            table[of_a, of_b] = values
            table[of_b, of_a] = values.T
    return Products(mirrors, twins)


def choose(products: Products, heads: Tensor) -> Products:
    """The products of some heads."""
    return Products(products.mirrors[heads][:, heads], products.twins[heads][:, heads])


def join_groups(products: Products, key_heads: list[int]) -> Products:
    """The products of the sums of heads that share keys."""
    is_of_group = torch.eye(max(key_heads) + 1, dtype=torch.float64)[key_heads]
    return Products(*(is_of_group.T @ table @ is_of_group for table in products))


def measure_growths(products: Products) -> dict[str, float]:
    """The symmetry of a sum of heads, the three parts that it is the sum of, and the growths."""
    symmetric = (products.twins + products.mirrors) / 2
    antisymmetric = products.antisymmetric
    squared_norm = products.twins.sum()
    own_symmetric = symmetric.trace()
    own_antisymmetric = antisymmetric.trace()
    values = {
        "symmetry": products.mirrors.sum() / squared_norm,
        "own_symmetry": (own_symmetric - own_antisymmetric) / squared_norm,
        "agreement": (symmetric.sum() - own_symmetric) / squared_norm,
        "cancellation": (own_antisymmetric - antisymmetric.sum()) / squared_norm,
        "symmetric_growth": symmetric.sum() / own_symmetric,
        "antisymmetric_growth": antisymmetric.sum() / own_antisymmetric,
    }
    return {name: float(value) for name, value in values.items()}


def draw_growths(draw: Callable[[], Products]) -> pd.DataFrame:
    """Both growths of each of DRAWS draws."""
    return pd.DataFrame([measure_growths(draw()) for _ in range(DRAWS)])[["symmetric_growth", "antisymmetric_growth"]]


def name_quantiles(draws: pd.DataFrame, name: str) -> dict[str, float]:
    """Columns with the quantiles of both growths over draws."""
    quantiles = {place: draws.quantile(share) for place, share in QUANTILES.items()}
    return {f"{growth}_{name}_{place}": row[growth] for place, row in quantiles.items() for growth in draws.columns}


def measure_layers(layers: list[Layer], products: Products, generator: np.random.Generator) -> Iterator[dict[str, Any]]:
    """A row for each layer of a stack.

    The columns *_other_layers_* have as many heads, drawn from all layers, and *_transposed_* the layer's heads, each
    transposed or not at random. *_of_key_heads are growths of the sums of heads that share keys.
    """
    count = len(layers[0].q)
    of_others = draw_growths(lambda: choose(products, torch.tensor(generator.permutation(len(products.twins))[:count])))
    for number, layer in enumerate(layers):
        own = choose(products, torch.arange(number * count, (number + 1) * count))

        def transpose(own: Products = own) -> Products:
            signs = torch.tensor(generator.choice([-1.0, 1.0], count))
            symmetric = (own.twins + own.mirrors) / 2
            antisymmetric = own.antisymmetric * signs[:, None] * signs
            return Products(symmetric - antisymmetric, symmetric + antisymmetric)

        row: dict[str, Any] = {"model": layer.model, "stack": layer.stack, "layer": layer.layer, "heads": count}
        row |= {"key_heads": len(layer.k)} | measure_growths(own)
        of_groups = measure_growths(join_groups(own, layer.form.key_heads))
        row |= {f"{name}_of_key_heads": of_groups[name] for name in ("symmetric_growth", "antisymmetric_growth")}
        row |= name_quantiles(of_others, "other_layers")
        row |= name_quantiles(draw_growths(transpose)[["antisymmetric_growth"]], "transposed")
        yield row | count_partners(layer, own)


def count_partners(layer: Layer, products: Products) -> dict[str, int]:
    """Disjoint pairs of heads that are opposite, and that are alike."""
    of_heads = Products(products.mirrors.diagonal(), products.twins.diagonal())
    _, _, antisymmetric = cosines(products, of_heads, of_heads)
    pairs = match_pairs(antisymmetric, layer.form.key_heads)
    signs = judge_signs([float(antisymmetric[pair]) for pair in pairs])
    return {"opposite": signs.opposite, "alike": signs.alike}


def remove(layer: Layer, directions: Tensor) -> Layer:
    """The heads without some orthonormal directions of the stream, [width, count]."""
    without = torch.eye(len(directions), dtype=torch.float64) - directions @ directions.T
    return layer._replace(q=layer.q @ without, k=layer.k @ without)


def find_directions(
    layer: Layer, tables: dict[str, Tensor], generator: torch.Generator
) -> Iterator[tuple[str, Tensor]]:
    """Names of some directions of the stream, and the directions, [width, count]."""
    width = layer.q.shape[-1]
    weights = torch.cat([layer.q.flatten(0, 1), layer.k.flatten(0, 1)])
    of_weights = torch.linalg.svd(weights, full_matrices=False).Vh.T
    for count in TOP_DIRECTIONS:
        yield f"top {count} of queries and keys", of_weights[:, :count]
        at_random = torch.linalg.qr(torch.randn(width, count, generator=generator, dtype=torch.float64)).Q
        yield f"random {count}", at_random
        for name, table in tables.items():
            centred = table - table.mean(0)
            yield f"top {count} of {name}", torch.linalg.svd(centred, full_matrices=False).Vh.T[:, :count]


def read_tables(layers: list[Layer]) -> dict[str, Tensor]:
    """The tables of tokens and of positions of a stack that has them, [rows, width]; of others none."""
    names = {
        ("all-MiniLM-L6-v2", "encoder"): {
            "tokens": "embeddings.word_embeddings.weight",
            "positions": "embeddings.position_embeddings.weight",
        },
        ("whisper-base", "decoder"): {
            "tokens": "decoder.embed_tokens.weight",
            "positions": "decoder.embed_positions.weight",
        },
        ("SmolLM2-135M-Instruct", "decoder"): {"tokens": "embed_tokens.weight"},
    }.get((layers[0].model, layers[0].stack), {})
    return {what: read_table(MODELS[layers[0].model], end) for what, end in names.items()}


def read_table(model: str, end: str) -> Tensor:
    """The only tensor of a model whose name ends so, in float64."""
    with closing(open_store(model)) as store:
        [name] = [name for name in store.names if name.endswith(end)]
        return store.read(name).double()


def measure_removed(layers: list[Layer]) -> Iterator[dict[str, Any]]:
    """A row for each layer and each group of directions that are removed."""
    tables = read_tables(layers)
    generator = torch.Generator().manual_seed(SEED)
    for layer in layers:
        for what, directions in find_directions(layer, tables, generator):
            heads = pair_heads(remove(layer, directions).form)
            row: dict[str, Any] = {"model": layer.model, "stack": layer.stack, "layer": layer.layer, "removed": what}
            yield row | measure_growths(multiply_pairs(heads, heads))


def turn(layer: Layer, generator: torch.Generator) -> Form:
    """The heads of a layer, each with the stream rotated at random."""
    width = layer.q.shape[-1]
    form = layer.form
    q = []
    k = []
    for head, key in enumerate(form.key_heads):
        basis, triangle = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))
        basis = basis * triangle.diagonal().sign()
        q.append(form.left[head] @ basis)
        k.append(form.right[key] @ basis)
    # Each head has keys of its own now; those that shared keys are still no pair.
    return Form(torch.stack(q), torch.stack(k), [*range(len(q))])


def measure_directions(layer: Layer, generator: torch.Generator) -> dict[str, Any]:
    """Of the symmetric part of a layer's matrix, how many eigenvectors make it up, and the signs of their values.

    positive: the share of Σλ² of positive λ. half: the number of largest λ² that make up half of Σλ².
    antisymmetric_half: as half, of the antisymmetric part, whose singular values come in pairs. *_rotated: the same
    with each head rotated at random.
    """
    row: dict[str, Any] = {"model": layer.model, "stack": layer.stack, "layer": layer.layer}
    row |= measure_eigenvectors(layer.form)
    return row | {f"{name}_rotated": value for name, value in measure_eigenvectors(turn(layer, generator)).items()}


def measure_eigenvectors(form: Form) -> dict[str, float]:
    """The measures of `measure_directions` of the heads of a layer."""
    matrix = torch.einsum("hrn,hrm->nm", form.left, form.right[form.key_heads])
    values = torch.linalg.eigvalsh((matrix + matrix.T) / 2)
    squares = values.square()
    antisymmetric = torch.linalg.svdvals((matrix - matrix.T) / 2).square()
    return {
        "positive": float(squares[values > 0].sum() / squares.sum()),
        "half": count_half(squares),
        "antisymmetric_half": count_half(antisymmetric),
    }


def count_half(squares: Tensor) -> int:
    """The number of the largest of some squares that make up half of their sum."""
    shares = squares.sort(descending=True).values.cumsum(0) / squares.sum()
    return int((shares < 0.5).sum()) + 1


def measure_quantised() -> pd.DataFrame:
    """The parts of the symmetry of each layer in the formats of reports/quantisation, by the scores in its table."""
    rows = pd.read_csv(HERE.parent / "quantisation/rows.csv")
    rows["symmetric"] = rows["frobenius_norm"] ** 2 * (1 + rows["symmetry"]) / 2
    rows["antisymmetric"] = rows["frobenius_norm"] ** 2 * (1 - rows["symmetry"]) / 2
    keys = ["model", "format", "layer"]
    of_layers = rows[rows["head"].isna()].set_index(keys)
    of_heads = rows[rows["head"].notna()].groupby(keys)[["symmetric", "antisymmetric"]].sum()
    growths = of_layers[["symmetric", "antisymmetric"]] / of_heads
    growths.columns = pd.Index(["symmetric_growth", "antisymmetric_growth"])
    return pd.concat([of_layers["symmetry"], growths], axis=1).reset_index()


def measure_forms() -> pd.DataFrame:
    """Growths by other forms: with the gain of the norm before attention, and over all rotary offsets."""
    tables = []
    for model in ("whisper-base", "SmolLM2-135M-Instruct"):
        for fold_norm in (False, True):
            rows = attngeo.score(MODELS[model], scores=FORM_SCORES, fold_norm=fold_norm)
            rows = rows[rows["stack"] != "cross"].assign(model=model, fold_norm=fold_norm)
            tables.append(rows[["model", "stack", "layer", "fold_norm", "symmetry", *FORM_SCORES]])
    return pd.concat(tables)


def main() -> None:
    """Write layers.csv, removed.csv, directions.csv, forms.csv and quantised.csv."""
    generator = np.random.default_rng(SEED)
    rows: list[dict[str, Any]] = []
    removed: list[dict[str, Any]] = []
    directions: list[dict[str, Any]] = []
    for layers in read_stacks():
        print(layers[0].model, layers[0].stack, flush=True)
        rows += measure_layers(layers, multiply_stack(layers), generator)
        removed += measure_removed(layers)
        directions += [measure_directions(layer, torch.Generator().manual_seed(SEED)) for layer in layers]
    tables = {
        "layers": pd.DataFrame(rows),
        "removed": pd.DataFrame(removed),
        "directions": pd.DataFrame(directions),
        "forms": measure_forms(),
        "quantised": measure_quantised(),
    }
    for name, table in tables.items():
        table.to_csv(HERE / f"{name}.csv", index=False, float_format="%.4g")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
