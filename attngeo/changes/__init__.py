"""What differs between two checkpoints: their heads side by side, and whether they share an origin.

    relate_models(model, candidate, options, session)   the row of the table of lineage of one candidate

Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.lazy import import_when_used

if TYPE_CHECKING:
    from attngeo.changes.relating import relate_models as relate_models
else:
    __getattr__, __dir__ = import_when_used(__name__)
