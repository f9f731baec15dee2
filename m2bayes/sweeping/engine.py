"""Running a sweep: chunk after chunk in this process, or on the workers of a Dask cluster."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np

from m2bayes._files import shown
from m2bayes.errors import DataError
from m2bayes.sweeping.grid import Chunk, Grid, chunks
from m2bayes.sweeping.points import checked, evaluate
from m2bayes.sweeping.store import INSTALL, finished, opened, write

AHEAD = 2  # chunks that each thread of a cluster holds or waits for
PATIENCE = "10s"  # that a scheduler has to answer in


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
    client_of = None if scheduler is None and not workers else _distributed()
    store = opened(out, grid, facts)
    done = finished(store)
    left = [chunk for chunk in chunks(grid) if not done[chunk.at]]
    begin(len(left))
    settings = (root, str(facts["identity"]))
    if client_of is None or not left:
        for chunk in left:
            write(store, chunk, evaluate(grid, chunk, *settings))
            advance(1)
    else:
        with _client(client_of, workers, scheduler) as client:
            for chunk, values in _computed(client_of, client, grid, left, settings):
                write(store, chunk, values)
                advance(1)
    return {"results": grid.results, "chunks": done.size, "computed": len(left)}


def _distributed() -> Any:
    try:
        import distributed
    except ImportError:
        text = f"workers need the packages dask and distributed: {INSTALL}; or give --workers 0"
        raise DataError(text) from None
    return distributed


@contextmanager
def _client(distributed: Any, workers: int, scheduler: str | None) -> Iterator[Any]:
    """Client of the scheduler named, or of a cluster of processes on this machine."""
    if scheduler is not None:
        try:
            client = distributed.Client(scheduler, timeout=PATIENCE)
        except (OSError, ValueError, TypeError):
            raise DataError(
                f"--scheduler {shown(scheduler)}: no Dask scheduler answers there; give its "
                "address, such as tcp://10.0.0.1:8786"
            ) from None
        with client:
            yield client
        return
    with (
        distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            dashboard_address="127.0.0.1:0",  # any port: two sweeps may run on one machine
            silence_logs=logging.CRITICAL,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def _computed(
    distributed: Any, client: Any, grid: Grid, left: Sequence[Chunk], settings: tuple[Any, ...]
) -> Iterator[tuple[Chunk, dict[str, np.ndarray]]]:
    """Chunks as they are done; no more are under way than keep the workers busy."""
    waiting, submitted = iter(left), dict[Any, Chunk]()

    def submit(count: int) -> list[Any]:
        futures = []
        for chunk in islice(waiting, count):
            future = client.submit(evaluate, grid, chunk, *settings, pure=False)
            submitted[future.key] = chunk
            futures.append(future)
        return futures

    threads = sum(client.nthreads().values())
    under_way = distributed.as_completed(submit(AHEAD * max(threads, 1)), with_results=False)
    for future in under_way:
        chunk = submitted.pop(future.key)
        try:
            values = future.result()
        except distributed.KilledWorker:
            raise DataError(
                f"workers died over and over at chunk {chunk.at}: memory may be short; lower "
                "chunk or draws, or have fewer workers. The same call goes on where this one ended"
            ) from None
        under_way.update(submit(1))
        yield chunk, values
