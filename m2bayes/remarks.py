"""What a reader should know beside the numbers: one sentence a remark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from m2bayes.mechanism.power import MEASURED_SHARE
from m2bayes.question import Question
from m2bayes.tables import seconds, share
from m2bayes.workload import Step, kv_bytes_per_token

NOTABLE = 0.1  # share of the metric from which what it leaves out is worth a remark


def remarks(question: Question, results: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Say what a reader should know beside the table."""
    if question.whole:
        yield (
            "cold weights and KV cache, settled clock: extrapolated from kernel benchmarks; "
            + _host(question)
        )
    elif question.regime == "served":
        yield (
            "served regime: cold weights and a settled clock, extrapolated from kernel benchmarks; "
            "no served measurement enters the fit (--regime benchmark predicts the benchmark)"
        )
    if "power_cap" in question.datasheets:
        yield (
            "power limits act through the SM clock of compute-bound work alone; the exponent is "
            f"that of one card's sweep, spread between cards; below {MEASURED_SHARE:.0%} of a "
            "card's limit clocks fall faster than this says"
        )
    yield from _not_modelled(question)
    left_out = _left_out(question, results)
    if left_out:
        yield left_out
    yield from _cache_binds(question, results)
    yield from _dominated(results)
    reasons = {
        sku["reason"] for e in results for sku in e["skus"] if sku["extrapolating"] and sku["fits"]
    }
    for reason in sorted(reasons)[:3]:
        yield f"* extrapolating: {reason}"
    if any(sku["basis"] != "measured" for e in results for sku in e["skus"]):
        yield "basis: architecture or population means that nobody measured the SKU itself"


def _not_modelled(question: Question) -> Iterator[str]:
    """Say what the LLM's configuration has and the prediction does not."""
    llm, steps = question.llm, [w for w in question.workloads if isinstance(w, Step)]
    if llm is None:
        return
    if llm.quantised and question.form == "bf16":
        yield (
            f"{llm.name}: its configuration stores the weights in {llm.quantised!a}; the times are "
            "those of bf16: --dtype fp8 or w4a16 predicts narrower ones"
        )
    if llm.window is not None and any(
        s.context + max(s.tokens, s.prefill) > llm.window for s in steps
    ):
        yield (
            f"{llm.name}: looks back over {llm.window} tokens; attention and KV cache are taken "
            "over the whole context, which is an upper bound"
        )


def _host(question: Question) -> str:
    """Say what the host's part of a step rests on."""
    skus = [str(sku) for sku in question.datasheets["sku"].values]
    learnt = [sku for sku in skus if sku in question.calibration]
    if not learnt:
        return "the host's part is mostly prior (--calibrate FILE learns it from your own steps)"
    if len(learnt) == len(skus):
        return "the host's part is learnt from your own steps"
    return (
        f"the host's part is learnt from your own steps of {', '.join(learnt)}, else mostly prior"
    )


def _cache_binds(question: Question, results: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Say which batches no KV cache holds: times at such a batch rank nothing."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for entry in results:
        for sku in entry["skus"]:
            held = sku.get("sequences")
            if not held or sku["sku"] in found:
                continue
            if held["median"] < held["asked"] and held["high"] >= 1:  # of none the table says so
                found[sku["sku"]] = (entry["workload"], held)
    for sku, (workload, held) in found.items():
        yield (
            f"the KV cache binds at {workload}: {sku} holds {held['median']:.0f} "
            f"({held['low']:.0f} to {held['high']:.0f}) of {held['asked']} sequences, and the "
            "others wait, which no time of a step shows; m2bayes plan ranks by what is served"
        )


def _dominated(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Say where the uncertainty comes from that leaves a choice open."""
    for entry in results:
        named = [f for f in entry.get("dominated_by", []) if f["share"] >= NOTABLE]
        if named and entry.get("verdict") != "clear":
            told = ", ".join(f"{f['factor']} of {f['sku']} ({share(f['share'])})" for f in named)
            yield f"{entry['workload']}: most of what leaves the first two open goes with {told}"


def _left_out(question: Question, results: Sequence[dict[str, Any]]) -> str:
    """Say how long attention must at least read its cache where that rivals the metric."""
    if question.llm is None or question.whole:
        return ""
    token = kv_bytes_per_token(question.llm, tp=question.tp)
    cached = {w.label: w.cached_tokens for w in question.workloads if isinstance(w, Step)}
    bandwidth = question.datasheets["peak_bandwidth"]
    worst = max(
        (
            (cached[e["workload"]] * token / float(bandwidth.sel(sku=s["sku"])) / s["median"], e, s)
            for e in results
            for s in e["skus"]
            if s["median"] is not None
        ),
        key=lambda found: found[0],
        default=None,
    )
    if worst is None or worst[0] < NOTABLE:
        return ""
    ratio, entry, sku = worst
    least = seconds(ratio * sku["median"])
    return (
        f"{question.metric} leaves attention, LM head and all-reduce out: reading the KV cache "
        f"alone takes at least {least} on {sku['sku']} at {entry['workload']}"
    )
