"""Every notebook runs from the stored posteriors; its stored outputs are presentable."""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LARGEST = 3e6  # bytes of all notebooks
SECONDS = 600  # of one cell, on a machine that others use too
PLACE = re.compile(r"(?<![\w.:/-])/(home|root|tmp|work|usr|opt|var|private|Users|mnt)/|\b[A-Z]:\\")
EXECUTE = """
import sys
import nbformat
from nbclient import NotebookClient

path, seconds = sys.argv[1], int(sys.argv[2])
NotebookClient(nbformat.read(path, 4), timeout=seconds, kernel_name="python3").execute()
"""
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def shown(cell):
    """Text of everything that a cell put out, pictures left out."""
    for output in cell.get("outputs", []):
        yield "".join(output.get("text", ""))
        for kind, held in output.get("data", {}).items():
            if not kind.startswith("image/"):
                yield "".join(held)


@pytest.mark.slow
@every_notebook
def test_a_notebook_runs(path, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, str(path), str(SECONDS)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def test_there_are_ten_and_they_are_small():
    assert [path.stem[:2] for path in NOTEBOOKS] == [f"{i:02d}" for i in range(1, 11)]
    assert sum(path.stat().st_size for path in NOTEBOOKS) < LARGEST


@every_notebook
def test_what_is_stored_was_run_from_top_to_bottom_without_an_error(path):
    cells = [c for c in nbformat.read(path, 4).cells if c.cell_type == "code"]
    assert [c.execution_count for c in cells] == list(range(1, len(cells) + 1))
    kinds = {output.output_type for c in cells for output in c.outputs}
    assert "error" not in kinds
    assert kinds & {"display_data", "execute_result"}


@every_notebook
def test_nothing_stored_names_a_place_on_somebodys_machine(path):
    cells = nbformat.read(path, 4).cells
    texts = [text for cell in cells for text in [cell.source, *shown(cell)]]
    assert [text for text in texts if PLACE.search(text)] == []


def test_tables_taken_from_the_evaluation_are_those_of_today():
    document = (FOLDER.parent / "EVALUATION.md").read_text(encoding="utf-8")
    rows = set(document.splitlines())
    shown_rows = [
        (path.stem, line)
        for path in NOTEBOOKS
        for cell in nbformat.read(path, 4).cells
        for output in cell.get("outputs", [])
        for line in output.get("data", {}).get("text/markdown", "").splitlines()
        if line.startswith("| ")
    ]
    assert shown_rows
    stale = sorted({stem for stem, line in shown_rows if line not in rows})
    assert not stale, f"run again: jupyter execute --inplace {' '.join(stale)}"


@every_notebook
def test_no_warning_is_stored(path):
    outputs = [o for c in nbformat.read(path, 4).cells for o in c.get("outputs", [])]
    said = [o.text for o in outputs if o.output_type == "stream" and o.name == "stderr"]
    assert [text for text in said if "Warning" in text] == []


def test_a_place_in_an_output_would_be_found():
    wrong = ("saved to /tmp/x.csv", "'/home/me/y'", r"C:\data")
    right = ("results/x.csv", "https://a.org/home/x", "byte/s", "90 %/h")
    assert [bool(PLACE.search(text)) for text in (*wrong, *right)] == [True] * 3 + [False] * 4
