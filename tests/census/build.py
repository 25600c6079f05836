"""Build a small random model of any model type that transformers knows, and say how to run it."""

from __future__ import annotations

import copy
import re
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch

from attngeo.verification.drives import Drive, attention_modules, find_drives
from census.classes import config_class_of, model_classes
from census.exceptions import EXCEPTIONS, Exceptional
from census.randomise import randomise
from census.shrink import Plan, Shrinker

MOST_PARAMETERS = 20_000_000
PLANS = (
    Plan(),
    Plan(own_widths=False),
    Plan(experts=True),
    Plan(free_head_dim=False),
    Plan(own_widths=False, free_head_dim=False),
    Plan(own_widths=False, grouped=False, free_head_dim=False),
    Plan(own_widths=False, grouped=False, free_head_dim=False, small_images=False),
    Plan(grouped=False, free_head_dim=False, small_images=False, any_width=True),
)


class TooLargeError(Exception):
    """A model that the rules do not make small."""


class CannotBuild(Exception):  # noqa: N818 - what it says
    """A model type that cannot be built here. The message says why, in one line."""


@dataclass
class Specimen:
    """A small random model and how to run it.

    model: evaluation mode, float32, eager attention. drives: run in order, they run every module that attends,
    except those in `not_driven`.
    """

    model_type: str
    model: torch.nn.Module
    drives: list[Drive]
    not_driven: list[str] = field(default_factory=list)
    plan: Plan = field(default_factory=Plan)


def build(model_type: str, seed: int = 0) -> Specimen:
    """Build a small random model of a type. Raises CannotBuild."""
    own = EXCEPTIONS.get(model_type, Exceptional())
    if own.cannot:
        raise CannotBuild(own.cannot)
    classes = _classes(model_type, own)
    best: Specimen | None = None
    best_rank = (0, False)
    problem = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, plan in enumerate(own.plans or PLANS):
            if best is not None and not best.not_driven and number >= 2:
                return best
            for model_class in classes:
                try:
                    model = construct(model_type, model_class, plan, own, seed)
                except ImportError as error:
                    raise CannotBuild(in_one_line(error)) from error
                except Exception as error:
                    problem = problem or f"{model_class.__name__}: {type(error).__name__}: {in_one_line(error)}"
                    continue
                found = find_drives(model, arguments=own.inputs(model), submodules=own.parts)
                whole = any(drive.path == "" for drive in found.drives)
                rank = (len(found.missing), not whole)
                if found.drives and (best is None or rank < best_rank):
                    best = Specimen(model_type, model, found.drives, found.missing, plan)
                    best_rank = rank
                if rank == (0, False):
                    return best
                attends = "" if attention_modules(model) else "no module attends by its name; "
                problem = problem or f"{model_class.__name__}: {attends}it does not run: {found.error}"
    if best is None:
        raise CannotBuild(
            problem or "it is the configuration of a part: transformers has no model class that takes it alone"
        )
    return best


def _classes(model_type: str, own: Exceptional) -> list[Any]:
    try:
        return own.classes() or model_classes(model_type)
    except ImportError as error:
        raise CannotBuild(in_one_line(error)) from error


def construct(model_type: str, model_class: Any, plan: Plan, own: Exceptional, seed: int) -> torch.nn.Module:
    default = own.default() if own.default else config_class_of(model_type)()
    config = Shrinker(plan, own.fields).shrink(default)
    config._attn_implementation = own.attention
    _require_small(model_class, config)
    torch.manual_seed(seed)
    model = model_class(config).eval().float()
    randomise(model, seed)
    return model


def _require_small(model_class: Any, config: Any) -> None:
    """Raise TooLargeError before a large model is allocated. A model that cannot be made without memory passes."""
    try:
        with torch.device("meta"):
            model = model_class(copy.deepcopy(config))
    except Exception:
        return
    count = sum(p.numel() for p in model.parameters())
    if count > MOST_PARAMETERS:
        sizes = sorted(((p.numel(), name) for name, p in model.named_parameters()), reverse=True)
        raise TooLargeError(f"{count:,} parameters after shrinking, {sizes[0][0]:,} of them in {sizes[0][1]}")


def in_one_line(error: Exception) -> str:
    """Return the message in one line, without advice on how to install a package."""
    return re.split(r"\. (You can|Please|Check out)", " ".join(str(error).split()))[0][:300]
