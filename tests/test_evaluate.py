"""Predictive draws are scored as said: medians, errors and bands by hand."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from m2bayes.evaluate import (
    MASSES,
    NARROWEST,
    averaged,
    by_build,
    cell_times,
    coverage_band,
    judged,
    median_of_builds,
    of_sku,
    scores,
    wide,
)
from m2bayes.measurements import checked, runs_by_cell

EXACT = {"rtol": 1e-12, "atol": 0}
KEYS = {"mape", "median_ape", "bias", "crps", "pit_mean", "band_low", "band_high"} | {
    f"coverage_{m:.0%}"[:-1] for m in MASSES
}


def builds(values):
    values = np.asarray(values, dtype=float)
    coords = {"cell": [f"cell-{i}" for i in range(len(values))]}
    coords["build"] = [f"build-{i}" for i in range(values.shape[1])]
    return xr.DataArray(values, coords, dims=("cell", "build"))


# --- medians ---------------------------------------------------------------------------------


def test_the_median_of_builds_by_hand():
    nan = np.nan
    time = builds([[3, 1, 2], [4, nan, 2], [nan, nan, 5], [1, 9, 2]])
    np.testing.assert_allclose(median_of_builds(time), [2, 3, 5, 2], **EXACT)
    even = builds([[1, 2, 4, 9], [7, nan, 1, 2]])
    np.testing.assert_allclose(median_of_builds(even), [3, 2], **EXACT)


def test_the_median_of_builds_is_not_the_mean_and_not_one_of_them():
    """The mistakes: a slow build would count, or the upper of two would."""
    time = builds([[1, 2, 30], [1, 2, np.nan]])
    assert not np.allclose(median_of_builds(time), time.mean("build"))
    assert median_of_builds(time).values[1] == 1.5


def test_the_median_of_builds_is_numpys_where_nothing_is_missing(rng):
    for n in (1, 2, 3, 4):
        time = builds(rng.lognormal(size=(20, n)))
        np.testing.assert_allclose(median_of_builds(time), np.median(time, axis=1), **EXACT)
        time = time.where(rng.random((20, n)) < 0.7)
        time[:, 0] = 1.0
        np.testing.assert_allclose(median_of_builds(time), np.nanmedian(time, axis=1), **EXACT)


def test_other_dims_of_the_draws_are_kept(rng):
    time = xr.DataArray(rng.random((2, 5, 3, 4)), dims=("chain", "draw", "build", "cell"))
    found = median_of_builds(time)
    assert found.dims == ("chain", "draw", "cell")
    np.testing.assert_allclose(found, np.median(time, axis=2), **EXACT)


def test_a_build_is_the_median_of_its_own_runs():
    table = pd.DataFrame(
        [
            ("A", b, "1", 64, 512, 256, t)
            for b, t in zip("xxxy", (1e-5, 5e-5, 2e-5, 9e-5), strict=True)
        ]
        + [("A", "x", "1", 1, 512, 256, t) for t in (1e-5, 2e-5)],
        columns=["sku", "backend", "version", "M", "N", "K", "op_time"],
    )
    found = by_build(runs_by_cell(checked(table, origin="table"), skus=["A"]))
    assert found["build"].values.tolist() == ["x", "y"]
    np.testing.assert_allclose(
        found.sel(cell=["A/64x512x256", "A/1x512x256"]),
        [[2e-5, 9e-5], [1.5e-5, np.nan]],
        rtol=1e-12,
    )


# --- scores ----------------------------------------------------------------------------------


def as_draws(values):
    values = np.asarray(values, dtype=float)
    return xr.DataArray(values[None], dims=("chain", "draw", "cell"))


def test_scores_by_hand():
    """Medians 2 and 4 against 1 and 5: errors of 100 % and 20 %."""
    draws = as_draws([[1.0, 3.0], [2.0, 4.0], [3.0, 5.0]])
    found = scores(draws, xr.DataArray([1.0, 5.0], dims="cell"))
    assert set(found) == KEYS
    assert found["mape"] == pytest.approx((1.0 + 0.2) / 2, rel=1e-12)
    assert found["median_ape"] == pytest.approx((1.0 + 0.2) / 2, rel=1e-12)
    assert found["bias"] == pytest.approx((np.log(1 / 2) + np.log(5 / 4)) / 2, rel=1e-12)
    assert all(type(value) is float for value in found.values())


def test_bias_is_positive_where_predictions_are_too_fast():
    draws = as_draws(np.full((5, 3), 2.0) + np.arange(5)[:, None] * 1e-9)
    slower = xr.DataArray([3.0, 3.0, 3.0], dims="cell")
    assert scores(draws, slower)["bias"] == pytest.approx(np.log(1.5), rel=1e-6)


def test_draws_from_the_truth_are_calibrated_and_narrow_ones_are_not(rng):
    """Coverage within four binomial errors; half the spread covers too little."""
    n = 2000
    centre = rng.normal(size=n)
    observed = xr.DataArray(np.exp(centre + 0.1 * rng.normal(size=n)), dims="cell")
    noise = rng.normal(size=(400, n))
    good, narrow = (scores(as_draws(np.exp(centre + s * noise)), observed) for s in (0.1, 0.05))
    for mass in MASSES:
        error = 4 * np.sqrt(mass * (1 - mass) / n) + 2 / 400
        assert abs(good[f"coverage_{mass * 100:.0f}"] - mass) < error
        assert narrow[f"coverage_{mass * 100:.0f}"] < mass - error
    assert abs(good["pit_mean"] - 0.5) < 4 / np.sqrt(12 * n)
    assert good["crps"] < narrow["crps"]
    # CRPS of a calibrated normal is sd / sqrt(pi); the error is that of the mean over cells
    assert good["crps"] == pytest.approx(0.1 / np.sqrt(np.pi), rel=0.1)


def test_crps_is_of_log_time_so_that_units_do_not_matter(rng):
    draws = as_draws(rng.lognormal(size=(50, 10)))
    observed = xr.DataArray(rng.lognormal(size=10), dims="cell")
    one, other = scores(draws, observed), scores(draws * 1e-6, observed * 1e-6)
    for key, value in one.items():
        assert other[key] == pytest.approx(value, rel=1e-9, abs=1e-12)


def test_a_point_predictor_is_judged_by_its_point(rng):
    """Errors of the point, calibration of the draws."""
    draws = as_draws(rng.lognormal(size=(50, 3)))
    observed = xr.DataArray([1.0, 2.0, 4.0], dims="cell")
    found = scores(draws, observed, np.array([1.5, 1.0, 4.0]))
    assert found["mape"] == pytest.approx((0.5 + 0.5 + 0.0) / 3, rel=1e-12)
    assert found["crps"] == scores(draws, observed)["crps"]


# --- bands -----------------------------------------------------------------------------------


@pytest.mark.statistical
def test_the_band_of_independent_cells_is_binomial(rng):
    """99 % of coverages of 400 cells lie within 2.58 binomial errors of 90 %."""
    n = 400
    low, high = coverage_band(as_draws(rng.lognormal(size=(4000, n))))
    error = 2.58 * np.sqrt(0.9 * 0.1 / n)
    assert abs(low - (0.9 - error)) < 0.3 * error
    assert abs(high - (0.9 + error)) < 0.3 * error


@pytest.mark.statistical
def test_errors_that_cells_share_widen_the_band(rng):
    alone = rng.normal(size=(2000, 100))
    shared = alone + 3 * rng.normal(size=(2000, 1))
    (low, high), (low_shared, high_shared) = (
        coverage_band(as_draws(np.exp(x))) for x in (alone, shared)
    )
    assert low_shared < low - 0.2
    assert high_shared > high


# --- parts -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cells(small_database, synthetic_posterior):
    table = checked(small_database.table("gemm_bf16_test"), origin="table")
    return runs_by_cell(table, skus=synthetic_posterior["sku"].values.tolist())


@pytest.fixture(scope="module")
def sheets(small_database, synthetic_posterior):
    return small_database.datasheets(synthetic_posterior["sku"].values.tolist())


def test_cells_of_one_sku(cells):
    own = of_sku(cells, "H100-80GB-SXM")
    assert set(own["sku"].values) == {"H100-80GB-SXM"}
    assert own.sizes["cell"] == (cells["sku"] == "H100-80GB-SXM").sum()
    assert of_sku(cells, "H100").sizes["cell"] == 0


def test_wide_cells_are_shaped_like_projections():
    cells = xr.Dataset({"N": ("cell", [1024.0, 1023, 4096]), "K": ("cell", [1024.0, 4096, 512])})
    assert wide(cells).tolist() == [True, False, False]
    assert NARROWEST == 1024


def test_means_over_skus_are_of_each_score():
    held = {"a": {"x": 1.0, "y": 4.0}, "b": {"x": 2.0, "y": 0.0}}
    assert averaged(held) == {"x": 1.5, "y": 2.0}


def test_predictive_draws_are_those_of_the_builds_that_measured(cells, sheets, synthetic_posterior):
    own = of_sku(cells, "A100-80GB-SXM")
    draws = cell_times(synthetic_posterior, own, sheets, seed=0)
    assert set(draws.dims) == {"chain", "draw", "cell"}
    assert (draws > 0).all()
    only = own.assign(op_time=own["op_time"].where(own["backend"] == "sglang"))
    only = only.assign_coords(backend=own["backend"].where(own["backend"] == "sglang", ""))
    alone = cell_times(synthetic_posterior, only, sheets, seed=0)
    several = (own["backend"] != "").sum("run") > 1
    assert several.any()
    differs = (alone != draws).any(("chain", "draw"))
    assert differs[several].all()
    assert not differs[(own["backend"] == "sglang").sum("run") * ~several > 0].any()


def test_all_and_wide_cells_are_judged(cells, sheets, synthetic_posterior):
    own = of_sku(cells, "H100-80GB-SXM")
    found = judged(synthetic_posterior, own, sheets, seed=0)
    assert set(found) == {"all", "wide"}
    assert all(set(part) == KEYS for part in found.values())
    at = np.flatnonzero(wide(own))
    assert 0 < len(at) < own.sizes["cell"]
    some = judged(synthetic_posterior, own.isel(cell=at), sheets, seed=0)
    assert some["all"] == pytest.approx(found["wide"], rel=1e-12)
