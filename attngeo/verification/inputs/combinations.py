"""Combinations of inputs to try on a module, the most likely first."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from attngeo.verification.inputs import images, series, sound, states, tokens
from attngeo.verification.inputs.source import MAKERS, Source

MODULES_OF_MAKERS = (images, series, sound, states, tokens)  # each adds its own to MAKERS
# Inputs that are given although their parameter has a default, if the module has the parameter.
WELCOME = {
    "input_ids", "decoder_input_ids", "pixel_values", "input_features", "input_values", "hidden_states", "bbox",
    "inputs_embeds", "flattened_patches", "audio_codes", "encoder_hidden_states", "past_values",
    "image_attention_mask", "last_hidden_state", "grid_thw",
    "position_embeddings", "task_inputs", "cross_attention_states", "patch_embeds",
}  # fmt: skip
# What stands for other inputs, and is never added to them.
INSTEAD = {"inputs_embeds", "hidden_states"}
# Combinations to try: of one set of names, and altogether.
MOST_OF_A_SET, MOST = 20, 40


def combine_inputs(
    module: nn.Module, configs: list[Any], seed: int, given: Mapping[str, Any] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield combinations of keyword arguments to try on the forward of `module`, the most likely first.

    configs: the configurations around the module, the nearest first. given: arguments that are known already.
    """
    parameters = inspect.signature(module.forward).parameters
    required = [
        name for name, p in parameters.items()
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]  # fmt: skip
    welcome = [name for name in parameters if name in WELCOME and name in MAKERS]
    if "input_ids" in welcome and "inputs_embeds" in welcome:
        welcome.remove("inputs_embeds")
    main = getattr(module, "main_input_name", None)
    main = main[0] if isinstance(main, list) else main
    if main in parameters and main in MAKERS and main not in required:
        required.insert(0, main)
    known = dict(given or {})
    count = 0
    for wanted in _choose_names(required, welcome, main):
        source = Source(module, configs, seed)
        names = [name for name in wanted if name not in known]
        try:
            options = {name: MAKERS[name](source) if name in MAKERS else [None] for name in names}
        except Exception:  # a maker that does not find what it needs here
            continue
        for values in itertools.islice(_combine(options), MOST_OF_A_SET):
            yield {name: v for name, v in values.items() if v is not None or name in required} | known
            count += 1
            if count >= MOST:
                return


def _choose_names(required: list[str], welcome: list[str], main: str | None) -> list[list[str]]:
    """Return the sets of names to try: what is required; then with all welcome inputs; then with each of them."""
    others = [name for name in welcome if name not in required]
    sets = []
    if "decoder_input_ids" in others and required:
        sets.append([*required, "decoder_input_ids"])
    if required:
        sets.append(required)
    if soft := [name for name in others if name not in INSTEAD]:
        sets.append([*required, *soft])
    sets.extend([*required, name] for name in others)
    if "input_ids" in (*required, *others) and main != "input_ids":
        sets.insert(min(len(sets), 1), ["input_ids"])
    return sets or [[]]


def _combine(options: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Yield one value for each name. Names of one kind, such as query and key, get values of like shapes."""
    kind_of = {name: states.make_hidden if MAKERS.get(name) is states.make_keys else MAKERS.get(name)
               for name in options}  # fmt: skip
    kinds = list(dict.fromkeys(kind_of.values()))
    sizes = [min(len(options[name]) for name in options if kind_of[name] is kind) for kind in kinds]
    for places in itertools.product(*map(range, sizes)):
        place_of = dict(zip(kinds, places, strict=True))
        yield {name: values[place_of[kind_of[name]]] for name, values in options.items()}
