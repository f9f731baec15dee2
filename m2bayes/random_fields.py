"""Random fields over shapes by random Fourier features [1]_, whose weights belong to labels.

References
----------
.. [1] Rahimi, Recht (2007). *Random features for large-scale kernel machines*. NIPS 20.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np

from m2bayes._random import labelled_rng

TAIL = 4  # fields whose mean square is the scale of a Student-t: its degrees of freedom
FREQUENCIES = (64, 16)  # of the first field, and of each field of the tail scale
ROUGH, ROUGH_LENGTH = 0.1, 0.05  # share of the variance that neighbours hardly share, its length
TOGETHER = 16  # shapes in one matrix product
SIGNS = np.array([-1, 1], dtype=np.float32)
ENDS = [0, *accumulate(2 * f for f in (FREQUENCIES[0], *[FREQUENCIES[1]] * TAIL))]
FIELDS = [slice(*ends) for ends in pairwise(ENDS)]  # features of each field in a pool of weights
Lengths = tuple[float, ...]


def located(shapes: np.ndarray, lengths: Lengths) -> np.ndarray:
    """Places of shapes in the field: log2 of sizes, gain from L2 or 0, dims (shape, axis) [1]."""
    sizes = len(lengths) - 1
    gain = shapes[:, sizes:] if shapes.shape[1] > sizes else np.zeros((len(shapes), 1))
    return np.concatenate([np.log2(shapes[:, :sizes]), gain], axis=1)


def features(shapes: np.ndarray, frequencies: int, lengths: Lengths) -> np.ndarray:
    """Cosine and sine features [1] of shapes, dims (shape, feature); the rows have norm 1."""
    rng = labelled_rng(0, "discrepancy frequencies")
    vectors = rng.standard_cauchy((frequencies, len(lengths))) / lengths
    vectors[: round(ROUGH * frequencies)] /= ROUGH_LENGTH
    phase = located(shapes, lengths) @ vectors.T
    waves = np.concatenate([np.cos(phase), np.sin(phase)], axis=1)
    return (waves / np.sqrt(frequencies)).astype(np.float32)


@lru_cache(maxsize=4)
def _pool(draws: int) -> np.ndarray:
    """Standard normal weights, dims (draw, feature of any field)."""
    rng = labelled_rng(0, "discrepancy weights")
    return rng.standard_normal((draws, FIELDS[-1].stop), dtype=np.float32)


def fields(
    waves: Sequence[np.ndarray], chosen: np.ndarray, draws: int, seed: int, label: str
) -> np.ndarray:
    """Standard normal fields [1] whose weights belong to a label, dims (field, draw, shape).

    Weights are rows of one pool, in an order and with signs that are the label's own: two labels
    share a row in one draw of all, and have other signs there.

    Parameters
    ----------
    waves : sequence of ndarray, dims (shape, feature)
        From `features`, for each field of `FIELDS` [1].
    chosen : array of int, dims (draw,)
        Places of the draws that are asked for [1].
    draws, seed : int
        Number of draws in all, and seed [1].
    label : str
        Whose fields.
    """
    rng = labelled_rng(seed, "discrepancy", label)
    weights = _pool(draws)[rng.permutation(draws)[chosen]]
    signs = rng.choice(SIGNS, FIELDS[-1].stop)
    out = np.empty((len(FIELDS), len(chosen), len(waves[0])), dtype=np.float32)
    for at in range(0, out.shape[2], TOGETHER):
        # products of one fixed size: their rounding must not depend on what else is asked for
        for field, columns, own in zip(out, FIELDS, waves, strict=True):
            part = own[at : at + TOGETHER]
            block = np.zeros((TOGETHER, part.shape[1]), dtype=np.float32)
            block[: len(part)] = part * signs[columns]
            field[:, at : at + TOGETHER] = (weights[:, columns] @ block.T)[:, : len(part)]
    return out
