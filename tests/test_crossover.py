"""Crossovers: between neighbouring workloads whose choice differs, at the size that matters."""

import dataclasses
import json

import numpy as np
import pytest
import xarray as xr
from helpers import run

from m2bayes import crossover, tables
from m2bayes.answer import answers, ranked
from m2bayes.question import Question, step_times
from m2bayes.workload import parse_workload

SPECS = ("decode:batch=1,context=512", "decode:batch=256,context=512", "prefill:tokens=64")


@pytest.fixture
def question(database):
    posterior = database.draws("gemm_bf16-const_ceiling").isel(draw=slice(10))
    return Question(
        posterior=posterior,
        datasheets=database.datasheets(["h100", "h200"]),
        llm=database.llm("llama-3.1-8b"),
        workloads=[parse_workload(spec) for spec in SPECS],
    )


def results(*choices, full=()):
    return [
        {
            "workload": parse_workload(s).label,
            "choice": c,
            "skus": [
                {"sku": sku, "fits": sku not in full} for sku in ("H100-80GB-SXM", "H200-141GB-SXM")
            ],
        }
        for s, c in zip(SPECS, choices, strict=True)
    ]


def crossing_at(size):
    """Draws in which H200 is faster below `size` new tokens and H100 from there on."""

    def step_times(question, steps, noise=0):
        tokens = np.array([step.new_tokens for step in steps], dtype=float)
        skus = [str(s) for s in question.datasheets["sku"].values]
        time = [np.full_like(tokens, 1.0) if "H200" in s else size / tokens for s in skus]
        half = np.stack([np.array(time) / 2] * 2, axis=-1)  # two operators make up the time
        draws = np.broadcast_to(half, (2, 10, len(skus), len(tokens), 2))
        return xr.DataArray(
            draws,
            dims=("chain", "draw", "sku", "workload", "op"),
            coords={"sku": skus, "workload": [step.label for step in steps]},
        )

    return step_times


def test_a_known_crossover_is_found_within_one_step_of_the_grid(question, monkeypatch):
    monkeypatch.setattr(crossover, "step_times", crossing_at(100))
    (found,) = crossover.crossovers(question, results("H200-141GB-SXM", "H100-80GB-SXM", None))
    ratio = 256 ** (1 / (crossover.STEPS - 1))
    assert 100 < found["median"] <= 100 * ratio + 1
    assert found["interval"]["low"] == found["interval"]["high"] == found["median"]
    assert (found["size"], found["p_between"]) == ("batch", 1.0)
    assert (found["before"], found["after"]) == ("H200-141GB-SXM", "H100-80GB-SXM")


def test_a_crossover_over_prompts_is_found_from_one_on(question, monkeypatch):
    """Four prompts of 64 tokens are 256 new ones; a prefill that names no batch is of one."""
    specs = ("prefill:tokens=64", "prefill:tokens=64,batch=4", "decode:batch=1,context=512")
    monkeypatch.setattr(crossover, "step_times", crossing_at(100))
    monkeypatch.setitem(globals(), "SPECS", specs)
    question = dataclasses.replace(question, workloads=[parse_workload(s) for s in specs])
    (found,) = crossover.crossovers(question, results("H200-141GB-SXM", "H100-80GB-SXM", None))
    assert (found["size"], found["median"], found["tried"]) == ("batch", 2, [1, 4])
    assert found["between"] == list(specs[:2])


def spread(question, steps, noise=0):
    """Draws that turn at 4, 64 and 1000 new tokens: H200 is faster below."""
    parts = [crossing_at(size)(question, steps, noise).isel(draw=[0]) for size in (4, 64, 1000)]
    return xr.concat(parts, dim="draw")


def test_the_interval_is_of_all_workloads_that_differ_in_the_one_size(database, monkeypatch):
    batches = (1, 16, 32, 128, 2048)
    steps = [parse_workload(f"decode:batch={batch},context=512") for batch in batches]
    question = Question(
        posterior=database.draws("gemm_bf16-const_ceiling").isel(draw=slice(10)),
        datasheets=database.datasheets(["h100", "h200"]),
        llm=database.llm("llama-3.1-8b"),
        workloads=steps,
    )
    skus = ["H200-141GB-SXM"] * 3 + ["H100-80GB-SXM"] * 2
    answered = [
        {"workload": s.label, "choice": c, "skus": [{"sku": x, "fits": True} for x in set(skus)]}
        for s, c in zip(steps, skus, strict=True)
    ]
    monkeypatch.setattr(crossover, "step_times", spread)
    (found,) = crossover.crossovers(question, answered)
    assert found["between"] == ["decode:batch=32,context=512", "decode:batch=128,context=512"]
    assert found["tried"] == [1, 2048]
    low, high = (found["interval"][end] for end in ("low", "high"))
    assert low < 32 < found["median"] < 128 < high
    assert found["interval"]["censored"] == []
    answered[0]["choice"] = None  # what lies beyond another choice is left out
    (found,) = crossover.crossovers(question, answered)
    assert found["tried"] == [16, 2048]
    assert found["interval"]["censored"] == ["low"]


def test_a_crossover_is_of_the_metric_that_was_asked_for():
    sizes = ["--workload", "prefill:tokens=64", "prefill:tokens=4096"]
    argv = ["rank", "--llm", "llama-3.1-8b", "--sku", "h200", "h100", "--draws", "40", *sizes]
    prices = ["--price", "h100=2", "h200=2"]
    metrics = (["tokens_per_second"], ["cost_per_million_tokens", *prices])
    times, *others = (
        json.loads(run(*argv, "--json", "--metric", *metric)[1])["crossovers"]
        for metric in (["step_time"], *metrics)
    )
    assert times
    assert others == [times] * 2  # at the same price
    metrics[1][-1] = "h200=2.1"
    assert json.loads(run(*argv, "--json", "--metric", *metrics[1])[1])["crossovers"] != times


def test_no_crossover_where_the_choice_stays_or_nothing_fits(question):
    assert crossover.crossovers(question, results("H200-141GB-SXM", "H200-141GB-SXM", None)) == []
    assert crossover.crossovers(question, results("H200-141GB-SXM", None, "H100-80GB-SXM")) == []


def test_a_sku_that_no_longer_fits_makes_no_crossover(question):
    changed = results("H200-141GB-SXM", "H100-80GB-SXM", None, full=("H200-141GB-SXM",))
    assert crossover.crossovers(question, changed) == []


def test_the_crossover_of_stored_draws_is_where_the_order_of_the_ranking_turns(database):
    """At the median crossover about half of the draws have turned; the grid decides how nearly."""
    tokens = [64, 4096]
    asked = Question(
        posterior=database.draws("gemm_bf16-hier_gemm").isel(draw=slice(250)),
        datasheets=database.datasheets(["h200", "h100"]),
        llm=database.llm("llama-3.1-8b"),
        workloads=[parse_workload(f"prefill:tokens={n}") for n in tokens],
    )
    (found,) = crossover.crossovers(asked, answers(asked, ranked))
    near = [parse_workload(f"prefill:tokens={found['median'] * f:.0f}") for f in (0.7, 1.0, 1.4)]
    time = step_times(asked, near).sum("op")
    turned = (time.sel(sku="H100-80GB-SXM") < time.sel(sku="H200-141GB-SXM")).mean(
        ("chain", "draw")
    )
    assert turned[0] < 0.5 < turned[2]


def test_workloads_of_another_kind_or_context_are_no_neighbours(question):
    changed = results("H200-141GB-SXM", "H200-141GB-SXM", "H100-80GB-SXM")
    assert crossover.crossovers(question, changed) == []


def test_a_draw_without_a_crossover_counts_at_the_far_end(question, monkeypatch):
    monkeypatch.setattr(crossover, "step_times", crossing_at(1e9))
    (found,) = crossover.crossovers(question, results("H200-141GB-SXM", "H100-80GB-SXM", None))
    assert (found["p_between"], found["median"]) == (0.0, 256.0)
    assert found["interval"]["censored"] == ["high"]


@pytest.mark.parametrize(
    ("size", "censored", "told"),
    [
        (
            100,
            [],
            "crossover at batch 128 (90 % interval 128 to 128), among 1 to 256 "
            "with probability 100.0 %: ",
        ),
        (
            1e9,
            ["high"],
            "(90 % interval 256 to 256 or more), among 1 to 256 with probability 0.0 %: ",
        ),
        (0.5, ["low"], "(90 % interval 1 or less to 1), among 1 to 256 with probability 100.0 %: "),
    ],
)
def test_an_interval_that_ends_with_the_sizes_tried_says_so(
    question, monkeypatch, size, censored, told
):
    monkeypatch.setattr(crossover, "step_times", crossing_at(size))
    found = crossover.crossovers(question, results("H200-141GB-SXM", "H100-80GB-SXM", None))
    assert found[0]["interval"]["censored"] == censored
    line = " ".join(tables.crossings(found).split())
    assert told in line
    assert line.endswith(": H200-141GB-SXM before, H100-80GB-SXM after")
