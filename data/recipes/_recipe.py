"""What every recipe does: find the package it reads, and write its tables or compare them."""

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path

VERSION = "0.12.0"  # of aiconfigurator-core
TARGET = Path(__file__).resolve().parents[1] / "measurements"


def tables() -> Path:
    """Folder of the package's measurements; the package itself is not imported."""
    spec = importlib.util.find_spec("aiconfigurator_core")
    found = spec and importlib.metadata.version("aiconfigurator-core")
    if not spec or not spec.submodule_search_locations or found != VERSION:
        sys.exit(f"needs aiconfigurator-core {VERSION}, found {found}: pip install '.[recipes]'")
    return Path(spec.submodule_search_locations[0]) / "systems" / "data"


def main(doc: str, build: Callable[[], dict[str, bytes]]) -> int:
    """Write the tables that `build` makes, as CSV, or compare them with what is stored."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    check = parser.parse_args().check
    failed = 0
    for name, content in build().items():
        card_path = TARGET / f"{name}.json"
        card = json.loads(card_path.read_text())
        digest = hashlib.sha256(content).hexdigest()
        rows = content.count(b"\n") - 1
        if check:
            same = digest == card["sha256"]
            failed += not same
            print(f"{name}: {rows} rows, {'identical' if same else 'DIFFERS'}")
            continue
        (TARGET / f"{name}.csv").write_bytes(content)
        card_path.write_text(json.dumps(card | {"rows": rows, "sha256": digest}, indent=2) + "\n")
        print(f"{name}: {rows} rows, {len(content)} bytes, sha256 {digest}")
    return int(failed > 0)
