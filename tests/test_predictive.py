"""Predictions from stored draws: labels, seeds, unmeasured SKUs, regimes, noise."""

import json

import numpy as np
import pytest
import xarray as xr

from m2bayes import _jobs
from m2bayes.errors import RecordError, UnknownNameError, WorkloadError
from m2bayes.factors import basis, with_skus
from m2bayes.gemm import gemm_cells
from m2bayes.mechanism.gemm import gemm_terms, gemm_time
from m2bayes.predictive import predict, summary
from m2bayes.workload import parse_workload

EXACT = {"rtol": 1e-12, "atol": 0}
FITTED = "gemm_bf16-hier_gemm"
H100, H200, A100, L40S = "H100-80GB-SXM", "H200-141GB-SXM", "A100-80GB-SXM", "L40S-48GB-PCIe"


def gemms(*sizes):
    return gemm_cells(None, [parse_workload(f"gemm:m={m},n={n},k={k}") for m, n, k in sizes])


@pytest.fixture(scope="module")
def cells():
    """A small and a large decode weight, and a prefill."""
    return gemms((1, 4096, 1024), (64, 28672, 4096), (4096, 6144, 4096))


@pytest.fixture(scope="module")
def fitted(database):
    return database.draws(FITTED)


@pytest.fixture(scope="module")
def sheets(database):
    return database.datasheets([A100, H100, H200])


def renamed(sheets, sku, architecture=None):
    """The same card under a name that no posterior knows, and if asked a new architecture."""
    sheet = sheets.sel(sku=[sku]).assign_coords(sku=[f"{sku}-twin"])
    family = [architecture or str(sheet["architecture"].values[0])]
    return sheet.assign_coords(architecture=("sku", family))


def without(posterior, *spreads, builds=False):
    """The same draws with the spreads named put to nothing for every SKU, measured or not."""
    names = [str(v) for v in posterior if str(v).startswith(spreads)]
    values = {v: 0.0 if v.endswith("_sd") else -80.0 for v in names}
    values |= dict.fromkeys(("build_sd", "build_effect"), 0.0) if builds else {}
    return posterior.assign({v: posterior[v] * 0 + x for v, x in values.items()})


DISCREPANCY = ("log_sigma_cell", "log_sigma_time")


def gain(narrow, wide, rng, repeats=100):
    """By how much the central 90 % of log time grow, and the Monte Carlo error of that.

    A width of quantiles, since a variance with such tails has no error; a bootstrap of the draws.
    """
    stacked = [t.stack(sample=("chain", "draw")).reset_index("sample") for t in (narrow, wide)]
    stacked = [np.log(t.transpose("sample", ...).values) for t in stacked]

    def growth(at):
        widths = [np.subtract(*np.quantile(x[at], [0.95, 0.05], axis=0)) for x in stacked]
        return widths[1] - widths[0]

    draws = len(stacked[0])
    mcse = np.std([growth(rng.integers(draws, size=draws)) for _ in range(repeats)], axis=0, ddof=1)
    return growth(np.arange(draws)), mcse


# --- factors ---------------------------------------------------------------------------------


def test_factors_of_a_measured_sku_are_the_stored_draws(synthetic_posterior, sheets):
    """On their natural scale in double precision, whatever the order of the SKUs."""
    for order in ([0, 1, 2], [2, 0, 1]):
        factors = with_skus(synthetic_posterior, sheets.isel(sku=order), seed=0)
        for factor in json.loads(synthetic_posterior.attrs["factors"]):
            found, name = factors[factor["name"]], f"log_{factor['name']}"
            if factor["link"] == "identity":
                np.testing.assert_array_equal(found, synthetic_posterior[factor["name"]])
            elif name in synthetic_posterior:
                for sku in sheets["sku"].values:
                    stored = synthetic_posterior[name].sel(sku=sku)
                    expected = np.exp(stored.astype(float))
                    np.testing.assert_array_equal(found.sel(sku=sku), expected)


def test_factors_of_an_architecture_are_its_own(synthetic_posterior, sheets):
    """A factor pooled only by architecture is the same for its SKUs, and not for others."""
    knee = with_skus(synthetic_posterior, sheets, seed=0)["knee"]
    np.testing.assert_array_equal(knee.sel(sku=H100), knee.sel(sku=H200))
    stored = synthetic_posterior["log_knee_architecture"].sel(architecture="Ampere")
    np.testing.assert_array_equal(knee.sel(sku=A100), np.exp(stored.astype(float)))


def test_an_unmeasured_sku_is_drawn_around_its_architecture(synthetic_posterior, sheets):
    """Level of the architecture plus spread times a standard normal, judged at 4 MCSE."""
    twin = renamed(sheets, H100)
    factor = np.log(with_skus(synthetic_posterior, twin, seed=0)["launch_time"]).isel(sku=0)
    level = synthetic_posterior["log_launch_time_architecture"].sel(architecture="Hopper")
    offset = ((factor - level) / synthetic_posterior["log_launch_time_sku_sd"]).values.ravel()
    mcse = offset.std(ddof=1) / np.sqrt(offset.size)
    assert abs(offset.mean()) < 4 * mcse
    square = offset**2
    assert abs(square.mean() - 1) < 4 * square.std(ddof=1) / np.sqrt(offset.size)
    assert abs((offset + 1).mean()) > 4 * mcse  # negative control


def test_cards_of_a_new_architecture_share_its_level(synthetic_posterior, sheets):
    """Two SKUs of an architecture that nobody measured: one draw of the level for both."""
    twins = xr.concat([renamed(sheets, H100, "New"), renamed(sheets, H200, "New")], dim="sku")
    knee = with_skus(synthetic_posterior, twins, seed=0)["knee"]
    np.testing.assert_array_equal(knee.isel(sku=0), knee.isel(sku=1))
    other = with_skus(synthetic_posterior, renamed(sheets, H100, "Newer"), seed=0)["knee"]
    assert not np.array_equal(knee.isel(sku=0), other.isel(sku=0))


def test_a_posterior_without_a_factor_is_refused(synthetic_posterior, sheets):
    lacking = synthetic_posterior.drop_vars(["log_knee_mean", "log_knee_architecture"])
    with pytest.raises(RecordError, match=r"no variable log_knee_mean; fit the model again"):
        with_skus(lacking, sheets, seed=0)


def test_basis_says_what_a_prediction_rests_on(synthetic_posterior, sheets, database):
    asked = xr.concat([sheets, renamed(sheets, H100), database.datasheets([L40S])], dim="sku")
    assert basis(synthetic_posterior, asked).values.tolist() == [
        *["measured"] * 3,
        "architecture",
        "population",
    ]


# --- joint draws -----------------------------------------------------------------------------


def test_dims_coords_and_units(synthetic_posterior, sheets, cells):
    time = predict(synthetic_posterior, cells, sheets)
    assert time.dims == ("chain", "draw", "sku", "workload", "op")
    assert time.attrs["units"] == "s"
    assert time["sku"].values.tolist() == sheets["sku"].values.tolist()
    assert time["workload"].values.tolist() == cells["workload"].values.tolist()
    assert (time > 0).all()
    assert np.isfinite(time).all()


def test_the_same_seed_gives_the_same_bits_and_another_other_ones(
    synthetic_posterior, sheets, cells
):
    first = predict(synthetic_posterior, cells, sheets, seed=3)
    xr.testing.assert_identical(first, predict(synthetic_posterior, cells, sheets, seed=3))
    assert not np.array_equal(first, predict(synthetic_posterior, cells, sheets, seed=4))


@pytest.mark.parametrize("noise", [0, 3])
def test_the_number_of_threads_changes_nothing(
    synthetic_posterior, sheets, cells, monkeypatch, noise
):
    def times(cores):
        monkeypatch.setattr(_jobs, "CORES", cores)
        return predict(synthetic_posterior, cells, sheets, noise=noise, seed=1)

    with _jobs.one_thread():
        alone = times(8)
    xr.testing.assert_identical(times(1), alone)
    xr.testing.assert_identical(times(8), alone)


def test_a_fault_in_a_thread_is_a_fault(monkeypatch):
    monkeypatch.setattr(_jobs, "CORES", 4)
    with pytest.raises(ZeroDivisionError):
        _jobs.in_threads(lambda at: 1 / (at - 3), 8, busy=True)


@pytest.mark.parametrize("noise", [0, 3])
def test_other_measured_skus_and_their_order_change_nothing(
    synthetic_posterior, sheets, cells, noise
):
    whole = predict(synthetic_posterior, cells, sheets, noise=noise)
    for part in ([0], [2, 1], [1, 2, 0]):
        asked = predict(synthetic_posterior, cells, sheets.isel(sku=part), noise=noise)
        np.testing.assert_array_equal(asked, whole.isel(sku=part))


def test_an_unmeasured_neighbour_changes_nothing(synthetic_posterior, sheets, cells):
    """Not even the rounding, although its draws are double precision, the stored ones single."""
    alone = predict(synthetic_posterior, cells, sheets)
    twin = renamed(sheets, H100)
    joined = predict(synthetic_posterior, cells, xr.concat([twin, sheets], dim="sku"))
    np.testing.assert_array_equal(joined.isel(sku=slice(1, None)), alone)
    np.testing.assert_array_equal(joined.isel(sku=[0]), predict(synthetic_posterior, cells, twin))


@pytest.mark.parametrize("noise", [0, 2])
def test_other_workloads_change_nothing(fitted, synthetic_posterior, sheets, cells, noise):
    """Nor their order, nor how many: with measured cells behind the discrepancy or without."""
    few = fitted.isel(draw=slice(0, None, 50)).assign_attrs(fitted.attrs)
    many = gemms(*[(2**i, 128 * j, 4096) for i in range(12) for j in range(1, 30)])
    many = xr.concat([many, cells], dim="workload")
    for posterior in (synthetic_posterior, few):
        whole = predict(posterior, many, sheets, noise=noise).isel(workload=slice(-3, None))
        np.testing.assert_array_equal(predict(posterior, cells, sheets, noise=noise), whole)
        for i in ([0], [2, 1]):
            one = predict(posterior, cells.isel(workload=i), sheets, noise=noise)
            np.testing.assert_array_equal(one, whole.isel(workload=i))


def test_a_shape_has_one_time_wherever_it_occurs(synthetic_posterior, sheets, cells):
    """The discrepancy is no noise: the same shape twice in a call gets the same draws."""
    twice = xr.concat([cells, cells.isel(workload=[0])], dim="workload")
    time = predict(synthetic_posterior, twice, sheets)
    np.testing.assert_array_equal(time.isel(workload=0), time.isel(workload=-1))


def test_without_errors_a_prediction_is_the_law_of_the_draws(synthetic_posterior, sheets, cells):
    """Spreads of the errors put to nothing: what is left is the law, at 1e-12."""
    bare = without(synthetic_posterior, *DISCREPANCY, builds=True)
    factors = with_skus(bare, sheets, seed=0)
    for regime in ("served", "benchmark"):
        time = predict(bare, cells, sheets, regime=regime)
        law = gemm_time(gemm_terms(cells, sheets, regime=regime), factors)
        np.testing.assert_allclose(time, law.transpose(*time.dims), rtol=1e-12)


def test_order_of_dims_in_the_posterior_is_free(synthetic_posterior, sheets, cells):
    turned = synthetic_posterior.transpose("backend", "sku", "architecture", "draw", "chain")
    np.testing.assert_allclose(
        predict(turned, cells, sheets), predict(synthetic_posterior, cells, sheets), **EXACT
    )


# --- builds, regimes, noise ------------------------------------------------------------------


def test_a_named_backend_has_its_own_effect(synthetic_posterior, sheets, cells):
    """Served, the law knows no backend: two of them differ by their build effects alone."""
    one, two = (predict(synthetic_posterior, cells, sheets, backend=b) for b in ("sglang", "vllm"))
    effect = synthetic_posterior["build_effect"]
    gap = effect.sel(backend="vllm") - effect.sel(backend="sglang")
    gap = gap.transpose("chain", "draw", "sku").values[..., None, None]
    np.testing.assert_allclose(
        np.log(two / one), np.broadcast_to(gap, one.shape), atol=10 * np.finfo(np.float32).eps
    )


def test_any_backend_draws_one_effect_for_all_shapes(synthetic_posterior, sheets, cells):
    """The effect belongs to the build, so it cancels between the shapes of one draw."""
    named = predict(synthetic_posterior, cells, sheets, backend="sglang")
    drawn = predict(synthetic_posterior, cells, sheets)
    ratio = np.log(drawn / named)
    assert np.ptp(ratio.values, axis=-2).max() < 1e-6
    assert ratio.std() > 0.01


def test_an_unknown_backend_lists_the_closest(synthetic_posterior, sheets, cells):
    with pytest.raises(UnknownNameError, match=r"unknown backend 'sglng'; did you mean sglang"):
        predict(synthetic_posterior, cells, sheets, backend="sglng")


def test_an_unknown_law_and_regime_are_refused(synthetic_posterior, sheets, cells):
    wrong = synthetic_posterior.assign_attrs(law="gem_time")
    with pytest.raises(UnknownNameError, match=r"unknown law 'gem_time'; did you mean gemm_time"):
        predict(wrong, cells, sheets)
    with pytest.raises(ValueError, match="served, benchmark"):
        predict(synthetic_posterior, cells, sheets, regime="cold")


def test_datasheets_of_another_dtype_are_refused(synthetic_posterior, cells, database):
    sheets = database.datasheets([H100], dtype="fp8")
    with pytest.raises(WorkloadError, match="datasheets for fp8: the posterior knows bf16"):
        predict(synthetic_posterior, cells, sheets)


def test_a_rate_that_the_posterior_was_not_fitted_on_is_refused_at_the_door(database):
    """A card without fp8 has no such datasheet; the rates of an Ampere card are bf16 only."""
    with pytest.raises(ValueError, match="no peak_flop_rate for fp8"):
        database.datasheets([A100], dtype="fp8")
    with pytest.raises(UnknownNameError, match="did you mean bf16"):
        database.datasheets([A100], dtype="bf17")


def test_new_runs_are_wider_and_more_of_them_less_so(synthetic_posterior, sheets, cells, rng):
    """The median of 25 runs lies between the truth and a single run; judged at 4 MCSE."""
    many = synthetic_posterior.isel(draw=np.arange(2000) % 100).assign_coords(draw=range(2000))
    many = without(many, *DISCREPANCY)  # else its draws drown the rest
    shape, sheet = cells.isel(workload=[1]), sheets.sel(sku=[H100])
    truth, single, median = (
        predict(many, shape, sheet, backend="sglang", noise=n) for n in (0, 1, 25)
    )
    for narrow, wide in ((truth, single), (median, single)):
        growth, mcse = gain(narrow, wide, rng)
        assert (growth > 4 * mcse).all()


def test_runs_of_any_backend_have_each_their_own_build(synthetic_posterior, sheets, cells, rng):
    """The median of many runs of one build keeps its effect; over many builds it averages out."""
    many = synthetic_posterior.isel(draw=np.arange(2000) % 100).assign_coords(draw=range(2000))
    many = without(many, *DISCREPANCY, "log_sigma_run")
    many["build_sd"] = many["build_sd"] * 0 + 0.1
    shape, sheet = cells.isel(workload=[1]), sheets.sel(sku=[H100])
    one, several = (predict(many, shape, sheet, noise=n) for n in (1, 25))
    growth, mcse = gain(several, one, rng)
    assert (growth > 4 * mcse).all()


def test_cold_small_weights_are_slower_on_a_large_cache(fitted, database):
    """An o projection of 8 MiB on the L40S, whose 96 MiB hold all six replayed copies."""
    shape, sheet = gemms((1, 4096, 1024)), database.datasheets([L40S])
    served, replay = (
        predict(fitted, shape, sheet, regime=r, backend="sglang") for r in ("served", "benchmark")
    )
    # the discrepancies of a cold and of a warm kernel are nearly independent, so not in every draw
    assert (served > replay).mean() > 0.99
    assert served.median() > 1.2 * replay.median()


SMALL = [(m, n, k) for n, k in ((1536, 4096), (4096, 1024)) for m in (1, 2, 4, 8, 16, 32, 64)]


def served_over_benchmark(fitted, database, *skus):
    """Posterior median of cold over replayed time, dims (sku, workload)."""
    times = [
        predict(fitted, gemms(*SMALL), database.datasheets(skus), regime=regime)
        for regime in ("served", "benchmark")
    ]
    return (times[0] / times[1]).median(("chain", "draw")).squeeze("op", drop=True)


def test_a_card_with_a_large_cache_and_slow_memory_is_flattered_by_replays(fitted, database):
    """Small projections on the L40S: cold weights take at least half as long again."""
    assert (served_over_benchmark(fitted, database, L40S) > 1.5).all()


def test_replays_hardly_flatter_cards_with_fast_memory(fitted, database):
    """Six copies of 12.6 MB do not fit into 40 or 50 MB; on the A100 nor do six of 8.4 MB."""
    ratio = served_over_benchmark(fitted, database, A100, H100, H200)
    assert (abs(ratio.isel(workload=slice(0, 7)) - 1) < 0.05).all()
    assert (abs(ratio.sel(sku=A100) - 1) < 0.05).all()


def test_the_law_itself_is_at_most_a_tenth_slower_cold_on_fast_memory(fitted, database):
    """Without the discrepancy, also on the B200, whose 126 MB hold all copies."""
    sheets = database.datasheets([A100, H100, H200, "B200-180GB-SXM"])
    factors = with_skus(fitted, sheets, seed=0)
    served, replay = (
        gemm_time(gemm_terms(gemms(*SMALL), sheets, regime=regime), factors)
        for regime in ("served", "benchmark")
    )
    ratio = (served / replay).median(("chain", "draw"))
    assert ((ratio > 0.95) & (ratio < 1.1)).all()


# --- measured, architecture, population ------------------------------------------------------


@pytest.mark.statistical
@pytest.mark.parametrize("sku", [H100, A100])
def test_uncertainty_grows_from_measured_to_architecture_to_population(
    fitted, database, cells, rng, sku
):
    """The same card measured, renamed, and renamed with a new architecture; at 4 MCSE.

    Noise-free and without the discrepancy, which is as wide on every card of equal spread.
    """
    bare = without(fitted, *DISCREPANCY, builds=True)
    sheets = database.datasheets([sku])
    asked = [sheets, renamed(sheets, sku), renamed(sheets, sku, "Nobody's")]
    measured, architecture, population = (predict(bare, cells, sheet) for sheet in asked)
    growth, mcse = gain(measured, architecture, rng)
    assert (growth > 4 * mcse).all()
    growth, mcse = gain(architecture, population, rng)
    assert (growth > -4 * mcse).all()
    assert (growth > 4 * mcse).any()


@pytest.mark.statistical
def test_a_renamed_card_is_no_narrower_with_its_errors(fitted, database, cells, rng):
    sheets = database.datasheets([H100])
    measured, renamed_card = (predict(fitted, cells, s) for s in (sheets, renamed(sheets, H100)))
    growth, mcse = gain(measured, renamed_card, rng)
    assert (growth > 4 * mcse).all()


def test_summary_by_hand():
    """Draws 0 to 100: median 50, mean 50, and the central 90 % from 5 to 95."""
    time = xr.DataArray(np.arange(101.0).reshape(1, 101, 1), dims=("chain", "draw", "sku"))
    found = summary(time)
    np.testing.assert_allclose(
        [found[k] for k in ("low", "median", "mean", "high")],
        [[5.0], [50.0], [50.0], [95.0]],
        **EXACT,
    )
    skewed = summary(time**2)
    assert skewed["mean"] > skewed["median"]
