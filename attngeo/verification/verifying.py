"""Verify a model: the weights that attngeo reads of it against what the model multiplies when it runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.files import FileStore
from attngeo.checkpoints.opening import open_store
from attngeo.checkpoints.store import ModuleStore, TensorStore
from attngeo.errors import AttnGeoError, CorruptCheckpointError
from attngeo.layouts.names import is_in, pattern_of
from attngeo.layouts.sites import AttentionSite
from attngeo.options import takes
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.provenance import software
from attngeo.scores.projections import sites_of
from attngeo.verification.agreement import Prediction
from attngeo.verification.checking import COMPARED, Expectation, check_expectations, predict
from attngeo.verification.drives import find_drives, run_drives
from attngeo.verification.loading import borrow_model, load_model, silence_libraries
from attngeo.verification.matching import SitePlace, match_places, places_of

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("model", "stack", "layer", "module", "verdict", "difference")
# What a verdict means for the scores of a site: they are those of the running model; they are not; nobody knows.
AGREEING = ("agrees", "directions agree")
FAILING = ("differs", "no product", "only in memory")
UNCHECKED = ("not run", "only in the file")


class VerifyKeywords(HubAccess):
    """The keywords of `verify`."""

    hub: HubAccess | None = None
    progress: ProgressCallback | None = None


@takes(VerifyKeywords)
def verify(model: Any, *, hub: HubAccess, progress: ProgressCallback | None = None) -> pd.DataFrame:
    """Compare the query and key weights that attngeo reads with what the running model multiplies, at every site.

    model: a reference (`org/name[@revision]`, folder, file, `demo:NAME`), which transformers loads in float32 without
    code of the checkpoint, or a transformers model in memory.
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
    import pandas as pd

    report = progress or ignore_progress
    with closing(open_store(model, hub)) as store, silence_libraries():
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
        known = {each.module for each in expected}
        rest = [site for site in running.sites if site.module not in known]
    only_in_memory = [site for site in rest if any(_is_in(site, place) for place in findings.unreported)]
    rows = [
        *(_make_row(check.site, check.verdict, check.difference) for check in findings.checks),
        *(_make_row(site, "only in the file") for site in lonely),
        *(_make_row(site, "only in memory") for site in only_in_memory),
    ]
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).assign(model=store.ref)
    made: dict[Any, Any] = {"title": "Verification", **software(), "model": store.ref, "revision": store.revision}
    frame.attrs = made | {
        "skipped": skipped,
        "unexplained": [place for place in findings.unreported if not any(_is_in(site, place) for site in rest)],
        "problem": drives.error,
    }
    return frame.astype({"layer": "Int64"})


class Running(NamedTuple):
    """A model that can run, its sites, and what is left out of it, name pattern → reason."""

    model: nn.Module
    sites: list[AttentionSite]
    skipped: dict[str, str]


@contextmanager
def _open_running(model: Any, store: TensorStore, report: ProgressCallback) -> Iterator[Running]:
    """Inside, the model of the store in memory. Raises CorruptCheckpointError if the file lacks weights of a site."""
    if not isinstance(store, FileStore):
        with borrow_model(model, store.ref) as borrowed:
            yield Running(borrowed, *_sites_in_memory(borrowed))
        return
    loaded = load_model(store, report)
    sites, skipped = _sites_in_memory(loaded.model)
    missing = [name for site in sites for name in site.tensors.values() if name in loaded.missing]
    if missing:
        raise CorruptCheckpointError(
            f"{store.ref}: the file lacks {len(missing)} tensors that attend in {type(loaded.model).__name__}, for "
            f"example {missing[0]}; the class that config.json names does not fit the weights"
        )
    yield Running(loaded.model, sites, skipped)


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


def _make_row(site: AttentionSite, verdict: str, difference: float = math.nan) -> dict[str, Any]:
    return {
        "stack": site.stack, "layer": site.layer, "module": site.module, "verdict": verdict, "difference": difference,
    }  # fmt: skip


def _is_in(site: AttentionSite, place: str) -> bool:
    """Whether a module whose name has the pattern `place` is that of the site, inside it, or around it."""
    own = pattern_of(site.module)
    return is_in(place, own) or is_in(own, place)
