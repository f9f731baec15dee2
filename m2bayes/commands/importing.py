"""Command that turns other projects' tables into tables that a fit reads."""

from __future__ import annotations

import argparse

from m2bayes import output
from m2bayes.commands._shared import print_json
from m2bayes.database import Database


def import_(args: argparse.Namespace) -> int:
    """Turn other projects' files into a table that a fit reads."""
    from m2bayes.importing import imported, write

    target = output.file_to_write(args.out)
    table = imported(Database(args.database), args.format, args.paths, sku=args.sku)
    summary = {"format": args.format} | write(table, target, args.paths)
    if args.json:
        print_json(summary)
    else:
        print(f"{args.out}: {summary['rows']} rows, sha256 {summary['sha256'][:12]}")
    return 0
