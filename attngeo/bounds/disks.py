"""Names of files that each disk keeps apart: those of macOS and Windows ignore case, and Windows reserves some names.

On every system a file gets the same name, so that a folder can be copied from one to another.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Sequence
from itertools import count
from pathlib import Path

# What Windows takes for a device, in upper or lower case, whatever follows a dot. It reads ¹²³ as digits.
DEVICE = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[0-9¹²³]) *(?:\..*)?", re.IGNORECASE | re.DOTALL)
# Windows leaves these out at the end of a name.
DROPPED = (".", " ")
# What such a name gets.
MARK = "_"


def fold_name(name: str) -> str:
    """The same text for names that some disk treats as equal: they differ in case, or in how accents are composed.

    >>> fold_name("Scores") == fold_name("scores"), fold_name("\u00c9") == fold_name("e\u0301")
    (True, True)
    """
    folded = unicodedata.normalize("NFD", name).casefold()
    return unicodedata.normalize("NFC", folded)


def portable_name(name: str) -> str:
    """A name that a file or a folder can have on every system: with a mark, if it is reserved or would be shortened.

    >>> portable_name("con"), portable_name("Nul.csv"), portable_name("end."), portable_name("scores")
    ('con_', 'Nul_.csv', 'end._', 'scores')
    """
    if DEVICE.fullmatch(name):
        device, dot, rest = name.partition(".")
        name = f"{device.rstrip()}{MARK}{dot}{rest}"
    return f"{name}{MARK}" if name.endswith(DROPPED) else name


def free_name(name: str, taken: Collection[str]) -> str:
    """The name, made portable; if some disk treats it as one of these names, with the first free number.

    >>> free_name("scores", ["Scores", "scores-2"])
    'scores-3'
    """
    folded = {*map(fold_name, taken)}
    name = portable_name(name)
    numbered = (name if number == 1 else f"{name}-{number}" for number in count(1))
    return next(free for free in numbered if fold_name(free) not in folded)


def name_files(names: Sequence[str]) -> dict[str, str]:
    """A file name for each of several different names; a name stays unless some disk confuses it with another.

    >>> name_files(["Scores", "scores", "scores-2", "aux"])
    {'Scores': 'Scores', 'scores': 'scores-3', 'scores-2': 'scores-2', 'aux': 'aux_'}
    """
    folded: set[str] = set()
    kept = []
    for name in names:
        if portable_name(name) == name and fold_name(name) not in folded:
            kept.append(name)
        folded.add(fold_name(name))
    files = {name: name for name in kept}
    for name in names:
        if name not in files:
            files[name] = free_name(name, files.values())
    return {name: files[name] for name in names}


def is_same_file(path: Path, other: Path) -> bool:
    """Whether two paths without links lead to one file, perhaps because the disk ignores case.

    Two names of one file on a disk that keeps them apart, hard links, are two files here: each can be replaced alone.
    """
    if path == other:
        return True
    if fold_name(str(path)) != fold_name(str(other)):
        return False
    try:
        return path.samefile(other) and not _are_both_listed(path, other)
    except OSError:  # one is missing
        return False


def _are_both_listed(path: Path, other: Path) -> bool:
    """Whether a folder lists both names, so that they are hard links."""
    if path.parent != other.parent:
        return False
    listed = {entry.name for entry in path.parent.iterdir()}
    return {path.name, other.name} <= listed
