"""Prices: given singly, as a range or as a table; cost per token, break-even and flips."""

import json
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

from m2bayes import options
from m2bayes.answer import answers, ranked
from m2bayes.asking import ask, prices_of
from m2bayes.errors import DataError, UnknownNameError, WorkloadError
from m2bayes.prices import EXAMPLE, price_draws
from m2bayes.question import step_times
from m2bayes.tables import ranking

H100, H200 = "H100-80GB-SXM", "H200-141GB-SXM"
STEP = "decode:batch=64,context=2048"
ASKED = f"rank --llm llama-3.1-8b --sku h100 h200 --workload {STEP} --draws 100"
COST = "--metric cost_per_million_tokens --price h100=2 h200=3"
LIKE = xr.Dataset(coords={"chain": range(4), "draw": range(500)})


@pytest.fixture(scope="module")
def question():
    return ask(options.parser().parse_args(f"{ASKED} {COST}".split()))


def with_price(question, ratio):
    return replace(question, prices={H100: (2.0, 2.0), H200: (2.0 * ratio, 2.0 * ratio)})


def entry(question):
    (found,) = answers(question, ranked)
    return found


def test_a_price_is_a_number_or_a_range_by_any_name(database):
    found, dated = prices_of(database, ["h100=.5", "H200-141GB-SXM=3-4.5"])
    assert found == {H100: (0.5, 0.5), H200: (3.0, 4.5)}
    assert dated == ""


def test_a_price_given_twice_is_refused_and_one_beside_a_table_counts(database):
    with pytest.raises(WorkloadError, match="H100-80GB-SXM is given twice; name each once"):
        prices_of(database, ["h100=2", "H100-80GB-SXM=3"])


def test_the_example_table_has_a_date_and_says_that_it_is_made_up(database):
    found, dated = prices_of(database, [EXAMPLE, "h100=9"])
    assert found[H100] == (9, 9)
    assert found[H200][0] < found[H200][1]
    content = json.loads((database.root / "data" / "prices" / "example.json").read_text())
    assert dated == f"example.json of {content['date']}"
    assert "made up" in content["what"]
    assert {str(database.sku_card(name)[0]["name"]) for name in content["prices"]} == set(found)


@pytest.mark.parametrize(
    "text", ["h100", "h100=", "=3", "h100=x", "h100=-1", "h100=1-", "h100=1-2-3", "h100=inf"]
)
def test_what_is_no_price_is_refused(database, text):
    with pytest.raises(WorkloadError, match=f"--price {text}: give SKU=USD_PER_HOUR"):
        prices_of(database, [text])


@pytest.mark.parametrize("text", ["h100=0", "h100=3-2"])
def test_an_impossible_price_is_refused(database, text):
    with pytest.raises(WorkloadError, match="must be above 0, and LOW no more than HIGH"):
        prices_of(database, [text])


def test_an_unknown_sku_has_no_price(database):
    with pytest.raises(UnknownNameError, match="did you mean"):
        prices_of(database, ["h10=3"])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"prices": {"h100": 2}}, 'expected "date" and "prices"'),
        ({"date": "2026-01-01", "prices": {}}, 'expected "date" and "prices"'),
        ({"date": "2026-01-01", "prices": {"h100": [1, 2, 3]}}, "give a number, or a list"),
        ({"date": "2026-01-01", "prices": {"h100": "2"}}, "give a number, or a list"),
    ],
)
def test_a_bad_table_is_refused(database, tmp_path, content, says):
    path = tmp_path / "prices.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=says):
        prices_of(database, [str(path)])


def test_a_table_of_ones_own_is_read(database, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text('{"date": "2026-01-01", "prices": {"h100": 2, "h200": [3, 4]}}')
    assert prices_of(database, [str(path)]) == (
        {H100: (2, 2), H200: (3, 4)},
        "mine.json of 2026-01-01",
    )


def test_a_range_is_drawn_evenly_and_by_name():
    prices = {H100: (2.0, 3.0), H200: (4.0, 4.0)}
    both = price_draws(prices, [H100, H200], LIKE, seed=1)
    assert (both.sel(sku=H200) == 4).all()
    draws = both.sel(sku=H100).values
    assert ((draws >= 2) & (draws <= 3)).all()
    assert abs(draws.mean() - 2.5) < 4 / np.sqrt(12 * draws.size)
    alone = price_draws(prices, [H100], LIKE, seed=1)
    np.testing.assert_array_equal(alone.values[..., 0], draws)


def test_cost_is_price_over_throughput_draw_by_draw(question):
    """64 tokens a step: USD/h · s / 3600 · 1e6 / 64."""
    time = step_times(question, question.workloads).sum("op").sel(sku=H100)
    expected = 2.0 * float(time.median()) / 3600 * 1e6 / 64
    held = next(s for s in entry(question)["skus"] if s["sku"] == H100)
    assert held["median"] == pytest.approx(expected, rel=1e-6)


def test_two_gpus_that_share_the_llm_cost_twice_as_much(question):
    two = replace(question, tp=2)
    times = step_times(two, question.workloads).sum("op").median(["chain", "draw"])
    for sku in entry(two)["skus"]:
        price = question.prices[sku["sku"]][0]
        cost = 2 * price * float(times.sel(sku=sku["sku"]).item()) / 3600 * 1e6 / 64
        assert sku["median"] == pytest.approx(cost, rel=1e-6)


def ratio_of(pair):
    """Break-even price of the H200 over the H100: interval and median."""
    held = pair["break_even_price_ratio"]
    interval = held["interval"]
    if held["of"] == H200:
        return interval["low"], held["median"], interval["high"]
    return 1 / interval["high"], 1 / held["median"], 1 / interval["low"]


def test_the_winner_flips_with_the_price_and_is_open_in_between(question):
    (pair,) = entry(question)["pairs"]
    low, middle, high = ratio_of(pair)
    assert low < middle < high
    below, inside, above = (entry(with_price(question, r)) for r in (0.9 * low, middle, 1.1 * high))
    assert (below["choice"], below["verdict"]) == (H200, "clear")
    assert (above["choice"], above["verdict"]) == (H100, "clear")
    assert inside["verdict"] in ("too close to call", "either will do")


def test_the_break_even_ratio_does_not_hang_on_the_prices(question):
    (one,), (other,) = (entry(with_price(question, r))["pairs"] for r in (0.5, 2.0))
    np.testing.assert_allclose(ratio_of(one), ratio_of(other), rtol=1e-6)


def test_at_the_break_even_ratio_either_is_as_often_the_cheaper(question):
    (pair,) = entry(question)["pairs"]
    held = entry(with_price(question, ratio_of(pair)[1]))
    assert held["pairs"][0]["p_flip"] == pytest.approx(0.5, abs=0.01)


def test_the_table_names_the_break_even_ratio(question):
    held = entry(question)["pairs"][0]["break_even_price_ratio"]
    text = " ".join(ranking(question, [entry(question)]).split())
    assert f"{held['of']} at {held['median']:.2f} (" in text
    assert f"times the price of {held['over']} costs the same" in text


def test_other_metrics_know_no_break_even(question):
    (pair,) = entry(replace(question, metric="step_time"))["pairs"]
    assert "break_even_price_ratio" not in pair


def test_a_price_that_nothing_asks_for_is_refused():
    with pytest.raises(WorkloadError, match="--price is of cost; metric step_time has none"):
        ask(options.parser().parse_args(f"{ASKED} --price h100=2".split()))
