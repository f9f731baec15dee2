"""The suite of served 8-bit LLMs: its sample, the time of a token, one scalar an engine, groups."""

import numpy as np
import pandas as pd
import pytest

from m2bayes.errors import DataError
from m2bayes.silicon import sample_file, served_runs
from m2bayes.suites._scalars import KINDS, fitted, weights
from m2bayes.suites.served_e2e import (
    CONFIGURATION,
    LLMS,
    SKUS,
    calibrated,
    fits,
    judged,
    strange,
    token_times,
)

DRAWS = 60


def step_times(sku, llm, workloads, *, tp, engine, graphs=True):
    """One second a decode step and 10 ms a prompt token, in every draw."""
    each = [0.01 * w.tokens if w.kind == "prefill" else 1.0 for w in workloads]
    return np.tile(each, (3, 1))


def table(rows):
    names = ["sku", "engine", "llm", "tp", "isl", "osl", "concurrency"]
    return pd.DataFrame(rows, columns=names).assign(line=range(2, 2 + len(rows)))


def made_up(rng, *, factor=0.8, spread=0.03, bad=()):
    """Runs of two engines whose times are `factor` of what is predicted, within `spread`."""
    configurations = [
        ("H100-80GB-SXM", engine, "llama-3.1-8b", tp, isl, osl)
        for engine in ("vllm", "trtllm")
        for tp in (1, 2)
        for isl in (1024, 8192)
        for osl in (256, 512, 1024)
    ]
    runs = table([(*c, batch) for c in configurations for batch in (4, 16, 64)])
    predicted = 0.01 * rng.uniform(1, 3, len(runs))
    tpot = factor * predicted * np.exp(spread * rng.standard_normal(len(runs)))
    tpot[list(bad)] *= 4
    draws = predicted * np.exp(0.02 * rng.standard_normal((DRAWS, 1)))
    return draws, runs.assign(tpot=tpot)


# --- the sample -------------------------------------------------------------------------------


def test_the_sample_has_its_runs_and_their_load():
    pytest.importorskip("aiconfigurator_core", reason="needs the extra recipes")
    runs = served_runs(sample_file(), skus=SKUS, llms=LLMS, precision="fp8")
    assert len(runs) == 552  # of 559, seven have no concurrency
    assert set(runs["sku"]) == set(SKUS.values())
    assert (runs["concurrency"] > 0).all()
    assert runs["tpot"].between(1e-3, 1).all()
    assert not runs.duplicated([*CONFIGURATION, "concurrency"]).any()


def test_a_sample_that_is_not_there_or_lacks_a_column_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match="recipes"):
        sample_file()
    file = tmp_path / "silicon.csv"
    file.write_text("id\nx\n")
    with pytest.raises(DataError, match="no column"):
        served_runs(file, skus=SKUS, llms=LLMS, precision="fp8")


# --- the time of a token ----------------------------------------------------------------------


def test_a_token_waits_for_the_prefill_of_each_other_request():
    runs = table([("H100-80GB-SXM", "vllm", "llama-3.1-8b", 1, 1000, 200, b) for b in (1, 2, 11)])
    with_them = token_times(step_times, runs)
    np.testing.assert_allclose(with_them, np.tile([1.0, 1.05, 1.5], (3, 1)), rtol=1e-9)
    alone = token_times(step_times, runs, prefills=False)
    np.testing.assert_allclose(alone, 1.0, rtol=1e-9)


def test_the_order_of_the_runs_does_not_matter():
    rows = [("H100-80GB-SXM", e, "llama-3.1-8b", 1, 1000, 200, b) for e in "ab" for b in (2, 11)]
    runs = table(rows).sample(frac=1, random_state=0)
    times = token_times(step_times, runs.reset_index(drop=True))
    np.testing.assert_allclose(times[0], 1 + 0.05 * (runs["concurrency"] - 1), rtol=1e-9)


def test_a_run_fits_until_its_cache_does_not(database):
    run = {"sku": "H100-80GB-SXM", "llm": "llama-3.1-70b", "tp": 2, "isl": 8192, "osl": 1024}
    held = [fits(database, run | {"concurrency": n}, seed=0) for n in (4, 22, 400)]
    assert held[0] == 1
    assert 0 < held[1] < 1
    assert held[2] == 0


# --- scalars ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_one_scalar_is_learnt_from_the_other_runs(rng, kind):
    x = rng.uniform(0.01, 0.03, 40)
    y = 0.8 * x if kind == "one factor" else x + 0.004
    y = y * np.exp(0.01 * rng.standard_normal(40))
    times = np.tile(x, (DRAWS, 1))
    train, test = np.arange(0, 40, 2), np.arange(1, 40, 2)
    draws, point = fitted(times, y, train, test, kind=kind, seed=0)
    assert draws.shape == (DRAWS, 20)
    np.testing.assert_allclose(point, y[test], rtol=0.05)  # five standard errors of a run
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    assert ((low < y[test]) & (y[test] < high)).mean() > 0.6


def test_a_few_bad_runs_hardly_move_the_scalar_and_are_named(rng):
    bad = (3, 20, 33)
    draws, runs = made_up(rng, bad=bad)
    weight = weights(np.median(draws, axis=0), runs["tpot"].to_numpy(), factor=True)
    assert weight[list(bad)].max() < 0.1 * np.median(weight)
    named = {line for lines in strange(draws, runs).values() for line in lines}
    assert named >= {i + 2 for i in bad}
    sound = np.setdiff1d(np.arange(len(runs)), bad)
    _, point = fitted(
        draws, runs["tpot"].to_numpy(), np.arange(len(runs)), sound, kind="one factor", seed=0
    )
    ratio = np.median(point / runs["tpot"].to_numpy()[sound])
    assert ratio == pytest.approx(1, abs=0.02)


def test_least_squares_would_be_moved_by_them(rng):
    """The mistake of equal weights: the same runs pull a mean by far more."""
    draws, runs = made_up(rng, bad=(3, 20, 33))
    gap = 1 - np.median(draws, axis=0) / runs["tpot"].to_numpy()
    assert abs(gap.mean() - np.median(gap)) > 0.03


def test_halves_are_of_whole_configurations(rng, monkeypatch):
    draws, runs = made_up(rng)
    seen = []

    def spy(times, observed, train, test, **_):
        seen.append((train, test))
        return times[:, test], np.median(times[:, test], axis=0)

    monkeypatch.setattr("m2bayes.suites.served_e2e.fitted", spy)
    calibrated(draws, runs, kind="one factor", seed=0)
    names = runs[CONFIGURATION].astype(str).agg(" ".join, axis=1)
    assert len(seen) == 2
    for train, test in seen:
        assert not set(names.iloc[train]) & set(names.iloc[test])
        assert abs(len(train) - len(test)) <= 3


def test_scores_come_by_group_and_what_exceeds_the_cache_apart(rng):
    draws, runs = made_up(rng)
    room = np.ones(len(runs), bool)
    room[::5] = False
    sheet = {"datasheet roofline": np.median(draws, axis=0) / 2}
    found = judged(draws, runs, room, sheet, splits=2)
    assert (found["runs"], found["within capacity"]) == (len(runs), int(room.sum()))
    assert found["beyond capacity"]["overall"]["runs"] == int((~room).sum())
    groups = set(found["zero-shot"]) - {"overall"}
    assert groups == {"H100-80GB-SXM trtllm llama-3.1-8b", "H100-80GB-SXM vllm llama-3.1-8b"}
    assert sum(found["zero-shot"][g]["runs"] for g in groups) == int(room.sum())
    assert found["zero-shot"]["overall"]["median_ape"] == pytest.approx(0.25, abs=0.03)
    best = found["calibrated"]["one factor"]["overall"]
    assert best["median_ape"] < 0.04
    assert best["coverage_90"] > 0.8
    constant = found["others"]["datasheet roofline x best constant"]
    assert constant["median_ape"] < found["others"]["datasheet roofline"]["median_ape"]
