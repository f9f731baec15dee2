"""Open and closed loops: the steady state of a server under arrivals at random, or fixed users.

Two queues in a row: prompts wait for a place in the batch when the KV cache or the engine's limit
binds (M/M(n)/1 whose rate depends on the batch, with the correction of Allen and Cunneen for equal
demands), then for the prompts ahead, of which a step reads up to its budget
(`m2bayes.serving.backlog`). What is read meanwhile slows tokens (`m2bayes.serving.next_tokens`).
"""

from __future__ import annotations

import numpy as np

from m2bayes.serving.backlog import Backlog, stationary
from m2bayes.serving.first_token import first_token
from m2bayes.serving.mix import CLASSES, scv
from m2bayes.serving.next_tokens import completions, units_read
from m2bayes.serving.queueing import TINY, in_system, kingman_factor
from m2bayes.serving.reading import LEAST, in_company, lattice_of, stretch
from m2bayes.serving.replica import Replica
from m2bayes.serving.steady import Lumps, Steady

FULLEST = 0.999  # utilisation of prefill that a closed loop can reach
ROUNDS = 40  # of the fixed point of a closed loop
FEW, MANY = 16.0, 32.0  # prompts read during an answer: lumps up to these, normal beyond
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
    scale = np.ones(len(rate))
    for _ in range(PASSES):
        seen, gap, step = _met(held, calm, scale)
        backlog = stationary(lattice_of(held, calm, seen))
        scale = in_company(held, backlog, seen)
    token, variance = _token_time(seen * running, step)
    own, others = (np.einsum("dn,dkn->dk", seen, held.capped(t)) for t in (held.own, held.added))
    load = np.minimum(calm * scale * (others @ held.weight), FULLEST)
    square = (others**2 @ held.weight) * scale**2 / (1 - load) ** 2
    beyond = backlog.beyond()
    first = completions(backlog, beyond)
    behind = _left(backlog, first)
    return Steady(
        held,
        rate,
        utilisation,
        (seen * running).sum(-1),
        (
            np.where(place, seen, 0.0).sum(-1),
            kingman_factor(arrival_scv, _answer_scv(held)) / gap,
        ),
        first_token(backlog, beyond, stretch(held, calm, seen, arrival_scv), own),
        token,
        variance,
        calm * token * square,
        behind * (1 + behind) * square,
        _lumps(held, backlog, first, token, seen * running),
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
    zero, seen = np.zeros_like(rate), (held.batches == at[:, None]).astype(float)
    backlog = stationary(lattice_of(held, rate * others, seen, idle=False))
    return Steady(
        held,
        np.where(fits, rate, 0.0),
        np.where(fits, np.minimum(rate / np.maximum(highest, TINY), FULLEST), np.inf),
        batch.astype(float),
        (zero, zero + 1),
        first_token(
            backlog, backlog.beyond(), stretch(held, rate * others, seen), own + waits[:, None]
        ),
        step,
        zero,
        rate * step * (held.added[draws, :, at] ** 2 @ held.weight) * others,
        zero,
        Lumps(0 * own, backlog.lattice.times[:, [0, -1]], ()),
    )


def _answer_scv(held: Replica) -> np.ndarray:
    """Squared coefficient of variation of the answers' lengths [1]."""
    return scv(held.mix["output_tokens"].values, held.weight)


def _at_limit(held: Replica) -> np.ndarray:
    """Whether a number in the system leaves no place in the batch, dims (draw, batch)."""
    return np.asarray(held.batches >= held.limit[:, None])


def _met(
    held: Replica, rate: np.ndarray, scale: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probability of each number in the system, N standing for more, dims (draw, batch).

    And by how much the full batch completes faster than requests arrive [1/s], dims (draw,), and
    a decode step with the prompts read in it [s], dims (draw, batch). `scale` is what a prompt adds
    in company, over what it adds alone [1]; it never adds more than it takes of full steps.
    """
    decode, alone = held.capped(held.decode), held.capped(held.mean(held.added))
    full = held.mean(held.shared) - held.decode * held.prompt / (held.token_budget - held.batches)
    added = np.minimum(alone * scale[:, None], np.maximum(held.capped(full), alone))
    again = 1 + np.where(_at_limit(held), held.preempted[:, None], 0)
    step = decode / np.maximum(1 - rate[:, None] * added * again, LEAST)
    if held.decodes <= 0:
        alone = np.zeros_like(step)
        alone[:, 0] = 1
        return alone, np.ones_like(rate), step
    running = np.minimum(held.batches, held.limit[:, None])
    done = running[:, 1:] / (held.decodes * np.maximum(step[:, 1:], TINY))
    below, full = in_system(rate, done)
    seen = np.concatenate([below, full[:, None]], axis=-1)
    return seen, np.maximum(done[:, -1] - rate, TINY), step


def _token_time(weight: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean time of a token over the batches met, and its variance [s, s²], dims (draw,)."""
    met = weight[:, 1:] / np.maximum(weight[:, 1:].sum(-1, keepdims=True), TINY)
    step = np.maximum(step[:, 1:], TINY)
    none = weight[:, 1:].sum(-1) <= 0
    mean = np.where(none, step[:, 0], 1 / np.maximum((met / step).sum(-1), TINY))
    variance = (met * (step - mean[:, None]) ** 2).sum(-1)
    return mean, np.where(none, 0.0, variance)


def _left(backlog: Backlog, first: np.ndarray) -> np.ndarray:
    """Prompts that wait when one has been read, on average [1], dims (draw,)."""
    lattice, units = backlog.lattice, np.arange(first.shape[-1])
    left = np.maximum(units - lattice.room, 0)
    return np.asarray((first @ left) / lattice.size)


def _lumps(
    held: Replica, backlog: Backlog, first: np.ndarray, token: np.ndarray, met: np.ndarray
) -> Lumps:
    """TPOT of the answers during which few prompts are read, `met` the batches that tokens meet."""
    answers, lattice = held.mix["output_tokens"].values, backlog.lattice
    steps = np.maximum(answers - 1, 1)
    prompts = (token / lattice.gap)[:, None] * steps
    share = np.clip((MANY - prompts) / (MANY - FEW), 0, 1) * (answers > 1)
    chance = [np.zeros((len(token), 0))] * len(steps)
    short = np.unique(steps[(share > 0).any(0)])
    for counts in np.array_split(short, CLASSES):
        alike = np.flatnonzero(np.isin(steps, counts))
        if len(alike):
            mean = float(np.average(steps[alike], weights=held.weight[alike]))
            found = units_read(backlog, first, mean, token)
            for k in alike:
                chance[k] = found
    total = met[:, 1:].sum(-1)
    decode = (met * held.capped(held.decode)).sum(-1) / np.maximum(total, TINY)
    more = np.where(total > 0, np.maximum(decode - lattice.times[:, 0], 0), 0)
    return Lumps(share, lattice.times[:, [0, -1]] + more[:, None], tuple(chance))
