"""The matrix products of one engine step, on one of the GPUs that share the LLM."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

import numpy as np
import xarray as xr

from m2bayes._spec import Kernel, Step, Workload
from m2bayes.errors import WorkloadError
from m2bayes.llm import LLM


def gemm_shapes(llm: LLM, *, tp: int = 1) -> dict[str, tuple[int, int]]:
    """Weight matrices of one layer on one of `tp` GPUs.

    Heads and MLP width are split; qkv and gate_up lose columns N, o and down rows K. With more
    GPUs than key/value heads, each GPU keeps a copy of one head, as served engines do, so the
    qkv shards then hold more than the whole.

    Parameters
    ----------
    llm : LLM
        Shape of the LLM.
    tp : int
        GPUs that share each matrix [1]; divides heads and MLP width, and divides or is a
        multiple of the key/value heads.

    Returns
    -------
    dict
        Output and input width (N, K) [1] of qkv, o, gate_up and down, no dims.

    Raises
    ------
    WorkloadError
        If `tp` does not fit; the message lists those that do.

    Examples
    --------
    >>> llm = LLM(name="tiny", layers=1, hidden=8, heads=4, kv_heads=2, head_dim=2,
    ...           intermediate=16, gated=True, vocab=10, tied_embeddings=True, max_context=32)
    >>> gemm_shapes(llm, tp=2)
    {'qkv': (8, 8), 'o': (8, 4), 'gate_up': (16, 8), 'down': (8, 8)}
    """
    kv_heads = kv_heads_per_gpu(llm, tp)
    attention, mlp = llm.heads * llm.head_dim // tp, llm.intermediate // tp
    return {
        "qkv": (attention + 2 * kv_heads * llm.head_dim, llm.hidden),
        "o": (llm.hidden, attention),
        "gate_up": ((2 if llm.gated else 1) * mlp, llm.hidden),
        "down": (llm.hidden, mlp),
    }


def gemm_cells(llm: LLM | None, steps: Sequence[Workload], *, tp: int = 1) -> xr.Dataset:
    """Matrix products of each workload on one GPU: (M, K) activations times (K, N) weights.

    M is the number of new tokens of the step; N and K follow from the LLM, see `gemm_shapes`.
    The LM head and attention are not among them. Sizes are float64, so that 2MNK cannot overflow.

    Parameters
    ----------
    llm : LLM or None
        Shape of the LLM; kernels need none, and ignore it.
    steps : sequence of Step or Kernel, dims (workload,)
        All steps, or all kernels.
    tp : int
        GPUs that share each matrix [1]; must divide heads and MLP width. 1 for kernels.

    Returns
    -------
    Dataset, dims (workload, op)
        `M`, `N`, `K` [1] and `calls` [1], how often the step runs the product (once a layer).
        ``op`` is qkv, o, gate_up, down; gemm for kernels. ``workload`` holds the labels, in order.

    Raises
    ------
    WorkloadError
        If steps and kernels are mixed, a workload comes twice, a step has no LLM or is longer
        than its context, or `tp` does not fit.

    Examples
    --------
    >>> cells = gemm_cells(None, [Kernel(m=64, n=6144, k=4096)])
    >>> cells.N.sel(workload="gemm:m=64,n=6144,k=4096", op="gemm").item()
    6144.0
    """
    _check_batch(llm, steps, tp)
    if llm is None or isinstance(steps[0], Kernel):
        sides = [(w.m, w.n, w.k) for w in steps if isinstance(w, Kernel)]
        mnk, layers, ops = np.array(sides, dtype=float)[:, None, :], 1, ["gemm"]
    else:
        shapes = gemm_shapes(llm, tp=tp)
        mnk, layers, ops = np.empty((len(steps), len(shapes), 3)), llm.layers, list(shapes)
        mnk[..., 0] = np.array([w.new_tokens for w in steps if isinstance(w, Step)])[:, None]
        mnk[..., 1:] = list(shapes.values())
    sizes = {"M": mnk[..., 0], "N": mnk[..., 1], "K": mnk[..., 2]}
    sizes["calls"] = np.full(mnk.shape[:2], float(layers))
    return xr.Dataset(
        {name: (("workload", "op"), size, {"units": "1"}) for name, size in sizes.items()},
        coords={"workload": [w.label for w in steps], "op": ops},
    )


def _check_batch(llm: LLM | None, steps: Sequence[Workload], tp: int) -> None:
    if not steps:
        raise WorkloadError("no workload given; give for instance decode:batch=64,context=2048")
    kinds = {type(w) for w in steps}
    if not kinds <= {Step, Kernel}:
        raise WorkloadError("expected steps or kernels; read each SPEC with parse_workload first")
    if len(kinds) > 1:
        raise WorkloadError(
            f"{steps[0].label} cannot be mixed with others: some are engine steps, some single "
            "kernels; ask for them in two calls"
        )
    if Kernel in kinds and tp != 1:
        raise WorkloadError(f"tp={tp} means nothing for a gemm; give its own n and k with tp=1")
    seen: set[Workload] = set()
    for workload in steps:
        if workload in seen:
            raise WorkloadError(f"workload {workload.label} is given twice; remove one")
        seen.add(workload)
        if isinstance(workload, Step):
            _check_context(llm, workload)


def _check_context(llm: LLM | None, step: Step) -> None:
    if llm is None:
        raise WorkloadError(f"workload {step.label} needs an LLM; give --llm")
    longest = max(step.prefill, step.context + (step.tokens or 1))
    if longest > llm.max_context:
        raise WorkloadError(
            f"workload {step.label}: a sequence of {longest} tokens exceeds the {llm.max_context} "
            f"tokens that {llm.name} can hold; shorten it or choose another LLM"
        )


def kv_heads_per_gpu(llm: LLM, tp: int) -> int:
    """Key/value heads on one of `tp` GPUs [1], at least one; WorkloadError if `tp` does not fit."""
    if isinstance(tp, bool) or not isinstance(tp, Integral) or int(tp) < 1:
        raise WorkloadError(f"tp must be a whole number of at least 1, not {tp!r}")
    reason = _misfit(llm, tp)
    if reason:
        fitting = [str(n) for n in range(1, llm.heads + 1) if _misfit(llm, n) is None]
        raise WorkloadError(f"tp={tp} {reason} of {llm.name}; use one of {', '.join(fitting)}")
    return max(1, llm.kv_heads // tp)


def _misfit(llm: LLM, tp: int) -> str | None:
    if llm.heads % tp:
        return f"does not divide the {llm.heads} attention heads"
    if llm.intermediate % tp:
        return f"does not divide the MLP width {llm.intermediate}"
    if llm.kv_heads % tp and tp % llm.kv_heads:
        return f"neither divides nor is a multiple of the {llm.kv_heads} key/value heads"
    return None
