"""How long a command takes from a cold start, beside the imports that it cannot do without.

Run from the repository root, on a machine that does nothing else::

    python benchmarks/start.py [--out data/benchmarks/start.json]

Each row is a process of its own, started in turns: the median of rounds, in seconds of the clock
and of CPU. `rank` is of 4 SKUs and 7 workloads, with all that the development environment installs.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median

ROUNDS = 45
PYTHON, MAIN = [sys.executable, "-c"], [sys.executable, "-m", "m2bayes"]
DECODE = [f"decode:batch={batch},context=1024" for batch in (1, 8, 32, 64, 256)]
RANK = ["rank", "--llm", "llama-3.1-8b", "--sku", "a100", "h100", "h200", "l40s"]
PROCESSES = {
    "python": [*PYTHON, "pass"],
    "import numpy": [*PYTHON, "import numpy"],
    "import xarray": [*PYTHON, "import xarray"],
    "m2bayes --help": [*MAIN, "--help"],
    "m2bayes list skus": [*MAIN, "list", "skus"],
    "m2bayes rank": [
        *MAIN,
        *RANK,
        "--workload",
        *DECODE,
        "prefill:tokens=512",
        "prefill:tokens=2048",
    ],
}


def spent(command):
    """Seconds of the clock and of CPU that one process takes."""
    before, start = os.times(), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, os.times()
    cpu = (after.children_user + after.children_system) - (
        before.children_user + before.children_system
    )
    return wall, cpu


def main():
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="JSON file")
    args = parser.parse_args()
    for command in PROCESSES.values():
        spent(command)  # files are read once before
    rounds = [{name: spent(c) for name, c in PROCESSES.items()} for _ in range(ROUNDS)]
    content = {
        "what": __doc__.splitlines()[0],
        "command": "python benchmarks/start.py --out data/benchmarks/start.json",
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "versions": {name: version(name) for name in ("numpy", "pandas", "xarray")},
        },
        "results": {
            name: {
                "wall": median(one[name][0] for one in rounds),
                "cpu": median(one[name][1] for one in rounds),
            }
            for name in PROCESSES
        },
    }
    text = json.dumps(content, indent=2) + "\n"
    print(text)
    if args.out:
        args.out.write_text(text)


if __name__ == "__main__":
    main()
