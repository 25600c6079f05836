"""What a mutated input may lead to: the right values, or one AttnGeoError of one line."""

from __future__ import annotations

from attngeo.errors import AttnGeoError

# Characters of an error, the path of a file included.
LONGEST = 1000


class Wrong(Exception):  # noqa: N818
    """An outcome that is not allowed."""


def check_error(error: AttnGeoError) -> None:
    """Raise Wrong unless the error is one line that a reader can survey, and not about memory that was used up."""
    if "\n" in str(error):
        raise Wrong(f"an error of several lines: {error}")
    if len(str(error)) > LONGEST:
        raise Wrong(f"an error of {len(str(error)):,} characters: {error!s:.80}")
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError) or "can't allocate" in str(cause):
            raise Wrong(f"memory was used up: {error}")
        cause = cause.__context__


def check_equal(where: str, found: object, expected: object) -> None:
    """Raise Wrong unless a value arrives with its type; a number that is not a number (NaN) equals itself."""
    same = found == expected or (found != found and expected != expected)
    if type(found) is not type(expected) or not same:
        raise Wrong(f"{where}: {found!r:.80} instead of {expected!r:.80}")
