"""attngeo: reads from the weights of a pretrained transformer what its attention has learned.

    score(models)                      symmetry and directionality of every layer and head, as a DataFrame
    columns(command, ...)              the columns of the table of a command or function
    attention_sites(model)             each attention site with its weights: queries and keys, values and outputs
    inspect(model)                     what score would read from a model, what it leaves out, and why
    verify(model)                      whether the running model uses the weights that are scored
    analogy(models)                    accuracy of embeddings on word analogies, and tests between models
    nearest(model, words, ...)         the words nearest to a sum of words
    words(model, layer=..., head=...)  the tokens that a head connects, or its directions read
    compose(models)                    how much of each head's output later heads read
    mirrors(models)                    which heads of a layer are transposes of each other, and which are alike
    positions(models)                  where each head looks by position alone
    gradients(model)                   the gradient of every layer and head on a text, see attngeo.updates
    compare(models)                    which layers and heads changed from the first model to each of the others
    lineage(model, candidates)         whether models share an origin, by a permutation test on their weights
    open_embedding(model)              a table of vectors: token embeddings, or a file of word vectors
    symmetry(wq, wk)                   the two scores of any pair of projections
    directionality(wq, wk)
    summarize(rows)                    medians and quartiles of scores, for each stack of each model
    style(rows)                        scores as a notebook shows them, with bars
    query_key_matrix(model, layer)     |W_qk| made small enough to look at, and the norms of its rows and columns
    plot(kind, inputs)                 a plotly figure of results or models; save_figure(figure, path) saves it
    AttentionClassifier()              attention for tables of categories, as a scikit-learn estimator
    ExponentialFamilyAttention()       attention for sequences, baskets, ratings and places, as an estimator
    pretrain                           initialisations, a Trainer callback, and training runs: see attngeo.pretrain
    types                              the classes in signatures: options, results, models
    errors                             all error classes; AttnGeoError is their base

Names are imported when they are first used, so that `import attngeo` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.lazy import import_when_used
from attngeo.version import __version__ as __version__

if TYPE_CHECKING:
    from attngeo import errors as errors, pretrain as pretrain, types as types
    from attngeo.analogies.analogy import analogy as analogy
    from attngeo.analogies.nearest import nearest as nearest
    from attngeo.attention.survey import inspect as inspect
    from attngeo.attention.weights import attention_sites as attention_sites
    from attngeo.changes.compare import compare as compare
    from attngeo.changes.lineage import lineage as lineage
    from attngeo.circuits.compose import compose as compose
    from attngeo.circuits.mirrors import mirrors as mirrors
    from attngeo.circuits.words import words as words
    from attngeo.embeddings.opening import open_embedding as open_embedding
    from attngeo.errors import AttnGeoError as AttnGeoError
    from attngeo.estimators import (
        AttentionClassifier as AttentionClassifier,
        ExponentialFamilyAttention as ExponentialFamilyAttention,
    )
    from attngeo.figures.save import save_figure as save_figure
    from attngeo.geometry.scores import directionality as directionality, symmetry as symmetry
    from attngeo.offsets.measuring import positions as positions
    from attngeo.questions.columns import columns as columns
    from attngeo.reporting.plots import plot as plot
    from attngeo.scores.matrices import query_key_matrix as query_key_matrix
    from attngeo.scores.score import score as score
    from attngeo.scores.styling import style as style
    from attngeo.scores.summary import summarize as summarize
    from attngeo.updates.measuring import gradients as gradients
    from attngeo.verification.verify import verify as verify
else:
    __getattr__, __dir__ = import_when_used(__name__)
