"""The check of `attngeo.verify`, of a model in memory and with known inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attngeo.attention.finding import sites_of
from attngeo.checkpoints.store import ModuleStore
from attngeo.verification.checking import (
    COMPARED,
    Expectation,
    Findings,
    check_expectations,
    predict_factors,
    predict_outputs,
)


def check_model(model: Any, run: Callable[[], None]) -> Findings:
    """Check every attention site that attngeo finds in a model in memory.

    run: runs the model, or parts of it one after the other, on inputs that reach every attention module; it must do the
    same each time. Raises what `attention_sites` raises.
    """
    store = ModuleStore(model)
    sites, skipped = sites_of(store, COMPARED, parts="qkvo")
    expected = []
    for site in sites:
        outputs = None if site.missing else predict_outputs(store, site)
        expected.append(Expectation(site, site.module, predict_factors(store, site), outputs))
    return check_expectations(model, run, expected, skipped, lambda *_: None)
