"""Which compositions of SmolLM2's heads are those of induction circuits; see README.md beside it.

python reports/circuits/composition.py    # after reports/pretrained/fetch.py and positions.py; a minute on one core
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import torch

import attngeo

HERE = Path(__file__).parent
SMOLLM2 = HERE.parents[1] / "build/pretrained/SmolLM2-135M-Instruct.Q4_1.gguf"
# Mean weights above which a head is one of the previous token, and one of induction; see positions.csv.
PREVIOUS, INDUCTION = 0.4, 0.3
STRONGEST = 20


def find_heads(column: str, least: float) -> set[tuple[int, int]]:
    """The (layer, head) of the heads that the running model shows to have more than `least` in a column."""
    truth = pd.read_csv(HERE / "positions.csv")
    chosen = truth[(truth["model"] == "SmolLM2-135M-Instruct") & (truth[column] > least)]
    return set(zip(chosen["layer"], chosen["head"], strict=True))


def main() -> None:
    """Write composition.csv: a row for each kind of composition, without and with the gain of the norm folded in."""
    torch.set_num_threads(1)
    previous, induction = find_heads("previous", PREVIOUS), find_heads("induction", INDUCTION)
    rows = []
    for fold_norm in (False, True):
        composed = attngeo.compose(SMOLLM2, fold_norm=fold_norm, fresh=True)
        writers = zip(composed["from_layer"], composed["from_head"], strict=True)
        readers = zip(composed["to_layer"], composed["to_head"], strict=True)
        is_circuit = [
            writer in previous and reader in induction for writer, reader in zip(writers, readers, strict=True)
        ]
        composed = composed.assign(is_circuit=is_circuit)
        for about in composed.attrs["thresholds"]:
            of_kind = composed[composed["kind"] == about["kind"]]
            strongest = of_kind.nlargest(STRONGEST, "composition_z")
            rows.append({
                "fold_norm": fold_norm,
                "kind": about["kind"],
                "pairs": about["pairs"],
                "circuits": of_kind["is_circuit"].sum(),
                "circuits_among_strongest": strongest["is_circuit"].sum(),
                "threshold": about["threshold"],
                "above": about["above"],
                "expected": about["expected"],
                "circuits_above": (of_kind["is_circuit"] & of_kind["above_threshold"]).sum(),
            })  # fmt: skip
    pd.DataFrame(rows).to_csv(HERE / "composition.csv", index=False, float_format="%.4g")


if __name__ == "__main__":
    main()
