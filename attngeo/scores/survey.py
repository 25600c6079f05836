"""What scoring a model would read, from headers alone: for one model, or for all models of a study."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from attngeo.checkpoints.access import HubAccess
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.studies.engine import RunOutcome, StudyOptions, run_study


def survey(model: str, progress: ProgressCallback = ignore_progress, *, hub: HubAccess = HubAccess()) -> dict[str, Any]:
    """What `attngeo.score` would read of a model with the default options, by requests for headers alone.

    Keys: `model`, `revision`, `model_type`; `bytes_to_read` and `bytes_total`, None if the checkpoint does not state
    them, and their ratio `share_to_read`; `requests` for ranges of `remote_files` on the Hub; `left_out`, name pattern
    → reason; `sites`, a dictionary for each attention module; `names` of all tensors.
    Raises ModelUnavailableError or CheckpointError.
    """
    from attngeo.checkpoints.opening import open_store
    from attngeo.scores.pipeline import site_nbytes
    from attngeo.scores.projections import sites_of

    with closing(open_store(model, hub)) as store:
        sites, skipped = sites_of(store, progress=lambda file: progress(Progress("download", file)))
        to_read, total = sum(site_nbytes(store, site) for site in sites), store.total_nbytes
        requests = store.count_requests(site.reads for site in sites)
        return {
            "model": store.ref,
            "revision": store.revision,
            "model_type": store.config.get("model_type"),
            "bytes_to_read": to_read,
            "bytes_total": total,
            "share_to_read": to_read / total if total and to_read <= total else None,  # an index may state too little
            "requests": sum(requests.values()),
            "remote_files": len(requests),
            "left_out": skipped,
            "sites": [
                {
                    "stack": site.stack, "layer": site.layer, "module": site.module, "heads": site.heads,
                    "key_heads": site.key_heads, "head_dim": site.head_dim, "d_model": site.d_model, "rule": site.rule,
                    "source": site.family.source or None, "bytes": site_nbytes(store, site), "notes": list(site.notes),
                    "tensors": {
                        name: {"dtype": store.info(name).dtype, "shape": list(store.info(name).shape)}
                        for name in site.tensors.values()
                    },
                }
                for site in sites
            ],
            "names": list(store.names),
        }  # fmt: skip


def survey_models(
    models: Sequence[str],
    *,
    hub: HubAccess = HubAccess(),
    study: StudyOptions = StudyOptions(),
    progress: ProgressCallback = ignore_progress,
    on_outcome: Callable[[RunOutcome[dict[str, Any]]], None] = lambda _: None,
) -> list[RunOutcome[dict[str, Any]]]:
    """The survey of each model, or the error; in the order of the models.

    The other parameters are those of `attngeo.studies.engine.run_study`, and it raises what `run_study` raises.
    """
    return run_study(
        partial(survey, hub=hub), models, names=models, options=study, progress=progress, on_outcome=on_outcome
    )
