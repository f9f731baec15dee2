"""8-bit kernels and formats: closed forms, limits, what a step does with them, and the commands."""

import json

import numpy as np
import pytest
import xarray as xr
from helpers import plain, refusal, run

from m2bayes.errors import UnknownNameError, WorkloadError
from m2bayes.mechanism.gemm import gemm_terms, gemm_time
from m2bayes.mechanism.laws import LAWS
from m2bayes.mechanism.quantise import (
    RIGID,
    fp8_gemm_bounds,
    fp8_gemm_terms,
    fp8_gemm_time,
    kv_terms,
    kv_time,
    quantise_time,
)
from m2bayes.memory import P_WIDE_CACHE, memory_left
from m2bayes.narrow import narrow_cache, unfused
from m2bayes.operators import operators
from m2bayes.quantisation import FORMATS, format_of, named, of_dtype, sheets_of
from m2bayes.residency import DTYPE_BYTES
from m2bayes.suites import Setting
from m2bayes.suites import run as run_suite
from m2bayes.workload import Step

EXACT = {"rtol": 1e-12}
FACTORS = {
    "eta_memory": 0.85,
    "memory_latency": 6000.0,
    "eta_cache": 0.05,
    "launch_time": 2e-6,
    "clock_burst": 1.4,
    "droop": 0.2,
    "eta_issue": 1.2,
    "prologue": 300.0,
    "knee": 1.5,
    "power_slope": 0.7,
    "width_slope": 0.1,
    "blank_gain": 0.05,
    "quantise_time": 2e-6,
    "quantise_passes": 1.5,
    "rescale_time": 8e-6,
    "rescale_passes": 2.0,
}
SKUS = ("H100-80GB-SXM", "B200-180GB-SXM", "L40S-48GB-PCIe")


@pytest.fixture(scope="module")
def sheets(database):
    return database.datasheets(SKUS, dtype="fp8")


def cells(M, N, K):
    sizes = np.broadcast_arrays(np.atleast_1d(M), N, K)
    held = {v: ("shape", a.astype(float)) for v, a in zip("MNK", sizes, strict=True)}
    return xr.Dataset(held)


def kernel(sheets, M=64, N=8192, K=8192, **settings):
    settings = {"regime": "served", "backend": "trtllm"} | settings
    return fp8_gemm_terms(cells(M, N, K), sheets, **settings)


# --- the GEMM ---------------------------------------------------------------------------------


def test_an_8_bit_gemm_moves_half_the_bytes_but_for_its_output(sheets, database):
    M, N, K = 512, 8192, 4096
    narrow, wide = (
        gemm_terms(cells(M, N, K), database.datasheets(SKUS, dtype=dtype), regime="served")
        for dtype in ("fp8", "bf16")
    )
    total = {n: t["cold_traffic"] + t["warm_traffic"] for n, t in (("8", narrow), ("16", wide))}
    np.testing.assert_allclose(total["8"], N * K + M * K + 2 * M * N, **EXACT)
    np.testing.assert_allclose(total["16"], 2 * (N * K + M * K + M * N), **EXACT)
    np.testing.assert_allclose(wide["ideal_compute"] / narrow["ideal_compute"], 2, rtol=0.02)


def test_served_nothing_is_quantised_and_the_law_is_that_of_a_gemm(sheets):
    terms = kernel(sheets, M=[1, 64, 4096])
    np.testing.assert_allclose(quantise_time(terms, FACTORS), 0, atol=0)
    np.testing.assert_allclose(fp8_gemm_time(terms, FACTORS), gemm_time(terms, FACTORS), **EXACT)


@pytest.mark.parametrize("backend", ["sglang", "trtllm", "vllm"])
def test_the_tables_time_the_quantising_kernels_too(sheets, backend):
    """In closed form where all of it comes from memory: floors, and bytes over bandwidth."""
    M, N, K = 32768, 65536, 65536
    terms = kernel(sheets, M, N, K, regime="benchmark", backend=backend)
    rate = sheets["peak_bandwidth"] * FACTORS["eta_memory"]
    expected = 2e-6 + 1.5 * 3 * M * K / rate
    if backend == "trtllm":
        expected = expected + 8e-6 + 2.0 * 2 * M * K / rate
    np.testing.assert_allclose(
        quantise_time(terms, FACTORS).isel(shape=0).transpose("sku"), expected, rtol=1e-9
    )
    added = fp8_gemm_bounds(terms, FACTORS)["launch"] - FACTORS["launch_time"]
    np.testing.assert_allclose(added, quantise_time(terms, FACTORS), rtol=1e-9)


def test_a_rigid_kernel_loses_whole_waves(sheets):
    """One tile more than the SMs take costs a whole second wave; a split-K selector avoids it."""
    sm = int(sheets["sm_count"].sel(sku="H100-80GB-SXM"))
    exact, more = (
        {
            b: fp8_gemm_time(
                kernel(sheets.sel(sku=["H100-80GB-SXM"]), 128, 128 * n, 8192, backend=b), FACTORS
            ).item()
            for b in ("vllm", "trtllm")
        }
        for n in (sm // 2, sm // 2 + 1)
    )
    assert more["vllm"] / exact["vllm"] > 1.1
    assert more["trtllm"] / exact["trtllm"] < 1.1


def test_backends_of_each_cell_may_differ(sheets):
    names = np.array([*RIGID, "trtllm"])
    sheet = sheets.sel(sku=["H100-80GB-SXM"])
    own = sheet.isel(sku=np.zeros(3, int)).rename(sku="shape").drop_vars("shape")
    backend = xr.DataArray(names, dims="shape")
    grid = cells([300] * 3, 4096, 4096)
    joint = fp8_gemm_terms(grid, own, regime="benchmark", backend=backend)
    for i, name in enumerate(names):
        one = fp8_gemm_terms(grid.isel(shape=[i]), sheet, regime="benchmark", backend=str(name))
        expected = fp8_gemm_time(one, FACTORS).item()
        np.testing.assert_allclose(fp8_gemm_time(joint, FACTORS)[i].item(), expected, **EXACT)


def test_numpy_and_pytensor_agree(sheets):
    import pytensor
    import pytensor.tensor as pt

    whole = kernel(sheets, [1, 64, 5000], regime="benchmark")
    terms = plain(whole)
    names = sorted(FACTORS)
    inputs = [pt.scalar(name, dtype="float64") for name in names]
    law = fp8_gemm_time(terms, dict(zip(names, inputs, strict=True)))
    compiled = pytensor.function(inputs, law)
    expected = fp8_gemm_time(terms, FACTORS)
    np.testing.assert_allclose(compiled(*[FACTORS[n] for n in names]), expected, rtol=1e-10)


# --- the cache --------------------------------------------------------------------------------


def attention(wide_time, batch=1, length=1024):
    sizes = {"batch": batch, "length": length, "heads": 8, "kv_heads": 8, "wide_time": wide_time}
    return xr.Dataset({k: ("shape", [float(v)]) for k, v in sizes.items()})


def test_half_the_traffic_halves_a_kernel_that_memory_binds_and_no_other(sheets):
    bound = kv_terms(attention(1000, batch=512), sheets, regime="benchmark")
    np.testing.assert_allclose(bound["narrow_time"], 0.5e-6, **EXACT)
    free = kv_terms(attention(10**9), sheets, regime="benchmark")
    np.testing.assert_allclose(free["narrow_time"], 1.0, rtol=1e-9)
    np.testing.assert_allclose(kv_time(free, {"kv_cost": 1.3}), 1.3, rtol=1e-9)


def test_a_narrower_cache_shortens_decode_attention_by_its_traffic(database):
    sheets, law = database.datasheets(["H200-141GB-SXM"]), LAWS["decode_time"]
    shape = {"batch": 64, "length": 8192, "heads": 32, "kv_heads": 8, "head_dim": 128}
    grid = xr.Dataset({k: ("shape", [float(v)]) for k, v in shape.items()})
    wide, named_wide, narrow = (
        law.terms(grid.assign(extra), sheets, regime="served")["hbm_time"].item()
        for extra in ({}, {"kv_element": ("shape", [2.0])}, {"kv_element": ("shape", [1.0])})
    )
    assert wide == named_wide
    queries = 2 * 2 * 128 * 64 * 32 / 4.8e12
    assert narrow - queries == pytest.approx((wide - queries) / 2, rel=1e-12)


def parts_like(draws=400, kv=True):
    empty = xr.Dataset(coords={"chain": range(4), "draw": range(draws)})
    return {"attention_decode": empty} | ({"kv_fp8": empty} if kv else {})


def test_the_engines_own_cache_is_that_of_the_memory(database):
    parts = parts_like()
    held = narrow_cache(parts, "fp8", None, seed=3)
    llm, sheets = database.llm("llama-3.1-70b"), database.datasheets(["h100"])
    left = memory_left(llm, sheets, parts["attention_decode"], tp=4, dtype="fp8", seed=3)
    token = left["kv_bytes_per_token"]
    np.testing.assert_array_equal(held, token == token.min())
    mcse = np.sqrt(P_WIDE_CACHE * (1 - P_WIDE_CACHE) / held.size)
    assert held.mean().item() == pytest.approx(1 - P_WIDE_CACHE, abs=4 * mcse)


@pytest.mark.parametrize(
    ("form", "kv_dtype", "share"),
    [("bf16", None, 0), ("w4a16", None, 0), ("fp8", "bf16", 0), ("bf16", "fp8", 1)],
)
def test_a_cache_that_is_told_is_what_it_is(form, kv_dtype, share):
    assert narrow_cache(parts_like(), form, kv_dtype, seed=0).mean().item() == share


def test_an_unknown_cache_and_one_without_posterior_are_refused():
    with pytest.raises(UnknownNameError, match="kv_dtype"):
        narrow_cache(parts_like(), "bf16", "fp4", seed=0)
    with pytest.raises(WorkloadError, match="kv_fp8"):
        narrow_cache(parts_like(kv=False), "bf16", "fp8", seed=0)


# --- formats and steps ------------------------------------------------------------------------


def test_formats_name_their_dtype_and_bytes(database):
    sheets = database.datasheets(["h100", "b200"], dtype=None)
    assert sheets["peak_flop_rate"].dims == ("sku", "dtype")
    assert format_of(sheets_of(sheets, "w4a16")) == FORMATS["w4a16"]
    rate = sheets_of(sheets, "w4a16")["peak_flop_rate"]
    np.testing.assert_array_equal(rate, database.datasheets(["h100", "b200"])["peak_flop_rate"])
    assert of_dtype(of_dtype(sheets, "fp8"), "bf16")["dtype"].item() == "fp8"
    assert {name: DTYPE_BYTES[name] for name in FORMATS} == {
        n: f.weight for n, f in FORMATS.items()
    }
    with pytest.raises(UnknownNameError, match="dtype"):
        named("fp6")


def test_only_a_step_of_narrow_activations_quantises(database):
    llm, steps = database.llm("llama-3.1-8b"), [Step("decode", batch=64, context=2048)]
    ops = {form: operators(llm, steps, dtype=form)["light"] for form in FORMATS}
    assert {form for form, light in ops.items() if "quantise" in light["op"].values} == {"fp8"}
    own = ops["fp8"].sel(op="quantise").isel(workload=0)
    per_layer = float(own["calls"] * own["width"] * own["tokens"]) / llm.layers / 64
    assert per_layer == 4096 + 4096 + 4096 + 14336  # inputs of the four projections


def test_what_is_fused_costs_nothing_and_no_more_than_all_is_apart():
    coords = {"chain": range(4), "draw": range(500), "workload": ["small", "large"]}
    coords["op"] = ["norm", "quantise", "rope"]
    time = xr.DataArray(np.ones((4, 500, 2, 3)), coords, tuple(coords))
    summed = xr.DataArray([True, False], {"workload": coords["workload"]}, ("workload",))
    held = unfused(time, "vllm", summed, seed=0)
    assert held.dims == time.dims
    assert (held.sel(op="rope") == 1).all()
    assert (held.sel(op="norm", workload="large") == 1).all()
    parts = held.sel(op="quantise", workload="large"), held.sel(op="norm", workload="small")
    for apart in parts:
        assert apart.min() >= 0
        assert apart.max() <= 1
        assert apart.mean() == pytest.approx(0.5, abs=4 * float(apart.std()) / np.sqrt(apart.size))
    assert abs(np.corrcoef(parts[0].values.ravel(), parts[1].values.ravel())[0, 1]) < 0.1
    wide = time.sel(op=["norm", "rope"])
    assert unfused(wide, "vllm", summed, seed=0).identical(wide)


ASK = ("--llm", "llama-3.1-70b", "--tp", "4", "--draws", "200", "--json", "--workload")
DECODE = "decode:batch=32,context=4096"


def medians(*more):
    code, out, err = run("predict", *ASK, DECODE, *more)
    assert code == 0, err
    held = json.loads(out)
    return held, {s["sku"]: s["median"] for s in held["results"][0]["skus"]}


def test_an_8_bit_step_is_faster_and_a_card_without_8_bit_cores_is_shown_with_the_reason():
    skus = ("--sku", "h100", "h200", "a100")
    wide = medians(*skus)[1]
    held, narrow = medians(*skus, "--dtype", "fp8")
    assert held["dtype"] == "fp8"
    assert held["posterior"] == "step_fp8"
    for sku in ("H100-80GB-SXM", "H200-141GB-SXM"):
        assert 0.4 < narrow[sku] / wide[sku] < 0.85
    entry = next(s for s in held["results"][0]["skus"] if s["sku"] == "A100-80GB-SXM")
    assert (entry["fits"], entry["median"]) == (False, None)
    assert "no tensor cores for fp8" in entry["reason"]


def test_an_8_bit_cache_shortens_a_long_context_and_a_4_bit_weight_a_small_batch():
    sku = ("--sku", "h200", "--backend", "vllm")
    wide = medians(*sku)[1]["H200-141GB-SXM"]
    assert medians(*sku, "--kv-dtype", "fp8")[1]["H200-141GB-SXM"] < wide
    held, four = medians(*sku, "--dtype", "w4a16")
    assert 0.25 < four["H200-141GB-SXM"] / wide < 0.8
    entry = held["results"][0]["skus"][0]
    assert entry["extrapolating"]
    assert "w4a16" in entry["reason"]
    low, high = entry["interval"]["low"], entry["interval"]["high"]
    assert high / low > 1.3  # a wide prior shows


def test_no_card_with_8_bit_cores_is_no_answer():
    outcome = run("rank", *ASK, DECODE, "--sku", "a100", "--dtype", "fp8")
    assert "no tensor cores for fp8" in refusal(outcome, code=3)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--dtype", "int8"), "dtype"),
        (("--dtype", "fp8", "--posterior", "step_bf16"), "was fitted on bf16"),
        (("--kv-dtype", "fp8", "--metric", "gemm_time"), "whole steps"),
        (("--dtype", "w4a16", "--metric", "gemm_time"), "whole steps"),
    ],
)
def test_what_cannot_be_asked_is_refused(more, says):
    outcome = run("predict", *ASK, DECODE, "--sku", "h100", *more)
    assert says in refusal(outcome)


def test_the_suite_of_unseen_cells_runs_and_beats_its_rivals(database):
    found = run_suite("gemm-fp8", Setting(database, quick=True))
    narrow, wide, sheet = found["results"].values()
    assert next(iter(found["results"])) == "gemm_fp8-hier_gemm_fp8"
    assert set(found["inputs"]) >= {"gemm_fp8_test", "gemm_fp8-hier_gemm_fp8"}
    assert narrow["mean"]["median_ape"] < 0.1 < wide["mean"]["median_ape"]
    assert narrow["mean"]["median_ape"] < sheet["mean"]["median_ape"]
    assert 0.75 < narrow["mean"]["coverage_90"] < 0.98
