"""What an answer rests on, as rows of tables: datasheets, posteriors and their data."""

from __future__ import annotations

from typing import Any

from m2bayes.database import Database
from m2bayes.question import Question, rests_on
from m2bayes.records import Posterior

FACTS = ("memory", "peak_bandwidth", "power_limit", "boost_clock", "sm_count")


def cell(value: float | None, text: str) -> dict[str, Any]:
    """Cell that is sorted by its value and read as its text."""
    return {"value": "" if value is None else repr(value), "text": text}


def card(database: Database, name: str, question: Question) -> dict[str, Any]:
    """What a SKU's prediction rests on, and its datasheet's numbers with their sources."""
    held, _ = database.sku_card(name)
    dtype = str(question.posterior.attrs["dtype"])
    facts = {key: held["facts"][key] for key in FACTS if key in held["facts"]}
    for key in ("peak_flop_rate", "tensor_flop_per_clock"):
        if dtype in held["facts"].get(key, {}):
            facts[f"{key}, {dtype}"] = held["facts"][key][dtype]
    return {
        "name": held["name"],
        "architecture": held["architecture"],
        "basis": str(rests_on(question).sel(sku=held["name"]).item()),
        "facts": [
            {
                "name": key.replace("_", " "),
                "value": f"{fact['value']} {fact['unit']}".removesuffix(" 1"),
                "source": f"{fact['source']}, {fact['date']}",
            }
            for key, fact in facts.items()
        ],
    }


def records(database: Database, question: Question) -> list[Posterior]:
    """Records of the posteriors that the answer rests on."""
    parts = {"gemm": question.posterior, **question.parts}
    if question.metric == "attention_time":
        parts = {question.phase: question.parts[question.phase]}
    elif not question.whole:
        parts = {"gemm": question.posterior}
    names = [str(draws.attrs["name"]) for draws in parts.values()]
    known = {name: name for name in database.posteriors()}
    if database.is_assembly(question.assembly):
        held = database.assembly(question.assembly).parts.values()
        known |= {database.posterior(part).name: part for part in held}
    return [database.posterior(known.get(n, question.assembly)) for n in names]


def diagnostics(record: Posterior) -> dict[str, Any]:
    """How well a posterior was sampled."""
    checks = record.checks
    cells = [
        cell(None, record.name),
        cell(checks["rhat_max"], f"{checks['rhat_max']:.4f}"),
        cell(checks["ess_bulk_min"], f"{checks['ess_bulk_min']:,.0f}"),
        cell(checks["ess_tail_min"], f"{checks['ess_tail_min']:,.0f}"),
        cell(checks["divergences"], f"{checks['divergences']:.0f}"),
        cell(checks["bfmi_min"], f"{checks['bfmi_min']:.2f}"),
        cell(None, record.created),
        cell(None, record.draws["sha256"][:12]),
    ]
    return {"chosen": False, "cells": cells}


def data(database: Database, record: Posterior) -> list[dict[str, Any]]:
    """Data sets that a posterior was fitted to."""
    rows = []
    for source in record.data:
        held = [record.name, source["role"], source["name"]]
        if source["name"] in database.data():
            table = database.data_record(source["name"])
            held += [table.source, table.licence, table.date, f"{table.rows:,}"]
        else:
            held += ["a file of the user", "-", "-", "-"]
        cells = [cell(None, text) for text in (*held, source["sha256"][:12])]
        rows.append({"chosen": False, "cells": cells})
    return rows
