"""Memory that an LLM takes on one of the GPUs that share it: weights and KV cache."""

from __future__ import annotations

from m2bayes.errors import UnknownNameError
from m2bayes.gemm import gemm_shapes, kv_heads_per_gpu
from m2bayes.llm import LLM

DTYPE_BYTES: dict[str, float] = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0}
DTYPE_BYTES["w4a16"] = 0.5 + 2 / 128  # of a weight: groups of 128 with a 16-bit scale
"""Size of one number [byte], by name."""


def weight_bytes(llm: LLM, *, tp: int = 1, dtype: str = "bf16") -> float:
    """Weights resident on one of `tp` GPUs.

    Matrices of all layers, plus the embedding table and the LM head (one table if tied), which
    stay in 16 bit when `dtype` is narrower, as in served checkpoints. Norms, biases, position
    tables and the padding of the vocabulary are left out: under 0.15 % of any LLM here.

    Parameters
    ----------
    llm : LLM
        Shape of the LLM.
    tp : int
        GPUs that share each matrix [1].
    dtype : str
        Type of the weights, a key of `DTYPE_BYTES`.

    Returns
    -------
    float
        Resident weights [byte], no dims.

    Raises
    ------
    WorkloadError, UnknownNameError
        If `tp` does not fit the LLM; if `dtype` is unknown.

    Examples
    --------
    Per layer 8 (6 + 2) for attention and 8 · 10 for the MLP; a table of 10 rows of 8: 224 numbers.

    >>> llm = LLM(name="tiny", layers=1, hidden=8, heads=1, kv_heads=1, head_dim=2,
    ...           intermediate=5, gated=False, vocab=10, tied_embeddings=True, max_context=32)
    >>> weight_bytes(llm)
    448.0
    """
    width = _width(dtype)
    layer = sum(N * K for N, K in gemm_shapes(llm, tp=tp).values())
    tables = (1 if llm.tied_embeddings else 2) * llm.vocab * llm.hidden / tp
    return llm.layers * layer * width + tables * max(width, DTYPE_BYTES["bf16"])


def weights_read(llm: LLM, *, tp: int = 1, dtype: str = "bf16") -> float:
    """Weights [byte] that every step reads on one of `tp` GPUs: all but a table of embeddings.

    Of embeddings a step reads a row a token, unless the LM head is the same table. Arguments and
    errors as of `weight_bytes`, no dims.
    """
    table = 0 if llm.tied_embeddings else llm.vocab * llm.hidden * DTYPE_BYTES["bf16"] / tp
    return weight_bytes(llm, tp=tp, dtype=dtype) - table


def kv_bytes_per_token(llm: LLM, *, tp: int = 1, dtype: str = "bf16") -> float:
    """Keys and values of one token on one of `tp` GPUs: 2 · layers · kv_heads · head_dim numbers.

    Heads are split over the GPUs, at least one a GPU. Sliding windows, which let an engine
    forget old tokens, are left out: then this is an upper bound.

    Parameters
    ----------
    llm : LLM
        Shape of the LLM.
    tp : int
        GPUs that share the heads [1].
    dtype : str
        Type of the cache, a key of `DTYPE_BYTES`.

    Returns
    -------
    float
        Cache of one token [byte], no dims.

    Raises
    ------
    WorkloadError, UnknownNameError
        If `tp` does not fit the LLM; if `dtype` is unknown.

    Examples
    --------
    >>> llm = LLM(name="tiny", layers=3, hidden=8, heads=4, kv_heads=2, head_dim=5,
    ...           intermediate=16, gated=True, vocab=10, tied_embeddings=True, max_context=32)
    >>> kv_bytes_per_token(llm), kv_bytes_per_token(llm, tp=4)
    (120.0, 60.0)
    """
    return 2 * llm.layers * kv_heads_per_gpu(llm, tp) * llm.head_dim * _width(dtype)


def _width(dtype: str) -> float:
    if dtype not in DTYPE_BYTES:
        raise UnknownNameError("dtype", str(dtype), DTYPE_BYTES)
    return DTYPE_BYTES[dtype]
