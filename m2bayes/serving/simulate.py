"""Discrete-event simulation of one server with continuous batching, step by step.

A request waits, first come first served, until a place in the batch and blocks of KV cache are
free. Every engine step lasts what the given step times say; between steps the scheduler admits,
grows the cache and, when that is full, sends the request admitted last back to the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import xarray as xr

from m2bayes._random import labelled_rng
from m2bayes.errors import DataError, WorkloadError
from m2bayes.serving.scheduler import Chunks, Engine, Sequence, Server, complete, schedule

OCTAVE = 32  # sizes to an octave at which step times are looked up: within 1.6 % of the size
CACHED = 1 << 16  # step times kept

StepTime = Callable[[int, int, int, int], float]  # of tokens read, prefix, batch, context [s]


class StepTimes(Protocol):
    """Step times of one draw [s], arrays with a leading dim draw of length 1."""

    def decode_time(self, batch: Any, context: Any) -> np.ndarray:
        """Of a step in which `batch` sequences decode [s], dims (draw,)."""

    def prefill_time(self, tokens: Any, prefix: Any = 0) -> np.ndarray:
        """Of a step that reads `tokens` of prompts [s], dims (draw,)."""

    def mixed_time(self, tokens: Any, batch: Any, context: Any, prefix: Any = 0) -> np.ndarray:
        """Of a step that does both [s], dims (draw,)."""


def requests_of(arrival: Any, prompt: Any, output: Any) -> xr.Dataset:
    """Requests in the order of arrival.

    Parameters
    ----------
    arrival : array_like, dims (request,)
        Times of arrival [s].
    prompt, output : array_like, dims (request,) or none
        Tokens to read and to generate [token].

    Returns
    -------
    Dataset, dims (request,)
        ``arrival`` [s], ``prompt``, ``output`` [token].

    Raises
    ------
    DataError
        If a time is not finite, a length is no whole number of at least 1, or there is none.
    """
    times, *lengths = np.broadcast_arrays(np.asarray(arrival, float), prompt, output)
    if times.ndim != 1 or not len(times):
        raise DataError("no request is given; expected times of arrival, dims (request,)")
    if not np.isfinite(times).all():
        raise DataError(f"request {np.argmin(np.isfinite(times)) + 1}: arrival is no finite time")
    for name, length in zip(("prompt", "output"), lengths, strict=True):
        good = np.isfinite(length) & (length >= 1) & (np.mod(length, 1) == 0)
        if not good.all():
            at = int(np.argmin(good))
            raise DataError(f"request {at + 1}: {name} is {length[at]}, no whole number from 1")
    order = np.argsort(times, kind="stable")
    found = {"arrival": ("request", times[order])}
    for name, length in zip(("prompt", "output"), lengths, strict=True):
        found[name] = ("request", np.asarray(length[order], dtype=int))
    return xr.Dataset(found)


def poisson_requests(
    rate: float, number: int, *, prompt: Any, output: Any, seed: int = 0
) -> xr.Dataset:
    """Requests that arrive at random, independently of each other: a Poisson process.

    The gaps of a seed are the same at every rate but for their unit, so that rates compare
    request by request.

    Parameters
    ----------
    rate : float
        Mean arrivals a second [1/s].
    number : int
        Requests [1].
    prompt, output : array_like, dims (request,) or none
        Tokens of each [token].
    seed : int
        Of the arrivals.

    Returns
    -------
    Dataset, dims (request,)
        As of `requests_of`.

    Raises
    ------
    DataError
        If the rate or the number is not above zero, or as of `requests_of`.
    """
    if not (np.isfinite(rate) and rate > 0 and number >= 1):
        raise DataError(f"rate {rate} and number {number} must be above zero")
    gaps = labelled_rng(seed, "arrivals").exponential(size=int(number)) / rate
    return requests_of(np.cumsum(gaps), prompt, output)


def simulate(requests: xr.Dataset, times: StepTimes, server: Server) -> xr.Dataset:
    """Serve requests one engine step after the other, as vLLM schedules them.

    Blocks of a prompt are taken when it is admitted, then one as each is filled. When none is
    free the sequence admitted last loses its own, goes back to the head of the queue, and reads
    prompt and answer so far anew. Nothing is shared between prompts.

    Sizes are looked up on a grid of `OCTAVE` to an octave, exact to 64. Prompts read in one step
    count as one of their summed length, with the cached tokens that make the same attention.

    Parameters
    ----------
    requests : Dataset, dims (request,)
        ``arrival`` [s], ``prompt``, ``output`` [token], in the order of arrival, see
        `requests_of`.
    times : StepTimes
        Of one draw, such as a picked `m2bayes.surface.Surface` [s].
    server : Server
        Limits of the engine.

    Returns
    -------
    Dataset, dims (request,)
        ``scheduled``, ``first_token``, ``finish``: points in time [s]; ``waiting`` (arrival to
        scheduled), ``ttft``, ``tpot`` (NaN where one token is all), ``e2e`` [s]; ``preemptions``
        [1]. Without dims ``busy_share``, of the time from first arrival to last finish [1], and
        ``steps`` [1].

    Raises
    ------
    WorkloadError
        If a request outgrows the whole KV cache.
    DataError
        If `times` are not of one draw, or a step takes no time.
    """
    import simpy

    needed = requests["prompt"].values + requests["output"].values - 1
    room = server.blocks * server.block
    if (needed > room).any():
        at = int(np.argmax(needed > room))
        raise WorkloadError(
            f"request {at + 1} needs {needed[at]} tokens of KV cache, the server holds {room}"
        )
    env, engine = simpy.Environment(), Engine(server)
    steps: list[float] = []
    wake = [env.event()]
    env.process(_arrivals(env, engine, requests, wake))
    env.process(_serve(env, engine, wake, _step_time(times), steps))
    env.run()
    return _outcome(requests, engine, steps)


# --- processes -------------------------------------------------------------------------------


def _arrivals(
    env: Any, engine: Engine, requests: xr.Dataset, wake: list[Any]
) -> Generator[Any, None, None]:
    """Put each request into the queue at its time, counted from the first."""
    arrival = requests["arrival"].values - requests["arrival"].values[0]
    prompt, output = (requests[name].values.tolist() for name in ("prompt", "output"))
    for at, time in enumerate(arrival.tolist()):
        if time > env.now:
            yield env.timeout(time - env.now)
        engine.waiting.append(Sequence(at, prompt[at], output[at]))
        if not wake[0].triggered:
            wake[0].succeed()


def _serve(
    env: Any, engine: Engine, wake: list[Any], step_time: StepTime, steps: list[float]
) -> Generator[Any, None, None]:
    """Take steps while there is something to do; their times are added to `steps` [s]."""
    while True:
        if not engine.waiting and not engine.running:
            wake[0] = env.event()  # after the last request it never comes, and all ends
            yield wake[0]
        chunks, decoding = schedule(engine, env.now)
        batch, cached = (engine.batch, engine.cached) if decoding else (0, 0)
        tokens, prefix = _together(chunks)
        steps.append(step_time(tokens, prefix, batch, round(cached / max(batch, 1))))
        yield env.timeout(steps[-1])
        complete(engine, chunks, decoding=decoding, now=env.now)


# --- step times and results ------------------------------------------------------------------


def _together(chunks: Chunks) -> tuple[int, int]:
    """Tokens of a step's chunks, and the prefix with which one chunk attends to as many."""
    tokens = sum(count for _, count in chunks)
    if not tokens:
        return 0, 0
    pairs = sum(count * (sequence.read + count / 2) for sequence, count in chunks)
    return tokens, max(0, round(pairs / tokens - tokens / 2))


def _on_grid(size: int) -> int:
    """A size to `OCTAVE` values an octave.

    >>> _on_grid(63), _on_grid(64), _on_grid(130), _on_grid(1001)
    (63, 64, 132, 1008)
    """
    unit = 1 << max(0, size.bit_length() - OCTAVE.bit_length())
    return (size + unit // 2) // unit * unit if unit > 1 else size


def _step_time(times: StepTimes) -> StepTime:
    """Time of a step [s] by tokens read, their prefix, batch and mean context, kept once asked."""

    @lru_cache(maxsize=CACHED)
    def on_grid(tokens: int, prefix: int, batch: int, context: int) -> float:
        if not tokens:
            found = times.decode_time(batch, context)
        elif not batch:
            found = times.prefill_time(tokens, prefix)
        else:
            found = times.mixed_time(tokens, batch, context, prefix)
        if np.size(found) != 1:
            raise DataError(f"step times of {np.size(found)} draws; pick one draw to simulate")
        time = float(np.ravel(found)[0])
        if not (np.isfinite(time) and time > 0):
            raise DataError(f"a step of {tokens} + {batch} tokens takes {time} s")
        return time

    def step_time(tokens: int, prefix: int, batch: int, context: int) -> float:
        return on_grid(_on_grid(tokens), _on_grid(prefix), batch, _on_grid(context))

    return step_time


def _outcome(requests: xr.Dataset, engine: Engine, steps: list[float]) -> xr.Dataset:
    """Times of each request [s], dims (request,)."""
    number, start = requests.sizes["request"], float(requests["arrival"].values[0])
    arrival, output = requests["arrival"].values - start, requests["output"].values

    def of(events: Mapping[int, float], missing: float = 0.0) -> np.ndarray:
        return np.array([events.get(i, missing) for i in range(number)])

    scheduled, first, finish = map(of, (engine.scheduled, engine.first_token, engine.finish))
    found = {
        "scheduled": scheduled + start,
        "first_token": first + start,
        "finish": finish + start,
        "waiting": np.maximum(scheduled - arrival, 0.0),  # the clock's sums may round down
        "ttft": first - arrival,
        "tpot": np.where(output > 1, finish - first, np.nan) / np.maximum(output - 1, 1),
        "e2e": finish - arrival,
        "preemptions": of(engine.preemptions).astype(int),
    }
    whole = {"busy_share": min(sum(steps) / finish.max(), 1.0), "steps": len(steps)}
    return xr.Dataset({k: ("request", v) for k, v in found.items()}).assign(whole)
