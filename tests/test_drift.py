"""Whether new rows agree with a posterior."""

import json

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from helpers import refusal, run

from m2bayes.measurements import checked
from m2bayes.predictive import predict_units
from m2bayes.updating.drift import _discovery_rates, _holm, drift

NAME, SKU = "gemm_bf16-hier_gemm", "H100-80GB-SXM"


@pytest.fixture(scope="module")
def drawn(database, synthetic_posterior):
    """Rows as one draw of the made-up posterior would measure them."""

    def make(draw, sku=SKU, factor=1.0, cells=40):
        rng = np.random.default_rng(5)
        sizes = {"M": 2 ** rng.integers(0, 15, cells)}
        sizes |= {v: 128 * rng.integers(1, 100, cells) for v in ("N", "K")}
        shapes = xr.Dataset({k: ("cell", v) for k, v in sizes.items()})
        sheet = database.datasheets([sku])
        settings = {"regime": "benchmark", "backend": "vllm", "noise": 1, "seed": 0}
        time = predict_units(synthetic_posterior, shapes, sheet, **settings)
        own = time.values.reshape(-1, cells)[draw] * factor
        table = pd.DataFrame({**sizes, "op_time": own, "sku": sku, "backend": "vllm"})
        return checked(table.assign(version="1"), origin="drawn"), sheet

    return make


def test_rows_of_the_posterior_itself_agree_and_their_tails_are_uniform(drawn, synthetic_posterior):
    """Of ten draws that play the measurement, at most two are called wrong."""
    found = [drift(synthetic_posterior, *drawn(i)) for i in range(0, 200, 20)]
    assert sum(f["agrees"] for f in found) >= 8
    p = np.array([f["groups"][0]["p"] for f in found])
    assert abs(np.mean(p < 0.5) - 0.5) < 4 * 0.5 / np.sqrt(len(p))


def test_a_shift_of_all_rows_is_seen_and_less_is_allowed_where_a_card_was_measured(
    drawn, synthetic_posterior
):
    found = drift(synthetic_posterior, *drawn(3, factor=1.3))
    group = found["groups"][0]
    assert not found["agrees"]
    assert group["basis"] == "measured"
    assert group["bias"] == pytest.approx(np.log(1.3), abs=0.1)
    assert group["p_holm"] < 0.05
    assert not group["low"] < group["bias"] < group["high"]
    other = drift(synthetic_posterior, *drawn(3, sku="L40S-48GB-PCIe"))["groups"][0]
    assert other["basis"] == "population"
    assert other["high"] - other["low"] > 2 * (group["high"] - group["low"])


def test_a_row_that_is_off_is_named_with_its_multiplicity(drawn, synthetic_posterior):
    table, sheet = drawn(7)
    table.loc[11, "op_time"] *= 8
    found = drift(synthetic_posterior, table, sheet)
    assert not found["agrees"]
    assert found["unlikely"] >= 1
    row = found["rows"][0]
    assert {k: row[k] for k in ("M", "N", "K")} == {k: table.loc[11, k] for k in ("M", "N", "K")}
    assert row["p"] < row["q"] < 0.05
    assert row["op_time"] > 4 * row["expected"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_adjusted_probabilities_by_hand():
    assert _holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert _holm([]) == []
    np.testing.assert_allclose(
        _discovery_rates(np.array([0.01, 0.02, 0.03, 1.0])), [0.04, 0.04, 0.04, 1]
    )
    assert _discovery_rates(np.array([0.5]))[0] == 0.5


def test_check_of_new_rows_says_whether_they_agree(small_database, tmp_path, drawn):
    path = tmp_path / "new.csv"
    drawn(5)[0].to_csv(path, index=False)
    args = ("check", "--database", str(small_database.root), "--quiet", "--data", str(path))
    code, out, err = run(*args)
    assert (code, err) == (0, "")
    assert f"{NAME}: 40 rows that it was not fitted to" in out
    code, out, _ = run(*args, "--json")
    assert set(json.loads(out)["drift"]) >= {"groups", "rows", "agrees", "unlikely"}


def test_check_of_the_fitted_rows_is_what_it_was(small_database):
    path = small_database.root / "data" / "measurements" / "gemm_bf16.csv"
    code, out, err = run(
        "check", "--database", str(small_database.root), "--quiet", "--data", str(path), "--json"
    )
    assert code == 0, err
    assert "drift" not in json.loads(out)


def test_check_refuses_rows_of_a_card_that_nobody_knows(small_database, tmp_path, drawn):
    path = tmp_path / "new.csv"
    drawn(5)[0].assign(sku="H1000").to_csv(path, index=False)
    line = refusal(run("check", "--database", str(small_database.root), "--data", str(path)))
    assert "column sku: unknown SKU 'H1000'" in line
