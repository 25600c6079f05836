"""How a model type rotates its queries and keys: found by running it, and compared at several offsets and scalings."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from attngeo.attention.finding import sites_of
from attngeo.checkpoints.store import ModuleStore
from attngeo.errors import AttnGeoError
from attngeo.layouts.layout import AttentionSite, Rotary
from attngeo.layouts.rotary import rotary_frequencies
from attngeo.verification.checking import COMPARED, predict_factors
from attngeo.verification.comparing import TOLERANCE, compare_products
from attngeo.verification.drives import Drive, run_drives
from attngeo.verification.probing import products_of_runs
from attngeo.verification.recording import Product, record_products
from census.build import Specimen

# Query position minus key position. A sequence of two tokens has the first two only.
OFFSETS = (1, -1, -2, 3)
ORDERS = {
    "halves": Rotary(),
    "neighbours": Rotary(interleaved=True),
    "halves tail": Rotary(tail=True),
    "neighbours tail": Rotary(interleaved=True, tail=True),
    "halves reversed": Rotary(reversed=True),
    "halves axes": Rotary(axes=True),
    "neighbours axes": Rotary(interleaved=True, axes=True),
}
# Patches of an image that are compared.
PATCHES = 32
# Kind of rotary scaling → its parameters. They scale by far what the few dimensions of a census model turn.
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 20},
    "longrope": {
        "factor": 4.0, "original_max_position_embeddings": 2000, "short_mscale": 1.0, "long_mscale": 1.0,
    },
    "llama3": {
        "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 20,
    },
    "proportional": {"factor": 2.0, "partial_rotary_factor": 0.5},
}  # fmt: skip
# Parameters of one kind of scaling, which others must not have.
OF_ONE_KIND = (
    "factor", "attention_factor", "mscale", "mscale_all_dim", "short_factor", "long_factor", "beta_fast", "beta_slow",
    "truncate",
)  # fmt: skip


@dataclass(frozen=True)
class Turned:
    """One site, and the products of the running model that may be its own."""

    site: AttentionSite
    products: list[Product]

    def fits(self, store: ModuleStore, rotary: Rotary | None) -> bool:
        """Whether the weights, rotated so, give what ran at each offset that the sequence has: at two or more."""
        site = replace(self.site, family=replace(self.site.family, rotary=rotary, source="given"))
        if rotary and rotary.axes:
            pairs = [pair for product in self.products for pair in _pair_tokens(product)]
            return all(_fits(store, site, pairs, offset, 0) for offset in OFFSETS)
        offsets = [o for o in OFFSETS if any(p.query.shape[2] > abs(o) for p in self.products)]
        return len(offsets) > 1 and all(_fits(store, site, self.products, offset, offset) for offset in offsets)

    def is_even(self, store: ModuleStore) -> bool:
        """Whether a query and a key at the same position give what they give at the first one."""
        later = [replace(p, query=p.query[:, :, 1:], key=p.key[:, :, 1:]) for p in self.products]
        return _fits(store, self.site, later, 0, 0)


def _pair_tokens(product: Product) -> Iterator[Product]:
    """Each query with each key alone: the census does not know which patches are neighbours."""
    for query in product.query[:, :, :PATCHES].split(1, 2):
        for key in product.key[:, :, :PATCHES].split(1, 2):
            yield replace(product, query=query, key=key)


def _fits(store: ModuleStore, site: AttentionSite, products: Iterable[Product], offset: int, tokens: int) -> bool:
    """Whether one of the products is that of a query so many tokens after its key, as predicted at this offset."""
    try:
        expected = predict_factors(store, site, COMPARED.model_copy(update={"rope_offset": offset}))
    except AttnGeoError:
        return False
    return any(compare_products(expected, product.query, product.key, tokens)[0] < TOLERANCE for product in products)


def find_rotation(specimen: Specimen, kinds: Iterable[str] = SCALINGS) -> tuple[str, str]:
    """How the sites of a model type rotate, and at which of these kinds of scaling they do so as attngeo says.

    The order of the dimensions is one of `ORDERS`, perhaps of layers with a sliding window only; "other" or "gain" if
    no offset is defined; "" if nothing rotates.
    """
    model = specimen.model
    turned = _record(specimen, model)
    store = ModuleStore(model)
    if all(one.fits(store, None) for one in turned):
        return "", ""
    plain = {word: rotary for word, rotary in ORDERS.items() if not rotary.axes}
    orders = ORDERS | {f"{word} sliding": replace(rotary, sliding=True) for word, rotary in plain.items()}
    fitting = (word for word, rotary in orders.items() if all(one.fits(store, rotary) for one in turned))
    if (word := next(fitting, None)) is None:
        return "other" if all(one.is_even(store) for one in turned) else "gain", ""
    site = turned[0].site
    family = replace(site.family, rotary=orders[word])
    pairs = len(rotary_frequencies(site.section, family, site.head_dim, site.layer))
    verdicts = {kind: _judge(specimen, orders[word], kind, pairs) for kind in kinds}
    return word, " ".join(kind for kind, right in verdicts.items() if right)


def _record(specimen: Specimen, model: torch.nn.Module) -> list[Turned]:
    """The sites of the model type itself that may rotate."""

    drives = [_place_tokens(model, drive) for drive in specimen.drives]

    def run() -> None:
        run_drives(model, drives)

    sites = [site for site in sites_of(ModuleStore(model), COMPARED)[0] if _may_rotate(site, specimen.model_type)]
    if not sites:
        return []
    with record_products(model) as seen:
        run()
    widths = {site.module: {site.d_model, site.key_width} for site in sites if site.module in seen.ran}
    products = list(products_of_runs(model, run, widths, seen.products, lambda *_: None))
    return [Turned(site, [p for p in products if _owner(p.running, widths) == site.module]) for site in sites]


def _place_tokens(model: torch.nn.Module, drive: Drive) -> Drive:
    """The drive of one module with the rotations of tokens at 0, 1, 2 …, by the nearest rotary embedding around it."""
    states, given = drive.inputs.get("hidden_states"), drive.inputs.get("position_embeddings")
    if not isinstance(given, tuple) or states is None:
        return drive
    places = drive.path.split(".")
    for depth in reversed(range(len(places))):
        for child in model.get_submodule(".".join(places[:depth])).children():
            positions = torch.arange(states.shape[-2])[None]
            for ids in (positions, positions.expand(3, 1, -1)) if "Rotary" in type(child).__name__ else ():
                try:
                    turned = child(states, ids)
                except Exception:
                    continue
                if turned[0].shape[:-1] == given[0].shape[:-1]:
                    return drive._replace(inputs={**drive.inputs, "position_embeddings": turned})
    return drive


def _may_rotate(site: AttentionSite, model_type: str) -> bool:
    own = site.section.get("model_type") == model_type and not site.is_cross
    return own and any("rope" in name or "rotary" in name for name in site.section)


def _judge(specimen: Specimen, rotary: Rotary, kind: str, pairs: int) -> bool | None:
    """Whether the model with this kind of scaling rotates as attngeo says; None if transformers refuses the kind."""
    config = copy.deepcopy(specimen.model.config)
    config.dtype = specimen.model.dtype  # a saved configuration has its name, which some modules do not take
    rope = getattr(config, "rope_parameters", None)
    if not isinstance(rope, dict):
        return None
    layers = [part for part in rope.values() if isinstance(part, dict) and "rope_theta" in part] or [rope]
    for part in layers:
        gone = (*OF_ONE_KIND, *(["partial_rotary_factor"] if part.get("rope_type") == "proportional" else []))
        stated = {name: value for name, value in part.items() if name not in gone}
        part.clear()
        part.update(stated | SCALINGS[kind] | {"rope_type": kind})
        if kind == "longrope":
            part |= {"short_factor": [1 + i / 4 for i in range(pairs)], "long_factor": [9.0] * pairs}
    try:
        model = type(specimen.model)(config).eval()
        model.load_state_dict(specimen.model.state_dict())
        turned = _record(specimen, model)
    except Exception:
        return None
    return all(one.fits(ModuleStore(model), rotary) for one in turned)


def _owner(running: Iterable[str], modules: Collection[str]) -> str | None:
    """The innermost of these modules that was running."""
    return next((name for name in reversed([*running]) if name in modules), None)
