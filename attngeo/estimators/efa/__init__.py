"""Exponential family attention: attention for sequences, baskets, ratings and space–time.

    ExponentialFamilyAttention        a model of tidy tables: fit, log_prob, predict, sample, save, load

Names are imported when they are first used, so that the options of commands cost nothing.
Source: Wibisono and Wang 2025 (arXiv 2501.16790).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo import import_when_used

if TYPE_CHECKING:
    from attngeo.estimators.efa.estimator import ExponentialFamilyAttention as ExponentialFamilyAttention

_HOMES = {"ExponentialFamilyAttention": "estimator"}
__all__ = list(_HOMES)


__getattr__ = import_when_used(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
