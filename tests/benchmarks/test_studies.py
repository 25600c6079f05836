"""The engine's own cost of a run, in this process and in others (`make bench`)."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from support.study_runs import do_nothing

from attngeo.session import Session, StudyOptions
from attngeo.studies.engine import run_study

RUNS = 200


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_costs_less_than_20_ms(jobs: int, benchmark: BenchmarkFixture) -> None:
    """Of a function that does nothing, in processes that have started."""
    settings = list(range(RUNS))
    names, options = [str(number) for number in settings], StudyOptions(jobs=jobs)

    outcomes = benchmark.pedantic(
        lambda: run_study(do_nothing, settings, Session(study=options), names=names), rounds=5, warmup_rounds=1
    )
    assert [each.result for each in outcomes] == settings
    milliseconds = benchmark.stats.stats.median / RUNS * 1000
    print(f"\njobs={jobs}: {milliseconds:.2f} ms a run")
    assert milliseconds < 20
