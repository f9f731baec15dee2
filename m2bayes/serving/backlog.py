"""Tokens of prompts that wait as an engine step begins: a random walk on a lattice, solved exactly.

A step reads what waits, up to its budget, and lasts the longer the more it reads; meanwhile prompts
arrive at random. So the backlog is the discrete-time queue with bulk service, in units of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FINEST = 16  # units of a full step, at most: a prompt of a little over 1, 1/2, 1/4 steps fits well
LARGEST = 24.0  # units of the prompt that a token belongs to, on average, at most
POINTS = 576  # of the lattice
DAMPED = 1e-5  # what wraps around in the transform
FIXED, NEWTON = 3, 4  # iterations for each root
TINY = 1e-300


@dataclass(frozen=True)
class Lattice:
    """Steps of an engine and the prompts that arrive, in units of tokens.

    Parameters
    ----------
    rate : ndarray, dims (draw,)
        Arrivals, as many as fill `load` with prompts of whole units [1/s].
    sizes, weight : ndarray, dims (draw, kind)
        Units of a prompt, whole, from 1, and share of the prompts [1].
    times : ndarray, dims (draw, unit)
        Steps that read 0 … q units [s]; those with 0 only decode, those with q are full.
    drained : ndarray, dims (draw,)
        Chance that those who decode are done before another prompt arrives [1].
    steps : ndarray, dims (draw,)
        Steps that only decode, from the last prompt's end to the next arrival or the last
        answer's end, on average [1].
    gap : ndarray, dims (draw,)
        Mean time that an idle server waits [s].
    """

    rate: np.ndarray
    sizes: np.ndarray
    weight: np.ndarray
    times: np.ndarray
    drained: np.ndarray
    steps: np.ndarray
    gap: np.ndarray

    @property
    def room(self) -> int:
        """Units q of a full step [1]."""
        return self.times.shape[-1] - 1

    @property
    def size(self) -> np.ndarray:
        """Mean units of a prompt [1], dims (draw,)."""
        return np.asarray((self.sizes * self.weight).sum(-1))

    @property
    def parts(self) -> np.ndarray:
        """Steps that read 0 … q − 1 units as mixtures of those with evenly spaced times [1].

        Dims (draw, unit, time); there are q + 1 times, from decoding alone to a full step.
        """
        span = np.maximum(self.times[:, -1] - self.times[:, 0], TINY)[:, None]
        at = (self.times[:, :-1] - self.times[:, :1]) / span * self.room
        return np.maximum(1 - np.abs(at[..., None] - np.arange(self.room + 1)), 0.0)

    def prompts(self, points: int) -> np.ndarray:
        """Generating function of a prompt's units [1], dims (draw, point), see `transform`."""
        found = np.zeros((len(self.sizes), points))
        for sizes, weight in zip(self.sizes.T, self.weight.T, strict=True):
            found[np.arange(len(found)), np.minimum(sizes, points - 1)] += weight
        return transform(found, points)

    def came(self, time: np.ndarray, prompts: np.ndarray) -> np.ndarray:
        """Generating function of the units that arrive in a time [s], dims (draw, point)."""
        return np.asarray(np.exp((self.rate * time)[:, None] * (prompts - 1)))

    def after_empty(self, decoding: np.ndarray, prompts: np.ndarray) -> np.ndarray:
        """Generating function of what a time without backlog ends with [1], dims (draw, point).

        It ends with the prompts of a step that only decodes or, once all answers are done, one.
        """
        none = np.exp(-self.rate * self.times[:, 0])[:, None]
        some = (decoding - none) / np.maximum(1 - none, TINY)
        return np.asarray(self.drained[:, None] * (prompts - some) + some)


@dataclass(frozen=True)
class Backlog:
    """Stationary distribution of the backlog as a step begins.

    Parameters
    ----------
    lattice : Lattice
        What it is of.
    below : ndarray, dims (draw, q)
        Probability of 0 … q − 1 units [1]; a whole period without backlog counts once.
    """

    lattice: Lattice
    below: np.ndarray

    @property
    def spent(self) -> np.ndarray:
        """Time in steps that read 0 … q units, and idle, a step of the chain [s].

        Dims (draw, unit), idle last.
        """
        held = self.lattice
        idle = self.below[:, 0] * held.drained * held.gap
        found = np.empty((len(idle), held.room + 2))
        found[:, :-2] = self.below * held.times[:, :-1]
        found[:, 0] *= held.steps
        found[:, -2] = (1 - self.below.sum(-1)) * held.times[:, -1]
        found[:, -1] = idle
        return found

    @property
    def step(self) -> np.ndarray:
        """Mean length of a step [s], dims (draw,)."""
        number = 1 + self.below[:, 0] * (self.lattice.steps - 1)
        return np.asarray(self.spent[:, :-1].sum(-1) / number)

    def beyond(self) -> np.ndarray:
        """Probability of q units and 0 … `POINTS` − 1 more [1], dims (draw, unit)."""
        held, room, below = self.lattice, self.lattice.room, self.below
        prompts = held.prompts(POINTS)
        decoding = held.came(held.times[:, 0], prompts)
        unit = held.came((held.times[:, -1] - held.times[:, 0]) / room, prompts)
        parts = np.einsum("dv,dvj->dj", below[:, 1:], held.parts[:, 1:])
        total = np.zeros_like(unit)
        for j in range(room, -1, -1):
            total *= unit
            total += parts[:, j, None]
        total *= decoding
        total += below[:, :1] * held.after_empty(decoding, prompts) - transform(below, POINTS)
        full = held.came(held.times[:, -1], prompts)
        return chances(total / (transform(np.eye(room + 1)[-1], POINTS) - full), POINTS)


def stationary(held: Lattice) -> Backlog:
    r"""Stationary distribution of the backlog V.

    With at most q units read in a step and Y that arrive in its time, :math:`V' = (V - q)^+ + Y`.
    The generating function of V is known but for the chances of 0 … q − 1 units, which follow from
    its being finite at the q − 1 roots of :math:`z^q = E\,z^Y` within the unit circle, and from the
    drift; the rest by a Fourier transform. Steps that are not full count as a mixture of full and
    empty ones of the same mean time.

    Parameters
    ----------
    held : Lattice
        Whose load is below 1.

    Returns
    -------
    Backlog
        Of dims (draw, …).

    References
    ----------
    .. [1] Bailey (1954). On queueing processes with bulk service. JRSS B 16.
       https://doi.org/10.1111/j.2517-6161.1954.tb00149.x
    .. [2] Janssen, van Leeuwaarden (2005). Analytic computation schemes for the discrete-time bulk
       service queue. Queueing Systems 50. https://doi.org/10.1007/s11134-005-0402-z
    """
    room = held.room
    empty, full = held.times[:, 0], held.times[:, -1]
    defect = _defect(held, _roots(held))
    system = np.zeros((len(full), room, room))
    system[:, : room // 2] = defect.real
    system[:, room // 2 : -1] = defect.imag[:, : (room - 1) // 2]
    size = held.size
    none = np.exp(-held.rate * empty)
    after = size * held.rate * empty / np.maximum(1 - none, TINY)
    gain = (size * held.rate)[:, None] * held.times[:, :-1]
    gain[:, 0] = held.drained * size + (1 - held.drained) * after
    drift = size * held.rate * full - room
    system[:, -1] = gain - np.arange(room) - drift[:, None]
    right = np.zeros((len(full), room, 1))
    right[:, -1, 0] = -drift
    below = np.maximum(np.linalg.solve(system, right)[..., 0], 0.0)
    below /= np.maximum(below.sum(-1, keepdims=True), 1.0)
    return Backlog(held, below)


def transform(chances: np.ndarray, points: int) -> np.ndarray:
    """Generating function of chances of 0 … n units [1], dims (…, unit), at points, (…, point).

    The points are on a circle within the unit circle, so that hardly anything wraps around.
    """
    damped = chances * DAMPED ** (np.arange(chances.shape[-1]) / points)
    return np.asarray(np.fft.rfft(damped, points))


def chances(generating: np.ndarray, points: int) -> np.ndarray:
    """Chances of 0 … `points` − 1 units from their `transform` [1], dims (…, unit)."""
    found = np.fft.irfft(generating, points) / DAMPED ** (np.arange(points) / points)
    return np.maximum(found, 0.0)


def _roots(held: Lattice) -> np.ndarray:
    r"""Roots of :math:`z^q = E\,z^Y` but 1 within the unit circle, dims (draw, root).

    One of each conjugate pair. Each is the fixed point of a contraction,
    :math:`z = w\,(E\,z^Y)^{1/q}` with w a root of unity.
    """
    room = held.room
    unity = np.exp(2j * np.pi * np.arange(1, room // 2 + 1) / room)
    power = (held.rate * held.times[:, -1] / room)[:, None]
    z = np.broadcast_to(0.9 * unity, (len(power), room // 2))
    for i in range(FIXED + NEWTON):
        powers = np.exp(np.log(z)[..., None] * held.sizes[:, None, :])
        image = unity * np.exp(power * ((powers @ held.weight[..., None])[..., 0] - 1))
        if i < FIXED:
            z = image
            continue
        slope = image * power * (powers @ (held.sizes * held.weight)[..., None])[..., 0] / z
        z = z - (z - image) / (1 - slope)
    return np.asarray(z)


def _defect(held: Lattice, z: np.ndarray) -> np.ndarray:
    """What follows 0 … q − 1 units less what they are, at roots z, dims (draw, point, unit)."""
    powers = np.exp(np.log(z)[..., None] * held.sizes[:, None, :])
    prompts = (powers @ held.weight[..., None])[..., 0]
    decoding = held.came(held.times[:, 0], prompts)
    unit = held.came((held.times[:, -1] - held.times[:, 0]) / held.room, prompts)
    powers = unit[..., None] ** np.arange(held.room + 1)
    found = decoding[..., None] * np.einsum("dpj,dvj->dpv", powers, held.parts)
    found[..., 0] = held.after_empty(decoding, prompts)
    return np.asarray(found - z[..., None] ** np.arange(held.room))
