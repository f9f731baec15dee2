"""The grid of a sweep: its axes and settings as a TOML file names them, checked before any work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, product
from math import prod
from pathlib import Path
from typing import Any

from m2bayes._files import read_toml, shown
from m2bayes._spec import Step, build, form_of
from m2bayes.errors import UnknownNameError, WorkloadError
from m2bayes.workload import parse_workload

QUANTILES = (0.05, 0.5, 0.95)
DRAWS, CHUNK = 400, 128  # where the file names none
MOST_WORKLOADS, MOST_RESULTS = 10**6, 10**9
AXES = ("llm", "sku", "tp", "dtype")
KINDS = ("decode", "prefill", "mixed")
SETTINGS: dict[str, type] = {
    "metric": str,
    "backend": str,
    "draws": int,
    "seed": int,
    "chunk": int,
}
PLACES = ("llm", "dtype", "tp")  # axes that one chunk has one place on
Products = tuple[tuple[str, tuple[tuple[str, tuple[int, ...]], ...]], ...]


@dataclass(frozen=True)
class Grid:
    """What a sweep is asked: every combination of the axes.

    Parameters
    ----------
    llm, sku, dtype : tuple of str
        Names as `m2bayes.database.Database` knows them; formats of weights and activations.
    tp : tuple of int
        GPUs that share the LLM [1].
    specs : tuple of str
        Workloads named one by one.
    products : tuple
        Of each kind of step its keys and their sizes [token]: every combination is a workload.
    prices : tuple
        Of each scenario its name and its prices as ``SKU=USD`` texts [USD/h].
    metric, backend : str
        See `m2bayes.question.Question`.
    draws, seed : int
        Joint draws [1], and the seed of everything drawn.
    chunk : int
        Workloads that are predicted and stored at once [1].
    """

    llm: tuple[str, ...]
    sku: tuple[str, ...]
    tp: tuple[int, ...] = (1,)
    dtype: tuple[str, ...] = ("bf16",)
    specs: tuple[str, ...] = ()
    products: Products = ()
    prices: tuple[tuple[str, tuple[str, ...]], ...] = ()
    metric: str = "step_time"
    backend: str = "any"
    draws: int = DRAWS
    seed: int = 0
    chunk: int = CHUNK

    @property
    def workloads(self) -> int:
        """Number of workloads [1]."""
        sizes = (prod(len(values) for _, values in keys) for _, keys in self.products)
        return len(self.specs) + sum(sizes)

    @property
    def results(self) -> int:
        """Number of (SKU, workload) results over all axes [1]."""
        axes = (self.llm, self.sku, self.tp, self.dtype, self.scenarios)
        return prod(len(axis) for axis in axes) * self.workloads

    @property
    def scenarios(self) -> tuple[str, ...]:
        """Names of the price scenarios; one without a name where there are no prices."""
        return tuple(name for name, _ in self.prices) or ("",)

    def steps(self, start: int = 0, stop: int | None = None) -> Iterator[Step]:
        """Workloads `start` up to `stop` [1], in the order of the file."""
        named = (parse_workload(spec) for spec in self.specs)
        made = chain.from_iterable(_combined(kind, keys) for kind, keys in self.products)
        for step in islice(chain(named, made), start, stop):
            if not isinstance(step, Step):
                raise WorkloadError(f"{step.label}: a sweep is of the steps of an LLM, not kernels")
            yield step


@dataclass(frozen=True)
class Chunk:
    """What is predicted and stored at once: one place on each of `PLACES`, some workloads.

    Parameters
    ----------
    at : tuple of int
        Index on each of `PLACES`, then of the block of workloads [1].
    start, stop : int
        The workloads [1].
    """

    at: tuple[int, int, int, int]
    start: int
    stop: int


def chunks(grid: Grid) -> Iterator[Chunk]:
    """Chunks of a grid, workloads innermost: neighbours share their posteriors, no dims."""
    total = grid.workloads
    for place in product(*(range(len(getattr(grid, axis))) for axis in PLACES)):
        for block, start in enumerate(range(0, total, grid.chunk)):
            i, j, k = place
            yield Chunk((i, j, k, block), start, min(start + grid.chunk, total))


def read_grid(file: str) -> Grid:
    """Grid of a TOML file.

    Parameters
    ----------
    file : str
        Path. Lists ``llm``, ``sku``, ``tp`` and ``dtype``; ``workload``, a list of SPECs; tables
        ``[decode]``, ``[prefill]`` and ``[mixed]`` of lists of sizes [token]; tables
        ``[price.NAME]`` of prices [USD/h]; ``[settings]``.

    Returns
    -------
    Grid
        No dims; nothing is said yet of whether its names are known.

    Raises
    ------
    WorkloadError
        Names the file, the key and the remedy: an unknown key, an empty axis, a value of the
        wrong kind or given twice, a grid that is too large.
    """
    content, where = read_toml(Path(file), WorkloadError), shown(file)
    _known(content, (*AXES, "workload", *KINDS, "price", "settings"), where)
    for needed in ("llm", "sku"):
        if needed not in content:
            raise WorkloadError(f"{where}: {needed} is missing; list at least one name")
    axes: dict[str, Any] = {
        axis: _values(content[axis], f"{where}: {axis}", int if axis == "tp" else str)
        for axis in AXES
        if axis in content
    }
    specs = ()
    if "workload" in content:
        specs = _values(content["workload"], f"{where}: workload", str)
    products = tuple(_product(content, kind, where) for kind in KINDS if kind in content)
    prices = _prices(content, where)
    metric = {"metric": "cost_per_million_tokens"} if prices else {}
    settings = metric | _settings(content, where)
    grid = Grid(**axes, specs=specs, products=products, prices=prices, **settings)
    _sized(grid, where)
    return grid


def _known(table: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
    for key in table:
        if key not in keys:
            raise WorkloadError(f"{where}: {UnknownNameError('key', key, keys)}")


def _table(content: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    table = content.get(key, {})
    if not isinstance(table, dict):
        raise WorkloadError(f"{where}: {key} must be a table [{key}]")
    return table


def _values(given: Any, where: str, kind: type) -> tuple[Any, ...]:
    """One axis: a list of values of one kind, none of them twice."""
    named = {int: "whole numbers", str: "texts"}[kind]
    if not isinstance(given, list):
        raise WorkloadError(f"{where} must be a list of {named}")
    if not given:
        raise WorkloadError(f"{where} is empty; list at least one of its values")
    for value in given:
        if type(value) is not kind:
            raise WorkloadError(f"{where} holds {value!r}; list {named} only")
        if given.count(value) > 1:
            raise WorkloadError(f"{where} holds {value!r} twice; list each once")
    return tuple(given)


def _product(content: Mapping[str, Any], kind: str, where: str) -> Any:
    """Sizes of one kind of step by key, each of them in range."""
    table, place = _table(content, kind, where), f"{where} [{kind}]"
    _, bounds = form_of(kind, place)
    _known(table, tuple(bounds), place)
    keys = [(key, _values(table[key], f"{place}: {key}", int)) for key in table]
    low = {key: min(values) for key, values in keys}
    build(kind, low, place)  # what is missing or too small
    build(kind, {key: max(values) for key, values in keys}, place)
    return kind, tuple(keys)


def _combined(kind: str, keys: Any) -> Iterator[Any]:
    names = [key for key, _ in keys]
    for sizes in product(*(values for _, values in keys)):
        yield Step(kind, **dict(zip(names, sizes, strict=True)))


def _prices(content: Mapping[str, Any], where: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found = []
    for name, table in _table(content, "price", where).items():
        place = f"{where} [price.{name}]"
        if not isinstance(table, dict) or not table:
            raise WorkloadError(f'{place}: give SKU = USD for each SKU, such as 2.5 or "2.2-3"')
        found.append((name, tuple(f"{sku}={usd}" for sku, usd in table.items())))
    return tuple(found)


def _settings(content: Mapping[str, Any], where: str) -> dict[str, Any]:
    table, place = _table(content, "settings", where), f"{where} [settings]"
    _known(table, tuple(SETTINGS), place)
    for key, value in table.items():
        if type(value) is not SETTINGS[key]:
            kind = "a whole number" if SETTINGS[key] is int else "a text"
            raise WorkloadError(f"{place}: {key} must be {kind}, not {value!r}")
    if table.get("seed", 0) < 0:
        raise WorkloadError(f"{place}: seed is {table['seed']}; give 0 or more")
    if not 1 <= table.get("chunk", 1) <= MOST_WORKLOADS:
        raise WorkloadError(f"{place}: chunk must be 1 to {MOST_WORKLOADS:,} workloads")
    return table


def _sized(grid: Grid, where: str) -> None:
    """Refuse a grid without workloads, with one twice, or too large to be kept."""
    for what, held, most in (
        ("workloads", grid.workloads, MOST_WORKLOADS),
        ("results", grid.results, MOST_RESULTS),
    ):
        if held > most:
            raise WorkloadError(f"{where}: {held:,} {what}, more than {most:,}; shorten an axis")
    if not grid.workloads:
        raise WorkloadError(f"{where}: no workload; give workload = [SPEC, …], or a table [decode]")
    seen: set[Step] = set()
    for step in grid.steps():
        if step in seen:
            raise WorkloadError(f"{where}: workload {step.label} is given twice; keep one")
        seen.add(step)
