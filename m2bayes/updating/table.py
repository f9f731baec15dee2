"""Results of update and of a check against new measurements, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from m2bayes.layout import GAP, columns, wrapped
from m2bayes.mechanism.laws import LAWS
from m2bayes.tables import between, seconds, share

SIZES = {name for law in LAWS.values() for name in (*law.labels, *law.sizes)}
MOVES = (
    "moved, sd: shift of the mean, in standard deviations before; sd left: what remains of the "
    "standard deviation; m2bayes show of the posterior says what each factor is"
)
HOW = {
    "reweighting": "the stored draws were weighted",
    "steps": "the stored draws were moved in small steps, taken for normal between them",
    "sampling": "the model was sampled on its own data and the new rows",
}


def update(result: dict[str, Any]) -> str:
    """What an update did: its path, factors, times, rankings and outliers, no dims."""
    lines = [wrapped(f"{result['posterior']}: {_path(result)}", GAP)]
    for sku in result["skus"]:
        head = f"{sku['sku']}: {sku['rows']} rows of {sku['cells']} cells, before: {sku['basis']}"
        moved = [
            {
                "factor": row["factor"],
                "before": f"{row['before']:.4g}",
                "after": f"{row['after']:.4g}",
                "moved, sd": f"{row['moved']:.2f}",
                "sd left": share(row["narrowed"]),
            }
            for row in sku["factors"]
        ]
        lines += ["", head, columns(moved, "  "), "", columns(_times(sku["times"]), "  ")]
    if result["skus"]:
        lines += ["", wrapped(MOVES)]
    if result["shared"]:
        names = [f"{row['variable']} {row['of']}".strip() for row in result["shared"]]
        moved_by = [f"{row['moved']:+.1f} sd" for row in result["shared"]]
        pairs = ", ".join(f"{n} {m}" for n, m in zip(names, moved_by, strict=True))
        lines += ["", wrapped(f"moved for all SKUs: {pairs}", GAP)]
    if result.get("rankings"):
        head = "fastest of the GPUs in the database at these shapes, served, and its p_best:"
        lines += ["", head, columns(_rankings(result["rankings"]), "  ")]
    lines += ["", _outliers(result["outliers"])]
    return "\n".join(lines)


def _path(result: dict[str, Any]) -> str:
    """Path taken, and whether it may be trusted."""
    figures = {
        "pareto_k": "Pareto k {:.2f}",
        "ess": "effective draws {:.0f}",
        "steps": "{:.0f} steps",
        "rhat_max": "R-hat {:.3f}",
        "ess_bulk_min": "bulk ESS {:.0f}",
    }
    held = result["figures"]
    said = [text.format(held[k]) for k, text in figures.items() if k in held]
    return f"{result['path']}: {HOW[result['path']]} ({', '.join(said)})"


def _shape(row: dict[str, Any]) -> str:
    """Labels and sizes of a kernel."""
    held = {name: row[name] for name in row if name in SIZES}
    return " ".join(f"{k}={v}" if isinstance(v, str) else f"{k}={v:.0f}" for k, v in held.items())


def _times(rows: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    return [
        {
            "cell": _shape(row),
            "measured": seconds(row["measured"]),
            "predicted before": seconds(row["before"]["median"]),
            "after": seconds(row["after"]["median"]),
            "90 %": between(seconds(row["after"]["low"]), seconds(row["after"]["high"])),
        }
        for row in rows
    ]


def _rankings(rows: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    return [
        {
            "cell": _shape(row),
            **{
                when: f"{row[when]['best']} {share(row[when]['p_best'])}"
                for when in ("before", "after")
            },
        }
        for row in rows
    ]


def _outliers(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return "no row is an outlier"
    said = [
        {
            "outlier": f"{row['sku']} {row['backend']} {_shape(row)}",
            "measured": seconds(row["op_time"]),
            "expected": seconds(row["expected"]),
            "probability": share(row["probability"]),
        }
        for row in rows
    ]
    return (
        f"outliers, which count little and say nothing of shapes near them:\n{columns(said, '  ')}"
    )


def drift(result: dict[str, Any]) -> str:
    """Whether new rows agree with a posterior, by SKU and build, and which do not, no dims."""
    groups = [
        {
            "sku": group["sku"],
            "backend": group["backend"],
            "basis": group["basis"],
            "rows": group["rows"],
            "bias": share(group["bias"]),
            "allowed": between(share(group["low"]), share(group["high"])),
            "p (Holm)": f"{group['p_holm']:.3f}",
            "in 90 %": share(group["coverage_90"]),
            "band": between(share(group["band_low"]), share(group["band_high"])),
        }
        for group in result["groups"]
    ]
    rows = [
        {
            "row": f"{row['sku']} {row['backend']} {_shape(row)}",
            "measured": seconds(row["op_time"]),
            "expected": seconds(row["expected"]),
            "q": f"{row['q']:.1e}",
        }
        for row in result["rows"]
    ]
    verdict = "agree" if result["agrees"] else "do not agree"
    lines = [
        f"{result['posterior']}: {result['measured']} rows that it was not fitted to {verdict} "
        "with it",
        columns(groups, "  "),
        f"{result['unlikely']} rows are unlikely at a false discovery rate of 5 %"
        + (":" if rows else ""),
    ]
    return "\n".join([*lines, *([columns(rows, "  ")] if rows else [])])
