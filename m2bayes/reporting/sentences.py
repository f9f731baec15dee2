"""An answer in words: what was asked, what to choose, and what would change it."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from m2bayes.question import METRICS, Question
from m2bayes.tables import amount, crossings, share

Results = Sequence[Mapping[str, Any]]
OPEN = 0.05  # flip probability from which a pair is close
MANY = 12  # workloads from which they are summed up rather than told one by one


def listed(names: Sequence[str], last: str = "and") -> str:
    """Names as people list them.

    >>> listed(["a", "b", "c"]), listed(["a"])
    ('a, b and c', 'a')
    """
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} {last} {names[-1]}"


def metric_words(metric: str) -> str:
    """Name of a metric in words.

    >>> metric_words("tokens_per_second"), metric_words("tpot")
    ('tokens per second', 'TPOT')
    """
    return metric.upper() if metric in ("ttft", "tpot") else metric.replace("_", " ")


def asked(question: Question) -> str:
    """Question in one sentence."""
    skus = [str(name) for name in question.datasheets["sku"].values]
    more = "most" if question.metric == "tokens_per_second" else "least"
    what = f"{question.llm.name}, " if question.llm else ""
    shared = f" on {question.tp} GPUs each" if question.tp > 1 else ""
    count = len(question.workloads)
    works = f"these {count} workloads" if count > 1 else question.workloads[0].label
    return (
        f"Of {listed(skus)}, which has the {more} {metric_words(question.metric)} for {what}"
        f"{question.form}{shared}, in {works}?"
    )


def answered(question: Question, results: Results) -> list[str]:
    """Verdict in words: an overall sentence, then one a workload unless there are many."""
    out = [_overall(question, results)]
    if 1 < len(results) <= MANY:
        out += [f"{entry['workload']}: {_one(question, entry)}" for entry in results]
    return [*out, *_never_measured(results)]


def _never_measured(results: Results) -> Iterator[str]:
    """Yield which of the SKUs that may be chosen nobody measured, and what stands in for that."""
    found: dict[str, str] = {}
    for entry in results:
        for sku in entry["skus"]:
            if sku["basis"] != "measured" and (sku["p_best"] or 0) >= OPEN:
                found[sku["sku"]] = sku["basis"]
    rests = {"architecture": "cards of its architecture", "population": "all other cards"}
    for name, basis in found.items():
        others = rests.get(basis, basis)
        yield f"{name} was never measured: its figures rest on its datasheet and on {others}."


def _overall(question: Question, results: Results) -> str:
    """What to choose in one sentence."""
    if len(results) == 1:
        return _one(question, results[0])
    held: dict[str, list[str]] = {}
    for entry in results:
        held.setdefault(entry["choice"] or "", []).append(entry["verdict"])
    parts = []
    for choice, verdicts in sorted(held.items(), key=lambda item: -len(item[1])):
        kinds = [f"{kind} in {verdicts.count(kind)}" for kind in dict.fromkeys(verdicts)]
        where = f"in {len(verdicts)} of {len(results)} workloads"
        parts.append(f"{choice} {where} ({listed(kinds)})" if choice else f"nothing fits {where}")
    return f"The choice is {'; '.join(parts)}."


def _one(question: Question, entry: Mapping[str, Any]) -> str:
    """What to choose for one workload, and how sure that is."""
    choice = entry["choice"]
    if choice is None:
        return "no SKU can hold it."
    best = next(sku for sku in entry["skus"] if sku["sku"] == choice)
    units = METRICS[question.metric]
    low, high = (amount(best["interval"][end], units) for end in ("low", "high"))
    mass = f"{100 * question.mass:.10g} %"
    value = f"{amount(best['median'], units)} ({mass}: {low} to {high})"
    if entry["verdict"] == "clear":
        return f"{choice}, clearly: best with probability {share(best['p_best'])}, {value}."
    if entry["verdict"] == "either will do" and len(entry["contenders"]) > 1:
        return (
            f"either will do, {listed(entry['contenders'], 'or')}: each costs less than 1 % in "
            f"expectation; {choice}: {value}."
        )
    lost = share(best["relative_regret"])
    if entry["verdict"] == "either will do":
        return f"{choice}: not surely the best, but it costs only {lost} in expectation; {value}."
    rival = _rival(entry)
    return (
        f"too close to call: {choice} has the least expected regret ({lost}) and is best with "
        f"probability {share(best['p_best'])}{rival}; {value}."
    )


def _rival(entry: Mapping[str, Any]) -> str:
    others = [sku for sku in entry["skus"] if sku["sku"] != entry["choice"] and sku["fits"]]
    if not others:
        return ""
    next_best = max(others, key=lambda sku: sku["p_best"])
    return f", {next_best['sku']} with {share(next_best['p_best'])}"


def unfit(results: Results) -> list[str]:
    """Why SKUs do not fit, one sentence a SKU: of the first workload that it cannot hold."""
    first: dict[str, str] = {}
    for entry in results:
        for sku in entry["skus"]:
            if not sku["fits"]:
                first.setdefault(sku["sku"], f"{entry['workload']}: {sku['reason']}")
    return [f"{sku}, {reason}." for sku, reason in first.items()]


def close_pairs(results: Results) -> list[dict[str, Any]]:
    """Pairs of SKUs whose order is open, with the choice among them, the closest first."""
    rows = [
        {"workload": entry["workload"], **pair}
        for entry in results
        for pair in entry["pairs"]
        if pair["p_flip"] >= OPEN and entry["choice"] in (pair["better"], pair["worse"])
    ]
    return sorted(rows, key=lambda row: -row["p_flip"])


def changing(
    question: Question, results: Results, crossed: Results, broken_down: Results
) -> Iterator[str]:
    """Yield what would change the decision, one sentence each."""
    pairs = close_pairs(results)
    if pairs:
        first = pairs[0]
        yield (
            f"Measuring {first['better']} and {first['worse']} at {first['workload']} would settle "
            f"the closest pair: they stand in the opposite order with probability "
            f"{share(first['p_flip'])}."
        )
    for line in crossings([dict(found) for found in crossed]).splitlines():
        yield f"The size of the work: {line}."
    guessed = {s["sku"]: s["basis"] for e in results for s in e["skus"] if s["basis"] != "measured"}
    if guessed:
        names = listed([f"{sku} ({basis})" for sku, basis in sorted(guessed.items())])
        yield f"Timings of what nobody measured here: {names}."
    beyond = {
        sku["reason"]
        for entry in results
        for sku in entry["skus"]
        if sku["fits"] and sku["extrapolating"] and sku.get("p_fits", 1) == 1
    }
    for reason in sorted(beyond)[:3]:
        yield f"Data where the model extrapolates: {reason}."
    yield from _memory(results)
    yield from _bounds(broken_down, question.calibration)


def _memory(results: Results) -> Iterator[str]:
    """Yield which SKUs may lack the memory, each at the first workload where that is open."""
    told = set[str]()
    for entry in results:
        for sku in entry["skus"]:
            if 0 < sku.get("p_fits", 1) < 1 and sku["sku"] not in told:
                told.add(sku["sku"])
                yield (
                    f"The memory that the engine leaves: {sku['sku']} holds "
                    f"{entry['workload']} with probability {share(sku['p_fits'])}."
                )


def _bounds(broken_down: Results, calibrated: Container[str]) -> Iterator[str]:
    """Yield how much of the chosen step the host takes, and which operator takes the most."""
    for entry in broken_down:
        best = next((sku for sku in entry["skus"] if sku["median"] is not None), None)
        if best is None:
            continue
        ops = {op["op"]: op for op in best["ops"]}
        whole = sum(op["median"] for op in ops.values())
        longest = max(ops.values(), key=lambda op: op["median"])
        bounds = longest.get("bounds") or {}
        by = f", bound by {max(bounds, key=lambda name: bounds[name])}" if bounds else ""
        host = ops.get("host", {"median": 0.0})["median"] / whole
        known = "learnt from timed steps" if best["sku"] in calibrated else "mostly prior"
        most = f"{longest['op'].replace('_', ' ')} takes most, {share(longest['median'] / whole)}"
        if longest["op"] == "host":
            most += f", and is {known}"
        else:
            most += f"{by}; the host, which is {known}, {share(host)}"
        yield f"What bounds the step, {entry['workload']} on {best['sku']}: {most}."
