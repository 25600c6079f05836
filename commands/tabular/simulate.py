"""`attngeo tabular simulate`: Table 1, the methods on simulated data sets."""

from __future__ import annotations

from attngeo.scores.options import ResultOptions
from attngeo.studies.engine import StudyOptions
from attngeo.tabular.experiment_options import SimulateOptions

from ..declare import take_options
from ..options import Output, OutputFormat, Quiet, RowsFormat, Verbose
from ..outputs import check_outputs
from ..study import deliver, run_all


@take_options(SimulateOptions)
@take_options(ResultOptions, "results")
@take_options(StudyOptions, "study")
def simulate(
    options: SimulateOptions,
    output: Output = None,
    format: RowsFormat = OutputFormat.table,
    results: ResultOptions = ResultOptions(),
    study: StudyOptions = StudyOptions(),
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Compare methods on simulated tables whose training and test rows have different correlations.

    This is Table 1 of Wibisono and Wang 2023 (arXiv 2307.04057). All of it takes about 14 hours on one core, most of
    them for gb. Scores are kept: the same command resumes an interrupted study.

    Examples:
        attngeo tabular simulate --quick
        attngeo tabular simulate --settings 5,0,0.9 --methods lr,rf --datasets 5
        attngeo tabular simulate --convention published -o table1.csv
    """
    check_outputs(output or [])

    from attngeo.tabular.experiments import build_simulation_frame, plan_simulation, run_methods

    from .render import print_experiment

    outcomes = run_all("simulate", plan_simulation(options), run_methods, results, study, quiet=quiet, verbose=verbose)
    deliver(build_simulation_frame(options, outcomes), outcomes, output or [], format, print_experiment)
