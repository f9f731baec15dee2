"""What every command's parser is made of; standard library only."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

IN_A_SECOND = {"ms": 1e3, "us": 1e6, "µs": 1e6, "s": 1.0, "": 1.0}  # the longest unit first


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


def natural(given: str) -> int:
    """Read a whole number from 0 on.

    >>> natural("7")
    7
    """
    if (value := whole(given)) < 0:
        raise argparse.ArgumentTypeError(f"{given[:40]!r} is below 0")
    return value


def number(given: str) -> float:
    """Read a finite number written in the digits 0 to 9.

    >>> number("0.9")
    0.9
    """
    form = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
    if not re.fullmatch(form, given) or not math.isfinite(float(given)):
        raise argparse.ArgumentTypeError(f"{given[:40]!r} is not a finite number")
    return float(given)


def duration(given: str) -> float:
    """Read a time [s], in seconds or with its unit.

    >>> duration("0.05"), duration("50ms")
    (0.05, 0.05)
    """
    unit = next(unit for unit in IN_A_SECOND if given.endswith(unit))
    try:
        return number(given.removesuffix(unit).rstrip()) / IN_A_SECOND[unit]
    except argparse.ArgumentTypeError:
        said = f"{given[:40]!r} is no time: give a number with s, ms or us, such as 50ms"
        raise argparse.ArgumentTypeError(said) from None


def plot(command: argparse.ArgumentParser, what: str, kinds: Sequence[str] = ()) -> None:
    """Add the options of a command that draws a figure beside its table."""
    command.add_argument(
        "--plot", type=text, metavar="FILE", help=f"draw {what}: .png, .svg or .pdf"
    )
    if kinds:
        command.add_argument(
            "--figure",
            choices=kinds,
            help="kind of figure (default: what the workloads suit): ranking of two or more that "
            "differ in one size, flips of all pairs of two sizes, the others of any",
        )


def workers(command: argparse.ArgumentParser, default: int, what: str) -> None:
    """Add the options that say which processes do the work."""
    where = command.add_mutually_exclusive_group()
    where.add_argument(
        "--workers",
        type=whole,
        default=default,
        metavar="N",
        help=f"{what} processes on this machine, one thread each ({default}); 0: none but this one",
    )
    where.add_argument(
        "--scheduler",
        type=text,
        metavar="ADDRESS",
        help=f"{what} the workers of this Dask scheduler, such as tcp://10.0.0.1:8786",
    )


def cards(command: argparse.ArgumentParser, whose: str) -> None:
    """Add the option that names datasheets of cards that the database lacks."""
    command.add_argument(
        "--sku",
        type=text,
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE.json",
        help=f"datasheets of cards of your own that {whose} has rows of",
    )


def command(
    commands: Any, name: str, help_: str, csv: bool = False, more: str = ""
) -> argparse.ArgumentParser:
    """Add a command with the options that all have."""
    own: argparse.ArgumentParser = commands.add_parser(
        name, help=help_, description=f"{help_[0].upper()}{help_[1:]}.{more}"
    )
    form = own.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="machine-readable, on stdout")
    if csv:
        form.add_argument("--csv", action="store_true", help="one row a workload and SKU")
    own.add_argument("--quiet", action="store_true", help="no progress and no remarks")
    own.add_argument("--database", type=text, metavar="DIR", help=argparse.SUPPRESS)
    return own
