"""The settings and published numbers of Tables 1 and 2, and the options of what computes them.

Source: Wibisono and Wang 2023 (arXiv 2307.04057).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple, get_args

from attngeo.choices import one_of, real, whole
from attngeo.errors import UsageError
from attngeo.estimators.tabular.options import METHOD_LABELS, check_methods, methods_option
from attngeo.options import COMPUTATION, INPUT, Options, default_of, option

SOURCE = "Wibisono and Wang 2023 (arXiv 2307.04057), tables 1 and 2"
# How tables are made: as the text says, or as the code did that made the published numbers.
ShiftConvention = Literal["text", "published"]
MOST_DATA_SETS = 1000
# The seed of the paper's run on auto-mpg.
FIRST_SEED = 42


@dataclass(frozen=True, kw_only=True)
class Shift:
    """A setting of the simulation. Raises UsageError for a value outside its limits.

    n_c: features that the response depends on, the first ones. noise: scale of the noise of observed features. corr:
    between features in training rows; in test rows it is 1 − corr. n_features: K. n_classes: C, of features and of the
    response. train_rows, test_rows: how many rows. convention: `text` follows appendix D; `published` follows the code
    that made Table 1, which multiplies the first features by −1 in test rows, too, and bins training and test rows
    together.
    """

    n_c: int = 5
    noise: float = 0.0
    corr: float = 0.9
    n_features: int = 5
    n_classes: int = 10
    train_rows: int = 2000
    test_rows: int = 2000
    convention: ShiftConvention = "text"

    def __post_init__(self) -> None:
        whole("n_features", self.n_features, 1)
        whole("n_c", self.n_c, 1, self.n_features)
        whole("n_classes", self.n_classes, 2)
        whole("train_rows", self.train_rows, self.n_classes)
        whole("test_rows", self.test_rows, self.n_classes)
        real("noise", self.noise, 0.0, math.inf)
        real("corr", self.corr, 0.0, 1.0)
        one_of("convention", self.convention, get_args(ShiftConvention))


class ShiftSetting(NamedTuple):
    """A row of Table 1: features that the response depends on, noise of features, correlation in training rows."""

    n_c: int
    noise: float
    corr: float

    def __str__(self) -> str:
        return f"{self.n_c},{self.noise:g},{self.corr:g}"


class PublishedScores(NamedTuple):
    """What the paper prints for a method: of Table 1, means over 20 data sets."""

    accuracy: float
    mse: float


@cache
def simulation_scores() -> dict[tuple[ShiftSetting, str], PublishedScores]:
    """Table 1: setting and method → its scores."""
    return {
        (ShiftSetting(int(row["n_c"]), float(row["noise"]), float(row["corr"])), row["method"]): scores
        for row, scores in _read_scores("published_simulation.csv")
    }


@cache
def auto_mpg_scores() -> dict[str, PublishedScores]:
    """Table 2: method → its scores."""
    return {row["method"]: scores for row, scores in _read_scores("published_auto_mpg.csv")}


def paper_settings() -> tuple[ShiftSetting, ...]:
    """The twelve settings of Table 1, in its order."""
    return tuple(dict.fromkeys(setting for setting, _ in simulation_scores()))


def _read_scores(name: str) -> Iterator[tuple[dict[str, str], PublishedScores]]:
    """The rows of a table, with their scores."""
    for row in csv.DictReader((files(__package__) / name).read_text("utf-8").splitlines()):
        yield row, PublishedScores(float(row["accuracy"]), float(row["mse"]))


# What `quick` runs where nothing else is given.
QUICK_SETTINGS = (ShiftSetting(5, 0.0, 0.9),)
QUICK_METHODS, QUICK_DATA_SETS, DATA_SETS = ("lr", "rf", "atn"), 3, 20


def parse_settings(texts: Iterable[str] | str) -> tuple[ShiftSetting, ...]:
    """The settings of texts such as "5,0,0.9": n_c, noise and corr. Raises UsageError.

    >>> parse_settings(["5,0,0.9", "1,1.5,0.1"])
    (ShiftSetting(n_c=5, noise=0.0, corr=0.9), ShiftSetting(n_c=1, noise=1.5, corr=0.1))
    """
    return tuple(_check_setting(text) for text in ([texts] if isinstance(texts, str) else texts))


def _check_setting(setting: Sequence[float] | str) -> ShiftSetting:
    """Three numbers, or the text of them. Raises UsageError."""
    try:
        n_c, noise, corr = map(float, setting.split(",") if isinstance(setting, str) else setting)
        if n_c != int(n_c) or not math.isfinite(noise + corr):
            raise ValueError
        return ShiftSetting(int(n_c), noise, corr)
    except (TypeError, ValueError, OverflowError):
        known = " ".join(map(str, paper_settings()))
        raise UsageError(
            f"$settings has {setting!r:.60}, expected three finite numbers n_c,noise,corr such as 5,0,0.9, of which "
            f"n_c is whole; those of the paper are: {known}",
            "settings",
        ) from None


class SimulateOptions(Options):
    """Which data sets are simulated, and which methods answer them. Raises UsageError.

    settings: texts such as "5,0,0.9", or the three numbers.
    """

    settings: Sequence[Any] | None = option(
        None, "Setting n_c,noise,corr, for example 5,0,0.9; may be repeated", panel=INPUT, metavar="SETTING",
        parse=parse_settings, repeated=True, shown_default="the 12 of Table 1",
    )  # fmt: skip
    datasets: int | None = option(
        None, "Data sets of each setting", panel=INPUT, metavar="N", least=1, most=MOST_DATA_SETS,
        shown_default=str(DATA_SETS),
    )  # fmt: skip
    methods: Sequence[str] | None = methods_option("lr,gb,atn")
    quick: bool = option(
        False,
        f"Run a part of two minutes: setting {' and '.join(map(str, QUICK_SETTINGS))}, {QUICK_DATA_SETS} data sets, "
        f"methods {','.join(QUICK_METHODS)}",
        panel=INPUT,
    )
    convention: ShiftConvention = option(
        "text", "Data sets: text follows appendix D, published follows the code that made Table 1", panel=COMPUTATION
    )
    features: int = option(5, "Number of features", panel=COMPUTATION, metavar="K", least=1)
    classes: int = option(
        10, "Number of categories of each feature and of the response", panel=COMPUTATION, metavar="C", least=2
    )
    rows: int = option(2000, "Number of training rows, and of test rows", panel=COMPUTATION, metavar="N", least=10)

    def _check(self) -> None:
        for name, values in (("settings", self.setting_list), ("methods", self.method_names)):
            object.__setattr__(self, name, values)
        object.__setattr__(self, "datasets", self.data_sets)
        if self.rows < self.classes:
            raise UsageError(f"$rows is {self.rows}, expected at least $classes {self.classes}", "rows", "classes")
        for setting in self.setting_list:
            if setting.n_c > self.features:
                raise UsageError(
                    f"$features is {self.features}, but the setting {setting} has {setting.n_c} of them as causes; "
                    "give more features, or settings with fewer causes",
                    "features",
                )
        list(self.shifts)  # raises UsageError for a setting outside its limits

    @property
    def setting_list(self) -> tuple[ShiftSetting, ...]:
        """The settings, each once."""
        settings = self.settings or (QUICK_SETTINGS if self.quick else paper_settings())
        return tuple(dict.fromkeys(_check_setting(setting) for setting in settings))

    @property
    def method_names(self) -> tuple[str, ...]:
        """The methods, each once."""
        return check_methods(self.methods or (QUICK_METHODS if self.quick else METHOD_LABELS))

    @property
    def data_sets(self) -> int:
        """The number of data sets of each setting."""
        return self.datasets or (QUICK_DATA_SETS if self.quick else DATA_SETS)

    @property
    def is_of_paper(self) -> bool:
        """Whether tables have the size of those of the paper."""
        return all(getattr(self, name) == default_of(type(self), name) for name in ("features", "classes", "rows"))

    @property
    def shifts(self) -> tuple[Shift, ...]:
        """The settings as the simulation takes them."""
        return tuple(
            Shift(
                n_c=n_c, noise=noise, corr=corr, n_features=self.features, n_classes=self.classes,
                train_rows=self.rows, test_rows=self.rows, convention=self.convention,
            )
            for n_c, noise, corr in self.setting_list
        )  # fmt: skip


class AutoMpgOptions(Options):
    """Which methods answer the auto-mpg data, and how often. Raises UsageError."""

    data: str | None = option(
        None, "File of the data: UCI's auto-mpg.data, or a CSV file with the same columns", panel=INPUT, metavar="FILE",
        shown_default="downloaded from UCI",
    )  # fmt: skip
    seeds: int = option(
        10, f"Number of seeds, from {FIRST_SEED} on", panel=INPUT, metavar="N", least=1, most=MOST_DATA_SETS
    )
    methods: Sequence[str] | None = methods_option("lr,gb,atn")

    def _check(self) -> None:
        object.__setattr__(self, "methods", self.method_names)

    @property
    def method_names(self) -> tuple[str, ...]:
        """The methods, each once."""
        return check_methods(self.methods or METHOD_LABELS)
