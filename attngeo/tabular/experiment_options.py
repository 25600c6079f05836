"""The options of the experiments, each declared once: library, commands and recipes read them here."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from attngeo.errors import PROJECT_FILES, UsageError
from attngeo.options import COMPUTATION, INPUT, Options, as_texts, default_of, option
from attngeo.tabular.methods import METHODS
from attngeo.tabular.published import ShiftSetting, paper_settings
from attngeo.tabular.simulation import Shift, ShiftConvention

MOST_DATA_SETS = 1000
# Why no extra installs pytorch_tabular.
WHY_NOT_INSTALLED = (
    "it is not installed, and pip refuses it beside attngeo, because it requires pandas < 3; "
    f"{PROJECT_FILES}/attngeo/tabular/README.md has a command that installs it"
)
# The seed of the paper's run on auto-mpg.
FIRST_SEED = 42
# What `quick` runs where nothing else is given.
QUICK_SETTINGS = (ShiftSetting(5, 0.0, 0.9),)
QUICK_METHODS, QUICK_DATA_SETS, DATA_SETS = ("lr", "rf", "atn"), 3, 20


def parse_settings(texts: Iterable[str] | str) -> tuple[ShiftSetting, ...]:
    """The settings of texts such as "5,0,0.9": n_c, noise and corr. Raises UsageError.

    >>> parse_settings(["5,0,0.9", "1,1.5,0.1"])
    (ShiftSetting(n_c=5, noise=0.0, corr=0.9), ShiftSetting(n_c=1, noise=1.5, corr=0.1))
    """
    return tuple(_check_setting(text) for text in ([texts] if isinstance(texts, str) else texts))


def _check_setting(given: Sequence[float] | str) -> ShiftSetting:
    """Three numbers, or the text of them. Raises UsageError."""
    try:
        n_c, noise, corr = map(float, given.split(",") if isinstance(given, str) else given)
        if n_c != int(n_c) or not math.isfinite(noise + corr):
            raise ValueError
        return ShiftSetting(int(n_c), noise, corr)
    except (TypeError, ValueError, OverflowError):
        known = " ".join(map(str, paper_settings()))
        raise UsageError(
            f"settings has {given!r:.60}, expected three finite numbers n_c,noise,corr such as 5,0,0.9, of which n_c "
            f"is whole; those of the paper are: {known}"
        ) from None


def methods_of_table_1() -> list[str]:
    """The methods that every installation has: attention, and the baselines of scikit-learn."""
    return [name for name, method in METHODS.items() if method.in_table_1]


def check_methods(names: Iterable[str] | str, known: Collection[str] = METHODS) -> tuple[str, ...]:
    """The names, each once, if each is a known method. Raises UsageError with the nearest name otherwise."""
    listed = names.split(",") if isinstance(names, str) else names
    found = tuple(dict.fromkeys(str(name).strip().lower() for name in listed))
    for name in found:
        if name not in known:
            near = get_close_matches(name, known, 1)
            advice = f"did you mean {near[0]}?" if near else f"expected some of: {', '.join(known)}"
            raise UsageError(f"methods has {name!r:.60}, which is no method; {advice}")
        if missing := METHODS[name].missing:
            raise UsageError(f"methods has {name!r}, which requires {' and '.join(missing)}; {WHY_NOT_INSTALLED}")
    if not found:
        raise UsageError(f"methods is empty, expected some of: {', '.join(known)}")
    return found


def _split_names(names: Any) -> Any:
    return tuple(names.split(",")) if isinstance(names, str) else as_texts(names)


def methods_option(help: str) -> Any:
    """The option `methods`, which both experiments have."""
    return option(None, help, panel=INPUT, metavar="LIST", parse=_split_names, shown_default="all")


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
    methods: Sequence[str] | None = methods_option("Methods, for example lr,gb,atn")
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
            raise UsageError(f"rows is {self.rows}, expected at least as many as classes, {self.classes}")
        for setting in self.setting_list:
            if setting.n_c > self.features:
                raise UsageError(
                    f"features is {self.features}, but the setting {setting} has {setting.n_c} of them as causes; give "
                    "more features, or settings with fewer causes"
                )
        list(self.shifts)  # raises UsageError for a setting outside its limits

    @property
    def setting_list(self) -> tuple[ShiftSetting, ...]:
        """The settings, each once."""
        given = self.settings or (QUICK_SETTINGS if self.quick else paper_settings())
        return tuple(dict.fromkeys(_check_setting(each) for each in given))

    @property
    def method_names(self) -> tuple[str, ...]:
        """The methods, each once."""
        return check_methods(self.methods or (QUICK_METHODS if self.quick else methods_of_table_1()))

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
    methods: Sequence[str] | None = methods_option("Methods, for example lr,gb,atn")

    def _check(self) -> None:
        object.__setattr__(self, "methods", self.method_names)

    @property
    def method_names(self) -> tuple[str, ...]:
        """The methods, each once."""
        return check_methods(self.methods or [name for name, method in METHODS.items() if not method.missing])

    @property
    def left_out(self) -> list[str]:
        """The methods that are left out of all, because a package is not installed."""
        missing = [name for name, method in METHODS.items() if method.missing]
        return missing if {*self.method_names, *missing} == set(METHODS) else []
