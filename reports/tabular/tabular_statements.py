"""The numbers of README.md, computed from the tables beside it.

Each function takes a table and gives the numbers of one place in the text, in the order in which they are written
there. The comments of README.md call them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

# Of a simulated table.
SETTING = ["n_c", "noise", "corr"]
SEEDS = 20
BASELINES = ["rule", "lr", "hgb"]
SMALL_VARIANTS = (
    "line, bins 10",
    "line, bins 40",
    "bins 20",
    "bins 40",
    "category of 1 row",
    "category of 20 rows",
    "patience 20",
    "learning rate 0.002",
    "learning rate 0.01",
    "labels only",
    "hidden units 40",
)
# Half of a 95% interval of Student's t in standard errors, for the ten seeds of joint.csv.
HALF_WIDTH = 2.2622
OTHER_MODELS = [
    "lr",
    "rf",
    "gb",
    "mlp",
    "category-embedding",
    "ft-transformer",
    "tab-transformer",
    "auto-int",
    "tabnet",
    "atn",
]


def _summarize(rows: pd.DataFrame, by: str | list[str]) -> pd.DataFrame:
    """Accuracy and squared error of each group: mean, deviation and the paper's number of each."""
    return rows.groupby(by).agg(
        accuracy=("accuracy", "mean"),
        accuracy_deviation=("accuracy", "std"),
        published_accuracy=("published_accuracy", "first"),
        mse=("mse", "mean"),
        mse_deviation=("mse", "std"),
        published_mse=("published_mse", "first"),
    )


def simulated_scores(table: pd.DataFrame, method: str) -> pd.DataFrame:
    """A table of a method on simulated data: setting, ours and the paper's."""
    return _summarize(table[table["method"] == method], SETTING).reset_index()


def _pivot_methods(table: pd.DataFrame, index: list[str], values: str) -> pd.DataFrame:
    """A column for each method."""
    return table.pivot(index=index, columns="method", values=values)


def accuracy_gains(table: pd.DataFrame, method: str, other: str) -> pd.DataFrame:
    """How much more accurate a method is than another one on the same simulated tables: mean and standard error."""
    wide = _pivot_methods(table, [*SETTING, "seed"], "accuracy")
    return (wide[method] - wide[other]).groupby(SETTING).agg(["mean", "sem"])


def simulated_attention(table: pd.DataFrame) -> pd.DataFrame:
    """The table of attention on simulated data, which ends with what it gains over logistic regression."""
    scores = _summarize(table[table["method"] == "atn"], SETTING)
    return scores.join(accuracy_gains(table, "atn", "lr")).reset_index()


def _compare_with_paper(table: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Distance of the mean accuracy from the paper's, and the deviation of the accuracy over seeds."""
    groups = table.groupby(by)
    distance = (groups["accuracy"].mean() - groups["published_accuracy"].first()).abs()
    return pd.DataFrame({"distance": distance, "deviation": groups["accuracy"].std()})


def attention_from_paper(table: pd.DataFrame) -> list[float]:
    """Least and largest distance from the paper's accuracies, in standard errors of both means."""
    compared = _compare_with_paper(table[table["method"] == "atn"], SETTING)
    errors = compared["distance"] / (compared["deviation"] * (2 / SEEDS) ** 0.5)
    return [errors.min(), errors.max()]


def regression_from_paper(table: pd.DataFrame) -> list[float]:
    """Largest distance from the paper's accuracies; the least and the largest in standard errors of our mean."""
    compared = _compare_with_paper(table[table["method"] == "lr"], SETTING)
    errors = compared["distance"] / (compared["deviation"] / SEEDS**0.5)
    return [compared["distance"].max(), errors.min(), errors.max()]


def largest_errors_from_paper(table: pd.DataFrame) -> float:
    """Largest distance of any method from the paper's accuracies, in standard errors of both means."""
    compared = _compare_with_paper(table, [*SETTING, "method"])
    return float((compared["distance"] / (compared["deviation"] * (2 / SEEDS) ** 0.5)).max())


def largest_distance_from_paper(table: pd.DataFrame) -> float:
    """Largest distance of any method from the paper's accuracies."""
    return float(_compare_with_paper(table, [*SETTING, "method"])["distance"].max())


def count_clear_gains(table: pd.DataFrame, others: Sequence[str]) -> list[int]:
    """In how many settings attention is more accurate than each other method by more than a standard error."""
    counts = []
    for other in others:
        gains = accuracy_gains(table, "atn", other)
        counts.append(int((gains["mean"] > gains["sem"]).sum()))
    return counts


def gains_over_best(table: pd.DataFrame) -> pd.DataFrame:
    """Attention against the most accurate other method of each setting: mean and standard error."""
    wide = _pivot_methods(table, [*SETTING, "seed"], "accuracy")
    rows = []
    for setting, accuracy in wide.groupby(SETTING):
        best = accuracy.drop(columns="atn").mean().idxmax()
        gain = accuracy["atn"] - accuracy[best]
        rows.append([*setting, gain.mean(), gain.sem()])
    return pd.DataFrame(rows, columns=[*SETTING, "mean", "sem"])


def count_gains_over_best(table: pd.DataFrame) -> list[float]:
    """In how many settings, of how many, attention is clearly the best; the largest gain."""
    gains = gains_over_best(table)
    return [(gains["mean"] > gains["sem"]).sum(), len(gains), gains["mean"].max()]


def boosting_gains(table: pd.DataFrame) -> list[float]:
    """Gradient boosting against attention in two settings: mean and standard error of each."""
    gains = accuracy_gains(table, "gb", "atn")
    return [*gains.loc[[(1, 0, 0.1)]].iloc[0], *gains.loc[[(1, 1.5, 0.9)]].iloc[0]]


def auto_mpg_scores(table: pd.DataFrame) -> pd.DataFrame:
    """The table of all models on auto-mpg."""
    return _summarize(table, "method").loc[OTHER_MODELS]


def auto_mpg_first_seed(table: pd.DataFrame) -> list[float]:
    """Accuracies of the models whose numbers are the paper's."""
    accuracy = table[table["seed"] == 42].set_index("method")["accuracy"]
    return [accuracy[method] for method in ("lr", "rf", "gb", "mlp", "auto-int")]


def auto_mpg_gains(table: pd.DataFrame) -> list[float]:
    """Three models against attention with the same seeds: means, then standard errors."""
    wide = _pivot_methods(table, ["seed"], "accuracy")
    gains = wide[["ft-transformer", "mlp", "rf"]].sub(wide["atn"], axis=0)
    return [*gains.mean(), *gains.sem()]


def auto_mpg_attention(table: pd.DataFrame) -> list[float]:
    """Largest and least accuracy of attention over seeds."""
    accuracy = table[table["method"] == "atn"]["accuracy"]
    return [accuracy.max(), accuracy.min()]


def auto_mpg_auto_int(table: pd.DataFrame) -> list[float]:
    """Third least and largest accuracy of AutoInt over seeds."""
    accuracy = table[table["method"] == "auto-int"]["accuracy"]
    return [accuracy.sort_values().iloc[2], accuracy.max()]


def _name_tables(table: pd.DataFrame) -> list[str]:
    """The names of the tables, in the order of the file."""
    return list(table["table"].unique())


def ordinary_losses(table: pd.DataFrame) -> list[float]:
    """Rows, log-loss of each method and seconds of two, for each table."""
    losses = _pivot_methods(table, ["table", "seed"], "log_loss")
    seconds = _pivot_methods(table, ["table", "seed"], "seconds")
    rows = table.groupby("table")["rows"].first()
    numbers: list[Any] = []
    for name in _name_tables(table):
        numbers.append(rows[name])
        numbers += [losses[method].loc[name].mean() for method in ("frequencies", "rule", "lr", "hgb", "atn")]
        numbers += [seconds[method].loc[name].mean() for method in ("hgb", "atn")]
    return numbers


def ordinary_differences(table: pd.DataFrame) -> list[float]:
    """Log-loss of attention less that of each baseline; accuracy and calibration of three methods, for each table."""
    losses = _pivot_methods(table, ["table", "seed"], "log_loss")
    differences = losses[BASELINES].rsub(losses["atn"], axis=0)
    measures = [_pivot_methods(table, ["table", "seed"], name) for name in ("accuracy", "calibration_error")]
    numbers: list[Any] = []
    for name in _name_tables(table):
        for other in BASELINES:
            difference = differences.loc[name][other]
            numbers += [difference.mean(), difference.sem()]
        for method in ("lr", "hgb", "atn"):
            numbers += [measure.loc[name][method].mean() for measure in measures]
    return numbers


def _compare_losses(table: pd.DataFrame, method: str, other: str) -> pd.DataFrame:
    """Difference of log-losses on each table: mean and standard error over seeds."""
    losses = _pivot_methods(table, ["table", "seed"], "log_loss")
    return (losses[method] - losses[other]).groupby("table").agg(["mean", "sem"])


def count_better(table: pd.DataFrame, method: str, other: str) -> int:
    """On how many tables a method has a log-loss below another one's by more than a standard error."""
    differences = _compare_losses(table, method, other)
    return int((differences["mean"] < -differences["sem"]).sum())


def _mean_by_table(table: pd.DataFrame, values: str) -> pd.DataFrame:
    """Means over seeds, a row for each table and a column for each method."""
    return table.pivot_table(index="table", columns="method", values=values)


def relative_losses(table: pd.DataFrame) -> list[float]:
    """Log-loss in those of the frequencies, mean over tables, of attention and each baseline."""
    losses = _mean_by_table(table, "log_loss")
    relative = losses.div(losses["frequencies"], axis=0).mean()
    return [relative[method] for method in ("atn", "lr", "hgb", "rule")]


def gain_over_others(table: pd.DataFrame, name: str) -> float:
    """How far the best baseline is above attention on a table."""
    losses = _mean_by_table(table, "log_loss")
    gains = losses[BASELINES].min(axis="columns") - losses["atn"]
    return float(gains[name])


def regression_rule_on_caravan(table: pd.DataFrame) -> list[float]:
    """Log-loss of logistic regression less that of the rule: mean and standard error."""
    differences = _compare_losses(table, "lr", "rule")
    return [differences["mean"]["caravan"], differences["sem"]["caravan"]]


def seconds_ratio(table: pd.DataFrame, method: str, other: str) -> pd.Series[Any]:
    """Seconds of a method in those of another one, by table."""
    seconds = _mean_by_table(table, "seconds")
    return seconds[method] / seconds[other]


def range_of_seconds(table: pd.DataFrame, method: str, other: str, without: str = "") -> list[float]:
    """The least and the largest ratio over the tables, without one of them."""
    ratio = seconds_ratio(table[table["table"] != without], method, other)
    return [ratio.min(), ratio.max()]


def _relative_to_default(table: pd.DataFrame) -> pd.DataFrame:
    """Relative change of the log-loss by each variant, by table and seed."""
    losses = table.pivot(index=["table", "seed"], columns="variant", values="log_loss")
    return losses.div(losses["default"], axis=0) - 1


def _select_small(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of tables of at most 3,000 rows."""
    return table[table["table_rows"] <= 3000]


def ablations(table: pd.DataFrame) -> list[float]:
    """The table of variants: mean and standard error over tables, tables that gain or lose with all seeds, extremes."""
    changes = _relative_to_default(_select_small(table))
    numbers: list[Any] = []
    for variant in SMALL_VARIANTS:
        tables = changes[variant].groupby("table")
        means = tables.mean()
        numbers += [means.mean(), means.sem()]
        numbers += [(tables.max() < 0).sum(), (tables.min() > 0).sum()]
        numbers += [means.min(), means.max()]
    return numbers


def change_by_more_bins(table: pd.DataFrame, name: str) -> list[float]:
    """By 20 and by 40 bins on a table of 10,000 rows."""
    changes = _relative_to_default(table[table["table_rows"] == 10000])
    return [changes.loc[name][variant].mean() for variant in ("bins 20", "bins 40")]


def change_by_variant(table: pd.DataFrame, variant: str) -> pd.Series[Any]:
    """By table, mean over seeds."""
    return _relative_to_default(_select_small(table))[variant].groupby("table").mean()


def range_without_tumours(table: pd.DataFrame, variant: str) -> list[float]:
    """The least and the largest change of the other tables."""
    changes = change_by_variant(table, variant).drop("tumours")
    return [changes.min(), changes.max()]


def changes_by_seed(table: pd.DataFrame, variant: str, name: str) -> list[float]:
    """Of one table, by seed."""
    return [*_relative_to_default(_select_small(table))[variant].loc[name]]


def filled_cells(table: pd.DataFrame) -> list[float]:
    """The table of holes: confidence, accuracy and log-loss without hidden cells, then with a share of a half."""
    means = table.groupby(["table", "holes", "hidden_share"])[["confidence", "accuracy", "log_loss"]].mean()
    numbers: list[Any] = []
    for name in ("adult", "churn"):
        for holes in sorted(table[table["table"] == name]["holes"].unique()):
            numbers.append(holes)
            for share in (0.0, 0.5):
                numbers += [*means.loc[[(name, holes, share)]].iloc[0]]
    return numbers


def excess_confidence(table: pd.DataFrame, share: float) -> pd.Series[Any]:
    """Confidence less accuracy by table and number of holes."""
    groups = table[table["hidden_share"] == share].groupby(["table", "holes"])
    return groups["confidence"].mean() - groups["accuracy"].mean()


def losses_by_share(table: pd.DataFrame, name: str) -> pd.Series[Any]:
    """Log-loss of a table's cells, by the share that is hidden."""
    return table[table["table"] == name].groupby("hidden_share")["log_loss"].mean()


def adult_losses_by_share(table: pd.DataFrame) -> list[float]:
    """The shares, then the log-losses of the table adult."""
    losses = losses_by_share(table, "adult")
    return [*losses.index, *losses]


def churn_with_one_hole(table: pd.DataFrame) -> list[float]:
    """Log loss of a single empty cell with all cells hidden in training, with half of them and with none."""
    rows = table[(table["table"] == "churn") & (table["holes"] == 1)]
    losses = rows.groupby("hidden_share")["log_loss"].mean()
    return [losses[share] for share in (1, 0.5, 0)]


def labels_with_hidden_cells(table: pd.DataFrame) -> list[float]:
    """What hidden cells change in the log loss of labels.

    Mean and standard error on tumours; the least and the largest mean of the other tables; the mean and the standard
    error of those of them whose mean is larger than its standard error.
    """
    changes = _compare_losses(table, "atn-hidden", "atn")
    others = changes.drop("tumours")
    clear = others[others["mean"].abs() > others["sem"]]
    means = others["mean"]
    return [*changes.loc["tumours"], means.min(), means.max(), *clear.to_numpy().ravel()]


def _pivot_joint(table: pd.DataFrame, values: str) -> pd.DataFrame:
    """A row for each case, rows of A and seed; a column for each model, what trains it, and variant."""
    table = table.fillna({"variant": ""})
    return table.pivot(index=["case", "rows_a", "seed"], columns=["model", "trained_on", "variant"], values=values)


def _compare_joint(
    table: pd.DataFrame, values: str, first: tuple[str, str, str], second: tuple[str, str, str]
) -> pd.DataFrame:
    """How much higher the first is on the same tables: mean, and half of the interval, by case and rows of A."""
    wide = _pivot_joint(table, values)
    gains = (wide[first] - wide[second]).groupby(["case", "rows_a"])
    return pd.DataFrame({"mean": gains.mean(), "half": gains.sem() * HALF_WIDTH})


def joint_gains(table: pd.DataFrame, values: str = "accuracy", variant: str = "") -> pd.DataFrame:
    """How much higher the joint training of attention is than that on A alone."""
    return _compare_joint(table, values, ("atn", "A and B", variant), ("atn", "A", variant))


def joint_above(table: pd.DataFrame, model: str, trained_on: str, values: str = "accuracy") -> pd.DataFrame:
    """How much higher the joint training of attention is than another model."""
    return _compare_joint(table, values, ("atn", "A and B", ""), (model, trained_on, ""))


def joint_means(table: pd.DataFrame, values: str = "accuracy") -> pd.DataFrame:
    """Means over seeds, a row for each case and rows of A."""
    return _pivot_joint(table, values).groupby(["case", "rows_a"]).mean()


def joint_attention(table: pd.DataFrame, values: str) -> list[float]:
    """The tables of attention: alone, jointly, the difference, and three other trainings, after the rows of A."""
    means = joint_means(table, values)["atn"]
    gains = joint_gains(table, values)
    numbers: list[Any] = []
    for case, rows in means.index:
        mean = means.loc[case, rows]
        numbers += [rows, mean["A", ""], mean["A and B", ""], *gains.loc[case, rows]]
        numbers += [mean[name, ""] for name in ("columns of A", "all cells", "shared columns")]
    return numbers


def joint_others(table: pd.DataFrame) -> list[float]:
    """The table of the other models: accuracies of each, alone and jointly, after the rows of A."""
    means = joint_means(table)
    numbers: list[Any] = []
    for case, rows in means.index:
        numbers.append(rows)
        for model in ("lr", "rf", "hgb"):
            numbers += [means.loc[case, rows][model, name, ""] for name in ("A", "A and B")]
        numbers.append(means.loc[case, rows]["lr", "shared columns", ""])
    return numbers


def joint_differences(table: pd.DataFrame) -> list[float]:
    """The table of differences: attention trained jointly above five other ways, after the rows of A."""
    others = [("lr", "A"), ("lr", "A and B"), ("rf", "A and B"), ("hgb", "A and B"), ("atn", "shared columns")]
    differences = [joint_above(table, *other) for other in others]
    numbers: list[Any] = []
    for case, rows in differences[0].index:
        numbers.append(rows)
        for difference in differences:
            numbers += [*difference.loc[case, rows]]
    return numbers


def joint_updates(table: pd.DataFrame) -> list[float]:
    """The table of updates: the gain in accuracy by joint training, for two cases and each number of rows of A."""
    numbers: list[Any] = []
    for updates in (35, 70, 140, 280, 560):
        numbers.append(updates)
        gains = joint_gains(table, variant="" if updates == 140 else f"{updates} updates")
        for case in ("cars", "planted"):
            numbers += [*gains.loc[case].to_numpy().ravel()]
    return numbers


def joint_best_losses(table: pd.DataFrame, case: str, rows: int) -> list[float]:
    """Mean log loss alone and jointly, each with the number of updates at which it is lowest; the difference."""
    wide = _pivot_joint(table, "log_loss")["atn"].loc[case, rows]
    best = []
    for name in ("A", "A and B"):
        losses = wide[name][["", "35 updates", "70 updates", "280 updates", "560 updates"]]
        best.append(losses[losses.mean().idxmin()])
    difference = best[1] - best[0]
    return [best[0].mean(), best[1].mean(), difference.mean(), difference.sem() * HALF_WIDTH]


def joint_without_absent(table: pd.DataFrame, values: str) -> pd.DataFrame:
    """What changes if nothing attends to a missing cell: mean, and half of the interval."""
    changes = _compare_joint(table, values, ("atn", "A and B", "without absent cells"), ("atn", "A and B", ""))
    return changes.dropna()


def joint_to_win(table: pd.DataFrame, case: str) -> pd.Series[Any]:
    """How much the columns of A of all rows add to the accuracy of attention on A alone, by rows of A."""
    means = joint_means(table)["atn"].loc[case]
    to_win: pd.Series[Any] = means["columns of A", ""] - means["A", ""]
    return to_win


def joint_share_won(table: pd.DataFrame, case: str) -> np.ndarray:
    """The share of `joint_to_win` that joint training adds, by rows of A."""
    return (joint_gains(table).loc[case]["mean"] / joint_to_win(table, case)).to_numpy()


def joint_all_cells(table: pd.DataFrame) -> pd.DataFrame:
    """How much more accurate attention trained on all cells is than that trained jointly."""
    return _compare_joint(table, "accuracy", ("atn", "all cells", ""), ("atn", "A and B", ""))


def joint_shared_above(table: pd.DataFrame, model: str) -> pd.DataFrame:
    """How much more accurate joint training with shared vectors is than another model on both tables."""
    return _compare_joint(table, "accuracy", ("atn", "A and B", "shared vocabulary"), (model, "A and B", ""))
