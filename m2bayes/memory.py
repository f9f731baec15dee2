"""How many tokens of KV cache fit beside the weights: joint draws of what each GPU has left."""

from __future__ import annotations

import xarray as xr

from m2bayes._random import labelled_rng
from m2bayes._spec import Step
from m2bayes.llm import LLM
from m2bayes.residency import DTYPE_BYTES, kv_bytes_per_token, weight_bytes

# Share of a GPU's memory that an engine uses: vLLM's gpu_memory_utilization, TensorRT-LLM's
# free_gpu_memory_fraction (0.9 of what the weights leave), SGLang's mem_fraction_static (about it).
# https://docs.vllm.ai/en/v0.9.1/configuration/optimization.html
# https://nvidia.github.io/TensorRT-LLM/reference/memory.html
ENGINE_SHARE = 0.9
# Of that share, what activations, CUDA graphs and communication take [byte], uniform between:
# a vLLM log (Llama-3.1-8B, 24 GB card, steps of 2,048 tokens) leaves 0.1 GB of the datasheet's
# memory for them, since cards hold some 5 % more than their datasheet says; large LLMs with
# steps of 8,192 tokens take 4 to 6 GB.
RESERVE = (0.0, 6e9)
# Probability that the cache of an 8-bit LLM stays in 16 bit: the default of vLLM and SGLang
# (kv_cache_dtype auto); TensorRT-LLM's recipes of 8-bit checkpoints quantise the cache too.
P_WIDE_CACHE = 0.75
NARROW = "fp8"  # type of a cache in 8 bits
SETTLED = 0.05  # probability of fitting from which, either way, it is taken for granted


def memory_left(
    llm: LLM,
    datasheets: xr.Dataset,
    like: xr.Dataset,
    *,
    tp: int = 1,
    dtype: str = "bf16",
    kv_dtype: str | None = None,
    seed: int = 0,
) -> xr.Dataset:
    r"""Memory that each GPU has left for its KV cache, :math:`0.9\,m - w - r`.

    The reserve r and the type of the cache belong to the engine: one draw has one of each for all
    SKUs.

    Parameters
    ----------
    llm : LLM
        Shape of the LLM.
    datasheets : Dataset, dims (sku,)
        With ``memory`` [byte].
    like : Dataset, dims (chain, draw, …)
        Whose draws these go with [any unit].
    tp : int
        GPUs that share the LLM [1].
    dtype, kv_dtype : str
        Types of weights and cache, keys of `m2bayes.residency.DTYPE_BYTES`. Without `kv_dtype` the
        cache is in 16 bit, or as wide as the weights if they are wider; of 8-bit weights in 8 bit
        with probability 1 − `P_WIDE_CACHE`.
    seed : int
        Of the draws.

    Returns
    -------
    Dataset, dims (chain, draw, sku)
        ``weights`` (no dims), ``reserve`` (chain, draw), ``memory_left`` [byte], below 0 where the
        weights alone do not fit; ``kv_bytes_per_token`` (chain, draw) [byte] on one GPU;
        ``kv_tokens`` [token], not rounded.

    Raises
    ------
    WorkloadError, UnknownNameError
        If `tp` does not fit the LLM; if a type is unknown.
    """
    held = weight_bytes(llm, tp=tp, dtype=dtype)
    wide = dtype if DTYPE_BYTES[dtype] > DTYPE_BYTES["bf16"] else "bf16"
    token = kv_bytes_per_token(llm, tp=tp, dtype=kv_dtype or wide)
    coords = {d: like[d] for d in ("chain", "draw")}
    sizes = [like.sizes[d] for d in coords]
    rng = labelled_rng(seed, "memory reserve")
    reserve = xr.DataArray(rng.uniform(*RESERVE, size=sizes), coords, ("chain", "draw"))
    tokens = xr.full_like(reserve, token)
    if kv_dtype is None and DTYPE_BYTES[dtype] == DTYPE_BYTES[NARROW]:
        narrow = labelled_rng(seed, "type of the cache").random(sizes) > P_WIDE_CACHE
        tokens = tokens.where(~narrow, kv_bytes_per_token(llm, tp=tp, dtype=NARROW))
    memory = datasheets["memory"].reset_coords(drop=True)
    left = (ENGINE_SHARE * memory - held - reserve).transpose("chain", "draw", "sku")
    found = {
        "weights": xr.DataArray(held),
        "reserve": reserve,
        "memory_left": left,
        "kv_bytes_per_token": tokens,
        "kv_tokens": (left.clip(min=0) / tokens).transpose("chain", "draw", "sku"),
    }
    units = dict.fromkeys(found, "byte") | {"kv_tokens": "token"}
    return xr.Dataset({k: v.assign_attrs(units=units[k]) for k, v in found.items()})


def sequences(left: xr.Dataset, tokens: float) -> xr.DataArray:
    """Sequences of so many tokens that fit at once: the batch to which the KV cache limits a step.

    Parameters
    ----------
    left : Dataset, dims (chain, draw, sku)
        From `memory_left`, with ``kv_tokens`` [token].
    tokens : float
        Tokens of one sequence, prompt and answer [token], above 0.

    Returns
    -------
    DataArray, dims (chain, draw, sku)
        Whole sequences [1]; 0 where not one fits.

    Examples
    --------
    >>> left = xr.Dataset({"kv_tokens": (("chain", "draw", "sku"), [[[99.0, 100.0]]])})
    >>> sequences(left, 50).values
    array([[[1., 2.]]])
    """
    return (left["kv_tokens"] // tokens).assign_attrs(units="1")


def fits(left: xr.Dataset, tokens: float | xr.DataArray) -> xr.DataArray:
    """Whether weights and a cache of so many tokens fit, as draws that a decision can use.

    Where the probability lies within `SETTLED` of 0 or 1, no or all draws fit: an engine's settings
    can be changed by as much. In between each draw says for itself.

    Parameters
    ----------
    left : Dataset, dims (chain, draw, sku)
        From `memory_left` [byte].
    tokens : float or DataArray, dims (workload,)
        Cached at the end of the step, all sequences together [token].

    Returns
    -------
    DataArray of bool, dims (chain, draw, sku[, workload])
        Whether it fits [1].
    """
    room = (left["memory_left"] >= 0) & (left["kv_tokens"] >= tokens)
    share = room.mean(["chain", "draw"])
    return xr.where(share > 1 - SETTLED, True, room & (share >= SETTLED)).transpose(*room.dims)


def cached_after(step: Step) -> int:
    """Tokens in the KV cache at the end of a step [token].

    >>> cached_after(Step("decode", batch=2, context=9))
    20
    """
    return step.cached_tokens + step.new_tokens
