"""Operator profiles of simulators: Vidur's projections, LLMServingSim's layers."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from m2bayes._files import shown
from m2bayes.errors import DataError
from m2bayes.gemm import gemm_shapes
from m2bayes.importers._labels import whose
from m2bayes.importers._parts import (
    Ask,
    Part,
    hashes,
    in_blocks,
    joined,
    names_of,
    numbers,
    placed,
    require,
)
from m2bayes.importers._rows import columns
from m2bayes.llm import LLM
from m2bayes.mechanism.laws import LAWS
from m2bayes.vidur import (
    BACKEND,
    GATED,
    MILLISECOND,
    PARALLEL,
    PROJECTIONS,
    SIZES,
    TOKENS,
    VERSION,
    check_columns,
    is_gated,
)

GEMM = list(LAWS["gemm_time"].columns)
LAYER, ATTENTION = ("layer", "tokens", "time_us"), ("prefill_chunk", "kv_prefill", "n_decode")
OLD = ("layer_name", "input", "kv_cache", "tp_size", "latency(ns)")
MICROSECOND, NANOSECOND = 1e-6, 1e-9  # [s]
# layer of LLMServingSim: projection of `m2bayes.gemm.gemm_shapes`
FUSED = {"qkv_proj": "qkv", "o_proj": "o", "gate_up_proj": "gate_up", "down_proj": "down"}


def read_vidur(path: Path, ask: Ask) -> Part:
    """Read the projections of one ``mlp.csv`` of Vidur as matrix products.

    Parameters
    ----------
    path : Path
        A profile of one LLM on one card, in milliseconds.
    ask : Ask
        The card; the file does not say.

    Returns
    -------
    Part
        ``M``, ``N``, ``K`` [1] on one GPU and ``op_time`` [s], dims (measurement,): four of each
        row of the file, replicates kept.

    Raises
    ------
    DataError
        If it is another file, or a row's activation is not gated.
    """
    check_columns(path, [f"time_stats.{name}.median" for name in PROJECTIONS])
    names = columns(path)
    key = [name for name in names if not name.startswith("time_stats.")]
    rest = frozenset(n for n in key if n not in (*SIZES, GATED, "vocab_size"))
    return in_blocks(path, lambda frame: _vidur_block(frame, path, ask, key, rest))


def _vidur_block(
    frame: pd.DataFrame, path: Path, ask: Ask, key: list[str], rest: frozenset[str]
) -> Part:
    origin = shown(path)
    texts: dict[tuple[str, int, str], str] = {}
    other = frame.index[~is_gated(frame).to_numpy()]
    if len(other):
        raise DataError(
            f"{origin}: row {other[0]}, column {GATED}: is not True; only gated MLPs are known"
        )
    sizes = pd.DataFrame({name: numbers(frame, name, texts, origin) for name in SIZES})
    labels = whose(frame, ask, path, default=(BACKEND, VERSION))
    parts = []
    for name, (_, shape) in PROJECTIONS.items():
        column = f"time_stats.{name}.median"
        N, K = shape(sizes)
        time = numbers(frame, column, texts, origin) * MILLISECOND
        rows = pd.DataFrame({**labels, "M": sizes[TOKENS], "N": N, "K": K, "op_time": time})
        parts.append(placed(rows[GEMM], origin, column))
    return Part(
        "gemm_time",
        pd.concat(parts),
        hashes(frame, origin, key, ()),
        rest,
        texts=texts,
        key=(TOKENS, PARALLEL),
    )


def read_llmservingsim(path: Path, ask: Ask) -> Part:
    """Read a per-layer table of LLMServingSim: the projections as matrix products.

    Parameters
    ----------
    path : Path
        ``…_dense.csv`` with ``layer``, ``tokens``, ``time_us``, or the older table with
        ``latency(ns)``, whose projections of query, key and value are single products.
    ask : Ask
        The card, and ``llm``: the file does not say.

    Returns
    -------
    Part
        ``M``, ``N``, ``K`` [1] and ``op_time`` [s], dims (measurement,). Other layers are left out.

    Raises
    ------
    DataError
        If it is another file, or the LLM is not given.
    """
    names = columns(path)
    if set(ATTENTION) <= set(names):
        raise DataError(f"{shown(path)}: mixes chunks of prefill with decode; give …_dense.csv")
    old = names[0] == OLD[0]
    require(path, OLD if old else LAYER, "a layer table of LLMServingSim")
    if "llm" not in ask.given:
        raise DataError(f"{shown(path)}: does not say the LLM; add --given llm=NAME")
    llm = ask.database.llm(ask.given["llm"])
    return joined([in_blocks(path, lambda frame: _layers(frame, path, ask, llm, old))])


def _layers(frame: pd.DataFrame, path: Path, ask: Ask, llm: LLM, old: bool) -> Part:
    origin = shown(path)
    texts: dict[tuple[str, int, str], str] = {}
    layer, tokens, time = (OLD[0], OLD[1], OLD[4]) if old else LAYER
    label = frame[layer].astype(str).str.strip()
    shapes = _split_shapes(llm) if old else {k: gemm_shapes(llm)[v] for k, v in FUSED.items()}
    known = label.isin(list(shapes))
    if old:
        degrees = numbers(frame, OLD[3], texts, origin)[known].dropna()
        if (degrees != 1).any():
            raise DataError(f"{origin}: column tp_size: only tables of one GPU can be read")
    kept = frame[known]
    rows = pd.DataFrame(
        {
            **whose(kept, ask, path, default=("llmservingsim", "unknown")),
            "M": numbers(kept, tokens, texts, origin),
            "N": label[known].map({name: float(N) for name, (N, _) in shapes.items()}),
            "K": label[known].map({name: float(K) for name, (_, K) in shapes.items()}),
            "op_time": numbers(kept, time, texts, origin) * (NANOSECOND if old else MICROSECOND),
        }
    )
    left = {f"layer {name}": int(n) for name, n in label[~known].value_counts().items()}
    key = tuple(n for n in names_of(frame) if n != time)
    raw = hashes(frame, origin, key, ())
    return Part("gemm_time", placed(rows[GEMM], origin, time), raw, frozenset(), left, texts, key)


def _split_shapes(llm: LLM) -> dict[str, tuple[int, int]]:
    """N and K of projections that are products of their own."""
    shapes = gemm_shapes(llm)
    width = llm.heads * llm.head_dim
    keys = llm.kv_heads * llm.head_dim
    return {
        "q_proj": (width, llm.hidden),
        "k_proj": (keys, llm.hidden),
        "v_proj": (keys, llm.hidden),
        "o_proj": shapes["o"],
        "gate_proj": (llm.intermediate, llm.hidden),
        "up_proj": (llm.intermediate, llm.hidden),
        "down_proj": shapes["down"],
    }
