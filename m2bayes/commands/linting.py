"""Command that checks files before they are used."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from pathlib import Path

from m2bayes._files import read_json
from m2bayes.commands._shared import print_json
from m2bayes.database import FOLDERS, Database
from m2bayes.datasheet import lint as lint_card
from m2bayes.errors import DatasheetError


def lint(args: argparse.Namespace) -> int:
    """Check datasheet files against the rules and the other cards."""
    database = Database(args.database)
    folder = database.root / FOLDERS["sku"]
    cards = {file: read_json(Path(file), DatasheetError) for file in args.files}
    known = {
        os.path.realpath(folder / f"{n}.json"): database.sku_card(n)[0] for n in database.skus()
    }
    known |= {os.path.realpath(file): card for file, card in cards.items()}
    found = []
    for file, card in cards.items():
        others = [other for path, other in known.items() if path != os.path.realpath(file)]
        found += [asdict(f) | {"file": file} for f in lint_card(card, origin=file, others=others)]
    if args.json:
        print_json(found)
    else:
        for finding in found:
            print(f"{finding['severity']}: {finding['message']}")
        if not found:
            print(f"{len(cards)} datasheet{'s' * (len(cards) > 1)}, nothing to report")
    return 2 if any(f["severity"] == "error" for f in found) else 0
