"""The table of the answers of one model, as a question is asked. Imports nothing heavy before the work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attngeo.analogies.options import AnalogyOptions
from attngeo.analogies.questions import require_questions
from attngeo.embeddings.reference import require_checkpoint, require_embedding
from attngeo.session import Session

if TYPE_CHECKING:
    import pandas as pd


def answer_rows(model: Any, session: Session, *, options: AnalogyOptions) -> pd.DataFrame:
    """The rows of `answering.answer_questions`.

    Raises ModelUnavailableError for a model, and DataUnavailableError for questions, that cannot be found, and
    UsageError for layers of a table without a model.
    """
    require_questions(options.questions)
    require_embedding(model)
    if options.layers is not None:
        require_checkpoint(model)

    from attngeo.analogies.answering import answer_questions

    return answer_questions(model, session, options=options)
