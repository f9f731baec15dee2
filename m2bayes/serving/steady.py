"""A server in steady state: how long requests wait and how fast they get tokens, draw by draw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from m2bayes.serving.backlog import TINY
from m2bayes.serving.first_token import FirstToken
from m2bayes.serving.queueing import lifetime_share, quantile, waits_tail
from m2bayes.serving.replica import Replica

RARE = 1e-9  # chance to wait for a place below which nobody does


@dataclass(frozen=True)
class Lumps:
    """TPOT of answers too short for a normal distribution.

    Parameters
    ----------
    share : ndarray, dims (draw, request)
        How far an answer is short, from 0 to 1 [1].
    ends : ndarray, dims (draw, 2)
        TPOT with nothing read meanwhile, and in full steps alone [s].
    chance : tuple of ndarray, dims (draw, part)
        Of evenly spaced TPOT between these, request by request [1]; nothing where all are long.
    """

    share: np.ndarray
    ends: np.ndarray
    chance: tuple[np.ndarray, ...]

    def tail(self, request: int, time: np.ndarray, variance: np.ndarray) -> np.ndarray:
        """Share of a kind of request above `time` [s], with a variance [s²] added, dims (draw,)."""
        from scipy.special import ndtr  # type: ignore[import-untyped]

        chance = self.chance[request]
        if not chance.size:
            return np.zeros_like(time)
        low, high = self.ends.T
        part = np.linspace(0, 1, chance.shape[-1])
        inside = (part > 0) & (part < 1)  # stands for all TPOT near it
        width = ((high - low) / (len(part) - 1))[:, None] * inside
        sd = np.maximum(np.sqrt(variance[:, None] + width**2 / 12), TINY)
        above = low[:, None] + (high - low)[:, None] * part - time[:, None]
        return np.asarray((chance * ndtr(above / sd)).sum(-1))


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
    place : tuple of two ndarray, dims (draw,)
        Probability to wait for a place [1]; mean of those who wait [s].
    first : FirstToken
        From a place to the first token.
    step : ndarray, dims (draw,)
        Mean time between two tokens of a sequence, TPOT [s].
    step_variance, interference, backlog : ndarray, dims (draw,)
        Variance of that over the batches met; of what others' prefills add to a decode step; of
        what those queueing at its start add to all decode steps of a request [s²].
    lumps : Lumps
        TPOT of short answers.
    """

    replica: Replica
    rate: np.ndarray
    utilisation: np.ndarray
    batch: np.ndarray
    place: tuple[np.ndarray, np.ndarray]
    first: FirstToken
    step: np.ndarray
    step_variance: np.ndarray
    interference: np.ndarray
    backlog: np.ndarray
    lumps: Lumps

    def ttft_tail(self, time: np.ndarray) -> np.ndarray:
        """Share of requests whose first token takes longer than `time` [s], dims (draw,)."""
        tail, (chance, mean) = self.first.tail(time), self.place
        if chance.max() > RARE:
            p, wait = self.first.some, self.first.wait
            rest = (self.first.share * self.first.rest).sum(-1) / 2
            left = (time - rest)[:, None] - self.first.own
            means = mean[:, None], wait[:, None]
            both = waits_tail(left, (1.0, p[:, None]), means) @ self.replica.weight
            tail = (1 - chance) * tail + chance * np.maximum(both, tail)
        return np.where(self.utilisation < 1, tail, 1.0)

    def tpot_tail(self, time: np.ndarray) -> np.ndarray:
        """Share of requests whose TPOT is above `time` [s], dims (draw,); of two tokens or more."""
        from scipy.special import ndtr

        answer, weight = self.replica.mix["output_tokens"].values, self.replica.weight
        weight = np.where(answer > 1, weight, 0)
        if not weight.any():
            return np.zeros(len(self.rate))
        steps = np.maximum(answer - 1, 1)
        kept = lifetime_share(steps / max(self.replica.decodes, TINY))
        own = self.step_variance[:, None] * kept
        others = self.interference[:, None] / steps + self.backlog[:, None] / steps**2
        sd = np.sqrt(own + others + np.sqrt(self.step_variance[:, None] * others))
        late = ndtr((self.step[:, None] - time[:, None]) / np.maximum(sd, TINY))
        for k in range(len(self.lumps.chance)):
            lumps = self.lumps.tail(k, time, own[:, k])
            late[:, k] += self.lumps.share[:, k] * (lumps - late[:, k])
        return np.where(self.utilisation < 1, late @ (weight / weight.sum()), 1.0)

    def ttft(self, level: float) -> np.ndarray:
        """TTFT that a share `level` [1] of the requests keep to [s], dims (draw,)."""
        end = self.first.own.max(-1) + self.first.wait + self.place[1]
        end = np.where(np.isfinite(end), end, 1.0)
        return quantile(self.ttft_tail, level, np.zeros_like(end), end)

    def tpot(self, level: float) -> np.ndarray:
        """TPOT that a share `level` [1] of the requests keep to [s], dims (draw,); NaN if none."""
        if self.replica.decodes <= 0:
            return np.full(len(self.rate), np.nan)
        step = np.where(np.isfinite(self.step), self.step, 1.0)
        return quantile(self.tpot_tail, level, np.zeros_like(step), 2 * step)

    def mean_ttft(self) -> np.ndarray:
        """Mean TTFT over requests [s], dims (draw,); infinite where saturated."""
        mean = self.place[0] * self.place[1] + self.first.mean()
        return np.where(self.utilisation < 1, mean, np.inf)
