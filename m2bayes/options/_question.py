"""Options of the commands that put a question to a posterior."""

from __future__ import annotations

import argparse

from m2bayes.options._types import natural, number, text, whole

POSTERIOR = "step_bf16"
WORKLOAD_HELP = (
    "decode:batch=64,context=2048 · prefill:tokens=4096[,context=0,batch=1] · "
    "mixed:prefill=512,batch=64,context=2048 · gemm:m=64,n=6144,k=4096 (no --llm) · "
    "attention:phase=decode,batch=64,context=2048,heads=32,kv_heads=8 (no --llm) · "
    "or a .csv/.toml file of them"
)


def question(command: argparse.ArgumentParser) -> None:
    """Add what rank, predict and report are asked."""
    add = command.add_argument
    add(
        "--llm",
        type=text,
        metavar="NAME",
        help="LLM name (m2bayes list llms) or path of a config.json",
    )
    add(
        "--sku",
        type=text,
        nargs="+",
        action="extend",
        required=True,
        metavar="NAME",
        help="SKU name, alias (m2bayes list skus) or path of a datasheet .json",
    )
    add(
        "--workload",
        nargs="+",
        action="extend",
        required=True,
        metavar="SPEC",
        help=WORKLOAD_HELP,
    )
    add(
        "--metric",
        help="step_time (default), gemm_time (the four projections of all layers, and the default "
        "of gemm: and of --regime benchmark), attention_time (default of attention:), tpot, ttft "
        "(idle server), tokens_per_second, cost_per_million_tokens (needs --price)",
    )
    add("--tp", type=whole, default=1, metavar="N", help="GPUs that share the LLM (default 1)")
    formats(command)
    add(
        "--regime",
        choices=["served", "benchmark"],
        default="served",
        help="served: cold weights, settled clock (default); benchmark: as kernel tables are taken",
    )
    price(command)
    engine(command)
    judging(command)


def formats(command: argparse.ArgumentParser) -> None:
    """Add the formats of weights and cache, and whose kernels run."""
    add = command.add_argument
    add(
        "--dtype",
        default="bf16",
        help="of weights and activations: bf16 (default), fp8, w4a16 (4-bit weights; prior only)",
    )
    add(
        "--kv-dtype",
        choices=["bf16", "fp8"],
        help="of the KV cache (default: 16 bit, as engines do; of fp8 steps 8 bit in a quarter of "
        "the draws)",
    )
    add(
        "--backend",
        default="any",
        help="sglang, trtllm, vllm, or any (default): a build like them",
    )


def judging(command: argparse.ArgumentParser, draws: int | None = None) -> None:
    """Add what the posterior is, and from where on it is sure."""
    add = command.add_argument
    add("--threshold", type=number, default=0.9, help="p_best of a clear verdict, 0.5 to 1 (0.9)")
    add("--mass", type=number, default=0.9, help="mass of the intervals, 0 to 1 (0.9)")
    add(
        "--posterior",
        type=text,
        metavar="NAME",
        help=f"default: {POSTERIOR}, or step_fp8 with --dtype fp8",
    )
    add(
        "--draws",
        type=whole,
        default=draws,
        metavar="N",
        help=f"joint draws to use (default: {draws or 'all that are stored'})",
    )
    add("--seed", type=natural, default=0, help="of what is drawn anew: 0 or more (0)")


def price(command: argparse.ArgumentParser) -> None:
    """Add the prices of GPUs."""
    command.add_argument(
        "--price",
        type=text,
        nargs="+",
        action="extend",
        default=[],
        metavar="SKU=USD",
        help="of one GPU and hour: SKU=2.5, a range SKU=2.2-3, a .json table, or example (made up)",
    )


def engine(command: argparse.ArgumentParser) -> None:
    """Add what is known of the engine and the card beyond their names."""
    add = command.add_argument
    add(
        "--eager",
        action="store_true",
        help="the engine launches from Python and captures no CUDA graphs",
    )
    add(
        "--overlap",
        action="store_true",
        help="the engine's host prepares the next step while the GPU works (TensorRT-LLM, SGLang, "
        "vLLM with asynchronous scheduling)",
    )
    add(
        "--calibrate",
        type=text,
        metavar="FILE.csv",
        help="measured steps (sku, workload, step_time in s, tp): one host time a SKU is learnt",
    )
    add(
        "--power-limit",
        type=text,
        nargs="+",
        action="extend",
        default=[],
        metavar="SKU=W",
        help="what if this SKU's power limit were lower",
    )
