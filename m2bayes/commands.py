"""What each command does: read names, ask the library, print for people or machines."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from m2bayes import tables
from m2bayes.answer import METRICS, Question, answers, predicted, ranked, thinned
from m2bayes.crossover import crossovers
from m2bayes.database import Database, digest, read_json
from m2bayes.datasheet import lint as lint_card
from m2bayes.errors import DataError, DatasheetError, UnknownNameError, WorkloadError
from m2bayes.workload import Kernel, Step, parse_workload

MANY = 200  # workloads from which a progress bar is worth showing
MOST_RUNS, MOST_DRAWS = 1000, 50_000_000
FEWEST = 400  # draws in all: no fit with fewer can reach the effective sample size asked for
SETTINGS = {  # of a fit: smallest and largest value
    "draws": (10, 100_000),
    "tune": (10, 100_000),
    "chains": (2, 64),
    "seed": (0, 2**32 - 1),
    "target_accept": (0.5, 0.999),
}


def rank(args: argparse.Namespace) -> int:
    """Rank SKUs for each workload."""
    question = _ask(args)
    with _progress(args, len(question.workloads)) as advance:
        results = answers(question, ranked, advance=advance)
    crossed = crossovers(question, results)
    _print(args, question, results, tables.ranking, tables.RANK_COLUMNS, crossovers=crossed)
    return 0


def predict(args: argparse.Namespace) -> int:
    """Predict times for each workload and SKU."""
    if not 0 <= args.noise <= MOST_RUNS:
        raise WorkloadError(f"--noise {args.noise}: give 0 to {MOST_RUNS} runs")
    question = _ask(args)
    blocks = _Blocks(question, args.out) if args.out else None
    with _progress(args, len(question.workloads)) as advance:
        results = answers(question, predicted, noise=args.noise, advance=advance, keep=blocks)
    if args.by != "op":
        for entry in results:
            for sku in entry["skus"]:
                del sku["ops"]
    if blocks:
        blocks.write()
    columns = ["workload", "sku", *(["op"] if args.by else []), "median", "mean", "low", "high"]
    _print(args, question, results, tables.prediction, columns)
    return 0


def _ask(args: argparse.Namespace) -> Question:
    """Question that the arguments put."""
    database = Database(args.database)
    workloads = _workloads(database, args.workload)
    llm = database.llm(args.llm) if args.llm else None
    if llm is not None and all(isinstance(w, Kernel) for w in workloads):
        raise WorkloadError("gemm: workloads name a kernel, not a step; leave --llm out")
    datasheets = database.datasheets(args.sku, dtype=args.dtype)
    posterior = database.draws(args.posterior)
    fitted = database.posterior(args.posterior).datasheets
    for name in args.sku:
        card, origin = database.sku_card(name)
        if card["name"] in fitted and digest(card) != fitted[card["name"]]:
            raise DatasheetError(
                f"{origin}: {card['name']} has other numbers than the datasheet that the posterior "
                "was fitted with; give it another name to have it predicted as a new card"
            )
    if args.dtype != posterior.attrs["dtype"]:
        raise WorkloadError(
            f"--dtype {args.dtype}: posterior {posterior.attrs['name']} was fitted on "
            f"{posterior.attrs['dtype']} kernels; use that"
        )
    if args.draws is not None:
        posterior = thinned(posterior, args.draws)
    return Question(
        posterior=posterior,
        datasheets=datasheets,
        llm=llm,
        workloads=workloads,
        metric=args.metric,
        tp=args.tp,
        regime=args.regime,
        backend=args.backend,
        seed=args.seed,
        mass=args.mass,
        threshold=args.threshold,
    )


def _workloads(database: Database, specs: list[str]) -> list[Step | Kernel]:
    found: list[Step | Kernel] = []
    for spec in specs:
        file = spec.lower().endswith((".csv", ".toml"))
        found += database.workloads(spec) if file else [parse_workload(spec)]
    return found


class _Blocks:
    """Joint draws of the metric, gathered block by block and written whole or not at all."""

    def __init__(self, question: Question, out: str) -> None:
        self.target, self.parts = Path(out), list[Any]()
        if not self.target.resolve().parent.is_dir():
            raise WorkloadError(f"--out {out}: no such folder")
        samples = question.posterior.sizes["chain"] * question.posterior.sizes["draw"]
        held = samples * question.datasheets.sizes["sku"] * len(question.workloads)
        if held > MOST_DRAWS:
            raise WorkloadError(f"--out would hold {held:.1e} draws; ask for fewer, see --draws")

    def __call__(self, time: Any) -> None:
        """Keep one block of kernel times, dims (chain, draw, sku, workload, op) [s]."""
        self.parts.append(time.astype("float32"))

    def write(self) -> None:
        """Write one netCDF file with variable ``op_time`` [s]."""
        import xarray as xr

        whole = xr.concat(self.parts, dim="workload").rename("op_time")
        part = self.target.with_name(self.target.name + ".part")
        try:
            whole.to_dataset().to_netcdf(part, engine="h5netcdf")
            part.replace(self.target)
        except OSError as error:
            raise WorkloadError(f"--out {self.target}: cannot be written: {error}") from None
        finally:
            part.unlink(missing_ok=True)


def _print(
    args: argparse.Namespace,
    question: Question,
    results: list[dict[str, Any]],
    table: Callable[[Question, list[dict[str, Any]]], str],
    columns: list[str],
    **more: list[dict[str, Any]],
) -> None:
    if args.json:
        llm = question.llm.name if question.llm else None
        head = {
            "llm": llm,
            "dtype": question.posterior.attrs["dtype"],
            "tp": question.tp,
            "regime": question.regime,
            "backend": question.backend,
            "posterior": question.posterior.attrs["name"],
            "metric": question.metric,
            "units": METRICS[question.metric],
            "draws": question.posterior.sizes["chain"] * question.posterior.sizes["draw"],
            "seed": question.seed,
        }
        _json(
            head | {"results": results} | more | {"remarks": [*tables.remarks(question, results)]}
        )
    elif args.csv:
        order = [str(s) for s in question.datasheets["sku"].values]
        writer: csv.DictWriter[str] = csv.DictWriter(
            sys.stdout, columns, extrasaction="ignore", lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(tables.flat_rows(results, order))
    else:
        print(table(question, results))
        if more.get("crossovers"):
            print(f"\n{tables.crossings(more['crossovers'])}")
        if not args.quiet:
            for remark in tables.remarks(question, results):
                print(remark, file=sys.stderr)


def _json(content: Any) -> None:
    print(json.dumps(content, indent=2, allow_nan=False))


@contextmanager
def _progress(args: argparse.Namespace, total: int) -> Iterator[Callable[[int], None]]:
    """Progress bar on standard error for long work, silence for short work or --quiet."""
    if args.quiet or total < MANY:
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("workloads", total=total)
        yield lambda done: bar.advance(task, done)


def fit(args: argparse.Namespace) -> int:
    """Fit a model and store its posterior."""
    for name, (low, high) in SETTINGS.items():
        if not low <= getattr(args, name) <= high:
            option = name.replace("_", "-")
            raise DataError(f"--{option} {getattr(args, name)}: give {low} to {high}")
    if args.draws * args.chains < FEWEST:
        raise DataError(
            f"--draws {args.draws} × --chains {args.chains}: give {FEWEST} in all or more"
        )
    database, folder = Database(args.database), _folder(args.out)
    from m2bayes.database import store
    from m2bayes.posterior import fit as fit_model

    if not args.quiet:
        print(f"compiling {args.model}: half a minute the first time", file=sys.stderr)
    record, draws = fit_model(
        database,
        args.model,
        args.data,
        clock=args.clock,
        shapes=args.shapes,
        draws=args.draws,
        tune=args.tune,
        chains=args.chains,
        seed=args.seed,
        target_accept=args.target_accept,
        progress=not args.quiet and not args.json and sys.stdout.isatty(),  # it goes to stdout
    )
    path = store(record, draws, folder)
    if args.json:
        _json(asdict(database.posterior(str(path))))
    else:
        print(f"{path}: {tables.diagnosis(record.checks)}")
    return 0


def _folder(out: str) -> Path:
    """Make the folder that results go to, before the work rather than after it."""
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"--out {out}: not a folder that can be written: {error.strerror}"
        ) from None
    return folder


def check(args: argparse.Namespace) -> int:
    """Verify a stored posterior and score it on the rows it was fitted to."""
    from m2bayes.checking import report

    database = Database(args.database)
    result = report(database, args.posterior, rebuild=args.fingerprint, tell=_tell(args))
    if args.json:
        _json(result)
    else:
        print(tables.check(result))
    return 0


def _tell(args: argparse.Namespace) -> Callable[[str], None]:
    return lambda text: None if args.quiet else print(text, file=sys.stderr)


def evaluate(args: argparse.Namespace) -> int:
    """Score posteriors on unseen measurements."""
    from m2bayes.suites import NAMES, Setting, run

    folder = _folder(args.out) if args.out else None
    for name in args.suites:
        if name not in NAMES:
            raise UnknownNameError("suite", name, NAMES)
    setting, out = Setting(Database(args.database), _tell(args)), []
    for name in args.suites:
        out.append(run(name, setting))
        if folder:
            part = folder / f"{name}.json.part"
            part.write_text(json.dumps(out[-1], indent=1, allow_nan=False) + "\n")
            part.replace(folder / f"{name}.json")
    if args.json:
        _json(out)
    else:
        print("\n\n".join(tables.suite(result) for result in out))
    return 0


def lint(args: argparse.Namespace) -> int:
    """Check datasheet files against the rules and the other cards."""
    database = Database(args.database)
    found = []
    for file in args.files:
        card = read_json(Path(file), DatasheetError)
        others = [database.sku_card(name)[0] for name in database.skus()]
        others = [other for other in others if other["name"] != card.get("name")]
        found += [asdict(f) | {"file": file} for f in lint_card(card, origin=file, others=others)]
    if args.json:
        _json(found)
    else:
        for finding in found:
            print(f"{finding['severity']}: {finding['message']}")
        if not found:
            print(f"{len(args.files)} datasheet{'s' * (len(args.files) > 1)}, nothing to report")
    return 2 if any(f["severity"] == "error" for f in found) else 0


def list_names(args: argparse.Namespace) -> int:
    """List names of one kind with a line on each."""
    database = Database(args.database)
    rows = tables.listing(database, args.kind)
    if args.json:
        _json(rows)
    else:
        print(tables.columns(rows))
    return 0


def show(args: argparse.Namespace) -> int:
    """Show one thing in full, whatever it is."""
    database = Database(args.database)
    content = tables.found(database, args.name)
    if args.json:
        _json(content)
    else:
        rows = content.pop("factors", None)
        print(tables.tree(content))
        if rows:
            print(f"\n{tables.factor_table(rows)}")
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "rank": rank,
    "predict": predict,
    "fit": fit,
    "check": check,
    "evaluate": evaluate,
    "lint": lint,
    "list": list_names,
    "show": show,
}
