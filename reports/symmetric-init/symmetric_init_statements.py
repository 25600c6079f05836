"""The numbers of README.md, computed from the tables beside it.

Each function takes a table and gives the numbers of one place in the text, in the order in which they are written
there. The comments of README.md call them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

# Half of a 95% interval of Student's t in standard errors, by the number of pairs.
STUDENT = {3: 4.3027, 6: 2.5706}
# The same by the degrees of freedom of a fit.
STUDENT_OF_FIT = {14: 2.1448}
# The order of the paper's tables.
DATA = ["jigsaw", "wikipedia", "redpajama"]


def _select(table: pd.DataFrame, **cells: str | int) -> pd.DataFrame:
    """The rows with these cells."""
    for column, cell in cells.items():
        table = table[table[column] == cell]
    return table


def with_interval(values: pd.Series[Any]) -> list[float]:
    """Mean, and half of the 95% interval."""
    return [values.mean(), STUDENT[len(values)] * values.std() / len(values) ** 0.5]


def initializations(table: pd.DataFrame) -> list[float]:
    """The first table, row by row, without empty cells."""
    numbers = []
    for _, row in table.iterrows():
        names = ["final_loss_mean", "final_loss_min", "final_loss_max", "steps_to_baseline_mean"]
        if row["init"] == "symmetric":
            names += ["steps_to_baseline_min", "steps_to_baseline_max", "speed_up_mean"]
            if row["reached"]:
                names += ["speed_up_min", "speed_up_max"]
        names += ["symmetry_median_mean", "heads_symmetry_median_mean"]
        numbers += [row[name] for name in names if pd.notna(row[name])]
    return numbers


def published_speed_ups(table: pd.DataFrame, model: str, objective: str) -> pd.Series[Any]:
    """The paper's speed-ups, by its texts."""
    return _select(table, model=model, objective=objective, init="symmetric")["speed_up"]


def published_gains(table: pd.DataFrame, model: str) -> pd.Series[Any]:
    """How much lower the paper's decoders end from symmetric weights, by its texts."""
    rows = _select(table, model=model, objective="clm")
    wide = rows.pivot(index="data", columns="init", values="final_loss")
    return (wide["default"] - wide["symmetric"]).reindex(DATA)


def plateau_gains(layers: pd.DataFrame) -> pd.Series[Any]:
    """How many steps sooner the symmetric encoder has a loss below 5.4, by seed."""
    below = layers[(layers["objective"] == "mlm") & (layers["loss"] < 5.4)]
    first = below.pivot_table(index="seed", columns="init", values="step", aggfunc="min")
    return first["default"] - first["symmetric"]


def plateau_share(tables: list[pd.DataFrame]) -> float:
    """The steps that the symmetric encoder gains on the plateau, in shares of those to the default's final loss."""
    runs = _select(tables[0], objective="mlm").pivot(index="seed", columns="init", values="steps_to_baseline")
    layers = tables[1][tables[1]["head"].isna()]
    return float(plateau_gains(layers).mean() / (runs["default"] - runs["symmetric"]).mean())


def loss_gains(table: pd.DataFrame, objective: str) -> pd.Series[Any]:
    """How much lower the final loss is from symmetric weights, by seed."""
    wide = _select(table, objective=objective).pivot(index="seed", columns="init", values="final_loss")
    return wide["default"] - wide["symmetric"]


def mean_loss_gain(table: pd.DataFrame, objective: str, seeds: int = 6) -> list[float]:
    """Mean over the first seeds, and half of its interval."""
    gains = loss_gains(table, objective)
    return with_interval(gains[gains.index < seeds])


def mean_loss_of_decoder(table: pd.DataFrame) -> list[float]:
    """How much higher the decoder's loss is, and half of the interval."""
    return with_interval(-loss_gains(table, "clm"))


def mean_speed_up(table: pd.DataFrame) -> list[float]:
    """Of the encoder, and half of its interval."""
    return with_interval(_select(table, objective="mlm", init="symmetric")["speed_up"])


def last_step_of_gain(layers: pd.DataFrame) -> float:
    """The last step at which the symmetric decoder has the lower loss."""
    losses = _select(layers, objective="clm").groupby(["step", "init"])["loss"].mean().unstack()
    return float(losses.index[losses["symmetric"] < losses["default"]].max())


def losses_of_decoder(layers: pd.DataFrame, step: int) -> list[float]:
    """From symmetric and from default weights."""
    losses = _select(layers, objective="clm", step=step).groupby("init")["loss"].mean()
    return [losses["symmetric"], losses["default"]]


def final_layers(table: pd.DataFrame) -> list[float]:
    """The table of layers from the default start: whole layers, heads, and the step at which heads settle."""
    default = _select(table, init="default")
    heads = default[default["head"].notna()]
    final_layers = _select(default[default["head"].isna()], step=3000)
    of_layers = final_layers.groupby(["objective", "layer"])["symmetry"].mean()
    of_heads = _select(heads, step=3000).groupby(["objective", "layer"])["symmetry"].median()
    curves = heads.pivot_table(index="step", columns=["objective", "layer"], values="symmetry", aggfunc="median")
    last = curves.iloc[-1]
    is_near = (curves - last).abs() <= 0.1 * last.abs()
    stays_near = is_near.iloc[::-1].cummin().iloc[::-1]
    settled = stays_near.idxmax()
    numbers: list[Any] = []
    for column in (of_layers, of_heads, settled):
        for objective in ("mlm", "clm"):
            numbers += [column[objective, layer] for layer in range(4)]
    return numbers


def _encoder_layers(table: pd.DataFrame, score: str) -> pd.DataFrame:
    """A score of the encoder's layers from the default start: a row for each seed, a column for each layer."""
    return _select(table, objective="mlm", init="default").pivot(index="seed", columns="layer", values=score)


def count_first_highest(table: pd.DataFrame) -> int:
    """In how many seeds the first layer is the most symmetric."""
    return int((_encoder_layers(table, "symmetry").idxmax(axis="columns") == 0).sum())


def late_gains(table: pd.DataFrame, score: str) -> pd.Series[Any]:
    """Mean of the last two layers less that of the first two, by seed."""
    layers = _encoder_layers(table, score)
    return layers[[2, 3]].mean(axis="columns") - layers[[0, 1]].mean(axis="columns")


def mean_late_gain(table: pd.DataFrame, score: str) -> list[float]:
    """Mean over seeds, and half of its interval."""
    return with_interval(late_gains(table, score))


def ranges_over_layers(table: pd.DataFrame) -> list[float]:
    """The table of ranges over layers: both starts, and in how many of the seeds the symmetric one is smaller."""
    groups = _select(table, objective="mlm").groupby(["init", "seed"])
    numbers = []
    for score in ("heads_symmetry_median", "symmetry"):
        ranges = groups[score].agg(np.ptp)
        default = ranges["default"]
        symmetric = ranges["symmetric"]
        numbers += [default.mean(), symmetric.mean(), (symmetric < default).sum(), len(default)]
    return numbers


def symmetric_layers(table: pd.DataFrame) -> list[float]:
    """Heads of the encoder from symmetric weights: the first layer, the least and the most of the others."""
    rows = _select(table, objective="mlm", init="symmetric")
    layers = rows.groupby("layer")["heads_symmetry_median"].mean()
    return [layers[0], layers.iloc[1:].min(), layers.iloc[1:].max()]


def count_late_sooner(table: pd.DataFrame, column: str) -> int:
    """In how many encoders from the default start the last two layers settle before the first two."""
    rows = table[(table["objective"] == "mlm") & (table["init"] == "default")]
    means = rows.groupby(["seed", rows["layer"] >= 2])[column].mean().unstack()
    return int((means[True] < means[False]).sum())


# The constraints of experiments.py but "none".
CONSTRAINTS = ["penalty 0.1", "penalty 1", "penalty 10", "tied"]
# The factors of experiments.py; symmetric comes first.
FACTORS = ["symmetric", "query_key", "value", "biases"]


def _final_losses(table: pd.DataFrame) -> pd.DataFrame:
    """Runs of one base: their settings, their final loss and the median symmetry of their layers at the end."""
    last = table[table["step"] == table["step"].max()]
    runs = last.groupby(["base", *FACTORS, "seed"])
    return pd.DataFrame({"loss": runs["loss"].first(), "symmetry": runs["symmetry"].median()})


def runs_from(table: pd.DataFrame, size: str) -> pd.DataFrame:
    """The final losses of the runs with the larger base, or with the smaller one."""
    runs = _final_losses(table).reset_index("base")
    base = runs["base"].max() if size == "larger" else runs["base"].min()
    of_base: pd.DataFrame = runs[runs["base"] == base]
    return of_base


def cells(table: pd.DataFrame, size: str) -> list[float]:
    """Combinations of factors: final loss (mean, and lowest and highest of several seeds), and mean symmetry."""
    grouped = runs_from(table, size).groupby(FACTORS)
    columns = [grouped["loss"].mean()]
    if size == "smaller":
        columns += [grouped["loss"].min(), grouped["loss"].max()]
    columns.append(grouped["symmetry"].mean())
    return [number for row in zip(*columns, strict=True) for number in row]


def effects(table: pd.DataFrame) -> list[float]:
    """Effects of the factors on the final loss from the smaller base, each with half of its 95% interval.

    Least squares with a mean for each seed, the four factors, and the three pairs of interactions that half of the
    combinations can tell apart.
    """
    runs = runs_from(table, "smaller")["loss"].reset_index()
    signs = 2 * runs[FACTORS].to_numpy() - 1
    pairs = signs[:, :1] * signs[:, 1:]
    seeds = pd.get_dummies(runs["seed"], dtype=float).to_numpy()
    design = np.column_stack([signs, pairs, seeds])
    losses = runs["loss"].to_numpy()
    solution, *_ = np.linalg.lstsq(design, losses, rcond=None)
    free = len(losses) - design.shape[1]
    variance = np.square(losses - design @ solution).sum() / free
    deviations = np.sqrt(variance * np.diag(np.linalg.inv(design.T @ design)))
    halves = STUDENT_OF_FIT[free] * deviations
    return [number for place in range(7) for number in (2 * solution[place], 2 * halves[place])]


def largest_gain(table: pd.DataFrame) -> float:
    """The largest gain of symmetric weights in the interval of their effect."""
    effect, half = effects(table)[:2]
    return half - effect


def sizes_of_default(tables: list[pd.DataFrame]) -> list[float]:
    """The encoder's final loss from the smaller default start, and from the larger one, by the seeds of the first."""
    smaller = runs_from(tables[0], "smaller")["loss"].loc[0, 0, 0, 0]
    last = _select(tables[1], objective="mlm", init="default", step=3000, layer=0)
    larger = last.drop_duplicates("seed").set_index("seed")["loss"]
    return [smaller.mean(), larger[smaller.index.get_level_values("seed")].mean()]


def last_layers(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of whole layers of default decoders at step 3,000: a row for each seed, a column for each layer."""
    last = table[table["step"] == 3000]
    if "head" in last:
        last = _select(last[last["head"].isna()], objective="clm", init="default")
    return last.pivot(index="seed", columns="layer", values="symmetry")


def masked_gains(masked: pd.DataFrame, whole: pd.DataFrame) -> list[float]:
    """How much more symmetric each layer is with masked inputs: mean over seeds, and half of the interval."""
    differences = last_layers(masked) - last_layers(whole)
    return [number for layer in differences for number in with_interval(differences[layer])]


def compare_masked(masked: pd.DataFrame, whole: pd.DataFrame) -> list[float]:
    """The table of decoders with whole and with masked inputs: mean symmetry of each layer, the lowest, differences."""
    numbers = []
    for table in (whole, masked):
        layers = last_layers(table)
        numbers += [*layers.mean(), layers.min().min()]
    return numbers + masked_gains(masked, whole)


def _select_last(table: pd.DataFrame, **cells: str | int) -> pd.DataFrame:
    """The rows of the last step with these cells."""
    return _select(table[table["step"] == table["step"].max()], **cells)


def loss_increases(table: pd.DataFrame, objective: str) -> pd.DataFrame:
    """The final loss less that without a constraint: a row for each seed, a column for each constraint."""
    last = _select_last(table, objective=objective, layer=0)
    losses = last.pivot(index="seed", columns="constraint", values="loss")
    return losses[CONSTRAINTS].sub(losses["none"], axis="index")


def constraints(table: pd.DataFrame) -> list[float]:
    """The table of constraints: for each objective, mean loss and symmetry, and the loss less that without one."""
    numbers = []
    for constraint in ("none", *CONSTRAINTS):
        for objective in ("mlm", "clm"):
            rows = _select_last(table, objective=objective, constraint=constraint)
            medians = rows.groupby("seed")["symmetry"].median()
            numbers += [_select(rows, layer=0)["loss"].mean(), medians.mean()]
            if constraint != "none":
                numbers += with_interval(loss_increases(table, objective)[constraint])
    return numbers


def least_symmetric(table: pd.DataFrame, constraint: str) -> float:
    """The least symmetric layer at the end, of all objectives and seeds with this constraint."""
    return float(_select_last(table, constraint=constraint)["symmetry"].min())


def relative_increases(table: pd.DataFrame, *chosen: str) -> list[float]:
    """How much higher the decoder's mean loss is with some constraints, in shares of that without one."""
    without = _select_last(table, objective="clm", constraint="none", layer=0)["loss"].mean()
    increases = loss_increases(table, "clm")
    return [increases[constraint].mean() / without for constraint in chosen]
