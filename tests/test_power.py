"""Power limits: no limit, known exponents, and one law for NumPy and PyTensor."""

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from m2bayes.errors import DataError
from m2bayes.mechanism.power import capped_bandwidth, capped_clock, lowest_limit
from m2bayes.outside import VARIABLE
from m2bayes.suites import Setting, power

EXACT = {"rtol": 1e-12, "atol": 0}
watts = st.floats(50.0, 1000.0)
slopes = st.floats(0.05, 2.0)


@given(watts, slopes)
def test_the_cards_own_limit_or_a_higher_one_changes_nothing(limit, slope):
    assert capped_clock(1980e6, limit, limit, slope) == 1980e6
    assert capped_clock(1980e6, 2 * limit, limit, slope) == 1980e6


@given(watts, watts, watts, slopes)
def test_a_lower_limit_never_means_a_higher_clock(a, b, card, slope):
    low, high = sorted((a, b))
    at_low, at_high = (capped_clock(1.0, w, card, slope) for w in (low, high))
    assert 0 < at_low <= at_high <= 1


@given(watts, slopes, slopes)
def test_a_larger_exponent_never_means_a_higher_clock(limit, a, b):
    gentle, steep = sorted((a, b))
    assert capped_clock(1.0, limit, 1000.0, steep) <= capped_clock(1.0, limit, 1000.0, gentle)


@given(watts, watts, slopes, st.floats(0.1, 10.0))
def test_units_of_power_and_clock_cancel(limit, card, slope, scale):
    one = capped_clock(1.4e9, limit, card, slope)
    np.testing.assert_allclose(
        capped_clock(1.4e9 * scale, limit * scale, card * scale, slope), one * scale, rtol=1e-12
    )


def test_the_sources_sweep_is_its_own_exponent(database):
    """575 to 400 W took the source's RTX 5090 from 2730 to 2452 MHz, and not the other way."""
    table = database.table("clock_sustained")
    sweep = table[table["sku"].str.startswith("RTX-5090")].sort_values("power_limit")
    (low, high), (slow, fast) = (sweep[c].astype(float) for c in ("power_limit", "sustained_clock"))
    slope = np.log(slow / fast) / np.log(low / high)
    assert slope == pytest.approx(0.296, abs=0.5e-3)
    np.testing.assert_allclose(capped_clock(fast, low, high, slope), slow, **EXACT)
    mistake = fast * (high / low) ** slope  # the ratio upside down
    assert abs(mistake / slow - 1) > 0.2


@given(st.floats(0.05, 1.0), st.floats(0.05, 1.0))
def test_bandwidth_falls_with_the_clock_and_only_below_the_knee(a, b):
    low, high = sorted((a, b))
    assert capped_bandwidth(low) <= capped_bandwidth(high) <= 1
    assert capped_bandwidth(max(high, 0.62)) == 1
    assert capped_bandwidth(low, knee=low) == 1


def test_the_lowest_limit_is_half_and_the_sources_sweep_is_allowed():
    sheets = xr.DataArray([700.0, 575.0], {"sku": ["a", "b"]}, dims="sku")
    assert lowest_limit(sheets).values.tolist() == [350.0, 287.5]
    assert lowest_limit(575.0) < 400.0


def test_numpy_xarray_and_pytensor_agree():
    limits, slopes = np.array([[200.0], [400.0], [900.0]]), np.array([0.2, 1 / 3, 0.9])
    inputs = [pt.dcol("power"), pt.dvector("slope")]
    laws = [capped_clock(1.4e9, inputs[0], 400.0, inputs[1]), capped_bandwidth(inputs[1])]
    compiled = pytensor.function(inputs, laws, mode="FAST_COMPILE")
    plain = [capped_clock(1.4e9, limits, 400.0, slopes), capped_bandwidth(slopes)]
    for found, wanted in zip(compiled(limits, slopes), plain, strict=True):
        np.testing.assert_allclose(found, wanted, **EXACT)
    named = capped_clock(
        1.4e9, xr.DataArray(limits[:, 0], dims="limit"), 400.0, xr.DataArray(slopes, dims="draw")
    )
    assert named.dims == ("limit", "draw")
    np.testing.assert_allclose(named.values, plain[0], **EXACT)


# --- the suite -------------------------------------------------------------------------------

LOAD = {"gpu": "RTX 3090", "control": "cap", "load": "prefill", "model_engine": "made up"}
OUTSIDE = Path(os.environ.get(VARIABLE, "nowhere"))
LACKING = [file for folder, file in power.FILES.values() if not (OUTSIDE / folder / file).is_file()]


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """Made-up tables: an exponent of 0.4 above and 2 below 245 W, of 0.5 for the submissions."""
    caps = np.array([175.0, 189, 203, 217, 245, 259, 280, 301, 322, 343])
    clock = 1600 * np.where(caps < 245, (caps / 245) ** 2 * 0.7**0.4, (caps / 350) ** 0.4)
    sweeps = pd.DataFrame(
        {**LOAD, "cap_w": caps, "sm_mhz": clock, "power_w": caps, "tps": clock**0.5}
    )
    idle = sweeps.tail(1).assign(cap_w=350.0, tps=1.0)  # a limit that does not bind
    locked = sweeps.assign(control="lock", tps=1.0)
    limits = np.array([350.0, 700, 1000])
    submitted = pd.DataFrame(
        {
            "accelerator": ["X", "X", "X-CTS"],
            "gpu_power_limit_w": limits,
            "model": "llm",
            "scenario": "Offline",
            "tokens_per_s": 100 * limits**0.5,
        }
    )
    mhz = np.arange(510.0, 1411.0, 60)
    tables = {
        "sweeps": pd.concat([sweeps, idle, locked]),
        "submissions": submitted,
        "dgemm": pd.DataFrame({"dvfs": mhz, "flops": 13.7 * mhz}),
        "dgemm power": pd.DataFrame({"sm_app_clock": mhz, "power_usage": 400 * (mhz / 1410) ** 4}),
        "stream": pd.DataFrame({"dvfs": mhz, "bandwidth": 1770 * capped_bandwidth(mhz / 1410)}),
    }
    for name, held in tables.items():
        file = tmp_path.joinpath(*power.FILES[name])
        file.parent.mkdir(exist_ok=True)
        held.to_csv(file, index=False)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


def test_made_up_sweeps_give_back_their_exponents(database, outside):
    found = power.run(Setting(database))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    interval = found["predicted"]
    assert 0 < interval["low"] < interval["median"] < interval["high"] < 1
    (held,) = found["sweeps"].values()
    high, low = held["from 0.7"], held["below 0.7"]
    assert (high["limits"], low["limits"]) == (6, 4)
    assert high["clock"]["exponent"] == pytest.approx(0.4, rel=1e-9)
    assert high["throughput"]["exponent"] == pytest.approx(0.2, rel=1e-9)
    assert low["clock"]["exponent"] == pytest.approx(2.0, rel=1e-9)
    assert not low["clock"]["covers"]
    assert high["clock"]["covers"] == (interval["low"] <= 0.4 <= interval["high"])
    assert set(found["files"]) == {"/".join(file) for file in power.FILES.values()}


def test_made_up_submissions_are_compared_with_the_next_higher_limit(database, outside):
    found = power.run(Setting(database))["submissions"]
    assert list(found) == ["X, llm, Offline, 350 of 700 W", "X, llm, Offline, 700 of 1000 W"]
    for pair in found.values():
        assert pair["exponent"] == pytest.approx(0.5, rel=1e-12)
        assert pair["low"] < pair["median"] < 1
        assert pair["inside"] == (pair["low"] <= pair["observed"])


def test_made_up_locked_clocks_follow_the_law(database, outside):
    found = power.run(Setting(database))["locked clocks"]
    assert found["rate"]["exponent"] == pytest.approx(1.0, rel=1e-12)
    assert found["rate"]["spread"] < 1e-12
    assert found["power"]["exponent"] == pytest.approx(0.25, rel=1e-9)
    assert found["bandwidth"]["worst"] < 1e-12
    assert found["bandwidth"]["0.7"] == 1.0


def test_the_standard_error_is_that_of_least_squares(rng):
    """Against the covariance of NumPy's polynomial fit; the wrong degrees of freedom differ."""
    x = pd.Series(np.exp(rng.normal(size=12)))
    y = pd.Series(np.exp(rng.normal(size=12)))
    found = power.exponent(x, y)
    slope, covariance = np.polyfit(np.log(x), np.log(y), 1, cov=True)
    assert found["exponent"] == pytest.approx(slope[0], rel=1e-9)
    assert found["standard_error"] == pytest.approx(covariance[0, 0] ** 0.5, rel=1e-9)
    mistake = found["standard_error"] * np.sqrt(10 / 12)
    assert mistake != pytest.approx(covariance[0, 0] ** 0.5, rel=1e-3)


def test_without_outside_data_the_suite_says_what_it_needs(database, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(DataError, match=f"set {VARIABLE} to the folder of club-3090/"):
        power.run(Setting(database))


@pytest.mark.parametrize("name", power.FILES)
def test_a_table_that_is_not_there_is_named(name, database, outside):
    file = outside.joinpath(*power.FILES[name])
    file.unlink()
    with pytest.raises(DataError) as caught:
        power.run(Setting(database))
    assert str(caught.value) == f"{file}: no such file; fetch it from its project"


@pytest.mark.parametrize(
    ("name", "column"), [(name, column) for name, held in power.COLUMNS.items() for column in held]
)
def test_a_table_without_a_column_is_refused_with_its_name(name, column, outside):
    file = outside.joinpath(*power.FILES[name])
    pd.read_csv(file).drop(columns=column).to_csv(file, index=False)
    with pytest.raises(DataError) as caught:
        power.read()
    assert str(caught.value) == f"{file}: no column {column}; fetch it from its project"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "not a CSV table: No columns to parse from file"),
        (b"dvfs,flops", "no row under column dvfs"),
        (b"dvfs,flops\nfast,1", "column dvfs holds no numbers"),
    ],
)
def test_a_file_that_is_no_table_is_refused(content, complaint, outside):
    file = outside.joinpath(*power.FILES["dgemm"])
    file.write_bytes(content)
    with pytest.raises(DataError) as caught:
        power.read()
    assert str(caught.value) == f"{file}: {complaint}; fetch it from its project"


@pytest.mark.skipif(bool(LACKING), reason=f"{VARIABLE} names no folder with {', '.join(LACKING)}")
def test_public_sweeps_say_what_the_laws_quote(database, monkeypatch):
    """The figures in the docstrings of `m2bayes.mechanism.power`, to their last printed digit."""
    monkeypatch.setenv(VARIABLE, str(OUTSIDE))
    found = power.run(Setting(database))
    locked = found["locked clocks"]
    assert locked["rate"]["exponent"] == pytest.approx(1.0, abs=0.005)
    assert locked["power"]["exponent"] == pytest.approx(0.32, abs=0.005)
    for share, kept in (("0.7", 0.99), ("0.6", 0.96), ("0.5", 0.81), ("0.4", 0.67)):
        assert locked["bandwidth"][share] == pytest.approx(kept, abs=0.005)
    assert locked["bandwidth"]["rms_error"] == pytest.approx(0.03, abs=0.005)
    assert locked["bandwidth"]["worst"] == pytest.approx(0.11, abs=0.005)
    prefill = [v for k, v in found["sweeps"].items() if k.startswith("RTX 3090, prefill")]
    clocks = sorted(held["from 0.7"]["clock"]["exponent"] for held in prefill)
    assert clocks == pytest.approx([0.63, 0.68], abs=0.005)
    for held in prefill:
        assert held["below 0.7"]["clock"]["exponent"] > 2
