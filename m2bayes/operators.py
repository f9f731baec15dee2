"""The kernels of one engine step on one GPU, by the law that predicts each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from m2bayes._spec import Attention, Step
from m2bayes.gemm import gemm_cells, kv_heads_per_gpu
from m2bayes.llm import LLM
from m2bayes.mechanism.host import EAGER, GRAPH_TOKENS, REPLAYED, kernel_count
from m2bayes.quantisation import named

ELEMENT = 2.0  # [byte] of bf16
HEAD = "lm_head"  # that stays in 16 bit whatever the weights are


def operators(
    llm: LLM,
    steps: Sequence[Step],
    *,
    tp: int = 1,
    graphs: bool = True,
    dtype: str = "bf16",
) -> dict[str, xr.Dataset]:
    """Kernels of each step, by part of the engine.

    Parameters
    ----------
    llm : LLM
        Shape of the LLM.
    steps : sequence of Step, dims (workload,)
        In the order asked.
    tp : int
        GPUs that share the LLM [1].
    graphs : bool
        Whether the engine captures CUDA graphs of steps with few new tokens.
    dtype : str
        Of weights and activations, one of `m2bayes.quantisation.FORMATS`: narrow activations are
        quantised before each projection.

    Returns
    -------
    dict of Dataset, dims (workload, op)
        ``gemm``, ``attention_prefill``, ``attention_decode``, ``light``, ``allreduce``: the sizes
        of each law and ``calls`` [1], how often the step runs the kernel, 0 where it does not.
        ``host``, dims (workload,): kernels that are launched, sequences that are sampled for, mode.

    Raises
    ------
    WorkloadError
        As `m2bayes.gemm.gemm_cells`.
    """
    gemm = _with_head(llm, steps, tp)
    new = np.array([step.new_tokens for step in steps], dtype=float)
    return {
        "gemm": gemm,
        "attention_prefill": _prefill(llm, steps, tp),
        "attention_decode": _decode(llm, steps, tp),
        "light": _light(llm, steps, new, tp, narrow=named(dtype).activation < ELEMENT),
        "allreduce": _allreduce(llm, steps, new, tp),
        "host": _host(llm, steps, new, tp, graphs),
    }


def attention_cells(kernels: Sequence[object]) -> xr.Dataset:
    """Attention kernels of one phase as cells, dims (workload, op) [1].

    Parameters
    ----------
    kernels : sequence of Attention
        All of one phase.
    """
    own = [kernel for kernel in kernels if isinstance(kernel, Attention)]
    prefill = own[0].phase == "prefill"
    held = {
        k: np.array([float(getattr(a, k)) for a in own]) for k in ("batch", "heads", "kv_heads")
    }
    held["head_dim"] = np.array([float(a.head_dim or 128) for a in own])
    held["kv_element"] = np.full(len(own), ELEMENT)
    held["length"] = np.array([float(a.tokens if prefill else a.context) for a in own])
    if prefill:
        held["context"] = np.array([float(a.context) for a in own])
    sizes = {name: (("workload", "op"), size[:, None]) for name, size in held.items()}
    sizes["calls"] = (("workload", "op"), np.ones((len(own), 1)))
    return xr.Dataset(sizes, coords={"workload": [a.label for a in own], "op": ["attention"]})


def sampled(step: Step) -> int:
    """Sequences that a step samples a token for [1]: each that decodes, and finished prompts.

    >>> sampled(Step("mixed", prefill=512, batch=64, context=2048))
    65
    """
    return step.decoding + step.prompts


def _cells(steps: Sequence[Step], ops: Sequence[str], **sizes: object) -> xr.Dataset:
    """Sizes with dims (workload, op) [1]; each is given for the workloads, or for both."""
    shape = (len(steps), len(ops))
    values = {}
    for name, size in sizes.items():
        array = np.asarray(size)
        array = array[:, None] if array.ndim == 1 else array
        values[name] = (("workload", "op"), np.broadcast_to(array, shape).copy())
    return xr.Dataset(values, coords={"workload": [s.label for s in steps], "op": list(ops)})


def _with_head(llm: LLM, steps: Sequence[Step], tp: int) -> xr.Dataset:
    """Projections of all layers, and the LM head for the sequences that are sampled."""
    projections = gemm_cells(llm, steps, tp=tp)  # refuses a tp that does not divide the LLM
    head = _cells(
        steps,
        [HEAD],
        M=np.array([sampled(s) for s in steps], dtype=float),
        N=float(np.ceil(llm.vocab / tp)),
        K=float(llm.hidden),
        calls=1.0,
    )
    return xr.concat([projections, head], dim="op", join="exact")


def _heads(llm: LLM, tp: int) -> dict[str, float]:
    return {
        "heads": float(llm.heads // tp),
        "kv_heads": float(kv_heads_per_gpu(llm, tp)),
        "head_dim": float(llm.head_dim),
    }


def _prefill(llm: LLM, steps: Sequence[Step], tp: int) -> xr.Dataset:
    new = np.array([float(s.tokens or s.prefill) for s in steps])
    cached = np.array([float(s.context if s.kind == "prefill" else 0) for s in steps])
    return _cells(
        steps,
        ["attention_prefill"],
        batch=np.array([float(max(s.prompts, 1)) for s in steps]),
        length=np.maximum(new, 1.0),
        context=cached,
        calls=np.where(new > 0, float(llm.layers), 0.0),
        **_heads(llm, tp),
    )


def _decode(llm: LLM, steps: Sequence[Step], tp: int) -> xr.Dataset:
    batch = np.array([float(s.decoding) for s in steps])
    length = np.array([float(s.context + 1 if s.decoding else 1) for s in steps])
    return _cells(
        steps,
        ["attention_decode"],
        batch=np.maximum(batch, 1.0),
        length=length,
        calls=np.where(batch > 0, float(llm.layers), 0.0),
        kv_element=ELEMENT,
        **_heads(llm, tp),
    )


def _light(
    llm: LLM, steps: Sequence[Step], new: np.ndarray, tp: int, *, narrow: bool
) -> xr.Dataset:
    """Light kernels of a fused engine; a norm takes the residual add along: twice the traffic."""
    heads, kv_heads, width = _heads(llm, tp).values()
    per_layer = float(llm.layers)
    kinds = {  # op: kernel, width, tokens for each new one, calls
        "norm": ("norm", float(llm.hidden), 2.0, 2 * per_layer + 1),
        "rope": ("rope", (heads + kv_heads) * width, 1.0, per_layer),
        "kv_write": ("kv_write", 2 * kv_heads * width, 1.0, per_layer),
        "activation": ("activation", float(llm.intermediate // tp), 1.0, per_layer),
        "embedding": ("embedding", float(llm.hidden), 1.0, 1.0),
    }
    if narrow:  # inputs of qkv, o, gate and up, down: one kernel of their mean width
        width_in = (2 * llm.hidden + heads * width + llm.intermediate // tp) / 4
        kinds["quantise"] = ("quantise", width_in, 1.0, 4 * per_layer)
    columns = list(zip(*kinds.values(), strict=True))
    each = (len(steps), len(kinds))
    return _cells(
        steps,
        list(kinds),
        kernel=np.broadcast_to(np.array(columns[0]), each),
        width=np.broadcast_to(np.array(columns[1]), each),
        tokens=new[:, None] * np.array(columns[2]),
        calls=np.broadcast_to(np.array(columns[3]), each),
    )


def _allreduce(llm: LLM, steps: Sequence[Step], new: np.ndarray, tp: int) -> xr.Dataset:
    """Sums over the GPUs after attention and MLP of each layer; none on one GPU."""
    return _cells(
        steps,
        ["all_reduce"],
        gpus=float(max(tp, 2)),
        bytes=ELEMENT * new * llm.hidden,
        calls=2.0 * llm.layers if tp > 1 else 0.0,
    )


def _host(llm: LLM, steps: Sequence[Step], new: np.ndarray, tp: int, graphs: bool) -> xr.Dataset:
    captured = graphs * (new <= GRAPH_TOKENS)
    cells = _cells(
        steps,
        ["host"],
        kernels=float(kernel_count(llm.layers, shared=tp > 1)),
        sequences=np.array([float(sampled(s)) for s in steps]),
        mode=np.where(captured, float(REPLAYED), float(EAGER)),
    )
    return cells.isel(op=0, drop=True)
