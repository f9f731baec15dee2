"""A fit of data that the model itself made finds the truth behind them."""

import json

import numpy as np
import pymc as pm
import pytest
import xarray as xr

from m2bayes.factors import with_skus
from m2bayes.hierarchy import cell_random
from m2bayes.measurements import checked, runs_by_cell
from m2bayes.mechanism.gemm import gemm_terms
from m2bayes.mechanism.laws import LAWS
from m2bayes.posterior import kept, sample

SKUS = ["A100-80GB-SXM", "H100-80GB-SXM", "H200-141GB-SXM"]
SEED = 20261129

pytestmark = [pytest.mark.slow, pytest.mark.statistical]


@pytest.fixture(scope="module")
def sheets(database):
    return database.datasheets(SKUS)


def law(draws, cells, sheets, backend="sglang"):
    """Log of the noise-free time of each cell under the build of `backend`, dims (…, cell)."""
    factors = with_skus(draws, sheets, seed=0)
    factors = factors.sel(sku=cells["sku"]) if "sku" in factors.dims else factors
    sheet = sheets.sel(sku=cells["sku"])
    terms = gemm_terms(cells[["M", "N", "K"]], sheet, regime="benchmark", backend=backend)
    time = LAWS[draws.attrs["law"]].time(terms, factors)
    build = draws["build_effect"].sel(sku=cells["sku"], backend=backend)
    return (np.log(time) + build).transpose("chain", "draw", ...)


def drawn(model):
    """One draw of the prior as a posterior of one draw, with runs of each cell and their scale."""
    named = [*model.free_RVs, *model.deterministics]
    parameters = model["log_time"].owner.inputs[-4:]
    values = pm.draw([*named, *parameters], random_seed=SEED, mode="FAST_COMPILE")
    dims = model.named_vars_to_dims
    truth = {
        v.name: (("chain", "draw", *dims.get(v.name, ())), np.asarray(x)[None, None])
        for v, x in zip(named, values, strict=False)
    }
    labels = {d: np.asarray(model.coords[d]) for d in ("sku", "architecture", "backend")}
    runs = cell_random(*values[-4:], rng=np.random.default_rng(SEED))
    return xr.Dataset(truth, {"chain": [0], "draw": [0], **labels}), runs, values[-2]


@pytest.fixture(scope="module", params=["const_ceiling", "hier_gemm"])
def fitted(request, database, sheets):
    """Truth, cells made from it, and the draws of a short fit, for each model.

    The shapes and backends are those of every third measured cell of two Hopper cards and one
    Ampere card; the truth is one draw of the prior.
    """
    table = checked(database.table("gemm_bf16"), origin="gemm_bf16")
    table = table[table["sku"].isin(SKUS)]
    group = table.groupby(["sku", "M", "N", "K"]).ngroup()
    cells = runs_by_cell(table[group % 3 == 1], skus=SKUS)
    build = database.builder(request.param)
    card = database.model(request.param)
    facts = {"law": card.law, "factors": json.dumps(card.factors)}
    truth, runs, scale = drawn(build(cells, sheets))
    present = np.isfinite(cells["op_time"].values)
    cells["op_time"] = cells["op_time"].copy(data=np.where(present, np.exp(runs), np.nan))
    cells["scale"] = ("cell", scale)
    truth.attrs = facts
    tree = sample(build(cells, sheets), draws=200, tune=300, chains=2, seed=SEED)
    return truth, kept(tree).assign_attrs(facts), tree, cells


def score(truth, draws):
    """How many posterior standard deviations the truth lies from the mean, for each element."""
    mean, sd = (getattr(draws, f)(("chain", "draw")) for f in ("mean", "std"))
    return abs(truth.isel(chain=0, draw=0, drop=True) - mean) / sd


def test_the_chains_agree(fitted):
    """A short fit: enough for the judgements below, not enough to be stored."""
    _, _, tree, _ = fitted
    assert float(tree["sample_stats"]["diverging"].mean()) < 0.01
    import arviz_stats as az

    rhat = az.rhat(tree["posterior"].to_dataset())
    assert max(float(v.max()) for v in rhat.data_vars.values()) < 1.1


def test_every_parameter_lies_within_four_posterior_deviations(fitted):
    truth, draws, _, _ = fitted
    for name in draws.data_vars:
        assert (score(truth[name], draws[name]) < 4).all(), name


def test_the_time_of_every_cell_is_found_and_found_narrowly(fitted, sheets):
    """The product of factors is what timing identifies: truth within 4 sd, and sd small.

    Small is less than the error of a single cell. Negative control: a truth four such errors
    slower would be rejected for most cells.
    """
    truth, draws, _, cells = fitted
    true, found = law(truth, cells, sheets), law(draws, cells, sheets)
    assert (score(true, found) < 4).all()
    assert float((found.std(("chain", "draw")) < cells["scale"]).mean()) > 0.9
    assert float((score(true + 4 * cells["scale"], found) > 4).mean()) > 0.9


def test_run_noise_is_found(fitted):
    """Its scale to a factor of 1.5 either way, and twice as narrow as in its prior."""
    truth, draws, _, _ = fitted
    found = draws["log_sigma_run"]
    error = found.mean(("chain", "draw")) - truth["log_sigma_run"].isel(chain=0, draw=0)
    assert (abs(error) < np.log(1.5)).all()
    assert (found.std(("chain", "draw")) < 0.4 / 2).all()
