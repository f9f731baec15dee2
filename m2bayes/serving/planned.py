"""A plan as text: one line a fleet, and what a reader should know beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from m2bayes.layout import GAP, columns, wrapped
from m2bayes.tables import error, seconds, share

SHOWN = 0.05  # share of the variance from which a factor is named


def plan_table(head: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Fleets, best first."""
    users = head["rate"] is None
    load = f"{head['concurrency']} in the system" if users else f"{head['rate']:g} requests/s"
    targets = [
        f"{name.upper()} ≤ {_target(head[name])}"
        for name in ("ttft", "tpot")
        if head[name] is not None
    ]
    level = f"{head['percentile']:g}"
    title = wrapped(
        f"{head['llm']}, {head['dtype']}: {load}, {_lengths(head)}\n"
        f"{' and '.join(targets)} for {level} % of the requests, with probability "
        f"{head['confidence']:g}\n"
        f"posterior {head['posterior']}, {head['draws']} draws, seed {head['seed']}"
    )
    priced = any(row["cost_per_hour"] is not None for row in found["results"])
    able = [row for row in found["results"] if row["gpus"] is not None]
    blocks = [title, wrapped(_verdict(found), GAP)]
    if able:
        blocks[-1] += f"\n{columns([_row(row, f'p{level}', priced) for row in able], GAP)}"
    said = [row for row in able if row["verdict"] != "clear" and row["verdict"] != ""]
    said = [row for row in said if found["choice"] is None or row is not able[0]]
    said += [row for row in found["results"] if row["gpus"] is None]
    if said:
        texts = (f"  {r['sku']} TP {r['tp']}: {r['verdict']}: {_bare(r)}" for r in said)
        blocks.append(wrapped("\n".join(texts), GAP * 2))
    simulated = [_simulated(row, f"p{level}") for row in able if row.get("simulation")]
    if simulated:
        blocks.append(f"simulated, and approximated for the same draws\n{columns(simulated, GAP)}")
    return "\n\n".join(blocks)


def _target(value: float) -> str:
    """Target in the unit that it is said in: milliseconds below a tenth of a second.

    >>> _target(0.05), _target(1.0)
    ('50 ms', '1 s')
    """
    return f"{1000 * value:g} ms" if value < 0.1 else f"{value:g} s"


def _simulated(row: Mapping[str, Any], level: str) -> dict[str, str]:
    """What the simulation of a fleet found beside what the approximation has."""
    held = row["simulation"]

    def pair(name: str, at: str, text: Callable[[float | None], str]) -> str:
        both = held[name][at] if at else held[name]
        return f"{text(both['simulated'])} ({text(both['approximated'])})"

    return {
        "SKU": row["sku"],
        "TP": str(row["tp"]),
        f"TTFT {level}": pair("ttft", level, seconds),
        f"TPOT {level}": pair("tpot", level, seconds),
        "saturated": pair("p_saturated", "", share),
    }


def _bare(row: Mapping[str, Any]) -> str:
    """Reason without the verdict, which stands before it."""
    return str(row["reason"]).removeprefix(f"{row['verdict']}: ")


def _lengths(head: Mapping[str, Any]) -> str:
    requests = head["requests"]
    if len(requests) == 1:
        only = requests[0]
        return f"{only['input_tokens']:.0f} tokens in, {only['output_tokens']:.0f} out"
    total = {
        k: sum(r[k] * r["weight"] for r in requests) for k in ("input_tokens", "output_tokens")
    }
    return (
        f"{len(requests)} kinds of request, on average {total['input_tokens']:.0f} tokens in, "
        f"{total['output_tokens']:.0f} out"
    )


def _row(row: Mapping[str, Any], level: str, priced: bool) -> dict[str, str]:
    cost = {}
    if priced:
        cost = {"USD/h": f"{row['cost_per_hour']:,.2f}", "USD per Mtoken": _short(row)}
    return {
        "SKU": row["sku"],
        "TP": str(row["tp"]),
        "GPUs": str(row["gpus"]),
        **cost,
        "P(SLO)": error(share(row["p_slo"]), share(row["p_slo_mcse"])),
        "saturated": share(row["p_saturated"]),
        f"TTFT {level}": _median(row["ttft"].get(level)),
        f"TPOT {level}": _median(row["tpot"].get(level)),
    }


def _short(row: Mapping[str, Any]) -> str:
    return f"{row['cost_per_million_tokens']:.3g}"


def _median(held: Mapping[str, Any] | None) -> str:
    return "-" if held is None else seconds(held["median"])


def _verdict(found: Mapping[str, Any]) -> str:
    if found["choice"] is None:
        return "no fleet keeps to the targets"
    first = found["results"][0]
    fleet = f"{first['gpus']} × {first['sku']} at TP {first['tp']}"
    return f"{fleet}: {found['verdict']}; {first['reason']}"


def plan_remarks(head: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """Say what a reader should know beside the table."""
    rows = [row for row in found["results"] if row["gpus"] is not None]
    refused = [f"{r['sku']} TP{r['tp']}" for r in rows if r["ttft"]["mean"] is None]
    if refused and head["rate"] is not None:
        yield (
            f"no mean TTFT of {', '.join(refused)}: utilisation is above 0.95 with a probability "
            "over 5 %, where a mean has no bound; quantiles are of the draws that are not saturated"
        )
    for row in rows:
        held = row.get("simulation")
        if held and held["cut"]:
            yield (
                f"simulation of {row['sku']} TP{row['tp']}: cut to {held['draws']} draws of "
                f"{held['requests']} requests, to bound the steps of the engine"
            )
    order = found["goodput_order"]
    if order and len(order["options"]) > 1:
        what = "goodput" if head["rate"] is not None else "requests within the targets"
        first, second, *_ = order["options"]
        yield (
            f"{what} per GPU: most with {first}, more than with {second} with probability "
            f"{order['p_ahead_of_next'][0]:.2f}"
        )
    named = [f for f in found["dominated_by"] if f["share"] >= SHOWN]
    if named:
        told = ", ".join(f"{f['factor']} of {f['sku']} ({share(f['share'])})" for f in named)
        what = "between the first two" if len(rows) > 1 else "of its goodput"
        yield f"of the uncertainty {what} most goes with {told}"
    if head["prices"] is None:
        yield "no prices: fleets are compared by their number of GPUs; give --price SKU=USD"
    elif head["prices"] != "given":
        yield f"prices: {head['prices']}"
    yield (
        "queues: M/M(n)/1 for the batch, corrected after Allen and Cunneen, bulk service for "
        "prompts; no prefix caching, no speculation; load split evenly"
    )
