"""Everything that attngeo can be asked, and what a report may show of the answers, as two tables.

The library, commands, recipes and `attngeo cache` read them. A new question is its function, its options and an entry
here. The tables import none of them: a value is the name "module:name", imported when it is used.
"""

from __future__ import annotations

from collections.abc import Collection

from attngeo.questions.question import Question, View

ANSWERS, PAPER_ANSWERS = "attngeo.reporting.answers", "attngeo.reporting.paper_answers"
FORM = "attngeo.questions.frames:KEPT_FORM"
QUESTIONS = {
    question.name: question
    for question in (
        Question(
            "score",
            "attngeo.scores.options:ScoreOptions",
            "attngeo.scores.score:score_columns",
            "attngeo.scores.options:CHECKS",
            title="Attention scores",
            rows="attngeo.scores.computing:score_sites",
            keeps="scores",
            form=FORM,
        ),
        Question(
            "analogy",
            "attngeo.analogies.options:AnalogyOptions",
            "attngeo.analogies.options:analogy_columns",
            "attngeo.analogies.options:CHECKS",
            title="Word analogies",
            table="attngeo.analogies.table:answer_rows",
            join="attngeo.analogies.analogy:join_scores",
        ),
        Question(
            "gradients",
            "attngeo.updates.options:GradientOptions",
            "attngeo.updates.options:gradient_columns",
            "attngeo.updates.options:CHECKS",
            title="Updates of attention",
            table="attngeo.updates.table:measure_rows",
        ),
        Question(
            "positions",
            "attngeo.offsets.options:PositionOptions",
            "attngeo.offsets.options:position_columns",
            "attngeo.offsets.options:CHECKS",
            title="Positions that heads look at",
            rows="attngeo.offsets.computing:measure_sites",
            keeps="positions",
            form=FORM,
        ),
        Question(
            "compare",
            "attngeo.changes.compare_options:CompareOptions",
            "attngeo.changes.compare_options:compare_columns",
            "attngeo.changes.compare_options:CHECKS",
            title="What changed between models",
            rows="attngeo.changes.comparing:compare_sites",
            subjects=("model", "other"),
            list_subjects="attngeo.changes.compare:list_pairs",
            keeps="changes",
            form=FORM,
        ),
        Question(
            "compose",
            "attngeo.circuits.compose_options:ComposeOptions",
            "attngeo.circuits.compose_options:COMPOSE_COLUMNS",
            "attngeo.circuits.compose_options:CHECKS",
            title="Composition of heads",
            rows="attngeo.circuits.composing:compose_layers",
            build="attngeo.circuits.compose:build_frame",
            keeps="compositions",
            form="attngeo.circuits.compose:COMPOSITION_FORM",
        ),
        Question(
            "mirrors",
            "attngeo.circuits.mirror_options:MirrorOptions",
            "attngeo.circuits.mirror_options:MIRROR_COLUMNS",
            "attngeo.circuits.mirror_options:CHECKS",
            title="Mirrors among heads",
            rows="attngeo.circuits.mirroring:mirror_layers",
            build="attngeo.circuits.mirrors:build_frame",
            keeps="mirrors",
            form="attngeo.circuits.mirrors:MIRROR_FORM",
        ),
        Question(
            "lineage",
            "attngeo.changes.lineage_options:LineageOptions",
            "attngeo.changes.lineage_options:LINEAGE_COLUMNS",
            "attngeo.changes.lineage_options:CHECKS",
            title="Lineage",
            rows="attngeo.changes.relating:relate_sites",
            subjects=("model", "other"),
            list_subjects="attngeo.changes.lineage:list_candidates",
            keeps="lineage",
            form=FORM,
        ),
        Question(
            "pretrain",
            f"{ANSWERS}:PretrainTable",
            "attngeo.pretrain.curves:list_curve_columns",
            "attngeo.pretrain.curves:CHECKS",
            run=f"{ANSWERS}:train",
        ),
        Question(
            "theory",
            "attngeo.papers.statements:TheoryOptions",
            "attngeo.papers.statements:STATEMENT_COLUMNS",
            "attngeo.papers.statements:CHECKS",
            run=f"{PAPER_ANSWERS}:check_all",
        ),
        Question(
            "simulate",
            "attngeo.papers.wibisono2023.options:SimulateOptions",
            "attngeo.papers.wibisono2023.summaries:SIMULATION_COLUMNS",
            "attngeo.papers.wibisono2023.summaries:SIMULATION_CHECKS",
            run=f"{PAPER_ANSWERS}:simulate",
        ),
        Question(
            "auto-mpg",
            "attngeo.papers.wibisono2023.options:AutoMpgOptions",
            "attngeo.papers.wibisono2023.summaries:AUTO_MPG_COLUMNS",
            "attngeo.papers.wibisono2023.summaries:AUTO_MPG_CHECKS",
            run=f"{PAPER_ANSWERS}:compare_on_cars",
        ),
        Question(
            "efa",
            f"{PAPER_ANSWERS}:EfaTable",
            "attngeo.papers.wibisono2025.options:EXPERIMENT_COLUMNS",
            "attngeo.papers.wibisono2025.options:CHECKS",
            run=f"{PAPER_ANSWERS}:run_experiment",
        ),
        Question("file", "attngeo.options:Options", None, run=f"{ANSWERS}:read_file"),
    )
}

# The tables of commands that are no questions: a recipe does not ask them.
TABLES = {
    table.name: table
    for table in (
        Question("words", "attngeo.circuits.word_options:WordOptions", "attngeo.circuits.word_options:word_columns"),
        Question("nearest", "attngeo.analogies.options:NearestOptions", "attngeo.analogies.options:NEAREST_COLUMNS"),
        Question(
            "verify", "attngeo.verification.options:VerifyKeywords", "attngeo.verification.options:verify_columns"
        ),
    )
}

# The columns by which rows of scores, changes, positions, mirrors, and curves of trainings are told apart.
SCORE_KEYS = ("model", "stack", "layer", "head", "d_model", "symmetry")
CHANGE_KEYS = ("model", "other", "stack", "layer", "head", "change", "cosine")
POSITION_KEYS = ("model", "stack", "layer", "head", "fast_share", "previous_token")
MIRROR_KEYS = ("model", "stack", "layer", "is_partner", "antisymmetric_cosine")
CURVE_KEYS = ("objective", "init", "seed", "step", "stack", "layer", "head", "loss")
SAPONATI, WIBISONO = "attngeo.papers.saponati2025.comparison", "attngeo.papers.wibisono2023.summaries"
# What a table of a report may show, and of each the views, one for each kind of results. The first that fits is taken.
VIEWS = {
    "rows": (View("all rows"),),
    "summary": (
        View(
            "median and quartiles over layers", SCORE_KEYS, "attngeo.scores.summary:summarize_briefly",
            "attngeo.scores.summary:brief_columns",
        ),
        View(
            "quartiles and extremes over layers and heads", CHANGE_KEYS,
            "attngeo.changes.compare_options:summarize_changes", "attngeo.changes.compare_options:summary_columns",
        ),
        View(
            "quartiles and maximum over heads", POSITION_KEYS, "attngeo.offsets.options:summarize_positions",
            "attngeo.offsets.options:summary_columns",
        ),
        View(
            "sign test of the partners of each stack", MIRROR_KEYS,
            "attngeo.circuits.orientation:judge_orientation", "attngeo.circuits.mirror_options:ORIENTATION_COLUMNS",
        ),
    ),
    "published": (
        View(
            "medians over layers", SCORE_KEYS, f"{SAPONATI}:compare_with_published",
            f"{SAPONATI}:published_columns", beside=", measured and published",
        ),
    ),
    "runs": (
        View("losses of each run", CURVE_KEYS, f"{SAPONATI}:compare_trainings", beside=", and the published ones"),
    ),
    "layers": (
        View(
            "final scores of each layer, and the steps after which they stay within 10% of these", CURVE_KEYS,
            "attngeo.pretrain.curves:summarize_layers", "attngeo.pretrain.curves:layer_columns",
        ),
    ),
    "methods": (
        View(
            "mean and standard deviation of each method", ("method", "accuracy"),
            f"{WIBISONO}:summarize_methods", f"{WIBISONO}:METHOD_COLUMNS", f"{WIBISONO}:LABELS",
            beside=", and the published mean",
        ),
    ),
    "advantage": (
        View(
            "accuracy of attention minus the accuracy of the best other method, with the standard error",
            ("method", "accuracy"), f"{WIBISONO}:measure_advantage", f"{WIBISONO}:ADVANTAGE_COLUMNS",
            f"{WIBISONO}:LABELS",
        ),
    ),
}  # fmt: skip


def find_view(show: str, columns: Collection[str]) -> View | None:
    """The view of this name that fits results with these columns; None if none does. show: a key of `VIEWS`."""
    return next((view for view in VIEWS[show] if {*view.needs} <= {*columns}), None)
