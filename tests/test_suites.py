"""Suites from end to end on a small database, and the figures they report by hand."""

import json

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from helpers import OUTSIDE_SUITES
from threadpoolctl import threadpool_limits

from m2bayes import suites
from m2bayes.errors import DataError, UnknownNameError
from m2bayes.leaveout import LeftOut
from m2bayes.measurements import checked, runs_by_cell
from m2bayes.suites import (
    NAMES,
    Setting,
    _grid,
    attention,
    clock,
    few_shot,
    flips,
    fresh,
    ranking,
    rivals,
    run,
)
from m2bayes.suites._ladder import Ladder

SKUS = ["A100-80GB-SXM", "H100-80GB-SXM", "H200-141GB-SXM"]
NAME = "gemm_bf16-hier_gemm"


@pytest.fixture(autouse=True)
def one_thread():
    """Trees grown by several threads on a busy machine take minutes in place of a second."""
    with threadpool_limits(1):
        yield


@pytest.fixture
def setting(small_database, synthetic_posterior, tmp_path, monkeypatch):
    """Suites whose refits return the made-up posterior."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(LeftOut, "_sample", lambda self, inputs: synthetic_posterior.drop_attrs())
    monkeypatch.setattr(Ladder, "_sample", lambda self, data: synthetic_posterior.drop_attrs())
    monkeypatch.setattr(flips, "SIMULATED", 50)
    monkeypatch.setattr(ranking, "SETS", {"all three": ("Ampere", "Hopper")})
    monkeypatch.setattr(flips, "CASES", 20)
    monkeypatch.setattr(few_shot, "CELLS", (0, 3))
    monkeypatch.setattr(few_shot, "DESIGNS", 1)
    return Setting(small_database, baseline=NAME)


def figures(node):
    """Every number of a nested result."""
    if isinstance(node, dict | list):
        for value in node.values() if isinstance(node, dict) else node:
            yield from figures(value)
    elif not isinstance(node, str):
        yield node


# --- end to end ------------------------------------------------------------------------------


# of posteriors that the small database lacks
ELSEWHERE = {"attention", "attention-transfer", "gemm-fp8", "served-e2e"}
ELSEWHERE |= {"sbc", "sensitivity", "prior", "loo", "knee", "refit"}  # and tests of their own


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OUTSIDE_SUITES | ELSEWHERE])
def test_every_suite_runs_and_says_what_it_judged(name, setting, small_database):
    found = run(name, setting)
    assert set(found) == {"suite", "command", "inputs", "seed", "versions", "results"}
    assert found["suite"] == name
    assert found["inputs"][NAME] == small_database.posterior(NAME).draws["sha256"]
    data = set(found["inputs"]) & set(small_database.data())
    assert data
    for table in data:
        assert found["inputs"][table] == small_database.data_record(table).sha256
    assert found["results"]
    assert np.isfinite(list(figures(found["results"]))).all()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert json.dumps(run(name, setting)) == json.dumps(found)


def test_a_backend_counts_once_however_many_kernels_it_has():
    """Kernels of one backend weigh by their cells; SKU and backend pairs weigh alike."""
    found = attention.averages(
        {
            "A/vllm/gqa": {"mape": 0.1, "n": 3.0},
            "A/vllm/mha": {"mape": 0.5, "n": 1.0},
            "B/vllm/gqa": {"mape": 0.4, "n": 4.0},
        }
    )
    assert found["mean"]["mape"] == pytest.approx((0.2 + 0.4) / 2, rel=1e-12)
    assert found["pooled"]["mape"] == pytest.approx((0.3 + 0.5 + 1.6) / 8, rel=1e-12)


def test_an_unknown_suite_is_answered_with_the_closest(setting):
    with pytest.raises(UnknownNameError, match="did you mean gemm-cells"):
        run("gemm-cell", setting)


def test_every_suite_of_the_shipped_database_names_what_is_there(database):
    for name in NAMES:
        module = getattr(suites, name.replace("-", "_"), None) or __import__(
            f"m2bayes.suites.{name.replace('-', '_')}", fromlist=["DATA"]
        )
        assert set(module.DATA) <= set(database.data())

        judged = {getattr(Setting(database), field) for field in module.JUDGED}
        assert judged
        assert judged <= {*database.posteriors(), *database.assemblies()}


def test_no_suite_scores_rows_that_its_posterior_was_fitted_to(database):
    fitted = {s["name"] for n in database.posteriors() for s in database.posterior(n).data}
    assert not {"gemm_bf16_test", "gemm_bf16_ranking"} & fitted


def test_cells_are_scored_by_sku_and_in_the_mean(setting):
    found = run("gemm-cells", setting)["results"]
    assert set(found) == {NAME, *rivals.everyone()}
    for parts in found.values():
        for by_sku in parts.values():
            assert list(by_sku) == [*SKUS, "mean"]
            mean = np.mean([by_sku[sku]["mape"] for sku in SKUS])
            assert by_sku["mean"]["mape"] == pytest.approx(mean, rel=1e-12)


def test_telemetry_and_cards_are_left_out_of_clock_forecasts(setting):
    found = run("clock", setting)["results"]
    for name in ("telemetry left out", "card left out"):
        assert set(found[name]) == {*SKUS, "mean"}
        for sku in SKUS:
            held = found[name][sku]
            assert held["low"] < held["forecast"] < held["high"]
            assert held["error_boost"] == pytest.approx(1 / held["measured"] - 1, rel=1e-12)
    a100 = found["card left out"]["A100-80GB-SXM"]
    assert a100["measured"] == pytest.approx(1125 / 1410, rel=1e-12)


# --- the measured grid -----------------------------------------------------------------------


def test_the_grid_is_the_table(small_database, setting):
    times = _grid.measured(setting, SKUS)
    assert times.dims == ("build", "sku", "tokens", "op")
    assert times["op"].values.tolist() == ["1536x4096", "4096x1024", "4096x3584", "7168x4096"]
    table = small_database.table(_grid.DATA)
    for row in table.itertuples():
        found = times.sel(build=row.backend, sku=row.sku, tokens=row.M, op=f"{row.N}x{row.K}")
        assert float(found) == row.op_time
    grid = _grid.cells(times)
    assert grid["N"].sel(op="1536x4096").values.tolist() == [1536.0] * 3
    assert grid["K"].sel(tokens=64).values.tolist() == [4096.0, 1024.0, 3584.0, 4096.0]
    assert grid["M"].sel(op="4096x1024").values.tolist() == [1.0, 64.0, 4096.0]


def test_simple_rules_are_the_datasheet(small_database, setting):
    times, sheets = _grid.measured(setting, SKUS), small_database.datasheets(SKUS)
    rules = _grid.datasheet_times(sheets, times)
    one = {k: v.sel(sku=SKUS[1], tokens=4096, op="4096x3584") for k, v in rules.items()}
    M, N, K = 4096, 4096, 3584
    flops = 2 * M * N * K / float(sheets["peak_flop_rate"].sel(sku=SKUS[1]))
    memory = 2 * (M * K + K * N + M * N) / float(sheets["peak_bandwidth"].sel(sku=SKUS[1]))
    assert float(one["by FLOP/s"]) == pytest.approx(flops, rel=1e-12)
    assert float(one["by bandwidth"]) == pytest.approx(memory, rel=1e-12)
    assert float(one["datasheet roofline"]) == pytest.approx(max(flops, memory), rel=1e-12)


# --- figures by hand -------------------------------------------------------------------------


def ranks(values):
    values = np.asarray(values, dtype=float)
    coords = {"sku": [f"s{i}" for i in range(len(values))], "tokens": range(values.shape[1])}
    return xr.DataArray(values, coords, dims=("sku", "tokens"))


def test_a_perfect_ranking_is_right_everywhere():
    truth = ranks([[1.0, 3.0], [2.0, 2.0], [4.0, 1.0]])
    assert ranking.compared(truth, truth) == {
        "top1": 1.0, "spearman": 1.0, "pairs": 1.0, "pairs_apart": 1.0, "regret": 0.0,
    }  # fmt: skip


def test_a_ranking_by_hand():
    """Two swapped first: top-1 wrong, one pair of three wrong, regret 1/1."""
    truth = ranks([[1.0], [2.0], [2.02]])
    found = ranking.compared(ranks([[5.0], [4.0], [6.0]]), truth)
    assert found["top1"] == 0.0
    assert found["pairs"] == pytest.approx(2 / 3, rel=1e-12)
    assert found["pairs_apart"] == pytest.approx(1 / 2, rel=1e-12)  # 2.0 and 2.02 are not apart
    assert found["regret"] == pytest.approx(1.0, rel=1e-12)
    assert found["spearman"] == pytest.approx(0.5, rel=1e-12)


def test_a_rule_that_cannot_tell_shares_the_first_place():
    truth = ranks([[1.0], [2.0]])
    found = ranking.compared(ranks([[3.0], [3.0]]), truth)
    assert (found["top1"], found["pairs"]) == (0.5, 0.5)
    assert found["regret"] == pytest.approx(0.5, rel=1e-12)


def test_wrongly_clear_counts_close_pairs_called_with_certainty():
    truth = ranks([[1.0, 1.0, 1.0], [1.01, 1.01, 1.5]])
    sure = xr.DataArray(
        np.tile([[2.0], [1.0]], (1, 1, 50, 1, 3)), dims=("chain", "x", "draw", "sku", "tokens")
    ).isel(x=0)
    sure = sure.copy()
    sure[..., 0, 1] = 0.5  # the second case is called clear, and right
    assert ranking.wrongly_clear(sure, truth) == 1
    open_ = sure.copy()
    open_[:, ::4] = 1.0  # a quarter of the draws are ties: not surely slower
    open_[:, ::4, 0] = 0.5
    assert ranking.wrongly_clear(open_, truth) == 0


def test_calibration_error_by_hand(monkeypatch):
    """Bins of equal size: half right at 0.5, and a tenth off at 0.9."""
    monkeypatch.setattr(flips, "CASES", 10)
    p = np.repeat([0.5, 0.9], 10)
    event = np.array([1, 0] * 5 + [1] * 10)
    error, worst = flips.calibration(p, event)
    assert error == pytest.approx(0.05, rel=1e-12)
    assert worst == pytest.approx(0.1, rel=1e-12)
    assert flips.calibration(p[:0], event[:0]) == (0.0, 0.0)


def as_cases(values):
    return xr.DataArray(values, dims=("chain", "draw", "sku", "case")[-np.ndim(values) :])


def test_said_and_found_by_hand():
    """Two SKUs and one case: P(first faster) is 0.75 or 0.25, by orientation; the first was."""
    draws = as_cases([[[[1.0], [2.0]], [[1.0], [2.0]], [[1.0], [2.0]], [[3.0], [2.0]]]])
    found = flips.said_and_found(draws, as_cases([[1.0], [2.0]]), seed=0)
    (row,) = found.values()
    assert (row["said"], row["found"], row["cases"]) in [(0.75, 1.0, 1), (0.25, 0.0, 1)]
    wrong = flips.said_and_found(draws, as_cases([[2.0], [1.0]]), seed=0)
    assert [r["found"] for r in wrong.values()] == [1 - row["found"]]


@pytest.mark.statistical
def test_a_calibrated_forecaster_is_within_its_band_and_a_bold_one_is_not(rng, monkeypatch):
    monkeypatch.setattr(flips, "SIMULATED", 200)
    centre = rng.normal(0, 0.1, (4, 1500))
    truth = as_cases(np.exp(centre + 0.1 * rng.normal(size=centre.shape)))
    noise = rng.normal(size=(1, 400, *centre.shape))
    good, bold = (
        flips.judged(as_cases(np.exp(centre + s * noise)), truth, seed=0) for s in (0.1, 0.03)
    )
    assert good["calibration_error"] < good["band"]
    assert bold["calibration_error"] > bold["band"]
    assert good["brier"] < bold["brier"]
    assert good["brier"] < good["brier_constant"] < 0.25
    assert good["cases"] == 6 * 1500
    best = flips.judged_best(as_cases(np.exp(centre + 0.1 * noise)), truth)
    assert best["brier"] < best["brier_constant"]


def test_a_certain_and_right_forecaster_has_no_error(monkeypatch):
    monkeypatch.setattr(flips, "SIMULATED", 50)
    truth = as_cases(np.arange(100.0, 112.0).reshape(3, 4))
    draws = as_cases(np.broadcast_to(truth.values, (1, 60, 3, 4)).copy())
    found = flips.judged(draws, truth, seed=0)
    assert (found["brier"], found["brier_constant"], found["undecided"]) == (0.0, 0.0, 0)
    assert flips.judged_best(draws, truth)["brier"] == 0.0
    assert flips.rule_brier(truth, truth, seed=0) == 0.0


def test_pairs_are_turned_at_random_so_that_no_side_is_favoured():
    """The same pair asked both ways: half of the events are true, whatever the truth is."""
    truth = np.stack([np.full(4000, 1.0), np.full(4000, 2.0)])
    share = flips._faster(truth, seed=0).mean()
    assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(4000)


def test_throughput_and_forecast_are_shares(small_database, synthetic_posterior):
    sheet = small_database.datasheets(["h100"])
    reading = xr.Dataset(
        {
            "M": ("reading", [16384.0]),
            "N": ("reading", [6144.0]),
            "K": ("reading", [4096.0]),
            "reading_log_share": ("reading", [np.log(0.7)]),
        }
    )
    found = clock.forecast(synthetic_posterior, sheet, reading, seed=0)
    assert 0.3 < found["low"] < found["forecast"] < found["high"] < 1.3
    assert found["error"] == pytest.approx(abs(found["forecast"] / 0.7 - 1), rel=1e-12)
    change = clock.throughput(synthetic_posterior, sheet, reading, seed=0)
    assert change["low"] < change["change"] < change["high"]
    assert 0 <= change["p_rises"] <= 1


# --- rivals ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def train(small_database):
    return runs_by_cell(checked(small_database.table("gemm_bf16"), origin="t"), skus=SKUS)


@pytest.fixture(scope="module")
def unseen(small_database):
    return runs_by_cell(checked(small_database.table("gemm_bf16_test"), origin="t"), skus=SKUS)


@pytest.mark.parametrize("name", rivals.everyone())
def test_every_rival_predicts_times_and_spreads(name, train, unseen, small_database):
    sheets = small_database.datasheets(SKUS)
    predict = rivals.everyone()[name]
    time = predict(train, unseen, sheets)
    assert time.shape == (unseen.sizes["cell"],)
    assert ((time > 1e-8) & (time < 1)).all()
    draws = rivals.with_spread(predict, train, unseen, sheets, seed=0)
    assert draws.dims == ("chain", "draw", "cell")
    ratio = np.log(draws.values[0] / time)
    residual = np.log(rivals._observed(train) / predict(train, train, sheets))
    assert set(np.round(np.unique(ratio), 9)) <= set(np.round(np.unique(residual), 9))


def test_no_rival_sees_the_times_it_predicts(train, unseen, small_database):
    sheets = small_database.datasheets(SKUS)
    hidden = unseen.assign(op_time=unseen["op_time"] * np.nan)
    for predict in rivals.everyone().values():
        np.testing.assert_array_equal(
            predict(train, hidden, sheets), predict(train, unseen, sheets)
        )


def test_the_roofline_by_hand(train, small_database):
    sheets = small_database.datasheets(SKUS)
    time = rivals.roofline(train, train, sheets)
    cell = train.isel(cell=0)
    M, N, K = (float(cell[v]) for v in ("M", "N", "K"))
    own = sheets.sel(sku=str(cell["sku"].values))
    compute = 2 * M * N * K / float(own["peak_flop_rate"])
    memory = 2 * (M * K + N * K + M * N) / float(own["peak_bandwidth"])
    assert time[0] == pytest.approx(max(compute, memory), rel=1e-12)


def test_a_ceiling_of_times_at_one_share_is_that_share(train, small_database):
    """Times made with ceilings 0.7 and bandwidth share 0.8 are found again exactly."""
    sheets = small_database.datasheets(SKUS)
    compute, memory = rivals._branches(train, sheets)
    time = np.where(compute > memory, compute / 0.7, memory / 0.8)
    made = train.assign(op_time=train["op_time"] * 0 + xr.DataArray(time, dims="cell"))
    found = rivals.ceilings(made, made, sheets)
    np.testing.assert_allclose(found, np.maximum(compute / 0.7, memory / 0.8), rtol=1e-12)


# --- outside tables --------------------------------------------------------------------------

PROFILE = dict.fromkeys(fresh.SIZES, 8) | {
    f"time_stats.{op}.median": 0.1 for op in fresh.PROJECTIONS
}


def test_a_profile_with_all_its_columns_becomes_four_projections(tmp_path):
    pd.DataFrame([PROFILE]).to_csv(tmp_path / "mlp.csv", index=False)
    rows = fresh.projections(fresh.profile(tmp_path / "mlp.csv"))
    assert sorted(rows["op"]) == sorted(fresh.PROJECTIONS)


@pytest.mark.parametrize("column", PROFILE)
def test_a_profile_without_a_column_is_refused_with_its_name(tmp_path, column):
    file = tmp_path / "mlp.csv"
    pd.DataFrame([PROFILE]).drop(columns=column).to_csv(file, index=False)
    with pytest.raises(DataError) as caught:
        fresh.profile(file)
    remedy = "fetch microsoft/vidur's profile tables"
    assert str(caught.value) == f"{file}: no column {column}; {remedy}"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "not a CSV table: No columns to parse from file"),
        (b"\xff\xfe", "not a CSV table: "),
        (",".join(PROFILE).encode(), "no row under column num_tokens"),
        (",".join(PROFILE).encode() + b"\n" + b"x," * 10 + b"x", "column num_tokens holds no num"),
    ],
)
def test_a_file_that_is_no_profile_is_refused(tmp_path, content, complaint):
    (tmp_path / "mlp.csv").write_bytes(content)
    with pytest.raises(DataError) as caught:
        fresh.profile(tmp_path / "mlp.csv")
    assert str(caught.value).startswith(f"{tmp_path / 'mlp.csv'}: {complaint}")
    assert "\n" not in str(caught.value)
