"""What a question is, and what a report may show of its results. Imports none of what the names in them name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attngeo.lazy import Columns, resolve, resolve_columns
from attngeo.options import Options
from attngeo.studies.results import ANY_FORM, ResultForm

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Question:
    """A question. Each field that is not a readable text is a value, or the name "module:name" of one.

    Attributes:
        name: as recipes have it.
        options: its options class.
        columns: of its table, or a function of some of the options that lists them; None if they are known only when
            it is read.
        checks: the checks that conditions allow on its table, a `Checkable`; None if they are known only when it is
            read.
        title: of its table.
        rows: of a question about models, the function that makes the rows. It is called as rows(*attentions, options,
            making) with each model opened as the options say (`readings`), and yields lists of rows.
        build: makes the table of the rows, as build(rows, columns); by default each row is one of the table.
        table: of another question about models, the function that makes the whole table, as table(model, session,
            options=options).
        join: makes one table of those of several models, as join(frames, options); by default their rows are together.
            Where it is given, columns and checks are those of its table.
        subjects: the columns that name the models that one asking is about.
        list_subjects: lists them, as list_subjects(models, options, hub); by default each model is one.
        keeps: what is kept of it, in the plural or as a mass noun: "scores"; "" if nothing is.
        form: of the rows that are kept.
        run: of a question about other things than models, the function that answers it in a recipe. It is called as
            run(options, workplace, **subjects); the subjects are keys of the recipe, with the types of its parameters.
    """

    name: str
    options: str | type[Options]
    columns: str | Columns | None
    checks: Any = None
    title: str = ""
    rows: str | Callable[..., Any] | None = None
    build: str | Callable[..., pd.DataFrame] | None = None
    table: str | Callable[..., pd.DataFrame] | None = None
    join: str | Callable[..., pd.DataFrame] | None = None
    subjects: tuple[str, ...] = ("model",)
    list_subjects: str | Callable[..., list[Any]] | None = None
    keeps: str = ""
    form: str | ResultForm = ANY_FORM
    run: str | Callable[..., Any] | None = None

    @property
    def is_of_models(self) -> bool:
        """Whether it is asked about models, by `ask`."""
        return self.run is None

    def make_options_class(self) -> type[Options]:
        """The class of its options."""
        options_class: type[Options] = resolve(self.options)
        return options_class

    def list_columns(self, options: Options | None = None) -> tuple[str, ...] | None:
        """The columns of its table, with these options; None if they are known only when it is read."""
        if self.columns is None:
            return None
        columns = resolve(self.columns)
        if options is None or not callable(columns):
            return resolve_columns(columns)
        return tuple(columns(**{name: getattr(options, name) for name in inspect.signature(columns).parameters}))

    def find_checks(self) -> Any:
        """The checks that conditions allow on its table; None if they are known only when it is read."""
        return resolve(self.checks)


@dataclass(frozen=True)
class View:
    """A table of a report, made of results. Each field after `needs` is a value, or the name of one.

    Attributes:
        caption: caption of the table.
        needs: columns that the results must have.
        make: function of the rows of the results; None shows the rows themselves.
        columns: columns of the table, or a function that lists them; None if they are known only when it is made.
        labels: columns shown before these if the results have them.
        beside: end of the caption, if there are published values.
    """

    caption: str
    needs: tuple[str, ...] = ()
    make: str | Callable[[pd.DataFrame], pd.DataFrame] | None = None
    columns: str | Columns | None = None
    labels: str | Columns = ()
    beside: str = ""

    def describe(self, shown: pd.DataFrame) -> str:
        """The caption of what is shown."""
        columns = [name for name in shown if "published" in str(name)]
        return self.caption + (self.beside if shown[columns].notna().any(axis=None) else "")

    def show(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The part of these rows that is shown."""
        if self.make is None:
            return rows
        shown: pd.DataFrame = resolve(self.make)(rows)
        return shown

    def list_columns(self, of_results: Collection[str] | None) -> Collection[str] | None:
        """The columns shown for results with these columns; None if they are not known yet."""
        if self.make is None:
            return of_results
        if self.columns is None:
            return None
        labels = [name for name in resolve_columns(self.labels) if of_results is None or name in of_results]
        return (*labels, *resolve_columns(self.columns))
