"""Options of update."""

from __future__ import annotations

from typing import Any

from m2bayes.options._types import cards, command, text, whole

PATHS = ("reweighting", "steps", "sampling")


def add(commands: Any) -> None:
    """Add the command that updates."""
    own = command(
        commands,
        "update",
        "condition a stored posterior on new measurements and store the result",
        more=" By weights where they last, else by small steps, else by sampling the model; the "
        "result names its parent, and every other command takes it with --posterior.",
    )
    add = own.add_argument
    add("posterior", type=text, help="m2bayes list posteriors, path of a record, or an assembly")
    add("file", type=text, metavar="FILE.csv", help="rows: made by m2bayes import or measure")
    add("--out", type=text, required=True, metavar="DIR", help="where record and draws go")
    add("--part", type=text, metavar="NAME", help="part of the assembly that the rows are of")
    cards(own, "the file")
    add("--path", choices=PATHS, help="take this path, whatever the others would do")
    add("--seed", type=whole, default=0)
