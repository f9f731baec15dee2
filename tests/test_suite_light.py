"""The suite of light kernels on made-up tables: what counts as unseen, and figures by hand."""

import json

import numpy as np
import pandas as pd
import pytest

from m2bayes.database import Database
from m2bayes.errors import DataError, RecordError
from m2bayes.importers.designed import CELL, designed, vidur_cells
from m2bayes.mechanism.light import PASSES
from m2bayes.outside import VARIABLE
from m2bayes.suites import Setting, light, run
from m2bayes.traces import layer_times
from m2bayes.vidur import OPERATORS

TOKENS = [1, 2, 4, *range(8, 129, 8), *range(160, 1025, 32)]
PER_TOKEN = {"a100": 1.0, "h100": 0.5, "a40": 2.0}  # [us] for 64


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """Profiles of three cards, and a layer of an engine."""
    for alias, slope in PER_TOKEN.items():
        folder = tmp_path / "vidur" / alias / "somebody" / "llm"
        folder.mkdir(parents=True)
        shape = {"n_head": 32, "n_kv_head": 8, "n_embd": 4096, "n_expanded_embd": 14336}
        rows = [
            shape
            | {"use_gated_mlp": True, "num_tokens": n, "num_tensor_parallel_workers": 1}
            | {f"time_stats.{op}.median": 1e-3 * (3 + slope * n / 64) for op in OPERATORS}
            for n in TOKENS
        ]
        pd.DataFrame(rows).to_csv(folder / "mlp.csv", index=False)
    (tmp_path / "llmservingsim").mkdir()
    rows = [
        {"layer": layer, "tokens": n, "time_us": 2.5 + n / 100}
        for layer in ("qkv_proj", *light.OPERATIONS)
        for n in (1, 64, 1024)
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "llmservingsim" / light.LAYERS, index=False)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


@pytest.fixture
def setting(monkeypatch):
    """The stored posterior with few draws."""
    whole = Database.draws
    monkeypatch.setattr(Database, "draws", lambda self, n: whole(self, n).isel(draw=slice(20)))
    return Setting(Database())


def unseen(outside):
    rows = vidur_cells([outside / "vidur" / "a100" / "somebody" / "llm" / "mlp.csv"], "A100")
    return rows, designed(rows)


def test_other_tables_than_those_fitted_are_refused(outside, setting):
    """A deliberate mistake: nothing of them could be called unseen."""
    with pytest.raises(RecordError, match="was fitted to other rows than import makes"):
        light.run(setting)


def test_without_outside_data_the_suite_says_what_it_needs(setting, monkeypatch, tmp_path):
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(DataError, match=f"set {VARIABLE} to the folder of vidur/"):
        light.run(setting)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(DataError, match=f"vidur/, it is not in {tmp_path}"):
        light.run(setting)
    (tmp_path / "vidur").mkdir()
    with pytest.raises(RecordError, match=r"no mlp\.csv in it"):
        light.run(setting)


def test_the_suite_from_end_to_end(outside, setting, monkeypatch):
    record = setting.database.posterior(setting.light)
    monkeypatch.setattr(light, "content_hash", lambda table: record.data[0]["sha256"])
    found = run("light", setting)
    assert found["inputs"] == {setting.light: record.draws["sha256"]}
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    results = found["results"]
    assert set(results) == {*PER_TOKEN, light.OTHER, "files"}
    rows, train = unseen(outside)
    every = rows[CELL].drop_duplicates()
    assert results["a100"]["cells"] == len(every) - len(train)
    assert results["h100"]["cells"] == results["a40"]["cells"] == len(every)
    kinds = {kernel for kernel, _ in OPERATORS.values()}
    for alias in PER_TOKEN:
        held = results[alias]
        assert set(held["kernels"]) == {*kinds, "mean"}
        assert set(held["operators"]) == {*OPERATORS, "mean"}
        mean = np.mean([held["operators"][op]["mape"] for op in OPERATORS])
        assert held["operators"]["mean"]["mape"] == pytest.approx(mean, rel=1e-12)
        assert ("scaled" in held["kernels"]["norm"]) == (alias != "a100")
    assert set(results[light.OTHER]) == set(light.NORMS)
    for held in results[light.OTHER].values():
        assert set(held) == {*light.OPERATIONS.values(), "mean"}
    assert len(results["files"]) == 4


def test_cells_that_were_fitted_are_left_out(outside):
    rows, train = unseen(outside)
    rest = light.without(rows, train[CELL])
    assert rest.merge(train, on=CELL).empty
    assert len(rest) + len(rows.merge(train[CELL], on=CELL)) == len(rows)


def test_rivals_by_hand(outside, setting):
    """Two passes of 4096 elements of two bytes; the time of one card by the ratio of bandwidths."""
    rows, _ = unseen(outside)
    a40 = rows.assign(sku="A40-48GB-PCIe")
    known = light._medians(rows, "kernel")
    draws = setting.database.draws(setting.light)
    cells = light.predicted(setting, draws, a40, source="A100-80GB-SXM", known=known)
    norm = cells[(cells["kernel"] == "norm") & (cells["tokens"] == 64)].iloc[0]
    sheets = setting.database.datasheets(["a40", "a100"])["peak_bandwidth"].values
    assert norm["datasheet"] == pytest.approx(PASSES["norm"] * 2 * 64 * 4096 / sheets[0], rel=1e-12)
    assert norm["scaled"] == pytest.approx(4e-6 * sheets[1] / sheets[0], rel=1e-12)
    assert norm["low"] < norm["median"] < norm["high"]


def test_scores_by_hand():
    cells = pd.DataFrame(
        {
            "sku": "one",
            "kernel": ["norm", "norm", "rope"],
            "tokens": [1, 2, 1],
            "width": 8,
            "median": [1.0, 2.0, 4.0],
            "low": [0.5, 1.5, 3.0],
            "high": [1.5, 2.5, 5.0],
            "datasheet": [1.0, 1.0, 1.0],
        }
    )
    observed = cells[["sku", *CELL]].assign(op_time=[1.0, 4.0, 5.0])
    found = light.judged(cells, observed, "kernel")
    assert found["norm"]["mape"] == pytest.approx(0.25, rel=1e-12)
    assert found["norm"]["coverage_90"] == 0.5
    assert found["rope"] == pytest.approx(
        {"cells": 1, "mape": 0.2, "bias": np.log(5 / 4), "coverage_90": 1.0, "datasheet": 0.8},
        rel=1e-12,
    )
    assert found["mean"]["mape"] == pytest.approx(0.225, rel=1e-12)
    assert found["mean"]["cells"] == 3


def test_the_norm_of_an_engine_may_take_the_residual_along(outside, setting):
    file = outside / "llmservingsim" / light.LAYERS
    alone = light.engine_cells(setting, file, norm=1).set_index(["kernel", "tokens"])
    assert alone.loc[("norm", 64), "op_time"] == pytest.approx(3.14e-6, rel=1e-12)
    rows = light.engine_cells(setting, file, norm=2).set_index(["kernel", "tokens"])
    assert rows.loc[("norm", 128), "op_time"] == pytest.approx(3.14e-6, rel=1e-12)
    assert rows.loc[("rope", 64), "width"] == (32 + 8) * 128
    assert rows.loc[("activation", 1), "width"] == 14336
    assert len(layer_times(file)) == 3 * (1 + len(light.OPERATIONS))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("layer,tokens\nx,1\n", "no column time_us; is it the file?"),
        ("layer,tokens,time_us\n", "holds no row"),
        ("layer,tokens,time_us\nx,0,1\n", "row 1, column tokens: '0' is not a whole number"),
        ("layer,tokens,time_us\nx,1,-1\n", "row 1, column time_us: '-1' is not a time above zero"),
    ],
)
def test_a_layer_table_that_cannot_be_used_is_refused(tmp_path, content, message):
    (tmp_path / "layers.csv").write_text(content)
    with pytest.raises(DataError) as caught:
        layer_times(tmp_path / "layers.csv")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
