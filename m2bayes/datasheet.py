"""Datasheet cards: published facts of one SKU each, checked at the door, as arrays in SI units."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import xarray as xr

from m2bayes.errors import DatasheetError

DTYPES = ("bf16", "fp8", "int8", "fp4")
CLOCK_RATIO = (0.75, 1.05)  # clock implied by a printed rate / boost clock; H100 SXM has 0.924
_FP8_TWICE_BF16 = ("Hopper", "Ada", "Blackwell")  # architectures, by their first letters
_BYTE = {"byte": 1.0, "MB": 1e6, "GB": 1e9, "MiB": 2.0**20, "GiB": 2.0**30}
_FLOW = {"byte/s": 1.0, "GB/s": 1e9, "TB/s": 1e12}
_RATE = {"FLOP/s": 1.0, "GFLOP/s": 1e9, "TFLOP/s": 1e12, "PFLOP/s": 1e15, "TOP/s": 1e12}
# quantity: accepted units with their SI factors, the SI unit first; plausible range in SI
QUANTITIES: dict[str, tuple[dict[str, float], float, float]] = {
    "sm_count": ({"1": 1.0}, 1, 1e3),
    "boost_clock": ({"Hz": 1.0, "MHz": 1e6, "GHz": 1e9}, 3e8, 5e9),
    "peak_bandwidth": (_FLOW, 5e10, 5e13),
    "l2": (_BYTE, 5e5, 4e9),
    "memory": (_BYTE, 4e9, 2e12),
    "power_limit": ({"W": 1.0}, 20, 5e3),
    "interconnect_bandwidth": (_FLOW, 1e9, 1e13),
    "peak_flop_rate": (_RATE, 1e12, 1e18),
    "tensor_flop_per_clock": ({"FLOP/clock/SM": 1.0, "OP/clock/SM": 1.0}, 64, 1e7),
    "exp_per_clock": ({"1/clock/SM": 1.0}, 1, 1e3),
}
# what a card may leave out: CUDA C++ Programming Guide, throughput of native arithmetic
# instructions, has 16 special functions a clock on all SMs from compute capability 7.0
USUAL = {"exp_per_clock": 16.0}
MONTH, DAY = "(0[1-9]|1[0-2])", "(0[1-9]|[12][0-9]|3[01])"
_BY_DTYPE = ("peak_flop_rate", "tensor_flop_per_clock")
_KEYS = ("name", "vendor", "architecture", "form_factor", "aliases", "facts")
_Notes = Iterator[tuple[str, str]]  # place, text


@dataclass(frozen=True)
class Finding:
    """One thing wrong with a card; an error makes `datasheet` refuse it."""

    severity: Literal["error", "warning"]
    place: str  # path inside the card, such as facts.peak_flop_rate.fp8.value
    message: str  # one line: origin, place, what was given, what was expected, what to do


def _keys(given: Mapping, needed: Sequence[str], place: str, extra: Sequence[str] = ()) -> _Notes:
    for key in (k for k in needed if k not in given):
        yield f"{place}{key}", "is missing: add it from the vendor document"
    for key in (k for k in given if k not in (*needed, *extra)):
        shown = key if str(key).isprintable() else ascii(key)
        yield f"{place}{shown}", f"is no known key: drop it, or use {', '.join((*needed, *extra))}"


def _fact(fact: Any, quantity: str, place: str) -> _Notes:
    if not isinstance(fact, Mapping):
        yield place, f"is {fact!r}: give value, unit, source, date; for each dtype if several"
        return
    yield from _keys(fact, ("value", "unit", "source", "date"), f"{place}.", ("note",))
    units, low, high = QUANTITIES[quantity]
    value, unit, source, date = (fact.get(key) for key in ("value", "unit", "source", "date"))
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else np.nan
    sound = 0 < number < 1e30  # a NaN fails
    if "value" in fact and not sound:
        yield f"{place}.value", f"is {value!r} ({type(value).__name__}): give a finite number > 0"
    if "unit" in fact and (not isinstance(unit, str) or unit not in units):
        yield f"{place}.unit", f"is {unit!r}: {quantity} accepts {', '.join(units)}"
    elif sound and unit is not None and not low <= number * units[unit] <= high:
        text = f"{value:g} {unit}, not {low:g} to {high:g} {next(iter(units))}: check unit, number"
        yield f"{place}.value", text
    if "source" in fact and (not isinstance(source, str) or not source.strip()):
        yield f"{place}.source", f"is {source!r}: name the document and its table"
    if "date" in fact and not re.fullmatch(rf"[0-9]{{4}}-{MONTH}(-{DAY})?", str(date)):
        yield f"{place}.date", f"is {date!r}: write YYYY-MM or YYYY-MM-DD"


def _plain(text: Any) -> bool:
    slashless = r"[^\s/\\]([^/\\]*[^\s/\\])?"  # a name is part of paths and of kernels' names
    return isinstance(text, str) and text.isprintable() and bool(re.fullmatch(slashless, text))


def _form(card: Mapping) -> _Notes:
    yield from _keys(card, _KEYS, "")
    for key in _KEYS[:4]:
        if key in card and not _plain(card[key]):
            text = "give a non-empty string, printable, no slash in it and no blanks around it"
            yield key, f"is {card[key]!r}: {text}"
    aliases = card.get("aliases", [])
    sound = isinstance(aliases, list | tuple) and all(_plain(a) for a in aliases)
    if not sound or [*aliases] != [*dict.fromkeys(a.strip().lower() for a in aliases)]:
        yield "aliases", f"is {aliases!r}: give a list of strings, each once, in lower case"
    facts = card.get("facts", {})
    if not isinstance(facts, Mapping):
        yield "facts", f"is {facts!r}: give a mapping from quantity to fact"
        return
    yield from _keys(facts, [q for q in QUANTITIES if q not in USUAL], "facts.", [*USUAL])
    for quantity in (q for q in QUANTITIES if q in facts):
        fact, place = facts[quantity], f"facts.{quantity}"
        if quantity not in _BY_DTYPE or not isinstance(fact, Mapping):
            yield from _fact(fact, quantity, place)
            continue
        yield from _keys(fact, DTYPES[:1], f"{place}.", DTYPES[1:])
        for dtype in (d for d in DTYPES if d in fact):
            yield from _fact(fact[dtype], quantity, f"{place}.{dtype}")


def _si(card: Mapping, quantity: str, dtype: str = "") -> float:
    if quantity in USUAL and quantity not in card["facts"]:
        return USUAL[quantity]
    fact = card["facts"][quantity]
    fact = fact.get(dtype) if dtype else fact
    return float(fact["value"]) * QUANTITIES[quantity][0][fact["unit"]] if fact else np.nan


def _sense(card: Mapping) -> _Notes:
    name, form, power = card["name"], card["form_factor"], _si(card, "power_limit")
    if name.rsplit("-", 1)[-1] != form:
        yield "name", f"{name!r} does not end in form factor {form!r}: make them agree"
    sizes, memory = re.findall(r"-([1-9][0-9]*)GB(?=-)", name), _si(card, "memory") / 1e9
    if len(sizes) != 1 or abs(memory / float(sizes[0]) - 1) > 0.03:
        text = f"is {memory:.4g} GB, the name {name!r} says otherwise: correct one of them (within "
        text += f"3 %), the name as CHIP-{memory:.0f}GB-{form}"
        yield "facts.memory.value" if sizes else "name", text
    if form == "PCIe" and power > 600:
        yield "facts.power_limit.value", f"is {power:g} W, PCIe allows 600: take the PCIe column"
    sm, boost = _si(card, "sm_count"), _si(card, "boost_clock")
    if sm != round(sm):
        yield "facts.sm_count.value", f"is {sm:g}: an SM count is a whole number"
    for dtype in DTYPES:
        rate, width = (_si(card, quantity, dtype) for quantity in _BY_DTYPE)
        place, clock = f"facts.peak_flop_rate.{dtype}.value", rate / (sm * width)
        if np.isnan(rate) != np.isnan(width):
            yield place, f"only one of {' and '.join(_BY_DTYPE)} is given: give both or neither"
        elif clock < CLOCK_RATIO[0] * boost or clock > CLOCK_RATIO[1] * boost:
            given = f"implies {clock / 1e6:.0f} MHz at {sm:g} SMs × {width:g} FLOP/clock/SM"
            sparse = "give the dense rate (the 2:4-sparse one is twice that), of this form factor"
            hint = sparse if clock > boost else "give the dense rate and its width"
            yield place, f"{given}, boost is {boost / 1e6:.0f} MHz; {hint}"
    for quantity in _BY_DTYPE if card["architecture"].startswith(_FP8_TWICE_BF16) else ():
        ratio = _si(card, quantity, "fp8") / _si(card, quantity, "bf16")
        if abs(ratio / 2 - 1) > 0.05:
            yield f"facts.{quantity}.fp8.value", f"{ratio:.3g} × bf16, not 2 ± 5 %: give both dense"


def _sound(others: Sequence[Mapping]) -> list[Mapping]:
    """Without those that have findings of their own."""
    return [o for o in others if not any(f.severity == "error" for f in lint(o, origin=""))]


def _numbers(card: Mapping) -> list[Any]:
    """What an answer rests on: facts in SI units, rounded; None where the card has none."""
    held = [
        _si(card, quantity, dtype)
        for quantity in QUANTITIES
        for dtype in (DTYPES if quantity in _BY_DTYPE else ("",))
    ]
    labels = [card["architecture"], card["form_factor"]]
    return labels + [None if np.isnan(number) else f"{number:.9g}" for number in held]


def _neighbours(card: Mapping, others: Sequence[Mapping]) -> _Notes:
    def squeezed(family: str) -> str:
        return "".join(family.split()).casefold()

    own = card["architecture"]
    for family in sorted({other["architecture"] for other in others} - {own}):
        if squeezed(family) == squeezed(own):
            yield "architecture", f"is {own!r}, other cards have {family!r}: write it as they do"
    for other in others:
        if other["name"] == card["name"]:
            continue
        theirs = {label.lower() for label in (other["name"], *other["aliases"])}
        for label in sorted(theirs & {card["name"].lower(), *card["aliases"]}):
            place = "aliases" if label in card["aliases"] else "name"
            yield place, f"{label!r} is borne by {other['name']} too: drop it from one card"
        twin = other["name"] == card["name"].removesuffix("PCIe") + "SXM"
        for quantity in ("peak_bandwidth", "power_limit") if twin else ():
            if _si(card, quantity) >= _si(other, quantity):
                yield f"facts.{quantity}.value", f"not below {other['name']}'s: use the PCIe column"


def _doubts(card: Mapping, others: Sequence[Mapping]) -> _Notes:
    if card["form_factor"] == "SXM" and _si(card, "power_limit") < 300:
        yield "facts.power_limit.value", "is below 300 W: take the SXM column"
    if any(o["name"] == card["name"] and _numbers(o) != _numbers(card) for o in others):
        text = "is the name of a known card with other facts: correct them, or choose another name"
        yield "name", f"{card['name']!r} {text}"


def lint(card: Mapping, *, origin: str, others: Sequence[Mapping] = ()) -> list[Finding]:
    """Everything wrong with one datasheet card; numbers are compared once each fact is sound.

    Rules: keys, types, units, magnitudes; rate [FLOP/s] = clock [Hz] × SMs × FLOP/clock/SM at 0.75
    to 1.05 of the boost clock; fp8 / bf16 = 2 ± 5 %; name, memory, form factor and power agree.

    Parameters
    ----------
    card : Mapping
        Name, vendor, architecture, form_factor, aliases, and facts (value, unit, source, date);
        rates are dense tensor-core rates with fp32 accumulation.
    origin : str
        Where the card came from, such as a file name; every message begins with it.
    others : sequence of Mapping
        The cards of the database: aliases must differ, and one of the same name have these facts.

    Examples
    --------
    >>> lint({"name": "T1"}, origin="t.json")[0].message
    't.json: vendor: is missing: add it from the vendor document'
    """
    if not isinstance(card, Mapping):
        return [Finding("error", "", f"{origin}: is {card!r}: give a mapping, as in a card's JSON")]
    errors = [*_form(card)]
    if sound := not errors:
        others = _sound(others)
        errors = [*_sense(card), *_neighbours(card, others)]
    warnings = [*_doubts(card, others)] if sound else []
    told = [Finding("error", at, f"{origin}: {at}: {text}") for at, text in errors]
    return told + [Finding("warning", at, f"{origin}: {at}: {text}") for at, text in warnings]


def datasheet(card: Mapping, *, origin: str = "datasheet") -> xr.Dataset:
    """One card as arrays in SI units; ``peak_clock = bf16 rate / (SMs × FLOP/clock/SM)``.

    Dims (sku, dtype), NaN where the card lacks the dtype: `peak_flop_rate` [FLOP/s; int8: OP/s],
    `tensor_flop_per_clock` [FLOP/clock/SM]. Dims (sku,): `peak_bandwidth`, one-way
    `interconnect_bandwidth` [byte/s], `boost_clock`, `peak_clock` [Hz], `sm_count` [1], `l2`,
    `memory` [byte], `power_limit` [W], `exp_per_clock` [1/clock/SM], and coordinates
    `architecture`, `form_factor`.

    Parameters
    ----------
    card, origin
        As in `lint`.

    Raises
    ------
    DatasheetError
        The first error of `lint`; the message begins with origin and place.

    Examples
    --------
    >>> # 100 SMs × 1000 FLOP/clock and 100 TFLOP/s make a clock of 1 GHz
    >>> fact = lambda value, unit: dict(value=value, unit=unit, source="none", date="2025-01")
    >>> numbers = [100, 1.1, 1, 8, 10, 99, 32], ["1", "GHz", "TB/s", "MiB", "GB", "W", "GB/s"]
    >>> facts = dict(zip(QUANTITIES, map(fact, *numbers)))
    >>> facts["peak_flop_rate"] = {"bf16": fact(100, "TFLOP/s")}
    >>> facts["tensor_flop_per_clock"] = {"bf16": fact(1000, "FLOP/clock/SM")}
    >>> card = {"name": "T1-10GB-PCIe", "vendor": "Toy", "architecture": "Toy",
    ...         "form_factor": "PCIe", "aliases": ["t1"], "facts": facts}
    >>> float(datasheet(card).peak_clock.sel(sku="T1-10GB-PCIe"))
    1000000000.0
    """
    for finding in lint(card, origin=origin):
        if finding.severity == "error":
            raise DatasheetError(finding.message)
    variables = {}
    for quantity, (units, _, _) in QUANTITIES.items():
        table = [[_si(card, quantity, d) for d in DTYPES]] if quantity in _BY_DTYPE else None
        dims, numbers = (("sku", "dtype"), table) if table else (("sku",), [_si(card, quantity)])
        variables[quantity] = (dims, numbers, {"units": next(iter(units))})
    labels = {key: ("sku", [str(card[key])]) for key in ("architecture", "form_factor")}
    rate, width = (_si(card, quantity, "bf16") for quantity in _BY_DTYPE)
    clock = rate / (_si(card, "sm_count") * width)
    variables["peak_clock"] = (("sku",), [clock], {"units": "Hz"})
    return xr.Dataset(variables, {"sku": [str(card["name"])], "dtype": list(DTYPES), **labels})


def combine(sheets: Sequence[xr.Dataset]) -> xr.Dataset:
    """Datasheets of several SKUs along ``sku``, in the given order, units kept.

    Parameters
    ----------
    sheets : sequence of Dataset, dims (sku, dtype)
        What `datasheet` returns.

    Raises
    ------
    DatasheetError
        No sheet, or two of the same name.

    Examples
    --------
    >>> b, a = (xr.Dataset(coords={"sku": [name]}) for name in "ba")
    >>> combine([b, a]).sku.values.tolist()
    ['b', 'a']
    """
    names = [str(name) for sheet in sheets for name in sheet["sku"].values]
    if not names:
        raise DatasheetError("no SKU is given; name at least one")
    for name in names:
        if names.count(name) > 1:
            raise DatasheetError(f"SKU {name} is given twice; name each once")
    exact: dict[str, Any] = {"data_vars": "minimal", "coords": "minimal", "compat": "equals"}
    return xr.concat(sheets, dim="sku", join="exact", **exact)
