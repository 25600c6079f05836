"""`attngeo score`: symmetry and directionality of every layer and head."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attngeo.checkpoints.access import HubAccess
from attngeo.errors import AttnGeoError
from attngeo.options import RESULTS
from attngeo.scores.options import ResultOptions, ScoreOptions
from attngeo.studies.engine import StudyOptions

from .declare import with_options
from .messages import describe_error, say
from .models import SEVERAL_FAILED, Models, ModelsFile, list_all
from .options import Output, OutputFormat, Quiet, RowsFormat, Verbose
from .outputs import check_outputs, print_rows
from .tally import StudyTally, raise_if_traced

if TYPE_CHECKING:
    import pandas as pd

    from attngeo.scores.conditions import Condition
    from attngeo.studies.engine import RunOutcome

    from .progress import Bar

CHECK_FAILED = 1


@with_options
def score(
    options: ScoreOptions,
    models: Models = None,
    models_file: ModelsFile = None,
    output: Output = None,
    format: RowsFormat = OutputFormat.table,
    plot: Annotated[
        list[Path] | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Draw the map of layers × heads to a .html .json .png .svg or .pdf file; may be repeated",
            rich_help_panel=RESULTS,
        ),
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            metavar="CONDITION",
            help="Exit with 1 if this condition is true, for example 'symmetry.median < 0.2'; may be repeated",
            rich_help_panel=RESULTS,
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Run the model with transformers; exit with 1 if it multiplies other weights than those that are read",
            rich_help_panel=RESULTS,
        ),
    ] = False,
    hub: HubAccess = HubAccess(),
    results: ResultOptions = ResultOptions(),
    study: StudyOptions = StudyOptions(),
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Score how symmetric and how directional the query-key matrix of every layer is.

    Symmetry is 1 for a symmetric matrix, about 0 by chance and -1 for a skew-symmetric one. Directionality is negative
    if a few columns dominate, positive if a few rows do. The paper that defines them is Saponati et al. 2025 (arXiv
    2502.10927).

    Examples:
        attngeo score demo:minilm
        attngeo score google-bert/bert-base-uncased openai-community/gpt2 -o s.csv
        attngeo score ./checkpoint --plot heads.html --fail-if 'symmetry.median < 0.2'
        attngeo score ./checkpoint --verify
        attngeo score --models models.txt --jobs 4 -o study.parquet
        attngeo score 'EleutherAI/pythia-70m@step*' -o steps.parquet
    """
    outputs, figures = output or [], plot or []
    conditions = _check(outputs, figures, fail_if or [], options)
    listed = list_all(models, models_file, hub, command="score")
    run = _Run(listed, hub, results, study, quiet=quiet, verbose=verbose)
    scored = run.score(options.replace(per_head=True), to_people=format is OutputFormat.table)
    verified = run.verify(scored) if verify else []
    failed = False
    if scored:
        _deliver(scored, outputs, format, per_head=options.per_head, quiet=quiet, summary_only=models_file is not None)
        _draw(scored, figures)
        failed = _report_failed_checks(scored, conditions)
    disagrees = _report_verified(verified, quiet=quiet)
    for failure in run.failures:
        say(describe_error(failure))
    if run.failures:
        raise typer.Exit(run.failures[0].exit_code if len(listed) == 1 else SEVERAL_FAILED)
    if failed or disagrees:
        raise typer.Exit(CHECK_FAILED)


class _Run:
    """The study of a command. failures: the errors of models that were not scored, or not verified."""

    def __init__(
        self,
        models: list[str],
        hub: HubAccess,
        results: ResultOptions,
        study: StudyOptions,
        *,
        quiet: bool,
        verbose: bool,
    ) -> None:
        self._models, self._hub, self._results, self._study = models, hub, results, study
        self._quiet, self._verbose = quiet, verbose
        self.failures: list[AttnGeoError] = []
        self._scored: list[str] = []

    def score(self, options: ScoreOptions, *, to_people: bool) -> list[pd.DataFrame]:
        """The rows of each model, heads included. Reports on stderr what the rows do not contain."""
        from attngeo.scores.study import score_models

        alone = len(self._models) == 1
        tally = StudyTally(len(self._models), "models")

        def note(outcome: RunOutcome[pd.DataFrame]) -> None:
            tally.count(outcome, alone=alone)
            if outcome.result is not None and not self._quiet:
                _report_gaps(outcome.name, outcome.result, to_people=to_people)
            for text in outcome.notes if alone and not self._quiet else ():
                say(f"{outcome.name}: {text}; --fresh computes them again")

        with self._bar(self._models[0] if alone else "score") as progress, tally:
            outcomes = score_models(
                self._models, options, hub=self._hub, results=self._results, study=self._study, progress=progress,
                on_outcome=note,
            )  # fmt: skip
        if not alone and not self._quiet:
            tally.say_kept()
        self._scored = [outcome.name for outcome in outcomes if outcome.result is not None]
        return self._take(outcomes)

    def verify(self, scored: list[pd.DataFrame]) -> list[pd.DataFrame]:
        """The verification of each model that was scored, whose tables these are.

        Notes in the provenance of its scores how many sites have each verdict. A model that cannot be verified is added
        to the failures: its scores are delivered all the same.
        """
        from attngeo.verification.study import verify_models

        def note(outcome: RunOutcome[pd.DataFrame]) -> None:
            raise_if_traced(outcome)
            if outcome.result is not None:
                counts = outcome.result["verdict"].value_counts()
                scored[outcome.number].attrs["verified"] = {verdict: int(n) for verdict, n in counts.items()}

        names = self._scored  # as they were given: tables name them as UTF-8
        with self._bar(names[0] if len(names) == 1 else "verify") as progress:
            outcomes = verify_models(names, hub=self._hub, study=self._study, progress=progress, on_outcome=note)
        return self._take(outcomes)

    def _bar(self, name: str) -> Bar:
        from .progress import Bar

        return Bar(name, quiet=self._quiet, verbose=self._verbose)

    def _take(self, outcomes: list[RunOutcome[pd.DataFrame]]) -> list[pd.DataFrame]:
        """The results; failures are kept for the end."""
        self.failures += [each.failure for each in outcomes if each.failure is not None]
        return [each.result for each in outcomes if each.result is not None]


def _check(outputs: list[Path], figures: list[Path], conditions: list[str], options: ScoreOptions) -> list[Condition]:
    """Refuse what cannot work, before anything is read. Returns the parsed conditions."""
    check_outputs(outputs, figures)

    from attngeo.scores.conditions import Condition

    parsed = [Condition(condition) for condition in conditions]
    if "device" in options.model_fields_set:  # a device is looked for by torch, which takes long to import
        from attngeo.devices import pick_device

        pick_device(options.device)
    return parsed


def _report_gaps(model: str, frame: pd.DataFrame, *, to_people: bool) -> None:
    """Report on stderr what the rows do not contain."""
    from attngeo.scores.spec import score_names

    for pattern, reason in frame.attrs["skipped"].items():
        say(f"{model}: left out: {pattern}: {reason}")
    if not to_people and (empty := int(frame[score_names()[0]].isna().sum())):
        say(f"{model}: {empty} of {len(frame)} layers and heads have no scores; the column note says why")


def _report_verified(frames: list[pd.DataFrame], *, quiet: bool) -> bool:
    """Report on stderr which sites agree with the running model. Returns whether some do not."""
    if not frames:
        return False

    from .render_verify import list_complaints, list_notes

    complaints = [line for frame in frames for line in list_complaints(frame)]
    notes = [] if quiet else [line for frame in frames for line in list_notes(frame)]
    for line in (*complaints, *notes):
        say(line)
    return bool(complaints)


def _draw(frames: list[pd.DataFrame], paths: list[Path]) -> None:
    if not paths:
        return
    from attngeo.figures.save import save_figure
    from attngeo.reporting.plots import plot

    figure = plot("heatmap", frames)
    for path in paths:
        save_figure(figure, path)


def _report_failed_checks(frames: list[pd.DataFrame], conditions: list[Condition]) -> bool:
    """Report on stderr each model that fails a condition. Returns whether there is one."""
    from attngeo.scores.summary import summarise

    failed = [
        outcome
        for condition in conditions
        for frame in frames
        for outcome in condition.outcomes(summarise(frame))
        if outcome.failed
    ]
    for each in failed:
        say(each.complaint)
    return bool(failed)


def _deliver(
    frames: list[pd.DataFrame],
    outputs: list[Path],
    format: OutputFormat,
    *,
    per_head: bool,
    quiet: bool,
    summary_only: bool,
) -> None:
    """Write the files, then print, so that a closed pipe loses nothing."""
    import pandas as pd

    from attngeo.tables.write import write_table

    rows = pd.concat(frames, ignore_index=True)
    if not per_head:
        rows = rows[rows["head"].isna()].reset_index(drop=True)
    models = ", ".join(frame.attrs["model"] for frame in frames)
    rows.attrs = frames[0].attrs | {"model": models, "per_head": per_head}
    if verified := {frame.attrs["model"]: frame.attrs["verified"] for frame in frames if "verified" in frame.attrs}:
        rows.attrs["verified"] = verified
    for path in outputs:
        write_table(rows, path)
    if format is OutputFormat.table and summary_only:
        _print_study(frames)
    elif format is OutputFormat.table:
        _print_tables(frames, per_head=per_head, quiet=quiet)
    else:
        print_rows(rows, format)


def _print_tables(frames: list[pd.DataFrame], *, per_head: bool, quiet: bool) -> None:
    from .render_score import print_scores, tabulate_summary
    from .tables import Terminal

    for frame in frames:
        print_scores(frame, per_head=per_head, quiet=quiet)
    if len(frames) > 1:
        Terminal().print(tabulate_summary(frames, name_models=True))


def _print_study(frames: list[pd.DataFrame]) -> None:
    from .render_score import tabulate_study
    from .tables import Terminal

    Terminal().print(tabulate_study(frames))
