"""Pickles of others, read without running any code of them.

Python's fast unpickler trusts its file. A pickle of a hundred bytes makes it reserve gigabytes, by the number of an
entry of its memo; hash for centuries, by a key of tuples in tuples; overflow the stack; or change the functions that
stand in for those that it names. So the unpickler in Python is used, which reserves nothing, with the opcodes that
build plain values only, and with plain keys.
"""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Callable, Collection, Iterable
from typing import Any

# The types whose hash is short work and no chance for collisions; of whole numbers, those of at most 64 bits.
KEYS = frozenset({str, bytes, int, float, bool, type(None)})
LONGEST_KEY = 64
# Ten times those of a checkpoint of 100,000 tensors.
MOST_GIVEN = 20_000_000
# All but those that reserve memory or take objects from elsewhere.
ALL = frozenset(opcode.name for opcode in pickletools.opcodes) - {
    "BYTEARRAY8", "EXT1", "EXT2", "EXT4", "INST", "OBJ", "NEXT_BUFFER", "READONLY_BUFFER", "PERSID", "BINPERSID",
}  # fmt: skip


class Record(dict[Any, Any]):
    """A stand-in for an object of any class: keeps its arguments, attributes and items, and does nothing with them."""

    def __new__(cls, *_: Any, **__: Any) -> Record:  # noqa: D102
        return super().__new__(cls)

    def __init__(self, *arguments: Any, **_: Any) -> None:
        super().__init__()
        self.arguments = arguments

    def __repr__(self) -> str:  # of bounded length and time, whatever it holds
        return type(self).__name__

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


def make_dict(pairs: Iterable[tuple[Any, Any]] = ()) -> dict[Any, Any]:
    """A stand-in for OrderedDict: the dictionary of these pairs. Raises ValueError if a key is not plain."""
    pairs = [(key, value) for key, value in pairs]
    _check_keys([key for key, _ in pairs])
    return dict(pairs)


class PlainUnpickler(pickle._Unpickler):
    """Reads what a subclass allows in `find_class`. The state of an object that is no Record is left out.

    Raises ValueError for an opcode that it does not know and for a key that is not plain, and whatever Python's
    unpickler raises for a pickle that is broken.
    """

    stack: list[Any]
    given = 0

    def load_setitem(self) -> None:  # noqa: D102
        _check_keys(self.stack[-2:-1])
        super().load_setitem()  # type: ignore[misc]  # the methods of opcodes are not in the stubs

    def load_setitems(self) -> None:  # noqa: D102
        _check_keys(self.stack[::2])
        super().load_setitems()  # type: ignore[misc]

    def load_dict(self) -> None:  # noqa: D102
        _check_keys(self.stack[::2])
        super().load_dict()  # type: ignore[misc]

    def load_additems(self) -> None:  # noqa: D102
        _check_keys(self.stack)
        super().load_additems()  # type: ignore[misc]

    def load_frozenset(self) -> None:  # noqa: D102
        _check_keys(self.stack)
        super().load_frozenset()  # type: ignore[misc]

    def load_reduce(self) -> None:  # noqa: D102
        self._count(self.stack[-1], *self.stack[-1])
        super().load_reduce()  # type: ignore[misc]

    def load_build(self) -> None:  # noqa: D102
        self._count(self.stack[-1])
        state = self.stack.pop()
        if isinstance(self.stack[-1], Record):
            self.stack[-1].__setstate__(state)

    def _count(self, *given: Any) -> None:
        """Raise ValueError if objects are made of the same long list again and again."""
        self.given += sum(len(each) for each in given if isinstance(each, list | tuple | dict))
        if self.given > MOST_GIVEN:
            raise ValueError(f"its objects are made of more than {MOST_GIVEN:,} values")


def choose_opcodes(names: Collection[str]) -> dict[int, Callable[[Any], None]]:
    """The `dispatch` of a PlainUnpickler that knows these opcodes only, by the names that pickletools gives them."""
    known = _Known()
    for opcode in pickletools.opcodes:
        if opcode.name in names:
            method = pickle._Unpickler.dispatch[ord(opcode.code)]
            known[ord(opcode.code)] = getattr(PlainUnpickler, method.__name__)
    return known


class _Known(dict[int, Callable[[Any], None]]):
    def __missing__(self, code: int) -> Callable[[Any], None]:
        raise ValueError(f"its opcode {code:#04x} is unknown or not allowed")


def _check_keys(keys: list[Any]) -> None:
    kinds = set(map(type, keys))
    if odd := kinds - KEYS:
        raise ValueError(f"a key is a {odd.pop().__name__}, expected a text or a number")
    if int in kinds and any(type(key) is int and key.bit_length() > LONGEST_KEY for key in keys):
        raise ValueError(f"a key is a number of more than {LONGEST_KEY} bits")
