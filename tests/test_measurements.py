"""A table of kernel times is refused at the door with its row, or becomes cells and runs."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from m2bayes.errors import DataError, M2BayesError, UnknownNameError
from m2bayes.measurements import (
    CEILING,
    COLUMNS,
    FLOOR,
    checked,
    clock_readings,
    content_hash,
    runs_by_cell,
)
from m2bayes.mechanism.laws import LAWS

ROWS = [
    ("A", "sglang", "1.0", 64, 512, 256, 2e-5),
    ("A", "vllm", "2.0", 64, 512, 256, 3e-5),
    ("A", "vllm", "2.0", 1, 512, 256, 1e-5),
    ("B", "sglang", "1.0", 64, 512, 256, 4e-5),
]


def table(rows=ROWS):
    return pd.DataFrame(rows, columns=list(COLUMNS))


def changed(column, value, row=2):
    """The table with one deliberate mistake, as a CSV could hold it."""
    spoilt = table().astype(object)
    spoilt.loc[row, column] = value
    return spoilt


def refusal(function, *args, **kwargs):
    with pytest.raises(M2BayesError) as caught:
        function(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    return message


MISTAKES = [
    ("op_time", -1e-5, "-1e-05 is not a time above zero, in seconds"),
    ("op_time", 0, "0.0 is not a time above zero, in seconds"),
    ("op_time", np.nan, "nan is not a finite number"),
    ("op_time", np.inf, "inf is not a finite number"),
    ("op_time", -np.inf, "-inf is not a finite number"),
    ("op_time", "fast", "fast is not a finite number"),
    ("op_time", "", " is not a finite number"),
    ("op_time", None, "None is not a finite number"),
    ("op_time", 12345.6, "12345.6 is not between 1e-07 and 1000.0 s; is the unit right?"),
    ("op_time", 2e-8, "2e-08 is not between 1e-07 and 1000.0 s; is the unit right?"),
    ("M", 0, "0.0 is not at least 1"),
    ("M", -64, "-64.0 is not at least 1"),
    ("M", 1.5, "1.5 is not a whole number"),
    ("M", np.nan, "nan is not a finite number"),
    ("N", "wide", "wide is not a finite number"),
    ("N", np.inf, "inf is not a finite number"),
    ("K", 0.5, "0.5 is not at least 1"),
    ("K", 256.25, "256.25 is not a whole number"),
    ("M", 10**7 + 1, "10000001.0 is not at most 10,000,000"),
    ("N", 1e300, "1e+300 is not at most 10,000,000"),
    ("N", 10**400, "1" + "0" * 59 + " is not a finite number"),
    ("N", "wide\nand long", r"'wide\nand long' is not a finite number"),
    ("N", "9" * 500, "9" * 60 + " is not a finite number"),
    ("backend", " any", " any is not the name of a build: 'any' means an unknown one"),
    ("backend", "any", "any is not the name of a build: 'any' means an unknown one"),
    ("backend", "", " is not a name"),
    ("sku", "  ", "   is not a name"),
    ("sku", None, "None is not a name"),
    ("sku", np.nan, "nan is not a name"),
    ("backend", np.nan, "nan is not a name"),
    ("version", np.nan, "nan is not a name"),
]


@pytest.mark.parametrize(("column", "value", "complaint"), MISTAKES)
def test_a_bad_row_is_named_with_its_column_and_what_it_should_be(column, value, complaint):
    message = refusal(checked, changed(column, value), origin="mine.csv")
    assert message == f"mine.csv: row 3, column {column}: {complaint}"


def test_a_microsecond_table_declared_in_seconds_is_refused():
    """Kernel times of 10 to 40 in µs: none could be a kernel time above 1000 s but one."""
    spoilt = table().assign(op_time=table()["op_time"] * 1e9)
    assert "is the unit right?" in refusal(checked, spoilt, origin="mine.csv")


@pytest.mark.parametrize("time", [FLOOR, CEILING])
def test_the_bounds_themselves_are_taken(time):
    assert checked(changed("op_time", time), origin="mine.csv")["op_time"].isin([time]).any()


def test_the_first_bad_row_is_the_one_named():
    spoilt = changed("op_time", -1, row=3)
    spoilt.loc[1, "op_time"] = -2
    assert "row 2, column op_time: -2" in refusal(checked, spoilt, origin="mine.csv")


@pytest.mark.parametrize("column", COLUMNS)
def test_a_missing_column_is_named_beside_those_that_are_needed(column):
    message = refusal(checked, table().drop(columns=column), origin="mine.csv")
    needed = f"mine.csv: no column {column}; needed are {', '.join(COLUMNS)}"
    assert message == f"{needed} (m2bayes import makes such a table of other files and units)"


def test_an_empty_table_is_refused():
    with pytest.raises(DataError, match=r"mine\.csv: the table holds no row"):
        checked(table([]), origin="mine.csv")


def test_other_columns_are_left_out_and_the_given_table_is_left_alone():
    given_table = table().assign(note="by hand")
    before = given_table.copy()
    assert list(checked(given_table, origin="mine.csv").columns) == list(COLUMNS)
    pd.testing.assert_frame_equal(given_table, before)


def test_numbers_written_as_text_are_numbers():
    pd.testing.assert_frame_equal(
        checked(table().astype(str), origin="mine.csv"), checked(table(), origin="mine.csv")
    )


def test_a_version_that_looks_like_a_number_stays_a_name():
    clean = checked(table().assign(version=1.10), origin="mine.csv")
    assert set(clean["version"]) == {"1.1"}
    assert clean["version"].map(type).eq(str).all()


@given(st.permutations(range(len(ROWS))))
def test_the_order_of_rows_changes_nothing(order):
    shuffled = checked(table([ROWS[i] for i in order]), origin="mine.csv")
    plain = checked(table(), origin="mine.csv")
    pd.testing.assert_frame_equal(shuffled, plain)
    assert runs_by_cell(shuffled, skus=["A", "B"]).equals(runs_by_cell(plain, skus=["A", "B"]))


# --- cells -----------------------------------------------------------------------------------


def cells(rows=ROWS, skus=("A", "B")):
    return runs_by_cell(checked(table(rows), origin="mine.csv"), skus=list(skus))


def test_repeated_runs_of_a_cell_become_its_replicates():
    """By hand: three cells, at most two runs each."""
    found = cells()
    assert dict(found.sizes) == {"cell": 3, "run": 2}
    assert found["cell"].values.tolist() == ["A/1x512x256", "A/64x512x256", "B/64x512x256"]
    assert found["sku"].values.tolist() == ["A", "A", "B"]
    assert found["M"].values.tolist() == [1, 64, 64]
    expected = [[1e-5, np.nan], [2e-5, 3e-5], [4e-5, np.nan]]
    np.testing.assert_array_equal(found["op_time"], expected)
    assert found["backend"].values.tolist() == [["vllm", ""], ["sglang", "vllm"], ["sglang", ""]]
    assert found["op_time"].attrs["units"] == "s"
    assert {found[side].attrs["units"] for side in ("M", "N", "K")} == {"1"}


def test_a_row_given_twice_is_two_runs_of_one_build():
    found = cells([*ROWS, ROWS[0]])
    assert found["backend"].sel(cell="A/64x512x256").values.tolist() == ["sglang", "sglang", "vllm"]
    assert np.isfinite(found["op_time"]).sum() == len(ROWS) + 1


def test_every_run_keeps_its_own_time_and_backend(database):
    """Against pandas, on the stored table: nothing is lost, moved or averaged."""
    clean = checked(database.table("gemm_bf16"), origin="gemm_bf16")
    found = runs_by_cell(clean, skus=database.skus())
    flat = found.to_dataframe().reset_index().dropna(subset="op_time")
    keys = ["sku", "M", "N", "K", "backend", "op_time"]
    pd.testing.assert_frame_equal(
        flat[keys].sort_values(keys, ignore_index=True),
        clean[keys].sort_values(keys, ignore_index=True),
    )
    assert found.indexes["cell"].is_unique


def test_a_sku_without_a_datasheet_is_refused_with_the_closest_names():
    with pytest.raises(UnknownNameError, match="unknown SKU 'B'; "):
        cells(skus=["A"])
    rows = [("H100-80GB-SMX", *ROWS[0][1:])]
    message = refusal(cells, rows, skus=["H100-80GB-SXM", "L4-24GB-PCIe"])
    assert "did you mean H100-80GB-SXM" in message


# --- identity --------------------------------------------------------------------------------


@given(st.permutations(range(len(ROWS))))
def test_the_hash_of_a_table_does_not_depend_on_the_order_of_its_rows(order):
    plain = content_hash(checked(table(), origin="mine.csv"))
    assert content_hash(checked(table([ROWS[i] for i in order]), origin="mine.csv")) == plain


@pytest.mark.parametrize(("column", "value"), [("op_time", 3.0001e-5), ("M", 2), ("sku", "B")])
def test_another_value_gives_another_hash(column, value):
    plain = content_hash(checked(table(), origin="mine.csv"))
    assert content_hash(checked(changed(column, value), origin="mine.csv")) != plain
    assert content_hash(checked(table(ROWS[:3]), origin="mine.csv")) != plain


# --- clock telemetry -------------------------------------------------------------------------


def test_clock_readings_of_the_source_by_hand(database):
    """A100: 1125 ± 20.4 MHz of 1410. RTX 5090, capped from 575 to 400 W: 2730 to 2452 MHz."""
    sheets = database.datasheets(["h200", "a100"])
    found = clock_readings(database.table("clock_sustained"), sheets, origin="clock")
    assert found.sizes == {"reading": 2, "sweep": 1}
    a100 = found.isel(reading=found["sku"].values.tolist().index("A100-80GB-SXM"))
    np.testing.assert_allclose(a100["reading_log_share"], np.log(1125 / 1410), rtol=1e-12)
    np.testing.assert_allclose(a100["reading_error"], 20.4 / 1.96 / 1125, rtol=1e-12)
    assert [float(a100[v]) for v in ("M", "N", "K")] == [16384, 6144, 4096]
    np.testing.assert_allclose(found["cap_log_power"], np.log(575 / 400), rtol=1e-12)
    np.testing.assert_allclose(found["cap_log_clock"], np.log(2730 / 2452), rtol=1e-12)


def test_sweeps_are_steps_within_one_card_in_the_order_of_their_limits(database):
    """Two cards swept in three and two steps, rows mixed: three ratios, none between cards."""
    rows = [("X", 300, 2e9), ("Y", 100, 1e9), ("X", 100, 1e9), ("Y", 200, 1.5e9), ("X", 200, 1.8e9)]
    sweep = pd.DataFrame(rows, columns=["sku", "power_limit", "sustained_clock"])
    sweep = sweep.assign(M=np.nan, N=np.nan, K=np.nan, half_width=np.nan)
    found = clock_readings(sweep, database.datasheets(["h100"]), origin="clock")
    assert found.sizes == {"reading": 0, "sweep": 3}
    np.testing.assert_allclose(found["cap_log_power"], np.log([2.0, 1.5, 2.0]), rtol=1e-12)
    np.testing.assert_allclose(found["cap_log_clock"], np.log([1.8, 2 / 1.8, 1.5]), rtol=1e-12)


@pytest.mark.parametrize("column", ["M", "power_limit", "sustained_clock", "half_width", "sku"])
def test_telemetry_without_a_column_is_refused(database, column):
    lacking = database.table("clock_sustained").drop(columns=column)
    message = refusal(clock_readings, lacking, database.datasheets(["h100"]), origin="mine.csv")
    assert message.startswith(f"mine.csv: no column {column}; needed are sku, M, N, K, power_limit")


@pytest.mark.parametrize("clock", [0.0, -1e9, np.nan])
def test_a_clock_that_is_none_is_refused(database, clock):
    spoilt = database.table("clock_sustained")
    spoilt.loc[1, "sustained_clock"] = clock
    message = refusal(clock_readings, spoilt, database.datasheets(["h100"]), origin="mine.csv")
    assert message == f"mine.csv: row 2, column sustained_clock: {clock} is not a clock above zero"


TELEMETRY = [
    ("M", 0, "0 is not a size"),
    ("N", "wide", "wide is not a size"),
    ("K", np.inf, "inf is not a size"),
    ("K", np.nan, "nan is not a size: give all of M, N, K or none"),
    ("sustained_clock", "fast", "fast is not a clock above zero"),
    ("sustained_clock", np.inf, "inf is not a clock above zero"),
    ("half_width", 0, "0 is not a half width above zero, in Hz"),
    ("half_width", -1e6, "-1000000.0 is not a half width above zero, in Hz"),
    ("half_width", np.nan, "nan is not a half width above zero, in Hz"),
    ("half_width", "narrow", "narrow is not a half width above zero, in Hz"),
    ("sku", np.nan, "nan is not a name"),
]


@pytest.mark.parametrize(("column", "value", "complaint"), TELEMETRY)
def test_a_bad_reading_is_named_with_its_row_and_column(database, column, value, complaint):
    spoilt = database.table("clock_sustained").astype(object)
    spoilt.loc[2, column] = value
    message = refusal(clock_readings, spoilt, database.datasheets(["h100"]), origin="mine.csv")
    assert message == f"mine.csv: row 3, column {column}: {complaint}"


@pytest.mark.parametrize("limit", [np.nan, 0, "all"])
def test_a_step_of_a_sweep_needs_its_power_limit(database, limit):
    spoilt = database.table("clock_sustained").astype(object)
    at = int(np.flatnonzero(spoilt["M"].isna())[0])
    spoilt.loc[at, "power_limit"] = limit
    message = refusal(clock_readings, spoilt, database.datasheets(["h100"]), origin="mine.csv")
    complaint = f"{limit} is not a power above zero, in W; give it, or the M, N, K of a load"
    assert message == f"mine.csv: row {at + 1}, column power_limit: {complaint}"


def test_telemetry_without_a_row_is_refused(database):
    none = database.table("clock_sustained").iloc[:0]
    message = refusal(clock_readings, none, database.datasheets(["h100"]), origin="mine.csv")
    assert message == "mine.csv: the table holds no row; give at least one reading"


def test_an_allreduce_of_one_card_is_refused():
    table = pd.DataFrame(
        {"sku": ["x"], "backend": ["b"], "version": ["1.0"], "gpus": [1], "bytes": [1e6]}
    )
    with pytest.raises(DataError, match=r"gpus.*1\.0 is not at least 2|1 is not at least 2"):
        checked(table.assign(op_time=1e-5), origin="ours", law=LAWS["allreduce_time"])
