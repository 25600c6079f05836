#!/usr/bin/env bash
# One picture of each kind of figure: `make figures`. Requires Chromium or Chrome.
set -euo pipefail
out="$(cd "$(dirname "$0")" && pwd)/figures"
mkdir -p "$out"
attngeo plot heatmap demo:minilm -o "$out/heatmap.png" --width 900 --quiet
attngeo plot layers demo:encoder demo:decoder -o "$out/layers.png" --width 900 --height 420 --quiet
attngeo plot heads demo:minilm -o "$out/heads.png" --width 900 --height 500 --quiet
attngeo plot size demo:minilm demo:encoder demo:decoder -o "$out/size.png" --width 900 --height 500 --quiet
attngeo plot matrix demo:minilm --layer 2 -o "$out/matrix.png" --width 560 --height 450 --quiet
attngeo plot training "$out/../symmetric-init/curves.parquet" -o "$out/training.png" --width 900 --height 420 --quiet
attngeo plot training-layers "$out/../symmetric-init/curves.parquet" -o "$out/training-layers.png" --width 900 --height 420 --quiet
attngeo plot training "$out/../symmetric-init/curves.parquet" --where objective=mlm --score loss \
    -o "$out/loss.png" --width 900 --height 420 --quiet
attngeo plot shift "$out/../tabular/table2.csv" -o "$out/shift.png" --width 900 --height 500 --quiet
attngeo plot analogies demo:minilm -o "$out/analogies.png" --width 900 --quiet
scratch="$(mktemp -d)"
attngeo analogy --explain toy -o "$scratch/terms.csv" --quiet > /dev/null
attngeo plot paraphrases "$scratch/terms.csv" -o "$out/paraphrases.png" --width 900 --quiet
python - "$scratch/rows.csv" << 'END'
import sys

import pandas as pd

from attngeo.tabular.simulation import Shift, simulate

x, y = simulate(Shift(n_c=2, noise=0, corr=0.5, n_features=3, n_classes=6), 0).train
pd.DataFrame(x, columns=["x1", "x2", "x3"]).assign(y=y).to_csv(sys.argv[1], index=False)
END
attngeo tabular fit "$scratch/rows.csv" --target y --methods atn --epochs 100 --save "$scratch/model" --quiet > /dev/null
attngeo plot encodings "$scratch/model" -o "$out/encodings.png" --width 700 --height 600 --quiet
attngeo tabular predict "$scratch/model" "$scratch/rows.csv" --attention-output "$scratch/cells.parquet" > /dev/null
attngeo plot row-attention "$scratch/cells.parquet" --where row=1 -o "$out/row-attention.png" --width 700 --height 500 --quiet
rm -r "$scratch"
