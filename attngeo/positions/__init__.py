"""Where heads look by position alone, from their queries and keys.

    measure(model)            the table: a row for each head, with its position kernel
    position_columns()        the columns of that table

Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.lazy import import_when_used

if TYPE_CHECKING:
    from attngeo.positions.measuring import measure as measure
    from attngeo.positions.options import position_columns as position_columns
else:
    __getattr__, __dir__ = import_when_used(__name__)
