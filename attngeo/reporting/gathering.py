"""The results that a recipe asks for: each model's part is kept at once, so that an interrupted report goes on."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngeo.checkpoints.reference import is_path, local_path
from attngeo.embeddings.opening import CBOW
from attngeo.errors import AttnGeoError, CheckpointError, ModelNotFoundError, OutputError, first_line
from attngeo.progress import Progress
from attngeo.provenance import software
from attngeo.reporting.recipe import AnalogyResults, FileResults, RecipeFile, ScoreResults
from attngeo.tables.atomic import atomic_write
from attngeo.tables.read import read_results

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

PARTS = ".parts"
# What of a checkpoint lies beside a file of it.
CHECKPOINT = ("config.json", ".safetensors", ".bin")
# A fingerprint of all that a part depends on, and what makes it.
Part = tuple[str, Callable[[], "pd.DataFrame"]]
Report = Callable[[Progress], None]


@dataclass(frozen=True)
class Failure:
    """What could not be had: a model of some results, or a figure or table of a section; and why."""

    where: str
    what: str
    error: AttnGeoError

    def __str__(self) -> str:
        """One line that names it once."""
        return f"{self.where}: {self.what}: {str(self.error).removeprefix(f'{self.what}: ')}"


def failure(where: str, what: str, error: Exception) -> Failure:
    """A Failure of any error."""
    if not isinstance(error, AttnGeoError):
        log.info("%s: %s", where, what, exc_info=True)
        error = CheckpointError(f"unexpected {type(error).__name__}: {first_line(error)}")
    return Failure(where, what, error)


@dataclass
class Gathered:
    """Results by name: rows, and how each part of them was made. failures: what could not be had."""

    rows: dict[str, pd.DataFrame] = field(default_factory=dict)
    made: list[dict[str, Any]] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)


def gather(file: RecipeFile, folder: Path, *, offline: bool, report: Report) -> Gathered:
    """Run the recipe's commands, or take up what an unfinished report in `folder` has of them.

    A model that fails is left out and listed. Raises the first failure where nothing at all could be had.
    """
    import pandas as pd

    found = Gathered()
    for results in file.recipe.results:
        frames = []
        for what, prepare in _parts(results, file.path.parent, offline, report):
            try:
                fingerprint, make = prepare()
                frame = _kept(folder / PARTS / f"{results.name}-{fingerprint}.parquet", make)
            except OutputError:
                raise
            except Exception as error:  # also what nobody foresaw of one model must not cost all others
                found.failures.append(failure(results.name, what, error))
                continue
            frames.append(frame)
            about = {str(key): value for key, value in frame.attrs.items()}
            found.made.append({"results": results.name, "command": results.command, **about})
        if frames:
            found.rows[results.name] = pd.concat(frames, ignore_index=True)
    if found.failures and not found.rows:
        raise found.failures[0].error
    return found


def forget(folder: Path) -> None:
    """Remove the parts of a report that is finished."""
    shutil.rmtree(folder / PARTS, ignore_errors=True)


def _parts(
    results: ScoreResults | AnalogyResults | FileResults, base: Path, offline: bool, report: Report
) -> Iterator[tuple[str, Callable[[], Part]]]:
    """What each part is called, and what finds out all that it depends on and how it is made."""
    if isinstance(results, FileResults):
        yield results.path, partial(_file_part, results, base)
    elif isinstance(results, AnalogyResults):
        yield ", ".join(results.models), partial(_analogy_part, results, base, offline, report)
    else:
        for model in results.models:
            yield model, partial(_score_part, results, model, base, offline, report)


def _file_part(results: FileResults, base: Path) -> Part:
    path = base / local_path(results.path)
    return _fingerprint(results, _state(path)), partial(_read, path, results.path)


def _analogy_part(results: AnalogyResults, base: Path, offline: bool, report: Report) -> Part:
    models, questions = [located(model, base) for model in results.models], results.options.questions
    if questions != "google":
        questions = str(base / local_path(questions))
    state = map(_state, (*models, questions))
    return _fingerprint(results, *state), partial(_asked, results, models, questions, offline, report)


def _score_part(results: ScoreResults, model: str, base: Path, offline: bool, report: Report) -> Part:
    place = located(model, base)
    one = results.model_copy(update={"models": [model]})
    return _fingerprint(one, _state(place)), partial(_scored, results, place, model, offline, report)


def _kept(path: Path, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
    """The part in a file, or else made and kept there."""
    import pandas as pd

    if path.is_file():
        try:
            kept = pd.read_parquet(path)
            log.info("%s: taken up from the report that was interrupted", path.stem)
            return kept
        except (OSError, ValueError):
            pass  # made anew
    frame = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{path.parent} cannot be written ({error.strerror or error})") from None
    with atomic_write(path) as file:
        frame.to_parquet(file, index=False)
    return frame


def _scored(results: ScoreResults, place: str, model: str, offline: bool, report: Report) -> pd.DataFrame:
    from attngeo.scores.scoring import score

    frame = score(place, per_head=True, offline=offline, progress=report, **results.options.model_dump())
    return _named(frame, {place: model})


def _asked(results: AnalogyResults, models: list[str], questions: str, offline: bool, report: Report) -> pd.DataFrame:
    from attngeo.analogies.analogy import analogy

    options = results.options.model_dump() | {"questions": questions}
    frame = analogy(models, offline=offline, progress=report, **options).scores
    return _named(frame, dict(zip(models, results.models, strict=True)))


def _read(path: Path, shown: str) -> pd.DataFrame:
    frame = read_results(path, (), "attngeo … -o FILE")
    frame.attrs = {"model": shown, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    return frame


def _named(frame: pd.DataFrame, names: dict[str, str]) -> pd.DataFrame:
    """Models by the recipe's names for them, not by where they lie on this machine."""
    frame["model"] = frame["model"].replace(names)
    model = frame.attrs.get("model")
    frame.attrs = {**frame.attrs, "model": names.get(str(model), model)}
    return frame


def located(model: str, base: Path) -> str:
    """A path relative to the recipe in full; any other reference as it is. Raises ModelNotFoundError."""
    if model.startswith(CBOW):
        return CBOW + located(model.removeprefix(CBOW), base)
    path = base / local_path(model)
    if is_path(model) or path.exists():
        return str(path.absolute())
    if local_path(model).exists():
        raise ModelNotFoundError(
            f"{model}: lies in the working directory and not beside the recipe, which its paths are relative to; "
            "move it there, or run the report elsewhere to have the Hub's"
        )
    return model


def _state(place: str | Path) -> str:
    """What changes when a file or a folder does, or what lies beside a checkpoint; "" for a reference to elsewhere."""
    path = Path(str(place).removeprefix(CBOW))
    path = next((each for each in (path, *path.parents) if each.is_file()), path)  # a member is as new as its archive
    if path.is_dir():
        found = [Path(at, name) for at, _, names in os.walk(path, followlinks=True) for name in names]
    elif path.is_file():
        found = [path, *(each for each in path.parent.iterdir() if each.name.endswith(CHECKPOINT))]
    else:
        return ""
    try:
        return " ".join(f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in sorted(found))
    except OSError:
        return ""


def _fingerprint(results: Any, *states: str) -> str:
    content = json.dumps([results.model_dump(), states, software()], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]
