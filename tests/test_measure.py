"""Measuring: the plan, its order, what a run is, and the files, on a GPU that is none."""

import json
import sys
import types

import numpy as np
import pandas as pd
import pytest

from m2bayes import cli
from m2bayes.database import Database
from m2bayes.errors import DataError
from m2bayes.linting.files import linted
from m2bayes.measurements import checked, clock_readings
from m2bayes.measuring.keeping import clocks, files, write
from m2bayes.measuring.kernels import (
    BURST,
    LAUNCH,
    USUAL,
    Cell,
    Reading,
    cells_of,
    in_random_order,
    measured,
    plan,
)
from m2bayes.mechanism.laws import LAWS
from m2bayes.workload import parse_workload

SKU, BOOST, SUSTAINED = "H100-80GB-SXM", 1.98e9, 1.5e9
RATE, LAUNCHED = 7e14, 3e-6  # [FLOP/s] at boost, [s]


class FakeDevice:
    """A GPU of one speed, whose clock falls to `SUSTAINED` after 0.1 s of work at a time."""

    name, software, power_limit = "NVIDIA H100 80GB HBM3", "0.0, CUDA 0.0", 700.0

    def __init__(self):
        self.busy, self.log = 0.0, []

    def ran(self, work, calls, during):
        time = sum(self.once(work) for _ in range(calls))
        during()
        return time

    def once(self, work):
        clock = BOOST if self.busy < 0.1 else SUSTAINED
        time = LAUNCHED + work / RATE * BOOST / clock
        self.busy += time
        return time

    def gemm(self, M, N, K, *, calls, cold, during):
        self.log.append(("gemm", cold, calls))
        return self.ran(2 * M * N * K * (1.1 if cold else 1.0), calls, during)

    def attention(self, sizes, *, calls, cold, during):
        self.log.append(("attention", cold, calls))
        pairs = sizes["length"] if sizes["phase"] else sizes["length"] ** 2 / 2
        return self.ran(512 * pairs * sizes["batch"] * sizes["heads"], calls, during)

    def launch(self, *, calls, during):
        self.log.append(("launch", False, calls))
        return self.ran(0.0, calls, during)

    def clock(self):
        capped = self.busy >= 0.1
        clock = SUSTAINED if capped else BOOST
        return Reading(clock, 690.0 if capped else 300.0, 60.0, "power cap" if capped else "")

    def sleep(self, seconds):
        """A pause cools it down."""
        if seconds:
            self.busy = 0.0


@pytest.fixture
def device():
    return FakeDevice()


def results(device, cells, *, repeats=2, seconds=0.5, cooldown=1.0):
    runs = in_random_order(cells, repeats=repeats, seed=1)
    return measured(device, runs, sku=SKU, seconds=seconds, cooldown=cooldown, sleep=device.sleep)


def test_the_plan_holds_every_way_of_every_cell():
    cells = plan(USUAL)
    gemms = [c for c in cells if c.law == "gemm_time"]
    assert len(gemms) == 4 * 15 * 4
    assert {(dict(c.sizes)["N"], dict(c.sizes)["K"]) for c in gemms} == {
        (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)
    }  # fmt: skip
    assert {c.law for c in cells} == {"gemm_time", "prefill_time", "decode_time", LAUNCH}
    assert len(set(cells)) == len(cells)
    assert {c.law for c in plan(USUAL, what=["launch"])} == {LAUNCH}


def test_named_kernels_alone_are_measured_in_every_way():
    specs = ("gemm:m=8,n=256,k=512", "attention:phase=decode,batch=4,context=99,heads=8,kv_heads=2")
    cells = cells_of([parse_workload(spec) for spec in specs])
    assert {(c.cold, c.sustained) for c in cells} == {(a, b) for a in (0, 1) for b in (0, 1)}
    assert {c.law: dict(c.sizes) for c in cells} == {
        "gemm_time": {"M": 8, "N": 256, "K": 512},
        "decode_time": {"batch": 4, "length": 99, "heads": 8, "kv_heads": 2},
    }
    cached = "attention:phase=prefill,batch=1,tokens=64,context=64,heads=8,kv_heads=2"
    for spec in ("decode:batch=1,context=5", cached):
        with pytest.raises(DataError, match="without cached tokens"):
            cells_of([parse_workload(spec)])


def test_the_order_is_random_but_the_same_for_a_seed():
    cells = plan(USUAL, tokens=[1, 64])
    one, two, other = (in_random_order(cells, repeats=3, seed=s) for s in (1, 1, 2))
    assert one == two != other
    counts = pd.Series(one).value_counts()
    assert len(counts) == 3 * len(cells)
    assert (counts == 1).all()
    at = [i for i, (cell, _) in enumerate(one) if cell == cells[0]]
    assert max(at) - min(at) > len(cells) / 4  # its repeats are not taken together


def test_a_burst_is_short_and_a_sustained_run_has_settled(device):
    cell = Cell("gemm_time", (("M", 4096), ("N", 4096), ("K", 4096)), "o")
    sustained = Cell(cell.law, cell.sizes, cell.op, sustained=True)
    table = results(device, [cell, sustained])["gemm_time"].set_index("regime")
    flops = 2.2 * 4096**3
    burst, long = table.loc["burst"].iloc[0], table.loc["sustained"].iloc[0]
    assert burst["op_time"] == pytest.approx(LAUNCHED + flops / RATE, rel=1e-9)
    assert burst["op_time"] * burst["calls"] == pytest.approx(BURST, rel=0.1)
    assert long["op_time"] == pytest.approx(LAUNCHED + flops / RATE * BOOST / SUSTAINED, rel=1e-9)
    assert (burst["sm_clock"], long["sm_clock"]) == (BOOST, SUSTAINED)
    assert (burst["throttle"], long["throttle"]) == ("", "power cap")
    assert (burst["power"], long["power"]) == (300, 690)


def test_without_a_pause_bursts_are_not_bursts(device):
    """A deliberate mistake: the card never cools, and its clock is the sustained one."""
    cell = Cell("gemm_time", (("M", 8192), ("N", 8192), ("K", 8192)), "o")
    hot = results(device, [cell], repeats=30, cooldown=0.0)["gemm_time"]
    cool = results(FakeDevice(), [cell], repeats=30)["gemm_time"]
    assert (cool["sm_clock"] == BOOST).all()
    assert (hot["sm_clock"] == SUSTAINED).mean() > 0.5


def test_cold_and_warm_are_asked_of_the_device(device):
    table = results(device, plan(USUAL, tokens=[64], what=["gemm"]), seconds=0.05)["gemm_time"]
    by = table.groupby("cache")["op_time"].median()
    assert by["cold"] > by["warm"]
    assert {cold for _, cold, _ in device.log} == {True, False}


def test_tables_are_those_of_their_laws(device, tmp_path):
    tables = results(device, plan(USUAL, tokens=[1, 4096]), repeats=1, seconds=0.02)
    assert set(tables) == {"gemm_time", "prefill_time", "decode_time", LAUNCH}
    for law in set(tables) & set(LAWS):
        assert list(tables[law].columns)[: len(LAWS[law].columns)] == list(LAWS[law].columns)
        assert len(checked(tables[law], origin="x", law=LAWS[law])) == len(tables[law])
    assert tables[LAUNCH]["op_time"].tolist() == [pytest.approx(LAUNCHED)] * 2


def test_sustained_clocks_are_what_a_fit_reads(device, database):
    table = results(device, plan(USUAL, tokens=[16384], what=["gemm"]), repeats=3)["gemm_time"]
    found = clocks(table, boost_clock=BOOST, power_limit=700.0)
    assert list(found.columns) == list(database.table("clock_sustained").columns)
    assert set(found["op"]) == {"qkv", "o", "gate_up", "down"}
    readings = clock_readings(found, database.datasheets([SKU]), origin="x")
    np.testing.assert_allclose(readings["reading_log_share"], np.log(SUSTAINED / BOOST))
    assert (found["half_width"] == 7.5e6).all()  # the clock's own step, where repeats agree
    table.loc[table["repeat"] == 1, "sm_clock"] = SUSTAINED - 60e6
    wider = clocks(table, boost_clock=BOOST, power_limit=700.0)["half_width"]
    np.testing.assert_allclose(wider, 4.303 * np.std([0, 60e6, 0], ddof=1) / np.sqrt(3))
    (step,) = clocks(table, boost_clock=BOOST, power_limit=400.0, capped=True).to_dict("records")
    assert step["power_limit"] == 400
    assert np.isnan(step["M"])


def test_files_with_their_cards(device, tmp_path, database):
    tables = results(device, plan(USUAL, tokens=[4096]), repeats=2, seconds=0.05)
    tables["clock"] = clocks(tables["gemm_time"], boost_clock=BOOST, power_limit=700.0)
    facts = {"device": device.name, "software": device.software, "how": "by hand"}
    written = write([*files(tables, tmp_path / "own.csv", facts)])
    names = {p.name for p in tmp_path.iterdir()}
    stems = {"own", "own_prefill", "own_decode", "own_launch", "own_clock"}
    assert names == {f"{stem}{end}" for stem in stems for end in (".csv", ".json")}
    card = json.loads((tmp_path / "own.json").read_text())
    model = json.loads((database.root / "data" / "measurements" / "gemm_bf16.json").read_text())
    assert set(card) == set(model)
    table = Database().table(str(tmp_path / "own.csv"))
    assert (card["rows"], list(card["columns"])) == (len(table), list(table.columns))
    assert {entry["sha256"] for entry in written} >= {card["sha256"]}
    errors = [f for f in linted(database, [str(tmp_path / "own.csv")]) if f["severity"] == "error"]
    assert errors == []


def test_a_timer_that_stands_still_is_refused(device):
    device.once = lambda work: 0.0
    with pytest.raises(DataError, match="a kernel took 0"):
        results(device, [Cell(LAUNCH, sustained=True)])


# --- without a GPU ---------------------------------------------------------------------------


def modules(monkeypatch, *, torch, pynvml):
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "pynvml", pynvml)


@pytest.mark.parametrize(
    ("present", "message"),
    [
        (False, "needs PyTorch, NVML and an NVIDIA GPU"),
        (True, "needs an NVIDIA GPU and finds none; run it where one is"),
    ],
)
def test_without_a_gpu_it_says_so(monkeypatch, capsys, tmp_path, present, message):
    nobody = types.SimpleNamespace(cuda=types.SimpleNamespace(is_available=lambda: False))
    modules(
        monkeypatch,
        torch=nobody if present else None,
        pynvml=types.SimpleNamespace() if present else None,
    )
    code = cli.main(["measure", "--out", str(tmp_path / "own.csv")])
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_command_measures_whatever_device_there_is(monkeypatch, capsys, tmp_path):
    """All but the device itself, which needs a GPU."""
    import m2bayes.measuring.cuda
    from m2bayes.commands import measuring

    device = FakeDevice()
    monkeypatch.setattr(m2bayes.measuring.cuda, "TorchDevice", lambda: device)
    monkeypatch.setattr(measuring.time, "sleep", device.sleep)
    argv = ["measure", "--out", str(tmp_path / "own.csv"), "--what", "launch", "gemm", "--repeats"]
    argv += ["1", "--seconds", "0.05", "--quiet", "--json"]
    code = cli.main(argv)
    out = json.loads(capsys.readouterr().out)
    assert code == 0
    assert [entry["rows"] for entry in out] == [4 * 15 * 4, 2, 4 * 15]
    table = Database().table(str(tmp_path / "own.csv"))
    assert set(table["sku"]) == {SKU}


@pytest.mark.parametrize(
    ("option", "value"), [("--repeats", "0"), ("--seconds", "0"), ("--cooldown", "-1")]
)
def test_settings_out_of_range_are_refused(capsys, tmp_path, option, value):
    code = cli.main(["measure", "--out", str(tmp_path / "own.csv"), option, value])
    err = capsys.readouterr().err
    assert code == 2
    assert f"{option} " in err
    assert err.count("\n") == 1
