"""One function over many jobs: one after the other here, or on workers elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any

CORES = getattr(os, "process_cpu_count", os.cpu_count)()  # since Python 3.13 of this process
ONE = Lock()  # fits of one process take turns: compiling is not for several threads at once

THREADS: ContextVar[int | None] = ContextVar("THREADS", default=None)  # None for as many as cores

# takes a function, what all jobs share, and the jobs; gives function(shared, job) of each, in order
Each = Callable[[Callable[..., Any], Any, Sequence[Any]], Iterable[Any]]


def in_turn(function: Callable[..., Any], shared: Any, jobs: Sequence[Any]) -> Iterator[Any]:
    """Results of the jobs, one after the other in this process.

    >>> list(in_turn(pow, 2, [1, 2, 3]))
    [2, 4, 8]
    """
    return (function(shared, job) for job in jobs)


def in_threads(function: Callable[[int], None], count: int, *, busy: bool) -> None:
    """Call a function with 0 to `count` - 1 on all cores; NumPy lets go of the lock in long loops.

    Parameters
    ----------
    function : callable
        Writes its own part of a result, so no number depends on who is done first.
    count : int
        How often [1].
    busy : bool
        Whether a call is long loops for the most part: short ones wait for the lock and each other.
    """
    threads = min(THREADS.get() or CORES or 1, count) if busy else 1
    if threads < 2:
        for at in range(count):
            function(at)
        return
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(function, range(count)):
            pass


@contextmanager
def one_thread() -> Iterator[None]:
    """Leave the other cores to other processes, as on a worker of a cluster."""
    before = THREADS.set(1)
    try:
        yield
    finally:
        THREADS.reset(before)
