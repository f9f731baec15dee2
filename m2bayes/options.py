"""Options of every command; standard library only, so that --help is instant."""

from __future__ import annotations

import argparse
import math
import re
import sys
from typing import Any, NoReturn

POSTERIOR, GEMM_POSTERIOR = "step_bf16", "gemm_bf16-hier_gemm"
FORMATS = {  # of import: what the files are
    "vidur-light": "Vidur's mlp.csv, one an LLM: light kernels",
    "distserve-host": "DistServe's profiler-….vllm.json: steps that the host bounds",
}
SUITES = (
    "gemm-cells, gemm-transfer, clock, eta, ranking, flips, fresh, knee, attention, "
    "attention-transfer, light, served, distserve, power"
)
KINDS = ("skus", "llms", "models", "data", "posteriors")
WORKLOAD_HELP = (
    "decode:batch=64,context=2048 · prefill:tokens=4096[,context=0] · "
    "mixed:prefill=512,batch=64,context=2048 · gemm:m=64,n=6144,k=4096 (no --llm) · "
    "attention:phase=decode,batch=64,context=2048,heads=32,kv_heads=8 (no --llm) · "
    "or a .csv/.toml file of them"
)


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line."""

    def error(self, message: str) -> NoReturn:
        """Print the complaint and where to look, and exit with 2."""
        self.exit(2, f"{self.prog}: {one_line(message)} (see {self.prog} --help)\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print; what cannot be printed is an error, for argparse it is not."""
        (file or sys.stderr).write(message)


class Version(argparse.Action):
    """Print the version; it is only looked up when asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print and exit with 0."""
        from importlib.metadata import version

        print(f"m2bayes {version('m2bayes')}")
        parser.exit(0)


def one_line(message: str) -> str:
    """Message as one line that no terminal takes for a command."""
    line = " ".join(message.split())
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


def text(given: str) -> str:
    """Read a name or a path.

    >>> text("h100")
    'h100'
    """
    if not given.strip() or "\0" in given:
        raise argparse.ArgumentTypeError("is empty: give a name or a path")
    return given


def whole(given: str) -> int:
    """Read a whole number written in the digits 0 to 9.

    >>> whole("-12")
    -12
    """
    if not re.fullmatch("[+-]?[0-9]{1,18}", given):
        raise argparse.ArgumentTypeError(f"{given[:40]!r} is not a whole number")
    return int(given)


def number(given: str) -> float:
    """Read a finite number written in the digits 0 to 9.

    >>> number("0.9")
    0.9
    """
    form = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
    if not re.fullmatch(form, given) or not math.isfinite(float(given)):
        raise argparse.ArgumentTypeError(f"{given[:40]!r} is not a finite number")
    return float(given)


def parser() -> argparse.ArgumentParser:
    """Build the parser of all commands; standard library only, so that --help is instant."""
    top = Parser(
        prog="m2bayes", description="Which GPU is best for this LLM workload, and how sure are we?"
    )
    top.add_argument("--version", action=Version, nargs=0, help="show the version and exit")
    commands = top.add_subparsers(
        dest="command", required=True, metavar="command", parser_class=Parser
    )
    _question(_command(commands, "rank", "rank SKUs, best first, with probabilities", csv=True))
    predict = _command(commands, "predict", "times of each SKU with intervals", csv=True)
    _question(predict)
    predict.add_argument("--by", choices=["op"], help="break the time down by operator")
    predict.add_argument(
        "--noise",
        type=whole,
        default=0,
        metavar="N",
        help="interval of the median of N new runs instead of the noise-free time",
    )
    predict.add_argument(
        "--out", type=text, metavar="FILE.nc", help="write the joint draws as netCDF"
    )
    _fit(_command(commands, "fit", "fit a model to a data set and store the posterior"))
    check = _command(commands, "check", "diagnostics and calibration of a stored posterior")
    check.add_argument(
        "posterior", nargs="?", default=GEMM_POSTERIOR, help=f"default: {GEMM_POSTERIOR}"
    )
    check.add_argument(
        "--data",
        type=text,
        metavar="FILE.csv",
        help="the rows it was fitted to, where they are not included: made by m2bayes import",
    )
    check.add_argument(
        "--fingerprint", action="store_true", help="rebuild the model too and compare its density"
    )
    _import(
        _command(
            commands,
            "import",
            "turn other projects' tables into one that fit reads",
            more=f" Formats: {'; '.join(f'{name}, {what}' for name, what in FORMATS.items())}.",
        )
    )
    evaluate = _command(
        commands,
        "evaluate",
        "score posteriors on cells they have not seen",
        more=f" A suite takes minutes. Suites: {SUITES}.",
    )
    evaluate.add_argument("suites", nargs="+", metavar="SUITE", help=f"one or more of {SUITES}")
    evaluate.add_argument("--out", type=text, metavar="DIR", help="write <suite>.json there")
    lint = _command(commands, "lint", "check datasheet files")
    lint.add_argument("files", nargs="+", metavar="FILE")
    listing = _command(commands, "list", "names that the database knows")
    listing.add_argument("kind", choices=KINDS)
    show = _command(commands, "show", "a SKU, LLM, model, data set or posterior in full")
    show.add_argument("name")
    return top


def _command(
    commands: Any, name: str, help_: str, csv: bool = False, more: str = ""
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=help_, description=f"{help_[0].upper()}{help_[1:]}.{more}"
    )
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="machine-readable, on stdout")
    if csv:
        form.add_argument("--csv", action="store_true", help="one row a workload and SKU")
    command.add_argument("--quiet", action="store_true", help="no progress and no remarks")
    command.add_argument("--database", type=text, metavar="DIR", help=argparse.SUPPRESS)
    return command


def _question(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        "--llm",
        type=text,
        metavar="NAME",
        help="LLM name (m2bayes list llms) or path of a config.json",
    )
    add(
        "--sku",
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
        "(idle server), tokens_per_second",
    )
    add("--tp", type=whole, default=1, metavar="N", help="GPUs that share the LLM (default 1)")
    add("--dtype", default="bf16", help="of weights and activations (default bf16)")
    add(
        "--regime",
        choices=["served", "benchmark"],
        default="served",
        help="served: cold weights, settled clock (default); benchmark: as kernel tables are taken",
    )
    add(
        "--backend",
        default="any",
        help="sglang, trtllm, vllm, or any (default): a build like them",
    )
    _engine(command)
    add("--threshold", type=number, default=0.9, help="p_best of a clear verdict, 0.5 to 1 (0.9)")
    add("--mass", type=number, default=0.9, help="mass of the intervals, 0 to 1 (0.9)")
    add("--posterior", type=text, default=POSTERIOR, metavar="NAME", help=f"default: {POSTERIOR}")
    add(
        "--draws", type=whole, metavar="N", help="joint draws to use (default: all that are stored)"
    )
    add("--seed", type=whole, default=0)


def _engine(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--eager", action="store_true", help="the engine captures no CUDA graphs")
    add(
        "--calibrate",
        type=text,
        metavar="FILE.csv",
        help="measured steps (sku, workload, step_time in s): one host time a SKU is learnt",
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


def _import(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("format", choices=FORMATS, help=f"one of {', '.join(FORMATS)}", metavar="FORMAT")
    add("paths", type=text, nargs="+", metavar="PATH", help="files of one card")
    add("--sku", type=text, metavar="NAME", help="the card: m2bayes list skus")
    add("--out", type=text, required=True, metavar="FILE.csv", help="where the table goes")


def _fit(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--model", type=text, required=True, metavar="NAME", help="m2bayes list models")
    add(
        "--data",
        type=text,
        required=True,
        metavar="NAME",
        help="m2bayes list data, or path of a CSV",
    )
    add(
        "--clock",
        type=text,
        metavar="NAME",
        help="data set of clock telemetry, if the model takes one",
    )
    add(
        "--shapes",
        type=text,
        metavar="NAME",
        help="more kernel times, for the discrepancy between shapes",
    )
    add("--out", type=text, required=True, metavar="DIR", help="where the record and the draws go")
    add("--draws", type=whole, default=1000, help="kept draws of each chain (1000)")
    add("--keep", type=whole, metavar="N", help="draws of each chain to store, rounded (all)")
    add("--tune", type=whole, default=1000, help="discarded draws of each chain (1000)")
    add("--chains", type=whole, default=4)
    add("--target-accept", type=number, default=0.9)
    add("--seed", type=whole, default=1)
