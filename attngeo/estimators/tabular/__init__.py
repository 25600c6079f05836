"""Attention for tables of categories (Wibisono and Wang 2023), and the methods that it is compared with.

What reads a user's own files. Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo import import_when_used

if TYPE_CHECKING:
    from attngeo.estimators.tabular.files import (
        fit_own_table as fit_own_table,
        impute_own_table as impute_own_table,
        predict_own_table as predict_own_table,
    )
else:
    __getattr__, __dir__ = import_when_used(__name__)
