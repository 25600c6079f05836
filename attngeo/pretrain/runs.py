"""One run: settings and a folder in; a trained model, its geometry from step 0 and a summary out."""

from __future__ import annotations

import json
import logging
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers import (
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.utils import logging as transformers_logging

from attngeo.choices import TrainingPrecision
from attngeo.errors import InterruptedTrainingError, OutputError, TrainingError, UsageError, first_line
from attngeo.pretrain.callback import FILE as GEOMETRY
from attngeo.pretrain.callback import AttentionGeometryCallback
from attngeo.pretrain.settings import Settings
from attngeo.pretrain.stopping import StopOnSignal
from attngeo.pretrain.summary import summarise
from attngeo.pretrain.tasks import Task, prepare
from attngeo.pretrain.trainer import RunTrainer, checkpoints, last_checkpoint, remove_broken
from attngeo.progress import Progress
from attngeo.tables.atomic import atomic_write

log = logging.getLogger(__name__)

MODEL, SUMMARY = "model", "summary.json"
# A checkpoint holds weights and two moments of each in AdamW, in float32; three lie there while one is replaced.
CHECKPOINT_COPIES, CHECKPOINTS_AT_ONCE = 3, 3


@dataclass(frozen=True)
class Run:
    """A finished run: where it lies, its settings, `summary.json` as a dict, and the rows of `geometry.parquet`.

    stopped: a signal asked it to stop when there was nothing left to do.
    """

    folder: Path
    settings: Settings
    summary: dict[str, Any]
    geometry: pd.DataFrame
    stopped: bool = False


def run(
    settings: Settings,
    folder: str | Path,
    *,
    resume: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Run:
    """Train a model as `settings` say and leave in `folder`: `model/`, `geometry.parquet`, `summary.json`, checkpoints.

    resume: go on from the last checkpoint there. progress: called while data are prepared and at every log.

    Ctrl-C and SIGTERM save a checkpoint and raise InterruptedTrainingError. Raises UsageError, DataUnavailableError and
    DataError before training starts, TrainingError where the loss is not a number, OutputError where a disk is full.
    """
    folder, report = Path(folder), progress or (lambda _: None)
    settings.check()
    refuse_other_runs(folder, resume=resume)
    if resume:
        settings = Settings.read(folder).resumed(asdict(settings), folder)
    stop = StopOnSignal(lambda: report(Progress("train", "stopping after this step; again to stop at once")))
    with _quiet_transformers(), stop.listening():
        arguments = _arguments(settings, folder)
        if resume and arguments.process_index == 0:
            remove_broken(folder)
        report(Progress("prepare", f"reading {settings.data}, making {settings.model_name}"))
        checkpoint = last_checkpoint(folder) if resume else None
        task = prepare(settings, arguments.world_size, checkpoint)
        _check_room(folder, task)
        if arguments.process_index == 0:
            _start(folder, settings, resume=resume)
        at = (
            "no checkpoint to resume: from step 0"
            if resume and checkpoint is None
            else f"from step {_step(checkpoint)}"
        )
        log.info("%s: %d updates on %s, %s", folder, task.steps, arguments.device, asdict(settings))
        report(Progress("train", f"training {at} of {task.steps:,}, to {folder}"))
        return _train(settings, folder, task, arguments, stop, checkpoint=checkpoint, report=report)


def _step(checkpoint: Path | None) -> str:
    return "0" if checkpoint is None else f"{int(checkpoint.name.rpartition('-')[2]):,}"


def load(folder: Path) -> Run | None:
    """The finished run in `folder`, or None."""
    if not (folder / SUMMARY).is_file():
        return None
    try:
        summary = json.loads((folder / SUMMARY).read_text("utf-8"))
        return Run(folder, Settings.read(folder), summary, pd.read_parquet(folder / GEOMETRY))
    except (OSError, ValueError) as error:
        raise TrainingError(f"{folder} holds a run that cannot be read ({error}); train it anew elsewhere") from None


def refuse_other_runs(folder: Path, *, resume: bool) -> None:
    """Raise OutputError for a folder that cannot be written, or holds what would be lost."""
    try:
        if folder.exists() and not folder.is_dir():
            raise OutputError(f"{folder} is a file, expected a folder to write a run to")
        finished = (folder / SUMMARY).exists()
        started = finished or (folder / MODEL).exists() or bool(checkpoints(folder))
    except OSError as error:
        raise OutputError(f"{folder} cannot be written ({error.strerror or error})") from None
    if finished and resume:
        raise OutputError(f"{folder} holds a finished run: there is nothing to resume; choose another folder with -o")
    if started and not resume:
        raise OutputError(f"{folder} holds a run already; go on with --resume, or choose another folder with -o")


def _start(folder: Path, settings: Settings, *, resume: bool) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        settings.write(folder)
        if not resume:
            (folder / GEOMETRY).unlink(missing_ok=True)  # of a run that saved no checkpoint
    except OSError as error:
        raise OutputError(f"{folder} cannot be written ({error.strerror or error})") from None


def _train(
    settings: Settings,
    folder: Path,
    task: Task,
    arguments: TrainingArguments,
    stop: StopOnSignal,
    *,
    checkpoint: Path | None,
    report: Callable[[Progress], None],
) -> Run:
    geometry = AttentionGeometryCallback()
    if checkpoint is not None and not (folder / GEOMETRY).is_file():
        raise TrainingError(f"{folder} cannot be resumed: its {GEOMETRY} is missing; start the run anew elsewhere")
    arguments.max_steps, arguments.warmup_steps = task.steps, task.warmup
    trainer: RunTrainer = task.trainer(
        task.model, arguments, train_dataset=task.data, data_collator=task.collator, processing_class=task.processor,
        callbacks=[geometry, stop, _Report(report, geometry), *task.callbacks],
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)  # which prints to stdout
    _guarded(lambda: trainer.resume(checkpoint))
    step = trainer.state.global_step
    if stop.requested and step < task.steps:
        raise InterruptedTrainingError(
            f"stopped at step {step} of {task.steps}, checkpoint saved; go on with: "
            f"{'accelerate launch -m ' * (arguments.world_size > 1)}attngeo pretrain --resume "
            f"-o {shlex.quote(str(folder))}"
        )
    zero = trainer.is_world_process_zero()  # the one that keeps the scores
    summary = summarise(settings, task, trainer, geometry) if zero else {}
    measured = task.finish(trainer)
    summary |= measured if zero else {}
    _save(trainer, task, folder, summary)
    return Run(folder, settings, summary, geometry.frame, stop.requested)


def _guarded(train: Callable[[], None]) -> None:
    try:
        train()
    except torch.OutOfMemoryError as error:
        raise TrainingError(
            "the device is out of memory; lower --batch-size (and raise --grad-accum as much), or lower --seq-len"
        ) from error


def _save(trainer: RunTrainer, task: Task, folder: Path, summary: Mapping[str, Any]) -> None:
    """The model, whole or not at all, then the summary, which says that the run is finished."""
    partial = folder / f".{MODEL}.partial"
    try:
        trainer.save_model(str(partial))
        if not trainer.is_world_process_zero():
            return
        (partial / "training_args.bin").unlink(missing_ok=True)  # a pickle, which settings.json makes needless
        for name, model in task.others.items():
            model().save_pretrained(partial / name)
            task.processor.save_pretrained(partial / name)
        for name in (*task.others, MODEL):
            shutil.rmtree(folder / name, ignore_errors=True)
        for name in task.others:
            (partial / name).rename(folder / name)
        partial.rename(folder / MODEL)
    except Exception as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise OutputError(
            f"{folder / MODEL} cannot be written ({first_line(error)}); make room and go on with --resume"
        ) from error
    with atomic_write(folder / SUMMARY) as path:
        path.write_text(json.dumps(summary, indent=2) + "\n", "utf-8")


def _arguments(settings: Settings, folder: Path) -> TrainingArguments:
    precision = _precision(settings.precision)
    if settings.report_to != "none" and find_spec(settings.report_to) is None:
        raise UsageError(f"report_to {settings.report_to} needs its package: pip install {settings.report_to}")
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=1, per_device_train_batch_size=settings.batch_size,
        gradient_accumulation_steps=settings.grad_accum, learning_rate=settings.lr, weight_decay=settings.weight_decay,
        lr_scheduler_type="linear", optim="adamw_torch", seed=settings.seed, bf16=precision == "bf16",
        fp16=precision == "fp16", logging_steps=settings.log_every, logging_nan_inf_filter=False,
        save_steps=settings.save_every, save_total_limit=CHECKPOINTS_AT_ONCE - 1, report_to=settings.report_to,
        disable_tqdm=True, remove_unused_columns=False, train_sampling_strategy="sequential", log_level="error",
        dataloader_pin_memory=torch.cuda.is_available(), use_cpu=not _accelerated(),
    )  # fmt: skip
    if arguments.n_gpu > 1:
        raise UsageError(
            f"there are {arguments.n_gpu} GPUs and one process; start with accelerate launch -m attngeo pretrain, or "
            "set CUDA_VISIBLE_DEVICES to one of them"
        )
    if settings.precision == "fp32":
        arguments.mixed_precision = "no"  # whatever accelerate was configured to
    return arguments


def _precision(asked: TrainingPrecision) -> TrainingPrecision:
    """fp32, bf16 or fp16. "auto" is mixed precision where a GPU has it: bf16 where it can, else fp16."""
    if asked == "fp16" and not torch.cuda.is_available():
        raise UsageError("precision fp16 needs a CUDA device, expected fp32 or bf16 here")
    if asked != "auto":
        return asked
    if not torch.cuda.is_available():
        return "fp32"
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"


def _accelerated() -> bool:
    return torch.cuda.is_available() or torch.backends.mps.is_available()


def _check_room(folder: Path, task: Task) -> None:
    """Raise OutputError where the checkpoints will not fit on the disk."""
    weights = sum(parameter.numel() * 4 for parameter in task.model.parameters())
    others = len(task.others)
    needed = weights * ((CHECKPOINT_COPIES + others) * CHECKPOINTS_AT_ONCE + 1 + others)
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise OutputError(
            f"{folder}: checkpoints and model need {needed / 1e6:,.0f} MB, {free / 1e6:,.0f} MB are free; make room or "
            "choose another disk with -o"
        )


class _Report(TrainerCallback):
    """Tells the caller how far training has got, at every log."""

    def __init__(self, report: Callable[[Progress], None], geometry: AttentionGeometryCallback) -> None:
        self._report, self._geometry = report, geometry

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:  # noqa: ARG002
        logs = kwargs.get("logs")
        if state.is_world_process_zero and logs and "loss" in logs:
            now = self._geometry.summary
            what = (
                f"loss {logs['loss']:.3f}  symmetry {now['symmetry_layers']:.2f}  "
                f"directionality {now['directionality_layers']:.2f}"
            )
            self._report(Progress("train", what, state.global_step, state.max_steps, "steps"))


class _quiet_transformers:  # noqa: N801 - used as a function is
    """transformers' own notes and bars off, and on again."""

    def __enter__(self) -> None:
        self._before = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
        transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]

    def __exit__(self, *_: object) -> None:
        verbosity, bars = self._before
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
