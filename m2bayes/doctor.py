"""Is the installation sound: versions, files against their hashes, optional parts, outside data."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from m2bayes._files import sha256
from m2bayes.database import FOLDERS, Database, digest
from m2bayes.errors import M2BayesError, RecordError
from m2bayes.outside import VARIABLE

SOUND, MISSING, BROKEN = "sound", "missing", "broken"
PACKAGE = "m2bayes"


def examined(database: Database) -> dict[str, Any]:
    """Examine everything that an answer rests on.

    Parameters
    ----------
    database : Database
        Whose files are held against their records.

    Returns
    -------
    dict
        ``sound``; ``versions`` of Python and of the packages; ``checks``, each with ``kind``,
        ``name``, ``state`` (``sound``, ``missing`` for what is optional, ``broken``) and
        ``detail``. Broken is a package of a version that is not allowed, a file that is not what
        its record says, or an outside folder that is named and not there.
    """
    checks = [*packages(), *files(database), outside_data()]
    return {
        "sound": all(check["state"] != BROKEN for check in checks),
        "versions": {"python": platform.python_version(), PACKAGE: version(PACKAGE)},
        "checks": checks,
    }


def packages(name: str = PACKAGE) -> Iterator[dict[str, str]]:
    """Packages that a distribution asks for: needed ones must be there, optional ones may."""
    for text in requires(name) or []:
        needed = Requirement(text)
        marker = needed.marker
        extra = _extra_of(needed)
        if marker is not None and not marker.evaluate({"extra": extra}):
            continue
        kind = f"optional, {extra}" if extra else "package"
        try:
            found = version(needed.name)
        except PackageNotFoundError:
            remedy = f"pip install '{name}[{extra}]'" if extra else "install m2bayes again"
            state = MISSING if extra else BROKEN
            yield _check(kind, needed.name, state, f"not installed: {remedy}")
            continue
        allowed = needed.specifier.contains(found, prereleases=True)
        detail = found if allowed else f"{found}, but {needed.specifier} is needed"
        yield _check(kind, needed.name, SOUND if allowed else BROKEN, detail)


def _extra_of(needed: Requirement) -> str:
    """Optional part that a requirement belongs to; empty if it is needed by all."""
    text = str(needed.marker or "")
    return text.rpartition("extra == ")[2].strip("\"'()") if "extra == " in text else ""


def files(database: Database) -> Iterator[dict[str, str]]:
    """Records, draws, tables, datasheets and LLMs of a database, each read and verified."""
    kinds: dict[str, tuple[list[str], Callable[[Database, str], str]]] = {
        "posterior": (database.posteriors(), _posterior),
        "assembly": (database.assemblies(), _assembly),
        "data set": (database.data(), _table),
        "datasheet": (database.skus(), _datasheet),
        "LLM": (database.llms(), _llm),
    }
    for kind, (names, verify) in kinds.items():
        for name in names:
            try:
                yield _check(kind, name, SOUND, verify(database, name))
            except M2BayesError as fault:
                yield _check(kind, name, BROKEN, str(fault))


def _posterior(database: Database, name: str) -> str:
    """Draws and datasheets are those of the record, and the fit's diagnostics pass."""
    draws, record = database.draws(name), database.posterior(name)
    for sku, stored in record.datasheets.items():
        if digest(database.sku_card(sku)[0]) != stored:
            raise RecordError(f"the datasheet of {sku} changed since the fit; fit again")
    return f"{draws.sizes['chain'] * draws.sizes['draw']} draws, hash and diagnostics pass"


def _assembly(database: Database, name: str) -> str:
    """Every part is a posterior that is there."""
    parts = database.assembly(name).parts
    for part in parts.values():
        database.posterior(part)
    return f"{len(parts)} parts"


def _table(database: Database, name: str) -> str:
    """Rows are those of the card, where they are included."""
    record = database.data_record(name)
    if not database.included(name):
        return "card only: rows are another project's"
    found = sha256(database.root / FOLDERS["data set"] / f"{name}.csv")
    if found != record.sha256:
        raise RecordError(f"{name}.csv was changed (its SHA-256 is not the card's); restore it")
    return f"{record.rows} rows, hash passes"


def _datasheet(database: Database, name: str) -> str:
    """A card that can be used."""
    return str(database.datasheets([name], dtype=None)["architecture"].item())


def _llm(database: Database, name: str) -> str:
    """A configuration that can be used."""
    return f"{database.llm(name).layers} layers"


def outside_data() -> dict[str, str]:
    """Folder of other projects' files, which only suites and their tests read."""
    named = os.environ.get(VARIABLE)
    if not named:
        return _check("outside data", VARIABLE, MISSING, "not set; only m2bayes evaluate reads it")
    if not os.path.isdir(named):
        return _check("outside data", VARIABLE, BROKEN, f"{named}: no such folder; mend or unset")
    held = sum(1 for path in Path(named).iterdir() if path.is_dir())
    return _check("outside data", VARIABLE, SOUND, f"{held} folders in it")


def _check(kind: str, name: str, state: str, detail: str) -> dict[str, str]:
    return {"kind": kind, "name": name, "state": state, "detail": detail}
