"""Commands that put a question to a stored posterior: rank and predict."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from m2bayes import output, tables
from m2bayes._files import shown, write_whole
from m2bayes.answer import answers, predicted, ranked
from m2bayes.asking import ask
from m2bayes.bottleneck import bottlenecks
from m2bayes.commands._shared import figure_file, print_json, progress, say
from m2bayes.crossover import crossovers
from m2bayes.database import Database
from m2bayes.errors import DataError, WorkloadError
from m2bayes.question import METRICS, Question
from m2bayes.remarks import remarks

MOST_RUNS, MOST_DRAWS = 1000, 50_000_000


def rank(args: argparse.Namespace) -> int:
    """Rank SKUs for each workload."""
    question, target = ask(args, as_it_stands=True), figure_file(args)
    with progress(args, len(question.workloads)) as advance:
        told = partial(ranked, explain_clear=args.json)
        results = answers(question, told, advance=advance)
    crossed = crossovers(question, results)
    if target:
        from m2bayes.plot import asked, save

        save(asked.of_ranking(question, results, crossed, args.figure), target)
    print_answer(args, question, results, tables.ranking, tables.RANK_COLUMNS, crossovers=crossed)
    return 0


def predict(args: argparse.Namespace) -> int:
    """Predict times for each workload and SKU."""
    if not 0 <= args.noise <= MOST_RUNS:
        raise WorkloadError(f"--noise {args.noise}: give 0 to {MOST_RUNS} runs")
    question, target = ask(args, as_it_stands=True), figure_file(args)
    if args.by == "op" and question.metric == "tokens_per_second":
        raise WorkloadError("--by op breaks a time down; ask for --metric step_time")
    blocks = _Blocks(question, args.out) if args.out else None
    with progress(args, len(question.workloads)) as advance:
        results = answers(question, predicted, noise=args.noise, advance=advance, keep=blocks)
    if args.by == "op" and question.whole:
        bottlenecks(question, results)
    if target:
        from m2bayes.plot import asked, save

        database, by_op = Database(args.database), args.by == "op"
        figure = asked.of_prediction(question, results, database, by_op=by_op, noise=args.noise)
        save(figure, target)
    if args.by != "op":
        for entry in results:
            for sku in entry["skus"]:
                del sku["ops"]
    if blocks:
        blocks.write()
    columns = ["workload", "sku", *(["op"] if args.by else []), "median", "mean", "low", "high"]
    print_answer(args, question, results, tables.prediction, columns)
    return 0


class _Blocks:
    """Joint draws of the metric, gathered block by block and written whole or not at all."""

    def __init__(self, question: Question, out: str) -> None:
        self.target, self.parts = output.file_to_write(out), list[Any]()
        if not out.lower().endswith(".nc"):
            raise DataError(f"--out {shown(out)}: the draws are netCDF; name a .nc file")
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


def print_answer(
    args: argparse.Namespace,
    question: Question,
    results: list[dict[str, Any]],
    table: Callable[[Question, list[dict[str, Any]]], str],
    columns: list[str],
    **more: list[dict[str, Any]],
) -> None:
    """Print results as JSON, as CSV, or as a table with its remarks on standard error."""
    if args.json:
        llm = question.llm.name if question.llm else None
        head = {
            "llm": llm,
            "dtype": question.form,
            "kv_dtype": question.kv_dtype,
            "tp": question.tp,
            "regime": question.regime,
            "backend": question.backend,
            "posterior": question.source,
            "metric": question.metric,
            "units": METRICS[question.metric],
            "draws": question.posterior.sizes["chain"] * question.posterior.sizes["draw"],
            "seed": question.seed,
        }
        print_json(head | {"results": results} | more | {"remarks": [*remarks(question, results)]})
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
                say(remark)
