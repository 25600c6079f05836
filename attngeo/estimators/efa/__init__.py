"""Exponential family attention: attention for sequences, baskets, ratings and space–time (Wibisono and Wang 2025).

Functions that read a user's own files, and tables of a fitted model. Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.lazy import import_when_used

if TYPE_CHECKING:
    from attngeo.estimators.efa.comparison import compare_fits as compare_fits
    from attngeo.estimators.efa.files import (
        compare_files as compare_files,
        find_item as find_item,
        fit_own_sequences as fit_own_sequences,
        predict_file as predict_file,
        read_basket as read_basket,
        sample_file as sample_file,
    )
    from attngeo.estimators.efa.vectors import rank_similar as rank_similar
    from attngeo.estimators.efa.views import tabulate_places as tabulate_places, tabulate_vectors as tabulate_vectors
else:
    __getattr__, __dir__ = import_when_used(__name__)
