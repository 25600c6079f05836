"""The results that a recipe requests. Each part is kept as soon as it is made, so that a report can be resumed."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngeo.errors import AttnGeoError, InterruptedTrainingError, OutputError, UnexpectedError
from attngeo.progress import ProgressCallback, ignore_progress
from attngeo.reporting.parts import plan_parts
from attngeo.reporting.recipe import RecipeFile
from attngeo.reporting.schema import AutoMpgRequest, EfaRequest, PretrainRequest, Request, SimulateRequest
from attngeo.reporting.workplace import Workplace
from attngeo.studies.engine import RunOutcome, StudyOptions, run_study
from attngeo.tables.files import atomic_write
from attngeo.tables.read import read_parquet

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

PARTS = ".parts"
# Requests that consist of runs, for which the processes are; those of training save their checkpoints at Ctrl-C.
STUDIES = (PretrainRequest, SimulateRequest, AutoMpgRequest, EfaRequest)


@dataclass(frozen=True)
class ReportFailure:
    """What is missing from a report and why: a model of some results, or a figure or table of a section.

    where: the recipe and the line, and for a model the name of the results.
    """

    where: str
    what: str
    error: AttnGeoError

    @classmethod
    def of(cls, where: str, what: str, error: Exception) -> ReportFailure:
        """The failure of any error; one that is not attngeo's own is logged with its traceback."""
        known = error if isinstance(error, AttnGeoError) else UnexpectedError.of(what, error)
        if isinstance(known, UnexpectedError):
            log.info("%s: %s", where, what, exc_info=error.__cause__ or error)
        return cls(where, what, known)

    def __str__(self) -> str:
        """One line, which names what is missing once."""
        return f"{self.where}: {self.what}: {str(self.error).removeprefix(f'{self.what}: ')}"


@dataclass(frozen=True)
class _RecipePart:
    """A part of some results: its place and number in the recipe, and the name that a person knows it by."""

    request: Request
    place: int
    number: int
    name: str


@dataclass
class CollectedResults:
    """Results by name. rows: of each. made: how each part of them was made. failures: what is missing."""

    rows: dict[str, pd.DataFrame] = field(default_factory=dict)
    made: list[dict[str, Any]] = field(default_factory=list)
    failures: list[ReportFailure] = field(default_factory=list)


def collect_results(file: RecipeFile, place: Workplace) -> CollectedResults:
    """Run the commands of a recipe, or take the parts that an unfinished report in the same folder has kept.

    A model that fails is left out and listed. Raises the first failure if every part fails, and with `fail_fast` if one
    does.
    """
    import pandas as pd

    collected, frames = CollectedResults(), dict[str, list[pd.DataFrame]]()
    for part, outcome in _make_all(_list_parts(file, place), place):
        request = part.request
        if outcome.failure is not None:
            line = file.line_of(("results", part.place, "models", part.number))
            where = f"{file.path.name}:{line}: {request.name}"
            collected.failures.append(ReportFailure.of(where, part.name, outcome.failure))
            continue
        assert outcome.result is not None
        frames.setdefault(request.name, []).append(outcome.result)
        about = {str(key): value for key, value in outcome.result.attrs.items()}
        collected.made.append({"results": request.name, "command": request.command, **about})
    collected.rows = {name: pd.concat(found, ignore_index=True) for name, found in frames.items()}
    if collected.failures and (not collected.rows or place.study.fail_fast):
        first = collected.failures[0]
        raise type(first.error)(str(first)) from first.error
    return collected


def _list_parts(file: RecipeFile, place: Workplace) -> list[_RecipePart]:
    return [
        _RecipePart(request, i, j, name)
        for i, request in enumerate(file.recipe.results)
        for j, (name, _) in enumerate(plan_parts(request, place))
    ]


def _make_all(parts: list[_RecipePart], place: Workplace) -> list[tuple[_RecipePart, RunOutcome[pd.DataFrame]]]:
    """Each part that was tried, and how it ended. Raises OutputError and InterruptedTrainingError at once."""

    def note(outcome: RunOutcome[pd.DataFrame]) -> None:
        if isinstance(outcome.failure, OutputError | InterruptedTrainingError):
            raise outcome.failure

    # Parts in other processes have no processes of their own: those would be too many, and wait for each other.
    study, here = place.study, StudyOptions(fail_fast=place.study.fail_fast)
    studies = [part for part in parts if isinstance(part.request, STUDIES)]
    others = [part for part in parts if part not in studies]
    groups = [(others, study, here), (studies, here, study)] if study.elsewhere else [(parts, study, study)]
    found = []
    for group, options, inside in groups:
        make = partial(make_part, place=replace(place, progress=ignore_progress, study=inside))
        outcomes = run_study(
            make, group, names=[part.name for part in group], options=options, progress=place.progress, on_outcome=note
        )
        found += [(group[outcome.number], outcome) for outcome in outcomes]
        if study.fail_fast and any(outcome.failure is not None for outcome in outcomes):
            break
    return sorted(found, key=lambda pair: parts.index(pair[0]))


def make_part(part: _RecipePart, progress: ProgressCallback, *, place: Workplace) -> pd.DataFrame:
    """One run of the study: the rows of one part, which are kept in a file until the report is finished."""
    plan = list(plan_parts(part.request, replace(place, progress=progress)))
    prepared = plan[part.number][1]()
    path = place.folder / PARTS / f"{part.request.name}-{prepared.fingerprint}.parquet"
    return _load_or_make(path, prepared.make)


def remove_parts(folder: Path) -> None:
    """Remove the kept parts of a report that is finished."""
    shutil.rmtree(folder / PARTS, ignore_errors=True)


def _load_or_make(path: Path, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
    """The part that the file keeps; if there is none, the part is made and kept."""
    if path.is_file():
        try:
            kept = read_parquet(path)
            log.info("%s: kept from the report that was interrupted", path.stem)
            return kept
        except (OSError, ValueError):
            pass  # a broken file: the part is made again
    frame = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{path.parent} cannot be written ({error.strerror or error})") from None
    with atomic_write(path) as file:
        frame.to_parquet(file, index=False)
    return frame
