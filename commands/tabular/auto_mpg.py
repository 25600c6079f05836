"""`attngeo tabular auto-mpg`: Table 2, the methods on the auto-mpg data."""

from __future__ import annotations

from attngeo.scores.options import ResultOptions
from attngeo.studies.engine import StudyOptions
from attngeo.tabular.experiment_options import WHY_NOT_INSTALLED, AutoMpgOptions

from ..declare import take_options
from ..messages import say
from ..options import Output, OutputFormat, Quiet, RowsFormat, Verbose
from ..outputs import check_outputs
from ..study import deliver, run_all


@take_options(AutoMpgOptions)
@take_options(ResultOptions, "results")
@take_options(StudyOptions, "study")
def auto_mpg(
    options: AutoMpgOptions,
    output: Output = None,
    format: RowsFormat = OutputFormat.table,
    results: ResultOptions = ResultOptions(),
    study: StudyOptions = StudyOptions(),
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Compare methods on the auto-mpg data: American cars train, others test.

    This is Table 2 of Wibisono and Wang 2023 (arXiv 2307.04057), with several seeds: 140 cars test, so that one car
    changes an accuracy by 0.007. The response is one of three classes of consumption. Scores are kept: the same command
    resumes an interrupted study.

    Examples:
        attngeo tabular auto-mpg
        attngeo tabular auto-mpg --data auto-mpg.csv --methods lr,atn -o table2.csv
    """
    check_outputs(output or [], inputs=[options.data] if options.data else [])

    from attngeo.tabular.auto_mpg import load_auto_mpg
    from attngeo.tabular.experiments import build_auto_mpg_frame, plan_auto_mpg, run_methods

    from ..progress import Bar
    from .render import print_experiment

    with Bar("auto-mpg", quiet=quiet, verbose=verbose) as progress:
        data = load_auto_mpg(options.data, progress)
    if not data.is_of_paper and not quiet:
        say(f"{options.data}: other numbers than those of UCI, so that the paper's scores are not shown")
    if options.left_out and not quiet:
        say(f"left out: {', '.join(options.left_out)}: they require pytorch_tabular; {WHY_NOT_INSTALLED}")
    outcomes = run_all(
        "auto-mpg", plan_auto_mpg(options, data), run_methods, results, study, quiet=quiet, verbose=verbose
    )
    deliver(build_auto_mpg_frame(options, data, outcomes), outcomes, output or [], format, print_experiment)
