"""The methods that the experiments compare: each answers data sets with predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

from attngeo.progress import Progress, ProgressCallback
from attngeo.provenance import digest_statements

if TYPE_CHECKING:
    import numpy as np

    from attngeo.tabular.simulation import ShiftedTable


class Problem(NamedTuple):
    """A data set, and the seed of everything that is random in the answer."""

    table: ShiftedTable
    seed: int


@dataclass(frozen=True)
class Answer:
    """The classes that a method predicts for training rows and for test rows, and how it did that."""

    train: np.ndarray
    test: np.ndarray
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """A method. label: as the paper's tables name it. answer: problems of one shape → an answer for each.

    code: modules and folders of the package whose statements the answers depend on. packages: whose versions they
    depend on. together: whether problems are answered faster at once than one after the other.
    """

    label: str
    answer: Callable[[Sequence[Problem], ProgressCallback], list[Answer]]
    code: tuple[str, ...]
    packages: tuple[str, ...]
    together: bool = False

    @property
    def version(self) -> dict[str, str]:
        """What the answers depend on besides the data set and the seed."""
        return {"code": digest_statements(*self.code), **{name: version(name) for name in self.packages}}


def answer_by_baseline(name: str, problems: Sequence[Problem], progress: ProgressCallback) -> list[Answer]:
    """The answers of one of the baselines of appendix E."""
    from attngeo.tabular.baselines import fit_baseline

    answers = []
    for (train, test), seed in problems:
        model = fit_baseline(
            name, train.x, train.y, seed=seed,
            report=lambda done, total: progress(Progress("fit", f"{name}, cross-validation", done, total, "steps")),
        )  # fmt: skip
        answers.append(Answer(model.predict(train.x), model.predict(test.x), {"parameters": model.parameters}))
    return answers


def _baseline(name: str, label: str) -> Method:
    return Method(label, partial(answer_by_baseline, name), ("tabular/baselines.py",), ("scikit-learn",))


METHODS: dict[str, Method] = {
    "lr": _baseline("lr", "LR"),
    "rf": _baseline("rf", "RF"),
    "gb": _baseline("gb", "GB"),
    "mlp": _baseline("mlp", "MLP"),
}
