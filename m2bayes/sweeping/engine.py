"""Running a sweep: chunk after chunk in this process, or on the workers of a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from m2bayes.sweeping.cluster import client_of, completed, require_dask
from m2bayes.sweeping.grid import Chunk, Grid, chunks
from m2bayes.sweeping.points import checked, evaluate
from m2bayes.sweeping.store import finished, opened, write

Values = dict[str, np.ndarray]  # of a chunk, by variable


def sweep(
    grid: Grid,
    out: str,
    *,
    root: str | None = None,
    workers: int = 2,
    scheduler: str | None = None,
    begin: Callable[[int], None] = lambda left: None,
    advance: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Predict a whole grid into a store; chunks that it holds already are not computed again.

    One process, this one, writes: results of a chunk, then its mark. A worker that dies has its
    chunks computed by another, and a run that dies is gone on with by the same call.

    Parameters
    ----------
    grid : Grid
        From `m2bayes.sweeping.grid.read_grid`.
    out : str
        Folder of the Zarr store.
    root : str, optional
        Folder of the database, the same on every machine; by default the package's own.
    workers : int
        Processes of one thread each on this machine [1]; 0 for none but this.
    scheduler : str, optional
        Address of a Dask scheduler whose workers are used instead.
    begin, advance : callable
        Told how many chunks are left, and how many more are done [1].

    Returns
    -------
    dict
        ``results`` and ``chunks`` in the store, and those ``computed`` now [1].

    Raises
    ------
    M2BayesError
        For a grid that cannot be asked, a store of something else, a cluster that cannot be had.
    """
    facts = checked(grid, root)
    if workers or scheduler is not None:
        require_dask()
    with ExitStack() as stack:
        # an address that nobody answers at leaves no store
        client = None if scheduler is None else stack.enter_context(client_of(0, scheduler))
        store = opened(out, grid, facts)
        done = finished(store)
        left = [chunk for chunk in chunks(grid) if not done[chunk.at]]
        begin(len(left))
        shared = (grid, root, str(facts["identity"]))
        if left and client is None and workers:
            client = stack.enter_context(client_of(workers, None))
        for chunk, values in _results(client, shared, left):
            write(store, chunk, values)
            advance(1)
    return {"results": grid.results, "chunks": done.size, "computed": len(left)}


def _results(client: Any, shared: Any, left: Sequence[Chunk]) -> Iterator[tuple[Chunk, Values]]:
    """Chunks and their results as they are done, on the workers of a client or here."""
    if client is None:
        yield from ((chunk, _evaluated(shared, chunk)) for chunk in left)
    else:
        found = completed(client, _evaluated, shared, left, died=_died)
        yield from ((left[at], values) for at, values in found)


def _evaluated(shared: tuple[Grid, str | None, str], chunk: Chunk) -> Values:
    grid, root, identity = shared
    return evaluate(grid, chunk, root, identity)


def _died(chunk: Chunk) -> str:
    return (
        f"workers died over and over at chunk {chunk.at}: memory may be short; lower "
        "chunk or draws, or have fewer workers. The same call goes on where this one ended"
    )
