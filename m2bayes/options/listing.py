"""Options of lint, list and show."""

from __future__ import annotations

from typing import Any

from m2bayes.options._types import command

KINDS = ("skus", "llms", "models", "data", "posteriors")


def add(commands: Any) -> None:
    """Add the commands that look at files and at the database."""
    lint = command(commands, "lint", "check datasheet files")
    lint.add_argument("files", nargs="+", metavar="FILE")
    listing = command(commands, "list", "names that the database knows")
    listing.add_argument("kind", choices=KINDS)
    show = command(commands, "show", "a SKU, LLM, model, data set or posterior in full")
    show.add_argument("name")
