"""What each command does: read names, ask the library, print for people or machines."""

from __future__ import annotations

import argparse
from importlib import import_module

# command: module of this package, and its function
COMMANDS = {
    "rank": ("asking", "rank"),
    "predict": ("asking", "predict"),
    "plan": ("plan", "plan"),
    "report": ("report", "report"),
    "import": ("importing", "import_"),
    "next": ("next", "next_"),
    "sweep": ("sweep", "sweep_"),
    "fit": ("fitting", "fit"),
    "update": ("update", "update"),
    "check": ("judging", "check"),
    "evaluate": ("judging", "evaluate"),
    "lint": ("linting", "lint"),
    "measure": ("measuring", "measure"),
    "list": ("listing", "list_names"),
    "show": ("listing", "show"),
    "doctor": ("doctor", "doctor"),
    "completion": ("doctor", "completion"),
}


def run(args: argparse.Namespace) -> int:
    """Run the command that the arguments name; only its own module is imported."""
    module, function = COMMANDS[args.command]
    code: int = getattr(import_module(f"m2bayes.commands.{module}"), function)(args)
    return code
