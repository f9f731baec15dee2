"""From the arguments of a command to the question that they put."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from m2bayes.database import Database, digest
from m2bayes.errors import DataError, DatasheetError, UnknownNameError, WorkloadError
from m2bayes.mechanism.power import lowest_limit
from m2bayes.options import number
from m2bayes.prices import Prices, read_prices
from m2bayes.quantisation import KV_BYTES, computes_in, named
from m2bayes.question import METRICS, Question, host_time, thinned
from m2bayes.step import aligned
from m2bayes.timings import Timing, read_timings
from m2bayes.workload import Attention, Step, Workload, parse_workload


def ask(args: argparse.Namespace, *, as_it_stands: bool = False) -> Question:
    """Question that the arguments put.

    One that is asked `as_it_stands`, not at other degrees of parallelism, does without the
    posteriors of kernels that it has none of.
    """
    database = Database(args.database).with_cards(args.sku)
    workloads = _workloads(database, args.workload)
    llm = database.llm(args.llm) if args.llm else None
    if llm is not None and not any(isinstance(w, Step) for w in workloads):
        raise WorkloadError(f"{workloads[0].kind}: workloads name a kernel; leave --llm out")
    # 8-bit steps have 16-bit kernels too; what is no format is refused here
    one = named(args.dtype).rate == "bf16"
    datasheets = database.datasheets(args.sku, dtype="bf16" if one else None)
    if args.posterior is None:
        args.posterior = f"step_{computes_in(args.dtype)}"
    metric = args.metric or _metric(database, args, workloads)
    if metric not in METRICS:  # before any file of draws is opened
        raise UnknownNameError("metric", metric, METRICS)
    parts = _parts(database, args.posterior, whole=metric != "gemm_time")
    if as_it_stands:
        parts = {part: name for part, name in parts.items() if part not in _idle(args)}
    _same_datasheets(database, args.sku, [*parts.values()])
    draws = aligned({part: database.draws(name) for part, name in parts.items()})
    if args.draws is not None:
        draws = {part: thinned(posterior, args.draws) for part, posterior in draws.items()}
    question = Question(
        posterior=draws.pop("gemm"),
        datasheets=_capped(datasheets, database, args.power_limit),
        llm=llm,
        workloads=workloads,
        metric=metric,
        tp=args.tp,
        regime=args.regime,
        backend=args.backend,
        seed=args.seed,
        mass=args.mass,
        threshold=args.threshold,
        parts=draws,
        graphs=not args.eager,
        overlap=args.overlap,
        assembly=args.posterior,
        dtype=args.dtype,
        kv_dtype=args.kv_dtype,
        prices=_prices(database, args.price, metric, args.sku),
    )
    return _calibrate(question, database, args.calibrate) if args.calibrate else question


def _prices(database: Database, texts: Sequence[str], metric: str, skus: Sequence[str]) -> Prices:
    """Prices given [USD/h], which a metric must have a use for."""
    if texts and metric != "cost_per_million_tokens":
        raise WorkloadError(
            f"--price is of cost; metric {metric} has none: ask for "
            "--metric cost_per_million_tokens"
        )
    return prices_of(database, texts, skus)[0]


def prices_of(
    database: Database, texts: Sequence[str], skus: Sequence[str] | None = None
) -> tuple[Prices, str]:
    """Prices given [USD/h], and name and date of the table that some are from.

    Of the SKUs asked for, where they are given: one by one no other has a price.
    """

    def full_name(name: str) -> str:
        return str(database.sku_card(name)[0]["name"])

    asked = {full_name(name) for name in skus or ()}
    for text in texts if asked else ():
        name, equals, _ = text.partition("=")
        if equals and name and full_name(name) not in asked:
            raise WorkloadError(
                f"--price {text}: {full_name(name)} is not among the SKUs asked for"
            )
    return read_prices(texts, database.root / "data" / "prices", full_name)


def _metric(database: Database, args: argparse.Namespace, workloads: Sequence[Workload]) -> str:
    """Metric that is asked for when none is named."""
    if all(isinstance(w, Attention) for w in workloads):
        return "attention_time"
    whole = database.is_assembly(args.posterior) and args.regime == "served"
    return "step_time" if whole and all(isinstance(w, Step) for w in workloads) else "gemm_time"


def _parts(database: Database, name: str, *, whole: bool) -> dict[str, str]:
    """Posteriors that a name stands for, by part; of an assembly no more than is needed."""
    if not database.is_assembly(name):
        return {"gemm": name}
    parts = database.assembly(name).parts
    return parts if whole else {"gemm": parts["gemm"]}


def _idle(args: argparse.Namespace) -> set[str]:
    """Parts of a step that a question has no kernels of: all-reduce, attention to 8-bit caches."""
    narrow = args.kv_dtype == "fp8" or named(args.dtype).activation == KV_BYTES["fp8"]
    idle = {"allreduce": args.tp == 1, "kv_fp8": not narrow}
    return {part for part, held in idle.items() if held}


def _same_datasheets(database: Database, skus: Sequence[str], posteriors: Sequence[str]) -> None:
    """Refuse a card that bears a measured card's name and has other numbers."""
    cards = [database.sku_card(name) for name in skus]
    numbers = [digest(card) for card, _ in cards]
    for fitted in (database.posterior(name).datasheets for name in posteriors):
        for (card, origin), own in zip(cards, numbers, strict=True):
            if fitted.get(card["name"], own) != own:
                raise DatasheetError(
                    f"{origin}: {card['name']} has other numbers than the datasheet that the "
                    "posterior was fitted with; give it another name to have it predicted as a "
                    "new card"
                )


def _capped(datasheets: Any, database: Database, limits: Sequence[str]) -> Any:
    """Datasheets with ``power_cap`` [1], lowered over own power limit, if any is lowered."""
    if not limits:
        return datasheets
    cap = datasheets["power_limit"] * 0 + 1
    for text in limits:
        name, equals, watts = text.partition("=")
        sku = str(database.sku_card(name)[0]["name"])
        if sku not in datasheets["sku"].values:
            raise WorkloadError(f"--power-limit {text}: {sku} is not among the SKUs asked for")
        if float(cap.sel(sku=sku)) != 1:
            raise WorkloadError(f"--power-limit {text}: {sku} is given twice; name each once")
        own = float(datasheets["power_limit"].sel(sku=sku))
        low = float(lowest_limit(own))
        try:
            limit = number(watts)
        except argparse.ArgumentTypeError:
            limit = -1.0
        if not equals or not low <= limit <= own:
            raise WorkloadError(
                f"--power-limit {text}: give SKU=W from {low:g} to the card's {own:g} W; "
                "lower limits nobody measured"
            )
        cap = cap.where(cap["sku"] != sku, limit / own)
    return datasheets.assign(power_cap=cap)


def _calibrate(question: Question, database: Database, file: str) -> Question:
    """Question with the host time of each SKU whose steps are in `file`."""
    if not question.whole:
        raise WorkloadError(f"--calibrate is of whole steps; metric {question.metric} is not")
    timings: dict[str, list[Timing]] = {}
    known = [str(s) for s in question.datasheets["sku"].values]
    for timing in read_timings(Path(file)):
        try:
            sku = str(database.sku_card(timing.sku)[0]["name"])
        except UnknownNameError as unknown:
            raise DataError(f"{timing.where}: {unknown}") from None
        if sku not in known:
            text = f"{sku} is not among the SKUs asked for; leave its rows out"
            raise DataError(f"{timing.where}: {text}")
        if timing.tp != question.tp:
            text = (
                f"a step at TP {timing.tp}; the question is of {question.tp}: give other rows, or "
                "say in a column tp how many GPUs shared the LLM"
            )
            raise DataError(f"{timing.where}: {text}")
        timings.setdefault(sku, []).append(timing)
    found = {sku: host_time(question, sku, rows) for sku, rows in timings.items()}
    return replace(question, calibration=found)


def _workloads(database: Database, specs: list[str]) -> list[Workload]:
    found: list[Workload] = []
    for spec in specs:
        file = spec.lower().endswith((".csv", ".toml"))
        found += database.workloads(spec) if file else [parse_workload(spec)]
    return found
