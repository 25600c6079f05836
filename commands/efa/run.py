"""`attngeo efa run`: an experiment of the paper, beside its numbers and trivial baselines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from attngeo.efa.experiment_options import RunOptions
from attngeo.scores.options import ResultOptions
from attngeo.studies.engine import StudyOptions

from ..declare import with_options
from ..options import Output, OutputFormat, Quiet, RowsFormat, Verbose
from ..outputs import check_outputs, hold_folders
from ..study import deliver, run_all

ExperimentName = Literal["synthetic", "movielens-sequence", "movielens-ratings", "instacart", "temperature", "recovery"]


@with_options
def run(
    options: RunOptions,
    experiment: Annotated[
        ExperimentName, typer.Argument(metavar="EXPERIMENT", help="Which experiment", show_default=False)
    ],
    output: Output = None,
    format: RowsFormat = OutputFormat.table,
    results: ResultOptions = ResultOptions(),
    study: StudyOptions = StudyOptions(),
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Repeat an experiment of the paper: synthetic, movielens-sequence, movielens-ratings, instacart or temperature.

    Numbers are kept: the same command resumes an interrupted study, and an interrupted training. Lower is better,
    except for means of predictions. The baselines see nothing that a model does not see, but for bayes, the truth of
    simulated data. recovery is not of the paper: it fits models to more and more sequences that are drawn from a known
    one.

    Examples:
        attngeo efa run synthetic
        attngeo efa run temperature --model fm --neighbours 5 --data folder
        attngeo efa run movielens-ratings --published --seeds 3 --jobs 2 -o r.csv
    """
    check_outputs(output or [], inputs=[options.data] if options.data else [])
    with hold_folders(None, None if options.save is None else Path(options.save).expanduser()):
        from attngeo.efa.datasets import EXPERIMENTS, load_dataset
        from attngeo.efa.experiments import build_frame, plan_runs, run_planned

        from ..progress import Bar
        from .render import print_experiment

        runs = plan_runs(experiment, options)
        with Bar("data", quiet=quiet, verbose=verbose) as progress:
            load_dataset(EXPERIMENTS[experiment].dataset, options.data, progress)
        outcomes = run_all("efa", runs, run_planned, results, study, quiet=quiet, verbose=verbose)
    deliver(build_frame(outcomes, options), outcomes, output or [], format, print_experiment)
