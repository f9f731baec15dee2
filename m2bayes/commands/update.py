"""Command that conditions a stored posterior on new measurements."""

from __future__ import annotations

import argparse
import warnings

from m2bayes import output
from m2bayes.commands._shared import print_json, teller
from m2bayes.database import Database
from m2bayes.updating import table as tables_update


def update(args: argparse.Namespace) -> int:
    """Condition a posterior on a file of rows and store the result."""
    from m2bayes.updating.update import report, write
    from m2bayes.updating.update import update as condition

    database = Database(args.database)
    with output.folder_to_write(args.out) as folder, warnings.catch_warnings():
        if args.quiet:
            warnings.simplefilter("ignore")
        done = condition(
            database,
            args.posterior,
            args.file,
            part=args.part,
            cards=args.sku,
            path=args.path,
            seed=args.seed,
            tell=teller(args),
        )
        result = report(database, done)
        result["files"] = write(done, folder)
    if args.json:
        print_json(result)
    else:
        print(tables_update.update(result))
        print(f"\nwritten: {', '.join(result['files'].values())}")
    return 0
