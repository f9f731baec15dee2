"""Measurements held against rules, physics, a posterior and their own repeats."""

import importlib.util
import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from m2bayes import cli
from m2bayes.errors import DataError
from m2bayes.importing import cards_of, read
from m2bayes.linting.disagreement import disagreement
from m2bayes.linting.files import linted
from m2bayes.linting.floors import floors
from m2bayes.linting.tails import LEAST, NAMED, outlier_probability, predicted, tail_probability

EXTERNAL = os.environ.get("M2BAYES_EXTERNAL_DATA")
CELLS = ("sku", "backend", "version", "M", "N", "K")


def run(capsys, *argv):
    """Exit code, standard output and standard error of one command."""
    try:
        code = cli.main([*map(str, argv)])
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def write(tmp_path):
    def write(table, name="table.csv"):
        table.to_csv(tmp_path / name, index=False)
        return str(tmp_path / name)

    return write


@pytest.fixture(scope="module")
def rows(database):
    """Forty cells of two cards, of one build each."""
    table = database.table("gemm_bf16")
    table = table[
        table["backend"].eq("vllm") & table["sku"].isin(["H100-80GB-SXM", "L40S-48GB-PCIe"])
    ]
    return table.groupby("sku").head(20).reset_index(drop=True)


def found(database, path, rule, **given):
    return [f for f in linted(database, [path], **given) if f["rule"] == rule]


# --- values ----------------------------------------------------------------------------------


def test_sound_measurements_have_nothing_wrong(database, write, rows):
    assert [f for f in linted(database, [write(rows)]) if f["severity"] != "note"] == []


@pytest.mark.parametrize(
    "bad",
    [
        ("op_time", "", "nan is not a finite number"),
        ("op_time", "inf", "inf is not a finite number"),
        ("op_time", "-1e-5", "-1e-05 is not above zero, in s"),
        ("op_time", "0", "0 is not above zero"),
        ("op_time", "soon", "'soon' is not a finite number"),
        ("op_time", "5000", "5000 is not between 1e-07 and 1000 s; is the unit right?"),
        ("M", "0.5", "0.5 is not a whole number from 1 to 10,000,000"),
        ("K", "", "nan is not a whole number"),
    ],
)
def test_a_bad_value_is_an_error_that_names_its_row(database, write, rows, bad):
    column, value, message = bad
    table = rows.astype({column: object})
    table.loc[[6, 9], column] = value
    errors = [f for f in linted(database, [write(table)]) if f["severity"] == "error"]
    assert errors[0]["rule"] == "values"
    assert f"row 7, column {column}: {message}" in errors[0]["message"]
    assert errors[0]["message"].endswith("(and 1 more)")
    assert errors[0]["rows"] == (7, 10)


# --- copies and replicates -------------------------------------------------------------------


def test_copies_and_replicates_are_told_apart(database, write, rows):
    again = rows.head(3)
    anew = rows.iloc[5:7].assign(op_time=lambda t: t["op_time"] * 1.01)
    table = pd.concat([rows, again, anew], ignore_index=True)
    path = write(table.assign(id=range(len(table))))
    (copies,) = found(database, path, "copies")
    assert (copies["severity"], copies["count"], copies["rows"]) == ("warning", 3, (41, 42, 43))
    (replicates,) = found(database, path, "replicates")
    assert (replicates["severity"], replicates["count"]) == ("note", 2)
    assert (
        "2 keys (M, N, K, sku, backend, version) are measured more than once, 4 rows"
        in (replicates["message"])
    )


def test_a_missing_version_is_counted(database, write, rows):
    (warning,) = found(database, write(rows.drop(columns="version")), "version")
    assert warning["count"] == len(rows)
    table = rows.assign(version=rows["version"].mask(rows.index < 4, ""))
    (warning,) = found(database, write(table), "version")
    assert (warning["severity"], warning["count"]) == ("warning", 4)


# --- physics ---------------------------------------------------------------------------------


def test_floors_by_hand(database, write):
    """An H100: 132 SMs × 4096 × 1.98 GHz; 3.35 TB/s beyond 50 MiB of L2."""
    cells = pd.DataFrame([("h100", "x", "1", 4096, 8192, 8192, 1.0)], columns=[*CELLS, "op_time"])
    part = read(database, [write(cells)])
    (floor,) = floors(part, cards_of(database, part)).to_dict("records")
    traffic = 2 * (8192 * 8192 + 4096 * 2 * 8192)
    sheet = database.datasheets(["h100"])
    assert floor["compute"] == pytest.approx(2 * 4096 * 8192**2 / (132 * 4096 * 1.98e9), rel=1e-9)
    assert floor["cold"] == pytest.approx(traffic / 3.35e12, rel=1e-9)
    assert floor["memory"] == pytest.approx((traffic - float(sheet["l2"].item())) / 3.35e12)


@pytest.mark.parametrize(
    ("factor", "cause"),
    [
        (1e-3, "another unit (seconds read as milliseconds?)"),
        (0.4, "a narrower dtype, or tensor parallelism, that the table does not say"),
    ],
)
def test_a_time_that_no_card_can_reach_names_the_likely_cause(database, write, rows, factor, cause):
    large = rows.assign(M=8192, N=8192, K=8192, op_time=2 * 8192.0**3 / 2.5e14)
    large.loc[large["sku"].str.startswith("H100"), "op_time"] = 2 * 8192.0**3 / 7e14
    table = large.assign(op_time=large["op_time"].mask(large.index == 2, large["op_time"] * factor))
    (error,) = found(database, write(table), "impossible")
    assert error["severity"] == "error"
    assert "row 3, column op_time" in error["message"]
    assert f"times faster than {large['sku'][2]} can be" in error["message"]
    assert f"likely {cause}" in error["message"]


def test_milliseconds_declared_as_seconds_are_an_error(database, write, rows, capsys, tmp_path):
    path = write(rows.assign(op_time=rows["op_time"] * 1e3))
    (error,) = found(database, path, "unit")
    assert "are they in ms? write the unit: time [ms]" in error["message"]
    (error,) = found(database, write(rows.assign(op_time=rows["op_time"] * 1e6)), "unit")
    assert "are they in us?" in error["message"]
    micro = rows.assign(op_time=rows["op_time"] * 1e6).rename(columns={"op_time": "time [ms]"})
    (error,) = found(database, write(micro), "unit")
    assert "are they in us? write the unit: time [us]" in error["message"]
    path = write(rows.assign(op_time=rows["op_time"] * 1e3))
    out = tmp_path / "out.csv"
    code, printed, err = run(capsys, "import", "plain", path, "--out", out)
    assert (code, printed, out.exists()) == (2, "", False)
    assert "are they in ms?" in err
    assert err.count("\n") == 1
    path = write(
        rows.assign(op_time=rows["op_time"] * 1e3).rename(columns={"op_time": "time [ms]"})
    )
    code, printed, _ = run(capsys, "import", "plain", path, "--out", out)
    assert code == 0
    assert out.exists()


def test_warm_operands_are_a_note(database, write):
    """33 MB of weights read in 5 us: from L2, but no faster than the tensor cores."""
    cells = [("h100", "x", "1", 1, 4096, 4096, 5e-6)]
    (note,) = found(database, write(pd.DataFrame(cells, columns=[*CELLS, "op_time"])), "warm cache")
    assert (note["severity"], note["count"]) == ("note", 1)


def test_a_token_that_comes_before_the_weights_are_read(database, write):
    """70 GB of fp8 weights on one H200 of 4.8 TB/s are 14.7 ms, on eight 1.8 ms."""
    runs = served([3.0, 12.0, 15.0], [1, 2, 4], llm="meta-llama/Llama-3.1-70B", dtype="fp8", tp=1)
    (error,) = found(database, write(runs), "impossible")
    assert (error["severity"], error["rows"]) == ("error", (1, 2))
    assert "takes to read the weights once (0.0147 s); likely another unit" in error["message"]
    assert found(database, write(runs.assign(tp=8)), "impossible") == []
    (warning,) = found(database, write(runs.drop(columns="tp")), "impossible")
    assert warning["severity"] == "warning"
    assert "add a column tp" in warning["message"]


# --- outliers --------------------------------------------------------------------------------


def test_the_tail_of_a_student_by_closed_form():
    from scipy.stats import t as student

    z = np.array([0.0, 0.5, 2.0, 5.0, 40.0])
    np.testing.assert_allclose(tail_probability(z), 2 * student.sf(z * np.sqrt(2), 4), rtol=1e-9)
    np.testing.assert_allclose(tail_probability(-z), tail_probability(z))


def test_an_outlier_is_more_probable_the_farther_it_lies():
    probability = outlier_probability(np.log([1.0, 1.2, 2.0, 4.0]), np.full(4, 0.08))
    assert (np.diff(probability) > 0).all()
    assert probability[0] < 0.01
    assert probability[-1] > NAMED


def test_a_row_four_times_off_is_named_and_no_other(database, write, rows):
    table = rows.assign(op_time=rows["op_time"].mask(rows.index == 12, rows["op_time"] * 4))
    (outlier,) = found(database, write(table), "outlier")
    assert outlier["severity"] == "warning"
    assert outlier["rows"] == (13,)
    assert "tail probability" in outlier["message"]
    assert found(database, write(rows), "outlier") == []


def test_a_card_that_is_slower_throughout_has_no_outliers(database, write, rows):
    """Its level is its own: thirty per cent in all rows is another engine, not forty mistakes."""
    slow = rows.assign(
        op_time=rows["op_time"] * np.where(rows["sku"].str.startswith("L40S"), 1.3, 1)
    )
    assert found(database, write(slow), "outlier") == []


def test_stored_cells_are_rarely_outliers(database, write):
    """The predictive is calibrated: of unseen cells next to none is named."""
    table = database.table("gemm_bf16_test").iloc[::40]
    part = read(database, [write(table)])
    judged = predicted(database, part, cards_of(database, part))
    named = (judged["outlier"] > NAMED) & (judged["error"].abs() > LEAST)
    assert named.mean() < 0.01
    assert (judged["tail"] < 0.05).mean() < 0.15


def test_an_unknown_card_is_not_held_against_anything(database, write, rows):
    path = write(rows.drop(columns="sku"))
    found = linted(database, [path])
    assert [f["rule"] for f in found if f["severity"] != "note"] == []
    assert any("names no card; add --sku NAME" in f["message"] for f in found)


# --- served runs -----------------------------------------------------------------------------


def served(tpot, concurrency, **columns):
    table = {"sku": "h200", "backend": "vllm", "version": "0.16.0", "llm": "my/llm", "tp": 8,
             "concurrency": concurrency, "input_tokens": 1024, "output_tokens": 8192,
             "tpot [ms]": tpot}  # fmt: skip
    return pd.DataFrame(table | columns)


def test_the_wrong_run_of_a_pair_is_named_by_its_neighbours(database, write):
    table = served([10, 12, 64, 16, 24, 40], [4, 8, 16, 16, 32, 64])
    (outlier,) = found(database, write(table), "outlier")
    assert outlier["rows"] == (3,)
    assert "64.00 ms against 16" in outlier["message"]
    assert "concurrency 16" in outlier["message"]


def test_without_neighbours_both_runs_of_a_pair_are_named(database, write):
    assert [f["rows"] for f in found(database, write(served([64, 16], [16, 16])), "outlier")] == [
        (1,),
        (2,),
    ]


def test_another_configuration_is_no_repeat(database, write):
    assert found(database, write(served([64, 16], [16, 16], tp=[1, 8])), "outlier") == []


def test_disagreement_is_to_the_nearest_reference():
    log, level = np.log([1.0, 2.0, 2.2, 8.0, 4.0]), np.log([1.0, 2.0, 2.0, 2.0, 4.0])
    score, _ = disagreement(log, np.zeros(5), level)
    np.testing.assert_allclose(np.exp(score[1:4]), [1.0, 1.1, 8 / 2.2])
    assert np.isnan(score[[0, 4]]).all()


@pytest.fixture(scope="module")
def sample(database):
    spec = importlib.util.find_spec("aiconfigurator_core")
    if not spec:
        pytest.skip("needs aiconfigurator-core")
    path = Path(spec.submodule_search_locations[0]) / "systems" / "silicon_sample.csv"
    return path, linted(database, [str(path)])


def test_what_the_packaged_sample_shows(sample):
    """Counted by hand: 77 copies, 868 rows without a version, one run four times too slow."""
    _, findings = sample
    assert not [f for f in findings if f["severity"] == "error"]
    counts = {f["rule"]: f["count"] for f in findings if f["rule"] in ("copies", "version")}
    assert counts == {"copies": 77, "version": 868}
    outliers = [f for f in findings if f["rule"] == "outlier"]
    (kimi,) = [f for f in outliers if "Kimi-K2.5" in f["message"] and "tpot" in f["message"]]
    assert outliers[0] == kimi  # the worst of all
    assert "63.98 ms against 16.00 ms" in kimi["message"]
    assert "concurrency 16, input_tokens 1024, output_tokens 8192" in kimi["message"]


def test_the_order_of_rows_is_without_effect(sample, database, tmp_path):
    """Row numbers apart: the same rules, counts, and configurations named."""
    path, findings = sample
    shuffled = tmp_path / path.name
    pd.read_csv(path, dtype=str).sample(frac=1, random_state=3).to_csv(shuffled, index=False)
    again = linted(database, [str(shuffled)])

    def essence(found, file):
        texts = [f["message"].replace(str(file), "") for f in found]
        return sorted(t.partition(", t")[2] if ": row " in t else t for t in texts)

    assert essence(again, shuffled) == essence(findings, path)


@pytest.mark.skipif(not EXTERNAL, reason="M2BAYES_EXTERNAL_DATA names no folder")
def test_replicates_of_a_published_profile_are_counted(database):
    path = Path(EXTERNAL, "vidur", "a100", "meta-llama", "Meta-Llama-3-8B", "mlp.csv")
    (note,) = found(database, str(path), "replicates")
    raw = pd.read_csv(path).groupby(["num_tokens", "num_tensor_parallel_workers"]).size()
    assert note["count"] == (raw > 1).sum()
    assert (
        "(num_tokens, num_tensor_parallel_workers) are measured more than once" in note["message"]
    )


# --- the command -----------------------------------------------------------------------------


def test_exit_codes_and_the_report(write, rows, capsys):
    path = write(rows)
    code, out, err = run(capsys, "lint", path)
    assert code == 0
    assert "holding 40 rows against the posterior" in err
    bad = write(rows.assign(op_time=-1.0), "bad.csv")
    code, out, err = run(capsys, "lint", path, bad, "--json", "--quiet")
    report = json.loads(out)
    assert (code, err) == (2, "")
    errors = [f for f in report if f["severity"] == "error"]
    assert {f["file"] for f in errors} == {bad}
    assert set(errors[0]) == {"severity", "rule", "place", "message", "count", "rows", "file"}
    warned = write(rows.drop(columns="version"), "warned.csv")
    code, out, _ = run(capsys, "lint", warned)
    assert code == 0
    assert out.startswith("warning: ")


def test_datasheets_and_measurements_in_one_call(database, write, rows, capsys):
    card = database.root / "data" / "datasheets" / "H100-80GB-SXM.json"
    assert run(capsys, "lint", card, write(rows))[0] == 0
    run_file = Path(write(rows)).with_name("run.json")
    run_file.write_text(json.dumps({"avg_latency": 1.0}))
    with pytest.raises(DataError, match="add --given batch"):
        linted(database, [str(run_file)])
