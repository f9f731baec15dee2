"""Options of list and show."""

from __future__ import annotations

from typing import Any

from m2bayes.options._types import command, plot

KINDS = ("skus", "llms", "models", "data", "posteriors")


def add(commands: Any) -> None:
    """Add the commands that look at files and at the database."""
    listing = command(commands, "list", "names that the database knows")
    listing.add_argument("kind", choices=KINDS)
    show = command(commands, "show", "a SKU, LLM, model, data set or posterior in full")
    show.add_argument("name", help="its name, or path of its JSON; an evaluation's too")
    plot(show, "a posterior's factors, clock telemetry, or an evaluation's calibration")
