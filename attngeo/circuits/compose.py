"""From a model to the table of compositions of its heads, with thresholds of pairs that cannot compose."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.reference import Model
from attngeo.circuits.compose_options import KINDS, ComposeOptions
from attngeo.keywords import takes
from attngeo.progress import ProgressCallback
from attngeo.questions.asking import ask_for_one_table
from attngeo.questions.frames import KEPT_FORM, set_types
from attngeo.questions.table import QUESTIONS
from attngeo.session import ResultOptions, Session, StudyOptions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from attngeo.circuits.composing import Record

# The share of impossible pairs that lies below the threshold.
QUANTILE = 0.999


class ComposeKeywords(ComposeOptions, HubAccess, ResultOptions, StudyOptions):
    """The keywords of `compose`."""

    options: ComposeOptions | None = None
    hub: HubAccess | None = None
    results: ResultOptions | None = None
    study: StudyOptions | None = None
    progress: ProgressCallback | None = None


@takes(ComposeKeywords)
def compose(  # noqa: D417 - the keywords are those of a session
    models: Model | Sequence[Model], options: ComposeOptions, *, session: Session
) -> pd.DataFrame:
    """How much of each head's output the heads of later layers read, with their queries, keys and values.

    The composition of a head that writes with O₁ = Wv·Wo and a head that reads with M₂ = Wq·Wkᵀ and writes with O₂ is
    ‖O₁·M₂‖/(‖O₁‖·‖M₂‖) for q, ‖M₂·O₁ᵀ‖/(‖M₂‖·‖O₁‖) for k and ‖O₁·O₂‖/(‖O₁‖·‖O₂‖) for v, in [0, 1]. `composition_z`
    counts the standard deviations of the squared composition above randomly rotated heads with the same singular
    values. Trained heads are above these even if they cannot compose. So there is a threshold: the 99.9% quantile of z
    over the impossible pairs of the same kind, whose writer is in a later layer than the reader.

    A pair above the threshold shares more directions than almost all pairs that cannot compose. This is no proof of a
    circuit. More pairs above the threshold than expected show that later layers read some directions that earlier
    layers write; what a pair does shows only in a running model.

    Args:
        models: a reference (`org/name[@revision]`, folder, file, `demo:NAME`) or a transformers model in memory; or
            several, with patterns as for `attngeo.score`. If one fails, the others are still composed, then its error
            is raised.
        options: which pairs to compose, and how; its fields are keywords, too:
            {options}
        hub: access to the Hub; its fields are keywords, too:
            {hub}
        results: kept compositions; its field is a keyword, too:
            {results}
        study: how to compose several models; its fields are keywords, too:
            {study}
        progress: called before each layer.

    Returns:
        A DataFrame with the columns `attngeo.columns("compose")`: one row per kind and pair of a head and a head of a
        later layer. `composition` and `composition_z` are missing if a form is zero or not finite. Its `attrs` say how
        it was made; `thresholds` has one dictionary per kind and pair of stacks: kind, from_stack, to_stack, threshold,
        impossible (number of impossible pairs), pairs (number of possible pairs), above (how many of these are above
        the threshold), expected (how many chance puts there).

    Raises:
        ModelUnavailableError: the model cannot be found or reached.
        CheckpointError: the model cannot be read, its values or outputs are unknown, or no stack has two layers.
        UsageError: an option has an invalid value.

    >>> import attngeo
    >>> rows = attngeo.compose("demo:minilm", kind="k")
    >>> len(rows), [of_kind["impossible"] for of_kind in rows.attrs["thresholds"]]
    (2160, [2160])
    """
    return ask_for_one_table(QUESTIONS["compose"], models, session, options=options)


def _is_sound(record: Mapping[str, Any]) -> bool:
    """Whether a record that was kept has a known kind, and a value for each pair of heads."""
    pairs = (record["from_heads"] or 0) * (record["to_heads"] or 0)
    lengths = {len(record[name] or ()) for name in ("composition", "composition_z")}
    return record["kind"] in KINDS and lengths == {pairs}


# The form of the records that are kept.
COMPOSITION_FORM = KEPT_FORM._replace(
    lists=("composition", "composition_z"),
    columns=(
        "revision",
        "kind",
        "is_possible",
        "from_route",
        "to_route",
        "from_heads",
        "to_heads",
        "composition",
        "composition_z",
    ),
    is_sound=_is_sound,
)


def build_frame(records: Sequence[Record], columns: Sequence[str]) -> pd.DataFrame:
    """The table of the pairs that can compose. Its `attrs` have the thresholds, taken from the pairs that cannot."""
    thresholds = _find_thresholds(records)
    limits = {(row["kind"], row["from_stack"], row["to_stack"]): row["threshold"] for row in thresholds}
    possible = [record for record in records if record["is_possible"]]
    possible.sort(key=lambda record: KINDS.index(record["kind"]))
    frames = [
        _build_rows(record, limits[record["kind"], record["from_route"], record["to_route"]]) for record in possible
    ]
    frame = set_types(pd.concat(frames, ignore_index=True).assign(model="")[list(columns)])
    frame.attrs = {"thresholds": thresholds}
    return frame


def _build_rows(record: Record, threshold: float) -> pd.DataFrame:
    """One row for each pair of heads of a record."""
    heads = record["from_heads"]
    others = record["to_heads"]
    z = np.array(record["composition_z"], dtype=float)
    return pd.DataFrame(
        {
            "revision": record["revision"],
            "kind": record["kind"],
            "from_stack": record["from_stack"],
            "from_layer": record["from_layer"],
            "from_head": np.repeat(np.arange(heads), others),
            "to_stack": record["to_stack"],
            "to_layer": record["to_layer"],
            "to_head": np.tile(np.arange(others), heads),
            "composition": np.array(record["composition"], dtype=float),
            "composition_z": z,
            "above_threshold": z > threshold,
            "note": record["note"],
        }
    )


def _find_thresholds(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Of each kind and route: the threshold, and how many pairs are above it and expected there."""
    possible: dict[tuple[str, str, str], list[NDArray[np.float64]]] = {}
    impossible: dict[tuple[str, str, str], list[NDArray[np.float64]]] = {}
    for record in records:
        route = (record["kind"], record["from_route"], record["to_route"])
        z = np.array(record["composition_z"], dtype=float)
        group = possible if record["is_possible"] else impossible
        group.setdefault(route, []).append(z[np.isfinite(z)])
    thresholds = []
    for route, members in possible.items():
        z = np.concatenate(members)
        null = np.concatenate(impossible.get(route, [np.zeros(0)]))
        threshold = float(np.quantile(null, QUANTILE)) if len(null) else math.inf
        kind, from_stack, to_stack = route
        thresholds.append(
            {
                "kind": kind,
                "from_stack": from_stack,
                "to_stack": to_stack,
                "threshold": threshold,
                "impossible": len(null),
                "pairs": len(z),
                "above": int((z > threshold).sum()),
                "expected": len(z) * _share_above(len(null)),
            }
        )
    return thresholds


def _share_above(count: int) -> float:
    """The share of values above the quantile of so many others of the same distribution that is expected.

    Of n values, the r-th smallest is exceeded by another one with the probability 1 - r/(n + 1), whatever the
    distribution is. The quantile is interpolated between two of them. Of few values it is nearly the largest: of 48, 2%
    are above it, and not 0.1%.
    """
    rank = QUANTILE * (count - 1) + 1
    return 1 - rank / (count + 1) if count else 0.0
