"""A server in steady state: closed forms, limits, and a simulation of the engine beside it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m2bayes.errors import WorkloadError
from m2bayes.serving.goodput import goodput, users_served
from m2bayes.serving.loops import capacity, closed_loop, open_loop
from m2bayes.serving.mix import one_length, read_mix
from m2bayes.serving.replica import check_lengths, replica
from m2bayes.serving.scheduler import Server
from m2bayes.serving.simulate import poisson_requests, simulate
from m2bayes.surface import Surface

FLOOR, READ, WORK = 0.012, 4e-8, 2e-5  # [s], a step; a cached token; a prompt's token


def surface(*scales):
    """Step times linear in all sizes, one draw a scale."""
    batch, context = np.array([1.0, 1024]), np.array([128.0, 32768])
    tokens = np.array([16.0, 16384])
    decode = FLOOR + READ * batch[:, None] * context
    prefill = FLOOR + WORK * tokens
    mixed = prefill[:, None, None] + READ * batch[:, None] * context
    axes = {"decode": (batch, context), "prefill": (tokens,), "mixed": (tokens, batch, context)}
    by = np.array(scales or (1.0,))
    times = {"decode": decode, "prefill": prefill, "mixed": mixed}
    return Surface(axes, {k: by.reshape(-1, *[1] * t.ndim) * t for k, t in times.items()})


def served(prompt=600, answer=200, kv=100_000.0, scales=(1.0,), **limits):
    tokens = np.full(len(scales), kv)
    return replica(surface(*scales), one_length(prompt, answer), tokens, **limits)


def state(held, load):
    highest = capacity(held)
    return open_loop(held, load * highest, highest)


# --- the replica -----------------------------------------------------------------------------


def test_the_cache_limits_the_batch_to_its_tokens_over_the_mean_context():
    """Blocks are half empty at the end, half a prompt stays free: (100000 − 300) / (700 + 8)."""
    assert served().limit.tolist() == [140]
    assert served(max_num_seqs=64).limit.tolist() == [64]
    assert served(kv=700.0).limit.tolist() == [0]
    assert served(kv=800.0).limit.tolist() == [1]


def test_only_a_full_cache_has_prompts_read_anew():
    assert served().preempted == pytest.approx(np.log1p(200 / 600))
    assert served(max_num_seqs=64).preempted == 0


def test_a_prompt_adds_its_tokens_and_takes_its_chunks():
    """3,000 tokens in steps of 1,000 beside a decoding batch: three steps."""
    held = served(prompt=3000, token_budget=1010, max_num_seqs=10)
    cached = READ * 10 * 3100
    assert held.own[0, 0, 10] == pytest.approx(3 * (FLOOR + cached) + WORK * 3000, rel=1e-12)
    assert held.added[0, 0, 10] == pytest.approx(WORK * 3000, rel=1e-12)
    assert held.decode[0, 10] == pytest.approx(FLOOR + cached, rel=1e-12)


def test_more_work_never_takes_less_time():
    uneven = surface()
    times = dict(uneven.times)
    times["decode"] = times["decode"] - np.array([0.0, 0.005])[None, :, None]
    held = replica(Surface(uneven.axes, times), one_length(600, 200), np.array([1e5]))
    for values in (held.decode, held.own, held.added):
        assert (np.diff(values, axis=-1) >= 0).all()


@pytest.mark.parametrize("limits", [{"max_num_seqs": 0}, {"max_num_seqs": 64, "token_budget": 64}])
def test_limits_without_room_are_refused(limits):
    with pytest.raises(WorkloadError, match="give 1 sequence or more, and more tokens than"):
        served(**limits)


def test_requests_longer_than_the_llm_are_refused():
    with pytest.raises(WorkloadError, match=r"1,100 tokens: tiny was made for 1,000"):
        check_lengths(one_length(1000, 100), 1000, "tiny")


# --- capacity and limits ---------------------------------------------------------------------


def test_capacity_is_the_batch_over_answer_and_step():
    """Prompts of many chunks, batch of 10: a step takes D + 10/O prefills, O = 199 of 200."""
    held = served(prompt=3000, max_num_seqs=10, kv=1e9, token_budget=1010)
    step = FLOOR + READ * 10 * 3100 + 10 / 199 * WORK * 3000
    assert capacity(held)[0] == pytest.approx(10 / 199 / step, rel=1e-9)


def test_one_token_answers_are_all_prefill():
    held = served(answer=1)
    alone = FLOOR + WORK * 2048
    assert capacity(held)[0] == pytest.approx(2048 / 600 / alone, rel=1e-2)
    idle = state(held, 1e-6)
    assert np.isnan(idle.tpot(0.5)).all()
    assert (idle.tpot_tail(np.zeros(1)) == 0).all()
    assert idle.ttft(0.9)[0] == pytest.approx(FLOOR + WORK * 600, rel=1e-3)


def test_an_idle_server_waits_for_nothing():
    idle = state(served(), 1e-7)
    assert idle.ttft(0.9)[0] == pytest.approx(FLOOR + WORK * 600, rel=1e-3)
    assert idle.mean_ttft()[0] == pytest.approx(FLOOR + WORK * 600, rel=1e-3)
    assert idle.tpot(0.9)[0] == pytest.approx(FLOOR + READ * 700, rel=1e-3)


def test_tokens_obey_littles_law():
    """Sequences that decode are arrivals times steps times their length."""
    for load in (0.2, 0.5, 0.8):
        held = state(served(max_num_seqs=200, kv=1e9), load)
        assert held.batch[0] == pytest.approx(held.rate[0] * 199 * held.step[0], rel=1e-6)


def test_leaving_the_prefill_of_others_out_is_a_mistake():
    held = served(prompt=3000, max_num_seqs=64, kv=1e9)
    busy = state(held, 0.7)
    alone = held.decode[0, round(busy.batch[0])]
    assert busy.step[0] > 1.5 * alone


def test_a_saturated_server_keeps_to_nothing():
    held = served(scales=(1.0, 3.0))
    highest = capacity(held)
    rate = np.full(2, 0.6 * highest[0])
    both = open_loop(held, rate, highest)
    assert (both.utilisation < 1).tolist() == [True, False]
    late = np.full(2, 1e9)
    assert both.ttft_tail(late)[1] == both.tpot_tail(late)[1] == 1
    assert np.isinf(both.mean_ttft()[1])
    assert both.ttft_tail(late)[0] < 1e-9


def test_where_no_request_fits_nothing_is_served():
    held = served(kv=700.0)
    assert capacity(held) == 0
    assert goodput(held, capacity(held), ttft=9.0, tpot=9.0) == 0
    assert users_served(held, capacity(held), ttft=9.0, tpot=9.0) == 0


@settings(max_examples=10)
@given(st.floats(0.05, 0.9), st.floats(1.02, 1.1), st.sampled_from([(600, 200), (5000, 300)]))
def test_a_higher_load_makes_everything_slower(load, more, lengths):
    held = served(*lengths, kv=3e5)
    one, other = state(held, load), state(held, load * more)
    assert other.step[0] > one.step[0]
    assert other.batch[0] > one.batch[0]
    assert other.ttft(0.9)[0] >= one.ttft(0.9)[0] * (1 - 1e-9)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_quantiles_are_those_of_the_tails(level):
    held = state(served(scales=(1.0, 1.2)), 0.6)
    for quantile, tail in ((held.ttft, held.ttft_tail), (held.tpot, held.tpot_tail)):
        assert (tail(quantile(level) * 1.001) <= 1 - level).all()
        assert (tail(quantile(level) * 0.999) >= 1 - level).all()


# --- goodput ---------------------------------------------------------------------------------


def test_at_the_goodput_the_targets_are_just_kept():
    held = served(scales=(1.0, 1.3))
    highest = capacity(held)
    targets = {"ttft": 0.3, "tpot": 0.022}
    found = goodput(held, highest, **targets)
    assert (found < highest).all()
    for factor, kept in ((0.999, True), (1.002, False)):
        at = open_loop(held, found * factor, highest)
        tails = at.ttft_tail(np.full(2, 0.3)), at.tpot_tail(np.full(2, 0.022))
        assert ((np.maximum(*tails) <= 0.1) == kept).all()


@settings(max_examples=8)
@given(st.floats(0.02, 1.0), st.floats(0.012, 0.05), st.floats(1.0, 2.0), st.floats(1.0, 2.0))
def test_a_stricter_target_never_serves_more(ttft, tpot, looser, slower):
    held = served()
    highest = capacity(held)
    strict = goodput(held, highest, ttft=ttft, tpot=tpot)
    loose = goodput(held, highest, ttft=ttft * looser, tpot=tpot * slower)
    assert strict <= loose
    assert goodput(held, highest, ttft=ttft, tpot=tpot, level=0.99) <= strict


# --- a benchmark's closed loop ---------------------------------------------------------------


def test_a_benchmark_waits_for_the_prefill_of_all_others_once():
    held = served(prompt=3000, answer=500, kv=1e9)
    found = closed_loop(held, np.array([32.0]), capacity(held))
    cached = READ * 32 * 3250
    expected = FLOOR + cached + 31 / 499 * held.added[0, 0, 32]
    assert found.step[0] == pytest.approx(expected, rel=1e-9)
    assert found.batch[0] == 32


def test_who_finds_no_place_waits_as_little_says():
    held = served(max_num_seqs=16, kv=1e9)
    highest = capacity(held)
    found = closed_loop(held, np.array([64.0]), highest)
    assert found.batch[0] == 16
    assert found.ttft(0.5)[0] > 48 / highest[0]
    assert found.rate[0] == pytest.approx(16 / (199 * found.step[0]), rel=0.1)


def test_most_users_are_those_that_still_keep_to_the_targets():
    held = served(kv=1e9)
    highest = capacity(held)
    found = users_served(held, highest, ttft=0.2, tpot=0.02)
    assert 1 < found[0] < 256
    for users, kept in ((found, True), (found + 1, False)):
        at = closed_loop(held, users, highest)
        worst = max(at.ttft_tail(np.array([0.2]))[0], at.tpot_tail(np.array([0.02]))[0])
        assert (worst <= 0.1) == kept


# --- beside a simulation of the engine -------------------------------------------------------

CASES = {
    "chat": (600, 200, 100_000, 256),
    "long answers, little cache": (256, 800, 40_000, 256),
    "long prompts": (6000, 400, 150_000, 256),
    "few places": (1000, 300, 100_000, 16),
}


@pytest.mark.statistical
@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
@pytest.mark.parametrize("case", CASES)
def test_medians_are_those_of_a_simulated_engine(case, load):
    """Within 10 %, what is asked of the approximation, at up to 80 % of what it says is served."""
    prompt, answer, kv, places = CASES[case]
    held = served(prompt, answer, float(kv), max_num_seqs=places)
    told = state(held, load)
    requests = poisson_requests(float(told.rate[0]), 1500, prompt=prompt, output=answer, seed=3)
    found = simulate(requests, surface(), Server(kv, max_num_seqs=places))
    for name in ("ttft", "tpot"):
        simulated = float(np.median(found[name].values[300:]))
        assert getattr(told, name)(0.5)[0] == pytest.approx(simulated, rel=0.1), name


BUDGET = 2048  # tokens of a step
SEEDS, REQUESTS, WARM = 4, 1500, 300


def bent():
    """Steps whose weights' traffic hides what few tokens compute, so that the first are free."""
    even, tokens = surface(), np.geomspace(16.0, 16384, 41)
    batch, context = even.axes["mixed"][1:]
    prefill = np.maximum(FLOOR, 2.2e-5 * tokens)
    mixed = prefill[:, None, None] + READ * batch[:, None] * context
    axes = even.axes | {"prefill": (tokens,), "mixed": (tokens, batch, context)}
    return Surface(axes, even.times | {"prefill": prefill[None], "mixed": mixed[None]})


def assert_within_a_tenth(times, prompt, answer, load):
    """Of the mean of the medians of several simulations."""
    held = replica(times, one_length(prompt, answer), np.array([150_000.0]))
    told, medians = state(held, load), []
    for seed in range(3, 3 + SEEDS):
        rate = float(told.rate[0])
        requests = poisson_requests(rate, REQUESTS, prompt=prompt, output=answer, seed=seed)
        found = simulate(requests, times, Server(150_000, token_budget=BUDGET))
        medians.append([np.median(found[name].values[WARM:]) for name in ("ttft", "tpot")])
    found = np.array([told.ttft(0.5)[0], told.tpot(0.5)[0]])
    np.testing.assert_allclose(found, np.mean(medians, axis=0), rtol=0.1)


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("prompt", "answer", "load"),
    [(2150, 8, 0.6), (2150, 128, 0.6), (2150, 128, 0.8), (4200, 128, 0.6), (8192, 8, 0.6)],
)
def test_prompts_a_little_over_k_steps_and_short_answers_are_right_too(prompt, answer, load):
    """Where times have two modes: one step or two, a prompt read during the answer or none."""
    assert_within_a_tenth(surface(), prompt, answer, load)


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("prompt", "answer", "load"), [(256, 8, 0.6), (600, 64, 0.8), (2150, 64, 0.6), (4200, 16, 0.6)]
)
def test_steps_need_not_be_linear_in_what_they_read(prompt, answer, load):
    assert_within_a_tenth(bent(), prompt, answer, load)


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
@pytest.mark.parametrize("answer", [8, 64, 300, 1024])
@pytest.mark.parametrize("prompt", [256, 1000, round(1.05 * BUDGET), round(2.05 * BUDGET), 8192])
def test_medians_are_those_of_the_engine_over_lengths_and_loads(prompt, answer, load):
    assert_within_a_tenth(surface(), prompt, answer, load)


@pytest.mark.statistical
@pytest.mark.parametrize("case", CASES)
def test_capacity_is_what_a_flooded_engine_serves(case):
    prompt, answer, kv, places = CASES[case]
    held = served(prompt, answer, float(kv), max_num_seqs=places)
    highest = float(capacity(held)[0])
    requests = poisson_requests(1.5 * highest, 1200, prompt=prompt, output=answer, seed=3)
    finish = np.sort(simulate(requests, surface(), Server(kv, max_num_seqs=places))["finish"])
    rate = 600 / (finish[900] - finish[300])
    assert highest == pytest.approx(rate, rel=0.12)


def test_a_mix_is_between_its_kinds(tmp_path):
    path = tmp_path / "mix.csv"
    path.write_text("input_tokens,output_tokens,weight\n200,100,1\n2000,400,1\n")
    mixed = replica(surface(), read_mix(path), np.array([1e5]))
    short, long = served(200, 100), served(2000, 400)
    assert capacity(long) < capacity(mixed) < capacity(short)
    rate = 0.3 * capacity(mixed)
    states = [open_loop(h, rate, capacity(h)) for h in (short, mixed, long)]
    medians = [s.ttft(0.5)[0] for s in states]
    assert medians == sorted(medians)
    tail = [s.ttft(0.9)[0] for s in states]
    assert tail[1] > medians[1]


def test_bursts_wait_longer():
    held = served(prompt=6000, answer=50)
    highest = capacity(held)
    calm, bursty = (open_loop(held, 0.7 * highest, highest, scv) for scv in (1.0, 4.0))
    assert bursty.mean_ttft()[0] > 1.3 * calm.mean_ttft()[0]


def test_the_draws_of_a_replica_do_not_see_each_other():
    both, alone = served(scales=(1.0, 1.5)), served(scales=(1.5,))
    pair, one = state(both, 0.6), state(alone, 0.6)
    assert pair.ttft(0.9)[1] == pytest.approx(one.ttft(0.9)[0], rel=1e-9)
    assert pair.tpot(0.9)[1] == pytest.approx(one.tpot(0.9)[0], rel=1e-9)
    assert replace(both, limit=both.limit * 0).limit.sum() == 0
