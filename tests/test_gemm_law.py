"""The GEMM law: what the regimes put into it, and how its time may and may not move."""

import numpy as np
import pytest
import xarray as xr
from helpers import plain
from hypothesis import given, settings
from hypothesis import strategies as st

from m2bayes._math import smooth_maximum
from m2bayes.mechanism.gemm import (
    KERNELS,
    ROOF_SHARPNESS,
    ceiling_time,
    compute_roofs,
    gemm_branches,
    gemm_terms,
    gemm_time,
    sustained_share,
)
from m2bayes.mechanism.laws import LAWS
from m2bayes.mechanism.memory import memory_time, warm_share
from m2bayes.mechanism.roofline import roofline_time
from m2bayes.mechanism.wave import eta_wave, tile_choice

EXACT = {"rtol": 1e-12, "atol": 0}
quick = settings(deadline=None, max_examples=40)
FACTORS = {
    "eta_memory": 0.87,
    "memory_latency": 8300.0,
    "eta_cache": 0.2,
    "launch_time": 1.4e-6,
    "clock_burst": 1.0,
    "droop": 0.25,
    "eta_issue": 1.3,
    "prologue": 250.0,
    "knee": 0.6,
    "power_slope": 0.6,
    "width_slope": 0.1,
    "blank_gain": 0.05,
}
shapes = {
    "M": st.integers(1, 32768),
    "N": st.sampled_from([128, 1024, 1536, 4096, 7168, 28672, 65536]),
    "K": st.sampled_from([128, 1024, 3584, 4096, 14336, 65536]),
}
regimes = st.sampled_from(["served", "benchmark"])
SKUS = ("a100", "h100", "h200", "l40s", "b200", "rtx-pro-6000")


def cells(M, N, K):
    sizes = np.broadcast_arrays(*np.atleast_1d(M, N, K))
    return xr.Dataset({v: ("shape", s.astype(float)) for v, s in zip("MNK", sizes, strict=True)})


def arrays(cells, sheets, regime):
    """Terms as plain arrays, dims (shape, sku): a law runs on them much faster."""
    return plain(gemm_terms(cells, sheets, regime=regime))


@pytest.fixture(scope="module")
def sheets(database):
    return database.datasheets(SKUS)


# --- what the regimes put in -----------------------------------------------------------------


@given(st.fixed_dictionaries(shapes))
@quick
def test_served_weights_are_read_cold(sheets, shape):
    terms = arrays(cells(**shape), sheets, "served")
    weight = 2.0 * shape["N"] * shape["K"]
    activation = 2.0 * shape["M"] * (shape["N"] + shape["K"])
    assert (terms["cold_traffic"] >= weight * (1 - 1e-12)).all()
    np.testing.assert_allclose(
        terms["cold_traffic"] + terms["warm_traffic"], weight + activation, rtol=1e-12
    )
    assert (terms["power_load"] == 1).all()
    assert (terms["blank_weights"] == 0).all()


def test_replayed_tiny_weights_are_warm(sheets):
    """Six copies of 128 KiB fit every L2 here; six copies of 1 GiB fit none."""
    tiny = gemm_terms(cells(1, 256, 256), sheets, regime="benchmark")
    huge = gemm_terms(cells(1, 16384, 32768), sheets, regime="benchmark")
    assert (tiny["cold_traffic"] < 1e-6 * tiny["warm_traffic"]).all()
    assert (huge["warm_traffic"] < 1e-6 * huge["cold_traffic"]).all()


def test_warm_share_of_the_replay_by_hand(sheets):
    """L40S, N = 4096, K = 1024: six 8 MiB copies and 10 KiB beside them, against 96 MiB of L2."""
    sheet = sheets.sel(sku=["L40S-48GB-PCIe"])
    terms = gemm_terms(cells(1, 4096, 1024), sheet, regime="benchmark", backend="sglang")
    weight, activation = 8 * 2.0**20, 2.0 * 5120
    share = warm_share(6 * weight + activation, 96 * 2.0**20)
    warm = terms["warm_traffic"].item()
    np.testing.assert_allclose(warm, share * (weight + activation), **EXACT)
    assert share > 0.99


def test_each_backend_replays_its_own_copies(sheets):
    """20 MiB on an H100 with 50 MiB of L2: trtllm keeps 3 copies, the others 6.

    So trtllm is busy for half as long, and only vLLM's weights are uninitialised.
    """
    sheet, shape = sheets.sel(sku=["H100-80GB-SXM"]), cells(1, 2560, 4096)
    terms = {
        b: gemm_terms(shape, sheet, regime="benchmark", backend=b)
        for b in ("any", "sglang", "trtllm", "vllm")
    }
    xr.testing.assert_identical(terms["any"], terms["sglang"])
    slowest = (2.0 * (2560 * 4096 + 2560 + 4096)) / 3.35e12
    for backend, copies in {"trtllm": 3, "sglang": 6}.items():
        odds = (KERNELS * copies * slowest / 30e-3) ** (1 / 0.7)
        np.testing.assert_allclose(terms[backend]["power_load"], odds / (1 + odds), rtol=1e-10)
    assert terms["vllm"]["blank_weights"].item() == 1
    assert terms["trtllm"]["blank_weights"].item() == 0
    xr.testing.assert_identical(
        terms["vllm"].drop_vars("blank_weights"), terms["sglang"].drop_vars("blank_weights")
    )


def test_small_weights_stay_warm_in_trtllm_too(sheets):
    """Five copies of 8 MiB in 96 MiB."""
    sheet = sheets.sel(sku=["L40S-48GB-PCIe"])
    terms = gemm_terms(cells(1, 4096, 1024), sheet, regime="benchmark", backend="trtllm")
    assert (terms["cold_traffic"] < 1e-6 * terms["warm_traffic"]).all()


def test_backend_may_differ_by_row(sheets):
    """As in a table: the terms of a mixed column are those of each backend alone."""
    shape, names = cells([1, 64, 512], 2560, 4096), ["sglang", "trtllm", "vllm"]
    column = xr.DataArray(names, dims="shape")
    mixed = gemm_terms(shape, sheets, regime="benchmark", backend=column)
    for i, name in enumerate(names):
        one = gemm_terms(shape.isel(shape=[i]), sheets, regime="benchmark", backend=name)
        for term in one.data_vars:
            held = mixed[term].isel(shape=[i]) if "shape" in mixed[term].dims else mixed[term]
            expected = one[term].broadcast_like(held).transpose(*held.dims)
            np.testing.assert_allclose(held, expected, **EXACT, err_msg=f"{name} {term}")


def test_an_unknown_regime_is_refused(sheets):
    with pytest.raises(ValueError, match="served, benchmark, not 'cold'"):
        gemm_terms(cells(1, 256, 256), sheets, regime="cold")


def test_grid_cost_is_the_wave_loss_of_the_chosen_tile(sheets):
    """0.78 of the last wave's loss remains; a grid of full waves costs 1."""
    sheet, sm = sheets.sel(sku=["A100-80GB-SXM"]), 108
    tm, tn, split = (int(v) for v in tile_choice(16384, 13824, 8192, sm))
    terms = gemm_terms(cells(16384, 13824, 8192), sheet, regime="served")
    tiles = -(-16384 // tm) * -(-13824 // tn) * split
    tile = {"tile_m": tm, "tile_n": tn, "sm_count": sm, "split": split}
    useful = 16384 * 13824 / (tm * tn * tiles / split)
    by_hand = 0.78 / eta_wave(16384, 13824, **tile) + 0.22 / useful
    np.testing.assert_allclose(terms["grid_cost"], by_hand, **EXACT)


# --- the law ---------------------------------------------------------------------------------


def test_gemm_time_by_hand():
    """Numbers that one can follow: an issue-bound kernel and its memory time, summed by p = 2."""
    terms = {
        "ideal_compute": 3.0,
        "grid_cost": 2.0,
        "tile_cost": 1.5,
        "passes": 0.01,
        "cold_traffic": 40.0,
        "warm_traffic": 30.0,
        "peak_bandwidth": 10.0,
        "cache_port": 20.0,
        "chain": 0.5,
        "peak_over_boost": 1.0,
        "power_load": 1.0,
        "blank_weights": 1.0,
        "power_per_rate": 0.7e-12,
        "tensor_width": 4096.0,
    }
    factors = {
        "eta_issue": 2.0,
        "prologue": 100.0,
        "clock_burst": 1.0,
        "droop": 0.2,
        "blank_gain": 0.1,
        "power_slope": 0.6,
        "width_slope": 0.1,
        "eta_memory": 0.5,
        "eta_cache": 0.25,
        "memory_latency": 4.0,
        "knee": 1.0,
        "launch_time": 7.0,
    }
    issue = 3 * 2 * 1.5 * 2 / 2  # 9 s
    power = 3 / np.exp(-0.2 + 0.1)
    compute = (issue**1.9 + power**1.9) ** (1 / 1.9)
    memory = 40 / 5 + 30 / (5 + 5) + 4 * 0.5  # 8 + 3 + 2 = 13 s
    by_hand = 7 + np.hypot(compute, memory)
    np.testing.assert_allclose(gemm_time(terms, factors), by_hand, **EXACT)
    np.testing.assert_allclose(gemm_branches(terms, factors), (compute, memory), **EXACT)
    # mistakes that this value finds out: launch inside the knee, knee used as p itself
    assert abs(np.hypot(compute, memory + 7) - by_hand) > 0.5
    assert abs(7 + smooth_maximum(compute, memory, 1.0) - by_hand) > 1


def test_ceiling_time_is_the_roofline_by_hand(sheets):
    """M = 4096, qkv of Llama-3.1-8B on an H100 at 0.75 and 0.8; and M = 1 on the other branch."""
    sheet = sheets.sel(sku=["H100-80GB-SXM"])
    terms = gemm_terms(cells([4096, 1], 6144, 4096), sheet, regime="served")
    time = ceiling_time(terms, {"ceiling": 0.75, "eta_memory": 0.8})
    rate, bandwidth = sheet["peak_flop_rate"].item(), sheet["peak_bandwidth"].item()
    compute = 2 * 4096 * 6144 * 4096 / (0.75 * rate)
    memory = 2 * (6144 * 4096 + 6144 + 4096) / (0.8 * bandwidth)
    np.testing.assert_allclose(time.values.ravel(), [compute, memory], **EXACT)


def test_ceiling_time_does_not_tell_warm_from_cold(sheets):
    factors = {"ceiling": 0.7, "eta_memory": 0.75}
    shape = cells([1, 64, 4096], 4096, 1024)
    served, replayed = (
        ceiling_time(gemm_terms(shape, sheets, regime=r), factors) for r in ("served", "benchmark")
    )
    xr.testing.assert_allclose(served, replayed.transpose(*served.dims), rtol=1e-12)


@given(st.fixed_dictionaries(shapes), regimes)
@quick
def test_time_is_never_below_launch_nor_below_either_branch(sheets, shape, regime):
    terms = arrays(cells(**shape), sheets, regime)
    time = gemm_time(terms, FACTORS)
    compute, memory = gemm_branches(terms, FACTORS)
    assert np.isfinite(time).all()
    assert (time > FACTORS["launch_time"]).all()
    larger = np.maximum(compute, memory)
    assert (time >= (FACTORS["launch_time"] + larger) * (1 - 1e-12)).all()
    assert (time <= FACTORS["launch_time"] + larger * 2 ** (1 / 1.6) * (1 + 1e-12)).all()
    hbm = terms["peak_bandwidth"] * FACTORS["eta_memory"]
    assert (memory >= terms["cold_traffic"] / hbm).all()


@given(st.fixed_dictionaries(shapes), regimes, st.floats(1.0, 4.0))
@quick
def test_time_never_rises_with_a_better_datasheet(sheets, shape, regime, more):
    """Terms computed anew: bandwidth; power; clock; and rate with the power to sustain it.

    Not so the SM count, since one SM more may cut the grid into worse waves, nor the L2: a larger
    one makes trtllm's replay keep more copies.
    """
    now = gemm_time(arrays(cells(**shape), sheets, regime), FACTORS)
    for better in (
        ["peak_bandwidth"],
        ["power_limit"],
        ["boost_clock"],
        ["peak_flop_rate", "power_limit"],
    ):
        fast = sheets.assign({name: sheets[name] * more for name in better})
        then = gemm_time(arrays(cells(**shape), fast, regime), FACTORS)
        assert (then <= now * (1 + 1e-12)).all(), better


@given(st.fixed_dictionaries(shapes), st.floats(1.0, 4.0))
@quick
def test_the_rate_alone_pays_as_long_as_its_power_slope_is_below_one(sheets, shape, more):
    """The roof falls as rate^-slope, the ideal time as 1 / rate: slope 1 is where they cancel."""
    fast = sheets.assign(peak_flop_rate=sheets["peak_flop_rate"] * more)
    slow_terms, fast_terms = (arrays(cells(**shape), s, "served") for s in (sheets, fast))
    for slope in (0.0, 0.6, 1.0):
        factors = FACTORS | {"power_slope": slope}
        now, then = gemm_time(slow_terms, factors), gemm_time(fast_terms, factors)
        assert (then <= now * (1 + 1e-12)).all()


@given(st.fixed_dictionaries(shapes), st.floats(1.0, 3.0))
@quick
def test_a_better_efficiency_is_never_slower(sheets, shape, more):
    terms = arrays(cells(**shape), sheets, "benchmark")
    now = gemm_time(terms, FACTORS)
    for name in ("eta_memory", "eta_cache", "eta_issue", "clock_burst", "knee"):
        then = gemm_time(terms, FACTORS | {name: FACTORS[name] * more})
        assert (then <= now * (1 + 1e-12)).all(), name
    for name in ("launch_time", "memory_latency", "prologue", "droop"):
        then = gemm_time(terms, FACTORS | {name: FACTORS[name] * more})
        assert (then >= now * (1 - 1e-12)).all(), name


@given(st.fixed_dictionaries(shapes))
@quick
def test_a_served_step_is_never_faster_than_the_benchmark(sheets, shape):
    """Cold weights and a settled clock, for the same factors and initialised weights.

    Where activations alone fit the cache, the served step keeps them warm; the replay may not.
    The bound is therefore on the cold part: served time with all activations cold.
    """
    served, replay = (arrays(cells(**shape), sheets, r) for r in ("served", "benchmark"))
    total = served["cold_traffic"] + served["warm_traffic"]
    cold = served | {"cold_traffic": total, "warm_traffic": 0 * total}
    assert (gemm_time(cold, FACTORS) >= gemm_time(replay, FACTORS) * (1 - 1e-12)).all()


@given(st.fixed_dictionaries(shapes), st.sampled_from([1e-3, 1e3, 1e6]))
@quick
def test_the_unit_of_time_cancels(sheets, shape, unit):
    """All times in ms: per-second rates fall, the clock too; ratios stay."""
    terms = arrays(cells(**shape), sheets, "served")
    scaled = terms | {
        "ideal_compute": terms["ideal_compute"] * unit,
        "chain": terms["chain"] * unit,
        "peak_bandwidth": terms["peak_bandwidth"] / unit,
        "cache_port": terms["cache_port"] / unit,
    }
    factors = FACTORS | {"launch_time": FACTORS["launch_time"] * unit}
    np.testing.assert_allclose(
        gemm_time(scaled, factors), unit * gemm_time(terms, FACTORS), rtol=1e-11
    )


def test_the_limits_leave_one_branch(sheets):
    """An infinite bandwidth and no latency leave compute; infinite rates leave memory."""
    shape = cells([1, 64, 4096], 4096, 4096)
    terms = gemm_terms(shape, sheets, regime="served")
    free = FACTORS | {"launch_time": 0.0}
    compute, memory = gemm_branches(terms, free)
    quick_memory = terms.assign(peak_bandwidth=terms["peak_bandwidth"] * 1e15)
    time = gemm_time(quick_memory, free | {"memory_latency": 1e-12, "knee": 1.0})
    np.testing.assert_allclose(time, compute.transpose(*time.dims), **EXACT)
    quick_compute = terms.assign(ideal_compute=terms["ideal_compute"] * 1e-15)
    time = gemm_time(quick_compute, free | {"knee": 1.0})
    np.testing.assert_allclose(time, memory.transpose(*time.dims), **EXACT)


def test_the_order_of_dims_is_free(sheets):
    """Terms with dims in either order, as a Dataset or as plain arrays, give the same times."""
    shape = cells([1, 64, 4096], [4096, 1536, 7168], [1024, 4096, 4096])
    terms = gemm_terms(shape, sheets, regime="benchmark", backend="vllm")
    time = gemm_time(terms, FACTORS)
    turned = gemm_time(terms.transpose("sku", "shape", ...), FACTORS)
    xr.testing.assert_allclose(turned.transpose(*time.dims), time, rtol=1e-15)
    arrays = {k: v.broadcast_like(time).transpose(*time.dims).values for k, v in terms.items()}
    np.testing.assert_allclose(gemm_time(arrays, FACTORS), time, rtol=1e-14)
    by_sku = {k: xr.DataArray(np.full(len(SKUS), v), dims="sku") for k, v in FACTORS.items()}
    wide = gemm_time(terms, by_sku)
    xr.testing.assert_allclose(wide.transpose(*time.dims), time, rtol=1e-14)


def test_time_of_a_sku_does_not_depend_on_its_neighbours(sheets):
    shape = cells([1, 64, 4096], 4096, 4096)
    together = gemm_time(gemm_terms(shape, sheets, regime="benchmark"), FACTORS)
    for sku in sheets["sku"].values:
        alone = gemm_time(gemm_terms(shape, sheets.sel(sku=[sku]), regime="benchmark"), FACTORS)
        np.testing.assert_array_equal(alone.sel(sku=sku), together.sel(sku=sku))


def test_cold_small_weights_are_slower_on_a_card_with_a_large_cache(sheets):
    """Decode on the L40S: the o projection fits its 96 MB of L2 six times over."""
    sheet = sheets.sel(sku=["L40S-48GB-PCIe"])
    shape = cells(1, 4096, 1024)
    served, replay = (
        gemm_time(gemm_terms(shape, sheet, regime=r), FACTORS).item()
        for r in ("served", "benchmark")
    )
    assert served > 1.2 * replay


def test_memory_branch_is_cold_plus_warm_plus_latency(sheets):
    """The branch written out with its own law."""
    terms = gemm_terms(cells(1, 4096, 1024), sheets, regime="benchmark")
    _, memory = gemm_branches(terms, FACTORS)
    moved = memory_time(
        terms["cold_traffic"],
        terms["warm_traffic"],
        hbm_rate=terms["peak_bandwidth"] * 0.87,
        cache_rate=terms["cache_port"] * 0.2,
    )
    latency = 8300 * (1 - np.exp(-1024 / 2500)) / sheets["boost_clock"]
    np.testing.assert_allclose(memory, (moved + latency).transpose(*memory.dims), **EXACT)


def test_every_law_has_a_name():
    names = {name: law.time for name, law in LAWS.items() if law.terms is gemm_terms}
    assert names == {"gemm_time": gemm_time, "ceiling_time": ceiling_time}


def test_datasheet_roofline_is_the_ceiling_of_one(sheets):
    terms = gemm_terms(cells([1, 512], 4096, 4096), sheets, regime="served")
    flops = 2.0 * xr.DataArray([1.0, 512.0], dims="shape") * 4096**2
    traffic = 2.0 * (4096**2 + xr.DataArray([1.0, 512.0], dims="shape") * 8192)
    hard = roofline_time(
        flops,
        traffic,
        peak_flop_rate=sheets["peak_flop_rate"],
        peak_bandwidth=sheets["peak_bandwidth"],
    )
    time = ceiling_time(terms, {"ceiling": 1.0, "eta_memory": 1.0})
    np.testing.assert_allclose(time.transpose(*hard.dims), hard, **EXACT)


# --- the clock that the law implies ----------------------------------------------------------

LOADED = {
    "ideal_compute": 2.0,
    "grid_cost": 1.0,
    "tile_cost": 1.0,
    "passes": 0.0,
    "peak_over_boost": 1.0,
    "power_load": 1.0,
    "blank_weights": 0.0,
    "power_per_rate": 0.7e-12,
    "tensor_width": 4096.0,
}
DROOPING = {
    "eta_issue": 0.8,
    "prologue": 0.0,
    "clock_burst": 0.8,
    "droop": 0.0,
    "power_slope": 0.6,
    "width_slope": 0.1,
    "blank_gain": 0.05,
}


def test_sustained_share_by_hand():
    """Issue and power time alike: the time is 2^(1/1.9) of either, the clock its inverse."""
    share = sustained_share(LOADED, DROOPING)
    np.testing.assert_allclose(share, 2 ** (-1 / ROOF_SHARPNESS), rtol=1e-12)
    twice = sustained_share(LOADED, DROOPING | {"droop": np.log(2.0)})
    np.testing.assert_allclose(twice, (1 + 2**ROOF_SHARPNESS) ** (-1 / ROOF_SHARPNESS), rtol=1e-12)


def test_sustained_share_tends_to_boost_where_power_is_plenty():
    """A roof ten thousand times higher leaves a droop of 1e4^-1.9 / 1.9, or 1.3e-8."""
    share = sustained_share(LOADED, DROOPING | {"clock_burst": 8e3})
    assert 1 - 2e-8 < share < 1
    assert sustained_share(LOADED, DROOPING | {"clock_burst": 8e12}) == 1.0


def test_sustained_share_tends_to_the_power_roof_where_power_is_short():
    """Then the clock is that at which the issue rate is what the power limit allows."""
    roof = 1e-4
    share = sustained_share(LOADED, DROOPING | {"clock_burst": roof})
    np.testing.assert_allclose(share, roof / 0.8, rtol=1e-6)


@given(st.floats(0, 2), st.floats(0.01, 2), st.floats(0.3, 3), st.floats(0.3, 1))
@quick
def test_sustained_share_falls_with_droop_and_lies_below_boost(droop, more, burst, issue):
    held = DROOPING | {"clock_burst": burst, "eta_issue": issue}
    share = sustained_share(LOADED, held | {"droop": droop})
    assert 0 < share < 1
    assert sustained_share(LOADED, held | {"droop": droop + more}) < share


def test_sustained_share_is_that_of_the_time_of_the_law(sheets):
    """Issue time at boost over compute time of the law, for a real shape and settled clock."""
    cell = xr.Dataset({"M": 16384.0, "N": 6144.0, "K": 4096.0})
    terms = gemm_terms(cell, sheets, regime="served")
    factors = DROOPING | {"prologue": 250.0, "droop": 0.25}
    issue, _ = compute_roofs(terms, factors)
    rest = {"eta_memory": 0.9, "eta_cache": 0.2, "memory_latency": 8e3}
    compute, _ = gemm_branches(terms, factors | rest)
    np.testing.assert_allclose(sustained_share(terms, factors), issue / compute, rtol=1e-12)


def test_a_share_of_the_peak_clock_is_found_out():
    """Where the peak rate belongs to a clock below boost, the two differ by their ratio."""
    terms = LOADED | {"peak_over_boost": 0.9}
    share = sustained_share(terms, DROOPING)
    np.testing.assert_allclose(share, (1 + 0.9**-ROOF_SHARPNESS) ** (-1 / ROOF_SHARPNESS))
    assert abs(share - sustained_share(LOADED, DROOPING)) > 0.02


@given(st.floats(1e-3, 1), st.floats(1e-3, 1e3), st.integers(1, 4096), st.integers(128, 16384))
@quick
def test_replayed_bytes_never_move_slower_than_cold_ones(eta_memory, eta_cache, m, n):
    """The L2 delivers on top of HBM: no factors make a warm buffer slower than HBM."""
    cell = {"cold_traffic": 0.0, "warm_traffic": 2.0 * m * n, "peak_bandwidth": 1e12}
    warm = cell | {"cache_port": 1e12, "chain": 0.0}
    cold = warm | {"cold_traffic": cell["warm_traffic"], "warm_traffic": 0.0}
    factors = DROOPING | {"eta_memory": eta_memory, "eta_cache": eta_cache, "memory_latency": 1.0}
    (_, fast), (_, slow) = (gemm_branches(LOADED | t, factors) for t in (warm, cold))
    assert fast <= slow
