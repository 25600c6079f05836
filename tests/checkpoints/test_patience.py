"""How long a server may take, by a clock that the test turns; slow tests of test_hub.py wait for real servers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.messages import refuses

from attngeo.checkpoints.patience import Pace
from attngeo.errors import NetworkError


@pytest.mark.parametrize(("nbytes", "is_refused"), [(9_990, True), (10_010, False)])
def test_a_server_may_send_a_thousand_bytes_a_second(
    nbytes: int, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted over ten seconds, and then anew; some come earlier."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("time.monotonic", lambda: clock.now)
    pace = Pace(9.0, "example.org")
    clock.now += 8.0
    pace.count(5_000)
    clock.now += 2.0
    if is_refused:
        with refuses(NetworkError, "example.org", f"{nbytes:,} bytes", "10 seconds"):
            pace.count(nbytes - 5_000)
        return
    pace.count(nbytes - 5_000)
    clock.now += 10.0
    with refuses(NetworkError, "1 bytes"):
        pace.count(1)
