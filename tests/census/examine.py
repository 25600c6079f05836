"""One model type against attngeo: build the small model, save it, read it, and compare it with what runs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from support.check_model import check_model
from torch import Tensor

from attngeo.attention.finding import sites_of
from attngeo.checkpoints.opening import open_store
from attngeo.checkpoints.store import ModuleStore, TensorStore
from attngeo.errors import AttnGeoError
from attngeo.layouts.layout import AttentionSite
from attngeo.layouts.names import pattern_of
from attngeo.layouts.rules import OutputNote
from attngeo.verification.checking import COMPARED, EXPLAINED, Findings, predict_factors, predict_outputs
from attngeo.verification.comparing import Prediction, difference_of
from attngeo.verification.drives import run_drives
from attngeo.verification.recording import Product, record_products
from attngeo.verification.written import OutputPrediction
from census.build import CannotBuild, Specimen, build
from census.norms import find_unembedding, find_wrong_gains
from census.rotary import find_rotation

Verdict = Literal["right", "rest listed", "wrong", "incomplete", "refused", "no attention", "not verified"]
Outputs = Literal["right", "sink", "changed", "unknown", "wrong", ""]


@dataclass(frozen=True)
class Row:
    """The result for one model type.

    verdict: "right"; "rest listed" if what was read is right and the rest is reported as left out; "wrong" if a site
    differs from the running model; "incomplete" if attention is neither read nor reported; "refused" by attngeo;
    "no attention"; "not verified" if the model cannot be built or run here. sites: how many attngeo reads.
    causal: "yes" if a self-attention module says that each token attends to earlier ones only. rotary, scalings: as
    `find_rotation` gives them. reason: what differs, or why it was refused or not verified.

    outputs: of a type whose queries and keys are right, its values and outputs: "right" if every site writes what its
    weights give; "sink" if values and output projection are right, and a note says that weights do not sum to 1;
    "changed" if they are, and a note says what else stands between them; "unknown" if a site says why its values or
    outputs are not read; "wrong" if a site differs from the running model, or such a note is missing. output_reason:
    what the notes say, or what is wrong.

    last_norm, gain_offset, head_layers: as `find_unembedding` gives them. head: "known", "none" for a
    type that predicts no tokens, or why they are not known.
    """

    model_type: str
    verdict: Verdict
    sites: int = 0
    causal: str = ""
    rotary: str = ""
    scalings: str = ""
    reason: str = ""
    outputs: Outputs = ""
    output_reason: str = ""
    last_norm: str = ""
    gain_offset: str = ""
    head_layers: str = ""
    head: str = ""


def examine(model_type: str, kinds: Iterable[str] = ()) -> Row:
    """Examine one model type, at these kinds of rotary scaling. Draws everything from fixed seeds."""
    try:
        specimen = build(model_type)
    except CannotBuild as error:
        return Row(model_type, "not verified", reason=str(error))
    with record_products(specimen.model) as seen:
        run_drives(specimen.model, specimen.drives)
    causal = "yes" if any(is_causal(specimen.model, product) for product in seen.products) else ""
    row = replace(_examine(specimen, seen.products), causal=causal)
    if row.verdict not in ("right", "rest listed"):
        return row
    rotary, scalings = find_rotation(specimen, kinds)
    before = find_unembedding(model_type)
    return replace(
        row,
        rotary=rotary,
        scalings=scalings,
        last_norm=before.norm,
        gain_offset=str(before.offset) if before.norm else "",
        head_layers=" ".join(before.layers),
        head=before.reason or "known",
    )


def is_causal(model: torch.nn.Module, product: Product) -> bool:
    """Whether the module that computed a product says that it is causal."""
    module = model.get_submodule(product.running[-1])
    return product.query.shape[-2] == product.key.shape[-2] and getattr(module, "is_causal", False) is True


def _examine(specimen: Specimen, products: list[Product]) -> Row:
    model_type = specimen.model_type
    attends = sorted({pattern_of(product.running[-1]) for product in products})
    with tempfile.TemporaryDirectory() as folder:
        specimen.model.save_pretrained(folder)
        try:
            saved, skipped = read_sites(Path(folder))
        except AttnGeoError as error:
            reason = str(error).replace(f"{folder}: ", "").replace(folder, "")
            return Row(model_type, "refused" if attends else "no attention", reason=reason)
    try:
        findings = check_model(specimen.model, lambda: run_drives(specimen.model, specimen.drives))
        loaded, _ = read_sites(specimen.model)
    except AttnGeoError as error:
        return Row(model_type, "wrong", len(saved), reason=f"read from a file, but refused in memory: {error}")
    if not attends and not findings.checks:
        return Row(model_type, "no attention")
    if difference := compare_sites(saved, loaded, complete=not skipped):
        return Row(model_type, "wrong", len(saved), reason=difference)
    if wrong := find_wrong_gains(specimen.model):
        return Row(model_type, "wrong", len(saved), reason=wrong)
    row = judge(model_type, findings)
    return judge_outputs(row, findings) if row.verdict in ("right", "rest listed") else row


# From the best to the worst.
OUTPUTS: tuple[Outputs, ...] = ("right", "sink", "changed", "unknown", "wrong")


def judge_outputs(row: Row, findings: Findings) -> Row:
    """The row with the result for values and outputs."""
    outcomes: dict[Outputs, dict[str, None]] = {outcome: {} for outcome in OUTPUTS}
    for check in findings.checks:
        site = check.site
        where = f"{pattern_of(site.module)} ({site.stack})"
        if site.missing:
            outcomes["unknown"][f"{where}: {site.missing}"] = None
        elif check.outputs == "agrees":
            outcomes["right"][""] = None
        else:
            stated = [note for note in site.output_notes if note in EXPLAINED["parts agree"]]
            if check.outputs not in EXPLAINED:
                outcomes["wrong"][f"{check.outputs}: {where}"] = None
            elif stated == [OutputNote.SINK]:
                outcomes["sink"][OutputNote.SINK] = None
            else:
                outcomes["changed"]["; ".join(stated)] = None
    worst = next(outcome for outcome in reversed(OUTPUTS) if outcomes[outcome])
    return replace(row, outputs=worst, output_reason=", ".join(outcomes[worst]))


def judge(model_type: str, findings: Findings) -> Row:
    """The result of a model that attngeo reads."""
    count = len(findings.checks)
    by_verdict: dict[str, list[str]] = {}
    for check in findings.checks:
        where = f"{pattern_of(check.site.module)} ({check.site.stack})"
        by_verdict.setdefault(check.verdict, []).append(where)
    for verdict in ("differs", "no product"):
        if places := sorted(set(by_verdict.get(verdict, []))):
            return Row(model_type, "wrong", count, reason=f"{verdict}: {', '.join(places)}")
    if findings.unreported:
        reason = f"neither read nor reported: {', '.join(findings.unreported)}"
        return Row(model_type, "incomplete", count, reason=reason)
    if "not run" in by_verdict:
        places = sorted(set(by_verdict["not run"]))
        return Row(model_type, "not verified", count, reason=f"not run here: {', '.join(places)}")
    if findings.unexplained:
        return Row(model_type, "rest listed", count, reason=f"left out: {', '.join(findings.unexplained)}")
    return Row(model_type, "right", count)


# Relative difference of weights that were saved and read again.
SAME = 1e-4


class Stored(NamedTuple):
    """One site, and what its weights multiply and write."""

    site: AttentionSite
    prediction: Prediction
    outputs: OutputPrediction | None


def read_sites(model: Any) -> tuple[list[Stored], dict[str, str]]:
    """All sites of a model in memory or in a file, and what is left out: name pattern → reason."""
    store: TensorStore
    with closing(ModuleStore(model) if hasattr(model, "state_dict") else open_store(model)) as store:
        sites, skipped = sites_of(store, COMPARED, parts="qkvo")
        stored = []
        for site in sites:
            outputs = None if site.missing else predict_outputs(store, site)
            stored.append(Stored(site, predict_factors(store, site), outputs))
        return stored, skipped


def compare_sites(saved: list[Stored], loaded: list[Stored], *, complete: bool) -> str:
    """How the sites of a saved model differ from those of the same model in memory; "" if they do not.

    The two may name modules and their stacks differently. A file has shared weights only once. complete: nothing was
    left out of the file, so that all sites in memory have to be there.
    """
    for own in saved:
        if not any(_are_equal(own, other) for other in loaded if other.site.layer == own.site.layer):
            return f"{own.site.stack} {own.site.layer} of the file is not in memory"
    for own in loaded if complete else ():
        if not any(_are_equal(own, other) for other in saved):
            return f"{own.site.stack} {own.site.layer} in memory is not in the file"
    return ""


def _are_equal(one: Stored, other: Stored) -> bool:
    """Whether two sites have the same forms."""
    if one.site.is_cross != other.site.is_cross or difference_of(one.prediction, other.prediction) >= SAME:
        return False
    if one.outputs is None or other.outputs is None:
        return one.outputs is other.outputs
    have = _write(one.outputs)
    want = _write(other.outputs)
    return have.shape == want.shape and bool((have - want).norm() < SAME * want.norm())


def _write(outputs: OutputPrediction) -> Tensor:
    """What each head writes, [heads, runs, output_width]."""
    values = outputs.values.repeat_interleave(len(outputs.o) // len(outputs.values), 0)
    return torch.einsum("hrk,hkd->hrd", values, outputs.o)
