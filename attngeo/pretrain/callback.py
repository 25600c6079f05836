"""A callback for any transformers Trainer: the scores of the live model, at step 0 and at every log."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations.integration_utils import get_reporting_integration_callbacks

from attngeo.checkpoints.module_store import ModuleStore
from attngeo.errors import TrainingError, UnsupportedModelError, UsageError, first_line
from attngeo.layouts.sites import AttentionSite
from attngeo.scores.projections import Variants, projections, select, sites_of
from attngeo.scores.scoring import INTEGERS, ScoreOptions, score_site
from attngeo.tables import write as tables

if TYPE_CHECKING:
    from transformers import PreTrainedModel

COLUMNS = ("step", "stack", "layer", "head", "symmetry", "directionality", "loss")
FILE = "geometry.parquet"
# Trackers that keep one run for a process: a second instance joins it, and must neither begin nor end it.
ONE_RUN = ("TrackioCallback", "WandbCallback")


class AttentionGeometryCallback(TrainerCallback):
    """Scores the attention of the model that a Trainer trains, before the first update and at every log.

    Writes `geometry.parquet` in the Trainer's output folder: one row for each step, layer (`head` missing) and head,
    with the columns `COLUMNS`; loss is the mean over the steps since the last log, missing at step 0. Medians over
    layers and over heads go to the Trainer's trackers (`report_to`). A resumed run goes on with the rows up to the
    step that it resumes from. Any family that `attngeo.score` reads; raises its errors when training begins.

    file: name or path of the table, relative to the output folder. stack: only this one (see `attngeo inspect`).

    Under DDP and FSDP every process takes part in gathering weights, and the first computes and writes.
    """

    def __init__(self, *, file: str | Path = FILE, stack: str | None = None) -> None:
        if Path(file).suffix != ".parquet":
            raise UsageError(f"{file}: expected a name ending in .parquet")
        self._file, self._stack = Path(file), stack
        self._sites: list[AttentionSite] = []
        self._rows: list[dict[str, Any]] = []
        self._trackers: list[Any] | None = None
        self.summary: dict[str, float] = {}  # the medians of the last step that was scored

    @property
    def d_model(self) -> int:
        """The width of the first stack of attention."""
        return self._sites[0].d_model

    @property
    def frame(self) -> pd.DataFrame:
        """The rows so far."""
        frame = pd.DataFrame(self._rows, columns=list(COLUMNS))
        kinds: dict[str, str] = dict.fromkeys(("step", *INTEGERS), "Int64")
        frame = frame.astype({name: kind for name, kind in kinds.items() if name in COLUMNS})
        frame.attrs = {"title": "Attention scores during training"}
        return frame

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Find the attention of the model, take up the rows of an earlier session, and score before any update."""
        model: PreTrainedModel = kwargs["model"]
        self._sites = _sites_of(model, self._stack)
        self._rows, self._trackers = _earlier_rows(self._path(args), state.global_step), None
        if state.global_step == 0:
            self._record(args, state, control, model, loss=math.nan)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Score the model as it is now; the logs of evaluations and of the end are left alone."""
        logs = kwargs.get("logs") or {}
        if "loss" in logs and self._sites:
            self._record(args, state, control, kwargs["model"], loss=float(logs["loss"]))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close what was opened for trackers."""
        for tracker in self._trackers or ():
            if type(tracker).__name__ not in ONE_RUN:
                tracker.on_train_end(args, state, control, model=kwargs["model"])
        self._trackers = None

    def _path(self, args: TrainingArguments) -> Path:
        return Path(args.output_dir or ".") / self._file

    def _record(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: PreTrainedModel, loss: float
    ) -> None:
        weights = _weights_of(model, self._sites)
        if not state.is_world_process_zero:
            return
        scores = [row for site, tensors in weights for row in _score(site, tensors)]
        self._rows += [{"step": state.global_step, "loss": loss} | row for row in scores]
        path = self._path(args)
        path.parent.mkdir(parents=True, exist_ok=True)
        tables.write_table(self.frame, path)
        self.summary = summary_of(pd.DataFrame(scores))
        self._tell_trackers(args, state, control, model)

    def _tell_trackers(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: PreTrainedModel
    ) -> None:
        """The Trainer calls its trackers before callbacks that users add, so these are further ones on the same run."""
        if self._trackers is None:
            kinds = get_reporting_integration_callbacks(args.report_to)  # type: ignore[no-untyped-call]
            self._trackers = [kind() for kind in kinds]
            for tracker in self._trackers:
                if type(tracker).__name__ in ONE_RUN:
                    tracker._initialized = True
                else:
                    tracker.on_train_begin(args, state, control, model=model)
        for tracker in self._trackers:
            tracker.on_log(args, state, control, model=model, logs=dict(self.summary))


def summary_of(rows: pd.DataFrame) -> dict[str, float]:
    """Median symmetry and directionality over whole layers, and over heads, of one step's rows."""
    heads = rows["head"].notna()
    return {
        f"{score}_{kind}s": float(rows.loc[chosen, score].median())
        for kind, chosen in (("layer", ~heads), ("head", heads))
        for score in ("symmetry", "directionality")
    }


def _sites_of(model: PreTrainedModel, stack: str | None) -> list[AttentionSite]:
    store = ModuleStore(model)
    if any(getattr(parameter, "ds_id", None) is not None for parameter in model.parameters()):
        raise UnsupportedModelError(
            f"{store.ref}: DeepSpeed ZeRO-3 keeps no whole weights to score while it trains; use FSDP, or score the "
            "checkpoints that it saves"
        )
    sites, _ = sites_of(store)
    return select(sites, stack, None, store.ref)


def _weights_of(model: PreTrainedModel, sites: list[AttentionSite]) -> list[tuple[AttentionSite, dict[str, Tensor]]]:
    """The tensors of every site where they are; sharded ones are gathered, which every process takes part in."""
    state = model.state_dict()
    return [(site, {name: _whole(state[name])[rows] for name, rows in site.reads.items()}) for site in sites]


def _whole(tensor: Tensor) -> Tensor:
    gather = getattr(tensor, "full_tensor", None)  # a DTensor, as FSDP leaves its parameters
    return tensor.detach() if gather is None else gather().detach()


def _score(site: AttentionSite, tensors: dict[str, Tensor]) -> list[dict[str, Any]]:
    device = next(iter(tensors.values())).device
    with torch.inference_mode():
        q, k, notes = projections(site, tensors, Variants(), dtype=torch.float32, device=device)
        rows = list(score_site(site, q, k, notes, ScoreOptions()))
    return [{name: row[name] for name in COLUMNS if name in row} for row in rows]


def _earlier_rows(path: Path, step: int) -> list[dict[str, Any]]:
    """The rows that an interrupted run wrote up to the step that is resumed from."""
    if not step or not path.is_file():
        return []
    try:
        frame = pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise TrainingError(f"{path} cannot be read ({first_line(error)}); move it away to go on without it") from error
    kept: list[dict[str, Any]] = frame[frame["step"] <= step].to_dict("records")  # type: ignore[assignment]
    return kept
