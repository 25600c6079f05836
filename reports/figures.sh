#!/usr/bin/env bash
# One picture of each kind of figure: `make figures`. Requires Chromium or Chrome.
set -euo pipefail
out="$(cd "$(dirname "$0")" && pwd)/figures"
mkdir -p "$out"
attngeo plot heatmap demo:minilm -o "$out/heatmap.png" --width 900 --quiet
attngeo plot layers demo:encoder demo:decoder -o "$out/layers.png" --width 900 --height 420 --quiet
attngeo plot heads demo:minilm -o "$out/heads.png" --width 900 --height 500 --quiet
attngeo plot size demo:minilm demo:encoder demo:decoder -o "$out/size.png" --width 900 --height 500 --quiet
# One, three and twelve models: the demo models with noise on their weights.
variants="$(mktemp -d)"
python - "$variants" << 'END'
import sys
from pathlib import Path

import pandas as pd
import torch
from safetensors.torch import load_file, save_file

import attngeo
from attngeo.tables.write import write_table

demos, folder = Path(attngeo.__file__).parent / "demos", Path(sys.argv[1])
frames = []
for seed in range(12):
    demo = ("encoder", "decoder")[seed % 3 == 2]
    generator = torch.Generator().manual_seed(seed)
    weights = load_file(demos / demo / "model.safetensors")
    for name, weight in weights.items():
        noise = torch.randn(weight.shape, generator=generator) * weight.float().std(correction=0) * 0.08 * (seed + 1)
        weights[name] = (weight.float() + noise).to(weight.dtype)
    (folder / str(seed)).mkdir()
    (folder / str(seed) / "config.json").write_text((demos / demo / "config.json").read_text())
    save_file(weights, folder / str(seed) / "model.safetensors", metadata={"format": "pt"})
    rows = attngeo.score(folder / str(seed), per_head=True)
    # As if they had different sizes, for the figure of sizes.
    frames.append(rows.assign(model=f"{demo}/noise-{8 * (seed + 1)}%", parameters=rows["parameters"] * 2**seed))
for name, count in (("one", 1), ("three", 3), ("twelve", 12)):
    write_table(pd.concat(frames[:count]), folder / f"{name}.csv")
END
for kind in layers heads size; do
    for count in one three twelve; do
        attngeo plot "$kind" "$variants/$count.csv" -o "$out/$kind-$count.png" --width 800 --quiet
    done
done
rm -r "$variants"
attngeo plot growths demo:minilm demo:encoder demo:decoder -o "$out/growths.png" --width 900 --quiet
attngeo plot matrix demo:minilm --layer 2 -o "$out/matrix.png" --width 560 --height 450 --quiet
attngeo plot outliers demo:minilm -o "$out/outliers.png" --width 900 --height 450 --quiet
attngeo plot spectrum demo:minilm --layer 2 --head 9 -o "$out/spectrum.png" --width 900 --height 450 --quiet
attngeo plot position-map "$out/../circuits/positions.csv" --where model=SmolLM2-135M-Instruct -o "$out/position-map.png" --width 560 --height 560 --quiet
attngeo plot position-kernel demo:encoder --layer 0 -o "$out/position-kernel.png" --width 560 --height 320 --quiet
attngeo plot mirror-map demo:minilm --layer 4 -o "$out/mirror-map.png" --width 560 --height 480 --quiet
attngeo plot training "$out/../symmetric-init/curves.parquet" -o "$out/training.png" --width 900 --height 420 --quiet
attngeo plot training-layers "$out/../symmetric-init/curves.parquet" --over heads --where init=default -o "$out/training-layers.png" --width 900 --height 420 --quiet
attngeo plot training-layers "$out/../symmetric-init/curves.parquet" --where init=default -o "$out/training-whole-layers.png" --width 900 --height 420 --quiet
attngeo plot layers "$out/../pretrained/scores.csv" -o "$out/pretrained.png" --width 900 --height 420 --quiet
attngeo plot training "$out/../symmetric-init/curves.parquet" --where objective=mlm --score loss \
    -o "$out/loss.png" --width 900 --height 420 --quiet
attngeo plot shift "$out/../tabular/table2.csv" -o "$out/shift.png" --width 900 --height 500 --quiet
attngeo plot analogies demo:minilm -o "$out/analogies.png" --width 900 --quiet
attngeo plot analogies "$out/../analogies-by-layer/accuracy.csv" --where "setting=all words" \
    -o "$out/analogy-layers.png" --width 900 --height 420 --quiet
scratch="$(mktemp -d)"
attngeo plot updates "$out/../gradients/demos.csv" --where text=austen -o "$out/updates.png" --width 900 --height 450 --quiet
attngeo gradients demo:decoder --sequences 1 --seq-len 32 --pairs-output "$scratch/pairs.csv" --quiet > /dev/null
attngeo plot pairs "$scratch/pairs.csv" --layer 1 -o "$out/pairs.png" --width 700 --height 620 --quiet
attngeo compare demo:encoder demo:decoder --per-head -o "$scratch/changes.csv" --quiet > /dev/null
attngeo plot change-map "$scratch/changes.csv" -o "$out/change-map.png" --width 560 --height 320 --quiet
attngeo plot change-layers "$scratch/changes.csv" -o "$out/change-layers.png" --width 900 --height 420 --quiet
attngeo analogy --explain toy -o "$scratch/terms.csv" --quiet > /dev/null
attngeo plot paraphrases "$scratch/terms.csv" -o "$out/paraphrases.png" --width 900 --quiet
# The encoder and the decoder of one seed, whose curves are kept, as if each log were a checkpoint.
python - "$out/../symmetric-init/curves.parquet" "$scratch/steps.csv" << 'END'
import sys

import pandas as pd

curves = pd.read_parquet(sys.argv[1])
rows = curves[(curves["init"] == "default") & (curves["seed"] == 0)]
names = rows["objective"] + "@step" + rows["step"].astype(str)
rows.drop(columns="step").assign(model=names, d_model=128).to_csv(sys.argv[2], index=False)
END
attngeo plot trajectory "$scratch/steps.csv" -o "$out/trajectory.png" --width 900 --height 500 --quiet
python - "$scratch/rows.csv" << 'END'
import sys

import pandas as pd

from attngeo.papers.wibisono2023.data import simulate
from attngeo.papers.wibisono2023.options import ShiftSetting

x, y = simulate(ShiftSetting(n_c=2, noise=0, corr=0.5), 0, features=3, classes=6).train
pd.DataFrame(x, columns=["x1", "x2", "x3"]).assign(y=y).to_csv(sys.argv[1], index=False)
END
attngeo tabular fit "$scratch/rows.csv" --target y --methods atn --epochs 100 --save "$scratch/model" --quiet > /dev/null
attngeo plot encodings "$scratch/model" -o "$out/encodings.png" --width 700 --height 600 --quiet
attngeo tabular predict "$scratch/model" "$scratch/rows.csv" --attention-output "$scratch/cells.parquet" > /dev/null
attngeo plot row-attention "$scratch/cells.parquet" --where row=1 -o "$out/row-attention.png" --width 700 --height 500 --quiet
attngeo plot test-errors "$out/../efa/recovery.csv" -o "$out/test-errors.png" --width 900 --height 450 --quiet
python - "$scratch/baskets.csv" "$scratch/days.csv" << 'END'
import sys

import numpy as np
import pandas as pd

draw = np.random.default_rng(0)
names = ["tea", "milk", "sugar", "bread", "butter", "jam"]
starts, lengths = draw.integers(0, 6, 400), draw.integers(3, 7, 400)
rows = [(n, names[(a + k) % 6]) for n, (a, b) in enumerate(zip(starts, lengths)) for k in range(b)]
pd.DataFrame(rows, columns=["sequence", "item"]).to_csv(sys.argv[1], index=False)
places = pd.DataFrame({"item": [f"place {n}" for n in range(1, 13)],
                       "latitude": draw.uniform(30, 48, 12), "longitude": draw.uniform(-120, -75, 12)})
days = []
for day in range(300):
    north, east, level = draw.normal(size=3)
    field = level + north * (places["latitude"] - 39) / 6 + east * (places["longitude"] + 97) / 15
    days.append(places.assign(sequence=day, value=60 + 8 * (field + 0.3 * draw.normal(size=12))))
pd.concat(days).to_csv(sys.argv[2], index=False)
END
attngeo efa fit "$scratch/baskets.csv" --direction uni --layers 2 --width 16 --lr 0.01 --epochs 40 --save "$scratch/items" --quiet > /dev/null
attngeo efa attention "$scratch/items" tea,milk,sugar,bread,butter,jam -o "$scratch/weights.csv" > /dev/null
attngeo plot item-attention "$scratch/weights.csv" -o "$out/item-attention.png" --width 900 --height 450 --quiet
attngeo plot item-vectors "$scratch/items" -o "$out/item-vectors.png" --width 900 --height 600 --quiet
attngeo efa fit "$scratch/days.csv" --coordinates latitude --coordinates longitude --no-item-vectors --no-order \
    --layers 1 --width 16 --lr 0.005 --epochs 60 --save "$scratch/field" --quiet > /dev/null
attngeo efa attention "$scratch/field" "$scratch/days.csv" --places-output "$scratch/places.csv" > /dev/null
attngeo plot place-attention "$scratch/places.csv" --where "place=place 1" -o "$out/place-attention.png" \
    --width 900 --height 500 --quiet
rm -r "$scratch"
# Experiments of reports whose tables are of no kind.
for report in symmetric-init efa tabular gradients growths; do
    python "$out/../$report/${report//-/_}_figures.py"
done
