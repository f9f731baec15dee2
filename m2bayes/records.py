"""Records of the database: what a card of each kind must say."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from m2bayes._files import check_record, read_json, shown
from m2bayes.errors import RecordError

ROWS = "rows"  # role of the measurements that updated a posterior
IMPORT = "m2bayes import "  # recipe of a table whose rows are not included


@dataclass(frozen=True)
class Model:
    """A probabilistic model: ``models/<name>.py`` beside this card."""

    name: str
    title: str
    description: str
    law: str
    factors: list[dict[str, str]]
    domain: dict[str, list[Any]]
    references: list[str]


@dataclass(frozen=True)
class Data:
    """A table of measurements in SI units, and where it comes from."""

    name: str
    title: str
    description: str
    source: str
    licence: str
    date: str
    columns: dict[str, dict[str, str]]
    recipe: str
    rows: int
    sha256: str

    @property
    def outside(self) -> bool:
        """Whether the rows are another project's: the user imports them, none are included."""
        return self.recipe.startswith(IMPORT)


@dataclass(frozen=True)
class Posterior:
    """A model fitted to a data set: how, how well, and what the draws' file must hash to."""

    name: str
    model: str
    data: list[dict[str, str]]
    datasheets: dict[str, str]
    dtype: str
    fingerprint: list[float]
    inference: dict[str, Any]
    checks: dict[str, float]
    prior: dict[str, list[float]]
    draws: dict[str, str]
    versions: dict[str, str]
    created: str


@dataclass(frozen=True)
class Assembly:
    """Posteriors that together predict a whole engine step, by part."""

    name: str
    title: str
    description: str
    parts: dict[str, str]


def _some(names: set[str]) -> str:
    """The first names, and how many more there are."""
    first, more = sorted(names)[:3], len(names) - 3
    return ", ".join(first) + (f" and {more} more" if more > 0 else "")


def read_record[Record](kind: type[Record], path: Path) -> Record:
    """Read a card into its dataclass; unknown or missing keys are an error."""
    content = read_json(path, RecordError)
    names = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    if kind is Posterior and isinstance(content.get("parts"), dict):
        named = ", ".join(map(str, content["parts"].values()))
        raise RecordError(f"{shown(path)}: an assembly of posteriors; name one of them: {named}")
    if set(content) != names:
        parts = (("lacks", names - set(content)), ("has unknown", set(content) - names))
        wrong = "; ".join(f"{what} {_some(keys)}" for what, keys in parts if keys)
        raise RecordError(f"{shown(path)}: not the record of a {kind.__name__.lower()}, it {wrong}")
    for field in fields(kind):  # type: ignore[arg-type]
        wanted = str(field.type).partition("[")[0]
        if type(content[field.name]).__name__ != wanted:
            raise RecordError(
                f"{shown(path)}: {field.name} of a {kind.__name__} card must be a {wanted}"
            )
    if kind is Posterior:
        check_record(content, path)
    return kind(**content)
