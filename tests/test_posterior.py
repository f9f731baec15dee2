"""Sampling, what is kept of it, and the door that a bad fit does not pass."""

import warnings
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
import xarray as xr

from m2bayes import posterior
from m2bayes.diagnostics import ESS_MIN, RHAT_MAX, check, diagnostics, fingerprint
from m2bayes.errors import ConvergenceError
from m2bayes.measurements import checked, runs_by_cell
from m2bayes.posterior import fit, kept, sample, versions

GOOD = {
    "rhat_max": 1.0,
    "ess_bulk_min": 1000.0,
    "ess_tail_min": 900.0,
    "divergences": 0.0,
    "bfmi_min": 0.9,
}
SKUS = ["A100-80GB-SXM", "H100-80GB-SXM"]


def tree(rng, chains=4, draws=500, **variables):
    """Draws of a made-up fit: independent normals unless given, no divergence."""
    given = {"a": rng.normal(size=(chains, draws)), "b": rng.normal(size=(chains, draws, 2))}
    given |= variables
    stats = {
        "diverging": (("chain", "draw"), np.zeros((chains, draws), dtype=bool)),
        "energy": (("chain", "draw"), rng.normal(size=(chains, draws))),
    }
    named = {k: (("chain", "draw", "k")[: v.ndim], v) for k, v in given.items()}
    coords = {"chain": range(chains), "draw": range(draws)}
    return xr.DataTree.from_dict(
        {"posterior": xr.Dataset(named, coords), "sample_stats": xr.Dataset(stats, coords)}
    )


# --- the door --------------------------------------------------------------------------------


def test_a_good_fit_passes():
    check(GOOD, name="good")
    check(GOOD | {"rhat_max": RHAT_MAX, "ess_bulk_min": ESS_MIN}, name="on the bound")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"rhat_max": 1.02}, "R-hat 1.0200 above 1.01"),
        ({"ess_bulk_min": 399.0}, "bulk ESS 399 below 400"),
        ({"ess_tail_min": 399.0}, "tail ESS 399 below 400"),
        ({"divergences": 1.0}, "1 divergences"),
        ({"rhat_max": np.nan}, "R-hat nan"),
        ({"ess_bulk_min": np.nan}, "bulk ESS nan"),
        ({"ess_tail_min": np.nan}, "tail ESS nan"),
        ({"divergences": np.nan}, "nan divergences"),
        ({"rhat_max": np.inf}, "R-hat inf"),
    ],
)
def test_a_bad_fit_is_refused_with_its_number(wrong, told):
    with pytest.raises(ConvergenceError, match=told) as caught:
        check(GOOD | wrong, name="data-model")
    assert "posterior data-model failed its diagnostics" in str(caught.value)
    assert "fit with more draws" in str(caught.value)
    np.testing.assert_equal(caught.value.checks, GOOD | wrong)


@pytest.mark.parametrize("lacking", ["rhat_max", "ess_bulk_min", "ess_tail_min", "divergences"])
def test_a_figure_that_is_missing_is_a_bad_one(lacking):
    with pytest.raises(ConvergenceError):
        check({k: v for k, v in GOOD.items() if k != lacking}, name="data-model")


def test_every_bad_figure_is_named():
    with pytest.raises(ConvergenceError, match=r"R-hat.*bulk ESS.*tail ESS.*divergences"):
        check({}, name="empty")


# --- diagnostics -----------------------------------------------------------------------------


def test_independent_draws_have_good_figures(rng):
    found = diagnostics(tree(rng))
    assert set(found) == set(GOOD)
    check(found, name="made up")
    assert 0.5 < found["bfmi_min"] < 3


def test_one_chain_elsewhere_is_found_in_one_element(rng):
    """The worst of all variables and elements counts, not their mean."""
    b = rng.normal(size=(4, 500, 2))
    b[0, :, 1] += 1.0
    assert diagnostics(tree(rng, b=b))["rhat_max"] > 1.05


def test_a_slow_chain_is_found(rng):
    steps = rng.normal(size=(4, 500))
    for i in range(1, 500):
        steps[:, i] += 0.9 * steps[:, i - 1]
    found = diagnostics(tree(rng, a=steps))
    assert found["ess_bulk_min"] < ESS_MIN
    with pytest.raises(ConvergenceError, match="ESS"):
        check(found, name="slow")


def test_divergences_are_counted(rng):
    made = tree(rng)
    made["sample_stats"]["diverging"][1, 7:9] = True
    assert diagnostics(made)["divergences"] == 2


def test_an_element_that_a_model_holds_fixed_is_left_out_without_a_warning(rng):
    b = rng.normal(size=(4, 500, 2))
    b[..., 0] = 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(diagnostics(tree(rng, b=b)), name="fixed")


def test_a_variable_that_never_moves_is_refused(rng):
    """It has no R-hat, and must not vanish behind the others that have."""
    with pytest.raises(ConvergenceError, match="draws of a never move; fit with more tuning"):
        diagnostics(tree(rng, a=np.full((4, 500), 0.3)))


def test_chains_that_each_stand_still_elsewhere_are_refused(rng):
    a = np.repeat(np.arange(4.0)[:, None], 500, axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = diagnostics(tree(rng, a=a))
    with pytest.raises(ConvergenceError):
        check(found, name="still")


def test_priors_are_drawn_without_a_word(caplog):
    caplog.set_level("INFO")
    with pm.Model() as model:
        pm.Normal("a")
        pm.sample_prior_predictive(10, random_seed=0)
    assert "Sampling" in caplog.text  # what is silenced below
    caplog.clear()
    card = SimpleNamespace(factors=[{"name": "a", "link": "identity"}])
    cuts = posterior.prior_quantiles(model, card)["a"]
    assert caplog.text == ""
    assert cuts[0] < cuts[1] < cuts[2]


def test_a_draw_that_is_no_number_is_refused(rng):
    """One NaN leaves a variable without R-hat: it must not vanish behind the good ones."""
    a = rng.normal(size=(4, 500))
    a[0, 3] = np.nan
    with pytest.raises(ConvergenceError):
        check(diagnostics(tree(rng, a=a)), name="broken")


# --- what is kept ----------------------------------------------------------------------------


def test_kept_drops_offsets_and_halves_precision(rng):
    made = tree(rng, log_x_sku_offset=rng.normal(size=(4, 500)))
    found = kept(made)
    assert set(found.data_vars) == {"a", "b"}
    assert {v.dtype for v in found.data_vars.values()} == {np.dtype("float32")}
    np.testing.assert_allclose(found["a"], made["posterior"]["a"], rtol=np.finfo("float32").eps)
    assert found.attrs == {}


def test_thinned_draws_lie_in_memory_as_they_will_when_read_back(rng):
    """Single-precision sums over draws depend on their order."""
    found = kept(tree(rng), keep=100)
    assert found.sizes["draw"] == 100
    assert all(v.values.flags.c_contiguous for v in found.data_vars.values())


def test_kept_keeps_only_labels_that_are_used(rng):
    made = tree(rng)
    held = made["posterior"].to_dataset().assign_coords(cell=["x", "y"])
    held = held.assign_coords(k=np.array(["one", "two"], dtype=object))
    made["posterior"] = xr.DataTree(held)
    found = kept(made)
    assert set(found.coords) == {"chain", "draw", "k"}
    assert found["k"].values.tolist() == ["one", "two"]
    assert found["k"].dtype.kind == "U"


def test_versions_name_every_package_of_a_fit():
    found = versions()
    assert set(found) == {"python", *posterior.PACKAGES}
    assert all(found.values())


# --- fingerprint -----------------------------------------------------------------------------


def normal(sd=1.0):
    with pm.Model() as model:
        pm.Normal("a", 0, sd)
    return model


def test_fingerprint_is_the_log_density_and_tells_priors_apart():
    first, *others = fingerprint(normal())
    np.testing.assert_allclose(first, -0.5 * np.log(2 * np.pi), rtol=1e-12)
    assert [first, *others] == fingerprint(normal())
    assert len({first, *others}) == 3
    assert fingerprint(normal(sd=1.001)) != [first, *others]


# --- sampling --------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_draws():
    """A standard normal; its mean within four Monte Carlo errors."""
    one, two, other = (
        sample(normal(), draws=200, tune=200, chains=2, seed=s)["posterior"]["a"].values
        for s in (1, 1, 2)
    )
    assert one.shape == (2, 200)
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, other)


@pytest.fixture
def csv(database, tmp_path):
    """A few cells of two SKUs, as a user's own table."""
    table = database.table("gemm_bf16")
    table = table[table["sku"].isin(SKUS)]
    shape = ["sku", "M", "N", "K"]
    path = tmp_path / "mine.csv"
    table[table.groupby(shape).ngroup() % 40 == 3].to_csv(path, index=False)
    return path


@pytest.fixture
def sampled(monkeypatch, database, csv, rng):
    """In place of NUTS: independent draws of the prior, with `shift` added to the first chain."""

    def install(shift):
        def independent(model, **settings):
            names = [v.name for v in (*model.free_RVs, *model.deterministics)]
            with model:
                prior = pm.sample_prior_predictive(
                    draws=2000,
                    var_names=names,
                    random_seed=5,
                    compile_kwargs={"mode": "FAST_COMPILE"},
                )["prior"].to_dataset()
            folded = {
                k: (("chain", "draw", *v.dims[2:]), v.values.reshape(4, 500, *v.shape[2:]))
                for k, v in prior.data_vars.items()
            }
            dims = {d: prior[d].values for d in ("sku", "architecture", "backend")}
            folded["log_sigma_run_mean"][1][0] += shift
            stats = tree(rng)["sample_stats"].to_dataset()
            held = xr.Dataset(folded, {**stats.coords, **dims})
            return xr.DataTree.from_dict({"posterior": held, "sample_stats": stats})

        monkeypatch.setattr(posterior, "sample", independent)

    return install


def test_fit_returns_a_record_of_what_was_done(database, csv, sampled):
    sampled(shift=0.0)
    record, draws = fit(database, "const_ceiling", str(csv), draws=500, seed=5)
    assert record.name == "mine-const_ceiling"
    assert record.inference == {"sampler": "nutpie NUTS", "draws": 500, "seed": 5}
    assert sorted(record.datasheets) == SKUS
    assert draws["log_ceiling_architecture"].dims == ("chain", "draw", "architecture")
    assert not [v for v in draws if str(v).endswith("_offset")]
    check(record.checks, name=record.name)
    cells = runs_by_cell(checked(database.table(str(csv)), origin="mine"), skus=SKUS)
    model = database.builder("const_ceiling")(cells, database.datasheets(SKUS))
    np.testing.assert_allclose(record.fingerprint, fingerprint(model), rtol=1e-12)


def test_the_record_holds_the_prior_of_every_factor(database, csv, sampled):
    """Of a ceiling: log normal of centre 0.7, its sd 0.3 and about 0.2 between architectures."""
    sampled(shift=0.0)
    record, _ = fit(database, "const_ceiling", str(csv))
    assert set(record.prior) == {"ceiling", "eta_memory"}
    low, middle, high, sd = record.prior["eta_memory"]
    error = 4 * 0.3 / np.sqrt(2000)
    assert abs(np.log(middle / 0.75)) < 1.25 * error  # a median has 1.25 times the error of a mean
    assert abs(sd - 0.3) < error
    assert abs(np.log(high / low) / (2 * 1.645) - 0.3) < 2 * error
    assert 0.3 < record.prior["ceiling"][3] < 0.45


def test_fit_refuses_chains_that_disagree(database, csv, sampled):
    sampled(shift=5.0)
    with pytest.raises(ConvergenceError, match="posterior mine-const_ceiling failed"):
        fit(database, "const_ceiling", str(csv))
