"""Every model in ``models/``: its density is the law's, its labels are safe, its prior is sane."""

import json
from itertools import product
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr
from scipy.stats import f, kstest, multivariate_t, norm, t

from m2bayes._random import labelled_rng
from m2bayes.database import Database
from m2bayes.errors import UnknownNameError
from m2bayes.factors import with_skus
from m2bayes.hierarchy import TAIL, Frame, cell_logp, cell_random
from m2bayes.kernels import unit_labels, unit_sheets
from m2bayes.measurements import FLOOR, checked, clock_readings, runs_by_cell
from m2bayes.mechanism.gemm import gemm_terms, sustained_share
from m2bayes.mechanism.host import EAGER, REPLAYED
from m2bayes.mechanism.laws import LAWS

MODELS = Database().models()
SKUS = ["A100-80GB-SXM", "H100-80GB-SXM", "H200-141GB-SXM", "L40S-48GB-PCIe"]
EXACT = {"rtol": 1e-12, "atol": 1e-12}


@pytest.fixture(scope="module")
def table(database):
    """Every sixteenth cell of four SKUs, with all its runs; some cells have fewer than others."""
    table = checked(database.table("gemm_bf16"), origin="gemm_bf16")
    table = table[table["sku"].isin(SKUS)]
    shape = ["sku", "M", "N", "K"]
    return table[table.groupby(shape).ngroup() % 16 == 5]


@pytest.fixture(scope="module")
def sheets(database):
    return database.datasheets(SKUS)


@pytest.fixture(scope="module")
def cells(table):
    return runs_by_cell(table, skus=SKUS)


@pytest.fixture(scope="module", params=MODELS)
def card(request, database):
    return database.model(request.param)


@pytest.fixture(scope="module")
def build(database, card):
    return database.builder(card.name)


# law: table that the database holds, and every how many of its cells are taken
STORED = {
    "prefill_time": ("attention_prefill_bf16", 12),
    "decode_time": ("attention_decode_bf16", 16),
    "allreduce_time": ("allreduce_bf16", 6),
    "fp8_gemm_time": ("gemm_fp8", 16),
    "kv_time": ("attention_decode_fp8", 8),
}


def light_kernels():
    """A floor of 5 us and a TB/s, of which no table is stored."""
    sizes = product(("norm", "rope"), (1, 512, 16384), (1024, 4096, 14336))
    rows = [
        (sku, "vidur", str(run), *size, (1 + 0.05 * run) * (5e-6 + 4e-12 * size[1] * size[2]))
        for size, sku in product(sizes, SKUS)
        for run in range(1 + (size[2] > 1024))
    ]
    return pd.DataFrame(rows, columns=list(LAWS["light_time"].columns))


def hosts():
    """Two engines that launch a kernel in 40 or 1 us, of which no table is stored."""
    sizes = product((166, 326, 806), (1, 16, 256), (EAGER, REPLAYED))
    rows = [
        (sku, engine, str(run), *size, size[0] * (40e-6, 1e-6)[size[2] - 1] + 2e-5 * size[1] + 4e-4)
        for size, sku, engine in product(sizes, SKUS[1:], ("sglang", "vllm"))
        for run in range(1 + (size[1] > 1))
    ]
    return pd.DataFrame(rows, columns=list(LAWS["host_time"].columns))


MADE_UP = {"light_time": light_kernels, "host_time": hosts}


@pytest.fixture(scope="module")
def own(database, card, cells, sheets):
    """Cells and datasheets of a model's own law, and whether somebody measured them."""
    law = LAWS[card.law]
    if law.variant is None:
        return SimpleNamespace(cells=cells, sheets=sheets, stored=True)
    if card.law in STORED:
        name, step = STORED[card.law]
        rows = checked(database.table(name), origin=name, law=law)
        rows = rows[rows["sku"].isin(SKUS)]
        rows = rows[rows.groupby(["sku", *law.sizes]).ngroup() % step == 2]
    else:
        rows = checked(MADE_UP[card.law](), origin="made up", law=law)
    units = np.unique(unit_labels(law, rows["sku"], rows, rows["backend"]))
    skus = [sku for sku in SKUS if sku in set(rows["sku"])]
    sheets = database.datasheets(skus, dtype=str(card.domain["dtype"][0]))
    return SimpleNamespace(
        cells=runs_by_cell(rows, skus=list(units), law=law),
        sheets=unit_sheets(law, sheets, list(units)),
        stored=card.law in STORED,
    )


@pytest.fixture(scope="module")
def model(build, own):
    return build(own.cells, own.sheets)


def jittered(model, seed):
    """A point near the initial one, each free value moved by a tenth of a standard normal."""
    return {
        k: np.asarray(v) + 0.1 * labelled_rng(seed, k).standard_normal(np.shape(v))
        for k, v in model.initial_point().items()
    }


def values_at(model, point):
    """All named variables as a posterior of one draw; then location, scales and log density."""
    named = [*model.free_RVs, *model.deterministics]
    location, _, *scales = model["log_time"].owner.inputs[-4:]
    outputs = model.replace_rvs_by_values([*named, location, *scales])
    outputs += model.logp(vars=[model["log_time"]], sum=False)
    compiled = model.compile_fn(
        outputs,
        inputs=model.value_vars,
        point_fn=True,
        on_unused_input="ignore",
        mode="FAST_COMPILE",
    )
    *found, location, cell, run, density = compiled(point)
    dims = model.named_vars_to_dims
    draw = {
        v.name: (("chain", "draw", *dims.get(v.name, ())), np.asarray(x)[None, None])
        for v, x in zip(named, found, strict=True)
    }
    labels = {d: np.asarray(model.coords[d]) for d in ("sku", "architecture", "backend")}
    draw = xr.Dataset(draw, {"chain": [0], "draw": [0], **labels})
    return draw, {"location": location, "cell": cell, "run": run, "density": density}


def times_by_law(card, draws, cells, sheets, build=True):
    """Noise-free time of each run by the path that predictions take, dims (cell, run, …)."""
    draws = draws.assign_attrs(factors=json.dumps(card.factors))
    factors = with_skus(draws, sheets, seed=0)
    factors = factors.sel(sku=cells["sku"]) if "sku" in factors.dims else factors
    sheet = sheets.sel(sku=cells["sku"])
    law = LAWS[card.law]
    terms = law.terms(cells, sheet, regime="benchmark", backend=cells["backend"])
    time = law.time(terms, factors)
    if law.variant is not None:  # each unit is one build
        assert "build_effect" not in draws
        return time.broadcast_like(cells["op_time"]).transpose("cell", "run", "chain", "draw")
    backend = cells["backend"].where(cells["backend"] != "", draws["backend"].values[0])
    effect = draws["build_effect"].sel(sku=cells["sku"], backend=backend) * build
    return (time * np.exp(effect)).transpose("cell", "run", "chain", "draw")


def scales_by_law(card, draw, cells, sheets):
    """Scale of the discrepancy and of a run of each cell, from the point's own values.

    Where the model has an absolute part, sigma_time [s], it counts by the mean time of the runs.
    The relative part spares 0.7 of decode's time at the datasheet's bandwidth.
    """
    own = draw.isel(chain=0, draw=0).sel(sku=cells["sku"])
    time = times_by_law(card, draw, cells, sheets, build=False).isel(chain=0, draw=0)
    fixed = own.get("log_sigma_time", own.get("log_sigma_time_mean"))
    absolute = 0 if fixed is None else np.exp(fixed) / time.mean("run")
    run = own["log_sigma_run" if "log_sigma_run" in own else "log_sigma_run_mean"]
    spared = 0.0
    if card.law == "decode_time":
        terms = LAWS[card.law].terms(cells, sheets.sel(sku=cells["sku"]), regime="benchmark")
        spared = 0.7 * terms["cold"] * terms["hbm_time"] / time.mean("run")
    return np.hypot(np.exp(own["log_sigma_cell"]) * (1 - spared), absolute), np.exp(run)


def log_t(value, location, cell, run):
    """Log density of one cell by SciPy: multivariate t with covariance cell² J + run² I."""
    shape = cell**2 * np.ones((len(value),) * 2) + run**2 * np.eye(len(value))
    return multivariate_t(loc=location, shape=shape, df=TAIL).logpdf(value)


# --- one formula, two worlds -----------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
def test_density_is_that_of_the_law(card, model, own, seed):
    """The location is the law on the point's own values; the density is SciPy's around it."""
    cells, sheets = own.cells, own.sheets
    draw, found = values_at(model, jittered(model, seed))
    expected = np.log(times_by_law(card, draw, cells, sheets).values[..., 0, 0])
    present = np.isfinite(cells["op_time"].values)
    np.testing.assert_allclose(found["location"][present], expected[present], **EXACT)
    cell, run = scales_by_law(card, draw, cells, sheets)
    np.testing.assert_allclose(found["cell"], cell, rtol=1e-12)
    np.testing.assert_allclose(found["run"], run, rtol=1e-12)
    measured = np.log(cells["op_time"].values)
    by_scipy = [
        log_t(measured[i, here], expected[i, here], found["cell"][i], found["run"][i])
        for i, here in enumerate(present)
    ]
    np.testing.assert_allclose(found["density"], by_scipy, rtol=1e-10)  # sums of residuals cancel


def test_the_law_of_another_card_is_found_out(card, model, own):
    """With factors read one SKU further on, the location moves far beyond rounding."""
    cells, sheets = own.cells, own.sheets
    draw, found = values_at(model, jittered(model, 0))
    wrong = draw.assign_coords(
        sku=np.roll(draw["sku"].values, 1), architecture=np.roll(draw["architecture"].values, 1)
    )
    moved = np.log(times_by_law(card, wrong, cells, sheets).values[..., 0, 0])
    present = np.isfinite(cells["op_time"].values)
    assert np.abs(found["location"] - moved)[present].max() > 1e-3


def test_some_cells_lack_a_run_and_some_have_all(cells):
    """Otherwise the tests above would not see how absent runs are left out."""
    runs = np.isfinite(cells["op_time"].values).sum(axis=1)
    assert set(runs) >= {1, 3}


# --- labels ----------------------------------------------------------------------------------


def density_at(model, point):
    """Log density, summed here: FAST_COMPILE cannot add as many terms as a model has."""
    terms = model.compile_fn(
        model.logp(sum=False), inputs=model.value_vars, point_fn=True, mode="FAST_COMPILE"
    )
    return sum(np.sum(term) for term in terms(point))


def test_order_of_rows_does_not_change_the_cells(table, cells):
    shuffled = table.sample(frac=1, random_state=5)
    xr.testing.assert_identical(
        runs_by_cell(checked(shuffled, origin="shuffled"), skus=SKUS), cells
    )


def test_order_of_cells_does_not_change_the_density(build, model, own):
    turned = build(own.cells.isel(cell=slice(None, None, -1)), own.sheets)
    point = jittered(model, 3)
    np.testing.assert_allclose(density_at(turned, point), density_at(model, point), rtol=1e-12)


def test_order_of_datasheets_moves_values_with_their_labels(build, model, own):
    """The same values by label, in another order, have the same density."""
    order = [2, 0, 3, 1, *range(4, own.sheets.sizes["sku"])]
    turned = build(own.cells, own.sheets.isel(sku=order))
    point = jittered(model, 3)
    by_sku = {v for v, dims in model.named_vars_to_dims.items() if dims and dims[0] == "sku"}
    moved = {k: v[order] if k in by_sku else v for k, v in point.items()}
    assert by_sku & set(point)
    np.testing.assert_allclose(density_at(turned, moved), density_at(model, point), rtol=1e-12)
    unmoved = density_at(turned, point)
    assert abs(unmoved / density_at(model, point) - 1) > 1e-6  # negative control


def test_a_sku_without_a_datasheet_is_refused_before_pymc_sees_it(build, own, monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("a PyMC model was begun")

    monkeypatch.setattr(pm, "Model", never)
    with pytest.raises(KeyError):
        build(own.cells, own.sheets.isel(sku=slice(None, -1)))


def test_a_table_with_an_unknown_sku_names_the_closest(table):
    wrong = table.assign(sku=table["sku"].replace(SKUS[1], "H100-80GB-SMX"))
    with pytest.raises(UnknownNameError, match="did you mean H100-80GB-SXM"):
        runs_by_cell(wrong, skus=SKUS)


def test_frame_finds_no_label_by_position(cells, sheets):
    """A label that is missing must not become the last one, as an index of -1 would."""
    for given in ("a100-80gb-sxm", "", "-1"):
        wrong = cells.assign_coords(sku=("cell", [given] * cells.sizes["cell"]))
        with pytest.raises(KeyError):
            Frame(wrong, sheets)


def test_frame_finds_the_clock_of_a_sku_by_its_name_too(database, cells, sheets):
    readings = clock_readings(database.table("clock_sustained"), sheets, origin="clock")
    wrong = readings.assign_coords(sku=("reading", ["H100"] * readings.sizes["reading"]))
    with pytest.raises(KeyError):
        Frame(cells, sheets, wrong)


def test_frame_names_the_sku_without_a_datasheet_and_the_closest(cells, sheets):
    with pytest.raises(UnknownNameError, match=f"unknown SKU '{SKUS[2]}'"):
        Frame(cells, sheets.isel(sku=[0, 1, 3]))


# --- clock channel ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_clock(database, cells, sheets):
    """The model of the GEMM law without and with clock telemetry."""
    readings = clock_readings(database.table("clock_sustained"), sheets, origin="clock")
    build = database.builder("hier_gemm")
    return build(cells, sheets), build(cells, sheets, clock=readings), readings


def terms_at(model, names, point):
    """Log density of some variables at a point, summed."""
    found = model.logp(vars=[model[name] for name in names], sum=False)
    compiled = model.compile_fn(
        found, inputs=model.value_vars, point_fn=True, on_unused_input="ignore", mode="FAST_COMPILE"
    )
    return sum(np.sum(term) for term in compiled(point))


CLOCK = ("clock_misfit", "cap_slope", "reading", "cap")


def test_telemetry_changes_the_density_by_its_own_terms_only(with_clock):
    without, told, _ = with_clock
    point = jittered(told, 5)
    shared = {k: v for k, v in point.items() if k in without.initial_point()}
    extra = density_at(told, point) - density_at(without, shared)
    np.testing.assert_allclose(extra, terms_at(told, CLOCK, point), rtol=1e-9)
    named = {v.name for v in told.basic_RVs} - {v.name for v in without.basic_RVs}
    assert named == set(CLOCK)


def test_readings_are_student_t_around_the_share_of_the_law(with_clock, database, sheets):
    """By the path of the laws: factors of the point by label, terms of the served regime."""
    _, told, readings = with_clock
    point = jittered(told, 6)
    draw, _ = values_at(told, point)
    card = database.model("hier_gemm")
    factors = with_skus(draw.assign_attrs(factors=json.dumps(card.factors)), sheets, seed=0)
    sku = readings["sku"]
    terms = gemm_terms(readings[["M", "N", "K"]], sheets.sel(sku=sku), regime="served")
    share = sustained_share(terms, factors.sel(sku=sku)).isel(chain=0, draw=0)
    misfit = float(draw["clock_misfit"].squeeze())
    scale = np.hypot(misfit, readings["reading_error"])
    expected = t(TAIL, loc=np.log(share), scale=scale).logpdf(readings["reading_log_share"])
    found = terms_at(told, ["reading"], point)
    np.testing.assert_allclose(found, expected.sum(), rtol=1e-8)  # PyMC's normaliser: 6e-10 each
    moved = np.log(share.roll(reading=1, roll_coords=False))  # the clock of another card
    wrong = t(TAIL, loc=moved, scale=scale).logpdf(readings["reading_log_share"])
    assert abs(wrong.sum() - found) > 1


def test_the_cap_sweep_is_normal_around_its_slope(with_clock):
    _, told, readings = with_clock
    point = jittered(told, 7)
    draw, _ = values_at(told, point)
    slope, misfit = (float(draw[v].squeeze()) for v in ("cap_slope", "clock_misfit"))
    power = readings["cap_log_power"].values
    expected = norm(slope * power, misfit * power).logpdf(readings["cap_log_clock"].values)
    np.testing.assert_allclose(terms_at(told, ["cap"], point), expected.sum(), rtol=1e-10)


# --- prior -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prior(model):
    with model:
        return pm.sample_prior_predictive(
            draws=400, random_seed=11, compile_kwargs={"mode": "FAST_COMPILE"}
        )


@pytest.fixture(scope="module")
def judged(card, own):
    """Runs that a model can be held to: all, if it knows of a floor; else those of 8 MB or more.

    A model without launch time answers a kernel of a few kilobytes with nanoseconds, by design.
    """
    cells, present = own.cells, np.isfinite(own.cells["op_time"])
    if LAWS[card.law].variant is not None:
        return present.values
    traffic = 2 * (cells["N"] * cells["K"] + cells["M"] * (cells["N"] + cells["K"]))
    knows = any(factor["name"] == "launch_time" for factor in card.factors)
    return (present & (knows | (traffic >= 8e6))).values


def plausible(card):
    """Range of times that make sense [s], and the share of runs that may lie outside it.

    Of a matrix product, and of lighter kernels, none of which may be shorter than `FLOOR`: theirs
    are microseconds, of which the error that counts by its time is a larger share.
    """
    return (1e-6, 10, 0.001) if LAWS[card.law].variant is None else (FLOOR, 10, 0.002)


def test_prior_times_lie_between_a_microsecond_and_ten_seconds(card, prior, judged, own):
    """Law and build effect, free of noise: the central 99 % of draws of each cell.

    Of a matrix product: lighter kernels may take less, and none may take less than `FLOOR`.
    """
    times = times_by_law(card, prior["prior"].to_dataset(), own.cells, own.sheets)
    assert np.isfinite(times).all()
    low, high = times.quantile([0.005, 0.995], ("chain", "draw")).values
    assert judged.sum() > 30
    assert low[judged].min() > plausible(card)[0]
    assert high[judged].max() < 10


def test_prior_runs_are_finite_and_lie_mostly_in_that_range(card, prior, judged):
    """With the heavy-tailed errors; 1 run in 1000, or 2, may lie outside."""
    runs = prior["prior_predictive"]["log_time"].values
    assert np.isfinite(runs).all()
    low, high, outside = plausible(card)
    runs = runs[..., judged]
    assert ((runs > np.log(low)) & (runs < np.log(high))).mean() > 1 - outside


def test_prior_covers_what_was_measured(prior, judged, own):
    """Every measured run lies between the extreme ones of 400 prior runs of its cell."""
    if not own.stored:
        pytest.skip("no table of this law is in the database")
    runs = prior["prior_predictive"]["log_time"].values[0][:, judged]
    measured = np.log(own.cells["op_time"].values[judged])
    assert (runs.min(axis=0) < measured).all()
    assert (measured < runs.max(axis=0)).all()


def test_every_cell_and_run_of_a_prior_draw_has_its_own_error(card, prior, own):
    """Draws through PyMC: no error is shared, since no two cells share a discrepancy."""
    located = np.log(times_by_law(card, prior["prior"].to_dataset(), own.cells, own.sheets))
    present = np.isfinite(own.cells["op_time"].values)
    runs = prior["prior_predictive"]["log_time"].values[0, 0][present]
    errors = runs - located.isel(chain=0, draw=0).values[present]
    gaps = np.diff(np.sort(errors))
    assert gaps.min() > 1e-9


# --- likelihood of a cell --------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled_logp():
    inputs = [pt.dmatrix(), pt.dmatrix(), pt.dmatrix(), pt.dvector(), pt.dvector()]
    return pytensor.function(inputs, cell_logp(*inputs), mode="FAST_COMPILE")


def test_cell_density_is_the_multivariate_t(compiled_logp, rng):
    """All seven ways in which one to three of three runs can be there."""
    ways = [[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)][1:]
    present = np.array(ways * 20, dtype=float)
    value, mu = rng.normal(size=(2, *present.shape))
    cell, run = rng.uniform(0.02, 2.0, (2, len(present)))
    found = compiled_logp(value, mu, present, cell, run)
    here = present.astype(bool)
    expected = [
        log_t(value[i, h], mu[i, h], cell[i], run[i])
        for i, h in zip(range(len(here)), here, strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-11)


def test_absent_runs_do_not_count(compiled_logp):
    """Whatever number stands where no run was: here one that would ruin the density."""
    present = np.array([[1.0, 0.0, 1.0]])
    rest = np.array([[0.1, 0.2, 0.3]]), present, np.array([0.06]), np.array([0.03])
    clean = compiled_logp(np.array([[0.12, 0.0, 0.25]]), *rest)
    np.testing.assert_array_equal(compiled_logp(np.array([[0.12, 1e6, 0.25]]), *rest), clean)


def test_independent_runs_are_found_out(compiled_logp):
    """Without the shared part, two runs that agree far from the law would seem impossible."""
    far = np.array([[0.5, 0.5]])
    together = compiled_logp(far, 0 * far, 1 + 0 * far, np.array([0.06]), np.array([0.03]))
    alone = log_t(far[0], np.zeros(2), 0.0, np.hypot(0.06, 0.03))
    assert together.item() > alone + 1


@pytest.mark.statistical
def test_random_runs_follow_the_density(rng):
    """Every linear combination of a cell's runs is Student-t; its square form is F(n, 4).

    The variance of t4 is 2 scale², but its sample variance has no finite error, so distributions
    are compared and not moments.
    """
    draws, cell, run = 4000, 0.06, 0.03
    mu = np.tile([1.0, 2.0, 3.0], (draws, 1))
    present = np.tile([1.0, 1.0, 0.0], (draws, 1))
    sigma = np.full(draws, cell), np.full(draws, run)
    runs = cell_random(mu, present, *sigma, rng=rng)
    assert (runs[:, 2] == 0).all()
    residual = (runs - mu)[:, :2]
    tail = t(TAIL).cdf
    scales = {(1, 0): np.hypot(cell, run), (1, -1): np.sqrt(2) * run}
    scales[1, 1] = np.sqrt(4 * cell**2 + 2 * run**2)
    for weights, scale in scales.items():
        combined = residual @ np.array(weights) / scale
        assert kstest(combined, tail).pvalue > 0.001
        assert kstest(combined, norm.cdf).pvalue < 0.001  # negative controls: normal errors,
        assert kstest(combined * 1.2, tail).pvalue < 0.001  # and a scale 20 % off
    shape = cell**2 * np.ones((2, 2)) + run**2 * np.eye(2)
    square = np.einsum("di,ij,dj->d", residual, np.linalg.inv(shape), residual)
    assert kstest(square / 2, f(2, TAIL).cdf).pvalue > 0.001
    apart = (residual / np.hypot(cell, run)) ** 2  # negative control: runs taken as independent
    assert kstest(apart.sum(axis=1) / 2, f(2, TAIL).cdf).pvalue < 0.001
    inside = np.abs(residual[:, 0]) < np.hypot(cell, run)
    mcse = inside.std(ddof=1) / np.sqrt(draws)
    assert abs(inside.mean() - (2 * tail(1.0) - 1)) < 4 * mcse
