"""Where the scores of attention come from: the updates of W_qk in a training step.

    attngeo.gradients(model, text=…)   symmetry, directionality and spread of the update of every layer and head
    GradientCallback(batches, …)       the same at every log of any transformers Trainer
    read_batches(tokenizer, options)   sequences of a text, masked or not, for the callback

Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.lazy import import_when_used

if TYPE_CHECKING:
    from attngeo.updates.measuring import (
        GradientCallback as GradientCallback,
        Gradients as Gradients,
        read_batches as read_batches,
    )
else:
    __getattr__, __dir__ = import_when_used(__name__)
