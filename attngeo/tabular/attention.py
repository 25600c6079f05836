"""Attention as a method of the experiments, with the recipe of the paper."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attngeo.progress import ProgressCallback
from attngeo.tabular.classifier import AttentionClassifier, fit_together
from attngeo.tabular.problems import Answer, Problem


def answer(problems: Sequence[Problem], progress: ProgressCallback) -> list[Answer]:
    """The answers of attention. Columns share the vectors of their categories; problems of one shape train together."""
    models = [
        AttentionClassifier(
            vocabulary="shared", unseen="mask", n_bins=max(2, *(len(np.unique(column)) for column in table.train.x.T)),
            random_state=seed,
        )
        for table, seed in problems
    ]  # fmt: skip
    tables = [problem.table.train for problem in problems]
    fit_together(models, tables, progress)
    return [
        Answer(model.predict(train.x), model.predict(test.x), {"epochs": model.n_iter_})
        for model, ((train, test), _) in zip(models, problems, strict=True)
    ]
