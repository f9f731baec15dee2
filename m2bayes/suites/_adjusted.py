"""Step times looked up once, with a scalar applied, or without the prompts of others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from m2bayes.serving.simulate import StepTimes

LEAST = 0.1  # [1] of a step's time that stays when a negative host time is added


@dataclass(frozen=True)
class Remembered:
    """Step times of one draw that are looked up once for each size [s], dims (draw,)."""

    times: StepTimes

    def decode_time(self, batch: Any, context: Any) -> np.ndarray:
        """See `StepTimes` [s]."""
        return self._once("decode_time", batch, context)

    def prefill_time(self, tokens: Any, prefix: Any = 0) -> np.ndarray:
        """See `StepTimes` [s]."""
        return self._once("prefill_time", tokens, prefix)

    def mixed_time(self, tokens: Any, batch: Any, context: Any, prefix: Any = 0) -> np.ndarray:
        """See `StepTimes` [s]."""
        return self._once("mixed_time", tokens, batch, context, prefix)

    @cached_property
    def _known(self) -> dict[tuple[Any, ...], np.ndarray]:
        return {}

    def _once(self, kind: str, *sizes: Any) -> np.ndarray:
        if (kind, *sizes) not in self._known:
            self._known[kind, *sizes] = getattr(self.times, kind)(*sizes)
        return self._known[kind, *sizes]


@dataclass(frozen=True)
class Adjusted:
    """Step times times a factor [1], plus one host time a step [s], dims (draw, …)."""

    times: StepTimes
    factor: float = 1.0
    host: float = 0.0

    def decode_time(self, batch: Any, context: Any) -> np.ndarray:
        """See `StepTimes` [s]."""
        return self._of(self.times.decode_time(batch, context))

    def prefill_time(self, tokens: Any, prefix: Any = 0) -> np.ndarray:
        """See `StepTimes` [s]."""
        return self._of(self.times.prefill_time(tokens, prefix))

    def mixed_time(self, tokens: Any, batch: Any, context: Any, prefix: Any = 0) -> np.ndarray:
        """See `StepTimes` [s]."""
        return self._of(self.times.mixed_time(tokens, batch, context, prefix))

    def _of(self, time: np.ndarray) -> np.ndarray:
        return np.maximum(self.factor * time + self.host, LEAST * time)


@dataclass(frozen=True)
class Undisturbed:
    """Step times if prompts took none of the time of those that decode [s], dims (draw, …)."""

    times: StepTimes

    def decode_time(self, batch: Any, context: Any) -> np.ndarray:
        """See `StepTimes` [s]."""
        return self.times.decode_time(batch, context)

    def prefill_time(self, tokens: Any, prefix: Any = 0) -> np.ndarray:
        """See `StepTimes` [s]."""
        return self.times.prefill_time(tokens, prefix)

    def mixed_time(self, tokens: Any, batch: Any, context: Any, prefix: Any = 0) -> np.ndarray:
        """See `StepTimes` [s]."""
        return self.times.decode_time(batch, context)
