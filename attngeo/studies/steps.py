"""Steps of a training, read from the names of its checkpoints: revisions of a repository, folders or files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from attngeo.checkpoints.reference import HUB_FILE, HUB_ID

# A word for a step, its number, and k for thousands. Neither step3.5 nor step2b is a step.
STEP = re.compile(
    r"(?<![a-z])(?:steps?|checkpoint|ckpt|iter(?:ation)?)[-_=]?(?P<number>\d{1,15})(?P<thousands>k?)(?![a-z\d]|\.\d)",
    re.ASCII | re.IGNORECASE,
)
THOUSAND = 1000


class TrainingStep(NamedTuple):
    """A checkpoint of a training. model: the name that all its checkpoints share. step: None if the name has none."""

    model: str
    step: int | None


class _Parts(NamedTuple):
    """The name of a checkpoint in parts, one after the other, and the step that the middle one states.

    Attributes:
        start: first part of the model's name.
        stated: what the name has besides, such as @step1000 or /checkpoint-500; "" if nothing.
        end: last part of the model's name.
        step: training step; None if no step is stated.
    """

    start: str
    stated: str
    end: str
    step: int | None


def split_step(name: str) -> TrainingStep:
    """The model and the step that the name of a checkpoint states.

    In `org/name@revision`, the revision states the step. In other names, the last word for a step does, and the model
    leaves out the text after it up to the next slash. The words are step, checkpoint, ckpt, iter and iteration.

    >>> split_step("org/name@stage1-step1000-tokens4B")
    TrainingStep(model='org/name', step=1000)
    >>> split_step("runs/a/checkpoint-500"), split_step("org/name-seed_0-step_20k")
    (TrainingStep(model='runs/a', step=500), TrainingStep(model='org/name-seed_0', step=20000))
    """
    parts = _take_apart(name)
    return TrainingStep((parts.start or ".") + parts.end, parts.step)


def rename_training(name: str, model: str) -> str:
    """The name of a checkpoint with another model in place of the part that all its training's checkpoints share.

    >>> rename_training("org/name@step1000", "BERT"), rename_training("runs/a/checkpoint-500", "BERT")
    ('BERT@step1000', 'BERT/checkpoint-500')
    """
    parts = _take_apart(name)
    slash = "" if parts.start else "/"
    return model + slash + parts.stated + parts.end


def _take_apart(name: str) -> _Parts:
    model, at, revision = name.partition("@")
    is_hub = bool(at and (HUB_ID.fullmatch(model) or HUB_FILE.fullmatch(model)))  # a path may contain the character
    matches = [*STEP.finditer(revision if is_hub else name)]
    if not matches:
        return _Parts(model, at + revision, "", None) if is_hub else _Parts(name, "", "", None)
    match = matches[-1]
    step = int(match["number"]) * (THOUSAND if match["thousands"] else 1)
    if is_hub:
        return _Parts(model, at + revision, "", step)
    start = name[: match.start()].rstrip("/-_.@")
    _, slash, inside = name[match.end() :].partition("/")
    end = slash + inside if inside else ""
    return _Parts(start, name[len(start) : len(name) - len(end)], end, step)


def step_of(name: str) -> int | None:
    """The step of a training that the name of a revision, a model, a folder or a file states; None if it states none.

    >>> [step_of(name) for name in ("step1000", "step-1000", "checkpoint-500", "iter_0001000", "step1000-tokens4B")]
    [1000, 1000, 500, 1000, 1000]
    >>> step_of("org/name@stage1-step1000-tokens4B"), step_of("main"), step_of("org/step3@main")
    (1000, None, None)
    """
    return split_step(name).step


def order_steps(names: Sequence[str]) -> list[int]:
    """The places of some names, with the checkpoints of one training in the order of their steps.

    They share the places that they have; other names stay at theirs. A shell names step1000 before step20.

    >>> order_steps(["run/step0", "a", "run/step1000", "run/step20"])
    [0, 1, 3, 2]
    """
    checkpoints = [split_step(name) for name in names]
    trainings: dict[str, list[int]] = {}
    for place, (model, step) in enumerate(checkpoints):
        if step is not None:
            trainings.setdefault(model, []).append(place)
    order = [*range(len(names))]
    for places in trainings.values():
        by_step = sorted(places, key=lambda place: checkpoints[place].step or 0)
        for place, source in zip(places, by_step, strict=True):
            order[place] = source
    return order
