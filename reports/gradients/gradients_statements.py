"""The numbers of README.md, computed from the tables beside it.

Each function takes a table and gives the numbers of one place in the text, in the order in which they are written
there. The comments of README.md call them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

# Text, objective and model of each row of the first table.
DEMOS = [
    ("austen", "mlm", "demo:encoder"),
    ("austen", "clm", "demo:decoder"),
    ("wikitext-2", "mlm", "demo:encoder"),
    ("wikitext-2", "clm", "demo:decoder"),
    ("austen", "clm", "demo:encoder"),
    ("austen", "mlm", "demo:decoder"),
]
DEMO_SCORES = [
    "loss",
    "symmetry",
    "symmetry_chance",
    "change_symmetry",
    "change_symmetry_chance",
    "column_spread",
    "row_spread",
    "beta_symmetry",
    "context_share",
]
TRAINING_SCORES = [
    "loss",
    "symmetry",
    "symmetry_chance",
    "change_symmetry",
    "column_spread",
    "row_spread",
    "context_share",
]
DEMO_STEPS = (300, 400, 500, 600, 700, 800, 900, 1500)
OWN_MODELS = {"mlm": "demo:encoder", "clm": "demo:decoder"}
# The first layer of each group of layers in the table of own tokens; a group ends before the next one.
OWN_TOKEN_GROUPS = {
    ("demo:encoder", "trained"): (0, 1, 2),
    ("demo:decoder", "trained"): (0, 1, 2),
    ("SmolLM2-135M", "trained"): (0, 10, 20, 29),
    ("demo:encoder", "random"): (0, 1, 2),
    ("demo:decoder", "random"): (0, 1, 2),
}
# The step of each objective that the text compares: equal losses.
COMPARED = [("clm", 200), ("mlm", 1000)]


def _round_up(value: float) -> float:
    """The least number with three decimals that is not below the value."""
    return math.ceil(1000 * value) / 1000


def _select_heads(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of heads."""
    return table[table["head"].notna()]


def _select_layers(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of whole layers."""
    return table[table["head"].isna()]


def _select(table: pd.DataFrame, **cells: str | int) -> pd.DataFrame:
    """The rows with these cells."""
    for column, cell in cells.items():
        table = table[table[column] == cell]
    return table


def demo_scores(table: pd.DataFrame) -> list[float]:
    """The table of demos, row by row, without empty cells: medians over heads, means over seeds."""
    medians = _select_heads(table).groupby(["text", "objective", "model", "seed"]).median(numeric_only=True)
    means = medians.groupby(["text", "objective", "model"]).mean()
    cells = means[DEMO_SCORES].loc[DEMOS].to_numpy().ravel()
    return [cell for cell in cells if not math.isnan(cell)]


def _seed_medians(table: pd.DataFrame, score: str) -> pd.Series[Any]:
    """Median over heads on Austen's text, by objective, model and seed."""
    heads = _select(_select_heads(table), text="austen")
    return heads.groupby(["objective", "model", "seed"])[score].median()


def seed_ranges(table: pd.DataFrame, score: str, models: list[tuple[str, str]]) -> list[float]:
    """The range of the median over seeds. models: each with its objective before it."""
    medians = _seed_medians(table, score)
    return [np.ptp(medians.loc[objective, model]) for objective, model in models]


def seed_means(table: pd.DataFrame, score: str) -> list[float]:
    """The mean of the median over seeds, of both models with their own objectives."""
    medians = _seed_medians(table, score)
    return [medians.loc[objective, model].mean() for objective, model in OWN_MODELS.items()]


def training_means(table: pd.DataFrame) -> pd.DataFrame:
    """Medians over heads, means over seeds, by objective and step."""
    medians = _select_heads(table).groupby(["objective", "step", "seed"]).median(numeric_only=True)
    return medians.groupby(["objective", "step"]).mean()


def training_scores(table: pd.DataFrame) -> pd.DataFrame:
    """The table of trainings: a row for each step, the scores of both objectives."""
    means = training_means(table).reset_index()
    wide = means.pivot(index="step", columns="objective", values=TRAINING_SCORES)
    steps = [0, 100, 200, 400, 800, 1200]
    return wide.swaplevel(axis="columns")[["mlm", "clm"]].loc[steps].reset_index()


def compared_losses(table: pd.DataFrame) -> list[float]:
    """The losses of the steps that are compared, with the step of the first between them."""
    means = training_means(table)["loss"]
    return [means.loc[COMPARED[0]], COMPARED[0][1], means.loc[COMPARED[1]]]


def compared_scores(table: pd.DataFrame, *scores: str) -> list[float]:
    """The scores of the steps that are compared."""
    means = training_means(table)
    return [means[score].loc[step] for step in COMPARED for score in scores]


def share_above_chance(table: pd.DataFrame) -> float:
    """The share of heads of masked models from step 400 on whose symmetry is above chance."""
    return float(_is_above_chance(table).mean())


def share_above_chance_by_seed(table: pd.DataFrame) -> pd.Series[Any]:
    """The same for each seed."""
    return _is_above_chance(table).groupby(table["seed"]).mean()


def _is_above_chance(table: pd.DataFrame) -> pd.Series[bool]:
    heads = _select(_select_heads(table), objective="mlm")
    heads = heads[heads["step"] >= 400]
    return heads["symmetry"] > heads["symmetry_chance"]


def largest_median(table: pd.DataFrame, score: str, by: list[str]) -> float:
    """The largest size of a median over heads in the groups."""
    return _round_up(float(_select_heads(table).groupby(by)[score].median().abs().max()))


def largest_masked_median(table: pd.DataFrame, score: str) -> float:
    """The same for the masked objective, in the layers of demos."""
    return largest_median(_select(table, objective="mlm"), score, ["text", "model", "layer"])


def change_by_layer(table: pd.DataFrame) -> list[float]:
    """Symmetry of the change of whole layers, of both models with their own objectives."""
    layers = _select(_select_layers(table), text="austen")
    means = layers.groupby(["objective", "model", "layer"])["change_symmetry"].mean()
    return [number for objective, model in OWN_MODELS.items() for number in means.loc[objective, model]]


def change_chance_by_layer(table: pd.DataFrame, objective: str) -> pd.Series[Any]:
    """Chance of that symmetry, of the model with its own objective."""
    layers = _select(_select_layers(table), text="austen", objective=objective, model=OWN_MODELS[objective])
    return layers.groupby("layer")["change_symmetry_chance"].mean()


def demo_training(table: pd.DataFrame) -> list[float]:
    """The table of the demos' trainings: for each step, four symmetries of the first layer of both objectives."""
    scores = ["weight_symmetry", "change_symmetry", "next_symmetry", "next_100_symmetry"]
    numbers: list[float] = []
    for step in DEMO_STEPS:
        rows = _select(_select_layers(table), layer=0, step=step).set_index("objective")
        numbers += [step, *rows.loc[["mlm", "clm"], scores].to_numpy().ravel()]
    return numbers


def masked_weight_symmetry(table: pd.DataFrame) -> list[float]:
    """Of the first layer, at steps 600 and 1,500."""
    rows = _select(_select_layers(table), objective="mlm", layer=0).set_index("step")
    return [rows["weight_symmetry"].loc[step] for step in (600, 1500)]


def final_weight_symmetry(table: pd.DataFrame) -> list[float]:
    """Of both objectives, over all layers, then in the first layer."""
    rows = _select(_select_layers(table), step=1200)
    numbers = []
    for layers in (rows, _select(rows, layer=0)):
        means = layers.groupby("objective")["weight_symmetry"].mean()
        numbers += [means["mlm"], means["clm"]]
    return numbers


def range_of_spreads(table: pd.DataFrame) -> list[float]:
    """Spread of columns in that of rows: the least and the largest over steps and objectives."""
    means = training_means(table)
    ratio = means["column_spread"] / means["row_spread"]
    return [ratio.min(), ratio.max()]


def share_of_smaller_columns(table: pd.DataFrame) -> float:
    """In how many of these columns have the smaller spread."""
    means = training_means(table)
    return float((means["column_spread"] < means["row_spread"]).mean())


def range_of_context(table: pd.DataFrame, objective: str, first: int = 0) -> list[float]:
    """The least and the largest share of the context, from a step on."""
    shares = training_means(table).loc[objective]["context_share"].loc[first:]
    return [shares.min(), shares.max()]


def types_by_group(table: pd.DataFrame) -> pd.DataFrame:
    """The table of types: how many, and the means of both shares."""
    groups = table.groupby(["rows", "model", "group"])
    summary = groups.agg({"types": "first", "larger_columns": "mean", "wider_columns": "mean"})
    names = [
        ("sentences", model, group) for model in ("untrained", "demo:decoder") for group in ("early", "between", "late")
    ]
    return summary.loc[names]


def count_heads_against(table: pd.DataFrame) -> int:
    """Heads of the trained decoder in which early types have smaller columns."""
    rows = _select(table, rows="sentences", model="demo:decoder", group="early")
    return int((rows["larger_columns"] < 0.5).sum())


def packed_shares(table: pd.DataFrame) -> list[float]:
    """Shares of larger columns over all types, without training and with it."""
    numbers = []
    for model in ("untrained", "demo:decoder"):
        rows = _select(table, rows="packed", model=model)
        numbers.append(float(np.average(rows["larger_columns"], weights=rows["types"])))
    return numbers


def _shares_not_predicted(table: pd.DataFrame) -> pd.DataFrame:
    """Heads of the first layer of masked models, with the share of the update that is not predicted."""
    heads = _select(_select_heads(table), objective="mlm", layer=0)
    return heads.assign(rest=1 - heads["predicted_share"])


def rest_by_text(table: pd.DataFrame) -> pd.Series[Any]:
    """Mean share that is not predicted in the encoder's first layer."""
    return _select(_shares_not_predicted(table), model="demo:encoder").groupby("text")["rest"].mean()


def range_of_rest(table: pd.DataFrame) -> list[float]:
    """The least and the largest of its heads."""
    rest = _select(_shares_not_predicted(table), model="demo:encoder")["rest"]
    return [rest.min(), rest.max()]


def rest_in_training(table: pd.DataFrame) -> list[float]:
    """The largest median of a step, and that of the last one."""
    medians = _shares_not_predicted(table).groupby("step")["rest"].median()
    return [medians.max(), medians.iloc[-1]]


def prediction_shares(table: pd.DataFrame) -> pd.Series[Any]:
    """Shares of the tokens that are predicted, measured and by formula."""
    heads = _select(_select_heads(table), text="austen", objective="mlm", model="demo:encoder")
    return heads.groupby("seed")[["prediction_share", "prediction_share_predicted"]].median().mean()


def largest_demo_medians(table: pd.DataFrame, *scores: str) -> list[float]:
    """The largest size of the median over heads of a score, over all demos and seeds."""
    groups = _select_heads(table).groupby(["text", "objective", "model", "seed"])
    return [groups[score].median().abs().max() for score in scores]


def interval(values: pd.Series[Any]) -> list[float]:
    """The mean and the 95% interval of Student's t."""
    half = stats.t.ppf(0.975, len(values) - 1) * values.std() / len(values) ** 0.5
    return [values.mean(), values.mean() - half, values.mean() + half]


def _select_missed(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of whole layers; `missed` is the share of ‖ΔM‖ that remains with the best factor."""
    layers = _select_layers(table)
    return layers.assign(missed=(1 - layers["own_token_cosine"] ** 2).clip(lower=0) ** 0.5)


def own_token_misses(table: pd.DataFrame) -> list[float]:
    """The least and the largest mean miss of a layer of SmolLM2 from 20 to 28."""
    layers = _select(_select_missed(table), model="SmolLM2-135M")
    means = layers[layers["layer"].between(20, 28)].groupby("layer")["missed"].mean()
    return [means.min(), means.max()]


def own_token_draws(table: pd.DataFrame) -> pd.DataFrame:
    """The median over the layers of each group, a row a draw."""
    layers = _select_missed(table)
    frames = []
    for (model, weights), firsts in OWN_TOKEN_GROUPS.items():
        of_model = _select(layers, model=model, weights=weights)
        group = [max(first for first in firsts if first <= layer) for layer in of_model["layer"]]
        frames.append(of_model.assign(group=group))
    by = ["model", "weights", "group", "seed"]
    return pd.concat(frames).groupby(by, as_index=False)[["own_token_share", "other_tokens_share", "missed"]].median()


def own_token_table(table: pd.DataFrame) -> list[float]:
    """The table of own tokens, row by row: first and last layer of each group, shares with intervals, and the miss."""
    draws = own_token_draws(table)
    cells: list[float] = []
    for (model, weights), firsts in OWN_TOKEN_GROUPS.items():
        ends = [first - 1 for first in firsts[1:]] + [firsts[-1]]
        for first, last in zip(firsts, ends, strict=True):
            rows = _select(draws, model=model, weights=weights, group=first)
            cells += [first, last] if last > first else [first]
            cells += interval(rows["own_token_share"]) if rows["own_token_share"].std() else [1]
            cells += [rows["other_tokens_share"].mean()]
            cells += interval(rows["missed"]) if rows["missed"].std() else [0]
    return cells


def own_token_means(table: pd.DataFrame, model: str, firsts: tuple[int, ...]) -> list[float]:
    """The mean share of own tokens, and the mean miss, of some groups of layers of a trained model."""
    draws = own_token_draws(table)
    means: list[float] = []
    for first in firsts:
        rows = _select(draws, model=model, weights="trained", group=first)
        means += [rows["own_token_share"].mean(), rows["missed"].mean()]
    return means


def own_token_heads(table: pd.DataFrame) -> list[float]:
    """The share of heads of SmolLM2 with less than half by own tokens: layers 0 to 9, 10 to 19, and 20 to 28."""
    heads = _select(_select_heads(table), model="SmolLM2-135M")
    ranges = ((0, 9), (10, 19), (20, 28))
    return [(heads[heads["layer"].between(*layers)]["own_token_share"] < 0.5).mean() for layers in ranges]
