"""The ladder of models: what each rung hides, and what a left-out cell is worth."""

from itertools import pairwise

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from m2bayes.errors import RecordError
from m2bayes.hierarchy import Frame
from m2bayes.inputs import Inputs
from m2bayes.mechanism.gemm import ceiling_time, compute_roofs, gemm_branches, gemm_time
from m2bayes.suites import Setting, loo, run
from m2bayes.suites._density import log_likelihood, log_prior
from m2bayes.suites._ladder import RUNGS, Ladder, without

NAME = "gemm_bf16-hier_gemm"
FACTORS = {
    "eta_memory": 0.87,
    "memory_latency": 8300.0,
    "eta_cache": 0.18,
    "launch_time": 1.4e-6,
    "clock_burst": 1.07,
    "droop": 0.25,
    "eta_issue": 1.2,
    "prologue": 250.0,
    "knee": 0.6,
    "power_slope": 0.6,
    "width_slope": 0.1,
    "blank_gain": 0.05,
}
PARTS = {  # factors that touch no time once the part is hidden
    "wave": {"prologue"},
    "clock": {"clock_burst", "droop", "power_slope", "width_slope", "blank_gain"},
    "memory": {"memory_latency", "eta_cache"},
}


@pytest.fixture(scope="module")
def data(small_database):
    inputs = Inputs.recorded(small_database, small_database.posterior(NAME))
    frame = Frame(inputs.cells(), inputs.datasheets, inputs.readings(), law=inputs.law)
    return frame.inputs()


@pytest.fixture(scope="module")
def ladder(small_database):
    return Ladder(small_database, NAME)


def terms(data):
    return {k: v if v.ndim == 2 else v[:, None] for k, v in data.items() if v.ndim}


# --- what is hidden --------------------------------------------------------------------------


@pytest.mark.parametrize("part", PARTS)
def test_a_hidden_part_is_one_whose_factors_touch_no_time(part, data):
    hidden = terms(without(data, part))
    before = gemm_time(hidden, FACTORS)
    for name, value in FACTORS.items():
        after = gemm_time(hidden, FACTORS | {name: 1.1 * value})
        # the power roof is far out of reach, not infinitely far
        change = np.abs(after / before - 1).max()
        assert (change < 1e-5) == (name in PARTS[part]), (name, change)


def test_wave_and_latency_are_gone_where_they_cost_nothing(data):
    hidden = terms(without(without(data, "wave"), "clock"))
    issue, power = compute_roofs(hidden, FACTORS)
    ideal = terms(data)["ideal_compute"] * terms(data)["peak_over_boost"]
    # the clock's trick lowers and raises the issue time by the same factor
    waved = compute_roofs(terms(without(data, "clock")), FACTORS)[0]
    assert waved == pytest.approx(compute_roofs(terms(data), FACTORS)[0], rel=1e-12)
    assert (power < 0.01 * issue).all()
    assert issue == pytest.approx(ideal / FACTORS["eta_issue"], rel=1e-12)


def test_hiding_the_memory_leaves_a_constant_share_of_bandwidth(data):
    hidden = terms(without(data, "memory"))
    traffic = terms(data)["cold_traffic"] + terms(data)["warm_traffic"]
    share = traffic / terms(data)["peak_bandwidth"] / FACTORS["eta_memory"]
    assert gemm_branches(hidden, FACTORS)[1] == pytest.approx(share, rel=1e-12)
    assert (gemm_branches(terms(data), FACTORS)[1] != share).any()


def test_the_lowest_rung_is_two_ceilings_and_a_launch(data):
    held = data
    for part in RUNGS["hierarchical"]:
        held = without(held, part)
    # nothing of the law is left but the maximum that const_ceiling is made of, softened
    sharp = FACTORS | {"knee": 400.0, "launch_time": 0.0}
    plain = {"ceiling": FACTORS["eta_issue"], "eta_memory": FACTORS["eta_memory"]}
    over = terms(data)["peak_over_boost"]
    expected = ceiling_time(
        terms(data) | {"ideal_compute": terms(data)["ideal_compute"] * over}, plain
    )
    assert gemm_time(terms(held), sharp) == pytest.approx(expected, rel=0.01)


def test_the_order_of_hiding_does_not_matter(data):
    one, other = (
        without(without(data, first), second)
        for first, second in (("wave", "clock"), ("clock", "wave"))
    )
    assert gemm_time(terms(one), FACTORS) == pytest.approx(gemm_time(terms(other), FACTORS))


def test_without_the_clock_there_is_no_telemetry(data):
    held = without(data, "clock")
    assert len(data["reading_log_share"]) > 0
    assert len(held["reading_log_share"]) == len(held["cap_log_power"]) == 0
    assert set(held) == set(data)


def test_each_rung_hides_less_than_the_one_below():
    hidden = [set(parts) for parts in RUNGS.values()]
    assert hidden[-1] == set()
    assert all(above < below for below, above in pairwise(hidden))


# --- densities -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def some(synthetic_posterior):
    draws = synthetic_posterior.isel(draw=slice(3))
    return draws.assign(cap_slope=0.33 + 0 * draws["power_slope"])


def test_a_cell_is_one_multivariate_t(ladder, some, data):
    found = log_likelihood(ladder.model, some, ladder.inputs(()))
    assert found["log_time"].dims == ("chain", "draw", "cell")
    draw = some.isel(chain=1, draw=2)
    cell = int(np.flatnonzero(data["present"].sum(axis=1) == 3)[0])
    sku = data["sku_at"][cell]
    factors = {}
    for name in FACTORS:
        options = (f"log_{name}", f"log_{name}_architecture", f"log_{name}_mean")
        held = next((draw[n] for n in options if n in draw), None)
        if held is None:
            factors[name] = float(draw[name])
        elif "architecture" in held.dims:
            family = "Ampere" if str(draw["sku"].values[sku]).startswith("A100") else "Hopper"
            factors[name] = float(np.exp(held.sel(architecture=family)))
        else:
            factors[name] = float(np.exp(held.isel(sku=sku) if "sku" in held.dims else held))
    row = {k: v[cell : cell + 1] for k, v in terms(data).items() if len(v) == len(data["present"])}
    time = np.broadcast_to(gemm_time(row, factors), (1, 3))[0]
    effect = draw["build_effect"].values[sku][data["build_at"][cell]]
    relative, fixed, run_ = (
        float(np.exp(draw[f"log_sigma_{kind}"].isel(sku=sku))) for kind in ("cell", "time", "run")
    )
    scale = np.sqrt(relative**2 + (fixed / time.mean()) ** 2)
    shape = scale**2 * np.ones((3, 3)) + run_**2 * np.eye(3)
    expected = stats.multivariate_t(np.log(time) + effect, shape, df=4).logpdf(
        data["log_op_time"][cell]
    )
    assert float(found["log_time"].isel(chain=1, draw=2, cell=cell)) == pytest.approx(
        expected, rel=1e-6
    )


def test_a_cell_that_was_not_measured_says_nothing(ladder, some):
    found = log_likelihood(ladder.model, some, ladder.inputs((), (2, 5)))["log_time"]
    silent = np.abs(found.values).max(axis=(0, 1)) < 1e-9
    assert np.flatnonzero(silent).tolist() == [2, 5]


def test_priors_are_those_of_the_model(ladder, some):
    found = log_prior(ladder.model, some)
    slope = stats.norm(0.6, 0.2).logpdf(some["power_slope"])
    assert found["power_slope"].values == pytest.approx(slope, rel=1e-6)
    spread = stats.lognorm(0.3, scale=0.05).logpdf(some["log_eta_memory_architecture_sd"])
    assert found["log_eta_memory_architecture_sd"].values == pytest.approx(spread, rel=1e-5)
    assert "log_eta_memory" not in found


def test_what_was_not_stored_is_not_drawn_anew(ladder, some):
    with pytest.raises(RecordError, match="neither stored nor made of what is"):
        log_likelihood(ladder.model, some.drop_vars("log_launch_time"), ladder.inputs(()))


# --- leaving cells out -----------------------------------------------------------------------


@pytest.fixture
def setting(small_database, synthetic_posterior, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(Ladder, "_sample", lambda self, data: synthetic_posterior.drop_attrs())
    return Setting(small_database, baseline=NAME)


def test_draws_that_agree_leave_nothing_to_smooth(ladder, some, rng):
    """One draw repeated, all but: leaving a cell out changes nothing, and costs no parameter."""
    same = xr.concat([some.isel(draw=[0])] * 60, dim="draw").isel(chain=[0])
    same = same.assign_coords(draw=range(60)).astype(float)
    noise = xr.DataArray(1e-7 * rng.standard_normal((1, 60)), dims=("chain", "draw"))
    same["log_launch_time"] = same["log_launch_time"] + noise
    found, each = loo._left_out(ladder, (), same, refit=False)
    direct = log_likelihood(ladder.model, same, ladder.inputs(()))["log_time"].isel(draw=0, chain=0)
    assert each == pytest.approx(direct.values, abs=1e-4)
    assert found["p_loo"] == pytest.approx(0.0, abs=1e-3)


def test_cells_with_a_heavy_tail_are_taken_from_a_fit_without_them(setting, monkeypatch):
    """Draws far from the data have large k; with k above its bound a refit is asked for."""
    asked = []
    fit = Ladder.fit

    def seen(self, hidden, cells=()):
        asked.append(cells)
        return fit(self, hidden, cells)

    monkeypatch.setattr(Ladder, "fit", seen)
    monkeypatch.setattr(loo, "MOST", 1.0)
    ladder = Ladder(setting.database, NAME)
    draws = setting.database.draws(NAME)
    found, each = loo._left_out(ladder, (), draws, refit=True)
    assert found["above_good_k"] == found["refitted"] == len(asked[0]) > 0
    density = log_likelihood(ladder.model, draws, ladder.inputs(()), names=loo.TIMES)["log_time"]
    flat = density.values.reshape(-1, density.sizes["cell"])[:, list(asked[0])]
    # the made-up refit returns the same draws: the plain predictive density
    expected = np.log(np.exp(flat).mean(axis=0))
    assert each[list(asked[0])] == pytest.approx(expected, rel=1e-6)


def test_the_ladder_is_climbed_from_bottom_to_top(setting):
    found = run("loo", setting)["results"]
    assert list(found["rungs"]) == ["constant", *RUNGS]
    rungs = list(found["rungs"].values())
    for below, above in pairwise(rungs):
        assert above["gain"] == pytest.approx(above["elpd"] - below["elpd"], rel=1e-9, abs=1e-6)
        assert 0 <= above["skus_better"] <= above["skus"] == 3
    assert "gain" not in rungs[0]


def test_hiding_the_wrong_part_would_be_seen(data):
    """Negative control: the wave hidden leaves the clock's factors at work."""
    hidden = terms(without(data, "wave"))
    slower = gemm_time(hidden, FACTORS | {"clock_burst": 0.5})
    assert (slower / gemm_time(hidden, FACTORS)).max() > 1.5
