"""Scores are proper, calibrated and unbiased, and say so when the data do not match."""

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import kstest, norm, spearmanr

from m2bayes.errors import DataError
from m2bayes.score import (
    absolute_percentage_error,
    brier,
    coverage,
    crps,
    interval_score,
    mape,
    pit,
    rank_correlation,
    reliability,
)

EXACT = {"rtol": 1e-12, "atol": 1e-12}
DRAW = {"sample_dims": ["draw"]}
thorough = settings(deadline=None, max_examples=50)  # no deadline: first calls import
some_draws = arrays(float, (2, 5, 3), elements=st.integers(-4, 4).map(float))
some_values = arrays(float, 3, elements=st.integers(-4, 4).map(float))


@pytest.fixture
def rng():
    return np.random.default_rng(20261129)


def along(values, dim="obs", **attrs):
    return xr.DataArray(values, dims=dim, attrs=attrs)


def as_draws(x):
    return xr.DataArray(x, dims=("chain", "draw", "obs"))


# --- CRPS ------------------------------------------------------------------------------------


@pytest.mark.statistical
def test_crps_matches_the_closed_form_of_a_normal(rng):
    """Gneiting and Raftery (2007), section 4.2. The tolerance is four Monte Carlo errors."""
    y = norm.ppf([0.05, 0.5, 0.99])
    exact = y * (2 * norm.cdf(y) - 1) + 2 * norm.pdf(y) - 1 / np.sqrt(np.pi)
    repeats, n = 2000, 50
    draws = xr.DataArray(rng.normal(size=(repeats, n, 3)), dims=("repeat", "draw", "obs"))

    estimate = crps(draws, along(y), **DRAW)

    assert estimate.dims == ("repeat", "obs")
    error = estimate.std("repeat", ddof=1) / np.sqrt(repeats)
    assert (abs(estimate.mean("repeat") - exact) < 4 * error).all()

    # the mistake: n * n in place of n * (n - 1) adds half a mean difference over n
    distance = abs(draws - along(y)).mean("draw")
    biased = distance - (distance - estimate) * (n - 1) / n
    error = biased.std("repeat", ddof=1) / np.sqrt(repeats)
    assert not (abs(biased.mean("repeat") - exact) < 4 * error).all()


@thorough
@given(some_draws, some_values)
def test_crps_by_sorting_equals_the_sum_over_pairs(x, y):
    flat = x.reshape(10, 3)
    pairs = abs(flat[:, None] - flat[None]).sum((0, 1)) / (2 * 10 * 9)
    exact = abs(flat - y).mean(0) - pairs
    np.testing.assert_allclose(crps(as_draws(x), along(y)), exact, **EXACT)


@thorough
@given(some_draws, some_values, st.sampled_from([0.5, 4.0, 1024.0]), st.integers(-9, 9))
def test_crps_scales_with_the_unit_and_ignores_the_origin(x, y, scale, shift):
    moved = crps(as_draws(x * scale + shift), along(y * scale + shift))
    np.testing.assert_allclose(moved, scale * crps(as_draws(x), along(y)), **EXACT)


@pytest.mark.statistical
def test_crps_is_least_for_the_true_forecast(rng):
    truth = along(rng.normal(size=400))
    z = xr.DataArray(rng.normal(size=(100, 400)), dims=("draw", "obs"))
    best = crps(z, truth, **DRAW)
    for wrong in (z + 0.5, 2 * z, z / 3):
        worse = crps(wrong, truth, **DRAW) - best
        assert worse.mean() > 4 * worse.std(ddof=1) / np.sqrt(400)


def test_crps_needs_two_draws():
    with pytest.raises(DataError, match="two draws or more"):
        crps(along([1.0], "draw"), 1.0, **DRAW)


# --- intervals and PIT -----------------------------------------------------------------------


def test_interval_score_by_hand():
    draws = along(np.arange(5.0), "draw", units="s")
    for y, expected in ((2.0, 2.0), (3.0, 2.0), (4.0, 6.0), (-1.0, 10.0)):
        score = interval_score(draws, y, 0.5, **DRAW)
        assert score.item() == pytest.approx(expected, rel=1e-12)
    assert score.attrs["units"] == "s"
    # the mistake: a fine of 1/alpha for each side instead of 2/alpha
    assert score.item() != 2.0 + 2.0 / 0.5


@pytest.mark.statistical
def test_interval_score_is_least_for_the_true_forecast(rng):
    truth = along(rng.normal(size=1000))
    z = xr.DataArray(rng.normal(size=(200, 1000)), dims=("draw", "obs"))
    best = interval_score(z, truth, 0.8, **DRAW)
    for wrong in (z + 0.7, 2 * z, z / 2):
        worse = interval_score(wrong, truth, 0.8, **DRAW) - best
        assert worse.mean() > 4 * worse.std(ddof=1) / np.sqrt(1000)


def test_coverage_counts_the_ends_and_follows_the_mass():
    draws = xr.DataArray(np.arange(5.0), dims="draw").expand_dims(obs=4)
    observed = along([1.0, 3.0, 3.5, 0.0])
    assert coverage(draws, observed, 0.5, **DRAW).values.tolist() == [1, 1, 0, 0]
    assert coverage(draws, observed, 0.9, **DRAW).values.tolist() == [1, 1, 1, 0]
    assert coverage(draws, observed, mass=0.5, **DRAW).attrs["units"] == "1"


@pytest.mark.statistical
@pytest.mark.parametrize("mass", [0.5, 0.8, 0.9, 0.95])
def test_coverage_of_calibrated_forecasts_is_the_mass(rng, mass):
    """With n draws the interval between quantiles holds a little less: about 2/(n + 1) at most."""
    cases, n = 2000, 999
    draws = xr.DataArray(rng.normal(size=(n, cases)), dims=("draw", "obs"))
    truth = along(rng.normal(size=cases))
    tolerance = 4 * np.sqrt(mass * (1 - mass) / cases) + 2 / (n + 1)
    assert abs(coverage(draws, truth, mass, **DRAW).mean() - mass) < tolerance
    narrow = coverage(draws / 1.5, truth, mass, **DRAW).mean()
    assert abs(narrow - mass) > tolerance  # negative control


@pytest.mark.statistical
def test_pit_is_uniform_for_calibrated_forecasts_only(rng):
    draws = xr.DataArray(rng.normal(size=(1000, 1000)), dims=("draw", "obs"))
    truth = along(rng.normal(size=1000))
    assert kstest(pit(draws, truth, **DRAW), "uniform").pvalue > 0.001
    for wrong in (draws * 0.6, draws + 0.3):  # negative controls
        assert kstest(pit(wrong, truth, **DRAW), "uniform").pvalue < 0.001


@thorough
@given(some_draws, some_values)
def test_pit_counts_ties_half_and_turns_round_with_the_sign(x, y):
    value = pit(as_draws(x), along(y))
    flat = x.reshape(10, 3)
    np.testing.assert_allclose(value, (flat < y).mean(0) / 2 + (flat <= y).mean(0) / 2, **EXACT)
    np.testing.assert_allclose(pit(as_draws(-x), along(-y)), 1 - value, **EXACT)
    assert ((value >= 0) & (value <= 1)).all()


def test_pit_without_half_ties_would_not_turn_round():
    draws = along([1.0, 1.0, 2.0], "draw")
    assert pit(draws, 1.0, **DRAW).item() == pytest.approx(1 / 3, rel=1e-12)
    strict = (draws < 1.0).mean().item(), (-draws < -1.0).mean().item()
    assert sum(strict) != 1  # the mistake


@pytest.mark.parametrize("score", [crps, interval_score, coverage, pit])
def test_scores_keep_labels_and_broadcast_in_any_order(rng, score):
    labels = {"obs": list("abc"), "kind": ("obs", list("xxy"))}
    dims = ("obs", "chain", "repeat", "draw")
    draws = xr.DataArray(rng.normal(size=(3, 2, 4, 10)), labels, dims)
    observed = xr.DataArray(rng.normal(size=3), {"obs": list("abc")}, ["obs"])
    value = score(draws, observed)
    assert value.dims == ("obs", "repeat")
    assert value["kind"].values.tolist() == list("xxy")
    other = score(draws.transpose("draw", "repeat", "obs", "chain"), observed)
    xr.testing.assert_allclose(other.transpose("obs", "repeat"), value)
    one = score(draws.sel(obs="b", drop=True), observed.sel(obs="b").item())
    xr.testing.assert_allclose(
        one, value.sel(obs="b", drop=True).drop_vars("kind", errors="ignore")
    )


@pytest.mark.parametrize("score", [crps, interval_score, coverage, pit])
def test_scores_refuse_what_does_not_match(score):
    labels = {"obs": list("abc")}
    draws = xr.DataArray(np.ones((1, 4, 3)), labels, ("chain", "draw", "obs"))
    good = xr.DataArray(np.ones(3), labels, ["obs"])
    score(draws, good)
    with pytest.raises(DataError, match="labels of draws observed differ"):
        score(draws, good.assign_coords(obs=list("abd")))
    with pytest.raises(DataError, match="labels of draws observed differ"):
        score(draws, good.isel(obs=[1, 0, 2]))
    with pytest.raises(DataError, match=r"observed has dims \['op'\]"):
        score(draws, good.expand_dims(op=2))
    with pytest.raises(DataError, match=r"without \['sample'\]"):
        score(draws, good, sample_dims=["sample"])
    with pytest.raises(DataError, match="see sample_dims"):
        score(draws, good, sample_dims=[])
    with pytest.raises(DataError, match="no draws"):
        score(draws.isel(draw=[]), good)
    with pytest.raises(DataError, match="2 of 3 values of observed are NaN"):
        score(draws, good.where(good["obs"] == "a"))
    with pytest.raises(DataError, match="8 of 12 values of draws are NaN"):
        score(draws.where(draws["obs"] == "a"), good)
    with pytest.raises(DataError, match=r"are in \['ms', 's'\]"):
        score(draws.assign_attrs(units="s"), good.assign_attrs(units="ms"))


@pytest.mark.parametrize("score", [interval_score, coverage])
@pytest.mark.parametrize("mass", [0, 1, -0.1, 90, float("nan")])
def test_mass_is_a_probability(score, mass):
    with pytest.raises(DataError, match="mass of the interval"):
        score(as_draws(np.ones((1, 4, 3))), 1.0, mass)


# --- points ----------------------------------------------------------------------------------


def test_percentage_errors_by_hand():
    predicted, observed = along([5.0, 9.0, -3.0]), along([4.0, 10.0, -2.0])
    errors = absolute_percentage_error(predicted, observed)
    np.testing.assert_allclose(errors, [0.25, 0.1, 0.5], **EXACT)
    assert mape(predicted, observed).item() == pytest.approx(0.85 / 3, rel=1e-12)
    assert mape(predicted, observed).attrs["units"] == "1"
    # the mistake: relative to the prediction
    assert not np.allclose(errors, abs(predicted - observed) / abs(predicted))


def test_mape_averages_over_the_dim_asked_for():
    predicted = xr.DataArray([[1.0, 2.0], [3.0, 4.0]], dims=("sku", "obs"))
    observed = xr.full_like(predicted, 2.0)
    assert mape(predicted, observed, "obs").values.tolist() == [0.25, 0.75]
    assert mape(predicted, observed, ["sku", "obs"]).item() == 0.5
    with pytest.raises(DataError, match=r"no dim \['op'\]"):
        mape(predicted, observed, "op")


@thorough
@given(arrays(float, (2, 6), elements=st.integers(0, 5).map(float)))
def test_rank_correlation_is_spearmans(x):
    value = rank_correlation(along(x[0], "sku"), along(x[1], "sku"))
    if np.ptp(x, axis=1).min() == 0:
        assert value.isnull()
    else:
        np.testing.assert_allclose(value, spearmanr(x[0], x[1]).statistic, **EXACT)


def test_rank_correlation_sees_only_the_order(rng):
    x = xr.DataArray(rng.normal(size=(5, 8)), dims=("workload", "sku"))
    np.testing.assert_allclose(rank_correlation(x, np.exp(x).T), 1, **EXACT)
    np.testing.assert_allclose(rank_correlation(x, -(x**3)), -1, **EXACT)
    pearson = xr.corr(x, np.exp(x), "sku")
    assert (pearson < 1 - 1e-3).all()  # the mistake: values in place of ranks


def test_brier_by_hand():
    p, event = along([0.0, 0.5, 0.9, 1.0]), along([False, True, False, True])
    np.testing.assert_allclose(brier(p, event), [0, 0.25, 0.81, 0], **EXACT)
    assert not np.allclose(brier(p, event), abs(p - event))  # the mistake: not proper


@thorough
@given(st.floats(0, 1), st.floats(0, 1))
def test_brier_is_proper(truth, said):
    """Expected over the event, the score is least if one says what one believes."""
    p, event = along([said, said]), along([1, 0])
    honest = truth * (1 - truth)
    expected = (brier(p, event) * along([truth, 1 - truth])).sum()
    assert expected.item() == pytest.approx(honest + (truth - said) ** 2, rel=1e-12, abs=1e-12)


def test_reliability_by_hand():
    p = along([0.0, 0.1, 0.3, 0.35, 0.9, 1.0])
    event = along([0, 1, 0, 1, 1, 1])
    table = reliability(p, event, bins=10)
    assert table["cases"].values.tolist() == [1, 1, 0, 2, 0, 0, 0, 0, 0, 2]
    np.testing.assert_allclose(table["frequency"].dropna("bin"), [0, 1, 0.5, 1], **EXACT)
    np.testing.assert_allclose(table["mean_probability"].dropna("bin"), [0, 0.1, 0.325, 0.95])
    np.testing.assert_allclose(table["upper"], np.linspace(0.1, 1, 10), **EXACT)
    assert table["cases"].sum() == 6  # the mistake: a last bin without its upper edge loses 1.0
    assert not set(table.variables) & set(dir(xr.Dataset))
    assert all(v.attrs["units"] == "1" for v in table.variables.values())
    np.testing.assert_array_equal(reliability(p, event, [0, 0.05, 0.5, 1])["cases"], [1, 3, 2])


@pytest.mark.statistical
def test_reliability_shows_who_is_calibrated(rng):
    p = xr.DataArray(rng.uniform(size=(50, 100)), dims=("workload", "pair"))
    event = xr.DataArray(rng.uniform(size=(50, 100)), dims=("workload", "pair")) < p
    table = reliability(p, event.T, bins=5)
    error = np.sqrt(table["mean_probability"] * (1 - table["mean_probability"]) / table["cases"])
    assert (abs(table["frequency"] - table["mean_probability"]) < 4 * error).all()
    bold = reliability((p > 0.5) * 0.8 + 0.1, event, bins=5)  # negative control
    assert (abs(bold["frequency"] - bold["mean_probability"]) > 0.1).any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: absolute_percentage_error(a, 0 * a), "2 of 2 observations are 0"),
        (lambda a: mape(a, a.rename(obs="op")), "give both the same"),
        (lambda a: rank_correlation(a, a), r"no dim \['sku'\]"),
        (lambda a: rank_correlation(a[:1], a[:1], "obs"), "two values or more"),
        (lambda a: brier(a + 1, a), "1 probabilities lie outside"),
        (lambda a: brier(a, a / 2), "1 events are neither 0 nor 1"),
        (lambda a: brier(a, a.where(a > 0)), "1 of 2 values of event are NaN"),
        (lambda a: brier(a, a.assign_coords(obs=[1, 2])[[1, 0]]), None),
        (lambda a: reliability(a, a, 0), "ascend from 0 to 1"),
        (lambda a: reliability(a, a, [0, 0.5]), "ascend from 0 to 1"),
        (lambda a: reliability(a, a, [0, 0.5, 0.5, 1]), "ascend from 0 to 1"),
        (lambda a: reliability(a, a.isel(obs=0)), "give both the same"),
    ],
)
def test_points_refuse_what_does_not_match(call, message):
    points = along([0.0, 1.0])
    if message is None:  # labels on one side only: nothing to contradict
        assert call(points).shape == (2,)
        return
    with pytest.raises(DataError, match=message):
        call(points)


def test_points_are_never_matched_by_position():
    a = along([0.0, 1.0]).assign_coords(obs=["x", "y"])
    with pytest.raises(DataError, match="labels of predicted observed differ"):
        mape(a + 1, (a + 1).isel(obs=[1, 0]))
    with pytest.raises(DataError, match="labels of probability event differ"):
        brier(a, a.assign_coords(obs=["x", "z"]))
