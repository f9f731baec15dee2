"""The suite of what to measure: policies, paths and their summary."""

from dataclasses import replace

import numpy as np
import pytest

from m2bayes.suites import next as suite
from m2bayes.suites.next import (
    ENOUGH,
    Decision,
    at_random,
    by_value,
    needed,
    path,
    spread_out,
    summary,
)


@pytest.fixture
def doubtful(rng):
    """Two SKUs; only cell 3 tells of the second, whose true time makes it the better choice."""
    draws, cells = 400, 12
    free = rng.normal(0.0, 0.2, draws)
    values = np.zeros((draws, 2 + cells))
    values[:, 1] = 0.05 + free
    values[:, 2:] = rng.normal(0.0, 0.1, (draws, cells))
    values[:, 2 + 3] = 0.05 + free + rng.normal(0, 0.01, draws)
    observed = np.zeros(cells)
    observed[3] = -0.3
    where = np.column_stack([np.repeat([0, 1], 6), np.tile(np.arange(6.0), 2), np.ones((12, 2))])
    truth = np.exp([0.0, -0.3])
    return Decision("b", values, truth, observed, where, "doubtful")


def test_the_reading_that_settles_the_choice_is_taken_first(doubtful, rng):
    assert doubtful.regret > ENOUGH
    assert by_value(doubtful, [], rng) == 3
    regrets = path(doubtful, by_value, "0")
    assert regrets[0] > ENOUGH
    assert max(regrets[1:]) == 0


def test_a_reading_moves_the_choice_and_an_idle_one_does_not(doubtful):
    assert doubtful.measured(3).regret == 0
    assert doubtful.measured(7).regret == doubtful.regret


def test_random_cells_and_spread_cells_are_each_taken_once(doubtful):
    rng, everyone = np.random.default_rng(0), set(range(12))
    for policy in (at_random, spread_out):
        taken = []
        for _ in range(12):
            taken.append(policy(doubtful, taken, rng))
        assert set(taken) == everyone


def test_spread_cells_take_turns_between_skus_and_go_far(doubtful):
    rng, taken = np.random.default_rng(1), []
    for _ in range(4):
        taken.append(spread_out(doubtful, taken, rng))
    skus = doubtful.where[taken, 0]
    assert sorted(skus) == [0, 0, 1, 1]
    for sku in (0, 1):
        one, two = (doubtful.where[c] for c in taken if doubtful.where[c, 0] == sku)
        assert abs(one[1] - two[1]) >= 3


def test_cells_are_counted_until_the_regret_stays_low():
    regrets = np.array([[0.0, 0.5, 0.0], [0.5, 0.5, 0.0], [0.5, 0.0, ENOUGH], [0.5, 0.5, 0.5]])
    assert needed(regrets).tolist() == [2, 2, 1, 3]


def test_a_policy_that_needs_twice_the_cells_has_ratio_two():
    steps = np.arange(49)
    late = np.where(steps < 8, 0.1, 0.0)
    soon = np.where(steps < 4, 0.1, 0.0)
    paths = {"next": np.tile(soon, (6, 1)), "random": np.tile(late, (6, 1))}
    found = summary(paths, np.array(list("aabbcc")))
    assert found["open"] == found["decisions"] == 6
    assert found["policies"]["random"]["ratio"] == 2
    assert found["policies"]["random"]["ratio_interval"] == [2, 2]
    assert found["policies"]["next"]["cells_open"] == 4
    assert found["policies"]["random"]["regret"]["4"] == pytest.approx(0.1)


def test_a_measurement_of_no_spread_changes_nothing(doubtful):
    flat = replace(doubtful, values=doubtful.values.copy())
    flat.values[:, 2] = 1.0
    assert flat.measured(0).regret == flat.regret


def test_every_policy_has_a_name():
    assert list(suite.POLICIES) == ["next", "random", "space-filling"]
