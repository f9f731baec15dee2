"""What fits into the memory of which SKU, of the steps that a question asks about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from m2bayes.errors import WorkloadError
from m2bayes.memory import ENGINE_SHARE, cached_after, fits, memory_left
from m2bayes.question import Question, without_rate
from m2bayes.workload import Step, Workload

SAMPLE = ("chain", "draw")


def memory_of(question: Question) -> xr.Dataset:
    """Memory that each SKU has left for its KV cache, see `m2bayes.memory.memory_left`.

    Parameters
    ----------
    question : Question
        Of an LLM.

    Returns
    -------
    Dataset, dims (chain, draw, sku)
        Joint with the question's draws [byte, token].
    """
    if question.llm is None:
        raise WorkloadError("kernels need no memory; name an LLM")
    return memory_left(
        question.llm,
        question.datasheets,
        question.posterior,
        tp=question.tp,
        dtype=question.form,
        kv_dtype=question.kv_dtype,
        seed=question.seed,
    )


def room(question: Question, steps: Sequence[Workload]) -> xr.DataArray:
    """Whether each SKU can run each step, draw by draw; kernels always run.

    Parameters
    ----------
    question : Question
        Of which SKUs, LLM and formats.
    steps : sequence of Step or Kernel
        Some of its workloads, or others.

    Returns
    -------
    DataArray of bool, dims (chain, draw, sku, workload)
        Whether weights and KV cache fit, and the card has the format's tensor cores [1].
    """
    dims = (*SAMPLE, "sku", "workload")
    labels = [step.label for step in steps]
    held = xr.DataArray(without_rate(question) == "", {"sku": question.datasheets["sku"]}, ("sku",))
    sizes = {d: question.posterior[d] for d in SAMPLE} | {"workload": labels}
    held = held.expand_dims(sizes).transpose(*dims)
    if question.llm is None:
        return held
    tokens = [cached_after(step) if isinstance(step, Step) else 0 for step in steps]
    kernel = [not isinstance(step, Step) for step in steps]
    size = xr.DataArray(np.array(tokens, float), {"workload": labels}, ("workload",))
    free = xr.DataArray(kernel, {"workload": labels}, ("workload",))
    return (held & (fits(memory_of(question), size) | free)).transpose(*dims)


def feasible(
    question: Question, steps: Sequence[Workload], held: xr.DataArray | None = None
) -> np.ndarray:
    """Why a SKU cannot run a step, or "" where it can in some draws, dims (sku, workload).

    Parameters
    ----------
    question : Question
        Of which SKUs, LLM and formats.
    steps : sequence of Step or Kernel
        Some of its workloads, or others.
    held : DataArray of bool, dims (chain, draw, sku, workload), optional
        From `room`, if it is known already.
    """
    held = room(question, steps) if held is None else held
    some = held.any(SAMPLE).transpose("sku", "workload").values
    reasons = np.full(some.shape, "", dtype=object)
    lacking = without_rate(question)
    for i, j in zip(*np.nonzero(~some), strict=True):
        reasons[i, j] = lacking[i] or _too_large(question, steps[j], int(i))
    return reasons


def _too_large(question: Question, step: Workload, sku: int) -> str:
    """Why a step does not fit into the memory of a SKU."""
    left = memory_of(question).isel(sku=sku)
    cache = cached_after(step) if isinstance(step, Step) else 0
    need = float(left["weights"]) + cache * float(left["kv_bytes_per_token"].median())
    memory = float(question.datasheets["memory"].values[sku])
    return (
        f"does not fit: weights and KV cache need {need / 1e9:.1f} GB a GPU, the memory is "
        f"{memory / 1e9:.0f} GB, of which an engine uses {100 * ENGINE_SHARE:.0f} %, some GB for "
        "itself; raise --tp or shrink the batch"
    )


def cache_limits(question: Question, steps: Sequence[Workload]) -> list[list[dict[str, Any]]]:
    """How many sequences of each step's length each SKU's KV cache holds at once.

    Parameters
    ----------
    question : Question
        Of which SKUs, LLM and formats.
    steps : sequence of Step or Kernel
        Some of its workloads, or others.

    Returns
    -------
    list of list of dict
        By workload and SKU ``median``, ``low`` and ``high`` of the interval asked for, and
        ``asked``, the step's own [1]; empty where nothing decodes.
    """
    if question.llm is None or not question.whole:
        return [[{} for _ in question.datasheets["sku"]] for _ in steps]
    left, out = memory_of(question), list[list[dict[str, Any]]]()
    levels = [(1 - question.mass) / 2, 0.5, (1 + question.mass) / 2]
    tokens = left["kv_tokens"].transpose(*SAMPLE, "sku").values
    cuts = np.quantile(tokens.reshape(-1, tokens.shape[-1]), levels, axis=0)
    for step in steps:
        batch = step.decoding if isinstance(step, Step) else 0
        if not batch or not isinstance(step, Step):
            out.append([{} for _ in question.datasheets["sku"]])
            continue
        low, middle, high = cuts // (step.context + 1)
        out.append(
            [
                {"median": float(m), "low": float(a), "high": float(b), "asked": batch}
                for a, m, b in zip(low, middle, high, strict=True)
            ]
        )
    return out
