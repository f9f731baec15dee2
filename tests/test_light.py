"""The law of the light kernels: its limits, how its time may move, and two libraries at once."""

import numpy as np
import pytest
import xarray as xr
from helpers import plain
from hypothesis import given, settings
from hypothesis import strategies as st

from m2bayes._math import smooth_maximum
from m2bayes.errors import UnknownNameError
from m2bayes.mechanism.light import (
    PASSES,
    empty_lanes,
    empty_slots,
    light_body,
    light_floor,
    light_terms,
    light_time,
    recent_share,
)

EXACT = {"rtol": 1e-12, "atol": 0}
quick = settings(deadline=None, max_examples=40)
FACTORS = {
    "floor": 2e-6,
    "issue_cost": 0.17,
    "cold_wait": 0.2,
    "slot_odds": 1.5,
    "lane_odds": 1.0,
    "eta_memory": 0.9,
    "floor_knee": 1.0,
    "roof_knee": 0.5,
}
SKUS = ("a100", "h100", "h200", "l40s", "b200", "rtx-pro-6000")
shapes = {
    "kernel": st.sampled_from(sorted(PASSES)),
    "tokens": st.integers(1, 32768),
    "width": st.integers(128, 28672),
}


def cells(kernel, tokens, width):
    kernel, tokens, width = np.broadcast_arrays(*np.atleast_1d(kernel, tokens, width))
    sizes = {"tokens": tokens.astype(float), "width": width.astype(float), "kernel": kernel}
    return xr.Dataset({name: ("shape", column) for name, column in sizes.items()})


def arrays(cells, sheets):
    """Terms as plain arrays, dims (shape, sku)."""
    return plain(light_terms(cells, sheets, regime="served"))


@pytest.fixture(scope="module")
def sheets(database):
    return database.datasheets(SKUS)


# --- what the terms hold ---------------------------------------------------------------------


@given(st.fixed_dictionaries(shapes))
@quick
def test_every_byte_is_cold_or_warm(sheets, shape):
    terms = arrays(cells(**shape), sheets)
    traffic = 2.0 * PASSES[shape["kernel"]] * shape["tokens"] * shape["width"]
    np.testing.assert_allclose(terms["cold_traffic"] + terms["warm_traffic"], traffic, **EXACT)
    assert (terms["cold_traffic"] >= 0).all()
    assert (terms["warm_traffic"] >= 0).all()


def test_activations_of_a_decode_step_are_warm_and_those_of_a_long_prompt_cold(sheets):
    names = sorted(set(PASSES) - {"embedding"})
    step, prompt = (arrays(cells(names, n, 4096), sheets) for n in (64, 2**17))
    assert (step["cold_traffic"] < 1e-3 * step["warm_traffic"]).all()
    assert (prompt["warm_traffic"] < 2e-2 * prompt["cold_traffic"]).all()


def test_embedding_rows_come_from_memory(sheets):
    """Of its two passes one reads a table that no kernel has just written."""
    terms = arrays(cells("embedding", 16, 4096), sheets)
    assert (terms["cold_traffic"] >= 2.0 * 16 * 4096).all()
    np.testing.assert_allclose(terms["cold_traffic"], 2.0 * 16 * 4096, rtol=1e-3)


def test_terms_by_hand(sheets):
    """A100: 16 MiB of a norm against 40 MiB of L2; 108 SMs at 1.41 GHz."""
    sheet = sheets.sel(sku=["A100-80GB-SXM"])
    terms = light_terms(cells("norm", 1024, 4096), sheet, regime="served")
    traffic = 2 * 2 * 1024 * 4096
    share = 1 / (1 + (16 / 32) ** 3)
    np.testing.assert_allclose(terms["warm_traffic"].item(), share * traffic, **EXACT)
    np.testing.assert_allclose(terms["issue_rate"].item(), 108 * 1.41e9, **EXACT)
    np.testing.assert_allclose(terms["cache_port"].item(), 64 * 108 * 1.41e9, **EXACT)
    assert terms["clock_cost"].item() == 1
    assert terms["empty_lanes"].item() == 0
    waves = np.ceil(1024 / 216)  # two blocks of 1024 threads on each of 108 SMs
    by_hand = (waves * 216 / 1024 - 1) / np.sqrt(waves)
    np.testing.assert_allclose(terms["empty_slots"].item(), by_hand, **EXACT)


def test_recent_share_falls_and_is_half_at_four_fifths_of_the_capacity():
    share = recent_share(np.geomspace(1e3, 1e12, 50), 50e6)
    assert (np.diff(share) < 0).all()
    assert share[0] > 1 - 1e-9
    assert share[-1] < 1e-9
    assert recent_share(40e6, 50e6) == 0.5


def test_a_block_more_than_a_wave_holds_takes_another_wave():
    """On an A100 216 norms at a time; on an A40, whose SMs have room for 1536 threads, 84."""
    full, more = (empty_slots(n, 1024, 108, 2048) for n in (216.0, 217.0))
    assert full == 0
    np.testing.assert_allclose(more, (432 / 217 - 1) / np.sqrt(2), **EXACT)
    full, more = (empty_slots(n, 1024, 84, 1536) for n in (84.0, 85.0))
    assert full == 1  # every other slot of a roomy SM
    np.testing.assert_allclose(more, (336 / 85 - 1) / np.sqrt(2), **EXACT)


@given(st.integers(1, 32768), st.sampled_from([512, 1024]), st.sampled_from([1536, 2048]))
@quick
def test_more_blocks_never_fill_fewer_slots(tokens, threads, room):
    """Nor does the load, the tokens and a part of the empty slots, fall with them."""
    load = [n * (1 + 0.99 * empty_slots(n, threads, 108, room)) for n in (tokens, tokens + 1)]
    assert 0 < load[0] < load[1]


def test_only_kernels_with_a_block_for_each_token_have_empty_slots_and_lanes(sheets):
    names = sorted(PASSES)
    terms = arrays(cells(names, 100, 1500), sheets)
    blocks = np.isin(names, ["norm", "rope", "activation", "kv_write"])
    for part in ("empty_slots", "empty_lanes"):
        assert ((terms[part] > 0).any(axis=-1) == blocks).all(), part


def test_the_last_stride_of_a_token_leaves_lanes_empty():
    kernel = xr.DataArray(["activation"] * 4 + ["rope"], dims="shape")
    width = xr.DataArray([1024.0, 1025.0, 2048.0, 640.0, 640.0], dims="shape")
    np.testing.assert_allclose(
        empty_lanes(kernel, width), [0, 1023 / 1025, 0, 0, 384 / 640], **EXACT
    )


def test_both_regimes_are_the_same_and_the_backend_is_without_effect(sheets):
    some = cells(sorted(PASSES), 64, 4096)
    served = light_terms(some, sheets, regime="served")
    xr.testing.assert_identical(
        served, light_terms(some, sheets, regime="benchmark", backend="vidur")
    )


def test_cells_may_have_any_dims(sheets):
    """A (workload, op) grid: every cell as it would be alone."""
    names = np.array([["norm", "add"], ["rope", "embedding"]])
    sizes = {"tokens": [[1, 64], [512, 8192]], "width": [[4096, 4096], [1152, 8192]]}
    dims = ("workload", "op")
    grid = xr.Dataset({k: (dims, v) for k, v in sizes.items()} | {"kernel": (dims, names)})
    time = light_time(light_terms(grid, sheets, regime="served"), FACTORS)
    assert set(time.dims) == {"workload", "op", "sku"}
    for i, j in np.ndindex(2, 2):
        one = cells(names[i, j], sizes["tokens"][i][j], sizes["width"][i][j])
        alone = light_time(light_terms(one, sheets, regime="served"), FACTORS)
        np.testing.assert_allclose(
            time.isel(workload=i, op=j).values, alone.isel(shape=0).values, **EXACT
        )


def test_an_unknown_kernel_or_regime_is_refused(sheets):
    with pytest.raises(UnknownNameError, match="unknown kernel 'norms'; did you mean norm"):
        light_terms(cells(["add", "norms"], 1, 4096), sheets, regime="served")
    with pytest.raises(ValueError, match="served, benchmark, not 'cold'"):
        light_terms(cells("norm", 1, 4096), sheets, regime="cold")


# --- the law ---------------------------------------------------------------------------------


def test_light_time_by_hand():
    """Memory 5 s and issue 12 s meet with p = 2 to 13; with a floor of 84 s and q = 2 to 85."""
    terms = {
        "cold_traffic": 27.0,
        "warm_traffic": 25.2,
        "empty_slots": 2.0,
        "empty_lanes": 0.5,
        "clock_cost": 1.5,
        "peak_bandwidth": 10.0,
        "cache_port": 20.0,
        "issue_rate": 10.0,
    }
    odds = {"slot_odds": 3.0, "lane_odds": 1.0}  # an empty place costs 3/4 and 1/2 of a busy one
    idle = (1 + 0.75 * 2) * (1 + 0.5 * 0.5)
    factors = odds | {
        "floor": 56.0,
        "issue_cost": 12 * 10 / ((25.2 + 1.5 * 27) * idle),
        "cold_wait": 0.5,
        "eta_memory": 0.9,  # 27 / 9 + 25.2 / (9 + 3.6)
        "floor_knee": 1.0,
        "roof_knee": 1.0,
    }
    body, by_hand = 13, 85
    np.testing.assert_allclose(light_body(terms, factors), body, **EXACT)
    np.testing.assert_allclose(light_floor(terms, factors), 84.0, **EXACT)
    np.testing.assert_allclose(light_time(terms, factors), by_hand, **EXACT)
    # mistakes that this value finds out: a floor added, a knee used as p itself, no clock
    assert abs(84 + body - by_hand) > 1
    assert abs(smooth_maximum(84.0, body, 1.0) - by_hand) > 1
    assert abs(np.hypot(56, body) - by_hand) > 1


@given(st.sampled_from(sorted(PASSES)), st.integers(128, 2048))
@quick
def test_one_token_takes_the_floor(sheets, kernel, width):
    """And, where it has a block of its own, what its SM needs to issue it alone."""
    terms = arrays(cells(kernel, 1, width), sheets)
    time, floor, body = (law(terms, FACTORS) for law in (light_time, light_floor, light_body))
    alone = terms["empty_slots"] > 0
    np.testing.assert_allclose(time, np.where(alone, np.hypot(floor, body), floor), rtol=1e-3)


@given(st.sampled_from(sorted(PASSES)), st.integers(1024, 28672))
@quick
def test_many_tokens_take_time_in_proportion(sheets, kernel, width):
    """Far beyond L2 and the floor, twice the tokens take twice the time."""
    once, twice = (
        light_time(arrays(cells(kernel, n, width), sheets), FACTORS) for n in (2**21, 2**22)
    )
    np.testing.assert_allclose(twice, 2 * once, rtol=1e-3)


def test_a_copy_without_issue_cost_runs_at_nine_tenths_of_the_bandwidth(sheets):
    terms = arrays(cells("norm", 2**22, 4096), sheets)
    factors = FACTORS | {"issue_cost": 1e-9}
    rate = 2 * 2.0 * 2**22 * 4096 / light_time(terms, factors)
    np.testing.assert_allclose(rate[0], 0.9 * sheets["peak_bandwidth"].values, rtol=1e-3)


@given(
    st.fixed_dictionaries(shapes), st.floats(0.1, 3.0), st.floats(0.1, 3.0), st.floats(0.01, 1.0)
)
@quick
def test_time_never_falls_with_tokens_or_width(sheets, shape, floor_knee, roof_knee, issue_cost):
    factors = FACTORS | {
        "floor_knee": floor_knee,
        "roof_knee": roof_knee,
        "issue_cost": issue_cost,
    }
    time = light_time(arrays(cells(**shape), sheets), factors)
    for size in ("tokens", "width"):
        larger = light_time(arrays(cells(**shape | {size: shape[size] * 1.1}), sheets), factors)
        assert (larger > time * (1 - 1e-12)).all(), size


@given(st.fixed_dictionaries(shapes))
@quick
def test_time_is_at_least_each_part_and_at_most_their_sum(sheets, shape):
    terms = arrays(cells(**shape), sheets)
    time, floor, body = (law(terms, FACTORS) for law in (light_time, light_floor, light_body))
    assert (time >= np.maximum(floor, body) * (1 - 1e-12)).all()
    assert (time <= (floor + body) * (1 + 1e-12)).all()


@pytest.mark.parametrize("name", ["floor", "issue_cost"])
def test_time_grows_with_each_cost(sheets, name):
    terms = arrays(cells(sorted(PASSES), 256, 4096), sheets)
    larger = light_time(terms, FACTORS | {name: 1.2 * FACTORS[name]})
    assert (larger > light_time(terms, FACTORS)).all()


def test_a_faster_clock_shortens_the_floor_by_its_root(sheets):
    faster = sheets.assign(boost_clock=4 * sheets["boost_clock"])
    slow, fast = (light_floor(arrays(cells("norm", 1, 4096), s), FACTORS) for s in (sheets, faster))
    np.testing.assert_allclose(slow, 2 * fast, **EXACT)


def test_numpy_xarray_and_pytensor_agree(sheets):
    import pytensor
    import pytensor.tensor as pt

    grid = cells(
        np.repeat(sorted(PASSES), 6), np.tile([1, 7, 64, 900, 8192, 32768], len(PASSES)), 5120
    )
    terms = light_terms(grid, sheets, regime="served")
    plain = arrays(grid, sheets)
    expected = light_time(plain, FACTORS)
    np.testing.assert_allclose(
        light_time(terms, FACTORS).transpose("shape", "sku").values, expected, **EXACT
    )
    names = sorted(FACTORS)
    inputs = [pt.scalar(name, dtype="float64") for name in names]
    compiled = pytensor.function(inputs, light_time(plain, dict(zip(names, inputs, strict=True))))
    np.testing.assert_allclose(compiled(*[FACTORS[name] for name in names]), expected, **EXACT)


def test_a_law_without_the_issue_roof_is_found_out(sheets):
    """The mistake of a plain roofline: on an A100 a norm of 8192 tokens is not bound by HBM."""
    terms = arrays(cells("norm", 8192, 4096), sheets.sel(sku=["A100-80GB-SXM"]))
    plain = light_time(terms, FACTORS | {"issue_cost": 1e-9})
    assert (light_time(terms, FACTORS) > 1.5 * plain).all()
