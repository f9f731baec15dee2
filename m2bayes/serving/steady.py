"""A server in steady state: how long requests wait and how fast they get tokens, draw by draw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from m2bayes.serving.queueing import TINY, lifetime_share, quantile, waits_tail
from m2bayes.serving.replica import Replica

NODES = (np.arange(5) + 0.5) / 5  # of the rest of the step under way, which is uniform


@dataclass(frozen=True)
class Steady:
    """Steady state of a replica; where it is saturated, waits are infinite.

    Parameters
    ----------
    replica : Replica
        Which server.
    rate : ndarray, dims (draw,)
        Requests served [1/s].
    utilisation : ndarray, dims (draw,)
        Rate over the highest that is sustained [1].
    batch : ndarray, dims (draw,)
        Mean sequences that decode [1].
    wait, mean_wait : tuple of two ndarray, dims (draw,)
        Probability to wait for a place, and for prefill [1]; mean of those who wait [s].
    least : ndarray, dims (draw,)
        How long who waits for prefill waits at least, on top of that mean [s].
    rest, chance : ndarray, dims (draw, kind)
        Lengths of the step under way, of which a uniform share is left [s]: without prompts, with
        some; and the chance to meet each [1], else the server is idle or the queue counts it.
    own : ndarray, dims (draw, request)
        What a prompt's own steps take, with a constant wait if there is one [s].
    step : ndarray, dims (draw,)
        Mean time between two tokens of a sequence, TPOT [s].
    step_variance, interference, backlog : ndarray, dims (draw,)
        Variance of that over the batches met; of what others' prefills add to a decode step; of
        what those queueing at its start add to all decode steps of a request [s²].
    """

    replica: Replica
    rate: np.ndarray
    utilisation: np.ndarray
    batch: np.ndarray
    wait: tuple[np.ndarray, np.ndarray]
    mean_wait: tuple[np.ndarray, np.ndarray]
    least: np.ndarray
    rest: np.ndarray
    chance: np.ndarray
    own: np.ndarray
    step: np.ndarray
    step_variance: np.ndarray
    interference: np.ndarray
    backlog: np.ndarray

    def ttft_tail(self, time: np.ndarray) -> np.ndarray:
        """Share of requests whose first token takes longer than `time` [s], dims (draw,)."""
        idle = np.maximum(1 - self.chance.sum(-1, keepdims=True), 0)
        chance = np.concatenate(
            [
                idle,
                self.chance[..., None].repeat(len(NODES), -1).reshape(len(idle), -1) / len(NODES),
            ],
            axis=-1,
        )
        rest = (self.rest[..., None] * NODES).reshape(len(idle), -1)
        rest = np.concatenate([np.zeros_like(idle), rest], axis=-1)[:, None, :]
        left = time[:, None, None] - self.own[..., None] - rest
        place, queue = (w[:, None, None] for w in self.wait)
        mean = self.mean_wait[0][:, None, None], self.mean_wait[1][:, None, None]
        waited = waits_tail(left - self.least[:, None, None], (place, 1.0), mean)
        late = (1 - queue) * waits_tail(left, (place, 0.0), mean) + queue * waited
        tail = np.einsum("dkn,dn,k->d", late, chance, self.replica.weight)
        return np.where(self.utilisation < 1, tail, 1.0)

    def tpot_tail(self, time: np.ndarray) -> np.ndarray:
        """Share of requests whose TPOT is above `time` [s], dims (draw,); of two tokens or more."""
        from scipy.special import ndtr  # type: ignore[import-untyped]

        answer, weight = self.replica.mix["output_tokens"].values, self.replica.weight
        weight = np.where(answer > 1, weight, 0)
        if not weight.any():
            return np.zeros(len(self.rate))
        steps = np.maximum(answer - 1, 1)
        kept = lifetime_share(steps / max(self.replica.decodes, TINY))
        own = self.step_variance[:, None] * kept
        others = self.interference[:, None] / steps + self.backlog[:, None] / steps**2
        sd = np.sqrt(own + others + np.sqrt(self.step_variance[:, None] * others))
        z = (self.step[:, None] - time[:, None]) / np.maximum(sd, TINY)
        tail = ndtr(z) @ (weight / weight.sum())
        return np.where(self.utilisation < 1, tail, 1.0)

    def ttft(self, level: float) -> np.ndarray:
        """TTFT that a share `level` [1] of the requests keep to [s], dims (draw,)."""
        start = self.own.min(-1)
        end = self.own.max(-1) + self.rest.max(-1) + sum(self.mean_wait) + self.least
        end = np.where(np.isfinite(end), end, start + 1)
        return quantile(self.ttft_tail, level, start, end)

    def tpot(self, level: float) -> np.ndarray:
        """TPOT that a share `level` [1] of the requests keep to [s], dims (draw,); NaN if none."""
        if self.replica.decodes <= 0:
            return np.full(len(self.rate), np.nan)
        step = np.where(np.isfinite(self.step), self.step, 1.0)
        return quantile(self.tpot_tail, level, np.zeros_like(step), 2 * step)

    def mean_ttft(self) -> np.ndarray:
        """Mean TTFT over requests [s], dims (draw,); infinite where saturated."""
        means = self.mean_wait[0], self.mean_wait[1] + self.least
        waits = sum(p * mean for p, mean in zip(self.wait, means, strict=True))
        mean = waits + (self.rest * self.chance).sum(-1) / 2 + self.own @ self.replica.weight
        return np.where(self.utilisation < 1, mean, np.inf)
