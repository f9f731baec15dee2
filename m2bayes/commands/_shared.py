"""What commands share: JSON on standard output, remarks and progress on standard error."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from m2bayes._jobs import Each
from m2bayes.errors import DataError, WorkloadError

MOST_WORKERS = 256  # on one machine
MANY = 200  # workloads from which a progress bar is worth showing


def say(text: str) -> None:
    """Print on standard error; that nobody reads it is no reason to fail."""
    with suppress(OSError):
        print(text, file=sys.stderr)


def teller(args: argparse.Namespace) -> Callable[[str], None]:
    """Say on standard error what is being done, unless --quiet."""
    return lambda text: None if args.quiet else say(text)


def print_json(content: Any) -> None:
    """Print plain values as JSON on standard output."""
    print(json.dumps(content, indent=2, allow_nan=False))


def figure_file(args: argparse.Namespace) -> Path | None:
    """File that --plot names, checked before the work is begun."""
    if not args.plot:
        if getattr(args, "figure", None):
            raise DataError(f"--figure {args.figure}: name the file with --plot FILE")
        return None
    from m2bayes.output import file_to_write
    from m2bayes.plot import suffix_of

    suffix_of(args.plot)
    return file_to_write(args.plot, option="--plot")


def workers(args: argparse.Namespace) -> AbstractContextManager[Each]:
    """Way to run jobs that --workers and --scheduler name, see `m2bayes.sweeping.cluster`."""
    if not 0 <= args.workers <= MOST_WORKERS:
        raise WorkloadError(f"--workers {args.workers}: give 0 to {MOST_WORKERS}")
    from m2bayes.sweeping.cluster import spread

    return spread(args.workers, args.scheduler)


@contextmanager
def progress(
    args: argparse.Namespace, total: int, *, unit: str = "workloads", many: int = MANY
) -> Iterator[Callable[[int], None]]:
    """Progress bar on standard error for long work, silence for short work or --quiet."""
    if args.quiet or total < many:
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)  # which is no bar's place if it is a file
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(unit, total=total)
        yield lambda done: bar.advance(task, done)
