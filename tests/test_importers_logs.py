"""Logs of drivers and counters of profilers: clocks under load, activity of the tensor pipe."""

import os
from pathlib import Path

import numpy as np
import pytest

from m2bayes import read_measurements
from m2bayes.errors import DataError
from m2bayes.measurements import clock_readings

EXTERNAL = os.environ.get("M2BAYES_EXTERNAL_DATA")
outside = pytest.mark.skipif(not EXTERNAL, reason="M2BAYES_EXTERNAL_DATA names no folder")
LOAD = {"M": 16384, "N": 6144, "K": 4096, "op": "qkv"}


@pytest.fixture
def write(tmp_path):
    def write(text, name="log.csv"):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def refused(*args, **kwargs):
    with pytest.raises(DataError) as caught:
        read_measurements(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def query(clocks, *, busy=100, limit=700.0, device="NVIDIA H100 80GB HBM3", unit=True):
    """Log of ``nvidia-smi --query-gpu=… --format=csv``, with or without units in its cells."""
    mhz, watt, percent = (" MHz", " W", " %") if unit else ("", "", "")
    lines = [
        "timestamp, name, index, clocks.current.sm [MHz], power.limit [W], utilization.gpu [%]"
    ]
    for i, clock in enumerate(clocks):
        use = busy if np.isscalar(busy) else busy[i]
        lines.append(
            f"2026/11/29 12:00:{i % 60:02d}.123, {device}, 0, {clock}{mhz}, {limit:.2f}{watt}, "
            f"{use}{percent}"
        )
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("unit", [True, False])
def test_the_clock_is_the_median_of_the_settled_samples_under_load(write, unit):
    """Ten idle samples, ten that settle, forty at 1400 MHz."""
    clocks = [345] * 10 + [1980] * 10 + [1395, 1410] * 20
    log = query(clocks, busy=[0] * 10 + [100] * 50, unit=unit)
    (row,) = read_measurements(write(log), "nvidia-smi", **LOAD).to_dict("records")
    assert row["sku"] == "H100-80GB-SXM"
    assert row["sustained_clock"] == pytest.approx(1402.5e6)
    assert row["half_width"] == 7.5e6  # of the clock's own step
    assert row["power_limit"] == 700
    assert (row["M"], row["op"]) == (16384, "qkv")
    assert row["samples"] == 40


def test_blocks_that_differ_widen_the_interval(write):
    """Five blocks of ten with medians 1300 to 1500 MHz: t of four degrees over the root of five."""
    clocks = [1980] * 12 + [c for c in (1300, 1350, 1400, 1450, 1500) for _ in range(10)]
    (row,) = read_measurements(write(query(clocks)), "nvidia-smi", **LOAD).to_dict("records")
    width = 2.776 * np.std([1300, 1350, 1400, 1450, 1500], ddof=1) / np.sqrt(5) * 1e6
    assert row["half_width"] == pytest.approx(width, rel=1e-9)


def test_a_clock_log_is_what_a_fit_reads(write, database):
    table = read_measurements(write(query([1980] * 5 + [1500] * 30)), "nvidia-smi", **LOAD)
    readings = clock_readings(table, database.datasheets(["h100"]), origin="log")
    assert readings["reading_log_share"].values == pytest.approx(np.log(1500 / 1980))
    sweep = [query([900 + limit] * 20, limit=limit) for limit in (400, 700)]
    text = sweep[0] + "".join(sweep[1].splitlines(keepends=True)[1:])
    table = read_measurements(write(text), "nvidia-smi")
    steps = clock_readings(table, database.datasheets(["h100"]), origin="log")
    assert steps["cap_log_clock"].values == pytest.approx(np.log(1600 / 1300))


DMON = """# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec   mclk   pclk
# Idx      W      C      C      %      %      %      %    MHz    MHz
"""


def test_dmon_in_columns_and_in_commas(write):
    rows = "".join(f"    0    690     60     -    {u}   30   0   0   2619   {c}\n"
                   for u, c in [(0, 345)] * 5 + [(100, 1980)] * 5 + [(99, 1410)] * 40)  # fmt: skip
    path = write(DMON + rows + DMON)  # the header comes again every screen
    (row,) = read_measurements(path, "nvidia-smi", sku="h100", **LOAD).to_dict("records")
    assert row["sustained_clock"] == 1410e6
    commas = DMON.replace("# ", "#") + rows
    commas = "\n".join(", ".join(line.split()) for line in commas.splitlines())
    (same,) = read_measurements(write(commas), sku="h100", **LOAD).to_dict("records")
    assert str(same) == str(row)
    dated = (
        "#Date Time gpu pclk sm\n#YYYYMMDD HH:MM:SS Idx MHz %\n"
        + " 20261129 12:00:00 0 1500 99\n" * 20
    )
    assert read_measurements(write(dated), sku="h100")["sustained_clock"].tolist() == [1500e6]
    assert "line 55 has 3 of 10 cells; is it cut off?" in refused(
        write(DMON + rows + DMON + "    0   690  60\n"), "nvidia-smi", sku="h100"
    )


def test_dcgm_names_its_entities_in_two_words(write):
    text = "#Entity   SMACT        TENSO        SMCLK\nID\n" + "GPU 0   0.981   0.652   1500\n" * 20
    text += "GPU 0   N/A   N/A   1500\n"
    (row,) = read_measurements(write(text), sku="h100", **LOAD).to_dict("records")
    assert row["sustained_clock"] == 1500e6
    assert row["samples"] == 16  # a fifth settles, and nothing is known of the last


@outside
def test_a_published_sweep_of_locked_clocks():
    path = Path(EXTERNAL, "gpu-freq-a100-v100", "GA100-dvfs-dgemm-dcgm.csv")
    table = read_measurements(path, sku="a100")
    assert len(table) == 61
    assert set(table["op"]) == {"dgemm"}
    assert table["sustained_clock"].min() == pytest.approx(510e6, rel=0.01)
    assert table["sustained_clock"].max() == pytest.approx(1410e6, rel=0.01)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (query([1500] * 5), "fewer than 10 samples under load"),
        (query([1500] * 30, busy=10), "fewer than 10 samples under load"),
        (query([1500] * 30).replace("1500 MHz", "fast", 1), "column clocks.current.sm: 'fast'"),
        (query([1500] * 30, device="Radeon"), "unknown SKU 'Radeon'"),
        ("timestamp, name, power.draw [W]\nx, y, 1 W\n", "no column clocks.sm"),
        ("1980 MHz, 99 %\n1980 MHz, 99 %\n", "it has no header: log without noheader"),
        ("# gpu pwr\n# Idx W\n 0 1\n", "no column pclk or SMCLK"),
        ("# gpu pclk\n# Idx MHz\n", "holds no sample"),
    ],
)
def test_a_log_that_says_no_clock_is_refused(write, text, message):
    assert message in refused(write(text), "nvidia-smi")


# --- counters --------------------------------------------------------------------------------

ACTIVE = "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active"
ELAPSED = ACTIVE.replace("sustained_active", "sustained_elapsed")
LONG = f'''==PROF== Connected to process 7
"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","gemm(a, b)","{ACTIVE}","%","96.00"
"0","gemm(a, b)","{ELAPSED}","%","72.00"
"0","gemm(a, b)","gpu__time_duration.sum","usecond","1,250.00"
"1","copy","dram__bytes.sum","Mbyte","3.5"
==PROF== Disconnected from process 7
'''
WIDE = f'''"ID","Kernel Name","{ACTIVE}","gpu__time_duration.sum"
"","","%","nsecond"
"0","gemm","96.00","1,250,000"
'''


def test_activity_of_the_tensor_pipe_one_metric_a_row(write):
    (row,) = read_measurements(write(LONG), "ncu", sku="h100", op="qkv").to_dict("records")
    assert row["kernel"] == "gemm(a, b)"
    assert row["eta_active"] == pytest.approx(0.96)
    assert row["eta_duty"] == pytest.approx(0.75)
    assert row["op_time"] == pytest.approx(1.25e-3)
    assert row["op"] == "qkv"


def test_activity_of_the_tensor_pipe_one_kernel_a_row(write):
    (row,) = read_measurements(write(WIDE), sku="h100", M=4096, N=4096, K=4096).to_dict("records")
    assert (row["eta_active"], row["M"]) == (pytest.approx(0.96), 4096)
    assert row["op_time"] == pytest.approx(1.25e-3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LONG.replace("96.00", "9a"), f"kernel 1, {ACTIVE}: '9a' is no number"),
        (LONG.replace("usecond", "fortnight"), "unknown unit 'fortnight'"),
        (LONG.replace(ACTIVE, "x").replace(ELAPSED, "y"), "no tensor-pipe activity; collect"),
        (LONG.replace('"%","72.00"', '"%"'), "row 2 has 4 of 5 cells; is it cut off?"),
        (LONG.replace("Kernel Name", "Name"), "no column Kernel Name"),
        (LONG.replace("96.00", "196.00"), "is not between 0 and 1"),
    ],
)
def test_counters_that_say_nothing_are_refused(write, text, message):
    assert message in refused(write(text), "ncu", sku="h100")
