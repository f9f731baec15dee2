"""What the data identified: contraction from prior to posterior by hand, shared factors once."""

import json

import numpy as np
import pytest

from m2bayes.contraction import UNMOVED, factor_rows
from m2bayes.factors import by_sku

SKUS = ["A100-80GB-SXM", "H100-80GB-SXM", "H200-141GB-SXM"]


@pytest.fixture(scope="module")
def sheets(database):
    return database.datasheets(SKUS)


@pytest.fixture(scope="module")
def prior(synthetic_posterior):
    return {
        f["name"]: [0.5, 1.0, 2.0, 0.5] for f in json.loads(synthetic_posterior.attrs["factors"])
    }


@pytest.fixture(scope="module")
def rows(synthetic_posterior, sheets, prior):
    return factor_rows(synthetic_posterior, sheets, prior)


def row_of(rows, factor, sku="all"):
    (found,) = [r for r in rows if (r["factor"], r["sku"]) == (factor, sku)]
    return found


def test_every_factor_has_a_row_a_sku_and_a_shared_one_has_one(rows, synthetic_posterior):
    skus = {}
    for row in rows:
        skus.setdefault(row["factor"], []).append(row["sku"])
    card = json.loads(synthetic_posterior.attrs["factors"])
    assert list(skus) == [f["name"] for f in card]
    shared = {"prologue", "power_slope", "width_slope", "blank_gain"}
    for factor, names in skus.items():
        assert names == (["all"] if factor in shared else SKUS)


@pytest.mark.parametrize("factor", ["droop", "eta_memory", "knee"])
def test_contraction_and_quantiles_by_hand(rows, synthetic_posterior, sheets, factor):
    for sku in SKUS:
        flat = by_sku(synthetic_posterior, f"log_{factor}", sheets, 0).sel(sku=sku).values.ravel()
        row = row_of(rows, factor, sku)
        assert row["contraction"] == pytest.approx(1 - flat.var() / 0.25, rel=1e-9)
        low, middle, high = np.exp(np.quantile(flat, [0.05, 0.5, 0.95]))
        assert row["posterior"] == pytest.approx([middle, low, high], rel=1e-9)
        assert row["prior"] == [1.0, 0.5, 2.0]


def test_a_factor_on_its_own_scale_is_not_exponentiated(rows, synthetic_posterior):
    middle = float(synthetic_posterior["power_slope"].astype(float).median())
    assert row_of(rows, "power_slope")["posterior"][0] == pytest.approx(middle, rel=1e-6)


def test_a_factor_that_the_data_did_not_move_is_called_prior_only(
    synthetic_posterior, sheets, prior
):
    sd = float(synthetic_posterior["power_slope"].astype(float).std(("chain", "draw")))
    for factor, verdict in ((1.0, "prior only"), (0.96, "prior only"), (3.0, "moved by the data")):
        told = prior | {"power_slope": [0.5, 0.6, 0.7, factor * sd]}
        row = row_of(factor_rows(synthetic_posterior, sheets, told), "power_slope")
        assert row["verdict"] == verdict
        assert (row["contraction"] < UNMOVED) == (verdict == "prior only")


def test_the_strongest_correlation_is_found(synthetic_posterior, sheets, prior):
    """Knee made minus ten times the width slope, but for a tenth of noise."""
    made = synthetic_posterior.copy()
    slope = made["width_slope"] - made["width_slope"].mean()
    made["log_knee_architecture"] = made["log_knee_architecture"] - 10 * slope
    row = row_of(factor_rows(made, sheets, prior), "knee", SKUS[0])
    assert row["correlates_with"] == "width_slope"
    assert row["correlation"] < -0.9
