#!/usr/bin/env bash
# Symmetric against default initialisation, encoder and decoder, three seeds: about an hour on two cores.
# WIKITEXT is a folder with WikiText-2's validation and test texts, a paragraph a line (CC BY-SA; not part of this
# project). Run it again to go on where it was interrupted.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
wikitext="${1:?usage: build.sh WIKITEXT}"
resume=$([ -d "$here/runs" ] && echo --resume || true)
# shellcheck disable=SC2086
attngeo pretrain --compare default,symmetric --objectives mlm,clm --seeds 3 \
    --model tiny --data "$wikitext" --vocab-size 2048 --steps 3000 --batch-size 64 --seq-len 32 --lr 2e-3 \
    --warmup 200 --mlm-probability 0.15 --log-every 50 --save-every 1000 -o "$here/runs" $resume
cp "$here"/runs/comparison.csv "$here"/runs/spread.csv "$here"/runs/curves.parquet "$here"
