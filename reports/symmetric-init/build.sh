#!/usr/bin/env bash
# Symmetric against default initialisation, encoder and decoder, three seeds: about an hour on two cores. SEEDS=6 makes six.
# WIKITEXT is a folder with WikiText-2's validation and test texts, one paragraph per line (CC BY-SA; not part of this
# project). Run it again to resume it after an interruption.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
wikitext="$(cd "${1:?usage: build.sh WIKITEXT}" && pwd)"
cd "$here"
# Four layers, as in the first row of the paper's Table 1; the width and the text are small enough for an hour.
options=(--model bert-4x128.json --data "$wikitext" --vocab-size 1024 --steps 3000 --batch-size 64 --grad-accum 1 --seq-len 32 --lr 2e-3
    --warmup 200 --weight-decay 0.01 --mlm-probability 0.15 --log-every 50 --save-every 1000)
compare() { attngeo pretrain --compare default,symmetric --seeds "${SEEDS:-3}" "${options[@]}" -o runs --resume "$@"; }
# One objective on each core; then both together, when all runs are finished.
trap 'kill $(jobs -p) 2> /dev/null || true' EXIT
OMP_NUM_THREADS=1 compare --objectives mlm --quiet > /dev/null & first=$!
OMP_NUM_THREADS=1 compare --objectives clm --quiet > /dev/null & second=$!
wait "$first"
wait "$second"
compare --objectives mlm,clm
cp runs/comparison.csv runs/spread.csv runs/layers.csv runs/curves.parquet .
# Software, hardware and options, without local paths.
python3 - runs/*/summary.json > provenance.json << 'PYTHON'
import json, sys
runs = {path.split("/")[1]: json.load(open(path)) for path in sys.argv[1:]}
first = next(iter(runs.values()))
kept = ("attngeo", "torch", "transformers", "python", "platform", "processor", "cores", "precision", "parameters", "tokens")
settings = {name: value for name, value in first["settings"].items() if name not in ("model", "data", "objective", "init", "seed")}
print(json.dumps({
    "command": "reports/symmetric-init/build.sh WIKITEXT", "model": "bert-4x128.json",
    "data": "WikiText-2, validation and test texts", **{name: first[name] for name in kept}, "settings": settings,
    "runs": {name: {key: run[key] for key in ("finished", "seconds", "threads", "final_loss")} for name, run in runs.items()},
}, indent=2))
PYTHON
