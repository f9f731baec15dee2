"""A SKU held out, and updated with a few designed cells."""

import json

import pytest

from m2bayes.leaveout import LeftOut
from m2bayes.suites import Setting, few_shot, run

NAME = "gemm_bf16-hier_gemm"


@pytest.fixture
def setting(small_database, synthetic_posterior, tmp_path, monkeypatch):
    """Refits return the made-up posterior; few and small designs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(LeftOut, "_sample", lambda self, inputs: synthetic_posterior.drop_attrs())
    monkeypatch.setattr(few_shot, "CELLS", (0, 3))
    monkeypatch.setattr(few_shot, "DESIGNS", 2)
    return Setting(small_database)


def test_the_suite_scores_every_sku_by_its_cells(setting, small_database):
    found = run("few-shot", setting)
    held = found["results"]
    assert set(held) == {"cells", "full", "factors", "paths"}
    skus = {*small_database.posterior(NAME).datasheets, "mean"}
    for n, scored in held["cells"].items():
        assert set(scored) == skus, n
        for sku, row in scored.items():
            if sku != "mean":
                assert row["ratio"] == pytest.approx(row["mape"] / held["full"][sku]["mape"])
        assert 0 <= scored["mean"]["in_band"] <= 1
    assert sum(held["paths"]["3"].values()) == 6
    assert held["cells"]["0"]["mean"]["mape_sd"] == 0
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_the_mean_over_designs_is_of_each_score():
    row = {"mape": 0.2, "coverage_90": 0.8, "band_low": 0.7, "band_high": 0.9}
    other = {"mape": 0.1, "coverage_90": 0.95, "band_low": 0.7, "band_high": 0.9}
    found = few_shot._mean([row, other], full=0.1)
    assert found["mape"] == pytest.approx(0.15)
    assert found["ratio"] == pytest.approx(1.5)
    assert found["in_band"] == 0.5
    assert found["mape_sd"] == pytest.approx(0.05)
