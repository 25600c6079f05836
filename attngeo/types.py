"""The types that signatures and docstrings of public functions name: options, results, and what a model is.

Options classes, such as `ScoreOptions`, hold the keywords of a function of the same name. Names are imported when they
are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.lazy import import_when_used

if TYPE_CHECKING:
    from attngeo.analogies.analogy import AnalogyResult as AnalogyResult
    from attngeo.analogies.options import AnalogyOptions as AnalogyOptions, NearestOptions as NearestOptions
    from attngeo.analogies.questions import QuestionSet as QuestionSet
    from attngeo.attention.options import SourceOptions as SourceOptions
    from attngeo.attention.weights import SiteWeights as SiteWeights
    from attngeo.changes.compare_options import CompareOptions as CompareOptions
    from attngeo.changes.lineage_options import LineageOptions as LineageOptions
    from attngeo.checkpoints.access import HubAccess as HubAccess
    from attngeo.checkpoints.reference import Model as Model, ModelRef as ModelRef
    from attngeo.circuits.compose_options import ComposeOptions as ComposeOptions
    from attngeo.circuits.mirror_options import MirrorOptions as MirrorOptions
    from attngeo.circuits.word_options import WordOptions as WordOptions
    from attngeo.embeddings.embedding import Embedding as Embedding
    from attngeo.estimators.efa.counts import ItemCounts as ItemCounts
    from attngeo.estimators.efa.families import ExponentialFamily as ExponentialFamily
    from attngeo.estimators.efa.measuring import Measured as Measured
    from attngeo.estimators.efa.options import (
        Architecture as Architecture,
        EfaOptions as EfaOptions,
        EfaSampleOptions as EfaSampleOptions,
        EfaSimilarOptions as EfaSimilarOptions,
    )
    from attngeo.estimators.tabular.options import ClassifierOptions as ClassifierOptions
    from attngeo.figures.kinds import FigureSize as FigureSize, PlotOptions as PlotOptions
    from attngeo.layouts.layout import AttentionSite as AttentionSite
    from attngeo.offsets.options import PositionOptions as PositionOptions
    from attngeo.pretrain.options import PretrainOptions as PretrainOptions, RunOptions as RunOptions
    from attngeo.progress import Progress as Progress, ProgressCallback as ProgressCallback
    from attngeo.scores.matrices import QueryKeyMatrix as QueryKeyMatrix
    from attngeo.scores.options import ScoreOptions as ScoreOptions
    from attngeo.session import ResultOptions as ResultOptions, StudyOptions as StudyOptions
    from attngeo.studies.revisions import RevisionOptions as RevisionOptions
    from attngeo.updates.measuring import Gradients as Gradients
    from attngeo.updates.options import GradientOptions as GradientOptions
    from attngeo.updates.recording import Batch as Batch, SiteGradients as SiteGradients
else:
    __getattr__, __dir__ = import_when_used(__name__)
