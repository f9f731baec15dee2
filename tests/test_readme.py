"""Figures that the documents quote are those of the stored evaluations, judged on today's draws."""

import json
import subprocess
import sys

import pytest

from m2bayes.database import Database
from m2bayes.suites import NAMES

ROOT = Database().root / "data" / "evaluations"

# a suite of refits that takes half an hour may not have been run: then nothing quotes it
EVALUATIONS = [name for name in NAMES if (ROOT / f"{name}.json").is_file()]


@pytest.mark.parametrize("suite", EVALUATIONS)
def test_an_evaluation_judges_the_stored_draws_and_data(database, suite):
    path = database.root / "data" / "evaluations" / f"{suite}.json"
    inputs = json.loads(path.read_text())["inputs"]
    now = {name: database.posterior(name).draws["sha256"] for name in database.posteriors()}
    now |= {name: database.data_record(name).sha256 for name in database.data()}
    stale = {name: digest for name, digest in inputs.items() if now.get(name) != digest}
    assert not stale, f"{suite} is older than {', '.join(stale)}: m2bayes evaluate {suite}"
    assert inputs


def test_quoted_figures_are_those_of_the_evaluations(database):
    script = database.root / "data" / "recipes" / "readme.py"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_changed_figure_would_be_noticed(database, tmp_path, monkeypatch):
    sys.path.insert(0, str(database.root / "data" / "recipes"))
    try:
        import readme
    finally:
        sys.path.pop(0)
    text = (database.root / "README.md").read_text(encoding="utf-8")
    assert readme.gemm_cells() in text
    (tmp_path / "README.md").write_text(text.replace("| mean |", "| mean  |"), encoding="utf-8")
    monkeypatch.setattr(readme, "BLOCKS", {"README.md": {"gemm-cells": readme.gemm_cells}})
    monkeypatch.setattr(readme, "TARGET", tmp_path)
    monkeypatch.setattr(sys, "argv", ["readme.py", "--check"])
    assert readme.main() == 1
