"""The statements of the papers: their declaration, the list of them, and the table of what each gives.

A new statement is a function, seed → Residuals, under `@statement`, and its name in MODULES. Names are listed here, so
that a shell completes them, and a wrong one is refused, before torch is imported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from attngeo.choices import advise
from attngeo.errors import UsageError
from attngeo.keywords import takes
from attngeo.options import COMPUTATION, Options, option
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.provenance import machine, software

if TYPE_CHECKING:
    import pandas as pd

WIBISONO, SAPONATI, EFA = "Wibisono and Wang 2023", "Saponati et al. 2025", "Wibisono and Wang 2025"
PAPERS = {
    WIBISONO: "https://arxiv.org/abs/2307.04057", SAPONATI: "https://arxiv.org/abs/2502.10927",
    EFA: "https://arxiv.org/abs/2501.16790",
}  # fmt: skip
COLUMNS = ("statement", "paper", "computed", "tolerance", "residual", "holds", "as_printed")
# Errors of rounding in float64, and claims of expectations: no error beyond their confidence intervals.
ROUNDING, INTERVAL = 1e-10, 0.0
LARGEST_SEED = 2**32 - 1

# The modules that declare statements, and the names of these, in the order of the table.
MODULES: dict[str, tuple[str, ...]] = {
    "attngeo.papers.wibisono2023.experts": (
        "lemma-1", "section-2.2-parts", "section-2.2-cbow", "theorem-2-one-head", "theorem-2-several-heads",
        "theorem-2-several-layers",
    ),
    "attngeo.papers.wibisono2023.factorisation": (
        "proposition-9", "proposition-14-minimum", "proposition-14-constant", "proposition-14-trained",
        "lemma-11", "proposition-12", "proposition-13", "lemma-15", "proposition-16", "proposition-17",
    ),
    "attngeo.papers.wibisono2023.analogies": ("proposition-17-tokens",),
    "attngeo.papers.saponati2025.updates": (
        "proposition-2.1-linear", "proposition-2.1-softmax", "remark-s1.6", "proposition-2.2",
        "theorem-2.3-norms", "theorem-2.3-tails", "theorem-2.4-pairs", "theorem-2.4-symmetry", "corollary-s1.12",
    ),
    "attngeo.papers.saponati2025.steps": (
        "proposition-s1.7", "corollary-s1.8", "proposition-s1.9", "remark-s1.10", "lemma-s1.11", "remark-s1.13",
    ),
    "attngeo.papers.saponati2025.scores": (
        "definition-3.1", "proposition-s1.15-range", "proposition-s1.15-chance", "proposition-s1.16-range",
        "proposition-s1.16-chance", "symmetry-from-factors", "directionality-from-factors",
    ),
    "attngeo.papers.wibisono2025.propositions": ("efa-proposition-1", "efa-proposition-2", "efa-proposition-3"),
    "attngeo.papers.wibisono2025.identifiability": (
        "efa-theorem-1-items", "efa-theorem-1-values", "efa-theorem-1-fits",
    ),
    "attngeo.papers.wibisono2025.generalisation": ("efa-theorem-2",),
}  # fmt: skip
STATEMENTS: dict[str, str] = {name: module for module, names in MODULES.items() for name in names}
# The statements of the modules that are imported.
DECLARED: dict[str, Statement] = {}


@dataclass(frozen=True)
class Residuals:
    """How far both sides of a statement are apart, in each case that was computed.

    computed: the numbers behind the residuals, in words. errors: one for each case, at least 0. printed: the same for
    the statement as the paper prints it; empty if that is what was computed.
    """

    computed: str
    errors: tuple[float, ...]
    printed: tuple[float, ...] = ()

    @property
    def worst(self) -> float:
        """The largest error; NaN if one is NaN, or if there is none."""
        return math.nan if not self.errors or any(map(math.isnan, self.errors)) else max(self.errors)

    @property
    def worst_printed(self) -> float:
        """The largest error of the printed form."""
        return Residuals("", self.printed).worst if self.printed else self.worst


def difference(left: Any, right: Any) -> float:
    """The largest |left − right| as a share of the largest |right|, or of 1 if that is larger.

    left, right: numbers, arrays or tensors that broadcast. NaN if an entry of either is NaN or infinite.

    >>> difference([1.0, 200.0], [1.0, 201.0])
    0.004975124378109453
    """
    import numpy as np

    a, b = (np.asarray(value, dtype=float) for value in (left, right))
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return math.nan
    return float(np.max(np.abs(a - b)) / max(1.0, float(np.max(np.abs(b)))))


def shortfall(values: Iterable[float], least: float = 0.0) -> float:
    """How far the smallest value is below `least`; 0 if it is not. NaN if a value is NaN."""
    numbers = [float(value) for value in values]
    return math.nan if any(map(math.isnan, numbers)) else max(0.0, least - min(numbers))


Check = TypeVar("Check", bound=Callable[..., Residuals])


@dataclass(frozen=True)
class Statement:
    """One statement of a paper.

    name: for the command. paper: a key of PAPERS. place: where it is there. claim: what is computed and compared, in a
    phrase. tolerance: the largest error with which it holds. function: returns its residuals for a seed. arguments:
    further ones of that function.
    """

    name: str
    paper: str
    place: str
    claim: str
    tolerance: float
    function: Callable[..., Residuals]
    arguments: Mapping[str, Any]


def statement(
    name: str, paper: str, place: str, claim: str, tolerance: float = ROUNDING, **arguments: Any
) -> Callable[[Check], Check]:
    """Declare that a function computes a statement. Parameters are those of `Statement`."""

    def declare(function: Check) -> Check:
        DECLARED[name] = Statement(name, paper, place, claim, tolerance, function, arguments)
        return function

    return declare


def load_statement(name: str) -> Statement:
    """The statement of a name of STATEMENTS; its module is imported."""
    if name not in DECLARED:
        import_module(STATEMENTS[name])
    return DECLARED[name]


def select_statements(names: Sequence[str]) -> list[str]:
    """The names of statements that these select, in the table's order; all if there is none.

    A name also selects those that it begins: "theorem-2" selects "theorem-2-one-head", but not "theorem-2.3-norms".
    Raises UsageError for an unknown name.
    """
    selected = set()
    for name in names:
        forms = {known for known in STATEMENTS if known == name or known.startswith(f"{name}-")}
        if not forms:
            raise UsageError(f"no statement is named {name!r}; {advise(name.lower(), STATEMENTS)}")
        selected |= forms
    return [name for name in STATEMENTS if not names or name in selected]


class TheoryOptions(Options):
    """How statements are evaluated. Raises UsageError for a value outside its limits."""

    seed: int = option(
        0, "Seed of what is drawn: weights, corpora, matrices", panel=COMPUTATION, least=0, most=LARGEST_SEED
    )


class TheoryKeywords(TheoryOptions):
    """The keywords of `check_statements`."""

    options: TheoryOptions | None = None
    progress: ProgressCallback = ignore_progress


@takes(TheoryKeywords)
def check_statements(
    names: Sequence[str] = (), options: TheoryOptions = TheoryOptions(), *, progress: ProgressCallback = ignore_progress
) -> pd.DataFrame:
    """Evaluate the statements of these names, or all: a row for each, with the columns COLUMNS.

    {options}
    progress: called before each statement.
    `residual` is the largest error, `holds` whether it is at most `tolerance`; a NaN does not hold. `as_printed` is
    False if that is true of a corrected form only, which is then what `residual` is about.
    Raises UsageError for an unknown name or a seed out of range.

    >>> row = check_statements(["lemma-1"]).iloc[0]
    >>> bool(row.holds and row.as_printed and row.residual < 1e-10)
    True
    """
    import pandas as pd

    chosen = select_statements(names)
    rows = []
    for done, name in enumerate(chosen):
        progress(Progress("verify", name, done, len(chosen), "steps"))
        claimed = load_statement(name)
        residuals = claimed.function(options.seed, **claimed.arguments)
        holds = residuals.worst <= claimed.tolerance
        rows.append(
            (name, f"{claimed.paper}, {claimed.place}", f"{claimed.claim}: {residuals.computed}", claimed.tolerance,
             residuals.worst, holds, holds and residuals.worst_printed <= claimed.tolerance)
        )  # fmt: skip
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    frame.attrs |= {"title": "Statements of the papers", **software(), **machine(), **vars(options), "papers": PAPERS}
    return frame
