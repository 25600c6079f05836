"""The settings of Tables 1 and 2, and the options of what computes them. Imports nothing heavy.

Source: Wibisono and Wang 2023 (arXiv 2307.04057).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from attngeo.bounds.paths import local_path
from attngeo.choices import Settings, real, whole
from attngeo.errors import DataError, DataUnavailableError, UsageError
from attngeo.estimators.tabular.options import METHOD_LABELS, check_methods, methods_option
from attngeo.options import COMPUTATION, INPUT, Options, default_of, option

MOST_DATA_SETS = 1000
# The corpus of appendix I, which a program draws.
TOY = "toy"
# Where the cars of Table 2 are downloaded from.
ADDRESS = "https://archive.ics.uci.edu/ml/machine-learning-databases/auto-mpg/auto-mpg.data"
# The seed of the paper's run on auto-mpg.
FIRST_SEED = 42


def require_corpus(source: str | Path) -> None:
    """Raise DataUnavailableError if the text of a corpus is missing, DataError if it is empty."""
    if str(source) == TOY:
        return
    path = local_path(source)
    if not path.is_file():
        raise DataUnavailableError(
            f"no such file, expected a text with one sentence per line, or {TOY}", subject=source
        )
    if not path.stat().st_size:
        raise DataError(f"{source} is empty, expected a text with one sentence per line, or {TOY}")


def require_cars(path: str | Path) -> None:
    """Raise DataUnavailableError if the file of the cars is missing."""
    if not Path(path).expanduser().exists():
        raise DataUnavailableError(f"no such file; download it from {ADDRESS}", subject=path)


class ShiftSetting(NamedTuple):
    """A row of Table 1.

    Attributes:
        n_c: number of features that the response depends on, which are the first ones.
        noise: scale of the noise of observed features.
        corr: correlation between features in training rows; in test rows it is 1 − corr.
    """

    n_c: int
    noise: float
    corr: float

    def __str__(self) -> str:
        return f"{self.n_c},{self.noise:g},{self.corr:g}"


# The twelve settings of Table 1, in its order.
PAPER_SETTINGS = tuple(ShiftSetting(*values) for values in product((1, 5), (0.0, 0.5, 1.5), (0.1, 0.9)))
DATA_SETS = 20
# What `quick` runs where nothing else is given.
QUICK_SETTINGS = (ShiftSetting(5, 0.0, 0.9),)
QUICK_METHODS = ("lr", "rf", "atn")
QUICK_DATA_SETS = 3


def parse_shifts(texts: Iterable[Any] | str) -> tuple[ShiftSetting, ...]:
    """The settings of strings such as "5,0,0.9", or of three numbers: n_c, noise and corr. Raises UsageError.

    >>> parse_shifts(["5,0,0.9", "1,1.5,0.1"])
    (ShiftSetting(n_c=5, noise=0.0, corr=0.9), ShiftSetting(n_c=1, noise=1.5, corr=0.1))
    """
    if isinstance(texts, str):
        texts = [texts]
    return tuple(dict.fromkeys(_parse_setting(text) for text in texts))


def _parse_setting(setting: Any) -> ShiftSetting:
    """One setting, from a text or from three numbers. Raises UsageError."""
    try:
        numbers = setting.split(",") if isinstance(setting, str) else setting
        n_c, noise, corr = map(float, numbers)
        if n_c != int(n_c) or not math.isfinite(noise + corr):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        known = " ".join(map(str, PAPER_SETTINGS))
        raise UsageError(
            f"$shifts has {setting!r:.60}, expected three finite numbers n_c,noise,corr such as 5,0,0.9, where n_c "
            f"is a whole number; the paper's are: {known}",
            "shifts",
        ) from None
    return ShiftSetting(whole("n_c", int(n_c), 1), real("noise", noise, 0.0), real("corr", corr, 0.0, 1.0))


class SimulateOptions(Options):
    """Options of simulated data sets, and the methods that predict them. Raises UsageError.

    shifts: strings such as "5,0,0.9", or the three numbers.
    """

    shifts: Sequence[Any] | None = option(
        None,
        "Setting n_c,noise,corr, for example 5,0,0.9",
        panel=INPUT,
        metavar="SETTING",
        parse=parse_shifts,
        repeated=True,
        shown_default="the 12 of Table 1",
    )
    datasets: int | None = option(
        None,
        "Data sets per setting",
        panel=INPUT,
        metavar="N",
        least=1,
        most=MOST_DATA_SETS,
        shown_default=str(DATA_SETS),
    )
    methods: Sequence[str] | None = methods_option("lr,gb,atn")
    quick: bool = option(
        False,
        f"Run only a part, which takes about two minutes: setting {' and '.join(map(str, QUICK_SETTINGS))}, "
        f"{QUICK_DATA_SETS} data sets, methods {','.join(QUICK_METHODS)}",
        panel=INPUT,
    )
    settings: Settings = option(
        "text", "Data sets: text follows appendix D, code follows the code that made Table 1", panel=COMPUTATION
    )
    features: int = option(5, "Number of features", panel=COMPUTATION, metavar="K", least=1)
    classes: int = option(
        10, "Number of categories of each feature and of the response", panel=COMPUTATION, metavar="C", least=2
    )
    rows: int = option(2000, "Number of training rows, and of test rows", panel=COMPUTATION, metavar="N", least=10)

    def _check(self) -> None:
        shifts = QUICK_SETTINGS if self.quick else PAPER_SETTINGS
        methods = QUICK_METHODS if self.quick else METHOD_LABELS
        datasets = QUICK_DATA_SETS if self.quick else DATA_SETS
        object.__setattr__(self, "shifts", parse_shifts(self.shifts or shifts))
        object.__setattr__(self, "methods", check_methods(self.methods or methods))
        object.__setattr__(self, "datasets", self.datasets or datasets)
        if self.rows < self.classes:
            raise UsageError(f"$rows is {self.rows}, expected at least $classes {self.classes}", "rows", "classes")
        for setting in self.shifts or ():
            if setting.n_c > self.features:
                raise UsageError(
                    f"$features is {self.features}, but the setting {setting} needs {setting.n_c} of them as causes; "
                    "give more features, or settings with fewer causes",
                    "features",
                )

    @property
    def shape(self) -> dict[str, Any]:
        """What all settings have in common: keywords of `simulate`."""
        return {name: getattr(self, name) for name in ("settings", "features", "classes", "rows")}

    @property
    def is_of_paper(self) -> bool:
        """Whether tables are as large as the paper's."""
        return all(self.shape[name] == default_of(type(self), name) for name in ("features", "classes", "rows"))


class AutoMpgOptions(Options):
    """Options of the auto-mpg data: the methods, and how often they run. Raises UsageError."""

    data: str | None = option(
        None,
        "Data file: UCI's auto-mpg.data, or a CSV file with the same columns",
        panel=INPUT,
        metavar="FILE",
        shown_default="downloaded from UCI",
    )
    seeds: int = option(
        10, f"Number of seeds, starting from {FIRST_SEED}", panel=INPUT, metavar="N", least=1, most=MOST_DATA_SETS
    )
    methods: Sequence[str] | None = methods_option("lr,gb,atn")

    def _check(self) -> None:
        object.__setattr__(self, "methods", check_methods(self.methods or METHOD_LABELS))
