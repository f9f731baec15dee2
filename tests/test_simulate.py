"""The simulated server against closed forms, timelines by hand, and what must always hold."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from m2bayes.errors import DataError, WorkloadError
from m2bayes.serving.scheduler import Sequence, Server
from m2bayes.serving.simulate import (
    OCTAVE,
    _on_grid,
    _together,
    poisson_requests,
    requests_of,
    simulate,
)

ROOMY = 10**7  # tokens of KV cache that nothing fills


@dataclass
class Times:
    """Step times of one draw, linear in every size; remembers what it was asked."""

    fixed: float = 1e-2
    token: float = 1e-4
    sequence: float = 2e-5
    cached: float = 1e-7
    asked: list = field(default_factory=list)

    def decode_time(self, batch, context):
        return self.mixed_time(0, batch, context)

    def prefill_time(self, tokens, prefix=0):
        return self.mixed_time(tokens, 0, 0, prefix)

    def mixed_time(self, tokens, batch, context, prefix=0):
        self.asked.append((tokens, batch, context, prefix))
        work = tokens * self.token + tokens * prefix * self.cached / 10
        return np.array([self.fixed + work + batch * (self.sequence + context * self.cached)])


UNIT = Times(fixed=1.0, token=0.0, sequence=0.0, cached=0.0)


def served(arrival, prompt, output, times=UNIT, **limits):
    limits = {"kv_tokens": ROOMY} | limits
    return simulate(requests_of(arrival, prompt, output), times, Server(**limits))


# --- closed forms ----------------------------------------------------------------------------


@pytest.mark.parametrize("chunked", [True, False])
def test_a_single_request_takes_its_prefill_and_its_decode_steps(chunked):
    times = Times()
    found = served([3.0], 40, 20, times, chunked=chunked)
    prefill = times.prefill_time(40).item()
    decode = [times.decode_time(1, context).item() for context in range(40, 59)]
    assert found["waiting"].item() == 0.0
    assert found["ttft"].item() == pytest.approx(prefill, rel=1e-12)
    assert found["e2e"].item() == pytest.approx(prefill + sum(decode), rel=1e-12)
    assert found["tpot"].item() == pytest.approx(np.mean(decode), rel=1e-12)
    assert found["finish"].item() == pytest.approx(3.0 + prefill + sum(decode), rel=1e-12)
    assert (int(found["steps"]), float(found["busy_share"])) == (20, 1.0)


def one_at_a_time(rate, number, *, seed=0):
    """Waits of a server that takes one request of a single step of 1 s at a time."""
    requests = poisson_requests(rate, number, prompt=8, output=1, seed=seed)
    return requests, simulate(requests, UNIT, Server(ROOMY, max_num_seqs=1))


def test_one_place_and_one_step_is_lindleys_recursion():
    requests, found = one_at_a_time(0.9, 400)
    waits = [0.0]
    for gap in np.diff(requests["arrival"].values):
        waits.append(max(0.0, waits[-1] + 1.0 - gap))
    np.testing.assert_allclose(found["waiting"].values, waits, rtol=1e-9, atol=1e-9)


@pytest.mark.statistical
@pytest.mark.parametrize("load", [0.5, 0.8])
def test_the_mean_wait_is_that_of_m_d_1_and_not_of_m_m_1(load):
    """ρ/(2(1 − ρ)) services; means of seeds are independent. Twice that is M/M/1's, and fails."""
    means = np.array(
        [
            float(one_at_a_time(load, 3000, seed=seed)[1]["waiting"][500:].mean())
            for seed in range(40)
        ]
    )
    error = means.std(ddof=1) / np.sqrt(len(means))
    exact = load / (2 * (1 - load))
    assert abs(means.mean() - exact) < 4 * error
    assert abs(means.mean() - 2 * exact) > 4 * error


@pytest.mark.statistical
def test_arrivals_are_poisson():
    gaps = np.diff(poisson_requests(4.0, 20000, prompt=1, output=1)["arrival"].values)
    assert abs(gaps.mean() - 0.25) < 4 * gaps.std(ddof=1) / np.sqrt(len(gaps))
    squares = (gaps - gaps.mean()) ** 2
    assert abs(squares.mean() - 0.0625) < 4 * squares.std(ddof=1) / np.sqrt(len(gaps))


def test_a_step_error_is_amplified_in_saturation():
    """Request i of a saturated server waits i·D − i·a: D up by a tenth is D/(D − a) as much."""
    arrival = 0.6 * np.arange(50)
    slow = Times(fixed=1.1, token=0.0, sequence=0.0, cached=0.0)
    before, after = (served(arrival, 8, 1, times, max_num_seqs=1) for times in (UNIT, slow))
    growth = (after["waiting"] / before["waiting"]).values[1:] - 1
    np.testing.assert_allclose(growth, 0.1 / (1 - 0.6), rtol=1e-9)


# --- timelines by hand -----------------------------------------------------------------------


def test_a_prompt_above_the_budget_is_read_in_chunks_beside_decoding():
    """Budget 8: B's 20 tokens go 7 + 7 + 6 beside A's token, its first token comes after three."""
    times = Times(fixed=1.0, token=0.0, sequence=0.0, cached=0.0)
    found = served([0.0, 0.5], [4, 20], [6, 2], times, token_budget=8, max_num_seqs=2)
    assert found["scheduled"].values.tolist() == [0.0, 1.0]
    assert found["first_token"].values.tolist() == [1.0, 4.0]
    assert found["finish"].values.tolist() == [6.0, 5.0]
    reads = [(tokens, batch, prefix) for tokens, batch, _, prefix in times.asked if tokens]
    assert reads == [(4, 0, 0), (7, 1, 0), (7, 1, 7), (6, 1, 14)]


def test_whole_prompts_halt_decoding():
    """The same requests: B's prompt takes one step, in which A stands still."""
    found = served([0.0, 0.5], [4, 20], [6, 2], token_budget=8, max_num_seqs=2, chunked=False)
    assert found["first_token"].values.tolist() == [1.0, 2.0]
    assert found["finish"].values.tolist() == [7.0, 3.0]


def test_prompts_that_share_a_step_count_as_one():
    """Two of 30 attend to less than one of 60, so there is no prefix.

    A last chunk of 10 after 50, read with 20 new ones, attends to 10 · 55 + 20 · 10 = 750 tokens,
    as 30 tokens do after 10.
    """
    times = Times()
    served([0.0, 0.0], 30, 1, times)
    assert times.asked == [(60, 0, 0, 0)]
    chunk = [(Sequence(0, 60, 1, read=50), 10), (Sequence(1, 20, 1), 20)]
    assert _together(chunk) == (30, 10)


def test_a_full_cache_sends_the_last_admitted_back():
    """Blocks of 4, three of them. B is preempted at 1 s, when both fill their first.

    A decodes alone to 6 s. B then reads its 4 tokens and the one that it had generated: its
    second token at 7 s, its sixth at 11 s.
    """
    found = served([0.0, 0.0], 4, 6, kv_tokens=12, block=4)
    assert found["preemptions"].values.tolist() == [0, 1]
    assert found["scheduled"].values.tolist() == [0.0, 0.0]
    assert found["first_token"].values.tolist() == [1.0, 1.0]
    assert found["finish"].values.tolist() == [6.0, 11.0]
    assert found["tpot"].values.tolist() == [1.0, 2.0]


def test_a_half_read_prompt_can_be_preempted_too():
    """A fills its block while B's long prompt is still being read: B starts anew when A is done."""
    limits = {"kv_tokens": 16, "block": 4, "token_budget": 4, "max_num_seqs": 2}
    found = served([0.0, 0.0], [3, 12], [4, 1], **limits)
    assert found["preemptions"].values.tolist() == [0, 1]
    assert found["finish"].values.tolist() == [4.0, 7.0]


@pytest.mark.parametrize("chunked", [True, False])
def test_a_cache_of_n_sequences_is_a_batch_of_n(chunked):
    """Each request fills less than a block: three blocks or three places are the same limit."""
    arrival = poisson_requests(90.0, 60, prompt=10, output=5)["arrival"].values
    by_cache = served(arrival, 10, 5, Times(), kv_tokens=48, chunked=chunked)
    by_batch = served(arrival, 10, 5, Times(), max_num_seqs=3, chunked=chunked)
    roomy = served(arrival, 10, 5, Times(), chunked=chunked)
    xr.testing.assert_identical(by_cache, by_batch)
    assert float(by_cache["waiting"].mean()) > float(roomy["waiting"].mean())
    assert not by_cache["preemptions"].any()


# --- what must always hold -------------------------------------------------------------------

requests_ = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 60), st.integers(1, 25)), min_size=1, max_size=25
)
limits_ = st.fixed_dictionaries(
    {
        "kv_tokens": st.sampled_from([96, 160, ROOMY]),
        "max_num_seqs": st.sampled_from([1, 3, 16]),
        "token_budget": st.sampled_from([16, 64]),
        "chunked": st.booleans(),
    }
)


def drawn(rows):
    arrival, prompt, output = np.array(rows, dtype=float).T
    return requests_of(arrival, prompt.astype(int), output.astype(int))


@settings(max_examples=60, deadline=None)
@given(requests_, limits_)
def test_work_is_conserved_and_the_order_kept(rows, limits):
    requests, times = drawn(rows), Times()
    found = simulate(requests, times, Server(**limits))
    scheduled, first, finish = (found[v].values for v in ("scheduled", "first_token", "finish"))
    assert (found["waiting"].values >= 0).all()
    assert (np.diff(scheduled) >= 0).all()  # first come, first served
    assert (scheduled < first).all()
    assert (first <= finish).all()
    assert 0 < float(found["busy_share"]) <= 1
    # no step is idle: at most one token of one sequence a step, at least one step a token
    tokens = int(requests["output"].max())
    assert tokens <= int(found["steps"])
    parts = found["waiting"] + (found["first_token"] - found["scheduled"])
    np.testing.assert_allclose(found["ttft"], parts, rtol=1e-9, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(requests_, st.booleans())
def test_every_token_is_computed_once_unless_one_is_preempted(rows, chunked):
    """All steps together take their fixed times and that of each token read and generated."""
    requests, times = drawn(rows), Times(cached=0.0)
    server = Server(ROOMY, max_num_seqs=3, token_budget=60, chunked=chunked)
    found = simulate(requests, times, server)
    span = float(found["finish"].max() - requests["arrival"][0])
    read, generated = (int(requests[name].sum()) for name in ("prompt", "output"))
    decoded = generated - requests.sizes["request"]
    work = read * times.token + decoded * times.sequence
    exact = int(found["steps"]) * times.fixed + work
    assert float(found["busy_share"]) * span == pytest.approx(exact, rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(requests_, limits_)
def test_other_units_of_time_change_nothing(rows, limits):
    requests, server = drawn(rows), Server(**limits)
    scaled = requests.assign(arrival=8 * requests["arrival"])
    slow = Times(**{name: 8 * getattr(Times, name) for name in ("fixed", "token", "sequence")})
    slow.cached = 8 * Times.cached
    before, after = simulate(requests, Times(), server), simulate(scaled, slow, server)
    for name in ("waiting", "ttft", "e2e"):
        np.testing.assert_allclose(after[name], 8 * before[name], rtol=1e-12, atol=1e-12)


def test_waits_grow_with_the_rate():
    means = [
        float(
            simulate(
                poisson_requests(rate, 600, prompt=200, output=60), Times(), Server(ROOMY, 32)
            )["waiting"].mean()
        )
        for rate in (2.0, 8.0, 16.0, 20.0, 30.0)
    ]
    assert means == sorted(means)
    assert means[-1] > 10 * means[1]


def test_the_same_requests_give_the_same_times_in_any_order():
    rng = np.random.default_rng(0)
    arrival, prompt = rng.uniform(0, 2, 50), rng.integers(1, 400, 50)
    first = served(arrival, prompt, 30, Times(), kv_tokens=2000)
    order = rng.permutation(50)
    xr.testing.assert_identical(
        first, served(arrival[order], prompt[order], 30, Times(), kv_tokens=2000)
    )
    assert first["preemptions"].any()


def test_an_idle_server_is_not_busy():
    found = served([0.0, 98.0], 8, 2)
    assert float(found["busy_share"]) == pytest.approx(0.04, rel=1e-12)


@given(st.integers(0, 10**7))
def test_sizes_are_looked_up_nearby(size):
    found = _on_grid(size)
    assert abs(found - size) <= size / (2 * OCTAVE)
    assert size > 2 * OCTAVE - 1 or found == size
    assert _on_grid(found) == found


def test_thousands_of_requests_take_tens_of_thousands_of_steps():
    requests = poisson_requests(5.0, 2000, prompt=500, output=200)
    found = simulate(requests, Times(), Server(500_000))
    assert int(found["steps"]) > 20_000
    assert np.isfinite(found["e2e"].values).all()


# --- bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arrival", "prompt", "output", "told"),
    [
        ([0.0, np.nan], 8, 8, "request 2: arrival"),
        ([0.0, 1.0], [8, 0], 8, "request 2: prompt is 0"),
        ([0.0, 1.0], 8, [1.5, 2], "request 1: output is 1.5"),
        ([], 8, 8, "no request"),
    ],
)
def test_a_bad_request_is_named(arrival, prompt, output, told):
    with pytest.raises(DataError, match=told):
        requests_of(arrival, prompt, output)


@pytest.mark.parametrize(("rate", "number"), [(0, 5), (-1.0, 5), (np.inf, 5), (1.0, 0)])
def test_a_rate_is_above_zero(rate, number):
    with pytest.raises(DataError, match="above zero"):
        poisson_requests(rate, number, prompt=1, output=1)


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"kv_tokens": 0}, "kv_tokens is 0"),
        ({"kv_tokens": 10}, "holds no block of 16"),
        ({"max_num_seqs": 1.5}, "max_num_seqs is 1.5"),
        ({"token_budget": 100}, "lower max_num_seqs"),
    ],
)
def test_limits_that_cannot_be_are_refused(limits, told):
    with pytest.raises(WorkloadError, match=told):
        Server(**{"kv_tokens": ROOMY} | limits)


def test_a_request_that_never_fits_is_refused():
    with pytest.raises(WorkloadError, match="request 2 needs 49 tokens"):
        served([0.0, 1.0], [10, 40], 10, kv_tokens=48)


@pytest.mark.parametrize(
    ("found", "told"), [([1.0, 2.0], "of 2 draws"), ([0.0], "takes 0.0 s"), ([np.nan], "takes nan")]
)
def test_step_times_are_those_of_one_draw(found, told):
    class Bad(Times):
        def mixed_time(self, tokens, batch, context, prefix=0):
            return np.array(found)

    with pytest.raises(DataError, match=told):
        served([0.0], 8, 8, Bad())
