"""attngeo: what the attention of a pretrained transformer has learned, read from its weights.

    score(model)                       symmetry and directionality of every layer and head, as a DataFrame
    score_columns()                    the columns of that DataFrame
    attention_sites(model)             each attention site with its query and key weights
    verify(model)                      whether the weights that are read are those that the running model multiplies
    analogy(models)                    accuracy of embeddings at word analogies, and tests between models
    nearest(model, words, ...)         the words nearest to a sum of words
    open_embedding(model)              a table of vectors: token embeddings, or a file of word vectors
    symmetry(wq, wk)                   the two scores of any pair of projections
    directionality(wq, wk)
    summarise(rows)                    medians and quartiles of scores, for each stack of each model
    query_key_matrix(model, layer)     |W_qk| made small enough to look at, and the norms of its rows and columns
    plot(kind, inputs)                 a plotly figure of results or models; save_figure(figure, path) to a file
    AttentionClassifier()              attention for tables of categories, as an estimator of scikit-learn
    ExponentialFamilyAttention()       attention for sequences, baskets, ratings and places, as an estimator
    pretrain                           initialisations, a Trainer callback, and training runs: see attngeo.pretrain
    errors                             the classes of all errors; AttnGeoError is their base

Names are imported when they are first used, so that `import attngeo` costs nothing.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from attngeo.errors import require_extra

__version__ = "0.3.0"


def import_when_used(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package that imports its public names when they are first used.

    The names are those that the package imports under `if TYPE_CHECKING`, so that editors, mypy and this function read
    the same list.

    Args:
        package: the name of the package.

    Returns:
        Functions to be called `__getattr__`, which raises MissingPackageError if a package of an extra is missing, and
        `__dir__`.
    """

    @cache
    def find_homes() -> dict[str, str]:
        loader: Any = sys.modules[package].__loader__
        block = next(node for node in ast.parse(loader.get_source(package)).body if isinstance(node, ast.If))
        imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
        return {alias.name: str(node.module) for node in imports for alias in node.names}

    def get(name: str) -> object:
        if name == "__all__":
            return list_names()
        if name.startswith("__") or name not in find_homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = find_homes()[name]
        with require_extra():
            return import_module(f"{package}.{name}") if home == package else getattr(import_module(home), name)

    def list_names() -> list[str]:
        return sorted(find_homes())

    return get, list_names


if TYPE_CHECKING:
    from attngeo import errors as errors, pretrain as pretrain
    from attngeo.analogies.analogy import analogy as analogy
    from attngeo.analogies.nearest import nearest as nearest
    from attngeo.embeddings.opening import open_embedding as open_embedding
    from attngeo.errors import AttnGeoError as AttnGeoError
    from attngeo.estimators import (
        AttentionClassifier as AttentionClassifier,
        ExponentialFamilyAttention as ExponentialFamilyAttention,
    )
    from attngeo.figures.save import save_figure as save_figure
    from attngeo.geometry import directionality as directionality, symmetry as symmetry
    from attngeo.reporting.plots import plot as plot
    from attngeo.scores.computing import query_key_matrix as query_key_matrix
    from attngeo.scores.score import score as score, score_columns as score_columns
    from attngeo.scores.summary import summarise as summarise
    from attngeo.scores.weights import attention_sites as attention_sites
    from attngeo.verification.verify import verify as verify
else:
    __getattr__, __dir__ = import_when_used(__name__)
