"""What to measure next: candidates, their readings, and the command."""

import csv
import io
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from helpers import refusal, run
from scipy.stats import spearmanr

from m2bayes import options
from m2bayes.asking import ask
from m2bayes.information.candidates import HOURS, Candidate, candidates, losses, readings
from m2bayes.information.table import advice, table, worth_table
from m2bayes.information.worth import SHARE, USD, pays, worth
from m2bayes.question import metric_of, step_times
from m2bayes.workload import Attention, Kernel, Step, parse_workload

CLOSE = ["--llm", "llama-3.1-8b", "--sku", "h100", "h200", "--workload", "prefill:tokens=1024"]
FEW = ["--draws", "400"]
PRICES = {"H100-80GB-SXM": 3.0, "H200-141GB-SXM": 4.0}


def question(*argv):
    return ask(options.parser().parse_args(["next", *argv]))


@pytest.fixture(scope="module")
def close():
    asked = question(*CLOSE, "decode:batch=8,context=512", *FEW)
    loss = losses(asked)
    found = candidates(asked, loss)
    return asked, loss, found, readings(asked, found)


def test_the_loss_is_the_mean_over_workloads_relative_to_the_best(close):
    asked, loss, _, _ = close
    time = metric_of(asked, step_times(asked, asked.workloads))
    mean = time.mean(("chain", "draw"))
    expected = (time / mean.min("sku")).mean("workload")
    np.testing.assert_allclose(loss, expected.transpose(*loss.dims), rtol=1e-12)
    assert float(loss.mean(("chain", "draw")).min()) >= 1


def test_more_tokens_a_second_is_less_loss():
    asked = question(*CLOSE, *FEW, "--metric", "tokens_per_second")
    times = losses(question(*CLOSE, *FEW))
    np.testing.assert_allclose(losses(asked), times, rtol=0.02)


def test_a_sku_without_the_memory_has_no_loss_and_no_candidate():
    argv = ["--llm", "llama-3.1-70b", "--sku", "h100", "h200", "--tp", "1", *FEW]
    asked = question(*argv, "--workload", "decode:batch=1,context=128", "--metric", "gemm_time")
    loss = losses(asked)
    assert np.isnan(loss.sel(sku="H100-80GB-SXM")).all()


def test_candidates_are_steps_products_and_attention_of_each_sku_that_may_win(close):
    asked, _, found, _ = close
    kinds = {type(c.workload) for c in found}
    assert kinds == {Step, Kernel, Attention}
    assert {c.sku for c in found} == set(asked.datasheets["sku"].values)
    assert len({c.label for c in found}) == len(found)
    products = {c.workload for c in found if isinstance(c.workload, Kernel)}
    assert Kernel(m=1024, n=6144, k=4096) in products
    for c in found:
        assert parse_workload(c.workload.label) == c.workload
        assert c.hours == HOURS[c.kind]
        assert (c.workload.label in c.command(asked.llm)) == (c.kind != "step")
        assert ("--model meta-llama/Llama-3.1-8B " in c.command(asked.llm)) == (c.kind == "step")
        if c.kind == "step":
            mine = replace(asked.llm, repository="", name="mine")
            assert "--model '<Hugging Face id of mine>' " in c.command(mine)
    assert sum(c.clock for c in found) == 2


def test_a_clock_reading_of_a_card_that_nobody_measured_tells_of_its_long_products():
    """Of a measured card the timings have told already what the clock could say of them."""
    asked = question("--llm", "llama-3.1-8b", "--sku", "a40", "l4", "--workload",
                     "prefill:tokens=8192", *FEW)  # fmt: skip
    found = candidates(asked, losses(asked))
    (clock,) = [c for c in found if c.clock and c.sku == "A40-48GB-PCIe"]
    own = [c for c in found if not c.clock and c.sku == clock.sku and c.kind == "gemm"]
    read = readings(asked, [clock, *own])
    seen = read.sel(candidate=clock.label).values.ravel()
    assert np.exp(np.median(seen)) < 1  # of boost
    corr = {
        c.workload.m: np.corrcoef(seen, read.sel(candidate=c.label).values.ravel())[0, 1]
        for c in own
        if c.workload.n == 28672
    }
    assert corr[16384] < -0.2
    assert corr[16384] < corr[1] - 0.1


def test_a_sku_that_cannot_win_is_not_measured():
    asked = question("--llm", "llama-3.1-8b", "--sku", "h100", "b200", "l40s", "--workload",
                     "prefill:tokens=8192", *FEW)  # fmt: skip
    assert "L40S-48GB-PCIe" not in {c.sku for c in candidates(asked, losses(asked))}


def test_a_reading_of_the_step_itself_is_its_time_up_to_its_noise(close):
    asked, _, found, read = close
    time = np.log(step_times(asked, asked.workloads).sum("op"))
    for c in (c for c in found if c.kind == "step"):
        own = time.sel(sku=c.sku, workload=c.workload.label).transpose("chain", "draw").values
        seen = read.sel(candidate=c.label).transpose("chain", "draw").values
        assert 0 < np.std(seen - own) < 0.02


def test_readings_move_with_what_they_read(close):
    """A product of the prefill tells of the prefill on its own card, and less of the other's."""
    asked, _, _, read = close
    label = "gemm:m=1024,n=28672,k=4096"
    time = np.log(step_times(asked, asked.workloads).sum("op")).sel(workload="prefill:tokens=1024")
    corr = {}
    for sku in asked.datasheets["sku"].values:
        seen = read.sel(candidate=f"{label} on H100-80GB-SXM").values.ravel()
        own = time.sel(sku=sku).transpose("chain", "draw").values.ravel()
        corr[str(sku)] = spearmanr(seen, own)[0]  # of ranks: single draws have long tails
    assert corr["H100-80GB-SXM"] > max(0.2, corr["H200-141GB-SXM"])


def test_the_best_measurement_of_a_near_tie_is_that_of_a_contender():
    found = worth(question(*CLOSE), count=2)
    assert found["verdict"] == "too close to call"
    assert 0 < found["candidates"][0]["evsi"] <= found["evpi"]
    values = [step["evsi"] for step in found["sequence"]]
    assert values == sorted(values)
    assert not found["stop"]
    assert found["candidates"][0]["sku"] in {"H100-80GB-SXM", "H200-141GB-SXM"}
    json.dumps(found, allow_nan=False)
    text = table(found)
    assert "too close to call" in text
    assert found["candidates"][0]["measurement"] in text
    assert "take it:" in next(iter(advice(found)))


def test_money_scales_values_and_takes_the_cost_off():
    asked = question(*CLOSE, *FEW)
    plain = worth(asked, count=1)
    paid = worth(asked, count=1, spend=1e6, prices={"H100-80GB-SXM": 3.0})
    by_label = {row["measurement"]: row for row in plain["candidates"]}
    assert paid["units"] == "USD/year"
    for row in paid["candidates"]:
        assert row["evsi"] == pytest.approx(1e6 * by_label[row["measurement"]]["evsi"])
        if row["sku"] == "H100-80GB-SXM":
            assert row["net"] == pytest.approx(row["evsi"] - 3 * row["gpu_hours"])
        else:
            assert row["net"] is None


TOGETHER = [f"prefill:tokens={t}" for t in (64, 128, 256, 512, 1024, 2048, 4096, 8192)]
TOGETHER += [f"decode:batch={b},context={c}" for b in (1, 2, 4, 8, 16, 32, 64) for c in (512, 2048)]


def test_what_pays_only_together_is_no_reason_to_stop():
    """Two cards near a tie: a reading of one says little, readings of both most of it."""
    cards = ["--sku", "h100", "h200", "gb300", "b200"]
    found = worth(question("--llm", "llama-3.1-8b", *cards, "--workload", *TOGETHER), count=3)
    steps = found["sequence"]
    assert not pays(found["candidates"][0], found["least"])
    assert [pays(step, found["least"]) for step in steps] == [False, True, True]
    assert not found["stop"]
    said = list(advice(found))
    assert said[0] == "none is worth taking alone, 2 together are"
    assert [line for line in said if line.startswith("take it: ")] == [
        f"take it: {step['command']}" for step in steps[:2]
    ]


def test_a_sequence_costs_what_all_its_measurements_cost():
    found = worth(question(*CLOSE, *FEW), count=2, spend=1e6, prices=PRICES)
    alone = {row["measurement"]: row for row in found["candidates"]}
    costs = [alone[step["measurement"]]["cost"] for step in found["sequence"]]
    assert [step["cost"] for step in found["sequence"]] == pytest.approx(np.cumsum(costs))
    for step in found["sequence"]:
        assert step["net"] == pytest.approx(step["evsi"] - step["cost"])
    dear = dict.fromkeys(PRICES, 1e9)
    assert worth(question(*CLOSE, *FEW), count=2, spend=1e6, prices=dear)["stop"]


@pytest.mark.parametrize(
    ("workload", "tp", "taken", "noted"),
    [
        (
            "prefill:tokens=1024",
            "1",
            "--input-len 1024 --output-len 1 --num-iters 5 --output-json run.json",
            'H100-80GB-SXM,"prefill:tokens=1024",T with T = avg_latency of run.json [s]',
        ),
        (
            "prefill:tokens=1024,batch=4",
            "1",
            "--batch-size 4 --input-len 1024 --max-num-batched-tokens 4096 --output-len 1 "
            "--num-iters 5 --output-json run.json",
            'H100-80GB-SXM,"prefill:tokens=1024,batch=4",T with T = avg_latency of run.json [s]',
        ),
        (
            "prefill:tokens=512,context=1000,batch=4",
            "1",
            "take it: in your engine, time 4 prompts of 512 tokens in one step, each after 1000 "
            "tokens that it has cached",
            'H100-80GB-SXM,"prefill:tokens=512,context=1000,batch=4",T with T = what it took [s]',
        ),
        (
            "decode:batch=64,context=2048",
            "2",
            "--input-len 1984 --output-len 129 --num-iters 5 --output-json run.json",
            'H100-80GB-SXM,"decode:batch=64,context=2048",T,2 with T = (avg_latency of run.json '
            "less that of a second run with --output-len 1) / 128 [s]",
        ),
    ],
)
def test_a_step_is_taken_and_noted_as_calibrate_reads_it(workload, tp, taken, noted):
    """128 steps of a decode go through the context that is named, half of them below it."""
    asked = question("--llm", "llama-3.1-8b", "--sku", "h100", "--tp", tp, "--workload", workload)
    step = Candidate("H100-80GB-SXM", asked.workloads[0], 5, tp=int(tp))
    row = {"measurement": step.label, "sku": step.sku, "kind": "step", "evsi": 1.0, "net": None}
    row |= {"evsi_mcse": 0.0, "command": step.command(asked.llm)}
    found = {"stop": False, "least": 0.1, "candidates": [row], "sequence": []}
    take, note, use = advice(found)
    assert take.endswith(taken)
    assert note.endswith(noted)
    assert use == "use it: m2bayes rank … --calibrate steps.csv"


def test_what_is_worth_nothing_has_no_value_in_the_table():
    row = {"measurement": "m", "evsi": 1e-9, "evsi_mcse": 1.0, "resolved": 0.1, "gpu_hours": 1.0}
    row |= {"p_change": 0.0, "net": None}
    found = {"units": SHARE, "verdict": "clear", "candidates": [row] * 9, "sequence": [row]}
    assert worth_table(found).strip() == "none of 9 measurements is worth more than its error"
    found["sequence"] = [row, row | {"evsi": 5.0}]
    text = worth_table(found)
    assert "none is worth more than its error alone" in text
    assert [line.split()[1] for line in text.splitlines()[-2:]] == ["-", "500.000"]
    assert text.count("10.0 %") == 3


@pytest.mark.parametrize("columns", [80])
def test_with_money_a_measurement_takes_few_lines(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    label = "attention:phase=decode,batch=64,context=2049,heads=32,kv_heads=8,head_dim=128"
    row = {"measurement": f"{label} on H100-80GB-SXM", "evsi": 34190.0, "evsi_mcse": 801.0}
    row |= {"p_change": 0.268, "resolved": 0.093, "gpu_hours": 0.02, "net": 34187.0}
    lines = worth_table({"units": USD, "candidates": [row, row], "sequence": []}).splitlines()
    assert len(lines) <= 2 + 2 * 3
    assert all(len(line) <= columns for line in lines)
    assert "net" in lines[0] + lines[1]


def test_a_clear_choice_says_stop():
    code, out, err = run("next", "--llm", "llama-3.1-8b", "--sku", "b200", "l40s", "--workload",
                         "prefill:tokens=8192", *FEW)  # fmt: skip
    assert code == 0
    assert "clear" in out
    assert "stop:" in err


def test_csv_and_json_hold_every_candidate():
    code, out, _ = run("next", *CLOSE, *FEW, "--json")
    found = json.loads(out)
    assert code == 0
    code, out, _ = run("next", *CLOSE, *FEW, "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [r["measurement"] for r in rows] == [r["measurement"] for r in found["candidates"]]


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--repeats", "0"], "--repeats 0: give 1 to 1000"),
        (["--count", "0"], "--count 0: give 1 to 1000"),
        (["--spend", "0"], "--spend 0: give the USD of a year"),
        (["--worth", "1"], "--worth 1: give a share from 0"),
        (["--gpu-hour", "h100"], "--gpu-hour h100: give SKU=USD"),
        (["--gpu-hour", "h100=-1"], "--gpu-hour h100=-1: give SKU=USD"),
        (["--gpu-hour", "zz=1"], "unknown SKU 'zz'"),
    ],
)
def test_what_cannot_be_is_refused(argv, complaint):
    assert complaint in refusal(run("next", *CLOSE, *FEW, *argv))


def test_workloads_that_no_sku_can_serve_together_are_named_with_the_reason():
    few = ["--sku", "h100", "l40s", "--workload"]
    both = [*few, "decode:batch=1,context=512", "decode:batch=64,context=8192"]
    line = refusal(run("next", "--quiet", "--llm", "llama-3.1-8b", *both, *FEW), code=3)
    assert "no SKU can serve every workload: " in line
    assert "L40S-48GB-PCIe decode:batch=64,context=8192: does not fit" in line


def test_draws_of_losses_and_readings_are_the_same_draws(close):
    _, loss, _, read = close
    xr.testing.assert_equal(loss["draw"].drop_vars("draw"), read["draw"].drop_vars("draw"))


def test_a_plan_says_what_would_settle_it():
    fleet = ("--llm", "llama-3.1-8b", "--sku", "h100", "h200", "--tp", "1", "--rate", "20")
    lengths = ("--input-tokens", "1000", "--output-tokens", "300", "--ttft", "1", "--tpot", "0.05")
    asked = (*fleet, *lengths, "--price", "h100=3", "h200=3.1", "--draws", "100", "--next")
    code, out, _ = run("plan", *asked, "--json")
    assert code == 0
    found = json.loads(out)["next"]
    assert found["units"] == "USD/year"
    assert all(row["evsi"] <= found["evpi"] for row in found["candidates"])
    assert {row["kind"] for row in found["candidates"]} == {"step", "gemm", "attention", "clock"}
    assert {row["sku"] for row in found["candidates"]} <= {"H100-80GB-SXM", "H200-141GB-SXM"}


def test_what_is_worth_nothing_is_one_line():
    argv = ("next", *CLOSE, *FEW, "--count", "1")
    code, out, _ = run(*argv, "--quiet")
    assert code == 0
    listed = [line for line in out.splitlines() if " on H" in line.split("together")[0]]
    found = json.loads(run(*argv, "--json")[1])
    assert 0 < len(listed) < len(found["candidates"]) / 2
    assert "none is worth more than its error alone" in out


def test_progress_leaves_nothing_in_a_file():
    err = run("next", *CLOSE, *FEW, "--count", "1")[2]
    assert err.startswith(("take it: ", "stop: "))


# --- on workers ------------------------------------------------------------------------------


def test_workers_have_the_numbers_of_one_process():
    """Two SKUs, printed digit by digit; in processes, whose matrix products use one thread."""
    pytest.importorskip("distributed", reason="needs pip install 'm2bayes[sweep]'")
    asked = [sys.executable, "-m", "m2bayes", "next", *CLOSE, *FEW, "--json", "--quiet"]
    here, there = (
        subprocess.run([*asked, *more], capture_output=True, text=True, check=True).stdout
        for more in ((), ("--workers", "2"))
    )
    assert there == here
    assert json.loads(here)["candidates"]


def test_a_sku_that_is_predicted_wrongly_is_seen(close):
    """Negative control: workers that know another seed."""
    asked, loss, found, _ = close

    def wrong(function, shared, jobs):
        question, *rest = shared if isinstance(shared, tuple) else (shared,)
        other = replace(question, seed=1)
        return [function((other, *rest) if rest else other, job) for job in jobs]

    def right(function, shared, jobs):
        return [function(shared, job) for job in jobs]

    xr.testing.assert_identical(losses(asked, each=right), loss)
    assert not losses(asked, each=wrong).equals(loss)
    few = found[::7]
    xr.testing.assert_identical(readings(asked, few, each=right), readings(asked, few))
    assert not readings(asked, few, each=wrong).equals(readings(asked, few))


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--workers", "257"), "--workers 257: give 0 to 256"),
        (("--workers", "-1"), "--workers"),
        (("--scheduler", "tcp://127.0.0.1:9"), "no Dask scheduler answers there"),
    ],
)
def test_workers_that_cannot_be_had_are_told(more, told, monkeypatch):
    pytest.importorskip("distributed", reason="needs pip install 'm2bayes[sweep]'")
    monkeypatch.setattr("m2bayes.sweeping.cluster.PATIENCE", "1s")
    assert told in refusal(run("next", *CLOSE, *FEW, *more))


def test_without_dask_the_remedy_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    line = refusal(run("next", *CLOSE, *FEW, "--workers", "1"))
    assert "pip install 'm2bayes[sweep]'; or give --workers 0" in line
