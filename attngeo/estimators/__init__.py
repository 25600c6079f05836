"""Models that are fitted to tables and sequences of a user, as estimators of scikit-learn.

    AttentionClassifier           attention for tables of categories
    AttentionImputer              the same without a target: any cell from the others
    fit_together(...)             several of these, trained as a batch of models
    ExponentialFamilyAttention    attention for sequences, baskets, ratings and places

Names are imported when they are first used, so that the options of commands cost nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.lazy import import_when_used

if TYPE_CHECKING:
    from attngeo.estimators.efa.estimator import ExponentialFamilyAttention as ExponentialFamilyAttention
    from attngeo.estimators.tabular.classifier import (
        AttentionClassifier as AttentionClassifier,
        AttentionImputer as AttentionImputer,
        fit_together as fit_together,
    )
else:
    __getattr__, __dir__ = import_when_used(__name__)
