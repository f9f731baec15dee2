"""What a fit reads: tables by role, the same ones again, and all but some SKUs."""

import dataclasses
import hashlib
import json

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from m2bayes.errors import DataError, RecordError, UnknownNameError
from m2bayes.factors import with_skus
from m2bayes.inputs import Inputs
from m2bayes.measurements import checked, content_hash
from m2bayes.mechanism.gemm import gemm_terms, gemm_time
from m2bayes.residuals import known

NAME = "gemm_bf16-hier_gemm"
H100, H200, A100 = "H100-80GB-SXM", "H200-141GB-SXM", "A100-80GB-SXM"


@pytest.fixture(scope="module")
def inputs(small_database):
    return Inputs.recorded(small_database, small_database.posterior(NAME))


# --- reading ---------------------------------------------------------------------------------


def test_every_role_is_read_and_hashed(inputs, small_database):
    assert [source["role"] for source in inputs.sources] == ["times", "clock", "shapes"]
    assert [source["name"] for source in inputs.sources] == [
        "gemm_bf16", "clock_sustained", "gemm_bf16_dense",
    ]  # fmt: skip
    times = checked(small_database.table("gemm_bf16"), origin="times")
    pd.testing.assert_frame_equal(inputs.times, times)
    assert inputs.sources[0]["sha256"] == content_hash(times)
    assert inputs.sources[2]["sha256"] == content_hash(inputs.shapes)
    assert inputs.skus == [A100, H100, H200]
    assert inputs.datasheets["sku"].values.tolist() == inputs.skus


def test_what_is_not_asked_for_is_not_there(small_database):
    found = Inputs.read(small_database, "gemm_bf16", None, None, "bf16")
    assert [source["role"] for source in found.sources] == ["times"]
    assert found.clock is None
    assert found.readings() is None
    assert len(found.shapes) == 0
    assert list(found.shapes.columns) == list(found.times.columns)


def test_a_table_of_ones_own_goes_by_the_stem_of_its_file(small_database, inputs, tmp_path):
    path = tmp_path / "my-own-cells.csv"
    inputs.times.sample(frac=1, random_state=0).to_csv(path, index=False)
    found = Inputs.read(small_database, str(path), None, None, "bf16")
    assert found.sources[0]["name"] == "my_own_cells"
    assert found.sources[0]["sha256"] == inputs.sources[0]["sha256"]  # whatever the row order


def test_shapes_of_a_sku_without_times_are_refused(small_database, inputs, tmp_path):
    path = tmp_path / "mine.csv"
    inputs.times[inputs.times["sku"] != H200].to_csv(path, index=False)
    with pytest.raises(DataError, match=rf"gemm_bf16_dense: {H200} is not in .*mine\.csv"):
        Inputs.read(small_database, str(path), None, "gemm_bf16_dense", "bf16")


def test_a_row_does_not_count_twice_as_time_and_as_shape(small_database):
    with pytest.raises(DataError, match="count already"):
        Inputs.read(small_database, "gemm_bf16", None, "gemm_bf16", "bf16")


def test_an_alias_in_a_table_is_refused_with_the_full_name(small_database, inputs, tmp_path):
    """The posterior would hold a SKU that no answer ever asks for."""
    path = tmp_path / "mine.csv"
    inputs.times.replace({"sku": {H100: "h100"}}).to_csv(path, index=False)
    with pytest.raises(DataError, match=f"column sku: 'h100' is an alias; write {H100}"):
        Inputs.read(small_database, str(path), None, None, "bf16")


@pytest.mark.parametrize(
    "case",
    [
        (f"{H100} ", f"column sku: '{H100} ' has blanks around it; write {H100}"),
        ("h1000", "column sku: unknown SKU 'h1000'; did you mean h100"),
        ("data/datasheets/H100-80GB-SXM.json", "column sku: unknown SKU 'data/datasheets/H100"),
    ],
)
@pytest.mark.parametrize("role", ["times", "clock", "shapes"])
def test_a_sku_of_a_table_is_a_full_name_of_the_database(
    small_database, inputs, tmp_path, role, case
):
    """A path, too: a table must not choose what is opened."""
    name, complaint = case
    tables = {"times": "gemm_bf16", "clock": "clock_sustained", "shapes": "gemm_bf16_dense"}
    path = tmp_path / "mine.csv"
    getattr(inputs, role).replace({"sku": {H100: name}}).to_csv(path, index=False)
    with pytest.raises(DataError) as caught:
        Inputs.read(small_database, *(tables | {role: str(path)}).values(), "bf16")
    assert str(caught.value).startswith(f"{path}: {complaint}")


def test_telemetry_is_checked_when_it_is_read(small_database, inputs, tmp_path):
    path = tmp_path / "mine.csv"
    inputs.clock.assign(half_width=0.0).to_csv(path, index=False)
    with pytest.raises(DataError, match=r"mine\.csv: row 1, column half_width: 0\.0 is not"):
        Inputs.read(small_database, "gemm_bf16", str(path), None, "bf16")


def test_names_of_nothing_are_refused(small_database):
    with pytest.raises(UnknownNameError, match="did you mean gemm_bf16"):
        Inputs.read(small_database, "gemm_bf61", None, None, "bf16")
    with pytest.raises(UnknownNameError, match="did you mean clock_sustained"):
        Inputs.read(small_database, "gemm_bf16", "clock_sustaind", None, "bf16")


# --- the same again --------------------------------------------------------------------------


def test_recorded_inputs_are_those_of_the_record(inputs, small_database):
    assert inputs.sources == small_database.posterior(NAME).data


@pytest.mark.parametrize("role", [0, 1, 2])
def test_changed_data_are_refused(small_database, role):
    record = small_database.posterior(NAME)
    data = [dict(source) for source in record.data]
    data[role]["sha256"] = "0" * 64
    with pytest.raises(RecordError, match="its data changed since the fit; fit again"):
        Inputs.recorded(small_database, dataclasses.replace(record, data=data))


def test_a_changed_table_is_refused_although_its_card_agrees(small_database):
    """One digit of one time, with the card's hash brought up to date."""
    path = small_database.root / "data" / "measurements" / "gemm_bf16_dense.csv"
    card = path.with_suffix(".json")
    before, held = path.read_bytes(), card.read_text()
    table = pd.read_csv(path)
    table.loc[3, "op_time"] *= 1.001
    content = table.to_csv(index=False).encode()
    try:
        path.write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        card.write_text(json.dumps(json.loads(held) | {"sha256": digest}))
        with pytest.raises(RecordError, match="its data changed since the fit; fit again"):
            Inputs.recorded(small_database, small_database.posterior(NAME))
    finally:
        path.write_bytes(before)
        card.write_text(held)
    Inputs.recorded(small_database, small_database.posterior(NAME))


def test_data_that_are_gone_are_refused(small_database):
    record = small_database.posterior(NAME)
    data = [{**source, "name": f"{source['name']}_gone"} for source in record.data]
    with pytest.raises(RecordError, match="its data set gemm_bf16_gone is not in the database"):
        Inputs.recorded(small_database, dataclasses.replace(record, data=data))


# --- left out --------------------------------------------------------------------------------


def test_a_sku_is_left_out_of_all_three_tables(inputs):
    rest = inputs.without([H100])
    for table in (rest.times, rest.shapes, rest.clock):
        assert H100 not in set(table["sku"])
        assert H200 in set(table["sku"])
    for name in ("times", "shapes", "clock"):
        whole, part = getattr(inputs, name), getattr(rest, name)
        assert len(part) == (whole["sku"] != H100).sum()
    assert rest.skus == inputs.skus  # its datasheet stays
    assert H100 not in rest.readings()["sku"].values
    assert set(rest.cells()["sku"].values) == {A100, H200}
    assert H100 in set(inputs.times["sku"])


def test_several_skus_are_left_out_together(inputs):
    rest = inputs.without([H100, H200])
    assert set(rest.times["sku"]) == set(rest.shapes["sku"]) == {A100}
    assert rest.readings().sizes["sweep"] == 1  # of a card that is in no table of times


def test_telemetry_alone_can_be_left_out(inputs):
    rest = inputs.without([H100], telemetry_only=True)
    assert H100 not in set(rest.clock["sku"])
    pd.testing.assert_frame_equal(rest.times, inputs.times)
    pd.testing.assert_frame_equal(rest.shapes, inputs.shapes)


# --- building --------------------------------------------------------------------------------


def test_a_builder_gets_cells_datasheets_and_telemetry(inputs):
    got = inputs.build(lambda data, datasheets, clock=None: (data, datasheets, clock))
    xr.testing.assert_identical(got[0], inputs.cells())
    xr.testing.assert_identical(got[1], inputs.datasheets)
    xr.testing.assert_identical(got[2], inputs.readings())


def test_telemetry_for_a_builder_that_takes_none_is_refused(inputs):
    with pytest.raises(DataError, match="takes no clock telemetry; leave --clock out"):
        inputs.build(lambda data, datasheets: None)
    quiet = dataclasses.replace(inputs, clock=None)
    assert quiet.build(lambda data, datasheets: "built") == "built"


# --- residuals -------------------------------------------------------------------------------


def mean_of(posterior):
    held = posterior.mean(("chain", "draw")).expand_dims(chain=1, draw=1)
    return held.assign_attrs(posterior.attrs)


def made_by_law(inputs, posterior, off=0.0):
    """The same tables with times of the law at the posterior mean, `off` scales slower."""
    mean, tables = mean_of(posterior), {}
    factors = with_skus(mean, inputs.datasheets, seed=0).isel(chain=0, draw=0)
    for name in ("times", "shapes"):
        table = getattr(inputs, name).copy()
        rows = xr.Dataset({v: ("row", table[v].to_numpy()) for v in ("M", "N", "K")})
        sku = xr.DataArray(table["sku"].to_numpy(), dims="row")
        backend = xr.DataArray(table["backend"].to_numpy(), dims="row")
        sheets = inputs.datasheets.sel(sku=sku).drop_vars("sku")
        terms = gemm_terms(rows, sheets, regime="benchmark", backend=backend)
        own = factors.sel(sku=sku).drop_vars("sku")
        time = gemm_time(terms, own)
        effect = mean["build_effect"].isel(chain=0, draw=0).sel(sku=sku, backend=backend)
        cell, absolute = (
            np.exp(mean[f"log_sigma_{k}"].isel(chain=0, draw=0).sel(sku=sku).values)
            for k in ("cell", "time")
        )
        key = [table[c] for c in ("sku", "M", "N", "K")]
        centre = pd.Series(time.values).groupby(key).transform("mean").to_numpy()
        scale = np.hypot(cell, absolute / centre)
        tables[name] = table.assign(op_time=time.values * np.exp(effect.values + off * scale))
    return dataclasses.replace(inputs, **tables)


def test_residuals_of_times_that_the_law_made_are_nothing(
    inputs, synthetic_posterior, small_database
):
    """Up to the single precision in which they are kept, over a scale of some percent."""
    made = made_by_law(inputs, synthetic_posterior)
    found = made.residuals(synthetic_posterior, small_database.model("hier_gemm"))
    assert np.abs(found["residual"]).max() < 1e-4
    held = synthetic_posterior.merge(found).assign_attrs(synthetic_posterior.attrs)
    assert (known(held, "Hopper", H100).unit < 1e-4).all()


def test_residuals_are_in_units_of_the_scale_of_their_shape(
    inputs, synthetic_posterior, small_database
):
    """Every run 1.5 scales slower than the law: every residual is 1.5."""
    made = made_by_law(inputs, synthetic_posterior, off=1.5)
    found = made.residuals(synthetic_posterior, small_database.model("hier_gemm"))
    np.testing.assert_allclose(found["residual"], 1.5, rtol=1e-4)


def test_noise_of_a_residual_falls_with_its_runs(inputs, synthetic_posterior, small_database):
    """(sigma_run / scale)² over the number of runs: scale from the other two, by hand."""
    found = inputs.residuals(synthetic_posterior, small_database.model("hier_gemm"))
    mean = mean_of(synthetic_posterior).isel(chain=0, draw=0)
    together = pd.concat([inputs.times, inputs.shapes])
    runs = together.groupby(["sku", "M", "N", "K"])["op_time"].size()
    sku = found["residual_sku"].values
    shapes = found["residual_shape"].values.astype(float)
    at = [(s, *shape) for s, shape in zip(sku, shapes, strict=True)]
    n = runs.loc[at].to_numpy()
    run, cell = (np.exp(mean[f"log_sigma_{k}"].sel(sku=sku).values) for k in ("run", "cell"))
    # where the kernel is long, the absolute part of the scale is nothing
    long = shapes.prod(axis=1) > 1e12
    assert long.sum() > 5
    expected = (run / cell) ** 2 / n
    np.testing.assert_allclose(found["residual_noise"].values[long], expected[long], rtol=2e-3)
    assert (found["residual_noise"].values <= expected * (1 + 1e-5)).all()
    assert set(n) >= {1, 3}


def test_residuals_are_known_to_their_architecture_only(inputs, small_database):
    draws = small_database.draws(NAME)
    hopper, ampere = known(draws, "Hopper", H100), known(draws, "Ampere", A100)
    assert set(hopper.sku) == {H100, H200}
    assert set(ampere.sku) == {A100}
    assert len(hopper.unit) + len(ampere.unit) == draws.sizes["cell"]
    assert hopper.wider == float(draws["residual_wider"].sel(sku=H100))
    assert known(draws, "Hopper", "H100 that nobody measured").wider == 1.0
    assert known(draws, "Ada", "L40S-48GB-PCIe").unit.size == 0
    bare = draws.drop_vars([v for v in draws.data_vars if v.startswith("residual")])
    assert known(bare, "Hopper", H100) is None
