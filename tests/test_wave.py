"""Wave quantisation and tile choice: exact waves, the source's ladder, brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m2bayes.mechanism.wave import SPLITS, TILES, eta_wave, grid_share, tile_choice, tile_ladder

EXACT = {"rtol": 1e-12, "atol": 0}
quick = settings(deadline=None, max_examples=100)
width = st.integers(1, 20000)
grid = {
    "M": width,
    "N": width,
    "tile_m": st.sampled_from([16, 32, 64, 128, 256]),
    "tile_n": st.sampled_from([64, 128, 256]),
    "sm_count": st.integers(1, 200),
    "split": st.sampled_from(SPLITS),
}
SQUARE = {"tile_m": 128, "tile_n": 128}


@pytest.mark.parametrize("waves", [1, 2, 7])
def test_exact_waves_waste_nothing(waves):
    assert eta_wave(128, 128 * 132 * waves, **SQUARE, sm_count=132) == 1.0
    assert grid_share(128, 128 * 132 * waves, **SQUARE, sm_count=132) == 1.0


@pytest.mark.parametrize("waves", [1, 2, 7])
def test_one_tile_over_costs_a_whole_wave(waves):
    tiles = 132 * waves + 1
    share = eta_wave(128, 128 * tiles, **SQUARE, sm_count=132)
    np.testing.assert_allclose(share, tiles / (132 * (waves + 1)), **EXACT)
    assert grid_share(128, 128 * tiles, **SQUARE, sm_count=132) == 1.0


def test_one_row_over_a_tile_costs_a_whole_tile():
    share = eta_wave(129, 128 * 4, **SQUARE, sm_count=8)
    np.testing.assert_allclose(share, 129 / 256, **EXACT)


def test_a_grid_smaller_than_the_chip_fills_its_part():
    np.testing.assert_allclose(eta_wave(128, 128 * 33, **SQUARE, sm_count=132), 0.25, **EXACT)
    np.testing.assert_allclose(grid_share(128, 128 * 33, **SQUARE, sm_count=132), 0.25, **EXACT)


def test_split_fills_a_small_grid():
    """33 tiles in four parts make 132: one full wave, in which each SM does a quarter tile."""
    assert eta_wave(128, 128 * 33, **SQUARE, sm_count=132, split=4) == 1.0
    assert grid_share(128, 128 * 33, **SQUARE, sm_count=132, split=4) == 1.0
    # in eight parts they make two full waves
    assert eta_wave(128, 128 * 33, **SQUARE, sm_count=132, split=8) == 1.0
    # 34 tiles in four parts: 136 parts need two waves of 132 slots
    share = eta_wave(128, 128 * 34, **SQUARE, sm_count=132, split=4)
    np.testing.assert_allclose(share, 136 / 264, **EXACT)


def test_rounding_the_wave_down_is_found_out():
    """With floor in place of ceil the share of five tiles on four SMs would exceed 1."""
    tiles, slots = 5, np.floor(5 / 4) * 4
    assert tiles / slots > 1
    assert eta_wave(128, 128 * tiles, **SQUARE, sm_count=4) == 0.625


@given(st.fixed_dictionaries(grid))
@quick
def test_useful_share_is_a_share(grid):
    wave, share = eta_wave(**grid), grid_share(**grid)
    assert 0 < wave <= share * (1 + 1e-12)
    assert share <= 1 + 1e-12


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 200))
@quick
def test_many_waves_hide_the_last_one(rows, columns, sm_count):
    """As the grid grows without bound the partial wave stops mattering."""
    M, N = 128 * rows * 1000, 128 * columns * 1000
    tiles = rows * columns * 10**6
    share = eta_wave(M, N, **SQUARE, sm_count=sm_count)
    assert 1 - share <= sm_count / tiles + 1e-12


@pytest.mark.parametrize(
    ("M", "tile"),
    [
        (1, (64, 64)),
        (64, (64, 64)),
        (255, (64, 64)),
        (256, (128, 128)),
        (511, (128, 128)),
        (512, (256, 128)),
        (4095, (256, 128)),
        (4096, (128, 256)),
        (32768, (128, 256)),
    ],
)
def test_ladder_has_the_rungs_of_the_source(M, tile):
    """Section 6: 64×64 from M = 64, 128×128 at 256, 256×128 at 512, 128×256 at 4096."""
    assert tuple(int(t) for t in tile_ladder(M)) == tile


def test_ladder_takes_arrays():
    tile_m, tile_n = tile_ladder(np.array([[64, 256], [512, 4096]]))
    np.testing.assert_array_equal(tile_m, [[64, 128], [256, 128]])
    np.testing.assert_array_equal(tile_n, [[64, 128], [128, 256]])


def brute_force(M, N, K, sm_count):
    """The rule of `tile_choice` written anew, in whole numbers, one candidate after the other."""
    costs = {}
    for (tm, tn), s in itertools.product(TILES, SPLITS):
        if s > 1 and K / s < 512:
            continue
        parts = -(-M // tm) * -(-N // tn) * s
        work = -(-parts // sm_count) * tm * tn / s
        costs[tm, tn, s] = work * (1 + 450 * s / K) * (1 + 0.3 * (64 / tm + 64 / tn))
    return costs


@given(st.integers(1, 32768), st.integers(64, 65536), st.integers(32, 65536), st.integers(40, 200))
@quick
def test_tile_choice_is_the_cheapest_of_all(M, N, K, sm_count):
    costs = brute_force(M, N, K, sm_count)
    chosen = tuple(int(v) for v in tile_choice(M, N, K, sm_count))
    np.testing.assert_allclose(costs[chosen], min(costs.values()), **EXACT)


@given(st.integers(1, 32768), st.integers(64, 65536), st.integers(32, 65536), st.integers(40, 200))
@quick
def test_no_split_leaves_a_part_too_short(M, N, K, sm_count):
    split = int(tile_choice(M, N, K, sm_count)[2])
    assert split == 1 or K / split >= 512


def test_a_small_grid_with_a_long_contraction_is_split_and_a_large_one_is_not():
    assert int(tile_choice(1, 128, 65536, 132)[2]) == 32
    assert int(tile_choice(1, 128, 1023, 132)[2]) == 1
    assert int(tile_choice(32768, 16384, 65536, 132)[2]) == 1


def test_tile_choice_broadcasts():
    M, N = np.array([[1], [4096]]), np.array([128, 4096, 8192])
    chosen = tile_choice(M, N, 4096, 132)
    for (i, j), at in np.ndenumerate(np.arange(6).reshape(2, 3)):
        one = tile_choice(M[i, 0], N[j], 4096, 132)
        assert [int(v.ravel()[at]) for v in chosen] == [int(v) for v in one]


def test_a_selector_that_ignores_the_chip_is_found_out():
    """The choice depends on the SM count: the same GEMM is cut differently on 40 and 200 SMs."""
    M, N, K = 512, 8192, 4096
    few, many = tile_choice(M, N, K, 40), tile_choice(M, N, K, 200)
    assert [int(v) for v in few] != [int(v) for v in many]
