"""Conditioning on new rows: density, coordinates, importance sampling, steps, and the whole."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import arviz_stats
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from helpers import refusal, run

from m2bayes import checking
from m2bayes.database import labelled
from m2bayes.errors import ConvergenceError, DataError, RecordError
from m2bayes.inputs import Inputs
from m2bayes.measurements import GEMM, checked
from m2bayes.mechanism.laws import LAWS
from m2bayes.posterior import fit
from m2bayes.predictive import predict_units
from m2bayes.updating import refit
from m2bayes.updating.condition import evidence, filled, unit, weigh
from m2bayes.updating.conditioned import PATHS, unsampled, updated
from m2bayes.updating.coordinates import Coordinates, Variable, contrasts, coordinates, recipe
from m2bayes.updating.enlarge import equal, with_builds
from m2bayes.updating.importance import expanded, gaussians, smoothed, weighted
from m2bayes.updating.likelihood import cell_densities, log_likelihood
from m2bayes.updating.moves import moves
from m2bayes.updating.refit import add_runs, refitted
from m2bayes.updating.rows import informed
from m2bayes.updating.smoothing import moved
from m2bayes.updating.update import past_rows, report, update, write

NAME = "gemm_bf16-hier_gemm"
NEW, OLD = "B200-180GB-SXM", "H100-80GB-SXM"  # of the made-up posterior: unmeasured, measured
BUILDS = ["sglang", "trtllm", "vllm"]
EXACT = 1e-12


@pytest.fixture(scope="module")
def rows(database):
    """All rows of 20 cells of one SKU, spread over the token counts."""

    def some(sku, cells=20, backends=BUILDS, name="gemm_bf16"):
        table = checked(database.table(name), origin=name)
        table = table[(table["sku"] == sku) & table["backend"].isin(backends)]
        shapes = table[["M", "N", "K"]].drop_duplicates()
        at = np.linspace(0, len(shapes) - 1, cells).round().astype(int)
        return checked(table.merge(shapes.iloc[at]), origin="some")

    return some


@pytest.fixture
def ready(database, synthetic_posterior, rows):
    """Rows made ready beside the made-up posterior."""

    def make(sku, table=None, **settings):
        table = rows(sku) if table is None else table
        return unit(synthetic_posterior, database.datasheets([sku]), table, **settings)

    return make


def mode_of(one, posterior):
    held = coordinates(posterior, one.variables)
    return expanded(one.log_likelihood, held).point[None]


# --- the density -----------------------------------------------------------------------------


def test_the_density_of_a_cell_is_the_models(ready, synthetic_posterior):
    """One formula, two worlds: as the model has it, where nothing is known beforehand."""
    from m2bayes.hierarchy import cell_logp

    one = ready(NEW)
    runs = replace(
        one.runs,
        mean=0 * one.runs.mean,
        sd=0 * one.runs.sd + 1,
        carry=0 * one.runs.carry,
    )
    factors, effect = filled(one.variables, mode_of(one, synthetic_posterior))
    found = cell_densities(runs, factors, effect)[0]

    order = np.argsort(-runs.member, axis=0, kind="stable")[:3].T
    mu = (runs.log_time * 0 + np.log(GEMM.time(runs.terms, factors)) + effect @ runs.build)[0]
    time = np.exp(mu - (effect @ runs.build)[0])
    scale = np.hypot(
        factors["sigma_cell"][0, 0], factors["sigma_time"][0, 0] / time[order].mean(axis=1)
    )
    model = cell_logp(
        runs.log_time[order], mu[order], np.ones(order.shape), scale, factors["sigma_run"][0, 0]
    ).eval({}, mode="FAST_COMPILE")
    np.testing.assert_allclose(found, model, rtol=EXACT, atol=EXACT)
    assert not np.allclose(found, cell_densities(one.runs, factors, 2 * effect)[0], rtol=1e-4)


def test_arrays_and_symbols_give_one_density(ready, synthetic_posterior):
    import pytensor.tensor as pt

    one = ready(NEW)
    factors, effect = filled(one.variables, mode_of(one, synthetic_posterior))
    symbols = {k: pt.as_tensor_variable(v) for k, v in factors.items()}
    found = cell_densities(one.runs, symbols, pt.as_tensor_variable(effect))
    found = found.eval({}, mode="FAST_COMPILE")
    np.testing.assert_allclose(found, cell_densities(one.runs, factors, effect), rtol=EXACT)


def test_many_cells_of_like_shape_tell_less_than_as_many_apart(ready):
    """Within-shape repeats must not count as if their discrepancies were independent."""
    n = np.arange(8)
    near = np.stack([4096 + n, 0 * n + 4096, 0 * n + 4096, 0 * n], axis=1)
    far = np.stack([2 ** (n + 8), 0 * n + 4096, 2 ** (n + 7), 0 * n], axis=1)
    bare = ready(NEW).runs
    bare = replace(bare, counted=np.ones(8))

    def worth(at):
        """Independent cells that tell as much of a common level, the first ones' noise aside."""
        held = informed(bare, at.astype(float), np.full(8, 0.01), None)
        carried = np.eye(8) - held.carry
        return (carried.sum(axis=1) ** 2 / (held.sd**2 + 0.01)).sum()

    assert worth(far) > 5
    assert worth(near) < 1.5


def test_a_cell_is_conditioned_on_those_before_it_only(ready):
    one, alone = ready(NEW), ready(NEW, alone=True)
    assert np.allclose(one.runs.carry, np.tril(one.runs.carry, -1))
    assert (alone.runs.carry == 0).all()
    assert (one.runs.sd <= 1 + EXACT).all()


def test_stored_cells_of_the_same_sku_are_context_and_no_news(small_database, rows):
    posterior = small_database.draws(NAME)
    one = unit(posterior, small_database.datasheets([OLD]), rows(OLD, 4))
    silent = one.runs.counted == 0
    assert silent.any()
    assert one.runs.counted.sum() == 4
    assert (one.runs.carry[silent] == 0).all()
    assert (one.runs.carry[~silent][:, silent] != 0).any()
    factors, effect = filled(one.variables, mode_of(one, posterior))
    whole = cell_densities(one.runs, factors, effect)
    assert log_likelihood(one.runs, factors, effect) == pytest.approx(
        whole[:, ~silent].sum(), rel=EXACT
    )


# --- coordinates -----------------------------------------------------------------------------


def test_a_new_sku_has_coordinates_of_unit_variance(synthetic_posterior):
    """Level plus spread times z: what prediction draws for a SKU that nobody measured."""
    made = recipe(synthetic_posterior, sku=NEW, family="Blackwell", backends=BUILDS)
    held = coordinates(synthetic_posterior, made)
    names = [v.name for v in made]
    at = names.index("launch_time")
    steps = (held.loading[:, at] ** 2).sum(axis=1)
    sd = [synthetic_posterior[f"log_launch_time_{k}_sd"].values for k in ("architecture", "sku")]
    np.testing.assert_allclose(steps, (sd[0] ** 2 + sd[1] ** 2).ravel(), rtol=1e-6)
    np.testing.assert_allclose(
        held.centre[:, at], synthetic_posterior["log_launch_time_mean"].values.ravel(), rtol=1e-6
    )
    assert "log_knee_architecture" in names
    known = recipe(synthetic_posterior, sku="H800", family="Hopper", backends=BUILDS)
    assert "log_knee_architecture" not in [v.name for v in known]
    assert sum(len(v.steps) for v in known) < sum(len(v.steps) for v in made)


def test_a_measured_sku_has_no_coordinate_but_a_new_build_has_one(synthetic_posterior):
    made = recipe(synthetic_posterior, sku=OLD, family="Hopper", backends=BUILDS)
    assert not any(v.steps for v in made)
    more = with_builds(synthetic_posterior, ["mine"])
    made = recipe(more, sku=OLD, family="Hopper", backends=["mine", *BUILDS])
    assert [v.name for v in made if v.steps] == ["build mine"]


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_contrasts_have_the_covariance_of_centred_normals(n):
    basis = contrasts(n)
    assert basis.shape == (n, n - 1)
    np.testing.assert_allclose(basis @ basis.T, np.eye(n) - 1 / n, atol=1e-12)


# --- importance sampling ---------------------------------------------------------------------


def line(draws=400, seed=0):
    """One variable, level + 2 z, measured as 3 with sd 0.5: everything is known in closed form."""
    level = np.random.default_rng(seed).normal(size=draws)
    made = (Variable("x", False, None, {"z": ("s", 1.0)}),)
    held = Coordinates(made, level[:, None], np.full((draws, 1, 1), 2.0), ("z",))
    return held, level, lambda u: -0.5 * ((u[:, 0] - 3.0) / 0.5) ** 2


def test_weights_agree_with_the_conjugate_posterior():
    held, level, density = line(4000)
    found = weighted(density, held, seed=0)
    assert found.pareto_k < 0.5
    # given the level x is normal; the level is normal too: so is the posterior of both
    variance = 1 / (1 / (1 + 4) + 1 / 0.25)
    x = held.values(found.z, found.draw)[:, 0]
    mean, sd = found.weight @ x, np.sqrt(variance)
    assert abs(mean - variance * 3 / 0.25) < 4 * sd / np.sqrt(found.ess)
    shared = found.weight @ level[found.draw]
    truth, spread = 3 / (1 + 4.25), np.sqrt(1 - 1 / (1 + 4.25))
    assert abs(shared - truth) < 4 * spread / np.sqrt(found.ess)
    assert abs(found.z[:, 0].mean() - found.weight @ found.z[:, 0]) > 0.1  # unweighted is wrong


def test_the_expansion_of_a_quadratic_is_exact():
    held, level, density = line()
    found = expanded(density, held)
    assert found.curvature[0, 0] == pytest.approx(4.0, rel=1e-4)
    mean, factor = gaussians(found, held.centre, held.loading)
    precision = 1 + 4 * 4.0
    np.testing.assert_allclose(factor[:, 0, 0], 1 / np.sqrt(precision), rtol=1e-4)
    np.testing.assert_allclose(mean[:, 0], 2 * 4.0 * (3 - level) / precision, atol=1e-4)


def test_equal_weights_have_every_draw_and_a_heavy_tail_is_told():
    weight, k, ess = smoothed(np.zeros(1000))
    np.testing.assert_allclose(weight, 1e-3, rtol=1e-9)
    assert ess == pytest.approx(1000)
    rng = np.random.default_rng(1)
    log = rng.exponential(size=4000)
    assert smoothed(0.3 * log)[1] < 0.6 < smoothed(1.2 * log)[1]
    assert smoothed(log)[0][np.argmax(log)] > smoothed(log)[0][np.argmin(log)]
    assert k < 0.5


def test_samples_of_one_draw_count_as_one_draw():
    assert smoothed(np.zeros(1000), np.repeat(np.arange(10), 100))[2] == pytest.approx(10)


def test_resampling_takes_each_sample_as_often_as_it_weighs():
    weight = np.random.default_rng(2).dirichlet(np.ones(50))
    taken = np.bincount(equal(weight, 1000, seed=3), minlength=50)
    assert (np.abs(taken - 1000 * weight) < 1).all()


def test_steps_reach_the_conjugate_posterior_of_normal_draws():
    """Three standard deviations away, where the weights of 1,000 draws have collapsed."""
    x = np.random.default_rng(4).normal(size=(2, 500))
    draws = xr.Dataset({"x": (("chain", "draw"), x), "y": (("chain", "draw"), 2 * x)})

    def density(now):
        return -0.5 * ((now["x"].values.ravel() - 4.0) / 0.3) ** 2

    assert smoothed(density(draws))[2] < 20
    found, steps = moved(draws, density, seed=0)
    assert 2 <= steps <= 8
    variance = 1 / (1 + 1 / 0.09)
    assert abs(found["x"].mean() - variance * 4 / 0.09) < 0.1  # a kernel of 1,000 draws is no more
    assert found["x"].std() == pytest.approx(np.sqrt(variance), rel=0.2)
    np.testing.assert_allclose(found["y"], 2 * found["x"], rtol=1e-6)


def test_the_evidence_of_a_draw_is_that_of_its_rows(ready, synthetic_posterior):
    """A measured SKU has nothing to integrate out."""
    one = ready(OLD)
    held = coordinates(synthetic_posterior, one.variables)
    np.testing.assert_allclose(
        evidence(synthetic_posterior, one, seed=0), one.log_likelihood(held.centre), rtol=EXACT
    )
    assert weigh(synthetic_posterior, one, seed=0).z.shape[1] == 0


# --- the whole -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def learnt(database, rows):
    """Update a quarter of the stored posterior, without B200, by changed rows of B200."""
    stored = database.draws(NAME)
    kept = stored.sel(sku=[s for s in stored["sku"].values if s != NEW])
    kept = kept.isel(cell=kept["residual_sku"].values != NEW, draw=slice(None, None, 4))
    kept, table = kept.assign_attrs(stored.attrs), rows(NEW, 20, ["sglang"])
    settings = {"least": 100.0}

    @cache
    def change(edit, path=None):
        sheets = database.datasheets([NEW])
        return updated(kept, edit(table.copy()), sheets, path=path, **settings)

    return change


def as_it_is(table):
    return table


def predicted(database, found, shapes):
    cells = xr.Dataset({v: ("cell", shapes[:, i]) for i, v in enumerate("MNK")})
    sheet = database.datasheets([NEW])
    time = predict_units(found.draws, cells, sheet, regime="benchmark", backend="sglang")
    return np.median(time.values.reshape(-1, len(shapes)), axis=0)


SHAPES = np.array([[m, n, k] for m in (1, 64, 4096) for n, k in ((1536, 4096), (7168, 3584))])


def test_one_row_four_times_off_is_named_and_moves_the_median_by_less_than_2_percent(
    database, learnt
):
    def off(table):
        table.loc[9, "op_time"] *= 4
        return table

    sound, spoilt = learnt(as_it_is), learnt(off)
    assert sound.outliers == []
    assert [row["place"] for row in spoilt.outliers] == [9]
    assert spoilt.outliers[0]["op_time"] == pytest.approx(
        4 * spoilt.outliers[0]["expected"], rel=0.4
    )
    ratio = predicted(database, spoilt, SHAPES) / predicted(database, sound, SHAPES)
    assert abs(np.median(ratio) - 1) < 0.02


def test_a_shift_of_all_rows_is_learnt(database, learnt):
    def slower(table):
        return table.assign(op_time=1.1 * table["op_time"])

    shifted = learnt(slower)
    assert shifted.outliers == []
    ratio = predicted(database, shifted, SHAPES) / predicted(database, learnt(as_it_is), SHAPES)
    assert 1.075 < np.median(ratio) < 1.11


def test_the_order_of_rows_changes_nothing(learnt):
    def backwards(table):
        return checked(table.iloc[::-1], origin="backwards")

    a, b = learnt(as_it_is), learnt(backwards)
    xr.testing.assert_identical(a.draws, b.draws)


def test_more_rows_leave_less_unknown(learnt):
    few = learnt(lambda table: table.iloc[::5].reset_index(drop=True))
    many = learnt(as_it_is)
    for name in ("log_eta_memory", "log_launch_time"):
        assert many.draws[name].sel(sku=NEW).std() < few.draws[name].sel(sku=NEW).std()


def test_steps_agree_with_weights_where_both_may_be_trusted(learnt):
    by_weights, by_steps = learnt(as_it_is, "reweighting"), learnt(as_it_is, "steps")
    assert by_weights.figures["pareto_k"] < 0.7
    for name, held in by_weights.draws.data_vars.items():
        if set(held.dims) == {"chain", "draw"}:
            error = held.std() * np.sqrt(2 / by_weights.figures["ess"])
            assert abs(held.mean() - by_steps.draws[name].mean()) < 4 * error, name


def test_the_new_sku_is_measured_and_the_others_stay(learnt):
    found = learnt(as_it_is)
    before, after = found.parent, found.draws
    assert [*after["sku"].values] == sorted([*before["sku"].values, NEW])
    assert np.isfinite(after["log_clock_burst"].values).all()
    np.testing.assert_allclose(after["build_effect"].sel(sku=NEW).sum("backend"), 0, atol=1e-6)
    spread = before["log_eta_memory"].sel(sku=OLD).std()
    drift = (
        after["log_eta_memory"].sel(sku=OLD).mean() - before["log_eta_memory"].sel(sku=OLD).mean()
    )
    assert abs(drift) < spread
    own = after["residual_sku"].values == NEW
    assert own.sum() == 20
    assert 0.2 <= float(after["residual_wider"].sel(sku=NEW)) <= 5


def test_weights_that_collapse_are_refused_where_only_they_may_be_taken(learnt):
    def absurd(table):
        return table.assign(op_time=6 * table["op_time"])

    with pytest.raises(ConvergenceError, match="effective draws, Pareto k") as caught:
        learnt(absurd, "reweighting")
    assert {"pareto_k", "ess"} <= set(caught.value.checks)


def test_steps_are_taken_where_weights_leave_too_few_draws(database, synthetic_posterior, rows):
    asked = synthetic_posterior, rows(NEW, 2, ["vllm"]), database.datasheets([NEW])
    assert unsampled(*asked, least=10).path == "reweighting"
    assert unsampled(*asked, least=1e9).path == "steps"


def test_a_build_that_nobody_knew_gets_an_effect_of_its_own(database, synthetic_posterior, rows):
    table = rows(OLD, 8, ["vllm"])
    slow = table.assign(backend="mine", op_time=1.05 * table["op_time"])
    found = updated(synthetic_posterior, slow, database.datasheets([OLD]), least=10)
    effect = found.draws["build_effect"].sel(backend="mine")
    assert np.isfinite(effect).all()
    assert [*found.draws["backend"].values] == sorted([*BUILDS, "mine"])
    others = effect.sel(sku=[s for s in effect["sku"].values if s != OLD])
    spread = float(synthetic_posterior["build_sd"].mean())
    assert abs(float(others.std()) - spread) < spread / 2
    assert float(effect.sel(sku=OLD).std()) < float(others.std())


# --- files -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def file(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("rows") / "my-rows.csv"
    rows(NEW, 8, name="gemm_bf16_test").to_csv(path, index=False)
    return str(path)


@pytest.fixture(scope="module")
def stored(small_database, file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("updated")
    done = update(small_database, NAME, file)
    return write(done, folder), done


def test_the_record_names_its_parent_and_every_command_takes_it(small_database, stored):
    paths, done = stored
    record = small_database.posterior(paths["posterior"])
    assert record.inference["parent"] == NAME
    assert record.inference["parent_draws"] == small_database.posterior(NAME).draws["sha256"]
    assert record.name == "gemm_bf16_and_my_rows-hier_gemm"
    assert [s["role"] for s in record.data][-1] == "rows"
    assert NEW in record.datasheets
    draws = small_database.draws(paths["posterior"])
    assert NEW in draws["sku"].values
    code, out, err = run(
        "rank",
        "--database",
        str(small_database.root),
        "--posterior",
        paths["posterior"],
        "--sku",
        "b200",
        "h100",
        "--workload",
        "gemm:m=64,n=6144,k=4096",
        "--json",
    )
    assert code == 0, err
    assert {s["basis"] for s in json.loads(out)["results"][0]["skus"]} == {"measured"}
    said = report(small_database, done)
    assert json.loads(json.dumps(said, allow_nan=False)) == said
    assert [s["sku"] for s in said["skus"]] == [NEW]
    assert said["skus"][0]["basis"] == "population"
    assert said["rankings"]


def test_an_update_can_be_updated_and_keeps_all_rows(small_database, stored, rows, tmp_path):
    paths, _ = stored
    before = past_rows(small_database, paths["posterior"])
    assert len(before) == 24
    more = tmp_path / "more.csv"
    rows(OLD, 3, name="gemm_bf16_test").to_csv(more, index=False)
    done = update(small_database, paths["posterior"], str(more))
    second = write(done, tmp_path)
    assert len(past_rows(small_database, second["posterior"])) == 33
    sound = Path(paths["rows"]).read_text()
    Path(paths["rows"]).write_text(sound.replace(",vllm,", ",other,", 1))
    with pytest.raises(RecordError, match="is not what posterior"):
        past_rows(small_database, paths["posterior"])
    Path(paths["rows"]).write_text(sound)


def test_a_part_of_an_assembly_is_replaced(file, tmp_path):
    code, out, err = run("update", "step_bf16", file, "--out", str(tmp_path), "--quiet", "--json")
    assert code == 0, err
    said = json.loads(out)
    assert said["files"]["assembly"].endswith("step_bf16_and_my_rows.json")
    code, out, err = run(
        "rank",
        "--posterior",
        said["files"]["assembly"],
        "--llm",
        "llama-3.1-8b",
        "--sku",
        "b200",
        "h200",
        "--workload",
        "decode:batch=8,context=512",
        "--draws",
        "100",
        "--json",
    )
    assert code == 0, err
    assert json.loads(out)["metric"] == "step_time"


@pytest.mark.parametrize(
    ("edit", "args", "said"),
    [
        (lambda t: t.drop(columns="K"), [], "no column K; needed are sku"),
        (lambda t: t.assign(sku="B2000"), [], "unknown SKU 'B2000'"),
        (lambda t: t.assign(sku="b200"), [], "is an alias; write B200-180GB-SXM"),
        (lambda t: t.assign(op_time=t["op_time"] * -1), [], "a time above zero"),
        (lambda t: t, ["--path", "magic"], "invalid choice"),
        (lambda t: t.iloc[:0], [], "holds no row"),
        (lambda t: t.assign(phase="decode"), [], "column phase: posterior"),
        (lambda t: t.assign(dtype="fp8"), [], "is of bf16; leave other rows out"),
        (lambda t: t.assign(op_time=1e3 * t["op_time"]), [], "give seconds (m2bayes import reads"),
        (lambda t: t.assign(op_time=t["op_time"] / 20), [], "the card needs at its peak"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line_and_nothing_is_written(
    file, tmp_path, edit, args, said
):
    path, out = tmp_path / "bad.csv", tmp_path / "out"
    edit(pd.read_csv(file)).to_csv(path, index=False)
    line = refusal(run("update", NAME, str(path), "--out", str(out), *args, "--quiet"))
    assert said in line
    assert not out.exists()


@pytest.mark.parametrize(("builds", "backend"), [(["vllm"], "vllm"), (BUILDS, "any")])
def test_times_are_shown_of_the_build_that_was_measured(
    database, synthetic_posterior, rows, builds, backend
):
    sheet = database.datasheets([OLD])
    done = updated(synthetic_posterior, rows(OLD, 8, builds), sheet, least=100)
    (shown,) = moves(done)["skus"]
    for row in shown["times"]:
        cells = xr.Dataset({v: ("cell", [row[v]]) for v in ("M", "N", "K")})
        settings = {"regime": "benchmark", "seed": done.seed, "backend": backend}
        own = predict_units(done.draws, cells, done.sheets, **settings)
        assert row["after"]["median"] == pytest.approx(float(own.median()), rel=1e-6)


def test_copies_of_a_row_count_once(small_database, file, stored, tmp_path):
    path = tmp_path / "my-rows.csv"
    table = pd.read_csv(file)
    pd.concat([table, table, table.head(3)]).to_csv(path, index=False)
    told = []
    done = update(small_database, NAME, str(path), tell=told.append)
    pd.testing.assert_frame_equal(done.rows, stored[1].rows)
    xr.testing.assert_identical(done.found.draws, stored[1].found.draws)
    assert f"{len(table) + 3} rows repeat another to the last digit: each counts once" in told


def test_a_full_disk_leaves_nothing(stored, tmp_path, monkeypatch):
    from m2bayes import database

    def full(path, content):
        raise RecordError(f"{path}: cannot be written: no space left")

    monkeypatch.setattr(database, "write_whole", full)
    with pytest.raises(RecordError, match="no space left"):
        write(stored[1], tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_rows_that_the_posterior_knows_are_refused(database, small_database, stored, tmp_path):
    path = tmp_path / "known.csv"
    database.table("gemm_bf16").head(5).to_csv(path, index=False)
    line = refusal(run("update", NAME, str(path), "--out", str(tmp_path / "out"), "--quiet"))
    assert f"holds 5 rows that posterior {NAME} knows already" in line
    with pytest.raises(DataError, match="holds 24 rows"):
        update(small_database, stored[0]["posterior"], stored[0]["rows"])


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("sku,workload,step_time", "learn from them with --calibrate"),
        ("sku,M,N,K,time [ms]", "no column op_time; m2bayes import makes"),
    ],
)
def test_a_file_of_something_else_is_told_where_it_belongs(tmp_path, header, said):
    path = tmp_path / "mine.csv"
    path.write_text(f"{header}\n{','.join('1' for _ in header.split(','))}\n")
    assert said in refusal(run("update", "step_bf16", str(path), "--out", str(tmp_path / "out")))


def test_a_check_of_rows_that_an_update_knows_is_refused(small_database, stored):
    with pytest.raises(DataError, match="knows already"):
        checking.report(
            small_database,
            stored[0]["posterior"],
            rebuild=False,
            tell=print,
            data=stored[0]["rows"],
        )


def test_rows_that_fit_several_parts_need_one_named(database, tmp_path):
    path = tmp_path / "attention.csv"
    database.table("attention_decode_bf16").head(6).to_csv(path, index=False)
    line = refusal(run("update", "step_bf16", str(path), "--out", str(tmp_path / "out"), "--quiet"))
    assert "fits parts attention_prefill, attention_decode" in line
    assert "--part" in line


@pytest.mark.parametrize("part", ["attention_decode", "allreduce"])
def test_units_of_other_laws_are_updated_by_the_same_code(database, part):
    name = database.assembly("step_bf16").parts[part]
    table = database.table(f"{part}_bf16")
    sku = table["sku"].iloc[0]
    some = table[(table["sku"] == sku) & (table["backend"] == table["backend"].iloc[0])].head(8)
    stored = database.draws(name)
    units = [u for u in stored["sku"].values if u.startswith(sku)]
    kept = stored.sel(sku=[u for u in stored["sku"].values if u not in units])
    if "residual_sku" in kept:
        kept = kept.isel(cell=~np.isin(kept["residual_sku"].values, units))
    law = LAWS[database.model(database.posterior(name).model).law]
    found = updated(
        kept.assign_attrs(stored.attrs),
        checked(some, origin="some", law=law),
        database.datasheets([sku]),
        least=100,
    )
    assert set(found.units) <= set(found.draws["sku"].values)
    assert np.isfinite(found.draws["log_sigma_cell"].values).all()


# --- against a full refit --------------------------------------------------------------------


@pytest.fixture(scope="module")
def refits(database, tmp_path_factory):
    """A small model fitted to two SKUs, and to three; rows of the third, cells far apart."""
    folder = tmp_path_factory.mktemp("refits")
    table = checked(database.table("gemm_bf16"), origin="gemm_bf16")
    old = table[table["sku"].isin(["A100-80GB-SXM", "H100-80GB-SXM"])]
    old = old.groupby(["sku", "M", "N", "K"]).filter(lambda cell: cell.name[1] % 3 == 1)
    new = table[table["sku"] == "H200-141GB-SXM"]
    new = new.merge(new[["M", "N", "K"]].drop_duplicates().iloc[::12])
    parts = {"old": old, "new": new, "all": pd.concat([old, new])}
    for name, part in parts.items():
        part.to_csv(folder / f"{name}.csv", index=False)
    fitted = {}
    for name in ("old", "all"):
        file = str(folder / f"{name}.csv")
        # twice what is usual: some variable's ESS is seldom far above the bar of 400
        settings = {"draws": 2000, "tune": 1000, "chains": 4, "seed": 3}
        fitted[name] = fit(database, "const_ceiling", file, **settings)
    return folder, fitted


def shared_agree(found, draws, ess):
    whole = arviz_stats.ess(draws, method="bulk")
    for name, held in draws.data_vars.items():
        if set(held.dims) == {"chain", "draw"}:
            error = float(held.std()) * np.sqrt(1 / ess + 1 / float(whole[name]))
            assert abs(float(held.mean() - found[name].mean())) < 4 * error, name


@pytest.mark.slow
def test_weights_steps_and_sampling_agree_with_a_full_refit(database, refits, monkeypatch):
    monkeypatch.setattr(refit, "DRAWS", 2000)
    folder, fitted = refits
    card = database.model("const_ceiling")
    (record, old), (_, whole) = fitted["old"], fitted["all"]
    parent = labelled(old, card, name=record.name, dtype="bf16")
    rows = checked(database.table(str(folder / "new.csv")), origin="new")
    sheets = database.datasheets(["H200-141GB-SXM"])
    inputs = Inputs.read(database, str(folder / "old.csv"), None, None, "bf16")

    def sample(units):
        return refitted(inputs.build(database.builder("const_ceiling")), parent, units, seed=5)

    for path in PATHS:
        found = updated(parent, rows, sheets, path=path, least=100, sample=sample)
        assert found.path == path
        ess = found.figures.get("ess", found.figures.get("ess_bulk_min", 400))
        shared_agree(found.draws, whole, min(ess, 400))


@pytest.mark.slow
def test_the_density_that_is_sampled_is_the_old_one_and_that_of_the_rows(database, refits):
    """Where the coordinates and the old variables are, the rows add what weights are made of."""
    import pymc as pm

    folder, fitted = refits
    record, old = fitted["old"]
    card = database.model("const_ceiling")
    parent = labelled(old, card, name=record.name, dtype="bf16")
    rows = checked(database.table(str(folder / "new.csv")), origin="new")
    one = unit(parent, database.datasheets(["H200-141GB-SXM"]), rows)
    inputs = Inputs.read(database, str(folder / "old.csv"), None, None, "bf16")
    model = inputs.build(database.builder("const_ceiling"))
    labels = add_runs(model, [one])
    names = sorted({k for v in one.variables for k in v.steps})
    assert sorted(label.removeprefix(f"{one.sku}: ") for label in labels) == names
    point = model.initial_point()
    wanted = [model.potentials[0], *(model[v] for v in old.data_vars)]
    with model:
        held = model.replace_rvs_by_values(wanted)
        both = pm.compile(model.value_vars, held, on_unused_input="ignore")
    potential, *stored = both(*[point[v.name] for v in model.value_vars])
    values = dict(zip(old.data_vars, stored, strict=True))
    draw = xr.Dataset(
        {
            k: (("chain", "draw", *old[k].dims[2:]), np.asarray(v)[None, None])
            for k, v in values.items()
        }
    )
    draw = draw.assign_coords({d: old[d] for d in ("sku", "architecture", "backend")})
    held = coordinates(draw.assign_attrs(parent.attrs), one.variables)
    assert float(potential) == pytest.approx(one.log_likelihood(held.centre)[0], rel=1e-6)
