"""Command that sizes fleets: from its arguments to the plan, and what it prints."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from m2bayes.asking import ask, prices_of
from m2bayes.commands._shared import figure_file, print_json, say, teller
from m2bayes.database import Database
from m2bayes.drivers import drivers
from m2bayes.errors import InfeasibleError, WorkloadError
from m2bayes.information.table import worth_table
from m2bayes.information.worth import worth_to_plan
from m2bayes.prices import price_draws
from m2bayes.question import Question, step_times
from m2bayes.serving.fleet import fleets
from m2bayes.serving.mix import mean_context, one_length, read_mix, read_trace
from m2bayes.serving.plan import Demand, Option, options_of
from m2bayes.serving.planned import plan_remarks, plan_table
from m2bayes.workload import Step

TPS = (1, 2, 4, 8)
NONE_SERVES = 3  # exit code
LIKELY = 50  # from which a confidence above 1 was meant in percent


def plan(args: argparse.Namespace) -> int:
    """Size the fleet of each SKU and TP, and choose."""
    tps = _tps(args.tp)
    target, database = figure_file(args), Database(args.database).with_cards(args.sku)
    demand = _demand(args, database.llm(args.llm).max_context)
    _divides(demand.gpus, tps)
    prices, dated = prices_of(database, args.price, args.sku)
    if args.calibrate and len(tps) > 1:
        raise WorkloadError("--calibrate is of one TP: give one --tp, that of the timed steps")
    question = _question(args, demand, tps[0])
    skus = [str(s) for s in question.datasheets["sku"].values]
    hourly = None
    if prices:
        hourly = price_draws(prices, skus, question.posterior, seed=question.seed)
    tell = teller(args)
    options = options_of(question, demand, tps, advance=lambda label: tell(f"{label}: step times"))
    found = fleets(
        options,
        demand,
        question.posterior,
        prices=hourly,
        factors=_factors(question, demand, options),
        threshold=question.threshold,
        mass=question.mass,
    )
    losses = found.pop("losses")
    if args.simulate:
        _simulate(args, demand, options, found, tell)
    if args.next and losses is not None:
        tell("what to measure next")
        units = "USD/year" if prices else "GPUs"
        found["next"] = _next(question, demand, options, losses, units)
    _refuse_nothing(found["results"])
    code = 0 if found["choice"] else NONE_SERVES
    head = _head(args, question, demand, dated)
    texts = list(plan_remarks(head, found))
    if target:
        from m2bayes import plot

        figure = plot.cost_against_slo(
            found["results"], choice=found["choice"], confidence=demand.confidence
        )
        plot.save(figure, target)
    for row in found["results"]:
        row.pop("option")
    if args.json:
        print_json(head | found | {"remarks": texts})
        return code
    print(plan_table(head, found))
    if found.get("next"):
        print(f"\nwhat to measure next\n{worth_table(found['next'])}")
    if not args.quiet:
        for text in texts:
            say(text)
    return code


def _tps(given: Sequence[int] | None) -> list[int]:
    """GPUs that share the LLM, each named once."""
    tps = list(given) if given else list(TPS)
    for tp in tps:
        if tp < 1:
            raise WorkloadError(f"--tp {tp}: give 1 or more")
        if tps.count(tp) > 1:
            raise WorkloadError(f"--tp {tp} is given twice; name each once")
    return tps


def _divides(gpus: int | None, tps: Sequence[int]) -> None:
    """Refuse a fleet that is whole replicas at no TP."""
    if gpus is not None and all(gpus % tp for tp in tps):
        given = " ".join(map(str, tps))
        raise WorkloadError(f"--gpus {gpus}: no multiple of --tp {given}; change one of them")


def _demand(args: argparse.Namespace, longest: int) -> Demand:
    """What is to be served, from whichever way it was given; requests keep to `longest` tokens."""
    lengths = args.input_tokens is not None or args.output_tokens is not None
    if sum((lengths, args.mix is not None, args.trace is not None)) != 1:
        raise WorkloadError(
            "give --input-tokens and --output-tokens, or --mix FILE.csv, or --trace FILE.csv"
        )
    if lengths and None in (args.input_tokens, args.output_tokens):
        raise WorkloadError("give both --input-tokens and --output-tokens")
    rate = args.rate
    if args.trace:
        mix = read_trace(Path(args.trace), longest=longest)
    elif args.mix:
        mix = read_mix(Path(args.mix), longest=longest)
    else:
        mix = one_length(args.input_tokens, args.output_tokens, longest=longest)
    if rate is None and args.concurrency is None:
        if "rate" not in mix:
            raise WorkloadError("give --rate in requests a second, or --concurrency")
        rate = float(mix["rate"])
    if args.rate is not None and args.concurrency is not None:
        raise WorkloadError("give --rate or --concurrency, not both")
    if 0 < args.percentile < 1:
        meant = f"{100 * args.percentile:g}"
        raise WorkloadError(
            f"--percentile {args.percentile:g}: is in percent; did you mean {meant}?"
        )
    if LIKELY <= args.confidence <= 100:
        meant = f"{args.confidence / 100:g}"
        raise WorkloadError(
            f"--confidence {args.confidence:g}: is a probability; did you mean {meant}?"
        )
    if args.simulate and rate is None:
        raise WorkloadError("--simulate is of arrivals at a rate; leave --concurrency out")
    return Demand(
        mix,
        rate=rate,
        users=args.concurrency,
        ttft=float("inf") if args.ttft is None else args.ttft,
        tpot=float("inf") if args.tpot is None else args.tpot,
        level=args.percentile / 100,
        confidence=args.confidence,
        arrival_scv=float(mix.get("arrival_scv", 1.0)),
        max_num_seqs=args.max_num_seqs,
        token_budget=args.token_budget,
        gpus=args.gpus,
    )


def _question(args: argparse.Namespace, demand: Demand, tp: int) -> Question:
    """Question of whole served steps; its workload stands for the mean decode step."""
    context = max(1, round(mean_context(demand.mix)))
    own = {
        "workload": [f"decode:batch=1,context={context}"],
        "metric": "step_time",
        "regime": "served",
        "tp": tp,
        "price": [],
    }
    return ask(argparse.Namespace(**{**vars(args), **own}))


def _factors(
    question: Question, demand: Demand, options: Sequence[Option]
) -> dict[str, dict[tuple[str, str], Any]]:
    """What each option's goodput depends on, at a batch that it serves."""
    found: dict[str, dict[tuple[str, str], Any]] = {}
    context = max(1, round(mean_context(demand.mix)))
    for tp in dict.fromkeys(o.tp for o in options if o.replica is not None):
        own = [o for o in options if o.tp == tp and o.replica is not None]
        batch = max(1, round(sum(o.sequences.mean() for o in own) / len(own)))
        step = Step("decode", batch=min(batch, demand.max_num_seqs), context=context)
        sheets = question.datasheets.sel(sku=[o.sku for o in own])
        time = step_times(replace(question, tp=tp, datasheets=sheets), [step])
        known = drivers(replace(question, tp=tp, datasheets=sheets), time.isel(workload=0))
        for option in own:
            found[option.label] = {k: v for k, v in known.items() if k[0] == option.sku}
            found[option.label][option.sku, "KV tokens"] = option.kv_tokens
    return found


def _next(
    question: Question, demand: Demand, options: Sequence[Option], losses: Any, units: str
) -> dict[str, Any]:
    """What could settle the choice between the fleets: steps at the batch that each TP serves."""
    context = max(1, round(mean_context(demand.mix)))
    weights = demand.mix["weight"].values
    prompt = max(1, round(float((demand.mix["input_tokens"].values * weights).sum())))
    steps = {}
    for tp in {o.tp for o in options if o.replica is not None}:
        held = [o.sequences.mean() for o in options if o.tp == tp and o.replica is not None]
        batch = min(max(1, round(sum(held) / len(held))), demand.max_num_seqs)
        steps[tp] = [
            Step("decode", batch=batch, context=context),
            Step("prefill", tokens=prompt),
        ]
    where = {o.label: (o.sku, o.tp) for o in options}
    return worth_to_plan(question, losses, where, steps, units=units)


def _simulate(
    args: argparse.Namespace,
    demand: Demand,
    options: Sequence[Option],
    found: dict[str, Any],
    tell: Any,
) -> None:
    """Add what a simulation of the engine says beside each fleet."""
    from m2bayes.serving.simulated import simulated

    by_label = {o.label: o for o in options}
    for row in found["results"]:
        if row["gpus"] is not None:
            tell(f"simulating {row['option']}")
            option = by_label[row["option"]]
            row["simulation"] = simulated(option, demand, row["replicas"], seed=args.seed)


def _refuse_nothing(rows: Sequence[dict[str, Any]]) -> None:
    """Exit code 3 where no SKU can hold the LLM, or none at the TPs asked for."""
    if all(row["verdict"] in ("does not fit", "skipped") for row in rows):
        reasons = "; ".join(f"{row['option']} {row['reason']}" for row in rows)
        raise InfeasibleError(f"does not fit: {reasons}")


def _head(
    args: argparse.Namespace, question: Question, demand: Demand, dated: str
) -> dict[str, Any]:
    """What was asked, as it stands in the JSON."""
    return {
        "llm": question.llm.name if question.llm else None,
        "dtype": question.form,
        "kv_dtype": question.kv_dtype,
        "backend": question.backend,
        "posterior": question.source,
        "draws": question.posterior.sizes["chain"] * question.posterior.sizes["draw"],
        "seed": question.seed,
        "rate": demand.rate,
        "concurrency": demand.users,
        "requests": [
            {k: float(demand.mix[k].values[i]) for k in ("input_tokens", "output_tokens", "weight")}
            for i in range(demand.mix.sizes["request"])
        ],
        "arrival_scv": demand.arrival_scv,
        "ttft": args.ttft,
        "tpot": args.tpot,
        "percentile": args.percentile,
        "confidence": demand.confidence,
        "max_num_seqs": demand.max_num_seqs,
        "token_budget": demand.token_budget,
        "prices": dated or ("given" if args.price else None),
    }
