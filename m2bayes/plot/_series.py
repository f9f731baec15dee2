"""Whether workloads differ in one size, in two that make a grid, or in no order for an axis."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

SIZES = {
    "batch": "batch [sequences]",
    "tokens": "prompt tokens in the step [token]",
    "context": "context [token]",
    "prefill": "prompt tokens in the step [token]",
    "m": "M, tokens",
    "n": "N, output width",
    "k": "K, contraction",
}


def sizes_of(label: str) -> dict[str, str]:
    """Sizes that a workload's label names.

    >>> sizes_of("decode:batch=64,context=2048")
    {'batch': '64', 'context': '2048'}
    """
    pairs = [pair.partition("=") for pair in label.partition(":")[2].split(",") if pair]
    return {key: value for key, _, value in pairs}


def folded(label: str, most: int = 36) -> str:
    r"""Label in lines of about `most` characters, broken at blanks and after commas.

    >>> folded("attention:phase=decode,batch=64", 24)
    'attention:phase=decode,\nbatch=64'
    """
    lines = [""]
    for piece in re.findall(r"[^\s,]*,\s?|\S+\s?", label):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > most:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)


def varying(labels: Sequence[str]) -> list[str]:
    """Sizes in which workloads of one kind differ; empty if they are of several kinds.

    >>> varying(["prefill:tokens=1", "prefill:tokens=2"])
    ['tokens']
    """
    if len({label.partition(":")[0] for label in labels}) != 1:
        return []
    sizes = [sizes_of(label) for label in labels]
    keys = list(dict.fromkeys(key for held in sizes for key in held))
    found = [key for key in keys if len({held.get(key) for held in sizes}) > 1]
    numbers = all(held.get(key, "0").isdecimal() for held in sizes for key in found)
    return found if numbers else []


def size(label: str, key: str) -> int:
    """One size of a workload; where it names none 0, of prompts 1 [1].

    >>> size("prefill:tokens=512", "batch"), size("prefill:tokens=512", "context")
    (1, 0)
    """
    return int(sizes_of(label).get(key, "1" if key == "batch" else "0"))


def is_series(labels: Sequence[str]) -> bool:
    """Whether workloads differ in one size alone, and are two or more."""
    return len(varying(labels)) == 1


def is_grid(labels: Sequence[str]) -> bool:
    """Whether workloads are all pairs of two sizes, two or more of each.

    >>> is_grid([f"decode:batch={b},context={c}" for b in (1, 2) for c in (3, 4)])
    True
    """
    keys = varying(labels)
    if len(keys) != 2:
        return False
    first, second = ({size(label, key) for label in labels} for key in keys)
    return len(first) * len(second) == len(set(labels)) == len(labels)


def common(labels: Sequence[str]) -> str:
    """Kind and sizes that all workloads share, for a title.

    >>> common(["decode:batch=1,context=9", "decode:batch=2,context=9"])
    'decode, context 9'
    """
    kinds = list(dict.fromkeys(label.partition(":")[0] for label in labels))
    if len(kinds) > 1:
        return " and ".join(kinds)
    shared = {k: v for k, v in sizes_of(labels[0]).items() if k not in varying(labels)}
    if len(labels) > 1 and not varying(labels):
        shared = {}
    return ", ".join([kinds[0], *(f"{key} {value}" for key, value in shared.items())])


def skus_of(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of all SKUs in the results, those that are best more often first."""
    best: dict[str, float] = {}
    for entry in results:
        for sku in entry["skus"]:
            best[sku["sku"]] = best.get(sku["sku"], 0.0) + (sku.get("p_best") or 0.0)
    return sorted(best, key=lambda name: -best[name])


def column(
    results: Sequence[Mapping[str, Any]], sku: str, key: str, default: float = float("nan")
) -> list[float]:
    """One number of one SKU in each workload; `default` where it is null or absent."""
    return [
        default if (value := _of(entry, sku).get(key)) is None else float(value)
        for entry in results
    ]


def edges(
    results: Sequence[Mapping[str, Any]], sku: str, default: float = float("nan")
) -> tuple[list[float], list[float]]:
    """Low and high end of one SKU's interval in each workload, in the metric's unit."""
    held = [_of(entry, sku).get("interval") or {} for entry in results]
    low, high = (
        [default if one.get(key) is None else float(one[key]) for one in held]
        for key in ("low", "high")
    )
    return low, high


def _of(entry: Mapping[str, Any], sku: str) -> Mapping[str, Any]:
    return next((one for one in entry["skus"] if one["sku"] == sku), {})


def mass_of(results: Sequence[Mapping[str, Any]]) -> float:
    """Mass of the intervals in the results [1]."""
    return float(results[0]["skus"][0]["interval"]["mass"])
