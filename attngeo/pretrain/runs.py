"""Training runs: from options and a folder to a trained model, its geometry from step 0 and a summary."""

from __future__ import annotations

import json
import logging
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from attngeo.bounds.children import start_safely
from attngeo.bounds.names import name_type
from attngeo.bounds.small_files import read_small_text
from attngeo.devices import explain_memory
from attngeo.embeddings.tokenizer import silence_transformers
from attngeo.errors import (
    DataError,
    DataUnavailableError,
    InterruptedTrainingError,
    OutputError,
    TrainingError,
    UsageError,
    first_line,
    require_extra,
)
from attngeo.pretrain.callback import FILE as GEOMETRY, KEYS as GEOMETRY_KEYS, AttentionGeometryCallback
from attngeo.pretrain.options import ImagePretrainOptions, PretrainOptions, RunOptions
from attngeo.pretrain.settings import SETTINGS, read_settings, resume_options, write_settings
from attngeo.pretrain.trainer import (
    RunTrainer,
    StopOnSignal,
    TrainingTask,
    find_last_checkpoint,
    list_checkpoints,
    remove_broken,
    step_of,
)
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.provenance import machine, software
from attngeo.questions.spread import statistic
from attngeo.scores.spec import SCORES, default_scores
from attngeo.scores.summary import spread_of
from attngeo.studies.processes import STOPPING, catch_signals
from attngeo.tables.files import atomic_write, lock_folder, remove_unfinished
from attngeo.tables.read import read_results

log = logging.getLogger(__name__)

# The folder of the model, and the file of the summary, in the folder of a run.
MODEL, SUMMARY = "model", "summary.json"
# Digits of the statistics in a summary.
DIGITS = 6
# Checkpoints that are kept; one more exists while it is written.
CHECKPOINTS_KEPT = 2
# A checkpoint holds the weights and AdamW's two moments of each, in float32.
CHECKPOINT_COPIES = 3
# Advice if a batch needs too much memory.
SMALLER = "lower --batch-size (and raise --grad-accum by the same factor), or lower --seq-len"


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        folder: folder of the run.
        options: options of the run.
        summary: content of `summary.json`.
        rows: the main table, the scores of `geometry.parquet`.
    """

    folder: Path
    options: RunOptions
    summary: dict[str, Any]
    rows: pd.DataFrame


def run(
    options: RunOptions, folder: str | Path, *, resume: bool = False, progress: ProgressCallback | None = None
) -> Run:
    """Train a model, and write `model/`, `geometry.parquet`, `summary.json`, `settings.json` and checkpoints.

    Args:
        options: options of the run; see `attngeo.pretrain.make_options`.
        folder: folder of the run, which is created if missing, and locked while the run trains.
        resume: continue from the last checkpoint in `folder`.
        progress: called while data are prepared, and at every log.

    Returns:
        The finished run.

    Raises:
        UsageError: an option is invalid for this model, these data or this machine.
        DataUnavailableError: the data cannot be found or reached, or there is no run to resume.
        DataError: the data cannot be read, or there are too few.
        TrainingError: the loss is not a finite number, or a file of the run cannot be read.
        OutputError: a file cannot be written, or `folder` holds another run.
        FolderInUseError: another process trains in `folder`.
        InterruptedTrainingError: Ctrl-C, SIGTERM or SIGHUP arrived; a checkpoint was saved.
    """
    require_run(options, folder)
    folder = Path(folder)
    progress = progress or ignore_progress
    stop = StopOnSignal(lambda: progress(Progress("train", STOPPING)))
    with lock_folder(folder), silence_transformers(), catch_signals(stop.request), start_safely():
        refuse_other_runs(folder, resume=resume)
        if resume:
            options = resume_options(read_settings(folder), dict(options), folder)
        arguments = build_arguments(options, folder)
        if arguments.process_index == 0:
            remove_broken(folder)
        progress(Progress("prepare", f"reading {options.data}, building {options.model_name}"))
        checkpoint = find_last_checkpoint(folder)  # a folder with checkpoints is one to resume
        task = prepare_task(options, arguments.world_size, checkpoint)
        _check_room(folder, task)
        if arguments.process_index == 0:
            write_settings(options, folder)
            if not resume:
                (folder / GEOMETRY).unlink(missing_ok=True)  # of a run that saved no checkpoint
        start = f"from step {0 if checkpoint is None else step_of(checkpoint):,}"
        without_checkpoint = " (no checkpoint to resume from)" if resume and checkpoint is None else ""
        log.info("%s: %d updates on %s, %s", folder, task.steps, arguments.device, dict(options))
        progress(Progress("train", f"training {start} of {task.steps:,}, into {folder}{without_checkpoint}"))
        return _train(options, folder, task, arguments, stop, checkpoint=checkpoint, progress=progress)


def require_run(options: object, folder: object) -> None:
    """Raise UsageError unless these are the options and the folder of a training."""
    if not isinstance(options, RunOptions):
        raise UsageError(f"options is {name_type(options)}, expected the result of attngeo.pretrain.make_options")
    if not isinstance(folder, str | Path):
        raise UsageError(f"folder is {name_type(folder)}, expected the path of a folder")


def run_or_read(options: RunOptions, folder: Path, *, progress: ProgressCallback | None = None) -> Run:
    """The run in `folder`: read it if finished, resume it if started, else train it. Raises the errors of `run`."""
    finished = load_run(folder)
    if finished is None:
        return run(options, folder, resume=(folder / SETTINGS).is_file(), progress=progress)
    resume_options(finished.options, dict(options), folder)  # raises if they differ
    return finished


def prepare_task(options: RunOptions, processes: int, checkpoint: Path | None = None) -> TrainingTask:
    """Everything a run needs, made or loaded. A resumed run on text takes its tokeniser from `checkpoint`.

    Raises UsageError, DataUnavailableError and DataError.
    """
    if isinstance(options, ImagePretrainOptions):
        with require_extra():
            from attngeo.pretrain.image_training import prepare_images
        return prepare_images(options, processes)
    from attngeo.pretrain.text import prepare_text

    return prepare_text(options, processes, checkpoint)


def build_arguments(options: PretrainOptions, folder: Path) -> TrainingArguments:
    """The arguments of a run in `folder`. Raises UsageError for options that this machine does not support."""
    has_cuda = torch.cuda.is_available()
    precision = options.precision
    if precision == "fp16" and not has_cuda:
        raise UsageError("$precision fp16 requires a CUDA device, expected fp32 or bf16 here", "precision")
    if precision == "auto" and has_cuda:
        precision = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    if options.report_to != "none" and find_spec(options.report_to) is None:
        raise UsageError(f"$report_to {options.report_to} requires: pip install {options.report_to}", "report_to")
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=1,
        per_device_train_batch_size=options.batch_size,
        gradient_accumulation_steps=options.grad_accum,
        learning_rate=options.lr,
        weight_decay=options.weight_decay,
        optim="adamw_torch",
        seed=options.seed,
        bf16=precision == "bf16",
        fp16=precision == "fp16",
        logging_steps=options.log_every,
        logging_nan_inf_filter=False,
        save_steps=options.save_every,
        save_total_limit=CHECKPOINTS_KEPT,
        report_to=options.report_to,
        disable_tqdm=True,
        remove_unused_columns=False,
        train_sampling_strategy="sequential",
        log_level="error",
        dataloader_pin_memory=has_cuda,
        use_cpu=not (has_cuda or torch.backends.mps.is_available()),
    )
    if arguments.n_gpu > 1:
        raise UsageError(
            f"this machine has {arguments.n_gpu} GPUs, but there is only one process; start it with PYTHONSAFEPATH=1 "
            "accelerate launch -m attngeo pretrain, or set CUDA_VISIBLE_DEVICES to one GPU"
        )
    if options.precision == "fp32":
        arguments.mixed_precision = "no"  # overrides accelerate's own configuration
    return arguments


@contextmanager
def leave_process_group() -> Iterator[None]:
    """Leave the process group of `accelerate launch` after the block; otherwise gloo can abort a process at its exit.

    After an error, other processes may still wait for this one, so it does not leave the group.
    """
    interrupt = None
    try:
        yield
    except InterruptedTrainingError as error:  # of all processes, at the same step
        interrupt = error
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    if interrupt is not None:
        raise interrupt


def load_run(folder: Path) -> Run | None:
    """The finished run in `folder`, or None. Raises TrainingError if it cannot be read."""
    if not (folder / SUMMARY).is_file():
        return None
    try:
        summary = json.loads(read_small_text(folder / SUMMARY))
        geometry = read_results(folder / GEOMETRY, GEOMETRY_KEYS, "attngeo pretrain", numbers=tuple(SCORES))
        return Run(folder, read_settings(folder), summary, geometry)
    except (OSError, ValueError, RecursionError, DataError, DataUnavailableError) as error:
        raise TrainingError(f"the run in {folder} cannot be read ({error}); train it again in another folder") from None


def refuse_other_runs(folder: Path, *, resume: bool) -> None:
    """Raise OutputError for a folder with a run that would be lost."""
    finished = (folder / SUMMARY).exists()
    started = finished or (folder / MODEL).exists() or bool(list_checkpoints(folder))
    if finished and resume:
        raise OutputError(f"{folder}: the run is finished, so there is nothing to resume; choose another folder")
    if started and not resume:
        raise OutputError(f"{folder} already holds a run; resume it with $resume, or choose another folder", "resume")


def _train(
    options: RunOptions,
    folder: Path,
    task: TrainingTask,
    arguments: TrainingArguments,
    stop: StopOnSignal,
    *,
    checkpoint: Path | None,
    progress: ProgressCallback,
) -> Run:
    geometry = _RunGeometry(scores=options.scores)
    if checkpoint is not None and not (folder / GEOMETRY).is_file():
        raise TrainingError(f"{folder} cannot be resumed: {GEOMETRY} is missing; train again in another folder")
    arguments.max_steps = task.steps
    arguments.warmup_steps = task.warmup
    trainer = task.make_trainer(
        task.model,
        arguments,
        train_dataset=task.data,
        data_collator=task.collator,
        processing_class=task.processor,
        callbacks=[geometry, stop, _ReportLogs(progress, geometry)],
    )
    trainer.remove_callback(PrinterCallback)  # which prints to stdout
    with explain_memory(SMALLER):
        trainer.resume(checkpoint)
    step = trainer.state.global_step
    if stop.requested and step < task.steps:
        launch = "accelerate launch -m " if arguments.world_size > 1 else ""
        raise InterruptedTrainingError(
            f"stopped at step {step} of {task.steps}, checkpoint saved",
            f"resume with: {launch}attngeo pretrain --resume -o {shlex.quote(str(folder))}",
        )
    summary: dict[str, Any] = {}
    if trainer.is_world_process_zero():  # which has the scores
        summary = summarize_run(options, task, trainer, geometry)
    measured = task.evaluate(trainer)  # all processes take part
    if summary:
        summary |= measured
    _save(trainer, task, folder, summary)
    if stop.requested:
        raise InterruptedTrainingError(f"stopped at step {step}, the last one", f"the run in {folder} is finished")
    return Run(folder, options, summary, geometry.frame)


def summarize_run(
    options: PretrainOptions, task: TrainingTask, trainer: RunTrainer, geometry: AttentionGeometryCallback
) -> dict[str, Any]:
    """The summary of a run: losses, score statistics at the start and at the end, sizes, data, software, hardware."""
    scores = geometry.frame
    losses = scores["loss"].dropna()
    world = trainer.args.world_size
    sequences = trainer.state.global_step * options.batch_size * options.grad_accum * world
    units = task.count_units(sequences)
    precision = trainer.args.mixed_precision
    return {
        "settings": options.model_dump(mode="json") | {"steps": task.steps, "warmup": task.warmup},
        "final_loss": float(losses.iloc[-1]),
        "first_loss": float(losses.iloc[0]),
        "start": spread_at(scores, 0),
        "end": spread_at(scores, trainer.state.global_step),
        "parameters": sum(parameter.numel() for parameter in task.model.parameters()),
        "d_model": geometry.d_model,
        "changed_at_init": task.changed,
        "data": task.about,
        "sequences": sequences,
        "seconds": round(trainer.seconds, 1),
        "processes": world,
        "device": str(trainer.args.device),
        "threads": torch.get_num_threads(),
        "precision": "fp32" if precision == "no" else precision,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        **software(),
        **machine(),
        task.unit: units,
        f"{task.unit}_per_second": round(units / max(trainer.seconds, 1e-9), 1),
    }


def spread_at(geometry: pd.DataFrame, step: int) -> dict[str, float]:
    """Every statistic of the scores at one step, by name, rounded to six digits; see `attngeo.scores.summary`."""
    spread = spread_of(geometry[geometry["step"] == step])
    return {name: round(value, DIGITS) for name, value in spread.items()}


def _save(trainer: RunTrainer, task: TrainingTask, folder: Path, summary: Mapping[str, Any]) -> None:
    """Write the model, whole or not at all, then the summary, which says that the run is finished."""
    partial = folder / f".{MODEL}.partial"
    try:
        trainer.save_model(str(partial))
        if not trainer.is_world_process_zero():
            return
        (partial / "training_args.bin").unlink(missing_ok=True)  # a pickle; settings.json says the same
        for name, model in task.others.items():
            model.save_pretrained(partial / name)
            task.processor.save_pretrained(partial / name)
        for name in (*task.others, MODEL):
            shutil.rmtree(folder / name, ignore_errors=True)
        for name in task.others:
            (partial / name).rename(folder / name)
        partial.rename(folder / MODEL)
    except BaseException as error:
        remove_unfinished(partial)
        if not isinstance(error, Exception):
            raise
        raise OutputError(
            f"{folder / MODEL} cannot be written ({first_line(error)}); make room, then resume with $resume", "resume"
        ) from error
    with atomic_write(folder / SUMMARY) as path:
        path.write_text(json.dumps(summary, indent=2) + "\n", "utf-8", newline="\n")


def _check_room(folder: Path, task: TrainingTask) -> None:
    """Raise OutputError if the disk has no room for the checkpoints and the model."""
    weights = sum(parameter.numel() * 4 for parameter in task.model.parameters())
    models = 1 + len(task.others)
    # One checkpoint more than are kept, while the oldest is replaced.
    copies = (CHECKPOINT_COPIES + len(task.others)) * (CHECKPOINTS_KEPT + 1)
    needed = weights * (copies + models)
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise OutputError(
            f"checkpoints and model need {needed / 1e6:,.0f} MB, but only {free / 1e6:,.0f} MB are free; make room, or "
            "choose another disk with -o",
            subject=folder,
        )


class _RunGeometry(AttentionGeometryCallback):
    """Ends a run whose scores are missing: it is resumed from its last checkpoint, and has them all at the end."""

    def _report(self, what: str, error: Exception) -> None:  # noqa: ARG002
        raise error


@dataclass(eq=False)
class _ReportLogs(TrainerCallback):
    """Reports loss and median scores at every log."""

    progress: ProgressCallback
    geometry: AttentionGeometryCallback

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:  # noqa: ARG002
        logs = kwargs.get("logs")
        if state.is_world_process_zero and logs and "loss" in logs:
            medians = self.geometry.medians
            scores = [
                f"{spec.label} {medians[statistic(name, 'median')]:.2f}" for name, spec in default_scores().items()
            ]
            what = "  ".join([f"loss {logs['loss']:.3f}", *scores])
            self.progress(Progress("train", what, state.global_step, state.max_steps, "steps"))
