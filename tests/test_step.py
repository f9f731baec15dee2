"""A whole step from made-up posteriors: its limits, how it may move, what is drawn once."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import xarray as xr

from m2bayes._random import labelled_rng
from m2bayes.discrepancy import unit_fields
from m2bayes.errors import UnknownNameError
from m2bayes.mechanism.host import kernel_count
from m2bayes.mechanism.power import capped_clock
from m2bayes.operators import operators
from m2bayes.predictive import backends, own_seed, predict
from m2bayes.step import PARTS, aligned, capped_share, host_times, operator_times
from m2bayes.workload import parse_workload

CHAINS, DRAWS = 2, 100
CARDS = ("A100-80GB-SXM", "H100-80GB-SXM", "H200-141GB-SXM")
ASKED = (*CARDS, "L40S-48GB-PCIe")  # one that nobody measured
DECODE = "decode:batch=64,context=2048"
PREFILL = "prefill:tokens=512"
MIXED = "mixed:prefill=512,batch=64,context=2048"
EXACT = {"rtol": 1e-12, "atol": 0}
# part: model, variants of its kernels, and the centre of each factor on its own scale
MADE_UP = {
    "attention_prefill": (
        "hier_attention_prefill",
        ["sglang", "vllm"],
        {
            "launch_time": 9e-6, "kernel_latency": 3e-6, "eta_tensor": 0.8, "tile_overhead": 0.6,
            "padding": 126.0, "lone_tile": 0.75, "tail": 0.6, "wave_share": 0.3, "port_cost": 3.0,
            "key_cost": 7.5, "memory_cost": 0.35, "droop": 0.1,
        },
    ),
    "attention_decode": (
        "hier_attention_decode",
        ["sglang/gqa", "vllm/gqa"],
        {
            "launch_time": 9e-6, "kernel_latency": 3e-6, "block_cost": 3000.0, "step_cost": 400.0,
            "eta_memory": 0.85, "ramp_time": 3e-6,
            "most_splits": 16.0, "combine_time": 3e-6, "group_cost": 0.3, "knee": 1.0,
        },
    ),
    "light": (
        "hier_light",
        ["activation", "embedding", "kv_write", "norm", "rope"],
        {
            "floor": 2e-6, "issue_cost": 0.17, "cold_wait": 0.2, "slot_odds": 1.5,
            "lane_odds": 1.0, "eta_memory": 0.87, "floor_knee": 1.0, "roof_knee": 1.0,
        },
    ),
    "allreduce": (
        "hier_allreduce",
        ["nccl", "vllm"],
        {"start_time": 6e-6, "eta_link": 0.6, "start_growth": 0.4, "contention": 0.3},
    ),
    "host": (
        "hier_host",
        ["vllm"],
        {
            "eager_launch": 40e-6, "graph_launch": 0.8e-6, "sequence_time": 20e-6,
            "sampling_time": 400e-6,
        },
    ),
}  # fmt: skip
ERRORS = {"log_sigma_cell": 0.06, "log_sigma_time": 3e-7, "log_sigma_run": 0.01}


def noise(*labels, shape=(CHAINS, DRAWS)):
    return labelled_rng(5, *labels).standard_normal(shape)


def made_up(card, variants, centres):
    """A posterior whose factors all units share, but for the first, which each has of its own."""
    assert set(centres) == {factor["name"] for factor in card.factors}
    units = sorted(f"{sku}/{variant}" for sku in CARDS for variant in variants)
    dims, draws = ("chain", "draw"), {}
    for i, factor in enumerate(card.factors):
        name, centre = factor["name"], centres[factor["name"]]
        if factor["link"] == "log":
            name, centre = f"log_{name}", np.log(centre)
        draws[f"{name}_mean"] = (dims, centre + 0.05 * noise(card.name, name))
        if i == 0:
            draws[f"{name}_sku_sd"] = (dims, np.full((CHAINS, DRAWS), 0.1))
            own = 0.1 * noise(card.name, name, "own", shape=len(units))
            draws[name] = ((*dims, "sku"), centre + own + np.zeros((CHAINS, DRAWS, 1)))
    for name, size in ERRORS.items():
        draws[f"{name}_mean"] = (dims, np.full((CHAINS, DRAWS), np.log(size)))
    coords = {
        "chain": range(CHAINS),
        "draw": range(DRAWS),
        "sku": units,
        "architecture": ["none of them"],
    }
    facts = {"law": card.law, "dtype": "bf16", "name": f"syn-{card.name}"}
    facts["factors"] = json.dumps(card.factors)
    return xr.Dataset(draws, coords, facts)


@pytest.fixture(scope="module")
def parts(database, synthetic_posterior):
    """Posteriors of all parts, 2 chains of 100 draws, made up."""
    slope = xr.DataArray(1 / 3 + 0.05 * noise("cap_slope"), dims=("chain", "draw"))
    held = {"gemm": synthetic_posterior.assign(cap_slope=slope)}
    for part, (name, variants, centres) in MADE_UP.items():
        held[part] = made_up(database.model(name), variants, centres)
    assert tuple(held) == PARTS
    return held


@pytest.fixture(scope="module")
def sheets(database):
    return database.datasheets(ASKED)


@pytest.fixture(scope="module")
def llm(database):
    return database.llm("llama-3.1-8b")


def changed(parts, part, **factors):
    """The parts with some factors of one of them fixed for all units, on their own scale."""
    posterior = parts[part]
    for name, value in factors.items():
        label = f"log_{name}"
        gone = [v for v in (label, f"{label}_sku_sd", f"{label}_architecture") if v in posterior]
        posterior = posterior.drop_vars(gone)
        centre = xr.full_like(posterior[f"{label}_mean"], np.log(value))
        posterior = posterior.assign({f"{label}_mean": centre})
    return parts | {part: posterior}


def sure(parts):
    """The parts without discrepancy: what is left moves as the laws do."""
    for part in PARTS:
        parts = changed(parts, part, sigma_cell=1e-9, sigma_time=1e-15)
    return parts


def times(parts, llm, sheets, *specs, **asked):
    return operator_times(parts, llm, [parse_workload(s) for s in specs], sheets, **asked)


def blocks(time):
    return time.sel(op=time["op"] != "host").sum("op")


def host_of(parts, llm, sheets, *specs, **asked):
    """Launches and tail of each step [s]."""
    graphs, tp = asked.pop("graphs", True), asked.pop("tp", 1)
    cells = operators(llm, [parse_workload(s) for s in specs], tp=tp, graphs=graphs)["host"]
    return host_times(parts["host"], cells, sheets, asked.pop("engine", "any"), 0)


# --- what comes out --------------------------------------------------------------------------


def test_dims_and_labels(parts, llm, sheets):
    time = times(parts, llm, sheets, DECODE, MIXED, PREFILL)
    assert time.dims == ("chain", "draw", "sku", "workload", "op")
    assert time.shape[:2] == (CHAINS, DRAWS)
    assert time["sku"].values.tolist() == list(ASKED)
    assert time["workload"].values.tolist() == [DECODE, MIXED, PREFILL]
    assert time["op"].values.tolist() == [
        "qkv", "o", "gate_up", "down", "lm_head", "attention_prefill", "attention_decode",
        "norm", "rope", "kv_write", "activation", "embedding", "host",
    ]  # fmt: skip
    assert time.attrs["units"] == "s"
    assert np.isfinite(time.values).all()
    assert (time.values >= 0).all()


def test_a_kernel_that_does_not_run_takes_no_time(parts, llm, sheets):
    time = times(parts, llm, sheets, DECODE, MIXED, PREFILL)
    assert (time.sel(op="attention_prefill", workload=DECODE) == 0).all()
    assert (time.sel(op="attention_decode", workload=PREFILL) == 0).all()
    assert (time.sel(op=["attention_prefill", "attention_decode"], workload=MIXED) > 0).all()
    assert "attention_prefill" not in times(parts, llm, sheets, DECODE)["op"]


def test_there_is_no_allreduce_on_one_gpu(parts, llm, sheets):
    assert "all_reduce" not in times(parts, llm, sheets, DECODE, tp=1)["op"]
    assert (times(parts, llm, sheets, DECODE, tp=4).sel(op="all_reduce") > 0).all()


@pytest.mark.parametrize("tp", [1, 4])
def test_a_step_is_the_equation_of_its_parts(parts, llm, sheets, tp):
    """max(blocks, launches) + tail, draw by draw."""
    time = times(parts, llm, sheets, DECODE, MIXED, tp=tp)
    launches, tail = host_of(parts, llm, sheets, DECODE, MIXED, tp=tp)
    expected = np.maximum(blocks(time), launches) + tail
    xr.testing.assert_allclose(
        time.sum("op").drop_attrs(), expected.transpose(*time.dims[:-1]), rtol=1e-12
    )


# --- limits ----------------------------------------------------------------------------------


def test_a_step_with_little_work_is_bound_by_its_host(parts, llm, sheets):
    """Eagerly launched, a kernel each 10 ms: time is their count, whatever the GPU does."""
    slow = changed(parts, "host", eager_launch=10e-3, sequence_time=20e-6, sampling_time=1e-9)
    specs = [f"decode:batch={n},context=16" for n in (1, 2, 64)]
    time = times(slow, llm, sheets, *specs, graphs=False).sum("op")
    kernels = kernel_count(llm.layers, shared=False)
    expected = kernels * 10e-3 + 20e-6 * np.array([1, 2, 64])
    np.testing.assert_allclose(time, np.broadcast_to(expected, time.shape), rtol=1e-6)
    # negative control: as a captured graph the same step is bound by its kernels
    replayed = times(slow, llm, sheets, *specs)
    assert (replayed.sum("op") < 0.1 * time).all()


def test_a_step_whose_launches_are_free_takes_its_kernels_and_the_tail(parts, llm, sheets):
    free = changed(parts, "host", eager_launch=1e-15, graph_launch=1e-15)
    for graphs in (True, False):
        time = times(free, llm, sheets, DECODE, MIXED, graphs=graphs)
        _, tail = host_of(free, llm, sheets, DECODE, MIXED, graphs=graphs)
        tail = tail.transpose(*time.dims[:-1])
        np.testing.assert_allclose(time.sel(op="host"), tail, rtol=1e-9)
    fast, spec = sheets.sel(sku=["H200-141GB-SXM"]), "decode:batch=1,context=16"
    bound = times(parts, llm, fast, spec, graphs=False)
    _, tail = host_of(parts, llm, fast, spec, graphs=False)
    assert (bound.sel(op="host") > 2 * tail).mean() > 0.9  # negative control


@pytest.mark.parametrize(
    "specs",
    [
        [f"decode:batch={n},context=2048" for n in (1, 4, 16, 64, 256)],
        [f"decode:batch=16,context={n}" for n in (16, 256, 4096, 65536)],
        [f"prefill:tokens={n}" for n in (16, 64, 256, 1024, 4096, 16384)],
        [f"prefill:tokens=512,context={n}" for n in (1, 1024, 8192, 65536)],
        [f"mixed:prefill={n},batch=16,context=2048" for n in (16, 128, 1024, 8192)],
    ],
)
def test_more_of_anything_takes_longer(parts, llm, sheets, specs):
    """In the median over the draws, with and without the discrepancy of shapes."""
    for held in (parts, sure(parts)):
        time = times(held, llm, sheets, *specs)
        for whole in (time.sum("op"), blocks(time)):
            median = whole.median(("chain", "draw")).transpose("sku", "workload").values
            assert (np.diff(median, axis=1) > 0).all()
    assert (np.diff(median[:, ::-1], axis=1) < 0).all()  # and backwards it would be found out


def test_gpus_that_share_an_llm_are_faster_where_there_is_much_to_share(parts, llm, sheets):
    one, four = (
        blocks(times(parts, llm, sheets, "prefill:tokens=8192", tp=tp)).sel(sku=list(CARDS))
        for tp in (1, 4)
    )
    assert (four < one).mean() > 0.99
    assert (four > one / 4).mean() > 0.99


# --- one shape, one time ---------------------------------------------------------------------


def test_doubled_layers_double_what_belongs_to_a_layer(parts, llm, sheets):
    """Bit for bit: all layers run the same kernels, and each is drawn once."""
    once, twice = (
        times(parts, replace(llm, layers=layers), sheets, MIXED, tp=4) for layers in (32, 64)
    )
    constant = ["lm_head", "embedding"]
    np.testing.assert_array_equal(once.sel(op=constant), twice.sel(op=constant))
    rest = [op for op in once["op"].values if op not in (*constant, "norm", "host")]
    assert len(rest) == 10
    np.testing.assert_array_equal(2 * once.sel(op=rest), twice.sel(op=rest))
    norm = once.sel(op="norm") / 65 * 129
    np.testing.assert_allclose(norm, twice.sel(op="norm"), **EXACT)


def test_errors_of_layers_do_not_average_out(parts, llm, sheets):
    """Negative control: if each layer had a draw of its own, 32 layers would spread less by √32."""
    time = times(parts, llm, sheets, MIXED).sel(op="qkv")
    spread = np.log(time).std(("chain", "draw"))
    one = times(parts, replace(llm, layers=1), sheets, MIXED).sel(op="qkv")
    np.testing.assert_allclose(spread, np.log(one).std(("chain", "draw")), rtol=1e-9)
    assert (spread > 0.06).all()


def test_a_shape_takes_the_same_time_in_every_workload(parts, llm, sheets):
    """64 new tokens, be they decoded or of a prompt; a prompt of 512, alone or in a mixed step."""
    specs = [DECODE, "prefill:tokens=64", PREFILL, MIXED]
    time = times(parts, llm, sheets, *specs)
    shared = ["qkv", "o", "gate_up", "down", "norm", "rope", "kv_write", "activation", "embedding"]
    np.testing.assert_array_equal(
        time.sel(op=shared, workload=DECODE), time.sel(op=shared, workload="prefill:tokens=64")
    )
    for op, alone in (("attention_prefill", PREFILL), ("attention_decode", DECODE)):
        np.testing.assert_array_equal(
            time.sel(op=op, workload=MIXED), time.sel(op=op, workload=alone)
        )
    # negative control: another number of tokens is another shape
    assert (time.sel(op="qkv", workload=PREFILL) != time.sel(op="qkv", workload=MIXED)).all()


def test_two_matrices_of_one_shape_take_the_same_time(parts, llm, sheets):
    """An LLM whose MLP is as wide as the model, without a gate: up and down are one kernel."""
    square = replace(llm, intermediate=llm.hidden, gated=False)
    time = times(parts, square, sheets, DECODE)
    for op in ("o", "down"):
        np.testing.assert_array_equal(time.sel(op="gate_up"), time.sel(op=op))


def test_what_else_is_asked_does_not_change_a_draw(parts, llm, sheets):
    """Neither other workloads nor other SKUs, nor their order."""
    whole = times(parts, llm, sheets, DECODE, MIXED, PREFILL, tp=4)
    alone = times(parts, llm, sheets, MIXED, tp=4).sel(workload=MIXED)
    np.testing.assert_array_equal(whole.sel(workload=MIXED, op=alone["op"]), alone)
    for order in (list(ASKED[::-1]), ["L40S-48GB-PCIe"], ["H200-141GB-SXM", "A100-80GB-SXM"]):
        some = times(parts, llm, sheets.sel(sku=order), DECODE, MIXED, PREFILL, tp=4)
        assert some["sku"].values.tolist() == order
        np.testing.assert_array_equal(some, whole.sel(sku=order))


def test_another_seed_gives_other_draws(parts, llm, sheets):
    one, same, other = (times(parts, llm, sheets, DECODE, seed=s) for s in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert (one.sel(op="qkv") != other.sel(op="qkv")).all()


# --- engines ---------------------------------------------------------------------------------


def test_any_backend_is_one_for_all_kernels_of_a_draw(parts, llm, sheets):
    """Each draw takes vLLM's or sglang's attention, for prefill and decode and all SKUs alike."""
    ops = ["attention_prefill", "attention_decode"]
    mixed, sglang, vllm = (
        times(parts, llm, sheets, MIXED, backend=b).sel(op=ops) for b in ("any", "sglang", "vllm")
    )
    # sums of some draws alone may round otherwise
    is_vllm, is_sglang = (
        (abs(mixed / own - 1) < 1e-4).all(("sku", "workload", "op")) for own in (vllm, sglang)
    )
    assert (is_vllm != is_sglang).all()
    assert 0.3 < is_vllm.mean() < 0.7


def test_kernels_of_two_laws_draw_their_discrepancies_apart(parts):
    """A unit bears one name in both, and the first size of both is the same."""
    one, other = parts["attention_prefill"], parts["allreduce"]
    seeds = [own_seed(posterior, 0) for posterior in (one, other)]
    assert len({0, *seeds}) == 3
    shape, lengths = np.array([[8.0, 8.0, 0.0]]), (2.0, 2.0, 0.5)
    unit = {"sku": "A/vllm", "architecture": "wgmma/vllm", "draws": 2000, "lengths": lengths}
    apart = [unit_fields(shape, seed=seed, **unit)[0][:, 0] for seed in seeds]
    assert abs(np.corrcoef(apart)[0, 1]) < 4 / np.sqrt(2000)
    # negative control: with the seed itself, one would be the other
    alike = [unit_fields(shape, seed=0, **unit)[0][:, 0] for _ in seeds]
    assert np.corrcoef(alike)[0, 1] > 0.999


def test_an_unknown_backend_is_refused(parts, llm, sheets):
    with pytest.raises(UnknownNameError, match="unknown backend 'vlm'; did you mean vllm"):
        times(parts, llm, sheets, DECODE, backend="vlm")


def test_a_host_may_be_another_than_that_of_the_kernels(parts, llm, sheets):
    """By default the backend's; one that nobody measured is drawn from the population."""
    held = changed(parts, "host", sampling_time=1e-9)
    card = sheets.sel(sku=["H100-80GB-SXM"])
    asked = {"backend": "sglang", "graphs": False}
    by_engine = {e: times(held, llm, card, DECODE, engine=e, **asked) for e in ("vllm", "sglang")}
    by_default = times(held, llm, card, DECODE, **asked)
    np.testing.assert_array_equal(by_default, by_engine["sglang"])
    known = by_engine["vllm"]
    np.testing.assert_array_equal(blocks(known), blocks(by_default))
    launch = 326 * np.exp(held["host"]["log_eager_launch"].sel(sku="H100-80GB-SXM/vllm"))
    launches, _ = host_of(held, llm, card, DECODE, engine="vllm", graphs=False)
    np.testing.assert_allclose(launches.squeeze(), launch, **EXACT)
    stranger, _ = host_of(held, llm, card, DECODE, engine="sglang", graphs=False)
    assert (stranger != launches).all()


def test_an_allreduce_is_never_slower_than_the_library(parts, llm, sheets):
    """An engine falls back on it; one without a kernel of its own, such as sglang here, uses it."""
    cells = operators(llm, [parse_workload(DECODE)], tp=4)["allreduce"]
    library, own = (predict(parts["allreduce"], cells, sheets, backend=b) for b in ("nccl", "vllm"))
    assert backends(parts["allreduce"]) == ["nccl", "vllm"]
    expected = {"sglang": library, "vllm": np.minimum(own, library)}
    for backend, time in expected.items():
        found = times(parts, llm, sheets, DECODE, tp=4, backend=backend).sel(op="all_reduce")
        np.testing.assert_array_equal(found, 64 * time.isel(op=0))
    assert (own > library).any()
    assert (own < library).any()


# --- draws of several posteriors -------------------------------------------------------------


def test_parts_are_thinned_to_the_shortest():
    one = xr.Dataset(
        {"x": (("chain", "draw"), np.arange(20.0).reshape(2, 10))},
        {"chain": [0, 1], "draw": range(10)},
    )
    held = aligned({"long": one, "short": one.isel(draw=slice(0, 4))})
    assert held["long"]["x"].values.tolist() == [[0, 3, 6, 9], [10, 13, 16, 19]]
    xr.testing.assert_identical(held["short"], one.isel(draw=slice(0, 4)))


def test_aligned_parts_bear_the_same_labels():
    """Or sums of their times would keep but the draws that they name alike."""
    held = {
        "odd": xr.Dataset(coords={"chain": [0, 1], "draw": [1, 3, 5]}),
        "even": xr.Dataset(coords={"chain": [0, 1], "draw": range(9)}),
        "late": xr.Dataset(coords={"chain": [2, 3, 4, 5], "draw": [3, 4, 5, 6]}),
    }
    for part in aligned(held).values():
        assert part["draw"].values.tolist() == [0, 1, 2]
        assert part["chain"].values.tolist() == [0, 1]


def test_thinned_parts_make_a_step_of_as_many_draws(parts, llm, sheets):
    some = parts["light"].isel(draw=slice(10, None, 3))
    time = times(aligned(parts | {"light": some}), llm, sheets, DECODE)
    assert time.sizes["draw"] == 30
    assert np.isfinite(time).all()


# --- lowered power limits --------------------------------------------------------------------


def capped(sheets, cap):
    return sheets.assign(power_cap=("sku", np.broadcast_to(cap, len(ASKED))))


def test_without_a_lowered_limit_there_is_no_share(parts, llm, sheets):
    assert capped_share(parts["gemm"], sheets, seed=0) is None
    own = times(parts, llm, capped(sheets, 1.0), DECODE, MIXED)
    np.testing.assert_array_equal(own, times(parts, llm, sheets, DECODE, MIXED))


def test_a_lower_limit_never_raises_the_clock(parts, sheets):
    shares = [
        capped_share(parts["gemm"], capped(sheets, cap), seed=0) for cap in (1.0, 0.9, 0.7, 0.5)
    ]
    assert (shares[0] == 1).all()
    for more, less in pairwise(shares):
        assert (less <= more).all()
        assert (less < more).mean() > 0.99
        assert (less > 0).all()


def test_each_card_has_an_exponent_of_its_own(parts, sheets):
    """Log-normal around the sweep's: medians agree, and no two cards are the same."""
    share = capped_share(parts["gemm"], capped(sheets, 0.5), seed=0)
    median = share.median(("chain", "draw"))
    np.testing.assert_allclose(median, capped_clock(1.0, 0.5, 1.0, 1 / 3), rtol=0.05)
    assert len(np.unique(share.isel(chain=0, draw=0))) == len(ASKED)
    one = capped_share(parts["gemm"], capped(sheets, 0.5).isel(sku=[2]), seed=0)
    np.testing.assert_array_equal(one, share.isel(sku=[2]))


def test_a_lower_limit_slows_what_computes_and_nothing_else(parts, llm, sheets):
    spec = "prefill:tokens=8192"
    own, low = (times(parts, llm, s, spec) for s in (sheets, capped(sheets, 0.5)))
    for op in ("gate_up", "down", "qkv", "attention_prefill"):
        assert (low.sel(op=op) > own.sel(op=op)).all(), op
    for op in ("norm", "embedding"):
        np.testing.assert_array_equal(low.sel(op=op), own.sel(op=op))
    step, reading = (times(parts, llm, s, DECODE) for s in (sheets, capped(sheets, 0.5)))
    np.testing.assert_array_equal(
        step.sel(op="attention_decode"), reading.sel(op="attention_decode")
    )


def test_a_limit_of_one_card_leaves_the_others_alone(parts, llm, sheets):
    one = capped(sheets, [1.0, 0.5, 1.0, 1.0])
    own, low = (times(parts, llm, s, MIXED) for s in (sheets, one))
    others = [sku for sku in ASKED if sku != ASKED[1]]
    np.testing.assert_array_equal(own.sel(sku=others), low.sel(sku=others))
    assert (blocks(low) > blocks(own)).sel(sku=ASKED[1]).mean() > 0.9
