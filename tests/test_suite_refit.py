"""Updates beside fits of the whole model to the same rows."""

import json

import numpy as np
import pytest
import xarray as xr

from m2bayes.leaveout import LeftOut
from m2bayes.suites import Setting, refit, run

NAME = "gemm_bf16-hier_gemm"


@pytest.fixture
def setting(small_database, synthetic_posterior, tmp_path, monkeypatch):
    """Fits return the made-up posterior; few cells."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(LeftOut, "_sample", lambda self, inputs: synthetic_posterior.drop_attrs())
    monkeypatch.setattr(refit, "CELLS", (3,))
    monkeypatch.setattr(refit, "SKUS", ("H200-141GB-SXM",))
    return Setting(small_database)


def test_the_suite_compares_factors_and_the_fastest(setting):
    found = run("refit", setting)
    row = found["results"]["H200-141GB-SXM"]["3"]
    assert row["path"] in {"reweighting", "steps"}
    for name in ("shared", "own", "p_best"):
        assert set(row[name]) == {"of", "mcse", "within", "gap", "sd"}
        assert 0 <= row[name]["within"] <= 1
    assert row["p_best"]["gap"] <= 1
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_rows_that_stay_are_fitted_and_named_in_the_cache(setting, monkeypatch):
    seen = []
    left = setting.left_out(NAME)
    fake = LeftOut._sample
    monkeypatch.setattr(
        LeftOut, "_sample", lambda self, inputs: [seen.append(inputs), fake(self, inputs)][1]
    )
    rows = left.inputs.times[left.inputs.times["sku"] == "H200-141GB-SXM"]
    for kept in (rows.iloc[:3], rows.iloc[:5], rows.iloc[:3]):
        draws = left.fit(["H200-141GB-SXM"], kept=kept)
        assert "H200-141GB-SXM" in draws["sku"].values
    assert [(i.times["sku"] == "H200-141GB-SXM").sum() for i in seen] == [3, 5]
    assert "H200-141GB-SXM" not in left.fit(["H200-141GB-SXM"])["sku"].values


def made(shift=0.0, seed=0):
    normal = np.random.default_rng(seed).standard_normal((4, 500))
    return {"a": xr.DataArray(shift + normal, dims=("chain", "draw"))}


def test_two_samples_of_one_posterior_are_within_four_errors():
    found = refit._apart(made(), made(seed=1), 1.0)
    assert found["mcse"] < refit.MOST
    assert found["within"] == 1


def test_a_shift_of_half_an_sd_is_found_unless_draws_are_few():
    assert refit._apart(made(0.5), made(seed=1), 1.0)["within"] == 0
    assert refit._apart(made(0.5), made(seed=1), 10.0)["within"] == 1
