"""What the database holds: a line on each name, and one thing in full."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from m2bayes._files import read_json
from m2bayes.contraction import factor_rows
from m2bayes.database import Database, Posterior, read_card
from m2bayes.errors import RecordError, UnknownNameError
from m2bayes.kernels import card_of, unit_sheets
from m2bayes.predictive import law_of

CHECKS = {
    "R-hat": ("rhat_max", ".4f"),
    "ESS bulk": ("ess_bulk_min", ".0f"),
    "ESS tail": ("ess_tail_min", ".0f"),
}
NAMED = ("assemblies", "posteriors", "models", "data", "llms", "skus")


def listing(database: Database, kind: str) -> list[dict[str, Any]]:
    """One row a name, with what tells it from the others."""
    if kind == "skus":
        cards = [database.sku_card(name)[0] for name in database.skus()]
        stored = [database.posterior(name).datasheets for name in database.posteriors()]
        measured = {sku for datasheets in stored for sku in datasheets}
        return [
            {
                "SKU": c["name"],
                "aliases": ", ".join(c["aliases"]),
                "architecture": c["architecture"],
                "memory": f"{c['facts']['memory']['value']} {c['facts']['memory']['unit']}",
                "bandwidth": "{value} {unit}".format(**c["facts"]["peak_bandwidth"]),
                "measured": "yes" if c["name"] in measured else "no",
            }
            for c in cards
        ]
    if kind == "llms":
        llms = [database.llm(name) for name in database.llms()]
        return [{"LLM": m.name, "layers": m.layers, "hidden": m.hidden} for m in llms]
    if kind == "models":
        return [{"model": n, "title": database.model(n).title} for n in database.models()]
    if kind == "data":
        records = [database.data_record(n) for n in database.data()]
        here = ["yes" if database.included(r.name) else "no" for r in records]
        pairs = zip(records, here, strict=True)
        return [{"data": r.name, "rows": r.rows, "here": h, "title": r.title} for r, h in pairs]
    fits = [database.posterior(name) for name in database.posteriors()]
    whole = [database.assembly(name) for name in database.assemblies()]
    return [_fit_row(fit) for fit in fits] + [
        {"posterior": a.name, "parts": len(a.parts), **dict.fromkeys(CHECKS, "-")} for a in whole
    ]


def _fit_row(fit: Posterior) -> dict[str, Any]:
    """Name and diagnostics of one fit; none that is stored has a divergence."""
    numbers = {heading: f"{fit.checks[key]:{form}}" for heading, (key, form) in CHECKS.items()}
    return {"posterior": fit.name, "parts": "-", **numbers}


def found(database: Database, name: str) -> dict[str, Any]:
    """Content of whatever bears `name`: a posterior, assembly, model, data set, LLM or SKU."""
    if name in database.posteriors():
        record = dataclasses.asdict(database.posterior(name))
        return {"posterior": record, "factors": factors(database, name)}
    for kind, known in (("assembly", database.assemblies), ("model", database.models)):
        if name in known():
            return {kind: dataclasses.asdict(getattr(database, kind)(name))}
    if name in database.data():
        record = dataclasses.asdict(database.data_record(name))
        note = "" if database.included(name) else f"not included: {record['recipe']}"
        return {"data": record | ({"here": note} if note else {})}
    if name.lower().endswith(".json"):
        return _found_file(database, name)
    try:
        return {"LLM": dataclasses.asdict(database.llm(name))}
    except UnknownNameError:
        pass
    try:
        return {"SKU": database.sku_card(name)[0]}
    except UnknownNameError:
        kinds = [getattr(database, kind) for kind in NAMED]
        raise UnknownNameError("name", name, [n for kind in kinds for n in kind()]) from None


def _found_file(database: Database, path: str) -> dict[str, Any]:
    """Content of a file: a record of a posterior or assembly, a datasheet, or a config.json."""
    content = read_json(Path(path), RecordError)
    if "fingerprint" in content:
        record = dataclasses.asdict(database.posterior(path))
        return {"posterior": record, "factors": factors(database, path)}
    if "parts" in content:
        return {"assembly": dataclasses.asdict(database.assembly(path))}
    if "suite" in content:
        return {"evaluation": content}
    card = read_card(Path(path))
    if "facts" in card:
        database.datasheets([path])  # refuses a card that is wrong
        return {"SKU": card}
    return {"LLM": dataclasses.asdict(database.llm(path))}


def factors(database: Database, name: str) -> list[dict[str, Any]]:
    """Prior and posterior of each factor of a stored posterior, by SKU whose datasheet is here."""
    draws, record = database.draws(name), database.posterior(name)
    here = sorted(set(record.datasheets) & set(database.skus()))
    sheets = database.datasheets(here, dtype=record.dtype)
    labels = [str(unit) for unit in draws["sku"].values if card_of(str(unit)) in here]
    return factor_rows(draws, unit_sheets(law_of(draws), sheets, labels), record.prior)
