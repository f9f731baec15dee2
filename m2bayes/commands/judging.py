"""Commands that judge posteriors: check and evaluate."""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from m2bayes import output, tables
from m2bayes._files import read_json, write_whole
from m2bayes.commands._shared import figure_file, print_json, teller, workers
from m2bayes.database import Database
from m2bayes.errors import DataError, MissingError, RecordError, UnknownNameError
from m2bayes.options.judging import REFITS
from m2bayes.updating import table as tables_update

if TYPE_CHECKING:
    import xarray as xr


def check(args: argparse.Namespace) -> int:
    """Verify a stored posterior and score it on the rows it was fitted to."""
    from m2bayes.checking import report

    database, target, held = Database(args.database), figure_file(args), {}

    def keep(sku: str, draws: xr.DataArray, observed: xr.DataArray) -> None:
        held[sku] = (draws, observed)

    result = report(
        database,
        args.posterior,
        data=args.data,
        cards=args.sku,
        rebuild=args.fingerprint,
        tell=teller(args),
        keep=keep,
    )
    if target and not held:
        raise DataError(f"--plot: nothing to draw: {result.get('skipped', 'the rows are new')}")
    if target:
        from m2bayes import plot

        plot.save(plot.check(held, result["calibration"], title=result["posterior"]), target)
    if args.json:
        print_json(result)
    elif "drift" in result:
        print(tables_update.drift(result["drift"]))
    else:
        print(tables.check(result))
    return 0


def evaluate(args: argparse.Namespace) -> int:
    """Score posteriors on unseen measurements."""
    from m2bayes.suites import NAMES, Setting, run

    for name in args.suites:
        if name not in NAMES:
            raise UnknownNameError("suite", name, NAMES)
        if args.suites.count(name) > 1:
            raise DataError(f"suite {name} is given twice; name each once")
    if args.quick and args.out:
        raise DataError("--quick is to see that suites run, its figures mean nothing: drop --out")
    if not args.suites and not args.quick:
        raise DataError(f"name a suite: {', '.join(NAMES)}; or --quick for all of them in small")
    if args.workers or args.scheduler:
        _refitting(args)
    setting, out = Setting(Database(args.database), teller(args), quick=args.quick), []
    with (
        workers(args) as each,
        output.folder_to_write(args.out) if args.out else nullcontext() as folder,
    ):
        setting = replace(setting, each=each)
        for name in args.suites or NAMES:
            try:
                former = _former(folder / f"{name}.json") if folder else {}
                out.append(run(name, replace(setting, former=former)))
            except MissingError as fault:
                if args.suites:
                    raise
                out.append({"suite": name, "quick": True, "skipped": str(fault)})
            if folder:
                text = json.dumps(out[-1], indent=1, allow_nan=False) + "\n"
                write_whole(folder / f"{name}.json", text.encode())
    if args.json:
        print_json(out)
    else:
        print("\n\n".join(tables.suite(result) for result in out))
    return 0


def _former(file: Path) -> dict[str, Any]:
    """Results of a suite that `file` holds from an earlier run, if it does."""
    results = read_json(file, RecordError).get("results") if file.is_file() else None
    return results if isinstance(results, dict) else {}


def _refitting(args: argparse.Namespace) -> None:
    """Refuse workers where they would have nothing to do."""
    option = f"--workers {args.workers}" if args.workers else f"--scheduler {args.scheduler}"
    if args.quick:
        raise DataError(f"{option}: --quick makes no fits worth spreading; drop one of the two")
    if not set(args.suites) & set(REFITS):
        raise DataError(f"{option}: only these suites fit models: {', '.join(REFITS)}")
