"""Laws in blocks: the numbers of one pass, each time computed once, memory that does not grow."""

import importlib.util
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from m2bayes._order import smallest
from m2bayes.blocks import AT_ONCE, gathered, law_times, shapes_at_once, slices
from m2bayes.factors import with_skus
from m2bayes.gemm import gemm_cells
from m2bayes.mechanism.gemm import gemm_terms, gemm_time
from m2bayes.predictive import predict
from m2bayes.workload import parse_workload

ROOT = Path(__file__).parents[1]
H100 = "H100-80GB-SXM"


@pytest.fixture(scope="module")
def sheets(database):
    return database.datasheets([H100])


def shapes(rng, count):
    """Distinct GEMM shapes."""
    given = {v: rng.permutation(np.arange(1, count + 1)) * 8.0 for v in ("M", "N", "K")}
    return xr.Dataset({v: ("shape", sizes) for v, sizes in given.items()})


@pytest.fixture(scope="module", params=["served", "benchmark"])
def law(request, database, sheets):
    """Terms of 700 shapes, dims (1, shape); factors of 4000 draws, dims (draw, 1)."""
    cells = shapes(np.random.default_rng(5), 700)
    terms = gemm_terms(cells, sheets, regime=request.param).isel(sku=0)
    rows = {str(k): np.atleast_2d(v.values) for k, v in terms.data_vars.items()}
    factors = with_skus(database.draws("gemm_bf16-hier_gemm"), sheets, seed=0).isel(sku=0)
    return rows, {str(k): v.values.reshape(-1, 1) for k, v in factors.data_vars.items()}


def test_a_law_in_blocks_has_the_numbers_of_one_pass(law):
    np.testing.assert_allclose(law_times(gemm_time, *law), gemm_time(*law), rtol=1e-12)


def test_a_law_of_the_wrong_shapes_is_seen(law):
    """Negative control: terms that are shifted by one shape."""
    rows, columns = law
    shifted = {k: np.roll(v, 1, axis=1) for k, v in rows.items()}
    wrong = law_times(gemm_time, shifted, columns) / gemm_time(rows, columns)
    assert abs(wrong - 1).max() > 0.1


def test_the_kernel_by_hand_of_the_benchmark_is_the_same_law(monkeypatch):
    """Or the benchmark would compare two things."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")  # which it sets: put back afterwards
    spec = importlib.util.spec_from_file_location("timed", ROOT / "benchmarks" / "predict.py")
    timed = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(timed)
    ways = timed.ways(8, 300)
    by_hand = ways["numba"]()
    assert by_hand.shape == (8, 300)
    np.testing.assert_allclose(ways["library"](), by_hand, rtol=1e-12)
    np.testing.assert_array_equal(ways["library"](), ways["one pass"]())


class Counter:
    """A law that counts: calls, times computed, and the largest array it was asked for."""

    def __init__(self):
        self.calls = self.times = self.largest = 0

    def __call__(self, terms, factors):
        time = terms["size"] * factors["slope"] + factors["shared"]
        self.calls += 1
        self.times += time.size
        self.largest = max(self.largest, time.size)
        return time


@pytest.mark.parametrize("samples", [1, 40, 4000])
@pytest.mark.parametrize("count", [1, 255, 1000])
def test_each_time_is_computed_once_in_arrays_that_fit_the_cache(samples, count):
    counted = Counter()
    rows = {"size": np.arange(float(count))[None]}
    columns = {"slope": np.arange(float(samples))[:, None], "shared": np.ones((1, 1))}
    out = law_times(counted, rows, columns)
    np.testing.assert_array_equal(out, np.outer(np.arange(samples), np.arange(count)) + 1)
    assert counted.times == samples * count
    assert counted.largest <= AT_ONCE
    assert counted.calls <= 4 * samples * count / AT_ONCE + count / 1024 + 2


def test_ten_times_the_workloads_are_ten_times_the_work():
    """A5 of speed: operations, not seconds; the largest array stays as it is."""
    counts = []
    for count in (2_000, 20_000):
        counted = Counter()
        rows, columns = (
            {"size": np.ones((1, count))},
            {"slope": np.ones((200, 1)), "shared": np.ones((1, 1))},
        )
        law_times(counted, rows, columns)
        counts.append((counted.times, counted.calls, counted.largest))
    (times, calls, largest), (more, more_calls, as_large) = counts
    assert more == 10 * times
    assert more_calls <= 11 * calls
    assert as_large == largest


def peak(work):
    """What `work` returns, and the most memory held while it ran [byte]."""
    tracemalloc.start()
    try:
        return work(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_prediction_holds_little_beside_what_it_returns(database, sheets):
    """Draws × shapes are held once; in one pass over whole arrays they were held eight times."""
    posterior = database.draws("gemm_bf16-hier_gemm")
    cells = shapes(np.random.default_rng(6), 1500)
    predict(posterior, cells.isel(shape=slice(2)), sheets)  # what is held from call to call
    time, most = peak(lambda: predict(posterior, cells, sheets))
    assert time.nbytes == 8 * 4000 * 1500
    assert time.nbytes <= most < 2 * time.nbytes
    terms = gemm_terms(cells, sheets, regime="served").isel(sku=0)
    rows = {str(k): np.atleast_2d(v.values) for k, v in terms.data_vars.items()}
    factors = with_skus(posterior, sheets, seed=0).isel(sku=0)
    columns = {str(k): v.values.reshape(-1, 1) for k, v in factors.data_vars.items()}
    assert peak(lambda: gemm_time(rows, columns))[1] > 3 * time.nbytes  # the control


def test_blocks_do_not_show_in_a_prediction(database, sheets, monkeypatch):
    """Bit for bit, whatever is held at once; shapes that repeat too."""
    posterior = database.draws("gemm_bf16-hier_gemm")
    sizes = [(m, n, 4096) for m in (1, 16, 64) for n in range(1024, 1024 * 21, 1024)]
    steps = [parse_workload(f"gemm:m={m},n={n},k={k}") for m, n, k in sizes]
    cells = gemm_cells(None, steps)
    cells = xr.concat([cells, cells.isel(workload=slice(5))], dim="workload")
    whole = predict(posterior, cells, sheets)
    monkeypatch.setattr("m2bayes.blocks.HELD", 1)
    monkeypatch.setattr("m2bayes.blocks.AT_ONCE", 1000)
    np.testing.assert_array_equal(predict(posterior, cells, sheets).values, whole.values)
    alone = predict(posterior, cells.isel(workload=[7]), sheets)
    np.testing.assert_array_equal(alone.values[..., 0, :], whole.values[..., 7, :])


def test_gathering_may_write_over_what_it_reads(rng):
    times, where = rng.normal(size=(5000, 7)), rng.permutation(7)
    expected = times[:, where]
    gathered(times, where, times)
    np.testing.assert_array_equal(times, expected)


def test_slices_cover_and_blocks_are_whole_groups_of_16():
    assert [s.stop - s.start for s in slices(70, 32)] == [32, 32, 6]
    assert all(shapes_at_once(n) % 16 == 0 for n in (1, 100, 1000, 4000, 10**7))


def test_the_smallest_are_those_of_a_stable_sort(rng):
    """Ties too, within and across the limit."""
    keys = rng.integers(0, 9, size=(200, 50)).astype(float)
    for count in (1, 10, 50, 60):
        expected = np.argsort(keys, axis=1, kind="stable")[:, :count]
        np.testing.assert_array_equal(smallest(keys, count), expected)
