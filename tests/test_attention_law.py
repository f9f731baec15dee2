"""The attention laws: their limits, how time may and may not move, and two libraries at once."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr
from helpers import plain
from hypothesis import given, settings
from hypothesis import strategies as st

from m2bayes.mechanism.attention import (
    ELEMENT,
    EXPONENTIALS,
    TILE,
    floor_time,
    prefill_terms,
    prefill_time,
    settling,
)
from m2bayes.mechanism.decode_attention import (
    decode_branches,
    decode_gain,
    decode_steady,
    decode_terms,
    decode_time,
)

EXACT = {"rtol": 1e-12, "atol": 0}
quick = settings(deadline=None, max_examples=40)
PREFILL = {
    "launch_time": 9e-6,
    "kernel_latency": 3e-6,
    "eta_tensor": 0.8,
    "tile_overhead": 0.6,
    "padding": 126.0,
    "lone_tile": 0.75,
    "tail": 0.6,
    "wave_share": 0.3,
    "port_cost": 3.0,
    "key_cost": 7.5,
    "memory_cost": 0.35,
    "droop": 0.1,
}
DECODE = {
    "launch_time": 9e-6,
    "kernel_latency": 3e-6,
    "block_cost": 3000.0,
    "step_cost": 400.0,
    "eta_memory": 0.85,
    "ramp_time": 3e-6,
    "most_splits": 16.0,
    "combine_time": 3e-6,
    "group_cost": 0.3,
    "knee": 1.0,
}
LAWS = {
    "prefill": (prefill_terms, prefill_time, PREFILL),
    "decode": (decode_terms, decode_time, DECODE),
}
both = pytest.mark.parametrize("kind", LAWS)
SKUS = ("a100", "h100", "h200", "l40s", "b200", "rtx-pro-6000")
GROUPS = [(32, 8), (8, 2), (64, 8), (8, 1), (32, 32), (40, 40)]
regimes = st.sampled_from(["served", "benchmark"])
heads = st.sampled_from(GROUPS)


def cells(**sizes):
    """One sequence of one new token and the heads of Llama-3.1-8B, but for what is given."""
    given = {
        "batch": 1,
        "length": 1,
        "context": 0,
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
    } | sizes
    columns = np.broadcast_arrays(*np.atleast_1d(*given.values()))
    return xr.Dataset({k: ("shape", v.astype(float)) for k, v in zip(given, columns, strict=True)})


def arrays(kind, cells, sheets, regime):
    """Terms as plain arrays, dims (shape, sku)."""
    return plain(LAWS[kind][0](cells, sheets, regime=regime))


def time_of(kind, sheets, regime="served", changes=(), **sizes):
    terms = arrays(kind, cells(**sizes), sheets, regime)
    return LAWS[kind][1](terms, LAWS[kind][2] | dict(changes))


@pytest.fixture(scope="module")
def sheets(database):
    return database.datasheets(SKUS)


@pytest.fixture(scope="module")
def sheet(sheets):
    return sheets.sel(sku=["H100-80GB-SXM"])


# --- both kernels ----------------------------------------------------------------------------


@both
def test_a_served_kernel_has_no_floor_of_a_launch(sheets, kind):
    """Its launch is the host's; a lone kernel in a replayed graph has the floor instead."""
    slow = {"launch_time": 1.0}
    served = time_of(kind, sheets, batch=4, length=700)
    np.testing.assert_array_equal(time_of(kind, sheets, changes=slow, batch=4, length=700), served)
    late = time_of(kind, sheets, "benchmark", slow, batch=4, length=700)
    early = time_of(kind, sheets, "benchmark", batch=4, length=700)
    np.testing.assert_allclose(late - early, 1.0 - 9e-6, rtol=1e-9)


@both
def test_floor_by_hand(kind):
    assert floor_time({"launches": 1.0}, LAWS[kind][2]) == 9e-6
    assert floor_time({"launches": 0.0}, LAWS[kind][2]) == 3e-6


sizes = {
    "batch": st.integers(1, 256),
    "length": st.integers(2, 16384),
    "group": heads,
    "regime": regimes,
}


def one_more(kind, sheets, drawn, *, changes=(), **more):
    """Time of a drawn kernel, and of the same one with more of one size; dims (2, sku)."""
    asked = {k: v for k, v in drawn.items() if k not in ("group", "regime")}
    asked |= dict(zip(("heads", "kv_heads"), drawn["group"], strict=True))
    for size, step in more.items():
        asked[size] = np.array([0, step]) + asked.get(size, 0)
    return time_of(kind, sheets, drawn["regime"], changes, **asked)


@both
@given(st.fixed_dictionaries(sizes), st.integers(1, 64))
@quick
def test_more_sequences_never_take_less_time(sheets, kind, drawn, more):
    """Besides the kernel that combines splits, which is gone where each context is whole."""
    whole = {"combine_time": 0.0} if kind == "decode" else {}
    fewer, many = one_more(kind, sheets, drawn, batch=more, changes=whole)
    assert (many >= fewer * (1 - 1e-12)).all()


@both
@given(st.fixed_dictionaries(sizes), st.integers(1, 4096))
@quick
def test_longer_sequences_never_take_less_time(sheets, kind, drawn, more):
    """Of a prefill where waves do not count.

    One tile more may fill a wave that stood half empty: with waves, time falls by 2 % at most.
    """
    even = {"wave_share": 0.0} if kind == "prefill" else {}
    short, long = one_more(kind, sheets, drawn, length=more, changes=even)
    assert (long >= short * (1 - 1e-12)).all()


@given(st.fixed_dictionaries(sizes), st.integers(1, 127))
@quick
def test_a_longer_prefill_of_as_many_tiles_takes_longer(sheets, drawn, more):
    """Waves and all."""
    drawn["length"] = (drawn["length"] - 1) // 256 * 256 + 1
    short, long = one_more("prefill", sheets, drawn, length=more)
    assert (long > short).all()


@both
def test_a_law_that_falls_with_the_length_is_found_out(sheets, kind):
    """Negative control of the two properties above: time a token of length does fall."""
    lengths = np.array([100, 200])
    asked = time_of(kind, sheets, length=lengths) / lengths[:, None]
    assert not (asked[1] >= asked[0]).all()


@both
@pytest.mark.parametrize("regime", ["served", "benchmark"])
def test_numpy_and_pytensor_agree(sheets, kind, regime):
    """The same lines of code, once on arrays and once compiled, over sizes small and large."""
    _, law, numbers = LAWS[kind]
    shapes = cells(
        batch=[1, 1, 64, 512, 3], length=[2, 130, 700, 4096, 16384], heads=[32, 8, 40, 64, 8],
        kv_heads=[8, 1, 40, 8, 2], context=[0, 512, 0, 0, 3],
    )  # fmt: skip
    terms = arrays(kind, shapes, sheets, regime)
    by_numpy = law(terms, numbers)
    variables = {k: pt.dscalar(k) for k in numbers}
    symbolic = law({k: pt.as_tensor_variable(v) for k, v in terms.items()}, variables)
    compiled = pytensor.function(list(variables.values()), symbolic, mode="FAST_COMPILE")
    np.testing.assert_allclose(compiled(*numbers.values()), by_numpy, **EXACT)


@both
def test_cells_may_have_any_dims(sheets, kind):
    """A (workload, op) grid: every cell as it would be alone."""
    dims = ("workload", "op")
    sizes = {"batch": [[1, 8], [64, 3]], "length": [[1, 64], [512, 8192]]}
    rest = {"context": 0, "heads": 32, "kv_heads": 8, "head_dim": 128}
    grid = xr.Dataset(
        {k: (dims, v) for k, v in sizes.items()}
        | {k: (dims, np.full((2, 2), v)) for k, v in rest.items()}
    )
    terms, law, numbers = LAWS[kind]
    time = law(terms(grid, sheets, regime="served"), numbers)
    assert set(time.dims) == {*dims, "sku"}
    for i, j in np.ndindex(2, 2):
        alone = time_of(kind, sheets, **{k: v[i][j] for k, v in sizes.items()})
        np.testing.assert_allclose(time.isel(workload=i, op=j), alone[0], **EXACT)


# --- prefill ---------------------------------------------------------------------------------


def test_prefill_of_one_token_is_next_to_its_floor(sheets):
    """One query against one key is a tile of overhead and padding: microseconds, no more."""
    for regime, floor in (("served", 3e-6), ("benchmark", 9e-6)):
        time = time_of("prefill", sheets, regime, length=1)
        assert (time > floor).all()
        assert (time < floor + 3e-6).all()
        bare = {"tile_overhead": 0.0, "padding": 0.0}
        np.testing.assert_allclose(
            time_of("prefill", sheets, regime, bare, length=1), floor, rtol=0.01
        )
    assert (time_of("prefill", sheets, length=2048) > 5 * 3e-6).all()  # negative control


def rate_limit(sheets, batch, length, heads):
    """Causal products at the tensor rate they reach, and the exponentials that they do not hide."""
    scores = batch * heads * length**2 / 2
    flops = 4 * scores * 128
    power = (sheets["power_limit"] / sheets["peak_flop_rate"] / 0.7e-12) ** (1 / 3)
    tensor = flops / (PREFILL["eta_tensor"] * power * sheets["peak_flop_rate"])
    rate = sheets["sm_count"] * sheets["exp_per_clock"] * sheets["boost_clock"]
    return (tensor + EXPONENTIALS * scores / rate).values


def test_long_prefill_runs_at_the_rate_of_the_tensor_cores(sheets):
    """Work grows with the square of the length, everything else with less: all but 1 % is left."""
    settled = {"droop": 0.0}
    for length, near in ((2**14, 0.1), (2**17, 0.01)):
        time = time_of("prefill", sheets, changes=settled, batch=8, length=length)[0]
        ideal = rate_limit(sheets, 8, length, 32)
        assert (time > ideal).all()
        np.testing.assert_allclose(time, ideal, rtol=near)
    # mistakes that this value finds out: work without the causal half, no exponentials
    full = 2 * ideal
    bare = rate_limit(sheets.assign(exp_per_clock=np.inf), 8, length, 32)
    assert (np.abs(time / full - 1) > 0.4).all()
    assert (np.abs(time / bare - 1) > 0.05).all()


def test_efficiency_of_prefill_rises_with_the_length(sheets):
    """The source's saturation at c_attn tokens, here from padding and overhead of a tile."""
    lengths = np.array([128, 512, 2048, 8192, 32768])
    time = time_of("prefill", sheets, changes={"wave_share": 0.0}, batch=32, length=lengths)
    ideal = np.stack([rate_limit(sheets, 32, n, 32) for n in lengths])
    assert (np.diff(ideal / time, axis=0) > 0).all()
    assert (ideal / time < 1).all()


def test_a_settled_clock_slows_the_work_and_not_the_floor(sheet):
    cold, hot = (
        time_of("prefill", sheet, changes={"droop": d}, batch=8, length=2**17).item()
        for d in (0.0, 0.1)
    )
    np.testing.assert_allclose(hot / cold, np.exp(0.1), rtol=5e-3)
    np.testing.assert_allclose(
        time_of("prefill", sheet, "benchmark", {"droop": 0.1}, length=16).item(),
        time_of("prefill", sheet, "benchmark", {"droop": 0.0}, length=16).item(),
        rtol=1e-3,
    )


def test_settling_by_hand():
    """Thirty milliseconds are half of it; e-fold in log time is 1 / 0.7 in the logit."""
    odds = np.exp(1 / 0.7)
    np.testing.assert_allclose(settling(0.03 * np.e), odds / (1 + odds), **EXACT)
    assert settling(0.03) == 0.5
    assert settling(np.inf) == 1.0


def test_half_the_heads_are_half_the_work(sheets):
    """At large S, where launch and tails are nothing."""
    sizes = {"batch": 16, "length": 2**15}
    whole, half = (time_of("prefill", sheets, heads=h, kv_heads=h // 4, **sizes) for h in (32, 16))
    np.testing.assert_allclose(half / whole, 0.5, rtol=5e-3)
    short = {"batch": 1, "length": 64}
    whole, half = (time_of("prefill", sheets, heads=h, kv_heads=h // 4, **short) for h in (32, 16))
    assert (half / whole > 0.8).all()  # negative control: a short one is not work


@given(st.fixed_dictionaries(sizes | {"context": st.integers(0, 8192)}), st.integers(1, 8192))
@quick
def test_cached_context_adds_work_and_bytes(sheets, drawn, more):
    whole = {k: drawn[k] for k in ("batch", "length")}
    context = [drawn["context"], drawn["context"] + more]
    terms = arrays("prefill", cells(context=context, **whole), sheets, drawn["regime"])
    for name in ("pairs", "key_bytes", "tile_keys"):
        assert (terms[name][1] > terms[name][0]).all(), name
    for name in ("query_bytes", "tiles", "padding_work", "padding_tile", "tile_queries"):
        np.testing.assert_array_equal(terms[name][1], terms[name][0], err_msg=name)
    less, most = one_more("prefill", sheets, drawn, context=more)
    assert (most > less).all()


def test_terms_of_prefill_by_hand(sheet):
    """H100, 4 sequences of 1000 new and 500 cached tokens, 32 and 8 heads: 8 tiles of 128."""
    terms = arrays("prefill", cells(batch=4, length=1000, context=500), sheet, "served")
    sms, boost = sheet["sm_count"].item(), sheet["boost_clock"].item()
    one = {name: value.item() for name, value in terms.items()}
    blocks, share = TILE**2, 4 * 32 / sms
    np.testing.assert_allclose(one["pairs"], share * 1000 * (500 + 500) / blocks, **EXACT)
    np.testing.assert_allclose(one["tiles"], share * 8, **EXACT)
    np.testing.assert_allclose(one["wave"], np.log(np.ceil(share * 8) / (share * 8)), **EXACT)
    np.testing.assert_allclose(one["tile_keys"], 128 * 1500 / blocks, **EXACT)
    np.testing.assert_allclose(one["query_bytes"], 2 * ELEMENT * 128 * 4 * 1000 * 32, **EXACT)
    np.testing.assert_allclose(one["key_bytes"], 2 * ELEMENT * 128 * 4 * 1500 * 8, **EXACT)
    np.testing.assert_allclose(one["sm_rate"], 64 * sms * boost, **EXACT)
    np.testing.assert_allclose(
        one["block_compute"], 4 * blocks * 128 * sms / sheet["peak_flop_rate"].item(), **EXACT
    )
    np.testing.assert_allclose(one["block_exponential"], 0.5 * blocks / (16 * boost), **EXACT)
    per_rate = sheet["power_limit"].item() / sheet["peak_flop_rate"].item()
    np.testing.assert_allclose(one["power"], (per_rate / 0.7e-12) ** (1 / 3), **EXACT)
    assert one["lone_share"] == 1.0  # Hopper's 4096 FLOP/clock are the reference


def test_activations_and_the_copy_in_the_cache_have_to_fit_into_l2(sheet):
    """Half of the edge's weight where queries, outputs, keys, values and their copy fill L2."""
    l2 = sheet["l2"].item()
    tokens = l2 / (ELEMENT * 128 * (2 * 32 + 4 * 8))
    cold = [
        arrays("prefill", cells(batch=tokens / 512 * part, length=512), sheet, "served")["cold"]
        for part in (0.5, 1.0, 2.0)
    ]
    np.testing.assert_allclose(np.ravel(cold), [1 / 257, 0.5, 256 / 257], rtol=1e-9)


def test_power_slows_busy_sms_and_not_a_lone_tile(sheet):
    """Of a card of half the power the busy clock is the cube root of that, one tile's the same."""
    nothing = ("droop", "kernel_latency", "port_cost", "key_cost", "memory_cost", "tail")
    factors = PREFILL | dict.fromkeys(nothing, 0.0)
    half = sheet.assign(power_limit=sheet["power_limit"] / 2)
    one, many = ({"heads": 1, "kv_heads": 1, "length": 128}, {"batch": 256, "length": 8192})
    for sizes, slower in ((one, 1.0), (many, 2 ** (1 / 3))):
        both = [arrays("prefill", cells(**sizes), s, "served") for s in (sheet, half)]
        full, slow = (
            prefill_time(terms | {"block_exponential": 0.0}, factors).item() for terms in both
        )
        np.testing.assert_allclose(slow / full, slower, rtol=1e-6)


def test_more_power_than_any_measured_card_has_buys_no_clock(sheets):
    more = sheets.assign(power_limit=1e6)
    own, most = (arrays("prefill", cells(), s, "served")["power"] for s in (sheets, more))
    np.testing.assert_allclose(most, (1.3 / 0.7) ** (1 / 3), **EXACT)
    assert (own < most).all()


def test_wide_tensor_cores_take_two_tiles_at_once(sheets):
    terms = arrays("prefill", cells(length=300), sheets, "served")
    queries = dict(zip(sheets["architecture"].values, terms["tile_queries"][0], strict=True))
    assert queries["Hopper"] == 1
    assert {a for a, q in queries.items() if q == 2} == {"Blackwell"}


def test_prefill_time_by_hand():
    """Work of 11 blocks of 3.5 s with all SMs busy, a tile of 12 of 2 s alone, sharpness 6."""
    terms = {
        "block_compute": 1.5,
        "block_exponential": 0.5,
        "pairs": 3.0,
        "padding_work": 0.5,
        "tiles": 2.0,
        "wave": np.log(2.0),
        "tile_keys": 4.0,
        "padding_tile": 1.0,
        "tile_queries": 1.0,
        "power": 0.5,
        "lone_share": 2.0,
        "query_bytes": 30.0,
        "key_bytes": 10.0,
        "cold": 0.5,
        "sm_rate": 10.0,
        "peak_bandwidth": 5.0,
        "launches": 1.0,
        "settled": np.inf,
    }
    factors = {
        "launch_time": 7.0,
        "kernel_latency": 100.0,
        "eta_tensor": 1.0,
        "tile_overhead": 1.0,
        "padding": 1.0,
        "lone_tile": 1.0,
        "tail": 0.5,
        "wave_share": 1.0,
        "port_cost": 2.0,
        "key_cost": 3.0,
        "memory_cost": 0.25,
        "droop": np.log(1.5),
    }
    work, tile = 3.5 * (3 + 0.5 + 2) * 2, 2 * 2 * (4 + 1 + 1)
    blocks = (tile**6 + (work + 0.5 * tile) ** 6) ** (1 / 6)
    by_hand = 7 + 1.5 * blocks + (2 * 30 + 3 * 10) / 10 + 0.25 * 0.5 * 40 / 5
    np.testing.assert_allclose(prefill_time(terms, factors), by_hand, **EXACT)
    # mistakes that this value finds out: a sum in place of the knee, a tile that waits for nobody
    assert abs(7 + 1.5 * (work + 1.5 * tile) + 9 + 1 - by_hand) > 1
    assert abs(7 + 1.5 * (tile**6 + work**6) ** (1 / 6) + 9 + 1 - by_hand) > 1


# --- decode ----------------------------------------------------------------------------------


def test_a_large_cache_is_read_at_the_bandwidth(sheets):
    """Two thousand long sequences: traffic over the share of the bandwidth, all but a few %."""
    changes = {"block_cost": 1.0, "step_cost": 1.0, "knee": 5.0}
    time = time_of("decode", sheets, changes=changes, batch=2048, length=8192)[0]
    cache = 2 * 2.0 * 128 * 2048 * 8 * 8192
    ideal = cache / (0.85 * sheets["peak_bandwidth"].values)
    np.testing.assert_allclose(time, ideal, rtol=0.01)
    # mistakes that this value finds out: keys without values, the datasheet's whole bandwidth
    assert (np.abs(time / (ideal / 2) - 1) > 0.5).all()
    assert (np.abs(time / (ideal * 0.85) - 1) > 0.1).all()


def test_a_warm_cache_is_read_faster_than_a_cold_one(sheets):
    """Of a sixteenth of the smallest L2 nearly all is warm; of a hundred times the largest none."""
    bare = {"launch_time": 0.0, "kernel_latency": 0.0, "combine_time": 0.0}
    bare |= {"block_cost": 1.0, "step_cost": 1.0, "ramp_time": 0.0}
    one = 4 * 128 * 8 * 64  # byte of the cache of a sequence of 64 tokens
    l2 = sheets["l2"].values
    batch = np.array([l2.min() // 16 // one, 100 * l2.max() // one])
    warm, cold = (
        time_of("decode", sheets, regime, bare, batch=batch, length=64)
        for regime in ("benchmark", "served")
    )
    assert (warm[0] < 0.5 * cold[0]).all()
    np.testing.assert_allclose(warm[1], cold[1], rtol=1e-6)


@given(heads, st.integers(1, 2048), st.integers(2, 131072))
@quick
def test_a_replay_gains_what_the_gain_says_and_never_loses(sheets, group, batch, length):
    sizes = cells(batch=batch, length=length, heads=group[0], kv_heads=group[1])
    warm = arrays("decode", sizes, sheets, "benchmark")
    cold = arrays("decode", sizes, sheets, "served") | {"launches": warm["launches"]}
    gain = decode_gain(warm, DECODE)
    assert (gain >= -1e-12).all()
    log_ratio = np.log(decode_time(cold, DECODE) / decode_time(warm, DECODE))
    np.testing.assert_allclose(gain, log_ratio, rtol=1e-9, atol=1e-12)


def test_there_is_no_gain_where_the_cache_is_cold(sheets):
    sizes = cells(batch=[1, 64, 2048], length=[131072, 2048, 2])
    served = arrays("decode", sizes, sheets, "served")
    assert (decode_gain(served, DECODE) == 0).all()
    replayed = arrays("decode", sizes, sheets, "benchmark")
    assert (decode_gain(replayed, DECODE)[2] > 0).any()  # negative control


def test_one_long_sequence_is_a_serial_chain(sheet):
    """Alone on the card, a split context: time grows with the steps of 128 tokens.

    With 8 KV heads on 132 SMs 16.5 splits are on offer, of which this kernel takes but one.
    """
    lengths = np.array([2**14, 2**15, 2**17])
    changes = {"block_cost": 1e-6, "step_cost": 500.0, "eta_memory": 1e6, "most_splits": 1.0}
    changes |= {"knee": 30.0, "ramp_time": 0.0}  # issue is a sixteenth of the chain
    terms = arrays("decode", cells(length=lengths), sheet, "served")
    _, _, chain = decode_branches(terms, DECODE | changes)
    np.testing.assert_allclose(terms["steps"][:, 0], lengths / TILE, **EXACT)
    np.testing.assert_allclose(terms["splits"], 132 / 8, **EXACT)
    clock = sheet["boost_clock"].item()
    rounded = (1 + (8 / 132) ** 3) ** (1 / 3)
    np.testing.assert_allclose(chain[:, 0], 500.0 * lengths / TILE / clock * rounded, rtol=1e-9)
    time = decode_time(terms, DECODE | changes | {"combine_time": 0.0, "kernel_latency": 0.0})
    np.testing.assert_allclose(time, chain, rtol=1e-6)


def test_steps_over_splits_are_the_chain(sheet):
    """Where a kernel would take more splits than there are, time is that of steps over splits."""
    batch = np.array([1, 2, 4, 8, 16, 17, 32, 512])
    terms = arrays("decode", cells(batch=batch, length=2**14), sheet, "served")
    splits = np.maximum(132 / (8 * batch), 1)
    np.testing.assert_allclose(terms["splits"][:, 0], splits, **EXACT)
    many, few = (decode_branches(terms, DECODE | {"most_splits": s})[2][:, 0] for s in (1e5, 1e-3))
    np.testing.assert_allclose(many * splits, many[0] * splits[0], rtol=1e-9)
    np.testing.assert_allclose(few, few[0], rtol=1e-9)  # who never splits does not see the batch
    assert many[-1] == many[-2] > 10 * many[0]  # nor does who no longer can


def test_busy_sms_leave_fewer_splits(sheet):
    """With 8 splits at most: the more sequences, the longer the chain, between the two limits."""
    batch = np.array([1, 2, 4, 8, 16, 32, 512])
    terms = arrays("decode", cells(batch=batch, length=2**14), sheet, "served")
    chain = decode_branches(terms, DECODE | {"most_splits": 8.0})[2][:, 0]
    assert (np.diff(chain[:5]) > 0).all()
    share = np.maximum(1 / 8, 1 / terms["splits"][:, 0])
    hard = 400.0 * 128 * share / sheet["boost_clock"].item()
    assert (chain >= hard).all()
    assert (chain <= hard * 2 ** (1 / 3) * (1 + 1e-12)).all()
    ignorant = chain[0] * np.ones(len(batch))  # a mistake: splits without regard to the batch
    assert np.abs(chain / ignorant - 1).max() > 1


def test_queries_that_share_a_head_cost_what_the_group_cost_says(sheet):
    """Issue time of 16 queries a head over that of one: (1 + g) / (1 + g / 16)."""
    terms = arrays(
        "decode", cells(batch=64, heads=[16, 1], kv_heads=1, length=999), sheet, "served"
    )
    for cost in (0.0, 0.3, 2.0):
        issue = decode_branches(terms, DECODE | {"group_cost": cost})[0][:, 0]
        np.testing.assert_allclose(issue[0] / issue[1], (1 + cost) / (1 + cost / 16), **EXACT)


def test_decode_time_by_hand():
    """Branches of 3, 4 and 12 s at sharpness 2: 13 s, besides floor and combining."""
    terms = {
        "blocks": 2.0,
        "steps": 4.0,
        "splits": 1 / 15,
        "group": 0.5,
        "long": 0.5,
        "sparse": 0.5,
        "clock": 10.0,
        "hbm_time": 1.5,
        "cold": 1.0,
        "launches": 1.0,
    }
    factors = {
        "launch_time": 7.0,
        "kernel_latency": 100.0,
        "combine_time": 8.0,
        "block_cost": 2.0,
        "step_cost": 2.0,
        "group_cost": 1.0,
        "eta_memory": 0.5,
        "ramp_time": 1.0,
        "most_splits": 1e6,
        "knee": 0.2,
    }
    issue, memory, chain = decode_branches(terms, factors)
    np.testing.assert_allclose([issue, memory, chain], [3.0, 4.0, 12.0], **EXACT)
    np.testing.assert_allclose(decode_time(terms, factors), 7 + 2 + 13, rtol=1e-11)
    step = terms | {"launches": 0.0}
    np.testing.assert_allclose(decode_branches(step, factors), [3.0, 3.0, 12.0], **EXACT)
    # a mistake that this value finds out: the knee used as the sharpness itself
    assert abs(7 + 2 + (3**0.2 + 4**0.2 + 12**0.2) ** 5 - 22) > 1


def test_the_last_wave_of_blocks_takes_as_long_as_the_others(sheet):
    """132 SMs, 8 blocks a sequence: 128 are less than a wave, 136 ask for two, 264 fill them."""
    batch = np.array([8, 16, 17, 33, 34])
    terms = arrays("decode", cells(batch=batch, length=999), sheet, "served")
    np.testing.assert_allclose(terms["blocks"][:, 0], [64 / 132, 128 / 132, 2, 2, 3], **EXACT)
    issue = decode_branches(terms, DECODE)[0][:, 0]
    np.testing.assert_allclose(issue / issue[3], terms["blocks"][:, 0] / 2, rtol=1e-9)
    np.testing.assert_allclose(terms["splits"][2:], 1.0, **EXACT)  # no SM is idle


def test_what_l2_holds_needs_no_ramp(sheets):
    """The ramp is that of a cold lone kernel: in a served step, the kernel's latency holds it."""
    sizes = cells(batch=1, length=[128, 131072], heads=32, kv_heads=32)
    change = {"ramp_time": DECODE["ramp_time"] + 5e-6}
    added = {}
    for regime in ("served", "benchmark"):
        terms = arrays("decode", sizes, sheets, regime)
        added[regime] = decode_branches(terms, DECODE | change)[1]
        added[regime] = added[regime] - decode_branches(terms, DECODE)[1]
    assert (added["served"] == 0).all()
    assert (added["benchmark"][0] < 1e-12).all()
    np.testing.assert_allclose(added["benchmark"][1], 5e-6, rtol=1e-3)


def test_steady_time_is_that_of_the_cold_traffic_at_the_datasheets_bandwidth(sheet):
    sizes = cells(batch=64, length=8192)
    served = arrays("decode", sizes, sheet, "served")
    traffic = 64 * 128 * (2 * 2 * 8 * 8192 + 2 * 2 * 32)
    np.testing.assert_allclose(decode_steady(served), traffic / sheet["peak_bandwidth"].item())
    warm = arrays("decode", cells(batch=1, length=128), sheet, "benchmark")
    assert (decode_steady(warm) < 1e-12).all()


@given(heads, st.integers(1, 2048), st.integers(2, 131072))
@quick
def test_decode_is_no_faster_than_any_of_its_branches(sheets, group, batch, length):
    sizes = cells(batch=batch, length=length, heads=group[0], kv_heads=group[1])
    terms = arrays("decode", sizes, sheets, "served")
    time = decode_time(terms, DECODE)
    for branch in decode_branches(terms, DECODE):
        assert (time >= branch).all()
