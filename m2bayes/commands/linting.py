"""Command that checks files before they are used."""

from __future__ import annotations

import argparse

from m2bayes.commands._shared import print_json, teller
from m2bayes.commands.importing import facts
from m2bayes.database import Database


def lint(args: argparse.Namespace) -> int:
    """Check datasheets and measurements: rules, physics, and whether they agree."""
    from m2bayes.linting.files import linted

    database, given = Database(args.database), facts(args)
    found = linted(database, args.files, sku=args.sku, given=given, tell=teller(args))
    if args.json:
        print_json(found)
    else:
        for finding in found:
            print(f"{finding['severity']}: {finding['message']}")
        if not found:
            cards = all(file.lower().endswith(".json") for file in args.files)
            what, count = "datasheet" if cards else "file", len(set(args.files))
            print(f"{count} {what}{'s' * (count > 1)}, nothing to report")
    return 2 if any(f["severity"] == "error" for f in found) else 0
