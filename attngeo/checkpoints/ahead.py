"""Calls that are made by several threads before their results are needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from functools import partial
from threading import Thread
from typing import TypeVar

Value = TypeVar("Value")
Result = TypeVar("Result")


def start_all(
    function: Callable[[Value], Result], values: Sequence[Value], at_once: int
) -> Generator[Callable[[], Result], None, None]:
    """For each value, in their order, what waits for `function(value)` and returns its result, or raises its error.

    at_once: how many threads make these calls; with one, each call is made when it is waited for. If the generator is
    closed, no further call begins, and nobody waits for those that are being made: the threads do not keep the process.
    """
    if at_once == 1 or len(values) < 2:
        yield from (partial(function, value) for value in values)
        return
    futures = [Future[Result]() for _ in values]
    left = deque(zip(values, futures, strict=True))

    def work() -> None:
        while left:
            try:
                value, future = left.popleft()
            except IndexError:  # another thread has taken the last one
                return
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(value))
                except BaseException as error:
                    future.set_exception(error)

    for _ in range(min(at_once, len(values))):
        Thread(target=work, name="attngeo-open", daemon=True).start()
    try:
        yield from (future.result for future in futures)
    finally:
        for future in futures:
            future.cancel()
