"""Attention for tables of categories: a scikit-learn classifier, and the experiments of the paper.

    AttentionClassifier       the classifier
    fit_together(...)         several of them, trained as a batch of models

Names are imported when they are first used, so that the options of commands cost nothing.
Source: Wibisono & Wang 2023 (arXiv 2307.04057), section 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo import import_when_used

if TYPE_CHECKING:
    from attngeo.tabular.classifier import AttentionClassifier as AttentionClassifier
    from attngeo.tabular.classifier import fit_together as fit_together

_HOMES = {"AttentionClassifier": "classifier", "fit_together": "classifier"}
__all__ = list(_HOMES)


__getattr__ = import_when_used(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
