"""From a question to its answer: checks of the question, blocks, fit, basis and order."""

import dataclasses
import json

import numpy as np
import pytest
import xarray as xr

from m2bayes import answer
from m2bayes.answer import answers, number, predicted, ranked
from m2bayes.errors import InfeasibleError, UnknownNameError, WorkloadError
from m2bayes.feasibility import feasible, room
from m2bayes.llm import LLM
from m2bayes.memory import ENGINE_SHARE, RESERVE, cached_after
from m2bayes.predictive import predict, summary
from m2bayes.question import METRICS, Question, extrapolates, thinned
from m2bayes.workload import gemm_cells, kv_bytes_per_token, parse_workload, weight_bytes

SKUS = ["H200-141GB-SXM", "L4-24GB-PCIe", "A100-80GB-SXM"]
SPECS = [
    "decode:batch=64,context=2048",
    "prefill:tokens=4096",
    "decode:batch=1,context=16",
    "mixed:prefill=512,batch=64,context=2048",
    "prefill:tokens=40000",
]


@pytest.fixture(scope="module")
def llm(database):
    return database.llm("llama-3.1-8b")


@pytest.fixture(scope="module")
def question(database, synthetic_posterior, llm):
    return Question(
        posterior=synthetic_posterior,
        datasheets=database.datasheets(SKUS),
        llm=llm,
        workloads=[parse_workload(spec) for spec in SPECS],
    )


def asked(question, **changes):
    return dataclasses.replace(question, **changes)


def without_llm(question, *specs):
    return asked(question, llm=None, workloads=[parse_workload(spec) for spec in specs])


def entry_of(entries, workload):
    return next(e for e in entries if e["workload"] == workload)


def by_sku(entry):
    return {sku["sku"]: sku for sku in entry["skus"]}


# --- numbers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, np.float32("nan")])
def test_what_json_cannot_hold_becomes_none(value):
    assert number(value) is None
    assert number(xr.DataArray(value)) is None


@pytest.mark.parametrize("value", [0, 1, 1.5, np.float32(1.5), np.int64(3), xr.DataArray(2.5)])
def test_a_number_becomes_a_plain_float(value):
    assert type(number(value)) is float
    assert number(value) == float(value)


# --- the question ----------------------------------------------------------------------------


def test_cost_needs_the_price_of_every_sku(question):
    with pytest.raises(WorkloadError, match=r"price of L4-24GB-PCIe: give --price L4-24GB-PCIe="):
        asked(question, metric="cost_per_million_tokens", prices={SKUS[0]: (1.0, 2.0)})


@pytest.mark.parametrize("metric", ["step_time", "tpot", "ttft", "tokens_per_second"])
def test_a_whole_step_needs_more_than_a_posterior_of_matrix_products(question, metric):
    with pytest.raises(WorkloadError, match=r"needs more than GEMM times.* use gemm_time"):
        asked(question, metric=metric)


ATTENTION = "attention:phase=decode,batch=1,context=16,heads=8,kv_heads=8"


def test_attention_needs_a_posterior_that_predicts_it(question):
    with pytest.raises(WorkloadError, match="syn_gemm-hier_gemm predicts no attention"):
        asked(question, llm=None, workloads=[parse_workload(ATTENTION)], metric="attention_time")


@pytest.mark.parametrize("specs", [[ATTENTION], [ATTENTION, "gemm:m=1,n=128,k=128"]])
def test_a_gemm_metric_is_not_of_attention(question, specs):
    with pytest.raises(WorkloadError, match="go together, and no other workload with them"):
        without_llm(question, *specs)


def test_an_unknown_metric_is_answered_with_the_closest(question):
    with pytest.raises(UnknownNameError, match="did you mean gemm_time"):
        asked(question, metric="gem_time")


@pytest.mark.parametrize("mass", [0, 1, -0.1, 1.1, np.nan, np.inf])
def test_a_mass_that_is_none_is_refused(question, mass):
    with pytest.raises(WorkloadError, match="must lie between 0 and 1"):
        asked(question, mass=mass)


@pytest.mark.parametrize("threshold", [0.5, 0, -1, 2, np.nan])
def test_a_threshold_below_a_coin_or_above_certainty_is_refused(question, threshold):
    with pytest.raises(WorkloadError, match=r"must lie above 0\.5 and up to 1"):
        asked(question, threshold=threshold)
    assert asked(question, threshold=1.0).threshold == 1.0


@pytest.mark.parametrize("draws", [-1, 0, 1, 201, 10**9])
def test_more_draws_than_there_are_or_fewer_than_chains_are_refused(synthetic_posterior, draws):
    with pytest.raises(WorkloadError, match="give between 2 and 200"):
        thinned(synthetic_posterior, draws)


@pytest.mark.parametrize("draws", [2, 3, 40, 199, 200])
def test_thinned_draws_are_spread_evenly_over_each_chain(synthetic_posterior, draws):
    some = thinned(synthetic_posterior, draws)
    kept = some["draw"].values
    assert some.sizes["chain"] == 2
    assert len(kept) == draws // 2
    assert some.attrs == synthetic_posterior.attrs
    if len(kept) > 1:
        assert (kept[0], kept[-1]) == (0, 99)
        assert np.ptp(np.diff(kept)) <= 1
    xr.testing.assert_identical(some, synthetic_posterior.sel(draw=kept))


# --- blocks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("summarise", [ranked, predicted])
@pytest.mark.parametrize("block", [1, 10_000])
def test_blocks_of_workloads_give_the_same_as_one_block(question, monkeypatch, summarise, block):
    """The bounded-memory path: discrepancies must not depend on what else is asked."""
    whole = answers(question, summarise)
    told = []
    monkeypatch.setattr(answer, "BLOCK", block)
    parts = answers(question, summarise, advance=told.append)
    assert sum(told) == len(SPECS)
    assert len(told) > 1
    assert json.dumps(rounded(parts)) == json.dumps(rounded(whole))


def rounded(node):
    """Nested numbers to four digits: discrepancies are sums in single precision."""
    if isinstance(node, dict):
        return {key: rounded(value) for key, value in node.items()}
    if isinstance(node, list):
        return [rounded(value) for value in node]
    return float(f"{node:.4g}") if isinstance(node, float) else node


@pytest.mark.parametrize("block", [4_000_000, 1])
def test_steps_and_kernels_are_not_mixed_in_one_question(question, monkeypatch, block):
    monkeypatch.setattr(answer, "BLOCK", block)
    mixed = [question.workloads[0], parse_workload("gemm:m=1,n=128,k=128")]
    with pytest.raises(WorkloadError, match="ask for them in two calls"):
        answers(asked(question, workloads=mixed), ranked)


def test_one_workload_at_a_time_gives_the_same_as_many(question):
    together = answers(question, predicted)
    for i, workload in enumerate(question.workloads):
        (alone,) = answers(asked(question, workloads=[workload]), predicted)
        assert rounded(alone) == rounded(together[i])


def test_answers_come_in_the_order_asked(question):
    assert [entry["workload"] for entry in answers(question, ranked)] == SPECS
    backwards = answers(asked(question, workloads=question.workloads[::-1]), ranked)
    assert [entry["workload"] for entry in backwards] == SPECS[::-1]


def test_the_order_of_skus_changes_no_number(question):
    again = asked(question, datasheets=question.datasheets.isel(sku=[2, 0, 1]))
    assert rounded(answers(again, ranked)) == rounded(answers(question, ranked))


# --- numbers of an answer --------------------------------------------------------------------


def test_times_are_calls_times_kernel_times_summed_draw_by_draw(question):
    cells = gemm_cells(question.llm, question.workloads)
    time = (predict(question.posterior, cells, question.datasheets) * cells["calls"]).sum("op")
    expected = summary(time)
    for i, entry in enumerate(answers(question, predicted)):
        for sku, held in by_sku(entry).items():
            at = (SKUS.index(sku), i)
            if held["p_fits"] == 1:
                assert held["median"] == pytest.approx(expected["median"][at], rel=1e-12)
                assert held["interval"]["low"] == pytest.approx(expected["low"][at], rel=1e-12)


def test_operators_add_up_in_the_mean_but_not_in_the_median(question):
    for entry in answers(question, predicted):
        for sku in entry["skus"]:
            if not sku["fits"]:
                continue
            assert [op["op"] for op in sku["ops"]] == ["qkv", "o", "gate_up", "down"]
            parts = sum(op["mean"] for op in sku["ops"])
            assert sku["mean"] == pytest.approx(parts, rel=1e-12)
            low = sum(op["interval"]["low"] for op in sku["ops"])
            if sku["basis"] == "measured":  # else the operators all but move together
                assert sku["interval"]["low"] > low  # the mistake: adding up bounds


def test_probabilities_of_the_skus_that_fit_sum_to_one(question):
    for entry in answers(question, ranked):
        assert sum(sku["p_best"] for sku in entry["skus"]) == pytest.approx(1, abs=1e-12)


def test_ranked_and_predicted_agree_on_every_time(question):
    for one, other in zip(answers(question, ranked), answers(question, predicted), strict=True):
        for sku, held in by_sku(one).items():
            same = by_sku(other)[sku]
            assert rounded(held["interval"]) == rounded(same["interval"])
            for key in ("median", "mean"):
                assert number(held[key] or 0) == pytest.approx(same[key] or 0, rel=1e-9)
            for key in ("fits", "basis", "extrapolating"):
                assert held[key] == same[key]


def test_noise_widens_the_interval_and_more_runs_narrow_it(question):
    width = {}
    for noise in (0, 1, 99):
        (entry,) = answers(
            asked(question, workloads=question.workloads[:1]), predicted, noise=noise
        )
        interval = by_sku(entry)["A100-80GB-SXM"]["interval"]
        width[noise] = interval["high"] / interval["low"]
    assert width[1] > width[99]


def test_a_wider_mass_gives_a_wider_interval(question):
    one = asked(question, workloads=question.workloads[:1])
    (half,), (most,) = (answers(asked(one, mass=mass), predicted) for mass in (0.5, 0.95))
    fitting = {sku: held for sku, held in by_sku(half).items() if held["fits"]}
    assert fitting
    for sku, held in fitting.items():
        wide = by_sku(most)[sku]["interval"]
        assert wide["mass"] == 0.95
        assert wide["low"] < held["interval"]["low"] < held["interval"]["high"] < wide["high"]


# --- fit, basis, extrapolation, order --------------------------------------------------------


def test_skus_are_sorted_by_median_with_those_that_do_not_fit_last(question, database):
    big = asked(question, llm=database.llm("llama-3.1-70b"), workloads=question.workloads[2:3])
    big = asked(big, datasheets=database.datasheets(["l4", "b300", "a100", "gb300"]))
    (entry,) = answers(big, ranked)
    medians = [sku["median"] for sku in entry["skus"]]
    assert medians[:2] == sorted(medians[:2])
    assert medians[2:] == [None, None]
    assert {sku["sku"] for sku in entry["skus"][2:]} == {"L4-24GB-PCIe", "A100-80GB-SXM"}
    for sku in entry["skus"][2:]:
        assert sku["fits"] is False
        assert sku["p_best"] == 0
        assert sku["mean"] is sku["interval"]["low"] is sku["expected_regret"] is None
        assert "141.1 GB a GPU, the memory is" in sku["reason"]
    assert entry["choice"] == entry["skus"][0]["sku"]
    assert len(entry["pairs"]) == 1


@pytest.mark.parametrize(("spare", "p_fits"), [(RESERVE[0], 0), (RESERVE[1], 1)])
def test_memory_decides_to_the_byte_but_for_the_reserve(question, llm, spare, p_fits):
    step = question.workloads[0]
    need = weight_bytes(llm) + cached_after(step) * kv_bytes_per_token(llm)
    sheets = question.datasheets
    memory = (need + spare) / ENGINE_SHARE
    sheet = sheets.assign(memory=xr.full_like(sheets["memory"], memory))
    tight = asked(question, datasheets=sheet)
    assert room(tight, [step]).mean() == p_fits
    reasons = feasible(tight, [step])
    assert reasons.shape == (3, 1)
    assert ((reasons == "") == bool(p_fits)).all()


def test_an_uncertain_fit_is_one_draw_by_draw(question, llm):
    step = question.workloads[0]
    need = weight_bytes(llm) + cached_after(step) * kv_bytes_per_token(llm)
    middle = (need + sum(RESERVE) / 2) / ENGINE_SHARE
    sheet = question.datasheets
    sheet = sheet.assign(memory=xr.where(sheet["sku"] == SKUS[0], middle, sheet["memory"]))
    one = asked(question, datasheets=sheet, workloads=[step])
    (entry,) = answers(one, ranked)
    held = by_sku(entry)[SKUS[0]]
    assert held["fits"]
    assert 0.3 < held["p_fits"] < 0.7
    assert held["p_best"] <= held["p_fits"]
    assert f"fits with probability {held['p_fits']:.2f}" in held["reason"]
    (entry,) = answers(one, predicted)
    assert by_sku(entry)[SKUS[0]]["median"] > 0


def test_a_kernel_always_fits(question):
    kernels = without_llm(question, "gemm:m=1,n=128,k=128")
    assert (feasible(kernels, kernels.workloads) == "").all()


def test_nothing_that_fits_anywhere_is_an_error(question, database):
    big = asked(question, llm=database.llm("llama-3.1-405b"))
    with pytest.raises(InfeasibleError, match="no SKU can serve decode:batch=64,context=2048: H"):
        answers(big, ranked)


def test_one_workload_that_fits_nowhere_is_an_answer_beside_others(question):
    specs = ["decode:batch=1,context=16", "decode:batch=4096,context=8192"]
    both = asked(question, workloads=[parse_workload(spec) for spec in specs])
    fits, fails = answers(both, ranked)
    assert fits["choice"]
    assert fails["choice"] is None
    assert fails["pairs"] == []
    assert not any(sku["fits"] for sku in fails["skus"])
    assert sum(sku["p_best"] for sku in fails["skus"]) == 0


def test_the_basis_says_who_was_measured(question):
    bases = {s: held["basis"] for s, held in by_sku(answers(question, ranked)[2]).items()}
    assert bases == {
        "H200-141GB-SXM": "measured",
        "A100-80GB-SXM": "measured",
        "L4-24GB-PCIe": "population",
    }


@pytest.mark.parametrize(
    ("spec", "outside"),
    [
        ("gemm:m=32768,n=65536,k=128", ""),
        ("gemm:m=32769,n=128,k=128", "M = 32769 is outside the fitted 1 to 32768"),
        ("gemm:m=1,n=127,k=128", "N = 127 is outside the fitted 128 to 65536"),
        ("gemm:m=1,n=128,k=65537", "K = 65537 is outside the fitted 128 to 65536"),
        (
            "gemm:m=99999,n=1,k=128",
            "M = 99999 is outside the fitted 1 to 32768; N = 1 is outside the fitted 128 to 65536",
        ),
    ],
)
def test_sizes_outside_the_fitted_range_are_named(question, spec, outside):
    kernels = without_llm(question, spec)
    assert extrapolates(kernels, kernels.workloads) == [outside]
    (entry,) = answers(kernels, ranked)
    for sku in entry["skus"]:
        assert sku["extrapolating"] is bool(outside)
        assert sku.get("reason", "") == outside


def test_only_the_workload_outside_is_marked(question):
    marks = [e["skus"][0]["extrapolating"] for e in answers(question, ranked)]
    assert marks == [False, False, False, False, True]
    reason = "M = 40000 is outside the fitted 1 to 32768"
    assert extrapolates(question, question.workloads) == ["", "", "", "", reason]


def test_pairs_list_every_two_skus_that_fit_the_better_first(question):
    entry = entry_of(answers(question, ranked), SPECS[0])
    order = [sku["sku"] for sku in entry["skus"] if sku["fits"]]
    pairs = [(pair["better"], pair["worse"]) for pair in entry["pairs"]]
    assert pairs == [(a, b) for i, a in enumerate(order) for b in order[i + 1 :]]
    assert all(0 <= pair["p_flip"] <= 1 for pair in entry["pairs"])


def test_the_seed_decides_everything_that_is_drawn(question):
    one = asked(question, workloads=question.workloads[:1])
    again, other = answers(one, ranked), answers(asked(one, seed=1), ranked)
    assert again == answers(one, ranked)
    assert again != other


def test_sharing_the_llm_changes_shapes_and_memory(question, database):
    big = asked(question, llm=database.llm("llama-3.1-70b"), workloads=question.workloads[2:3])
    (entry,) = answers(asked(big, tp=4), ranked)
    assert by_sku(entry)["A100-80GB-SXM"]["fits"]
    assert not by_sku(entry)["L4-24GB-PCIe"]["fits"]


def test_every_metric_has_a_unit():
    times = ("step_time", "gemm_time", "attention_time", "tpot", "ttft")
    others = {"tokens_per_second": "token/s", "cost_per_million_tokens": "USD/Mtoken"}
    assert dict.fromkeys(times, "s") | others == METRICS


def test_an_llm_longer_than_its_context_is_refused(question):
    short = LLM(
        name="short", layers=1, hidden=256, heads=2, kv_heads=2, head_dim=128, intermediate=512,
        gated=True, vocab=100, tied_embeddings=True, max_context=64,
    )  # fmt: skip
    with pytest.raises(WorkloadError, match="exceeds the 64 tokens"):
        answers(asked(question, llm=short), ranked)
