"""Command line: parse, call, print. Heavy modules are imported by the command that needs them."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

POSTERIOR = "gemm_bf16-hier_gemm"
SUITES = "gemm-cells, gemm-transfer, clock, eta, ranking, flips, fresh"
KINDS = ("skus", "llms", "models", "data", "posteriors")
WORKLOAD_HELP = (
    "decode:batch=64,context=2048 · prefill:tokens=4096[,context=0] · "
    "mixed:prefill=512,batch=64,context=2048 · gemm:m=64,n=6144,k=4096 (no --llm) · "
    "or a .csv/.toml file of them"
)


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line."""

    def error(self, message: str) -> NoReturn:
        """Print the complaint and where to look, and exit with 2."""
        self.exit(2, f"{self.prog}: {_line(message)} (see {self.prog} --help)\n")

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


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command: exit code 0 done, 2 bad input, 3 nothing fits, 1 a fault of ours."""
    _streams()
    try:
        return _run(argv)
    finally:
        try:
            sys.stderr.flush()
        except OSError:  # nobody reads the complaints; the exit code stands
            _drop(sys.stderr)


def _run(argv: Sequence[str] | None) -> int:
    args = argparse.Namespace(command="")
    try:
        try:
            parser().parse_args(argv, args)
            return _command_of(args)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader went away, as head does
        _drop(sys.stdout)
        return 0
    except KeyboardInterrupt:
        return _fail(args, "interrupted", 130)
    except OSError as error:
        if error.filename is None:
            _drop(sys.stdout)
            return _fail(args, f"cannot write the result: {error.strerror or error}", 2)
        place = os.fsdecode(error.filename)
        return _fail(args, f"{place}: {error.strerror or error}; name another file or folder", 2)
    except Exception as error:
        if os.environ.get("M2BAYES_DEBUG"):
            raise
        kind = type(error).__name__
        return _fail(args, f"internal fault, {kind}: {error}; M2BAYES_DEBUG=1 shows where", 1)


def _command_of(args: argparse.Namespace) -> int:
    """Run the command that the arguments name."""
    from m2bayes.errors import InfeasibleError, M2BayesError

    try:
        from m2bayes.commands import COMMANDS

        return COMMANDS[args.command](args)
    except InfeasibleError as error:
        return _fail(args, error, 3)
    except M2BayesError as error:
        return _fail(args, error, 2)


def _streams() -> None:
    """Have somewhere to print to, and print what the terminal's encoding lacks as an escape."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        with suppress(AttributeError, ValueError):
            getattr(sys, name).reconfigure(errors="backslashreplace")


def _drop(stream: Any) -> None:
    """Let what is still to be printed go nowhere, so that it fails no second time."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fail(args: argparse.Namespace, message: object, code: int) -> int:
    with suppress(OSError):
        place = f"m2bayes {args.command or ''}".rstrip()
        print(f"{place}: {_line(str(message))}", file=sys.stderr)
    return code


def _line(message: str) -> str:
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
    check.add_argument("posterior", nargs="?", default=POSTERIOR, help=f"default: {POSTERIOR}")
    check.add_argument(
        "--fingerprint", action="store_true", help="rebuild the model too and compare its density"
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
    add("--metric", default="gemm_time", help="gemm_time: the four projections of all layers")
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
    add("--threshold", type=number, default=0.9, help="p_best of a clear verdict, 0.5 to 1 (0.9)")
    add("--mass", type=number, default=0.9, help="mass of the intervals, 0 to 1 (0.9)")
    add("--posterior", type=text, default=POSTERIOR, metavar="NAME", help=f"default: {POSTERIOR}")
    add(
        "--draws", type=whole, metavar="N", help="joint draws to use (default: all that are stored)"
    )
    add("--seed", type=whole, default=0)


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
    add("--tune", type=whole, default=1000, help="discarded draws of each chain (1000)")
    add("--chains", type=whole, default=4)
    add("--target-accept", type=number, default=0.9)
    add("--seed", type=whole, default=1)


if __name__ == "__main__":
    sys.exit(main())
