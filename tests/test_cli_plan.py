"""``m2bayes plan`` from outside: its JSON, its table, and one line for bad input."""

import json
import re

import pytest
from helpers import refusal, run

from m2bayes.database import Database

CHAT = ("--input-tokens", "1000", "--output-tokens", "300", "--ttft", "1", "--tpot", "0.05")
PLAN = ("plan", "--llm", "llama-3.1-8b", "--draws", "40", "--tp", "1")
EIGHT_BIT = "gemm_fp8-hier_gemm_fp8"
LONG = ("--input-tokens", "8192", "--output-tokens", "1024", "--ttft", "5", "--tpot", "0.1")
PUBLIC = {"H100-80GB-SXM": 22, "H200-141GB-SXM": 58, "B200-180GB-SXM": 82}


def planned(*argv):
    code, out, err = run(*PLAN, "--json", *argv)
    assert code == 0, err
    return json.loads(out)


@pytest.fixture(scope="module")
def two():
    return planned("--sku", "h100", "l40s", "--rate", "20", *CHAT, "--price", "h100=2.5", "l40s=1")


def test_the_json_holds_the_contract(two):
    keys = {"sku", "tp", "gpus", "p_slo", "cost_per_hour", "cost_per_million_tokens"}
    keys |= {"p_saturated", "verdict", "reason"}
    for row in two["results"]:
        assert keys <= set(row)
        assert 0.9 <= row["p_slo"] <= 1
        assert row["cost_per_hour"] == pytest.approx(
            row["gpus"] * {"H100-80GB-SXM": 2.5, "L40S-48GB-PCIe": 1}[row["sku"]]
        )
        assert row["verdict"] in ("clear", "either will do", "too close to call")
        assert row["reason"]
    costs = [row["expected_usd_per_year"] for row in two["results"]]
    assert costs == sorted(costs)
    assert two["choice"] == two["results"][0]["sku"]
    assert two["prices"] == "given"
    assert (two["rate"], two["confidence"], two["percentile"]) == (20, 0.9, 90)


def test_the_table_says_what_was_asked_and_chosen():
    argv = (*PLAN, "--sku", "h100", "--rate", "20", *CHAT, "--price", "example")
    code, out, err = run(*argv)
    assert code == 0
    head = out.splitlines()[:2]
    assert head[0] == "llama-3.1-8b, bf16: 20 requests/s, 1000 tokens in, 300 out"
    assert head[1].startswith("TTFT ≤ 1 s and TPOT ≤ 50 ms for 90 % of the requests")
    for word in ("GPUs", "USD/h", "P(SLO)", "saturated", "TTFT", "TPOT", "p90"):
        assert word in out
    assert re.search(r"clear; [0-9,]+ USD a year expected; the only plan", " ".join(out.split()))
    assert "prices: example.json of 2026-" in err
    assert run(*argv, "--quiet") == (0, out, "")


def test_a_wide_table_has_the_monte_carlo_error_of_each_probability(two, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    argv = (*PLAN, "--sku", "h100", "l40s", "--rate", "20", *CHAT)
    code, out, _ = run(*argv, "--price", "h100=2.5", "l40s=1")
    assert code == 0
    for row in two["results"]:
        text = f"{100 * row['p_slo']:.1f} ± {100 * row['p_slo_mcse']:.1f} %"
        assert any(text in line for line in out.splitlines() if row["sku"] in line)


def test_more_is_never_served_by_fewer(two):
    found = planned("--sku", "h100", "--rate", "60", *CHAT, "--confidence", "0.95")
    few = next(row for row in two["results"] if row["sku"] == found["choice"])
    assert found["results"][0]["gpus"] > few["gpus"]


def test_one_token_answers_have_no_tpot():
    argv = ("--rate", "5", "--input-tokens", "1000", "--output-tokens", "1", "--ttft", "1")
    (row,) = planned("--sku", "h100", *argv)["results"]
    assert set(row["tpot"].values()) == {None}
    assert row["ttft"]["p90"]["median"] > 0
    assert "TPOT p90" in run(*PLAN, "--sku", "h100", *argv)[1]


def test_a_tp_that_does_not_divide_is_skipped_with_the_reason():
    argv = ("--sku", "h100", "--rate", "1", *CHAT, "--tp", "3", "--draws", "40", "--json")
    code, out, _ = run("plan", "--llm", "llama-3.1-70b", "--tp", "1", "4", *argv)
    rows = {row["tp"]: row for row in json.loads(out)["results"]}
    assert code == 0
    assert (rows[3]["verdict"], rows[3]["gpus"]) == ("skipped", None)
    assert "tp=3 does not divide the 64 attention heads" in rows[3]["reason"]
    assert (rows[1]["verdict"], rows[1]["p_slo"]) == ("does not fit", 0)
    assert "ttft" not in rows[1]
    assert rows[4]["gpus"] % 4 == 0


def test_nothing_that_fits_is_exit_code_3():
    argv = ("--sku", "h100", "--rate", "1", *CHAT, "--json")
    line = refusal(run("plan", "--llm", "llama-3.1-405b", "--tp", "1", "--quiet", *argv), code=3)
    assert "does not fit: H100-80GB-SXM TP1 does not fit: weights and one request" in line


def test_a_target_that_nothing_meets_is_told_with_exit_code_3():
    argv = ("--rate", "5", "--input-tokens", "1000", "--output-tokens", "300", "--ttft", "0.001")
    code, out, _ = run(*PLAN, "--sku", "h100", *argv, "--json")
    found = json.loads(out)
    assert (code, found["choice"], found["verdict"]) == (3, None, "nothing fits")
    assert found["results"][0]["verdict"] == "infeasible SLO"
    assert found["results"][0]["reason"].startswith("TTFT of an idle server is")


def test_a_server_without_room_for_a_request_is_told_as_that():
    """Weights of 70 GB and the cache of 8,400 tokens on 80 GB: a matter of memory, not of time."""
    argv = ("--rate", "1", "--input-tokens", "8000", "--output-tokens", "400", "--tpot", "0.04")
    code, out, _ = run(
        "plan", "--llm", "llama-3.1-70b", "--tp", "2", "--sku", "h100", *argv, "--quiet", "--json"
    )
    (row,) = json.loads(out)["results"]
    assert (code, row["verdict"]) == (3, "infeasible SLO")
    assert row["reason"].startswith("a request finds no room beside the weights with probability")


def test_a_benchmark_of_so_many_users_is_judged():
    argv = ("--sku", "h100", "--concurrency", "32", "--gpus", "1", *CHAT)
    found = planned(*argv)
    (row,) = found["results"]
    assert found["concurrency"] == 32
    assert row["batch"]["median"] == 32
    assert row["p_ttft"] >= row["p_slo"] <= row["p_tpot"]


@pytest.mark.parametrize("given", ["mix", "trace"])
def test_mixes_and_traces_are_read(tmp_path, given):
    path = tmp_path / "requests.csv"
    head = {"mix": "weight", "trace": "arrival_time"}[given]
    path.write_text(f"{head},input_tokens,output_tokens\n1,100,10\n2,2000,300\n4,500,100\n")
    argv = ["--sku", "h100", f"--{given}", str(path), "--ttft", "1"]
    if given == "mix":
        argv += ["--rate", "2"]
    found = planned(*argv)
    assert len(found["requests"]) == 3
    assert found["rate"] == pytest.approx({"mix": 2, "trace": 2 / 3}[given])
    assert found["results"][0]["gpus"] == 1


BAD = {
    "--rate -3: give requests a second above 0": ("--rate", "-3", *CHAT),
    "--ttft 0: give seconds above 0": ("--rate", "5", *CHAT, "--ttft", "0"),
    "--tpot 50: beyond 10 s; did you mean 50ms?": (*("--rate", "5", *CHAT[:4], "--tpot", "50"),),
    "--ttft 1000: beyond 600 s; did you mean 1000ms?": (
        *("--rate", "5", *CHAT[:4], "--ttft", "1000"),
    ),
    "argument --tpot: '50min' is no time: give a number with s, ms or us, such as 50ms": (
        *("--rate", "5", *CHAT[:4], "--tpot", "50min"),
    ),
    "--tpot 0: give seconds above 0": ("--rate", "5", *CHAT, "--tpot", "0"),
    "give --rate in requests a second, or --concurrency": CHAT,
    "give --rate or --concurrency, not both": ("--rate", "5", "--concurrency", "5", *CHAT),
    "give both --input-tokens and --output-tokens": ("--rate", "5", *CHAT[:2], "--ttft", "1"),
    "or --mix FILE.csv, or --trace FILE.csv": ("--rate", "5", "--ttft", "1"),
    "no target: give --ttft, --tpot or both": ("--rate", "5", *CHAT[:4]),
    "--output-tokens 0: give 1 to": ("--rate", "5", *CHAT, "--output-tokens", "0"),
    "was made for 131,072; shorten them": ("--rate", "5", *CHAT, "--input-tokens", "140000"),
    "--price h200=3: H200-141GB-SXM is not among the SKUs asked for": (
        *("--rate", "5", *CHAT, "--price", "h200=3"),
    ),
    "--price h100=x: give SKU=USD_PER_HOUR": ("--rate", "5", *CHAT, "--price", "h100=x"),
    "--confidence 1.5: give a number between": ("--rate", "5", *CHAT, "--confidence", "1.5"),
    "--confidence 90: is a probability; did you mean 0.9?": (
        *("--rate", "5", *CHAT, "--confidence", "90"),
    ),
    "--percentile 0.9: is in percent; did you mean 90?": (
        *("--rate", "5", *CHAT, "--percentile", "0.9"),
    ),
    "--percentile 0: give a number between": ("--rate", "5", *CHAT, "--percentile", "0"),
    "--tp 0: give 1 or more": ("--rate", "5", *CHAT, "--tp", "0"),
    "--tp 1 is given twice": ("--rate", "5", *CHAT, "--tp", "1"),
    "--token-budget 100: give more tokens than": ("--rate", "5", *CHAT, "--token-budget", "100"),
    "--simulate is of arrivals at a rate": ("--concurrency", "5", *CHAT, "--simulate"),
    "--output-tokens 100000000: prompt and answer of 200,000,000 tokens": (
        *("--rate", "5", "--ttft", "1", "--input-tokens", "100000000"),
        *("--output-tokens", "100000000"),
    ),
    "is given twice; name each once": ("--rate", "5", *CHAT, "--price", "h100=2", "h100=3"),
    "--mix none.csv": ("--rate", "5", "--mix", "none.csv", "--ttft", "1"),
}


@pytest.mark.parametrize("says", BAD)
def test_bad_input_is_one_clear_line(says):
    line = refusal(run(*PLAN, "--quiet", "--sku", "h100", *BAD[says]))
    assert says.removeprefix("--mix ") in line


def test_a_fleet_that_no_replicas_make_is_refused():
    argv = ("plan", "--llm", "llama-3.1-8b", "--sku", "h100", "--rate", "5", *CHAT)
    line = refusal(run(*argv, "--tp", "4", "--gpus", "3"))
    assert "--gpus 3: no multiple of --tp 4; change one of them" in line


@pytest.mark.parametrize(
    ("option", "text", "says"),
    [
        ("--mix", "input_tokens,output_tokens,weight\n1,1,0\n", "all weights are 0"),
        ("--trace", "input_tokens,output_tokens\n5,5\n5,x\n", "line 3: output_tokens is 'x'"),
    ],
)
def test_a_bad_file_is_named_with_its_row(tmp_path, option, text, says):
    path = tmp_path / "requests.csv"
    path.write_text(text)
    argv = (*PLAN, "--quiet", "--sku", "h100", "--rate", "5", option, str(path), "--ttft", "1")
    assert says in refusal(run(*argv))


def test_a_figure_is_drawn(tmp_path):
    path = tmp_path / "plan.svg"
    argv = (*PLAN, "--sku", "h100", "--rate", "20", *CHAT, "--plot", str(path), "--quiet")
    code, _, err = run(*argv)
    assert code == 0, err
    assert path.read_text().startswith("<?xml")


@pytest.mark.slow
def test_a_simulation_stands_beside_the_approximation():
    row = planned("--sku", "h100", "--rate", "10", *CHAT, "--simulate")["results"][0]
    held = row["simulation"]
    for name in ("ttft", "tpot"):
        half = held[name]["p50"]
        assert half["approximated"] == pytest.approx(half["simulated"], rel=0.1)
    share = held["p_saturated"]
    assert abs(share["simulated"] - share["approximated"]) <= 0.05


def test_a_step_that_no_cache_holds_is_told_when_time_ranks():
    argv = ("rank", "--llm", "llama-3.1-70b", "--tp", "4", "--sku", "h100", "h200")
    code, _, err = run(
        *argv, "--draws", "40", "--metric", "tpot", "--workload", "decode:batch=64,context=8704"
    )
    assert code == 0
    assert "the KV cache binds at decode:batch=64,context=8704: H100-80GB-SXM holds" in err
    assert "m2bayes plan ranks by what is served" in err


@pytest.mark.slow
def test_a_public_measurement_of_an_8_bit_llm_is_ordered_by_goodput():
    """Llama-3.1-70B, TP 2: H100's TPOT is the shorter, but its cache holds a third."""
    if EIGHT_BIT not in Database().posteriors():
        pytest.skip(f"posterior {EIGHT_BIT} is not stored")
    argv = ("plan", "--llm", "llama-3.1-70b", "--dtype", "fp8", "--tp", "2", "--json")
    argv += ("--sku", *(sku.split("-")[0].lower() for sku in PUBLIC), *LONG, "--quiet")
    code, out, err = run(*argv, "--rate", "1")
    assert code == 0, err
    found = json.loads(out)
    order = [name.removesuffix(" TP2") for name in found["goodput_order"]["options"]]
    assert order == ["B200-180GB-SXM", "H200-141GB-SXM", "H100-80GB-SXM"]
    assert found["goodput_order"]["p_order"] >= 0.9
    for row in found["results"]:
        interval = row["sequences"]["interval"]
        assert interval["low"] <= PUBLIC[row["sku"]] <= interval["high"]
    code, out, err = run(*argv, "--concurrency", "64", "--gpus", "2")
    rows = {row["sku"]: row for row in json.loads(out)["results"]}
    assert rows["H100-80GB-SXM"]["p_ttft"] <= 0.05
