"""`attngeo inspect`: what `attngeo score` would read, and why."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer

from attngeo.bounds import dump_json
from attngeo.checkpoints.access import HubAccess
from attngeo.studies.engine import StudyOptions

from .declare import with_options
from .messages import TRACEBACK, describe_error, say
from .models import SEVERAL_FAILED, Models, ModelsFile, list_all
from .options import FindingsFormat, Quiet, Verbose


@with_options
def inspect(
    models: Models = None,
    models_file: ModelsFile = None,
    format: FindingsFormat = "table",
    hub: HubAccess = HubAccess(),
    study: StudyOptions = StudyOptions(),
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Show what score would read of a model, what it leaves out, and why. Reads no weights.

    Begins with the cost: bytes that score would read, of how many, and for a model on the Hub the requests for them.
    Lists stacks and their sizes; then the modules that attend, by their names with # for a number, with their tensors
    and the rule that found them; then what is left out, with the reason. With -v, lists every single module.

    Of several models, and with --models, only the cost is shown: a line for each model, and the sum.

    Examples:
        attngeo inspect demo:minilm
        attngeo inspect mistralai/Mistral-7B-v0.1 --format json
        attngeo inspect --models models.txt --jobs 4
    """
    from attngeo.scores.survey import survey_models

    from .progress import Bar

    listed = list_all(models, models_file, hub, command="inspect")
    alone = len(listed) == 1 and models_file is None
    with Bar(listed[0] if alone else "inspect", quiet=quiet, verbose=verbose) as progress:
        outcomes = survey_models(listed, hub=hub, study=study, progress=progress)
    failures = [outcome for outcome in outcomes if outcome.failure is not None]
    if failures and (alone or os.environ.get(TRACEBACK)):
        assert failures[0].cause is not None
        raise failures[0].cause
    found = [outcome.result for outcome in outcomes if outcome.result is not None]
    _print(found, format, alone=alone, verbose=verbose)
    for outcome in failures:
        assert outcome.failure is not None
        say(describe_error(outcome.failure))
    if failures:
        raise typer.Exit(SEVERAL_FAILED)


def _print(found: list[dict[str, Any]], format: str, *, alone: bool, verbose: bool) -> None:
    names = [each.pop("names") for each in found]
    if format == "json":
        sys.stdout.write(dump_json(found[0] if alone else found, indent=2) + "\n")
        return
    from .render_inspect import print_costs, print_findings

    if alone:
        print_findings(found[0], names[0], verbose=verbose)
    elif found:
        print_costs(found)
