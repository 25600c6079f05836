"""Every column of numbers against formed matrices of NumPy: none is exchanged, scaled or of another head unnoticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.checkpoints import weights, with_outputs, write_single
from support.dense import dense_growths

import attngeo
from attngeo.scores.spec import layer_scores, rotary_scores

HEADS, GROUPS, HEAD_DIM, WIDTH, LAYERS = 4, [0, 0, 1, 1], 6, 24, 2
# Columns that say which row it is, and what was read.
PLACE = {
    "layer", "head", "key_head", "d_model", "head_dim", "parameters", "from_layer", "from_head", "to_layer", "to_head",
    "other_layer", "other_head",
}  # fmt: skip
Matrix = np.ndarray[Any, np.dtype[np.float64]]
Row = dict[str, float]


class Model:
    """The queries, keys, values and outputs of the heads of a small LLaMA, in float64."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.tensors = with_outputs(weights(seed=seed), seed=seed + 1)
        self.path = str(write_single(folder, self.tensors))

    def cut(self, layer: int, letter: str, head: int) -> Matrix:
        """The weights of one query head, or of the key head that it reads: [6, 24]."""
        weight = self.tensors[f"model.layers.{layer}.self_attn.{letter}_proj.weight"].double().numpy()
        heads = (weight.T if letter == "o" else weight).reshape(-1, HEAD_DIM, WIDTH)
        return heads[GROUPS[head] if letter in "kv" else head]

    def form(self, layer: int, head: int, circuit: str = "qk", offset: int = 0) -> Matrix:
        """Wq·R·Wkᵀ or Wv·Wo of a head, [24, 24]."""
        left, right = (self.cut(layer, letter, head) for letter in ("qk" if circuit == "qk" else "vo"))
        angles = offset * 10_000.0 ** -(np.arange(3) / 3)
        turned = np.vstack(
            [
                np.cos(angles)[:, None] * right[:3] + np.sin(angles)[:, None] * right[3:],
                np.cos(angles)[:, None] * right[3:] - np.sin(angles)[:, None] * right[:3],
            ]
        )
        return left.T @ (turned if circuit == "qk" else right)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("first"), 0)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("other"), 5)


def list_forms(model: Model, circuit: str) -> Iterator[Matrix]:
    """The form of each layer, followed by those of its heads."""
    for layer in range(LAYERS):
        forms = [model.form(layer, head, circuit) for head in range(HEADS)]
        yield np.sum(forms, axis=0)
        yield from forms


def share_above(norms: Matrix) -> float:
    return float(norms[norms > norms.mean() + 2 * norms.std()].sum())


def score_form(form: Matrix) -> Row:
    """All scores of a matrix, from its entries, singular values and eigenvalues."""
    norm = np.linalg.norm(form)
    singular = np.linalg.svd(form, compute_uv=False)
    eigenvalues = np.linalg.eigvals(form)
    rows, columns = np.linalg.norm(form, axis=1), np.linalg.norm(form, axis=0)
    of_rows, of_columns = share_above(rows), share_above(columns)
    symmetry = np.trace(form @ form) / norm**2
    return {
        "symmetry": symmetry,
        "directionality": (of_rows - of_columns) / (of_rows + of_columns) if of_rows + of_columns else 0.0,
        "trace_z": np.sqrt(WIDTH) * np.trace(form) / norm,
        "spectral_norm": singular[0],
        "stable_rank": norm**2 / singular[0] ** 2,
        "positive_eigenvalues": eigenvalues.real.sum() / np.abs(eigenvalues).sum(),
        "frobenius_norm": norm,
        "column_spread": columns.var() / (columns**2).mean(),
        "row_spread": rows.var() / (rows**2).mean(),
        "symmetry_z": (WIDTH * symmetry - 1) / np.sqrt(2),
    }


def form_scores(model: Model, circuit: str) -> list[Row]:
    """The scores of each layer, which alone has growths, followed by those of its heads."""
    missing = dict.fromkeys({*layer_scores()}.difference(rotary_scores()), np.nan)
    rows = []
    for layer in range(LAYERS):
        forms = [model.form(layer, head, circuit) for head in range(HEADS)]
        rows.append(score_form(np.sum(forms, axis=0)) | dense_growths(forms))
        rows += [score_form(form) | missing for form in forms]
    return rows


def overlap(one: Matrix, other: Matrix) -> float:
    """The projection kernel of the rows of two matrices [6, 24], by orthonormal bases."""
    bases = [np.linalg.qr(x.T)[0] for x in (one, other)]
    return float(((bases[0].T @ bases[1]) ** 2).sum()) / HEAD_DIM


def form_changes(model: Model, other: Model, circuit: str) -> list[Row]:
    letters = {"qk": {"query_overlap": "q", "key_overlap": "k"}, "ov": {"value_overlap": "v", "output_overlap": "o"}}
    rows = []
    for number, (mine, others) in enumerate(zip(list_forms(model, circuit), list_forms(other, circuit), strict=True)):
        layer, place = divmod(number, 1 + HEADS)
        norms = np.linalg.norm(mine), np.linalg.norm(others)
        row = {
            "change": np.linalg.norm(others - mine) / norms[0],
            "cosine": (mine * others).sum() / (norms[0] * norms[1]),
        }
        for score in ("symmetry", "directionality"):
            row |= {score: score_form(mine)[score], f"{score}_other": score_form(others)[score]}
        for name, letter in letters[circuit].items():
            cuts = [one.cut(layer, letter, place - 1) for one in (model, other)] if place else None
            row[name] = overlap(*cuts) if cuts else np.nan
        rows.append(row)
    return rows


def form_positions(model: Model) -> list[Row]:
    rows = []
    for layer in range(LAYERS):
        for head in range(HEADS):
            kernel = [float(np.trace(model.form(layer, head, offset=offset))) for offset in range(65)]
            q, k = model.cut(layer, "q", head), model.cut(layer, "k", head)
            norms = [np.linalg.norm(q[[pair, pair + 3]].T @ k[[pair, pair + 3]]) for pair in range(3)]
            rows.append(
                {f"kernel_{offset}": kernel[offset] for offset in range(9)}
                | {
                    "fast_share": norms[0] / sum(norms),
                    "previous_token": (kernel[1] - np.mean([kernel[0], kernel[2], kernel[3]])) / sum(norms),
                    "peak": int(np.argmax(kernel)),
                }
            )
    return rows


def form_compositions(model: Model) -> list[Row]:
    """What heads of layer 0 write, read by the queries, keys and values of heads of layer 1."""
    rows = []
    for kind in "qkv":
        for writer in range(HEADS):
            for reader in range(HEADS):
                written = model.form(0, writer, "ov")
                read = model.form(1, reader, "ov" if kind == "v" else "qk")
                product = read @ written.T if kind == "k" else written @ read
                rows.append({"composition": np.linalg.norm(product) / np.linalg.norm(written) / np.linalg.norm(read)})
    return rows


def form_mirrors(model: Model) -> list[Row]:
    """The pairs of heads of each layer, at offset 0."""
    rows = []
    for layer in range(LAYERS):
        forms = [model.form(layer, head) for head in range(HEADS)]
        skew = [form - form.T for form in forms]
        for head, other in combinations(range(HEADS), 2):
            norms = np.linalg.norm(forms[head]) * np.linalg.norm(forms[other])
            skew_norms = np.linalg.norm(skew[head]) * np.linalg.norm(skew[other])
            product = np.trace(forms[head] @ forms[other])
            rows.append(
                {
                    "mirror": product / norms,
                    "twin": (forms[head] * forms[other]).sum() / norms,
                    "antisymmetric_cosine": (skew[head] * skew[other]).sum() / skew_norms,
                    "symmetry_part": 2 * product / np.linalg.norm(sum(forms)) ** 2,
                    "shares_key_head": GROUPS[head] == GROUPS[other],
                }
            )
    return rows


Ask = Callable[[Model, Model], pd.DataFrame]
Form = Callable[[Model, Model], list[Row]]
EXACT: dict[str, Any] = {"per_head": True, "precision": "float64"}
QUESTIONS: dict[str, tuple[Ask, Form]] = {
    "score": (lambda one, _: attngeo.score(one.path, scores="all", **EXACT), lambda one, _: form_scores(one, "qk")),
    "score --circuit ov": (
        lambda one, _: attngeo.score(one.path, scores="all", circuit="ov", **EXACT),
        lambda one, _: form_scores(one, "ov"),
    ),
    "compare": (
        lambda one, two: attngeo.compare([one.path, two.path], rope_offset=0, **EXACT),
        lambda one, two: form_changes(one, two, "qk"),
    ),
    "compare --circuit ov": (
        lambda one, two: attngeo.compare([one.path, two.path], circuit="ov", **EXACT),
        lambda one, two: form_changes(one, two, "ov"),
    ),
    "positions": (lambda one, _: attngeo.positions(one.path), lambda one, _: form_positions(one)),
    "mirrors": (
        lambda one, _: attngeo.mirrors(one.path, form="plain", precision="float64"), lambda one, _: form_mirrors(one),
    ),
    "compose": (
        lambda one, _: attngeo.compose(one.path).sort_values(["from_head", "to_head"], kind="stable").sort_values(
            "kind", key=lambda kinds: kinds.map("qkv".index), kind="stable"
        ),
        lambda one, _: form_compositions(one),
    ),
}  # fmt: skip
DIRECTIONS = "tests/circuits/test_directions.py"
STATISTICS = "tests/updates/test_statistics.py"
ANALOGIES = "tests/analogies/test_statistics.py"
CURVES = "tests/pretrain/test_curves.py"
TABULAR = "tests/estimators/tabular/test_files.py"
MEASURING = "tests/estimators/efa/test_measuring.py"
SIMILAR = "tests/estimators/efa/test_similar.py"
BASELINES = "tests/papers/wibisono2025/test_baselines.py"
RELATIONS = "tests/estimators/efa/test_comparison.py"
# Columns of other tables, or whose right value is no function of one formed matrix → the test that fails if they are
# scaled, exchanged or of another head.
ROTARY = "tests/scores/test_rotary.py"
ELSEWHERE = {
    "score": dict.fromkeys(rotary_scores(), f"{ROTARY}::test_scores_are_those_of_the_formed_matrices_at_all_offsets"),
    "score --circuit ov": dict.fromkeys(rotary_scores(), f"{ROTARY}::test_values_and_outputs_have_none"),
    "mirrors": {
        "mirror_z": ("tests/geometry/test_mirrors.py::test_the_z_of_a_mirror_is_standard_normal_for_random_rotations"),
        "is_partner": "tests/circuits/test_orientation.py::test_the_strongest_pairs_are_matched_first",
    },
    "compose": {
        "composition_z": (
            "tests/geometry/test_composition.py::test_z_of_random_heads_has_mean_0_and_deviation_1_for_any_spectrum"
        ),
        "above_threshold": (
            "tests/circuits/test_compose.py::test_the_threshold_is_the_quantile_of_pairs_whose_writer_comes_later"
        ),
    },
    "words": {
        "rank, value": "tests/circuits/test_words.py::test_pairs_are_the_largest_of_the_formed_matrix",
        "value_chance": "tests/circuits/test_words.py::test_chance_is_that_of_shuffled_dimensions",
    },
    "words --directions 2": {
        "direction, last_direction, singular_value, last_singular_value, norm_share, token_value": (
            f"{DIRECTIONS}::test_directions_are_those_of_the_formed_matrix"
        ),
        "token_ratio, token_ratio_chance, token_value_chance, target_ratio, target_ratio_chance": (
            f"{DIRECTIONS}::test_chance_is_the_mean_of_shuffled_dimensions"
        ),
    },
    "lineage": {
        "similarity, p_value, similarity_z": (
            "tests/changes/test_lineage.py::test_similarity_p_and_z_are_those_of_formed_matrices"
        ),
    },
    "gradients": {
        "symmetry, directionality, frobenius_norm, column_spread, row_spread": (
            f"{STATISTICS}::test_scores_and_spreads_are_those_of_the_matrix"
        ),
        "change_symmetry, change_directionality": (
            f"{STATISTICS}::test_the_change_is_that_of_the_matrices_of_remark_s1_6"
        ),
        "symmetry_chance, directionality_chance, change_symmetry_chance, change_directionality_chance": (
            f"{STATISTICS}::test_a_shuffle_keeps_each_row_and_what_it_sees"
        ),
        "beta_symmetry": f"{STATISTICS}::test_correlation_of_pairs_is_that_of_numpy_and_missing_without_pairs",
        "context_share, prediction_share": f"{STATISTICS}::test_shares_are_of_the_parts_of_each_token",
        "beta_symmetry_predicted, prediction_share_predicted, predicted_share": (
            f"{STATISTICS}::test_what_is_predicted_has_columns_of_its_own"
        ),
        "loss": "tests/updates/test_callback.py::test_rows_are_the_updates_of_the_live_model_beside_its_scores",
    },
    "gradients --own-token": {
        "own_token_share, other_tokens_share, own_token_cosine": (
            f"{STATISTICS}::test_own_token_part_and_the_rest_are_projections_that_sum_to_the_update"
        ),
    },
    "analogy": {
        "asked, known, accuracy, top5, mean_rank, mrr, mean_cosine": (
            f"{ANALOGIES}::test_each_measure_is_that_of_plain_counting"
        ),
        "accuracy_low, accuracy_high": f"{ANALOGIES}::test_the_interval_of_a_row_is_that_of_drawn_pairs",
        "rank, cosine": "tests/analogies/test_probe.py::test_ranks_are_those_of_the_definition",
    },
    "analogy of several models": {
        "both, only_model, only_other, neither, difference, p_value, p_corrected": (
            f"{ANALOGIES}::test_models_are_compared_question_by_question"
        ),
        "known": f"{ANALOGIES}::test_each_measure_is_that_of_plain_counting",
        "difference_low, difference_high": f"{ANALOGIES}::test_the_interval_of_a_row_is_that_of_drawn_pairs",
    },
    "theory": {
        "tolerance, residual, holds, as_printed": "tests/papers/test_statements.py::test_a_row_hides_nothing",
    },
    "pretrain": {
        "symmetry, directionality, loss": (
            "tests/pretrain/test_callback.py::test_rows_are_the_scores_of_the_live_model"
        ),
        "final_loss, steps_to_baseline, speed_up": (
            f"{CURVES}::test_runs_are_compared_with_the_first_initialisation_of_their_objective_and_seed"
        ),
        "symmetry_median, heads_symmetry_upper": (
            "tests/pretrain/test_comparison.py::test_the_rows_have_the_statistics_of_the_last_step"
        ),
        "eval_accuracy": f"{CURVES}::test_the_evaluation_of_images_is_that_of_the_last_step",
        "symmetry_settled, heads_symmetry_settled, heads_symmetry_lower, heads_symmetry_upper": (
            f"{CURVES}::test_layers_have_their_last_scores_and_the_steps_at_which_these_settle"
        ),
        "reached, final_loss_mean, final_loss_min, final_loss_max": (
            "tests/pretrain/test_comparison.py::test_the_spread_over_seeds"
        ),
    },
    "tabular fit": {
        "accuracy, mse, log_loss, calibration_error": f"{TABULAR}::test_scores_are_those_of_scikit_learn",
        "auc, recall, majority": f"{TABULAR}::test_each_class_counts_as_any_other_in_auc_and_recall",
        "train_rows, test_rows": f"{TABULAR}::test_each_method_is_measured_on_the_same_rows",
    },
    "tabular predict and impute": {
        "probability, p(LABEL)": (
            "tests/estimators/tabular/test_classifier.py::test_probabilities_are_those_of_the_joint_distribution"
        ),
        "p(COLUMN)": "tests/commands/test_tabular.py::test_empty_cells_are_filled_with_their_probabilities",
        "attention": f"{TABULAR}::test_the_attention_of_each_cell_sums_to_one",
    },
    "tabular simulate and auto-mpg": {
        "accuracy, mse, train_accuracy, train_mse": (
            "tests/papers/wibisono2023/test_tables.py::test_scores_are_those_of_the_predictions"
        ),
        "published_accuracy, published_mse": (
            "tests/papers/wibisono2023/test_tables.py::test_the_table_has_the_order_of_the_settings_and_the_published_means"
        ),
    },
    "efa fit": {
        "accuracy, popularity_accuracy": (
            f"{MEASURING}::test_accuracy_is_the_share_of_right_items_beside_that_of_the_most_frequent_one"
        ),
        "rmse, item_mean_rmse": f"{MEASURING}::test_the_error_of_means_is_beside_that_of_the_mean_of_each_item",
        "without_context": (
            "tests/estimators/efa/test_tables.py::test_the_best_distribution_without_a_context_is_found_far_from_0"
        ),
        "without_repeats": (
            "tests/estimators/efa/test_tables.py::test_items_that_do_not_come_again_are_known_without_repeats"
        ),
        "log_prob": "tests/commands/test_efa.py::test_a_model_of_values_is_fitted_saved_and_used",
        "epochs, best_epoch, stopped_early": (
            "tests/commands/test_efa.py::test_a_fit_says_how_the_training_of_each_part_ended"
        ),
    },
    "efa predict": {
        "log_prob, predicted_mean, probability": (
            "tests/estimators/efa/test_tables.py::test_what_is_missing_is_predicted_from_what_is_there"
        ),
    },
    "efa similar": {
        "score, probability": f"{SIMILAR}::test_an_item_has_the_probability_that_predict_gives_it_beside_the_other_one",
        "sequences, lift": f"{SIMILAR}::test_sequences_with_both_items_and_their_lift_are_those_of_the_table",
    },
    "efa attention": {
        "weight": (
            "tests/estimators/efa/test_estimator.py::test_weights_of_attention_give_the_prediction_of_one_linear_layer"
        ),
    },
    "efa compare": {
        "forward, backward, correlation, lowest": (
            f"{RELATIONS}::test_r2_is_that_of_rows_left_out_and_correlations_are_cosines_of_angles"
        ),
        "correlation_chance": f"{RELATIONS}::test_chance_is_the_correlation_of_shuffled_rows",
        "log_prob_difference": f"{RELATIONS}::test_models_of_one_distribution_are_related_and_others_are_not",
    },
    "efa run": {
        "value": f"{BASELINES}::test_items_by_their_frequency_and_without_those_of_the_context",
        "published": (
            "tests/papers/wibisono2025/test_experiments.py::test_a_table_has_each_model_beside_the_paper_and_the_baselines"
        ),
    },
}


def list_numbers(frame: pd.DataFrame) -> set[str]:
    """The columns of numbers and of truth values."""
    return {name for name in frame if pd.api.types.is_numeric_dtype(frame[name].dtype)} - PLACE


def find_wrong(frame: pd.DataFrame, expected: pd.DataFrame) -> set[str]:
    """The columns that are not those of the formed matrices."""
    return {
        name
        for name in expected
        if not np.allclose(frame[name].astype(float), expected[name].astype(float), 1e-4, 1e-6, equal_nan=True)
    }


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_column_is_that_of_formed_matrices(name: str, model: Model, other: Model) -> None:
    ask, form = QUESTIONS[name]
    frame = ask(model, other).reset_index(drop=True)
    expected = pd.DataFrame(form(model, other))
    assert list_numbers(frame) == {*expected.columns, *ELSEWHERE.get(name, {})}
    assert find_wrong(frame, expected) == set()
    for column in expected:
        assert column in find_wrong(frame.assign(**{column: 1.02 * frame[column]}), expected)
        assert column in find_wrong(frame.assign(**{column: np.roll(frame[column].astype(float), 1)}), expected)
        for second in expected.columns.drop(column):
            assert find_wrong(frame.assign(**{column: frame[second]}), expected) == {column}


def test_the_tests_of_other_columns_are_there() -> None:
    for tests in ELSEWHERE.values():
        for test in tests.values():
            path, _, function = test.partition("::")
            assert f"def {function}(" in (Path(__file__).parents[1] / path).read_text(encoding="utf-8")
