"""What answers each question of a recipe: the library's functions, with the paths and names that the recipe has."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

from pydantic import AfterValidator, Field, create_model

import attngeo
from attngeo.analogies.options import GOOGLE, AnalogyOptions
from attngeo.analogies.questions import require_questions
from attngeo.bounds import MOST_RESULTS_BYTES, read_small_bytes
from attngeo.checkpoints.reference import HubAccess, is_path, local_path, require_model, split_weight
from attngeo.choices import one_of
from attngeo.embeddings.reference import require_embedding, split_prefix
from attngeo.errors import AttnGeoError, InterruptedTrainingError, ModelNotFoundError, OutputError
from attngeo.gradients.options import GradientOptions
from attngeo.options import Options, option, options_of
from attngeo.papers.runs import perform_runs
from attngeo.papers.statements import TheoryOptions, check_statements, select_statements
from attngeo.papers.wibisono2023.options import AutoMpgOptions, SimulateOptions, require_cars
from attngeo.papers.wibisono2025.options import SETTINGS, RunOptions, require_data
from attngeo.pretrain.options import (
    PATHS,
    TEXT_DATA,
    ComparisonOptions,
    ImagePretrainOptions,
    TextPretrainOptions,
    make_options,
    separate_comparison,
)
from attngeo.pretrain.references import require_sources
from attngeo.pretrain.sources import require_text_data
from attngeo.progress import ProgressCallback
from attngeo.schemas import as_value_error
from attngeo.scores.options import ResultOptions, ScoreOptions
from attngeo.scores.score import score_models
from attngeo.scores.spec import number_columns
from attngeo.studies.engine import StudyOptions, require_all
from attngeo.tables.files import atomic_write
from attngeo.tables.read import read_results

if TYPE_CHECKING:
    import pandas as pd

# Ends of the names of files that belong to a checkpoint's file beside it.
CHECKPOINT = ("config.json", ".safetensors", ".bin")
# The folder of training runs in a report, and the file in a run's that tells what its data were.
RUNS, INPUTS = "runs", "inputs.json"


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """Where an answer is made, and how. name: of the results. base: the recipe's folder, to which paths are relative.

    folder: the report's. inputs: a text that changes with the files that the request names.
    """

    base: Path
    folder: Path
    hub: HubAccess
    progress: ProgressCallback
    study: StudyOptions = StudyOptions()
    name: str = ""
    inputs: str = ""


@dataclass
class ResultsAnswer:
    """The table of an answer; None if all of it is missing.

    origins: how each part of it was made. failures: what is missing from it, and why.
    """

    rows: pd.DataFrame | None
    origins: list[dict[str, Any]] = field(default_factory=list)
    failures: list[tuple[str, AttnGeoError]] = field(default_factory=list)

    @classmethod
    def of(cls, *parts: pd.DataFrame) -> ResultsAnswer:
        """The answer whose table is these together."""
        if not parts:
            return cls(None)
        import pandas as pd

        rows = parts[0] if len(parts) == 1 else pd.concat(parts, ignore_index=True)
        return cls(rows, [{str(name): value for name, value in part.attrs.items()} for part in parts])


def _refuse_repeated(models: list[str]) -> list[str]:
    repeated = next((model for model in models if models.count(model) > 1), None)
    if repeated is not None:
        raise ValueError(f"{repeated!r} is listed twice, expected each model once")
    return models


def _check_statements(names: Sequence[str]) -> Sequence[str]:
    as_value_error(select_statements, names)
    return names


Models = Annotated[list[str], Field(min_length=1), AfterValidator(_refuse_repeated)]
Statements = Annotated[Sequence[str], AfterValidator(_check_statements)]
Experiment = Annotated[str, AfterValidator(lambda name: as_value_error(one_of, "experiment", name, SETTINGS))]


class _OfRuns(Options):
    """The options of a training run, or of a comparison of runs."""

    def _check(self) -> None:
        make_options(**separate_comparison(self.given)[1])


_RUN_OPTIONS: dict[str, Any] = {
    name: (Optional[kind.model_fields[name].annotation], option(None, **vars(declared)))  # noqa: UP045 - a value
    for kind in (TextPretrainOptions, ImagePretrainOptions, ComparisonOptions)
    for name, declared in options_of(kind).items()
}
PretrainTable = create_model("PretrainTable", __base__=_OfRuns, **_RUN_OPTIONS)


class EfaTable(RunOptions):
    """The options of an experiment. A report saves no models."""

    save: None = None


def score_all(options: ScoreOptions, place: Workplace, *, models: Models) -> ResultsAnswer:
    """Scores of every layer and head of some models. A model that fails costs only its rows."""
    names, failures = dict[str, str](), []
    for model in models:
        try:
            names[resolve_reference(model, place.base)] = model
        except AttnGeoError as error:
            failures.append((model, error))
    adapters = {}
    for text in options.adapter:
        name, _ = split_weight(text)
        adapters[resolve_reference(name, place.base) + text.removeprefix(name)] = text
    config = None if options.config is None else resolve_reference(options.config, place.base)
    chosen = options.replace(per_head=options.given.get("per_head", True), adapter=[*adapters], config=config)
    outcomes = score_models(
        list(names), chosen, hub=place.hub,
        results=ResultOptions(), study=place.study, progress=place.progress,
    ) if names else []  # fmt: skip
    failures += [(names[outcome.name], outcome.failure) for outcome in outcomes if outcome.failure is not None]
    frames = [_rename_models(outcome.result, names) for outcome in outcomes if outcome.result is not None]
    for frame in frames:
        for path, text in adapters.items():
            frame["note"] = frame["note"].str.replace(path, text, regex=False)
        # As the recipe has them; memory is not the share of each of several processes.
        frame.attrs |= {"memory": options.memory, "adapter": options.adapter, "config": options.config}
    answer = ResultsAnswer.of(*frames)
    answer.failures = sorted(failures, key=lambda failure: models.index(failure[0]))
    return answer


def ask_analogies(options: AnalogyOptions, place: Workplace, *, models: Models) -> ResultsAnswer:
    """Word analogies in the embeddings of some models, on the questions that all of them know."""
    names = {resolve_reference(model, place.base): model for model in models}
    questions = options.given.get("questions", GOOGLE)
    if isinstance(questions, str) and questions != GOOGLE:
        options = options.replace(questions=str(place.base / local_path(questions)))
    require_questions(options.questions)
    for name in names:
        require_embedding(name)
    rows = attngeo.analogy(list(names), options=options, hub=place.hub, progress=place.progress).scores
    return ResultsAnswer.of(_rename_models(rows, names))


def measure_gradients(options: GradientOptions, place: Workplace, *, models: Models) -> ResultsAnswer:
    """Updates of every layer and head that a text asks of some models."""
    names = {resolve_reference(model, place.base): model for model in models}
    text = options.text if options.text in TEXT_DATA else resolve_reference(options.text, place.base)
    for name in names:
        require_model(name)
    require_text_data(text)

    from attngeo.gradients import measure

    frames = [
        measure(name, options=options.replace(text=text), hub=place.hub, progress=place.progress).rows for name in names
    ]
    for frame in frames:
        frame.attrs["text"] = options.text
    return ResultsAnswer.of(*(_rename_models(frame, names) for frame in frames))


def check_all(options: TheoryOptions, place: Workplace, *, statements: Statements = ()) -> ResultsAnswer:
    """Whether statements of the papers hold. statements: their names, as the command takes them; by default all."""
    return ResultsAnswer.of(check_statements(statements, options=options, progress=place.progress))


def simulate(options: SimulateOptions, place: Workplace) -> ResultsAnswer:
    """Scores of methods on simulated tables, whose test rows have another distribution."""
    from attngeo.papers.wibisono2023.tables import build_simulation_frame, plan_simulation

    return ResultsAnswer.of(build_simulation_frame(options, _complete(plan_simulation(options), place)))


def compare_on_cars(options: AutoMpgOptions, place: Workplace) -> ResultsAnswer:
    """Scores of methods on the auto-mpg data."""
    options = _find_data(options, place)
    if options.data is not None:
        require_cars(options.data)

    from attngeo.papers.wibisono2023.data import load_auto_mpg
    from attngeo.papers.wibisono2023.tables import build_auto_mpg_frame, plan_auto_mpg

    data = load_auto_mpg(options.data, place.progress)
    return ResultsAnswer.of(build_auto_mpg_frame(data, _complete(plan_auto_mpg(options, data), place)))


def run_experiment(options: RunOptions, place: Workplace, *, experiment: Experiment) -> ResultsAnswer:
    """Errors of models in an experiment of exponential family attention, beside baselines."""
    chosen = RunOptions(**_find_data(options, place).given)
    if chosen.data is not None:
        require_data(chosen.data)

    from attngeo.papers.wibisono2025.datasets import EXPERIMENTS, load_dataset
    from attngeo.papers.wibisono2025.experiments import build_frame, plan_runs

    runs = plan_runs(experiment, chosen)
    load_dataset(EXPERIMENTS[experiment].dataset, chosen.data, place.progress)  # one error, not one of each run
    return ResultsAnswer.of(build_frame(_complete(runs, place), chosen))


def _complete(runs: Sequence[Any], place: Workplace) -> list[Any]:
    """The outcomes of all runs of an experiment. Raises the error of the first one that fails, at the end."""
    return require_all(perform_runs(runs, study=place.study, progress=place.progress))


def read_file(options: Options, place: Workplace, *, path: Annotated[str, Field(min_length=1)]) -> ResultsAnswer:  # noqa: ARG001 - a file has no options
    """Rows of a file that attngeo wrote. path: relative to the recipe."""
    file = place.base / local_path(path)
    rows = read_results(file, (), "attngeo … -o FILE", numbers=number_columns())
    digest = hashlib.sha256(read_small_bytes(file, MOST_RESULTS_BYTES)).hexdigest()
    rows.attrs = {"model": path, "sha256": digest}
    return ResultsAnswer.of(rows)


def train(options: Options, place: Workplace) -> ResultsAnswer:
    """Scores and loss of a training run, or of a comparison of runs, at every log. Runs are kept beside the report."""

    def resolve(name: str, value: str) -> str:
        return value if value in PATHS[name] else resolve_reference(value, place.base)

    written = options.given
    resolved = written | {name: resolve(name, written[name]) for name in PATHS if name in written}
    inits = {resolved.get("init"): written.get("init")}
    if "compare" in written:
        resolved["compare"] = [resolve("init", init) for init in written["compare"]]
        inits |= dict(zip(resolved["compare"], written["compare"], strict=True))
    folder = place.folder / RUNS / place.name
    if not folder.exists():  # a run that is there is read or resumed, and may need its sources no more
        comparison, rest = separate_comparison(resolved)
        require_sources(make_options(**rest), comparison.compare or ())
    _check_inputs(folder, place.inputs)
    try:
        rows = _train_or_resume(resolved, folder, place)
    except InterruptedTrainingError as error:
        raise InterruptedTrainingError(f"{folder.name}: {error.what}", "resume with the same command") from None
    rows["init"] = rows["init"].replace(inits)
    rows.attrs.update(written)  # paths as the recipe writes them
    return ResultsAnswer.of(rows)


def _train_or_resume(options: Mapping[str, Any], folder: Path, place: Workplace) -> pd.DataFrame:
    """Train, or resume, or read what is finished: the rows of the curves, with all options of the runs in `attrs`."""
    from attngeo.pretrain.comparison import build_curves, compare
    from attngeo.pretrain.runs import run_or_read

    comparison, rest = separate_comparison(options)
    training = make_options(**rest)
    if comparison.compare is not None:
        curves = compare(
            training, folder, comparison=comparison, study=place.study, resume=True, progress=place.progress
        ).curves
    else:
        curves = build_curves([run_or_read(training, folder, progress=place.progress)])
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
    with atomic_write(path) as partial_path:
        partial_path.write_text(digest, "utf-8")


def _rename_models(frame: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """The frame with models named as in the recipe, instead of by their paths on this machine."""
    frame["model"] = frame["model"].replace(dict(names))
    model, revision = frame.attrs.get("model"), frame.attrs.get("revision")
    if isinstance(revision, Mapping):  # of several models, by name
        model = ", ".join(names.get(name, name) for name in revision)
        revision = {names.get(name, name): commit for name, commit in revision.items()}
    frame.attrs = {**frame.attrs, "model": names.get(str(model), model), "revision": revision}
    return frame


def _find_data(options: Any, place: Workplace) -> Any:
    """The options with the file of their data beside the recipe."""
    data = options.data
    return options if data is None else options.replace(data=str(place.base / local_path(data)))


def resolve_reference(model: str, base: Path) -> str:
    """A path that is relative to the recipe, made absolute; any other reference as it is. Raises ModelNotFoundError."""
    prefix, model = split_prefix(model)
    path = base / local_path(model)
    if is_path(model) or path.exists():
        return prefix + str(path.absolute())
    if local_path(model).exists():
        raise ModelNotFoundError(
            f"{model}: found in the working directory, not beside the recipe; paths are relative to the recipe. Move "
            "it there; for the Hub's model, run from another directory"
        )
    return prefix + model


def describe_inputs(content: Any, base: Path) -> str:
    """A text that changes with every file that a text in a request may name, relative to the recipe."""
    return "".join(describe_files(text, base) for text in list_texts(content))


def list_texts(content: Any) -> Iterator[str]:
    """The texts in a request, at any depth."""
    match content:
        case str():
            yield content
        case Mapping():
            for value in content.values():
                yield from list_texts(value)
        case Sequence():
            for value in content:
                yield from list_texts(value)


def name_path(text: str, base: Path) -> Path:
    """The path that a text in a request may name, relative to the recipe. Raises ModelNotFoundError if it is none."""
    _, text = split_prefix(text)
    return base / local_path(split_weight(text)[0])


def describe_files(text: str, base: Path) -> str:
    """A text that changes with a file or folder, and with a checkpoint's files beside it; "" for other references."""
    try:
        path = name_path(text, base)
        # A member of an archive changes with its archive.
        path = next((place for place in (path, *path.parents) if place.is_file()), path)
        if text and path.is_dir():
            files = [Path(at, name) for at, _, names in os.walk(path, followlinks=True) for name in names]
        elif path.is_file():
            files = [path, *(file for file in path.parent.iterdir() if file.name.endswith(CHECKPOINT))]
        else:
            return ""
        return " ".join(f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in sorted(files))
    except (OSError, ValueError, AttnGeoError):  # no path
        return ""
