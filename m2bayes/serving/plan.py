"""Capacity plans: the fewest GPUs of each SKU and TP that keep to the targets, and what they cost.

A goodput is drawn for each option: the rate that one replica serves within the targets. A fleet of
R replicas, load split evenly, keeps to them in the draws in which rate / R is no more than that. So
more GPUs never fail where fewer do, and a stricter target, a higher rate or a higher confidence
never needs fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import xarray as xr

from m2bayes.errors import WorkloadError
from m2bayes.feasibility import memory_of
from m2bayes.gemm import gemm_shapes
from m2bayes.memory import sequences
from m2bayes.question import Question, without_rate
from m2bayes.serving.goodput import goodput, users_served
from m2bayes.serving.loops import capacity, closed_loop, open_loop
from m2bayes.serving.mix import LONGEST, MOST, mean_length
from m2bayes.serving.replica import MAX_NUM_SEQS, TOKEN_BUDGET, Replica, check_lengths, replica
from m2bayes.serving.steady import Steady
from m2bayes.surface import Surface, surfaces

SAMPLE = ("chain", "draw")
MOST_TTFT, MOST_TPOT = 600.0, 10.0  # [s] targets beyond which nobody waits: another unit is meant
MOST_SEQUENCES = 2**16


@dataclass(frozen=True)
class Demand:
    """What is to be served, and how well.

    Parameters
    ----------
    mix : Dataset, dims (request,)
        From `m2bayes.serving.mix` [token].
    rate : float or None
        Arrivals [1/s]; None where `users` is given.
    users : int or None
        Requests kept in the system at all times [1].
    ttft, tpot : float
        Targets [s]; infinite where there is none.
    level : float
        Share of the requests that must keep to each target [1].
    confidence : float
        Probability with which they must [1].
    arrival_scv : float
        Squared coefficient of variation of the gaps between arrivals [1].
    max_num_seqs, token_budget : int
        Limits of the engine: sequences at once [1], tokens of a step [token].
    gpus : int or None
        Size of the fleet, where it is given rather than sought [1].

    Raises
    ------
    WorkloadError
        If a rate, a target, a share or a limit is out of range; names the option.
    """

    mix: xr.Dataset
    rate: float | None = None
    users: int | None = None
    ttft: float = np.inf
    tpot: float = np.inf
    level: float = 0.9
    confidence: float = 0.9
    arrival_scv: float = 1.0
    max_num_seqs: int = MAX_NUM_SEQS
    token_budget: int = TOKEN_BUDGET
    gpus: int | None = None

    def __post_init__(self) -> None:
        if (self.rate is None) == (self.users is None):
            raise WorkloadError("give a rate of arrivals or a number of users, one of the two")
        for name, value, unit in (
            ("--rate", self.rate, "requests a second"),
            ("--concurrency", self.users, "requests"),
            ("--ttft", self.ttft, "seconds"),
            ("--tpot", self.tpot, "seconds"),
            ("--gpus", self.gpus, "GPUs"),
        ):
            if value is None or (value == np.inf and name in ("--ttft", "--tpot")):
                continue
            if not 0 < value <= MOST:
                told = f"{value:g}" if isinstance(value, float) else f"{value}"
                raise WorkloadError(f"{name} {told}: give {unit} above 0, up to {MOST:,}")
        for name, t, high in (("ttft", self.ttft, MOST_TTFT), ("tpot", self.tpot, MOST_TPOT)):
            if high < t < np.inf:
                raise WorkloadError(f"--{name} {t:g}: beyond {high:g} s; did you mean {t:g}ms?")
        if not np.isfinite(self.ttft) and not np.isfinite(self.tpot):
            raise WorkloadError("no target: give --ttft, --tpot or both, in seconds")
        for name, share in (("--percentile", self.level), ("--confidence", self.confidence)):
            if not 0 < share < 1:
                shown = f"{100 * share:g}" if name == "--percentile" else f"{share:g}"
                most = "100" if name == "--percentile" else "1"
                raise WorkloadError(f"{name} {shown}: give a number between 0 and {most}")
        if not 1 <= self.max_num_seqs <= MOST_SEQUENCES:
            given = f"--max-num-seqs {self.max_num_seqs}"
            raise WorkloadError(f"{given}: give 1 to {MOST_SEQUENCES:,} sequences")
        if not self.max_num_seqs < self.token_budget <= LONGEST:
            raise WorkloadError(
                f"--token-budget {self.token_budget}: give more tokens than --max-num-seqs "
                f"{self.max_num_seqs}, up to {LONGEST:,}"
            )

    @property
    def load(self) -> float:
        """Requests, a second or in the system [1/s or 1]."""
        return float(self.users if self.rate is None else self.rate)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Option:
    """One SKU at one TP: what one replica serves, draw by draw.

    Parameters
    ----------
    sku : str
        Full name.
    tp : int
        GPUs of one replica [1].
    reason : str
        Why it cannot serve at all; empty where it can.
    replica : Replica or None
        The server; None where it cannot serve.
    surface : Surface or None
        Its step times [s].
    highest, served : ndarray, dims (draw,)
        Load at which it saturates and goodput [1/s], or as many users [1]; empty where it cannot
        serve.
    sequences : ndarray, dims (draw,)
        Longest requests that its KV cache holds at once, whole [1].
    kv_tokens : ndarray, dims (draw,)
        Tokens that it holds [token].
    """

    sku: str
    tp: int
    reason: str = ""
    replica: Replica | None = None
    surface: Surface | None = None
    highest: np.ndarray = field(default_factory=lambda: np.zeros(0))
    served: np.ndarray = field(default_factory=lambda: np.zeros(0))
    sequences: np.ndarray = field(default_factory=lambda: np.zeros(0))
    kv_tokens: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @property
    def label(self) -> str:
        """SKU and TP."""
        return f"{self.sku} TP{self.tp}"


def options_of(
    question: Question,
    demand: Demand,
    tps: Sequence[int],
    *,
    advance: Callable[[str], None] = lambda label: None,
) -> list[Option]:
    """What every SKU serves at every TP.

    Parameters
    ----------
    question : Question
        Of whole steps of an LLM; its TP is not looked at.
    demand : Demand
        What is to be served.
    tps : sequence of int
        GPUs that share the LLM [1]; one that does not divide it is an option with a reason.
    advance : callable
        Told which TP is next.

    Returns
    -------
    list of Option
        By TP, then by SKU as asked.
    """
    if question.llm is None:
        raise WorkloadError("a plan is of an LLM; give --llm")
    check_lengths(demand.mix, question.llm.max_context, question.llm.name)
    found: list[Option] = []
    for tp in tps:
        advance(f"TP {tp}")
        found += _at(replace(question, tp=tp), demand)
    return found


def _at(question: Question, demand: Demand) -> Iterator[Option]:
    """Options at one TP."""
    skus, tp = [str(s) for s in question.datasheets["sku"].values], question.tp
    try:
        gemm_shapes(question.llm, tp=tp)  # type: ignore[arg-type]
    except WorkloadError as error:
        yield from (Option(sku, tp, f"skipped: {error}") for sku in skus)
        return
    left = memory_of(question)
    longest = float((demand.mix["input_tokens"] + demand.mix["output_tokens"]).max())
    tokens = left["kv_tokens"].transpose("sku", *SAMPLE).values.reshape(len(skus), -1)
    whole = sequences(left, longest).transpose("sku", *SAMPLE).values.reshape(len(skus), -1)
    lacking = without_rate(question)
    fit = [not lacking[i] and (whole[i] >= 1).mean() > 0 for i in range(len(skus))]
    able = question.datasheets.isel(sku=np.flatnonzero(fit))
    times = surfaces(replace(question, datasheets=able)) if any(fit) else {}
    for i, sku in enumerate(skus):
        if not fit[i]:
            yield Option(sku, tp, lacking[i] or _does_not_fit(question, longest, i))
            continue
        server = replica(
            times[sku],
            demand.mix,
            tokens[i],
            max_num_seqs=demand.max_num_seqs,
            token_budget=demand.token_budget,
        )
        highest = capacity(server)
        targets = {"ttft": demand.ttft, "tpot": demand.tpot, "level": demand.level}
        if demand.users is None:
            served = goodput(server, highest, arrival_scv=demand.arrival_scv, **targets)
        else:
            served = users_served(server, highest, **targets)
        yield Option(sku, tp, "", server, times[sku], highest, served, whole[i], tokens[i])


def _does_not_fit(question: Question, longest: float, sku: int) -> str:
    """Why not one request fits."""
    left = memory_of(question).isel(sku=sku)
    need = float(left["weights"]) + longest * float(left["kv_bytes_per_token"].median())
    memory = float(question.datasheets["memory"].values[sku])
    return (
        f"does not fit: weights and one request of {longest:,.0f} tokens need {need / 1e9:.1f} GB "
        f"a GPU, the memory is {memory / 1e9:.0f} GB; raise --tp"
    )


def replicas_needed(served: np.ndarray, load: float, confidence: float) -> int | None:
    r"""Fewest replicas that keep to the targets with the confidence asked for.

    .. math:: R = \min\{r : P(\mathrm{load}/r \le \mathrm{served}) \ge \mathrm{confidence}\}

    Parameters
    ----------
    served : ndarray, dims (draw,)
        What one replica serves [units of `load`]; 0 where it serves nothing.
    load : float
        What all serve together, split evenly [1/s or 1].
    confidence : float
        Probability [1].

    Returns
    -------
    int or None
        Replicas [1]; None where no number suffices.

    Examples
    --------
    >>> replicas_needed(np.array([1.0, 2.0, 4.0, 4.0]), 4.0, 0.75)
    2
    """
    with np.errstate(divide="ignore"):
        need = np.where(served > 0, np.ceil(load / served * (1 - 1e-12)), np.inf)
    ordered = np.sort(need)
    at = ordered[int(np.ceil(confidence * len(ordered) - 1e-9)) - 1]
    return None if np.isinf(at) else int(max(at, 1))


def steady(option: Option, demand: Demand, replicas: int) -> Steady:
    """Steady state of one replica of a fleet.

    Parameters
    ----------
    option : Option
        One that can serve.
    demand : Demand
        What all serve together.
    replicas : int
        Of the fleet [1].

    Returns
    -------
    Steady
        Times [s] of dims (draw,).
    """
    server: Replica = option.replica  # type: ignore[assignment]
    if demand.users is None:
        rate = np.full_like(option.highest, demand.load / replicas)
        return open_loop(server, rate, option.highest, demand.arrival_scv)
    users = np.full_like(option.highest, np.ceil(demand.load / replicas))
    return closed_loop(server, users, option.highest)


def tokens_per_second(option: Option, demand: Demand, replicas: int) -> float:
    """Answers' tokens that a fleet generates, the median over draws [token/s], dims gone."""
    state = steady(option, demand, replicas)
    rate = demand.rate if demand.rate is not None else replicas * float(np.median(state.rate))
    return rate * mean_length(demand.mix, "output_tokens")
