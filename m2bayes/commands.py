"""What each command does: read names, ask the library, print for people or machines."""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from m2bayes import catalogue, output, tables
from m2bayes._files import read_json, write_whole
from m2bayes.answer import answers, predicted, ranked
from m2bayes.asking import ask
from m2bayes.bottleneck import bottlenecks
from m2bayes.crossover import crossovers
from m2bayes.database import FOLDERS, Database, store
from m2bayes.datasheet import lint as lint_card
from m2bayes.errors import DataError, DatasheetError, UnknownNameError, WorkloadError
from m2bayes.question import METRICS, Question
from m2bayes.remarks import remarks

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
    question = ask(args)
    with _progress(args, len(question.workloads)) as advance:
        results = answers(question, ranked, advance=advance)
    crossed = crossovers(question, results)
    _print(args, question, results, tables.ranking, tables.RANK_COLUMNS, crossovers=crossed)
    return 0


def predict(args: argparse.Namespace) -> int:
    """Predict times for each workload and SKU."""
    if not 0 <= args.noise <= MOST_RUNS:
        raise WorkloadError(f"--noise {args.noise}: give 0 to {MOST_RUNS} runs")
    question = ask(args)
    if args.by == "op" and question.metric == "tokens_per_second":
        raise WorkloadError("--by op breaks a time down; ask for --metric step_time")
    blocks = _Blocks(question, args.out) if args.out else None
    with _progress(args, len(question.workloads)) as advance:
        results = answers(question, predicted, noise=args.noise, advance=advance, keep=blocks)
    if args.by == "op" and question.whole:
        bottlenecks(question, results)
    if args.by != "op":
        for entry in results:
            for sku in entry["skus"]:
                del sku["ops"]
    if blocks:
        blocks.write()
    columns = ["workload", "sku", *(["op"] if args.by else []), "median", "mean", "low", "high"]
    _print(args, question, results, tables.prediction, columns)
    return 0


class _Blocks:
    """Joint draws of the metric, gathered block by block and written whole or not at all."""

    def __init__(self, question: Question, out: str) -> None:
        self.target, self.parts = output.file_to_write(out), list[Any]()
        samples = question.posterior.sizes["chain"] * question.posterior.sizes["draw"]
        held = samples * question.datasheets.sizes["sku"] * len(question.workloads)
        if held > MOST_DRAWS:
            raise WorkloadError(f"--out would hold {held:.1e} draws; ask for fewer, see --draws")

    def __call__(self, time: Any) -> None:
        """Keep one block of kernel times, dims (chain, draw, sku, workload, op) [s]."""
        self.parts.append(time.astype("float32"))

    def write(self) -> None:
        """Write one netCDF file with variable ``op_time`` [s].

        It is made in memory: the HDF5 library does not survive a disk that fills up.
        """
        import xarray as xr

        whole = xr.concat(self.parts, dim="workload").rename("op_time").to_dataset()
        write_whole(self.target, whole.to_netcdf(engine="h5netcdf"))


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
            "posterior": question.source,
            "metric": question.metric,
            "units": METRICS[question.metric],
            "draws": question.posterior.sizes["chain"] * question.posterior.sizes["draw"],
            "seed": question.seed,
        }
        _json(head | {"results": results} | more | {"remarks": [*remarks(question, results)]})
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
            for remark in remarks(question, results):
                _say(remark)


def _say(text: str) -> None:
    """Print on standard error; that nobody reads it is no reason to fail."""
    with suppress(OSError):
        print(text, file=sys.stderr)


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
    if args.keep is not None and not FEWEST // args.chains <= args.keep <= args.draws:
        raise DataError(f"--keep {args.keep}: give {FEWEST // args.chains} to {args.draws}")
    database = Database(args.database)
    from m2bayes.posterior import fit as fit_model

    with ExitStack() as stack:

        def begin() -> None:
            stack.enter_context(output.folder_to_write(args.out))
            if not args.quiet:
                _say(f"compiling {args.model}: half a minute the first time")

        if args.quiet:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
        record, draws = fit_model(
            database,
            args.model,
            args.data,
            clock=args.clock,
            shapes=args.shapes,
            keep=args.keep,
            begin=begin,
            draws=args.draws,
            tune=args.tune,
            chains=args.chains,
            seed=args.seed,
            target_accept=args.target_accept,
            progress=not args.quiet and not args.json and sys.stdout.isatty(),  # it goes to stdout
        )
        path = store(record, draws, Path(args.out))
    if args.json:
        _json(asdict(database.posterior(str(path))))
    else:
        print(f"{path}: {tables.diagnosis(record.checks)}")
    return 0


def import_(args: argparse.Namespace) -> int:
    """Turn other projects' files into a table that a fit reads."""
    from m2bayes.importing import imported, write

    target = output.file_to_write(args.out)
    table = imported(Database(args.database), args.format, args.paths, sku=args.sku)
    summary = {"format": args.format} | write(table, target, args.paths)
    if args.json:
        _json(summary)
    else:
        print(f"{args.out}: {summary['rows']} rows, sha256 {summary['sha256'][:12]}")
    return 0


def check(args: argparse.Namespace) -> int:
    """Verify a stored posterior and score it on the rows it was fitted to."""
    from m2bayes.checking import report

    database = Database(args.database)
    result = report(
        database, args.posterior, data=args.data, rebuild=args.fingerprint, tell=_tell(args)
    )
    if args.json:
        _json(result)
    else:
        print(tables.check(result))
    return 0


def _tell(args: argparse.Namespace) -> Callable[[str], None]:
    return lambda text: None if args.quiet else _say(text)


def evaluate(args: argparse.Namespace) -> int:
    """Score posteriors on unseen measurements."""
    from m2bayes.suites import NAMES, Setting, run

    for name in args.suites:
        if name not in NAMES:
            raise UnknownNameError("suite", name, NAMES)
        if args.suites.count(name) > 1:
            raise DataError(f"suite {name} is given twice; name each once")
    setting, out = Setting(Database(args.database), _tell(args)), []
    with output.folder_to_write(args.out) if args.out else nullcontext() as folder:
        for name in args.suites:
            out.append(run(name, setting))
            if folder:
                text = json.dumps(out[-1], indent=1, allow_nan=False) + "\n"
                write_whole(folder / f"{name}.json", text.encode())
    if args.json:
        _json(out)
    else:
        print("\n\n".join(tables.suite(result) for result in out))
    return 0


def lint(args: argparse.Namespace) -> int:
    """Check datasheet files against the rules and the other cards."""
    database = Database(args.database)
    folder = database.root / FOLDERS["sku"]
    cards = {file: read_json(Path(file), DatasheetError) for file in args.files}
    known = {
        os.path.realpath(folder / f"{n}.json"): database.sku_card(n)[0] for n in database.skus()
    }
    known |= {os.path.realpath(file): card for file, card in cards.items()}
    found = []
    for file, card in cards.items():
        others = [other for path, other in known.items() if path != os.path.realpath(file)]
        found += [asdict(f) | {"file": file} for f in lint_card(card, origin=file, others=others)]
    if args.json:
        _json(found)
    else:
        for finding in found:
            print(f"{finding['severity']}: {finding['message']}")
        if not found:
            print(f"{len(cards)} datasheet{'s' * (len(cards) > 1)}, nothing to report")
    return 2 if any(f["severity"] == "error" for f in found) else 0


def list_names(args: argparse.Namespace) -> int:
    """List names of one kind with a line on each."""
    database = Database(args.database)
    rows = catalogue.listing(database, args.kind)
    if args.json:
        _json(rows)
    else:
        print(tables.columns(rows))
    return 0


def show(args: argparse.Namespace) -> int:
    """Show one thing in full, whatever it is."""
    database = Database(args.database)
    content = catalogue.found(database, args.name)
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
    "import": import_,
    "fit": fit,
    "check": check,
    "evaluate": evaluate,
    "lint": lint,
    "list": list_names,
    "show": show,
}
