"""Decisions are right on draws whose answer is known: by hand, by theory, by symmetry."""

import itertools
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.signal import lfilter
from scipy.stats import norm, rankdata

from m2bayes import decision
from m2bayes.decision import (
    choose,
    contenders,
    evpi,
    expected_rank,
    expected_regret,
    mcse,
    p_any_flip,
    p_best,
    p_flip,
    p_top1_flip,
    rank,
    rank_distribution,
    verdict,
)
from m2bayes.errors import WorkloadError

EXACT = {"rtol": 1e-12, "atol": 1e-12}
BY_DRAWS = [p_best, rank_distribution, expected_rank]
PROBABILITIES = [*BY_DRAWS, p_flip, p_any_flip, p_top1_flip]

thorough = settings(deadline=None, max_examples=50)  # no deadline: first calls import
# few values, many ties; medians that tie, too
tied_draws = arrays(float, (2, 6, 3), elements=st.integers(1, 4).map(float))
positive_draws = arrays(float, (2, 5, 4), elements=st.floats(1.0, 2.0))


@pytest.fixture
def rng():
    return np.random.default_rng(20261129)


def as_draws(values, dims=("chain", "draw", "sku"), units="s"):
    values = np.asarray(values, dtype=float)
    values = values[None] if values.ndim < len(dims) else values
    labels = [f"sku-{s}" for s in range(values.shape[dims.index("sku")])]
    return xr.DataArray(values, {"sku": labels}, dims, attrs={"units": units})


def overlap(result):
    """Intersection over union of the intervals of the first two SKUs, for one workload."""
    low, high = result["low"].values, result["high"].values
    return (high.min() - low.max()) / (high.max() - low.min())


# --- by hand ---------------------------------------------------------------------------------


@pytest.fixture
def three_draws():
    """The first SKU mostly wins by little and once loses by much."""
    return as_draws([[1, 2], [2, 4], [9, 3]])


def test_regret_by_hand(three_draws):
    np.testing.assert_allclose(expected_regret(three_draws), [2.0, 1.0], **EXACT)
    np.testing.assert_allclose(expected_regret(three_draws, True), [2 / 3, 2 / 3], **EXACT)
    assert evpi(three_draws).item() == pytest.approx(1.0, rel=1e-12)
    assert expected_regret(three_draws).attrs["units"] == "s"
    assert evpi(three_draws).attrs["units"] == "s"
    assert expected_regret(three_draws, True).attrs["units"] == "1"


def test_regret_is_not_the_difference_of_means(three_draws):
    """The mistake: comparing with the best on average instead of the best in each draw."""
    means = three_draws.mean(("chain", "draw"))
    assert not np.allclose(expected_regret(three_draws), means - means.min())


def test_the_choice_minimises_regret_and_not_the_chance_of_losing(three_draws):
    assert choose(three_draws).item() == "sku-1"
    np.testing.assert_allclose(p_best(three_draws), [2 / 3, 1 / 3], **EXACT)


def test_flips_and_ranks_by_hand(three_draws):
    np.testing.assert_allclose(p_flip(three_draws), [[0, 1 / 3], [1 / 3, 0]], **EXACT)
    np.testing.assert_allclose(expected_rank(three_draws), [4 / 3, 5 / 3], **EXACT)
    np.testing.assert_allclose(
        rank_distribution(three_draws), [[2 / 3, 1 / 3], [1 / 3, 2 / 3]], **EXACT
    )
    assert p_any_flip(three_draws).item() == pytest.approx(1 / 3, rel=1e-12)
    assert p_top1_flip(three_draws).item() == pytest.approx(1 / 3, rel=1e-12)


def test_p_flip_compares_with_the_medians_and_not_with_the_means(three_draws):
    """The mean of the first SKU is larger (4 > 3): ordering by it would give 2/3."""
    means = three_draws.mean(("chain", "draw"))
    assert means[1] < means[0]
    assert p_flip(three_draws).values[0, 1] < 0.5


def test_ties_are_shared():
    draws = as_draws([[1, 1, 2], [1, 1, 1]])
    np.testing.assert_allclose(p_best(draws), [5 / 12, 5 / 12, 2 / 12], **EXACT)
    np.testing.assert_allclose(expected_rank(draws), [1.75, 1.75, 2.5], **EXACT)
    best = draws == draws.min("sku")
    assert best.mean(("chain", "draw")).sum() > 1  # the mistake: each tied SKU counted as best
    least = rankdata(draws, "min", axis=-1).mean((0, 1))
    assert not np.allclose(expected_rank(draws), least)  # the mistake: ties get the better place


def test_the_median_winner_need_not_be_the_likeliest_winner():
    draws = as_draws([[2, 1, 3], [2, 1, 3], [2, 3, 1], [2, 3, 1], [2, 3, 3]])
    np.testing.assert_allclose(p_best(draws), [0.2, 0.4, 0.4], **EXACT)
    assert p_top1_flip(draws).item() == pytest.approx(0.8, rel=1e-12)
    assert 1 - p_best(draws).max() < 0.7  # the mistake: the largest p_best in place of the median's


def test_flips_of_pairs_happen_together():
    draws = as_draws([[1, 2, 3], [1, 2, 3], [3, 2, 1]])
    assert p_any_flip(draws).item() == pytest.approx(1 / 3, rel=1e-12)
    pairs = p_flip(draws).values[np.triu_indices(3, 1)]
    assert 1 - np.prod(1 - pairs) > 0.7  # the mistake: pairs taken as independent


def test_equal_medians_give_one_half():
    draws = as_draws([[1, 2], [2, 1], [3, 3]])
    assert p_flip(draws).values[0, 1] == 0.5
    assert p_any_flip(draws).item() == 0.5
    assert p_top1_flip(draws).item() == 0.5
    assert p_flip(as_draws([[1, 2, 1]] * 2)).values[0, 2] == 0.5


def test_ties_of_draws_count_half():
    draws = as_draws([[1, 2], [2, 2], [1, 2]])
    assert p_flip(draws).values[0, 1] == pytest.approx(1 / 6, rel=1e-12)
    wrong = (draws.isel(sku=1) < draws.isel(sku=0)).mean()
    assert wrong == 0  # the mistake: ties left out


# --- joint draws, not marginals --------------------------------------------------------------


@pytest.mark.statistical
def test_shared_uncertainty_cancels_though_the_intervals_overlap(rng):
    """Both SKUs move together: one is always 1 % faster, whatever the world is like."""
    z = 0.5 * rng.normal(size=(4, 1000))
    draws = as_draws(np.exp(np.stack([z, z + 0.01], -1)))
    result = rank(draws)

    assert overlap(result) > 0.95
    assert result["p_flip"].values[0, 1] == 0
    assert 0 < result["p_flip_mcse"].values[0, 1] < 1e-3
    assert result["verdict"].item() == "clear"

    # negative control: the same marginals, the draws of each SKU shuffled on their own
    shuffled = np.exp(np.stack([rng.permuted(z), rng.permuted(z) + 0.01], -1))
    marginal = rank(as_draws(shuffled))
    xr.testing.assert_allclose(marginal["posterior_median"], result["posterior_median"], rtol=1e-12)
    p, error = (marginal[k].values[0, 1] for k in ("p_flip", "p_flip_mcse"))
    assert abs(p - norm.cdf(-0.01 / np.hypot(0.5, 0.5))) < 4 * error
    assert p > 0.4
    assert marginal["verdict"].item() == "too close to call"


@pytest.mark.statistical
@pytest.mark.parametrize("gap", [0.05, 0.2, 0.5])
def test_independent_uncertainty_gives_the_normal_theory(rng, gap):
    a, b = 0.1, 0.3
    logs = np.stack([rng.normal(0, a, (4, 1000)), rng.normal(gap, b, (4, 1000))], -1)
    result = rank(as_draws(np.exp(logs)))
    p, error = (result[k].values[0, 1] for k in ("p_flip", "p_flip_mcse"))

    assert abs(p - norm.cdf(-gap / np.hypot(a, b))) < 4 * error
    assert error == pytest.approx(np.sqrt(p * (1 - p) / 4000), rel=4 / np.sqrt(2 * 127))
    if gap > 0.05:  # the mistake: standard deviations added instead of variances
        assert abs(p - norm.cdf(-gap / (a + b))) > 4 * error


@pytest.mark.statistical
def test_regret_of_two_normals_has_its_closed_form(rng):
    """With d = m1 - m0 normal, E[max(d, 0)] = s phi(g/s) + g Phi(g/s)."""
    x = rng.normal([10, 10.5], [1, 2], (4, 2000, 2))
    s, g = np.hypot(1, 2), 0.5
    exact = s * norm.pdf(g / s) + g * norm.cdf(g / s)
    draws = as_draws(x)
    error = mcse((draws - draws.min("sku")).isel(sku=1))
    assert abs(expected_regret(draws)[1] - exact) < 4 * error
    assert abs(expected_regret(draws)[1] - g) > 4 * error  # the mistake: difference of means


@pytest.mark.statistical
def test_equal_skus_are_best_equally_often(rng):
    result = rank(as_draws(np.exp(rng.normal(size=(4, 1000, 5)))))
    assert (abs(result["p_best"] - 0.2) < 4 * result["p_best_mcse"]).all()
    expected = 1 - 1 / 120  # one of 5! rankings is the median ranking
    assert abs(result["p_any_flip"] - expected) < 4 * result["p_any_flip_mcse"]


# --- properties ------------------------------------------------------------------------------


@thorough
@given(tied_draws)
def test_places_make_a_distribution_whose_mean_is_the_expected_rank(x):
    draws = as_draws(x)
    share = rank_distribution(draws)
    np.testing.assert_allclose(share.sum("place"), 1, **EXACT)
    np.testing.assert_allclose(share.sum("sku"), 1, **EXACT)
    np.testing.assert_allclose(share.sel(place=1), p_best(draws), **EXACT)
    np.testing.assert_allclose((share * share["place"]).sum("place"), expected_rank(draws), **EXACT)
    np.testing.assert_allclose(expected_rank(draws), rankdata(x, axis=-1).mean((0, 1)), **EXACT)
    np.testing.assert_allclose(p_best(draws).sum(), 1, **EXACT)


def rankings(x):
    """All orders of the SKUs that do not contradict x."""
    orders = itertools.permutations(range(len(x)))
    return {o for o in orders if all(x[a] <= x[b] for a, b in itertools.pairwise(o))}


@thorough
@given(tied_draws)
def test_p_any_flip_counts_rankings_with_ties_broken_by_coins(x):
    flat = x.reshape(-1, 3)
    median = rankings(np.median(flat, axis=0))
    kept = [len(median & r) / (len(median) * len(r)) for r in map(rankings, flat)]
    np.testing.assert_allclose(p_any_flip(as_draws(x)), 1 - np.mean(kept), **EXACT)


@thorough
@given(tied_draws)
def test_two_skus_give_one_flip_probability(x):
    draws = as_draws(x[..., :2])
    np.testing.assert_allclose(p_any_flip(draws), p_flip(draws)[0, 1], **EXACT)
    np.testing.assert_allclose(p_top1_flip(draws), p_flip(draws)[0, 1], **EXACT)


@thorough
@given(tied_draws)
def test_p_flip_follows_its_definition(x):
    flat = x.reshape(-1, 3)
    median = np.median(flat, axis=0)
    for a, b in itertools.permutations(range(3), 2):
        a_first = np.mean(flat[:, a] < flat[:, b]) + np.mean(flat[:, a] == flat[:, b]) / 2
        sign = np.sign(median[b] - median[a])
        expected = {1: 1 - a_first, -1: a_first, 0: 0.5}[sign]
        np.testing.assert_allclose(p_flip(as_draws(x))[a, b], expected, **EXACT)


@thorough
@given(tied_draws, st.permutations(range(3)))
def test_permuting_skus_permutes_the_results(x, order):
    draws = as_draws(x)
    result, permuted = rank(draws), rank(draws.isel(sku=order))
    for name in set(result) - {"choice", "verdict"}:  # these may depend on the order in ties
        xr.testing.assert_allclose(
            permuted[name].sel({d: result[d] for d in result[name].dims}), result[name], rtol=1e-12
        )


@thorough
@given(tied_draws, st.sampled_from([0.25, 8.0, 1024.0]), st.integers(0, 50))
def test_scaling_and_shifting_time_leave_probabilities_alone(x, scale, shift):
    draws, other = as_draws(x), as_draws(x * scale + shift)
    for function in PROBABILITIES:
        xr.testing.assert_equal(function(draws), function(other))
    np.testing.assert_allclose(expected_regret(other), scale * expected_regret(draws), **EXACT)
    np.testing.assert_allclose(
        expected_regret(as_draws(x * scale), True), expected_regret(draws, True), **EXACT
    )


@thorough
@given(tied_draws, arrays(float, (2, 6, 1), elements=st.sampled_from([0.25, 0.5, 1.0, 2.0, 16.0])))
def test_a_factor_shared_in_each_draw_leaves_the_ranking_alone(x, factor):
    draws, other = as_draws(x), as_draws(x * factor)
    for function in BY_DRAWS:
        xr.testing.assert_equal(function(draws), function(other))
    xr.testing.assert_allclose(expected_regret(draws, True), expected_regret(other, True))


@thorough
@given(tied_draws)
def test_more_is_better_turns_everything_round(x):
    draws, other = as_draws(x), as_draws(10 - x)
    for function in [*PROBABILITIES, expected_regret, evpi, choose]:
        xr.testing.assert_allclose(function(draws), function(other, higher_is_better=True))
    assert rank(other)["p_best"].values == pytest.approx(p_best(draws, higher_is_better=True))
    result, turned = rank(draws), rank(other, higher_is_better=True)
    for name in ("posterior_median", "posterior_mean"):
        np.testing.assert_allclose(turned[name], 10 - result[name], **EXACT)
    np.testing.assert_allclose(turned["high"], 10 - result["low"], **EXACT)


def test_relative_regret_of_a_rate_is_relative_to_the_best_rate():
    draws = as_draws([[100, 75], [100, 200]])
    relative = expected_regret(draws, True, higher_is_better=True)
    np.testing.assert_allclose(relative, [0.25, 0.125], **EXACT)
    assert choose(draws, higher_is_better=True).item() == "sku-1"


@thorough
@given(positive_draws)
def test_evpi_is_no_more_than_any_regret(x):
    draws = as_draws(x)
    assert (expected_regret(draws) >= evpi(draws)).all()
    assert 0 <= evpi(draws).item() == expected_regret(draws).sel(sku=choose(draws).item()).item()


# --- SKUs that do not fit --------------------------------------------------------------------


def test_a_sku_that_never_fits_is_last_and_has_no_time():
    fitting = as_draws([[1, 2], [2, 4], [9, 3]])
    draws = fitting.reindex(sku=["x", "sku-0", "sku-1", "y"])
    result, alone = rank(draws), rank(fitting)

    assert result["p_best"].values.tolist() == [0, *alone["p_best"].values, 0]
    times = ("posterior_median", "posterior_mean", "low", "high", "expected_regret")
    for name in (*times, "relative_regret"):
        assert result[name].sel(sku=["x", "y"]).isnull().all()
        xr.testing.assert_equal(result[name].sel(sku=fitting["sku"]), alone[name])
    for name in ("p_any_flip", "p_top1_flip", "choice", "verdict"):
        assert result[name].item() == alone[name].item()
    assert not result["contender"].sel(sku=["x", "y"]).any()
    assert (result["p_flip"].sel(sku=["x", "y"]) == 0).all()
    assert result["expected_rank"].values.tolist() == pytest.approx([3.5, 4 / 3, 5 / 3, 3.5])


def test_if_nothing_fits_there_is_no_choice():
    result = rank(as_draws(np.full((5, 2), np.nan)))
    assert result["choice"].item() == ""
    assert result["verdict"].item() == "nothing fits"
    assert (result["p_best"] == 0).all()
    assert result["p_any_flip"].item() == 0
    assert result["p_top1_flip"].isnull()
    assert evpi(as_draws(np.full((5, 2), np.nan))).isnull()


def test_a_fit_that_is_uncertain_enters_the_chance_of_being_best():
    draws = as_draws([[1, 2], [1, 2], [1, 2], [np.nan, 2], [np.nan, np.nan]])
    np.testing.assert_allclose(p_best(draws), [0.6, 0.2], **EXACT)
    assert choose(draws).item() == "sku-1"  # the other's regret has no bound
    assert expected_regret(draws).isnull().values.tolist() == [True, False]
    assert rank(draws)["posterior_median"].values.tolist() == [1, 2]
    assert rank(draws)["posterior_mean"].isnull().all()
    assert p_flip(draws).values[0, 1] == pytest.approx(0.2 + 0.1)


def test_if_each_sku_may_fail_the_one_that_is_best_more_often_is_chosen():
    draws = as_draws([[np.nan, 2], [1, np.nan], [1, 2]])
    assert choose(draws).item() == "sku-0"
    assert evpi(draws).isnull()


# --- verdicts --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "rival", "expected"),
    [
        (0.9, 2.0, "clear"),
        (0.8, 1.005, "either will do"),
        (0.8, 2.0, "too close to call"),
        (0.8, 1.1, "too close to call"),
        (0.95, 1.005, "clear"),
    ],
)
def test_verdicts(share, rival, expected):
    """The first SKU wins in `share` of 100 draws; whoever loses takes `rival` times as long."""
    wins = np.arange(100) < 100 * share
    draws = as_draws(np.stack([np.where(wins, 1, rival), np.where(wins, rival, 1)], -1))
    assert verdict(draws).item() == expected == rank(draws)["verdict"].item()
    assert choose(draws).item() == "sku-0"


def test_contenders_are_judged_by_their_own_regret():
    draws = as_draws([[1, 1.005, 1.012, 2], [1.005, 1, 1.012, 2]])
    assert contenders(draws).values.tolist() == [True, True, False, False]
    assert verdict(draws).item() == "either will do"
    xr.testing.assert_equal(rank(draws)["contender"], contenders(draws))
    means = draws.mean(("chain", "draw"))
    mistaken = means / means.min() - 1 < 0.01  # regret of means calls the third one, too
    assert not mistaken.equals(contenders(draws).drop_attrs())
    # a threshold that is met makes the same draws clear
    assert verdict(draws.isel(draw=[0]), 1.0).item() == "clear"


def test_either_will_do_holds_for_a_choice_without_company():
    wins = np.arange(100) < 88
    draws = as_draws(np.stack([np.where(wins, 1, 1.05), np.where(wins, 1.1, 1)], -1))
    assert contenders(draws).values.tolist() == [True, False]
    assert verdict(draws).item() == "either will do"


# --- the table -------------------------------------------------------------------------------


def test_rank_holds_what_the_single_functions_give(rng):
    dims = ("op", "chain", "sku", "workload", "draw")
    draws = as_draws(np.exp(rng.normal(size=(2, 4, 3, 5, 50))), dims)
    draws = draws.assign_coords(workload=list("vwxyz"), architecture=("sku", list("AAH")))
    result = rank(draws, mass=0.8)
    single = {
        "p_best": p_best(draws),
        "expected_rank": expected_rank(draws),
        "expected_regret": expected_regret(draws),
        "relative_regret": expected_regret(draws, relative=True),
        "contender": contenders(draws),
        "p_flip": p_flip(draws),
        "p_any_flip": p_any_flip(draws),
        "p_top1_flip": p_top1_flip(draws),
        "choice": choose(draws),
        "verdict": verdict(draws),
    }
    for name, value in single.items():
        xr.testing.assert_identical(result[name], value)
        assert value.dims[:2] == ("op", "workload")
    assert result["p_flip"].dims == ("op", "workload", "sku", "sku_other")
    assert result["p_best"]["architecture"].values.tolist() == list("AAH")

    flat = draws.transpose("op", "workload", "sku", ...).values.reshape(2, 5, 3, -1)
    low, median, high = np.quantile(flat, [0.1, 0.5, 0.9], axis=-1)
    np.testing.assert_allclose(result["low"], low, **EXACT)
    np.testing.assert_allclose(result["posterior_median"], median, **EXACT)
    np.testing.assert_allclose(result["high"], high, **EXACT)
    np.testing.assert_allclose(result["posterior_mean"], flat.mean(-1), **EXACT)
    assert result["low"].attrs == {"units": "s", "kind": "eti", "mass": 0.8}


def test_every_probability_has_an_error_and_every_variable_a_unit(rng):
    result = rank(as_draws(np.exp(rng.normal(size=(4, 50, 3)))))
    assert all("units" in v.attrs for v in result.data_vars.values())
    for name in ("p_best", "p_flip", "p_any_flip", "p_top1_flip"):
        assert result[f"{name}_mcse"].dims == result[name].dims
        assert result[name].attrs["units"] == "1"
    assert result["posterior_mean"].attrs["units"] == "s"
    assert rank(as_draws([[1, 2]]).drop_attrs())["posterior_mean"].attrs["units"] == "1"


def test_no_variable_bears_the_name_of_a_dataset_attribute():
    taken = set(rank(as_draws([[1, 2]])).variables) & set(dir(xr.Dataset))
    assert not taken


def test_blocks_do_not_change_the_result(rng, monkeypatch):
    draws = as_draws(np.exp(rng.normal(size=(2, 30, 3, 7))), ("chain", "draw", "sku", "workload"))
    whole = rank(draws)
    monkeypatch.setattr(decision, "_BLOCK", 2 * 2 * 30 * 3)  # two workloads a block
    xr.testing.assert_identical(rank(draws), whole)
    xr.testing.assert_equal(
        rank(draws.isel(workload=4)).drop_vars(["choice", "verdict"]),
        whole.isel(workload=4).drop_vars(["choice", "verdict"]),
    )


def test_one_sku_is_best_without_regret():
    result = rank(as_draws([[1], [2]]))
    assert result["p_best"].item() == 1
    assert result["expected_regret"].item() == 0
    assert result["p_any_flip"].item() == result["p_top1_flip"].item() == 0
    assert result["verdict"].item() == "clear"


def test_p_best_along_another_dim():
    draws = as_draws([[1, 2], [1, 2], [4, 2]]).rename(sku="layout")
    np.testing.assert_allclose(p_best(draws, dim="layout"), [2 / 3, 1 / 3], **EXACT)


def test_ranking_is_fast_and_its_memory_bounded(rng):
    dims = ("chain", "draw", "sku", "workload")
    draws = as_draws(np.exp(rng.normal(size=(4, 1000, 4, 7))), dims)
    took = []
    for _ in range(10):
        start = time.perf_counter()
        rank(draws)
        took.append(time.perf_counter() - start)
    assert min(took) < 0.05

    draws = as_draws(rng.uniform(1, 2, (4, 1000, 9, 200)), dims)
    tracemalloc.start()
    rank(draws)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200e6


def test_ranking_imports_neither_scipy_nor_a_sampler():
    code = (
        "import sys, numpy as np, xarray as xr\n"
        "from m2bayes.decision import rank\n"
        "import m2bayes.score\n"
        "rank(xr.DataArray(np.ones((1, 3, 2)), dims=('chain', 'draw', 'sku')))\n"
        "unasked = {'scipy'} if 'dask' in sys.modules else set()\n"  # xarray imports what it finds
        "heavy = {'scipy', 'pymc', 'arviz', 'pytensor', 'matplotlib'} - unasked\n"
        "print(*heavy & set(sys.modules))"
    )
    root = Path(decision.__file__).parents[1]
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, check=True)
    assert run.stdout.split() == []


# --- Monte Carlo standard errors -------------------------------------------------------------


def test_mcse_by_hand():
    """Nine draws are three batches of three a chain; four chains make twelve batch means."""
    x = np.arange(36.0).reshape(4, 9)
    draws = xr.DataArray(x, dims=("chain", "draw"), attrs={"units": "s"})
    batches = x.reshape(12, 3).mean(1)
    assert mcse(draws).item() == pytest.approx(batches.std(ddof=1) / np.sqrt(12), rel=1e-12)
    assert mcse(draws).attrs["units"] == "s"
    few = draws.isel(chain=slice(2))  # six batches only: draws taken as independent
    assert mcse(few).item() == pytest.approx(x[:2].std(ddof=1) / np.sqrt(18), rel=1e-12)
    assert mcse(few.stack(sample=("chain", "draw")), ["sample"]).item() == mcse(few).item()
    assert mcse(draws.isel(chain=[0], draw=[2])).isnull()


@pytest.mark.statistical
@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8])
def test_mcse_of_autocorrelated_chains_has_its_theoretical_value(rng, phi):
    """AR(1): the tolerance is four errors over repeats plus the known bias of finite batches."""
    repeats, chains, n = 300, 4, 1000
    start = rng.normal(size=(repeats, chains, 1)) / np.sqrt(1 - phi**2)
    noise = rng.normal(size=(repeats, chains, n))
    x, _ = lfilter([1], [1, -phi], noise, axis=-1, zi=phi * start)
    draws = xr.DataArray(x, dims=("repeat", "chain", "draw"))

    def variance_of_mean(m):
        ratio = (1 + phi) / (1 - phi) - 2 * phi * (1 - phi**m) / (m * (1 - phi) ** 2)
        return ratio / (1 - phi**2) / m

    exact = variance_of_mean(n) / chains
    bias = abs(variance_of_mean(31) * 31 / (chains * n) - exact)  # batches of 31 draws
    estimate = mcse(draws) ** 2
    tolerance = 4 * estimate.std("repeat", ddof=1) / np.sqrt(repeats) + bias
    assert abs(estimate.mean("repeat") - exact) < tolerance

    naive = (draws.var(("chain", "draw"), ddof=1) / (chains * n)).mean("repeat")
    assert (abs(naive - exact) > tolerance) == (phi > 0)  # the mistake: draws independent


@pytest.mark.parametrize("value", [0.0, 1.0, False, True])
def test_a_certain_estimate_has_an_error_all_the_same(value):
    draws = xr.DataArray(np.full((4, 1000), value), dims=("chain", "draw"))
    p = 2 / 4004
    assert mcse(draws).item() == pytest.approx(np.sqrt(p * (1 - p) / 4004), rel=1e-12)
    # never beyond the rule of three's upper bound, 3/n, and of its size
    assert 1 / 4000 < mcse(draws).item() < 3 / 4000


def test_the_error_of_a_constant_that_is_no_probability_is_zero():
    assert mcse(xr.full_like(as_draws([[1, 2]] * 9), 7.0)).values.tolist() == [0, 0]


# --- errors ----------------------------------------------------------------------------------

GOOD = as_draws([[1, 2], [2, 1]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rank(GOOD.rename(sku="gpu")), r"without \['sku'\]"),
        (lambda: p_best(GOOD.isel(chain=0)), r"without \['chain'\]"),
        (lambda: p_best(GOOD, dim="gpu"), r"without \['gpu'\]"),
        (lambda: p_flip(GOOD.isel(sku=[])), "nothing to compare"),
        (lambda: p_flip(GOOD.isel(draw=[])), "nothing to compare"),
        (lambda: p_best(GOOD.isel(sku=[0, 0])), "named twice"),
        (lambda: p_any_flip(GOOD.where(GOOD > 1, np.inf)), "2 infinite draws"),
        (lambda: expected_regret(GOOD - 1, True), "2 draws are 0 or less"),
        (lambda: contenders(GOOD - 1), "0 or less"),
        (lambda: rank(-GOOD), "4 draws are 0 or less"),
        (lambda: verdict(GOOD, 0.5), "threshold is 0.5"),
        (lambda: rank(GOOD, threshold=1.1), "threshold is 1.1"),
        (lambda: rank(GOOD, threshold=float("nan")), "threshold is nan"),
        (lambda: rank(GOOD, mass=1.0), "mass of the interval is 1.0"),
        (lambda: rank(GOOD, mass=0.0), "mass of the interval is 0.0"),
        (lambda: mcse(GOOD, ["sample"]), r"without \['sample'\]"),
        (lambda: mcse(GOOD, []), "see sample_dims"),
        (lambda: mcse(GOOD.isel(draw=[])), "no draws"),
    ],
)
def test_bad_input_is_refused_at_the_door(call, message):
    with pytest.raises(WorkloadError, match=message):
        call()


def test_regret_has_the_error_of_a_mean(rng):
    """Of independent draws about sd / sqrt(n), as `mcse` has it of any mean."""
    draws = as_draws(np.exp(rng.normal(size=(4000, 2)) * 0.1))
    result = rank(draws)
    excess = draws - draws.min("sku")
    for name, z in (("expected_regret", excess), ("relative_regret", excess / draws.min("sku"))):
        np.testing.assert_allclose(result[f"{name}_mcse"], mcse(z), **EXACT)
        assert result[f"{name}_mcse"].attrs["units"] == result[name].attrs["units"]
        spread = z.std(("chain", "draw")) / np.sqrt(4000)
        np.testing.assert_allclose(result[f"{name}_mcse"], spread, rtol=0.25)


def test_regret_without_a_bound_has_no_error():
    draws = as_draws(np.array([[1.0, 2.0], [np.nan, 2.0], [1.0, 2.0]]))
    result = rank(draws)
    assert result["expected_regret_mcse"].isnull().values.tolist() == [True, False]
