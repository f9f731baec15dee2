"""One example for each command, which its help ends with; standard library only."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

LAYOUT = "example:\n  "
EXAMPLES = {
    "rank": "m2bayes rank --llm llama-3.1-8b --sku h100 l40s \\\n"
    "    --workload decode:batch=64,context=1024",
    "predict": "m2bayes predict --llm llama-3.1-8b --sku h100 --by op \\\n"
    "    --workload prefill:tokens=2048",
    "report": "m2bayes report --llm llama-3.1-8b --sku h100 l40s \\\n"
    "    --workload decode:batch=64,context=1024 --out report.html",
    "plan": "m2bayes plan --llm qwen3-32b --sku h100 h200 --rate 20 --input-tokens 1000 \\\n"
    "    --output-tokens 300 --ttft 1s --tpot 50ms --price h100=2.5 h200=3.5",
    "next": "m2bayes next --llm llama-3.1-8b --sku h100 h200 --workload prefill:tokens=512",
    "sweep": "m2bayes sweep data/sweeps/example.toml --out results.zarr",
    "fit": "m2bayes fit --model const_ceiling --data gemm_bf16 --out my_posteriors",
    "update": "m2bayes update gemm_bf16-hier_gemm mine.csv --out my_posteriors",
    "check": "m2bayes check gemm_bf16-hier_gemm",
    "evaluate": "m2bayes evaluate gemm-cells --out my_evaluations",
    "import": "m2bayes import plain mine.csv --given version=0.24.0 --out tidy.csv",
    "lint": "m2bayes lint my_gpu.json mine.csv",
    "measure": "m2bayes measure --out own.csv --what gemm",
    "list": "m2bayes list skus",
    "show": "m2bayes show h100",
    "doctor": "m2bayes doctor --json",
    "completion": 'eval "$(m2bayes completion bash)"',
}


class Layout(argparse.HelpFormatter):
    """Wraps text as usual, and leaves an example as it stands."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(LAYOUT) else super()._fill_text(text, width, indent)


def exemplify(commands: Mapping[str, argparse.ArgumentParser]) -> None:
    """End each command's help with its example."""
    for name, own in commands.items():
        if name in EXAMPLES:
            own.epilog, own.formatter_class = LAYOUT + EXAMPLES[name], Layout
