"""Times of light kernels and projections from the operator profiles of the Vidur simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from m2bayes._files import shown
from m2bayes.errors import DataError
from m2bayes.importers._rows import MOST_ROWS, columns, frames

BACKEND, VERSION = "vidur", "7d47513"
TOKENS, PARALLEL = "num_tokens", "num_tensor_parallel_workers"
SIZES = (TOKENS, PARALLEL, "n_head", "n_kv_head", "n_embd", "n_expanded_embd")
GATED = "use_gated_mlp"
MILLISECOND, LONGEST = 1e-3, 1e6  # [s]; [ms] longer than any profiled kernel
GIVE = "give an mlp.csv of Vidur"


def _hidden(table: pd.DataFrame) -> pd.Series:
    return table["n_embd"]


def _gated(table: pd.DataFrame) -> pd.Series:
    return table["n_expanded_embd"] / table[PARALLEL]


def _rotated(table: pd.DataFrame) -> pd.Series:
    """Elements of the query and key heads of one GPU, which has at least one KV head."""
    keys = np.maximum(table["n_kv_head"] / table[PARALLEL], 1)
    heads = table["n_head"] / table[PARALLEL] + keys
    return heads * table["n_embd"] / table["n_head"]


OPERATORS: dict[str, tuple[str, Callable[[pd.DataFrame], pd.Series]]] = {
    "input_layernorm": ("norm", _hidden),
    "post_attention_layernorm": ("norm", _hidden),
    "mlp_act": ("activation", _gated),
    "attn_rope": ("rope", _rotated),
    "add": ("add", _hidden),
    "emb": ("embedding", _hidden),
}


def _heads(table: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Elements of the query heads, and of the key and value heads, of one GPU."""
    size = table["n_embd"] / table["n_head"]
    keys = (table["n_kv_head"] / table[PARALLEL]).clip(lower=1)
    return table["n_head"] / table[PARALLEL] * size, 2 * keys * size


# name of the profile: name of the projection, and its N and K on one GPU
PROJECTIONS: dict[str, tuple[str, Callable[[pd.DataFrame], tuple[pd.Series, pd.Series]]]] = {
    "attn_pre_proj": ("qkv", lambda t: (_heads(t)[0] + _heads(t)[1], t["n_embd"])),
    "attn_post_proj": ("o", lambda t: (t["n_embd"], _heads(t)[0])),
    "mlp_up_proj": ("gate_up", lambda t: (2 * _gated(t), t["n_embd"])),
    "mlp_down_proj": ("down", lambda t: (t["n_embd"], _gated(t))),
}


def read_operators(path: str | Path, *, sku: str) -> pd.DataFrame:
    """Read the light kernels of one ``mlp.csv``, a profile of one LLM on one card.

    Rows with the same kernel, tokens and width are replicates: a norm, an addition and an
    embedding are profiled anew for each degree of tensor parallelism, which does not change them.

    Parameters
    ----------
    path : str or Path
        ``mlp.csv`` of Vidur, whose times are in milliseconds, rounded to a microsecond.
    sku : str
        The card that was profiled; the file does not say.

    Returns
    -------
    DataFrame, dims (row,), one row a measurement
        ``sku``, ``backend``, ``version``, ``kernel`` (text), ``tokens`` [token], ``width``
        [element] of one token on one GPU, ``op_time`` [s], the median of its repetitions;
        ``op``, the profiled operator, which tells the two norms of a block apart.

    Raises
    ------
    DataError
        If the file cannot be read, holds no row or lacks a column, or names the row whose number
        is wrong.
    """
    origin = shown(path)
    times = [f"time_stats.{name}.median" for name in OPERATORS]
    check_columns(Path(path), times)
    table = _table(Path(path), [*SIZES, GATED, *times])
    for name in SIZES:
        number = _number(table, name, origin)
        _refuse(table, name, (number < 1) | (number % 1 != 0), origin, "a whole number from 1 on")
        table[name] = number
    for name in times:
        number = _number(table, name, origin)
        _refuse(table, name, number <= 0, origin, "a time above zero, in milliseconds")
        _refuse(table, name, number > LONGEST, origin, "a time in milliseconds")
        table[name] = number
    _refuse(table, GATED, ~is_gated(table), origin, "True: only gated activations are known")
    parts = [
        pd.DataFrame(
            {
                "sku": sku,
                "backend": BACKEND,
                "version": VERSION,
                "kernel": kernel,
                "tokens": table[TOKENS],
                "width": width(table),
                "op_time": table[f"time_stats.{name}.median"] * MILLISECOND,
                "op": name,
            }
        )
        for name, (kernel, width) in OPERATORS.items()
    ]
    return pd.concat(parts, ignore_index=True)


def check_columns(path: Path, times: Sequence[str]) -> None:
    """Raise a DataError unless a file is an ``mlp.csv`` that holds these times."""
    names = columns(path)
    if any(
        name.startswith(("time_stats.attn_prefill", "time_stats.attn_decode")) for name in names
    ):
        raise DataError(f"{shown(path)}: is Vidur's attention.csv; give the mlp.csv beside it")
    missing = [c for c in (*SIZES, GATED, *times) if c not in names]
    if missing:
        raise DataError(f"{shown(path)}: no column {', '.join(missing)}; {GIVE}")


def is_gated(table: pd.DataFrame) -> pd.Series:
    """Whether the activation of each row is gated, dims (row,) [1]."""
    return table[GATED].astype(str).str.strip().str.lower() == "true"


def _table(path: Path, names: Sequence[str]) -> pd.DataFrame:
    """Some columns of a file, as numbers where all of a block are, else as text."""
    blocks, rows = [], 0
    for frame in frames(path):
        blocks.append(frame[list(names)].apply(_lean))
        rows += len(frame)
        if rows > MOST_ROWS // len(OPERATORS):
            raise DataError(
                f"{shown(path)}: holds more than {MOST_ROWS:,} measurements; thin or split it"
            )
    return pd.concat(blocks, ignore_index=True)


def _lean(cells: pd.Series) -> pd.Series:
    """Cells as numbers, which take a tenth of the memory, if none of them is text."""
    try:
        return pd.to_numeric(cells)
    except ValueError:
        return cells


def _number(table: pd.DataFrame, name: str, origin: str) -> pd.Series:
    """Column as finite numbers."""
    number = pd.to_numeric(table[name], errors="coerce").astype(float)
    _refuse(table, name, number.isna() | np.isinf(number), origin, "a finite number")
    return number


def _refuse(table: pd.DataFrame, name: str, bad: pd.Series, origin: str, wanted: str) -> None:
    """Raise for the first row where `bad` holds."""
    if bad.any():
        at = int(np.flatnonzero(bad.to_numpy())[0])
        given = ascii(str(table[name].iloc[at])[:60])
        raise DataError(f"{origin}: row {at + 1}, column {name}: {given} is not {wanted}")
