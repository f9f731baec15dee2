"""``m2bayes evaluate --quick``: every suite in small, by the command, in under three minutes."""

import json
import time

import numpy as np
import pytest
from helpers import OUTSIDE_SUITES, refusal, run
from threadpoolctl import threadpool_limits

from m2bayes import suites
from m2bayes.errors import MissingError
from m2bayes.outside import VARIABLE
from m2bayes.suites import NAMES, Setting
from m2bayes.suites._quick import DRAWS, Few

pytestmark = pytest.mark.slow
GEMM, PREFILL = "gemm_bf16-hier_gemm", "attention_prefill_bf16-hier_attention_prefill"
LONGEST = 180.0  # [s] of one core
OUTSIDE = OUTSIDE_SUITES | {"served-e2e"}  # another package's


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """Result of each suite, and the seconds of processor time that all took together."""
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))  # nothing is done yet
    start = time.process_time()
    pytest.importorskip("sklearn.ensemble")  # its threads are limited once it is there
    with threadpool_limits(1):
        code, out, err = run("evaluate", "--quick", "--json", "--quiet")
    patch.undo()
    assert (code, err) == (0, "")
    return {one["suite"]: one for one in json.loads(out)}, time.process_time() - start


def figures(node):
    """Every number of a nested result."""
    if isinstance(node, dict | list):
        for value in node.values() if isinstance(node, dict) else node:
            yield from figures(value)
    elif isinstance(node, int | float):  # None where a figure has no meaning
        yield node


@pytest.mark.parametrize("name", NAMES)
def test_a_small_version_has_finite_figures_or_a_reason_for_none(name, everything):
    found = everything[0][name]
    assert found["quick"] is True
    if "skipped" in found:
        assert name in OUTSIDE
        pytest.skip(found["skipped"])
    values = list(figures(found["results"]))
    assert values
    assert np.isfinite(np.array(values, dtype=float)).all()
    assert found["command"] == f"m2bayes evaluate {name} --quick"
    assert found["inputs"]


def test_all_together_take_under_three_minutes_of_one_core(everything):
    assert list(everything[0]) == list(NAMES)
    assert everything[1] < LONGEST


def test_8_bit_steps_beat_the_roofline_in_small_too(everything):
    found = everything[0]["served-e2e"]
    if "skipped" in found:
        pytest.skip(found["skipped"])
    model, others = found["results"]["zero-shot"]["overall"], found["results"]["others"]
    assert model["median_ape"] < 0.5 * others["datasheet roofline"]["median_ape"]


# --- what is missing, and what cannot be written ----------------------------------------------


def test_data_that_is_not_there_is_a_reason_to_skip_only_where_all_are_run(monkeypatch):
    command = run.__wrapped__
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(suites, "NAMES", ("power",))
    code, out, err = command("evaluate", "--quick", "--quiet")
    assert (code, err) == (0, "")
    assert out.startswith("power\n  skipped: suite power reads ")
    assert f"set {VARIABLE}" in refusal(command("evaluate", "power", "--quick"))


def test_other_faults_are_no_reason_to_skip(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    (tmp_path / "vidur" / "a40").mkdir(parents=True)
    monkeypatch.setattr(suites, "NAMES", ("vidur-home",))
    assert "no mlp.csv in it" in refusal(run.__wrapped__("evaluate", "--quick"))


def test_a_folder_that_lacks_the_project_is_missing_data(monkeypatch, tmp_path, database):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(MissingError, match=r"suite power .*, it is not in"):
        suites.run("power", Setting(database))


def test_small_versions_are_not_written(tmp_path):
    outcome = run("evaluate", "--quick", "--out", str(tmp_path / "new"))
    assert "its figures mean nothing: drop --out" in refusal(outcome)
    assert not (tmp_path / "new").exists()


# --- what they run on -------------------------------------------------------------------------


def test_few_draws_are_some_of_the_stored_ones(database):
    few, whole = Few(database.root).draws(GEMM), database.draws(GEMM)
    assert few.sizes["draw"] == DRAWS
    assert few.attrs == whole.attrs
    assert set(few["power_slope"].values.ravel()) <= set(whole["power_slope"].values.ravel())


@pytest.mark.parametrize(
    ("name", "sku", "family"),
    [(GEMM, "A100-80GB-SXM", "Ampere"), (PREFILL, "L40S-48GB-PCIe", "Ada/")],
)
def test_forgotten_skus_leave_no_trace(database, name, sku, family):
    left = Setting(database, quick=True).left_out(name)
    found, whole = left.fit([sku]), database.draws(name)
    for label in ("sku", "residual_sku"):
        assert any(str(s).startswith(sku) for s in whole[label].values)
        assert not any(str(s).startswith(sku) for s in found[label].values)
    assert not any(str(a).startswith(family) for a in found["architecture"].values)
    assert found.attrs == whole.attrs
    assert left.fit([sku], telemetry_only=True).identical(whole)
