"""Sweeps: the same numbers however they are run, killed and gone on with; bad grids are refused."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from helpers import refusal, run

from m2bayes.errors import DataError
from m2bayes.sweeping import engine, points, store
from m2bayes.sweeping.grid import MOST_WORKLOADS, chunks, read_grid

distributed = pytest.importorskip("distributed", reason="needs pip install 'm2bayes[sweep]'")
ROOT = Path(__file__).parents[1]
GRID = """
llm = ["llama-3.1-8b"]
sku = ["h100", "l40s"]
tp = [1, 2]
workload = ["prefill:tokens=512"]
[decode]
batch = [1, 64]
context = [512, 8192]
[settings]
draws = 40
seed = 3
chunk = 2
"""
MANY = str(list(range(1, 200)))
CHUNKS, COMPUTED = 6, ("results", "chunks", "computed")
FILES = [ROOT / "data" / "sweeps" / "example.toml"]


def written(folder, text=GRID):
    path = folder / "grid.toml"
    path.write_text(text)
    return path


def held(out):
    return xr.open_zarr(str(out), chunks=None).load()


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    return read_grid(str(written(tmp_path_factory.mktemp("grid"))))


@pytest.fixture(scope="module")
def undisturbed(grid, tmp_path_factory):
    """Store of a run in this process that nothing disturbs."""
    out = tmp_path_factory.mktemp("whole") / "whole.zarr"
    assert engine.sweep(grid, str(out), workers=0) == {"results": 20, "chunks": 6, "computed": 6}
    return held(out)


@pytest.fixture(scope="module")
def cluster():
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs=50
    ) as two:
        yield two


# --- the numbers -----------------------------------------------------------------------------


@pytest.mark.parametrize("tp", [1, 2])
def test_the_results_are_those_of_rank(undisturbed, tp):
    labels = undisturbed["workload"].values.tolist()
    asked = ("--llm", "llama-3.1-8b", "--sku", "h100", "l40s", "--tp", str(tp), "--workload")
    code, out, _ = run("rank", *asked, *labels, "--draws", "40", "--seed", "3", "--json")
    assert code == 0
    here = undisturbed.sel(llm="llama-3.1-8b", dtype="bf16", tp=tp, price="")
    for entry in json.loads(out)["results"]:
        for sku in entry["skus"]:
            own = here.sel(workload=entry["workload"], sku=sku["sku"])
            assert float(own["p_best"]) == sku["p_best"]
            assert float(own["p_fits"]) == sku["p_fits"]
            low, high = sku["interval"]["low"], sku["interval"]["high"]
            cuts = np.array([low, sku["median"], high, sku["mean"]], dtype=float)  # None is NaN
            np.testing.assert_allclose([*own["quantiles"], own["mean"]], cuts, rtol=1e-12)


def test_the_store_says_what_it_holds(undisturbed, grid):
    assert undisturbed.attrs["metric"] == "step_time"
    assert (undisturbed.attrs["draws"], undisturbed.attrs["seed"]) == (40, 3)
    assert undisturbed["mean"].attrs["units"] == "s"
    assert undisturbed["level"].values.tolist() == [0.05, 0.5, 0.95]
    assert undisturbed["sku"].values.tolist() == ["H100-80GB-SXM", "L40S-48GB-PCIe"]
    assert undisturbed["workload"].values.tolist() == [step.label for step in grid.steps()]
    assert undisturbed["finished"].dtype == bool
    assert undisturbed["finished"].values.all()
    fits = undisturbed["p_fits"] > 0
    assert (undisturbed["mean"].notnull() == fits).all()
    assert not fits.all()
    np.testing.assert_allclose(undisturbed["p_best"].sum("sku"), fits.any("sku"))


def test_what_does_not_fit_is_nan_and_what_fits_in_some_draws_is_of_those():
    draws = np.arange(8.0).reshape(2, 4, 1, 1)
    metric = xr.DataArray(
        np.concatenate([draws, np.where(draws > 5, draws, np.nan), draws * np.nan], axis=2),
        dims=("chain", "draw", "sku", "workload"),
    )
    found = points.summarised(metric)
    assert found["mean"][0].tolist()[:2] == [3.5, 6.5]
    np.testing.assert_allclose(found["quantiles"][0, 1], [6.05, 6.5, 6.95])
    assert np.isnan(found["quantiles"][0, 2]).all()
    assert np.isnan(found["mean"][0, 2])


def test_a_price_scenario_is_the_cost_of_the_same_times(tmp_path):
    text = GRID.replace("[settings]", "[price.one]\nh100 = 2\nl40s = 1\n[price.two]\nh100 = 4\n"
                        "l40s = 1\n[settings]").replace("tp = [1, 2]", "tp = [1]")  # fmt: skip
    out = tmp_path / "cost.zarr"
    engine.sweep(read_grid(str(written(tmp_path, text))), str(out), workers=0)
    found = held(out)
    assert found.attrs["metric"] == "cost_per_million_tokens"
    mean = found["mean"].sel(price="two") / found["mean"].sel(price="one")
    for sku, ratio in (("H100-80GB-SXM", 2.0), ("L40S-48GB-PCIe", 1.0)):
        np.testing.assert_allclose(mean.sel(sku=sku).dropna("workload"), ratio)
    assert (
        (found["p_best"].sel(price="two") <= found["p_best"].sel(price="one"))
        .sel(sku="H100-80GB-SXM")
        .all()
    )


def test_the_chunks_cover_the_grid_once(grid):
    seen = np.zeros((1, 1, 2, 5), int)
    for chunk in chunks(grid):
        i, j, k, _ = chunk.at
        seen[i, j, k, chunk.start : chunk.stop] += 1
    assert (seen == 1).all()
    assert [s.label for s in grid.steps(2, 4)] == [s.label for s in grid.steps()][2:4]


# --- killed and gone on with -----------------------------------------------------------------


def test_workers_have_the_numbers_of_one_process_though_one_is_killed(
    grid, undisturbed, cluster, tmp_path
):
    """A worker process is killed after the first chunk: others do its work."""
    out, killed, done = tmp_path / "killed.zarr", [], []

    def advance(_):
        done.append(1)
        if not killed:
            (pid, *_) = [nanny.pid for nanny in cluster.workers.values() if nanny.pid]
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    found = engine.sweep(grid, str(out), scheduler=cluster.scheduler_address, advance=advance)
    assert len(killed) == 1
    assert (len(done), found["computed"]) == (CHUNKS, CHUNKS)
    assert held(out).identical(undisturbed)


def test_a_run_that_is_killed_is_gone_on_with(undisturbed, tmp_path):
    """SIGKILL after the first mark; what has a mark is not written again."""
    out = tmp_path / "run.zarr"
    command = [sys.executable, "-m", "m2bayes.cli", "sweep", str(written(tmp_path))]
    command += ["--out", str(out), "--json"]
    first = subprocess.Popen([*command, "--workers", "0"], stdout=subprocess.DEVNULL, cwd=ROOT)
    until = time.monotonic() + 300
    while not list(out.glob("finished/0.*")) and time.monotonic() < until:
        time.sleep(0.01)
    first.kill()
    first.wait()
    marks = {p: p.stat().st_mtime_ns for p in out.glob("finished/0.*")}
    results = {p: p.stat().st_mtime_ns for p in out.glob("mean/0.*")}
    assert 1 <= len(marks) < CHUNKS
    again = subprocess.run(
        [*command, "--workers", "1"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert again.returncode == 0, again.stderr
    found = json.loads(again.stdout)
    assert [found[k] for k in COMPUTED] == [20, CHUNKS, CHUNKS - len(marks)]
    assert held(out).identical(undisturbed)
    assert {p: p.stat().st_mtime_ns for p in marks} == marks
    done = {p for p in results if out / "finished" / _block(p) in marks}
    assert {p: p.stat().st_mtime_ns for p in done} == {p: results[p] for p in done}


@pytest.mark.parametrize("after", [2.0, 5.0])
def test_an_interrupt_ends_a_run_and_its_workers_in_one_line(tmp_path, after):
    """As a terminal sends it: to all processes; again where a package that is imported ate it."""
    out = tmp_path / "cut.zarr"
    path = written(tmp_path, GRID.replace("draws = 40", "draws = 400").replace("[1, 64]", MANY))
    command = [sys.executable, "-m", "m2bayes", "sweep", str(path)]
    # what a shell starts in the background is deaf to it, and so are its children
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    started = subprocess.Popen(
        [*command, "--out", str(out), "--workers", "2", "--quiet"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        start_new_session=True,
    )
    signal.signal(signal.SIGINT, before)
    time.sleep(after)
    os.killpg(started.pid, signal.SIGINT)
    try:
        said, _ = started.communicate(timeout=90)
    except subprocess.TimeoutExpired:  # seen once in some hundred runs, while packages were read
        os.killpg(started.pid, signal.SIGINT)
        said, _ = started.communicate(timeout=90)
    assert said.decode() == "m2bayes sweep: interrupted\n"
    # Python may end itself by the signal, which a shell calls 130 too
    assert started.returncode in (130, -signal.SIGINT)


def test_a_disk_that_is_full_leaves_nothing(grid, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "_variables", full)
    with pytest.raises(DataError, match="cannot be written: No space left"):
        engine.sweep(grid, str(tmp_path / "out.zarr"), workers=0)
    assert list(tmp_path.iterdir()) == []


def _block(path):
    """Name of the mark of a Zarr chunk of ``mean``: llm.dtype.tp.price.workload.sku."""
    i, j, k, _, block, _ = path.name.split(".")
    return f"{i}.{j}.{k}.{block}"


def test_finished_chunks_are_not_computed_again(grid, undisturbed, tmp_path, monkeypatch):
    """A store that lost two marks has two chunks computed, and a whole one none."""
    out, calls = tmp_path / "again.zarr", []
    engine.sweep(grid, str(out), workers=0)
    group = store.opened(str(out), grid, points.checked(grid, None))
    group["mean"][0, 0, 1, :, 2:4] = 0.0  # half written, no mark
    for at in ((0, 0, 0, 2), (0, 0, 1, 1)):
        group[store.MARK][at] = False
    real = points.evaluate
    monkeypatch.setattr(engine, "evaluate", lambda *a: calls.append(a[1].at) or real(*a))
    assert engine.sweep(grid, str(out), workers=0)["computed"] == 2
    assert calls == [(0, 0, 0, 2), (0, 0, 1, 1)]
    assert held(out).identical(undisturbed)
    assert engine.sweep(grid, str(out), workers=0)["computed"] == 0
    assert len(calls) == 2


def test_a_chunk_that_is_computed_wrongly_is_seen(grid, undisturbed, tmp_path, monkeypatch):
    """Negative control of the comparisons above: another seed is another store."""
    real = points.evaluate

    def wrong(grid, chunk, *rest):
        found = real(grid, chunk, *rest)
        return found | {"mean": found["mean"] * (1 + 1e-15)} if chunk.at[3] == 1 else found

    monkeypatch.setattr(engine, "evaluate", wrong)
    engine.sweep(grid, str(tmp_path / "wrong.zarr"), workers=0)
    assert not held(tmp_path / "wrong.zarr").identical(undisturbed)


# --- what is refused -------------------------------------------------------------------------

HEAD = 'llm = ["llama-3.1-8b"]\nsku = ["h100"]\n'
STEP = 'workload = ["prefill:tokens=9"]\n'
BAD = {
    "an unknown key": (HEAD + STEP + "tps = [1]", "unknown key 'tps'; did you mean tp?"),
    "an unknown setting": (HEAD + STEP + "[settings]\nsed = 1", "did you mean seed?"),
    "an unknown size": (HEAD + "[decode]\nbatch = [1]\ncontexts = [1]", "did you mean context?"),
    "an unknown SKU": (HEAD.replace("h100", "h1000") + STEP, "sku: unknown SKU 'h1000'; did you"),
    "an unknown LLM": (HEAD.replace("llama", "lama") + STEP, "llm: unknown LLM 'lama-3.1-8b'"),
    "an unknown dtype": (HEAD + STEP + 'dtype = ["int3"]', "dtype: unknown dtype 'int3'"),
    "an unknown metric": (
        HEAD + STEP + '[settings]\nmetric = "steps"', "[settings]: unknown metric 'steps'",
    ),
    "an empty axis": (HEAD + STEP + "tp = []", "tp is empty; list at least one"),
    "an empty size": (HEAD + "[decode]\nbatch = []\ncontext = [1]", "batch is empty"),
    "no LLM": ('sku = ["h100"]\n' + STEP, "llm is missing"),
    "no workload": (HEAD, "no workload; give workload = [SPEC"),
    "a missing size": (HEAD + "[decode]\nbatch = [1]", "context is missing"),
    "a size out of range": (HEAD + "[decode]\nbatch = [0]\ncontext = [1]", "at least 1"),
    "text for a number": (HEAD + STEP + 'tp = ["1"]', "tp holds '1'; list whole numbers only"),
    "a truth for a number": (HEAD + STEP + "tp = [true]", "tp holds True"),
    "no list": (HEAD + STEP + "tp = 1", "tp must be a list of whole numbers"),
    "a value twice": (HEAD + STEP + "tp = [1, 1]", "tp holds 1 twice"),
    "a SKU by two names": (
        HEAD.replace('"h100"', '"h100", "H100-80GB-SXM"') + STEP, "sku: SKU H100-80GB-SXM is given",
    ),
    "a workload twice": (
        HEAD + STEP + "[prefill]\ntokens = [9]", "prefill:tokens=9 is given twice",
    ),
    "a kernel": (HEAD + 'workload = ["gemm:m=1,n=1,k=1"]', "steps of an LLM, not kernels"),
    "a TP that does not divide": (HEAD + STEP + "tp = [3]", "tp: tp=3 does not divide"),
    "a context too long": (HEAD + 'workload = ["prefill:tokens=9999999"]', "workload prefill"),
    "a metric of other steps": (HEAD + STEP + '[settings]\nmetric = "tpot"', "of decode and mixed"),
    "a kernel's metric": (
        HEAD + STEP + '[settings]\nmetric = "gemm_time"', "gemm_time is of kernels",
    ),
    "too many draws": (
        HEAD + STEP + "[settings]\ndraws = 10000000", "[settings]: draws 10000000: give between",
    ),
    "a seed below 0": (HEAD + STEP + "[settings]\nseed = -1", "seed is -1; give 0 or more"),
    "a wrong chunk": (HEAD + STEP + "[settings]\nchunk = 0", "chunk must be 1 to"),
    "a seed of text": (HEAD + STEP + '[settings]\nseed = "a"', "seed must be a whole number"),
    "prices without cost": (
        HEAD + STEP + '[price.a]\nh100 = 2\n[settings]\nmetric = "ttft"', "go together",
    ),
    "cost without prices": (
        HEAD + STEP + '[settings]\nmetric = "cost_per_million_tokens"', "go together",
    ),
    "a price of a stranger": (HEAD + STEP + "[price.a]\nh1000 = 2", "[price.a]: unknown SKU"),
    "a price of another SKU": (
        HEAD + STEP + "[price.a]\nh100 = 2\nl4 = 2",
        "[price.a]: l4=2: L4-24GB-PCIe is not among the SKUs",
    ),
    "a price missing": (
        HEAD.replace('"h100"', '"h100", "l4"') + STEP + "[price.a]\nl4 = 2",
        "[price.a]: no price of H100-80GB-SXM; add H100-80GB-SXM = 2.5",
    ),
    "a price that is none": (HEAD + STEP + "[price]\nh100 = 2", "[price.h100]: give SKU = USD"),
    "no TOML": ("llm = [", "cannot be read"),
    "too large": (
        HEAD + f"[decode]\nbatch = {list(range(1, 1002))}\ncontext = {list(range(1, 1001))}",
        f"1,001,000 workloads, more than {MOST_WORKLOADS:,}; shorten an axis",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_grid_is_refused_in_one_line_and_nothing_is_written(case, tmp_path):
    text, told = BAD[case]
    out = tmp_path / "results.zarr"
    line = refusal(run("sweep", str(written(tmp_path, text)), "--out", str(out), "--workers", "0"))
    assert told.lower() in line.lower()
    assert [p.name for p in tmp_path.iterdir()] == ["grid.toml"]


def test_another_grid_refuses_the_store(grid, tmp_path):
    out = tmp_path / "mine.zarr"
    store.opened(str(out), grid, points.checked(grid, None))
    for change in (("seed = 3", "seed = 4"), ("chunk = 2", "chunk = 3"), ('"l40s"', '"l4"')):
        file = written(tmp_path, GRID.replace(*change))
        line = refusal(run("sweep", str(file), "--out", str(out), "--workers", "0"))
        assert "another grid, database or version" in line
    assert not held(out)["finished"].any()


@pytest.mark.parametrize("kind", ["a file", "a folder", "no folder"])
def test_what_is_no_store_is_left_alone(kind, tmp_path):
    out = tmp_path / "mine"
    if kind == "a file":
        out.write_text("mine")
    elif kind == "a folder":
        out.mkdir()
        (out / "note").write_text("mine")
    else:
        out = out / "deep" / "results.zarr"
    before = sorted(tmp_path.rglob("*"))
    grid_file = tmp_path.parent / f"{tmp_path.name}.toml"
    grid_file.write_text(GRID)
    line = refusal(run("sweep", str(grid_file), "--out", str(out), "--workers", "0"))
    assert "--out" in line
    assert sorted(tmp_path.rglob("*")) == before


def test_a_scheduler_that_does_not_answer_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("m2bayes.sweeping.cluster.PATIENCE", "1s")
    file = written(tmp_path)
    out = ("--out", str(tmp_path / "a.zarr"), "--scheduler", "tcp://127.0.0.1:9")
    assert "no Dask scheduler answers there" in refusal(run("sweep", str(file), *out))
    assert [held.name for held in tmp_path.iterdir()] == [file.name]


def test_without_the_packages_the_remedy_is_told(tmp_path, monkeypatch):
    file = written(tmp_path)
    monkeypatch.setitem(sys.modules, "distributed", None)
    line = refusal(run("sweep", str(file), "--out", str(tmp_path / "a.zarr"), "--quiet"))
    assert "pip install 'm2bayes[sweep]'; or give --workers 0" in line
    monkeypatch.setitem(sys.modules, "zarr", None)
    line = refusal(run("sweep", str(file), "--out", str(tmp_path / "a.zarr"), "--workers", "0"))
    assert "needs the package zarr: pip install 'm2bayes[sweep]'" in line
    assert [p.name for p in tmp_path.iterdir()] == ["grid.toml"]


def test_another_database_on_a_worker_is_refused(grid):
    with pytest.raises(points.DataError, match="another database or version"):
        points.evaluate(grid, next(chunks(grid)), None, "0" * 64)


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_the_example_can_be_asked(file):
    assert points.checked(read_grid(str(file)), None)["units"] == "s"
