"""The methods that the experiments compare: each answers data sets with predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version

from attngeo.progress import Progress, ProgressCallback
from attngeo.provenance import digest_statements
from attngeo.tabular.problems import Answer, Problem


@dataclass(frozen=True)
class Method:
    """A method. label: as the paper's tables name it. answer: problems of one shape → an answer for each.

    module: the answers depend on its statements, and those of modules that it imports. packages: the answers depend on
    their versions. together: whether problems are answered faster at once than one after the other. in_table_1: whether
    it is one of Table 1; all are in Table 2.
    """

    label: str
    answer: Callable[[Sequence[Problem], ProgressCallback], list[Answer]]
    module: str
    packages: tuple[str, ...]
    together: bool = False
    in_table_1: bool = True

    @property
    def missing(self) -> list[str]:
        """The packages that are not installed."""
        return [name for name in self.packages if not _is_installed(name)]

    @property
    def version(self) -> dict[str, str]:
        """What the answers depend on besides the data set and the seed."""
        return {"code": digest_statements(self.module), **{name: version(name) for name in self.packages}}


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def answer_by_baseline(name: str, problems: Sequence[Problem], progress: ProgressCallback) -> list[Answer]:
    """The answers of one of the baselines of appendix E."""
    from attngeo.tabular.baselines import fit_baseline

    answers = []
    for (train, test), seed in problems:
        model = fit_baseline(
            name, train.x, train.y, seed=seed,
            report=lambda done, total: progress(Progress("fit", f"{name}, cross-validation", done, total, "steps")),
        )  # fmt: skip
        answers.append(Answer(model.predict(train.x), model.predict(test.x), {"parameters": model.parameters}))
    return answers


def answer_by_attention(problems: Sequence[Problem], progress: ProgressCallback) -> list[Answer]:
    """The answers of attention; those to problems of one shape are trained together."""
    from attngeo.tabular.attention import answer

    return answer(problems, progress)


def answer_by_pytorch_tabular(name: str, problems: Sequence[Problem], progress: ProgressCallback) -> list[Answer]:
    """The answers of a model of pytorch_tabular."""
    from attngeo.tabular.attention_baselines import answer

    return answer(name, problems, progress)


def _baseline(name: str, label: str) -> Method:
    return Method(label, partial(answer_by_baseline, name), "attngeo.tabular.baselines", ("scikit-learn",))


def _pytorch_tabular(name: str, label: str, *packages: str) -> Method:
    return Method(
        label, partial(answer_by_pytorch_tabular, name), "attngeo.tabular.attention_baselines",
        ("torch", "pytorch-tabular", *packages), in_table_1=False,
    )  # fmt: skip


METHODS: dict[str, Method] = {
    "lr": _baseline("lr", "LR"),
    "rf": _baseline("rf", "RF"),
    "gb": _baseline("gb", "GB"),
    "mlp": _baseline("mlp", "MLP"),
    "category-embedding": _pytorch_tabular("category-embedding", "CategoryEmbedding"),
    "ft-transformer": _pytorch_tabular("ft-transformer", "FTTransformer"),
    "tab-transformer": _pytorch_tabular("tab-transformer", "TabTransformer"),
    "auto-int": _pytorch_tabular("auto-int", "AutoInt"),
    "tabnet": _pytorch_tabular("tabnet", "TabNet", "pytorch-tabnet"),
    "atn": Method("ATN", answer_by_attention, "attngeo.tabular.attention", ("torch",), together=True),
}
