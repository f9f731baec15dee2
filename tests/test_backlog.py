"""The walk of the backlog and what follows: closed forms, limits, and the walk simulated."""

import numpy as np
import pytest

from m2bayes.serving.backlog import Lattice, stationary
from m2bayes.serving.first_token import first_token
from m2bayes.serving.next_tokens import completions, units_read

DECODE, FULL = 0.012, 0.052  # [s], steps that only decode, and full ones


def lattice(size=17, load=0.6, *, room=16, steps=7, draws=1, times=None):
    """Prompts of `size` units, answers of so many decode steps."""
    if times is None:
        times = DECODE + (FULL - DECODE) * np.arange(room + 1) / room
    one, sizes = np.ones(draws), np.tile([[size, size + 1]], (draws, 1))
    rate = load * room / (size * times[-1])
    none = np.exp(-rate * times[0])
    return Lattice(
        rate * one,
        sizes,
        np.tile([[1.0, 0.0]], (draws, 1)),
        np.tile(times, (draws, 1)),
        none**steps * one,
        (1 - none**steps) / (1 - none) * one,
        one / rate,
    )


def walked(held, answer, number=60_000, seed=0):
    """Backlogs as steps begin, and of each prompt the times to its first token and to others.

    Prompt by prompt, in the lattice's units, of the first draw.
    """
    rng = np.random.default_rng(seed)
    size, room, times = int(held.sizes[0, 0]), held.room, held.times[0]
    arrival = np.cumsum(rng.exponential(size=number)) / held.rate[0]
    clock, came, left, since = 0.0, 0, [], answer
    begun, ends, first = [], [], np.zeros(number)
    while came < number or left:
        new = int(np.searchsorted(arrival, clock, side="right"))
        left += [[k, size] for k in range(came, new)]
        came = new
        if not left and since >= answer:
            if came == number:
                break
            clock = arrival[came]
            continue
        begun.append(sum(units for _, units in left))
        budget, done = room, []
        while left and budget:
            taken = min(left[0][1], budget)
            left[0][1] -= taken
            budget -= taken
            if not left[0][1]:
                done.append(left.pop(0)[0])
        clock += times[room - budget]
        ends.append(clock)
        since = 0 if done else since + 1
        first[done] = clock
    ends = np.array(ends)
    at = np.searchsorted(ends, first)
    kept = at + answer < len(ends)
    tpot = (ends[at[kept] + answer] - ends[at[kept]]) / answer
    return np.array(begun), first - arrival, tpot


def single(held):
    """Own steps of a prompt that nothing is ahead of [s], dims (draw, request)."""
    size = held.sizes[:, 0]
    steps = (size - 1) // held.room
    last = np.take_along_axis(held.times, (size - steps * held.room)[:, None], -1)
    return steps[:, None] * held.times[:, -1:] + last


def ttft(held):
    backlog = stationary(held)
    return first_token(backlog, backlog.beyond(), np.ones(len(held.rate)), single(held))


def quantile(found, level):
    grid = np.linspace(0, 2.0, 4001)
    tails = np.array([found.tail(np.array([t]))[0] for t in grid])
    return float(grid[np.argmax(tails <= 1 - level)])


# --- the stationary distribution -------------------------------------------------------------


@pytest.mark.parametrize("load", [0.3, 0.6, 0.9])
@pytest.mark.parametrize(
    ("size", "room"), [(1, 16), (5, 16), (16, 16), (17, 16), (25, 12), (24, 1)]
)
def test_it_is_a_distribution_that_reads_what_arrives(size, room, load):
    """Units read in a step are those that arrive in one, by Little's law of the server."""
    held = lattice(size, load, room=room)
    backlog = stationary(held)
    below, beyond = backlog.below[0], backlog.beyond()[0]
    assert below.sum() + beyond.sum() == pytest.approx(1, abs=2e-2 if load > 0.8 else 1e-5)
    read = below @ np.arange(room) + room * (1 - below.sum())
    elapsed = backlog.spent[0].sum()
    assert read == pytest.approx(size * held.rate[0] * elapsed, rel=1e-6)


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("size", "load"), [(1, 0.7), (5, 0.7), (16, 0.6), (17, 0.6), (17, 0.8), (33, 0.7)]
)
def test_it_is_that_of_the_walk(size, load):
    held = lattice(size, load)
    backlog = stationary(held)
    begun, *_ = walked(held, 7)
    chance = np.concatenate([backlog.below[0], backlog.beyond()[0]])
    steps = 1 + backlog.below[0, 0] * (held.steps[0] - 1)
    chance[0] *= held.steps[0]  # a period without backlog has several steps
    counted = np.bincount(begun, minlength=len(chance))[: len(chance)] / len(begun)
    assert np.abs(counted - chance / steps).sum() / 2 < 0.02


def test_times_that_bend_count_too():
    """A step that is full after one unit: every step that reads takes as long."""
    bent = np.append(DECODE, np.full(16, FULL))
    held = lattice(8, 0.5, times=bent)
    backlog = stationary(held)
    reading = backlog.spent[0, 1:-1].sum()
    assert backlog.step[0] > stationary(lattice(8, 0.5)).step[0]
    assert reading / backlog.spent[0].sum() > 0.5


def test_a_full_step_at_a_time_is_md1():
    """Prompts of exactly one step and no decoding: Pollaczek and Khinchine's mean wait."""
    held = lattice(16, 0.7, steps=0)
    found = ttft(held)
    wait = 0.7 * FULL / (2 * (1 - 0.7))
    assert found.mean()[0] == pytest.approx(FULL + wait, rel=1e-3)


def test_draws_do_not_see_each_other():
    one, two = stationary(lattice(17, 0.6)), stationary(lattice(17, 0.6, draws=3))
    np.testing.assert_allclose(two.below, np.tile(one.below, (3, 1)), rtol=1e-10)


# --- to the first token ----------------------------------------------------------------------


@pytest.mark.statistical
@pytest.mark.parametrize(("size", "load"), [(5, 0.7), (16, 0.6), (17, 0.6), (17, 0.8), (33, 0.6)])
def test_the_first_token_comes_when_the_walk_says(size, load):
    held = lattice(size, load)
    found, (_, times, _) = ttft(held), walked(held, 7)
    for level in (0.5, 0.9):
        assert quantile(found, level) == pytest.approx(np.quantile(times, level), rel=0.05)
    assert found.mean()[0] == pytest.approx(times.mean(), rel=0.03)


def test_the_mean_is_the_tail_summed():
    for size in (3, 17, 40):
        found = ttft(lattice(size, 0.5))
        grid = (np.arange(20_000) + 0.5) * 1e-4
        tails = [found.tail(np.array([t]))[0] for t in grid]
        assert found.mean()[0] == pytest.approx(sum(tails) * 1e-4, rel=0.02)


def test_a_prompt_alone_takes_its_own_steps():
    found = ttft(lattice(33, 1e-6))
    own = 2 * FULL + DECODE + (FULL - DECODE) / 16
    assert found.tail(np.array([own * 0.999]))[0] == pytest.approx(1, abs=1e-4)
    assert found.tail(np.array([own * 1.001]))[0] < 1e-4
    assert found.mean()[0] == pytest.approx(own, rel=1e-4)


def test_counting_a_little_over_a_step_as_one_is_a_mistake():
    over, exact = ttft(lattice(17, 0.6)), ttft(lattice(16, 0.6))
    assert quantile(over, 0.5) > 1.15 * quantile(exact, 0.5)


# --- the other tokens ------------------------------------------------------------------------


def tpot(held, steps):
    """TPOT [s] of each number of units read, and its chance."""
    backlog = stationary(held)
    beyond = backlog.beyond()
    read = units_read(backlog, completions(backlog, beyond), steps, backlog.step)[0]
    low, high = held.times[0, [0, -1]]
    return low + (high - low) * np.linspace(0, 1, len(read)), read


@pytest.mark.parametrize("steps", [1, 3, 7, 31, 400])
def test_what_is_read_is_a_distribution(steps):
    times, chance = tpot(lattice(17, 0.6, steps=steps), steps)
    assert chance.sum() == pytest.approx(1, rel=1e-9)
    assert (chance >= -1e-12).all()
    assert times[0] == pytest.approx(DECODE)
    assert times[-1] == pytest.approx(FULL)


@pytest.mark.statistical
@pytest.mark.parametrize(("size", "load"), [(8, 0.7), (17, 0.6), (17, 0.8), (33, 0.6)])
@pytest.mark.parametrize("steps", [7, 31])
def test_tokens_come_as_fast_as_the_walk_says(size, load, steps):
    held = lattice(size, load, steps=steps)
    times, chance = tpot(held, steps)
    *_, found = walked(held, steps)
    assert times @ chance == pytest.approx(found.mean(), rel=0.04)
    distance = np.abs(np.cumsum(chance) - [(found <= t + 6e-4).mean() for t in times])
    assert distance.mean() < 0.06


def test_without_arrivals_only_decoding_is_left():
    times, chance = tpot(lattice(17, 1e-6), 7)
    assert times @ chance == pytest.approx(DECODE, rel=1e-4)
