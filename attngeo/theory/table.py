"""The statements of the papers as data: name, place, claim, tolerance, and the function that computes both sides.

It imports nothing heavy: a function is imported when it is first called. That also keeps packages above this one, such
as attngeo.efa, out of its imports: they have the functions of their statements, which are here by name.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attngeo.theory.residuals import Residuals

WIBISONO, SAPONATI, EFA = "Wibisono and Wang 2023", "Saponati et al. 2025", "Wibisono and Wang 2025"
PAPERS = {
    WIBISONO: "https://arxiv.org/abs/2307.04057", SAPONATI: "https://arxiv.org/abs/2502.10927",
    EFA: "https://arxiv.org/abs/2501.16790",
}  # fmt: skip
# Errors of rounding in float64, and claims of expectations: no error beyond their confidence intervals.
ROUNDING, INTERVAL = 1e-10, 0.0


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One statement of a paper.

    name: how the command calls it. paper: which one, a key of PAPERS. place: where it is there. claim: what is computed
    and compared, in a phrase. tolerance: the largest error with which it holds. function: "package.module:function" of
    attngeo that returns its residuals for a seed. arguments: further ones of that function.
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
        found: Residuals = pkgutil.resolve_name(f"attngeo.{self.function}")(seed, **self.arguments)
        return found


def _list_wibisono() -> tuple[Statement, ...]:
    def statement(name: str, place: str, claim: str, tolerance: float, function: str, **arguments: Any) -> Statement:
        return Statement(
            name=name, paper=WIBISONO, place=place, claim=claim, tolerance=tolerance,
            function=f"theory.{function}", arguments=arguments,
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
            "correlations of w·c with p(w,c)/p(c), CBOW on the toy corpus: distance below the published ones", 0.06,
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
        return Statement(
            name=name, paper=SAPONATI, place=place, claim=claim, tolerance=tolerance, function=f"theory.{function}"
        )

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


def _list_efa() -> tuple[Statement, ...]:
    def statement(name: str, place: str, claim: str, tolerance: float, function: str) -> Statement:
        return Statement(
            name=f"efa-{name}", paper=EFA, place=place, claim=claim, tolerance=tolerance, function=f"efa.{function}"
        )

    return (
        statement(
            "proposition-1", "Proposition 1", "logits of attention = those of the factor model of items", ROUNDING,
            "propositions:check_proposition_1",
        ),
        statement(
            "proposition-2", "Proposition 2", "means of linear attention = those of the factor model of places",
            ROUNDING, "propositions:check_proposition_2",
        ),
        statement(
            "proposition-3", "Proposition 3", "log rates of linear attention = those of the factor model of values",
            ROUNDING, "propositions:check_proposition_3",
        ),
        statement(
            "theorem-1-items", "Theorem 1, items", "same distribution: contexts H' = A·H*, centers e' = B·e* + b",
            ROUNDING, "identifiability:check_theorem_1_items",
        ),
        statement(
            "theorem-1-values", "Theorem 1, values", "same distribution: K' = C·K* at d_j chosen inputs, K'·L' = K*·L*",
            ROUNDING, "identifiability:check_theorem_1_values",
        ),
        # The data leave 0.8% of the variance of the logits open: see check_theorem_1_fits.
        statement(
            "theorem-1-fits", "Theorem 1, measured", "1 - R² of the maps between two fits on the same sequences", 0.01,
            "identified_fits:check_theorem_1_fits",
        ),
        statement(
            "theorem-2", "Theorem 2", "excess and deviation of the loss as a share of a bound with all constants", 1.0,
            "toy_places:check_theorem_2",
        ),
    )  # fmt: skip


def list_statements() -> tuple[Statement, ...]:
    """All statements, by paper."""
    return (*_list_wibisono(), *_list_saponati(), *_list_efa())
