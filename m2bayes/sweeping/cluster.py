"""Jobs on the workers of a Dask cluster: those of an address, or processes of this machine."""

from __future__ import annotations

import logging
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from itertools import islice
from multiprocessing import resource_tracker
from typing import Any

from m2bayes._files import shown
from m2bayes._jobs import Each, in_turn, one_thread
from m2bayes.errors import DataError

AHEAD = 2  # jobs that each thread of a cluster holds or waits for
PATIENCE = "10s"  # that a scheduler has to answer in
HERE = {"set_as_default": False}  # or xarray would lock files through the scheduler
INSTALL = "pip install 'm2bayes[sweep]'"


@contextmanager
def spread(workers: int, scheduler: str | None = None) -> Iterator[Each]:
    """Way to run jobs, for as long as this lasts: on workers, or here if there are none.

    Results come in the order of the jobs, whichever worker is done first, and are those of one
    process if the function's depend on nothing but the job and what is shared.

    Parameters
    ----------
    workers : int
        Processes of one thread each on this machine [1]; 0 for none but this.
    scheduler : str, optional
        Address of a Dask scheduler whose workers are used instead.

    Raises
    ------
    DataError
        For a cluster that cannot be had; while jobs run, if workers die over and over or have
        another version of m2bayes.
    """
    if scheduler is None and not workers:
        yield in_turn
        return
    with client_of(workers, scheduler) as client:

        def each(function: Callable[..., Any], shared: Any, jobs: Sequence[Any]) -> Iterator[Any]:
            early, turn = dict[int, Any](), 0
            for at, value in completed(client, function, shared, jobs):
                early[at] = value
                while turn in early:
                    yield early.pop(turn)
                    turn += 1

        yield each


def require_dask() -> Any:
    """Package `distributed`, or a line that says how to have it."""
    try:
        import distributed
    except ImportError:
        text = f"workers need the packages dask and distributed: {INSTALL}; or give --workers 0"
        raise DataError(text) from None
    return distributed


@contextmanager
def client_of(workers: int, scheduler: str | None) -> Iterator[Any]:
    """Client of the scheduler named, or of a cluster of processes on this machine; see `spread`."""
    distributed = require_dask()
    if scheduler is not None:
        try:
            client = distributed.Client(scheduler, timeout=PATIENCE, **HERE)
        except (OSError, ValueError, TypeError):
            raise DataError(
                f"--scheduler {shown(scheduler)}: no Dask scheduler answers there; give its "
                "address, such as tcp://10.0.0.1:8786"
            ) from None
        with client:
            yield client
        return
    with ExitStack() as stack:
        with _uninterrupted():
            cluster = distributed.LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                dashboard_address="127.0.0.1:0",  # any port: two may run on one machine
                silence_logs=logging.CRITICAL,
            )
            stack.enter_context(cluster)
            client = stack.enter_context(distributed.Client(cluster, **HERE))
        try:
            yield client
        finally:
            with _uninterrupted():
                stack.close()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let an interrupt wait. Threads and processes that start meanwhile never get one.

    A terminal interrupts all processes of a command; workers that die of it while this one takes
    leave of them print what they think of that.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which lets interrupts in once it has started
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def completed(
    client: Any,
    function: Callable[..., Any],
    shared: Any,
    jobs: Sequence[Any],
    *,
    died: Callable[[Any], str] = lambda job: "workers died over and over; have fewer, for memory",
) -> Iterator[tuple[int, Any]]:
    """Places of jobs and their results as they are done; no more are under way than keep all busy.

    Parameters
    ----------
    client : distributed.Client
        From `client_of`.
    function : callable
        Of what is `shared`, which is sent once, and of one job.
    shared, jobs
        Whatever can be pickled.
    died : callable
        What to tell of a job whose workers died.

    Raises
    ------
    DataError
        If workers died over one job again and again, or have another version of m2bayes.
    """
    from distributed import KilledWorker, as_completed

    waiting, submitted = iter(enumerate(jobs)), dict[Any, int]()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sending large graph", category=UserWarning)
        held = client.submit(_itself, shared, pure=False)  # a task: made anew if its worker dies

    def submit(count: int) -> list[Any]:
        futures = []
        for at, job in islice(waiting, count):
            future = client.submit(_called, function, held, job, version("m2bayes"), pure=False)
            submitted[future.key] = at
            futures.append(future)
        return futures

    threads = sum(client.nthreads().values())
    under_way = as_completed(submit(AHEAD * max(threads, 1)), loop=client.loop)
    for future in under_way:
        at = submitted.pop(future.key)
        try:
            value = future.result()
        except KilledWorker:
            raise DataError(died(jobs[at])) from None
        under_way.update(submit(1))
        yield at, value


def _itself(shared: Any) -> Any:
    return shared


def _called(function: Callable[..., Any], shared: Any, job: Any, asked: str) -> Any:
    """Result of one job on a worker."""
    if version("m2bayes") != asked:
        raise DataError(
            f"a worker has m2bayes {version('m2bayes')}, not {asked}; install the same everywhere"
        )
    with one_thread():  # each core has a worker of its own
        return function(shared, job)
