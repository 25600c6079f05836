"""Labels: what figures, and tables for people, call a model in place of its reference.

A label is given once, as REF=NAME, and `name_models` puts it into every column that names a model. Files for programs
keep references, by which other commands find models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from attngeo.choices import RESULTS, advise
from attngeo.errors import UsageError
from attngeo.options import Options, option
from attngeo.studies.steps import rename_training, split_step

if TYPE_CHECKING:
    import pandas as pd

# The columns, and the entries of `attrs`, that name a model.
NAMING = ("model", "other")
# The entry of `attrs` that lists the models of a table before rows were selected: labels of the others are no mistake.
ALL_MODELS = "all_models"


def parse_labels(labels: Any) -> Mapping[str, str]:
    """Reference → label, of strings such as "org/name=BERT", or of a mapping. Raises UsageError.

    A text is parted at its first =; at a later one if the reference before has a label already.

    >>> parse_labels(["org/name=BERT", "lr=0.1=slow", "lr=0.2=fast"])
    {'org/name': 'BERT', 'lr': '0.1=slow', 'lr=0.2': 'fast'}
    """
    if isinstance(labels, Mapping):
        pairs = [*labels.items()]
        if not all(isinstance(text, str) and text.strip() for pair in pairs for text in pair):
            raise UsageError(f"$label is {dict(labels)!r:.60}, expected a name for each reference", "label")
        return {reference: name.strip() for reference, name in pairs}
    if not isinstance(labels, list | tuple):
        raise UsageError(f"$label is {labels!r:.60}, expected names such as {{'org/name': 'BERT'}}", "label")
    parsed: dict[str, str] = {}
    for text in labels:
        reference, _, name = text.partition("=") if isinstance(text, str) else ("", "", "")
        while reference in parsed and "=" in name:
            part, _, name = name.partition("=")
            reference = f"{reference}={part}"
        if not (reference and name.strip()):
            raise UsageError(f"$label is {text!r:.60}, expected REF=NAME", "label")
        if reference in parsed:
            raise UsageError(f"$label names {reference:.60} twice, expected one name for each model", "label")
        parsed[reference] = name.strip()
    return parsed


def label_option(panel: str, **about: Any) -> Any:
    """The option `label` of what shows models. about: see `attngeo.options.Option`."""
    return option(
        None,
        "Name of a model in figures and in printed tables",
        panel=panel,
        metavar="REF=NAME",
        parse=parse_labels,
        repeated=True,
        shown_default="the reference",
        **about,
    )


class LabelOptions(Options):
    """Labels of models in tables for people."""

    label: Mapping[str, str] | None = label_option(RESULTS, advanced=True)


def resolve_labels(labels: Mapping[str, str] | None, models: Iterable[str]) -> dict[str, str]:
    """The label of each of these models that has one. Raises UsageError.

    A label for the common part of a training's checkpoint names labels all its checkpoints: org/name=BERT makes
    BERT@step10 of org/name@step10, and runs/a=A makes A/checkpoint-10 of runs/a/checkpoint-10; see `split_step`. A ./
    at the start of a path, and a slash at its end, make no difference.

    Raises:
        UsageError: a label is for none of the models, or two models would have one name.

    >>> resolve_labels({"org/name": "A"}, ["org/name@main", "demo:minilm"])
    {'org/name@main': 'A@main'}
    """
    if not labels:
        return {}
    models = [*dict.fromkeys(models)]
    trainings = {model: split_step(model).model for model in models}
    known = {*map(_trim, models), *map(_trim, trainings.values())}
    wanted = dict(_find_reference(reference, name, known) for reference, name in labels.items())
    for reference in wanted:
        if _trim(reference) not in known:
            likely = dict.fromkeys((*models, *trainings.values()))
            raise UsageError(f"$label: there is no model {reference:.80}; {advise(reference, likely)}", "label")
    trimmed = {_trim(reference): name for reference, name in wanted.items()}

    def find_label(reference: str) -> str | None:
        return wanted.get(reference, trimmed.get(_trim(reference)))

    resolved = {}
    for model, training in trainings.items():
        label = find_label(model)
        label_of_training = find_label(training)
        if label is not None:
            resolved[model] = label
        elif label_of_training is not None:
            resolved[model] = rename_training(_trim(model), label_of_training)
    names = Counter(resolved.get(model, model) for model in models)
    repeated = next((name for name, count in names.items() if count > 1), None)
    if repeated is not None:
        same = [model for model in models if resolved.get(model, model) == repeated]
        raise UsageError(
            f"$label: {same[0]:.60} and {same[1]:.60} would both be {repeated!r:.60}, expected different names",
            "label",
        )
    return resolved


def _trim(reference: str) -> str:
    """A reference without the ./ at the start of a path, and without the slash at its end."""
    return reference.removeprefix("./").rstrip("/") or "."


def _find_reference(reference: str, name: str, known: Collection[str]) -> tuple[str, str]:
    """A label parted at the = after which its reference is known: a path may have one."""
    longer, rest = reference, name
    while _trim(longer) not in known and "=" in rest:
        part, _, rest = rest.partition("=")
        longer = f"{longer}={part}"
    return (longer, rest) if _trim(longer) in known else (reference, name)


def list_named(*tables: pd.DataFrame) -> list[str]:
    """The models that some tables name: in their columns, or the one that a table without such a column is about.

    Those of rows that were left out of a table are among them, if its `attrs` list them.
    """
    names: list[str] = []
    for table in tables:
        columns = [column for column in NAMING if column in table]
        for column in columns:
            names += map(str, table[column].dropna().unique())
        if not columns and isinstance(table.attrs.get("model"), str):
            names.append(table.attrs["model"])
        names += table.attrs.get(ALL_MODELS, ())
    return [*dict.fromkeys(names)]


def name_models(rows: pd.DataFrame, labels: Mapping[str, str]) -> pd.DataFrame:
    """A table with labels in place of its models, as from `resolve_labels`; models without a label stay."""
    if not labels:
        return rows
    columns = {column: rows[column].map(lambda name: labels.get(name, name)) for column in NAMING if column in rows}
    named = rows.assign(**columns)
    named.attrs = {
        name: labels.get(value, value) if name in NAMING and isinstance(value, str) else value
        for name, value in rows.attrs.items()
    }
    return named
