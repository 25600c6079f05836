"""Attention for tables of categories (Wibisono and Wang 2023), and the methods that it is compared with.

Functions that read a user's own files, and tables of a fitted model. Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.lazy import import_when_used

if TYPE_CHECKING:
    from attngeo.estimators.tabular.files import (
        find_probabilities as find_probabilities,
        fit_own_table as fit_own_table,
        impute_own_table as impute_own_table,
        predict_own_table as predict_own_table,
    )
    from attngeo.estimators.tabular.measuring import InterruptedFit as InterruptedFit
    from attngeo.estimators.tabular.views import (
        tabulate_attention as tabulate_attention,
        tabulate_encodings as tabulate_encodings,
    )
else:
    __getattr__, __dir__ = import_when_used(__name__)
