#!/usr/bin/env bash
# Symmetric against default initialisation, encoder and decoder, three seeds: about an hour on two cores. SEEDS=6 makes six.
# WIKITEXT is a folder with WikiText-2's validation and test texts, one paragraph per line (CC BY-SA; not part of this
# project). Run it again to resume it after an interruption. Options after WIKITEXT replace those below.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
wikitext="$(cd "${1:?usage: build.sh WIKITEXT [OPTION ...]}" && pwd)"
shift
cd "$here"
# Four layers, as in the first row of the paper's Table 1; the width and the text are small enough for an hour.
attngeo pretrain --compare default,symmetric --objectives mlm,clm --seeds "${SEEDS:-3}" --jobs 2 -o runs --resume \
    --model bert-4x128.json --data "$wikitext" --vocab-size 1024 --steps 3000 --batch-size 64 --grad-accum 1 --seq-len 32 \
    --lr 2e-3 --warmup 200 --weight-decay 0.01 --log-every 50 --save-every 1000 "$@"
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
