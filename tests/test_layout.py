"""Tables fit the terminal: what gives way first, and that what the README types fits too."""

import csv
import io
import json
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from helpers import run
from hypothesis import given
from hypothesis import strategies as st

from m2bayes import layout, tables
from m2bayes.diagnostics import UNIFORM, uniformity
from m2bayes.layout import columns, wrapped

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
WIDE = {"SKU": "H100-80GB-SXM", "p_best": "75.1 ± 1.0 %", "flips with next": "24.9 %"}
LATER = {"SKU": "L40S-48GB-PCIe", "p_best": "0.0 ± 0.1 %", "flips with next": "-"}


def widest(text):
    return max(len(line) for line in text.splitlines())


@pytest.fixture
def terminal(monkeypatch):
    return lambda columns: monkeypatch.setenv("COLUMNS", str(columns))


def test_what_fits_is_left_alone(terminal):
    terminal(80)
    assert columns([WIDE, LATER]).splitlines() == [
        "SKU                   p_best  flips with next",
        "H100-80GB-SXM   75.1 ± 1.0 %           24.9 %",
        "L40S-48GB-PCIe   0.0 ± 0.1 %                -",
    ]


def test_no_terminal_is_80_wide_and_the_narrowest_is_40(terminal, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.__stdout__", None)
    assert layout.width() == 80
    terminal(7)
    assert layout.width() == 40


def test_headings_give_way_first(terminal):
    terminal(44)
    assert columns([WIDE, LATER]).splitlines()[:2] == [
        "                                  flips",
        "SKU                   p_best  with next",
    ]


def test_then_what_all_rows_share_is_said_once_above(terminal):
    terminal(44)
    rows = [row | {"basis": "measured"} for row in (WIDE, LATER)]
    lines = columns(rows).splitlines()
    assert lines[0] == "basis: measured"
    assert "basis" not in "".join(lines[1:])


def test_then_text_is_broken_and_nothing_is_lost(terminal):
    terminal(56)
    rows = [WIDE | {"bound by": "compute 93.9 %, memory 6.1 %"}, LATER | {"bound by": "launch"}]
    told = columns(rows)
    assert widest(told) <= 56
    for row in rows:
        for cell in row.values():
            assert all(word in told for word in cell.split())


def test_then_errors_are_left_out_and_the_table_is_broken_in_two(terminal):
    terminal(40)
    rows = [row | {"median": "26.8 ms", "regret": "1.7 ± 0.1 %"} for row in (WIDE, LATER)]
    rows[1] |= {"median": "88.5 ms", "regret": "3.1 ± 0.1 %"}
    first, second = columns(rows).split("\n\n")
    assert "±" not in first + second
    assert all(part.splitlines()[-1].startswith("L40S-48GB-PCIe") for part in (first, second))
    assert widest(first) <= 40 >= widest(second)


def test_a_single_row_that_does_not_fit_is_a_sentence(terminal):
    terminal(40)
    text = "SKU: H100-80GB-SXM; p_best: 75.1 ± 1.0 %; flips with next: 24.9 %; basis: measured"
    assert columns([WIDE | {"basis": "measured"}]) == wrapped(text, "  ")


@given(
    st.lists(st.lists(st.text("ab 1,%±", max_size=12), min_size=4, max_size=4), min_size=1),
    st.integers(40, 90),
)
def test_no_table_of_short_cells_is_too_wide(rows, room):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(room))
        names = ("one", "two words", "three", "the fourth of them")
        told = columns([dict(zip(names, row, strict=True)) for row in rows], "  ")
    assert widest(told) <= room


# --- what the README types -------------------------------------------------------------------
FILES = ("my/config.json", "my_gpu.json", "plan.csv", "steps.csv")
SKIPPED = (  # write or measure, or take minutes: their tables are other tests' or none
    *("fit", "evaluate", "measure", "sweep", "report", "import", "doctor", "lint", "update"),
)


def typed():
    """Commands of the README's blocks that print tables, with few draws."""
    found = dict.fromkeys(
        line.partition("  #")[0].strip()
        for block in re.findall(r"^```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
        for line in block.replace("\\\n", " ").splitlines()
    )
    for line in found:
        words = shlex.split(line.removeprefix("sh setup.sh "), comments=True)
        if words[:1] != ["m2bayes"] or words[1] in SKIPPED or "my_posteriors" in line:
            continue
        if "--data" in words or {"--csv", "--json", "--plot"} & set(words):
            continue
        yield words[1:]


def test_the_readme_types_commands():
    assert len([*typed()]) >= 8


@pytest.mark.slow
@pytest.mark.parametrize("argv", [pytest.param(a, id=" ".join(a)[:60]) for a in typed()])
def test_tables_of_the_readme_fit_80_columns(argv, tmp_path, monkeypatch, terminal, database):
    terminal(80)
    monkeypatch.chdir(tmp_path)
    card = database.sku_card("h100-pcie")[0] | {"name": "MINE-80GB-PCIe", "aliases": []}
    config = json.loads((database.root / "data/llms/llama-3.1-8b.json").read_text())["config"]
    Path("my").mkdir()
    Path("my/config.json").write_text(json.dumps(config))
    Path("my_gpu.json").write_text(json.dumps(card))
    Path("plan.csv").write_text("kind,batch,context\ndecode,8,1024\ndecode,64,1024\n")
    with Path("steps.csv").open("w", newline="") as handle:
        steps = [("h100", 0.0105), ("l40s", 0.031)]
        rows = [(sku, "decode:batch=32,context=4096", time) for sku, time in steps]
        csv.writer(handle).writerows([("sku", "workload", "step_time"), *rows])
    few = ("--draws", "100") if argv[0] in ("rank", "predict", "next", "plan") else ()
    code, out, err = run(*argv, *few)
    assert code == 0, err
    assert widest(out) <= 80, [line for line in out.splitlines() if len(line) > 80]
    assert "\x1b" not in out


def test_a_nameless_column_may_be_all_that_is_left(terminal):
    terminal(40)
    rows = [{"": name, "first": "x" * 38, "second": "y" * 38} for name in ("one", "two")]
    lines = columns(rows).splitlines()
    assert [line.strip() for line in lines[-2:]] == ["one", "two"]
    assert lines[0] == "first:"


def test_what_does_not_fit_is_no_row_and_its_reason_is_said_once():
    argv = ("rank", "--llm", "qwen3-32b", "--sku", "a100", "h100", "h200", "--draws", "100")
    code, out, _ = run(*argv, "--workload", "decode:batch=32,context=2048", "--quiet")
    assert code == 0
    assert "  A100-80GB-SXM, H100-80GB-SXM: does not fit: " in out
    assert out.count("does not fit") == 1


def test_a_card_that_may_not_fit_says_how_likely_it_does():
    argv = ("rank", "--llm", "qwen3-32b", "--tp", "2", "--sku", "h100", "l40s", "--draws", "200")
    code, out, _ = run(*argv, "--workload", "decode:batch=32,context=2048", "--quiet")
    assert code == 0
    assert "L40S-48GB-PCIe: fits with probability 0." in out


def test_signs_that_the_encoding_lacks_leave_fewer_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert layout.width() == 80
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert layout.width() == 80 - layout.SPARED


@pytest.mark.parametrize(
    ("p", "held", "said"),
    [
        (0.3, 0.90, "uniform? passed: p 0.3; 90 % intervals hold 90.0 %"),
        (0.001, 0.95, "not passed: p 0.001, below 0.01; 90 % intervals hold 95.0 %, wider than"),
        (0.001, 0.80, "below 0.01; 90 % intervals hold 80.0 %, too narrow"),
        (0.001, 0.91, "below 0.01; 90 % intervals hold 91.0 %"),
    ],
)
def test_check_says_in_words_whether_the_pit_is_uniform(p, held, said):
    row = {"mape": 0.05, "coverage_90": held, "pit_mean": 0.5, "band_low": 0.8, "band_high": 0.98}
    checks = {"rhat_max": 1.0, "ess_bulk_min": 900.0, "ess_tail_min": 900.0, "divergences": 0.0}
    result = {"posterior": "a-b", "checks": checks | {"bfmi_min": 0.9}, "uniformity": p}
    text = tables.check(result | {"calibration": {"a": row, "mean": row}})
    assert said in " ".join(text.split())
    assert "80 to 98" in text


def test_a_uniform_transform_passes_and_a_bent_one_does_not():
    even = (np.arange(400) + 0.5) / 400
    passed, failed = (uniformity(xr.DataArray(v, dims="cell")) for v in (even, even**2))
    assert failed < UNIFORM < passed
