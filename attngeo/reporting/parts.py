"""The parts of the results that a recipe requests: what each depends on, and how it is made."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngeo.analogies.options import GOOGLE
from attngeo.bounds import MOST_RESULTS_BYTES, read_small_bytes
from attngeo.checkpoints.reference import local_path
from attngeo.errors import InterruptedTrainingError, OutputError
from attngeo.papers.wibisono2023.options import AutoMpgOptions, SimulateOptions
from attngeo.papers.wibisono2025.experiments import RunOptions
from attngeo.pretrain.options import PATHS, make_options, separate_comparison
from attngeo.provenance import digest_code, software
from attngeo.reporting.schema import (
    AnalogyRequest,
    AutoMpgRequest,
    EfaRequest,
    FileRequest,
    PretrainRequest,
    Request,
    ScoreRequest,
    SimulateRequest,
    TheoryRequest,
)
from attngeo.reporting.workplace import Workplace, describe_files, resolve_reference
from attngeo.scores.spec import number_columns
from attngeo.tables.files import atomic_write
from attngeo.tables.read import read_results

if TYPE_CHECKING:
    import pandas as pd

# The folder of training runs in a report, and the file in a run's that tells what its data were.
RUNS, INPUTS = "runs", "inputs.json"


@dataclass(frozen=True)
class ResultsPart:
    """One part of some results. fingerprint: of all that it depends on. make: computes its rows."""

    fingerprint: str
    make: Callable[[], pd.DataFrame]


def plan_parts(request: Request, place: Workplace) -> Iterator[tuple[str, Callable[[], ResultsPart]]]:
    """The name of each part of some results, and the function that prepares it; preparing may fail."""
    match request:
        case FileRequest():
            yield request.path, partial(_prepare_file, request, place)
        case AnalogyRequest():
            yield ", ".join(request.models), partial(_prepare_analogies, request, place)
        case PretrainRequest():
            yield str(request.options.given.get("model", "training")), partial(_prepare_training, request, place)
        case SimulateRequest():
            yield "simulated tables", partial(_prepare_simulation, request, place)
        case AutoMpgRequest():
            yield "auto-mpg", partial(_prepare_auto_mpg, request, place)
        case EfaRequest():
            yield request.experiment, partial(_prepare_efa, request, place)
        case TheoryRequest():
            yield "statements", partial(_prepare_theory, request, place)
        case ScoreRequest():
            for model in request.models:
                yield model, partial(_prepare_scores, request, model, place)


def _prepare_file(request: FileRequest, place: Workplace) -> ResultsPart:
    path = place.base / local_path(request.path)

    def make() -> pd.DataFrame:
        frame = read_results(path, (), "attngeo … -o FILE", numbers=number_columns())
        frame.attrs = {
            "model": request.path,
            "sha256": hashlib.sha256(read_small_bytes(path, MOST_RESULTS_BYTES)).hexdigest(),
        }
        return frame

    return ResultsPart(_fingerprint(request, describe_files(path)), make)


def _prepare_scores(request: ScoreRequest, model: str, place: Workplace) -> ResultsPart:
    reference = resolve_reference(model, place.base)

    def make() -> pd.DataFrame:
        from attngeo.scores import score as scoring

        options = {"per_head": True} | request.options.given
        frame = scoring.score(reference, hub=place.hub, progress=place.progress, **options)
        return _rename_models(frame, {reference: model})

    alone = request.model_copy(update={"models": [model]})
    return ResultsPart(_fingerprint(alone, describe_files(reference)), make)


def _prepare_analogies(request: AnalogyRequest, place: Workplace) -> ResultsPart:
    references = [resolve_reference(model, place.base) for model in request.models]
    options = dict(request.options.given)
    questions = options.get("questions", GOOGLE)
    if isinstance(questions, str) and questions != GOOGLE:
        options["questions"] = questions = str(place.base / local_path(questions))

    def make() -> pd.DataFrame:
        from attngeo.analogies.analogy import analogy

        frame = analogy(references, hub=place.hub, progress=place.progress, **options).scores
        return _rename_models(frame, dict(zip(references, request.models, strict=True)))

    files = map(describe_files, (*references, str(questions)))
    return ResultsPart(_fingerprint(request, *files), make)


def _prepare_theory(request: TheoryRequest, place: Workplace) -> ResultsPart:
    def make() -> pd.DataFrame:
        from attngeo.papers.statements import check_statements

        return check_statements(request.statements, progress=place.progress, **request.options.given)

    return ResultsPart(_fingerprint(request, digest_code()), make)


def _prepare_training(request: PretrainRequest, place: Workplace) -> ResultsPart:
    """The curves of a run or of a comparison, whose runs are kept in the report's folder."""
    options = dict(request.options.given)
    paths = [name for name, names in PATHS.items() if name in options and options[name] not in names]
    for name in paths:
        options[name] = resolve_reference(options[name], place.base)
    if options.get("compare"):
        options["compare"] = [
            init if init in PATHS["init"] else resolve_reference(init, place.base) for init in options["compare"]
        ]
    inits = {options.get("init"): request.options.given.get("init")}
    inits |= dict(zip(options.get("compare") or (), request.options.given.get("compare") or (), strict=True))
    folder = place.folder / RUNS / request.name
    files = "".join(describe_files(options[name]) for name in paths)

    def make() -> pd.DataFrame:
        _check_inputs(folder, files)
        frame = _train(options, folder, place)
        frame["init"] = frame["init"].replace(inits)
        frame.attrs.update(request.options.given)  # paths as the recipe writes them
        return frame

    return ResultsPart(_fingerprint(request, files), make)


def _prepare_simulation(request: SimulateRequest, place: Workplace) -> ResultsPart:
    def make() -> pd.DataFrame:
        from attngeo.papers.wibisono2023.tables import compare_on_simulation

        options = SimulateOptions(**request.options.given)
        return compare_on_simulation(options, study=place.study, progress=place.progress)

    return ResultsPart(_fingerprint(request), make)


def _prepare_auto_mpg(request: AutoMpgRequest, place: Workplace) -> ResultsPart:
    options = dict(request.options.given)
    if options.get("data") is not None:
        options["data"] = str(place.base / local_path(options["data"]))

    def make() -> pd.DataFrame:
        from attngeo.papers.wibisono2023.tables import compare_on_auto_mpg

        return compare_on_auto_mpg(AutoMpgOptions(**options), study=place.study, progress=place.progress)

    return ResultsPart(_fingerprint(request, describe_files(options.get("data") or "")), make)


def _prepare_efa(request: EfaRequest, place: Workplace) -> ResultsPart:
    options = dict(request.options.given)
    if options.get("data") is not None:
        options["data"] = str(place.base / local_path(options["data"]))

    def make() -> pd.DataFrame:
        from attngeo.papers.wibisono2025.experiments import compare_models

        return compare_models(request.experiment, RunOptions(**options), study=place.study, progress=place.progress)

    return ResultsPart(_fingerprint(request, describe_files(options.get("data") or "")), make)


def _train(options: dict[str, Any], folder: Path, place: Workplace) -> pd.DataFrame:
    """Train, or resume, or read what is finished: the rows of the curves, with all options of the runs in `attrs`."""
    from attngeo.pretrain.comparison import build_curves, compare
    from attngeo.pretrain.options import SETTINGS, resume_options
    from attngeo.pretrain.runs import load_run, run

    comparison, given = separate_comparison(options)
    training = make_options(**given)
    try:
        if comparison.compare is not None:
            curves = compare(
                training, folder, comparison=comparison, study=place.study, resume=True, progress=place.progress
            ).curves
        else:
            finished = load_run(folder)
            if finished is not None:
                resume_options(finished.options, dict(training), folder)  # raises if they differ
            started = (folder / SETTINGS).is_file()
            curves = build_curves([finished or run(training, folder, resume=started, progress=place.progress)])
    except InterruptedTrainingError as error:
        raise InterruptedTrainingError(f"{folder.name}: {error.what}", "resume with the same command") from None
    curves.attrs.update(dict(training) | dict(comparison))
    return curves


def _check_inputs(folder: Path, files: str) -> None:
    """Raise OutputError if the runs in a folder were trained on other files than these; note them in a new folder."""
    path = folder / INPUTS
    digest = json.dumps({"files": hashlib.sha256(files.encode()).hexdigest()})
    if path.is_file() and read_small_bytes(path) != digest.encode():
        raise OutputError(
            f"{folder}: the training files have changed since these runs; delete the folder to train again, or delete "
            f"only {INPUTS} in it if the data are the same"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder} cannot be written ({error.strerror or error})") from None
    with atomic_write(path) as partial_path:
        partial_path.write_text(digest, "utf-8")


def _rename_models(frame: pd.DataFrame, names: dict[str, str]) -> pd.DataFrame:
    """The frame with models named as in the recipe, instead of by their paths on this machine."""
    frame["model"] = frame["model"].replace(names)
    model = frame.attrs.get("model")
    frame.attrs = {**frame.attrs, "model": names.get(str(model), model)}
    return frame


def _fingerprint(request: Request, *files: str) -> str:
    content = json.dumps([request.model_dump(exclude_unset=True), files, software()], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:16]
