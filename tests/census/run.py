"""The census: every model type of the installed transformers against attngeo. `make census` runs it.

    python tests/census/run.py [--only TYPE ...] [--output FILE] [--workers N]

Each model is built and run in a process of its own workers, which is replaced if it dies or takes too long.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from threading import local
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

SECONDS = 120
CSV = Path(__file__).parents[2] / "attngeo/layouts/census.csv"
FIELDS = (
    "model_type", "verdict", "sites", "causal", "rotary", "scalings", "reason", "outputs", "output_reason", "last_norm",
    "gain_offset", "head_layers", "head",
)  # fmt: skip


def all_types() -> list[str]:
    """The model types of the installed transformers."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return sorted(CONFIG_MAPPING_NAMES)


def take_census(types: Iterable[str], workers: int = 2, *, scalings: bool = False) -> Iterator[dict[str, Any]]:
    """The row of each model type, in the order of `types`. scalings: run it with every kind of rotary scaling, too."""
    own = local()

    def examine(model_type: str) -> dict[str, Any]:
        if not hasattr(own, "worker"):
            own.worker = _Worker()
        row: dict[str, Any] = own.worker.ask(model_type, scalings)
        return row

    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(examine, types)


class _Worker:
    """A process that examines one model type after the other."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(target=_work, args=(there,), daemon=True)
        self._process.start()
        there.close()

    def ask(self, model_type: str, scalings: bool) -> dict[str, Any]:
        self._here.send((model_type, scalings))
        reason = f"no result within {SECONDS} s"
        if self._here.poll(SECONDS):
            try:
                row: dict[str, Any] = self._here.recv()
            except EOFError:
                reason = "the process died"
            else:
                return row
        self._process.kill()
        self._start()
        known = {"model_type": model_type, "verdict": "not verified", "sites": 0, "reason": reason}
        return dict.fromkeys(FIELDS, "") | known


def _work(there: Connection) -> None:
    import logging
    import warnings

    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    import torch

    from census.examine import Row, examine
    from census.rotary import SCALINGS

    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - as long as the process
    while True:
        model_type, scalings = there.recv()
        try:
            row = examine(model_type, SCALINGS if scalings else ())
        except Exception as error:
            row = Row(model_type, "not verified", reason=f"{type(error).__name__}: {error}".splitlines()[0][:300])
        there.send(asdict(row))


def main() -> None:
    """Take the census and write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", nargs="*", help="model types, whose rows are replaced; default: all")
    parser.add_argument("--output", type=Path, default=CSV)
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    counts: Counter[str] = Counter()
    rows = []
    for row in take_census(asked.only or all_types(), asked.workers, scalings=True):
        rows.append(row)
        counts[row["verdict"]] += 1
        print(f"{row['model_type']}: {row['verdict']} ({row['sites']}) {row['reason']}"[:200], file=sys.stderr)
        print(f"    outputs: {row['outputs'] or 'none'} {row['output_reason']}"[:200], file=sys.stderr)
    if asked.only and asked.output.exists():
        with asked.output.open(encoding="utf-8", newline="") as file:
            known: dict[str, dict[str, Any]] = {row["model_type"]: row for row in csv.DictReader(file)}
        known |= {row["model_type"]: row for row in rows}
        rows = [known[name] for name in sorted(known)]
    with asked.output.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()))


if __name__ == "__main__":
    main()
