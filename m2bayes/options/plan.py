"""Options of plan."""

from __future__ import annotations

from typing import Any

from m2bayes.options._question import engine, formats, judging, price
from m2bayes.options._types import command, duration, number, plot, text, whole

DRAWS = 300


def add(commands: Any) -> None:
    """Add the command that sizes fleets."""
    own = command(commands, "plan", "GPUs needed to serve a load within targets, and their cost")
    add = own.add_argument
    add("--llm", type=text, required=True, metavar="NAME", help="LLM name or path of a config.json")
    add(
        "--sku",
        nargs="+",
        action="extend",
        required=True,
        metavar="NAME",
        help="SKU name, alias (m2bayes list skus) or path of a datasheet .json",
    )
    _load(add)
    _targets(add)
    price(own)
    add(
        "--tp",
        type=whole,
        nargs="+",
        action="extend",
        metavar="N",
        help="GPUs that share the LLM, one or more (default: 1 2 4 8)",
    )
    add("--gpus", type=whole, metavar="N", help="judge fleets of N GPUs instead of the smallest")
    add("--simulate", action="store_true", help="simulate the engine step by step beside it")
    add("--next", action="store_true", help="say which measurement is worth most to the choice")
    plot(own, "cost against the probability to keep to the targets")
    _settings(own, add)


def _load(add: Any) -> None:
    add("--rate", type=number, metavar="R", help="requests a second, of the whole fleet")
    add(
        "--concurrency",
        type=whole,
        metavar="N",
        help="instead of a rate: N requests in the system at all times, as benchmarks keep",
    )
    add("--input-tokens", type=whole, metavar="N", help="tokens of a prompt")
    add("--output-tokens", type=whole, metavar="N", help="tokens of an answer")
    add(
        "--mix",
        type=text,
        metavar="FILE.csv",
        help="instead of one length: input_tokens, output_tokens, weight",
    )
    add(
        "--trace",
        type=text,
        metavar="FILE.csv",
        help="instead: one request a row, input_tokens, output_tokens, perhaps arrival_time in s, "
        "which gives the rate too",
    )


def _targets(add: Any) -> None:
    add("--ttft", type=duration, metavar="TIME", help="target for the time to the first token: 1s")
    add(
        "--tpot",
        type=duration,
        metavar="TIME",
        help="target for the time per token after the first: 50ms; without a unit both are in s",
    )
    add(
        "--percentile",
        type=number,
        default=90.0,
        metavar="P",
        help="share of the requests that must keep to each target, in percent (90)",
    )
    add(
        "--confidence",
        type=number,
        default=0.9,
        metavar="P",
        help="probability with which they must, 0 to 1 (0.9)",
    )


def _settings(own: Any, add: Any) -> None:
    formats(own)
    add(
        "--max-num-seqs", type=whole, default=256, metavar="N", help="sequences at once (256, vLLM)"
    )
    add(
        "--token-budget",
        type=whole,
        default=2048,
        metavar="N",
        help="tokens of one step, prompts in chunks (2048, vLLM's max_num_batched_tokens)",
    )
    engine(own)
    judging(own, draws=DRAWS)
