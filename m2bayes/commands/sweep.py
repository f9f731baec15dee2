"""Command that predicts a grid of questions into a Zarr store."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from m2bayes._files import shown
from m2bayes.commands._shared import print_json, progress, workers
from m2bayes.errors import DataError
from m2bayes.sweeping.engine import sweep
from m2bayes.sweeping.grid import chunks, read_grid


def sweep_(args: argparse.Namespace) -> int:
    """Predict a grid, going on where an earlier run of it ended."""
    workers(args)
    grid = read_grid(args.grid)
    if not Path(args.out).absolute().parent.is_dir():
        raise DataError(f"--out {shown(args.out)}: no such folder; make it, or name another")
    total = sum(1 for _ in chunks(grid))
    with progress(args, total, unit="chunks", many=1) as advance:
        found = sweep(
            grid,
            args.out,
            root=args.database,
            workers=args.workers,
            scheduler=args.scheduler,
            begin=lambda left: advance(total - left),
            advance=advance,
        )
    if args.json:
        print_json(found | {"out": args.out})
    else:
        kept = found["chunks"] - found["computed"]
        held = f", {kept} of them from an earlier run" if kept else ""
        sys.stdout.write(
            f"{args.out}: {found['results']:,} results in {found['chunks']} chunks{held}\n"
        )
    return 0
