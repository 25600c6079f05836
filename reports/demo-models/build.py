"""Trains `demo:encoder` and `demo:decoder`, and puts them into the package: `make demo-models`.

Both are the same model, with the same seed and the same sequences in the same order. One predicts masked tokens, the
other the next token. It takes about half an hour on two cores.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent
DEMOS = HERE.parents[1] / "attngeo" / "demos"
# The differences from the options of `tiny`: longer sequences and many more steps; a weight decay that lets the initial
# weights fade by the end; more masks, so that a step learns more (Wettig et al. 2023, 2202.08005).
OPTIONS = {
    "--model": "tiny", "--data": "austen", "--seed": "0", "--steps": "12000", "--batch-size": "64", "--seq-len": "32",
    "--lr": "2e-3", "--warmup": "500", "--weight-decay": "0.1", "--log-every": "400", "--save-every": "2000",
}  # fmt: skip
OBJECTIVES = {"encoder": {"--objective": "mlm", "--mlm-probability": "0.3"}, "decoder": {"--objective": "clm"}}
KEPT = ("config.json", "tokenizer.json", "tokenizer_config.json")


def main() -> None:
    """Train both at once, with one thread each; finished runs are kept, and interrupted ones resumed."""
    work = HERE / "runs"
    running = {name: start(work / name, name) for name in OBJECTIVES}
    failed = [name for name, process in running.items() if process is not None and process.wait()]
    if failed:
        sys.exit(f"training of {' and '.join(failed)} failed; run this again to resume it")
    for name in OBJECTIVES:
        install(work / name, name)


def start(folder: Path, name: str) -> subprocess.Popen[bytes] | None:
    """Start the command that trains one model; None if it is finished."""
    if (folder / "summary.json").exists():
        return None
    options = ["--resume"] if folder.exists() else make_options(name)
    command = [str(Path(sys.executable).with_name("attngeo")), "pretrain", *options, "-o", str(folder)]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})


def make_options(name: str) -> list[str]:
    """The options of the command that trains a model, without -o; options of this script follow, and replace them."""
    return [*(part for pair in (OBJECTIVES[name] | OPTIONS).items() for part in pair), *sys.argv[1:]]


def install(folder: Path, name: str) -> None:
    """Write the weights in half precision into the package, and summary and curve beside this file."""
    target = DEMOS / name
    target.mkdir(parents=True, exist_ok=True)
    weights = {key: tensor.half().contiguous() for key, tensor in load_file(folder / "model/model.safetensors").items()}
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    (target / "model.safetensors").chmod(0o644)
    for file in KEPT:
        shutil.copy(folder / "model" / file, target / file)
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    summary["command"] = shlex.join(["attngeo", "pretrain", *make_options(name)])
    (HERE / f"{name}.json").write_text(json.dumps(summary, indent=2) + "\n", "utf-8")
    pd.read_parquet(folder / "geometry.parquet").round(6).to_csv(HERE / f"{name}.csv", index=False)


if __name__ == "__main__":
    main()
