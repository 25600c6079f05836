"""What a user sees on another processor: the same commands with other kernels, other threads and another rounding.

A part of `make portable`, which names this file: other targets leave it out, as it starts a server for each setting.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from support.forks import start_forks
from support.outputs import GOLDEN, compare, make_outputs
from support.rounding import variables

from attngeo.analogies.questions import google_text

# Other processors: variables that the libraries read when they are loaded, and seeds of the rounding.
SETTINGS = {
    "new": {"MKL_CBWR": "AVX2", "OMP_NUM_THREADS": "2", **variables(2)},
    "old": {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "default", **variables(1)},
}
BASELINE = {"OMP_NUM_THREADS": "1"}
SCORES = Path(__file__).parent / "golden" / "minilm.csv"


@dataclass(frozen=True)
class Seen:
    """The numbers that one setting of a processor gave.

    scores: per layer and head. answers: of each question. classified, predicted: by a classifier. fitted: a model of
    baskets. outputs: those of tests/golden/outputs.
    """

    scores: pd.DataFrame
    published: pd.DataFrame
    answers: pd.DataFrame
    classified: pd.DataFrame
    predicted: pd.DataFrame
    fitted: pd.DataFrame
    outputs: dict[str, str]


def write_inputs(folder: Path) -> None:
    """Every twelfth question, a table whose label a model can learn in part, and baskets of two tastes."""
    draw = random.Random(0)
    lines = google_text().splitlines()
    (folder / "q.txt").write_text("\n".join(line for n, line in enumerate(lines) if line[0] == ":" or n % 12 == 0))
    rows = [(draw.choice("abcde"), draw.choice("vwxyz"), round(draw.gauss(0, 1), 3)) for _ in range(600)]
    table = [f"{a},{b},{x},{int((a < b[0]) ^ (x > 0.5) ^ (draw.random() < 0.2))}" for a, b, x in rows]
    (folder / "rows.csv").write_text("\n".join(["first,second,x,y", *table]))
    baskets = []
    for number in range(200):
        taste = "abcdef" if draw.random() < 0.5 else "efghij"
        baskets += [f"{number},{item}" for item in draw.sample(taste, draw.randint(2, 5))]
    (folder / "baskets.csv").write_text("\n".join(["sequence,item", *baskets]))


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Seen]:
    """The outputs of the commands with one of the SETTINGS, or with BASELINE."""

    @cache
    def see(name: str) -> Seen:
        folder = tmp_path_factory.mktemp(name)
        write_inputs(folder)
        taken = {variable for setting in SETTINGS.values() for variable in setting}
        kept = {variable: value for variable, value in os.environ.items() if variable not in taken}
        environment = {**kept, **BASELINE, **SETTINGS.get(name, {})}
        commands = [
            "score demo:minilm --per-head -o scores.csv",
            "score demo:minilm --convention published -o published.csv",
            "analogy demo:minilm --questions q.txt --n-draws 0 --questions-output answers.csv",
            "tabular fit rows.csv --target y --methods atn --device cpu --save model -o classified.csv",
            "tabular predict model rows.csv -o predicted.csv",
            "efa fit baskets.csv --part items --width 8 --epochs 20 --device cpu -o fitted.csv",
        ]
        with start_forks(environment) as forks:

            def run(arguments: list[str], cwd: Path = folder) -> str:
                (done,) = forks.run(arguments, cwd=cwd, environment=environment | {"COLUMNS": "80"})
                assert done.returncode == 0, (arguments, done.stderr)
                return done.stdout

            for command in commands:
                run(command.split())
            (golden := folder / "golden").mkdir()
            # Those of the baseline are the files to compare with.
            outputs = make_outputs(golden, lambda arguments: run(arguments, golden)) if name in SETTINGS else {}
        names = ("scores", "published", "answers", "classified", "predicted", "fitted")
        return Seen(*(pd.read_csv(folder / f"{each}.csv") for each in names), outputs)

    return see


@pytest.mark.parametrize("name", SETTINGS)
def test_a_user_sees_the_same(name: str, seen: Callable[[str], Seen]) -> None:
    assert_same_scores_and_answers(seen("baseline"), seen(name))
    assert_like_fits(seen("baseline"), seen(name))
    for output, printed in seen(name).outputs.items():
        compare(output, printed, (GOLDEN / output).read_text("utf-8"))


def assert_same_scores_and_answers(here: Seen, other: Seen) -> None:
    for column in ("symmetry", "directionality"):
        assert other.scores[column].tolist() == pytest.approx(here.scores[column].tolist(), abs=1e-6)
    golden = pd.read_csv(SCORES, comment="#")
    assert other.published["symmetry"].tolist() == pytest.approx(golden["symmetry"].tolist(), abs=2e-6)
    assert other.published["directionality"].tolist() == pytest.approx(
        golden["directionality_published"].tolist(), abs=2e-6
    )
    assert other.answers["known"].sum() > 900
    pd.testing.assert_frame_equal(other.answers, here.answers, rtol=0, atol=1e-9)  # equal ranks and words, too


def assert_like_fits(here: Seen, other: Seen) -> None:
    """Training magnifies rounding; the READMEs of both estimators say by how much."""
    loss, loss_here = (_loss_of_attention(each.classified) for each in (other, here))
    assert loss == pytest.approx(loss_here, abs=0.002)
    assert other.predicted["p(1)"].tolist() == pytest.approx(here.predicted["p(1)"].tolist(), abs=0.02)
    sure = (here.predicted["p(1)"] - 0.5).abs() > 0.02
    assert sure.mean() > 0.9
    assert other.predicted["prediction"][sure].equals(here.predicted["prediction"][sure])
    assert loss < math.log(2) - 0.1  # it has learned something
    assert other.fitted["log_prob"].tolist() == pytest.approx(here.fitted["log_prob"].tolist(), abs=1e-4)
    learned = other.fitted[other.fitted["data"] == "train"]
    assert (learned["log_prob"] > learned["without_context"]).all()


def _loss_of_attention(rows: pd.DataFrame) -> float:
    """The log loss of attention in a table that has the majority class, too."""
    loss: float = rows.loc[rows["method"] == "atn", "log_loss"].item()
    return loss
