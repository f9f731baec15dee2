"""Laws on draws and shapes in blocks: temporary arrays stay in the cache, memory is bounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

SHAPES = 1024  # most shapes in one temporary array
HELD = 2**18  # times of all draws of some shapes that are held at once: 2 MB
AT_ONCE = 2**15  # numbers in one temporary array: 256 kB, several of which fit into a core's L2
Columns = Mapping[str, np.ndarray]


def shapes_at_once(samples: int) -> int:
    """Shapes whose times of all `samples` draws are held at once [1], a multiple of 16.

    >>> shapes_at_once(1000), shapes_at_once(10**6)
    (256, 16)
    """
    return max(16, HELD // samples // 16 * 16)


def slices(count: int, size: int) -> list[slice]:
    """Slices of `size` [1] that cover `count`, the last perhaps shorter.

    >>> slices(5, 2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def part_of(rows: Columns, shapes: slice) -> dict[str, np.ndarray]:
    """Terms of some shapes, dims (1, shape) or (1, 1) [as `rows`]."""
    return {k: v[:, shapes] if v.shape[1] > 1 else v for k, v in rows.items()}


def gathered(times: np.ndarray, where: np.ndarray, out: np.ndarray) -> None:
    """Put the time of each cell's shape into `out`, dims (sample, cell) [as `times`].

    Parameters
    ----------
    times : ndarray, dims (sample, shape)
        Of the distinct shapes; may be `out` itself, if there are as many.
    where : array of int, dims (cell,)
        Which shape each cell has [1].
    out : ndarray, dims (sample, cell)
        What is written.
    """
    for part in slices(len(times), max(1, AT_ONCE // len(where))):
        out[part] = times[part].take(where, axis=1)


def law_times(
    law: Callable[[Columns, Columns], Any], rows: Columns, columns: Columns
) -> np.ndarray:
    """Time of each draw and shape under an elementwise law: its numbers, in blocks of `AT_ONCE`.

    Parameters
    ----------
    law : callable
        ``(terms, factors) -> s``, elementwise, see `m2bayes.mechanism.laws.Law`.
    rows : mapping of ndarray, dims (1, shape) or (1, 1)
        Terms of each shape.
    columns : mapping of ndarray, dims (sample, 1) or (1, 1)
        Factors of each draw.

    Returns
    -------
    ndarray, dims (sample, shape)
        Time [s].
    """
    shapes = max(v.shape[1] for v in rows.values())
    samples = max(v.shape[0] for v in columns.values())
    out = np.empty((samples, shapes))
    wide = min(shapes, SHAPES)
    tall = max(1, AT_ONCE // wide)
    for draws in slices(samples, tall):
        factors = {k: v[draws] if len(v) > 1 else v for k, v in columns.items()}
        for some in slices(shapes, wide):
            out[draws, some] = law(part_of(rows, some), factors)
    return out
