"""Fits with SKUs left out: found again in the cache, and then treated as never measured."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from helpers import refusal, run

from m2bayes import leaveout
from m2bayes.errors import DataError, RecordError
from m2bayes.factors import basis
from m2bayes.gemm import gemm_cells
from m2bayes.leaveout import LeftOut, not_measured
from m2bayes.options import judging
from m2bayes.predictive import predict
from m2bayes.workload import parse_workload

NAME = "gemm_bf16-hier_gemm"
H100, H200, A100 = "H100-80GB-SXM", "H200-141GB-SXM", "A100-80GB-SXM"


@pytest.fixture
def left(small_database, synthetic_posterior, tmp_path, monkeypatch):
    """A `LeftOut` whose sampler returns the made-up posterior, and counts how often it is asked."""
    asked = []

    def sampled(self, inputs):
        asked.append(sorted(set(inputs.times["sku"])))
        return synthetic_posterior.drop_attrs()

    monkeypatch.setattr(LeftOut, "_sample", sampled)
    found = LeftOut(small_database, NAME, cache=tmp_path / "cache")
    found.asked = asked
    return found


# --- cache -----------------------------------------------------------------------------------


def test_a_fit_is_made_once_and_then_found(left, small_database):
    one, again = left.fit([H100]), left.fit([H100])
    assert left.asked == [[A100, H200]]
    xr.testing.assert_identical(one, again)
    assert len(list(left.cache.iterdir())) == 1
    other = LeftOut(small_database, NAME, cache=left.cache)
    xr.testing.assert_identical(other.fit([H100]), one)
    assert len(left.asked) == 1


def test_the_order_of_skus_does_not_matter_but_which_they_are(left):
    left.fit([H100, A100])
    left.fit([A100, H100])
    assert len(left.asked) == 1
    left.fit([H100])
    left.fit([H100], telemetry_only=True)
    assert left.asked == [[H200], [A100, H200], [A100, H100, H200]]


def test_other_lengths_are_another_fit(left, monkeypatch):
    before = left._key([H100], False)
    for length in [(501, 500), (500, 501)]:
        monkeypatch.setattr(left, "length", length)
        assert left._key([H100], False) != before


@pytest.mark.parametrize("setting", ["CHAINS", "TARGET"])
def test_another_setting_is_another_fit(left, monkeypatch, setting):
    before = left._key([H100], False)
    monkeypatch.setattr(leaveout, setting, getattr(leaveout, setting) * 1.01)
    assert left._key([H100], False) != before


def test_another_seed_record_or_data_is_another_fit(left, small_database):
    keys = {left._key([H100], False), left._key([H200], False), left._key([H100], True)}
    keys.add(LeftOut(small_database, NAME, seed=2)._key([H100], False))
    record = small_database.posterior(NAME)
    for field, value in {
        "fingerprint": [1.0, 2.0, 3.0],
        "versions": record.versions | {"pymc": "0"},
        "data": [{**source, "sha256": "0" * 64} for source in record.data],
    }.items():
        changed = LeftOut(small_database, NAME)
        object.__setattr__(changed.record, field, value)
        keys.add(changed._key([H100], False))
    assert len(keys) == 7


def test_the_cache_lies_in_the_users_folder_unless_told_otherwise(
    small_database, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert LeftOut(small_database, NAME).cache == tmp_path / "m2bayes" / "left-out"


def test_an_interrupted_fit_leaves_nothing_behind(left, monkeypatch):
    def cut_off(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", cut_off)
    with pytest.raises(RecordError, match="cannot be written: No space left on device"):
        left.fit([H100])
    assert list(left.cache.iterdir()) == []


# --- never measured --------------------------------------------------------------------------


def test_a_sku_that_was_left_out_is_treated_as_never_measured(left):
    draws, sheets = left.fit([H100]), left.inputs.datasheets
    assert draws["sku"].values.tolist() == [A100, H200]
    rests = dict(zip(sheets["sku"].values, basis(draws, sheets).values, strict=True))
    assert rests == {A100: "measured", H100: "architecture", H200: "measured"}
    assert H100 not in draws["residual_sku"].values
    assert set(draws["residual_sku"].values) == {A100, H200}
    assert draws["residual_wider"]["sku"].values.tolist() == [A100, H200]
    assert draws.attrs["law"] == "gemm_time"


def test_an_architecture_that_was_left_out_is_unknown(left):
    draws, sheets = left.fit([A100]), left.inputs.datasheets
    assert draws["architecture"].values.tolist() == ["Hopper"]
    assert basis(draws, sheets.sel(sku=[A100])).item() == "population"
    assert "Ampere" not in draws["residual_architecture"].values


def test_a_card_whose_telemetry_was_left_out_is_still_measured(left):
    draws, sheets = left.fit([H100], telemetry_only=True), left.inputs.datasheets
    assert (basis(draws, sheets) == "measured").all()
    assert set(draws["residual_sku"].values) == {A100, H100, H200}


def test_predictions_of_a_left_out_card_do_not_depend_on_its_own_rows(left, small_database):
    """Times of H100 made ten times slower change nothing in what is predicted without it."""
    cells = gemm_cells(None, [parse_workload("gemm:m=64,n=4096,k=1024")])
    sheet = left.inputs.datasheets.sel(sku=[H100])
    before = predict(left.fit([H100]), cells, sheet)
    slow = LeftOut(small_database, NAME, cache=left.cache)
    for table in (slow.inputs.times, slow.inputs.shapes):
        table.loc[table["sku"] == H100, "op_time"] *= 10
    np.testing.assert_array_equal(predict(slow.fit([H100]), cells, sheet), before)
    moved = slow.fit([A100])  # negative control: what is measured does depend on them
    assert not np.array_equal(moved["residual"], left.fit([A100])["residual"])


def test_left_out_skus_must_leave_every_label_known(small_database, tmp_path):
    """The compiled model holds one row for each build: none may be left without data."""
    found = LeftOut(small_database, NAME, cache=tmp_path)
    found.compiled = None  # never asked
    times = found.inputs.times
    times.loc[times["sku"] == H100, "backend"] = "another"
    with pytest.raises(RecordError, match="leaves no backend that others know"):
        found._sample(found.inputs.without([H100]))


# --- forgotten shapes ------------------------------------------------------------------------


def test_exactly_the_shapes_named_are_forgotten(small_database):
    draws = small_database.draws(NAME)
    shapes = draws["residual_shape"].values
    some = shapes[[0, 40, -1]].astype(float)
    found = not_measured(draws, np.vstack([some, [[3.0, 5.0, 7.0]]]))
    gone = np.array([any((row == s).all() for s in some) for row in shapes])
    assert gone.sum() >= 3
    np.testing.assert_array_equal(found["residual_shape"], shapes[~gone])
    np.testing.assert_array_equal(found["residual"], draws["residual"].values[~gone])
    assert found.attrs == draws.attrs
    np.testing.assert_array_equal(found["log_droop"], draws["log_droop"])


def test_a_posterior_without_residuals_has_nothing_to_forget(synthetic_posterior):
    found = not_measured(synthetic_posterior, np.array([[1.0, 2.0, 3.0]]))
    xr.testing.assert_identical(found, synthetic_posterior)


# --- made by others --------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def nothing_is_held():
    leaveout._held.cache_clear()
    yield
    leaveout._held.cache_clear()


def test_fits_made_ahead_are_those_that_are_asked_for(left, spread_here, tmp_path):
    groups, one = [[H100], [A100], [H100]], left.fit([H100])
    other = LeftOut(left.database, NAME, cache=tmp_path / "other", each=spread_here)
    other.ahead(groups)
    other.ahead([[H200]], telemetry_only=True)
    other.ahead([[H200]], kept=[left.inputs.times.query("sku == @H200").iloc[:3]])
    assert left.asked == [
        *([A100, H200],),  # here
        *([A100, H200], [H100, H200], [A100, H100, H200], [A100, H100, H200]),  # elsewhere, once
    ]
    before = len(left.asked)
    xr.testing.assert_identical(other.fit([H100]), one)
    other.fit([A100])
    other.fit([H200], telemetry_only=True)
    assert len(left.asked) == before
    assert len(list(other.cache.iterdir())) == 4


def test_nothing_is_made_ahead_where_nobody_else_works(left):
    left.ahead([[H100], [A100]])
    assert left.asked == []
    assert not left.cache.exists()


def test_a_worker_with_other_data_is_refused(left, spread_here, tmp_path):
    other = LeftOut(left.database, NAME, cache=tmp_path / "other", each=spread_here)
    other.record.versions["pymc"] = "0"
    with pytest.raises(DataError, match="a worker has another database"):
        other.ahead([[H100]])
    assert list(other.cache.iterdir()) == []


@pytest.mark.parametrize(("rhat", "runs"), [([1.0], 1), ([2.0, 1.0], 2), ([2.0, 2.0], 2)])
def test_a_fit_that_has_not_converged_runs_longer_once(tmp_path, monkeypatch, rhat, runs):
    """And keeps as many draws; one that has not then is refused."""
    import nutpie

    from m2bayes.database import Database

    asked, left = [], list(rhat)

    def sample(compiled, *, draws, tune, chains, **settings):
        asked.append((draws, tune))
        held = {"mu": (("chain", "draw"), np.arange(chains * draws, dtype=float).reshape(4, -1))}
        coords = {"chain": range(chains), "draw": range(draws)}
        return xr.DataTree.from_dict({"posterior": xr.Dataset(held, coords)})

    monkeypatch.setattr(nutpie, "sample", sample)
    checked = {"divergences": 0}
    monkeypatch.setattr(leaveout, "diagnostics", lambda tree: checked | {"rhat_max": left.pop(0)})
    out = LeftOut(Database(), "gemm_bf16-const_ceiling", cache=tmp_path)
    out.length = (5, 7)
    out.compiled = SimpleNamespace(shared_var_keys=[], with_data=lambda **data: None)
    inputs = out._inputs([H100], False, None)
    if rhat[-1] > 1.5:
        with pytest.raises(RecordError, match="did not converge"):
            out._sample(inputs)
    else:
        assert out._sample(inputs).sizes == {"chain": 4, "draw": 5}
    assert asked == [(5, 7), (20, 28)][:runs]


ALONE = """
import sys
from pathlib import Path
from m2bayes.database import Database
from m2bayes.leaveout import LeftOut
left = LeftOut(Database(), sys.argv[1], cache=Path(sys.argv[2]))
for sku in sys.argv[3:]:
    left.fit([sku])
"""


@pytest.mark.slow
def test_real_fits_on_two_processes_are_those_of_one(tmp_path, monkeypatch):
    """Draw by draw, of the model that is fitted fastest, the one process as fresh as the two.

    Code from PyTensor's cache rounds otherwise than code just compiled, and a chain soon shows it.
    """
    monkeypatch.setenv("PYTENSOR_FLAGS", "numba__cache=False")
    pytest.importorskip("distributed", reason="needs pip install 'm2bayes[sweep]'")
    from m2bayes.database import Database
    from m2bayes.sweeping.cluster import spread

    name, groups = "gemm_bf16-const_ceiling", [[H100], [A100]]
    command = [sys.executable, "-c", ALONE, name, str(tmp_path / "here"), H100, A100]
    subprocess.run(command, check=True, cwd=Path(leaveout.__file__).parents[1])
    with spread(2) as each:
        there = LeftOut(Database(), name, cache=tmp_path / "there", each=each)
        there.ahead(groups)
    here = LeftOut(Database(), name, cache=tmp_path / "here")
    here._sample = there._sample = None  # not called again
    for group in groups:
        xr.testing.assert_identical(there.fit(group), here.fit(group))


# --- m2bayes evaluate --workers --------------------------------------------------------------


def test_suites_whose_fits_are_spread_are_those_that_the_option_is_for():
    folder = Path(leaveout.__file__).parent / "suites"
    spreads = re.compile(r"\.ahead\(|_grid\.held_out\(|setting\.each")
    found = {
        path.stem.replace("_", "-")
        for path in folder.glob("[!_]*.py")
        if spreads.search(path.read_text())
    }
    assert found == set(judging.REFITS)
    leaving = {p.stem for p in folder.glob("[!_]*.py") if "setting.left_out(" in p.read_text()}
    assert {name.replace("_", "-") for name in leaving} <= found


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("knee", "--workers", "2"), "only these suites fit models: gemm-transfer, "),
        (("knee", "--scheduler", "tcp://host:8786"), "--scheduler tcp://host:8786: only these"),
        (("sbc", "--quick", "--workers", "2"), "--quick makes no fits worth spreading"),
        (("sbc", "--workers", "257"), "--workers 257: give 0 to 256"),
    ],
)
def test_workers_with_nothing_to_do_are_refused(argv, told):
    assert told in refusal(run("evaluate", *argv))
