"""What is doubtful about a datasheet card that may yet be right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from m2bayes.datasheet import DTYPES, Finding


def doubts(
    card: Mapping[str, Any], *, origin: str, others: Sequence[Mapping[str, Any]] = ()
) -> list[Finding]:
    """Name that is no plain text, sources of another chip, tensor widths of no power of two.

    Parameters
    ----------
    card : Mapping
        That `m2bayes.datasheet.lint` finds no error in.
    origin : str
        Where it came from; every message begins with it.
    others : sequence of Mapping
        The other cards of the database.
    """
    found = [*_name(card), *_sources(card, others), *_widths(card)]
    return [Finding("warning", place, f"{origin}: {place}: {text}") for place, text in found]


def _name(card: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    name = card["name"]
    if not name.isascii() or " " in name:
        yield "name", f"{name!a} is hard to type: use letters, digits and hyphens alone"


def _sources(
    card: Mapping[str, Any], others: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    """Facts whose source names another vendor's chip and not this one, as in a copied card."""
    own = _chip(card)
    chips = {_chip(other) for other in others if other["vendor"] != card["vendor"]}
    found: dict[str, list[str]] = {}
    for place, fact in _facts(card):
        words = str(fact["source"]).replace(",", " ").split()
        named = next((word for word in words if word in chips and own not in words), "")
        if named:
            found.setdefault(named, []).append(f"{place}.source")
    for named, places in found.items():
        more = f" (and of {len(places) - 1} more facts)" if len(places) > 1 else ""
        text = f"is a document of the {named}{more}: name the one that says it of the {own}"
        yield places[0], text


def _chip(card: Mapping[str, Any]) -> str:
    return str(card["name"]).partition("-")[0]


def _facts(card: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for quantity, held in card["facts"].items():
        if "source" in held:
            yield f"facts.{quantity}", held
            continue
        for dtype, fact in held.items():
            yield f"facts.{quantity}.{dtype}", fact


def _widths(card: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """FLOP a clock and SM of each dtype [FLOP/clock/SM] that no tensor core has."""
    widths = card["facts"]["tensor_flop_per_clock"]
    for dtype in (d for d in DTYPES if d in widths):
        value = float(widths[dtype]["value"])
        power = int(value) // 3 if value % 3 == 0 else int(value)
        if not value.is_integer() or power & (power - 1):
            place = f"facts.tensor_flop_per_clock.{dtype}.value"
            yield place, f"is {value:g}: tensor cores do a power of two a clock, or three times one"
