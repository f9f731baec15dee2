"""Simulation-based calibration: even ranks where they must be, and where they must not."""

import json

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from m2bayes import sbc
from m2bayes._ranks import BINS, LEVEL, holm, judged, uniformity
from m2bayes.errors import RecordError
from m2bayes.posterior import compiled_model
from m2bayes.suites import _designs

KEPT = 63
CELLS = 4  # of the made-up experiment


def found(rank):
    """Ranks as `sbc.ranks` reports them, of an array (simulation, parameter)."""
    return [
        {
            "rank": {f"p{j}": int(r) for j, r in enumerate(row)},
            "discarded": "",
            "ess": 200.0,
            "longer": 1,
            "divergences": 0,
        }
        for row in np.atleast_2d(rank)
    ]


def smallest(rank):
    return judged(found(rank), KEPT)["holm_min"]


# --- tests of ranks --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "expected"),
    [
        ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),
        ([0.5, 0.5], [1.0, 1.0]),
        ([0.02], [0.02]),
        ([0.001, 0.2, 0.2, 0.9], [0.004, 0.6, 0.6, 0.9]),
    ],
)
def test_holm_by_hand(p, expected):
    assert holm(np.array(p)) == pytest.approx(expected, rel=1e-12)


def test_holm_keeps_the_order_and_never_lowers(rng):
    p = rng.random(30)
    adjusted = holm(p)
    assert (adjusted >= p).all()
    assert (np.diff(adjusted[np.argsort(p)]) >= 0).all()
    assert adjusted.min() == pytest.approx(min(30 * p.min(), 1.0), rel=1e-12)


def test_ranks_that_fill_every_value_alike_are_even():
    rank = np.tile(np.arange(KEPT + 1), 5)[:, None]
    p = uniformity(found(rank), KEPT)["p0"]
    assert p["chi_square"] == pytest.approx(1.0, abs=1e-12)
    assert p["ks"] > 0.9


@pytest.mark.statistical
def test_even_ranks_fail_no_more_often_than_the_level_says(rng):
    """Twenty parameters, 60 experiments: failures are at most binomial at the level."""
    fails = sum(smallest(rng.integers(0, KEPT + 1, (300, 20))) < LEVEL for _ in range(60))
    assert fails <= stats.binom.ppf(0.9999, 60, LEVEL)


@pytest.mark.parametrize("shape", [(2.0, 2.0), (0.7, 0.7), (1.3, 1.0), (1.0, 1.3)])
def test_uneven_ranks_are_found_among_many_even_ones(shape, rng):
    """Posteriors too wide, too narrow, too low, too high, in one of forty parameters."""
    rank = rng.integers(0, KEPT + 1, (320, 40))
    rank[:, 7] = np.minimum((rng.beta(*shape, 320) * (KEPT + 1)).astype(int), KEPT)
    out = judged(found(rank), KEPT)
    assert out["holm_min"] < LEVEL
    assert out["worst"] == "p7"
    assert not out["even"]


def test_each_bin_holds_as_many_ranks():
    counts = np.bincount(np.arange(KEPT + 1) * BINS // (KEPT + 1))
    assert set(counts) == {(KEPT + 1) // BINS}


def test_nothing_is_discarded_silently(rng):
    held = found(rng.integers(0, KEPT + 1, (50, 2)))
    for i, reason in enumerate(["not finite", "no start", "not finite"]):
        held[i] |= {"rank": None, "discarded": reason}
    held[5] |= {"longer": 4, "divergences": 3}
    out = judged(held, KEPT)
    assert out["discarded"] == {"no start": 1, "not finite": 2}
    assert (out["simulations"], out["ranked"]) == (50, 47)
    assert (out["longer"], out["divergences"]) == (1, 1)


def test_no_simulation_left_is_said():
    held = found(np.zeros((3, 1), dtype=int))
    for one in held:
        one |= {"rank": None, "discarded": "no start"}
    with pytest.raises(RecordError, match="no simulation is left"):
        judged(held, KEPT)


# --- an experiment whose posterior is known --------------------------------------------------


class Exact:
    """Normal data of unit noise around a standard normal mean: the posterior in closed form."""

    def __init__(self, wider=1.0, data=None):
        self.wider, self.data = wider, data

    def with_data(self, *, log_op_time):
        return Exact(self.wider, log_op_time)

    def sampled(self, names, effort, longer, seed):
        precision = 1 + CELLS
        mean, sd = self.data.sum() / precision, self.wider / np.sqrt(precision)
        draws = np.random.default_rng(seed + 10**6).standard_normal(effort.kept * effort.thin)
        return xr.Dataset({names[0]: (("chain", "draw"), mean + sd * draws[None])}), 0


@pytest.fixture
def exact(monkeypatch):
    monkeypatch.setattr(sbc, "_sampled", lambda fitted, *rest: fitted.sampled(*rest))


def experiment(rng, n, shift=0.0):
    truth = shift + rng.standard_normal(n)
    data = truth[:, None] + rng.standard_normal((n, CELLS))
    return sbc.Simulated(xr.Dataset({"mu": ("simulation", truth)}), {"log_op_time": data})


EFFORT = sbc.Effort(simulations=320, kept=63, thin=1, ess=30.0)


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("wider", "shift", "even"),
    [(1.0, 0.0, True), (1.4, 0.0, False), (0.7, 0.0, False), (1.0, 1.0, False)],
)
def test_a_right_posterior_is_even_and_a_wrong_one_is_not(wider, shift, even, exact, rng):
    """Wrong width, or data from a prior one standard deviation off."""
    held = sbc.ranks(lambda: Exact(wider), experiment(rng, 320, shift), EFFORT)
    assert judged(held, EFFORT.kept)["even"] is even


def test_a_run_that_was_cut_off_is_resumed(exact, rng, tmp_path, monkeypatch):
    simulated, file, told = experiment(rng, 45), tmp_path / "cache" / "ranks.json", []
    whole = sbc.ranks(Exact, simulated, EFFORT)
    ranked = sbc.ranked

    def cut(compiled, job):
        if job[-1] == 44:
            raise KeyboardInterrupt
        return ranked(compiled, job)

    monkeypatch.setattr(sbc, "ranked", cut)
    with pytest.raises(KeyboardInterrupt):
        sbc.ranks(Exact, simulated, EFFORT, file=file, tell=told.append)
    assert len(json.loads(file.read_text())["done"]) == 2 * sbc.EVERY
    assert told[-1] == "40 of 45 simulations"
    again = []
    monkeypatch.setattr(sbc, "ranked", lambda c, job: again.append(job[-1]) or ranked(c, job))
    assert sbc.ranks(Exact, simulated, EFFORT, file=file) == whole
    assert again == [40, 41, 42, 43, 44]


def test_data_that_are_not_finite_are_counted_and_not_fitted(exact, rng):
    simulated = experiment(rng, 3)
    simulated.data["log_op_time"][1, 0] = np.inf
    held = sbc.ranks(Exact, simulated, EFFORT)
    assert [one["discarded"] for one in held] == ["", "simulated data not finite", ""]
    assert held[1]["rank"] is None


def test_a_chain_that_mixes_badly_is_run_longer_and_then_given_up(rng, monkeypatch):
    lengths = []

    def stuck(fitted, names, effort, longer, seed):
        lengths.append(longer)
        slow = np.sin(np.linspace(0, 3, effort.kept * effort.thin * longer))
        return xr.Dataset({"mu": (("chain", "draw"), slow[None])}), 2

    monkeypatch.setattr(sbc, "_sampled", stuck)
    (one,) = sbc.ranks(Exact, experiment(rng, 1), EFFORT)
    assert lengths == list(EFFORT.longer)
    assert one["rank"] is None
    assert one["discarded"] == "too few effective draws"
    assert one["divergences"] == 2


def test_a_sampler_without_a_start_is_counted(rng, monkeypatch):
    def refused(*args):
        raise RuntimeError("All initialization points failed")

    monkeypatch.setattr(sbc, "_sampled", refused)
    (one,) = sbc.ranks(Exact, experiment(rng, 1), EFFORT)
    assert one["discarded"] == "the sampler found no start"


def test_longer_chains_are_thinned_to_as_many_draws(rng, monkeypatch):
    """White noise all below the truth has the highest rank, however long the chain."""

    def below(fitted, names, effort, longer, seed):
        n = effort.kept * effort.thin * longer
        ess = 10 if longer == 1 else n
        noise = np.repeat(np.random.default_rng(1).random(ess), -(-n // ess))[:n]
        return xr.Dataset({"mu": (("chain", "draw"), noise[None] - 100)}), 0

    monkeypatch.setattr(sbc, "_sampled", below)
    (one,) = sbc.ranks(Exact, experiment(rng, 1), EFFORT)
    assert one["rank"] == {"mu": EFFORT.kept}
    assert one["longer"] == 4


def test_the_key_changes_with_all_that_decides():
    keys = {
        sbc.key([1.0], EFFORT),
        sbc.key([1.1], EFFORT),
        sbc.key([1.0], sbc.Effort()),
        sbc.key([1.0], EFFORT, "seed 1"),
    }
    assert len(keys) == 4


# --- models and designs ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def host(database):
    return _designs.inputs(database, "hier_host").build(database.builder("hier_host"))


def test_every_stored_model_has_a_design(database):
    models = {database.posterior(name).model for name in database.posteriors()}
    assert models <= set(_designs.DESIGNS)


@pytest.mark.parametrize("name", _designs.DESIGNS)
def test_designs_are_small(name, database):
    inputs = _designs.inputs(database, name)
    assert 2 <= len(inputs.skus) <= 6
    assert 10 <= inputs.cells().sizes["cell"] <= 60


def test_the_truth_is_of_every_parameter_above_the_labels(host):
    simulated = sbc.simulate(host, 30, seed=1)
    names = sbc.top_level(host)
    assert list(simulated.truth.data_vars) == names
    assert {rv.name for rv in host.free_RVs if rv.name.endswith(("_mean", "_sd"))} == set(names)
    assert simulated.data["log_op_time"].shape == (30, *host["log_time"].shape.eval())
    assert np.isfinite(simulated.data["log_op_time"]).all()
    again = sbc.simulate(host, 30, seed=1)
    assert simulated.truth.identical(again.truth)


@pytest.mark.statistical
def test_the_control_shifts_one_parameter_and_the_data_with_it(host):
    n, name = 400, "log_sequence_time_mean"
    right, wrong = (
        sbc.simulate(host, n, seed=1, **change) for change in ({}, {"wrong": name, "shift": 1.0})
    )
    sd = float(right.truth[name].std())
    for parameter in right.truth.data_vars:
        gap = float((wrong.truth[parameter] - right.truth[parameter]).mean())
        error = 4 * np.sqrt(2 / n) * float(right.truth[parameter].std())
        assert abs(gap - sd * (parameter == name)) < error
    gap = (wrong.data["log_op_time"] - right.data["log_op_time"]).mean()
    error = 4 * np.sqrt(2 / n) * right.data["log_op_time"].mean(axis=(1, 2)).std()
    assert 0 < gap < sd + error


@pytest.mark.slow
@pytest.mark.statistical
def test_a_model_is_even_and_its_control_is_not(host):
    """The sampler in earnest, on the model that samples fastest."""
    compiled, effort = compiled_model(host, jitter=False), sbc.Effort(simulations=60)
    right = sbc.ranks(lambda: compiled, sbc.simulate(host, 60, seed=1), effort)
    assert judged(right, effort.kept)["even"]
    change = {"wrong": "log_sequence_time_mean", "shift": 2.0}
    wrong = sbc.ranks(lambda: compiled, sbc.simulate(host, 60, seed=2, **change), effort)
    # which parameter is worst is chance where two explain the same times
    assert not judged(wrong, effort.kept)["even"]
