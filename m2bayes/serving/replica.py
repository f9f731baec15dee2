"""One server of an LLM under continuous batching: what its steps take at every batch it may run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import xarray as xr

from m2bayes.errors import WorkloadError
from m2bayes.serving.mix import LENGTHS, mean_context, mean_length

MAX_NUM_SEQS, TOKEN_BUDGET = 256, 2048  # vLLM's defaults on most cards, and its logs' settings
BLOCK = 16  # tokens of a block of the cache [token]: half of one is empty, on average
POINTS = 9  # batches at which prefill is evaluated; between them it is linear
SHARES = np.array([0, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1.0])
MOST_CHUNKS = 64  # of a prompt that are evaluated; longer prompts by these, spread over them


class StepTimes(Protocol):
    """Step times [s] of arrays of sizes, dims (draw, …)."""

    def decode_time(self, batch: Any, context: Any) -> np.ndarray:
        """Of a step in which `batch` sequences decode [s], dims (draw, …)."""

    def prefill_time(self, tokens: Any, prefix: Any = 0) -> np.ndarray:
        """Of a step that reads `tokens` of a prompt [s], dims (draw, …)."""

    def mixed_time(self, tokens: Any, batch: Any, context: Any, prefix: Any = 0) -> np.ndarray:
        """Of a step that does both [s], dims (draw, …)."""


@dataclass(frozen=True)
class Replica:
    """A server and its requests: everything that its queues depend on, draw by draw.

    More work never takes less time: where a step of a larger batch would be faster (a tile that
    fits better), it counts as long as the slower of the smaller ones.

    Parameters
    ----------
    mix : Dataset, dims (request,)
        From `m2bayes.serving.mix`.
    limit : ndarray, dims (draw,)
        Sequences that run at once at most [1]; 0 where not one fits.
    decode : ndarray, dims (draw, batch)
        Step in which 0 … N sequences decode [s]; 0 for none.
    own : ndarray, dims (draw, request, batch)
        Steps that read a prompt beside so many that decode [s].
    added : ndarray, dims (draw, request, batch)
        What these last longer than the decoding alone [s].
    shared : ndarray, dims (draw, request, batch)
        What a prompt takes of full steps when others queue behind it [s].
    packed : ndarray, dims (draw, share, batch)
        Step that reads prompts of `SHARES` of the tokens it has room for [s].
    token_budget : int
        Tokens of one step at most [token].
    preempted : ndarray, dims (draw,)
        Times that a request is read anew once the cache is full [1].
    """

    mix: xr.Dataset
    limit: np.ndarray
    decode: np.ndarray
    own: np.ndarray
    added: np.ndarray
    shared: np.ndarray
    packed: np.ndarray
    token_budget: int
    preempted: np.ndarray

    @property
    def weight(self) -> np.ndarray:
        """Share of each kind of request [1], dims (request,)."""
        return np.asarray(self.mix["weight"].values)

    @property
    def decodes(self) -> float:
        """Decode steps of a request on average: the first token is the prefill's [1]."""
        return mean_length(self.mix, "output_tokens") - 1

    @property
    def batches(self) -> np.ndarray:
        """Sequences that decode, 0 … N [1], dims (batch,)."""
        return np.arange(self.decode.shape[-1])

    @property
    def sampled(self) -> np.ndarray:
        """Some of the batches, close enough to find the best, dims (batch,) [1]."""
        return np.unique(np.geomspace(1, self.batches[-1], 4 * POINTS).round().astype(int))

    def mean(self, times: np.ndarray) -> np.ndarray:
        """Mean over requests of `own`, `added` or `shared` [s], dims (draw, batch)."""
        return np.asarray(np.einsum("dkn,k->dn", times, self.weight))

    @property
    def prompt(self) -> float:
        """Mean tokens of a prompt [token]."""
        return mean_length(self.mix, LENGTHS[0])

    def room(self, batch: np.ndarray) -> np.ndarray:
        """Prompts that a step has room for beside so many that decode [1], dims of `batch`."""
        return np.asarray((self.token_budget - batch) / self.prompt)

    def with_prompts(self, prompts: np.ndarray, batch: np.ndarray) -> np.ndarray:
        """Step that reads so many prompts of mean length, or as many as it has room for [s].

        Parameters
        ----------
        prompts, batch : ndarray, dims (draw, waiting) and (draw,)
            Prompts, and sequences that decode, whole, from 1 [1].

        Returns
        -------
        ndarray, dims (draw, waiting)
            Time [s].
        """
        share = np.clip(prompts / self.room(batch)[:, None], 0.0, 1.0)
        right = np.clip(np.searchsorted(SHARES, share), 1, len(SHARES) - 1)
        part = (share - SHARES[right - 1]) / (SHARES[right] - SHARES[right - 1])
        rows = self.packed[np.arange(len(batch)), :, batch]
        low, high = (np.take_along_axis(rows, at, axis=-1) for at in (right - 1, right))
        return np.asarray(low * (1 - part) + high * part)

    def capped(self, times: np.ndarray) -> np.ndarray:
        """Times at a batch as far as each draw's limit lets it grow [s], dims (draw, …, batch)."""
        at = np.minimum(self.batches, self.limit[:, None])
        at = at.reshape(at.shape[0], *[1] * (times.ndim - 2), at.shape[1])
        return np.take_along_axis(times, np.broadcast_to(at, times.shape), axis=-1)


def replica(
    times: StepTimes,
    mix: xr.Dataset,
    kv_tokens: np.ndarray,
    *,
    max_num_seqs: int = MAX_NUM_SEQS,
    token_budget: int = TOKEN_BUDGET,
) -> Replica:
    r"""Server of one SKU (of a group of GPUs that share the LLM) and the requests it gets.

    Prompts are read in chunks: each step has a budget of tokens, decoding sequences take one each
    and prompts the rest (chunked prefill, Agrawal et al. 2024). A sequence holds blocks for the
    tokens it has so far, so the cache runs out at a batch of KV tokens over mean context. An engine
    admits whoever's prompt fits; when those in the batch outgrow the cache it sends the newest
    back, to be read anew: :math:`\ln(1 + O/I)` times a request, near what vLLM's rules simulated
    step by step give for O/I from 1/8 to 4.

    Parameters
    ----------
    times : StepTimes
        Such as a `m2bayes.surface.Surface` [s], dims (draw, …).
    mix : Dataset, dims (request,)
        From `m2bayes.serving.mix`.
    kv_tokens : ndarray, dims (draw,)
        Tokens that the KV cache holds [token].
    max_num_seqs, token_budget : int
        Limits of the engine: sequences at once [1], tokens of a step [token].

    Raises
    ------
    WorkloadError
        If a limit is below 1, or the budget has no room for a token beside the sequences.

    References
    ----------
    .. [1] Agrawal et al. (2024). Sarathi-Serve. OSDI. https://arxiv.org/abs/2403.02310
    """
    if max_num_seqs < 1 or token_budget <= max_num_seqs:
        raise WorkloadError(
            f"{max_num_seqs} sequences and {token_budget} tokens a step: give 1 sequence or more, "
            "and more tokens than sequences"
        )
    context, prompt = mean_context(mix), mean_length(mix, LENGTHS[0])
    longest = float((mix[LENGTHS[0]] + mix[LENGTHS[1]]).max())
    room = np.floor((kv_tokens - prompt / 2) / (context + BLOCK / 2))
    limit = np.where(kv_tokens >= longest, np.clip(room, 1, max_num_seqs), 0).astype(int)
    growth = np.log1p(mean_length(mix, LENGTHS[1]) / prompt)
    batches = np.arange(max(int(limit.max()), 1) + 1)
    steps = times.decode_time(np.maximum(batches, 1), context)
    decode = np.maximum.accumulate(np.where(batches > 0, steps, 0.0), axis=-1)
    own, added, shared = _prefill(times, mix, batches, context, token_budget)
    preempted = np.where(room < max_num_seqs, growth, 0.0)
    packed = _packed(times, batches, context, token_budget)
    return Replica(mix, limit, decode, own, added, shared, packed, token_budget, preempted)


def _grid(batches: np.ndarray) -> np.ndarray:
    """Batches at which prefill is evaluated [1]."""
    spaced = np.geomspace(1, batches[-1], POINTS).round().astype(int)
    return np.unique(np.append(0, spaced))


def _packed(times: StepTimes, batches: np.ndarray, context: float, budget: int) -> np.ndarray:
    """`packed` of `Replica` [s], dims (draw, share, batch); none decodes as one does."""
    grid = _grid(batches)
    decoding = np.maximum(grid, 1)
    tokens, batch = np.broadcast_arrays(SHARES[1:, None] * (budget - decoding), decoding * 1.0)
    alone = times.decode_time(decoding, context)[:, None, :]
    mixed = times.mixed_time(tokens, batch, np.full(batch.shape, context), np.zeros(batch.shape))
    steps = np.concatenate([np.broadcast_to(alone, (*mixed.shape[:1], 1, len(grid))), mixed], 1)
    return _between(np.maximum.accumulate(steps, axis=1), grid, batches)


def _prefill(
    times: StepTimes, mix: xr.Dataset, batches: np.ndarray, context: float, budget: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`own`, `added` and `shared` of `Replica` at every batch [s], dims (draw, request, batch)."""
    grid = _grid(batches)
    tokens, prefix, count, at, group = (list[float]() for _ in range(5))
    prompts = mix["input_tokens"].values
    for k, prompt in enumerate(prompts):
        for g, batch in enumerate(grid):
            room = float(budget - batch)
            for start, size, times_over in _chunks(prompt, room):
                tokens += [size, room]
                prefix += [start, start]
                count += [times_over, times_over * size / room]
                at += [batch, batch]
                group += [(k * len(grid) + g) * 2, (k * len(grid) + g) * 2 + 1]
    sizes, before, beside = (np.asarray(v, float) for v in (tokens, prefix, at))
    context_of = np.full(sizes.shape, context)
    decoding = np.where(beside > 0, times.decode_time(np.maximum(beside, 1), context_of), 0.0)
    step = np.where(
        beside > 0,
        times.mixed_time(sizes, np.maximum(beside, 1), context_of, before),
        times.prefill_time(sizes, before),
    )
    step = np.maximum(step, decoding)
    one_hot = np.zeros((len(sizes), len(prompts) * len(grid) * 2))
    one_hot[np.arange(len(sizes)), np.asarray(group, int)] = count
    out = step @ one_hot, (step - decoding) @ one_hot
    own = out[0].reshape(-1, len(prompts), len(grid), 2)
    added = out[1].reshape(-1, len(prompts), len(grid), 2)
    added[:, :, 0] = added[:, :, 1]  # nothing decodes that could wait
    return (
        _between(own[..., 0], grid, batches),
        _between(added[..., 0], grid, batches),
        _between(own[..., 1], grid, batches),
    )


def _chunks(prompt: float, room: float) -> list[tuple[float, float, float]]:
    """Start, size [token] and number of like chunks of a prompt [1].

    >>> _chunks(5.0, 2.0)
    [(0.0, 2.0, 1.0), (2.0, 2.0, 1.0), (4.0, 1.0, 1.0)]
    """
    full = int(prompt // room)
    starts = np.linspace(0, full - 1, min(full, MOST_CHUNKS)) * room if full else np.zeros(0)
    found = [(float(start), room, full / len(starts)) for start in starts]
    rest = prompt - full * room
    return found + ([(full * room, float(rest), 1.0)] if rest > 0 else [])


def _between(values: np.ndarray, grid: np.ndarray, batches: np.ndarray) -> np.ndarray:
    """Values at every batch by linear interpolation, never falling, dims (draw, request, batch)."""
    right = np.clip(np.searchsorted(grid, batches, side="left"), 1, len(grid) - 1)
    left = right - 1
    share = (batches - grid[left]) / (grid[right] - grid[left])
    return np.maximum.accumulate(values[..., left] * (1 - share) + values[..., right] * share, -1)


def check_lengths(mix: xr.Dataset, longest: int, name: str) -> None:
    """Refuse requests that the LLM was not made for.

    Parameters
    ----------
    mix : Dataset, dims (request,)
        From `m2bayes.serving.mix` [token].
    longest : int
        Longest sequence of the LLM [token].
    name : str
        Of the LLM.

    Raises
    ------
    WorkloadError
        If prompt and answer together are longer.
    """
    total = mix[LENGTHS[0]] + mix[LENGTHS[1]]
    if float(total.max()) > longest:
        raise WorkloadError(
            f"prompt and answer of {float(total.max()):,.0f} tokens: {name} was made for "
            f"{longest:,}; shorten them"
        )
