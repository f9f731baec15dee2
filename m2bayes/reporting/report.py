"""The decision report: one HTML file that needs no network, for people who decide."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from m2bayes.answer import answers, predicted, ranked
from m2bayes.bottleneck import bottlenecks
from m2bayes.crossover import crossovers
from m2bayes.database import Database
from m2bayes.errors import InfeasibleError
from m2bayes.plot import breakdown, inlined, p_best_map, regret
from m2bayes.plot.asked import kind_of, of_ranking
from m2bayes.question import METRICS, Question
from m2bayes.remarks import remarks
from m2bayes.reporting import evidence, sentences
from m2bayes.reporting.evidence import cell
from m2bayes.tables import amount, share

TOLD = 40  # workloads whose rows the tables hold
CAPTIONS = {
    "ranking": "Median and equal-tailed interval of each SKU, and below the probability that it "
    "is the best; the bar on the upper edge is where the choice changes.",
    "flips": "The choice for each pair of sizes; the number and the paleness are the probability "
    "that another SKU is best.",
    "p_best": "Probability that each SKU is the best; the choice is framed.",
    "intervals": "Median and equal-tailed interval of each SKU, best first.",
    "regret": "What choosing each SKU costs in expectation, against knowing the best.",
    "breakdown": "Where the time of the first, a middle and the last workload goes: the median, "
    "divided as the operators' medians, and the interval of each operator.",
}


def report(
    database: Database,
    question: Question,
    *,
    skus: Sequence[str],
    command: str,
    advance: Callable[[int], None] = lambda done: None,
) -> str:
    """Answer a question as an HTML page.

    Parameters
    ----------
    database : Database
        That holds cards and posteriors.
    question : Question
        What is asked.
    skus : sequence of str
        Names or paths of the datasheets, as given.
    command : str
        That makes this report.
    advance : callable
        Told how many more workloads are done.

    Returns
    -------
    str
        One file, with its figures, style and script in it.

    Raises
    ------
    InfeasibleError
        If no SKU can hold any of the workloads.
    """
    results = answers(question, ranked, advance=advance)
    crossed = crossovers(question, results)
    parts = _broken_down(question)
    records = evidence.records(database, question)
    return _page(
        {
            "title": f"Which GPU for {question.llm.name if question.llm else 'these kernels'}?",
            "question": sentences.asked(question),
            "settings": _settings(question),
            "answer": sentences.answered(question, results),
            "metric": sentences.metric_words(question.metric),
            "ranking": _ranking(question, results),
            "unfit": sentences.unfit(results),
            "left_out": max(0, len(results) - TOLD),
            "figures": _figures(question, results, crossed, parts),
            "values": _values(question, results),
            "pairs": [_pair(row) for row in sentences.close_pairs(results)[:TOLD]],
            "changing": list(sentences.changing(question, results, crossed, parts)),
            "remarks": list(remarks(question, results)),
            "cards": [evidence.card(database, name, question) for name in skus],
            "diagnostics": [evidence.diagnostics(record) for record in records],
            "data": [row for record in records for row in evidence.data(database, record)],
            "versions": records[0].versions,
            "command": command,
            "date": datetime.now(UTC).date().isoformat(),
            "threshold": f"{100 * question.threshold:.10g} %",
        }
    )


def joined(text: str) -> str:
    """Text in which no line ends between a number and its per cent sign.

    >>> joined("1 % of 2 %") == "1\u00a0% of 2\u00a0%"
    True
    """
    return text.replace(" %", "\u00a0%")


def _page(contents: Mapping[str, Any]) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("m2bayes.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["joined"] = joined
    return environment.get_template("report.html.j2").render(contents)


def _settings(question: Question) -> dict[str, str]:
    """How the question was put, beside its SKUs."""
    draws = question.posterior.sizes["chain"] * question.posterior.sizes["draw"]
    out = {
        "LLM": question.llm.name if question.llm else "single kernels",
        "weights and activations": question.form,
        "KV cache": question.kv_dtype or "in the engines' default format",
        "GPUs that share the LLM": str(question.tp),
        "metric": sentences.metric_words(question.metric),
        "regime": question.regime,
        "backend": question.backend,
        "CUDA graphs": "captured" if question.graphs else "none: the engine launches eagerly",
        "host time calibrated": sentences.listed(sorted(question.calibration)),
        "power limits": _limits(question),
        "posterior": question.source,
        "joint draws": f"{draws:,}, seed {question.seed}",
        "workloads": ", ".join(w.label for w in question.workloads[:TOLD]),
    }
    if not question.whole:
        out |= {"KV cache": "", "CUDA graphs": ""}
    return {name: said for name, said in out.items() if said}


def _limits(question: Question) -> str:
    """Power limits that were lowered [W]."""
    sheets = question.datasheets
    if "power_cap" not in sheets:
        return ""
    watts = (sheets["power_cap"] * sheets["power_limit"]).values
    lowered = sheets["power_cap"].values < 1
    names = sheets["sku"].values
    rows = zip(names[lowered], watts[lowered], strict=True)
    return sentences.listed([f"{name} {limit:.0f} W" for name, limit in rows])


def _ranking(question: Question, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows of the table of rankings."""
    units, mass = METRICS[question.metric], f"{100 * question.mass:.10g} %"
    rows = []
    for entry in results[:TOLD]:
        for sku in entry["skus"]:
            low, high = sku["interval"]["low"], sku["interval"]["high"]
            span = "-" if low is None else _span(low, high, units)
            error = f"{share(sku['p_best'])} ± {share(sku['p_best_mcse'])}"
            chosen = sku["sku"] == entry["choice"]
            star = " *" if sku["extrapolating"] else ""
            says = entry["verdict"] if chosen else _lacking(sku)
            rows.append(
                {
                    "chosen": chosen,
                    "cells": [
                        cell(None, entry["workload"]),
                        cell(None, sku["sku"]),
                        cell(sku["median"], amount(sku["median"], units)),
                        cell(low, span),
                        cell(sku["p_best"], error if sku["fits"] else "-"),
                        cell(sku["relative_regret"], share(sku["relative_regret"])),
                        cell(None, sku["basis"] + star),
                        cell(None, says),
                    ],
                }
            )
    head = ["workload", "SKU", "median", f"{mass} interval", "best with ± error"]
    return {"head": [*head, "regret", "basis", "verdict"], "rows": rows}


def _lacking(sku: Mapping[str, Any]) -> str:
    """Whether a SKU that is not the choice lacks the memory."""
    if not sku["fits"]:
        return "does not fit"
    return "" if sku.get("p_fits", 1) == 1 else f"fits: {share(sku['p_fits'])}"


def _span(low: float, high: float, units: str) -> str:
    """Ends of an interval, their unit said once if it is one."""
    start, end = amount(low, units), amount(high, units)
    number, _, unit = start.partition(" ")
    return f"{number if end.endswith(f' {unit}') else start} to {end}"


def _values(question: Question, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows of the table of what knowing more is worth."""
    units, rows = METRICS[question.metric], []
    for entry in results[:TOLD]:
        best = next((s for s in entry["skus"] if s["sku"] == entry["choice"]), None)
        if best is None:
            continue
        evpi = best["expected_regret"]
        rows.append(
            {
                "chosen": False,
                "cells": [
                    cell(None, entry["workload"]),
                    cell(None, entry["choice"]),
                    cell(evpi, amount(evpi, units) if evpi else "0"),
                    cell(best["relative_regret"], share(best["relative_regret"])),
                    cell(1 - best["p_best"], share(1 - best["p_best"])),
                    cell(entry["p_any_flip"], share(entry["p_any_flip"])),
                ],
            }
        )
    head = [
        "workload",
        "choice",
        "worth of knowing all",
        "relative",
        "another is best",
        "any two swap",
    ]
    return {"head": head, "rows": rows}


def _pair(row: Mapping[str, Any]) -> dict[str, Any]:
    error = f"{share(row['p_flip'])} ± {share(row['p_flip_mcse'])}"
    cells = [cell(None, row[k]) for k in ("workload", "better", "worse")]
    return {"chosen": False, "cells": [*cells, cell(row["p_flip"], error)]}


def _broken_down(question: Question) -> list[dict[str, Any]]:
    """A few workloads by operator, with what bounds each; empty if they are no whole steps."""
    if not question.whole or question.metric == "tokens_per_second":
        return []
    last = len(question.workloads) - 1
    few = replace(
        question, workloads=[question.workloads[i] for i in sorted({0, (last + 1) // 2, last})]
    )
    try:
        results = answers(few, predicted)
    except InfeasibleError:  # a later workload fits
        return []
    bottlenecks(few, results)
    return results


def _figures(
    question: Question,
    results: Sequence[Mapping[str, Any]],
    crossed: Sequence[Mapping[str, Any]],
    parts: Sequence[Mapping[str, Any]],
) -> list[dict[str, str]]:
    """Figures as SVG elements, with their captions."""
    told, metric = results[:TOLD], question.metric
    labels = [entry["workload"] for entry in told]
    kinds = [kind_of(labels)]
    drawn = {kinds[0]: of_ranking(question, told, crossed)}
    if len(told) > 1 and kinds[0] != "p_best":
        drawn["p_best"] = p_best_map(told, metric=metric)
    drawn["regret"] = regret(told, metric=metric)
    if parts:
        drawn["breakdown"] = breakdown(parts)
    part = f" Of the first {TOLD} workloads." if len(results) > TOLD else ""
    return [
        {
            "svg": inlined(
                figure, label=f"f{i}", title=CAPTIONS[kind], description=_described(kind)
            ),
            "caption": CAPTIONS[kind] + (part if kind != "breakdown" else ""),
        }
        for i, (kind, figure) in enumerate(drawn.items())
    ]


def _described(kind: str) -> str:
    table = "what bounds a step" if kind == "breakdown" else "the tables"
    return f"The numbers of this figure stand in {table} of this page."
