"""What answers the questions of a recipe that repeat experiments and statements of the papers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator

from attngeo.choices import one_of
from attngeo.papers.runs import perform_runs
from attngeo.papers.statements import TheoryOptions, check_statements, select_statements
from attngeo.papers.wibisono2023.options import AutoMpgOptions, SimulateOptions, require_cars
from attngeo.papers.wibisono2025.options import SETTINGS, RunOptions, require_data
from attngeo.reporting.answers import ResultsAnswer, Workplace
from attngeo.schemas import as_value_error
from attngeo.studies.run import require_all


def _check_statements(names: Sequence[str]) -> Sequence[str]:
    as_value_error(select_statements, names)
    return names


Statements = Annotated[Sequence[str], AfterValidator(_check_statements)]
Experiment = Annotated[str, AfterValidator(lambda name: as_value_error(one_of, "experiment", name, SETTINGS))]


class EfaTable(RunOptions):
    """The options of an experiment. A report saves no models."""

    save: None = None


def check_all(options: TheoryOptions, workplace: Workplace, *, statements: Statements = ()) -> ResultsAnswer:
    """Whether statements of the papers hold. statements: their names, as in the command; by default all."""
    return ResultsAnswer.of(check_statements(statements, options=options, progress=workplace.session.progress))


def simulate(options: SimulateOptions, workplace: Workplace) -> ResultsAnswer:
    """Scores of methods on simulated tables, whose test rows come from a shifted distribution."""
    from attngeo.papers.wibisono2023.tables import build_simulation_frame, plan_simulation

    return ResultsAnswer.of(build_simulation_frame(options, _complete(plan_simulation(options), workplace)))


def compare_on_cars(options: AutoMpgOptions, workplace: Workplace) -> ResultsAnswer:
    """Scores of methods on the auto-mpg data."""
    if options.data is not None:
        data_file = workplace.paths.locate(options.data)
        require_cars(data_file)
        options = options.replace(data=data_file)

    from attngeo.papers.wibisono2023.data import load_auto_mpg
    from attngeo.papers.wibisono2023.tables import build_auto_mpg_frame, plan_auto_mpg

    data = load_auto_mpg(options.data, workplace.session.progress)
    return ResultsAnswer.of(build_auto_mpg_frame(data, _complete(plan_auto_mpg(options, data), workplace)))


def run_experiment(options: RunOptions, workplace: Workplace, *, experiment: Experiment) -> ResultsAnswer:
    """Errors of models in an experiment of exponential family attention, beside baselines."""
    chosen = RunOptions(**options.given)
    if chosen.data is not None:
        data_files = workplace.paths.locate(chosen.data)
        require_data(data_files)
        chosen = chosen.replace(data=data_files)

    from attngeo.papers.wibisono2025.datasets import EXPERIMENTS, load_dataset
    from attngeo.papers.wibisono2025.experiments import build_frame, plan_runs

    runs = plan_runs(experiment, chosen)
    # If the data are missing, that is one error, not one of each run.
    load_dataset(EXPERIMENTS[experiment].dataset, chosen.data, workplace.session.progress)
    return ResultsAnswer.of(build_frame(_complete(runs, workplace), chosen))


def _complete(runs: Sequence[Any], workplace: Workplace) -> list[Any]:
    """The outcomes of all runs of an experiment. Raises the error of the first one that fails, at the end."""
    return require_all(perform_runs(runs, workplace.session))
