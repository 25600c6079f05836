"""The keywords and the columns of `attngeo.verify`. Imports no torch."""

from __future__ import annotations

from attngeo.checkpoints.access import HubAccess
from attngeo.choices import Circuit, one_of
from attngeo.progress import ProgressCallback
from attngeo.questions.rows import ABOUT_MODEL


def verify_columns(circuit: Circuit = "qk") -> tuple[str, ...]:
    """The columns of the table of `verify`, in order. A table of queries and keys has no column `circuit`.

    Raises UsageError for an unknown circuit.
    """
    circuits = () if one_of("circuit", circuit, Circuit) == "qk" else ("circuit",)
    return (*ABOUT_MODEL, "stack", "layer", *circuits, "module", "verdict", "difference", "note")


class VerifyKeywords(HubAccess):
    """The keywords of `verify`."""

    hub: HubAccess | None = None
    circuit: Circuit = "qk"
    progress: ProgressCallback | None = None
