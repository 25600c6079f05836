"""Names as messages, terminals, pages and JSON show them: every character visible, in bounded length.

A model's author controls them, and a terminal or a page would act on some. Results keep names as they are, if they are
UTF-8; every output passes them through one of the functions here. Each shows all of a name, except that white space is
one space in Markdown, and that lists in messages are cut.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from glob import glob
from pathlib import Path
from typing import Any

# What Markdown gives a meaning inside a line, and what GitHub adds to it: mentions, formulas, addresses as links. A
# character that has none where it stands is left for readers of the text itself: _ inside a word, # before a word, and
# + and @ but at the start of one.
SPECIAL = re.compile(r"([\\`*{}\[\]|~]|(?<![^\W_])_|_(?![^\W_])|#(?!#*[^\W\d_])|(?<!\S)\+)")
ACTIVE = re.compile(r"\$|(?<!\w)@|@(?=[\w-]*\.)|:(?=//)|(?<=www)\.", re.IGNORECASE)

# Names that a message lists at most, and the characters of each.
MOST_NAMES_LISTED = 10
LONGEST_NAME = 60
# What makes a text a pattern of names, as in `models/*.safetensors` and `org/name@step*`.
PATTERN = re.compile(r"[*?[]")
# Numbers of lines that a message has at most.
MOST_LINE_NUMBERS = 20


def printable(text: object) -> str:
    r"""The text with an escape for each character that does not print as itself, including line ends.

    These are control characters of a terminal, characters that reorder text, and bytes that are not UTF-8.

    >>> printable("a\x1b[31m\u202eb\n")
    'a\\x1b[31m\\u202eb\\n'
    """
    text = str(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def list_first(numbers: Sequence[int]) -> str:
    """The first of the numbers of lines, and a mark if there are more."""
    shown = ", ".join(map(str, numbers[:MOST_LINE_NUMBERS]))
    return f"{shown}, …" if len(numbers) > MOST_LINE_NUMBERS else shown


def list_names(names: Sequence[object]) -> str:
    """Names for a message: the first ones, in bounded length.

    >>> list_names(["a", 1, "b" * 100])
    'a, 1, bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb'
    >>> list_names(range(100))
    '0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 90 others'
    >>> list_names(range(11))
    '0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 1 other'
    """
    shown = ", ".join(f"{printable(name):.{LONGEST_NAME}}" for name in names[:MOST_NAMES_LISTED])
    left = len(names) - MOST_NAMES_LISTED
    if left <= 0:
        return shown
    return f"{shown} and {left:,} {'other' if left == 1 else 'others'}"


def in_utf8(text: str) -> str:
    """The text, made printable if it cannot be encoded as UTF-8, such as a name with bytes that are not UTF-8.

    A DataFrame cannot hold such a text.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return printable(text)
    return text


def escape_markdown(text: object) -> str:
    r"""The name, escaped so that Markdown shows it unchanged in a line or a table cell; white space becomes one space.

    >>> escape_markdown("a_b _c_|<img> $x$ https://c")
    'a_b \\_c\\_\\|&lt;img&gt; &#36;x&#36; https&#58;//c'
    """
    one_line = printable(" ".join(str(text).split()))
    escaped = SPECIAL.sub(r"\\\1", html.escape(one_line, quote=False))
    return ACTIVE.sub(lambda match: f"&#{ord(match[0])};", escaped)


def dump_json(value: Any, **options: Any) -> str:
    r"""JSON in which each character prints as itself or is a JSON escape, so that names stay unchanged.

    >>> dump_json("é\x9b")
    '"é\\u009b"'
    """
    text = json.dumps(value, ensure_ascii=False, **options)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def explain_pattern(text: str) -> str:
    """The end of an error about missing files: the matches of a pattern that a shell did not expand.

    "" if the text is no pattern of files, such as `models/*.safetensors`.
    """
    if not PATTERN.search(text):
        return ""
    path = Path(text)
    try:
        path = path.expanduser()
        matches = sorted(glob(str(path)))  # noqa: PTH207 - a pattern may be absolute
    except (OSError, ValueError, RuntimeError):
        matches = []
    if not matches:
        folder = next(parent for parent in path.parents if not PATTERN.search(str(parent)))
        where = Path.cwd() / folder
        problem = f" in {where}" if where.is_dir() else f": there is no folder {where}"
        return f"; it is a pattern that matches nothing{problem}"
    return (
        f"; it is a pattern that matches {list_names(matches)}; give one of them or, where several are allowed, "
        f"{text} without quotes in a shell"
    )


def name_type(value: object) -> str:
    """The type of a value with its article, for messages.

    >>> name_type(3), name_type("x"), name_type(None)
    ('an int', 'a str', 'a NoneType')
    """
    kind = type(value).__name__
    article = "an" if kind[0].lower() in "aeio" or kind == "ndarray" else "a"
    return f"{article} {kind}"
