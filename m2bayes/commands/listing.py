"""Commands that say what the database holds: list and show."""

from __future__ import annotations

import argparse

from m2bayes import catalogue, tables
from m2bayes.commands._shared import figure_file, print_json
from m2bayes.database import Database
from m2bayes.layout import columns

HEADINGS = {"measured": "timed"}  # of a table as wide as a terminal


def list_names(args: argparse.Namespace) -> int:
    """List names of one kind with a line on each."""
    database = Database(args.database)
    rows = catalogue.listing(database, args.kind)
    if args.json:
        print_json(rows)
    else:
        print(columns([{HEADINGS.get(k, k): v for k, v in row.items()} for row in rows]))
    return 0


def show(args: argparse.Namespace) -> int:
    """Show one thing in full, whatever it is."""
    database, target = Database(args.database), figure_file(args)
    content = catalogue.found(database, args.name)
    if target:
        from m2bayes.plot import asked, save

        save(asked.of_content(database, args.name, content), target)
    if args.json:
        print_json(content)
    else:
        rows = content.pop("factors", None)
        print(tables.tree(content))
        if rows:
            print(f"\n{tables.factor_table(rows)}")
    return 0
