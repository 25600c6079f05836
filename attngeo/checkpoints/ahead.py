"""Calls that are made by several threads before their results are needed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

Value = TypeVar("Value")
Result = TypeVar("Result")

# How the names of the threads begin. One that waits for a server keeps the process until that has answered.
THREADS = "attngeo-open"


def start_all(
    function: Callable[[Value], Result], values: Sequence[Value], at_once: int
) -> Generator[Callable[[], Result], None, None]:
    """For each value, in their order, what waits for `function(value)` and returns its result, or raises its error.

    at_once: how many threads make these calls; with one, each call is made when it is waited for. If the generator is
    closed, no further call begins, and nobody waits for those that are being made.
    """
    if at_once == 1 or len(values) < 2:
        yield from (partial(function, value) for value in values)
        return
    threads = ThreadPoolExecutor(at_once, thread_name_prefix=THREADS)
    try:
        yield from [threads.submit(function, value).result for value in values]
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
