"""What a message has to tell: the error class, the exit code and the facts, not the wording."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from attngeo.errors import AttnGeoError

# An option whose error is not told of it: the command line writes no flag for it.
UNNAMED_OPTION = re.compile(r"\$[a-z]")


def assert_states(message: str, *facts: object) -> None:
    """The message has one line and states each fact: a name, a number, a file or an option, as whole words."""
    assert len(message.strip().splitlines()) == 1, message
    for fact in facts:
        assert re.search(rf"(?<![\w]){re.escape(str(fact))}(?![\w])", message), f"{fact!r} is not in {message!r}"


@contextmanager
def refuses(kind: type[AttnGeoError], *facts: object) -> Iterator[pytest.ExceptionInfo[AttnGeoError]]:
    """The block raises an error of exactly this class, whose message states the facts."""
    with pytest.raises(kind) as caught:
        yield caught
    assert type(caught.value) is kind
    assert_states(str(caught.value), *facts)


def assert_fails(run: subprocess.CompletedProcess[str], error: int | type[AttnGeoError], *facts: object) -> None:
    """The command ended with this exit code, printed no results, and one line of `attngeo:` that states the facts.

    error: an exit code; or a class of errors, of which exactly this one was raised, by the fixture `inside`. Classes
    share their exit codes.
    """
    code = error if isinstance(error, int) else error.exit_code
    assert (run.returncode, run.stdout) == (code, ""), run.stderr
    if not isinstance(error, int):
        assert type(run.error) is error  # type: ignore[attr-defined]
    assert run.stderr.startswith("attngeo: "), run.stderr
    assert not UNNAMED_OPTION.search(run.stderr), run.stderr
    assert_states(run.stderr, *facts)
