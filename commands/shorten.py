"""Messages that stay readable, however long the names and values in them are."""

from __future__ import annotations

import re

# Characters of a word, and of a line. A path of this length is rare; a line of this length fills half a terminal.
LONGEST_WORD, LONGEST_LINE = 300, 1200
# Of what is shortened, how much of the whole is its start. The end of a path or of a message says most, too.
START = 0.6


def shorten(message: str) -> str:
    """The message with the middle of each long word left out, then its own middle if it is still too long.

    >>> len(shorten("x" * 5000 + ": no such file")) < 400
    True
    >>> shorten("a.csv: no such file")
    'a.csv: no such file'
    """
    words = re.sub(rf"\S{{{LONGEST_WORD + 1},}}", lambda word: _cut(word[0], LONGEST_WORD), message)
    return _cut(words, LONGEST_LINE)


def _cut(text: str, longest: int) -> str:
    """The start and the end of a text that is too long, and how much is left out between them."""
    if len(text) <= longest:
        return text
    start = int(START * longest)
    end = longest - start
    return f"{text[:start]}…[{len(text) - longest:,} characters]…{text[-end:]}"
