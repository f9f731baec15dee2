"""Step times between the sizes that were predicted."""

import numpy as np
import pytest

from m2bayes import options
from m2bayes.asking import ask
from m2bayes.question import step_times
from m2bayes.surface import Surface, surfaces
from m2bayes.workload import Step

ASKED = "rank --llm llama-3.1-8b --sku h100 l40s --workload decode:batch=1,context=128 --draws 40"
WORK, READ, CACHE, HEAD = 2e-6, 4e-9, 1e-3, 1e-5


def linear():
    """Two draws whose times are products of the sizes: what the grid's cells hold exactly."""
    batch, context, tokens = np.array([1.0, 8, 64]), np.array([128.0, 4096]), np.array([16.0, 4096])
    scale = np.array([1.0, 2.0])
    decode = CACHE + READ * batch[:, None] * context
    prefill = CACHE + WORK * tokens
    mixed = prefill[:, None, None] + READ * batch[:, None] * context
    axes = {"decode": (batch, context), "prefill": (tokens,), "mixed": (tokens, batch, context)}
    times = {"decode": decode, "prefill": prefill, "mixed": mixed}
    return Surface(axes, {k: scale.reshape(-1, *[1] * t.ndim) * t for k, t in times.items()})


@pytest.mark.parametrize(("batch", "context"), [(1, 128), (5, 1000), (33.5, 4096), (200, 9000)])
def test_what_is_linear_in_each_size_is_met_exactly_inside_and_beyond_the_grid(batch, context):
    expected = (CACHE + READ * batch * context) * np.array([1, 2])
    np.testing.assert_allclose(linear().decode_time(batch, context), expected, rtol=1e-12)


def test_below_the_grid_the_time_stays():
    surface = linear()
    np.testing.assert_array_equal(surface.decode_time(0.2, 1), surface.decode_time(1, 128))


def test_arrays_of_sizes_keep_their_shape_behind_the_draw():
    surface = linear()
    assert surface.decode_time(np.arange(1, 7).reshape(2, 3), 500).shape == (2, 2, 3)
    assert surface.prefill_time([20, 30], [0, 5]).shape == (2, 2)
    assert surface.mixed_time(64, [1, 2, 3], 500).shape == (2, 3)


def test_a_chunk_costs_no_less_behind_a_prefix():
    flat = linear()
    np.testing.assert_allclose(flat.prefill_time(64, 1000), flat.prefill_time(64))
    tokens = flat.axes["prefill"][0]
    quadratic = np.stack([1e-9 * tokens**2, 2e-9 * tokens**2])
    convex = Surface(flat.axes, flat.times | {"prefill": quadratic})
    assert (convex.prefill_time(64, 4096) > convex.prefill_time(64)).all()
    assert (convex.mixed_time(64, 4, 500, 4096) > convex.mixed_time(64, 4, 500)).all()


def test_one_draw_the_median_and_a_factor():
    surface = linear()
    whole = surface.mixed_time(64, 4, 500)
    np.testing.assert_allclose(surface.pick(1).mixed_time(64, 4, 500), whole[1:])
    np.testing.assert_allclose(surface.median().mixed_time(64, 4, 500), whole.mean(keepdims=True))
    np.testing.assert_allclose(surface.scaled(1.1).mixed_time(64, 4, 500), 1.1 * whole)
    thrice = surface.scaled([1, 3]).decode_time(4, 500)
    np.testing.assert_allclose(thrice, surface.decode_time(4, 500) * [1, 3])


@pytest.fixture(scope="module")
def asked():
    question = ask(options.parser().parse_args(ASKED.split()))
    return question, surfaces(question)


def test_the_grid_holds_what_was_predicted(asked):
    question, found = asked
    steps = [
        Step("decode", batch=64, context=2048),
        Step("prefill", tokens=4096),
        Step("mixed", prefill=1024, batch=32, context=2048),
    ]
    time = step_times(question, steps).sum("op").transpose("sku", "workload", "chain", "draw")
    for sku, rows in zip(time["sku"].values, time.values, strict=True):
        decode, prefill, mixed = rows.reshape(3, -1)
        surface = found[sku]
        np.testing.assert_allclose(surface.decode_time(64, 2048), decode, rtol=1e-9)
        np.testing.assert_allclose(surface.prefill_time(4096), prefill, rtol=1e-9)
        np.testing.assert_allclose(surface.mixed_time(1024, 32, 2048), mixed, rtol=1e-9)


def test_between_the_grids_sizes_the_median_is_near(asked):
    """Within 5 %: the discrepancy of a shape between two others is not theirs."""
    question, found = asked
    steps = [
        Step("decode", batch=48, context=1500),
        Step("mixed", prefill=1500, batch=200, context=4000),
    ]
    time = step_times(question, steps).sum("op").median(["chain", "draw"])
    for sku, surface in found.items():
        decode, mixed = time.sel(sku=sku).values
        assert np.median(surface.decode_time(48, 1500)) == pytest.approx(decode, rel=0.05)
        assert np.median(surface.mixed_time(1500, 200, 4000)) == pytest.approx(mixed, rel=0.05)


def test_sizes_end_where_the_llm_does(asked):
    question, found = asked
    surface = next(iter(found.values()))
    assert surface.axes["prefill"][0].max() == question.llm.max_context
    assert surface.axes["decode"][1].max() == question.llm.max_context - 1
