"""The suites beside Vidur's forest on made-up tables: splits that do not leak, figures by hand."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from m2bayes.database import Database
from m2bayes.errors import DataError, RecordError
from m2bayes.mechanism.light import PASSES
from m2bayes.outside import VARIABLE
from m2bayes.suites import (
    Setting,
    _forest,
    _profiles,
    fresh,
    light,
    run,
    vidur_home,
    vidur_transfer,
)
from m2bayes.vidur import OPERATORS

TOKENS = [1, 2, 4, *range(8, 257, 8)]
CARDS = {"a100": 1.0, "h100": 0.5, "a40": 2.0}
LLMS = {"one": 4096, "two": 8192}
SUITES = {"vidur-home": vidur_home, "vidur-transfer": vidur_transfer}


def profile(pace, hidden):
    """A profile whose times [ms] tell the degree of parallelism; one count is there twice."""
    shape = {"n_head": 32, "n_kv_head": 8, "n_embd": hidden, "n_expanded_embd": 14336}
    rows = [
        shape
        | {"use_gated_mlp": True, "num_tokens": n, "num_tensor_parallel_workers": tp}
        | {f"time_stats.{op}.median": pace * (0.1 + n / 100) / tp for op in fresh.PROJECTIONS}
        | {f"time_stats.{op}.median": pace * 1e-3 * (3 + tp + n / 64) for op in OPERATORS}
        for tp in (1, 2)
        for n in [*TOKENS, 8]
    ]
    return pd.DataFrame(rows)


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """Profiles of three cards; the home card has one LLM more than the others."""
    for alias, pace in CARDS.items():
        for llm, hidden in {**LLMS, **({"three": 2048} if alias == "a100" else {})}.items():
            folder = tmp_path / "vidur" / alias / "somebody" / llm
            folder.mkdir(parents=True)
            profile(pace, hidden).to_csv(folder / "mlp.csv", index=False)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


@pytest.fixture
def setting():
    return Setting(Database(), quick=True)


@pytest.fixture
def fitted(setting, monkeypatch):
    """Pretend that the light kernels were fitted to these tables."""
    record = setting.database.posterior(setting.light)
    monkeypatch.setattr(light, "content_hash", lambda table: record.data[0]["sha256"])


def home_rows(setting, part, alias="a100", quick=False):
    sku = str(setting.database.datasheets([alias])["sku"].item())
    whole = Setting(setting.database)
    return _profiles.rows(part, _profiles.tables(whole, "test", alias), sku, quick=quick)


# --- rows and folds --------------------------------------------------------------------------


@pytest.mark.parametrize("part", _profiles.PARTS)
def test_replicates_are_one_row_and_parallelism_keeps_its_row(outside, setting, part):
    table = home_rows(setting, part)
    ops = fresh.PROJECTIONS if part == _profiles.PROJECTION else OPERATORS
    assert len(table) == len(ops) * 3 * 2 * len(TOKENS)
    assert not table.duplicated(_profiles.ROW).any()
    tp, n = table["tp"], table["tokens"]
    given = (0.1 + n / 100) / tp if part == _profiles.PROJECTION else 1e-3 * (3 + tp + n / 64)
    np.testing.assert_allclose(table["op_time"], 1e-3 * given, rtol=1e-12)


def test_whole_token_counts_are_held_out(outside, setting):
    table = home_rows(setting, _profiles.PROJECTION)
    fold = _profiles.folds(table, 5, seed=0)
    by_count = pd.Series(fold).groupby(table["tokens"]).nunique()
    assert (by_count == 1).all()
    counts = np.bincount(pd.Series(fold).groupby(table["tokens"]).first())
    assert len(counts) == 5
    assert counts.max() - counts.min() <= 1


def test_quick_keeps_a_few_counts(outside, setting):
    few = home_rows(setting, _profiles.LIGHT, quick=True)
    assert set(few["tokens"]) == set(TOKENS[:: _profiles.QUICK[1]])


# --- forests ---------------------------------------------------------------------------------


def test_a_forest_never_sees_the_rows_it_is_judged_on(outside, setting):
    """Times of one fold are made absurd: its own predictions stay, those of the others move."""
    table = home_rows(setting, _profiles.PROJECTION)
    table = table[table["llm"] == "one"].reset_index(drop=True)
    fold = _profiles.folds(table, 5, seed=0)
    wrong = table.assign(op_time=table["op_time"].where(fold != 2, 1.0))
    right, moved = (_forest.out_of_fold(t, fold, quick=True) for t in (table, wrong))
    np.testing.assert_array_equal(moved[fold == 2], right[fold == 2])
    assert (moved[fold != 2] > 2 * right[fold != 2]).any()


def test_a_forest_knows_its_table_and_copies_it_to_any_card(outside, setting):
    table = home_rows(setting, _profiles.PROJECTION)
    table = table[table["llm"] != "three"].reset_index(drop=True)
    forests = _forest.trained(table, quick=True)
    assert set(forests) == {(op, llm) for op in fresh.PROJECTIONS for llm in LLMS}
    own = _forest.forecast(forests, table)
    error = np.abs(own / table["op_time"] - 1)
    assert error[table["tokens"] > 16].max() < 8 / 16  # within a step of the grid
    other = home_rows(setting, _profiles.PROJECTION, "h100")
    home, sku = str(table["sku"].iloc[0]), str(other["sku"].iloc[0])
    found = vidur_transfer.copied(setting, _profiles.PROJECTION, other, forests, home)
    np.testing.assert_array_equal(found[vidur_transfer.FOREST], own)
    there, here = (_profiles.roofline(setting, _profiles.PROJECTION, other, s) for s in (sku, home))
    np.testing.assert_allclose(found[vidur_transfer.SCALED], own * there / here, rtol=1e-12)


def test_the_grid_is_searched_by_whole_token_counts(outside, setting):
    table = home_rows(setting, _profiles.PROJECTION)
    own = table[(table["op"] == "attn_pre_proj") & (table["llm"] == "one")]
    found = _forest._trained(own, _forest.GRID, 5)
    assert len(found.estimators_) == 5
    assert found.min_samples_split == 2  # the time has no noise: the finest forest is the best
    assert found.max_depth in _forest.GRID["max_depth"]


def test_fewer_rows_make_a_worse_forest(outside, setting):
    table = home_rows(setting, _profiles.PROJECTION)
    table = table[table["llm"] == "one"].reset_index(drop=True)
    fold = _profiles.folds(table, 5, seed=0)
    observed = table["op_time"].to_numpy()
    whole = _forest.out_of_fold(table, fold, quick=True)
    few = _forest.out_of_fold(table, fold, most=5, rng=np.random.default_rng(0), quick=True)
    assert np.abs(few / observed - 1).mean() > np.abs(whole / observed - 1).mean()


# --- rooflines and errors by hand ------------------------------------------------------------


def test_rooflines_by_hand(outside, setting):
    sheet = setting.database.datasheets(["a40"])
    table = home_rows(setting, _profiles.LIGHT, "a40")
    sku = str(table["sku"].iloc[0])
    at = table.index[(table["kernel"] == "norm") & (table["tokens"] == 64)][0]
    found = _profiles.roofline(setting, _profiles.LIGHT, table, sku)
    rate = float(sheet["peak_bandwidth"].item())
    traffic = PASSES["norm"] * 2 * 64 * table["width"][at]
    assert found[at] == pytest.approx(traffic / rate, rel=1e-12)
    table = home_rows(setting, _profiles.PROJECTION, "a40")
    M, N, K = (table[v].to_numpy() for v in ("M", "N", "K"))
    flops, traffic = 2 * M * N * K, 2 * (N * K + M * K + M * N)
    limit = np.maximum(flops / float(sheet["peak_flop_rate"].item()), traffic / rate)
    found = _profiles.roofline(setting, _profiles.PROJECTION, table, sku)
    np.testing.assert_allclose(found, limit, rtol=1e-12)


def some_rows(times, **columns):
    n = len(times)
    held = {"op": ["a"] * n, "llm": "x", "tp": 1, "tokens": range(1, n + 1), "op_time": times}
    return pd.DataFrame(held | columns)


def test_errors_and_ratios_by_hand():
    table = some_rows([1.0, 2.0, 4.0, 8.0], op=["a", "a", "b", "b"], tokens=[1, 1, 2, 2])
    observed = table["op_time"].to_numpy()
    points = {"ours": observed * 1.1, "half": observed * 0.8, "same": observed * 1.1}
    found = _profiles.compared(table, points, rivals=["half", "same"], seed=0)
    assert (found["rows"], found["blocks"]) == (4, 2)
    assert found["ours"]["mape"] == pytest.approx(0.1, rel=1e-12)
    assert found["half"]["bias"] == pytest.approx(-np.log(0.8), rel=1e-12)
    assert found["ours"]["by op"] == pytest.approx({"a": 0.1, "b": 0.1}, rel=1e-12)
    over = found["ours"]["over"]
    names = ("ratio", "low", "high", "octave_low", "octave_high")
    assert over["half"] == pytest.approx(dict.fromkeys(names, 0.5), rel=1e-9)
    assert over["same"] == pytest.approx(dict.fromkeys(names, 1.0), rel=1e-9)
    assert "over" not in found["half"]


def test_blocks_are_drawn_whole(rng):
    """Rows of a block that err alike count as one: the interval does not shrink with copies."""
    error = rng.exponential(0.1, size=60)
    widths = []
    for copies in (1, 20):
        table = some_rows(np.ones(60 * copies), tokens=np.repeat(np.arange(1, 61), copies))
        points = {"ours": 1 + np.repeat(error, copies), "rival": np.full(60 * copies, 1.1)}
        held = _profiles.compared(table, points, rivals=["rival"], seed=0)["ours"]
        widths.append(held["high"] - held["low"])
    assert widths[0] == pytest.approx(widths[1], rel=1e-9)
    # deliberate mistake: rows drawn one by one seem to know the error four times as well
    loose = some_rows(np.ones(1200), tokens=range(1, 1201))
    points = {"ours": 1 + np.repeat(error, 20), "rival": np.full(1200, 1.1)}
    held = _profiles.compared(loose, points, rivals=["rival"], seed=0)["ours"]
    assert held["high"] - held["low"] < widths[0] / 3


def test_a_layer_is_the_sum_of_its_operators():
    first = some_rows([1.0, 2.0], op=["a", "a"], tokens=[1, 2])
    second = some_rows([10.0, 20.0, 5.0], op=["b", "b", "emb"], tokens=[1, 3, 1])
    points = [
        (first, {"m": np.array([1.5, 2.5]), "only here": np.zeros(2)}),
        (second, {"m": np.array([9.0, 21.0, 5.0])}),
    ]
    table, found = _profiles.layers(points)
    assert table["tokens"].tolist() == [1]  # 2 and 3 lack an operator each
    assert table["op_time"].tolist() == [11.0]
    assert set(found) == {"m"}
    assert found["m"].tolist() == [10.5]


# --- a few rows of the very card -------------------------------------------------------------


@pytest.mark.parametrize("part", _profiles.PARTS)
def test_rows_that_update_are_of_other_folds(outside, setting, monkeypatch, part):
    """Ten rows an operator, none of a token count that is asked for; each fold has its own."""
    table = home_rows(setting, part)
    table = table[table["llm"] == "one"].reset_index(drop=True)
    draws = setting.database.draws(
        setting.posterior if part == _profiles.PROJECTION else setting.light
    )
    fold, given = _profiles.folds(table, 3, seed=0), []

    def unsampled(parent, cells, sheets, **settings):
        given.append(cells)
        return SimpleNamespace(draws=parent)

    asked = []

    def log_draws(setting, draws, part, rows, regime, *, backend):
        asked.append(rows)
        return np.log(rows["op_time"].to_numpy()) + np.zeros((2, 1))

    monkeypatch.setattr(vidur_home, "unsampled", unsampled)
    monkeypatch.setattr(vidur_home, "log_draws", log_draws)
    found = vidur_home.out_of_fold(setting, draws, part, table, fold, timed=10)
    np.testing.assert_allclose(found, np.log([table["op_time"]] * 2), rtol=1e-12)
    size = "M" if part == _profiles.PROJECTION else "tokens"
    assert len(given) == 3
    for cells, rows in zip(given, asked, strict=True):
        assert set(cells[size]).isdisjoint(rows["tokens"])
        assert 0 < len(cells) <= 10 * table["op"].nunique()
        assert not cells.duplicated([size, *({"N", "K", "kernel", "width"} & {*cells})]).any()


def test_an_update_moves_the_light_kernels_to_their_card(outside, setting):
    """Kernels a fifth slower than those that were fitted: few rows tell most of that."""
    table = home_rows(setting, _profiles.LIGHT)
    table = table[(table["llm"] == "one") & (table["op"] == "add")].reset_index(drop=True)
    draws = setting.database.draws(setting.light)
    before = _profiles.log_draws(setting, draws, _profiles.LIGHT, table, "benchmark")
    slower = table.assign(op_time=1.2 * _profiles.point(before))
    fold = _profiles.folds(slower, 2, seed=0)
    after = vidur_home.out_of_fold(setting, draws, _profiles.LIGHT, slower, fold, timed=10)
    gone = np.log(1.2) - (np.median(after, axis=0) - np.median(before, axis=0))
    assert np.abs(gone).mean() < np.log(1.2) / 2


# --- the suites ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SUITES)
def test_the_suites_from_end_to_end(outside, setting, fitted, name):
    found = run(name, setting)
    records = (setting.database.posterior(p) for p in (setting.posterior, setting.light))
    assert found["inputs"] == {r.name: r.draws["sha256"] for r in records}
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    results = found["results"]
    if name == "vidur-home":
        assert set(results) == {*_profiles.PARTS, "layer", "files"}
        assert results["projections"]["model"]["over"].keys() == {"forest"}
        assert results["layer"]["model"]["by op"].keys() == {"layer"}
        return
    assert set(results) == {*CARDS, "seen", "files"}
    assert results["seen"]["a40"] == {"times": 0, "shapes": 0, "clock": 0}
    assert results["seen"]["h100"]["times"] > 0
    for alias in CARDS:
        for part in _profiles.PARTS:
            held = results[alias][part]
            assert (vidur_transfer.SCALED in held) == (alias != "a100")
            assert held["model"]["over"].keys() >= {"forest", "datasheet roofline"}
    # a copied forest says the same of both cards, of which one takes four times as long
    h100, a40 = (results[alias]["projections"]["forest"]["bias"] for alias in ("h100", "a40"))
    assert a40 - h100 == pytest.approx(np.log(4), rel=1e-9)


def test_only_llms_that_every_card_has_are_compared(outside, setting):
    whole = Setting(setting.database)
    files = {alias: _profiles.tables(whole, "test", alias) for alias in CARDS}
    kept = vidur_transfer._common(files)
    assert {f.parent.name for own in kept.values() for f in own} == set(LLMS)


def test_cells_that_light_kernels_were_fitted_to_are_left_out(outside, setting, fitted):
    table = home_rows(setting, _profiles.LIGHT)
    rest = _profiles.unfitted(setting, "test", "a100", table)
    assert 0 < len(rest) < len(table)
    assert set(rest["tokens"]).isdisjoint({1, 256})  # the ends are always fitted


def test_a_card_in_the_fit_is_left_out_too(setting, monkeypatch):
    gone = []

    def fit(skus):
        gone.append(skus)
        return SimpleNamespace()

    real = setting.left_out(setting.posterior)
    left = SimpleNamespace(inputs=real.inputs, fit=fit, ahead=lambda jobs: None)
    whole = Setting(setting.database)
    h100, a40 = (str(setting.database.datasheets([a])["sku"].item()) for a in ("h100", "a40"))
    names = [n for n, *_ in vidur_transfer.versions(whole, "projections", h100, left)]
    assert names[2:] == [
        "model, card left out",
        "model, card left out, benchmark regime",
        "model, architecture left out",
        "model, architecture left out, benchmark regime",
    ]
    assert gone[0] == [h100]
    assert set(gone[1]) > {h100}
    assert len(vidur_transfer.versions(whole, "projections", a40, left)) == 2
    assert len(vidur_transfer.versions(whole, "light operators", h100, left)) == 1


@pytest.mark.parametrize("name", SUITES)
def test_other_tables_than_those_fitted_are_refused(outside, setting, name):
    """A deliberate mistake: nothing of them could be called unseen."""
    with pytest.raises(RecordError, match="was fitted to other rows than import makes"):
        run(name, setting)


@pytest.mark.parametrize("name", SUITES)
def test_without_outside_data_the_suites_say_what_they_need(setting, monkeypatch, tmp_path, name):
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(DataError, match=f"suite {name} .* set {VARIABLE} to the folder of vidur/"):
        run(name, setting)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    (tmp_path / "vidur").mkdir()
    with pytest.raises(DataError, match=r"no mlp\.csv in it; fetch"):
        run(name, setting)
