"""The options of `analogy` and `nearest`: which values are allowed."""

from __future__ import annotations

from typing import Any

import pytest
from support.messages import refuses

from attngeo.analogies.options import MOST_DRAWS, AnalogyOptions, NearestOptions, ProbeSettings
from attngeo.errors import UsageError
from attngeo.options import choices_of, options_of, parse_bytes


@pytest.mark.parametrize("kind", [AnalogyOptions, NearestOptions])
def test_values_that_are_no_choice_are_refused(kind: type[ProbeSettings]) -> None:
    checked = set()
    for name in options_of(kind):
        if choices := choices_of(kind, name):
            checked.add(name)
            with refuses(UsageError, name, "'no'", *choices):
                kind(**{name: "no"})
    common = {"table", "answers", "case", "subwords"}
    assert checked == common | ({"method"} if kind is AnalogyOptions else set())


@pytest.mark.parametrize(
    ("name", "value", "limits"),
    [
        ("limit", 0, [1]), ("remove_top", -1, [0]), ("n_answers", 0, [1]), ("n_draws", -1, [0, f"{MOST_DRAWS:,}"]),
        ("n_draws", MOST_DRAWS + 1, [0, f"{MOST_DRAWS:,}"]), ("seed", -1, [0]), ("n_answers", 1.5, []),
        ("n_answers", True, []),
    ],
)  # fmt: skip
def test_numbers_outside_their_limits_are_refused(name: str, value: Any, limits: list[object]) -> None:
    shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else repr(value)
    with refuses(UsageError, name, shown, *limits):
        AnalogyOptions(**{name: value})


def test_numbers_at_their_limits_are_allowed() -> None:
    assert AnalogyOptions(limit=1, remove_top=0, n_answers=1, n_draws=MOST_DRAWS, seed=0).n_draws == MOST_DRAWS
    assert AnalogyOptions(n_draws=0, limit=None).limit is None


def test_memory_is_bytes() -> None:
    assert AnalogyOptions(memory="2GB").memory == 2_000_000_000
    assert AnalogyOptions(memory=12).memory == 12
    assert AnalogyOptions().memory == parse_bytes("1GB") == 10**9
    for text in ("lots", "", "GB", "-1GB", "1 PB", "1.2.3"):
        with refuses(UsageError, "memory", repr(text)):
            AnalogyOptions(memory=text)


def test_the_library_takes_options_and_keywords() -> None:
    """Keywords win over `options`; a wrong one is refused before any file is read."""
    import attngeo

    with refuses(UsageError, "n_answers", 0):
        attngeo.analogy("no/such/model", options=AnalogyOptions(), n_answers=0)
    with pytest.raises(TypeError, match="no_such_option"):
        attngeo.analogy("demo:minilm", no_such_option=1)
