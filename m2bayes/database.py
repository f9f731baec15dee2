"""Records of models, data and posteriors: with `_files` the only code that opens their files."""

from __future__ import annotations

import csv
import difflib
import hashlib
import importlib.util
import json
import os
import tomllib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from m2bayes._draws import netcdf, read_draws
from m2bayes._files import read_json, reason, regular, sha256, shown, write_whole
from m2bayes.datasheet import combine, datasheet
from m2bayes.diagnostics import check
from m2bayes.errors import DataError, DatasheetError, RecordError, UnknownNameError, WorkloadError
from m2bayes.kernels import card_of
from m2bayes.llm import LLM, llm_from_config
from m2bayes.records import Assembly, Data, Model, Posterior, read_record
from m2bayes.workload import Workload, read_workload_rows, read_workload_toml

if TYPE_CHECKING:
    import pandas as pd

# what every model must hold, whatever its law; and one whose factors are the card's
ERRORS = ("log_sigma_cell", "log_sigma_run", "log_sigma_time")
BUILDS = ("build_effect", "build_sd")
NO_CSV = (".json", ".jsonl", ".parquet", ".pq")
FOLDERS = {
    "sku": "data/datasheets",
    "LLM": "data/llms",
    "model": "models",
    "data set": "data/measurements",
    "posterior": "posteriors",
    "assembly": "posteriors/assemblies",
}


class Database:
    """The folders ``models/``, ``data/`` and ``posteriors/``, read by name.

    Parameters
    ----------
    root : path, optional
        Folder that holds the three; by default the package's own.

    Raises
    ------
    RecordError
        If `root` lacks one of them.
    """

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        inside = Path(__file__).resolve().parent / "_database"
        default = inside if inside.is_dir() else Path(__file__).resolve().parents[1]
        self.root = Path(root) if root is not None else default
        self.own: dict[str, str] = {}  # paths of a user's cards by name, see `with_cards`
        missing = [f for f in ("models", "data", "posteriors") if not (self.root / f).is_dir()]
        if missing:
            raise RecordError(f"{self.root}: no folder {', '.join(missing)}; not a database")

    @property
    def place(self) -> str | None:
        """Root as another machine may have it: None for the package's own."""
        return None if self.root == Database().root else str(self.root)

    def _names(self, kind: str) -> list[str]:
        return sorted(p.stem for p in (self.root / FOLDERS[kind]).glob("*.json"))

    def _path(self, kind: str, name: str) -> Path:
        """Card of a name; of a posterior or assembly also a path that ends in ``.json``."""
        path = self.root / FOLDERS[kind] / f"{name}.json"
        if name in self._names(kind):
            return path
        if kind in ("posterior", "assembly") and (name.endswith(".json") or os.sep in name):
            regular(Path(name), RecordError)
            return Path(name)
        more = self._names("assembly") if kind == "posterior" else []
        raise UnknownNameError(kind, name, [*self._names(kind), *more])

    def skus(self) -> list[str]:
        """Names of the SKUs whose datasheets are here."""
        return self._names("sku")

    def llms(self) -> list[str]:
        """Names of the LLMs whose shapes are here."""
        return self._names("LLM")

    def models(self) -> list[str]:
        """Names of the models."""
        return self._names("model")

    def data(self) -> list[str]:
        """Names of the data sets."""
        return self._names("data set")

    def posteriors(self) -> list[str]:
        """Names of the stored posteriors."""
        return self._names("posterior")

    def assemblies(self) -> list[str]:
        """Names of the assemblies of posteriors."""
        return self._names("assembly")

    def assembly(self, name: str) -> Assembly:
        """Card of an assembly by name, or by the path of its ``.json``: parts may lie beside it."""
        path = self._path("assembly", name)
        card = read_record(Assembly, path)
        beside = {part: path.parent / f"{held}.json" for part, held in card.parts.items()}
        if name not in self.assemblies():
            near = {part: str(file) for part, file in beside.items() if file.is_file()}
            card = replace(card, parts=card.parts | near)
        return card

    def is_assembly(self, name: str) -> bool:
        """Whether a name, or the record at a path, is an assembly's."""
        if name in self.assemblies() or not name.endswith(".json"):
            return name in self.assemblies()
        return "parts" in read_json(Path(name), RecordError)

    def with_cards(self, names: Sequence[str]) -> Database:
        """Return this database and a user's own cards, which then go by their names too.

        Parameters
        ----------
        names : sequence of str
            Paths of datasheet files; names of SKUs that are here are only looked up.

        Raises
        ------
        DatasheetError, UnknownNameError
            For a card that is wrong, two of one name, or an unknown name.
        """
        more = Database(self.root)
        for name in names:
            card, origin = self.sku_card(name)
            if not name.strip().lower().endswith(".json"):
                continue
            full = str(datasheet(card, origin=origin)["sku"].item())
            if more.own.get(full, origin) != origin:
                raise DatasheetError(f"{shown(name)}: SKU {full} is given twice; name each once")
            more.own[full] = origin
        more.own = self.own | more.own
        return more

    def sku_card(self, name: str) -> tuple[dict[str, Any], str]:
        """Datasheet card by SKU name, alias (case does not matter) or path; and its origin."""
        name = self.own.get(name, name)
        wanted = name.strip().lower()
        if wanted.endswith(".json"):
            return read_card(Path(name)), name
        aliases: dict[str, str] = {}
        folder, names = self.root / FOLDERS["sku"], self.skus()
        names = [v for v in names if v.lower() == wanted] or names  # one file, if it is a name
        held = ((v, read_json(folder / f"{v}.json", DatasheetError), v) for v in names)
        more = ((v, read_card(Path(path)), path) for v, path in self.own.items())
        for known, card, origin in chain(held, more):
            if wanted in (known.lower(), *card["aliases"]):
                return card, origin
            aliases |= dict.fromkeys((known, *card["aliases"]), known)
        if os.path.lexists(name):
            raise DatasheetError(f"{shown(name)}: no datasheet; give a SKU, or the path of a .json")
        raise UnknownNameError("SKU", name, aliases)

    def datasheets(self, names: Sequence[str], *, dtype: str | None = "bf16") -> xr.Dataset:
        """Datasheets of several SKUs for one dtype or all, in the order given.

        Parameters
        ----------
        names : sequence of str
            SKU names, aliases or paths of datasheet files.
        dtype : str or None
            Whose peak rate and tensor width to take; None for all, NaN where a card has none.

        Returns
        -------
        Dataset, dims (sku,), of all dtypes (sku, dtype)
            See `m2bayes.datasheet.datasheet` for variables and units.

        Raises
        ------
        DatasheetError
            For a card that is wrong, given twice, or without a rate for `dtype`.
        """
        cards = [self.sku_card(name) for name in names]
        sheets = combine([datasheet(card, origin=origin) for card, origin in cards])
        if dtype is None:
            return sheets
        if dtype not in sheets.indexes["dtype"]:
            raise UnknownNameError("dtype", dtype, [str(d) for d in sheets["dtype"].values])
        sheets = sheets.sel(dtype=dtype)
        for sku, rate in zip(sheets["sku"].values, sheets["peak_flop_rate"].values, strict=True):
            if not rate > 0:
                raise DatasheetError(f"{sku}: no peak_flop_rate for {dtype}; choose another dtype")
        return sheets

    def llm(self, name: str) -> LLM:
        """LLM shape by name, alias or path of a ``config.json``.

        Raises
        ------
        UnknownNameError, WorkloadError
            If the name is unknown, or the configuration cannot be used.
        """
        by_repository = os.sep in name and not os.path.lexists(name)
        if name.lower().endswith(".json") or (os.sep in name and not by_repository):
            path = Path(name)
            title = path.stem if path.stem != "config" else path.resolve().parent.name
            content = read_json(path, WorkloadError)
            inner = content.get("config")  # a card of the database holds the published file so
            config = inner if isinstance(inner, dict) and "model_type" not in content else content
            found = llm_from_config(config, name=title, origin=name)
            stored = str(content.get("source", "")).partition(" ")[0] if config is inner else ""
            return replace(found, repository=stored) if stored else found
        aliases: dict[str, str] = {}
        for known in self.llms():
            card = read_json(self.root / FOLDERS["LLM"] / f"{known}.json", WorkloadError)
            repository = str(card["source"]).partition(" ")[0]
            if name.lower() in (known, repository.lower(), *card["aliases"]):
                found = llm_from_config(card["config"], name=known, origin=known)
                return replace(found, repository=repository)
            aliases |= dict.fromkeys((known, repository, *card["aliases"]), known)
        if by_repository and not difflib.get_close_matches(name, aliases):
            raise WorkloadError(f"{shown(name)}: no such file, and no LLM of m2bayes list llms")
        raise UnknownNameError("LLM", name, aliases)

    def model(self, name: str) -> Model:
        """Card of a model."""
        return read_record(Model, self._path("model", name))

    def builder(self, name: str) -> Callable[[xr.Dataset, xr.Dataset], Any]:
        """Return the function ``build(data, datasheets)`` of a model; importing it imports PyMC."""
        path = self._path("model", name).with_suffix(".py")
        spec = importlib.util.spec_from_file_location(f"m2bayes_models_{name}", path)
        if spec is None or spec.loader is None or not path.is_file():
            raise RecordError(f"model {name}: no {path.name} beside its card")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.build

    def data_record(self, name: str) -> Data:
        """Card of a data set."""
        return read_record(Data, self._path("data set", name))

    def included(self, name: str) -> bool:
        """Whether the rows of a data set are here; of another project's there is only a card."""
        return not self.data_record(name).outside or os.path.lexists(self._csv(name))

    def _csv(self, name: str) -> Path:
        return self.root / FOLDERS["data set"] / f"{name}.csv"

    def table(self, name: str) -> pd.DataFrame:
        """Measurements by data set name, or path of a CSV; a stored table must match its hash.

        Raises
        ------
        DataError, RecordError
            If the file cannot be read as a table, a stored one was changed, or its rows are
            another project's and not included.
        """
        import pandas as pd

        stored = name in self.data()
        path = self._csv(name) if stored else Path(name)
        if stored and not self.included(name):
            raise DataError(
                f"data set {name}: its rows are another project's and not included; "
                f"make them with {self.data_record(name).recipe}"
            )
        if not stored and not os.path.exists(path):
            if path.suffix:
                known = ", ".join(self.data())
                raise DataError(f"{shown(name)}: no such file; known data sets: {known}")
            raise UnknownNameError("data set", name, self.data())
        regular(path, RecordError if stored else DataError)
        if path.suffix.lower() in NO_CSV:
            raise DataError(f"{shown(name)}: no CSV table; make one of it with m2bayes import")
        if stored and sha256(path) != self.data_record(name).sha256:
            raise RecordError(
                f"data set {name}: {path.name} is not what its card says; "
                f"rebuild it with {self.data_record(name).recipe}"
            )
        try:
            head = pd.read_csv(path, compression=None, header=None, nrows=1, dtype=str).iloc[0]
            with warnings.catch_warnings():
                warnings.simplefilter("error", pd.errors.ParserWarning)
                table = pd.read_csv(path, compression=None, index_col=False)
        except pd.errors.ParserWarning:
            text = "its rows have more cells than its header; name every column"
            raise DataError(f"{shown(name)}: {text}") from None
        except UnicodeDecodeError:
            text = "no text in UTF-8; unpack or convert it"
            raise DataError(f"{shown(name)}: not a CSV table: {text}") from None
        except pd.errors.EmptyDataError:
            raise DataError(f"{shown(name)}: not a CSV table: the file is empty") from None
        except (OSError, ValueError) as error:
            raise DataError(f"{shown(name)}: not a CSV table: {reason(error)}") from None
        twice = head[head.str.strip().duplicated() & head.notna()]
        if len(twice):
            raise DataError(f"{shown(name)}: two columns named {twice.iloc[0]!r}; keep one")
        return table

    def posterior(self, name: str) -> Posterior:
        """Record of a posterior by name, or by the path of its ``.json``."""
        if name in self.assemblies():
            parts = ", ".join(self.assembly(name).parts.values())
            raise RecordError(f"{name}: an assembly of posteriors; name one of them: {parts}")
        return read_record(Posterior, self._path("posterior", name))

    def draws(self, name: str) -> xr.Dataset:
        """Draws of a posterior, verified: file hash, diagnostics, labels, finite values.

        Parameters
        ----------
        name : str
            Stored name, or path of a record whose draws lie beside it.

        Returns
        -------
        Dataset, dims (chain, draw, sku, architecture, backend)
            Units and links of the factors stand in the model's card; attributes ``name``,
            ``law``, ``factors`` (JSON), ``dtype`` and ``domain`` tell what they are.

        Raises
        ------
        RecordError, ConvergenceError
            If a file is damaged or changed, or the diagnostics fail.
        """
        record, path = self.posterior(name), self._path("posterior", name)
        check(record.checks, name=record.name)
        file = path.parent / record.draws["file"]
        if not os.path.isfile(file):
            raise RecordError(
                f"posterior {record.name}: {shown(file.name)} is missing beside its record"
            )
        if sha256(file) != record.draws["sha256"]:
            raise RecordError(
                f"posterior {record.name}: {file.name} was changed or cut off (its SHA-256 is not "
                f"the recorded one); restore it or fit again with m2bayes fit"
            )
        try:
            draws = read_draws(file)
        except (OSError, LookupError, ValueError, TypeError, AttributeError, RuntimeError) as fault:
            why = f"is no file of draws: {reason(fault)}"
            raise RecordError(f"posterior {record.name}: {file.name} {why}") from None
        _check_draws(draws, record)
        return labelled(draws, self.model(record.model), name=record.name, dtype=record.dtype)

    def workloads(self, spec: str) -> list[Workload]:
        """Workloads of a ``.csv`` or ``.toml`` file.

        Raises
        ------
        WorkloadError
            Names the file and line of the first that cannot be read.
        """
        path, origin = Path(spec), shown(spec)
        regular(path, WorkloadError)
        try:
            if path.suffix.lower() == ".csv":
                with path.open(newline="", encoding="utf-8-sig") as handle:
                    return read_workload_rows(csv.DictReader(handle), origin)
            with path.open("rb") as binary:
                return read_workload_toml(tomllib.load(binary), origin)
        except WorkloadError:
            raise
        except UnicodeDecodeError:
            raise WorkloadError(f"{origin}: no text in UTF-8; unpack or convert it") from None
        except (OSError, ValueError, RecursionError, csv.Error) as error:
            raise WorkloadError(f"{origin}: cannot be read: {reason(error)}") from None


def read_card(path: Path) -> dict[str, Any]:
    """Datasheet card of a file, also as ``m2bayes show NAME --json`` prints it."""
    content = read_json(path, DatasheetError)
    inner = content.get("SKU")
    return inner if isinstance(inner, dict) and len(content) == 1 else content


def labelled(draws: xr.Dataset, model: Model, *, name: str, dtype: str) -> xr.Dataset:
    """Draws with the attributes that prediction reads: name, law, factors, dtype, domain."""
    facts = {"name": name, "law": model.law, "dtype": dtype}
    lists = {"factors": json.dumps(model.factors), "domain": json.dumps(model.domain)}
    return draws.assign_attrs(facts | lists)


def _check_draws(draws: xr.Dataset, record: Posterior) -> None:
    """Refuse draws without the record's labels, or with a value that is not finite."""
    skus = [str(s) for s in draws["sku"].values] if "sku" in draws.coords else []
    cards, ordered = {card_of(sku) for sku in skus}, skus == sorted(set(skus))
    dims = {"chain", "draw", "architecture"} <= set(draws.dims)
    if not (dims and ordered and cards == set(record.datasheets)):
        raise RecordError(
            f"posterior {record.name}: the labels of its draws are not those of its record; "
            "fit again"
        )
    needed = ERRORS if cards.isdisjoint(skus) else (*BUILDS, *ERRORS)
    lacking = [name for name in needed if not _holds(draws, name)]
    if lacking:
        raise RecordError(f"posterior {record.name}: no {', '.join(lacking)} in it; fit again")
    for name, held in draws.variables.items():
        if held.dtype.kind == "f" and not np.isfinite(held.values).all():
            raise RecordError(f"posterior {record.name}: {name} is not finite; fit again")


def _holds(draws: xr.Dataset, name: str) -> bool:
    """Whether a variable is there; one that all SKUs share is held as its mean."""
    return name in draws or (f"{name}_mean" in draws and f"{name}_sku_sd" not in draws)


def store(record: Posterior, draws: xr.Dataset, folder: Path) -> Path:
    """Write a posterior's draws and record into `folder`, each whole or not at all.

    Parameters
    ----------
    record : Posterior
        Its ``draws`` are filled in here.
    draws : Dataset, dims (chain, draw, …)
        From `m2bayes.posterior.kept`.
    folder : Path
        Made if it does not exist.

    Returns
    -------
    Path
        Of the record's ``.json``.
    """
    file, target = folder / f"{record.name}.nc", folder / f"{record.name}.json"
    packed = netcdf(draws)
    held = {"file": file.name, "sha256": hashlib.sha256(packed).hexdigest()}
    try:
        text = json.dumps(asdict(record) | {"draws": held}, indent=2, allow_nan=False)
        folder.mkdir(parents=True, exist_ok=True)
    except ValueError:
        raise RecordError(f"posterior {record.name}: its record holds a NaN; fit again") from None
    except OSError as fault:
        raise RecordError(f"{shown(folder)}: cannot be made: {reason(fault)}") from None
    write_whole(file, packed)
    write_whole(target, f"{text}\n".encode())
    return target


def write_draws(draws: xr.Dataset, file: Path) -> None:
    """Write draws as compressed netCDF-4, the whole file or none of it."""
    write_whole(file, netcdf(draws))


def digest(card: dict[str, Any]) -> str:
    """SHA-256 of a datasheet card's facts: their numbers and units, not their wording."""

    def numbers(node: Any) -> Any:
        if not isinstance(node, dict):
            return None
        if "value" in node:
            return [node["value"], node["unit"]]
        return {k: numbers(v) for k, v in sorted(node.items())}

    content = json.dumps([card["name"], card["architecture"], numbers(card["facts"])])
    return hashlib.sha256(content.encode()).hexdigest()
