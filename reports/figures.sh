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
terms="$(mktemp -d)/terms.csv"
attngeo analogy --explain toy -o "$terms" --quiet > /dev/null
attngeo plot paraphrases "$terms" -o "$out/paraphrases.png" --width 900 --quiet
