"""Command that fits a model and stores its posterior."""

from __future__ import annotations

import argparse
import sys
import warnings
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from m2bayes import output, tables
from m2bayes.commands._shared import print_json, say
from m2bayes.database import Database, store
from m2bayes.errors import DataError

FEWEST = 400  # draws in all: no fit with fewer can reach the effective sample size asked for
SETTINGS = {  # of a fit: smallest and largest value
    "draws": (10, 100_000),
    "tune": (10, 100_000),
    "chains": (2, 64),
    "seed": (0, 2**32 - 1),
    "target_accept": (0.5, 0.999),
}


def fit(args: argparse.Namespace) -> int:
    """Fit a model and store its posterior."""
    for name, (low, high) in SETTINGS.items():
        if not low <= getattr(args, name) <= high:
            option = name.replace("_", "-")
            raise DataError(f"--{option} {getattr(args, name)}: give {low} to {high}")
    if args.draws * args.chains < FEWEST:
        raise DataError(
            f"--draws {args.draws} × --chains {args.chains}: give {FEWEST} in all or more"
        )
    if args.keep is not None and not FEWEST // args.chains <= args.keep <= args.draws:
        raise DataError(f"--keep {args.keep}: give {FEWEST // args.chains} to {args.draws}")
    database = Database(args.database)
    from m2bayes.posterior import fit as fit_model

    with ExitStack() as stack:

        def begin() -> None:
            stack.enter_context(output.folder_to_write(args.out))
            if not args.quiet:
                say(f"compiling {args.model}: half a minute the first time")

        if args.quiet:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
        record, draws = fit_model(
            database,
            args.model,
            args.data,
            clock=args.clock,
            shapes=args.shapes,
            keep=args.keep,
            begin=begin,
            draws=args.draws,
            tune=args.tune,
            chains=args.chains,
            seed=args.seed,
            target_accept=args.target_accept,
            progress=not args.quiet and not args.json and sys.stdout.isatty(),  # it goes to stdout
        )
        path = store(record, draws, Path(args.out))
    if args.json:
        print_json(asdict(database.posterior(str(path))))
    else:
        print(f"{path}: {tables.diagnosis(record.checks)}")
    return 0
