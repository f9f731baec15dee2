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
HIER, CONST = "gemm_bf16-hier_gemm", "gemm_bf16-const_ceiling"
RANK = [
    *("rank", "--quiet", "--llm", "llama-3.1-8b", "--sku", "a100", "h100", "h200", "l40s"),
    *("--workload", "prefill:tokens=8192"),
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


BLOCKS = {"README.md": {"rank prefill:tokens=8192": ranking, "gemm-cells": gemm_cells}}


def main() -> int:
    """Write the blocks, or compare them with what stands there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    check, stale = parser.parse_args().check, 0
    for name, blocks in BLOCKS.items():
        path = ROOT / name
        old = text = path.read_text(encoding="utf-8")
        for mark, write in blocks.items():
            pattern = re.compile(
                rf"(<!-- {re.escape(mark)} -->\n)(?:\n.*?\n)?(<!-- end -->\n)", re.S
            )
            if not pattern.search(text):
                sys.exit(f"{name}: no block <!-- {mark} --> … <!-- end -->")
            text = pattern.sub(lambda m, w=write: f"{m[1]}\n{w()}\n\n{m[2]}", text)
        stale += text != old
        if not check:
            path.write_text(text, encoding="utf-8")
        fresh = "as the evaluations say" if text == old else "written"
        print(f"{name}: {'STALE' if check and text != old else fresh}")
    return int(check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
