"""Verify a model: the weights that attngeo reads of it against what the model multiplies when it runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import pandas as pd
from torch import nn

from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.opening import open_store
from attngeo.checkpoints.store import ModuleStore, TensorStore
from attngeo.errors import AttnGeoError, CorruptCheckpointError, UnsupportedModelError
from attngeo.keywords import takes
from attngeo.layouts.layout import AttentionSite
from attngeo.layouts.names import is_in, name_layers, pattern_of
from attngeo.progress import Progress, ProgressCallback
from attngeo.provenance import software
from attngeo.scores.weights import sites_of
from attngeo.session import Session
from attngeo.verification.checking import (
    COMPARED,
    TOLERANCE,
    Expectation,
    Findings,
    Prediction,
    check_expectations,
    difference_of,
    predict,
)
from attngeo.verification.running import borrow_model, find_drives, load_model, run_drives, silence_libraries

COLUMNS = ("model", "stack", "layer", "module", "verdict", "difference")
AGREEING = ("agrees", "directions agree")
# What the other verdicts say: that scores are not those of the running model, or that this is not known.
FAILING = {
    "differs": "differs from what the running model multiplies",
    "no product": "has no product that goes through a softmax in the running model",
    "only in memory": "attends in the running model, and is not read from the file",
}
UNCHECKED = {"not run": "was not run", "only in the file": "is not in the running model"}


class VerifyKeywords(HubAccess):
    """The keywords of `verify`."""

    hub: HubAccess | None = None
    progress: ProgressCallback | None = None


@takes(VerifyKeywords)
def verify(model: Any, *, session: Session) -> pd.DataFrame:
    """Compare the query and key weights that attngeo reads with what the running model multiplies, at every site.

    model: a reference (`org/name[@revision]`, folder, file, `demo:NAME`), which transformers loads in float32 without
    code of the checkpoint, by that reference alone; or a transformers model in memory.
    {hub}
    progress: is called before each file and run.

    The files of weights of a model on the Hub are downloaded in any case: transformers reads them.

    The model runs on random inputs. Each product of queries and keys that goes through a softmax is recorded, whatever
    its tensors and modules are called, and compared with the product that the weights give.

    Returns a DataFrame with one row for each site. `module` is its name in the file, `difference` the relative
    difference of the products, and `verdict` one of:

        agrees              the products are those of the weights
        directions agree    so are their directions; the model divides queries and keys by their lengths
        differs             the products are others
        no product          the module ran, but nothing in it goes through a softmax
        only in memory      the running model attends here, and attngeo neither finds the site in the file nor leaves it
                            out with a reason
        not run             no inputs were found that reach the module
        only in the file    the model in memory has no such site: its class leaves out this part

    Its `attrs`: `model`, `revision`; `skipped`, what is left out, name pattern → reason; `unexplained`, name patterns
    of other modules that attend and that are neither read nor left out; `problem`, why the whole model does not run,
    or "".

    Raises ModelUnavailableError, NotEnoughMemoryError; CheckpointError, also for a model that transformers does not
    load without code of the Hub.

    >>> import attngeo
    >>> attngeo.verify("demo:minilm").verdict.unique().tolist()
    ['agrees']
    """
    return verify_model(model, session)


def verify_model(model: Any, session: Session) -> pd.DataFrame:
    """The verdicts of one model: `verify` with a session."""
    report = session.progress
    with closing(open_store(model, session.hub)) as store, silence_libraries():
        saved, skipped = sites_of(store, COMPARED)
        with _open_running(model, store, report) as running:
            expected, lonely = _expect(store, saved, running, report)
            drives = find_drives(running.model)
            findings = check_expectations(
                running.model,
                lambda: run_drives(running.model, drives.drives),
                expected,
                {**running.skipped, **skipped},
                lambda done, total: report(Progress("verify", "run the model", done, total, "steps")),
            )
        known = {expectation.module for expectation in expected}
        rest = [site for site in running.sites if site.module not in known]
    frame = _tabulate(findings, lonely, rest)
    about: dict[Any, Any] = {"title": "Verification", **software(), "model": store.ref, "revision": store.revision}
    unexplained = [place for place in findings.unreported if not any(_is_in(site, place) for site in rest)]
    frame.attrs = about | {"skipped": skipped, "unexplained": unexplained, "problem": drives.error}
    return frame.assign(model=store.ref)


def _tabulate(findings: Findings, lonely: list[AttentionSite], rest: list[AttentionSite]) -> pd.DataFrame:
    """The rows of `verify`. lonely: the sites that only the file has. rest: those that only the model in memory has."""
    rows = [
        *((check.site, check.verdict, check.difference) for check in findings.checks),
        *((site, "only in the file", math.nan) for site in lonely),
        *((s, "only in memory", math.nan) for s in rest if any(_is_in(s, place) for place in findings.unreported)),
    ]
    frame = pd.DataFrame(
        [("", site.stack, site.layer, site.module, *verdict) for site, *verdict in rows], columns=list(COLUMNS)
    )
    return frame.astype({"layer": "Int64"})


class Running(NamedTuple):
    """A model that can run, its sites, and what is left out of it, name pattern → reason."""

    model: nn.Module
    sites: list[AttentionSite]
    skipped: dict[str, str]


@contextmanager
def _open_running(model: Any, store: TensorStore, report: ProgressCallback) -> Iterator[Running]:
    """Inside, the model of the store in memory. Raises CorruptCheckpointError if the file lacks weights of a site."""
    if store.folder is None:
        if not model.state_dict().keys() >= set(store.names):
            raise UnsupportedModelError(
                f"{store.ref}: its modules have the names that PEFT gives them; verify it after merge_and_unload"
            )
        with borrow_model(model, store.ref) as borrowed:
            yield Running(borrowed, *_sites_in_memory(borrowed))
        return
    loaded, random = load_model(model, store, report)
    sites, skipped = _sites_in_memory(loaded)
    missing = [name for site in sites for name in site.tensors.values() if name in random]
    if missing:
        raise CorruptCheckpointError(
            f"{store.ref}: the file lacks {len(missing)} tensors that attend in {type(loaded).__name__}, for "
            f"example {missing[0]}; the class that config.json names does not fit the weights"
        )
    yield Running(loaded, sites, skipped)


def _sites_in_memory(model: nn.Module) -> tuple[list[AttentionSite], dict[str, str]]:
    """The sites of a model in memory, and what is left out; none if it is refused, though its file is not."""
    try:
        return sites_of(ModuleStore(model), COMPARED)
    except AttnGeoError:
        return [], {}


def _expect(
    store: TensorStore, saved: Sequence[AttentionSite], running: Running, report: ProgressCallback
) -> tuple[list[Expectation], list[AttentionSite]]:
    """What each site of the file, and each module that shares its weights, should multiply.

    Also returns the sites of the file that the model in memory does not have.
    """
    predicted: dict[SitePlace, Prediction] = {}
    for place, site in zip(places_of(saved), saved, strict=True):
        report(Progress("verify", f"{site.stack} {site.layer}", len(predicted), len(saved), "steps"))
        predicted[place] = predict(store, site)
    places = dict(zip(places_of(running.sites), running.sites, strict=True))
    in_memory = ModuleStore(running.model)
    loaded = {place: predict(in_memory, site) for place, site in places.items()}
    partners, copies = match_places(predicted, loaded)
    sites = dict(zip(predicted, saved, strict=True))
    expected = [
        Expectation(site, places[partners[place]].module, predicted[place])
        for place, site in sites.items()
        if place in partners
    ]
    expected += [Expectation(places[other], places[other].module, predicted[place]) for other, place in copies.items()]
    return expected, [site for place, site in sites.items() if place not in partners]


def _is_in(site: AttentionSite, place: str) -> bool:
    """Whether a module whose name has the pattern `place` is that of the site, inside it, or around it."""
    pattern = pattern_of(site.module)
    return is_in(place, pattern) or is_in(pattern, place)


class SitePlace(NamedTuple):
    """Where a site is in its model.

    stack: without the pattern that tells stacks of one name apart. number: counts the sites of one stack and layer.
    """

    stack: str
    layer: int
    number: int


def places_of(sites: Iterable[AttentionSite]) -> list[SitePlace]:
    """The place of each site, in their order. No two are equal."""
    seen: Counter[tuple[str, int]] = Counter()
    places = []
    for site in sites:
        key = (site.stack.partition(":")[0], site.layer)
        places.append(SitePlace(*key, seen[key]))
        seen[key] += 1
    return places


def match_places(
    saved: Mapping[SitePlace, Prediction], loaded: Mapping[SitePlace, Prediction]
) -> tuple[dict[SitePlace, SitePlace], dict[SitePlace, SitePlace]]:
    """Match the sites of a file and those of the model in memory by what their weights multiply to.

    The partner of a site has the same weights, and the same place if such a one exists. A site whose weights no other
    has is matched by its place alone, so that it is compared with the running model.

    Returns place in the file → place in memory, for the sites that have a partner; and place in memory → place in the
    file, for further modules in memory that share the weights, which a file has only once.
    """

    def equal(place: SitePlace, other: SitePlace) -> bool:
        return difference_of(saved[place], loaded[other]) < TOLERANCE

    partners = {place: place for place in saved if place in loaded and equal(place, place)}
    free = [other for other in loaded if other not in partners]
    for place in saved:
        if (
            place not in partners
            and (partner := next((other for other in free if equal(place, other)), None)) is not None
        ):
            partners[place] = partner
            free.remove(partner)
    for place in saved:
        if place not in partners and place in free:
            partners[place] = place
            free.remove(place)
    copies = {other: place for other in free for place in saved if equal(place, other)}
    return partners, copies


def describe_verification(frame: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Sentences about a table of `verify`: what disagrees with the running model, and notes on what was checked."""
    agreeing, total = int(frame["verdict"].isin(AGREEING).sum()), len(frame)
    complaints = _describe_groups(frame, FAILING)
    complaints += [
        f"{pattern} attends in the running model, and is neither read nor left out"
        for pattern in frame.attrs["unexplained"]
    ]
    notes = _describe_groups(frame, UNCHECKED)
    if frame.attrs["problem"] and "not run" in set(frame["verdict"]):
        notes.append(f"the whole model does not run on random inputs: {frame.attrs['problem']}")
    share = f"all {total}" if agreeing == total else f"{agreeing} of {total}"
    notes.append(f"{share} sites agree with what the running model multiplies")
    model = frame.attrs["model"]
    return [f"{model}: {text}" for text in complaints], [f"{model}: {text}" for text in notes]


def _describe_groups(frame: pd.DataFrame, meanings: Mapping[str, str]) -> list[str]:
    """A sentence for the sites of each verdict, stack and pattern of names."""
    rows = frame[frame["verdict"].isin([*meanings])].assign(pattern=frame["module"].map(pattern_of))
    sentences = []
    for (verdict, stack, pattern), sites in rows.groupby(["verdict", "stack", "pattern"], sort=False):
        difference = f", difference {sites['difference'].max():.2g}" if verdict == "differs" else ""
        where = f"{str(stack).partition(':')[0]}, {name_layers(sites['layer'])}{difference}"
        sentences.append(f"{pattern or 'the model itself'} ({where}) {meanings[str(verdict)]}")
    return sentences
