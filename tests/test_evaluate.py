"""Suites score what they say: medians and errors by hand, and a small suite from end to end."""

import hashlib
import json
import shutil

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from m2bayes import evaluate
from m2bayes.database import Database, Posterior, store
from m2bayes.errors import RecordError, UnknownNameError
from m2bayes.evaluate import (
    MASSES,
    ROOFLINE,
    SUITES,
    by_build,
    cell_times,
    gemm_cells,
    median_of_builds,
    roofline_scores,
    scores,
)
from m2bayes.measurements import checked, runs_by_cell

EXACT = {"rtol": 1e-12, "atol": 0}
KEYS = {"mape", "median_ape", "bias", "crps", "pit_mean"} | {
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


def test_the_roofline_is_scored_on_the_median_of_builds(database):
    """One compute-bound cell, by hand: 2·M·N·K over the dense peak."""
    table = pd.DataFrame(
        [("H100-80GB-SXM", b, "1", 8192, 8192, 8192, t) for b, t in (("x", 1e-3), ("y", 3e-3))],
        columns=["sku", "backend", "version", "M", "N", "K", "op_time"],
    )
    cells = runs_by_cell(checked(table, origin="table"), skus=["H100-80GB-SXM"])
    sheet = database.datasheets(["h100"]).isel(sku=0)
    ideal = 2 * 8192**3 / float(sheet["peak_flop_rate"])
    found = roofline_scores(cells, sheet)
    assert set(found) == {"mape", "median_ape", "bias"}
    assert found["mape"] == pytest.approx(1 - ideal / 2e-3, rel=1e-12)
    assert found["bias"] == pytest.approx(np.log(2e-3 / ideal), rel=1e-12)


# --- a suite from end to end -----------------------------------------------------------------


@pytest.fixture(scope="module")
def small(database, synthetic_posterior, tmp_path_factory):
    """A database with six unseen cells on each of three SKUs, and a made-up posterior."""
    root = tmp_path_factory.mktemp("database")
    shutil.copytree(database.root / "models", root / "models")
    shutil.copytree(database.root / "data" / "datasheets", root / "data" / "datasheets")
    shutil.copytree(database.root / "data" / "llms", root / "data" / "llms")
    measurements = root / "data" / "measurements"
    measurements.mkdir()
    table = database.table("gemm_bf16_test")
    table = table[table["sku"].isin(synthetic_posterior["sku"].values)]
    cells = table[["sku", "M", "N", "K"]].drop_duplicates().groupby("sku").nth(slice(0, None, 55))
    table = table.merge(cells)
    content = table.to_csv(index=False).encode()
    (measurements / "gemm_bf16_test.csv").write_bytes(content)
    card = json.loads((database.root / "data/measurements/gemm_bf16_test.json").read_text())
    card |= {"rows": len(table), "sha256": hashlib.sha256(content).hexdigest()}
    (measurements / "gemm_bf16_test.json").write_text(json.dumps(card))
    held = database.posterior("gemm_bf16-hier_gemm")
    record = Posterior(**{**held.__dict__, "name": "syn_gemm-hier_gemm", "draws": {}})
    store(record, synthetic_posterior.drop_attrs(), root / "posteriors")
    return Database(root)


def run(small, **changes):
    settings = {"posteriors": ("syn_gemm-hier_gemm",), "data": "gemm_bf16_test", "seed": 0}
    told = []
    return gemm_cells(small, **settings | changes, tell=told.append), told


def test_a_suite_scores_every_sku_and_every_predictor(small):
    result, told = run(small)
    skus = ["A100-80GB-SXM", "H100-80GB-SXM", "H200-141GB-SXM"]
    assert set(result) == {
        "suite", "command", "data", "posteriors", "seed", "versions", "results",
    }  # fmt: skip
    assert result["suite"] == "gemm-cells"
    assert result["data"] == {
        "name": "gemm_bf16_test",
        "sha256": small.data_record("gemm_bf16_test").sha256,
    }
    assert list(result["results"]) == [ROOFLINE, "syn_gemm-hier_gemm"]
    for name, by_sku in result["results"].items():
        assert list(by_sku) == [*skus, "mean"]
        expected = {"mape", "median_ape", "bias"} if name == ROOFLINE else KEYS
        for held in by_sku.values():
            assert set(held) == expected
            assert np.isfinite(list(held.values())).all()
        for key in expected:
            mean = np.mean([by_sku[sku][key] for sku in skus])
            assert by_sku["mean"][key] == pytest.approx(mean, rel=1e-12)
    assert [line.rpartition(" ")[2] for line in told] == skus
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_a_suite_is_the_same_again_and_another_under_another_seed(small):
    (one, _), (again, _), (other, _) = run(small), run(small), run(small, seed=1)
    assert one == again
    assert one["results"][ROOFLINE] == other["results"][ROOFLINE]
    assert one["results"] != other["results"]


def test_predictive_draws_are_those_of_the_builds_that_measured(small, synthetic_posterior):
    table = checked(small.table("gemm_bf16_test"), origin="table")
    cells = runs_by_cell(table, skus=small.skus())
    cells = cells.isel(cell=np.flatnonzero(cells["sku"].values == "A100-80GB-SXM"))
    sheets = small.datasheets(["a100"])
    posterior = synthetic_posterior
    draws = cell_times(posterior, cells, sheets, seed=0)
    assert set(draws.dims) == {"chain", "draw", "cell"}
    assert (draws > 0).all()
    only = cells.assign(op_time=cells["op_time"].where(cells["backend"] == "sglang"))
    only = only.assign_coords(backend=cells["backend"].where(cells["backend"] == "sglang", ""))
    alone = cell_times(posterior, only, sheets, seed=0)
    several = (cells["backend"] != "").sum("run") > 1
    assert several.any()
    differs = (alone != draws).any(("chain", "draw"))
    assert differs[several].all()
    assert not differs[(cells["backend"] == "sglang").sum("run") * ~several > 0].any()


def test_unknown_posteriors_and_changed_tables_are_refused(small):
    with pytest.raises(UnknownNameError, match="did you mean syn_gemm-hier_gemm"):
        run(small, posteriors=("syn_gemm-hier",))
    path = small.root / "data" / "measurements" / "gemm_bf16_test.csv"
    content = path.read_bytes()
    path.write_bytes(content + b"\n")
    try:
        with pytest.raises(RecordError, match="is not what its card says"):
            run(small)
    finally:
        path.write_bytes(content)


def test_every_suite_names_posteriors_and_unseen_data_of_the_database(database):
    for suite in SUITES.values():
        assert set(suite["posteriors"]) <= set(database.posteriors())
        assert suite["data"] in database.data()
        fitted = {database.posterior(name).data["name"] for name in suite["posteriors"]}
        assert suite["data"] not in fitted
        assert suite["run"].__module__ == evaluate.__name__
