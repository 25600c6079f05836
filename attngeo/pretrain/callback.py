"""A callback for any transformers Trainer: the scores of the trained model, at step 0 and at every log."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakSet

import pandas as pd
import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import get_reporting_integration_callbacks  # type: ignore[attr-defined]

from attngeo.attention.finding import select, sites_of
from attngeo.attention.projections import projections
from attngeo.checkpoints.adapted_module import open_module
from attngeo.checkpoints.store import TensorStore
from attngeo.errors import TrainingError, UnsupportedModelError, UsageError, first_line
from attngeo.layouts.layout import AttentionSite
from attngeo.options import default_of
from attngeo.pretrain.curves import geometry_columns
from attngeo.provenance import machine, software
from attngeo.questions.frames import build_frame
from attngeo.scores.computing import score_site
from attngeo.scores.options import ScoreOptions, parse_scores
from attngeo.scores.spec import score_names
from attngeo.scores.summary import spread_of, statistics
from attngeo.tables import write as tables
from attngeo.tables.read import read_parquet

if TYPE_CHECKING:
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)

FILE = "geometry.parquet"
# The columns that are no scores.
KEYS = ("step", "stack", "layer", "head", "loss")
# Trackers with one run a process: a second instance must join it, and neither begin nor end it.
ONE_RUN = ("TrackioCallback", "WandbCallback")


@dataclass(eq=False)
class _Table:
    """The rows of one file, which several callbacks of one training may write together.

    Attributes:
        path: path of the file.
        state: state that the Trainer gives all callbacks of a training; None before it begins.
        rows: rows so far.
        writers: callbacks that write it, in the order in which they are called.
    """

    path: Path = Path()
    state: TrainerState | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    writers: list[AttentionGeometryCallback] = field(default_factory=list)


# The tables of callbacks that are in use: a Trainer does not tell a callback about the others.
_TABLES: WeakSet[_Table] = WeakSet()


class AttentionGeometryCallback(TrainerCallback):
    """Scores the attention of a model while a Trainer trains it: before the first update and at every log.

    Writes `geometry.parquet` to the Trainer's output folder: one row per step, layer (`head` is missing) and head, with
    step, stack, layer, head, a column for each score, and `loss`, the mean over the steps since the last log (or since
    the checkpoint, if training was resumed after that log; missing at step 0). The Trainer's trackers (`report_to`) and
    its `state.log_history` get the medians of every score over layers, such as `symmetry_median`, and over heads, such
    as `heads_symmetry_median`.

    A resumed run keeps the rows up to the step it resumes from. If you use the callback for another training from step
    0, the earlier rows stay in `geometry-1.parquet`.

    Works for every family that `attngeo.score` reads, and raises the same errors when training begins. After that, it
    never ends the training: if a step cannot be scored, its scores are missing; if the table cannot be written, it is
    written at the next log; a warning in the log gives the reason.

    Several callbacks of one training, for example one per stack, share a file if they name the same one; medians and
    `frame` then cover the rows of all. Two callbacks for the same stack need different files.

    With DDP and FSDP, all processes gather the weights, and the first one computes and writes.

    Args:
        file: name or path of the table, relative to the output folder; must end in .parquet.
        stack: score only this stack (`attngeo inspect` lists them).
        scores: optional scores to record as well, named as for `attngeo.score`. Scores that heads lack are missing in
            their rows, and have no medians over heads.

    Raises:
        UsageError: `file` has another ending, or a score is unknown; or, when training begins, another callback writes
            rows of the same stack or other columns to the file.
    """

    TITLE: ClassVar[str] = "Attention scores during training"
    # In front of the names that trackers get.
    PREFIX: ClassVar[str] = ""

    def __init__(
        self, *, file: str | Path = FILE, stack: str | None = None, scores: str | Collection[str] = ()
    ) -> None:
        if Path(file).suffix != ".parquet":
            raise UsageError("expected a file name ending in .parquet", subject=file)
        self._file = Path(file)
        self._stack = stack
        self._scores = parse_scores(scores)
        self._sites: list[AttentionSite] = []
        self._reason = ""
        self._origin: dict[Any, Any] = {}
        self._table = _Table()
        self._trackers: list[Any] = []
        # Of every score over whole layers, then over heads, at the last step that was scored.
        self.medians: dict[str, float] = {}

    @property
    def d_model(self) -> int:
        """Width of the first stack of attention."""
        return self._sites[0].d_model

    @property
    def stacks(self) -> set[str]:
        """Names of the scored stacks."""
        return {site.stack for site in self._sites}

    @property
    def frame(self) -> pd.DataFrame:
        """The rows so far. Its `attrs` say how they were made, once training has begun."""
        frame = build_frame(self._table.rows, self._list_columns())
        frame.attrs = {"title": self.TITLE, **self._origin}
        return frame

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Find the attention of the model, read earlier rows of a resumed run, and score before the first update."""
        model: PreTrainedModel = kwargs["model"]
        store = open_module(model)
        if any(getattr(parameter, "ds_id", None) is not None for parameter in model.parameters()):
            raise UnsupportedModelError(
                "DeepSpeed ZeRO-3 splits the weights, so they cannot be scored during training; use FSDP, or score the "
                "saved checkpoints",
                subject=store.ref,
            )
        self._sites = self._find_sites(store)
        self._origin = {
            "model": store.ref,
            "revision": None,
            **software(),
            **machine(),
            "stack": self._stack,
            "gamma": default_of(ScoreOptions, "gamma"),
            "device": str(model.device),
        }
        self._table = self._join_table(args, state)
        self._trackers = []
        if state.is_world_process_zero:
            self._join_trackers(args, state, control, model)
        if state.global_step == 0:
            scores = self._measure(model, is_first=state.is_world_process_zero)
            self._record(args, state, control, model, scores, loss=math.nan)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Score the model, unless it is the log of an evaluation or of the end of training."""
        logs = kwargs.get("logs") or {}
        if "loss" not in logs or not self._sites:
            return
        model: PreTrainedModel = kwargs["model"]
        try:
            scores = self._measure(model, is_first=state.is_world_process_zero)
        except Exception as error:
            self._report(f"step {state.global_step} cannot be scored", error)
            scores = [{"stack": site.stack, "layer": site.layer} for site in self._sites]
        try:
            self._record(args, state, control, model, scores, loss=float(logs["loss"]))
        except Exception as error:
            self._report(f"the scores of step {state.global_step} cannot be written", error)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """End the tracker runs that this callback started."""
        for tracker in self._trackers:
            if type(tracker).__name__ not in ONE_RUN:
                tracker.on_train_end(args, state, control, model=kwargs["model"])
        self._trackers = []

    def _join_table(self, args: TrainingArguments, state: TrainerState) -> _Table:
        """The table of another callback of this training, or one with the rows of an earlier session.

        Raises UsageError if the rows of two callbacks could not be told apart.
        """
        path = self._path(args)
        resolved = path.resolve()
        for table in _TABLES:
            if table.state is state and table.path == resolved:
                for other in table.writers:
                    self._refuse_same_rows(other, path)
                table.writers.append(self)
                return table
        if self._table.rows and state.global_step == 0 and state.is_world_process_zero and path.is_file():
            names = (path.with_stem(f"{path.stem}-{number}") for number in count(1))
            path.rename(next(name for name in names if not name.exists()))
        table = _Table(resolved, state, _read_rows(path, state.global_step), [self])
        _TABLES.add(table)
        return table

    def _refuse_same_rows(self, other: AttentionGeometryCallback, path: Path) -> None:
        """Raise UsageError if another callback writes rows of the same stack, or other columns, to the same file."""
        same = self.stacks & other.stacks
        if list(self.frame) != list(other.frame):
            problem = f"{type(other).__name__} and {type(self).__name__}, whose columns differ"
        elif same:
            problem = f"two callbacks for stack {min(same)}"
        else:
            return
        raise UsageError(
            f"{path} would be written by {problem}; give one of them a different $file, or leave one out", "file"
        )

    def _path(self, args: TrainingArguments) -> Path:
        return Path(args.output_dir or ".") / self._file

    def _report(self, what: str, error: Exception) -> None:
        """Say what is missing, unless the reason is that of the last time."""
        reason = first_line(error)
        if reason != self._reason:
            log.warning("%s: %s; training continues", what, reason, exc_info=log.isEnabledFor(logging.DEBUG))
        self._reason = reason

    def _find_sites(self, store: TensorStore) -> list[AttentionSite]:
        return select(sites_of(store)[0], self._stack, None, store.ref)

    def _record(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: PreTrainedModel,
        scores: list[dict[str, Any]],
        *,
        loss: float,
    ) -> None:
        """Keep the rows of a step, tell the trackers their medians, and write the table."""
        if not state.is_world_process_zero:
            return
        columns = self._list_columns()
        for row in scores:
            values = {"step": state.global_step, "loss": loss} | row
            self._table.rows.append({name: values[name] for name in columns if name in values})
        rows = [row for row in self._table.rows if row["step"] == state.global_step]
        spread = spread_of(pd.DataFrame(rows, columns=list(columns)))
        medians = statistics(["median"], score_names(self._scores))
        self.medians = {f"{self.PREFIX}{name}": spread[name] for name in medians}
        if self is self._table.writers[-1]:  # the rows of the step are complete
            self._tell(args, state, control, model)
        path = self._path(args)
        path.parent.mkdir(parents=True, exist_ok=True)
        tables.write_table(self.frame, path)

    def _tell(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: PreTrainedModel
    ) -> None:
        """Tell the trackers, and the history of the Trainer, the medians of this step."""
        for tracker in self._trackers:
            tracker.on_log(args, state, control, model=model, logs=dict(self.medians))
        newest = state.log_history[-1] if state.log_history else {}
        if newest.get("step") == state.global_step:
            # A Trainer saves its history as JSON, which has no NaN.
            newest |= {name: median for name, median in self.medians.items() if not math.isnan(median)}

    def _list_columns(self) -> tuple[str, ...]:
        return geometry_columns(self._scores)

    def _measure(self, model: PreTrainedModel, *, is_first: bool) -> list[dict[str, Any]]:
        """The rows of this step; only those of the first process are used."""
        store = open_module(model, on_device=True)
        # Again at each step: a training may change the shapes of weights, as some that prune heads do.
        self._sites = self._find_sites(store)
        gathered = [store.read_all(site.reads) for site in self._sites]  # all processes take part
        if not is_first:
            return []
        options = ScoreOptions(per_head=True, scores=self._scores)
        rows: list[dict[str, Any]] = []
        with torch.inference_mode():
            for site, tensors in zip(self._sites, gathered, strict=True):
                device = next(iter(tensors.values())).device
                q, k, notes = projections(site, tensors, dtype=torch.float32, device=device)
                rows += score_site(site, q, k, notes, options)
        return rows

    def _join_trackers(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: PreTrainedModel
    ) -> None:
        """Make further trackers: the Trainer calls its own before this callback, which cannot add to their logs."""
        for kind in get_reporting_integration_callbacks(args.report_to):  # type: ignore[no-untyped-call]
            tracker = kind()
            if type(tracker).__name__ in ONE_RUN:
                tracker.setup = lambda *_, **__: None  # which begins a run
            else:
                tracker.on_train_begin(args, state, control, model=model)
            self._trackers.append(tracker)


def _read_rows(path: Path, step: int) -> list[dict[str, Any]]:
    """The rows that an interrupted run wrote, up to the step that it is resumed from."""
    if not step or not path.is_file():
        return []
    try:
        frame = read_parquet(path)
        kept: list[dict[str, Any]] = frame[frame["step"] <= step].to_dict("records")  # type: ignore[assignment]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise TrainingError(
            f"{path} cannot be read ({first_line(error)}); move it away to resume without it"
        ) from error
    return kept
