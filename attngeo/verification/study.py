"""The verification of many models, one after the other or several at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from attngeo.checkpoints.access import HubAccess
from attngeo.progress import ProgressCallback, ignore_progress
from attngeo.studies.engine import RunOutcome, StudyOptions, run_study

if TYPE_CHECKING:
    import pandas as pd


def verify_models(
    models: Sequence[str],
    *,
    hub: HubAccess = HubAccess(),
    study: StudyOptions = StudyOptions(),
    progress: ProgressCallback = ignore_progress,
    on_outcome: Callable[[RunOutcome[pd.DataFrame]], None] = lambda _: None,
) -> list[RunOutcome[pd.DataFrame]]:
    """The verification of each model, as `attngeo.verify` returns it, or the error; in the order of the models.

    The other parameters are those of `attngeo.studies.engine.run_study`, and it raises what `run_study` raises.
    """
    run = partial(verify_one, hub=hub)
    return run_study(run, models, names=models, options=study, progress=progress, on_outcome=on_outcome)


def verify_one(model: str, progress: ProgressCallback, *, hub: HubAccess) -> pd.DataFrame:
    """One run of the study."""
    from attngeo.verification.verifying import verify

    return verify(model, hub=hub, progress=progress)
