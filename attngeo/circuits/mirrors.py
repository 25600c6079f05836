"""From a model to the table of pairs of its heads, as mirrors and twins."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.reference import Model
from attngeo.circuits.mirror_options import MirrorOptions
from attngeo.circuits.orientation import judge_orientation
from attngeo.keywords import takes
from attngeo.progress import ProgressCallback
from attngeo.questions.asking import ask_for_one_table
from attngeo.questions.frames import KEPT_FORM, set_types
from attngeo.questions.table import QUESTIONS
from attngeo.session import ResultOptions, Session, StudyOptions

if TYPE_CHECKING:
    from attngeo.circuits.mirroring import Record

# What a record has of each pair of heads, and of each head of both layers.
OF_PAIRS = ("mirror", "twin", "antisymmetric_cosine", "mirror_z", "symmetry_part", "shares_key_head", "is_partner")
OF_HEADS = ("norms", "other_norms")


class MirrorKeywords(MirrorOptions, HubAccess, ResultOptions, StudyOptions):
    """The keywords of `mirrors`."""

    options: MirrorOptions | None = None
    hub: HubAccess | None = None
    results: ResultOptions | None = None
    study: StudyOptions | None = None
    progress: ProgressCallback | None = None


@takes(MirrorKeywords)
def mirrors(  # noqa: D417 - the keywords are those of a session
    models: Model | Sequence[Model], options: MirrorOptions, *, session: Session
) -> pd.DataFrame:
    """How much each pair of heads of a layer are transposes of each other (mirrors) or alike (twins).

    The forms of two heads, M = S + A and M' = S' + A' with symmetric and antisymmetric parts, have the mirror
    tr(M·M')/(‖M‖·‖M'‖), 1 if M' ∝ Mᵀ, and the twin ⟨M, M'⟩/(‖M‖·‖M'‖), 1 if M' ∝ M. Only the cosine of A and A' tells
    a mirror (−1) from a twin (1). With rotary embeddings, both are means over all offsets.

    Heads of a layer are matched into disjoint partners by the absolute value of this cosine. If heads were transposed
    at random, the signs of partners would be independent coins: the sign test. It does not confirm a single pair, which
    only a running model does.

    Args:
        models: a reference (`org/name[@revision]`, folder, file, `demo:NAME`) or a transformers model in memory; or
            several, with patterns as for `attngeo.score`. If one fails, its error is raised after the others are done.
        options: which pairs to compare, and in which form; its fields are keywords, too:
            {options}
        hub: access to the Hub; its fields are keywords, too:
            {hub}
        results: kept results; its field is a keyword, too:
            {results}
        study: how several models are asked; its fields are keywords, too:
            {study}
        progress: called before each layer.

    Returns:
        A DataFrame with one row per pair of heads of a layer, head < other_head; with `across`, also of two layers of a
        stack, layer < other_layer. Its columns are `attngeo.columns("mirrors")`:

            form                  "rotary": over all offsets; "plain": at offset 0, or without rotary embeddings
            shares_key_head       whether both heads read one key head; such heads are never partners
            mirror                tr(M·M')/(‖M‖·‖M'‖), in [−1, 1]
            twin                  ⟨M, M'⟩/(‖M‖·‖M'‖), in [−1, 1]
            antisymmetric_cosine  cosine of the antisymmetric parts, in [−1, 1]
            mirror_z              standard deviations of tr(M·M') above chance: one head turned at random
            symmetry_part         2·tr(M·M')/‖ΣM‖², the share of the pair in the layer's symmetry; missing across layers
            is_partner            whether the pair is one of the disjoint pairs of the sign test
            note                  caveats; why numbers are missing

        Its `attrs` say how it was made. `symmetries` has one dictionary per layer: stack, layer, form, heads, symmetry
        and own_symmetry, the share of the heads themselves; the symmetry is this and the sum of `symmetry_part`.
        `sign_tests` has the table of `attngeo.circuits.orientation.judge_orientation` as one dictionary per stack.

    Raises:
        ModelUnavailableError: the model cannot be found or reached.
        CheckpointError: the model cannot be read, or has no pair of heads.
        UsageError: an option has an invalid value, or the rotary form is requested, but no layer rotates.

    >>> import attngeo
    >>> rows = attngeo.mirrors("demo:minilm", layers=[4])
    >>> strongest = rows.nlargest(1, "mirror").iloc[0]
    >>> int(strongest["head"]), int(strongest["other_head"]), round(float(strongest["mirror"]), 2)
    (6, 7, 0.69)
    """
    return ask_for_one_table(QUESTIONS["mirrors"], models, session, options=options)


def _is_sound(record: Mapping[str, Any]) -> bool:
    """Whether a record that was kept has a value for each pair of heads."""
    heads = record["heads"] or 0
    other_heads = record["other_heads"] or 0
    is_within = record["layer"] == record["other_layer"]
    pairs = math.comb(heads, 2) if is_within else heads * other_heads
    lengths = {len(record[name] or ()) for name in OF_PAIRS}
    norms = [len(record[name] or ()) for name in OF_HEADS]
    return lengths == {pairs} and norms == [heads, other_heads]


# The form of the records that are kept.
MIRROR_FORM = KEPT_FORM._replace(
    whole=(*KEPT_FORM.whole, "heads", "other_heads"),
    lists=(*OF_PAIRS, *OF_HEADS),
    columns=(
        *("revision", "model_type", "stack", "layer", "other_layer", "form", "heads", "other_heads"),
        *("symmetry", "own_symmetry", *OF_PAIRS, *OF_HEADS),
    ),
    is_sound=_is_sound,
)


def build_frame(records: Sequence[Record], columns: Sequence[str]) -> pd.DataFrame:
    """The table of pairs of heads. Its `attrs` have the symmetry of each layer and the sign test of each stack."""
    frames = [_build_rows(record) for record in records]
    frame = set_types(pd.concat(frames, ignore_index=True).assign(model="")[list(columns)])
    described = ("stack", "layer", "form", "heads", "symmetry", "own_symmetry")
    within = [record for record in records if record["layer"] == record["other_layer"]]
    tests = judge_orientation(frame).drop(columns="model").to_dict("records")
    frame.attrs = {
        "symmetries": [{name: record[name] for name in described} for record in within],
        "sign_tests": tests,
    }
    return frame


def _build_rows(record: Record) -> pd.DataFrame:
    """One row for each pair of heads of a record."""
    heads = record["heads"]
    other_heads = record["other_heads"]
    if record["layer"] == record["other_layer"]:
        numbers, others = np.triu_indices(heads, 1)
    else:
        numbers = np.repeat(np.arange(heads), other_heads)
        others = np.tile(np.arange(other_heads), heads)
    columns = {name: np.array(record[name], dtype=float) for name in OF_PAIRS}
    columns |= {name: columns[name] > 0 for name in ("shares_key_head", "is_partner")}
    place = {name: record[name] for name in ("revision", "model_type", "stack", "layer", "other_layer", "form")}
    rows = pd.DataFrame({"head": numbers, "other_head": others} | columns).assign(**place)
    rows["note"] = record["note"]
    for row in rows.index[rows["antisymmetric_cosine"].isna()]:
        reasons = _explain_missing(record, int(numbers[row]), int(others[row]), float(columns["mirror"][row]))
        rows.loc[row, "note"] = "; ".join(filter(None, [record["note"], *reasons]))
    return rows


def _explain_missing(record: Record, head: int, other_head: int, mirror: float) -> list[str]:
    """Why a pair of heads has no antisymmetric cosine."""
    if not math.isnan(mirror):
        return ["a head is symmetric: it has no antisymmetric part"]
    reasons = []
    sides = (("layer", "norms", head), ("other_layer", "other_norms", other_head))
    for layer, norms, number in sides:
        norm = record[norms][number]
        name = f"head {number} of layer {record[layer]}"
        if norm == 0:
            reasons.append(f"{name} is zero")
        elif norm is None or not math.isfinite(norm):
            reasons.append(f"{name} has NaN or Inf in the query or key weights")
    return reasons
