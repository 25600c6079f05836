"""Models of sequences for tests."""

from __future__ import annotations

from typing import Any

from attngeo.estimators import ExponentialFamilyAttention
from attngeo.estimators.efa.measuring import Measured
from attngeo.estimators.efa.options import Architecture
from attngeo.options import options_of

NAMES = options_of(Architecture)


def make_efa(**parameters: Any) -> ExponentialFamilyAttention:
    """An estimator; the options of its architecture are among the others."""
    own = {name: value for name, value in parameters.items() if name in NAMES}
    rest = {name: value for name, value in parameters.items() if name not in NAMES}
    return ExponentialFamilyAttention(**rest, architecture=Architecture(**own) if own else None)


def measure_fit(model: ExponentialFamilyAttention) -> dict[str, Measured]:
    """`measure_columns` of whole rows."""
    return {name: [*columns.values()][-1] for name, columns in model.measure_columns().items()}
