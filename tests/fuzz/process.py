"""Inputs are written and judged, in a process of their own or in this one, with bounds of time and memory."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import psutil
from fuzz.found import FOUND, Input
from fuzz.outcome import Wrong
from fuzz.targets import TARGETS, Target

Report = Callable[[str, str], None]
# Of one input, and above what the process has when it starts to judge.
SECONDS, MEMORY = 20, 3 << 30
# The share of inputs that are accepted: a reader that refuses all of them, or none, is not tested by them.
LEAST_ACCEPTED, MOST_ACCEPTED = 0.04, 0.96
CODE = "from fuzz.process import main; main()"
# In the output of the process, before what is wrong; and the name of what is not about an input.
MARK, PROCESS = "WRONG ", "process"


def run_inputs(
    numbers: Mapping[str, range], paths: Sequence[Path], seconds: float, place: Path = FOUND
) -> dict[str, str]:
    """Run the inputs with these numbers of each target, then saved ones: each depends on its number or file only.

    A drawn input whose outcome is not allowed is saved in the folder `place`. Returns what is wrong by the name of the
    input, or of the file; of PROCESS if none was begun. If the process dies, the inputs that follow are not run.
    """
    with tempfile.TemporaryDirectory() as work:
        drawn = {target: [chosen.start, chosen.stop] for target, chosen in numbers.items()}
        problems = run_process({"drawn": drawn, "found": list(map(str, paths))}, Path(work), seconds)
        saved = {path.name for path in paths}
        for name in problems.keys() - saved:
            folder = Path(work, name)
            if folder.is_dir():
                path = Input.read(name.partition(":")[0], folder).save(problems[name], place)
                problems[name] += f"\nsaved in {path}; pytest tests/fuzz repeats it"
    return problems


def run_process(request: Mapping[str, Any], work: Path, seconds: float) -> dict[str, str]:
    """Run inputs in a process. Returns what is wrong by the name of the input, whose folder in `work` is left there.

    seconds: after which the process is ended.
    """
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    run = subprocess.Popen(
        [sys.executable, "-P", "-c", CODE, work],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    with run:
        try:
            stdout, stderr = run.communicate(json.dumps(request), seconds)
        except subprocess.TimeoutExpired:
            run.kill()
            stdout, stderr = run.communicate()
            stderr = f"{stderr}\nmore than {seconds} s"
    lines = [line.removeprefix(MARK) for line in stdout.splitlines() if line.startswith(MARK)]
    reports = dict(map(json.loads, lines))
    if run.returncode:
        left = [folder.name for folder in work.iterdir() if folder.name not in reports] or [PROCESS]
        reports |= dict.fromkeys(left, f"the process died ({run.returncode}) after {stderr[-600:]}")
    return reports


def main() -> None:
    """The process: a line for each input whose outcome is not allowed, its name and what is wrong as JSON."""
    work = Path(sys.argv[1])
    request = json.loads(sys.stdin.read())
    warnings.simplefilter("ignore")
    drawn = {target: range(*bounds) for target, bounds in request["drawn"].items()}
    prepare_inputs(drawn)
    limit_memory()
    judge_inputs(drawn, [Path(path) for path in request["found"]], work, print_report)


def prepare_inputs(targets: Iterable[str]) -> None:
    """Make what all inputs of a target share, before time and memory are counted."""
    for target in targets:
        with tempfile.TemporaryDirectory() as folder:
            TARGETS[target].write(Random(0), Path(folder))


def judge_inputs(numbers: Mapping[str, range], paths: Sequence[Path], work: Path, report: Report) -> None:
    """Write and judge the inputs with these numbers, then saved ones, in this process.

    report: is called with the name of each input whose outcome is not allowed, and what is wrong.
    """
    for target, chosen in numbers.items():
        drawn = [(f"{target}:{number}", draw(target, number)) for number in chosen]
        accepted = sum(run_input(target, name, write, work, report) for name, write in drawn)
        if not LEAST_ACCEPTED * len(chosen) <= accepted <= MOST_ACCEPTED * len(chosen):
            report(target, f"{accepted} of {len(chosen)} are accepted")
    for path in paths:
        found = Input.load(path)
        run_input(found.target, path.name, found.write, work, report)


def limit_memory() -> None:
    process = psutil.Process()
    if hasattr(process, "rlimit"):  # Linux
        limit = process.memory_info().vms + MEMORY
        process.rlimit(psutil.RLIMIT_AS, (limit, limit))


def draw(target: str, number: int) -> Callable[[Path], None]:
    """What writes the input with this number to a folder."""
    return lambda folder: TARGETS[target].write(Random(f"{target} {number}"), folder)


def run_input(target: str, name: str, write: Callable[[Path], None], work: Path, report: Report) -> bool:
    """Write and judge one input. Returns whether it was accepted. If its outcome is not allowed, its folder is left."""
    folder = work / name
    folder.mkdir()
    write(folder)
    outcome = judge(TARGETS[target], folder)
    if isinstance(outcome, str):
        report(name, outcome)
        return False
    shutil.rmtree(folder)
    return outcome


def judge(target: Target, folder: Path) -> bool | str:
    """Whether an input is accepted, or what happened if that is not allowed."""
    handler = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        return target.accepts(folder)
    except Wrong as error:
        return str(error)
    except BaseException:
        return traceback.format_exc(limit=-4)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


def stop(*_: object) -> None:
    raise Wrong(f"it takes more than {SECONDS} s")


def print_report(name: str, wrong: str) -> None:
    print(MARK + json.dumps([name, wrong]), flush=True)
