"""The results that a recipe requests. Each part is kept as soon as it is made, so that a report can be resumed."""

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

from attngeo.analogies.options import GOOGLE
from attngeo.checkpoints.reference import is_path, local_path
from attngeo.embeddings.opening import CBOW
from attngeo.errors import AttnGeoError, CheckpointError, ModelNotFoundError, OutputError, first_line
from attngeo.progress import ProgressCallback
from attngeo.provenance import software
from attngeo.reporting.recipe import RecipeFile
from attngeo.reporting.schema import AnalogyRequest, FileRequest, Request, ScoreRequest
from attngeo.tables.atomic import atomic_write
from attngeo.tables.read import read_results

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

PARTS = ".parts"
# Ends of the names of files that belong to a checkpoint's file beside it.
CHECKPOINT = ("config.json", ".safetensors", ".bin")


@dataclass(frozen=True)
class ReportFailure:
    """What is missing from a report and why: a model of some results, or a figure or table of a section."""

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


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """Where results are made. base: the recipe's folder, to which paths are relative. folder: the report's."""

    base: Path
    folder: Path
    offline: bool
    progress: ProgressCallback


@dataclass(frozen=True)
class ResultsPart:
    """One part of some results. fingerprint: of all that it depends on. make: computes its rows."""

    fingerprint: str
    make: Callable[[], pd.DataFrame]


def collect_results(file: RecipeFile, place: Workplace) -> CollectedResults:
    """Run the commands of a recipe, or take the parts that an unfinished report in the same folder has kept.

    A model that fails is left out and listed. Raises the first failure if every part fails.
    """
    import pandas as pd

    collected = CollectedResults()
    for request in file.recipe.results:
        frames = []
        for name, prepare in _plan_parts(request, place):
            try:
                part = prepare()
                path = place.folder / PARTS / f"{request.name}-{part.fingerprint}.parquet"
                frame = _load_or_make(path, part.make)
            except OutputError:
                raise
            except Exception as error:  # an unexpected one of a single model, too, must not stop the others
                collected.failures.append(ReportFailure.of(request.name, name, error))
                continue
            frames.append(frame)
            about = {str(key): value for key, value in frame.attrs.items()}
            collected.made.append({"results": request.name, "command": request.command, **about})
        if frames:
            collected.rows[request.name] = pd.concat(frames, ignore_index=True)
    if collected.failures and not collected.rows:
        raise collected.failures[0].error
    return collected


def remove_parts(folder: Path) -> None:
    """Remove the kept parts of a report that is finished."""
    shutil.rmtree(folder / PARTS, ignore_errors=True)


def _plan_parts(request: Request, place: Workplace) -> Iterator[tuple[str, Callable[[], ResultsPart]]]:
    """The name of each part of some results, and the function that prepares it; preparing may fail."""
    match request:
        case FileRequest():
            yield request.path, partial(_prepare_file, request, place)
        case AnalogyRequest():
            yield ", ".join(request.models), partial(_prepare_analogies, request, place)
        case ScoreRequest():
            for model in request.models:
                yield model, partial(_prepare_scores, request, model, place)


def _prepare_file(request: FileRequest, place: Workplace) -> ResultsPart:
    path = place.base / local_path(request.path)

    def make() -> pd.DataFrame:
        frame = read_results(path, (), "attngeo … -o FILE")
        frame.attrs = {"model": request.path, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        return frame

    return ResultsPart(_fingerprint(request, describe_files(path)), make)


def _prepare_scores(request: ScoreRequest, model: str, place: Workplace) -> ResultsPart:
    reference = resolve_reference(model, place.base)

    def make() -> pd.DataFrame:
        from attngeo.scores import scoring

        options = {"per_head": True} | request.options
        frame = scoring.score(reference, offline=place.offline, progress=place.progress, **options)
        return _rename_models(frame, {reference: model})

    alone = request.model_copy(update={"models": [model]})
    return ResultsPart(_fingerprint(alone, describe_files(reference)), make)


def _prepare_analogies(request: AnalogyRequest, place: Workplace) -> ResultsPart:
    references = [resolve_reference(model, place.base) for model in request.models]
    options = dict(request.options)
    questions = options.get("questions", GOOGLE)
    if isinstance(questions, str) and questions != GOOGLE:
        options["questions"] = questions = str(place.base / local_path(questions))

    def make() -> pd.DataFrame:
        from attngeo.analogies.analogy import analogy

        frame = analogy(references, offline=place.offline, progress=place.progress, **options).scores
        return _rename_models(frame, dict(zip(references, request.models, strict=True)))

    files = map(describe_files, (*references, str(questions)))
    return ResultsPart(_fingerprint(request, *files), make)


def _load_or_make(path: Path, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
    """The part that the file keeps; if there is none, the part is made and kept."""
    import pandas as pd

    if path.is_file():
        try:
            kept = pd.read_parquet(path)
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


def _rename_models(frame: pd.DataFrame, names: dict[str, str]) -> pd.DataFrame:
    """The frame with models named as in the recipe, instead of by their paths on this machine."""
    frame["model"] = frame["model"].replace(names)
    model = frame.attrs.get("model")
    frame.attrs = {**frame.attrs, "model": names.get(str(model), model)}
    return frame


def resolve_reference(model: str, base: Path) -> str:
    """A path that is relative to the recipe, made absolute; any other reference as it is. Raises ModelNotFoundError."""
    if model.startswith(CBOW):
        return CBOW + resolve_reference(model.removeprefix(CBOW), base)
    path = base / local_path(model)
    if is_path(model) or path.exists():
        return str(path.absolute())
    if local_path(model).exists():
        raise ModelNotFoundError(
            f"{model}: exists in the working directory but not beside the recipe, to which paths are relative; move "
            "it there, or run the report from another directory if you mean the Hub's"
        )
    return model


def describe_files(place: str | Path) -> str:
    """A text that changes with a file or folder, and with a checkpoint's files beside it; "" for other references."""
    path = Path(str(place).removeprefix(CBOW))
    # A member of an archive changes with its archive.
    path = next((each for each in (path, *path.parents) if each.is_file()), path)
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


def _fingerprint(request: Request, *files: str) -> str:
    content = json.dumps([dict(request), files, software()], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]
