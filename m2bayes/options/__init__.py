"""Options of every command; standard library only, so that --help is instant."""

from __future__ import annotations

import argparse

from m2bayes.options import (
    asking,
    doctor,
    fitting,
    importing,
    judging,
    listing,
    plan,
    sweep,
    updating,
)
from m2bayes.options import next as next_
from m2bayes.options._examples import exemplify
from m2bayes.options._question import POSTERIOR
from m2bayes.options._types import Parser, Version, number, one_line
from m2bayes.options.importing import FORMATS
from m2bayes.options.judging import GEMM_POSTERIOR, SUITES
from m2bayes.options.listing import KINDS

__all__ = [
    "FORMATS",
    "GEMM_POSTERIOR",
    "KINDS",
    "POSTERIOR",
    "SUITES",
    "number",
    "one_line",
    "parser",
]


def parser() -> argparse.ArgumentParser:
    """Build the parser of all commands."""
    top = Parser(
        prog="m2bayes", description="Which GPU is best for this LLM workload, and how sure are we?"
    )
    top.add_argument("--version", action=Version, nargs=0, help="show the version and exit")
    commands = top.add_subparsers(
        dest="command", required=True, metavar="command", parser_class=Parser
    )
    answers = (asking, plan, next_, sweep)
    for group in (*answers, fitting, updating, judging, importing, listing, doctor):
        group.add(commands)
    exemplify(commands.choices)
    return top
