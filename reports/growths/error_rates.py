"""How often the test of orientation is wrong, and how often it finds pairs that are there; see README.md beside it.

python reports/growths/error_rates.py    # ten minutes on a core; after reports/pretrained/fetch.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from measure_growths import SEED, Layer, read_stacks, turn
from torch import Tensor

from attngeo.circuits.orientation import judge_signs, match_pairs
from attngeo.geometry.forms import Form
from attngeo.geometry.mirrors import (
    cosines,
    measure_moments,
    multiply_pairs,
    multiply_themselves,
    pair_heads,
    standardize_mirrors,
)

HERE = Path(__file__).parent
DRAWS = 300
ROTATIONS = 40
LEVEL = 0.05
# Untrained models: layers, heads and key heads, head_dim, width.
LAYERS, HEAD_DIM, WIDTH = 6, 16, 128
HEADS = ((4, 4), (8, 8), (12, 12), (32, 8))
# Planted pairs of a layer of 12 heads, and the cosine of their antisymmetric parts.
PLANTED = (1, 2, 3, 6)
COSINES = (0.1, 0.2, 0.4, 0.7)
# |z| above this is rare by chance: 0.0027 of a normal distribution.
FAR = 3.0


def draw_form(heads: int, key_heads: int, generator: torch.Generator) -> Form:
    """Heads of an untrained layer: independent Gaussian weights."""
    q = torch.randn(heads, HEAD_DIM, WIDTH, generator=generator, dtype=torch.float64)
    k = torch.randn(key_heads, HEAD_DIM, WIDTH, generator=generator, dtype=torch.float64)
    return Form(q, k, [head * key_heads // heads for head in range(heads)])


def plant(form: Form, pairs: int, cosine: float, generator: torch.Generator) -> Form:
    """Make the heads 2i + 1 of the first pairs mixtures of the transposes of heads 2i and of noise.

    Forms are sums of both, of twice the rank; others are filled with zeros.
    """
    noise = draw_form(len(form.left), len(form.right), generator)
    left = torch.cat([form.left, 0 * noise.left], 1)
    right = torch.cat([form.right, 0 * noise.right], 1)
    for first in range(0, 2 * pairs, 2):
        amount = (1 - cosine**2) ** 0.5
        left[first + 1] = torch.cat([cosine * form.right[first], amount * noise.left[first]])
        right[first + 1] = torch.cat([form.left[first], noise.right[first]])
    return Form(left, right, form.key_heads)


def find_partners(form: Form) -> tuple[list[tuple[int, int]], list[float]]:
    """The disjoint pairs of the test, and the cosine of each."""
    heads = pair_heads(form)
    of_heads = multiply_themselves(heads)
    _, _, antisymmetric = cosines(multiply_pairs(heads, heads), of_heads, of_heads)
    pairs = match_pairs(antisymmetric, form.key_heads)
    return pairs, [float(antisymmetric[pair]) for pair in pairs]


def rejects(signs: list[float]) -> bool:
    """Whether the test rejects at LEVEL."""
    return judge_signs(signs).p_value <= LEVEL


def measure_untrained(generator: torch.Generator) -> Iterator[dict[str, Any]]:
    """The share of untrained models for which the test rejects."""
    for heads, key_heads in HEADS:
        found = 0
        for _ in range(DRAWS):
            layers = [find_partners(draw_form(heads, key_heads, generator))[1] for _ in range(LAYERS)]
            found += rejects([cosine for cosines_ in layers for cosine in cosines_])
        model = f"{LAYERS} layers, {heads} heads" + (f" over {key_heads}" if key_heads < heads else "")
        yield {"kind": "untrained", "model": model, "pairs": None, "cosine": None, "draws": DRAWS} | {
            "rejected": found / DRAWS
        }


def measure_planted(generator: torch.Generator) -> Iterator[dict[str, Any]]:
    """The share of untrained models with planted pairs for which the test rejects, and of pairs that are matched."""
    heads = 12
    for pairs in PLANTED:
        planted = {(2 * pair, 2 * pair + 1) for pair in range(pairs)}
        for cosine in COSINES:
            rejected = matched = 0
            draws = DRAWS // 3
            for _ in range(draws):
                signs = []
                for _ in range(LAYERS):
                    form = plant(draw_form(heads, heads, generator), pairs, cosine, generator)
                    partners, of_layer = find_partners(form)
                    signs += of_layer
                    matched += len(planted & {*partners})
                rejected += rejects(signs)
            yield {"kind": "planted", "model": f"{LAYERS} layers, {heads} heads", "pairs": pairs, "cosine": cosine} | {
                "draws": draws,
                "rejected": rejected / draws,
                "matched": matched / (draws * LAYERS * pairs),
            }


def transpose(layer: Layer, generator: torch.Generator) -> Form:
    """The heads of a layer, each transposed or not at random."""
    form = layer.form
    keys = form.right[form.key_heads]
    is_turned = torch.randint(2, (len(keys), 1, 1), generator=generator).bool()
    return Form(form.left.where(~is_turned, keys), keys.where(~is_turned, form.left), [*range(len(keys))])


def measure_changed(layers: list[Layer], generator: torch.Generator) -> Iterator[dict[str, Any]]:
    """The shares for a pretrained model whose heads are turned or transposed at random, and how often |z| is large."""
    name = f"{layers[0].model} {layers[0].stack}"
    for kind, change in (("rotated", turn), ("transposed", transpose)):
        rejected = 0
        z: list[Tensor] = []
        for _ in range(ROTATIONS):
            signs = []
            for layer in layers:
                form = change(layer, generator)
                signs += find_partners(form)[1]
                if kind == "rotated":
                    heads = pair_heads(form)
                    moments = measure_moments(heads)
                    of_pairs = multiply_pairs(heads, heads).mirrors
                    values = standardize_mirrors(of_pairs, moments, moments, form.left.shape[-1])
                    z.append(values[torch.triu(torch.ones_like(values), 1).bool()])
            rejected += rejects(signs)
        far = float((torch.cat(z).abs() > FAR).double().mean()) if z else None
        yield {"kind": kind, "model": name, "pairs": None, "cosine": None, "draws": ROTATIONS} | {
            "rejected": rejected / ROTATIONS,
            "far": far,
        }


def main() -> None:
    """Write error_rates.csv."""
    generator = torch.Generator().manual_seed(SEED)
    rows = [*measure_untrained(generator), *measure_planted(generator)]
    for layers in read_stacks():
        if len(layers[0].q) == len(layers[0].k):
            rows += measure_changed(layers, generator)
            print(rows[-1], flush=True)
    pd.DataFrame(rows).to_csv(HERE / "error_rates.csv", index=False, float_format="%.4g")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
