"""Waiting times: estimators by hand, scalars that made-up runs were made with, and the suite."""

import json

import numpy as np
import pandas as pd
import pytest

from m2bayes.errors import DataError
from m2bayes.serving.scheduler import Server
from m2bayes.serving.simulate import requests_of, simulate
from m2bayes.suites import Setting, _queue, qlm, run
from m2bayes.suites._adjusted import Adjusted, Remembered, Undisturbed
from m2bayes.suites._queue import Log
from m2bayes.suites._waits import scored
from m2bayes.surface import Surface

SERVER = Server(40_000, max_num_seqs=16)
SIZES = {
    "decode": ([1, 64], [1, 4096]),
    "prefill": ([1, 8192],),
    "mixed": ([1, 8192], [1, 64], [1, 4096]),
}


def surface(*factors, token=5e-5, cached=1e-7):
    """Step times that are linear in all sizes, so that the grid holds them exactly."""
    axes = {k: tuple(np.array(a, dtype=float) for a in sizes) for k, sizes in SIZES.items()}
    grids = {k: np.meshgrid(*a, indexing="ij") for k, a in axes.items()}
    decode = 8e-3 + 1e-4 * grids["decode"][0] + cached * np.prod(grids["decode"], axis=0)
    tokens, batch, context = grids["mixed"]
    mixed = 8e-3 + token * tokens + 1e-4 * batch + cached * batch * context
    times = {"decode": decode, "prefill": 8e-3 + token * grids["prefill"][0], "mixed": mixed}
    by = np.array(factors or [1.0])
    return Surface(axes, {k: by.reshape(-1, *[1] * t.ndim) * t[None] for k, t in times.items()})


def ran(times, *, number=90, server=SERVER):
    """Log of a run that takes exactly these step times, its queue filling from the start."""
    rng = np.random.default_rng(0)
    requests = requests_of(
        np.sort(rng.uniform(0, 6, number)),
        rng.integers(200, 1500, number),
        rng.integers(100, 300, number),
    )
    found = simulate(requests, times, server)
    table = pd.DataFrame({name: requests[name].values for name in ("arrival", "prompt", "output")})
    for name in ("scheduled", "first_token", "finish"):
        table[name] = found[name].values
    table[["scheduled", "first_token", "finish"]] -= table["arrival"].iloc[0]
    table["arrival"] -= table["arrival"].iloc[0]
    ticks = np.arange(1.0, table["finish"].max())
    running = [((table["scheduled"] <= t) & (t < table["finish"])).sum() for t in ticks]
    queued = [((table["arrival"] <= t) & (t < table["scheduled"])).sum() for t in ticks]
    series = pd.DataFrame({"time": ticks, "running": running, "waiting": queued})
    return Log("A", table, series.assign(throughput=500.0), server)


# --- by hand ---------------------------------------------------------------------------------


def by_hand(**columns):
    table = pd.DataFrame({"prompt": 10, "output": 11} | columns)
    series = pd.DataFrame({"time": [1.0, 2.0], "running": 1, "throughput": [4.0, 8.0]})
    return Log("A", table, series.assign(waiting=[0, 1]), Server(1600, max_num_seqs=4))


def test_those_ahead_came_before_and_still_wait():
    log = by_hand(arrival=[0.0, 1.0, 2.0, 3.0], scheduled=[0.0, 5.0, 5.0, 6.0])
    assert _queue.ahead(log.table).tolist() == [0.0, 0.0, 1.0, 2.0]
    log = by_hand(arrival=[0.0, 1.0, 2.0], scheduled=[0.0, 1.5, 2.0])
    assert _queue.ahead(log.table).tolist() == [0.0, 0.0, 0.0]


def test_qlms_wait_is_the_tokens_ahead_over_the_throughput():
    found = _queue.qlm_wait(np.array([0.0, 3.0]), 600.0, np.array([900.0, 1800.0]))
    np.testing.assert_allclose(found, [[0.0, 2.0], [0.0, 1.0]], rtol=1e-12)


def test_measured_throughputs():
    log = by_hand(arrival=[0.0, 0.0], finish=[5.0, 10.0], scheduled=0.0)
    assert _queue.measured_throughput(log, queueing=False) == pytest.approx(2.2, rel=1e-12)
    assert _queue.measured_throughput(log, queueing=True) == 8.0


def test_a_full_server_makes_a_token_a_sequence_and_reads_the_next_prompts():
    """Four sequences: 8.4 ms a step, and 4/11 of a prompt of 10 tokens at 50 µs each."""
    log = by_hand(arrival=0.0, index=range(3)).first(2)
    assert _queue.typical_batch(log) == (4, 15.5)
    found = _queue.full_throughput(log, surface(1.0, 2.0, cached=0.0))
    step = 8.4e-3 + 4 / 11 * 10 * 5e-5
    np.testing.assert_allclose(found, [4 / step, 2 / step], rtol=1e-9)


def test_tpot_of_steps_that_are_all_alike_is_the_step_and_the_prompts_meanwhile():
    """Two prompts of 10 are read while the first request decodes ten steps."""
    log = by_hand(
        arrival=[0.0, 0.1, 0.2],
        first_token=[0.1, 0.3, 0.4],
        finish=[1.0, 1.1, 1.2],
        scheduled=0.0,
    )
    times = surface(cached=0.0)
    alone = _queue.tpot_of_log(log, times, interference=False)
    np.testing.assert_allclose(alone, np.full((1, 3), 8.1e-3), rtol=1e-9)
    both = _queue.tpot_of_log(log, times)
    np.testing.assert_allclose(both - alone, [[2 * 5e-5, 5e-5, 0.0]], rtol=1e-6, atol=1e-12)


def test_tpot_is_the_time_after_the_first_token():
    log = by_hand(first_token=[1.0, 1.0], finish=[3.0, 1.0], output=[5, 1])
    np.testing.assert_array_equal(log.tpot, [0.5, np.nan])


def test_a_host_time_is_added_to_every_step_and_leaves_a_tenth():
    times = surface()
    for host, change in ((1e-3, 1e-3), (-1.0, None)):
        found = Adjusted(times, host=host)
        for name, sizes in (
            ("decode_time", (4, 9)), ("prefill_time", (70,)), ("mixed_time", (70, 4, 9)),
        ):  # fmt: skip
            before = getattr(times, name)(*sizes)
            after = before + change if change else before / 10
            np.testing.assert_allclose(getattr(found, name)(*sizes), after, rtol=1e-12)


def test_a_step_is_looked_up_once():
    asked = []

    class Times:
        def decode_time(self, *sizes):
            asked.append(sizes)
            return np.array([float(sum(sizes))])

    times = Remembered(Times())
    assert [times.decode_time(*sizes).item() for sizes in ((1, 2), (2, 2), (1, 2))] == [3, 4, 3]
    assert asked == [(1, 2), (2, 2)]


def test_without_interference_a_mixed_step_is_a_decode_step():
    times = Undisturbed(surface())
    assert times.mixed_time(500, 4, 9) == times.decode_time(4, 9) < times.prefill_time(500)


def test_scores_by_hand():
    observed = np.array([1.0, 2.0, 4.0, 99.0])
    guess = np.array([[1.0, 3.0, 4.0, 0.0], [1.2, 3.0, 8.0, 0.0], [1.4, 3.0, 6.0, 0.0]])
    found = scored(guess, observed, observed < 10, seed=0)
    assert found["requests"] == 3
    assert found["mae"] == pytest.approx((0.2 + 1 + 2) / 3, rel=1e-12)
    assert found["median_ape"] == pytest.approx(0.5, rel=1e-12)
    assert found["mape"] == pytest.approx((0.2 + 0.5 + 0.5) / 3, rel=1e-12)
    assert found["mae_draws"] == pytest.approx([1.24 / 3, 5.02 / 3], rel=1e-12)  # of 1, 5.2 and 3.4
    # intervals: 1.02 to 1.38 misses 1, 3 misses 2, 4.2 to 7.8 misses 4
    assert found["coverage_90"] == 0.0
    single = scored(guess[:1], observed, observed < 10, seed=0)
    assert "coverage_90" not in single
    assert "mae_draws" not in single


@pytest.mark.statistical
def test_the_bootstrap_sees_that_neighbours_err_alike():
    """Errors shared by blocks of ten: the interval of the mean is that of 40 errors, not of 400."""
    shared = np.repeat(np.linspace(0, 1, 40), 10)
    widths = []
    for error in (shared, np.random.default_rng(1).permutation(shared)):
        found = scored(1 + error[None], np.ones(400), np.ones(400, bool), seed=0)
        widths.append(np.ptp(found["mae_bootstrap"]))
    error = 1 / np.sqrt(2 * 39)  # of a spread that is estimated from 40 blocks, relative
    assert abs(np.log(widths[0] / widths[1] / np.sqrt(10))) < 4 * error


# --- made-up runs ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "truth"), [("one factor", 1.2), ("one host time", 2e-3), ("one host time", -1.5e-3)]
)
def test_the_scalar_that_a_run_was_made_with_is_found(name, truth):
    times = surface()
    log = ran(_queue.adjusted(times, name, truth))
    found = [
        _queue.scalar(log, times, name, np.arange(30), every=1, label=str(i), seed=0)
        for i in range(5)
    ]
    scale = 1.0 if name == "one factor" else 1e-2
    assert np.abs(np.array(found) - truth).max() < 0.02 * scale


def test_a_scalar_learnt_on_the_wrong_steps_is_not_the_truth():
    """Negative control: prompts three times as slow cannot pass for a host time."""
    log = ran(surface(token=1.5e-4))
    found = _queue.scalar(log, surface(), "one host time", np.arange(30), every=1, label="", seed=0)
    assert found > 1e-3


def test_our_own_run_is_simulated_without_error():
    """Made with step times that one draw of three has; the median draw is that one."""
    times = surface(0.9, 1.0, 1.1)
    log = ran(times.pick(1))
    found = qlm.judged(log, times, 1000.0, seed=0)
    waits = found["waits"]["all"]["simulated, zero-shot"]
    assert found["long waits"] > 40
    assert waits["mae"] < 1e-9
    assert waits["coverage_90"] == 1.0
    assert found["waits"]["rest"]["simulated, one factor"]["median_ape"] < 0.01
    assert found["scalars"]["one factor"]["interval"] == pytest.approx([1 / 1.1, 1 / 0.9], rel=0.05)
    apart = found["tpot"]["simulated, zero-shot, without interference"]["mape"]
    assert found["tpot"]["simulated, zero-shot"]["mape"] < 1e-9
    assert apart > 0.05
    assert found["amplification"]["growth"]["interval"][0] > 0.1
    assert set(found["waits"]["all"]) < set(found["waits"]["rest"])
    assert json.loads(json.dumps(found, allow_nan=False)) == found


# --- the suite -------------------------------------------------------------------------------


def test_without_the_logs_the_suite_says_what_to_do(database, monkeypatch):
    monkeypatch.delenv("M2BAYES_EXTERNAL_DATA", raising=False)
    with pytest.raises(DataError, match="set M2BAYES_EXTERNAL_DATA to the folder of llmservingsim"):
        run("qlm", Setting(database))
