"""The statements of the papers: the table of them, and a row of results for each.

A new statement is a function, seed → Residuals, and its entry in STATEMENTS. The table is data, so that a shell
completes names, and a wrong one is refused, before torch is imported.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attngeo.choices import advise
from attngeo.errors import UsageError
from attngeo.keywords import takes
from attngeo.options import COMPUTATION, Options, option
from attngeo.papers.residuals import Residuals
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.provenance import machine, software
from attngeo.questions.conditions import Checkable
from attngeo.session import Session

if TYPE_CHECKING:
    import pandas as pd

WIBISONO = "Wibisono and Wang 2023"
SAPONATI = "Saponati et al. 2025"
EFA = "Wibisono and Wang 2025"
PAPERS = {
    WIBISONO: "https://arxiv.org/abs/2307.04057",
    SAPONATI: "https://arxiv.org/abs/2502.10927",
    EFA: "https://arxiv.org/abs/2501.16790",
}
STATEMENT_COLUMNS = ("statement", "paper", "computed", "tolerance", "residual", "holds", "as_printed")
# The columns of numbers, and of truths as 0 and 1, which conditions may name.
STATEMENT_NUMBERS = ("residual", "tolerance", "holds", "as_printed")
# What conditions may say of the table.
CHECKS = Checkable(STATEMENT_NUMBERS, about=("statement",), units=("rows",))
# Tolerances of identities in float64, and of claims about expectations: no error beyond their confidence intervals.
ROUNDING = 1e-10
INTERVAL = 0.0
LARGEST_SEED = 2**32 - 1


@dataclass(frozen=True)
class Statement:
    """One statement of a paper.

    Attributes:
        name: name on the command line.
        paper: a key of PAPERS.
        place: place in the paper.
        claim: the two sides of the comparison, in a phrase.
        function: returns the residuals for a seed; "module:name" is imported from this package on demand.
        tolerance: the largest error at which the statement counts as true.
        arguments: further arguments of the function.
    """

    name: str
    paper: str
    place: str
    claim: str
    function: str | Callable[..., Residuals]
    tolerance: float = ROUNDING
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def find_function(self) -> Callable[..., Residuals]:
        """The function that computes it; its module is imported."""
        if not isinstance(self.function, str):
            return self.function
        function: Callable[..., Residuals] = pkgutil.resolve_name(f"{__package__}.{self.function}")
        return function

    def compute(self, seed: int) -> Residuals:
        """The residuals for the random draws of this seed."""
        return self.find_function()(seed, **self.arguments)


STATEMENTS = {
    statement.name: statement
    for statement in (
        Statement(
            "lemma-1", WIBISONO, "Lemma 1",
            "loss in terms of θ and χ = cross-entropy of the attention layer",
            "wibisono2023.experts:check_lemma_1",
        ),
        Statement(
            "section-2.2-parts", WIBISONO, "Section 2.2",
            "weight and similarity as sums of four parts = logits of attention",
            "wibisono2023.experts:check_parts",
        ),
        Statement(
            "section-2.2-cbow", WIBISONO, "Section 2.2, L_CBOW",
            "loss in terms of ω and ξ = cross-entropy of CBOW with a window",
            "wibisono2023.experts:check_cbow_loss",
        ),
        Statement(
            "theorem-2-one-head", WIBISONO, "Theorem 2",
            "mixture of word experts = logits of attention",
            "wibisono2023.experts:check_theorem_2",
        ),
        Statement(
            "theorem-2-several-heads", WIBISONO, "Theorem 2, several heads",
            "stacked mixtures = logits of attention",
            "wibisono2023.experts:check_theorem_2", arguments={"heads": 3},
        ),
        Statement(
            "theorem-2-several-layers", WIBISONO, "Theorem 2, several layers",
            "mixture of mixtures = logits of attention",
            "wibisono2023.experts:check_theorem_2", arguments={"heads": 2, "layers": 3},
        ),
        Statement(
            "proposition-9", WIBISONO, "Propositions 3 and 9",
            "correlations of w·c with p(w,c)/p(c), CBOW on the toy corpus: distance below the published ones",
            "wibisono2023.factorisation:check_proposition_9", tolerance=0.06,
        ),
        Statement(
            "proposition-14-minimum", WIBISONO, "Propositions 6 and 14",
            "derivative of the approximate loss at equation (2) = 0",
            "wibisono2023.factorisation:check_proposition_14",
        ),
        Statement(
            "proposition-14-constant", WIBISONO, "Propositions 6 and 14, constant τ",
            "equation (2) = |V|·p(w,c)/p(c) − 1",
            "wibisono2023.factorisation:check_proposition_14_constant",
        ),
        Statement(
            "proposition-14-trained", WIBISONO, "Propositions 6 and 14, measured",
            "correlation of w·c with equation (2), attention on the toy corpus: distance below that of CBOW",
            "wibisono2023.factorisation:check_proposition_14_trained", tolerance=0.06,
        ),
        Statement(
            "lemma-11", WIBISONO, "Lemma 11",
            "sum of rows of M = ρ + σ − σ* + δ = ξ + σ − σ*",
            "wibisono2023.paraphrases:check_sums",
        ),
        Statement(
            "proposition-12", WIBISONO, "Propositions 4 and 12",
            "w_b* = w_a* − w_a + w_b + C†·(error terms)",
            "wibisono2023.paraphrases:check_analogies",
        ),
        Statement(
            "proposition-13", WIBISONO, "Propositions 5 and 13",
            "error of c_r + c_s ≈ c_t + c_u as a share of its bound",
            "wibisono2023.paraphrases:check_conclusions", tolerance=1.0,
        ),
        Statement(
            "lemma-15", WIBISONO, "Lemma 15",
            "Lemma 11 for the weighted p̄, and w·c̃ = |V|·p̄(w,c)/p̄(c) − 1",
            "wibisono2023.paraphrases:check_sums", arguments={"weighted": True},
        ),
        Statement(
            "proposition-16", WIBISONO, "Propositions 7 and 16",
            "Proposition 12 for p̄ and c̃",
            "wibisono2023.paraphrases:check_analogies", arguments={"weighted": True},
        ),
        Statement(
            "proposition-17", WIBISONO, "Propositions 8 and 17",
            "error of c̃_r + c̃_s ≈ c̃_t + c̃_u as a share of its bound",
            "wibisono2023.paraphrases:check_conclusions", tolerance=1.0, arguments={"asymmetry": 1.0},
        ),
        Statement(
            "proposition-17-tokens", WIBISONO, "Propositions 8 and 17, conditions",
            "c̃ is linear if p̄ is symmetric, c if ζ is constant as well",
            "wibisono2023.paraphrases:check_tokens", tolerance=1e-06,
        ),
        Statement(
            "proposition-2.1-linear", SAPONATI, "Proposition 2.1, linear attention",
            "Σ β·K = gradient by autograd",
            "saponati2025.updates:check_proposition_2_1",
        ),
        Statement(
            "proposition-2.1-softmax", SAPONATI, "Proposition 2.1, equation (1)",
            "Σ β·K with the softmax's derivative in β = gradient by autograd",
            "saponati2025.updates:check_proposition_2_1_softmax",
        ),
        Statement(
            "proposition-2.1-lower-layers", SAPONATI, "Proposition 2.1, below the last layer",
            "Σ β·K with the errors of all tokens in δ = gradient by autograd",
            "saponati2025.updates:check_proposition_2_1_lower_layers",
        ),
        Statement(
            "remark-s1.6", SAPONATI, "Remark S1.6",
            "change of Wq·Wkᵀ by a step = η(G·Wk·Wkᵀ + Wq·Wqᵀ·G) + O(η²)",
            "saponati2025.updates:check_remark_s1_6",
        ),
        Statement(
            "proposition-2.2", SAPONATI, "Proposition 2.2",
            "columns and rows (13) to (16) = parts of the gradient",
            "saponati2025.updates:check_proposition_2_2",
        ),
        Statement(
            "theorem-2.3-norms", SAPONATI, "Theorem 2.3, (17)",
            "autoregressive: E‖Δw_·k‖² > E‖Δw_k·‖² if Σ_kk < tr Σ/d",
            "saponati2025.simulation:check_theorem_2_3_norms", tolerance=INTERVAL,
        ),
        Statement(
            "theorem-2.3-tails", SAPONATI, "Theorem 2.3, (18)",
            "autoregressive: column k more often large than row k, same k",
            "saponati2025.simulation:check_theorem_2_3_tails", tolerance=INTERVAL,
        ),
        Statement(
            "theorem-2.4-pairs", SAPONATI, "Theorem 2.4, (19, 20)",
            "gradient = sum of the parts of pairs",
            "saponati2025.updates:check_theorem_2_4_pairs",
        ),
        Statement(
            "theorem-2.4-symmetry", SAPONATI, "Theorem 2.4, (21)",
            "bidirectional update more symmetric than autoregressive one",
            "saponati2025.simulation:check_theorem_2_4_symmetry", tolerance=INTERVAL,
        ),
        Statement(
            "corollary-s1.12", SAPONATI, "Corollary S1.12",
            "bidirectional: E‖Δw_·k‖² = E‖Δw_k·‖²",
            "saponati2025.simulation:check_corollary_s1_12", tolerance=INTERVAL,
        ),
        Statement(
            "proposition-s1.7", SAPONATI, "Proposition S1.7",
            "context: E‖Δw_·k‖²/E‖Δw_m·‖² = tr Σ/(d·Σ_mm), above 1 if Σ_mm < tr Σ/d",
            "saponati2025.steps:check_norm_ratios",
        ),
        Statement(
            "corollary-s1.8", SAPONATI, "Corollary S1.8",
            "predicted: E‖Δw_·k‖²/E‖Δw_m·‖² = d·Σ_kk/tr Σ, below 1 if Σ_kk < tr Σ/d",
            "saponati2025.steps:check_norm_ratios", arguments={"predicted": True},
        ),
        Statement(
            "proposition-s1.9", SAPONATI, "Proposition S1.9",
            "expected counts as context / as predicted: autoregressive Σ(N−k)·Pr/Σ(k−1)·Pr, bidirectional 1",
            "saponati2025.steps:check_proposition_s1_9",
        ),
        Statement(
            "remark-s1.10", SAPONATI, "Remark S1.10",
            "autoregressive ratio = (N−μ)/(μ−1) ≥ 1 + 2δ/(μ−1); 1 if no place is special",
            "saponati2025.steps:check_remark_s1_10",
        ),
        Statement(
            "lemma-s1.11", SAPONATI, "Lemma S1.11",
            "same family, equal means, σ_a > σ_b: Pr[X_a > z] ≥ Pr[X_b > z] for z ≥ μ",
            "saponati2025.steps:check_lemma_s1_11",
        ),
        Statement(
            "remark-s1.13", SAPONATI, "Remark S1.13",
            "masked: update = diagonal + pairs + rest; pairs/rest → p/(1−p), pairs/all → p",
            "saponati2025.steps:check_remark_s1_13",
        ),
        Statement(
            "definition-3.1", SAPONATI, "Definition 3.1",
            "s without the factor 2 = tr(MM)/‖M‖², ±1 for M = ±Mᵀ",
            "saponati2025.scores:check_definition_3_1",
        ),
        Statement(
            "proposition-s1.15-range", SAPONATI, "Proposition S1.15 (1, 2)",
            "1 − s = 2‖M_n‖²/‖M‖², 1 + s = 2‖M_s‖²/‖M‖²",
            "saponati2025.scores:check_proposition_s1_15_range",
        ),
        Statement(
            "proposition-s1.15-chance", SAPONATI, "Proposition S1.15 (3)",
            "mean s of random matrices = 1/n",
            "saponati2025.scores:check_proposition_s1_15_chance", tolerance=INTERVAL,
        ),
        Statement(
            "proposition-s1.16-range", SAPONATI, "Proposition S1.16 (1, 2)",
            "d in [−1, 1], ±1 if only rows or only columns exceed the threshold",
            "saponati2025.scores:check_proposition_s1_16_range",
        ),
        Statement(
            "proposition-s1.16-chance", SAPONATI, "Proposition S1.16 (3)",
            "mean d of random matrices = 0, spread falls with n",
            "saponati2025.scores:check_proposition_s1_16_chance", tolerance=INTERVAL,
        ),
        Statement(
            "symmetry-from-factors", SAPONATI, "Definition 3.1, from Wq and Wk",
            "s without forming M = dense s",
            "saponati2025.scores:check_cheap_scores", tolerance=1e-05,
        ),
        Statement(
            "directionality-from-factors", SAPONATI, "Definition 3.2, from Wq and Wk",
            "d without forming M = dense d",
            "saponati2025.scores:check_cheap_scores", tolerance=1e-05, arguments={"score": "directionality"},
        ),
        Statement(
            "efa-proposition-1", EFA, "Proposition 1",
            "logits of attention = those of the factor model of items",
            "wibisono2025.propositions:check_proposition_1",
        ),
        Statement(
            "efa-proposition-2", EFA, "Proposition 2",
            "means of linear attention = those of the factor model of places",
            "wibisono2025.propositions:check_proposition_2",
        ),
        Statement(
            "efa-proposition-3", EFA, "Proposition 3",
            "log rates of linear attention = those of the factor model of values",
            "wibisono2025.propositions:check_proposition_3",
        ),
        Statement(
            "efa-theorem-1-items", EFA, "Theorem 1, items",
            "same distribution: contexts H' = A·H*, centers e' = B·e* + b",
            "wibisono2025.identifiability:check_theorem_1_items",
        ),
        Statement(
            "efa-theorem-1-values", EFA, "Theorem 1, values",
            "same distribution: K' = C·K* at d_j chosen inputs, K'·L' = K*·L*",
            "wibisono2025.identifiability:check_theorem_1_values",
        ),
        Statement(
            "efa-theorem-1-fits", EFA, "Theorem 1, measured",
            "1 - R² of the maps between two fits on the same sequences",
            "wibisono2025.identifiability:check_theorem_1_fits", tolerance=0.01,
        ),
        Statement(
            "efa-theorem-2", EFA, "Theorem 2",
            "excess and deviation of the loss as a share of a bound with all constants",
            "wibisono2025.generalisation:check_theorem_2", tolerance=1.0,
        ),
    )
}  # fmt: skip


def select_statements(names: Sequence[str]) -> list[str]:
    """The statements that these names select, in the table's order; without names, all.

    A name also selects longer names: "theorem-2" selects "theorem-2-one-head", but not "theorem-2.3-norms".
    Raises UsageError for an unknown name.
    """
    if not names:
        return list(STATEMENTS)
    selected = set()
    for name in names:
        forms = {form for form in STATEMENTS if form == name or form.startswith(f"{name}-")}
        if not forms:
            all_names = f"expected one of: {', '.join(STATEMENTS)}"
            raise UsageError(f"unknown statement {name!r}; {advise(name.lower(), _list_names(), all_names)}")
        selected |= forms
    return [name for name in STATEMENTS if name in selected]


class TheoryOptions(Options):
    """Options for checking statements. Raises UsageError for a value outside its limits."""

    seed: int = option(
        0, "Seed of the random weights, corpora and matrices", panel=COMPUTATION, least=0, most=LARGEST_SEED
    )


class TheoryKeywords(TheoryOptions):
    """The keywords of `check_statements`."""

    options: TheoryOptions | None = None
    progress: ProgressCallback = ignore_progress


@takes(TheoryKeywords)
def check_statements(
    names: Sequence[str] = (), options: TheoryOptions = TheoryOptions(), *, session: Session
) -> pd.DataFrame:
    """Check the statements with these names, or all: one row per statement, with the columns STATEMENT_COLUMNS.

    names: names of statements, or their beginnings; without names, all statements.
    {options}
    progress: called before each statement.

    Returns:
        `residual` is the largest error, and `holds` whether it is at most `tolerance`; a NaN does not hold.
        `as_printed` is False if only a corrected form holds; then `residual` is about the corrected form.

    Raises:
        UsageError: a name is unknown, or the seed is out of range.

    >>> row = check_statements(["lemma-1"]).iloc[0]
    >>> bool(row.holds and row.as_printed and row.residual < 1e-10)
    True
    """
    import pandas as pd

    chosen = select_statements(names)
    rows = []
    for done, name in enumerate(chosen):
        session.progress(Progress("verify", name, done, len(chosen), "steps"))
        statement = STATEMENTS[name]
        residuals = statement.compute(options.seed)
        holds = residuals.worst <= statement.tolerance
        rows.append(
            {
                "statement": name,
                "paper": f"{statement.paper}, {statement.place}",
                "computed": f"{statement.claim}: {residuals.computed}",
                "tolerance": statement.tolerance,
                "residual": residuals.worst,
                "holds": holds,
                "as_printed": holds and residuals.worst_printed <= statement.tolerance,
            }
        )
    frame = pd.DataFrame(rows, columns=list(STATEMENT_COLUMNS))
    frame.attrs |= {"title": "Statements of the papers", **software(), **machine(), **vars(options), "papers": PAPERS}
    return frame


def _list_names() -> list[str]:
    """The names that select statements: those that begin several of them, shortest first, then those of each."""
    parts = [form.split("-") for form in STATEMENTS]
    beginnings = ["-".join(words[:count]) for words in parts for count in range(1, len(words))]
    return [*sorted(dict.fromkeys(beginnings), key=len), *STATEMENTS]
