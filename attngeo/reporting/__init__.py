"""Reports: a recipe (TOML) in; a page, tables and provenance out."""

from attngeo.reporting.recipe import read_recipe
from attngeo.reporting.report import Report, report

__all__ = ["Report", "read_recipe", "report"]
