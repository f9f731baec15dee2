"""One function over many jobs: one after the other here, or on workers elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Lock
from typing import Any

ONE = Lock()  # fits of one process take turns: compiling is not for several threads at once

# takes a function, what all jobs share, and the jobs; gives function(shared, job) of each, in order
Each = Callable[[Callable[..., Any], Any, Sequence[Any]], Iterable[Any]]


def in_turn(function: Callable[..., Any], shared: Any, jobs: Sequence[Any]) -> Iterator[Any]:
    """Results of the jobs, one after the other in this process.

    >>> list(in_turn(pow, 2, [1, 2, 3]))
    [2, 4, 8]
    """
    return (function(shared, job) for job in jobs)
