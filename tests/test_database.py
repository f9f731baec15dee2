"""The database finds what a name means and refuses what is damaged, with one line that says so."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from m2bayes._draws import read_draws
from m2bayes.database import (
    BUILDS,
    ERRORS,
    Data,
    Database,
    Model,
    Posterior,
    digest,
    read_json,
    sha256,
    store,
    write_draws,
)
from m2bayes.errors import (
    ConvergenceError,
    DataError,
    DatasheetError,
    M2BayesError,
    RecordError,
    UnknownNameError,
    WorkloadError,
)

STORED = "gemm_bf16-const_ceiling"


def refusal(kind, function, *args):
    """Message of an error of exactly this kind, which must be one line."""
    with pytest.raises(M2BayesError) as caught:
        function(*args)
    assert type(caught.value) is kind, repr(caught.value)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


@pytest.fixture
def folder(tmp_path, database):
    """A copy of one stored posterior, to be damaged."""
    for suffix in (".json", ".nc"):
        shutil.copy(database.root / "posteriors" / f"{STORED}{suffix}", tmp_path)
    return tmp_path


def edit(folder, **changes):
    """Path of the copied record after changing some of its keys."""
    path = folder / f"{STORED}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return str(path)


@pytest.fixture
def elsewhere(tmp_path, database):
    """A database of its own, whose data and models may be changed."""
    root = tmp_path / "database"
    for name in ("models", "data"):
        shutil.copytree(database.root / name, root / name)
    (root / "posteriors").mkdir()
    return Database(root)


# --- names -----------------------------------------------------------------------------------

UNKNOWN = [
    ("sku_card", "h1000", "unknown SKU 'h1000'; did you mean h100"),
    ("sku_card", "H100-80GB-SMX", "H100-80GB-SXM"),
    ("llm", "llama-3.1-9b", "unknown LLM 'llama-3.1-9b'; did you mean llama-3.1-8b"),
    ("model", "hier_gem", "unknown model 'hier_gem'; did you mean hier_gemm"),
    ("builder", "hier_gem", "unknown model 'hier_gem'; did you mean hier_gemm"),
    ("data_record", "gemm_bf61", "unknown data set 'gemm_bf61'; did you mean gemm_bf16"),
    ("table", "gemm_bf61", "unknown data set 'gemm_bf61'; did you mean gemm_bf16"),
    ("posterior", "gemm_bf16-hier", "unknown posterior 'gemm_bf16-hier'; did you mean gemm_bf16-"),
    ("draws", "gemm_bf16-hier", "unknown posterior 'gemm_bf16-hier'; did you mean gemm_bf16-"),
]


@pytest.mark.parametrize(("method", "name", "complaint"), UNKNOWN)
def test_an_unknown_name_is_answered_with_the_closest_ones(database, method, name, complaint):
    assert complaint in refusal(UnknownNameError, getattr(database, method), name)


@pytest.mark.parametrize("name", ["HIER_GEM", "Hier_gemn", "hier_gem"])
def test_the_closest_names_are_found_whatever_the_case(database, name):
    assert "did you mean hier_gemm" in refusal(UnknownNameError, database.model, name)
    error = UnknownNameError("SKU", name.upper(), ["HIER_gemm", "L4"])
    assert str(error) == f"unknown SKU {name.upper()!r}; did you mean HIER_gemm?"


@pytest.mark.parametrize("method", ["sku_card", "llm", "model", "data_record", "posterior"])
def test_a_name_that_resembles_nothing_is_answered_with_what_lists_them(database, method):
    message = refusal(UnknownNameError, getattr(database, method), "§§§")
    kind = {"sku_card": "skus", "llm": "llms", "data_record": "data"}.get(method)
    assert ("known: " in message) if kind is None else f"m2bayes list {kind} names them" in message
    assert len(message) < 400


@pytest.mark.parametrize(("name", "close"), [("H-200", "H200-141GB-SXM"), ("l_40", "L40S-48GB")])
def test_a_name_without_its_hyphens_or_its_end_is_recognised(database, name, close):
    with pytest.raises(UnknownNameError, match=f"did you mean {close}"):
        raise UnknownNameError("SKU", name, database.skus())


def test_a_misspelt_assembly_is_recognised_as_a_posterior(database):
    assert "did you mean step_bf16" in refusal(UnknownNameError, database.posterior, "step_bf1")


@pytest.mark.parametrize("name", ["Qwen/Qwen3-32B", "qwen/qwen3-32b"])
def test_an_llm_goes_by_its_repository_too(database, name):
    assert database.llm(name).name == "qwen3-32b"
    assert "did you mean Qwen/Qwen3-32B" in refusal(UnknownNameError, database.llm, "Qwen/Qwen3-32")
    assert "no such file, and no LLM of" in refusal(WorkloadError, database.llm, "nobody/§§§")


def test_a_folder_is_no_datasheet(database, tmp_path):
    assert "no datasheet; give a SKU" in refusal(DatasheetError, database.sku_card, str(tmp_path))


@pytest.mark.parametrize("name", ["h100", "H100", " H100 ", "h100-80gb-sxm", "H100-80GB-SXM"])
def test_names_and_aliases_of_skus_ignore_case(database, name):
    assert database.datasheets([name])["sku"].values.tolist() == ["H100-80GB-SXM"]


@pytest.mark.parametrize("name", ["llama-3.1-8b", "LLAMA-3.1-8B"])
def test_names_of_llms_ignore_case(database, name):
    assert database.llm(name).name == "llama-3.1-8b"


def test_every_alias_leads_to_its_card(database):
    for known in database.skus():
        for alias in database.sku_card(known)[0]["aliases"]:
            assert database.sku_card(alias.upper())[0]["name"] == known


def test_a_path_does_as_well_as_a_name(database, tmp_path, monkeypatch):
    card = database.root / "data" / "datasheets" / "L4-24GB-PCIe.json"
    assert database.sku_card(str(card)) == (database.sku_card("l4")[0], str(card))
    record = database.root / "posteriors" / f"{STORED}.json"
    assert database.posterior(str(record)) == database.posterior(STORED)
    assert database.draws(str(record)).equals(database.draws(STORED))
    table = database.root / "data" / "measurements" / "gemm_bf16.csv"
    pd.testing.assert_frame_equal(database.table(str(table)), database.table("gemm_bf16"))
    shutil.copy(card, tmp_path / "mine.json")
    monkeypatch.chdir(tmp_path)
    assert database.sku_card("mine.json")[0]["name"] == "L4-24GB-PCIe"


def test_an_llm_is_called_after_the_folder_of_its_config(database, tmp_path):
    card = json.loads((database.root / "data" / "llms" / "phi-2.json").read_text())
    path = tmp_path / "my-phi" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(card["config"]))
    mine = database.llm(str(path))
    assert mine.name == "my-phi"
    shipped = database.llm(str(database.root / "data" / "llms" / "phi-2.json"))
    assert shipped == database.llm("phi-2")
    assert mine.layers == database.llm("phi-2").layers


def test_datasheets_come_in_the_order_asked(database):
    names = ["L4-24GB-PCIe", "A100-80GB-SXM", "H200-141GB-SXM"]
    assert database.datasheets(names)["sku"].values.tolist() == names
    assert database.datasheets(names[::-1])["sku"].values.tolist() == names[::-1]


def test_a_dtype_without_a_rate_names_the_sku(database):
    message = refusal(DatasheetError, lambda: database.datasheets(["h100", "a100"], dtype="fp8"))
    assert message.startswith("A100-80GB-SXM: no peak_flop_rate for fp8")
    refusal(UnknownNameError, lambda: database.datasheets(["h100"], dtype="bf17"))


def test_a_sku_given_twice_is_refused(database):
    message = refusal(DatasheetError, database.datasheets, ["h100", "H100-80GB-SXM"])
    assert "H100-80GB-SXM" in message


def test_records_are_frozen_dataclasses(database):
    held = (database.model("hier_gemm"), database.data_record("gemm_bf16"))
    held += (database.posterior(STORED),)
    assert [type(record) for record in held] == [Model, Data, Posterior]
    for record in held:
        with pytest.raises(AttributeError):
            record.name = "another"


# --- files that are no records ---------------------------------------------------------------

NO_RECORDS = {
    "empty.json": b"",
    "cut.json": b'{"name": "gemm',
    "list.json": b"[]",
    "text.json": b'"gemm"',
    "null.json": b"null",
    "deep.json": b"[" * 100_000,
    "long.json": b'{"a": ' + b"9" * 5000 + b"}",
    "nan.json": b'{"a": NaN}',
    "infinite.json": b'{"a": [-Infinity]}',
    "twice.json": b'{"a": {"b": 1, "c": 2, "b": 1}}',
    "binary.json": bytes(range(256)) * 8,
}
READERS = [
    ("sku_card", DatasheetError),
    ("llm", WorkloadError),
    ("posterior", RecordError),
    ("draws", RecordError),
]


@pytest.mark.parametrize(("method", "kind"), READERS)
@pytest.mark.parametrize("file", NO_RECORDS)
def test_a_file_that_is_no_json_object_is_refused(database, tmp_path, method, kind, file):
    path = tmp_path / file
    path.write_bytes(NO_RECORDS[file])
    message = refusal(kind, getattr(database, method), str(path))
    assert message.startswith(str(path))


@pytest.mark.parametrize(("method", "kind"), READERS)
def test_a_folder_or_nothing_in_place_of_a_file_is_refused(database, tmp_path, method, kind):
    (tmp_path / "folder.json").mkdir()
    for name in ("folder.json", "nothing.json"):
        message = refusal(kind, getattr(database, method), str(tmp_path / name))
        assert name in message


FILE_READERS = [*READERS, ("table", DataError), ("workloads", WorkloadError)]


@pytest.mark.parametrize(("method", "kind"), FILE_READERS)
@pytest.mark.parametrize("suffix", ["csv", "toml", "json"])
def test_a_pipe_is_refused_and_not_waited_for(database, tmp_path, method, kind, suffix):
    path = tmp_path / f"pipe.{suffix}"
    if suffix != "json" and (method, kind) in READERS:
        return  # a name, not a path
    os.mkfifo(path)
    message = refusal(kind, getattr(database, method), str(path))
    assert message == f"{path}: cannot be read: no regular file; copy its content into one"


@pytest.mark.parametrize(("method", "kind"), FILE_READERS)
@pytest.mark.parametrize("stem", ["x" * 300, "a\x00b", "a\nb", "a\ud800b"])
def test_a_path_that_no_file_can_have_is_refused(database, tmp_path, method, kind, stem):
    message = refusal(kind, getattr(database, method), str(tmp_path / f"{stem}.json"))
    assert message.isprintable()


@pytest.mark.parametrize("method", ["model", "data_record"])
def test_models_and_data_sets_go_by_name_only(database, method):
    """A card elsewhere would have no model, or no table, beside it."""
    folder = {"model": "models", "data_record": "data/measurements"}[method]
    card = next((database.root / folder).glob("*.json"))
    assert "unknown " in refusal(UnknownNameError, getattr(database, method), str(card))


def test_read_json_says_what_it_found(tmp_path):
    (tmp_path / "a.json").write_text("[1]")
    message = refusal(DataError, lambda: read_json(tmp_path / "a.json", DataError))
    assert message.endswith("expected a JSON object, {…}, found a list")
    (tmp_path / "a.json").write_text("null")
    message = refusal(DataError, lambda: read_json(tmp_path / "a.json", DataError))
    assert message.endswith("found null")
    (tmp_path / "a.json").write_text('{"a": 1}', encoding="utf-8-sig")
    assert read_json(tmp_path / "a.json", DataError) == {"a": 1}
    for content, complaint in (
        ('{"a": 1, "b": 2, "a": 3}', "not valid JSON: key 'a' is given twice; keep one"),
        ('{"a": NaN}', "not valid JSON: NaN is no number; give a finite one"),
    ):
        (tmp_path / "a.json").write_text(content)
        message = refusal(DataError, lambda: read_json(tmp_path / "a.json", DataError))
        assert message == f"{tmp_path / 'a.json'}: {complaint}"
    (tmp_path / "a.json").write_text('{"ü": 1}', encoding="utf-8")
    assert read_json(tmp_path / "a.json", DataError) == {"ü": 1}


@pytest.mark.parametrize(
    "content", [b"", b"\n\n", bytes(range(128, 256)) * 9, b"a,b\n1,2,3\n4\n5,6,7,8"]
)
def test_a_file_that_is_no_table_is_refused(database, tmp_path, content):
    path = tmp_path / "mine.csv"
    path.write_bytes(content)
    assert "not a CSV table" in refusal(DataError, database.table, str(path))


@pytest.mark.parametrize("suffix", ["gz", "bz2", "zip", "xz", "zst", "tar"])
def test_a_compressed_table_is_refused(database, tmp_path, suffix):
    path = tmp_path / f"mine.csv.{suffix}"
    path.write_bytes(b"\x1f\x8b\x08\x00" * 30)
    message = refusal(DataError, database.table, str(path))
    assert message == f"{path}: not a CSV table: no text in UTF-8; unpack or convert it"
    path.write_text("a,b\n1,2\n")
    assert database.table(str(path)).columns.tolist() == ["a", "b"]


@pytest.mark.parametrize("header", ["M,N,M", "M, N,M ", "\ufeffM,N,M"])
def test_a_table_with_two_columns_of_one_name_is_refused(database, tmp_path, header):
    (tmp_path / "mine.csv").write_text(f"{header}\n1,2,3\n", encoding="utf-8")
    message = refusal(DataError, database.table, str(tmp_path / "mine.csv"))
    assert "two columns named 'M" in message


@pytest.mark.parametrize("first", [0, 1, 7])
def test_a_table_whose_rows_are_longer_than_its_header_is_refused(database, tmp_path, first):
    (tmp_path / "mine.csv").write_text(f"M,N\n{first},2,3\n4,5\n")
    message = refusal(DataError, database.table, str(tmp_path / "mine.csv"))
    assert message.endswith("its rows have more cells than its header; name every column")


def test_a_table_that_is_not_there_is_refused(database, tmp_path):
    message = refusal(DataError, database.table, str(tmp_path / "mine.csv"))
    assert "no such file; known data sets: " in message
    (tmp_path / "folder.csv").mkdir()
    refusal(DataError, database.table, str(tmp_path / "folder.csv"))


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("w.csv", b"\xff\xfe kind"),
        ("w.csv", b""),
        ("w.csv", b"kind,batch,context\n"),
        ("w.toml", b"\xff"),
        ("w.toml", b"[[workload"),
        ("w.toml", b"workload = 3"),
        ("w.toml", b"workload = " + b"9" * 5000),
        ("w.toml", b"workload = " + b"[" * 100_000),
        ("w.csv", b"batch,context\n64,2048\n"),
        ("w.csv", b"kind,batch,context, batch\ndecode,64,2048,8\n"),
        ("w.csv", b"kind,batch\n" + b"x" * 200_000),
    ],
)
def test_a_workload_file_that_cannot_be_read_is_refused(database, tmp_path, file, content):
    path = tmp_path / file
    path.write_bytes(content)
    assert refusal(WorkloadError, database.workloads, str(path)).startswith(str(path))


def test_workloads_come_from_csv_and_toml_alike(database, tmp_path):
    (tmp_path / "w.csv").write_text("kind,batch,context,tokens\ndecode,8,64,\nprefill,,,512\n")
    (tmp_path / "w.toml").write_text(
        '[[workload]]\nkind = "decode"\nbatch = 8\ncontext = 64\n\n'
        '[[workload]]\nkind = "prefill"\ntokens = 512\n'
    )
    found = [database.workloads(str(tmp_path / f"w.{suffix}")) for suffix in ("csv", "toml")]
    assert found[0] == found[1]
    assert [w.label for w in found[0]] == ["decode:batch=8,context=64", "prefill:tokens=512"]
    refusal(WorkloadError, database.workloads, str(tmp_path / "nothing.csv"))
    marked = b"\xef\xbb\xbf" + (tmp_path / "w.csv").read_bytes()
    (tmp_path / "marked.csv").write_bytes(marked)  # as spreadsheets begin their files
    assert database.workloads(str(tmp_path / "marked.csv")) == found[0]


# --- damaged posteriors ----------------------------------------------------------------------


def test_an_intact_copy_is_accepted(database, folder):
    """Negative control of everything below."""
    assert database.draws(edit(folder)).equals(database.draws(STORED))


def test_a_flipped_byte_is_noticed(database, folder):
    path = folder / f"{STORED}.nc"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    message = refusal(RecordError, database.draws, edit(folder))
    assert message.startswith(f"posterior {STORED}: {STORED}.nc was changed or cut off")


@pytest.mark.parametrize("length", [0, 100, 100_000])
def test_a_truncated_file_is_noticed(database, folder, length):
    path = folder / f"{STORED}.nc"
    path.write_bytes(path.read_bytes()[:length])
    assert "was changed or cut off" in refusal(RecordError, database.draws, edit(folder))


def test_missing_draws_are_noticed(database, folder):
    (folder / f"{STORED}.nc").unlink()
    assert "is missing beside its record" in refusal(RecordError, database.draws, edit(folder))


@pytest.mark.parametrize(
    ("figure", "value", "complaint"),
    [
        ("rhat_max", 1.02, "R-hat 1.02"),
        ("ess_bulk_min", 399, "bulk ESS 399 below 400"),
        ("ess_tail_min", 3.5, "tail ESS "),
        ("divergences", 1, "1 divergences"),
    ],
)
def test_a_fit_that_did_not_converge_is_refused(database, folder, figure, value, complaint):
    checks = database.posterior(STORED).checks | {figure: value}
    with pytest.raises(ConvergenceError, match="failed its diagnostics") as caught:
        database.draws(edit(folder, checks=checks))
    assert complaint in str(caught.value)
    assert "fit with more draws" in str(caught.value)
    assert caught.value.checks.keys() == checks.keys()


def test_diagnostics_that_are_not_there_do_not_count_as_passed(database, folder):
    refusal(ConvergenceError, database.draws, edit(folder, checks={}))


def test_a_record_with_an_unknown_key_is_refused(database, folder):
    message = refusal(RecordError, database.draws, edit(folder, colour="red"))
    assert message.endswith("not the record of a posterior, it has unknown colour")


@pytest.mark.parametrize("key", ["name", "data", "checks", "draws", "fingerprint", "created"])
def test_a_record_with_a_missing_key_is_refused(database, folder, key):
    path = folder / f"{STORED}.json"
    record = json.loads(path.read_text())
    del record[key]
    path.write_text(json.dumps(record))
    message = refusal(RecordError, database.draws, str(path))
    assert message.endswith(f"not the record of a posterior, it lacks {key}")


def test_a_record_of_an_unknown_model_is_refused(database, folder):
    message = refusal(UnknownNameError, database.draws, edit(folder, model="hier_gem"))
    assert "did you mean hier_gemm" in message


# --- a changed database ----------------------------------------------------------------------


def test_a_changed_table_is_noticed_and_its_recipe_named(elsewhere):
    path = elsewhere.root / "data" / "measurements" / "gemm_bf16.csv"
    path.write_text(path.read_text().replace("1.0824e-05", "1.0825e-05", 1))
    message = refusal(RecordError, elsewhere.table, "gemm_bf16")
    assert message.endswith("rebuild it with python data/recipes/gemm_bf16.py")


def test_a_model_card_without_its_model_is_refused(elsewhere):
    (elsewhere.root / "models" / "hier_gemm.py").unlink()
    assert "no hier_gemm.py beside its card" in refusal(RecordError, elsewhere.builder, "hier_gemm")


def test_a_folder_that_is_no_database_is_refused(tmp_path):
    message = refusal(RecordError, Database, tmp_path)
    assert message == f"{tmp_path}: no folder models, data, posteriors; not a database"


def test_the_digest_of_a_datasheet_is_that_of_its_numbers(database):
    card = database.sku_card("h100")[0]
    reworded = json.loads(json.dumps(card))
    reworded["facts"]["l2"]["source"] = "another edition of the same document"
    assert digest(reworded) == digest(card)
    changed = json.loads(json.dumps(card))
    changed["facts"]["l2"]["value"] *= 2
    rewritten = json.loads(json.dumps(card))
    rewritten["facts"]["l2"]["unit"] = "MB"
    assert len({digest(c) for c in (card, changed, rewritten)}) == 3


# --- storing ---------------------------------------------------------------------------------


@pytest.fixture
def fit(database, synthetic_posterior):
    """A record and draws as `m2bayes.posterior.fit` returns them."""
    stored = database.posterior(STORED)
    sheets = {str(sku): stored.datasheets[str(sku)] for sku in synthetic_posterior["sku"].values}
    changes = {"name": "syn_gemm-hier_gemm", "model": "hier_gemm", "draws": {}}
    record = Posterior(**{**stored.__dict__, **changes, "datasheets": sheets})
    return record, synthetic_posterior.drop_attrs()


def test_what_is_stored_is_read_back(database, fit, tmp_path):
    record, draws = fit
    path = store(record, draws, tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "syn_gemm-hier_gemm.json"
    assert sorted(p.name for p in path.parent.iterdir()) == [
        "syn_gemm-hier_gemm.json",
        "syn_gemm-hier_gemm.nc",
    ]
    found = database.draws(str(path))
    xr.testing.assert_equal(found.drop_attrs(), draws)
    assert found.attrs["law"] == "gemm_time"
    assert json.loads(found.attrs["factors"]) == database.model("hier_gemm").factors
    assert database.posterior(str(path)).draws["sha256"] == sha256(path.with_suffix(".nc"))


def test_text_and_dims_without_labels_are_read_as_xarray_reads_them(fit, tmp_path):
    """Text as text: bytes would equal no label. A dim that has no labels gets none."""
    _, draws = fit
    known = xr.Dataset(
        {
            "residual": ("cell", np.array([0.5, -0.5], dtype="float32")),
            "residual_sku": ("cell", ["H100-80GB-SXM", "H200-141GB-SXM"]),
            "residual_shape": (("cell", "size"), np.arange(6, dtype="int32").reshape(2, 3)),
        }
    )
    write_draws(draws.merge(known), tmp_path / "draws.nc")
    found = read_draws(tmp_path / "draws.nc")
    assert (found["residual_sku"] == "H200-141GB-SXM").values.tolist() == [False, True]
    assert not {"cell", "size"} & set(found.coords)
    with xr.open_dataset(tmp_path / "draws.nc", engine="h5netcdf") as file:
        xr.testing.assert_equal(found, with_text(file.load()))


def with_text(stored):
    """What xarray reads, with the labels of a column of text in place of their numbers."""
    text = {v: json.loads(x.attrs["labels"]) for v, x in stored.items() if "labels" in x.attrs}
    assert text
    return stored.assign(
        {v: (stored[v].dims, np.array(labels)[stored[v].values]) for v, labels in text.items()}
    )


LABELS = "the labels of its draws are not those of its record; fit again"


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda held: held.isel(sku=[0, 1]), LABELS),
        (lambda held: held.assign_coords(sku=["a", "b", "c"]), LABELS),
        (lambda held: held.drop_vars("sku"), LABELS),
        (lambda held: held.isel(sku=[1, 0, 2]), LABELS),
        *(
            (lambda held, name=name: held.drop_vars(name), f"no {name} in it; fit again")
            for name in (*BUILDS, *ERRORS)
        ),
        (lambda held: held.rename(architecture="family"), LABELS),
        (lambda held: held.rename(draw="sample"), LABELS),
        (lambda held: held.assign(build_sd=held["build_sd"] * np.nan), "build_sd is not finite"),
        (lambda held: held.assign(knee=held["build_sd"] * np.inf), "knee is not finite; fit again"),
    ],
)
def test_draws_that_are_not_those_of_the_record_are_refused(
    database, fit, tmp_path, damage, complaint
):
    """As a file with a right hash can be, when another program wrote it."""
    record, draws = fit
    path = store(record, damage(draws), tmp_path)
    message = refusal(RecordError, database.draws, str(path))
    assert message.startswith("posterior syn_gemm-hier_gemm: ")
    assert complaint in message


def test_a_file_with_the_right_hash_that_holds_no_draws_is_refused(database, folder):
    file = folder / f"{STORED}.nc"
    file.write_bytes(b"no draws")
    draws = {"file": file.name, "sha256": sha256(file)}
    assert "is no file of draws" in refusal(RecordError, database.draws, edit(folder, draws=draws))


SOURCE = {"role": "times", "name": "gemm_bf16", "sha256": "0"}
ROLES = "data must hold the role times, and each role once"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"draws": {"file": "x.nc"}}, "draws must name file and sha256"),
        ({"draws": {"file": 3, "sha256": "0"}}, "draws must name file and sha256"),
        (
            {"draws": {"file": "../x.nc", "sha256": "0"}},
            "draws.file is '../x.nc': name a file beside the record",
        ),
        ({"data": [SOURCE | {"name": 3}]}, "each of data must name role, name and sha256"),
        ({"data": [SOURCE | {"role": "clock"}]}, ROLES),
        ({"data": [SOURCE, SOURCE]}, ROLES),
        ({"draws": []}, "draws of a Posterior card must be a dict"),
        ({"data": []}, "each of data must name role, name and sha256"),
        ({"data": ["gemm_bf16"]}, "each of data must name role, name and sha256"),
        ({"data": [{"name": "gemm_bf16"}]}, "each of data must name role, name and sha256"),
        ({"data": {"name": "gemm_bf16"}}, "data of a Posterior card must be a list"),
        ({"checks": {"rhat_max": "1.0"}}, "checks and fingerprint must hold numbers"),
        ({"checks": {"rhat_max": True}}, "checks and fingerprint must hold numbers"),
        ({"fingerprint": [None]}, "checks and fingerprint must hold numbers"),
        ({"fingerprint": 1.0}, "fingerprint of a Posterior card must be a list"),
        ({"name": 3}, "name of a Posterior card must be a str"),
    ],
)
def test_a_record_with_a_value_of_another_kind_is_refused(database, folder, changes, complaint):
    path = edit(folder, **changes)
    message = refusal(RecordError, database.draws, path)
    assert message == f"{path}: {complaint}"


def full(self, target):
    raise OSError(28, "No space left on device")


def test_a_posterior_is_stored_whole_or_not_at_all(fit, tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "replace", full)
    message = refusal(RecordError, store, *fit, tmp_path)
    file = tmp_path / "syn_gemm-hier_gemm.nc"
    assert message.startswith(f"{file}: cannot be written: No space left on device; check")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_attempt_leaves_the_older_posterior_intact(database, fit, tmp_path, monkeypatch):
    record, draws = fit
    path = store(record, draws, tmp_path)
    before = {p.name: sha256(p) for p in tmp_path.iterdir()}
    monkeypatch.setattr(Path, "replace", full)
    refusal(RecordError, store, record, draws * 2, tmp_path)
    assert {p.name: sha256(p) for p in tmp_path.iterdir()} == before
    monkeypatch.undo()
    endless = Posterior(**{**record.__dict__, "fingerprint": [float("nan")]})
    refusal(RecordError, store, endless, draws * 2, tmp_path)
    assert {p.name: sha256(p) for p in tmp_path.iterdir()} == before
    assert np.isfinite(database.draws(str(path)).to_array()).all()


def test_a_folder_that_cannot_be_made_or_written_is_named(fit, tmp_path):
    (tmp_path / "file").write_text("no folder")
    assert str(tmp_path / "file") in refusal(RecordError, store, *fit, tmp_path / "file")
    nowhere = tmp_path / "nowhere" / "draws.nc"
    assert refusal(RecordError, write_draws, fit[1], nowhere).startswith(f"{nowhere}: cannot be")


def test_two_writers_of_one_posterior_do_not_meet(fit, tmp_path, monkeypatch):
    """The second writes the whole file while the first is about to put its own in place."""
    file, replace, seen = tmp_path / "draws.nc", Path.replace, []

    def late(self, target):
        seen.append(self)
        if len(seen) == 1:
            write_draws(fit[1] + 1, file)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", late)
    write_draws(fit[1], file)
    assert len({part.name for part in seen}) == 2
    assert {part.suffix for part in seen} == {".part"}
    xr.testing.assert_equal(read_draws(file), fit[1])
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("name", ["gemm_bf16-const_ceiling", "gemm_bf16-hier_gemm"])
def test_stored_draws_survive_a_round_trip_bit_by_bit(database, tmp_path, name):
    held = read_draws(database.root / "posteriors" / f"{name}.nc")
    write_draws(held, tmp_path / "draws.nc")
    again = read_draws(tmp_path / "draws.nc")
    xr.testing.assert_identical(again, held)
    for variable in held.variables:
        assert again[variable].values.tobytes() == held[variable].values.tobytes()


def test_storing_again_replaces_the_older_posterior(database, fit, tmp_path):
    record, draws = fit
    store(record, draws, tmp_path)
    path = store(record, draws + 1, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    xr.testing.assert_equal(database.draws(str(path)).drop_attrs(), draws + 1)


@pytest.mark.parametrize("name", ["step_bf16", "posteriors/assemblies/step_bf16.json"])
def test_an_assembly_is_no_posterior_and_its_parts_are_named(name):
    database = Database()
    path = name if name == "step_bf16" else str(database.root / name)
    with pytest.raises(RecordError, match="an assembly of posteriors; name one of them: gemm_"):
        database.posterior(path)
