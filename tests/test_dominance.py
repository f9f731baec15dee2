"""Where the uncertainty of a comparison comes from."""

from dataclasses import replace

import numpy as np
import pytest

from m2bayes import options
from m2bayes.asking import ask
from m2bayes.dominance import MOST, dominant
from m2bayes.drivers import drivers
from m2bayes.question import step_times

N = 20_000
ASKED = "rank --llm llama-3.1-8b --sku h100 l40s --workload decode:batch=64,context=2048"


def normal(rng, number=1):
    return rng.standard_normal((number, N))


def test_shares_of_a_sum_are_those_of_the_variances(rng):
    a, b, c = normal(rng, 3)
    found = dominant(3 * a + b, {("x", "a"): a, ("y", "b"): b, ("y", "c"): c})
    assert [(f["sku"], f["factor"]) for f in found] == [("x", "a"), ("y", "b")]
    assert found[0]["share"] == pytest.approx(0.9, abs=0.02)
    assert found[1]["share"] == pytest.approx(0.1, abs=0.02)


def test_any_monotone_dependence_counts(rng):
    (a,) = normal(rng)
    for value in (np.exp(3 * a), -(a**3)):
        assert dominant(value, {("x", "a"): a})[0]["share"] == pytest.approx(1, abs=1e-9)


def test_the_order_of_draws_does_not_matter_but_their_pairing_does(rng):
    a, b = normal(rng, 2)
    factors = {("x", "a"): a, ("x", "b"): b}
    turned = {k: v[::-1] for k, v in factors.items()}
    assert dominant(a, factors) == dominant(a[::-1], turned)
    assert dominant(a, turned) == []


def test_chance_names_no_factor(rng):
    """Two hundred factors without influence, each at one part in a hundred of all together."""
    target, *others = normal(rng, 201)[:, :500]
    assert dominant(target, {("x", str(i)): v for i, v in enumerate(others)}) == []


def test_no_more_than_a_few_are_named_and_draws_without_a_ratio_are_left_out(rng):
    held = normal(rng, 6)
    total = held.sum(0)
    total[:100] = np.nan
    factors = {("x", str(i)): v for i, v in enumerate(held)}
    found = dominant(total, factors)
    assert len(found) == MOST
    assert found == sorted(found, key=lambda f: -f["share"])


@pytest.mark.parametrize("ratio", [np.zeros(50), np.full(50, np.nan)])
def test_what_does_not_vary_comes_from_nothing(ratio):
    assert dominant(ratio, {("x", "a"): np.arange(50.0)}) == []


@pytest.fixture(scope="module")
def asked():
    question = ask(options.parser().parse_args([*ASKED.split(), "--draws", "200"]))
    return question, step_times(question, question.workloads).isel(workload=0)


def test_drivers_are_the_factors_and_the_parts_of_the_step(asked):
    question, time = asked
    found = drivers(question, time)
    for sku in ("H100-80GB-SXM", "L40S-48GB-PCIe"):
        names = {name for held, name in found if held == sku}
        assert {"eta_memory", "discrepancy", "attention", "host", "light"} <= names
        assert "price" not in names
    assert all(draws.shape == (200,) for draws in found.values())


def test_the_discrepancy_is_what_the_factors_leave(asked):
    question, time = asked
    found = drivers(question, time)
    sku = "H100-80GB-SXM"
    own = found[sku, "discrepancy"]
    assert abs(own.mean()) < 1e-9
    for name in ("eta_memory", "droop"):
        assert abs(np.corrcoef(own, found[sku, name])[0, 1]) < 1e-6


def test_a_factor_that_is_made_uncertain_dominates(asked, rng):
    question, time = asked
    slow = np.exp(0.5 * rng.standard_normal((time.sizes["chain"], time.sizes["draw"])))
    host = time.sel(op=["host"]) * 0 + slow[..., None, None] * 0.05
    (first, *_) = dominant(
        np.log(host.isel(sku=0, op=0).values.ravel()),
        drivers(question, host.combine_first(time).transpose(*time.dims)),
    )
    assert first["factor"] == "host"
    assert first["share"] > 0.95


def test_a_price_is_a_driver_of_cost_alone(asked):
    question, time = asked
    prices = {str(s): (1.0, 2.0) for s in time["sku"].values}
    priced = replace(question, metric="cost_per_million_tokens", prices=prices)
    assert ("H100-80GB-SXM", "price") in drivers(priced, time)
