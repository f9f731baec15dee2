"""Every record in the database is what its card says, and every name means one thing."""

import importlib.metadata
import importlib.util
import itertools
import json
import re
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from m2bayes.database import Database, digest, sha256
from m2bayes.diagnostics import check, fingerprint
from m2bayes.discrepancy import moments
from m2bayes.errors import ConvergenceError
from m2bayes.inputs import Inputs
from m2bayes.kernels import card_of, unit_labels, unit_sheets
from m2bayes.measurements import COLUMNS, checked, content_hash
from m2bayes.mechanism.laws import LAWS
from m2bayes.residuals import WIDER, known
from m2bayes.step import MORE_PARTS, PARTS, aligned
from m2bayes.suites import NAMES as SUITES
from m2bayes.workload import gemm_cells, parse_workload

DATABASE = Database()
ROOT = DATABASE.root
SYNTHETIC = "syn_"
THIRD_PARTY = re.compile(r"package (\S+)|github\.com/(\S+), commit [0-9a-f]{7}")
every_llm = pytest.mark.parametrize("name", DATABASE.llms())
every_model = pytest.mark.parametrize("name", DATABASE.models())
OUTSIDE = [name for name in DATABASE.data() if DATABASE.data_record(name).outside]
INCLUDED = [name for name in DATABASE.data() if name not in OUTSIDE]
every_data_card = pytest.mark.parametrize("name", DATABASE.data())
every_table = pytest.mark.parametrize("name", INCLUDED)
every_posterior = pytest.mark.parametrize("name", DATABASE.posteriors())
WITHOUT_ROWS = [  # whose rows are not included: only hashes tell what they were fitted to
    name
    for name in DATABASE.posteriors()
    if {source["name"] for source in DATABASE.posterior(name).data} & set(OUTSIDE)
]
WITH_ROWS = [name for name in DATABASE.posteriors() if name not in WITHOUT_ROWS]
with_rows = pytest.mark.parametrize("name", WITH_ROWS)
without_rows = pytest.mark.parametrize("name", WITHOUT_ROWS)
KERNELS = [n for n in DATABASE.data() if list(DATABASE.data_record(n).columns) == list(COLUMNS)]
of_kernels = pytest.mark.parametrize("name", KERNELS)


def stored(name):
    """A table as it lies on disk, without the check of its hash."""
    return pd.read_csv(ROOT / "data" / "measurements" / f"{name}.csv")


def is_name(text):
    """Snake case: a posterior is ``<data>-<model>``, so neither may hold a hyphen."""
    return re.fullmatch(r"[a-z][a-z0-9_]*", text) is not None


# --- cards -----------------------------------------------------------------------------------


def test_the_database_holds_every_kind_of_record():
    kinds = (DATABASE.skus, DATABASE.llms, DATABASE.models, DATABASE.data, DATABASE.posteriors)
    assert all(kind() for kind in (*kinds, DATABASE.assemblies))


def test_every_file_of_the_database_belongs_to_a_card():
    """Nothing lies about that no record names."""
    expected = {f"data/datasheets/{n}.json" for n in DATABASE.skus()}
    expected |= {f"data/llms/{n}.json" for n in DATABASE.llms()}
    expected |= {f"models/{n}.{e}" for n in DATABASE.models() for e in ("json", "py")}
    expected |= {f"data/measurements/{n}.json" for n in DATABASE.data()}
    expected |= {f"data/measurements/{n}.csv" for n in INCLUDED}
    expected |= {f"posteriors/{n}.{e}" for n in DATABASE.posteriors() for e in ("json", "nc")}
    expected |= {f"posteriors/assemblies/{n}.json" for n in DATABASE.assemblies()}
    expected |= {DATABASE.data_record(n).recipe.split()[-1] for n in INCLUDED}
    expected |= {f"data/evaluations/{name}.json" for name in SUITES}
    expected |= {"data/recipes/readme.py"}  # makes figures of the README out of evaluations
    expected |= {"data/recipes/_recipe.py"}  # what the recipes share
    expected |= {"data/recipes/_source.py"}  # rows of a table that readme.py writes
    expected |= {"data/recipes/residuals.py"}  # works residuals of stored posteriors out anew
    expected |= {"data/sweeps/example.toml"}  # a grid to begin with, see `m2bayes.sweeping`
    expected |= {
        f"data/benchmarks/{n}.json"
        for n in ("gradient", "predict", "scaling", "start", "sweep", "sweep_one", "sweep_two")
    }  # made by benchmarks/, of one machine
    expected |= {"data/prices/example.json"}  # made up, see `m2bayes.prices`
    found = {
        str(path.relative_to(ROOT))
        for folder in ("data", "models", "posteriors")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert found <= expected
    assert {name for name in expected - found if "evaluations" not in name} == set()


@every_llm
def test_every_llm_card_can_be_served(name):
    card = json.loads((ROOT / "data" / "llms" / f"{name}.json").read_text())
    assert set(card) == {"name", "aliases", "source", "date", "license", "config"}
    assert card["name"] == name == name.lower()
    assert all(card[key] for key in ("source", "date", "license"))
    assert all(alias == alias.lower() for alias in card["aliases"])
    cells = gemm_cells(DATABASE.llm(name), [parse_workload("decode:batch=1,context=16")])
    assert (cells.to_array() >= 1).all()


def test_no_two_llms_answer_to_one_name():
    cards = [json.loads(p.read_text()) for p in (ROOT / "data" / "llms").glob("*.json")]
    names = [n for card in cards for n in (card["name"], *card["aliases"])]
    assert len(names) == len(set(names))


@every_model
def test_every_model_card_describes_a_law_and_its_factors(name):
    card = DATABASE.model(name)
    assert card.name == name
    assert is_name(name)
    assert card.law in LAWS
    for factor in card.factors:
        assert set(factor) == {"name", "link", "units", "description", "source"}
        assert factor["link"] in ("log", "identity")
        assert all(factor.values())
    law = LAWS[card.law]
    assert set(card.domain) == {"dtype", *law.sizes, *law.given}
    assert all(card.domain[size][0] < card.domain[size][1] for size in law.sizes)
    assert card.title
    assert card.description
    assert isinstance(card.references, list)
    assert card.references


@every_data_card
def test_every_data_card_says_where_the_numbers_come_from(name):
    card = DATABASE.data_record(name)
    assert card.name == name
    assert is_name(name)
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", card.date)
    assert all((card.title, card.description, card.source, card.licence, card.recipe))
    for column in card.columns.values():
        assert set(column) == {"units", "description"}
        assert column["description"]


@every_data_card
def test_data_from_the_source_document_name_its_section(name):
    source = DATABASE.data_record(name).source
    assert THIRD_PARTY.search(source) or re.search(r"m2 source document, section \d", source)


@every_data_card
def test_a_synthetic_table_and_no_other_bears_the_prefix(name):
    assert name.startswith(SYNTHETIC) == ("synthetic" in DATABASE.data_record(name).source.lower())


@every_data_card
def test_only_a_card_of_another_projects_data_may_lack_its_rows(name):
    """And such a card always does: the rows are nobody's to hand on but theirs."""
    card, table = DATABASE.data_record(name), ROOT / "data" / "measurements" / f"{name}.csv"
    theirs = card.description.startswith("Another project's data: no row of it is here")
    assert table.is_file() != theirs
    assert card.outside == theirs
    if theirs:
        assert card.recipe.split()[:2] == ["m2bayes", "import"]
        assert card.recipe.split()[-1] == f"{name}.csv"
        files = [part for part in card.recipe.split() if "/" in part]
        assert len(re.findall(r"\b[0-9a-f]{64}\b", card.source)) == len(files) > 0
        assert re.search(r"commit [0-9a-f]{7}", card.source)
        assert card.rows > 0
        assert re.fullmatch(r"[0-9a-f]{64}", card.sha256)


# --- tables ----------------------------------------------------------------------------------


@every_table
def test_every_table_is_the_one_its_card_describes(name):
    card, path = DATABASE.data_record(name), ROOT / "data" / "measurements" / f"{name}.csv"
    table = stored(name)
    assert sha256(path) == card.sha256
    assert len(table) == card.rows
    assert list(table.columns) == list(card.columns)
    assert path.stat().st_size < 3e6
    assert b"\r" not in path.read_bytes()
    pd.testing.assert_frame_equal(DATABASE.table(name), table)


@of_kernels
def test_kernel_times_are_complete_positive_and_of_known_skus(name):
    table = stored(name)
    assert not table.isna().any(axis=None)
    assert (table[["M", "N", "K", "op_time"]] > 0).all(axis=None)
    assert set(table["sku"]) <= set(DATABASE.skus())
    assert not table.duplicated(["sku", "backend", "M", "N", "K"]).any()
    ordered = table.sort_values(list(COLUMNS), ignore_index=True)
    pd.testing.assert_frame_equal(checked(table, origin=name), ordered, check_dtype=False)


@every_table
def test_no_figure_is_negative_except_an_error(name):
    table = stored(name)
    numbers = table.select_dtypes("number")
    if "quantity" in table:
        numbers = numbers[~table["quantity"].str.startswith("error")]
    assert not (numbers < 0).any(axis=None)
    assert not np.isinf(numbers).any(axis=None)


def pairs_of_a_dtype():
    """Pairs of tables of one dtype: another one's rows are other kernels."""
    dtype = {name: name.split("_")[1] for name in KERNELS}
    return [
        pair for pair in itertools.combinations(KERNELS, 2) if len({dtype[n] for n in pair}) == 1
    ]


@pytest.mark.parametrize(("one", "other"), pairs_of_a_dtype())
def test_no_cell_is_in_two_tables(one, other):
    """What is scored was never fitted. Other SKUs may share a shape: the pair is what is unseen."""
    cell = ["sku", "M", "N", "K"]
    first, second = (stored(name)[cell].drop_duplicates() for name in (one, other))
    assert first.merge(second, on=cell).empty
    assert not first.merge(first, on=cell).empty


@of_kernels
def test_every_cell_lies_in_the_domain_of_the_models(name):
    table = stored(name)
    models = [m for m in DATABASE.models() if set("MNK") <= set(DATABASE.model(m).domain)]
    assert len(models) >= 2
    for model in models:
        domain = DATABASE.model(model).domain
        for side in ("M", "N", "K"):
            assert table[side].between(*domain[side]).all()


def test_kernels_faster_than_the_datasheet_allows_are_few_and_in_cache():
    """No rate above the peak: the unit is right and the rates are dense."""
    table = stored("gemm_bf16")
    sheets = DATABASE.datasheets(sorted(table["sku"].unique()))
    peak = sheets["peak_flop_rate"].to_series()[table["sku"]].to_numpy()
    reached = 2 * table["M"] * table["N"] * table["K"] / table["op_time"] / peak
    assert reached.max() < 1.02
    assert reached.max() > 0.5


# --- recipes ---------------------------------------------------------------------------------


def recipes():
    return sorted({DATABASE.data_record(name).recipe for name in INCLUDED})


@pytest.mark.parametrize("recipe", recipes())
def test_every_recipe_reproduces_its_tables(recipe):
    program, script = recipe.split()
    assert program == "python"
    assert (ROOT / script).is_file()
    if "m2_source" not in script and importlib.util.find_spec("aiconfigurator_core") is None:
        pytest.skip(f"{script} needs aiconfigurator-core: pip install '.[recipes]'")
    done = subprocess.run(
        [sys.executable, script, "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    made = {name for name in INCLUDED if DATABASE.data_record(name).recipe == recipe}
    lines = done.stdout.splitlines()
    assert {line.partition(":")[0] for line in lines} == made
    assert all(line.endswith("identical") for line in lines)


def test_a_recipe_check_notices_another_table(tmp_path):
    """Negative control: the same script beside a card with another hash."""
    recipe = tmp_path / "recipes" / "m2_source.py"
    recipe.parent.mkdir()
    for name in ("m2_source.py", "_recipe.py"):
        (recipe.parent / name).write_text((ROOT / "data" / "recipes" / name).read_text())
    (tmp_path / "measurements").mkdir()
    for path in (ROOT / "data" / "measurements").glob("*.json"):
        card = json.loads(path.read_text())
        if path.stem == "eta_ceilings":
            card["sha256"] = "0" * 64
        (tmp_path / "measurements" / path.name).write_text(json.dumps(card))
    done = subprocess.run(
        [sys.executable, recipe, "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "eta_ceilings: 4 rows, DIFFERS" in done.stdout


def test_the_recipe_of_kernel_times_asks_for_the_version_it_was_written_for():
    script = (ROOT / "data" / "recipes" / "_recipe.py").read_text()
    version = re.search(r'^VERSION = "(.+)"', script, re.MULTILINE).group(1)
    for name in KERNELS:
        assert f"aiconfigurator-core {version}" in DATABASE.data_record(name).source
    if importlib.util.find_spec("aiconfigurator_core") is not None:
        assert importlib.metadata.version("aiconfigurator-core") == version


# --- posteriors ------------------------------------------------------------------------------


def fitted_to(record):
    """Name of the table of each role."""
    return {source["role"]: source["name"] for source in record.data}


@every_posterior
def test_every_posterior_is_a_pair_of_known_data_and_a_known_model(name):
    record = DATABASE.posterior(name)
    tables = fitted_to(record)
    assert record.name == name == f"{tables['times']}-{record.model}"
    assert record.model in DATABASE.models()
    assert len(tables) == len(record.data)
    assert {"times"} <= set(tables) <= {"times", "clock", "shapes"}
    assert set(tables.values()) <= set(DATABASE.data())
    assert all(re.fullmatch(r"[0-9a-f]{64}", source["sha256"]) for source in record.data)
    assert record.dtype in DATABASE.model(record.model).domain["dtype"]
    assert asdict(record) == json.loads((ROOT / "posteriors" / f"{name}.json").read_text())
    assert set(record.versions) >= {"python", "pymc", "nutpie", "m2bayes"}
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", record.created)
    assert set(record.inference) >= {"sampler", "draws", "tune", "chains", "seed", "target_accept"}


@every_posterior
def test_every_posterior_has_its_draws_and_passes_its_diagnostics(name):
    record = DATABASE.posterior(name)
    path = ROOT / "posteriors" / record.draws["file"]
    assert sha256(path) == record.draws["sha256"]
    assert set(record.checks) == {
        "rhat_max", "ess_bulk_min", "ess_tail_min", "divergences", "bfmi_min",
    }  # fmt: skip
    check(record.checks, name=name)
    with pytest.raises(ConvergenceError, match=name):
        check(record.checks | {"divergences": 1.0}, name=name)


@without_rows
def test_a_posterior_of_rows_that_are_not_here_was_fitted_to_what_the_card_describes(name):
    """One table, the card's own hash, and nothing in the draws with one value a row."""
    record, draws = DATABASE.posterior(name), DATABASE.draws(name)
    (source,) = record.data
    card = DATABASE.data_record(source["name"])
    assert (source["role"], source["sha256"]) == ("times", card.sha256)
    assert {s: digest(DATABASE.sku_card(s)[0]) for s in record.datasheets} == record.datasheets
    assert {card_of(unit) for unit in draws["sku"].values} == set(record.datasheets)
    assert set(draws.dims) == {"chain", "draw", "sku", "architecture"}
    for dim in ("sku", "architecture"):
        assert draws.sizes[dim] < 12
    assert not [v for v in draws.data_vars if v.startswith("residual")]


@with_rows
def test_every_posterior_was_fitted_to_the_data_and_datasheets_that_are_here(name):
    record = DATABASE.posterior(name)
    tables = fitted_to(record)
    inputs = Inputs.recorded(DATABASE, record)
    assert inputs.sources == record.data
    assert (inputs.clock is not None) == ("clock" in tables)
    assert (len(inputs.shapes) > 0) == ("shapes" in tables)
    table = checked(DATABASE.table(tables["times"]), origin=name, law=inputs.law)
    pd.testing.assert_frame_equal(inputs.times, table)
    assert content_hash(table) == record.data[0]["sha256"]
    assert sorted(record.datasheets) == sorted(table["sku"].unique())
    assert {s: digest(DATABASE.sku_card(s)[0]) for s in record.datasheets} == record.datasheets
    one_off = table.assign(op_time=table["op_time"].where(table.index != 7, 1e-3))
    assert content_hash(one_off) != record.data[0]["sha256"]


@every_posterior
def test_draws_are_finite_labelled_and_hold_no_table(name):
    record, draws = DATABASE.posterior(name), DATABASE.draws(name)
    law = LAWS[DATABASE.model(record.model).law]
    drawn = {"chain", "draw", "sku", "architecture"}
    drawn |= {"backend"} if law.variant is None else set()  # else it is in the name of a unit
    assert drawn <= set(draws.dims) <= drawn | {"cell", "size"}
    assert draws.sizes["chain"] == record.inference["chains"]
    assert draws.sizes["draw"] == record.inference.get("keep", record.inference["draws"])
    assert sorted({card_of(unit) for unit in draws["sku"].values}) == sorted(record.datasheets)
    if "backend" in drawn:
        table = DATABASE.table(fitted_to(record)["times"])
        assert sorted(draws["backend"].values) == sorted(table["backend"].unique())
    sheets = unit_sheets(law, DATABASE.datasheets(sorted(record.datasheets)), draws["sku"].values)
    assert set(draws["architecture"].values) == set(sheets["architecture"].values)
    for variable, values in draws.items():
        if variable.startswith("residual"):
            continue
        assert values.dims[:2] == ("chain", "draw"), variable
        assert np.isfinite(values).all(), variable
        assert (values.std(("chain", "draw")) > 0).all(), variable
        assert not variable.endswith("_offset")


@every_posterior
def test_residuals_are_stored_only_for_tables_that_are_here(name):
    """They are nearly the data: each table behind them is shipped beside them."""
    record, draws = DATABASE.posterior(name), DATABASE.draws(name)
    stored = {v for v in draws.data_vars if v.startswith("residual")}
    if "shapes" not in fitted_to(record):
        assert stored == set()
        return
    assert set(fitted_to(record).values()) <= set(DATABASE.data())
    parts = ("", "_noise", "_shape", "_gain", "_sku", "_architecture", "_wider")
    assert stored == {f"residual{part}" for part in parts}
    law = LAWS[DATABASE.model(record.model).law]
    tables = [DATABASE.table(fitted_to(record)[role]) for role in ("times", "shapes")]
    cells = pd.concat(tables)
    cells["sku"] = unit_labels(law, cells["sku"], cells, cells["backend"])
    cells = cells[["sku", *law.sizes]].drop_duplicates()
    assert draws.sizes["cell"] == len(cells)
    held = pd.DataFrame(draws["residual_shape"].values, columns=list(law.sizes))
    held.insert(0, "sku", draws["residual_sku"].values)
    assert len(held.merge(cells)) == len(cells)
    sheets = unit_sheets(law, DATABASE.datasheets(sorted(record.datasheets)), draws["sku"].values)
    families = sheets["architecture"].to_series()[held["sku"]].to_numpy()
    assert (draws["residual_architecture"].values == families).all()
    assert (draws["residual_noise"] > 0).all()
    assert ((draws["residual_wider"] >= WIDER[0]) & (draws["residual_wider"] < WIDER[1])).all()


@pytest.mark.slow
def test_stored_residuals_are_what_the_tables_say():
    script = DATABASE.root / "data" / "recipes" / "residuals.py"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("as stored") >= 3


@every_posterior
def test_prediction_finds_the_stored_residuals_of_every_sku(name):
    """Text read back as bytes would equal no label, and every shape would have its prior."""
    record, draws = DATABASE.posterior(name), DATABASE.draws(name)
    law = LAWS[DATABASE.model(record.model).law]
    sheets = unit_sheets(law, DATABASE.datasheets(sorted(record.datasheets)), draws["sku"].values)
    for sku in sheets["sku"].values:
        family = str(sheets["architecture"].sel(sku=sku).values)
        found = known(draws, family, sku)
        if "shapes" not in fitted_to(record):
            assert found is None
            continue
        assert sku in found.sku
        assert found.wider == float(draws["residual_wider"].sel(sku=sku))
        own = moments(
            found.shapes[found.sku == sku][:20], sku=sku, residuals=found, lengths=law.lengths
        )
        assert (own.sd < 0.8).all()
        assert known(draws, "Nobody's", sku).sku.size == 0


@every_posterior
def test_the_fast_reader_of_draws_sees_what_xarray_sees(name):
    with xr.open_dataset(ROOT / "posteriors" / f"{name}.nc", engine="h5netcdf") as file:
        stored = file.load()
    for variable, held in stored.items():
        if "labels" in held.attrs:  # a column of text, stored as numbers of its labels
            text = np.array(json.loads(held.attrs["labels"]))[held.values]
            stored = stored.assign({variable: (held.dims, text)})
    xr.testing.assert_equal(stored.drop_attrs(), DATABASE.draws(name).drop_attrs())


@every_posterior
def test_every_factor_of_the_model_has_its_draws(name):
    draws = DATABASE.draws(name)
    for factor in DATABASE.model(DATABASE.posterior(name).model).factors:
        variable = f"log_{factor['name']}" if factor["link"] == "log" else factor["name"]
        assert {variable, f"{variable}_mean"} & set(draws.data_vars)


def test_the_stored_posteriors_are_small_enough_to_ship():
    files = [path for path in (ROOT / "posteriors").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 12e6


@with_rows
def test_the_model_still_has_the_log_density_it_was_fitted_with(name):
    record = DATABASE.posterior(name)
    model = Inputs.recorded(DATABASE, record).build(DATABASE.builder(record.model))
    now = fingerprint(model, points=len(record.fingerprint))
    np.testing.assert_allclose(now, record.fingerprint, rtol=1e-9, atol=0)


def test_the_fingerprint_tells_models_apart():
    marks = [DATABASE.posterior(name).fingerprint for name in DATABASE.posteriors()]
    assert all(len(mark) >= 3 for mark in marks)
    assert len({tuple(mark) for mark in marks}) == len(marks)


@every_posterior
def test_every_factor_has_its_prior_in_the_record(name):
    """Three quantiles on its natural scale, and the spread on the scale of the prior."""
    record = DATABASE.posterior(name)
    assert set(record.prior) == {f["name"] for f in DATABASE.model(record.model).factors}
    for factor in DATABASE.model(record.model).factors:
        low, middle, high, sd = record.prior[factor["name"]]
        assert low < middle < high
        assert sd > 0
        width = np.log(high / low) if factor["link"] == "log" else high - low
        assert 2.5 < width / sd < 4.5  # 3.29 for a normal


# --- assemblies ------------------------------------------------------------------------------

LAW_OF_PART = {
    "gemm": ("gemm_time", "fp8_gemm_time"),
    "head": ("gemm_time",),
    "kv_fp8": ("kv_time",),
    "attention_prefill": ("prefill_time",),
    "attention_decode": ("decode_time",),
    "light": ("light_time",),
    "allreduce": ("allreduce_time",),
    "host": ("host_time",),
}
every_assembly = pytest.mark.parametrize("name", DATABASE.assemblies())


@every_assembly
def test_every_assembly_has_a_stored_posterior_of_the_right_law_for_each_part(name):
    card = DATABASE.assembly(name)
    path = ROOT / "posteriors" / "assemblies" / f"{name}.json"
    assert asdict(card) == json.loads(path.read_text())
    assert card.name == name
    assert is_name(name)
    assert card.title
    assert card.description
    assert set(PARTS) <= set(card.parts) <= {*PARTS, *MORE_PARTS} == set(LAW_OF_PART)
    assert set(card.parts.values()) <= set(DATABASE.posteriors())
    records = {part: DATABASE.posterior(p) for part, p in card.parts.items()}
    assert {record.dtype for part, record in records.items() if part != "gemm"} == {"bf16"}
    assert ("head" in card.parts) == (records["gemm"].dtype != "bf16")
    for part, record in records.items():
        assert DATABASE.model(record.model).law in LAW_OF_PART[part]


@every_assembly
def test_the_parts_of_an_assembly_pair_draw_by_draw(name):
    parts = {part: DATABASE.draws(p) for part, p in DATABASE.assembly(name).parts.items()}
    together = aligned(parts)
    fewest = min(part.sizes["draw"] for part in parts.values())
    assert {part.sizes["draw"] for part in together.values()} == {fewest}
    assert len({part.sizes["chain"] for part in together.values()}) == 1
    assert fewest * together["gemm"].sizes["chain"] >= 1000


def test_an_assembly_bears_no_name_of_another_record():
    kinds = (DATABASE.skus, DATABASE.llms, DATABASE.models, DATABASE.data, DATABASE.posteriors)
    assert not {name for kind in kinds for name in kind()} & set(DATABASE.assemblies())


# --- licences --------------------------------------------------------------------------------


@every_data_card
def test_the_notice_names_every_third_party_source(name):
    card = DATABASE.data_record(name)
    package = THIRD_PARTY.search(card.source)
    if package is None:
        assert "project's owner" in card.licence
        return
    notice = (ROOT / "NOTICE").read_text()
    assert (package.group(1) or package.group(2)) in notice
    assert card.licence.partition(", ")[2] in notice
