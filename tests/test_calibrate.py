"""The calibrated mode against closed forms, simulations, and the file of measured steps."""

import math

import numpy as np
import pytest

from m2bayes.calibrate import LEAST, LENGTH, RUN, SCALES, host_scalar
from m2bayes.errors import DataError
from m2bayes.timings import Timing, read_timings
from m2bayes.workload import Step

DRAWS = 20_000


def mcse(values):
    return np.std(values, ddof=1) / np.sqrt(len(values))


# --- closed forms ----------------------------------------------------------------------------


def test_with_known_spread_the_host_time_is_the_normal_posterior():
    x, y = np.array([8e-3, 9e-3, 2e-2]), np.array([9e-3, 1.1e-2, 2.2e-2])
    sigma, prior_sd = 0.1, 2e-3
    weight = 1 / (sigma * y) ** 2
    precision = 1 / prior_sd**2 + weight.sum()
    mean = (weight * (y - x)).sum() / precision
    found = host_scalar(
        np.tile(x, (DRAWS, 1)), y, prior_sd=prior_sd, spread=sigma, group_spread=0.0
    ).host
    assert abs(found.mean() - mean) < 4 * mcse(found)
    squares = (found - mean) ** 2
    assert abs(squares.mean() - 1 / precision) < 4 * mcse(squares)


def test_with_groups_the_host_time_is_that_of_the_full_covariance():
    """Means and variances by dense matrices; the mean of all groups is not among the misfits."""
    x, y = np.array([8e-3, 9e-3, 2e-2, 1e-2, 5e-3]), np.array([9e-3, 1e-2, 2.2e-2, 1.3e-2, 7e-3])
    groups, sigma, tau, prior_sd = ["b", "a", "a", "b", "c"], 0.1, 0.2, 5e-3
    member = np.array([[g == name for name in "abc"] for g in groups], dtype=float)
    centred = member @ (np.eye(3) - 1 / 3)
    covariance = sigma**2 * np.eye(5) + tau**2 * centred @ centred.T
    residual, design = (y - x) / y, 1 / y
    precision = 1 / prior_sd**2 + design @ np.linalg.solve(covariance, design)
    mean = design @ np.linalg.solve(covariance, residual) / precision
    found = host_scalar(
        np.tile(x, (DRAWS, 1)),
        y,
        prior_sd=prior_sd,
        group=groups,
        spread=sigma,
        group_spread=tau,
    )
    assert abs(found.host.mean() - mean) < 4 * mcse(found.host)
    squares = (found.host - mean) ** 2
    assert abs(squares.mean() - 1 / precision) < 4 * mcse(squares)
    np.testing.assert_allclose(found.group_spread, tau * np.sqrt(4 / 3), rtol=1e-12)


def test_spreads_have_the_posterior_of_a_dense_grid():
    """The mean of σ and τ, by the dense likelihood at every pair of grid values."""
    rng = np.random.default_rng(3)
    y = rng.uniform(5e-3, 2e-2, size=6)
    x = y * (1 + 0.1 * rng.normal(size=6))
    groups, prior_sd = ["a", "a", "b", "b", "c", "c"], 3e-3
    member = np.array([[g == name for name in "abc"] for g in groups], dtype=float)
    centred = member @ (np.eye(3) - 1 / 3)
    grid = np.geomspace(0.005, 1, 25)
    weight = np.empty((25, 25))
    for i, sigma in enumerate(grid):
        for j, tau in enumerate(grid):
            c = sigma**2 * np.eye(6) + tau**2 * centred @ centred.T
            c = c + prior_sd**2 * np.outer(1 / y, 1 / y)
            r = (y - x) / y
            log_likelihood = -0.5 * (r @ np.linalg.solve(c, r) + np.linalg.slogdet(c)[1])
            prior = -0.5 * (sigma**2 + tau**2) / 0.1**2 + np.log(sigma * tau)
            weight[i, j] = log_likelihood + prior
    share = np.exp(weight - weight.max())
    share /= share.sum()
    found = host_scalar(np.tile(x, (DRAWS, 1)), y, prior_sd=prior_sd, group=groups)
    tau = found.group_spread / np.sqrt(4 / 3)
    for draws, exact in ((found.spread, share.sum(1) @ grid), (tau, share.sum(0) @ grid)):
        assert abs(draws.mean() - exact) < 4 * mcse(draws)


def test_a_draw_that_predicts_too_fast_gets_a_longer_host_time():
    y = np.full(50, 1e-2)
    x = np.linspace(5e-3, 9e-3, 200)[:, None] * np.ones(50)
    found = host_scalar(x, y, prior_sd=1.0, spread=1e-4, group_spread=0.0)
    np.testing.assert_allclose(found.host, 1e-2 - x[:, 0], atol=4 * 1e-2 * 1e-4 / np.sqrt(50) * 2)


def test_a_tight_prior_keeps_the_host_time_at_zero_and_a_wide_one_lets_it_go():
    x, y = np.full((2000, 4), 8e-3), np.full(4, 1e-2)
    tight, wide = (host_scalar(x, y, prior_sd=sd, spread=0.01).host for sd in (1e-7, 1.0))
    assert abs(tight).max() < 1e-6
    assert abs(wide.mean() - 2e-3) < 4 * mcse(wide)


def test_one_group_leaves_the_spread_of_groups_to_its_prior():
    x = np.full((DRAWS, 30), 8e-3)
    y = 1e-2 * np.exp(0.02 * np.random.default_rng(0).normal(size=30))
    tau = host_scalar(x, y, prior_group_spread=0.1).group_spread / np.sqrt(2)
    assert abs(np.mean(tau < 0.1) - 0.6827) < 0.1  # on a grid: one value is a tenth of the mass
    sigma = host_scalar(x, y).spread
    assert 0.01 < np.median(sigma) < 0.04


# --- new cells -------------------------------------------------------------------------------


def test_new_cells_share_the_misfit_of_their_group_and_no_other():
    x, y = np.full((DRAWS, 4), 8e-3), np.full(4, 1e-2)
    fit = host_scalar(x, y, spread=0.01, group_spread=0.1, prior_sd=1e-6)
    found = np.log(fit.applied(np.full((DRAWS, 3), 8e-3), group=["a", "a", "b"]))
    correlation = np.corrcoef(found.T)
    assert correlation[0, 1] > 0.98
    assert abs(correlation[0, 2]) < 4 / np.sqrt(DRAWS)
    sd = np.hypot(0.01, 0.1 * np.sqrt(2))
    assert found[:, 0].std() == pytest.approx(sd, rel=4 / np.sqrt(2 * DRAWS))


def test_a_group_errs_alike_whatever_else_is_asked_for():
    x, y = np.full((100, 4), 8e-3), np.full(4, 1e-2)
    fit = host_scalar(x, y, spread=1e-9, group_spread=0.1)
    both = fit.applied(np.full((100, 2), 8e-3), group=["a", "b"], seed=1)
    one = fit.applied(np.full((100, 1), 8e-3), group=["b"], seed=1)
    np.testing.assert_allclose(one[:, 0], both[:, 1], rtol=1e-6)


def test_a_negative_host_time_never_eats_a_whole_step():
    x, y = np.full((100, 4), 1e-2), np.full(4, 2e-3)
    fit = host_scalar(x, y, prior_sd=1.0, spread=0.01)
    assert (fit.host < -7e-3).all()
    np.testing.assert_allclose(fit.point(np.full((100, 1), 1e-3)), LEAST * 1e-3, rtol=1e-12)


def test_the_same_seed_gives_the_same_draws_and_another_does_not():
    x, y = np.full((100, 4), 8e-3), np.full(4, 1e-2)
    first, again, other = (host_scalar(x, y, seed=s).host for s in (0, 0, 1))
    assert (first == again).all()
    assert (first != other).any()


def test_cells_know_of_the_misfits_that_were_timed_near_them():
    """The normal posterior given timings of two cells, one of them twice, by dense matrices."""
    x, y = np.full((DRAWS, 3), 1e-2), np.array([1.1e-2, 1.12e-2, 1.2e-2])
    timed, sigma = np.array([[0.0], [0.0], [3.0]]), 0.05
    fit = host_scalar(x, y, prior_sd=1e-9, spread=sigma, group_spread=0.0, place=timed)
    new = np.array([[0.0], [1.5], [20.0], [1000.0]])
    found = np.log(fit.applied(np.full((DRAWS, 4), 1e-2), place=new) / 1e-2)

    def covariance(a, b):
        return sigma**2 * np.exp(-abs(a - b.T) / LENGTH)

    among, to_new = covariance(timed, timed) + RUN**2 * np.eye(3), covariance(new, timed)
    mean = to_new @ np.linalg.solve(among, np.log(y / 1e-2))
    left = sigma**2 - np.diag(to_new @ np.linalg.solve(among, to_new.T))
    for i in range(3):
        assert abs(found[:, i].mean() - mean[i]) < 4 * mcse(found[:, i])
        assert found[:, i].std() == pytest.approx(left[i] ** 0.5, rel=4 / np.sqrt(2 * DRAWS))
    assert left[0] < RUN**2 / 2
    assert left[2] == pytest.approx(sigma**2, rel=1e-3)
    assert abs(found[:, 3]).max() < 1e-6  # another kind of step, of which nothing was timed


def test_a_host_time_that_timings_do_not_tell_keeps_its_prior():
    """One long step as predicted: scales from 50 us to 5 ms, one as likely as another."""
    x = np.full((DRAWS, 1), 5.0)
    found = host_scalar(x, x[0], prior_sd=SCALES, group_spread=0.0).host
    assert abs(np.median(found)) < 1e-4
    inside = np.mean(abs(found) < 3e-3)
    prior = np.mean([math.erf(3e-3 / one / 2**0.5) for one in SCALES])
    assert inside == pytest.approx(prior, abs=0.02)
    long = host_scalar(np.full((DRAWS, 8), 0.01), np.full(8, 0.02), prior_sd=SCALES).host
    assert np.median(long) == pytest.approx(0.01, rel=0.1)


def test_a_floor_is_kept():
    x = np.full((200, 4), 1e-2)
    fit = host_scalar(x, np.full(4, 5e-3), prior_sd=1.0, spread=0.01, floor=0.9 * x)
    np.testing.assert_allclose(fit.point(x, 0.9 * x), 9e-3, rtol=1e-12)


@pytest.mark.parametrize(
    ("x", "y", "keywords", "complaint"),
    [
        (np.ones((5, 2)), np.ones(3), {}, "expected .draw, obs. and .obs,."),
        (np.ones(3), np.ones(3), {}, "expected .draw, obs. and .obs,."),
        (np.ones((5, 0)), np.ones(0), {}, "expected .draw, obs. and .obs,."),
        (np.ones((5, 1)), np.array([0.0]), {}, "finite times above zero"),
        (np.ones((5, 1)), np.array([np.nan]), {}, "finite times above zero"),
        (-np.ones((5, 1)), np.ones(1), {}, "finite times above zero"),
        (np.ones((5, 1)), np.ones(1), {"prior_sd": 0.0}, "prior_sd is 0.0"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(x, y, keywords, complaint):
    with pytest.raises(DataError, match=complaint):
        host_scalar(x, y, **keywords)


# --- calibration of the calibration ----------------------------------------------------------

PRIOR, LOW, HIGH = 3e-3, 0.005, 1.0


def simulated(rng, cells, groups):
    """One data set from the prior: predictions, measurements, scale, groups, and the truth."""
    sigma, tau = np.clip(np.abs(0.1 * rng.normal(size=2)), LOW, HIGH)
    scale = rng.uniform(5e-3, 3e-2, size=cells)
    labels = np.arange(cells) % groups
    host = PRIOR * rng.normal()
    u = tau * rng.normal(size=groups)
    misfit = (u - u.mean())[labels] + sigma * rng.normal(size=cells)
    y = scale + scale * misfit + 0.2
    return y - scale * misfit - host, y, scale, labels, host, sigma


def ranks(*, groups, repeats=600, draws=99):
    """Rank of the true host time and of the true spread among their draws, uniform if all is right.

    A predictor's draws are all alike here, so that the draws of the scalar are those of its
    posterior.
    """
    rng = np.random.default_rng(20261129)
    out = []
    for i in range(repeats):
        x, y, scale, labels, host, sigma = simulated(rng, 9, groups)
        fit = host_scalar(
            np.tile(x, (draws, 1)),
            y,
            prior_sd=PRIOR,
            group=list(labels.astype(str)),
            scale=scale,
            seed=i,
        )
        out.append((np.sum(fit.host < host), np.sum(fit.spread < sigma)))
    return np.array(out).T


def uniform_p(found, draws=99, bins=10):
    """P-value of the χ² test that ranks are uniform over `bins` equal bins."""
    from scipy.stats import chisquare

    return chisquare(np.bincount(found * bins // (draws + 1), minlength=bins)).pvalue


@pytest.mark.statistical
@pytest.mark.parametrize("groups", [1, 3])
def test_ranks_of_the_true_host_time_are_uniform(groups):
    host, _ = ranks(groups=groups)
    assert uniform_p(host) > 0.001


@pytest.mark.statistical
def test_a_fit_that_ignores_what_groups_share_fails():
    """The deliberate mistake: misfit of whole groups taken for that of single cells."""
    rng = np.random.default_rng(20261129)
    found = []
    for i in range(600):
        x, y, scale, _, host, sigma = simulated(rng, 9, 3)
        fit = host_scalar(
            np.tile(x, (99, 1)), y, prior_sd=PRIOR, scale=scale, spread=sigma / 2, seed=i
        )
        found.append(np.sum(fit.host < host))
    assert uniform_p(np.array(found)) < 1e-6


@pytest.mark.statistical
def test_intervals_of_another_group_hold_what_they_should():
    """Calibrated on one group, asked about another: 90 % intervals, within four errors.

    Without the spread of groups, the deliberate mistake, they hold far less.
    """
    rng = np.random.default_rng(7)
    inside = {True: [], False: []}
    for i in range(400):
        sigma, tau = np.clip(np.abs(0.05 * rng.normal(size=2)), LOW, HIGH)
        x = rng.uniform(5e-3, 3e-2, size=12)
        host = abs(PRIOR * rng.normal())
        u = tau * rng.normal(size=2)
        first, new = ((x + host) * np.exp(shift + sigma * rng.normal(size=12)) for shift in u)
        for known, held in inside.items():
            keywords = {} if known else {"group_spread": 0.0}
            fit = host_scalar(
                np.tile(x, (400, 1)),
                first,
                prior_sd=PRIOR,
                prior_spread=0.05,
                prior_group_spread=0.05,
                seed=i,
                **keywords,
            )
            low, high = np.quantile(fit.applied(np.tile(x, (400, 1)), seed=i), [0.05, 0.95], axis=0)
            held.append(np.mean((low <= new) & (new <= high)))
    share = {known: np.mean(values) for known, values in inside.items()}
    assert abs(share[True] - 0.9) < 4 * mcse(inside[True]) + 0.02  # quantiles of 400 draws
    assert share[False] < 0.8


# --- measured steps of a user ----------------------------------------------------------------

HEAD = "sku,workload,step_time"
SPEC = '"decode:batch=64,context=2048"'


def written(tmp_path, *lines):
    path = tmp_path / "steps.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_steps_are_read_in_order_with_one_gpu_unless_told(tmp_path):
    path = written(
        tmp_path, "tp, sku,step_time,note,workload", f"2,h100,0.012,x,{SPEC}", f",L4,3e-2,,{SPEC}"
    )
    step = Step("decode", batch=64, context=2048)
    assert read_timings(path) == [Timing("h100", step, 0.012, 2), Timing("L4", step, 0.03, 1)]


@pytest.mark.parametrize("column", ["sku", "workload", "step_time"])
def test_a_missing_column_of_steps_is_named(tmp_path, column):
    names = [name for name in HEAD.split(",") if name != column]
    with pytest.raises(DataError, match=f"no column {column}; needed are sku, workload, step_time"):
        read_timings(written(tmp_path, ",".join(names), "1,2"))


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (f"h100,{SPEC},-0.01", "line 2: step_time '-0.01' is not between 1e-06 and 100 s"),
        (f"h100,{SPEC},120", "step_time '120' is not between .* is the unit right"),
        (f"h100,{SPEC},nan", "step_time 'nan' is not between"),
        (f"h100,{SPEC},inf", "step_time 'inf' is not between"),
        (f"h100,{SPEC},12 ms", "step_time '12 ms' is not between"),
        (f"h100,{SPEC},", "line 2: step_time is empty"),
        (f",{SPEC},0.01", "line 2: sku is empty"),
        ("h100,decode:batch=64,context=2048,0.01", "line 2: more cells .* quote the workload"),
        ('h100,"decode:batch=64",0.01', "line 2: .*context is missing"),
        ('h100,"gemm:m=1,n=2,k=3",0.01', "line 2: a gemm is no engine step"),
        ("h100", "line 2: workload is empty"),
    ],
)
def test_a_bad_step_is_named_in_one_line(tmp_path, row, complaint):
    with pytest.raises(DataError, match=complaint) as error:
        read_timings(written(tmp_path, HEAD, row))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("tp", ["0", "-1", "1.5", "two", "99999"])
def test_a_number_of_gpus_that_is_none_is_named(tmp_path, tp):
    with pytest.raises(DataError, match=f"line 2: tp '{tp}' is not a whole number"):
        read_timings(written(tmp_path, f"{HEAD},tp", f"h100,{SPEC},0.01,{tp}"))


def test_files_of_steps_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_timings(tmp_path / "none.csv")
    with pytest.raises(DataError, match="it is a folder"):
        read_timings(tmp_path)
    with pytest.raises(DataError, match="holds no measured step"):
        read_timings(written(tmp_path, HEAD))
    with pytest.raises(DataError, match="no column sku"):
        read_timings(written(tmp_path, ""))
    with pytest.raises(DataError, match="two columns named sku"):
        read_timings(written(tmp_path, f"{HEAD},sku", f"a,{SPEC},0.01,b"))
    with pytest.raises(DataError, match="not a CSV table"):
        read_timings(written(tmp_path, HEAD, 'h100,"decode:batch=1,0.01'))
    path = tmp_path / "bytes.csv"
    path.write_bytes(b"sku,workload,step_time\n\xff\xfe,a,1\n")
    with pytest.raises(DataError, match="no text in UTF-8"):
        read_timings(path)
