"""Results as text: columns for people, flat rows for CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from m2bayes.question import METRICS, Question

RANK_COLUMNS = [
    "workload",
    "sku",
    "median",
    "mean",
    "low",
    "high",
    "p_best",
    "p_best_mcse",
    "expected_rank",
    "expected_regret",
    "relative_regret",
    "fits",
    "basis",
    "extrapolating",
    "choice",
    "verdict",
    "reason",
]
LIKELY = 0.005  # least probability that is worth a mention
PREFIXES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def seconds(value: float | None) -> str:
    """Time [s] with three digits and a readable unit.

    >>> seconds(0.001234)
    '1.23 ms'
    """
    if value is None:
        return "-"
    scale, unit = next((p for p in PREFIXES if value >= p[0]), PREFIXES[-1])
    return f"{value / scale:#.3g}".rstrip(".") + f" {unit}"


def amount(value: float | None, units: str) -> str:
    """Value of a metric with three digits and its unit, a time [s] with a readable one.

    >>> amount(0.001234, "s"), amount(12345.6, "token/s")
    ('1.23 ms', '12,300 token/s')
    """
    if units == "s" or value is None:
        return seconds(value)
    return f"{float(f'{value:.3g}'):,.12g} {units}"


def share(value: float | None) -> str:
    """Probability or share [1] in percent.

    >>> share(0.025), share(None)
    ('2.5 %', '-')
    """
    return "-" if value is None else f"{100 * value:.1f} %"


def columns(rows: Sequence[dict[str, Any]], indent: str = "") -> str:
    """Align the rows' values under their keys; numbers to the right."""
    if not rows:
        return f"{indent}(none)"
    names = [*rows[0]]
    cells = [[str(row[name]) for name in names] for row in rows]
    widths = [max(len(n), *(len(c[i]) for c in cells)) for i, n in enumerate(names)]
    right = [all(c[i][:1].isdigit() or c[i] == "-" for c in cells) for i in range(len(names))]
    lines = [
        "  ".join(
            c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True)
        )
        for line in [names, *cells]
    ]
    return "\n".join((indent + line).rstrip() for line in lines)


def _title(question: Question) -> str:
    llm = question.llm.name if question.llm else "single kernels"
    draws = question.posterior.sizes["chain"] * question.posterior.sizes["draw"]
    return (
        f"{llm}, {question.form}, TP {question.tp}: {question.metric}, "
        f"{question.regime} regime, backend {question.backend}\n"
        f"posterior {question.source}, {draws} draws, seed {question.seed}"
    )


def _interval_title(question: Question) -> str:
    return f"{100 * question.mass:.10g} % interval"


def ranking(question: Question, results: Sequence[dict[str, Any]]) -> str:
    """One block a workload: verdict, then the SKUs, best first."""
    blocks, units = [_title(question)], METRICS[question.metric]
    for entry in results:
        ahead = {pair["better"]: pair["p_flip"] for pair in reversed(entry["pairs"])}
        rows = [
            {
                "SKU": sku["sku"],
                "median": amount(sku["median"], units),
                _interval_title(question): _span(sku["interval"], units),
                "p_best": share(sku["p_best"]) if sku["fits"] else "-",
                "± MCSE": share(sku["p_best_mcse"]) if sku["fits"] else "-",
                "flips with next": share(ahead.get(sku["sku"])),
                "regret": share(sku["relative_regret"]),
                "basis": sku["basis"] + (" *" if sku["extrapolating"] else ""),
            }
            for sku in entry["skus"]
        ]
        blocks.append(f"{entry['workload']}: {_verdict(entry)}\n{columns(rows, '  ')}")
        blocks[-1] += "".join(
            f"\n  {sku['sku']}: {sku['reason']}" for sku in entry["skus"] if not sku["fits"]
        )
        blocks[-1] += "".join(_break_even(pair) for pair in entry["pairs"])
    return "\n\n".join(blocks)


def _break_even(pair: dict[str, Any]) -> str:
    """Price ratio at which two SKUs cost the same, as a line of its own; empty if nobody asked."""
    held = pair.get("break_even_price_ratio")
    if held is None:
        return ""
    low, high = held["interval"]["low"], held["interval"]["high"]
    span = f"{held['median']:.2f} ({low:.2f} to {high:.2f})"
    return f"\n  {held['of']} at {span} times the price of {held['over']} costs the same"


def _verdict(entry: dict[str, Any]) -> str:
    if entry["choice"] is None:
        return "nothing fits"
    if entry["verdict"] == "either will do" and len(entry["contenders"]) > 1:
        return f"either will do: {', '.join(entry['contenders'])}"
    if entry["verdict"] == "either will do":
        lost = next(s["relative_regret"] for s in entry["skus"] if s["sku"] == entry["choice"])
        return f"either will do; choosing {entry['choice']} costs {share(lost)} in expectation"
    if entry["verdict"] == "too close to call":
        return f"too close to call; {entry['choice']} has the least expected regret"
    return f"{entry['choice']}, {entry['verdict']}"


def crossings(found: Sequence[dict[str, Any]]) -> str:
    """Where the best SKU changes, one line a crossover."""
    return "\n".join(
        f"crossover at {c['size']} {c['median']:.0f} (90 % interval {_reach(c)}) with probability "
        f"{c['p_between']:.2f}: {c['before']} before, {c['after']} after"
        for c in found
    )


def _reach(crossover: dict[str, Any]) -> str:
    """Interval of a crossover, and where the sizes compared end before it does."""
    interval = crossover["interval"]
    low = f"{interval['low']:.0f}" + " or less" * ("low" in interval["censored"])
    return f"{low} to {interval['high']:.0f}" + " or more" * ("high" in interval["censored"])


def _span(interval: dict[str, Any], units: str) -> str:
    if interval["low"] is None:
        return "-"
    return f"{amount(interval['low'], units)} to {amount(interval['high'], units)}"


def prediction(question: Question, results: Sequence[dict[str, Any]]) -> str:
    """List times by workload, SKU and, when asked for, operator, in the order asked."""
    order = [str(s) for s in question.datasheets["sku"].values]
    rows, units = [], METRICS[question.metric]
    bounded = any("p_host_bound" in sku for entry in results for sku in entry["skus"])
    for row in flat_rows(results, order):
        interval = {"low": row["low"], "high": row["high"]}
        rows.append(
            {
                "workload": row["workload"],
                "SKU": row["sku"],
                **({"op": row["op"]} if "op" in row else {}),
                "median": amount(row["median"], units),
                "mean": amount(row["mean"], units),
                _interval_title(question): _span(interval, units),
                **({"bound by": _bound(row)} if bounded else {}),
                "basis": row["basis"] + (" *" if row["extrapolating"] else ""),
            }
        )
    reasons = "".join(
        f"\n{entry['workload']}, {sku['sku']}: {sku['reason']}"
        for entry in results
        for sku in entry["skus"]
        if not sku["fits"]
    )
    return f"{_title(question)}\n\n{columns(rows)}{reasons}"


def _bound(row: dict[str, Any]) -> str:
    """Resources that bound an operator, the likelier first, with their probability."""
    if row["op"] == "host":
        return f"launches {share(row['p_host_bound'])}"
    likely = sorted(row.get("bounds", {}).items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {share(p)}" for name, p in likely if p >= LIKELY) or "-"


def flat_rows(results: Sequence[dict[str, Any]], order: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Rows in input order: workload, then SKU as given, then operator where there is one."""
    for entry in results:
        rest = {k: entry.get(k) for k in ("workload", "choice", "verdict")}
        for sku in sorted(entry["skus"], key=lambda s: order.index(s["sku"])):
            whole = {k: v for k, v in sku.items() if k not in ("ops", "interval")}
            for part in sku.get("ops", [sku]):
                interval = {k: part["interval"][k] for k in ("low", "high")}
                yield rest | whole | {k: v for k, v in part.items() if k != "ops"} | interval


def diagnosis(checks: dict[str, float]) -> str:
    """Diagnostics of a fit in one line."""
    return (
        f"R-hat {checks['rhat_max']:.4f} at most, ESS {checks['ess_bulk_min']:.0f} bulk and "
        f"{checks['ess_tail_min']:.0f} tail at least, {checks['divergences']:.0f} divergences, "
        f"E-BFMI {checks['bfmi_min']:.2f}"
    )


def score_rows(by_sku: dict[str, dict[str, float]]) -> str:
    """Scores by SKU: errors and coverage in percent."""
    rows = []
    for sku, held in by_sku.items():
        row = {"SKU": sku}
        for key, figure in held.items():
            name = key.replace("coverage_", "in ").replace("_", " ")
            row[name] = f"{figure:.3f}" if key in ("crps", "pit_mean") else f"{100 * figure:.1f}"
        rows.append(row)
    return columns(rows, "  ")


def check(result: dict[str, Any]) -> str:
    """Diagnostics and posterior predictive calibration of a stored posterior."""
    lines = [
        f"{result['posterior']}: {diagnosis(result['checks'])}",
        result["skipped"]
        if "skipped" in result
        else "posterior predictive of the rows it was fitted to, each shape as if it were new "
        f"(%):\n{score_rows(result['calibration'])}",
    ]
    if "fingerprint" in result:
        lines.append("fingerprint: the log density is the stored one")
    return "\n".join(lines)


def suite(result: dict[str, Any]) -> str:
    """Results of one suite: a table wherever rows share their columns."""
    return f"{result['suite']}\n{_results(result['results'])}"


def _results(held: dict[str, Any], path: str = "") -> str:
    """Nested results as titled tables (shares in percent, CRPS of log time)."""
    rows = {k: v for k, v in held.items() if isinstance(v, dict)}
    plain = {k: v for k, v in held.items() if not isinstance(v, dict)}
    flat = {k: v for k, v in rows.items() if not any(isinstance(x, dict) for x in v.values())}
    lines = [f"{path}"] if path and (flat or plain) else []
    lines += [f"  {k}: {_figure(k, v)}" for k, v in plain.items()]
    if flat:
        names = list(dict.fromkeys(c for row in flat.values() for c in row))
        table = [
            {"": k, **{n.replace("_", " "): _figure(n, row.get(n)) for n in names}}
            for k, row in flat.items()
        ]
        lines.append(columns(table, "  "))
    for key, inner in rows.items():
        if key not in flat:
            lines.append(_results(inner, f"{path} / {key}" if path else key))
    return "\n".join(lines)


def _figure(name: str, value: Any) -> str:
    """One figure of a suite as text."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return ", ".join(_figure(name, v) for v in value)
    if isinstance(value, bool | str | int):
        return str(value)
    return f"{value:.4g}"


def factor_table(rows: Sequence[dict[str, Any]]) -> str:
    """Factor report for people; "prior only": the data did not move it; "!": beyond its prior."""

    def span(cuts: Sequence[float]) -> str:
        return f"{cuts[0]:.3g} ({cuts[1]:.3g} to {cuts[2]:.3g})"

    return columns(
        [
            {
                "factor": row["factor"],
                "in the source": row["source"],
                "unit": row["units"],
                "SKU": row["sku"],
                "prior, 90 %": span(row["prior"]),
                "posterior, 90 %": span(row["posterior"]),
                "contraction": "prior only"
                if row["verdict"] == "prior only"
                else f"{row['contraction']:.2f}" + (" !" if row["surprising"] else ""),
                "strongest correlation": f"{row['correlation']:+.2f} {row['correlates_with']}",
            }
            for row in rows
        ]
    )


def tree(content: Any, indent: str = "") -> str:
    """Nested content as indented lines."""
    lines = []
    for key, value in content.items():
        if isinstance(value, dict):
            lines += [f"{indent}{key}:", tree(value, indent + "  ")]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            lines += [f"{indent}{key}:"]
            lines += [f"{indent}  - {'; '.join(f'{k} {v}' for k, v in v.items())}" for v in value]
        else:
            lines.append(f"{indent}{key}: {value}")
    return "\n".join(lines)
