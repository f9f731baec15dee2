"""Open and closed loops: the steady state of a server under arrivals at random, or fixed users.

Two queues in a row: prompts wait for the prefill of others, and before that for a place in the
batch when the KV cache or the engine's limit binds (M/M(n)/1 whose rate depends on the batch, with
the correction of Allen and Cunneen for equal demands). Prompts that fill a step or more are read
one after the other (M/G/1); of shorter ones a step reads several (`m2bayes.serving.bulk`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from m2bayes.serving.bulk import MOST, STATES, bulk_queue
from m2bayes.serving.mix import scv
from m2bayes.serving.queueing import TINY, in_system, kingman_factor
from m2bayes.serving.replica import Replica
from m2bayes.serving.steady import Steady

FULLEST = 0.999  # utilisation of prefill that a closed loop can reach
LEAST = 1e-9  # share of the time that is left to decoding
ROUNDS = 40  # of the fixed point of a closed loop
ALONE, TOGETHER = 0.7, 1.4  # prompts that a step has room for: one by one, and in bulk beyond
PASSES = 2  # over batch and prefill, each of which depends on the other


def capacity(held: Replica) -> np.ndarray:
    r"""Highest rate that is sustained, the largest of :math:`b / (O\,x_b)` over batches b.

    A step of b sequences goes with :math:`b/O` prompts, a Poisson number of them where a step has
    room for several, and takes x. No batch counts that would need more prompt tokens a step than
    the budget has; nor does prefill alone serve more.

    Parameters
    ----------
    held : Replica
        The server.

    Returns
    -------
    ndarray, dims (draw,)
        Requests [1/s]; 0 where not one fits.
    """
    alone, steps = 1 / held.mean(held.shared), held.decodes
    if steps <= 0:
        return np.where(held.limit > 0, alone[:, 0], 0.0)
    best = np.zeros(len(held.limit))
    for batch in np.unique(np.concatenate([held.limit, held.sampled])):
        if batch < 1:
            continue
        at = np.full(len(best), batch)
        prompts = batch / steps
        again = prompts * (1 + held.preempted)
        if held.room(at)[0] < 1:
            step = held.decode[:, batch] + held.mean(held.added)[:, batch] * again
        else:
            step = _mean_step(held, again, at)
        full = batch * (1 + held.prompt / steps) > held.token_budget
        rate = alone[:, batch] if full else np.minimum(prompts / step, alone[:, batch])
        best = np.where(batch <= held.limit, np.maximum(best, rate), best)
    return best


def _mean_step(held: Replica, prompts: np.ndarray, batch: np.ndarray) -> np.ndarray:
    """Mean time of a step with a Poisson number of prompts of that mean [s], dims (draw,)."""
    from scipy.special import gammaln  # type: ignore[import-untyped]

    number = np.arange(max(2.0, prompts.max() + 8 * np.sqrt(prompts.max()) + 4))
    mean = prompts[:, None]
    share = np.exp(number * np.log(mean) - mean - gammaln(number + 1))
    steps = held.with_prompts(np.broadcast_to(number, share.shape), batch)
    return np.asarray((share * steps).sum(-1))


def open_loop(
    held: Replica, rate: np.ndarray, highest: np.ndarray, arrival_scv: float = 1.0
) -> Steady:
    r"""Steady state under arrivals at random.

    With the prefill of others inside, a decode step takes :math:`x_b = D_b / (1 - \lambda P)`,
    so that :math:`b` sequences complete at :math:`b / (O x_b)`; the same as
    :math:`D_b + (b/O) P` of a benchmark that keeps b requests running. P is what a prompt adds to
    the steps that it shares with others. Tokens meet a batch in proportion to its size.

    Parameters
    ----------
    held : Replica
        The server.
    rate, highest : ndarray, dims (draw,)
        Requests [1/s], and what `capacity` says.
    arrival_scv : float
        Squared coefficient of variation of the gaps between arrivals [1].

    Returns
    -------
    Steady
        Times [s] of dims (draw,).
    """
    utilisation = rate / np.maximum(highest, TINY)
    calm = np.where(utilisation < 1, rate, 0.5 * highest)  # the saturated answer for themselves
    running, place = np.minimum(held.batches, held.limit[:, None]), _at_limit(held)
    decode, added = held.capped(held.decode), held.capped(held.mean(held.added))
    again, scale = 1 + np.where(place, held.preempted[:, None], 0), np.ones(len(rate))
    for _ in range(PASSES):
        drain = calm[:, None] * added * again * scale[:, None]
        step = decode / np.maximum(1 - drain, LEAST)
        seen, gap = _batches_met(held, calm, running, step)
        batch = (seen * running).sum(-1)
        queue = _prefill_queue(held, calm, seen, batch, arrival_scv)
        scale = queue.scale
    token, variance = _token_time(seen * running, step)
    own, others = (np.einsum("dn,dkn->dk", seen, held.capped(t)) for t in (held.own, held.added))
    load = np.minimum(calm * scale * (others @ held.weight), FULLEST)
    square = (others**2 @ held.weight) * scale**2 / (1 - load) ** 2
    return Steady(
        held,
        rate,
        utilisation,
        batch,
        (np.where(place, seen, 0.0).sum(-1), queue.p),
        (kingman_factor(arrival_scv, _answer_scv(held)) / gap, queue.wait),
        queue.least,
        queue.rest,
        queue.chance,
        own,
        token,
        variance,
        calm * token * square,
        queue.behind * (1 + queue.behind) * square,
    )


def closed_loop(held: Replica, users: np.ndarray, highest: np.ndarray) -> Steady:
    r"""Steady state of a benchmark that keeps so many requests in the system.

    The batch is as large as users and limit allow, :math:`x = D_b + (b-1) P_b / O`; whoever finds
    no place waits :math:`(C - b)/\mathrm{rate}`, by Little's law.

    Parameters
    ----------
    held : Replica
        The server.
    users : ndarray, dims (draw,)
        Requests in the system at all times, from 1 [1].
    highest : ndarray, dims (draw,)
        What `capacity` says [1/s].

    Returns
    -------
    Steady
        Times [s] of dims (draw,); only where not one request fits it counts as saturated.
    """
    batch = np.minimum(users, held.limit).astype(int)
    at = np.maximum(batch, 1)
    draws = np.arange(len(at))
    decode = held.decode[draws, at]
    added, shared = (held.mean(t)[draws, at] for t in (held.added, held.shared))
    own = held.own[draws, :, np.maximum(at - 1, 0)]
    steps, others = held.decodes, (at - 1) / at
    step = decode + (at - 1) * added / max(steps, 1) if steps > 0 else decode
    factor = kingman_factor(1, scv(held.shared[draws, :, at], held.weight))
    mean_own, rate = own @ held.weight, at / (own @ held.weight + steps * step)
    for _ in range(ROUNDS):
        busy = np.minimum(rate * shared * others, FULLEST)
        new = at / (mean_own + busy * factor * shared / (1 - busy) + steps * step)
        rate = np.minimum((rate + new) / 2, highest)
    waits = np.maximum(users - batch, 0) / np.maximum(rate, TINY)
    fits = held.limit > 0
    zero = np.zeros_like(rate)
    return Steady(
        held,
        np.where(fits, rate, 0.0),
        np.where(fits, np.minimum(rate / np.maximum(highest, TINY), FULLEST), np.inf),
        batch.astype(float),
        (zero, busy),
        (zero + 1, factor * shared / (1 - busy)),
        zero,
        np.stack([decode, zero], axis=-1),
        np.stack([zero + 1, zero], axis=-1),
        own + waits[:, None],
        step,
        zero,
        rate * step * (held.added[draws, :, at] ** 2 @ held.weight) * others,
        zero,
    )


def _answer_scv(held: Replica) -> np.ndarray:
    """Squared coefficient of variation of the answers' lengths [1]."""
    return scv(held.mix["output_tokens"].values, held.weight)


def _at_limit(held: Replica) -> np.ndarray:
    """Whether a number in the system leaves no place in the batch, dims (draw, batch)."""
    return np.asarray(held.batches >= held.limit[:, None])


def _batches_met(
    held: Replica, rate: np.ndarray, running: np.ndarray, step: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Probability of each number in the system, N standing for more, dims (draw, batch).

    And by how much the full batch completes faster than requests arrive [1/s], dims (draw,).
    """
    if held.decodes <= 0:
        alone = np.zeros_like(step)
        alone[:, 0] = 1
        return alone, np.ones_like(rate)
    done = running[:, 1:] / (held.decodes * np.maximum(step[:, 1:], TINY))
    below, full = in_system(rate, done)
    return np.concatenate([below, full[:, None]], axis=-1), np.maximum(done[:, -1] - rate, TINY)


def _token_time(weight: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean time of a token over the batches met, and its variance [s, s²], dims (draw,)."""
    met = weight[:, 1:] / np.maximum(weight[:, 1:].sum(-1, keepdims=True), TINY)
    step = np.maximum(step[:, 1:], TINY)
    none = weight[:, 1:].sum(-1) <= 0
    mean = np.where(none, step[:, 0], 1 / np.maximum((met / step).sum(-1), TINY))
    variance = (met * (step - mean[:, None]) ** 2).sum(-1)
    return mean, np.where(none, 0.0, variance)


@dataclass(frozen=True)
class _Queue:
    """Queue of prompts, dims (draw,): probability and mean of a wait [s]; see `Steady`."""

    p: np.ndarray
    wait: np.ndarray
    least: np.ndarray
    rest: np.ndarray
    chance: np.ndarray  # dims (draw, kind), as is `rest`
    behind: np.ndarray  # prompts that queue when one has been read, on average [1]
    scale: np.ndarray  # what a prompt adds in company, over what it adds alone [1]


def _prefill_queue(
    held: Replica, rate: np.ndarray, seen: np.ndarray, batch: np.ndarray, arrival_scv: float
) -> _Queue:
    """Queue of prompts at the mean batch: one after the other, or several in a step."""
    single = _one_by_one(held, rate, seen, arrival_scv)
    at = np.clip(np.round(batch), 1, np.maximum(held.limit, 1)).astype(int)
    room = held.room(at)
    share = np.clip((room - ALONE) / (TOGETHER - ALONE), 0, 1)  # in between neither queue is right
    if not share.any():
        return single
    unit = np.maximum(room / MOST, 1.0)  # prompts that count as one
    step = held.with_prompts(np.arange(STATES) * unit[:, None], at)
    bulk = bulk_queue(rate / unit, np.maximum(room / unit, 1.0), step)
    idle = seen[:, 0] * np.maximum(1 - rate * held.mean(held.own)[:, 0], 0)
    decoding, alone = step[:, 0], held.mean(held.added)[np.arange(len(at)), at]
    more = np.clip(1 - decoding / bulk.step, 0, 1)  # share of the time that prompts add
    scale = np.where(rate * alone > LEAST**2, more / np.maximum(rate * alone, LEAST**2), 1.0)
    several = _Queue(
        bulk.p,
        bulk.wait,
        np.zeros_like(rate),
        np.stack([decoding, np.where(np.isfinite(bulk.met), bulk.met, 0)], axis=-1),
        (1 - idle)[:, None] * np.stack([1 - bulk.reading, bulk.reading], axis=-1),
        np.zeros_like(rate),
        np.where(np.isfinite(bulk.step), scale, single.scale),
    )
    pairs = zip(vars(several).values(), vars(single).values(), strict=True)
    return _Queue(*(_blend(share, a, b) for a, b in pairs))


def _blend(share: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Share of the first, and the rest of the second, dims kept; either alone may be infinite."""
    part = share.reshape(-1, *[1] * (first.ndim - 1))
    both = np.where(part > 0, part, 0) * np.where(part > 0, first, 0)
    return both + np.where(part < 1, (1 - part) * np.where(part < 1, second, 0), 0)


def _one_by_one(held: Replica, rate: np.ndarray, seen: np.ndarray, arrival_scv: float) -> _Queue:
    """M/G/1 queue of prompts that fill one step or more.

    Who waits starts amid a step, at any place, so that its own end is rounded up to the end of a
    step: half a step later, on average.
    """
    shared, own = (np.einsum("dn,dkn->dk", seen, held.capped(t)) for t in (held.shared, held.own))
    mean = shared @ held.weight
    busy = np.minimum(rate * mean, 1 - LEAST)
    late = kingman_factor(arrival_scv, scv(shared, held.weight)) / (1 - busy)
    reading = np.minimum(rate * (own @ held.weight), 1.0)
    room = np.minimum(held.room((seen * held.batches).sum(-1)), 1)
    rounding = np.maximum(mean * (1 + room / 2) - own @ held.weight, 0)
    busy_decoding = 1 - seen[:, 0]
    decoding = (seen * held.capped(held.decode)).sum(-1) / np.maximum(busy_decoding, TINY)
    zero = np.zeros_like(rate)
    waits = np.maximum(busy, reading)  # the last step of a prompt, too, must end
    return _Queue(
        np.minimum(waits, 1 - LEAST),
        busy * late * mean / np.maximum(waits, TINY),
        rounding,
        np.stack([decoding, zero], axis=-1),
        np.stack([(1 - reading) * busy_decoding, zero], axis=-1),
        busy * (1 + busy * late),
        zero + 1,
    )
