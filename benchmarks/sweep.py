"""What a sweep costs: CPU seconds a result, memory of the workers, bytes in the store.

Run from the repository root::

    python benchmarks/sweep.py [--results 1000000] [--workers 2] [--out data/benchmarks/sweep.json]

A grid of decode steps on every SKU, on processes of one thread each. Wall time is told beside the
CPU time of all processes; on a machine that does other work only the latter means anything.
"""

import argparse
import json
import os
import resource
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import psutil

from m2bayes.database import Database
from m2bayes.sweeping.engine import sweep
from m2bayes.sweeping.grid import Grid, chunks
from m2bayes.sweeping.points import checked
from m2bayes.sweeping.store import DIMS, opened, write

BATCHES = 100
LONGEST = 131_000  # tokens that the LLM holds


def grid_of(results):
    """Grid of about that many results: every batch to `BATCHES` with evenly spaced contexts."""
    skus = tuple(Database().skus())
    contexts = -(-results // (len(skus) * BATCHES))
    sizes = tuple(range(LONGEST // contexts, LONGEST + 1, LONGEST // contexts))[:contexts]
    keys = (("batch", tuple(range(1, BATCHES + 1))), ("context", sizes))
    return Grid(llm=("llama-3.1-8b",), sku=skus, products=(("decode", keys),))


def watched(stop, found):
    """Keep the most memory that this process and its children held together [byte]."""
    this = psutil.Process()
    while not stop.wait(0.5):
        family = [this, *this.children(recursive=True)]
        sizes = []
        for one in family:
            try:
                sizes.append(one.memory_info().rss)
            except psutil.NoSuchProcess:
                continue
        found["memory"] = max(found.get("memory", 0), sum(sizes))


def cpu():
    """CPU seconds of this process and of its children that have ended."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(use.ru_utime + use.ru_stime for use in both)


def write_time(grid, out, count=20):
    """CPU seconds of writing one chunk, over results that are there."""
    stored, chunk = opened(str(out), grid, checked(grid, None)), next(chunks(grid))
    place = (*chunk.at[:3], slice(None), slice(chunk.start, chunk.stop))
    values = {name: stored[name][place] for name in DIMS}
    start = time.process_time()
    for _ in range(count):
        write(stored, chunk, values)
    return (time.process_time() - start) / count


def main():
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=int, default=10**6)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, help="JSON file")
    args = parser.parse_args()
    grid, found, stop = grid_of(args.results), {}, threading.Event()
    watcher = threading.Thread(target=watched, args=(stop, found))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "results.zarr"
        watcher.start()
        wall, used = time.perf_counter(), cpu()
        done = sweep(grid, str(out), workers=args.workers)
        found |= {"wall": time.perf_counter() - wall, "cpu": cpu() - used}
        stop.set()
        watcher.join()
        found["write"] = write_time(grid, out)
        files = [path.stat().st_size for path in out.rglob("*") if path.is_file()]
    found |= done | {"bytes": sum(files), "files": len(files), "workers": args.workers}
    found |= {"draws": grid.draws, "chunk": grid.chunk, "skus": len(grid.sku)}
    content = {
        "what": __doc__.splitlines()[0],
        "command": f"python benchmarks/sweep.py --results {args.results} --workers {args.workers}",
        "versions": {name: version(name) for name in ("numpy", "dask", "distributed", "zarr")},
        "settings": {k: v for k, v in asdict(grid).items() if k in ("draws", "seed", "chunk")},
        "results": found,
    }
    text = json.dumps(content, indent=2) + "\n"
    print(text)
    if args.out:
        args.out.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
