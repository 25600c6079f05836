"""Names, shapes and configurations as published models have them: the sites are found, or the reason why not is true.

The files that `save_pretrained` writes are not those on the Hub: many models come with their own code, their own names
and configurations that leave fields out. The models are in tests/published; see `support.ghosts`.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import torch
from support.ghosts import Published, Stack, expand_tensors, load_published, write_ghost

from attngeo.attention.finding import sites_of
from attngeo.checkpoints.opening import open_store
from attngeo.errors import AttnGeoError
from attngeo.layouts.layout import AttentionSite, assemble

ABSENT = "the checkpoint has no tensors for this layer"


@pytest.mark.parametrize("name", load_published())
def test_a_published_model_is_read_or_refused_for_a_true_reason(name: str, tmp_path: Path) -> None:
    wrong = describe_differences(load_published()[name], tmp_path)
    assert not wrong, "\n".join(wrong)


def test_at_least_forty_models_of_all_kinds() -> None:
    models = load_published().values()
    assert len(models) >= 40
    assert all(model.source for model in models)
    assert all(bool(model.sites) != bool(model.refused) for model in models)


def test_a_ghost_of_a_large_model_takes_little_space(tmp_path: Path) -> None:
    model = load_published()["tiiuae/falcon-180B"]
    file = write_ghost(tmp_path, model.config, expand_tensors(model.tensors).items()) / "model.safetensors"
    assert file.stat().st_size > 300e9
    assert file.stat().st_blocks * 512 < 500_000


def describe_differences(model: Published, folder: Path) -> list[str]:
    """One line for each difference between what attngeo finds in the ghost of a model and what is expected."""
    tensors = expand_tensors(model.tensors)
    write_ghost(folder, model.config, tensors.items())
    try:
        with closing(open_store(folder)) as store:
            sites, skipped = sites_of(store)
            shapes = {name: store.info(name).shape for site in sites for name in site.tensors.values()}
    except AttnGeoError as error:
        return describe_refusal(model, error)
    if model.refused:
        return [f"read, expected {' or '.join(model.refused['errors'])}"]
    found = {site.tensors.get("q") or site.tensors["q_b"]: site for site in sites}
    listed = [*skipped, *(note for site in sites for note in site.notes)]
    wrong = [f"{part} is not listed as skipped" for part in model.listed if not any(part in entry for entry in listed)]
    # Hybrids, towers that the configuration does not describe, and cross-attention in some layers only lack none.
    wrong += [f"{name}: {reason}" for name, reason in skipped.items() if ABSENT in reason]
    for stack in model.sites:
        own = [found.pop(q) for q, _ in stack.weights if q in found]
        if not own and stack.or_listed and any(stack.module in entry for entry in skipped):
            continue
        wrong += describe_stack(stack, own, shapes)
    return wrong + [f"{site.module} is scored (stack {site.stack})" for site in list(found.values())[:1]]


def describe_refusal(model: Published, error: AttnGeoError) -> list[str]:
    """What is wrong with a refusal: nothing if it is expected and states the facts."""
    stated = f"{type(error).__name__}: {error}"
    if not model.refused:
        return [f"refused: {stated}"]
    missing = [fact for fact in model.refused["facts"] if fact not in str(error)]
    right = type(error).__name__ in model.refused["errors"] and not missing
    return [] if right else [f"refused without the fact {missing} or as another error: {stated}"]


def describe_stack(stack: Stack, sites: list[AttentionSite], shapes: dict[str, tuple[int, ...]]) -> list[str]:
    """The differences of the sites of one stack, in the order of its layers, from what is expected."""
    if len(sites) != len(stack.weights):
        return [f"{len(sites)} sites in {stack.module}, expected {len(stack.weights)}"]
    names = [stack.stack] if isinstance(stack.stack, str) else list(stack.stack)
    got = sorted({site.stack.split(":")[0] for site in sites})
    if names and not set(got) <= set(names):
        return [f"{stack.module} is in the stack {', '.join(got)}, expected {' or '.join(names)}"]
    if [site.layer for site in sites] != sorted({site.layer for site in sites}):
        return [f"the layers of {stack.module} are not in order"]
    wrong = {line for site, weights in zip(sites, stack.weights, strict=True)
             for line in describe_site(stack, site, weights)}  # fmt: skip
    return sorted(wrong) or describe_rows(stack, sites[0], shapes)


def describe_site(stack: Stack, site: AttentionSite, weights: tuple[str, str]) -> list[str]:
    """The differences of sizes and tensors of one site from what is expected."""
    sizes = {
        "heads": (site.heads, stack.heads),
        "key_heads": (site.key_heads, stack.key_heads),
        "head_dim": (site.head_dim, stack.head_dim),
    }
    wrong = [f"{stack.module}: {size} is {got}, expected {want}" for size, (got, want) in sizes.items() if got != want]
    return wrong + [f"{weight} is not read" for weight in weights if weight not in site.tensors.values()]


def describe_rows(stack: Stack, site: AttentionSite, shapes: dict[str, tuple[int, ...]]) -> list[str]:
    """Whether queries and keys are cut out of the right rows of their weights."""
    if stack.latent:
        return []
    weights = stack.weights[0]
    numbers = {name: torch.arange(shapes[name][stack.conv1d]).unsqueeze(1 - stack.conv1d) for name in weights}
    others = {name: torch.zeros(shapes[name]) for name in site.tensors.values() if name not in weights}
    cut = assemble(site, {name: (numbers | others)[name][rows] for name, rows in site.reads.items()})
    wrong = []
    for letter, got, slots in (("q", cut["q"].weight, stack.slots), ("k", cut["k"].weight, stack.k_slots)):
        want = place_of(letter, stack.slots if weights[0] == weights[1] else slots, stack)
        if got.shape[:2] != want.shape or not got.squeeze(2).eq(want).all():
            wrong.append(f"{stack.module}: {letter} is cut out of the wrong rows")
    return wrong


def place_of(letter: str, slots: str, stack: Stack) -> torch.Tensor:
    """The rows of each head of queries or keys in a weight with these slots, [heads, head_dim]."""
    counts = {"q": stack.heads, "k": stack.key_heads, "v": stack.key_heads}
    blocks = stack.key_heads if stack.blocks == "key_heads" else int(stack.blocks)
    blocks = blocks if slots != letter else 1
    order = [slot for _ in range(blocks) for run in slots for slot in run * (counts[run] // blocks)]
    starts = torch.tensor([place * stack.head_dim for place, slot in enumerate(order) if slot == letter])
    return starts[:, None] + torch.arange(stack.head_dim)
