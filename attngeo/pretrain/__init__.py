"""Train encoders and decoders from scratch, and score their attention during training.

    initialize(model, "symmetric")     set only Wq and Wk of any transformers model
    AttentionGeometryCallback()        scores of the model at every log of any transformers Trainer
    make_options("tiny", …)            options of a run: TextPretrainOptions or ImagePretrainOptions
    run(options, folder)               train, and write model, scores and summary to a folder
    compare_runs(options, folder, …)   the same for several initialisations, with the same data in the same order

Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.lazy import import_when_used

if TYPE_CHECKING:
    from attngeo.pretrain.callback import AttentionGeometryCallback as AttentionGeometryCallback
    from attngeo.pretrain.comparison import Comparison as Comparison, compare_runs as compare_runs
    from attngeo.pretrain.initialisation import initialize as initialize
    from attngeo.pretrain.options import (
        ComparisonOptions as ComparisonOptions,
        ImagePretrainOptions as ImagePretrainOptions,
        TextPretrainOptions as TextPretrainOptions,
        make_options as make_options,
    )
    from attngeo.pretrain.runs import Run as Run, run as run
else:
    __getattr__, __dir__ = import_when_used(__name__)
