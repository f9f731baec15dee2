"""Time to the first token, from the backlog of prompts that an arrival finds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from m2bayes.serving.backlog import POINTS, TINY, Backlog, Lattice, chances, transform
from m2bayes.serving.queueing import LONG

NODES = 4  # places in a step at which others' arrivals before one's own are counted
FINER = 2  # places at which it may end, to each of them
FILLED = (0.0, 0.2, 0.5, 1.0)  # how far, the kinds of steps that are neither empty nor full
KINDS = len(FILLED) + 2  # of what is under way: nothing, only decoding, reading some, a full step
FEW = 192  # units that arrive in a step, at most


@dataclass(frozen=True)
class FirstToken:
    """Distribution of the steps that arrivals wait for.

    Parameters
    ----------
    lattice : Lattice
        Steps and prompts.
    share : ndarray, dims (draw, kind of step)
        Chance to arrive amid a step of a kind [1], the first of which is none: an idle server.
    rest : ndarray, dims (draw, kind of step)
        Length of such a step, of which a uniform share is left [s].
    ahead : ndarray, dims (draw, kind of step, node, unit)
        Chance that at most so many units are ahead as the next step begins [1].
    stretch : ndarray, dims (draw,)
        What is ahead over that in the lattice [1].
    own : ndarray, dims (draw, request)
        What a prompt's own steps take if none is ahead [s].
    some, wait : ndarray, dims (draw,)
        Chance that others are ahead [1], and how long they take on average [s].
    """

    lattice: Lattice
    share: np.ndarray
    rest: np.ndarray
    ahead: np.ndarray
    stretch: np.ndarray
    own: np.ndarray
    some: np.ndarray
    wait: np.ndarray

    def mean(self) -> np.ndarray:
        """Mean over the prompts [s], dims (draw,)."""
        held, room, mean = self.lattice, self.lattice.room, np.zeros(len(self.share))
        ahead = np.round(np.arange(POINTS) * self.stretch[:, None]).astype(int)
        for sizes, weight, single in self._kinds():
            units = ahead + sizes[:, None]
            steps = (units - 1) // room
            last, before = units - steps * room, steps * held.times[:, -1:]
            alone_in_it = np.take_along_axis(held.times, last, -1)
            shift = single - alone(held, sizes)
            for kind in range(KINDS):
                chance = np.diff(self.ahead[:, kind].mean(1, dtype=float), prepend=0, axis=-1)
                time = self.rest[:, kind, None] / 2 + before
                none, more = self._behind(time)
                beside = np.minimum(last + np.round(more).astype(int), room)
                end = none * alone_in_it + (1 - none) * np.take_along_axis(held.times, beside, -1)
                found = (chance * (time + end + shift[:, None])).sum(-1)
                mean += weight * self.share[:, kind] * found
        return mean

    def tail(self, time: np.ndarray) -> np.ndarray:
        """Share of the prompts that take longer than `time` [s].

        Parameters
        ----------
        time : ndarray, dims (draw,)
            Time [s].

        Returns
        -------
        ndarray, dims (draw,)
            Share [1].
        """
        late = np.zeros(len(time))
        finer = FINER if self.own.shape[-1] == 1 else 1  # a mix has no jumps
        places = (np.arange(NODES * finer) + 0.5) / (NODES * finer)
        left = self.rest[..., None] * places
        node = np.arange(NODES * finer) // finer
        for sizes, weight, single in self._kinds():
            more = np.minimum(time, LONG) - single + alone(self.lattice, sizes)
            on_time = self._read(more[:, None, None] - left, left, sizes, node)
            late += weight * (self.share * (1 - on_time.mean(-1))).sum(-1)
        return np.clip(late, 0.0, 1.0)

    def _kinds(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Units and weight of each kind of prompt [1], own steps [s], dims (draw,)."""
        held = self.lattice
        for k in range(held.sizes.shape[-1]):
            if held.weight[:, k].any():
                yield held.sizes[:, k], held.weight[:, k], self.own[:, k % self.own.shape[-1]]

    def _read(
        self, time: np.ndarray, since: np.ndarray, size: np.ndarray, node: np.ndarray
    ) -> np.ndarray:
        """Chance that a prompt is read a time after the next step begins [1], dims of both.

        Prompts that came behind it, since its arrival, make its last step longer.
        """
        held, room = self.lattice, self.lattice.room
        full = held.times[:, -1][:, None, None]
        steps = np.floor(np.maximum(time, 0) / full)
        last = time - steps * full
        units = (held.times[:, None, None, :] <= last[..., None] * (1 + 1e-9)).sum(-1) - 1
        none, more = self._behind(since + steps * full)
        before, size = steps * room, size[:, None, None]
        sure = self._at_most(before - size, node)
        alone_in_it = self._at_most(before + np.maximum(units, 0) - size, node)
        beside = self._at_most(before + np.maximum(units - more, 0) - size, node)
        found = none * np.maximum(alone_in_it, sure) + (1 - none) * np.maximum(beside, sure)
        return np.where(time < 0, 0.0, found)

    def _behind(self, time: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Chance that no other comes in such a time, and units if any do [1], dims of `time`."""
        dims = (-1, *[1] * (time.ndim - 1))
        number = self.lattice.rate.reshape(dims) * time
        some = -np.expm1(-number)
        mean = number / np.maximum(some, TINY) * self.lattice.size.reshape(dims)
        return 1 - some, np.asarray(mean)

    def _at_most(self, units: np.ndarray, node: np.ndarray) -> np.ndarray:
        """Chance that at most so many units are ahead [1], dims of `units`; between them linear."""
        at = units / self.stretch[:, None, None] + 1e-9
        low = np.clip(np.floor(at), -1, POINTS - 1).astype(int)
        draw, step = np.arange(len(at))[:, None, None], np.arange(KINDS)[:, None]
        found = np.where(low < 0, 0.0, self.ahead[draw, step, node, np.maximum(low, 0)])
        part = np.clip(at - low, 0, 1)
        if (part > 1e-6).any():
            high = self.ahead[draw, step, node, np.minimum(low + 1, POINTS - 1)]
            found = np.where(at > -1, found + part * (high - found), 0.0)
        return found


def alone(held: Lattice, size: np.ndarray) -> np.ndarray:
    """Steps of a prompt of so many units on the lattice, dims (draw,) [s]."""
    steps = np.maximum(-(-size // held.room) - 1, 0)
    rest = (size - steps * held.room)[:, None]
    return np.asarray(steps * held.times[:, -1] + np.take_along_axis(held.times, rest, -1)[:, 0])


def first_token(
    backlog: Backlog, beyond: np.ndarray, stretch: np.ndarray, own: np.ndarray
) -> FirstToken:
    """What an arrival at random finds: the step under way, and the prompts ahead as it ends.

    Parameters
    ----------
    backlog : Backlog
        As steps begin.
    beyond : ndarray, dims (draw, unit)
        Of that, `Backlog.beyond` [1].
    stretch : ndarray, dims (draw,)
        Factor on what is ahead [1].
    own : ndarray, dims (draw, request)
        What a prompt's own steps take if none is ahead [s].

    Returns
    -------
    FirstToken
        Of dims (draw, …).
    """
    held, spent = backlog.lattice, backlog.spent
    total, part = spent.sum(-1), np.arange(held.room) / held.room
    share, rest = [spent[:, -1], spent[:, 0]], [0 * total, held.times[:, 0]]
    for low, high in pairwise(FILLED):
        within = (part > low) & (part <= high)
        some = spent[:, :-2][:, within]
        share.append(some.sum(-1))
        time = (some * held.times[:, :-1][:, within]).sum(-1)
        rest.append(np.where(share[-1] > 0, time / np.maximum(share[-1], TINY), rest[1]))
    shares = np.stack([*share, spent[:, -2]], axis=-1) / total[:, None]
    rests = np.stack([*rest, held.times[:, -1]], axis=-1)
    ahead = np.ones((len(total), KINDS, NODES, POINTS), dtype=np.float32)
    few = held.prompts(FEW)
    for kind in range(1, KINDS - 1):
        ahead[:, kind, :, :FEW] = _came_before(held, rests[:, kind], few)
    left = transform(beyond, POINTS)
    ahead[:, -1] = _came_before(held, rests[:, -1], held.prompts(POINTS), left)
    chance = np.maximum((shares * (1 - ahead[..., 0].mean(-1))).sum(-1), TINY)
    units = (shares * (POINTS - ahead.sum(-1, dtype=float).mean(-1))).sum(-1) * stretch
    wait = units * held.times[:, -1] / held.room / chance
    return FirstToken(held, shares, rests, ahead, stretch, own, chance, wait)


def _came_before(
    held: Lattice, step: np.ndarray, prompts: np.ndarray, left: np.ndarray | None = None
) -> np.ndarray:
    """Chance of at most so many units ahead, at each node of a step, dims (draw, node, unit)."""
    points = 2 * (prompts.shape[-1] - 1)
    piece = held.came(step / (2 * NODES), prompts)
    twice, now = piece * piece, piece if left is None else left * piece
    found = np.empty((len(step), NODES, points))
    for node in range(NODES - 1, -1, -1):  # the more is left of the step, the fewer came
        found[:, node] = np.cumsum(chances(now, points), axis=-1)
        now = now * twice
    return found / np.maximum(found[..., -1:], TINY)
