"""Value of information: closed forms, bounds, and what must be worth nothing."""

import numpy as np
import pytest
import xarray as xr
from scipy.stats import norm

from m2bayes.errors import WorkloadError
from m2bayes.information.voi import assimilated, sequence, value_of_information

SHAPE = (4, 5000)
SKUS = ["a", "b", "c"]


def losses(values, skus):
    return xr.DataArray(values, dims=("chain", "draw", "sku"), coords={"sku": skus})


def seen(**columns):
    return xr.DataArray(
        np.stack(list(columns.values()), axis=-1),
        dims=("chain", "draw", "candidate"),
        coords={"candidate": list(columns)},
    )


def two_arms(rng, gap=0.3, sd=1.0):
    z = rng.standard_normal((*SHAPE, 2)) * sd
    return losses(z + np.array([0.0, gap]), ["a", "b"])


def unit_loss(x):
    """Expected positive part of a standard normal less `x`."""
    return norm.pdf(x) - x * norm.sf(x)


def within(found, expected, errors=4):
    """Within the Monte Carlo error, or below what so many draws can show."""
    unseen = 3 / np.prod(SHAPE)
    error = max(errors * float(found["evsi_mcse"][0]), unseen)
    assert abs(float(found["evsi"][0]) - expected) < error


@pytest.mark.statistical
@pytest.mark.parametrize("gap", [0.0, 0.3, 1.5])
@pytest.mark.parametrize("noise", [0.0, 0.7, 3.0])
def test_two_normal_arms_one_of_them_measured(rng, gap, noise):
    """The difference's preposterior is normal: EVSI = s·L(gap/s), s the sd of what is learnt."""
    loss = two_arms(rng, gap)
    reading = loss.sel(sku="b").values + noise * rng.standard_normal(SHAPE)
    learnt = 1 / np.sqrt(1 + noise**2)
    found = value_of_information(loss, seen(b=reading))
    within(found, learnt * unit_loss(gap / learnt))


@pytest.mark.statistical
def test_perfect_information_of_two_normal_arms(rng):
    found = value_of_information(two_arms(rng), seen(x=rng.standard_normal(SHAPE)))
    expected = np.sqrt(2) * unit_loss(0.3 / np.sqrt(2))
    assert abs(float(found["evpi"]) - expected) < 4 * float(found["evpi_mcse"])


def test_a_noiseless_measurement_of_everything_is_worth_perfect_information(rng):
    loss = losses(rng.standard_normal((*SHAPE, 3)).clip(-3.9, 3.9), SKUS)
    everything = seen(**{sku: loss.sel(sku=sku).values for sku in SKUS})
    found = sequence(loss, everything, 3)
    assert found.sizes["candidate"] == 3
    short = float(found["evpi"] - found["evsi"][-1])
    assert 0 <= short < 4 * float(found["evpi_mcse"])


@pytest.mark.statistical
def test_what_all_skus_share_is_worth_nothing_to_their_ranking(rng):
    shared, own = rng.standard_normal(SHAPE), rng.standard_normal((*SHAPE, 3))
    loss = losses(own + 10 * shared[..., None] + np.array([0, 0.2, 0.4]), SKUS)
    found = value_of_information(loss, seen(shared=shared, own=own[..., 1]))
    assert abs(float(found["evsi"][0])) <= 4 * float(found["evsi_mcse"][0])
    assert float(found["evsi"][1]) > 10 * float(found["evsi_mcse"][1])


@pytest.mark.statistical
def test_the_value_grows_with_repeats_and_stays_between_nothing_and_everything(rng):
    loss = two_arms(rng)
    noise = rng.standard_normal(SHAPE)
    columns = {str(n): loss.sel(sku="b").values + 2 * noise / np.sqrt(n) for n in (1, 4, 16, 256)}
    found = value_of_information(loss, seen(**columns))
    assert (np.diff(found["evsi"]) > 0).all()
    assert (found["evsi"] >= -4 * found["evsi_mcse"]).all()
    assert (found["evsi"] <= found["evpi"]).all()
    assert (np.diff(found["p_change"]) > 0).all()


def test_noise_is_worth_nothing_within_its_error(rng):
    found = value_of_information(two_arms(rng), seen(noise=rng.standard_normal(SHAPE)))
    assert abs(float(found["evsi"][0])) <= 4 * float(found["evsi_mcse"][0]) + 1e-12


def test_a_reading_that_never_varies_is_worth_nothing_exactly(rng):
    found = value_of_information(two_arms(rng), seen(flat=np.full(SHAPE, 3.0)))
    assert float(found["evsi"][0]) == 0
    assert float(found["p_change"][0]) == 0


def test_a_measurement_taken_anyway_is_worth_nothing_a_second_time(rng):
    loss = two_arms(rng)
    b = loss.sel(sku="b").values
    readings = seen(b=b, again=b, a=loss.sel(sku="a").values)
    before = value_of_information(loss, readings)["evsi"]
    after = value_of_information(loss, readings, known=["b"])["evsi"]
    assert float(after[1]) == pytest.approx(float(before[0]), abs=1e-9)
    assert float(after[2]) > float(before[0])
    chosen = sequence(loss, readings, 3)
    assert chosen.sizes["candidate"] == 2  # the copy adds nothing
    assert float(chosen["resolved"][-1]) == pytest.approx(1, abs=0.01)


def test_a_decision_without_a_doubt_needs_no_measurement(rng):
    loss = losses(rng.standard_normal((*SHAPE, 2)) * 0.01 + np.array([0, 5]), ["a", "b"])
    readings = seen(b=loss.sel(sku="b").values)
    found = value_of_information(loss, readings)
    assert float(found["evpi"]) == float(found["evsi"][0]) == 0
    assert sequence(loss, readings, 2).sizes["candidate"] == 0


def test_a_sku_that_cannot_be_chosen_takes_no_part(rng):
    loss = losses(rng.standard_normal((*SHAPE, 3)), SKUS)
    without = value_of_information(loss.isel(sku=[0, 1]), seen(a=loss.sel(sku="a").values))
    barred = value_of_information(loss.where(loss["sku"] != "c"), seen(a=loss.sel(sku="a").values))
    xr.testing.assert_identical(barred, without)
    with pytest.raises(WorkloadError, match="no SKU can be chosen"):
        value_of_information(loss * np.nan, seen(a=loss.sel(sku="a").values))


@pytest.mark.statistical
def test_where_no_measurement_pays_alone_the_one_that_resolves_most_comes_first(rng):
    """A gap of 6 sd: no reading changes the choice in so many draws, yet one tells more of it."""
    loss = losses(rng.standard_normal((*SHAPE, 2)) + np.array([0.0, 6.0]), ["a", "b"])
    b = loss.sel(sku="b").values
    readings = seen(dim=b + 5 * rng.standard_normal(SHAPE), sharp=b, noise=rng.random(SHAPE))
    found = value_of_information(loss, readings)
    np.testing.assert_allclose(found["resolved"], [0.5 / 26, 0.5, 0], atol=0.02)
    if float(found["evpi"]) > 0:
        assert sequence(loss, readings, 1)["candidate"].values.tolist() == ["sharp"]


def test_an_assimilated_reading_is_met_and_what_is_tied_to_it_follows(rng):
    reading = rng.standard_normal(4000)
    values = np.stack([reading, 2 * reading + rng.standard_normal(4000), rng.random(4000)], axis=1)
    moved = assimilated(values, reading, 1.5)
    np.testing.assert_allclose(moved[:, 0], 1.5, rtol=1e-12)
    slope = np.cov(values[:, 1], reading)[0, 1] / reading.var(ddof=1)
    assert moved[:, 1].mean() == pytest.approx(
        values[:, 1].mean() + slope * (1.5 - reading.mean()),
        rel=1e-3,  # a draw or two beyond 4 sd are pulled in
    )
    assert moved[:, 1].std() == pytest.approx(1, rel=0.05)
    np.testing.assert_allclose(moved[:, 2].mean(), values[:, 2].mean(), atol=0.05)
    np.testing.assert_array_equal(assimilated(values, np.zeros(4000), 1.0), values)


def test_a_far_draw_does_not_decide_how_readings_and_values_go_together(rng):
    reading = rng.standard_normal(4000)
    values = (2 * reading)[:, None]
    values[0], reading[0] = 1e4, -50.0
    moved = assimilated(values, reading, 1.0)
    assert moved[1:].mean() == pytest.approx(2.0, rel=0.05)


def test_an_unknown_measurement_is_refused(rng):
    loss = two_arms(rng)
    with pytest.raises(WorkloadError, match="z is no candidate"):
        value_of_information(loss, seen(b=loss.sel(sku="b").values), known=["z"])


@pytest.mark.statistical
def test_a_fit_judged_on_its_own_draws_would_find_value_in_noise(rng):
    """Negative control: many readings of nothing. Judged on other draws they are worth nothing."""
    shape = (2, 60)
    loss = losses(rng.standard_normal((*shape, 2)), ["a", "b"])
    noise = rng.standard_normal((*shape, 12))
    readings = seen(**{str(i): noise[..., i] for i in range(12)})
    together = value_of_information(loss, readings, known=[str(i) for i in range(11)])["evsi"][11]
    flat, design = loss.values.reshape(-1, 2), np.c_[np.ones(120), noise.reshape(-1, 12)]
    belief = design @ np.linalg.lstsq(design, flat)[0]
    first = flat.mean(axis=0).argmin()
    naive = (flat[:, first] - flat[np.arange(120), belief.argmin(axis=1)]).mean()
    assert naive > 0.1
    assert float(together) < naive / 2
