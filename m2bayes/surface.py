"""Step times between the sizes that were predicted: a served engine runs through thousands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from m2bayes.question import Question, step_times
from m2bayes.workload import Step

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
CONTEXTS = (128, 512, 2048, 8192, 32768, 131072)
TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 131072)
# of mixed steps, which a token budget bounds
MIXED = ((16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384), (1, 8, 32, 128, 512), CONTEXTS[::2])
BLOCK = 24  # steps predicted at once


@dataclass(frozen=True)
class Surface:
    """Step times of one LLM on one SKU over batch, context and prompt tokens, draw by draw.

    Between the grid's sizes the time is linear in each of them, as the work is; past its end it
    goes on as it ended, below its start it stays.

    Parameters
    ----------
    axes : mapping of tuples of sizes
        ``decode`` (batch, context), ``prefill`` (tokens,), ``mixed`` (tokens, batch, context)
        [token], batch [1].
    times : mapping of ndarray, dims (draw, …)
        Time on those grids [s].
    """

    axes: dict[str, tuple[np.ndarray, ...]]
    times: dict[str, np.ndarray]

    def decode_time(self, batch: Any, context: Any) -> np.ndarray:
        """Time of a step in which `batch` sequences decode [s], dims (draw, …) of the sizes.

        Parameters
        ----------
        batch, context : array_like
            Sequences [1] and tokens cached of each [token]; need not be whole.
        """
        return self._at("decode", batch, context)

    def prefill_time(self, tokens: Any, prefix: Any = 0) -> np.ndarray:
        """Time of a step that reads `tokens` of one prompt [s], dims (draw, …) of the sizes.

        A chunk of a longer prompt takes what the prompt takes longer with it than without it,
        and no less than the chunk alone.

        Parameters
        ----------
        tokens, prefix : array_like
            New tokens, and those of the same prompt that are cached already [token].
        """
        return self._at("prefill", tokens) + self._prefix_time(tokens, prefix)

    def mixed_time(self, tokens: Any, batch: Any, context: Any, prefix: Any = 0) -> np.ndarray:
        """Time of a step that does both [s], dims (draw, …) of the sizes.

        Parameters
        ----------
        tokens, batch, context, prefix : array_like
            As of `prefill_time` and `decode_time` [token]; all of them above 0 but the prefix.
        """
        both = self._at("mixed", tokens, batch, context)
        return both + self._prefix_time(tokens, prefix)

    def pick(self, draw: int) -> Surface:
        """Surface of one draw, dims (draw,) of length 1 [s]."""
        return replace(self, times={k: t[draw : draw + 1] for k, t in self.times.items()})

    def median(self) -> Surface:
        """Surface of the medians over draws, as the only draw: dims (draw,) of length 1 [s]."""
        middle = {k: np.median(t, axis=0, keepdims=True) for k, t in self.times.items()}
        return replace(self, times=middle)

    def scaled(self, factor: Any) -> Surface:
        """Surface with all times multiplied [s]; `factor` [1] is a number, or dims (draw,)."""
        by = np.atleast_1d(np.asarray(factor, dtype=float))
        return replace(
            self,
            times={k: t * by.reshape(-1, *[1] * (t.ndim - 1)) for k, t in self.times.items()},
        )

    def _prefix_time(self, tokens: Any, prefix: Any) -> np.ndarray:
        """What a chunk's attention to the chunks before it adds [s], dims (draw, …)."""
        new, before = np.broadcast_arrays(np.asarray(tokens, float), np.asarray(prefix, float))
        if not (before > 0).any():
            return np.zeros(1)
        whole, part, alone = (self._at("prefill", size) for size in (new + before, before, new))
        return np.where(before > 0, np.maximum(whole - part - alone, 0.0), 0.0)

    def _at(self, kind: str, *sizes: Any) -> np.ndarray:
        """Time at these sizes [s], dims (draw, …)."""
        points = np.stack(np.broadcast_arrays(*[np.asarray(s, float) for s in sizes]), -1)
        floor = [axis[0] for axis in self.axes[kind]]
        found = self._interpolate[kind](np.maximum(points, floor))
        return np.moveaxis(found.reshape(*points.shape[:-1], -1), -1, 0)

    @cached_property
    def _interpolate(self) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
        from scipy.interpolate import RegularGridInterpolator  # type: ignore[import-untyped]

        return {
            kind: RegularGridInterpolator(
                axes,
                np.moveaxis(self.times[kind], 0, -1),
                bounds_error=False,
                fill_value=None,
            )
            for kind, axes in self.axes.items()
        }


def surfaces(question: Question) -> dict[str, Surface]:
    """Surfaces of the SKUs of a question, by SKU; one index of ``draw`` is one joint draw.

    Parameters
    ----------
    question : Question
        Of whole steps; thin its posteriors first (see `m2bayes.question.thinned`): some 300 draws
        serve. Its workloads are not looked at.

    Returns
    -------
    dict of Surface
        Times of shape (draw,) and the grid's [s]; nothing is said of what fits into memory.
    """
    steps = _steps(question)
    every = [step for _, own in steps.values() for step in own]
    blocks = []
    for start in range(0, len(every), BLOCK):
        part = every[start : start + BLOCK]
        time = step_times(question, part).sum("op").transpose("sku", "chain", "draw", "workload")
        blocks.append(time.values.reshape(time.sizes["sku"], -1, len(part)))
    whole = np.concatenate(blocks, axis=-1)
    out = {}
    for at, sku in enumerate(question.datasheets["sku"].values):
        axes, times, start = {}, {}, 0
        for kind, (own_axes, own) in steps.items():
            shape = [len(axis) for axis in own_axes]
            axes[kind] = tuple(np.asarray(axis, dtype=float) for axis in own_axes)
            times[kind] = whole[at, :, start : start + len(own)].reshape(-1, *shape)
            start += len(own)
        out[str(sku)] = Surface(axes, times)
    return out


def _steps(question: Question) -> dict[str, tuple[list[list[int]], list[Step]]]:
    """Axes and steps of each kind, within what the LLM can hold."""
    longest = question.llm.max_context if question.llm is not None else TOKENS[-1]
    contexts, tokens = _within(CONTEXTS, longest - 1), _within(TOKENS, longest)
    mixed = [_within(MIXED[0], longest), list(MIXED[1]), _within(MIXED[2], longest - 1)]
    decode = [list(BATCHES), contexts]
    return {
        "decode": (decode, [Step("decode", batch=b, context=c) for b, c in product(*decode)]),
        "prefill": ([tokens], [Step("prefill", tokens=t) for t in tokens]),
        "mixed": (
            mixed,
            [Step("mixed", prefill=t, batch=b, context=c) for t, b, c in product(*mixed)],
        ),
    }


def _within(sizes: Sequence[int], longest: int) -> list[int]:
    """Sizes up to the longest, which is among them if there are larger ones."""
    return sorted({min(size, longest) for size in sizes})
