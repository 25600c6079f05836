"""Several processes that train one model, as `accelerate launch` starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def launch(processes: int, *command: object, folder: Path) -> str:
    """What they print on stdout. command: a script, or -m and a module, with arguments."""
    # What accelerate calls multi_gpu starts processes on a CPU as well; its --cpu starts one.
    options = ["--num_processes", processes, "--num_machines", 1, "--mixed_precision", "no", "--dynamo_backend", "no",
               "--main_process_port", 0, *(["--multi_gpu"] if processes > 1 else [])]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "accelerate.commands.launch", *map(str, [*options, *command])],
        cwd=folder, capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
