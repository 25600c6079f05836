"""The statements of the papers as functions that return residuals.

    toy_corpus()        the corpus of Wibisono and Wang 2023, appendix I

Names are imported when they are first used, so that the options of commands cost nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo import import_when_used

if TYPE_CHECKING:
    from attngeo.theory.corpus import toy_corpus as toy_corpus

_HOMES = {"toy_corpus": "corpus"}
__all__ = list(_HOMES)


__getattr__ = import_when_used(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
