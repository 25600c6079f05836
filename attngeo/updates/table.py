"""The table of the updates of one model, as a question is asked. Imports nothing heavy before the work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.checkpoints.local_files import require_model
from attngeo.checkpoints.reference import Model
from attngeo.pretrain.sources import require_text_data
from attngeo.session import Session
from attngeo.updates.options import GradientOptions

if TYPE_CHECKING:
    import pandas as pd


def measure_rows(model: Model, session: Session, *, options: GradientOptions) -> pd.DataFrame:
    """The rows of `attngeo.gradients`.

    Raises ModelUnavailableError for a model, and DataUnavailableError for a text, that cannot be found.
    """
    require_model(model)
    require_text_data(options.text)

    from attngeo.updates.measuring import gradients

    return gradients(model, options=options, hub=session.hub, progress=session.progress).rows
