"""Suites that judge the inference itself: calibration, power scaling, prior times; in small."""

import json
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

from m2bayes.errors import DataError, RecordError
from m2bayes.mechanism.laws import LAWS
from m2bayes.step import PARTS
from m2bayes.suites import Setting, prior, run, sbc, sensitivity

CHAINS, DRAWS = 4, 1000


@pytest.fixture
def setting(database, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return Setting(database, quick=True)


def figures(node):
    """Every number of a nested result."""
    if isinstance(node, dict | list):
        for value in node.values() if isinstance(node, dict) else node:
            yield from figures(value)
    elif isinstance(node, int | float):
        yield node


def checked(name, setting):
    """Result of a small version, once it is known to be one that can be written."""
    found = run(name, setting)
    assert found["suite"] == name
    baseline = setting.database.posterior(setting.baseline)
    assert found["inputs"][setting.baseline] == baseline.draws["sha256"]
    assert np.isfinite(list(figures(found["results"]))).all()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    return found["results"]


# --- calibration -----------------------------------------------------------------------------


def test_what_was_simulated_is_kept_and_found_again(setting, tmp_path, monkeypatch):
    first = checked("sbc", setting)
    assert len(list((tmp_path / "m2bayes" / "sbc").iterdir())) == 2  # the model and its control

    def refused(*args, **kwargs):
        raise RecordError("nothing is left to simulate")

    monkeypatch.setattr(sbc, "compiled_model", refused)
    assert run("sbc", setting)["results"] == first
    (model,) = first["models"].values()
    assert model["ranked"] + sum(model["discarded"].values()) == model["simulations"]
    assert model["control"]["factor"] in model["p"]


def test_a_verdict_of_a_former_run_is_taken_over_if_nothing_it_rests_on_changed(setting):
    first = run("sbc", setting)["results"]
    model = first["models"]["const_ceiling"] | {"simulations": -1}  # a mark no run would give
    for key, taken in ((model["key"], True), ("of another density", False)):
        former = {"models": {"const_ceiling": model | {"key": key}}}
        again = run("sbc", replace(setting, former=former))["results"]["models"]
        assert (again["const_ceiling"]["simulations"] == -1) is taken
    assert again == first["models"]


def test_ranks_of_workers_are_those_of_one_process(setting, spread_here, tmp_path, monkeypatch):
    """Also that they are worked out: nothing is found in an empty cache."""
    first = run("sbc", setting)["results"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    sbc._compiled.cache_clear()
    assert run("sbc", replace(setting, each=spread_here))["results"] == first
    assert sbc._compiled.cache_info().misses == 1


def test_a_worker_with_another_model_is_refused(database):
    with pytest.raises(DataError, match="a worker has another model"):
        sbc._compiled(None, "const_ceiling", (0.0, 0.0, 0.0))


# --- power scaling ---------------------------------------------------------------------------


def draws_of(rng, sd=1.0):
    return xr.DataArray(sd * rng.standard_normal((CHAINS, DRAWS)), dims=("chain", "draw"))


@pytest.fixture
def normal(rng):
    """A parameter that only its prior tells, one that only the data tell, and another."""
    own, told, other = draws_of(rng), draws_of(rng), draws_of(rng)
    logs = {
        "prior": xr.Dataset({"own": -0.5 * own**2}),
        "likelihood": xr.Dataset({"log_time": -0.5 * told**2}),
    }
    return xr.Dataset({"own": own, "told": told, "other": other}), logs


def test_power_scaling_sees_what_each_parameter_rests_on(normal):
    quantities, logs = normal
    found = sensitivity.senses(quantities, logs)
    for group, name in (("prior", "own"), ("likelihood", "told")):
        figure, chance = found[group], found[f"{group} by chance"]
        assert float(figure[name]) > max(2 * float(chance[name]), sensitivity.TOLD)
        for quiet in {"own", "told", "other"} - {name}:
            assert float(figure[quiet]) < 0.5 * float(figure[name])


@pytest.mark.statistical
@pytest.mark.parametrize("power", sensitivity.POWERS)
def test_tilting_a_normal_prior_changes_its_width(power, rng):
    """A standard normal raised to a power has variance 1 over that power."""
    theta = draws_of(rng)
    weight, k = sensitivity.tilted(-0.5 * theta**2, power)
    square = theta.values.ravel() ** 2
    found = (weight * square).sum()
    error = 4 * np.sqrt((weight**2 * (square - found) ** 2).sum())
    assert abs(found - 1 / power) < error
    assert weight.sum() == pytest.approx(1.0, rel=1e-12)
    assert k < 0.5


def test_tilting_the_wrong_way_would_be_seen(rng):
    theta = draws_of(rng)
    weight, _ = sensitivity.tilted(+0.5 * theta**2, 0.5)
    assert (weight * theta.values.ravel() ** 2).sum() < 0.8


# --- prior times -----------------------------------------------------------------------------


def test_every_law_of_the_assembly_has_a_floor(database):
    parts = database.assembly(Setting(database).assembly).parts
    laws = {database.model(database.posterior(parts[part]).model).law for part in PARTS}
    assert laws <= set(prior.FLOORS) <= set(LAWS)


def test_figures_of_prior_times_by_hand():
    """Two cells: one whose time the prior expects, one that it has ten times too slow."""
    times = np.linspace(1.0, 3.0, 1001)[:, None] * np.array([1.0, 10.0])
    found = prior._held(np.log(times), np.array([2.0, 2.0]), np.array([1.0, 20.0]))
    assert found["inside_90"] == found["inside_99"] == 0.5
    assert found["ratio"][1] == pytest.approx((1.0 + 10.0) / 2, rel=1e-9)
    assert found["width"] == pytest.approx(2.9 / 1.1, rel=1e-3)
    assert found["below_floor"] == pytest.approx(500 / 1001 / 2, rel=1e-9)
    assert found["seen_below_floor"] == 0.5
