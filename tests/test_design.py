"""Which cells to measure first."""

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from m2bayes.updating.design import design, places_of

LINE = np.arange(9.0)[:, None]


def reach(places, chosen):
    away = np.abs(places[:, None] - places[None, chosen]).sum(axis=2)
    return away.min(axis=1).mean()


def test_one_more_cell_of_a_line_is_its_middle():
    assert design(LINE, 1, taken=np.array([[-100.0]])).tolist() == [4]


def test_each_cell_is_that_which_shortens_the_distances_most():
    """From 0 to 8 with 0 known: 5 leaves 12 in all, then 7 leaves 8; by hand."""
    chosen = design(LINE, 2, taken=np.array([[0.0]]))
    assert chosen.tolist() == [5, 7]
    assert reach(LINE, [0, 5]) * 9 == 12
    assert reach(LINE, [0, 5, 7]) * 9 == 8


@given(st.integers(0, 2**31), st.integers(0, 30))
def test_cells_are_chosen_once_and_no_more_than_there_are(seed, n):
    chosen = design(np.random.default_rng(seed).normal(size=(20, 3)), n, seed=seed)
    assert len(set(chosen.tolist())) == len(chosen) == min(n, 20)


@pytest.mark.parametrize("seed", range(5))
def test_a_design_leaves_less_unlike_than_chance(seed):
    places = np.random.default_rng(seed).normal(size=(100, 3))
    by_chance = [reach(places, np.random.default_rng(i).permutation(100)[:10]) for i in range(50)]
    assert reach(places, design(places, 10, seed=seed)) < min(by_chance)


def test_seeds_start_elsewhere_and_the_same_seed_does_not():
    places = np.random.default_rng(0).normal(size=(100, 3))
    designs = [tuple(design(places, 5, seed=seed)) for seed in range(10)]
    assert len(set(designs)) > 5
    assert designs[3] == tuple(design(places, 5, seed=3))


def test_a_longer_design_begins_with_the_shorter():
    places = np.random.default_rng(0).normal(size=(60, 3))
    np.testing.assert_array_equal(design(places, 12, seed=2)[:5], design(places, 5, seed=2))


def test_places_tell_what_bounds_a_cell(database, synthetic_posterior):
    """A tall and a flat kernel of one volume lie apart by more than their sizes."""
    sizes = {"M": [1.0, 8192.0, 1.0], "N": [8192.0, 8192.0, 128.0], "K": [8192.0, 8192.0, 128.0]}
    cells = xr.Dataset({k: ("cell", v) for k, v in sizes.items()})
    places = places_of(synthetic_posterior, cells, database.datasheets(["b200"]))
    compute, memory, launch = places[:, 3:].T
    assert memory[0] > 0.5 > compute[0]
    assert compute[1] > 0.5 > memory[1]
    assert launch.argmax() == 2
    assert places[:, :3].min() == 0.0
    assert places[:, :3].max() == 1.0
