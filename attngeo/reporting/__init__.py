"""Reports and figures: a recipe (TOML) becomes a page with tables and provenance; `attngeo.plot` draws one figure.

Names are imported when they are first used, so that `attngeo.plot` does not load what only reports need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo import import_when_used

if TYPE_CHECKING:
    from attngeo.reporting.plots import plot as plot
    from attngeo.reporting.recipe import read_recipe as read_recipe
    from attngeo.reporting.report import Report as Report, build_report as build_report

_HOMES = {"Report": "report", "build_report": "report", "plot": "plots", "read_recipe": "recipe"}
__all__ = list(_HOMES)


__getattr__ = import_when_used(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
