"""The statements of the papers as data, and the table of what each of them gives.

A new statement is a function, seed → Residuals, and one more `Statement` in STATEMENTS. The table imports nothing
heavy: a function is imported when it is first called.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from attngeo.errors import UsageError
from attngeo.options import accept_options
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.provenance import machine, software
from attngeo.theory.options import TheoryOptions

if TYPE_CHECKING:
    import pandas as pd

    from attngeo.theory.residuals import Residuals

WIBISONO, SAPONATI = "Wibisono and Wang 2023", "Saponati et al. 2025"
PAPERS = {WIBISONO: "https://arxiv.org/abs/2307.04057", SAPONATI: "https://arxiv.org/abs/2502.10927"}
# Errors of rounding in float64, and claims of expectations: no error beyond their confidence intervals.
ROUNDING, INTERVAL = 1e-10, 0.0
COLUMNS = ("statement", "paper", "computed", "tolerance", "residual", "holds", "as_printed")


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One statement of a paper.

    name: how the command calls it. paper: which one, a key of PAPERS. place: where it is there. claim: what is computed
    and compared, in a phrase. tolerance: the largest error with which it holds. function: "module:function" that
    returns its residuals for a seed. arguments: further ones of that function.
    """

    name: str
    paper: str
    place: str
    claim: str
    tolerance: float
    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def evaluate(self, seed: int = 0) -> Residuals:
        """The residuals for a seed."""
        found: Residuals = pkgutil.resolve_name(f"attngeo.theory.{self.function}")(seed, **self.arguments)
        return found


def _list_wibisono() -> tuple[Statement, ...]:
    def statement(name: str, place: str, claim: str, tolerance: float, function: str, **arguments: Any) -> Statement:
        return Statement(
            name=name, paper=WIBISONO, place=place, claim=claim, tolerance=tolerance, function=function,
            arguments=arguments,
        )  # fmt: skip

    return (
        statement(
            "lemma-1", "Lemma 1", "loss by θ and χ = cross-entropy of the attention layer", ROUNDING,
            "experts:check_lemma_1",
        ),
        statement(
            "theorem-2-one-head", "Theorem 2", "mixture of word experts = logits of attention", ROUNDING,
            "experts:check_theorem_2",
        ),
        statement(
            "theorem-2-several-heads", "Theorem 2, several heads", "stacked mixtures = logits of attention", ROUNDING,
            "experts:check_theorem_2", heads=3,
        ),
        statement(
            "theorem-2-several-layers", "Theorem 2, several layers", "mixture of mixtures = logits of attention",
            ROUNDING, "experts:check_theorem_2_layers",
        ),
        statement(
            "proposition-9", "Propositions 3 and 9",
            "correlations of w·c with p(w,c)/p(c), CBOW on the toy corpus: distance from the published ones", 0.06,
            "factorisation:check_proposition_9",
        ),
        statement(
            "proposition-14-minimum", "Propositions 6 and 14", "derivative of the approximate loss at equation (2) = 0",
            ROUNDING, "factorisation:check_proposition_14",
        ),
        statement(
            "proposition-14-constant", "Propositions 6 and 14, constant τ", "equation (2) = |V|·p(w,c)/p(c) − 1",
            ROUNDING, "factorisation:check_proposition_14_constant",
        ),
        statement(
            "proposition-14-trained", "Propositions 6 and 14, measured",
            "correlation of w·c with equation (2), attention on the toy corpus: distance below that of CBOW", 0.06,
            "factorisation:check_proposition_14_trained",
        ),
        statement(
            "lemma-11", "Lemma 11", "sum of rows of M = ρ + σ − σ* + δ = ξ + σ − σ*", ROUNDING,
            "paraphrase:check_lemma_11",
        ),
        statement(
            "proposition-12", "Propositions 4 and 12", "w_b* = w_a* − w_a + w_b + C†·(error terms)", ROUNDING,
            "paraphrase:check_proposition_12",
        ),
        statement(
            "proposition-13", "Propositions 5 and 13", "error of c_r + c_s ≈ c_t + c_u as a share of its bound", 1.0,
            "paraphrase:check_proposition_13",
        ),
        statement(
            "lemma-15", "Lemma 15", "Lemma 11 for the weighted p̄, and w·c̃ = |V|·p̄(w,c)/p̄(c) − 1", ROUNDING,
            "paraphrase:check_lemma_15",
        ),
        statement(
            "proposition-16", "Propositions 7 and 16", "Proposition 12 for p̄ and c̃", ROUNDING,
            "paraphrase:check_proposition_16",
        ),
        statement(
            "proposition-17", "Propositions 8 and 17", "error of c̃_r + c̃_s ≈ c̃_t + c̃_u as a share of its bound", 1.0,
            "paraphrase:check_proposition_17",
        ),
    )  # fmt: skip


def _list_saponati() -> tuple[Statement, ...]:
    def statement(name: str, place: str, claim: str, tolerance: float, function: str) -> Statement:
        return Statement(name=name, paper=SAPONATI, place=place, claim=claim, tolerance=tolerance, function=function)

    return (
        statement(
            "proposition-2.1-linear", "Proposition 2.1, linear attention", "Σ β·K = gradient by autograd", ROUNDING,
            "updates:check_proposition_2_1",
        ),
        statement(
            "proposition-2.1-softmax", "Proposition 2.1, equation (1)",
            "Σ β·K with the softmax's derivative in β = gradient by autograd", ROUNDING,
            "updates:check_proposition_2_1_softmax",
        ),
        statement(
            "remark-s1.6", "Remark S1.6", "change of Wq·Wkᵀ by a step = η(G·Wk·Wkᵀ + Wq·Wqᵀ·G) + O(η²)", ROUNDING,
            "updates:check_remark_s1_6",
        ),
        statement(
            "proposition-2.2", "Proposition 2.2", "columns and rows (13) to (16) = parts of the gradient", ROUNDING,
            "updates:check_proposition_2_2",
        ),
        statement(
            "theorem-2.3-norms", "Theorem 2.3, (17)", "autoregressive: E‖Δw_·k‖² > E‖Δw_k·‖² if Σ_kk < tr Σ/d",
            INTERVAL, "objectives:check_theorem_2_3_norms",
        ),
        statement(
            "theorem-2.3-tails", "Theorem 2.3, (18)", "autoregressive: column k more often large than row k, same k",
            INTERVAL, "objectives:check_theorem_2_3_tails",
        ),
        statement(
            "theorem-2.4-pairs", "Theorem 2.4, (19, 20)", "gradient = sum of the parts of pairs", ROUNDING,
            "objectives:check_theorem_2_4_pairs",
        ),
        statement(
            "theorem-2.4-symmetry", "Theorem 2.4, (21)", "bidirectional update more symmetric than autoregressive one",
            INTERVAL, "objectives:check_theorem_2_4_symmetry",
        ),
        statement(
            "corollary-s1.12", "Corollary S1.12", "bidirectional: E‖Δw_·k‖² = E‖Δw_k·‖²", INTERVAL,
            "objectives:check_corollary_s1_12",
        ),
        statement(
            "definition-3.1", "Definition 3.1", "s without the factor 2 = tr(MM)/‖M‖², ±1 for M = ±Mᵀ", ROUNDING,
            "scores:check_definition_3_1",
        ),
        statement(
            "proposition-s1.15-range", "Proposition S1.15 (1, 2)", "1 − s = 2‖M_n‖²/‖M‖², 1 + s = 2‖M_s‖²/‖M‖²",
            ROUNDING, "scores:check_proposition_s1_15_range",
        ),
        statement(
            "proposition-s1.15-chance", "Proposition S1.15 (3)", "mean s of random matrices = 1/n", INTERVAL,
            "scores:check_proposition_s1_15_chance",
        ),
        statement(
            "proposition-s1.16-range", "Proposition S1.16 (1, 2)", "d in [−1, 1], ±1 if only rows or columns exceed",
            ROUNDING, "scores:check_proposition_s1_16_range",
        ),
        statement(
            "proposition-s1.16-chance", "Proposition S1.16 (3)", "mean d of random matrices = 0, spread falls with n",
            INTERVAL, "scores:check_proposition_s1_16_chance",
        ),
        statement(
            "symmetry-from-factors", "Definition 3.1, from Wq and Wk", "s without forming M = dense s", 1e-5,
            "scores:check_cheap_symmetry",
        ),
        statement(
            "directionality-from-factors", "Definition 3.2, from Wq and Wk", "d without forming M = dense d", 1e-5,
            "scores:check_cheap_directionality",
        ),
    )  # fmt: skip


STATEMENTS: dict[str, Statement] = {each.name: each for each in (*_list_wibisono(), *_list_saponati())}


def select_statements(names: Sequence[str]) -> list[Statement]:
    """The statements of these names, in the table's order; all if there is none.

    A name also selects those that it begins: "theorem-2" selects "theorem-2-one-head", but not "theorem-2.3-norms".
    Raises UsageError for an unknown name.
    """
    selected = set()
    for name in names:
        found = [each for each in STATEMENTS if each == name or each.startswith(f"{name}-")]
        if not found:
            raise UsageError(_explain_unknown(name))
        selected |= {*found}
    return [each for name, each in STATEMENTS.items() if not names or name in selected]


def _explain_unknown(name: str) -> str:
    near = get_close_matches(name.lower(), STATEMENTS, 3, 0.5)
    advice = f"did you mean {' or '.join(near)}?" if near else f"expected some of: {', '.join(STATEMENTS)}"
    return f"no statement is named {name!r}; {advice}"


@accept_options(TheoryOptions)
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
    for done, statement in enumerate(chosen):
        progress(Progress("verify", statement.name, done, len(chosen), "steps"))
        rows.append(_make_row(statement, statement.evaluate(options.seed)))
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    about: dict[Any, Any] = {
        "title": "Statements of the papers",
        **software(),
        **machine(),
        **vars(options),
        "papers": PAPERS,
    }
    frame.attrs = about
    return frame


def _make_row(statement: Statement, found: Residuals) -> tuple[Any, ...]:
    residual = found.worst
    holds = residual <= statement.tolerance
    return (
        statement.name, f"{statement.paper}, {statement.place}", f"{statement.claim}: {found.found}",
        statement.tolerance, residual, holds, holds and found.worst_printed <= statement.tolerance,
    )  # fmt: skip
