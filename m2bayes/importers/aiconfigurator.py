"""AIConfigurator's kernel tables (Parquet) and its end-to-end sample (CSV)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from m2bayes._files import shown
from m2bayes.errors import DataError
from m2bayes.importers._labels import whose
from m2bayes.importers._parts import (
    Ask,
    Part,
    hashes,
    in_blocks,
    names_of,
    numbers,
    placed,
    require,
)
from m2bayes.importers._rows import columns
from m2bayes.mechanism.laws import LAWS

MILLISECOND = 1e-3  # [s]
HALF_WIDTH = 2  # [byte] of an element of bfloat16 and half
# op_name: law, and column of each size
KERNELS: dict[str, tuple[str, dict[str, str]]] = {
    "gemm": ("gemm_time", {"M": "m", "N": "n", "K": "k"}),
    "context_attention": (
        "prefill_time",
        {
            "batch": "batch_size",
            "length": "isl",
            "heads": "num_heads",
            "kv_heads": "num_key_value_heads",
        },
    ),
    "generation_attention": (
        "decode_time",
        {
            "batch": "batch_size",
            "length": "step",
            "heads": "num_heads",
            "kv_heads": "num_key_value_heads",
        },
    ),
    "all_reduce": ("allreduce_time", {"gpus": "num_gpus", "bytes": "message_size"}),
}
# what a law holds for, by column: only these values
ONLY: dict[str, tuple[Any, ...]] = {
    "gemm_dtype": ("bfloat16",),
    "attn_dtype": ("bfloat16",),
    "kv_cache_dtype": ("bfloat16",),
    "allreduce_dtype": ("bfloat16",),
    "nccl_dtype": ("half", "bfloat16"),
    "head_dim": (128,),
    "beam_width": (1,),
    "window_size": (0,),
}
DTYPES = {"bf16": "bfloat16"}  # where the tables call a type of matrix products otherwise
SAMPLE = ("backend", "model_path", "system", "isl", "osl", "silicon_ttft_ms", "silicon_tpot_ms")
DEGREES = ("tp_size", "decode_tp_size")  # of one server, or of the servers that decode
SOURCE, CONCURRENCY = "silicon_data_source", r"silicon_concurrency=(\d+)"


def read(path: Path, ask: Ask) -> Part:
    """Read a kernel table, or the end-to-end sample: whichever it is.

    Parameters
    ----------
    path : Path
        ``gemm_perf``, ``context_attention_perf``, ``generation_attention_perf``,
        ``custom_allreduce_perf`` or ``nccl_perf`` as Parquet or CSV, or ``silicon_sample.csv``.
    ask : Ask
        SKU where the file does not say; ``dtype`` of matrix products other than bf16;
        ``kernel_source`` to choose one of several.

    Returns
    -------
    Part
        Tidy rows [s], dims (measurement,): bf16, heads of 128, no window, no beam.

    Raises
    ------
    DataError
        If the file is neither.
    """
    names = columns(path)
    if "silicon_tpot_ms" in names:
        return _sample(path, ask)
    require(path, ("op_name", "latency"), "a kernel table or silicon_sample.csv of AIConfigurator")
    part = in_blocks(path, lambda frame: _kernels(frame, path, ask))
    return _main_source(part, ask)


def _kernels(frame: pd.DataFrame, path: Path, ask: Ask) -> Part:
    origin = shown(path)
    texts: dict[tuple[str, int, str], str] = {}
    op = frame["op_name"].astype(str)
    known = [name for name in KERNELS if (op == name).any()]
    if len(known) != 1:
        raise DataError(
            f"{origin}: column op_name: {op.iloc[0][:40]!a} is none of {', '.join(KERNELS)}"
        )
    law, sizes = KERNELS[known[0]]
    missing = [column for column in sizes.values() if column not in frame]
    if missing:
        raise DataError(f"{origin}: no column {', '.join(missing)}; give the table of {known[0]}")
    kept, left = _only(frame, op == known[0], ask.given.get("dtype", "bf16"))
    tidy: dict[str, Any] = dict(_whose(kept, path, ask))
    for name, column in sizes.items():
        tidy[name] = numbers(kept, column, texts, origin)
    if law == "decode_time":
        tidy["length"] = tidy["length"] + 1  # the new token attends to itself too
    if law == "allreduce_time":
        tidy["bytes"] = HALF_WIDTH * tidy["bytes"]
    tidy["op_time"] = numbers(kept, "latency", texts, origin) * MILLISECOND
    rows = pd.DataFrame(tidy, index=kept.index)[list(LAWS[law].columns)]
    source = kept["kernel_source"].astype(str) if "kernel_source" in kept else ""
    rows = placed(rows.assign(source=source), origin, "latency")
    key = [name for name in names_of(frame) if name != "latency"]
    read_ = {*sizes.values(), *ONLY, "framework", "version", "device", "op_name", "kernel_source"}
    rest = frozenset(key) - read_ - {"step", "isl", "implementation", "backend"}
    raw = hashes(frame, origin, key, ())
    return Part(law, rows, raw, rest, left, texts, tuple(key))


def _only(frame: pd.DataFrame, right: pd.Series, dtype: str) -> tuple[pd.DataFrame, dict[str, int]]:
    """Rows that a law holds for, and how many are not, by the reason."""
    left = {"another operation": int((~right).sum())} if not right.all() else {}
    for column, values in (ONLY | {"gemm_dtype": (DTYPES.get(dtype, dtype),)}).items():
        if column not in frame:
            continue
        number = isinstance(values[0], int)
        cells = pd.to_numeric(frame[column], errors="coerce") if number else frame[column]
        fits = cells.isin(values)
        for value, count in frame[column][right & ~fits].value_counts().items():
            left[f"{column} {value}"] = int(count)
        right = right & fits
    return frame[right], left


def _whose(frame: pd.DataFrame, path: Path, ask: Ask) -> dict[str, pd.Series]:
    """Labels from columns, or from the folders ``<system>/<op>/<framework>/<version>``."""
    parts = path.resolve().parts[-5:-1]
    system, _, framework, version = parts if len(parts) == 4 else ("",) * 4
    if "device" not in frame and ask.sku is None:
        frame = frame.assign(device=system)
    labels = whose(
        frame,
        ask,
        path,
        sku="device" if "device" in frame else "",
        backend="framework" if "framework" in frame else "",
        version="version" if "version" in frame else "",
        default=(framework or "unknown", version or "unknown"),
    )
    if "kernel_source" in frame:
        nccl = frame["kernel_source"].astype(str).str.upper() == "NCCL"
        labels["backend"] = labels["backend"].mask(nccl, "nccl")
    return labels


def _main_source(part: Part, ask: Ask) -> Part:
    """Rows of one kernel: the one given, or the one of most rows that no eager mode launched."""
    source = part.rows["source"].astype(str)
    rows = part.rows.drop(columns="source")
    counts = source.value_counts()
    if len(counts) < 2:
        return Part(part.kind, rows, part.raw, part.unused, part.left_out, part.texts, part.key)
    order = sorted(counts.index, key=lambda s: (s.endswith("_eager"), -counts[s], s))
    wanted = ask.given.get("kernel_source", order[0])
    if wanted not in counts.index:
        raise DataError(
            f"--given kernel_source={wanted}: none of {', '.join(map(str, counts.index))}"
        )
    left = {f"kernel_source {s}": int(n) for s, n in counts.items() if s != wanted}
    kept = rows[(source == wanted).to_numpy()].reset_index(drop=True)
    return Part(
        part.kind, kept, part.raw, part.unused, {**part.left_out, **left}, part.texts, part.key
    )


def _sample(path: Path, ask: Ask) -> Part:
    require(path, SAMPLE, "silicon_sample.csv of AIConfigurator")
    return in_blocks(path, lambda frame: _sample_block(frame, path, ask))


def _sample_block(frame: pd.DataFrame, path: Path, ask: Ask) -> Part:
    """Rows of the end-to-end sample: every column is kept, times in seconds."""
    origin = shown(path)
    texts: dict[tuple[str, int, str], str] = {}
    version = "backend_version" if "backend_version" in frame else ""
    labels = whose(frame, ask, path, sku="system", backend="backend", version=version)
    tidy: dict[str, Any] = {
        **labels,
        "llm": frame["model_path"].astype(str).str.strip(),
        "dtype": frame.get("precision", ""),
        "input_tokens": numbers(frame, "isl", texts, origin),
        "output_tokens": numbers(frame, "osl", texts, origin),
        "ttft": numbers(frame, "silicon_ttft_ms", texts, origin) * MILLISECOND,
        "tpot": numbers(frame, "silicon_tpot_ms", texts, origin) * MILLISECOND,
    }
    batch = pd.Series(float("nan"), index=frame.index)
    if "batch_size" in frame:
        batch = numbers(frame, "batch_size", texts, origin)
    said = pd.Series(float("nan"), index=frame.index)
    if SOURCE in frame:
        said = frame[SOURCE].astype(str).str.extract(CONCURRENCY)[0].astype(float)
        tidy["source"] = frame[SOURCE]
    tidy["concurrency"] = said.fillna(batch)
    degrees = [numbers(frame, n, texts, origin) for n in DEGREES if n in frame]
    if degrees:
        tidy["tp"] = degrees[0] if len(degrees) == 1 else degrees[0].fillna(degrees[1])
    used = {*SAMPLE, "backend_version", "precision", SOURCE}
    others = [name for name in names_of(frame) if name not in used]
    tidy |= {name: frame[name] for name in others}
    rows = placed(pd.DataFrame(tidy, index=frame.index), origin, "silicon_tpot_ms")
    times = ("silicon_ttft_ms", "silicon_tpot_ms")
    key = [name for name in names_of(frame) if name not in (*times, "id", SOURCE)]
    raw = hashes(frame, origin, key, ("id",))
    return Part("served", rows, raw, frozenset(), {}, texts, tuple(key))
