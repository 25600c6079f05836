"""Exponential family attention: attention for sequences, baskets, ratings and space–time.

    ExponentialFamilyAttention        a model of tidy tables: fit, log_prob, predict, sample
    load_model(folder)                one that was saved
    register_family(name, kind)       a name for a family of your own

Names are imported when they are first used, so that the options of commands cost nothing.
Source: Wibisono and Wang 2025 (arXiv 2501.16790).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo import import_when_used

if TYPE_CHECKING:
    from attngeo.efa.estimator import ExponentialFamilyAttention as ExponentialFamilyAttention
    from attngeo.efa.family_names import register_family as register_family
    from attngeo.efa.saving import load_model as load_model

_HOMES = {
    "ExponentialFamilyAttention": "estimator", "load_model": "saving", "register_family": "family_names",
}  # fmt: skip
__all__ = list(_HOMES)


__getattr__ = import_when_used(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
