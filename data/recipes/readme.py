"""Write the figures of README.md and EVALUATION.md from ``data/evaluations`` and rankings.

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
import tempfile
from pathlib import Path

from _source import HEAD as SOURCE_HEAD
from _source import rows as source_rows

from m2bayes.cli import main as m2bayes
from m2bayes.database import Database

ROOT = Path(__file__).resolve().parents[2]
DRIFT = 0.02  # of a figure that is drawn when the documents are checked
DRAWN = ("rank prefill:tokens=1024", "plan", "what to measure", "settled")
TARGET = ROOT  # where the documents are
NARROW = "gemm_fp8-hier_gemm_fp8"
HIER, CONST = "gemm_bf16-hier_gemm", "gemm_bf16-const_ceiling"
PLAN = [
    *("plan", "--quiet", "--llm", "llama-3.1-8b", "--sku", "h100", "h200", "l40s", "--tp", "1"),
    *("--rate", "20", "--input-tokens", "1000", "--output-tokens", "300"),
    *("--ttft", "1s", "--tpot", "50ms", "--price", "example"),
]
RANK = [
    *("rank", "--quiet", "--llm", "llama-3.1-8b", "--sku", "a100", "h100", "h200", "l40s"),
    *("--workload", "prefill:tokens=1024"),
]
NEXT = [
    *("next", "--quiet", "--llm", "llama-3.1-8b", "--sku", "h100", "h200"),
    *("--workload", "prefill:tokens=1024", "--count", "2"),
]
DECISION = [
    *("--quiet", "--llm", "llama-3.1-8b", "--sku", "a100", "card.json", "--tp", "4"),
    *("--metric", "gemm_time", "--regime", "benchmark", "--workload", "prefill:tokens=4096"),
]
FIGURES = {
    "docs/figures/ranking.svg": [
        *("rank", "--quiet", "--llm", "llama-3.1-8b", "--sku", "a100", "h100", "h200", "l40s"),
        "--workload",
        *(f"prefill:tokens={size}" for size in (128, 256, 512, 1024, 2048, 4096)),
    ],
}


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


def printed(argv: list[str]) -> str:
    """What a command prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = m2bayes(argv)
    if code:
        sys.exit(code)
    return out.getvalue().strip()


def typed(argv: list[str], *breaks: str) -> str:
    """A command as one types it, with a new line before some options."""
    words = " ".join(word for word in argv if word != "--quiet")
    for option in breaks:
        words = words.replace(f" {option}", f" \\\n    {option}")
    return f"$ m2bayes {words}"


def ranking() -> str:
    """The block of the ranking that the README shows."""
    return f"```\n{printed(RANK).split(chr(10) * 2)[1]}\n```"


def plan() -> str:
    """The block of the plan that the README shows."""
    return f"```\n{typed(PLAN, '--rate', '--ttft')}\n{printed(PLAN)}\n```"


def what_to_measure() -> str:
    """The block of the most valuable measurements that the README shows."""
    return f"```\n{typed(NEXT, '--workload')}\n{printed(NEXT)}\n```"


def settled() -> str:
    """One decision from too close to call to clear: asked, measured with real rows, asked again.

    The card is the L40S under another name and of an architecture of its own, so that predictions
    have its datasheet alone; the rows are those of the table of rankings that `next` puts first.
    """
    base = Database()
    card = base.sku_card("l40s")[0] | {
        "name": "NEWCARD-48GB-PCIe",
        "architecture": "New",
        "aliases": [],
    }
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("card.json").write_text(json.dumps(card), encoding="utf-8")
        found = json.loads(printed(["next", *DECISION, "--repeats", "3", "--json"]))
        rows = base.table("gemm_bf16_ranking").query("sku == 'L40S-48GB-PCIe'")
        rows = rows.assign(sku=card["name"])
        labels = [f"gemm:m={r.M},n={r.N},k={r.K} on {r.sku}" for r in rows.itertuples()]
        taken = [c["measurement"] for c in found["candidates"] if c["measurement"] in labels][:3]
        rows[[label in taken for label in labels]].to_csv("rows.csv", index=False)
        update = ["update", HIER, "rows.csv", "--sku", "card.json", "--out", "updated", "--quiet"]
        changed = printed(update).split("\n\n")[0]
        (record,) = Path("updated").glob("*.json")
        again = ["rank", *DECISION, "--posterior", str(record)]
        first, last = (printed(a).split("\n\n")[1] for a in (["rank", *DECISION], again))
    said = ["$ m2bayes next …", "# measured of what it puts first, by three libraries each:"]
    said += [f"#   {row}, worth {value_of(found, row)}" for row in taken]
    next_ = "\n".join(said)
    return "\n".join(
        [
            "```",
            f"{typed(['rank', *DECISION], '--tp', '--workload')}\n{first}\n",
            f"{next_}\n",
            f"{typed(update)}\n{changed}\n",
            f"$ m2bayes rank … --posterior {record}\n{last}",
            "```",
        ]
    )


def value_of(found: dict, measurement: str) -> str:
    """Value of a candidate, in % of the metric."""
    (row,) = (c for c in found["candidates"] if c["measurement"] == measurement)
    return f"{100 * row['evsi']:.1f} %"


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
        if not name.endswith(": reliability")
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


def light_operators() -> str:
    """Errors and coverage of each light operator by card."""
    cards = {
        card: held["operators"] for card, held in results("light").items() if "operators" in held
    }
    rows = [
        [name, *(percent(own[name][k]) for own in cards.values() for k in ("mape", "coverage_90"))]
        for name in next(iter(cards.values()))
    ]
    return table(
        ["operator", *(f"{card}, {what}" for card in cards for what in ("MAPE", "in 90 %"))], rows
    )


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


def ends(pair: list[float], scale: float = 100.0) -> str:
    """Ends of an interval."""
    return f"{scale * pair[0]:.1f} to {scale * pair[1]:.1f}"


def qlm() -> str:
    """Waits on two request logs by every estimator."""
    rows = []
    for sku, held in results("qlm").items():
        for part, estimators in held.get("waits", {}).items():
            for name, row in estimators.items():
                if part == "all" and "QLM" not in name and "zero-shot" not in name:
                    continue
                label = f"{sku}, {part} ({row['requests']})"
                errors = [f"{row['mae']:.2f}", ends(row["mae_bootstrap"], 1)]
                errors += [percent(row["median_ape"]), ends(row["median_ape_bootstrap"])]
                errors.append(percent(row["mape"]))
                draws = ends(row["median_ape_draws"]) if "median_ape_draws" in row else ""
                covered = percent(row["coverage_90"]) if "coverage_90" in row else ""
                rows.append([label, name, *errors, draws, covered])
    head = ["waits over 0.5 s", "estimator", "MAE, s", "90 %", "median APE", "90 %", "MAPE"]
    return table([*head, "median APE over draws", "in 90 %"], rows)


def qlm_tpot() -> str:
    """TPOT of each request, with and without the prompts of others."""
    rows = []
    for sku, held in results("qlm").items():
        for name, row in held.get("tpot", {}).items():
            span = ends(row["mape_bootstrap"])
            shares = [percent(row["mape"]), span, percent(row["median_ape"])]
            rows.append([sku, name, *shares, percent(row["coverage_90"])])
    return table(["card", "TPOT", "MAPE", "90 %", "median APE", "in 90 %"], rows)


def qlm_growth() -> str:
    """Growth of waits when every step is slower by a tenth."""
    rows = []
    for sku, held in results("qlm").items():
        if "amplification" not in held:
            continue
        found = held["amplification"]
        growth = found["growth"]
        middle = percent(growth["median"])
        rows.append([sku, "as logged, over requests", "", middle, ends(growth["interval"])])
        for row in found["by spacing"].values():
            if row["growth"] is not None:
                wait = f"{row['mean_wait']:.1f}"
                rows.append([sku, f"{row['rate']:.1f} a second", wait, percent(row["growth"]), ""])
    return table(["card", "arrivals", "mean wait, s", "growth", "90 %"], rows)


def gemm_fp8() -> str:
    """Errors of 8-bit GEMMs by SKU and backend, beside 16-bit factors and the roofline."""
    found = results("gemm-fp8")
    narrow, wide, sheet = found[NARROW], found["bf16 factors"], found["datasheet roofline"]
    backends = ("sglang", "trtllm", "vllm")
    skus = list(dict.fromkeys(unit.split("/")[0] for unit in narrow if "/" in unit))
    rows = []
    for sku in [*skus, "mean"]:
        cells = []
        for backend in backends:
            unit = backend if sku == "mean" else f"{sku}/{backend}"
            cells += [percent(part[unit]["median_ape"]) for part in (narrow, wide, sheet)]
            cells += [percent(narrow[unit]["coverage_90"])]
        rows.append([sku, *cells])
    head = ["GPU"]
    for backend in backends:
        head += [f"{backend}, %", "bf16 factors", "roofline", "in 90 %"]
    return table(head, rows)


def _runs(row: dict) -> list[str]:
    """Number of runs, median APE, bias and coverage of one group."""
    covered = percent(row["coverage_90"]) if "coverage_90" in row else ""
    runs = f"{row['runs']:.0f}" if "runs" in row else ""
    return [runs, percent(row["median_ape"]), f"{100 * row['bias']:+.1f}", covered]


def served_e2e() -> str:
    """Time per token by group, and how other predictors do on the same runs."""
    found = results("served-e2e")
    rows = [["zero-shot", label, *_runs(row)] for label, row in found["zero-shot"].items()]
    rows += [["zero-shot", label, *_runs(row)] for label, row in found["others"].items()]
    over = found["beyond capacity"]["overall"]
    rows.append(["zero-shot", "beyond the cache's capacity", *_runs(over)])
    for kind, groups in found["calibrated"].items():
        rows += [[f"{kind}", label, *_runs(row)] for label, row in groups.items()]
    return table(["fit", "runs", "number", "median APE", "bias", "in 90 %"], rows)


def strange_lines() -> str:
    """Runs to which a heavy-tailed fit of their engine gives next to no weight."""
    found = results("served-e2e")["strange"]
    rows = [[label, ", ".join(map(str, lines))] for label, lines in found.items()]
    return table(["engine", "lines of the sample"], rows)


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


def span(row: dict, prefix: str = "") -> str:
    """An interval of a ratio."""
    return f"{row[f'{prefix}low']:.2f} to {row[f'{prefix}high']:.2f}"


def vidur_home() -> str:
    """Forest and model on the card that was profiled."""
    rows = []
    for part, held in results("vidur-home").items():
        for name, row in held.items():
            if not isinstance(row, dict) or "mape" not in row:
                continue
            over = row.get("over", {}).get("forest")
            ratio = [f"{over['ratio']:.2f}", span(over)] if over else ["", ""]
            covered = percent(row["coverage_90"]) if "coverage_90" in row else ""
            interval = f"{percent(row['low'])} to {percent(row['high'])}"
            errors = [percent(row["mape"]), interval, percent(row["bias"])]
            rows.append([f"{part} ({held['rows']})", name, *errors, covered, *ratio])
    head = ["rows", "predictor", "MAPE", "90 % interval", "bias", "in 90 %"]
    return table([*head, "over the forest's", "90 % interval"], rows)


def vidur_cards() -> dict:
    """Parts of the 2x2 by card."""
    return {k: v for k, v in results("vidur-transfer").items() if k not in ("seen", "files")}


def vidur_transfer() -> str:
    """Mean errors of every predictor, one column a card and part."""
    cards = vidur_cards()
    columns = [(card, part) for card in cards for part in cards[card]]
    names = dict.fromkeys(
        name for c, p in columns for name, row in cards[c][p].items() if isinstance(row, dict)
    )
    rows = []
    for name in names:
        found = [cards[card][part].get(name) for card, part in columns]
        rows.append([name, *(percent(row["mape"]) if row else "" for row in found)])
    return table(["predictor", *(f"{card}, {part}" for card, part in columns)], rows)


def vidur_ratios() -> str:
    """The model's errors over those of its rivals on cards that nobody profiled."""
    rows = []
    for card, parts in vidur_cards().items():
        for part, held in parts.items():
            for name, row in held.items():
                if not isinstance(row, dict) or "over" not in row:
                    continue
                cells = []
                for rival in ("datasheet roofline", "forest x roofline"):
                    over = row["over"].get(rival)
                    octave = span(over, "octave_") if over else ""
                    cells += [f"{over['ratio']:.2f}", span(over), octave] if over else [""] * 3
                if "forest x roofline" in row["over"]:
                    covered = percent(row["coverage_90"])
                    rows.append([f"{card}, {part}", name, covered, *cells])
    head = ["card", "predictor", "in 90 %", "over roofline", "by count", "by octave"]
    return table([*head, "over scaled forest", "by count", "by octave"], rows)


def vidur_seen() -> str:
    """What the projections' posterior was fitted to of each card."""
    rows = [
        [card, *(str(held[k]) for k in ("times", "shapes", "clock"))]
        for card, held in results("vidur-transfer")["seen"].items()
    ]
    return table(["card", "timings", "timings for the discrepancy", "clock readings"], rows)


def source() -> str:
    """Every row of the source document."""
    return table(SOURCE_HEAD, source_rows())


def measured_next() -> str:
    """Cells that settle a choice, by policy."""
    found = results("next")
    rows = []
    for name, row in found["policies"].items():
        low, high = row["cells_open_interval"]
        ratio = " to ".join(f"{v:.2f}" for v in row["ratio_interval"])
        rows.append(
            [
                name,
                f"{row['cells']:.1f}",
                f"{row['cells_open']:.1f} ({low:.1f} to {high:.1f})",
                f"{row['ratio']:.2f} ({ratio})",
                percent(row["settled"]),
                *(f"{100 * row['regret'][n]:.2f}" for n in ("0", "4", "16", "48")),
            ]
        )
    head = ["policy", "cells", "of open choices", "over next", "settled, %"]
    return table([*head, *(f"regret after {n}, %" for n in (0, 4, 16, 48))], rows)


def closed(found: dict, cells: str, whole: str) -> float:
    """Share of the gap between no cells and a fully measured posterior that some cells close."""
    none, some = (found["cells"][n]["mean"]["mape"] for n in ("0", cells))
    return (none - some) / (none - found[whole]["mean"]["mape"])


def few_shot() -> str:
    """Errors of a SKU by the number of its cells, beside those of all of them."""
    found, rows = results("few-shot"), []
    factors = {sku: row["mape"] for sku, row in found["factors"].items()}
    for n, by_sku in found["cells"].items():
        mean = by_sku["mean"]
        skus = {sku: row for sku, row in by_sku.items() if sku != "mean"}
        worst = max(skus, key=lambda sku: skus[sku]["ratio"])
        over = [row["mape"] / factors[sku] for sku, row in skus.items()]
        shares = [percent(closed(found, n, whole)) for whole in ("full", "factors")]
        row = [n, percent(mean["mape"]), percent(mean["mape_sd"]), f"{mean['ratio']:.2f}"]
        row += [f"{sum(over) / len(over):.2f}", *shares]
        row += [f"{skus[worst]['ratio']:.2f} ({worst})", percent(mean["coverage_90"])]
        rows.append([*row, percent(mean["in_band"])])
    for name, whole in (("all, own shapes unknown", "factors"), ("all", "full")):
        mean = found[whole]["mean"]
        rows.append([name, percent(mean["mape"]), *[""] * 6, percent(mean["coverage_90"]), ""])
    head = ["cells", "MAPE, %", "sd over designs, %", "over all", "over all, own shapes unknown"]
    head += ["gap closed, %", "to own shapes unknown, %", "worst over all", "coverage 90, %"]
    return table([*head, "designs in the band, %"], rows)


def refits() -> str:
    """Updates beside fits of the whole model to the same rows."""
    rows = []
    for sku, by_cells in results("refit").items():
        for n, found in by_cells.items():
            row = [sku, n, found["path"]]
            for name in ("shared", "p_best", "own"):
                held = found[name]
                row += [f"{held['mcse']:.1f} ({percent(held['within'])} %)"]
                row += [f"{held['gap']:.3f}" if name == "p_best" else f"{held['sd']:.2f}"]
            row += [percent(found["mape_update"]), percent(found["mape_refit"])]
            rows.append(row)
    head = ["SKU", "cells", "path", "shared, MCSE (within 4)", "sd", "p_best, MCSE (within 4)"]
    head += ["difference", "own factors, MCSE (within 4)", "sd", "MAPE of the update, %"]
    return table([*head, "of the refit, %"], rows)


def timed_steps() -> str:
    """Steps that were not told, by how many were."""
    rows = []
    for name, by_count in results("calibrate")["tables"].items():
        for count, ways in by_count.items():
            row = [name, count]
            for way in ("uncalibrated", "alone", "alike"):
                row += [percent(ways[way]["mape"]), f"{ways[way]['crps']:.3f}"]
            row += [percent(ways["alike"][k]) for k in ("coverage_90", "width_90")]
            rows.append(row)
    head = ["steps", "timed", "MAPE untold, %", "CRPS", "MAPE, each alone, %", "CRPS"]
    return table([*head, "MAPE, %", "CRPS", "in 90 %", "width of it, %"], rows)


def few_cells() -> str:
    """What the README says of a few cells."""
    few = results("few-shot")
    ten, thirty, hundred = (f"{100 * closed(few, n, 'full'):.0f} %" for n in ("10", "30", "100"))
    least, most = (f"{few['cells'][n]['mean']['ratio']:.2f}" for n in ("100", "10"))
    return "\n".join(
        [
            "Of the error that measurements of a new GPU can take off, ten cells, spread in size,",
            f"take off {ten}, 30 cells {thirty} and 100 cells {hundred}; 10 leave",
            f"{most} times, 100 leave {least} times the error of a GPU with a thousand",
            "cells: [EVALUATION.md](EVALUATION.md), `few-shot`.",
        ]
    )


def p_value(value: float) -> str:
    """A p-value with one digit."""
    return f"{value:.3f}" if value >= 0.001 else f"{value:.0e}"


def calibrated() -> str:
    """Evenness of ranks by model, and of the control."""
    rows, models = [], results("sbc")["models"]
    named = {f"`{name}`": held for name, held in models.items()}
    for name, held in models.items():
        if "first" in held:
            named[f"`{name}`, the first of them"] = held | held["first"]
    for name, held in named.items():
        control = held["control"]
        rows.append(
            [
                name,
                *(str(n) for n in (len(held["p"]), held["cells"], held["ranked"])),
                *(str(n) for n in (held["longer"], held["divergences"])),
                f"{p_value(held['holm_min'])} (`{held['worst']}`)",
                "yes" if held["even"] else "**no**",
                f"{p_value(control['holm_min'])} (`{control['factor']}`)",
                "yes" if control["even"] else "no",
            ]
        )
    head = ["model", "parameters", "cells", "simulations", "run longer", "divergences"]
    return table([*head, "least p, Holm", "even at 1 %", "control: least p", "even"], rows)


def told(row: dict, group: str, least: float) -> bool:
    """Whether a sensitivity is above its bound and above what chance gives."""
    return row.get(group, 0.0) > max(least, row.get(f"{group} by chance", 0.0))


def sensitive() -> str:
    """What the parameters of each model rest on."""
    found, rows = results("sensitivity"), []
    least = found["told_from"]
    for name, held in found["parameters"].items():
        most = sorted(held, key=lambda v: held[v]["prior"])[::-1][:2]
        counts = [
            sum(told(row, g, least) for row in held.values()) for g in ("prior", "likelihood")
        ]
        means = {v: row for v, row in held.items() if v.endswith("_mean")}
        own = sum(told(row, "prior", least) for row in means.values())
        seen = any("likelihood" in row for row in held.values())
        rows.append(
            [
                f"`{name}`",
                *(str(n) for n in (len(held), counts[0])),
                f"{own} of {len(means)}",
                str(counts[1]) if seen else "",
                ", ".join(f"`{v}` {held[v]['prior']:.2f}" for v in most),
            ]
        )
    head = ["posterior", "parameters", "told by the prior", "of these, of means"]
    return table([*head, "told by the likelihood", "most by the prior"], rows)


def sensitive_questions() -> str:
    """What step times and choices rest on."""
    found, rows = results("sensitivity"), []
    for name, held in found["questions"].items():
        every, p = held["step_time"]["every part"], held["p_best"]
        rows.append(
            [
                name,
                *(
                    f"{every[g]:.2f} ({every[f'{g} by chance']:.2f})"
                    for g in ("prior", "likelihood")
                ),
                *(f"{p[power]:.3f}" for power in ("0.8", "1", "1.25")),
                f"{held['p_best by chance']:.3f}",
            ]
        )
    head = ["workload and SKU", "time: prior (by chance)", "likelihood (by chance)"]
    head += ["p_best, priors to the power 0.8", "1", "1.25", "moves by chance"]
    return table(head, rows)


def prior_kernels() -> str:
    """Times that the priors allow, beside those that were measured."""
    rows = []
    for name, held in results("prior")["kernels"].items():
        low, middle, high = held["ratio"]
        rows.append(
            [
                f"`{name}`",
                str(held["cells"]),
                held["rows"],
                *(percent(held[k]) for k in ("inside_90", "inside_99")),
                f"{middle:.2f} ({low:.2f} to {high:.2f})",
                f"{held['width']:.1f}",
                *(f"{100 * held[k]:.2f}" for k in ("below_floor", "seen_below_floor")),
            ]
        )
    head = ["posterior", "cells", "rows", "inside 90 %", "inside 99 %", "prior over them", "width"]
    return table([*head, "below the floor, %", "measured so, %"], rows)


def prior_steps() -> str:
    """Step times that the priors allow, beside the posterior's, in milliseconds."""
    rows = []
    for name, held in results("prior")["steps"].items():
        cuts = [
            f"{middle:.2f} ({low:.2f} to {high:.2f})"
            for low, middle, high in (
                [1e3 * v for v in held[part]] for part in ("prior", "posterior")
            )
        ]
        rows.append([name, f"{1e3 * held['floor']:.2f}", *cuts, percent(held["below_floor"])])
    head = [
        "workload and SKU",
        "floor, ms",
        "prior, ms",
        "posterior, ms",
        "prior below the floor, %",
    ]
    return table(head, rows)


def rungs() -> str:
    """What each part of the GEMM law is worth on cells that are left out."""
    rows = []
    for name, held in results("loo")["rungs"].items():
        gain = f"{held['gain']:.0f} ({held['gain_se']:.0f})" if "gain" in held else ""
        better = f"{held['skus_better']} of {held['skus']}" if "gain" in held else ""
        k = f"{held['pareto_k_max']:.2f}"
        counts = [str(held[key]) for key in ("above_good_k", "refitted")]
        row = [name, f"{held['elpd']:.0f} ({held['se']:.0f})", gain, better]
        rows.append([*row, f"{held['p_loo']:.0f}", k, *counts])
    head = [
        "model",
        "elpd (se)",
        "gain over the one above (se)",
        "SKUs better",
        "parameters in effect",
    ]
    return table([*head, "largest Pareto k", "cells above its bound", "of these refitted"], rows)


def benchmark(name: str) -> dict:
    """Results of one benchmark."""
    return json.loads((ROOT / "data" / "benchmarks" / f"{name}.json").read_text())["results"]


def predict_speed() -> str:
    """Time and memory of the law on draws."""
    found = benchmark("predict")
    ways = found["ways"]
    by_hand = ways["numba"]["seconds"]
    rows = [
        [way, f"{r['seconds']:.2f}", f"{r['seconds'] / by_hand:.2f}", f"{r['memory'] / 1e9:.2f}"]
        for way, r in ways.items()
    ]
    head = ["way", "CPU, s", "over numba", "memory, GB"]
    text = f"{found['draws']:,} draws × {found['rows']:,} shapes on one SKU, one thread:"
    return f"{text}\n\n{table(head, rows)}"


def predict_growth() -> str:
    """Time of ten times the shapes."""
    found = benchmark("predict")["growth"]
    counts = list(found["ways"]["library"])
    rows = []
    for way, by_count in found["ways"].items():
        seconds = [r["seconds"] for r in by_count.values()]
        ratio = seconds[-1] / seconds[-2]
        blank = ["-"] * (len(counts) - len(seconds))
        rows.append([way, *(f"{s:.3f}" for s in seconds), *blank, f"{ratio:.1f}"])
    head = ["CPU, s", *(f"{int(count):,} shapes" for count in counts), "last over the one before"]
    return f"With {found['draws']} draws:\n\n{table(head, rows)}"


def cold_start() -> str:
    """What commands take from a cold start."""
    found = benchmark("start")
    floor = found["import xarray"]["wall"]
    rows = [
        [name, f"{one['wall']:.2f}", f"{one['cpu']:.2f}", f"{one['wall'] / floor:.1f}"]
        for name, one in found.items()
    ]
    return table(["process", "time, s", "CPU, s", "over import xarray"], rows)


def gradient_speed() -> str:
    """Time of one gradient of the log density."""
    found = benchmark("gradient")
    by_hand = found["seconds"]["by hand"]
    rows = []
    for way, seconds in found["seconds"].items():
        ratio = found["ratio"] if seconds > by_hand else 1.0
        each = 1e9 * seconds / found["rows"]
        rows.append([way, f"{1e3 * seconds:.2f}", f"{each:.0f}", f"{ratio:.1f}"])
    size = f"{found['parameters']} parameters, {found['rows']:,} rows, one thread:"
    head = ["way", "CPU, ms", "ns a row", "over by hand"]
    return f"{size}\n\n{table(head, rows)}"


def scaling_fit() -> str:
    """What fits of several sizes take."""
    rows = []
    for one in benchmark("scaling")["fits"].values():
        rows.append(
            [
                *(f"{one['rows']:,}", f"{one['skus']}", f"{one['parameters']}"),
                *(f"{one['compile']:.0f}", f"{1e9 * one['gradient'] / one['rows']:.0f}"),
                *(f"{one['steps']:.0f}", f"{one['ess'] / one['sampling']:.1f}"),
                f"{one['memory'] / 1e9:.2f}",
            ]
        )
    head = ["rows", "SKUs", "parameters", "compile, CPU s", "gradient, ns a row"]
    return table([*head, "leapfrogs a draw", "ESS a CPU s", "memory, GB"], rows)


def scaling_predict() -> str:
    """What predictions of several lengths take."""
    found = benchmark("scaling")
    rows = [
        [
            *(f"{one['workloads']:,}", f"{one['seconds']:.1f}"),
            *(f"{1e6 * one['seconds'] / one['workloads']:.0f}", f"{one['memory'] / 1e9:.2f}"),
        ]
        for one in found["predictions"].values()
    ]
    text = f"Each of {found['draws']} draws, {found['chunk']:,} workloads at a time:"
    return f"{text}\n\n{table(['workloads', 'CPU, s', 'µs a workload', 'memory, GB'], rows)}"


def sweep_cost() -> str:
    """What the sweep that was measured took."""
    found, one, two = (benchmark(n) for n in ("sweep", "sweep_one", "sweep_two"))
    rows = [
        ["results", f"{found['results']:,}"],
        ["joint draws of each", f"{found['draws']}"],
        ["workers", f"{found['workers']}"],
        ["time, s", f"{found['wall']:.0f}"],
        [f"one worker over two, {two['results']:,}", f"{one['wall'] / two['wall']:.2f} ×"],
        ["CPU of all processes, s", f"{found['cpu']:.0f}"],
        ["results a CPU second", f"{found['results'] / found['cpu']:.0f}"],
        ["memory of all processes, GB", f"{found['memory'] / 1e9:.1f}"],
        ["bytes of a result in the store", f"{found['bytes'] / found['results']:.0f}"],
        ["writing a chunk, CPU ms", f"{1e3 * found['write']:.0f}"],
    ]
    return table(["", "measured"], rows)


def sweep_billion() -> str:
    """The same for a billion results, by proportion."""
    found, many = benchmark("sweep"), 10**9
    chunks = many / (found["chunk"] * found["skus"])
    hours = many * found["cpu"] / found["results"] / 3600
    rows = [
        ["CPU hours", f"{hours:.0f}"],
        ["hours on 16 workers", f"{hours / 16:.1f}"],
        ["hours on 256 workers", f"{hours / 256:.1f}"],
        ["over the network, GB", f"{48 * many / 1e9:.0f}"],
        ["in the store, GB", f"{many * found['bytes'] / found['results'] / 1e9:.0f}"],
        ["chunks", f"{chunks:,.0f}"],
        ["files, at five a chunk", f"{5 * chunks:,.0f}"],
        ["writing them, hours of the one that writes", f"{chunks * found['write'] / 3600:.1f}"],
    ]
    return table(["10⁹ results", "by proportion"], rows)


BLOCKS = {
    "docs/speed.md": {
        "predict speed": predict_speed,
        "predict growth": predict_growth,
        "cold start": cold_start,
        "gradient speed": gradient_speed,
        "scaling fit": scaling_fit,
        "scaling predict": scaling_predict,
        "sweep cost": sweep_cost,
        "sweep billion": sweep_billion,
    },
    "README.md": {
        "rank prefill:tokens=1024": ranking,
        "plan": plan,
        "what to measure": what_to_measure,
        "settled": settled,
        "few cells": few_cells,
        "gemm-cells": gemm_cells,
    },
    "EVALUATION.md": {
        "source": source,
        "next": measured_next,
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
        "light operators": light_operators,
        "served": served,
        "served engines": served_engines,
        "served bias": served_bias,
        "distserve": distserve,
        "huggyllama": huggyllama,
        "qlm": qlm,
        "qlm tpot": qlm_tpot,
        "qlm growth": qlm_growth,
        "power": power,
        "vidur-home": vidur_home,
        "vidur-transfer": vidur_transfer,
        "vidur-transfer ratios": vidur_ratios,
        "vidur-transfer seen": vidur_seen,
        "gemm-fp8": gemm_fp8,
        "served-e2e": served_e2e,
        "served-e2e strange": strange_lines,
        "few-shot": few_shot,
        "refit": refits,
        "timed steps": timed_steps,
        "sbc": calibrated,
        "sensitivity": sensitive,
        "sensitivity questions": sensitive_questions,
        "prior": prior_kernels,
        "prior steps": prior_steps,
        "loo": rungs,
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


def values(svg: str) -> str:
    """What a figure says under the pointer, as words and numbers."""
    said = re.findall(r"<title>(.*?)</title>", svg)
    return re.sub(r"[(),:±]", " ", "\n".join(said))


def figure_is_stale(name: str, argv: list[str], *, check: bool) -> bool:
    """Draw a figure; whether what stands there says otherwise."""
    path = TARGET / name
    old = path.read_text(encoding="utf-8") if path.is_file() else ""
    with tempfile.TemporaryDirectory() as folder:
        drawn = Path(folder) / path.name
        with contextlib.redirect_stdout(io.StringIO()):
            if code := m2bayes([*argv, "--plot", str(drawn)]):
                sys.exit(code)
        new = drawn.read_text(encoding="utf-8")
    stale = not same(values(old), values(new))
    if stale and not check:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(new, encoding="utf-8")
    return stale


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
    for name, argv in FIGURES.items():
        wrong = figure_is_stale(name, argv, check=check)
        stale += wrong
        print(f"{name}: {('STALE' if check else 'drawn') if wrong else 'as the posteriors say'}")
    return int(check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
