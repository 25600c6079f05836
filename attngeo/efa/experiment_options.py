"""The options of `attngeo efa run`: library, command and recipes read them here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from attngeo.choices import whole
from attngeo.errors import UsageError
from attngeo.options import COMPARISON, COMPUTATION, INPUT, MODEL, OPTIMISATION, RESULTS, Options, device_option, option

Models = Literal["efa", "fm", "both"]
Directions = Literal["bi", "uni", "both"]
MOST_SEEDS = 1000
# Cities of the temperatures.
CITIES = 44


def _parse_numbers(numbers: Any) -> tuple[int, ...]:
    """Whole numbers, or texts of them. Raises UsageError."""
    listed = numbers if isinstance(numbers, list | tuple) else (numbers,)
    try:
        counts = [int(number) if isinstance(number, str) else number for number in listed]
    except ValueError:
        raise UsageError(f"neighbours is {' '.join(map(str, listed))!r:.60}, expected whole numbers") from None
    return tuple(whole("neighbours", count, 1, CITIES - 1) for count in counts)


class RunOptions(Options):
    """What of an experiment is run. Raises UsageError."""

    data: str | None = option(
        None, "File or folder of the data", panel=INPUT, metavar="PATH", shown_default="a download, once"
    )
    model: Models = option("both", "Exponential family attention, the factor model, or both", panel=COMPARISON)
    direction: Directions = option(
        "both", "What a position sees: all others, those before it, or both", panel=COMPARISON
    )
    baselines: bool = option(True, "Compute the baselines that need no training", panel=COMPARISON)
    published: bool = option(False, "As the paper's numbers were made, not as its text says", panel=COMPUTATION)
    layers: int | None = option(
        None, "Layers of attention", panel=MODEL, least=1, shown_default="2; for temperature 1, 2 and 4; for recovery 1"
    )
    lags: int | None = option(
        None, "Earlier days of temperatures in the context", panel=MODEL, least=0, most=2,
        shown_default="0; then 1 and 2 with the most layers",
    )  # fmt: skip
    neighbours: Sequence[int] | None = option(
        None, "Nearest cities that the factor model adds up; may be repeated", panel=MODEL, metavar="K",
        parse=_parse_numbers, repeated=True, shown_default="1 to 5, and 10 to 40 by fives",
    )  # fmt: skip
    epochs: int | None = option(
        None, "Passes over the training data", panel=OPTIMISATION, least=1, shown_default="as in the paper"
    )
    save: str | None = option(
        None, "Save each fitted model to a folder of this folder, for attngeo score and plot", panel=RESULTS,
        metavar="FOLDER",
    )  # fmt: skip
    seeds: int = option(1, "Number of seeds", panel=OPTIMISATION, metavar="N", least=1, most=MOST_SEEDS)
    device: str = device_option()

    @property
    def models(self) -> tuple[str, ...]:
        """The models that are run."""
        return ("efa", "fm") if self.model == "both" else (self.model,)

    @property
    def directions(self) -> tuple[str, ...]:
        """The directions that are run."""
        return ("bi", "uni") if self.direction == "both" else (self.direction,)
