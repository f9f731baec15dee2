"""Command line: parse, call, print. Heavy modules are imported by the command that needs them."""

from __future__ import annotations

import argparse
import codecs
import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from m2bayes.options import one_line, parser

__all__ = ["main", "parser"]

SPARED = ("dask", "pyarrow")  # that xarray and pandas import where they are installed
QUESTIONS = ("rank", "predict")  # commands that have no use for them
PLAIN = {"±": "+-", "µ": "u", "×": "x", "…": "...", "≤": "<=", "≥": ">=", "·": "-", "η": "eta"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command: exit code 0 done, 2 bad input, 3 nothing fits, 1 a fault of ours."""
    # products of small matrices: more threads only wait for each other
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if argv is None and sys.argv[1:2] and sys.argv[1] in QUESTIONS:  # a process for this alone
        gc.disable()  # it has no time to leave much behind
        for name in SPARED:
            sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # as if not installed
    _streams()
    try:
        return _run(argv)
    finally:
        if argv is None:
            gc.freeze()  # the process ends: nothing is left to look through for garbage
        try:
            sys.stderr.flush()
        except OSError:  # nobody reads the complaints; the exit code stands
            _drop(sys.stderr)


def _run(argv: Sequence[str] | None) -> int:
    given = sys.argv[1:] if argv is None else argv
    args = argparse.Namespace(command="", argv=[*given])
    try:
        try:
            parser().parse_args(given, args)
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
        from m2bayes.commands import run

        return run(args)
    except InfeasibleError as error:
        return _fail(args, error, 3)
    except M2BayesError as error:
        return _fail(args, error, 2)


def _streams() -> None:
    """Have somewhere to print to, and print what the terminal's encoding lacks in plain letters."""
    codecs.register_error("m2bayes", _plainly)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        with suppress(AttributeError, ValueError):
            getattr(sys, name).reconfigure(errors="m2bayes")


def _plainly(fault: UnicodeError) -> tuple[str, int]:
    """Letters for what cannot be encoded, an escape where there are none."""
    if not isinstance(fault, UnicodeEncodeError):
        raise fault
    lacking = fault.object[fault.start : fault.end]
    return "".join(PLAIN.get(c, ascii(c)[1:-1]) for c in lacking), fault.end


def _drop(stream: Any) -> None:
    """Let what is still to be printed go nowhere, so that it fails no second time."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fail(args: argparse.Namespace, message: object, code: int) -> int:
    with suppress(OSError):
        place = f"m2bayes {args.command or ''}".rstrip()
        print(f"{place}: {one_line(str(message))}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
