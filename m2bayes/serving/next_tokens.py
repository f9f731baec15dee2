"""Time per further token of a short answer, by what is read in the steps that follow the first.

During a short answer a few prompts are read, or one, or none: where the distribution of a long
answer is normal, its own has lumps.
"""

from __future__ import annotations

import numpy as np

from m2bayes.serving.backlog import POINTS, TINY, Backlog, Lattice, chances

STRIDES = 7  # into which the steps of an answer are gathered, at most
UNITS = 4  # of the backlog in a full stride


def completions(backlog: Backlog, beyond: np.ndarray) -> np.ndarray:
    r"""How often steps that begin with so many units give first tokens [1].

    A prompt ends where those behind it begin, so ends are a renewal process from the last unit
    that waits on: of V units, r read give :math:`H(V - 1) - H(V - 1 - r)` first tokens, with the
    renewal function H of the prompts' sizes.

    Parameters
    ----------
    backlog : Backlog
        As steps begin.
    beyond : ndarray, dims (draw, unit)
        Of that, `Backlog.beyond` [1].

    Returns
    -------
    ndarray, dims (draw, unit)
        Shares of the first tokens [1], of 0 … units.
    """
    held = backlog.lattice
    room, ends = held.room, chances(1 / (1 - held.prompts(POINTS)), POINTS)
    before = np.pad(np.cumsum(ends, axis=-1), ((0, 0), (1, room)), mode="edge")
    before[:, 0] = 0
    found = np.concatenate([backlog.below, beyond], axis=-1)
    last = np.arange(found.shape[-1])  # before it none ends where nothing waits
    number = before[:, last] - before[:, np.maximum(last - room, 0)]
    found = found * number
    return np.asarray(found / np.maximum(found.sum(-1, keepdims=True), TINY))


def units_read(backlog: Backlog, first: np.ndarray, steps: float, step: np.ndarray) -> np.ndarray:
    r"""Distribution of what is read in the decode steps of an answer.

    The backlog is followed from the first token on, jointly with what full steps would have read
    more. Arrivals in a step are compound Poisson, by Panjer's recursion.

    Parameters
    ----------
    backlog : Backlog
        As steps begin.
    first : ndarray, dims (draw, unit)
        From `completions` [1].
    steps : float
        Decode steps of the answer, from 1 [1].
    step : ndarray, dims (draw,)
        Mean time between two tokens [s].

    Returns
    -------
    ndarray, dims (draw, read)
        Probability of 0 … n of n parts of what full steps read [1].

    References
    ----------
    .. [1] Panjer (1981). Recursive evaluation of a family of compound distributions.
       ASTIN Bulletin 12. https://doi.org/10.1017/S0515036100006796
    """
    held = backlog.lattice
    strides = int(min(STRIDES, np.ceil(steps)))
    gathered, most = steps / strides, strides * UNITS
    scale = UNITS / (gathered * held.room)
    sizes = _parts(held.sizes * scale, held.weight, most)
    times = _stride_times(held, gathered)
    moves = np.zeros((len(times), most + 1, most + 1))
    arrived = _arrived(held.rate[:, None] * times * gathered, sizes)
    for at in range(most + 1):
        left = max(at - UNITS, 0)
        moves[:, at, left:] = arrived[:, min(at, UNITS), : most + 1 - left]
    moves[..., -1] += np.maximum(1 - moves.sum(-1), 0)
    state = np.zeros((len(times), most + 1, most + 1))
    state[:, :, 0] = _start(backlog, first, sizes, scale, (gathered - 1) * step)
    span = np.maximum(times[:, -1:] - times[:, :1], TINY)
    spared = UNITS * (1 - (times[:, :UNITS] - times[:, :1]) / span)
    for i in range(strides):
        state[:, :UNITS] = _further(state[:, :UNITS], spared)
        if i < strides - 1:
            state = np.swapaxes(moves, -1, -2) @ state
    return np.asarray(state.sum(1)[:, ::-1])


def _further(state: np.ndarray, more: np.ndarray) -> np.ndarray:
    """State with so much more spared, up to `UNITS`, dims (draw, backlog, spared) and (…, backlog).

    What is not whole goes in parts to the wholes beside it, so that the mean is kept.
    """
    found = np.zeros_like(state)
    for unit in range(UNITS + 1):
        part = np.maximum(1 - np.abs(more - unit), 0)[..., None]
        found[..., unit:] += part * state[..., : state.shape[-1] - unit]
    return found


def _start(
    backlog: Backlog,
    first: np.ndarray,
    sizes: np.ndarray,
    scale: float,
    more: np.ndarray,
) -> np.ndarray:
    """Backlog once a first token has come, dims (draw, unit).

    Of `more` time [s] the arrivals count as waiting already, since a stride reads of its own only
    what came before it.
    """
    held, most = backlog.lattice, sizes.shape[-1] - 1
    room = held.room
    left = np.minimum(np.arange(first.shape[-1] - room) * scale, most)
    low = np.minimum(left.astype(int), most - 1)
    start = np.zeros((len(first), most + 1))
    beyond = first[:, room:]
    split = np.zeros((len(left), most + 1))
    split[np.arange(len(left)), low] = 1 - (left - low)
    split[np.arange(len(left)), low + 1] = left - low
    start += beyond @ split
    span = np.maximum(held.times[:, -1] - held.times[:, 0], TINY)
    filled = (held.times[:, :-1] - held.times[:, :1]) / span[:, None]
    some = (first[:, :room] * filled).sum(-1)
    start[:, 0] += some
    few = (first[:, :room] * (1 - filled)).sum(-1)
    ends = held.times[:, [0, -1]] + more[:, None]
    came = _arrived(held.rate[:, None] * ends, sizes)
    found = few[:, None] * came[:, 0]
    for at in range(most + 1):
        found[:, at:] += start[:, at, None] * came[:, 1, : most + 1 - at]
    found[:, -1] += np.maximum(1 - found.sum(-1), 0)
    return found


def _stride_times(held: Lattice, gathered: float) -> np.ndarray:
    """A step's share of strides that read 0 … `UNITS` parts of full ones [s], dims (draw, part).

    Of many steps some are full and the others empty; one is in between.
    """
    at = np.arange(UNITS + 1) * held.room / UNITS
    low = np.minimum(at.astype(int), held.room - 1)
    single = held.times[:, low] * (1 - at + low) + held.times[:, low + 1] * (at - low)
    part = np.arange(UNITS + 1) / UNITS
    many = held.times[:, :1] * (1 - part) + held.times[:, -1:] * part
    return np.asarray(many + (single - many) / gathered)


def _parts(sizes: np.ndarray, weight: np.ndarray, most: int) -> np.ndarray:
    """Chances of a prompt of 0 … units, of means `sizes` [1], dims (draw, unit)."""
    found = np.zeros((len(sizes), most + 1))
    draw = np.arange(len(sizes))
    for size, share in zip(np.minimum(sizes, most).T, weight.T, strict=True):
        low = np.minimum(size.astype(int), most - 1)
        found[draw, low] += share * (1 - (size - low))
        found[draw, low + 1] += share * (size - low)
    return found


def _arrived(mean: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Chances of 0 … units of a Poisson number of prompts of that mean, dims (draw, …, unit)."""
    found = np.zeros((*mean.shape, sizes.shape[-1]))
    weights = sizes * np.arange(sizes.shape[-1])
    found[..., 0] = np.exp(-mean * (1 - sizes[:, :1]))
    for n in range(1, sizes.shape[-1]):
        found[..., n] = mean / n * np.einsum("dj,dtj->dt", weights[:, n:0:-1], found[..., :n])
    return found
