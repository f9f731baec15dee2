"""Commands that look after the installation: doctor and completion."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

from m2bayes.commands._shared import print_json
from m2bayes.database import Database
from m2bayes.doctor import BROKEN, SOUND, examined
from m2bayes.errors import DataError
from m2bayes.layout import columns
from m2bayes.options import parser

WIDTH = 80
NAMES = {"sku": "skus", "llm": "llms", "posterior": "posteriors"}  # of options that take names


def doctor(args: argparse.Namespace) -> int:
    """Say what is installed and whether it is sound; 2 if something is broken."""
    found = examined(Database(args.database))
    if args.json:
        print_json(found)
    else:
        print(_text(found))
    return 0 if found["sound"] else 2


def _text(found: dict[str, Any]) -> str:
    """Versions, a line on each kind of file, and whatever is not sound in full."""
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    kinds: dict[str, list[dict[str, str]]] = {}
    for check in found["checks"]:
        kinds.setdefault(check["kind"], []).append(check)
    rows = [
        {
            "part": kind,
            "sound": sum(c["state"] == SOUND for c in held),
            "missing": sum(c["state"] not in (SOUND, BROKEN) for c in held),
            "broken": sum(c["state"] == BROKEN for c in held),
        }
        for kind, held in kinds.items()
    ]
    lines = [versions, "", columns(rows)]
    for check in found["checks"]:
        if check["state"] != SOUND:
            text = f"{check['state']}: {check['kind']} {check['name']}: {check['detail']}"
            lines.append(textwrap.fill(text, WIDTH, subsequent_indent="  "))
    return "\n".join([*lines, "", "sound" if found["sound"] else "broken: see above"])


def completion(args: argparse.Namespace) -> int:
    """Print a script that completes commands, options, names and files in a shell."""
    try:
        import shtab
    except ImportError:
        raise DataError("completion needs the package shtab: pip install shtab") from None
    top = parser()
    database = Database(args.database)
    known = {dest: getattr(database, kind)() for dest, kind in NAMES.items()}
    aliases = (database.sku_card(name)[0]["aliases"] for name in database.skus())
    known["sku"] += [alias for held in aliases for alias in held]
    known["posterior"] += database.assemblies()
    for own in _commands(top).values():
        for action in own._actions:
            if action.dest in known:
                action.choices = known[action.dest]
            elif action.choices is not None:  # shtab takes a dict for one of parsers
                action.choices = [*action.choices]
            elif str(action.metavar).startswith("FILE"):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            elif str(action.metavar) == "DIR":
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    print(shtab.complete(top, args.shell))
    return 0


def _commands(top: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Parsers of all commands."""
    held = (a.choices for a in top._actions if isinstance(a, argparse._SubParsersAction))
    return dict(next(held))
