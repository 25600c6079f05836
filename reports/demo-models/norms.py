"""Norms of the columns and rows of each layer's form of the demo models, norms.csv; see README.md beside it.

python reports/demo-models/norms.py
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

import attngeo

HERE = Path(__file__).parent
# The default threshold of directionality, in standard deviations above the mean.
GAMMA = 2


def measure(model: str) -> pd.DataFrame:
    """A row for each layer and side of M.

    variation: the norms' standard deviation divided by their mean. above: how many norms directionality counts.
    """
    lines = []
    for site, wq, wk in attngeo.attention_sites(model):
        form = (wq.double() @ wk.double().mT).sum(0)
        for side, norms in (("column", form.norm(dim=0)), ("row", form.norm(dim=1))):
            mean = norms.mean()
            deviation = norms.std(correction=0)
            line = {
                "model": model,
                "layer": site.layer,
                "side": side,
                "variation": (deviation / mean).item(),
                "above": (norms > mean + GAMMA * deviation).sum().item(),
            }
            lines.append(line)
    return pd.DataFrame(lines)


if __name__ == "__main__":
    norms = pd.concat([measure("demo:encoder"), measure("demo:decoder")])
    norms.to_csv(HERE / "norms.csv", index=False, float_format="%.4f")
