"""Tables 1 and 2 as studies: their runs, their rows, and statistics over data sets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from attngeo.estimators.tabular.options import OURS
from attngeo.papers.wibisono2023.data import AutoMpg, ShiftedTable, load_auto_mpg, seeds_of_data_sets, simulate
from attngeo.papers.wibisono2023.methods import METHODS, MethodRun, perform
from attngeo.papers.wibisono2023.options import (
    FIRST_SEED,
    SOURCE,
    AutoMpgOptions,
    PublishedScores,
    Shift,
    ShiftSetting,
    SimulateOptions,
    auto_mpg_scores,
    simulation_scores,
)
from attngeo.progress import ProgressCallback, ignore_progress
from attngeo.scores.spec import ResultOptions
from attngeo.studies.engine import RunOutcome, StudyOptions, require_all, run_study
from attngeo.tables.read import require_columns

if TYPE_CHECKING:
    import pandas as pd

Outcome = RunOutcome[list[dict[str, Any]]]
SETTING = ("n_c", "noise", "corr")
SCORES = ("accuracy", "mse")
PUBLISHED = ("published_accuracy", "published_mse")
SIMULATION_COLUMNS = (*SETTING, "method", "seed", *SCORES, *PUBLISHED)
AUTO_MPG_COLUMNS = ("data", "method", "seed", *SCORES, *PUBLISHED)
AUTO_MPG = "auto-mpg"
# Columns that tell data sets apart, in tables of either experiment.
LABELS = ("n_c", "noise", "corr", "data")
# The columns of `summarise_methods` and of `measure_advantage` after those that tell data sets apart.
METHOD_COLUMNS = ("method", "runs", *(f"{score}_{name}" for score in SCORES for name in ("mean", "sd")), *PUBLISHED)
ADVANTAGE_COLUMNS = ("best", "runs", "advantage", "error", "is_larger")


def plan_simulation(options: SimulateOptions) -> list[MethodRun]:
    """The runs of Table 1: the first data set of every setting, then the second of every setting, and so on.

    A method that answers data sets together has one run for all of a setting, in the place of its first one.
    """
    seeds = tuple(seeds_of_data_sets(options.data_sets))
    return [
        _plan_run(shift, method, seeds if METHODS[method].together else (seed,))
        for number, seed in enumerate(seeds)
        for shift in options.shifts
        for method in options.method_names
        if number == 0 or not METHODS[method].together
    ]


def _plan_run(shift: Shift, method: str, seeds: tuple[int, ...]) -> MethodRun:
    setting = ShiftSetting(shift.n_c, shift.noise, shift.corr)
    which = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} data sets"
    return MethodRun(
        f"{setting} {method}, {which}", method, seeds, partial(simulate, shift), labels=setting._asdict(),
        about={"experiment": "simulation", "options": asdict(shift)},
    )  # fmt: skip


def plan_auto_mpg(options: AutoMpgOptions, data: AutoMpg) -> list[MethodRun]:
    """The runs of Table 2: each method with each seed, on the same rows."""
    seeds = tuple(range(FIRST_SEED, FIRST_SEED + options.seeds))
    return [
        MethodRun(
            f"{AUTO_MPG} {method}, {f'seed {some[0]}' if len(some) == 1 else f'{len(some)} seeds'}", method, some,
            partial(_always, data.table), labels={"data": AUTO_MPG}, about={"experiment": AUTO_MPG},
        )
        for method in options.method_names
        for some in ([seeds] if METHODS[method].together else [(seed,) for seed in seeds])
    ]  # fmt: skip


def _always(table: ShiftedTable, _: int) -> ShiftedTable:
    return table


def run_methods(
    runs: Sequence[MethodRun],
    *,
    results: ResultOptions = ResultOptions(),
    study: StudyOptions = StudyOptions(),
    progress: ProgressCallback = ignore_progress,
    on_outcome: Callable[[Outcome], None] = lambda _: None,
) -> list[Outcome]:
    """The rows of each run, as `perform` returns them, or its error. Parameters and errors are those of `run_study`."""
    function = partial(perform, fresh=results.fresh)
    names = [run.name for run in runs]
    return run_study(function, runs, names=names, options=study, progress=progress, on_outcome=on_outcome)


def compare_on_simulation(
    options: SimulateOptions, *, study: StudyOptions = StudyOptions(), progress: ProgressCallback = ignore_progress
) -> pd.DataFrame:
    """Table 1: `build_simulation_frame` of all its runs. Raises the error of the first run that fails, at the end."""
    outcomes = run_methods(plan_simulation(options), study=study, progress=progress)
    return build_simulation_frame(options, require_all(outcomes))


def compare_on_auto_mpg(
    options: AutoMpgOptions, *, study: StudyOptions = StudyOptions(), progress: ProgressCallback = ignore_progress
) -> pd.DataFrame:
    """Table 2: `build_auto_mpg_frame` of all its runs. Raises as `load_auto_mpg`, and the error of the first run that
    fails, at the end.
    """
    data = load_auto_mpg(options.data, progress)
    outcomes = run_methods(plan_auto_mpg(options, data), study=study, progress=progress)
    return build_auto_mpg_frame(options, data, require_all(outcomes))


def build_simulation_frame(options: SimulateOptions, outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """A row for each data set and method that has scores, in the order of Table 1; columns: `SIMULATION_COLUMNS`.

    outcomes: of `plan_simulation(options)`. The published scores are means over the paper's data sets of the setting;
    they are missing if the number of features, of classes or of rows is another one.
    """
    published = simulation_scores() if options.is_of_paper else {}
    frame = _build_frame(
        outcomes, SIMULATION_COLUMNS, options.method_names,
        lambda row: published.get((ShiftSetting(*(row[name] for name in SETTING)), row["method"])),
    )  # fmt: skip
    order = {setting: place for place, setting in enumerate(options.setting_list)}
    places = [order[ShiftSetting(*values)] for values in frame[list(SETTING)].itertuples(index=False)]
    frame = frame.assign(place=places).sort_values("place", kind="stable", ignore_index=True).drop(columns="place")
    frame.attrs = {"title": "Shift simulation", "convention": options.convention, "published": SOURCE}
    return frame


def build_auto_mpg_frame(options: AutoMpgOptions, data: AutoMpg, outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """A row for each method and seed that has scores; columns: `AUTO_MPG_COLUMNS`.

    The published scores are of one seed; they are missing if the data are not those of the paper.
    """
    published = auto_mpg_scores() if data.is_of_paper else {}
    frame = _build_frame(outcomes, AUTO_MPG_COLUMNS, options.method_names, lambda row: published.get(row["method"]))
    frame.attrs = {"title": AUTO_MPG, "published": SOURCE}
    return frame


def _build_frame(
    outcomes: Sequence[Outcome],
    columns: Sequence[str],
    methods: Sequence[str],
    published_of: Callable[[Mapping[str, Any]], PublishedScores | None],
) -> pd.DataFrame:
    """The rows of all runs, sorted by method, with the published scores beside them."""
    import pandas as pd

    rows = [
        row | dict(zip(PUBLISHED, (scores.accuracy, scores.mse) if scores else (None, None), strict=True))
        for outcome in sorted(outcomes, key=lambda outcome: outcome.number)
        for row in outcome.result or ()
        for scores in (published_of(row),)
    ]
    rows.sort(key=lambda row: methods.index(row["method"]))
    return pd.DataFrame(rows, columns=list(columns)).astype(dict.fromkeys((*SCORES, *PUBLISHED), "float64"))


def labels_of(frame: pd.DataFrame) -> list[str]:
    """The columns of a table of results that name its settings."""
    return [name for name in LABELS if name in frame.columns]


def summarise_methods(frame: pd.DataFrame) -> pd.DataFrame:
    """One row for each setting and method: number of data sets or seeds, mean and deviation of each score.

    Columns: those of the setting, method, runs, accuracy_mean, accuracy_sd, mse_mean, mse_sd, published_accuracy and
    published_mse. A deviation is that of a sample (n − 1), and missing for one run. Raises DataError if a column is
    missing.
    """
    _require_results(frame)
    grouped = frame.groupby([*labels_of(frame), "method"], sort=False, dropna=False)
    named: dict[str, Any] = {"runs": ("seed", "size")}
    for score in SCORES:
        named |= {f"{score}_mean": (score, "mean"), f"{score}_sd": (score, "std")}
    named |= {name: (name, "first") for name in PUBLISHED if name in frame.columns}
    summary: pd.DataFrame = grouped.agg(**named).reset_index()
    return summary


def measure_advantage(frame: pd.DataFrame, ours: str = OURS) -> pd.DataFrame:
    """One row for each setting: by how much the accuracy of `ours` is above that of the best baseline.

    Columns: those of the setting, best (the baseline with the highest mean accuracy, of those that have all runs of
    `ours`, if any has), runs (that both methods have),
    advantage (mean difference), error (standard error of the differences, which are paired by seed; NaN for one run)
    and is_larger (advantage > error). Settings without `ours` or without a baseline are left out. Raises DataError if a
    column is missing.
    """
    import pandas as pd

    _require_results(frame)
    rows = []
    labels = labels_of(frame)
    for values, results in frame.groupby(labels, sort=False, dropna=False):
        by_seed = results.pivot_table(index="seed", columns="method", values="accuracy", sort=False)
        baselines = [name for name in by_seed.columns if name != ours]
        if ours not in by_seed.columns or not baselines:
            continue
        complete = [name for name in baselines if by_seed.loc[by_seed[ours].notna(), name].notna().all()]
        best = by_seed[complete or baselines].mean().idxmax()
        difference = (by_seed[ours] - by_seed[best]).dropna()
        error = difference.std() / math.sqrt(len(difference)) if len(difference) else math.nan
        advantage = difference.mean()
        row = {"best": best, "runs": len(difference), "advantage": advantage, "error": error}
        rows.append(dict(zip(labels, values, strict=True)) | row | {"is_larger": bool(advantage > error)})
    return pd.DataFrame(rows, columns=[*labels, *ADVANTAGE_COLUMNS])


def _require_results(frame: pd.DataFrame) -> None:
    require_columns(frame, ["method", "seed", *SCORES], "the table", "attngeo tabular simulate")
    if not labels_of(frame):
        require_columns(frame, LABELS[:3], "the table", "attngeo tabular simulate")


def describe_advantage(advantages: pd.DataFrame) -> str:
    """The sentence that counts the settings with an advantage larger than its standard error."""
    larger = int(advantages["is_larger"].sum())
    return (
        f"The accuracy of ATN is above that of the best baseline by more than the standard error of the difference in "
        f"{larger} of {len(advantages)} settings."
    )
