"""Verify a model: compare the weights that attngeo reads with the running model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from itertools import chain
from typing import Any, NamedTuple

import pandas as pd
from torch import nn

from attngeo.attention.finding import sites_of
from attngeo.checkpoints.opening import open_store
from attngeo.checkpoints.reference import Model
from attngeo.checkpoints.store import ModuleStore, TensorStore
from attngeo.choices import Circuit, Parts
from attngeo.errors import AttnGeoError, CorruptCheckpointError, UnsupportedModelError, about
from attngeo.keywords import takes
from attngeo.layouts.layout import AttentionSite
from attngeo.layouts.names import is_in, name_layers, pattern_of
from attngeo.progress import Progress, ProgressCallback
from attngeo.provenance import software
from attngeo.questions.frames import build_frame
from attngeo.session import Session
from attngeo.verification.checking import (
    COMPARED,
    Expectation,
    SiteCheck,
    check_expectations,
    predict_factors,
    predict_outputs,
)
from attngeo.verification.comparing import TOLERANCE, Prediction, difference_of
from attngeo.verification.drives import find_drives, run_drives
from attngeo.verification.loading import open_running, silence_libraries
from attngeo.verification.options import VerifyKeywords, verify_columns

AGREEING = ("agrees", "directions agree", "heads agree", "parts agree")
# Other verdicts → what they say: that scores are not those of the running model, or that this is not known.
FAILING = {
    "differs": "differs from the running model",
    "no product": "computes no softmax of query-key products in the running model",
    "only in memory": "attends in the running model, but is not read from the file",
}
UNCHECKED = {
    "not run": "was not run",
    "only in the file": "is not in the running model",
    "not known": "has values or outputs that no layout describes",
}


@takes(VerifyKeywords)
def verify(  # noqa: D417 - the other keywords are those of a session
    model: Model, *, circuit: Circuit = "qk", session: Session
) -> pd.DataFrame:
    """Compare the weights that attngeo reads with the running model, at every attention site.

    The model runs on random inputs. Every product of queries and keys that goes through a softmax is recorded, whatever
    its tensors and modules are called, and compared with the product of the weights. For values and outputs, all tokens
    of a module get the same input, and the output of the module is compared. The weight files of a model on the Hub are
    always downloaded, because transformers reads them.

    Args:
        model: a reference (`org/name[@revision]`, folder, file, `demo:NAME`), which transformers loads in float32
            without code of the checkpoint, using only that reference; or a transformers model in memory.
        circuit: the weights to compare: "qk" for queries and keys, "ov" for values and outputs, "both" for all.
        hub: access to the Hub; its fields are keywords, too:
            {hub}
        progress: called before each file and run.

    Returns:
        A DataFrame with one row per site; with `circuit` "both", one row per site and circuit. Unless `circuit` is
        "qk", a column `circuit` says "qk" or "ov". `module` is the name in the file, `difference` the relative
        difference of the products (qk) or outputs (ov), and `verdict` one of:

            agrees              the weights give the products (qk) or outputs (ov) of the model
            directions agree    the same for their directions; the model divides queries and keys by their lengths
            heads agree         each head writes what it should from what it reads, but its attention weights do not sum
                                to 1; a note says that the site has an attention sink
            parts agree         values and output projection agree; a note names what comes between them, such as a gate
            not known           attngeo does not know where the values or outputs of the site are
            differs             the products or outputs differ
            no product          the module ran, but nothing in it goes through a softmax
            only in memory      the running model attends here, but attngeo neither finds the site in the file nor
                                leaves it out for a known reason
            not run             no inputs were found that reach the module
            only in the file    the model in memory has no such site: its class leaves this part out

        `note` has caveats about the site.

        Its `attrs` have `model` and `revision`; `skipped`, what is left out: name pattern → reason; `unexplained`, name
        patterns of other attending modules that are neither read nor left out; and `problem`, why the whole model does
        not run, or "".

    Raises:
        ModelUnavailableError: the model cannot be found or reached.
        NotEnoughMemoryError: the model, or what it multiplies, does not fit in memory.
        CheckpointError: the model cannot be read, or transformers cannot load it without code from the Hub.

    >>> import attngeo
    >>> attngeo.verify("demo:minilm").verdict.unique().tolist()
    ['agrees']
    """
    return verify_model(model, session, circuit)


def verify_model(model: Model, session: Session, circuit: Circuit = "qk") -> pd.DataFrame:
    """The verdicts of one model: `verify` with a session."""
    read_parts: Parts = "qk" if circuit == "qk" else "qkvo"  # queries and keys tell which sites are which
    progress = session.progress
    with closing(open_store(model, session.hub)) as store, about(store.ref), silence_libraries():
        saved, skipped = sites_of(store, COMPARED, parts=read_parts)
        if isinstance(model, nn.Module) and not model.state_dict().keys() >= set(store.names):
            raise UnsupportedModelError(
                "its modules have PEFT's names; call merge_and_unload() first, and verify the result"
            )
        with open_running(model, store, progress) as (running, random):
            loaded, skipped_in_memory = _sites_in_memory(running, read_parts)
            _require_values(loaded, random, type(running).__name__)
            expected, only_saved = _expect(store, saved, ModuleStore(running), loaded, progress)
            drives = find_drives(running)
            findings = check_expectations(
                running,
                lambda: run_drives(running, drives.drives),
                expected,
                {**skipped_in_memory, **skipped},
                lambda done, total: progress(Progress("verify", "run the model", done, total, "steps")),
            )
    matched = {expectation.module for expectation in expected}
    only_loaded = [site for site in loaded if site.module not in matched]
    in_memory = [site for site in only_loaded if any(_is_in(site, module) for module in findings.unreported)]
    rows = []
    for one_circuit in ("qk", "ov"):
        if circuit in (one_circuit, "both"):
            verdicts = [(check.site, *_judge_circuit(check, one_circuit)) for check in findings.checks]
            verdicts += [(site, "only in the file", math.nan) for site in only_saved]
            verdicts += [(site, "only in memory", math.nan) for site in in_memory]
            rows += [_build_row(site, one_circuit, verdict, difference) for site, verdict, difference in verdicts]
    of_model = {"model": store.ref, "revision": store.revision}
    frame = build_frame([of_model | row for row in rows], verify_columns(circuit))
    attrs: dict[Any, Any] = {"title": "Verification", **software(), "model": store.ref, "revision": store.revision}
    unexplained = [module for module in findings.unreported if not any(_is_in(site, module) for site in only_loaded)]
    frame.attrs = attrs | {"skipped": skipped, "unexplained": unexplained, "problem": drives.error}
    return frame


def _build_row(site: AttentionSite, circuit: str, verdict: str, difference: float) -> dict[str, Any]:
    """The row of one circuit of a site, without what all rows of the model have in common."""
    notes = site.notes if circuit == "qk" else site.output_notes
    return {
        "stack": site.stack,
        "layer": site.layer,
        "circuit": circuit,
        "module": site.module,
        "verdict": verdict,
        "difference": difference,
        "note": "; ".join(map(str, notes)),
    }


def _judge_circuit(check: SiteCheck, circuit: str) -> tuple[str, float]:
    """Verdict and difference of one circuit of a site."""
    if circuit == "qk":
        return check.verdict, check.difference
    difference = math.nan if check.written is None else check.written.of_verdict
    return check.outputs or "not known", difference


def _sites_in_memory(model: nn.Module, parts: Parts) -> tuple[list[AttentionSite], dict[str, str]]:
    """The sites of a model in memory, and what is left out; none if it is refused, though its file is not."""
    try:
        return sites_of(ModuleStore(model), COMPARED, parts=parts)
    except AttnGeoError:
        return [], {}


def _require_values(sites: Iterable[AttentionSite], random: Collection[str], class_name: str) -> None:
    """Raise CorruptCheckpointError if tensors of sites have random values, because the file lacks them."""
    names = chain.from_iterable(site.tensors.values() for site in sites)
    missing = [name for name in names if name in random]
    if missing:
        raise CorruptCheckpointError(
            f"the file lacks {len(missing)} attention tensors of {class_name}, for example {missing[0]}; the class in "
            "config.json does not match the weights"
        )


def _expect(
    store: TensorStore,
    saved: Sequence[AttentionSite],
    in_memory: ModuleStore,
    loaded: Sequence[AttentionSite],
    progress: ProgressCallback,
) -> tuple[list[Expectation], list[AttentionSite]]:
    """What each site of the file, and each module in memory that shares its weights, should multiply.

    Also returns the sites of the file that the model in memory does not have.
    """
    saved_sites = dict(zip(places_of(saved), saved, strict=True))
    loaded_sites = dict(zip(places_of(loaded), loaded, strict=True))
    predicted: dict[SitePlace, Prediction] = {}
    for place, site in saved_sites.items():
        progress(Progress("verify", f"{site.stack} {site.layer}", len(predicted), len(saved), "steps"))
        predicted[place] = predict_factors(store, site)
    sources = match_places(predicted, {place: predict_factors(in_memory, site) for place, site in loaded_sites.items()})
    partners: dict[SitePlace, AttentionSite] = {}
    copies = []
    for loaded_place, place in sources.items():
        site = loaded_sites[loaded_place]
        if place in partners:
            outputs = predict_outputs(store, saved_sites[place]) if "v" in saved_sites[place].parts else None
            copies.append(Expectation(site, site.module, predicted[place], outputs))
        partners.setdefault(place, site)
    expected = []
    only_saved = []
    for place, site in saved_sites.items():
        if place in partners:
            outputs = predict_outputs(store, site) if "v" in site.parts else None
            expected.append(Expectation(site, partners[place].module, predicted[place], outputs))
        else:
            only_saved.append(site)
    return expected + copies, only_saved


def _is_in(site: AttentionSite, module: str) -> bool:
    """Whether a module with this pattern of names is that of the site, inside it, or around it."""
    pattern = pattern_of(site.module)
    return is_in(module, pattern) or is_in(pattern, module)


class SitePlace(NamedTuple):
    """The place of a site in its model.

    Attributes:
        stack: name of its stack, without the pattern that distinguishes stacks with the same name.
        layer: number of its layer.
        number: number among the sites of the same stack and layer, from 0.
    """

    stack: str
    layer: int
    number: int


def places_of(sites: Iterable[AttentionSite]) -> list[SitePlace]:
    """The place of each site, in the same order. All are different."""
    seen: Counter[tuple[str, int]] = Counter()
    places = []
    for site in sites:
        key = (site.stack.partition(":")[0], site.layer)
        places.append(SitePlace(*key, seen[key]))
        seen[key] += 1
    return places


def match_places(
    saved: Mapping[SitePlace, Prediction], loaded: Mapping[SitePlace, Prediction]
) -> dict[SitePlace, SitePlace]:
    """Match the sites of the model in memory with those of a file: place in memory → place in the file.

    Sites with equal weights are matched, starting with those at the same place; a file holds weights only once if
    several modules in memory share them. A site with no equal is matched by its place, so that it is still compared
    with the running model.
    """

    def equal(place: SitePlace, other: SitePlace) -> bool:
        return difference_of(saved[place], loaded[other]) < TOLERANCE

    sources = {place: place for place in loaded if place in saved and equal(place, place)}
    for other in loaded:
        if other not in sources:
            matching = [place for place in saved if equal(place, other)]
            free = [place for place in matching if place not in sources.values()]
            if matching:
                sources[other] = (free or matching)[0]
    for place in loaded:
        if place in saved and place not in sources and place not in sources.values():
            sources[place] = place
    return sources


def describe_verification(frame: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Sentences about a table of `verify`: disagreements with the running model, and notes on what was checked."""
    agreeing = int(frame["verdict"].isin(AGREEING).sum())
    total = len(frame)
    complaints = _describe_groups(frame, FAILING)
    complaints += [
        f"{pattern} attends in the running model, but attngeo neither reads it nor leaves it out"
        for pattern in frame.attrs["unexplained"]
    ]
    notes = _describe_groups(frame, UNCHECKED)
    if frame.attrs["problem"] and "not run" in set(frame["verdict"]):
        notes.append(f"the whole model does not run on random inputs: {frame.attrs['problem']}")
    share = f"all {total}" if agreeing == total else f"{agreeing} of {total}"
    unit = "circuits" if "circuit" in frame else "sites"
    notes.append(f"{share} {unit} agree with the running model")
    model = frame.attrs["model"]
    return [f"{model}: {text}" for text in complaints], [f"{model}: {text}" for text in notes]


def _describe_groups(frame: pd.DataFrame, meanings: Mapping[str, str]) -> list[str]:
    """A sentence for the sites of each verdict, circuit, stack and pattern of names."""
    rows = frame[frame["verdict"].isin([*meanings])].assign(pattern=frame["module"].map(pattern_of))
    if "circuit" not in rows:
        rows["circuit"] = "qk"
    sentences = []
    for (verdict, circuit, stack, pattern), sites in rows.groupby(
        ["verdict", "circuit", "stack", "pattern"], sort=False
    ):
        difference = f", difference {sites['difference'].max():.2g}" if verdict == "differs" else ""
        of_outputs = ", values and outputs" if circuit == "ov" else ""
        where = f"{str(stack).partition(':')[0]}, {name_layers(sites['layer'])}{of_outputs}{difference}"
        sentences.append(f"{pattern or 'the model itself'} ({where}) {meanings[str(verdict)]}")
    return sentences
