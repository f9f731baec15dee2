"""Whole engine steps through the command line: metrics, operators, calibration, power limits."""

import csv
import io
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from helpers import refusal, run

from m2bayes import options, tables
from m2bayes.asking import ask
from m2bayes.calibrate import RUN
from m2bayes.database import Database
from m2bayes.question import step_times
from m2bayes.step import PARTS
from m2bayes.workload import parse_workload

DATABASE = Database()
ASSEMBLY = DATABASE.assembly(options.POSTERIOR)
LLM = ("--llm", "llama-3.1-8b")
PAIR = ("--sku", "h100", "h200")
H100, H200 = "H100-80GB-SXM", "H200-141GB-SXM"
DECODE, PREFILL = "decode:batch=64,context=2048", "prefill:tokens=2048"
MIXED = "mixed:prefill=256,batch=16,context=1024"
WHOLE = ("step_time", "tpot", "ttft", "tokens_per_second")
FEW = ("--draws", "200")
SINGLE = 14 * float(np.finfo("float32").eps)  # as many operators, each rounded once
GEMMS = ["qkv", "o", "gate_up", "down"]


def asked(command, workload, *extra, llm=LLM, sku=PAIR, draws=FEW):
    specs = (workload,) if isinstance(workload, str) else workload
    return run(command, *llm, *sku, "--workload", *specs, *draws, *extra)


def answered(command, workload, *extra, **kwargs):
    """JSON of a question that can be answered; standard error must be silent."""
    code, out, err = asked(command, workload, *extra, "--json", **kwargs)
    assert (code, err) == (0, ""), err
    return json.loads(out)


def by_sku(found, at=0):
    return {sku["sku"]: sku for sku in found["results"][at]["skus"]}


def drawn(path, workload, *extra, **kwargs):
    """Joint draws of every operator [s], and the JSON beside them."""
    found = answered("predict", workload, "--by", "op", "--out", str(path), *extra, **kwargs)
    with xr.open_dataset(path, engine="h5netcdf") as file:
        return file["op_time"].load(), found


# --- metrics ---------------------------------------------------------------------------------


def divides(llm, tp):
    shape = DATABASE.llm(llm)
    return shape.heads % tp == 0 and shape.intermediate % tp == 0


SHARED = [
    (llm, tp)
    for llm in ("llama-3.1-8b", "llama-3.1-70b", "llama-3.2-3b", "qwen3-32b")
    for tp in (1, 2, 4, 8)
    if divides(llm, tp)
]


@pytest.mark.parametrize(("llm", "tp"), SHARED)
def test_every_metric_of_an_idle_server_is_answered(llm, tp):
    """All but the metrics that need queueing, on cards that hold the LLM even on one GPU."""
    question = {
        "llm": ("--llm", llm),
        "sku": ("--sku", "b300", "gb300"),
        "draws": ("--draws", "40"),
    }
    prompt = "prefill:tokens=512"
    batch = "decode:batch=8,context=512"
    for metric, workload in (
        ("step_time", batch),
        ("gemm_time", batch),
        ("tpot", batch),
        ("ttft", prompt),
        ("tokens_per_second", batch),
    ):
        found = answered("rank", workload, "--tp", str(tp), "--metric", metric, **question)
        assert (found["llm"], found["tp"], found["metric"]) == (llm, tp, metric)
        assert found["units"] == ("token/s" if metric == "tokens_per_second" else "s")
        assert len(found["results"][0]["skus"]) == 2
        for sku in found["results"][0]["skus"]:
            assert sku["fits"] is True
            assert 0 < sku["interval"]["low"] < sku["median"] < sku["interval"]["high"] < np.inf
            assert np.isfinite(sku["mean"])


def test_several_tps_are_tried():
    assert {tp for _, tp in SHARED} == {1, 2, 4, 8}
    assert ("llama-3.1-8b", 8) in SHARED


HEAD = {"llm", "dtype", "kv_dtype", "tp", "posterior", "metric", "units", "draws", "seed"}
HEAD |= {"regime", "backend", "results", "remarks"}
TIMES = {"sku", "median", "mean", "interval", "fits", "p_fits", "basis", "extrapolating"}
RANKED = TIMES | {"p_best", "p_best_mcse", "expected_rank"}
RANKED |= {"expected_regret", "expected_regret_mcse", "relative_regret", "relative_regret_mcse"}


def test_a_step_is_the_default_and_its_json_keeps_the_contract():
    found = answered("rank", DECODE)
    assert set(found) == HEAD | {"crossovers"}
    assert (found["metric"], found["units"], found["regime"]) == ("step_time", "s", "served")
    assert (found["posterior"], found["draws"], found["seed"]) == (options.POSTERIOR, 200, 0)
    assert found["posterior"] == "step_bf16"
    (entry,) = found["results"]
    assert {"workload", "skus", "pairs", "p_any_flip", "choice", "verdict"} <= set(entry)
    for sku in entry["skus"]:
        assert set(sku) == RANKED | {"sequences"}
        assert sku["sequences"]["asked"] == parse_workload(DECODE).batch
        assert set(sku["interval"]) == {"kind", "mass", "low", "high"}
        assert sku["basis"] == "measured"
        assert sku["extrapolating"] is False
    assert sum(sku["p_best"] for sku in entry["skus"]) == pytest.approx(1, abs=1e-12)
    assert "--calibrate" in " ".join(found["remarks"])
    named = answered("rank", DECODE, "--metric", "step_time", "--posterior", options.POSTERIOR)
    assert named == found


def test_predict_json_has_the_nesting_of_rank_json():
    found = answered("predict", DECODE)
    assert set(found) == HEAD
    assert all(set(sku) == TIMES | {"sequences"} for sku in by_sku(found).values())
    by_op = by_sku(answered("predict", DECODE, "--by", "op"))
    for name, sku in by_op.items():
        assert set(sku) == TIMES | {"ops", "p_host_bound", "sequences"}
        assert {k: sku[k] for k in TIMES | {"sequences"}} == by_sku(found)[name]
        for op in sku["ops"]:
            assert set(op) == {"op", "median", "mean", "interval", "bounds"}


@pytest.mark.parametrize(
    ("asks", "metric", "posterior"),
    [
        ((*LLM, "--workload", DECODE), "step_time", "step_bf16"),
        (
            (*LLM, "--workload", DECODE, "--metric", "gemm_time"),
            "gemm_time",
            ASSEMBLY.parts["gemm"],
        ),
        (
            (*LLM, "--workload", DECODE, "--regime", "benchmark"),
            "gemm_time",
            ASSEMBLY.parts["gemm"],
        ),
        (
            (*LLM, "--workload", DECODE, "--posterior", options.GEMM_POSTERIOR),
            "gemm_time",
            options.GEMM_POSTERIOR,
        ),
        (("--workload", "gemm:m=64,n=6144,k=4096"), "gemm_time", ASSEMBLY.parts["gemm"]),
    ],
)
def test_the_metric_follows_from_what_is_asked(asks, metric, posterior):
    code, out, err = run("rank", *PAIR, *FEW, *asks, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["metric"], found["posterior"]) == (metric, posterior)


def test_the_gemm_posterior_gives_what_the_assembly_gives_of_gemms():
    one = answered("rank", DECODE, "--metric", "gemm_time")
    assert one == answered("rank", DECODE, "--posterior", options.GEMM_POSTERIOR)


def test_text_and_csv_tell_metric_posterior_and_every_sku():
    code, out, err = asked("rank", DECODE)
    assert code == 0
    assert out.startswith("llama-3.1-8b, bf16, TP 1: step_time, served regime, backend any\n")
    assert "posterior step_bf16, 200 draws, seed 0" in out
    assert H100 in out
    assert H200 in out
    assert "host's part is mostly prior" in err
    assert "leaves attention" not in err
    assert asked("rank", DECODE, "--quiet") == (0, out, "")
    held = by_sku(answered("rank", DECODE))
    code, out, err = asked("rank", DECODE, "--csv")
    assert (code, err) == (0, "")
    for row in csv.DictReader(io.StringIO(out)):
        assert float(row["median"]) == held[row["sku"]]["median"]
    code, out, _ = asked("predict", DECODE, "--by", "op", "--quiet")
    assert code == 0
    assert "bound by" in out
    assert "attention_decode" in out


@pytest.mark.parametrize(
    ("metric", "workload"),
    [
        ("tpot", DECODE),
        ("tpot", MIXED),
        ("ttft", PREFILL),
        ("ttft", "prefill:tokens=64,context=64"),
    ],
)
def test_on_an_idle_server_both_latencies_are_the_time_of_one_step(metric, workload):
    found, step = (answered("rank", workload, "--metric", m) for m in (metric, "step_time"))
    assert found["results"] == step["results"]


@pytest.mark.parametrize(
    ("metric", "workload", "complaint"),
    [
        ("ttft", DECODE, "metric ttft is of prefill steps, not of decode:"),
        ("ttft", MIXED, "metric ttft is of prefill steps, not of mixed:"),
        ("tpot", PREFILL, "metric tpot is of decode and mixed steps, not of prefill:"),
    ],
)
def test_a_latency_is_of_its_own_kind_of_step(metric, workload, complaint):
    for command in ("rank", "predict"):
        assert complaint in refusal(asked(command, workload, "--metric", metric))
    for both in ((DECODE, PREFILL), (PREFILL, DECODE)):
        assert "use step_time" in refusal(asked("rank", both, "--metric", metric))


@pytest.mark.parametrize("metric", WHOLE)
def test_a_metric_of_steps_is_refused_for_kernels_and_other_posteriors(metric):
    kernel = asked("rank", "gemm:m=64,n=6144,k=4096", "--metric", metric, llm=())
    assert f"metric {metric} is of the steps of an LLM" in refusal(kernel)
    workload = PREFILL if metric == "ttft" else DECODE
    gemm = ("--posterior", options.GEMM_POSTERIOR)
    assert f"metric {metric} needs more than GEMM times" in refusal(
        asked("rank", workload, "--metric", metric, *gemm)
    )
    assert f"{metric} is of a served step" in refusal(
        asked("rank", workload, "--metric", metric, "--regime", "benchmark")
    )


def test_cost_without_a_price_and_an_unknown_metric_are_refused():
    costly = asked("rank", DECODE, "--metric", "cost_per_million_tokens")
    assert "cost needs the price of H100-80GB-SXM: give --price" in refusal(costly)
    assert "did you mean step_time" in refusal(asked("rank", DECODE, "--metric", "steptime"))


def test_more_tokens_a_second_is_better():
    """The order, its probabilities and the choice are those of the step time, turned round."""
    rates = answered("rank", (DECODE, PREFILL), "--metric", "tokens_per_second")
    times = answered("rank", (DECODE, PREFILL))
    assert rates["units"] == "token/s"
    for fast, short, tokens in zip(rates["results"], times["results"], (64, 2048), strict=True):
        medians = [sku["median"] for sku in fast["skus"]]
        assert medians == sorted(medians, reverse=True)
        assert fast["choice"] == short["choice"]
        assert fast["verdict"] == short["verdict"]
        assert fast["choice"] == max(fast["skus"], key=lambda sku: sku["p_best"])["sku"]
        pairs = [[(p["better"], p["worse"]) for p in e["pairs"]] for e in (fast, short)]
        assert pairs[0] == pairs[1] == [tuple(sku["sku"] for sku in fast["skus"])]
        for one, other in zip(fast["pairs"], short["pairs"], strict=True):
            assert one["p_flip"] == other["p_flip"] < 0.5
        held = {sku["sku"]: sku for sku in short["skus"]}
        for sku in fast["skus"]:
            time = held[sku["sku"]]
            assert sku["p_best"] == time["p_best"]
            assert sku["expected_rank"] == pytest.approx(time["expected_rank"], abs=1e-12)
            assert sku["median"] == pytest.approx(tokens / time["median"], rel=0.01)
            assert sku["interval"]["low"] == pytest.approx(
                tokens / time["interval"]["high"], rel=0.05
            )
            assert sku["expected_regret"] >= 0
            assert sku["relative_regret"] >= 0
    predicted = answered("predict", DECODE, "--metric", "tokens_per_second")
    medians = [sku["median"] for sku in predicted["results"][0]["skus"]]
    assert medians == sorted(medians, reverse=True)
    by_op = asked("predict", DECODE, "--metric", "tokens_per_second", "--by", "op")
    assert "--by op breaks a time down; ask for --metric step_time" in refusal(by_op)
    code, out, _ = asked("rank", DECODE, "--metric", "tokens_per_second", "--quiet")
    assert code == 0
    assert "token/s" in out


def test_a_mixed_step_makes_a_token_for_each_new_one():
    rate = by_sku(answered("predict", MIXED, "--metric", "tokens_per_second"))[H100]["median"]
    time = by_sku(answered("predict", MIXED))[H100]["median"]
    assert rate == pytest.approx((256 + 16) / time, rel=0.01)


@pytest.mark.parametrize("length", [256, 1024])
def test_prompts_of_one_step_take_less_than_one_prompt_as_long(length):
    """As many tokens in all products, fewer pairs in attention; more than one of them takes."""
    specs = [
        f"prefill:tokens={length},batch=8",
        f"prefill:tokens={8 * length}",
        f"prefill:tokens={length}",
    ]
    packed, whole, one = (
        entry["skus"] for entry in answered("predict", specs, "--by", "op")["results"]
    )
    for eight, long, single in zip(packed, whole, one, strict=True):
        assert single["median"] < eight["median"] < long["median"]
        ops = [{o["op"]: o["median"] for o in sku["ops"]} for sku in (eight, long)]
        assert ops[0]["qkv"] == ops[1]["qkv"]
        assert ops[0]["attention_prefill"] < ops[1]["attention_prefill"]
    refused = refusal(asked("predict", "prefill:tokens=131072,batch=64"), 3)
    assert "does not fit" in refused


@pytest.mark.parametrize(
    ("extra", "unread"),
    [
        ((), {"allreduce", "kv_fp8"}),
        (("--tp", "2"), {"kv_fp8"}),
        (("--kv-dtype", "fp8"), {"allreduce"}),
    ],
)
def test_posteriors_of_kernels_that_a_question_has_none_of_are_not_read(extra, unread):
    argv = ["rank", *LLM, *PAIR, "--workload", DECODE, *FEW, *extra]
    whole, lean = (
        ask(options.parser().parse_args(argv), as_it_stands=lean) for lean in (False, True)
    )
    assert set(whole.parts) - set(lean.parts) == unread
    times = [step_times(question, question.workloads) for question in (whole, lean)]
    np.testing.assert_array_equal(*times)


@pytest.mark.parametrize("workload", [DECODE, PREFILL, MIXED, "decode:batch=1,context=16"])
def test_a_step_takes_longer_than_its_matrix_products(workload):
    step, gemm = (answered("predict", workload, "--metric", m) for m in ("step_time", "gemm_time"))
    for name, sku in by_sku(step).items():
        held = by_sku(gemm)[name]
        assert sku["median"] > held["median"]
        assert sku["mean"] > held["mean"]
        assert sku["interval"]["high"] > held["interval"]["high"]


# --- operators -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workload", "tp", "own"),
    [
        (DECODE, 1, {"attention_decode"}),
        (PREFILL, 1, {"attention_prefill"}),
        (MIXED, 2, {"attention_decode", "attention_prefill", "all_reduce"}),
    ],
)
def test_operators_sum_to_the_whole_draw_by_draw(tmp_path, workload, tp, own):
    time, found = drawn(tmp_path / "draws.nc", workload, "--tp", str(tp))
    assert set(time.dims) == {"chain", "draw", "sku", "workload", "op"}
    assert time.attrs["units"] == "s"
    ops = time["op"].values.tolist()
    light = ["norm", "rope", "kv_write", "activation", "embedding"]
    assert set(ops) == {*GEMMS, "lm_head", *light, "host"} | own
    assert (time > 0).all()
    whole = time.sum("op").isel(workload=0)
    for name, sku in by_sku(found).items():
        mine = whole.sel(sku=name)
        assert float(mine.median()) == pytest.approx(sku["median"], rel=SINGLE)
        assert float(mine.mean()) == pytest.approx(sku["mean"], rel=1e-5)
        assert sum(op["mean"] for op in sku["ops"]) == pytest.approx(sku["mean"], rel=1e-9)
        assert [op["op"] for op in sku["ops"]] == ops
        low = float(mine.quantile(0.05))
        assert sku["interval"]["low"] == pytest.approx(low, rel=1e-5)
    gemms = time.sel(op=GEMMS).sum("op").isel(workload=0)
    assert (gemms < whole).all()


@pytest.mark.parametrize("workload", [DECODE, PREFILL, MIXED, "decode:batch=1,context=16"])
def test_what_bounds_an_operator_is_a_probability(workload):
    for sku in by_sku(answered("predict", workload, "--by", "op", "--tp", "2")).values():
        assert 0 <= sku["p_host_bound"] <= 1
        for op in sku["ops"]:
            if op["op"] == "host":
                assert op["bounds"] == {}
                continue
            assert len(op["bounds"]) >= 2
            assert all(0 <= share <= 1 for share in op["bounds"].values())
            assert sum(op["bounds"].values()) == pytest.approx(1, abs=1e-9)


def test_known_bottlenecks_are_found():
    """Weights are read in a small decode step; a long prompt keeps the tensor cores busy."""
    small = by_sku(answered("predict", "decode:batch=1,context=512", "--by", "op"))[H100]
    long = by_sku(answered("predict", "prefill:tokens=8192", "--by", "op"))[H100]
    held = [{op["op"]: op["bounds"] for op in sku["ops"]} for sku in (small, long)]
    for op in GEMMS:
        assert held[0][op]["memory"] > 0.99
        assert held[1][op]["compute"] > 0.99
    assert long["p_host_bound"] < 0.05


def test_without_graphs_the_host_bounds_a_small_step():
    question = {"llm": ("--llm", "llama-3.2-1b")}
    workload = "decode:batch=1,context=128"
    eager, graphs = (
        by_sku(answered("predict", workload, "--by", "op", *extra, **question))
        for extra in (("--eager",), ())
    )
    for name, sku in eager.items():
        assert sku["p_host_bound"] > 0.95
        assert graphs[name]["p_host_bound"] < sku["p_host_bound"]
        assert graphs[name]["median"] < sku["median"]
        kernels = [
            {op["op"]: op["median"] for op in one["ops"] if op["op"] != "host"}
            for one in (sku, graphs[name])
        ]
        assert kernels[0] == kernels[1]


def test_a_long_prompt_is_launched_kernel_by_kernel_anyway():
    long = "prefill:tokens=4096"
    assert answered("predict", long)["results"] == answered("predict", long, "--eager")["results"]


def test_noise_seed_and_backend_change_a_step():
    plain = answered("predict", DECODE)["results"]
    for extra in (("--noise", "3"), ("--seed", "1"), ("--backend", "vllm")):
        assert answered("predict", DECODE, *extra)["results"] != plain
    again = run.__wrapped__("predict", *LLM, *PAIR, "--workload", DECODE, *FEW, "--json")
    assert json.loads(again[1])["results"] == plain


def test_what_else_is_asked_changes_no_step():
    (alone,) = answered("predict", DECODE)["results"]
    together = answered("predict", (PREFILL, DECODE, MIXED))["results"][1]
    assert together["workload"] == alone["workload"]
    for one, other in zip(together["skus"], alone["skus"], strict=True):
        assert one["median"] == pytest.approx(other["median"], rel=1e-4)
    three = by_sku(answered("predict", DECODE, sku=("--sku", "h200", "a100", "h100")))
    for sku in alone["skus"]:
        assert three[sku["sku"]]["median"] == pytest.approx(sku["median"], rel=1e-4)


def test_sizes_and_kinds_outside_the_fits_are_named():
    long, mixed, within = answered("rank", ("prefill:tokens=40000", MIXED, DECODE))["results"]
    for sku in long["skus"]:
        assert sku["extrapolating"] is True
        assert "M = 40000 is outside the fitted 1 to 32768" in sku["reason"]
    for sku in mixed["skus"]:
        assert "nobody measured a step that mixes prompts and decoding" in sku["reason"]
    assert not any(sku["extrapolating"] for sku in within["skus"])


def test_what_a_configuration_has_and_no_law_does_is_told(tmp_path):
    """A window that the context outgrows, and weights that are stored in 8 bits."""
    card = json.loads((Path(__file__).parents[1] / "data/llms/mistral-7b.json").read_text())
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(card["config"] | {"quantization_config": {"quant_method": "fp8"}}))
    long, short = (f"decode:batch=2,context={n}" for n in (8192, 512))
    said = {
        step: " ".join(answered("predict", step, llm=("--llm", str(path)))["remarks"])
        for step in (long, short)
    }
    assert "looks back over 4096 tokens" in said[long]
    assert "looks back" not in said[short]
    assert all("stores the weights in 'fp8'" in text for text in said.values())


# --- calibration -----------------------------------------------------------------------------

STEPS = [f"decode:batch={batch},context=1024" for batch in (1, 8, 32, 64)]


@pytest.fixture
def timed(tmp_path):
    """Write measured steps and return the options that name the file."""

    def written(*rows, header="sku,workload,step_time"):
        path = tmp_path / "steps.csv"
        path.write_text("\n".join([header, *rows]) + "\n")
        return "--calibrate", str(path)

    return written


def measured(times, sku="h100"):
    return [f'{sku},"{step}",{time:.6e}' for step, time in times.items()]


@pytest.fixture
def plain():
    """Predicted steps without calibration."""
    return answered("predict", STEPS)


def test_a_calibrated_step_takes_what_was_measured(timed, plain):
    """An engine that takes 6 ms more than predicted; the card that was not timed stays."""
    target = {step: by_sku(plain, i)[H100]["median"] + 6e-3 for i, step in enumerate(STEPS)}
    found = answered("predict", STEPS, *timed(*measured(target)))
    assert set(found) == HEAD
    for i, step in enumerate(STEPS):
        mine = by_sku(found, i)[H100]
        assert mine["median"] == pytest.approx(target[step], rel=0.05)
        assert mine["interval"]["low"] < target[step] < mine["interval"]["high"]
        assert by_sku(found, i)[H200] == by_sku(plain, i)[H200]


def test_packed_prompts_and_one_as_long_are_timed_apart(timed):
    """They have as many new tokens, and are no neighbours all the same."""
    specs = ["prefill:tokens=512,batch=4", "prefill:tokens=2048"]
    plain = answered("predict", specs)
    target = {s: by_sku(plain, i)[H100]["median"] + (5e-3, 25e-3)[i] for i, s in enumerate(specs)}
    found = answered("predict", specs, *timed(*measured(target)))
    for i, spec in enumerate(specs):
        mine = by_sku(found, i)[H100]
        assert mine["interval"]["low"] < target[spec] < mine["interval"]["high"]


def test_a_faster_engine_moves_the_median_down(timed, plain):
    target = {step: by_sku(plain, i)[H100]["median"] * 0.8 for i, step in enumerate(STEPS)}
    found = answered("predict", STEPS, *timed(*measured(target)))
    for i, step in enumerate(STEPS):
        before, after = by_sku(plain, i)[H100]["median"], by_sku(found, i)[H100]["median"]
        assert after < before
        assert abs(after - target[step]) < abs(before - target[step])


def test_calibration_holds_for_steps_that_were_not_timed(timed, plain):
    target = {step: by_sku(plain, i)[H100]["median"] + 6e-3 for i, step in enumerate(STEPS)}
    new = "decode:batch=16,context=1024"
    before, after = (
        by_sku(answered("predict", new, *extra))[H100] for extra in ((), timed(*measured(target)))
    )
    assert after["median"] == pytest.approx(before["median"] + 6e-3, rel=0.1)


def test_calibrated_operators_still_sum_to_the_whole(tmp_path, timed):
    file = timed(*measured({DECODE: 20e-3}))
    time, found = drawn(tmp_path / "draws.nc", DECODE, *file)
    before, _ = drawn(tmp_path / "before.nc", DECODE)
    whole = time.sum("op").isel(workload=0)
    for name, sku in by_sku(found).items():
        assert float(whole.sel(sku=name).median()) == pytest.approx(sku["median"], rel=SINGLE)
        assert 0 <= sku["p_host_bound"] <= 1
    assert (time >= 0).all()
    kernels, old = (t.drop_sel(op="host").sel(sku=H100) for t in (time, before))
    ratio = (kernels / old).isel(workload=0)  # one misfit for all operators of a step
    np.testing.assert_allclose(ratio.max("op"), ratio.min("op"), rtol=10 * SINGLE)


def test_a_host_that_takes_less_than_nothing_takes_nothing(tmp_path, timed, plain):
    """An engine a quarter faster than predicted: the kernels are, the host is not negative."""
    target = {step: by_sku(plain, i)[H100]["median"] * 0.75 for i, step in enumerate(STEPS)}
    time, _ = drawn(tmp_path / "draws.nc", STEPS[1], *timed(*measured(target)))
    assert (time.sel(sku=H100, op="host") >= 0).all()
    assert float((time.sel(sku=H100, op="host") == 0).mean()) > 0.1
    whole = time.sel(sku=H100).sum("op").median()
    assert float(whole) == pytest.approx(target[STEPS[1]], rel=0.05)


def test_a_timed_step_is_known_as_well_as_runs_repeat_and_others_less(timed, plain):
    target = {step: by_sku(plain, i)[H100]["median"] for i, step in enumerate(STEPS)}
    new = "decode:batch=16,context=1024"
    found = answered("predict", [STEPS[1], new], *timed(*measured(target)))
    own, other = (by_sku(found, i)[H100] for i in (0, 1))
    width = [(e["interval"]["high"] - e["interval"]["low"]) / e["median"] for e in (own, other)]
    assert width[0] == pytest.approx(2 * 1.645 * RUN, rel=0.15)
    assert width[1] > 2 * width[0]
    assert own["median"] == pytest.approx(target[STEPS[1]], rel=0.01)


def test_calibration_works_for_ranks_rates_and_shared_llms(timed):
    times = (0.01, 0.011, 0.012, 0.015)
    rows = [f'h100,"{step}",{time},2' for step, time in zip(STEPS, times, strict=True)]
    file = timed(*rows, header="sku,workload,step_time,tp")
    found = answered("rank", STEPS, "--tp", "2", "--metric", "tokens_per_second", *file)
    last = by_sku(found, -1)[H100]
    assert last["median"] == pytest.approx(64 / 0.015, rel=0.2)
    assert found["results"][-1]["choice"] == H200 or last["p_best"] > 0.5


def test_calibrated_answers_are_repeatable_and_depend_on_the_seed(timed):
    file = timed(*measured({DECODE: 20e-3}))
    ask = ("predict", *LLM, *PAIR, "--workload", DECODE, *FEW, "--json", *file)
    assert run.__wrapped__(*ask) == run.__wrapped__(*ask)
    one, other = (json.loads(run.__wrapped__(*ask, "--seed", s)[1]) for s in ("0", "1"))
    assert by_sku(one)[H100] != by_sku(other)[H100]


GOOD = f'h100,"{DECODE}",0.02'


@pytest.mark.parametrize(
    ("header", "row", "complaint"),
    [
        ("", f'b200,"{DECODE}",0.02', "B200-180GB-SXM is not among the SKUs asked for"),
        ("", f'h1000,"{DECODE}",0.02', "unknown SKU 'h1000'"),
        (",tp", f"{GOOD},2", "a step at TP 2; the question is of 1"),
        (",tp", f"{GOOD},0", "tp '0' is not a whole number from 1"),
        ("", f'h100,"{DECODE}",-0.02', "line 2: step_time '-0.02' is not between"),
        ("", f'h100,"{DECODE}",0', "line 2: step_time '0' is not between"),
        ("", f'h100,"{DECODE}",nan', "line 2: step_time 'nan' is not between"),
        ("", f'h100,"{DECODE}",20', "times what is expected"),
        ("", f'h100,"{DECODE}",0.2', None),
        ("", f'h100,"{DECODE}",0.0005', "reading the weights alone takes h100 0.00448 s"),
        ("", f'h100,"{DECODE}",2000', "is the unit right?"),
        ("", f'h100,"{DECODE}",', "line 2: step_time is empty"),
        ("", f"h100,{DECODE},0.02", "quote the workload"),
        ("", 'h100,"decode:batch=0,context=16",0.02', "line 2: workload"),
        ("", 'h100,"gemm:m=1,n=128,k=128",0.02', "line 2: a gemm is no engine step"),
        ("", 'h100,"decode:batch=1,context=131072",0.02', "exceeds the 131072 tokens"),
    ],
)
def test_a_bad_line_of_measured_steps_is_refused(timed, header, row, complaint):
    outcome = asked(
        "predict", DECODE, *timed(row, header=f"sku,workload,step_time{header}"), "--quiet"
    )
    if complaint is None:  # slow, and yet a time
        assert outcome[0] == 0
    else:
        assert complaint in refusal(outcome)


@pytest.mark.parametrize(
    ("header", "missing"),
    [("sku,workload", "step_time"), ("workload,step_time", "sku"), ("sku,step_time", "workload")],
)
def test_a_missing_column_of_measured_steps_is_named(timed, header, missing):
    row = ",".join(["h100"] * (header.count(",") + 1))
    message = refusal(asked("predict", DECODE, *timed(row, header=header)))
    assert f"no column {missing}; needed are sku, workload, step_time" in message


def test_a_file_of_measured_steps_must_be_one(tmp_path, timed):
    assert "no such file" in refusal(asked("rank", DECODE, "--calibrate", "nothing.csv"))
    assert "holds no measured step" in refusal(asked("rank", DECODE, *timed()))
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    assert "no text in UTF-8" in refusal(asked("rank", DECODE, "--calibrate", str(binary)))
    folder = asked("rank", DECODE, "--calibrate", str(tmp_path))
    assert str(tmp_path) in refusal(folder)
    assert "--calibrate: is empty" in refusal(asked("rank", DECODE, "--calibrate", ""))


@pytest.mark.parametrize(
    ("workload", "llm", "extra"),
    [
        (DECODE, LLM, ("--metric", "gemm_time")),
        (DECODE, LLM, ("--regime", "benchmark")),
        (DECODE, LLM, ("--posterior", options.GEMM_POSTERIOR)),
        ("gemm:m=1,n=128,k=128", (), ()),
        ("attention:phase=decode,batch=1,context=64,heads=32,kv_heads=8", (), ()),
    ],
)
def test_only_whole_steps_are_calibrated(timed, workload, llm, extra):
    message = refusal(asked("rank", workload, *timed(GOOD), *extra, llm=llm))
    assert "--calibrate is of whole steps; metric " in message


# --- power limits ----------------------------------------------------------------------------


def limited(path, workload, *limits, **kwargs):
    extra = ("--power-limit", *limits) if limits else ()
    return drawn(path, workload, *extra, **kwargs)[0].isel(workload=0)


@pytest.mark.parametrize("workload", [DECODE, "prefill:tokens=4096", MIXED])
def test_a_lower_limit_is_never_faster(tmp_path, workload):
    """In no draw, of no operator but the host's, which hides behind longer kernels."""
    whole, half = (
        limited(tmp_path / f"{i}.nc", workload, *limits)
        for i, limits in enumerate([(), ("h100=350",)])
    )
    middle = limited(tmp_path / "middle.nc", workload, "h100=500")
    h100 = [t.sel(sku=H100) for t in (whole, middle, half)]
    for higher, lower in itertools.pairwise(h100):
        ratio = lower.sum("op") / higher.sum("op")
        assert float(ratio.min()) > 1 - 1e-4
        kernels = lower.drop_sel(op="host") / higher.drop_sel(op="host")
        assert float(kernels.min()) > 1 - 1e-4
    xr.testing.assert_equal(whole.sel(sku=H200), half.sel(sku=H200))


def test_a_lower_limit_slows_what_is_bound_by_compute():
    whole, half = (
        by_sku(answered("predict", "prefill:tokens=4096", *extra))[H100]["median"]
        for extra in ((), ("--power-limit", "h100=350"))
    )
    assert 1.05 < half / whole < 2
    gemm = [
        by_sku(answered("predict", "prefill:tokens=4096", "--metric", "gemm_time", *extra))
        for extra in ((), ("--power-limit", "h100=350"))
    ]
    assert gemm[1][H100]["median"] > 1.05 * gemm[0][H100]["median"]
    assert gemm[1][H200] == gemm[0][H200]


def test_decoding_that_memory_bounds_does_not_feel_a_limit():
    workload = "decode:batch=1,context=512"
    whole, half = (
        by_sku(answered("predict", workload, *extra))[H100]
        for extra in ((), ("--power-limit", "h100=350"))
    )
    assert half["median"] == pytest.approx(whole["median"], rel=0.005)


def test_the_cards_own_limit_changes_nothing_but_the_remark():
    found = answered("predict", PREFILL, "--power-limit", "h100=700")
    assert found["results"] == answered("predict", PREFILL)["results"]
    assert any("power limits act through" in remark for remark in found["remarks"])
    both = answered("predict", PREFILL, "--power-limit", "h100=500", "H200-141GB-SXM=500")
    again = ("--power-limit", "h100=500", "--power-limit", "h200=500.0")
    assert answered("predict", PREFILL, *again)["results"] == both["results"]


@pytest.mark.parametrize(
    ("limit", "complaint"),
    [
        ("h100=701", "give SKU=W from 350 to the card's 700 W"),
        ("h100=1e9", "give SKU=W from 350 to the card's 700 W"),
        ("h100=349", "lower limits nobody measured"),
        ("h100=0", "give SKU=W from 350 to the card's 700 W"),
        ("h100=-400", "give SKU=W from 350 to the card's 700 W"),
        ("h100=nan", "give SKU=W from 350 to the card's 700 W"),
        ("h100=inf", "give SKU=W from 350 to the card's 700 W"),
        ("h100=400W", "give SKU=W from 350 to the card's 700 W"),
        ("h100=400=500", "give SKU=W from 350 to the card's 700 W"),
        ("h100=", "give SKU=W from 350 to the card's 700 W"),
        ("h100", "give SKU=W from 350 to the card's 700 W"),
        ("b200=700", "B200-180GB-SXM is not among the SKUs asked for"),
        ("h1000=400", "unknown SKU 'h1000'; did you mean h100"),
        ("=400", "unknown SKU ''"),
        ("400", "unknown SKU '400'"),
        ("\x1b[2J=1\n", "unknown SKU"),
        ("nothing.json=400", "nothing.json: no such file"),
        ("", "argument --power-limit: is empty"),
    ],
)
def test_a_bad_power_limit_is_refused(limit, complaint):
    for command in ("rank", "predict"):
        message = refusal(asked(command, PREFILL, "--power-limit", limit))
        assert complaint in message
        assert message.isprintable()


def test_one_limit_a_card():
    twice = asked("rank", PREFILL, "--power-limit", "h100=400", "H100-80GB-SXM=500")
    assert "H100-80GB-SXM is given twice; name each once" in refusal(twice)


def test_a_power_limit_is_of_served_work_and_of_posteriors_that_know_it():
    limit = ("--power-limit", "h100=400")
    benchmark = asked("rank", PREFILL, *limit, "--regime", "benchmark")
    assert "--power-limit is of served work; regime benchmark is not" in refusal(benchmark)
    plain = asked("rank", PREFILL, *limit, "--posterior", "gemm_bf16-const_ceiling")
    assert "knows no power limits; leave --power-limit out" in refusal(plain)


# --- bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["step_time", "tpot", "tokens_per_second"])
@pytest.mark.parametrize(
    ("workload", "extra", "complaint"),
    [
        ("decode:batch=1,context=131072", (), "a sequence of 131073 tokens exceeds the 131072"),
        ("mixed:prefill=16,batch=1,context=200000", (), "tokens exceeds the 131072 tokens"),
        ("decode:batch=0,context=16", (), "batch must be a whole number of at least 1"),
        ("decode:batch=-1,context=16", (), "batch must be a whole number of at least 1"),
        ("decode:context=16", (), "batch is missing"),
        (DECODE, ("--tp", "64"), "tp=64 does not divide the 32 attention heads of llama-3.1-8b"),
        (DECODE, ("--tp", "3"), "use one of 1, 2, 4, 8, 16, 32"),
        (DECODE, ("--tp", "0"), "tp must be a whole number of at least 1"),
        (DECODE, ("--backend", "TRTLM"), "unknown backend 'TRTLM'; did you mean trtllm?"),
        (DECODE, ("--dtype", "int8"), "unknown dtype 'int8'; known: bf16, fp8, w4a16"),
        (DECODE, ("--draws", "1"), "--draws 1: give between 4 and"),
        (DECODE, ("--mass", "2"), "interval mass 2.0 must lie between 0 and 1"),
    ],
)
def test_a_bad_step_is_refused(metric, workload, extra, complaint):
    assert complaint in refusal(asked("rank", workload, "--metric", metric, *extra))


@pytest.mark.parametrize("metric", ["step_time", "ttft"])
@pytest.mark.parametrize(
    ("workload", "complaint"),
    [
        ("prefill", "expected key=number"),
        ("prefill:context=16", "tokens is missing"),
        ("prefill:tokens=0", "tokens must be a whole number of at least 1"),
        ("prefill:tokens=131073", "a sequence of 131073 tokens exceeds the 131072 tokens"),
        ("prefill:tokens=1,context=131072", "a sequence of 131073 tokens exceeds the 131072"),
    ],
)
def test_a_bad_prompt_is_refused(metric, workload, complaint):
    assert complaint in refusal(asked("predict", workload, "--metric", metric))


def test_a_step_needs_an_llm():
    for metric in ((), ("--metric", "tpot")):
        message = refusal(asked("rank", DECODE, *metric, llm=()))
        assert "needs an LLM; give --llm" in message


def test_a_step_that_fits_nowhere_is_exit_code_three():
    outcome = asked("rank", DECODE, llm=("--llm", "llama-3.1-405b"))
    assert "does not fit" in refusal(outcome, code=3)


def test_a_card_that_cannot_hold_the_llm_has_no_operator_times():
    question = {"llm": ("--llm", "llama-3.1-70b"), "sku": ("--sku", "a100", "b200")}
    found = by_sku(answered("predict", "decode:batch=1,context=16", "--by", "op", **question))
    small, large = found["A100-80GB-SXM"], found["B200-180GB-SXM"]
    assert "does not fit: weights and KV cache need 141.1 GB a GPU" in small["reason"]
    assert small["median"] is None
    assert {op["median"] for op in small["ops"]} == {None}
    assert all(op["median"] > 0 for op in large["ops"])
    (entry,) = answered("rank", "decode:batch=1,context=16", **question)["results"]
    assert entry["choice"] == "B200-180GB-SXM"
    assert entry["pairs"] == []


# --- attention kernels -----------------------------------------------------------------------

ATTENTION = {
    "decode": "attention:phase=decode,batch=64,context=2048,heads=32,kv_heads=8",
    "prefill": "attention:phase=prefill,batch=1,tokens=2048,heads=32,kv_heads=8",
}
every_phase = pytest.mark.parametrize("phase", ["decode", "prefill"])


@every_phase
def test_an_attention_kernel_is_answered_by_its_own_posterior(phase):
    found = answered("rank", ATTENTION[phase], llm=())
    assert set(found) == HEAD | {"crossovers"}
    assert (found["llm"], found["metric"], found["units"]) == (None, "attention_time", "s")
    assert found["posterior"] == ASSEMBLY.parts[f"attention_{phase}"]
    for sku in by_sku(found).values():
        assert set(sku) == RANKED
        assert 1e-7 < sku["interval"]["low"] < sku["median"] < sku["interval"]["high"] < 0.1
        assert sku["basis"] == "measured"
        assert sku["extrapolating"] is False
        assert sku["fits"] is True
    by_op = answered("predict", ATTENTION[phase], "--by", "op", llm=())
    assert [op["op"] for op in by_sku(by_op)[H100]["ops"]] == ["attention"]
    named = answered("rank", ATTENTION[phase], "--metric", "attention_time", llm=())
    assert named == found


@every_phase
def test_more_attention_takes_longer(phase):
    short = ATTENTION[phase]
    long = short.replace("2048", "16384")
    wide = short.replace("heads=32,kv_heads=8", "heads=64,kv_heads=16")
    times = [
        by_sku(e)[H100]["median"]
        for e in (answered("predict", s, llm=()) for s in (short, long, wide))
    ]
    assert times[1] > 4 * times[0]
    assert times[2] > 1.3 * times[0]


@every_phase
def test_attention_depends_on_the_backend_and_knows_three(phase):
    times = [
        by_sku(answered("predict", ATTENTION[phase], "--backend", backend, llm=()))[H100]["median"]
        for backend in ("any", "sglang", "trtllm", "vllm")
    ]
    assert len(set(times)) == 4
    unknown = asked("rank", ATTENTION[phase], "--backend", "vlm", llm=())
    assert "unknown backend 'vlm'; did you mean vllm?" in refusal(unknown)


def test_attention_beyond_the_fitted_range_is_marked():
    odd = "attention:phase=decode,batch=1,context=2048,heads=32,kv_heads=8,head_dim=64"
    found = by_sku(answered("rank", odd, llm=()))
    assert all("head_dim = 64 is outside" in sku["reason"] for sku in found.values())
    assert all(sku["extrapolating"] for sku in found.values())


@every_phase
@pytest.mark.parametrize(
    ("more", "extra", "llm", "complaint"),
    [
        ((), (), LLM, "attention: workloads name a kernel; leave --llm out"),
        ((), ("--metric", "step_time"), (), "attention: kernels and --metric attention_time go"),
        ((), ("--metric", "gemm_time"), (), "attention: kernels and --metric attention_time go"),
        ((), ("--metric", "tpot"), (), "attention: kernels and --metric attention_time go"),
        (("gemm:m=1,n=128,k=128",), (), (), "no other workload with them"),
        ((DECODE,), (), LLM, "no other workload with them"),
        ((DECODE,), ("--metric", "attention_time"), LLM, "no other workload with them"),
        ((), ("--tp", "2"), (), "tp=2 means nothing for an attention kernel"),
        ((), ("--posterior", options.GEMM_POSTERIOR), (), "predicts no attention; use an assembly"),
    ],
)
def test_attention_is_asked_for_by_itself(phase, more, extra, llm, complaint):
    assert complaint in refusal(asked("rank", (ATTENTION[phase], *more), *extra, llm=llm))


def test_attention_of_two_phases_is_asked_for_in_two_calls():
    both = asked("predict", tuple(ATTENTION.values()), llm=())
    assert "kernels of prefill and of decode cannot be mixed" in refusal(both)
    twice = asked("predict", (ATTENTION["decode"],) * 2, llm=())
    assert "is given twice; name each once" in refusal(twice)
    steps = asked("predict", DECODE, "--metric", "attention_time")
    assert "go together" in refusal(steps)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("attention:phase=decode", "batch is missing"),
        ("attention:batch=1,context=16,heads=8,kv_heads=8", "phase must be one of"),
        ("attention:phase=train,batch=1,context=16,heads=8,kv_heads=8", "phase must be one of"),
        ("attention:phase=decode,batch=1,context=16,heads=12,kv_heads=8", "does not divide"),
        ("attention:phase=prefill,batch=1,context=16,heads=8,kv_heads=8", "tokens is missing"),
        ("attention:phase=decode,batch=0,context=16,heads=8,kv_heads=8", "batch must be a whole"),
    ],
)
def test_a_bad_attention_kernel_is_refused(spec, complaint):
    assert complaint in refusal(asked("rank", spec, llm=()))


# --- every card and every LLM ----------------------------------------------------------------


@pytest.mark.parametrize("name", ["a40", "l4", "rtx-4090"])
def test_a_card_that_nobody_measured_is_answered_as_such(name):
    question = {"sku": ("--sku", "h100", name), "llm": ("--llm", "llama-3.2-3b")}
    found = answered("rank", ("decode:batch=8,context=512", "prefill:tokens=512"), **question)
    for at in (0, 1):
        held = by_sku(found, at)
        (other,) = set(held) - {H100}
        assert held[H100]["basis"] == "measured"
        assert held[other]["basis"] in ("architecture", "population")
        ratio = [sku["interval"]["high"] / sku["interval"]["low"] for sku in held.values()]
        assert all(1 < r < 100 for r in ratio)
        assert held[other]["median"] > held[H100]["median"]
    assert any("nobody measured the SKU itself" in remark for remark in found["remarks"])


def shares(name):
    """As many GPUs as the LLM needs for some card to hold it."""
    return "8" if "405b" in name else "1"


@pytest.mark.parametrize("name", DATABASE.llms())
def test_every_card_answers_for_every_llm(name):
    """Finite numbers for each that holds the LLM; a reason for each that does not."""
    specs = (
        "decode:batch=4,context=512",
        "prefill:tokens=512",
        "mixed:prefill=64,batch=4,context=512",
    )
    question = {
        "llm": ("--llm", name),
        "sku": ("--sku", *DATABASE.skus()),
        "draws": ("--draws", "20"),
    }
    found = answered("predict", specs, "--tp", shares(name), **question)
    for entry in found["results"]:
        assert sorted(sku["sku"] for sku in entry["skus"]) == DATABASE.skus()
        assert any(sku["fits"] for sku in entry["skus"])
        for sku in entry["skus"]:
            if sku["fits"]:
                assert 0 < sku["interval"]["low"] <= sku["median"] <= sku["interval"]["high"] < 100
                assert 0 < sku["mean"] < 100
            else:
                assert sku["median"] is sku["mean"] is sku["interval"]["low"] is None
                assert "does not fit" in sku["reason"]


def test_every_card_breaks_a_step_down():
    question = {"llm": ("--llm", "llama-3.2-1b"), "sku": ("--sku", *DATABASE.skus())}
    found = answered(
        "predict", (DECODE, PREFILL), "--by", "op", draws=("--draws", "20"), **question
    )
    for entry, absent in zip(found["results"], ("prefill", "decode"), strict=True):
        for sku in entry["skus"]:
            assert sku["fits"]
            assert 0 <= sku["p_host_bound"] <= 1
            for op in sku["ops"]:
                runs = op["op"] != f"attention_{absent}"
                assert (0 < op["median"] < 100) if runs else op["median"] == 0
                if runs and op["op"] != "host":
                    assert sum(op["bounds"].values()) == pytest.approx(1, abs=1e-9)


def test_no_card_and_no_llm_is_left_out():
    assert len(DATABASE.skus()) == 18
    assert len(DATABASE.llms()) == 15
    assert set(ASSEMBLY.parts) == {*PARTS, "kv_fp8"}


# --- words -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("other", "told"), [(0.5, False), (0.1, True)])
def test_a_choice_whose_regret_in_percent_is_not_the_least_is_explained(other, told):
    """Regrets in seconds and relative ones may order GPUs differently; the table has the latter."""
    skus = [{"sku": "a", "relative_regret": 0.2}, {"sku": "b", "relative_regret": other}]
    entry = {"choice": "a", "verdict": "too close to call", "skus": skus}
    assert ("relative to the best" in tables._verdict(entry)) is told
