"""The results that a recipe requests. Each part is kept as soon as it is made, so that a report can be resumed."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngeo.errors import AttnGeoError, CheckpointError, InterruptedTrainingError, OutputError, first_line
from attngeo.reporting.parts import plan_parts
from attngeo.reporting.recipe import RecipeFile
from attngeo.reporting.workplace import Workplace
from attngeo.tables.atomic import atomic_write
from attngeo.tables.parquet import read_parquet

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

PARTS = ".parts"


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
        if not isinstance(error, AttnGeoError):
            log.info("%s: %s", where, what, exc_info=True)
            error = CheckpointError(f"unexpected {type(error).__name__}: {first_line(error)}")
        return cls(where, what, error)

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
    """Run the commands of a recipe, or take the parts that an unfinished report in the same folder has kept.

    A model that fails is left out and listed. Raises the first failure if every part fails.
    """
    import pandas as pd

    collected = CollectedResults()
    for i, request in enumerate(file.recipe.results):
        frames = []
        for j, (name, prepare) in enumerate(plan_parts(request, place)):
            try:
                part = prepare()
                path = place.folder / PARTS / f"{request.name}-{part.fingerprint}.parquet"
                frame = _load_or_make(path, part.make)
            except (OutputError, InterruptedTrainingError):
                raise
            except Exception as error:  # an unexpected one of a single model, too, must not stop the others
                line = file.line_of(("results", i, "models", j))
                collected.failures.append(ReportFailure.of(f"{file.path.name}:{line}: {request.name}", name, error))
                continue
            frames.append(frame)
            about = {str(key): value for key, value in frame.attrs.items()}
            collected.made.append({"results": request.name, "command": request.command, **about})
        if frames:
            collected.rows[request.name] = pd.concat(frames, ignore_index=True)
    if collected.failures and not collected.rows:
        first = collected.failures[0]
        raise type(first.error)(str(first)) from first.error
    return collected


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
