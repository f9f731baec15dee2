"""Time kernels on the GPU at hand: randomised, repeated, cold and warm, in bursts and sustained."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd

from m2bayes._random import labelled_rng
from m2bayes.errors import DataError
from m2bayes.gemm import gemm_shapes
from m2bayes.llm import LLM
from m2bayes.measurements import checked
from m2bayes.mechanism.laws import LAWS
from m2bayes.workload import Attention, Kernel, Workload

TOKENS = tuple(2**i for i in range(15))  # M of the projections, 1 to 16384
BATCHES, CONTEXTS = (1, 16, 64), (512, 4096)  # of decode attention; contexts also of prefill
BURST, CHUNK = 5e-3, 2e-2  # [s] of work at once: before the clock moves; between two readings
FEWEST, MOST = 5, 5000  # calls at once
BACKEND = "torch"
LAUNCH = "launch"
USUAL = LLM(  # the shapes that are measured where no LLM is named
    name="usual", layers=1, hidden=4096, heads=32, kv_heads=8, head_dim=128, intermediate=14336,
    gated=True, vocab=2**17, tied_embeddings=False, max_context=2**17,
)  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """What the driver says of a moment: SM clock [Hz], power [W], temperature [°C], throttling."""

    sm_clock: float
    power: float
    temperature: float
    throttle: str = ""


class Device(Protocol):
    """A GPU that runs kernels on real random data.

    Each of the three returns the time [s] of all `calls` together, one after another, and calls
    `during` once they are queued. Cold operands are read from memory, warm ones may be in L2.
    """

    name: str
    software: str
    power_limit: float

    def gemm(self, M: int, N: int, K: int, *, calls: int, cold: bool, during: Callable) -> float:
        """Time [s] of products of M × K activations with K × N weights."""

    def attention(
        self, sizes: Mapping[str, int], *, calls: int, cold: bool, during: Callable
    ) -> float:
        """Time [s] of causal attention: ``phase`` in the sizes is 0 for prefill, 1 for decode."""

    def launch(self, *, calls: int, during: Callable) -> float:
        """Time [s] of kernels that do next to nothing."""

    def clock(self) -> Reading:
        """Return the driver's reading of this moment."""


@dataclass(frozen=True)
class Cell:
    """One kernel and how it is run.

    Parameters
    ----------
    law : str
        A key of `m2bayes.mechanism.laws.LAWS`, or ``launch``.
    sizes : tuple of (str, int)
        Of the law, by name [1].
    op : str
        Name of the projection.
    cold, sustained : bool
        Whether the operands come from memory, and whether the clock has settled.
    """

    law: str
    sizes: tuple[tuple[str, int], ...] = ()
    op: str = ""
    cold: bool = True
    sustained: bool = False


def plan(llm: LLM, *, tokens: Sequence[int] = TOKENS, what: Sequence[str] = ()) -> list[Cell]:
    """Cells of one LLM on one GPU: projections, attention, launch.

    Parameters
    ----------
    llm : LLM
        Whose shapes.
    tokens : sequence of int
        Rows M of the projections [token].
    what : sequence of str
        Of ``gemm``, ``attention``, ``launch``; empty for all.

    Examples
    --------
    >>> llm = LLM(name="tiny", layers=1, hidden=256, heads=2, kv_heads=2, head_dim=128,
    ...           intermediate=512, gated=True, vocab=9, tied_embeddings=True, max_context=64)
    >>> len(plan(llm, tokens=[1, 2], what=["gemm"]))  # 4 projections, cold and warm, both regimes
    32
    """
    chosen = set(what) or {"gemm", "attention", LAUNCH}
    cells: list[Cell] = []
    ways = [*itertools.product((True, False), (False, True))]
    if "gemm" in chosen:
        for (op, (N, K)), M in itertools.product(gemm_shapes(llm).items(), tokens):
            sizes = (("M", int(M)), ("N", int(N)), ("K", int(K)))
            cells += [Cell("gemm_time", sizes, op, cold, long) for cold, long in ways]
    if "attention" in chosen:
        heads = (("heads", llm.heads), ("kv_heads", llm.kv_heads))
        shapes = [("prefill_time", 1, length) for length in CONTEXTS]
        shapes += [("decode_time", b, length) for b, length in itertools.product(BATCHES, CONTEXTS)]
        for law, batch, length in shapes:
            shape = (("batch", batch), ("length", length), *heads)
            cells += [Cell(law, shape, "attention", cold, long) for cold, long in ways]
    if LAUNCH in chosen:
        cells += [Cell(LAUNCH, cold=False, sustained=long) for long in (False, True)]
    return cells


def cells_of(workloads: Sequence[Workload]) -> list[Cell]:
    """Cells of single kernels: cold and warm, in bursts and sustained.

    Parameters
    ----------
    workloads : sequence of Kernel or Attention
        What is to be timed [1].

    Raises
    ------
    DataError
        If one is a step of an engine.

    Examples
    --------
    >>> from m2bayes.workload import parse_workload
    >>> len(cells_of([parse_workload("gemm:m=64,n=6144,k=4096")]))
    4
    """
    cells: list[Cell] = []
    for one in workloads:
        if isinstance(one, Kernel):
            law, op = "gemm_time", "gemm"
            sizes: tuple[tuple[str, int], ...] = (("M", one.m), ("N", one.n), ("K", one.k))
        elif isinstance(one, Attention) and not (one.phase == "prefill" and one.context):
            law, op = f"{one.phase}_time", "attention"
            length = one.tokens if one.phase == "prefill" else one.context
            heads = (("heads", one.heads), ("kv_heads", one.kv_heads))
            sizes = (("batch", one.batch), ("length", length), *heads)
        else:
            raise DataError(f"--cell {one.label}: give a gemm: or attention: without cached tokens")
        ways = itertools.product((True, False), (False, True))
        cells += [Cell(law, sizes, op, cold, long) for cold, long in ways]
    return cells


def in_random_order(cells: Sequence[Cell], *, repeats: int, seed: int) -> list[tuple[Cell, int]]:
    """Every cell as often as wanted, all shuffled together, so that drift meets all alike."""
    runs = [(cell, repeat) for repeat in range(repeats) for cell in cells]
    order = labelled_rng(seed, "measure").permutation(len(runs))
    return [runs[int(i)] for i in order]


def measured(
    device: Device,
    runs: Sequence[tuple[Cell, int]],
    *,
    sku: str,
    seconds: float,
    cooldown: float,
    sleep: Callable[[float], None],
    tell: Callable[[int], None] = lambda done: None,
) -> dict[str, pd.DataFrame]:
    """Run everything and return a table of each law.

    Parameters
    ----------
    device : Device
        The GPU.
    runs : sequence of (Cell, int)
        From `in_random_order`.
    sku : str
        Full name of the card.
    seconds : float
        How long a sustained run lasts [s]; its first half lets the clock settle.
    cooldown : float
        Pause before each run [s].
    sleep : callable
        Waits so many seconds.
    tell : callable
        Told how many runs are done.

    Returns
    -------
    dict of str to DataFrame, dims (row,)
        Columns of the law with ``op_time`` [s], and ``op``, ``cache``, ``regime``, ``repeat``,
        ``order``, ``calls``, ``sm_clock`` [Hz], ``power`` [W], ``temperature`` [°C], ``throttle``.
    """
    rows: dict[str, list[dict[str, Any]]] = {}
    for order, (cell, repeat) in enumerate(runs):
        sleep(cooldown)
        time, calls, readings = _run(device, cell, seconds)
        row: dict[str, Any] = {"sku": sku, "backend": BACKEND, "version": device.software}
        row |= dict(cell.sizes) | {"op_time": time, "op": cell.op}
        row |= {"cache": "cold" if cell.cold else "warm"}
        row |= {"regime": "sustained" if cell.sustained else "burst"}
        row |= {"repeat": repeat, "order": order, "calls": calls} | _summary(readings)
        rows.setdefault(cell.law, []).append(row)
        tell(order + 1)
    return {law: _table(law, held) for law, held in sorted(rows.items())}


def _run(device: Device, cell: Cell, seconds: float) -> tuple[float, int, list[Reading]]:
    """Time [s] of one kernel, calls that it is the mean of, and readings meanwhile."""
    readings: list[Reading] = []

    def during() -> None:
        readings.append(device.clock())

    def nothing() -> None:
        return

    once = max(_call(device, cell, FEWEST, nothing) / FEWEST, 1e-9)
    if not cell.sustained:
        calls = int(np.clip(BURST / once, FEWEST, MOST))
        return _call(device, cell, calls, during) / calls, calls, readings
    calls, total, kept = int(np.clip(CHUNK / once, 1, MOST)), 0.0, []
    while total < seconds:
        time = _call(device, cell, calls, during)
        if not time > 0:
            raise DataError(f"{device.name}: a kernel took {time} s; is the timer sound?")
        total += time
        kept.append(time)
    half = kept[len(kept) // 2 :]
    return sum(half) / len(half) / calls, calls * len(half), readings[-len(half) :]


def _call(device: Device, cell: Cell, calls: int, during: Callable[[], None]) -> float:
    sizes = dict(cell.sizes)
    if cell.law == LAUNCH:
        return device.launch(calls=calls, during=during)
    if cell.law == "gemm_time":
        return device.gemm(**sizes, calls=calls, cold=cell.cold, during=during)
    sizes["phase"] = int(cell.law == "decode_time")
    return device.attention(sizes, calls=calls, cold=cell.cold, during=during)


def _summary(readings: Sequence[Reading]) -> dict[str, Any]:
    throttle = {reason for r in readings for reason in r.throttle.split("+") if reason}
    return {
        "sm_clock": float(np.median([r.sm_clock for r in readings])),
        "power": float(np.median([r.power for r in readings])),
        "temperature": float(np.max([r.temperature for r in readings])),
        "throttle": "+".join(sorted(throttle)),
    }


def _table(law: str, rows: list[dict[str, Any]]) -> pd.DataFrame:
    table = pd.DataFrame(rows)
    if law in LAWS:
        checked(table, origin=f"the {law} measured here", law=LAWS[law])
        first = [*LAWS[law].columns]
        table = table[first + [name for name in table if name not in first]]
    by = [name for name in table if name not in ("op_time", "order", "calls")]
    return table.sort_values([str(name) for name in by], ignore_index=True)
