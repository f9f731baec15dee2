"""Measurements that could settle a question: what each would read, and what it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

from m2bayes import decision
from m2bayes._jobs import Each, in_turn
from m2bayes._random import labelled_rng
from m2bayes.factors import with_skus
from m2bayes.feasibility import feasible
from m2bayes.gemm import gemm_shapes
from m2bayes.llm import LLM
from m2bayes.mechanism.gemm import gemm_terms, sustained_share
from m2bayes.operators import attention_cells, operators
from m2bayes.predictive import predict
from m2bayes.question import Question, metric_of, step_times
from m2bayes.workload import Attention, Kernel, Step, Workload, gemm_cells

TOKENS = (1, 16, 64, 256, 1024, 4096, 16384)  # M of cells beside those of the workloads
HOURS = {
    "gemm": 0.02,
    "attention": 0.02,
    "clock": 0.02,
    "step": 0.5,
}  # [h] of one GPU: set-up more than kernels
BUDGET = 2048  # [token] that any engine takes in one step unless it is told otherwise
DECODED = 128  # decode steps of one timed run, whose context grows to either side of the named
CLOCKED = 16384  # M at which the clock is read: it has settled under full load
SERVED_NOISE = 0.02  # log sd of a timed step about its median, from run to run [1]
UNLIKELY = 0.005  # p_best below which nobody would measure a SKU to settle a choice


@dataclass(frozen=True)
class Candidate:
    """One measurement on one SKU.

    Parameters
    ----------
    sku : str
        Full name.
    workload : Kernel, Attention or Step
        What is timed.
    repeats : int
        Runs whose median is read [1].
    tp : int
        GPUs that a step takes [1].
    clock : bool
        Whether the sustained SM clock under the kernel is read, not its time.
    """

    sku: str
    workload: Workload
    repeats: int
    tp: int = 1
    clock: bool = False

    @property
    def kind(self) -> str:
        """``gemm``, ``attention``, ``step`` or ``clock``."""
        if self.clock:
            return "clock"
        return "step" if isinstance(self.workload, Step) else self.workload.kind

    @property
    def label(self) -> str:
        """What is read where."""
        at = f" at TP {self.tp}" * (self.kind == "step" and self.tp > 1)
        return f"{'clock under ' * self.clock}{self.workload.label} on {self.sku}{at}"

    @property
    def hours(self) -> float:
        """GPU time that it takes [h]; steps need an engine with the LLM loaded."""
        return HOURS[self.kind] * (self.tp if self.kind == "step" else 1)

    def command(self, llm: LLM | None) -> str:
        """Command that takes the measurement on a machine with the SKU."""
        if not isinstance(self.workload, Step):  # sustained runs read the clock too
            return (
                f"m2bayes measure --cell {self.workload.label} --repeats {self.repeats} "
                "--out cells.csv"
            )
        step = self.workload
        prefill = step.kind == "prefill"
        if prefill and step.context:
            return (
                f"in your engine, time {step.prompts} prompts of {step.tokens} tokens in one step, "
                f"each after {step.context} tokens that it has cached"
            )
        length = step.tokens if prefill else step.context - DECODED // 2
        sizes = f"--batch-size {max(step.batch, 1)} --input-len {max(length, 1)}"
        if prefill and step.new_tokens > BUDGET:  # or it would be the time of several steps
            sizes += f" --max-num-batched-tokens {step.new_tokens}"
        output = 1 if prefill else DECODED + 1
        model = (llm and llm.repository) or f"'<Hugging Face id of {llm.name if llm else 'LLM'}>'"
        return (
            f"vllm bench latency --model {model} --tensor-parallel-size {self.tp} {sizes} "
            f"--output-len {output} --num-iters {self.repeats} --output-json run.json"
        )


def losses(question: Question, *, each: Each = in_turn) -> xr.DataArray:
    """What choosing each SKU costs, relative to the best choice [1], dims (chain, draw, sku).

    The metric of each workload over the least expected one, averaged over the workloads; where
    more is better its inverse. NaN for a SKU that cannot hold one of the workloads.
    """
    time = step_times(question, question.workloads, each=each)
    fits = xr.DataArray(feasible(question, question.workloads) == "", dims=("sku", "workload"))
    metric = metric_of(question, time.where(fits))
    if question.metric == "tokens_per_second":
        metric = 1 / metric
    mean = metric.mean(("chain", "draw"), skipna=False)
    scale = mean.where(np.isfinite(mean.mean("workload", skipna=False))).min("sku")
    return (metric / scale).mean("workload", skipna=False).transpose("chain", "draw", "sku")


def candidates(question: Question, loss: xr.DataArray, *, repeats: int = 5) -> list[Candidate]:
    """Measurements that bear on a question, on every SKU that may be the best.

    Parameters
    ----------
    question : Question
        What is asked.
    loss : DataArray, dims (chain, draw, sku)
        From `losses` [1].
    repeats : int
        Runs of each [1].

    Returns
    -------
    list of Candidate
        Its own steps on an engine; matrix products of the LLM's shapes at the workloads' tokens
        and at others that tell floor, bandwidth and clock apart; its attention kernels.
    """
    return measurements(question, contenders(loss), repeats=repeats)


def contenders(loss: xr.DataArray) -> list[str]:
    """Labels of what may be the best [1], loss with dims (chain, draw, sku)."""
    able = loss.isel(sku=np.flatnonzero(np.isfinite(loss.values).all(axis=(0, 1))))
    chance = decision.p_best(able)
    return [str(s) for s, p in zip(able["sku"].values, chance.values, strict=True) if p > UNLIKELY]


def measurements(question: Question, skus: Sequence[str], *, repeats: int = 5) -> list[Candidate]:
    """Measurements of some SKUs that bear on a question, see `candidates` [1]."""
    steps: list[Workload] = list(question.workloads) if question.whole else []
    products = [*_gemms(question)]
    every = [*steps, *products, *_attention(question)]
    loaded = [w for w in products if w.m == CLOCKED and "clock_misfit" in question.posterior][:1]
    return [
        candidate
        for sku in skus
        for candidate in (
            *(Candidate(sku, workload, repeats, question.tp) for workload in every),
            *(Candidate(sku, workload, repeats, clock=True) for workload in loaded),
        )
    ]


def _gemms(question: Question) -> Iterator[Kernel]:
    """Matrix products of the workloads, and of their shapes at other numbers of tokens."""
    if question.metric == "attention_time":
        return
    asked = [w for w in question.workloads if isinstance(w, Kernel)]
    shapes = {(k.n, k.k) for k in asked}
    tokens = {k.m for k in asked} | set(TOKENS)
    if question.llm is not None:
        shapes = set(gemm_shapes(question.llm, tp=question.tp).values())
        tokens |= {w.new_tokens for w in question.workloads if isinstance(w, Step)}
    for m in sorted(tokens):
        for n, k in sorted(shapes):
            yield Kernel(m=m, n=n, k=k)


def _attention(question: Question) -> Iterator[Attention]:
    """Attention kernels of the workloads."""
    yield from (w for w in question.workloads if isinstance(w, Attention))
    if question.llm is None or not question.whole:
        return
    steps = [w for w in question.workloads if isinstance(w, Step)]
    found = operators(question.llm, steps, tp=question.tp)
    seen = set[Attention]()
    for phase in ("decode", "prefill"):
        cells = found[f"attention_{phase}"].isel(op=0)
        for at in np.flatnonzero(cells["calls"].values > 0):
            size = {str(v): int(cells[v].values[at]) for v in cells.data_vars}
            own = {name: size[name] for name in ("batch", "heads", "kv_heads", "head_dim")}
            new, cached = (0, size["length"]) if phase == "decode" else (size["length"], 0)
            seen.add(Attention(phase, **own, tokens=new, context=size.get("context", cached)))
    yield from sorted(seen, key=lambda a: a.label)


def readings(
    question: Question, found: Sequence[Candidate], *, each: Each = in_turn
) -> xr.DataArray:
    """What each measurement would read, dims (chain, draw, candidate): log of a median time [1].

    Of a clock its log over boost. Kernels are read as a benchmark takes them, with the noise of
    their runs; steps as an engine runs them. Draws are those of `losses`. Those of each SKU are
    worked out where `each` has it done, see `m2bayes.question.step_times`.
    """
    labels = [c.label for c in found]
    if each is not in_turn:
        groups = [[c for c in found if c.sku == sku] for sku in dict.fromkeys(c.sku for c in found)]
        parts = [*each(readings, question, groups)]
        return xr.concat(parts, dim="candidate").sel(candidate=labels)
    columns: dict[str, xr.DataArray] = {}
    for kind, read in _READERS.items():
        own = [c for c in found if _reader(c) == kind]
        if not own:
            continue
        times = np.log(read(question, own))
        for c in own:
            columns[c.label] = times.sel(sku=c.sku, workload=c.workload.label, drop=True)
    return xr.concat([columns[label] for label in labels], dim="candidate").assign_coords(
        candidate=labels
    )


def _reader(candidate: Candidate) -> str:
    workload = candidate.workload
    if candidate.clock:
        return "clock"
    return f"attention_{workload.phase}" if isinstance(workload, Attention) else candidate.kind


def _sheets(question: Question, found: Sequence[Candidate]) -> xr.Dataset:
    return question.datasheets.sel(sku=list(dict.fromkeys(c.sku for c in found)))


def _unique(found: Sequence[Candidate]) -> list[Workload]:
    return list(dict.fromkeys(c.workload for c in found))


def _kernel_times(question: Question, posterior: xr.Dataset, cells: Any, found: Any) -> Any:
    """Median of the runs of kernels in the benchmark regime [s], dims (…, sku, workload)."""
    time = predict(
        posterior,
        cells,
        _sheets(question, found),
        regime="benchmark",
        backend=question.backend,
        noise=found[0].repeats,
        seed=question.seed,
    )
    return time.isel(op=0, drop=True)


def _gemm_times(question: Question, found: Sequence[Candidate]) -> Any:
    return _kernel_times(question, question.posterior, gemm_cells(None, _unique(found)), found)


def _attention_times(phase: str) -> Callable[[Question, Sequence[Candidate]], Any]:
    def read(question: Question, found: Sequence[Candidate]) -> Any:
        cells = attention_cells(_unique(found))
        return _kernel_times(question, question.parts[phase], cells, found)

    return read


def _clocks(question: Question, found: Sequence[Candidate]) -> Any:
    """Sustained clock over boost [1], with what a card's clock departs from its forecast by."""
    sheets, cells = _sheets(question, found), gemm_cells(None, _unique(found)).isel(op=0, drop=True)
    factors = with_skus(question.posterior, sheets, seed=question.seed)
    share = sustained_share(gemm_terms(cells, sheets, regime="served"), factors)
    share = share.transpose("sku", "workload", "chain", "draw")
    misfit = question.posterior["clock_misfit"].transpose("chain", "draw").values
    noise = np.empty(share.shape)
    for i, sku in enumerate(share["sku"].values):
        rng = labelled_rng(question.seed, "clock reading", str(sku))
        noise[i] = rng.standard_t(4, size=misfit.shape)
    return share * np.exp(misfit * noise)


def _step_times(question: Question, found: Sequence[Candidate]) -> Any:
    """Median of timed steps [s], dims (…, sku, workload)."""
    own = replace(question, datasheets=_sheets(question, found), workloads=_unique(found))
    time = step_times(own, own.workloads).sum("op").transpose("sku", "workload", "chain", "draw")
    noise = np.empty(time.shape)
    for i, sku in enumerate(time["sku"].values):
        for j, label in enumerate(time["workload"].values):
            rng = labelled_rng(question.seed, "timed step", str(sku), str(label))
            noise[i, j] = rng.standard_normal(time.shape[2:])
    return time * np.exp(SERVED_NOISE / np.sqrt(found[0].repeats) * noise)


_READERS: dict[str, Callable[[Question, Sequence[Candidate]], Any]] = {
    "gemm": _gemm_times,
    "attention_prefill": _attention_times("attention_prefill"),
    "attention_decode": _attention_times("attention_decode"),
    "clock": _clocks,
    "step": _step_times,
}
