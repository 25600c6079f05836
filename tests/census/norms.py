"""The normalisations of a model type whose gains are folded, and what is before its unembedding, by running it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.models.auto import modeling_auto

from attngeo.attention.finding import sites_of
from attngeo.checkpoints.store import ModuleStore
from attngeo.layouts.names import pattern_of
from attngeo.scores.options import ScoreOptions
from attngeo.verification.drives import attention_modules, find_drives, run_drives
from census.build import PLANS, construct, in_one_line
from census.classes import config_class_of
from census.exceptions import EXCEPTIONS, Exceptional

# The auto classes of models that predict tokens, in the order in which they are tried.
HEADS = (
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_PRETRAINING_MAPPING_NAMES",
)
NUMBER = re.compile(r"(?:^|\.)\d+(?=\.|$)")
# Relative difference of equal numbers in float32.
SAME = 1e-3


class Unembedding(NamedTuple):
    """What is between the last layer of a stack and its unembedding.

    norm: the name of the normalisation after the last layer, from the module with the list of layers; "" if there is
    none, or if it is not all. offset: 1 if its gain g is stored as g - 1. layers: the names of all modules with weights
    if there are others, too. reason: why it is not known; "none" for a type without a class that predicts tokens.
    """

    norm: str = ""
    offset: int = 0
    layers: tuple[str, ...] = ()
    reason: str = ""


@dataclass
class Call:
    """One call of a module with weights of its own: its input and its output."""

    name: str
    module: nn.Module
    given: Tensor
    made: Tensor


def find_unembedding(model_type: str) -> Unembedding:
    """What is before the unembedding of a model type. Raises nothing: what is not found has a reason."""
    classes = list_head_classes(model_type)
    if not classes:
        return Unembedding(reason="none")
    problem = ""
    own = EXCEPTIONS.get(model_type, Exceptional())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for plan in own.plans or PLANS[:5]:
            for model_class in classes:
                try:
                    model = construct(model_type, model_class, plan, own, 0)
                    unembedding = model.get_output_embeddings()
                    if unembedding is None:
                        problem = problem or "its class has no unembedding"
                        continue
                    drives = find_drives(model, arguments=own.inputs(model)).drives
                    drives = [drive for drive in drives if drive.path == ""]
                    if not drives:
                        problem = problem or "it does not run"
                        continue
                    calls = record_calls(model, drives)
                except Exception as error:
                    problem = problem or f"{type(error).__name__}: {in_one_line(error)}"
                    continue
                found = read_calls(model, calls, unembedding)
                if not found.reason:
                    return found
                problem = problem or found.reason
    return Unembedding(reason=problem)


def list_head_classes(model_type: str) -> list[Any]:
    """The classes of a type that predict tokens."""
    import transformers

    config = config_class_of(model_type)
    found: list[Any] = []
    for mapping in HEADS:
        names = getattr(modeling_auto, mapping).get(model_type, ())
        found += [getattr(transformers, name, None) for name in ([names] if isinstance(names, str) else names)]
    usable = [cls for cls in dict.fromkeys(found) if isinstance(cls, type) and "_backends" not in vars(cls)]
    return [cls for cls in usable if getattr(cls, "config_class", None) is config] or usable


def record_calls(model: nn.Module, drives: Any) -> list[Call]:
    """The calls of all modules with weights of their own, in the order in which they end."""
    calls: list[Call] = []

    def keep(name: str) -> Any:
        def hook(module: nn.Module, given: Any, made: Any) -> None:
            if given and isinstance(given[0], Tensor) and isinstance(made, Tensor):
                calls.append(Call(name, module, given[0].detach().clone(), made.detach().clone()))

        return hook

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if any(True for _ in module.parameters(recurse=False)):
                hooks.callback(module.register_forward_hook(keep(name)).remove)
        run_drives(model, drives)
    return calls


def read_calls(model: nn.Module, calls: list[Call], unembedding: nn.Module) -> Unembedding:
    """What the calls between the last layer and the unembedding are."""
    table = unembedding.weight
    ends = [number for number, call in enumerate(calls) if getattr(call.module, "weight", None) is table]
    if ends and isinstance(calls[ends[-1]].module, nn.Embedding):  # of inputs; the same table is multiplied at the end
        ends = []
    end = ends[-1] if ends else len(calls)
    numbered = [name for name in attention_modules(model) if NUMBER.search(name)]
    numbered = numbered or [call.name for call in calls if NUMBER.search(call.name)]
    stacks = {NUMBER.split(name)[0].rpartition(".")[0] for name in numbered}
    inside = [number for number in range(end) if _is_inside(calls[number].name, stacks)]
    if not inside:
        return Unembedding(reason="no layer runs before the unembedding")
    if not ends and getattr(calls[-1].module, "weight", torch.zeros(0)).shape == table.shape:  # a copy of the table
        end = len(calls) - 1
    # What has no output for each token, such as a pooler, does not lead to the unembedding.
    axes = calls[end].given.ndim if ends else 3
    between = [call for call in calls[inside[-1] + 1 : end] if call.made.ndim == axes]
    stack = NUMBER.split(calls[inside[-1]].name)[0].rpartition(".")[0]
    norm, offset = "", 0
    rest = between
    if between and is_norm(between[0].module):
        gain = find_offset(between[0].module, between[0].given)
        if gain is None:
            return Unembedding(reason=f"{between[0].name} is no normalisation with a gain")
        norm, offset, rest = between[0].name, gain, between[1:]
        norm = norm.removeprefix(f"{stack}." if stack else "")
    if not rest and ends and between:
        given = calls[end].given
        made = between[-1].made
        if given.shape[-1] != made.shape[-1] or not _are_parallel(given.flatten(0, -2), made.flatten(0, -2)):
            return Unembedding(reason="something without weights is between the normalisation and the unembedding")
    if rest:
        return Unembedding(layers=tuple(dict.fromkeys(call.name for call in between)))
    return Unembedding(norm, offset)


def _is_inside(name: str, stacks: set[str]) -> bool:
    match = NUMBER.search(name)
    # Some stacks have several lists of parts, and the same number leads to the parts of one layer.
    return match is not None and name[: match.start()].rpartition(".")[0] in stacks


def _are_parallel(given: Tensor, made: Tensor) -> bool:
    """Whether the last rows are equal up to a factor."""
    cosine = torch.nn.functional.cosine_similarity(given[-1:].double(), made[-1:].double())
    return bool((cosine > 1 - SAME).all())


def is_norm(module: nn.Module) -> bool:
    """Whether a module has a gain, and nothing else but a shift."""
    parameters = dict(module.named_parameters(recurse=False))
    gains = [name for name, parameter in parameters.items() if parameter.ndim == 1]
    return "weight" in gains and parameters.keys() <= {"weight", "bias"}


@torch.no_grad()
def find_offset(module: nn.Module, given: Tensor) -> int | None:
    """0 if the output of a normalisation is its weight times what is normalised, 1 if it is 1 + weight; else None."""
    outputs = [made - shift for made, shift in _run_with(module, given)]
    zero, one, two = outputs
    step = one - zero
    if not _is_near(two - one, step) or not bool(step.norm() > 0):
        return None
    for offset in (0, 1):
        if _is_near(zero, offset * step, step):
            return offset
    return None


def _is_near(have: Tensor, want: Tensor, scale: Tensor | None = None) -> bool:
    return bool((have - want).norm() <= SAME * (want if scale is None else scale).norm())


def _run_with(module: nn.Module, given: Tensor) -> Iterator[tuple[Tensor, Tensor | float]]:
    """The outputs of a normalisation whose weights are all 0, 1 and 2, each with its shift."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    kept = weight.clone()
    shift = getattr(module, "bias", None)
    for value in (0.0, 1.0, 2.0):
        weight.fill_(value)
        yield module(given).clone(), 0.0 if shift is None else shift
    weight.copy_(kept)


def find_wrong_gains(model: nn.Module) -> str:
    """A normalisation around attention whose gain is folded in another convention than it runs with; "" if none is."""
    with closing(ModuleStore(model)) as store:
        sites, _ = sites_of(store, ScoreOptions(fold_norm=True), parts="qkvo")
    generator = torch.Generator().manual_seed(0)
    for site in sites:
        for role in ("pre_norm", "o_norm"):
            weight = site.tensors.get(role)
            if weight is None:
                continue
            module = model.get_submodule(weight.rpartition(".")[0])
            given = torch.randn(2, module.weight.shape[0], generator=generator)
            offset = find_offset(module, given)
            if offset != site.family.input_gain_offset:
                return f"the gain of {pattern_of(weight)} is folded with {site.family.input_gain_offset:g} for {offset}"
    return ""
