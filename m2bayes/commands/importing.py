"""Command that turns measurement files into tables that a fit reads."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from m2bayes import output
from m2bayes.commands._shared import print_json, say
from m2bayes.database import Database
from m2bayes.errors import DataError


def facts(args: argparse.Namespace) -> dict[str, str]:
    """What --given says, each key once."""
    keys = [key for key, _ in args.given]
    for key in keys:
        if keys.count(key) > 1:
            raise DataError(f"--given {key} is given twice; keep one")
    return dict(args.given)


def import_(args: argparse.Namespace) -> int:
    """Turn other projects' files into a table that a fit reads."""
    from m2bayes.importing import imported, write

    target = output.file_to_write(args.out)
    told: list[Any] = []
    database, given = Database(args.database), facts(args)
    table = imported(database, args.format, args.paths, sku=args.sku, given=given, tell=told.append)
    summary = {"format": args.format} | write(table, target, args.paths)
    if args.json:
        print_json(summary | {"findings": [asdict(finding) for finding in told]})
        return 0
    print(f"{args.out}: {summary['rows']} rows, sha256 {summary['sha256'][:12]}")
    if not args.quiet:
        for finding in told:
            say(f"{finding.severity}: {finding.message}")
    return 0
