"""Write the figures of README.md and EVALUATION.md from ``data/evaluations`` and a ranking.

Run from the repository root::

    python data/recipes/readme.py            # write the blocks between their markers
    python data/recipes/readme.py --check    # compare with what stands there, change nothing
"""

import argparse
import contextlib
import io
import json
import re
import sys
from pathlib import Path

from m2bayes.cli import main as m2bayes

ROOT = Path(__file__).resolve().parents[2]
DRIFT = 0.02  # of a figure that is drawn when the documents are checked
DRAWN = ("rank prefill:tokens=1024",)
TARGET = ROOT  # where the documents are
HIER, CONST = "gemm_bf16-hier_gemm", "gemm_bf16-const_ceiling"
RANK = [
    *("rank", "--quiet", "--llm", "llama-3.1-8b", "--sku", "a100", "h100", "h200", "l40s"),
    *("--workload", "prefill:tokens=1024"),
]


def results(suite: str) -> dict:
    """Results of one suite."""
    return json.loads((ROOT / "data" / "evaluations" / f"{suite}.json").read_text())["results"]


def table(head: list[str], rows: list[list[str]]) -> str:
    """Markdown table."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(share: float) -> str:
    """Share in percent with one digit."""
    return f"{100 * share:.1f}"


def ranking() -> str:
    """The block of the ranking that the README shows."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = m2bayes(RANK)
    if code:
        sys.exit(code)
    return f"```\n{out.getvalue().strip().split(chr(10) * 2)[1]}\n```"


def gemm_cells() -> str:
    """Errors and coverage by SKU."""
    found = results("gemm-cells")
    hier = found[HIER]
    head = [
        "GPU",
        "hier_gemm, %",
        "N, K ≥ 1024, %",
        "in 90 %, %",
        "const_ceiling, %",
        "roofline, %",
    ]
    rows = [
        [
            sku,
            percent(hier["all"][sku]["mape"]),
            percent(hier["wide"][sku]["mape"]),
            percent(hier["all"][sku]["coverage_90"]),
            percent(found[CONST]["all"][sku]["mape"]),
            percent(found["datasheet roofline"]["all"][sku]["mape"]),
        ]
        for sku in hier["all"]
    ]
    return table(head, rows)


def figures(row: dict) -> list[str]:
    """Errors and coverage of one row of scores."""
    keys = ("mape", "median_ape", "bias", "coverage_50", "coverage_90")
    return [*(percent(row[k]) for k in keys), f"{row['crps']:.3f}"]


SCORES = ["MAPE", "median APE", "bias", "in 50 %", "in 90 %", "CRPS"]


def cells_rivals() -> str:
    """Every predictor on unseen cells."""
    rows = [[name, *figures(parts["all"]["mean"])] for name, parts in results("gemm-cells").items()]
    return table(["predictor", *SCORES], rows)


def transfer() -> str:
    """Held-out SKUs, without and with peers."""
    found = results("gemm-transfer")
    rows = []
    for sku, row in found["unseen"].items():
        peers = found["peers"].get(sku)
        band = f"{percent(row['band_low'])} to {percent(row['band_high'])}"
        wide = percent(found["unseen wide"][sku]["mape"])
        with_peers = percent(peers["mape"]) if peers else "-"
        coverage = percent(row["coverage_90"])
        crps = f"{row['crps']:.3f}"
        rows.append([sku, percent(row["mape"]), wide, with_peers, coverage, band, crps])
    pooled = percent(found["pooled"]["coverage_90"])
    rows.append(["pooled cells", "", "", "", pooled, "", ""])
    head = ["SKU left out", "no peer", "N, K ≥ 1024", "peers", "in 90 %", "band", "CRPS"]
    return table(head, rows)


def transfer_rivals() -> str:
    """Rivals on held-out SKUs."""
    found = results("gemm-transfer")
    rows = [["hier_gemm", *figures(found["unseen"]["mean"])]]
    rows += [[name, *figures(held["mean"])] for name, held in found["rivals"].items()]
    return table(["predictor", *SCORES], rows)


def transfer_architecture() -> str:
    """Architectures left out whole."""
    found = results("gemm-transfer")["architecture"]
    return table(["SKU", *SCORES], [[sku, *figures(row)] for sku, row in found.items()])


def fresh() -> str:
    """The A40's projections, never used in choosing."""
    found = results("fresh")
    rows = [[k, *figures(v)] for k, v in found.items() if k not in ("files", "projections")]
    rows += [[f"model, {op}", *figures(v)] for op, v in found["projections"].items()]
    return table(["predictor", *SCORES], rows)


def clock() -> str:
    """Clock forecasts beside the telemetry."""
    found, rows = results("clock"), []
    for kind in ("telemetry left out", "card left out"):
        for sku, row in found[kind].items():
            span = f"{row['low']:.3f} to {row['high']:.3f}" if "low" in row else ""
            middle = [f"{row[k]:.3f}" if k in row else "" for k in ("measured", "forecast")]
            errors = [percent(row[k]) for k in ("error", "error_boost", "half_width")]
            rows.append([f"{sku}, {kind}", *middle, span, *errors])
    head = ["SKU", "measured", "forecast", "90 % interval", "error", "error of boost", "± width"]
    return table(head, rows)


def throughput() -> str:
    """Change of throughput at large M."""
    rows = [
        [
            sku,
            percent(row["change"]),
            f"{percent(row['low'])} to {percent(row['high'])}",
            f"{row['p_rises']:.2f}",
        ]
        for sku, row in results("clock")["throughput"].items()
    ]
    return table(["SKU", "change", "90 % interval", "P(rises)"], rows)


def eta(kind: str) -> str:
    """Implied efficiencies, one column a SKU."""
    found = results("eta")[kind]
    skus = [s for s in next(iter(found.values())) if s != "source"]
    rows = [
        [op, f"{row['source']:.3f}", *(f"{row[s][0]:.2f}" for s in skus)]
        for op, row in found.items()
    ]
    return table(["projection", "source", *skus], rows)


def rankings() -> str:
    """Agreement of rankings, by set."""
    rows = []
    for name, held in results("ranking").items():
        for predictor, row in held.items():
            shares = [percent(row[k]) for k in ("top1", "pairs", "pairs_apart")]
            wrong = str(row["wrongly_clear"]) if "wrongly_clear" in row else ""
            regret = f"{100 * row['regret']:.2f}"
            rows.append([name, predictor, *shares, f"{row['spearman']:.3f}", regret, wrong])
    head = ["set", "predictor", "top-1", "pairs", "pairs apart", "Spearman", "regret, %"]
    return table([*head, "wrongly clear"], rows)


def flips() -> str:
    """Brier scores and calibration."""
    keys = ("brier", "brier_constant", "brier_close", "calibration_error", "band", "worst_bin")
    sure = ("sure_said_wrong", "sure_found_wrong")
    rows = [
        [
            name,
            *(str(row.get(k, "")) for k in ("cases", "undecided")),
            *(f"{row[k]:.3f}" if row.get(k) is not None else "" for k in keys),
            *(f"{100 * row[k]:.2f}" if k in row else "" for k in sure),
        ]
        for name, row in results("flips").items()
    ]
    head = ["predictor", "cases", "undecided", "Brier", "constant", "close", "calibration error"]
    return table([*head, "band", "worst bin", "sure: said wrong, %", "found wrong, %"], rows)


def attention() -> str:
    """Errors of both attention laws by SKU, means over its backends."""
    cells, held = results("attention"), left_out()
    parts = [(f"{phase}, unseen cells", cells[phase]) for phase in ("prefill", "decode")]
    parts += [(f"{phase}, SKU left out", scores) for phase, scores in held.items()]
    rows = []
    for card in dict.fromkeys(unit.split("/")[0] for unit in cells["prefill"]):
        if card == "pooled":
            continue
        row = ["mean over GPU and backend" if card == "mean" else card]
        for _, part in parts:
            units = [unit for unit in part if unit.split("/")[0] == card]
            row.append(percent(weighted(part, units, "mape")))
        rows.append(row)
    return table(["GPU", *(title for title, _ in parts)], rows)


def left_out() -> dict:
    """Scores of each phase with a SKU left out, of those phases that were judged."""
    file = ROOT / "data" / "evaluations" / "attention-transfer.json"
    if not file.is_file():
        return {}
    return {phase: held["left out"] for phase, held in results("attention-transfer").items()}


def weighted(held: dict, units: list[str], key: str) -> float:
    """Mean of a score over the backends of a card, each by its cells over its kernels."""
    pairs = dict.fromkeys("/".join(unit.split("/")[:2]) for unit in units)
    means = []
    for pair in pairs:
        own = [held[unit] for unit in units if "/".join(unit.split("/")[:2]) == pair]
        weights = [row.get("n", 1.0) for row in own]
        total = sum(w * row[key] for w, row in zip(weights, own, strict=True))
        means.append(total / sum(weights))
    return sum(means) / len(means)


def attention_scores() -> str:
    """Scores of both attention laws and rivals."""
    rows = []

    def add(name: str, held: dict) -> None:
        mean, pooled = held["mean"], held["pooled"]
        errors = [percent(mean[k]) for k in ("mape", "median_ape")]
        rows.append([name, *errors, *(percent(pooled[k]) for k in ("coverage_50", "coverage_90"))])

    for phase, held in results("attention").items():
        add(f"{phase}, unseen cells", held)
    if left_out():
        for phase, held in results("attention-transfer").items():
            add(f"{phase}, SKU left out", held["left out"])
            for rival, row in held["rivals"].items():
                errors = [percent(row["mean"][k]) for k in ("mape", "median_ape")]
                rows.append([f"{phase}, SKU left out, {rival}", *errors, "", ""])
    return table(["law, cells", "MAPE", "median APE", "in 50 %, pooled", "in 90 %, pooled"], rows)


def light() -> str:
    """Light kernels by card."""
    rows = []
    for card, held in results("light").items():
        if not isinstance(held, dict) or "operators" not in held:
            continue
        own, kinds = held["operators"]["mean"], held["kernels"]["mean"]
        shares = [percent(own[k]) for k in ("mape", "coverage_90", "datasheet")]
        rows.append([card, *shares[:1], percent(kinds["mape"]), *shares[1:]])
    head = ["card", "mean over operators", "mean over kinds", "in 90 %", "roofline"]
    return table(head, rows)


def knee() -> str:
    """Smooth against hard knee on unseen cells."""
    rows = [
        [
            name,
            str(row["cells"]),
            *(f"{100 * row[k]:.2f}" for k in ("smooth", "hard", "difference")),
            f"{100 * row['low']:.2f} to {100 * row['high']:.2f}",
        ]
        for name, row in results("knee")["parts"].items()
    ]
    head = ["cells", "number", "smooth, %", "hard, %", "difference", "90 % interval"]
    return table(head, rows)


def served() -> str:
    """Whole generations: zero-shot, calibrated, rivals."""
    rows = []
    for name, held in results("served").items():
        if "zero-shot" not in held:
            continue
        parts = {"zero-shot": held["zero-shot"]["overall"]}
        if "datasheet roofline" in held:
            parts["roofline"] = held["datasheet roofline"]["overall"]
        for kind in ("calibrated", "one LLM"):
            inner = held.get(kind, {})
            inner = inner.get("mean", inner)
            for predictor, row in inner.items():
                scores = row.get("overall", row) if isinstance(row, dict) else {}
                if "mape" in scores:
                    label = "on a third" if kind == "calibrated" else "on one LLM"
                    parts[f"{predictor}, {label}"] = scores
        for predictor, row in parts.items():
            covered = percent(row["coverage_90"]) if "coverage_90" in row else ""
            rows.append([f"{name} ({held['cells']})", predictor, percent(row["mape"]), covered])
    return table(["cells", "predictor", "MAPE", "in 90 %"], rows)


def served_engines() -> str:
    """Errors and bias by engine, zero-shot and calibrated."""
    held = results("served")["without the pair"]
    rows = []
    for engine, row in held["zero-shot"]["by engine"].items():
        rows.append(
            [engine, percent(row["mape"]), percent(row["bias"]), percent(row["coverage_90"])]
        )
    return table(["engine", "zero-shot MAPE", "bias", "in 90 %"], rows)


def served_bias() -> str:
    """Zero-shot bias by batch and by length."""
    held, rows = results("served")["without the pair"]["zero-shot"], []
    for by in ("engine and batch", "engine and length"):
        for label, row in held[f"by {by}"].items():
            rows.append([label, by.split()[-1], percent(row["mape"]), percent(row["bias"])])
    return table(["engine and value", "by", "MAPE", "bias"], rows)


def distserve() -> str:
    """Steps of fitted profiles."""
    rows = []
    for profile, held in results("distserve")["profiles"].items():
        for config, phases in held.items():
            for phase, row in phases.items():
                shares = [percent(row[k]["mape"]) for k in ("zero-shot", "calibrated")]
                rows.append([profile, config, phase, *shares])
    return table(["profile", "LLM", "phase", "zero-shot", "one time calibrated"], rows)


def huggyllama() -> str:
    """Measured steps, against DistServe's polynomial."""
    rows = []
    for name, held in results("distserve")["huggyllama"].items():
        for split in ("eight folds", "batch left out"):
            for form, row in held[split].items():
                above = f"{100 * row['above']:+.2f} ± {100 * row['above_se']:.2f}"
                rows.append([name, split, form, f"{100 * row['mape']:.2f}", above])
    return table(["steps", "held out", "form", "MAPE", "above the polynomial"], rows)


def power() -> str:
    """Exponents of clock and throughput under lowered power limits."""
    found = results("power")
    told = found["predicted"]
    span = f"{told['low']:.2f} to {told['high']:.2f}"
    rows = [["predicted, clock of any card", f"{told['median']:.2f}", span, ""]]

    def walk(name: str, held: dict) -> None:
        if "exponent" in held:
            error = f"± {held['standard_error']:.2f}" if "standard_error" in held else ""
            covered = {True: "yes", False: "no"}.get(held.get("covers"), "")
            rows.append([name, f"{held['exponent']:.2f}", error, covered])
        for key, inner in held.items():
            if isinstance(inner, dict):
                walk(f"{name}, {key}" if name else key, inner)

    for part in ("sweeps", "submissions", "locked clocks"):
        walk("", found[part])
    return table(["what", "exponent", "90 % interval or error", "covered"], rows)


BLOCKS = {
    "README.md": {"rank prefill:tokens=1024": ranking, "gemm-cells": gemm_cells},
    "EVALUATION.md": {
        "gemm-cells": gemm_cells,
        "gemm-cells rivals": cells_rivals,
        "gemm-transfer": transfer,
        "gemm-transfer rivals": transfer_rivals,
        "gemm-transfer architecture": transfer_architecture,
        "fresh": fresh,
        "clock": clock,
        "clock throughput": throughput,
        "eta compute": lambda: eta("compute"),
        "eta memory": lambda: eta("memory"),
        "ranking": rankings,
        "flips": flips,
        "knee": knee,
        "attention": attention,
        "attention scores": attention_scores,
        "light": light,
        "served": served,
        "served engines": served_engines,
        "served bias": served_bias,
        "distserve": distserve,
        "huggyllama": huggyllama,
        "power": power,
    },
}


def same(old: str, new: str) -> bool:
    """Whether two texts agree; numbers drawn afresh may differ in their last digit by machine."""

    def number(word: str) -> float | None:
        try:
            return float(word)
        except ValueError:
            return None

    words = old.split(), new.split()
    if len(words[0]) != len(words[1]):
        return False
    for a, b in zip(*words, strict=True):
        x, y = number(a), number(b)
        if a != b and (x is None or y is None or abs(x - y) > DRIFT * max(abs(x), abs(y), 1.0)):
            return False
    return True


def main() -> int:
    """Write the blocks, or compare them with what stands there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    check, stale = parser.parse_args().check, 0
    for name, blocks in BLOCKS.items():
        path = TARGET / name
        old = text = path.read_text(encoding="utf-8")
        for mark, write in blocks.items():
            before = text
            pattern = re.compile(
                rf"(<!-- {re.escape(mark)} -->\n)(?:\n.*?\n)?(<!-- end -->\n)", re.S
            )
            if not pattern.search(text):
                sys.exit(f"{name}: no block <!-- {mark} --> … <!-- end -->")
            text = pattern.sub(lambda m, w=write: f"{m[1]}\n{w()}\n\n{m[2]}", text)
            if check and mark in DRAWN and same(before, text):
                text = before
        stale += text != old
        if not check:
            path.write_text(text, encoding="utf-8")
        fresh = "as the evaluations say" if text == old else "written"
        print(f"{name}: {'STALE' if check and text != old else fresh}")
    return int(check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
