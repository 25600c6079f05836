"""Make models that share an origin and models that do not, and test both; see README.md beside it.

PYTHONPATH=tests python reports/lineage/lineage.py    # minutes on one core; trained models are kept in build/lineage
"""

from __future__ import annotations

import itertools
import json
import lzma
from collections.abc import Callable, Iterator
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from scipy.optimize import linear_sum_assignment
from support.origins import (
    Tensors,
    add_noise,
    permutation,
    prune,
    read_model,
    reorder_heads,
    rotation,
    round_to,
    turn_stream,
    write_model,
)
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import attngeo
from attngeo.attention.projections import key_heads_of
from attngeo.attention.rotary_pairs import find_rotary_pairs
from attngeo.geometry.forms import Form
from attngeo.geometry.lineage import (
    draw_coordinates,
    have_equal_spectra,
    judge,
    layer_similarities,
    least_distance,
    spectral_distances,
)
from attngeo.geometry.offsets import PairLayout

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / "build/lineage"
WIDTH, HEADS, KEY_HEADS, LENGTH, BATCH = 64, 4, 2, 64, 16
# Updates of a whole training, and of a short one.
STEPS, FEW = 400, 80
# Seeds of each family.
FAMILIES = {"llama": 7, "gpt2": 4}
NULLS = 50
COLUMNS = ["verdict", "related", "similarity", "p_value", "z", "note"]


class Pair(NamedTuple):
    """Two models and how they are related. align: whether streams are aligned first."""

    family: str
    kind: str
    model: Path
    candidate: Path
    align: bool = False


def read_halves() -> list[Tensor]:
    """The bytes of the embedded text, in two halves."""
    packed = resources.files("attngeo.pretrain").joinpath("corpora/austen.txt.xz").read_bytes()
    text = torch.frombuffer(bytearray(lzma.decompress(packed)), dtype=torch.uint8).long()
    return [*text.tensor_split(2)]


def build(family: str, seed: int) -> Any:
    """A new model with random weights."""
    torch.manual_seed(seed)
    if family == "llama":
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=256, hidden_size=WIDTH, intermediate_size=128, num_hidden_layers=2,
                num_attention_heads=HEADS, num_key_value_heads=KEY_HEADS, max_position_embeddings=LENGTH,
            )
        )  # fmt: skip
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=256, n_embd=WIDTH, n_layer=2, n_head=HEADS, n_positions=LENGTH, resid_pdrop=0, embd_pdrop=0,
            attn_pdrop=0,
        )
    )  # fmt: skip


def train(name: str, model: Callable[[], Any], text: Tensor, steps: int, seed: int, rate: float = 3e-3) -> Path:
    """Train a model to predict the next byte, or find it trained; its folder."""
    folder = FOLDER / name
    if (folder / "config.json").exists():
        return folder
    trained = model()
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(trained.parameters(), lr=rate, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps, pct_start=0.1)
    for _ in range(steps):
        starts = torch.randint(len(text) - LENGTH, (BATCH, 1), generator=generator)
        tokens = text[starts + torch.arange(LENGTH)]
        loss = trained(input_ids=tokens, labels=tokens).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    print(f"{name}: loss {loss.item():.2f}", flush=True)
    trained.save_pretrained(folder)
    return folder


def change(model: Path, name: str, function: Callable[[Tensors], Tensors]) -> Path:
    """A copy of a model whose tensors a function changes; its folder."""
    tensors, config = read_model(model)
    folder = FOLDER / f"{model.name}-{name}"
    write_model(folder, function(tensors), config)
    return folder


def average(one: Path, other: Path) -> Path:
    """The mean of the weights of two models; its folder."""
    tensors, config = read_model(one)
    others, _ = read_model(other)
    mean = {name: (tensor + others[name]) / 2 for name, tensor in tensors.items()}
    folder = FOLDER / f"{one.name}-merged"
    write_model(folder, mean, config)
    return folder


def make_pairs(family: str, count: int) -> Iterator[Pair]:
    """All pairs of one family, of so many seeds."""
    first_half, second_half = read_halves()
    seeds = [train(f"{family}-{seed}", partial(build, family, seed), first_half, STEPS, seed) for seed in range(count)]
    for one, other in itertools.combinations(seeds, 2):
        yield Pair(family, "independent seeds", one, other)
        yield Pair(family, "independent seeds", one, other, align=True)
    for seed, model in enumerate(seeds[: count // 2]):
        load = partial(AutoModelForCausalLM.from_pretrained, model)
        tuned = train(f"{family}-{seed}-tuned", load, second_half, FEW, 100 + seed, rate=1e-3)
        again = train(f"{family}-{seed}-tuned-again", load, second_half, FEW, 200 + seed, rate=1e-3)
        continued = train(f"{family}-{seed}-continued", load, second_half, STEPS, 300 + seed)
        elsewhere = train(f"{family}-{seed}-elsewhere", partial(build, family, seed), second_half, STEPS, 400 + seed)
        yield Pair(family, "fine-tuned", model, tuned)
        yield Pair(family, "two fine-tuned", tuned, again)
        yield Pair(family, "merged", model, average(tuned, again))
        yield Pair(family, "continued", model, continued)
        yield Pair(family, "same initial weights, other text", model, elsewhere)
        permuted = permutation(WIDTH, seed)
        for name, descendant in (("permuted", model), ("fine-tuned, then permuted", tuned)):
            moved = change(descendant, name.replace(", ", "-"), partial(turn_stream, matrix=permuted))
            yield Pair(family, f"stream {name}", model, moved)
            yield Pair(family, f"stream {name}", model, moved, align=True)
    for seed, model in enumerate(seeds[:4]):
        for kind, copy in copy_all(model, seed, family):
            yield Pair(family, kind, model, copy)
        rotated = change(model, "rotated", partial(turn_stream, matrix=rotation(WIDTH, seed)))
        yield Pair(family, "stream rotated", model, rotated)
        yield Pair(family, "stream rotated", model, rotated, align=True)


def copy_all(model: Path, seed: int, family: str) -> Iterator[tuple[str, Path]]:
    """Changed copies of a model in the same coordinates, with the kind of each."""
    yield "pruned 50%", change(model, "pruned-50", partial(prune, share=0.5))
    yield "pruned 80%", change(model, "pruned-80", partial(prune, share=0.8))
    for bits in (8, 4, 3):
        yield f"int{bits}", change(model, f"int{bits}", partial(round_to, bits=bits))
    yield "noise of 1 sd", change(model, "noise", partial(add_noise, share=1, seed=seed))
    if family == "llama":
        yield (
            "heads permuted, turned, rescaled",
            change(model, "heads", partial(reorder_heads, heads=HEADS, key_heads=KEY_HEADS, seed=seed)),
        )


def test(pair: Pair) -> dict[str, Any]:
    """The row of a pair."""
    row = attngeo.lineage(pair.model, pair.candidate, align=pair.align).rename(columns={"similarity_z": "z"}).iloc[0]
    tested = {name: row[name] for name in COLUMNS}
    names = {"model": pair.model.name, "other": pair.candidate.name}
    configs = [json.loads((folder / "config.json").read_text()) for folder in (pair.model, pair.candidate)]
    return {"family": pair.family, "kind": pair.kind, "align": pair.align, **names, **tested} | {
        "same_configuration": configs[0] == configs[1]
    }


def measure_nulls(folder: Path) -> pd.DataFrame:
    """P of pairs of models that are new, and of trained strangers of which one has permuted coordinates."""
    rows = []
    for seed in range(NULLS):
        one, other = build("llama", 1000 + seed), build("llama", 5000 + seed)
        row = attngeo.lineage(one, other, n_permutations=99, seed=seed).iloc[0]
        rows.append({"null": "new weights", "p_value": row["p_value"], "z": row["similarity_z"]})
    trained = [FOLDER / f"llama-{seed}" for seed in range(FAMILIES["llama"])]
    pairs = [*itertools.combinations(trained, 2)]
    for number in range(NULLS):
        one, other = pairs[number % len(pairs)]
        tensors, config = read_model(other)
        moved = write_model(folder, turn_stream(tensors, permutation(WIDTH, 3000 + number)), config)
        row = attngeo.lineage(one, moved, n_permutations=99, seed=number).iloc[0]
        rows.append({"null": "trained, permuted", "p_value": row["p_value"], "z": row["similarity_z"]})
    return pd.DataFrame(rows)


def read_forms(folder: Path) -> list[tuple[Form, PairLayout]]:
    """The form of each layer of a model, and which of its dimensions rotate."""
    return [
        (Form(wq.mT.contiguous(), wk.mT.contiguous(), key_heads_of(site, "corrected")), find_rotary_pairs(site)[0])
        for site, wq, wk in attngeo.attention_sites(folder)
    ]


def round_rows(x: Tensor, bits: int) -> Tensor:
    """Heads as integers of so many bits with a scale for each row would give them."""
    largest: int = 2 ** (bits - 1) - 1
    scale = x.abs().amax(-1, keepdim=True) / largest
    return (x / scale).round() * scale


def zero_smallest(x: Tensor, share: float) -> Tensor:
    """Heads without this share of their entries, the smallest ones."""
    least = x.abs().flatten().kthvalue(round(share * x.numel())).values
    return x.where(x.abs() > least, 0)


def add_deviations(x: Tensor, share: float) -> Tensor:
    """Heads with noise of this share of their standard deviation."""
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    return x + share * x.std() * noise


# What is done to a copy after its stream is rotated.
CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda x: x,
    "bfloat16": lambda x: x.bfloat16().double(),
    "int8": partial(round_rows, bits=8),
    "int4": partial(round_rows, bits=4),
    "noise of 0.03 sd": partial(add_deviations, share=0.03),
    "pruned 20%": partial(zero_smallest, share=0.2),
    "pruned 50%": partial(zero_smallest, share=0.5),
}
# Sizes of heads of strangers that were not trained: heads, key heads, dimensions and width.
UNTRAINED = ((4, 2, 16, 64), (12, 12, 32, 384), (12, 12, 64, 768), (32, 8, 64, 2048), (16, 4, 128, 4096))
DRAWS = 12


def read_turned(ref: str | Path, matrix: Tensor | None = None) -> list[Form]:
    """The form of each layer of self-attention with gains folded, in turned coordinates of the stream."""
    forms = []
    for site, wq, wk in attngeo.attention_sites(str(ref), fold_norm=True, dtype=torch.float64):
        q, k = wq.mT.contiguous(), wk.mT.contiguous()
        if matrix is not None:
            q, k = q @ matrix, k @ matrix
        forms.append(Form(q, k, key_heads_of(site, "corrected")))
    return forms


def draw_form(sizes: tuple[int, int, int, int], seed: int) -> Form:
    """Independent random heads."""
    heads, key_heads, rank, width = sizes
    generator = torch.Generator().manual_seed(10_000 + seed)
    left = torch.randn(heads, rank, width, generator=generator)
    right = torch.randn(key_heads, rank, width, generator=generator)
    return Form(left, right, [head * key_heads // heads for head in range(heads)])


def measure_spectra() -> pd.DataFrame:
    """How near the spectra of rotated copies and of strangers are, as shares of that of the nearest random heads."""
    rows = []

    def add(kind: str, name: str, candidate: str, forms: list[Form], others: list[Form]) -> None:
        pairs = zip(forms, others, strict=True)
        shares = torch.cat([spectral_distances(one, other) / least_distance(one) for one, other in pairs])
        rows.append(
            {
                "kind": kind,
                "model": name,
                "other": candidate,
                "width": forms[0].left.shape[2],
                "heads": len(shares),
                "median_share": shares.median().item(),
                "nearer": (shares < 1).double().mean().item(),
                "equal": have_equal_spectra(shares),
            }
        )

    trained = {family: [FOLDER / f"{family}-{seed}" for seed in range(count)] for family, count in FAMILIES.items()}
    models: list[str | Path] = [*itertools.chain(*trained.values()), "demo:minilm", "demo:encoder", "demo:decoder"]
    for seed, model in enumerate(models):
        forms = read_turned(model)
        turned = read_turned(model, rotation(forms[0].left.shape[2], seed).double())
        name = model.name if isinstance(model, Path) else model
        for kind, change_heads in CHANGES.items():
            changed = [Form(change_heads(form.left), change_heads(form.right), form.key_heads) for form in turned]
            add(f"rotated, {kind}".removesuffix(", "), name, name, forms, changed)
    for one, other in itertools.chain.from_iterable(itertools.combinations(seeds, 2) for seeds in trained.values()):
        add("trained strangers", one.name, other.name, read_turned(one), read_turned(other))
    for sizes, number in itertools.product(UNTRAINED, range(0, 2 * DRAWS, 2)):
        drawn, others = ([draw_form(sizes, seed)] for seed in (number, number + 1))
        add("untrained strangers", f"seed {number}", f"seed {number + 1}", drawn, others)
    return pd.DataFrame(rows)


def find_embeddings(tensors: Tensors) -> Tensor:
    """The token embeddings, [tokens, WIDTH], float64."""
    [name] = [name for name in tensors if name.endswith(("embed_tokens.weight", "wte.weight"))]
    embeddings: Tensor = tensors[name].double()
    return embeddings


def measure_permuted(folder: Path) -> pd.DataFrame:
    """How similar strangers with aligned streams are, compared with permutations, which are not aligned."""
    coordinates = draw_coordinates(WIDTH, n_permutations=199, seed=0)
    kept = torch.eye(WIDTH)
    rows = []
    for family, count in FAMILIES.items():
        for one, other in itertools.combinations([FOLDER / f"{family}-{seed}" for seed in range(count)], 2):
            (tensors, config), (others, other_config) = read_model(one), read_model(other)
            columns = torch.nn.functional.normalize(find_embeddings(tensors), dim=0)
            other_columns = torch.nn.functional.normalize(find_embeddings(others), dim=0)
            _, order = linear_sum_assignment((columns.T @ other_columns).numpy(), maximize=True)
            # Both are turned, so that the gains of both are folded.
            model = write_model(folder / "model", turn_stream(tensors, kept), config)
            aligned = write_model(folder / "aligned", turn_stream(others, kept[:, order]), other_config)
            layers = [
                layer_similarities(form, other_form, (layout, other_layout), coordinates)
                for (form, layout), (other_form, other_layout) in zip(
                    read_forms(model), read_forms(aligned), strict=True
                )
            ]
            permuted = torch.stack(layers).mean(0)[: 1 + len(coordinates.orders)]
            rows.append({"family": family, "model": one.name, "other": other.name} | judge(permuted)._asdict())
    return pd.DataFrame(rows)


def main() -> None:
    """Write lineage.csv, nulls.csv, permuted.csv and spectra.csv."""
    torch.set_num_threads(1)
    rows = []
    for family, count in FAMILIES.items():
        for pair in make_pairs(family, count):
            rows.append(test(pair))
            if len(rows) % 20 == 0:
                print(f"{len(rows)} pairs", flush=True)
        pd.DataFrame(rows).to_csv(HERE / "lineage.csv", index=False, float_format="%.4g")
    nulls = measure_nulls(FOLDER / "moved")
    nulls.to_csv(HERE / "nulls.csv", index=False, float_format="%.4g")
    permuted = measure_permuted(FOLDER / "permuted")
    permuted.to_csv(HERE / "permuted.csv", index=False, float_format="%.4g")
    measure_spectra().to_csv(HERE / "spectra.csv", index=False, float_format="%.4g")


if __name__ == "__main__":
    main()
