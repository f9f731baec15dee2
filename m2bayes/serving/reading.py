"""How a replica reads prompts beside the batches that it meets, in units of its backlog."""

from __future__ import annotations

import numpy as np

from m2bayes.serving.backlog import FINEST, LARGEST, Backlog, Lattice
from m2bayes.serving.mix import scv
from m2bayes.serving.queueing import TINY, kingman_factor
from m2bayes.serving.replica import Replica

BUSIEST = 0.9  # load of the walk; beyond it waits grow as those of heavy traffic
LEAST = 1e-9  # prompts in a step's time, and share of the time, below which there are none
SHORT = 3.5  # units of a prompt of which a step reads many


def lattice_of(held: Replica, rate: np.ndarray, seen: np.ndarray, *, idle: bool = True) -> Lattice:
    """Steps of a replica, and its prompts in whole units.

    A prompt of a little over k steps keeps to k + 1: its units are rounded up, so as many fewer
    come. Where that depends on the batch it is one or the other, as often as the batches are met.

    Parameters
    ----------
    held : Replica
        The server.
    rate : ndarray, dims (draw,)
        Requests [1/s].
    seen : ndarray, dims (draw, batch)
        Probability of each number in the system [1].
    idle : bool
        Whether nobody may be left to decode.

    Returns
    -------
    Lattice
        Times [s] of dims (draw, …).
    """
    room, unit, sizes, weight = _units(held, seen)
    some = np.maximum(seen[:, 1:].sum(-1), TINY)
    decoding = (seen[:, 1:] * held.capped(held.decode)[:, 1:]).sum(-1) / some
    decoding = np.maximum(decoding, held.decode[:, 1])
    shared = _mean(held, held.shared, seen)
    full = np.maximum(shared / held.prompt * room * unit, decoding)
    batch = (seen * np.minimum(held.batches, held.limit[:, None])).sum(-1)
    at = np.maximum(np.round(batch), 1).astype(int)
    even = np.arange(room + 1) / room
    shape = held.with_prompts(even * held.room(at)[:, None], at)
    span = shape[:, -1:] - shape[:, :1]
    part = np.where(span > 0, (shape - shape[:, :1]) / np.where(span > 0, span, 1), even)
    rate = np.maximum(rate, LEAST / full)
    steps = np.maximum(held.mix["output_tokens"].values - 1, 0)
    drained = np.exp(-(rate * decoding)[:, None] * steps) @ held.weight if idle else 0 * rate
    return Lattice(
        np.minimum(rate * shared, BUSIEST) * room / ((sizes * weight).sum(-1) * full),
        sizes,
        weight,
        decoding[:, None] + (full - decoding)[:, None] * part,
        drained,
        (1 - drained) / -np.expm1(-rate * decoding),
        1 / rate,
    )


def in_company(held: Replica, backlog: Backlog, seen: np.ndarray) -> np.ndarray:
    """What a prompt adds to the steps in company, over what it adds alone [1], dims (draw,).

    Parameters
    ----------
    held : Replica
        The server.
    backlog : Backlog
        Its prompts.
    seen : ndarray, dims (draw, batch)
        Probability of each number in the system [1].
    """
    lattice, spent = backlog.lattice, backlog.spent
    load = lattice.rate * lattice.size * lattice.times[:, -1] / lattice.room
    alone = _mean(held, held.added, seen) * load / np.maximum(_mean(held, held.shared, seen), TINY)
    busy = 1 - spent[:, -1] / spent.sum(-1)
    more = busy * np.clip(1 - lattice.times[:, 0] / backlog.step, 0, 1)
    return np.where(alone > LEAST**2, more / np.maximum(alone, LEAST**2), 1.0)


def stretch(
    held: Replica, rate: np.ndarray, seen: np.ndarray, arrival_scv: float = 1.0
) -> np.ndarray:
    """Factor on what is ahead of a prompt, for heavy traffic and arrivals not at random [1].

    Parameters
    ----------
    held : Replica
        The server.
    rate : ndarray, dims (draw,)
        Requests [1/s].
    seen : ndarray, dims (draw, batch)
        Probability of each number in the system [1].
    arrival_scv : float
        Squared coefficient of variation of the gaps between arrivals [1].

    Returns
    -------
    ndarray, dims (draw,)
        Factor [1].
    """
    times = np.einsum("dn,dkn->dk", seen, held.capped(held.shared))
    load = np.minimum(rate * (times @ held.weight), 1 - LEAST)
    most = np.minimum(load, BUSIEST)
    heavy = load / (1 - load) / np.maximum(most / (1 - most), TINY)
    demand = scv(times, held.weight)
    burst = kingman_factor(arrival_scv, demand) / kingman_factor(1, demand)
    return np.asarray(burst * np.maximum(heavy, 1))


def _mean(held: Replica, times: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Mean over requests and batches of such times [s], dims (draw,)."""
    return np.asarray((seen * held.capped(held.mean(times))).sum(-1))


def _units(held: Replica, seen: np.ndarray) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """Units of a full step [1], tokens of one [token], units of prompts and their weights [1].

    Where a prompt takes very many steps, a unit is more than one step reads.
    """
    lengths = held.mix["input_tokens"].values
    long = float(lengths**2 @ held.weight / held.prompt)  # of the prompt that a token belongs to
    room = int(np.clip(round(LARGEST * held.token_budget / long), 1, FINEST))
    unit = (held.token_budget - held.batches) / room
    unit = np.maximum(unit, long / LARGEST if room == 1 else 0)
    sizes = lengths[:, None] / unit
    whole = np.where(sizes > SHORT, np.ceil(sizes - 1e-6), np.maximum(np.round(sizes), 1))
    running = np.minimum(held.batches, held.limit[:, None])
    mean = np.einsum("dn,kdn->dk", seen, whole[:, running])
    less = np.floor(mean + 1e-9)
    part = np.maximum(mean - less, 0)
    sizes = np.concatenate([less, less + 1], axis=-1).astype(int)
    weight = np.concatenate([(1 - part) * held.weight, part * held.weight], axis=-1)
    return room, (seen * unit[running]).sum(-1), sizes, weight
