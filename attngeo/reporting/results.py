"""The results that a recipe requests, one request after the other. Each is kept until the report is finished."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngeo.errors import AttnGeoError, InterruptedTrainingError, OutputError, UnexpectedError
from attngeo.provenance import digest_code, software
from attngeo.reporting.answers import ResultsAnswer, Workplace, describe_inputs
from attngeo.reporting.recipe import RecipeFile, Request
from attngeo.tables.files import atomic_write
from attngeo.tables.read import read_parquet

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

PARTS = ".parts"


@dataclass(frozen=True)
class ReportFailure:
    """What is missing from a report and why: a model of some results, or a figure or table of a section.

    where: the recipe, and for a model the name of the results.
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


@dataclass
class CollectedResults:
    """Results by name. rows: of each. made: how each part of them was made. failures: what is missing."""

    rows: dict[str, pd.DataFrame] = field(default_factory=dict)
    made: list[dict[str, Any]] = field(default_factory=list)
    failures: list[ReportFailure] = field(default_factory=list)


def collect_results(file: RecipeFile, place: Workplace) -> CollectedResults:
    """Answer the questions of a recipe, or take the answers that an unfinished report in the same folder has kept.

    A model that fails is left out and listed. Raises the first failure if everything fails, and with `fail_fast` if
    something does; and OutputError and InterruptedTrainingError at once.
    """
    collected = CollectedResults()
    for request in file.recipe.results:
        where = f'{file.path.name}: results "{request.name}"'
        try:
            answer = _load_or_ask(request, place)
        except (OutputError, InterruptedTrainingError):
            raise
        except Exception as error:
            what = ", ".join(request.model_names) or request.command
            collected.failures.append(ReportFailure.of(where, what, error))
        else:
            collected.failures += [ReportFailure.of(where, what, error) for what, error in answer.failures]
            if len(answer.rows):
                collected.rows[request.name] = answer.rows
            about = {"results": request.name, "command": request.command}
            collected.made += [about | made for made in answer.made]
        if collected.failures and place.study.fail_fast:
            break
    if collected.failures and (not collected.rows or place.study.fail_fast):
        first = collected.failures[0]
        raise type(first.error)(str(first)) from first.error
    return collected


def _load_or_ask(request: Request, place: Workplace) -> ResultsAnswer:
    """The answer that is kept; if there is none, the question is asked, and an answer that lacks nothing is kept."""
    content = request.model_dump(exclude_unset=True)
    inputs = describe_inputs(content, place.base)
    depends_on = json.dumps([content, inputs, digest_code(), software()], sort_keys=True, default=str)
    path = place.folder / PARTS / f"{request.name}-{hashlib.sha256(depends_on.encode()).hexdigest()[:16]}.parquet"
    if path.is_file():
        try:
            rows = read_parquet(path)
            log.info("%s: kept from the report that was interrupted", path.stem)
            return ResultsAnswer(rows, rows.attrs.pop("made"))
        except (OSError, ValueError, KeyError):
            pass  # a broken file: the question is asked again
    answer = request.question.find_function()(
        request.options, replace(place, name=request.name, inputs=inputs), **request.subjects
    )
    if not answer.failures:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"{path.parent} cannot be written ({error.strerror or error})") from None
        kept = answer.rows.copy(deep=False)
        kept.attrs = {"made": answer.made}
        with atomic_write(path) as partial_path:
            kept.to_parquet(partial_path, index=False)
    return answer


def remove_parts(folder: Path) -> None:
    """Remove the kept answers of a report that is finished."""
    shutil.rmtree(folder / PARTS, ignore_errors=True)
