"""`attngeo pretrain`: train encoders and decoders, and watch the geometry of their attention emerge."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attngeo.choices import Objective, Task, Tracker, TrainingPrecision
from attngeo.errors import UsageError

from .messages import printable
from .options import FindingsFormat, Quiet, Verbose

if TYPE_CHECKING:
    from attngeo.pretrain.comparison import Comparison
    from attngeo.pretrain.runs import Run
    from attngeo.pretrain.settings import Settings

    from .progress import Bar


def pretrain(
    init: Annotated[
        str | None,
        typer.Option(metavar="default|symmetric|identity|REF", help="How Wq and Wk start; REF: those of a checkpoint."),
    ] = None,
    objective: Annotated[Objective | None, typer.Option(help="Predict masked tokens, or the next one.")] = None,
    model: Annotated[
        str,
        typer.Option(metavar="NAME|CONFIG.json", help="tiny, bert-mini, bert, bert-large; vit-tiny, vit-6, vit-12."),
    ] = "",
    task: Annotated[Task | None, typer.Option(help="Train on texts, or on images.")] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="REF",
            help="austen (embedded), a file, a folder, org/name[:config][@revision][#split] on the Hub, wikipedia, "
            "jigsaw:train.csv, redpajama; for images digits, cifar10, a folder or a Hub data set.",
        ),
    ] = None,
    text_column: Annotated[str | None, typer.Option(help="Where a table keeps its text.", show_default="text")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="train|REF", help="Train one on the data, or take that of a folder or Hub id.")
    ] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Pieces of a tokeniser that is trained.")] = None,
    pack: Annotated[
        bool | None,
        typer.Option(
            "--pack/--no-pack", help="Cut the text into full sequences, or pad each document.", show_default="pack"
        ),
    ] = None,
    published_text: Annotated[
        bool | None, typer.Option("--published-text", help="Join characters with spaces, as the paper's code did.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Updates of the weights.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the images, instead of --steps.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Sequences or images that a device takes at once.")] = None,
    grad_accum: Annotated[int | None, typer.Option(help="Batches before each update.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of AdamW at its peak.")] = None,
    warmup: Annotated[int | None, typer.Option(help="Updates until that peak.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Of AdamW.")] = None,
    seq_len: Annotated[int | None, typer.Option(help="Tokens of a sequence.")] = None,
    mlm_probability: Annotated[float | None, typer.Option(help="Share of tokens that are masked.")] = None,
    precision: Annotated[TrainingPrecision | None, typer.Option(help="auto: mixed on a GPU, else fp32.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, data order and masks.")] = None,
    log_every: Annotated[int | None, typer.Option(help="Updates between logs, each with the scores.")] = None,
    save_every: Annotated[int | None, typer.Option(help="Updates between checkpoints.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint of the run in -o.")] = False,
    report_to: Annotated[Tracker | None, typer.Option(help="Where else to log.")] = None,
    compare: Annotated[
        str | None, typer.Option(metavar="INIT,INIT", help="Train with each, the first being the baseline.")
    ] = None,
    objectives: Annotated[str | None, typer.Option(metavar="mlm,clm", help="Of --compare: with each of these.")] = None,
    seeds: Annotated[int, typer.Option(help="Of --compare: with so many seeds.")] = 1,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FOLDER", help="Folder of the run.", show_default="pretrain-…, by its settings"
        ),
    ] = None,
    format: FindingsFormat = "table",
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Train a small transformer from scratch and follow the symmetry and directionality of its attention.

    Settings that are not given are the model's own: those of the paper's section S2 for bert-mini, bert and bert-large.
    The first example takes two minutes on two cores, with nothing to download.

    Examples:
        attngeo pretrain --init symmetric
        attngeo pretrain --compare default,symmetric --objectives mlm,clm --seeds 3
        attngeo pretrain --model bert-mini --data wikipedia -o run
        attngeo pretrain --resume -o run
    """
    from .progress import Bar

    given: dict[str, Any] = {
        "init": init, "objective": objective, "data": data, "text_column": text_column, "tokenizer": tokenizer,
        "vocab_size": vocab_size, "pack": pack, "published_text": published_text, "steps": steps, "epochs": epochs,
        "batch_size": batch_size, "grad_accum": grad_accum, "lr": lr, "warmup": warmup, "weight_decay": weight_decay,
        "seq_len": seq_len, "mlm_probability": mlm_probability, "precision": precision, "seed": seed,
        "log_every": log_every, "save_every": save_every, "report_to": report_to,
    }  # fmt: skip
    first = os.environ.get("RANK", "0") == "0"  # of the processes that accelerate starts
    bar = partial(Bar, quiet=quiet or not first, verbose=verbose and first)
    if compare is None:
        for name, value in (("--objectives", objectives), ("--seeds", None if seeds == 1 else seeds)):
            if value is not None:
                raise UsageError(f"{name} is for --compare; leave it out, or say what to compare")
        run = _run(given, model, task, output, bar, resume=resume)
        if first:
            _print_run(run, as_json=format == "json")
        return
    if init is not None:
        raise UsageError("--init and --compare contradict each other; name every initialisation in --compare")
    comparison = _compare(given, model, task, output, bar, compare, objectives, seeds, resume=resume)
    if first:
        _print_comparison(comparison, as_json=format == "json")


def _run(
    given: dict[str, Any],
    model: str,
    task: Task | None,
    output: Path | None,
    bar: Callable[[str], Bar],
    *,
    resume: bool,
) -> Run:
    from attngeo.pretrain.runs import run
    from attngeo.pretrain.settings import Settings

    if resume and output is not None:
        settings = Settings.read(output).resumed(given | {"model": model or None, "task": task}, output)
    else:
        settings = _settings(given, model, task)
    folder = output or Path(f"pretrain-{settings.name}")
    with bar(str(folder)) as progress:
        return run(settings, folder, resume=resume, progress=progress)


def _compare(
    given: dict[str, Any],
    model: str,
    task: Task | None,
    output: Path | None,
    bar: Callable[[str], Bar],
    inits: str,
    objectives: str | None,
    seeds: int,
    *,
    resume: bool,
) -> Comparison:
    from attngeo.pretrain.comparison import compare

    settings = _settings(given, model, task)
    folder = output or Path(f"compare-{settings.model_name}")
    chosen: Any = objectives.split(",") if objectives else ()
    with bar(str(folder)) as progress:
        return compare(
            settings, folder, inits.split(","), objectives=chosen, seeds=seeds, resume=resume, progress=progress
        )


def _settings(given: dict[str, Any], model: str, task: Task | None) -> Settings:
    from attngeo.pretrain.settings import Settings

    pictures = task == "image" or (task is None and given["data"] in ("digits", "cifar10"))
    return Settings.of(model or ("vit-tiny" if pictures else "tiny"), task=task, **given)


def _print_run(run: Run, *, as_json: bool) -> None:
    import json

    from attngeo.pretrain.words import describe

    if as_json:
        sys.stdout.write(json.dumps(run.summary, indent=2) + "\n")
        return
    from .render_pretrain import print_run

    print_run(run)
    sys.stdout.write(printable(describe(run)) + "\n")


def _print_comparison(comparison: Comparison, *, as_json: bool) -> None:
    from attngeo.pretrain.words import describe_comparison
    from attngeo.tables import write as tables

    if as_json:
        sys.stdout.write(tables.to_json(comparison.rows))
        return
    from .render_pretrain import print_comparison

    print_comparison(comparison)
    for line in describe_comparison(comparison):
        sys.stdout.write(printable(line) + "\n")
