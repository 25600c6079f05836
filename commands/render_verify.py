"""Lines about a verification, for stderr: what disagrees, what was not checked, and one line that sums up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.layouts.names import pattern_of
from attngeo.verification.verifying import AGREEING, FAILING, UNCHECKED

from .tables import name_layers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd

# What is said of the sites with a verdict.
MEANINGS = {
    "differs": "differs from what the running model multiplies",
    "no product": "has no product that goes through a softmax in the running model",
    "only in memory": "attends in the running model, and is not read from the file",
    "not run": "was not run",
    "only in the file": "is not in the running model",
}


def list_complaints(frame: pd.DataFrame) -> list[str]:
    """One line for each group of sites that disagree, and for each module that attends and is not accounted for."""
    silent = (
        f"{pattern} attends in the running model, and is neither read nor left out"
        for pattern in frame.attrs["unexplained"]
    )
    return [f"{frame.attrs['model']}: {text}" for text in (*_describe_groups(frame, FAILING), *silent)]


def list_notes(frame: pd.DataFrame) -> list[str]:
    """One line for each group of sites that were not checked, why the model does not run, and how many sites agree."""
    agreeing, total = int(frame["verdict"].isin(AGREEING).sum()), len(frame)
    share = f"all {total} sites agree" if agreeing == total else f"{agreeing} of {total} sites agree"
    lines = list(_describe_groups(frame, UNCHECKED))
    if frame.attrs["problem"] and "not run" in set(frame["verdict"]):
        lines.append(f"the whole model does not run on random inputs: {frame.attrs['problem']}")
    lines.append(f"{share} with what the running model multiplies")
    return [f"{frame.attrs['model']}: {text}" for text in lines]


def _describe_groups(frame: pd.DataFrame, verdicts: Sequence[str]) -> Iterator[str]:
    for verdict in verdicts:
        rows = frame[frame["verdict"] == verdict]
        for (stack, pattern), own in rows.groupby(["stack", rows["module"].map(pattern_of)], sort=False):
            difference = f", difference {own['difference'].max():.2g}" if verdict == "differs" else ""
            where = f"{str(stack).partition(':')[0]}, {name_layers(own['layer'].tolist())}{difference}"
            yield f"{pattern or 'the model itself'} ({where}) {MEANINGS[verdict]}"
