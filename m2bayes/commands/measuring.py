"""Command that times kernels on the GPU at hand."""

from __future__ import annotations

import argparse
import time

from m2bayes import output
from m2bayes.commands._shared import print_json, progress
from m2bayes.database import Database
from m2bayes.errors import DataError
from m2bayes.workload import parse_workload

CAPPED = 0.98  # of the card's own power limit, from which it counts as lowered
LIMITS = {"repeats": (1, 100), "seconds": (0.05, 60.0), "cooldown": (0.0, 600.0)}


def measure(args: argparse.Namespace) -> int:
    """Measure matrix products, attention and launches, with the clock meanwhile."""
    from m2bayes.importers._parts import card_named
    from m2bayes.measuring import keeping
    from m2bayes.measuring import kernels as measuring
    from m2bayes.measuring.cuda import TorchDevice

    for name, (low, high) in LIMITS.items():
        if not low <= getattr(args, name) <= high:
            raise DataError(f"--{name} {getattr(args, name)}: give {low:g} to {high:g}")
    target, database = output.file_to_write(args.out), Database(args.database)
    if args.cell and (args.llm or args.what):
        raise DataError("--cell names the kernels; leave --llm and --what out")
    cells = measuring.cells_of([parse_workload(spec) for spec in args.cell])
    if not cells:
        llm = database.llm(args.llm) if args.llm else measuring.USUAL
        cells = measuring.plan(llm, what=args.what)
    device = TorchDevice()
    sku = args.sku or card_named(database, device.name)
    sheet = database.datasheets([sku])
    sku = str(sheet["sku"].item())
    runs = measuring.in_random_order(cells, repeats=args.repeats, seed=args.seed)
    with progress(args, len(runs), unit="runs") as advance:
        tables = measuring.measured(
            device, runs, sku=sku, seconds=args.seconds, cooldown=args.cooldown,
            sleep=time.sleep, tell=lambda done: advance(1),
        )  # fmt: skip
    if "gemm_time" in tables:
        tables["clock"] = keeping.clocks(
            tables["gemm_time"],
            boost_clock=float(sheet["boost_clock"].item()),
            power_limit=device.power_limit,
            capped=device.power_limit < CAPPED * float(sheet["power_limit"].item()),
        )
    facts = {
        "device": device.name,
        "software": device.software,
        "how": f"{args.repeats} repeats in random order (seed {args.seed}), {args.cooldown:g} s "
        f"apart; sustained runs of {args.seconds:g} s, of which the second half counts",
    }
    written = keeping.write([*keeping.files(tables, target, facts)])
    if args.json:
        print_json(written)
    else:
        for entry in written:
            print(f"{entry['out']}: {entry['rows']} rows, sha256 {entry['sha256'][:12]}")
    return 0
