"""Fleets: size, monotone in what is asked, cost, regret, verdicts; a simulation beside."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from test_serving import surface

from m2bayes.errors import WorkloadError
from m2bayes.prices import HOURS_A_YEAR
from m2bayes.serving.fleet import fleets
from m2bayes.serving.goodput import goodput, users_served
from m2bayes.serving.loops import capacity, open_loop
from m2bayes.serving.mix import one_length
from m2bayes.serving.plan import Demand, Option, options_of, replicas_needed, steady
from m2bayes.serving.replica import replica
from m2bayes.serving.simulated import DRAWS as SIMULATED
from m2bayes.serving.simulated import REQUESTS, STEPS, affordable, simulated
from m2bayes.serving.sizing import sized

DRAWS = 60
LIKE = xr.Dataset(coords={"chain": range(2), "draw": range(DRAWS // 2)})
MIX = one_length(600, 200)
SPREAD = np.exp(0.1 * np.random.default_rng(1).standard_normal(DRAWS))


def demand_of(**changes):
    given_ = {"rate": 40.0, "ttft": 0.3, "tpot": 0.025} | changes
    return Demand(MIX, **given_)


def option_of(demand, sku="A", tp=1, speed=1.0, spread=SPREAD):
    """Option whose step times are `surface`'s over `speed`, each draw its own."""
    times = surface(*(spread / speed))
    tokens = np.full(len(spread), 150_000.0)
    server = replica(times, MIX, tokens)
    highest = capacity(server)
    targets = {"ttft": demand.ttft, "tpot": demand.tpot, "level": demand.level}
    find = goodput if demand.users is None else users_served
    found = find(server, highest, **targets)
    return Option(sku, tp, "", server, times, highest, found, tokens // 800, tokens)


def gpus_of(demand, **changes):
    return sized(option_of(demand, **changes), demand, 0.9)["gpus"]


def prices_of(**usd):
    shape = (2, DRAWS // 2, len(usd))
    values = np.broadcast_to([*usd.values()], shape)
    return xr.DataArray(values, {"sku": [*usd], **LIKE.coords}, ("chain", "draw", "sku"))


# --- how many --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("load", "confidence", "replicas"),
    [(4.0, 0.75, 2), (4.0, 0.76, 4), (0.5, 0.99, 1), (8.0, 0.5, 2), (8.1, 0.5, 3)],
)
def test_replicas_are_counted_by_draws(load, confidence, replicas):
    assert replicas_needed(np.array([1.0, 2.0, 4.0, 4.0]), load, confidence) == replicas


def test_draws_that_serve_nothing_bound_the_confidence():
    served = np.array([0.0, 1.0, 1.0, 1.0])
    assert replicas_needed(served, 5.0, 0.75) == 5
    assert replicas_needed(served, 5.0, 0.76) is None


@given(
    st.lists(st.floats(0.01, 100), min_size=1, max_size=50),
    st.floats(0.1, 1000),
    st.floats(0.01, 0.99),
    st.floats(1, 3),
    st.floats(0, 0.5),
)
def test_more_load_or_confidence_never_needs_fewer(served, load, confidence, more, surer):
    served = np.array(served)
    found = replicas_needed(served, load, confidence)
    assert replicas_needed(served, load * more, confidence) >= found
    assert replicas_needed(served, load, min(confidence + surer, 0.995)) >= found
    assert replicas_needed(served * more, load, confidence) <= found
    kept = np.mean(load / found <= served * (1 + 1e-9))
    assert kept >= confidence - 1e-9
    assert found == 1 or np.mean(load / (found - 1) <= served * (1 - 1e-9)) < confidence


@settings(max_examples=6)
@given(
    st.floats(5, 300),
    st.floats(0.06, 1.0),
    st.floats(0.014, 0.05),
    st.sampled_from(["rate", "ttft", "tpot", "level", "confidence"]),
)
def test_asking_for_more_never_needs_fewer_gpus(rate, ttft, tpot, what):
    plain = demand_of(rate=rate, ttft=ttft, tpot=tpot, level=0.8, confidence=0.7)
    more = {"rate": rate * 1.3, "ttft": ttft / 1.3, "tpot": tpot / 1.1, "level": 0.95}
    asked = replace(plain, **({what: more[what]} if what in more else {"confidence": 0.95}))
    few, many = (gpus_of(demand, spread=SPREAD[:15]) for demand in (plain, asked))
    assert many is None or few <= many


def test_a_faster_card_needs_fewer_and_a_wider_group_counts_all_its_gpus():
    demand = demand_of()
    assert gpus_of(demand, speed=2.0) < gpus_of(demand)
    assert gpus_of(demand, tp=4) == 4 * gpus_of(demand)


def test_users_are_split_evenly_too():
    demand = demand_of(rate=None, users=500)
    row = sized(option_of(demand), demand, 0.9)
    option = option_of(demand)
    state = steady(option, demand, row["replicas"])
    kept = state.tpot_tail(np.full(DRAWS, demand.tpot)) <= 0.1
    kept &= state.ttft_tail(np.full(DRAWS, demand.ttft)) <= 0.1
    assert row["p_slo"] == kept.mean() >= 0.9
    assert row["utilisation"] is None


# --- one fleet -------------------------------------------------------------------------------


def test_p_slo_is_that_of_the_steady_state():
    demand = demand_of()
    option = option_of(demand)
    row = sized(option, demand, 0.9)
    state = steady(option, demand, row["replicas"])
    kept = state.tpot_tail(np.full(DRAWS, demand.tpot)) <= 1 - demand.level
    kept &= state.ttft_tail(np.full(DRAWS, demand.ttft)) <= 1 - demand.level
    assert row["p_slo"] == pytest.approx(kept.mean(), abs=1.5 / DRAWS)
    assert row["p_slo"] >= demand.confidence
    assert row["p_saturated"] == (state.utilisation > 1).mean()
    smaller = row["curve"][[c["gpus"] for c in row["curve"]].index(row["gpus"]) - 1]
    assert smaller["p_slo"] < demand.confidence
    assert [c["p_slo"] for c in row["curve"]] == sorted(c["p_slo"] for c in row["curve"])


def test_times_are_told_by_quantile_and_a_mean_only_far_from_saturation():
    calm = sized(option_of(demand_of()), demand_of(), 0.9)
    assert calm["p_near_saturation"] <= 0.05
    assert calm["ttft"]["p50"]["median"] < calm["ttft"]["p90"]["median"]
    assert calm["ttft"]["p90"]["median"] < calm["ttft"]["p99"]["median"]
    assert calm["ttft"]["mean"] > 0
    one = demand_of(gpus=1, rate=0.96 * float(np.median(option_of(demand_of()).highest)))
    full = sized(option_of(one), one, 0.9)
    assert full["p_near_saturation"] > 0.05
    assert full["ttft"]["mean"] is None
    assert full["ttft"]["p50"]["median"] > 0
    assert 0 < full["p_saturated"] < 1


def test_a_given_fleet_is_judged_and_not_resized():
    demand = demand_of(gpus=2, rate=80.0)
    row = sized(option_of(demand), demand, 0.9)
    assert row["gpus"] == 2
    assert row["verdict"] == "infeasible SLO"
    assert "keeps to the targets with probability" in row["reason"]
    odd = sized(option_of(demand, tp=4), demand, 0.9)
    assert odd["verdict"] == "skipped"
    assert "2 GPUs are no replicas of 4" in odd["reason"]


def test_a_target_that_an_idle_server_misses_is_infeasible():
    demand = demand_of(ttft=0.001)
    row = sized(option_of(demand), demand, 0.9)
    assert (row["gpus"], row["p_slo"], row["verdict"]) == (None, 0, "infeasible SLO")
    assert row["reason"].startswith("TTFT of an idle server is 0.024")
    assert "over 0.001 s with probability 1.00" in row["reason"]


# --- the choice ------------------------------------------------------------------------------


def test_the_cheaper_of_two_alike_is_clear_and_costs_its_gpus_a_year():
    demand = demand_of()
    pair = [option_of(demand, "A"), option_of(demand, "B")]
    found = fleets(pair, demand, LIKE, prices=prices_of(A=3.0, B=2.0))
    first, second = found["results"]
    assert (found["choice"], found["verdict"], first["sku"]) == ("B", "clear", "B")
    assert first["cost_per_hour"] == 2 * first["gpus"]
    assert first["expected_usd_per_year"] >= HOURS_A_YEAR * first["cost_per_hour"]
    assert first["cvar_usd_per_year"] >= first["expected_usd_per_year"]
    assert first["expected_regret_usd_per_year"] == 0
    assert second["verdict"] == "clear"
    regret = HOURS_A_YEAR * second["gpus"]
    assert second["expected_regret_usd_per_year"] == pytest.approx(regret, rel=0.1)
    tokens = 3600 * demand.rate * 200 / 1e6
    assert first["cost_per_million_tokens"] == pytest.approx(first["cost_per_hour"] / tokens)


def test_fleets_that_cost_the_same_either_do():
    demand = demand_of()
    found = fleets(
        [option_of(demand, "A"), option_of(demand, "B")], demand, LIKE, prices=prices_of(A=2, B=2)
    )
    assert {row["verdict"] for row in found["results"]} == {"either will do"}
    assert found["results"][0]["p_best"] == 0.5


def test_a_price_that_may_be_either_is_too_close_to_call(rng):
    demand = demand_of()
    drawn = prices_of(A=2.0, B=2.0).copy(data=rng.uniform(1, 3, (2, DRAWS // 2, 2)))
    found = fleets([option_of(demand, "A"), option_of(demand, "B")], demand, LIKE, prices=drawn)
    assert found["verdict"] == "too close to call"
    assert [row["verdict"] for row in found["results"]] == ["too close to call"] * 2
    assert "cheaper than the choice with probability" in found["results"][1]["reason"]


def test_without_prices_gpus_are_counted():
    demand = demand_of()
    found = fleets([option_of(demand, "A"), option_of(demand, "B", speed=2.0)], demand, LIKE)
    assert found["choice"] == "B"
    assert found["results"][0]["cost_per_hour"] is None
    gpus = [row["gpus"] for row in found["results"]]
    assert found["results"][1]["expected_regret_gpus"] >= gpus[1] - gpus[0] - 1


def test_what_cannot_serve_comes_last_with_its_reason():
    demand = demand_of()
    options = [
        Option("D", 3, "skipped: tp=3 does not divide"),
        Option("C", 1, "does not fit: too large"),
        option_of(demand, "B", spread=10 * SPREAD),
        option_of(demand, "A"),
    ]
    found = fleets(options, demand, LIKE)
    assert [row["sku"] for row in found["results"]] == ["A", "B", "C", "D"]
    verdicts = [row["verdict"] for row in found["results"]]
    assert verdicts == ["clear", "infeasible SLO", "does not fit", "skipped"]
    assert [row["gpus"] is None for row in found["results"]] == [False, True, True, True]


def test_goodput_is_ranked_per_gpu_draw_by_draw():
    demand = demand_of()
    options = [
        option_of(demand, "A"),
        option_of(demand, "B", speed=1.01),
        option_of(demand, "C", tp=2),
    ]
    order = fleets(options, demand, LIKE)["goodput_order"]
    assert order["options"] == ["B TP1", "A TP1", "C TP2"]
    assert order["p_order"] == order["p_ahead_of_next"][0] == 1  # the same draws, 1 % apart


def test_what_the_goodput_hangs_on_is_named():
    demand = demand_of()
    spread = np.exp(0.1 * np.random.default_rng(5).standard_normal(DRAWS))
    pair = [option_of(demand, "A"), option_of(demand, "B", spread=spread)]
    factors = {
        "A TP1": {("A", "speed"): SPREAD},
        "B TP1": {("B", "speed"): spread, ("B", "noise"): SPREAD[::-1]},
    }
    named = fleets(pair, demand, LIKE, factors=factors)["dominated_by"]
    assert {(f["sku"], f["factor"]) for f in named} == {("A", "speed"), ("B", "speed")}


# --- bad demands -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rate": -1.0}, "--rate -1: give requests a second above 0"),
        ({"rate": 0.0}, "--rate 0: give"),
        ({"rate": None}, "give a rate of arrivals or a number of users"),
        ({"users": 3}, "give a rate of arrivals or a number of users"),
        ({"ttft": 0.0}, "--ttft 0: give seconds above 0"),
        ({"tpot": -1.0}, "--tpot -1: give seconds above 0"),
        ({"ttft": np.inf, "tpot": np.inf}, "no target"),
        ({"confidence": 1.0}, "--confidence 1: give a number between 0 and 1"),
        ({"level": 1.0}, "--percentile 100: give a number between 0 and 100"),
        ({"gpus": 0}, "--gpus 0: give GPUs above 0"),
        ({"rate": 1e30}, r"--rate 1e\+30: give requests a second above 0, up to 1,000,000"),
        ({"rate": None, "users": 10**7}, "--concurrency 10000000: give requests above 0, up to"),
        ({"ttft": 1e308}, r"--ttft 1e\+308: give seconds above 0, up to"),
        ({"max_num_seqs": 0}, "--max-num-seqs 0: give 1 to 65,536 sequences"),
        ({"token_budget": 1}, "--token-budget 1: give more tokens than --max-num-seqs 256"),
    ],
)
def test_a_demand_that_means_nothing_is_refused(changes, says):
    with pytest.raises(WorkloadError, match=says):
        demand_of(**changes)


def test_a_plan_is_of_an_llm(database, synthetic_posterior):
    from m2bayes.question import Question
    from m2bayes.workload import parse_workload

    question = Question(
        synthetic_posterior,
        database.datasheets(["h100"]),
        None,
        [parse_workload("gemm:m=1,n=128,k=128")],
    )
    with pytest.raises(WorkloadError, match="a plan is of an LLM"):
        options_of(question, demand_of(), [1])


@pytest.mark.parametrize("rate", [1e-300, 1.0])
def test_prompts_that_add_nothing_to_a_step_are_served_without_a_fault(rate):
    """A step of one token is a decode step: nothing is divided by what it adds."""
    option = option_of(demand_of(), spread=SPREAD[:5])
    held = option.replica
    nothing = replace(held, added=0 * held.added, mix=one_length(1, 1))
    state = open_loop(nothing, np.full(5, rate), option.highest)
    assert np.isfinite(state.interference).all()
    assert np.isfinite(state.backlog).all()


# --- a simulation beside ---------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("changes", [{}, {"rate": 90.0}])
def test_a_simulated_fleet_agrees(changes):
    """Medians within 10 %, probability of saturation within 0.05."""
    demand = demand_of(**changes)
    option = option_of(demand)
    row = sized(option, demand, 0.9)
    found = simulated(option, demand, row["replicas"], seed=0)
    for name in ("ttft", "tpot"):
        held = found[name]["p50"]
        assert held["approximated"] == pytest.approx(held["simulated"], rel=0.1)
    held = found["p_saturated"]
    assert abs(held["approximated"] - held["simulated"]) <= 0.05


def test_a_simulation_is_cut_to_its_steps_or_refused():
    option, one = option_of(demand_of()), np.ones(DRAWS)
    assert affordable(option, demand_of(), 30 * one) == (SIMULATED, REQUESTS)
    draws, number = affordable(option, demand_of(), one)
    assert draws * number * 200 <= STEPS / 2
    with pytest.raises(WorkloadError, match="lower --output-tokens, raise --rate"):
        affordable(option, replace(demand_of(), mix=one_length(1, 50_000)), one)
