"""Results as text: columns for people, flat rows for CSV."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from m2bayes.diagnostics import UNIFORM
from m2bayes.layout import GAP, columns, wrapped
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
    "expected_regret_mcse",
    "relative_regret",
    "relative_regret_mcse",
    "fits",
    "basis",
    "extrapolating",
    "choice",
    "verdict",
    "reason",
]
OFF = 0.02  # coverage off its mass that is worth a word
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
    return f"{digits(value)} {units}"


def digits(value: float) -> str:
    """Write a number with three digits, none of them left out, and no power of ten.

    >>> digits(1.1), digits(0.00733), digits(12345.6), digits(0.0)
    ('1.10', '0.00733', '12,300', '0')
    """
    if not value:
        return "0"
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.{max(0, 2 - math.floor(math.log10(abs(rounded))))}f}"


def share(value: float | None) -> str:
    """Probability or share [1] in percent.

    >>> share(0.025), share(None)
    ('2.5 %', '-')
    """
    return "-" if value is None else f"{100 * value:.1f} %"


def between(low: str, high: str) -> str:
    """Interval in words, a unit that both ends share said once.

    >>> between("1.2 ms", "1.4 ms"), between("980 µs", "1.1 ms")
    ('1.2 to 1.4 ms', '980 µs to 1.1 ms')
    """
    unit = high.rpartition(" ")[2]
    return f"{low.removesuffix(' ' + unit)} to {high}"


def error(value: str, of: str) -> str:
    """Value in words with its Monte Carlo error, a unit that both share said once.

    >>> error("75.1 %", "1.0 %"), error("-", "-")
    ('75.1 ± 1.0 %', '-')
    """
    unit = of.rpartition(" ")[2]
    return value if of == "-" else f"{value.removesuffix(' ' + unit)} ± {of}"


def _title(question: Question) -> str:
    llm = question.llm.name if question.llm else "single kernels"
    draws = question.posterior.sizes["chain"] * question.posterior.sizes["draw"]
    return wrapped(
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
                "p_best": _with_error(sku, "p_best"),
                "flips with next": share(ahead.get(sku["sku"])),
                "regret": _with_error(sku, "relative_regret"),
            }
            for sku in entry["skus"]
            if sku["fits"]
        ]
        lines = [f"  {text}" for text in _unfit(entry)]
        if rows:
            lines.append(_bases([sku for sku in entry["skus"] if sku["fits"]]))
        lines += filter(None, map(_break_even, entry["pairs"]))
        blocks.append(wrapped(f"{entry['workload']}: {_verdict(entry)}", GAP))
        blocks[-1] += f"\n{columns(rows, GAP)}" if rows else ""
        blocks[-1] += f"\n{wrapped(chr(10).join(lines), GAP * 2)}" if lines else ""
    return "\n\n".join(blocks)


def _unfit(entry: dict[str, Any]) -> list[str]:
    """Why SKUs do not fit, or not in every draw; those with the same reason in one line."""
    found: dict[str, list[str]] = {}
    for sku in entry["skus"]:
        if not sku["fits"] or sku["p_fits"] < 1:
            found.setdefault(sku["reason"], []).append(sku["sku"])
    return [f"{', '.join(held)}: {reason}" for reason, held in found.items()]


def _with_error(sku: dict[str, Any], name: str) -> str:
    """Probability or share of a SKU with its Monte Carlo error."""
    return error(share(sku[name]), share(sku[f"{name}_mcse"]))


def _bases(skus: Sequence[dict[str, Any]]) -> str:
    """What the predictions of the SKUs rest on, in one line; a star where they extrapolate."""
    found: dict[str, list[str]] = {}
    for sku in skus:
        found.setdefault(_basis(sku), []).append(sku["sku"])
    if len(found) == 1:
        return f"  basis: {next(iter(found))}"
    return "  basis: " + "; ".join(f"{basis}: {', '.join(held)}" for basis, held in found.items())


def _basis(row: dict[str, Any]) -> str:
    return row["basis"] + (" *" if row["extrapolating"] else "")


def _break_even(pair: dict[str, Any]) -> str:
    """Price ratio at which two SKUs cost the same, as a line of its own; empty if nobody asked."""
    held = pair.get("break_even_price_ratio")
    if held is None:
        return ""
    low, high = held["interval"]["low"], held["interval"]["high"]
    span = f"{held['median']:.2f} ({low:.2f} to {high:.2f})"
    return f"  {held['of']} at {span} times the price of {held['over']} costs the same"


def _verdict(entry: dict[str, Any]) -> str:
    if entry["choice"] is None:
        return "nothing fits"
    if entry["verdict"] == "either will do" and len(entry["contenders"]) > 1:
        return f"either will do: {', '.join(entry['contenders'])}"
    if entry["verdict"] == "either will do":
        lost = next(s["relative_regret"] for s in entry["skus"] if s["sku"] == entry["choice"])
        return f"either will do; choosing {entry['choice']} costs {share(lost)} in expectation"
    if entry["verdict"] == "too close to call":
        told = f"too close to call; {entry['choice']} has the least expected regret"
        lost = {s["sku"]: s["relative_regret"] for s in entry["skus"]}
        known = {sku: value for sku, value in lost.items() if value is not None}
        if (
            min(known, key=lambda sku: known[sku]) != entry["choice"]
            and len(set(known.values())) > 1
        ):
            told += " as such, not relative to the best of each draw, as the table has it"
        return told
    return f"{entry['choice']}, {entry['verdict']}"


def crossings(found: Sequence[dict[str, Any]]) -> str:
    """Where the best SKU changes, one line a crossover."""
    return wrapped(
        "\n".join(
            f"crossover at {c['size']} {c['median']:,.0f} (90 % interval {_reach(c)}), among "
            f"{_ends(c['tried'])} with probability {share(c['p_between'])}: {c['before']} before, "
            f"{c['after']} after"
            for c in found
        ),
        GAP,
    )


def _reach(crossover: dict[str, Any]) -> str:
    """Interval of a crossover, and where the sizes compared end before it does."""
    interval = crossover["interval"]
    low = f"{interval['low']:,.0f}" + " or less" * ("low" in interval["censored"])
    return f"{low} to {interval['high']:,.0f}" + " or more" * ("high" in interval["censored"])


def _ends(tried: Sequence[int]) -> str:
    return f"{tried[0]:,} to {tried[1]:,}"


def _span(interval: dict[str, Any], units: str) -> str:
    if interval["low"] is None:
        return "-"
    return between(amount(interval["low"], units), amount(interval["high"], units))


def prediction(question: Question, results: Sequence[dict[str, Any]]) -> str:
    """List times by workload and SKU, or by operator of each, in the order asked."""
    order = [str(s) for s in question.datasheets["sku"].values]
    units, blocks = METRICS[question.metric], dict[str, list[dict[str, Any]]]()
    bounded = any("p_host_bound" in sku for entry in results for sku in entry["skus"])
    for row in flat_rows(results, order):
        star = " *" if row["extrapolating"] else ""
        head = f"{row['workload']} on {row['sku']}, {row['basis']}{star}:" if "op" in row else ""
        if head and row["high"] == 0:  # an operator that this step has none of
            continue
        place = {"workload": row["workload"], "SKU": row["sku"]}
        line = {"op": row["op"]} if head else place
        line |= {
            "median": amount(row["median"], units) + (star if not head else ""),
            "mean": amount(row["mean"], units),
            _interval_title(question): _span({k: row[k] for k in ("low", "high")}, units),
        }
        blocks.setdefault(head, []).append(line | ({"bound by": _bound(row)} if bounded else {}))
    text = [_title(question)]
    text += [f"{wrapped(head)}\n{columns(rows, GAP)}" for head, rows in blocks.items() if head]
    last = [f"{entry['workload']}, {text}" for entry in results for text in _unfit(entry)]
    if "" in blocks:
        text.append(columns(blocks[""]))
        last.append(_bases([s | {"extrapolating": False} for s in results[0]["skus"]]).strip())
    return "\n\n".join(text) + "".join(f"\n{wrapped(line, GAP)}" for line in last)


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
            if key in ("coverage_80", "coverage_95", "pit_mean", "band_low", "band_high"):
                continue  # in the JSON
            name = key.replace("coverage_", "in ").replace("_", " ")
            row[name] = f"{figure:.3f}" if key == "crps" else f"{100 * figure:.1f}"
        if held.get("band_low") is not None:
            row["in 90 by chance"] = (
                f"{100 * held['band_low']:.0f} to {100 * held['band_high']:.0f}"
            )
        rows.append(row)
    return columns(rows, "  ")


def check(result: dict[str, Any]) -> str:
    """Diagnostics and posterior predictive calibration of a stored posterior."""
    lines = [wrapped(f"{result['posterior']}: {diagnosis(result['checks'])}", GAP)]
    if "skipped" in result:
        lines.append(result["skipped"])  # holds a command to copy
    else:
        what = "posterior predictive of the rows it was fitted to, each shape as if new (%):"
        lines += [wrapped(what, GAP), score_rows(result["calibration"])]
        lines.append(wrapped(_judged(result), GAP))
    if "fingerprint" in result:
        lines.append("fingerprint: the log density is the stored one")
    return "\n".join(lines)


def _judged(result: dict[str, Any]) -> str:
    """Say whether the PIT is uniform, and to which side the intervals err."""
    p, held = result["uniformity"], result["calibration"]["mean"]["coverage_90"]
    side = "wider than they need be" if held > 0.9 + OFF else "too narrow" * (held < 0.9 - OFF)
    passed = f"passed: p {p:.2g}" if p >= UNIFORM else f"not passed: p {p:.2g}, below {UNIFORM:g}"
    text = f"are the PIT of all cells uniform? {passed}; 90 % intervals hold {share(held)}"
    return f"{text}, {side}" if p < UNIFORM and side else text


def suite(result: dict[str, Any]) -> str:
    """Results of one suite: a table wherever rows share their columns; or why it was skipped."""
    if "skipped" in result:
        return f"{result['suite']}\n  skipped: {result['skipped']}"
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
        return f"{digits(cuts[0])} ({digits(cuts[1])} to {digits(cuts[2])})"

    blocks: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        said = row["source"] if row["source"].startswith("not ") else f"source's {row['source']}"
        blocks.setdefault(f"{row['factor']} [{row['units']}], {said}", []).append(
            {
                "SKU": row["sku"],
                "prior, 90 %": span(row["prior"]),
                "posterior, 90 %": span(row["posterior"]),
                "contraction": "prior only"
                if row["verdict"] == "prior only"
                else f"{row['contraction']:.2f}" + (" !" if row["surprising"] else ""),
                "strongest correlation": f"{row['correlation']:+.2f} {row['correlates_with']}",
            }
        )
    return "\n\n".join(f"{wrapped(k, GAP)}\n{columns(v, GAP)}" for k, v in blocks.items())


def _short(value: Any) -> Any:
    """Number, or list of them, with six digits; anything else as it stands."""
    if isinstance(value, list) and all(isinstance(v, int | float) for v in value):
        return f"[{', '.join(str(_short(v)) for v in value)}]"
    return f"{value:.6g}" if isinstance(value, float) else value


def tree(content: Any, indent: str = "") -> str:
    """Nested content as indented lines."""
    lines = []
    for key, value in content.items():
        if isinstance(value, dict):
            lines += [f"{indent}{key}:", tree(value, indent + "  ")]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            lines += [f"{indent}{key}:"]
            for one in value:
                first, *rest = tree(one, indent + "    ").splitlines()
                lines += [f"{indent}  - {first.lstrip()}", *rest]
        else:
            lines.append(wrapped(f"{indent}{key}: {_short(value)}", indent + GAP))
    return "\n".join(lines)
