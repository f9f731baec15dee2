"""Prompts that share engine steps: a queue whose server takes all that wait, up to a budget."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

STATES = 32  # prompts waiting, at most, in the chain
MOST = 16.0  # prompts a step in the chain; beyond, several count as one


@dataclass(frozen=True)
class Bulk:
    """Steady state of a queue with service in bulk; infinite times where it is saturated.

    Parameters
    ----------
    step : ndarray, dims (draw,)
        Mean length of a step [s].
    reading : ndarray, dims (draw,)
        Share of the time in steps that read prompts [1].
    met : ndarray, dims (draw,)
        Mean length of such a step that an arrival finds under way [s].
    p, wait : ndarray, dims (draw,)
        Probability to share the step or to wait for a later one [1], and how much longer it takes
        on average then, than with the next step alone [s].
    """

    step: np.ndarray
    reading: np.ndarray
    met: np.ndarray
    p: np.ndarray
    wait: np.ndarray


def bulk_queue(rate: np.ndarray, room: np.ndarray, step: np.ndarray) -> Bulk:
    r"""Queue of prompts in front of an engine that steps without a pause.

    An embedded Markov chain: of Q prompts that wait as a step begins, up to c are read in it; while
    it lasts, :math:`s(\min(Q, c))`, a Poisson number of others arrives,

    .. math:: Q' = Q - \min(Q, c) + \mathrm{Poisson}(\lambda\,s).

    Parameters
    ----------
    rate : ndarray, dims (draw,)
        Arrivals :math:`\lambda` [1/s].
    room : ndarray, dims (draw,)
        Prompts c that a step has room for, from 1, up to `MOST`; need not be whole [1].
    step : ndarray, dims (draw, waiting)
        Time of a step with 0 … `STATES` − 1 prompts waiting [s], which does not fall.

    Returns
    -------
    Bulk
        Times [s] of dims (draw,).

    References
    ----------
    .. [1] Bailey (1954). On queueing processes with bulk service. JRSS B 16.
       https://doi.org/10.1111/j.2517-6161.1954.tb00149.x
    """
    waiting = np.arange(STATES)
    left = np.maximum(waiting - room[:, None], 0.0)
    moves, late = _transitions(rate, left, step)
    share = _stationary(moves)
    mean = (share * step).sum(-1)
    met = share * step / mean[:, None]  # by an arrival
    alone = _with(step, np.minimum(waiting + 1, STATES - 1))
    together = np.einsum("dq,dqr,dr->d", met, moves, alone)
    # ahead of an arrival: what the step left, and on average half of who comes while it lasts
    ahead = left[:, :, None] + np.maximum(waiting - left[:, :, None], 0) / 2
    last = np.ceil((ahead + 1) / room[:, None, None] - 1e-9)  # step in which its own last chunk is
    steps = np.einsum("dq,dqr,dqr->d", met, moves, last - 1)
    full = _with(step, np.minimum(np.ceil(room).astype(int)[:, None], STATES - 1))[:, 0]
    wait = np.maximum(together - step[:, 1], 0) + steps * full
    p = np.maximum(1 - np.einsum("dq,dq->d", met, moves[:, :, 0]), 1e-12)
    stable, reading = late < room, 1 - met[:, 0]
    return Bulk(
        np.where(stable, mean, np.inf),
        reading,
        np.where(stable, (met * step)[:, 1:].sum(-1) / np.maximum(reading, 1e-12), np.inf),
        np.where(stable, p, 1.0),
        np.where(stable, wait / p, np.inf),
    )


def _with(step: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Times of steps with so many prompts [s], dims (draw, waiting)."""
    return np.take_along_axis(step, np.broadcast_to(at, (len(step), at.shape[-1])), axis=-1)


def _transitions(
    rate: np.ndarray, left: np.ndarray, step: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Probability of Q' after Q, dims (draw, Q, Q'), and arrivals in a full step [1], (draw,)."""
    from scipy.special import gammaln  # type: ignore[import-untyped]

    arrivals = np.maximum(rate[:, None] * step, 1e-300)
    count = np.arange(STATES)
    pmf = np.exp(count * np.log(arrivals)[..., None] - arrivals[..., None] - gammaln(count + 1.0))
    low = np.floor(left).astype(int)[..., None]
    part, moves = left[..., None] - low, np.zeros(pmf.shape)
    for behind, weight in ((low, 1 - part), (low + 1, part)):
        came = count - behind
        held = np.take_along_axis(pmf, np.maximum(came, 0), axis=-1)
        moves += np.where(came >= 0, held, 0.0) * weight
    moves[..., -1] += np.maximum(1 - moves.sum(-1), 0)
    return moves, rate * step[:, -1]


def _stationary(moves: np.ndarray) -> np.ndarray:
    """Stationary distribution of a chain [1], dims (draw, Q)."""
    states = moves.shape[-1]
    system = np.swapaxes(moves, -1, -2) - np.eye(states)
    system[:, -1, :] = 1.0
    right = np.zeros((len(moves), states, 1))
    right[:, -1] = 1.0
    share = np.maximum(np.linalg.solve(system, right)[..., 0], 0.0)
    return np.asarray(share / share.sum(-1, keepdims=True))
