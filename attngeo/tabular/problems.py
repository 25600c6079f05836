"""What a method is asked, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

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
