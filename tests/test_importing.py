"""Other projects' files as tables to fit: what is kept, what is refused, and cards without rows."""

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from m2bayes import catalogue, cli, options
from m2bayes.checking import report
from m2bayes.database import Database, sha256
from m2bayes.errors import DataError, RecordError, UnknownNameError
from m2bayes.importers.designed import SPACED, spaced_counts
from m2bayes.importers.formats import FORMATS
from m2bayes.importing import imported
from m2bayes.measurements import checked, content_hash
from m2bayes.mechanism.host import EAGER, kernel_count
from m2bayes.mechanism.laws import LAWS
from m2bayes.records import IMPORT
from m2bayes.vidur import OPERATORS

A100 = "A100-80GB-SXM"
TOKENS = [1, 2, 4, *range(8, 513, 8), *range(528, 4097, 16)]


def profile(hidden=768, tokens=TOKENS, slower=1.0):
    """A made-up mlp.csv of 12 query and 4 KV heads on one and two GPUs."""
    rows = []
    for degree in (1, 2):
        for n in tokens:
            row = {"n_head": 12, "n_kv_head": 4, "n_embd": hidden, "n_expanded_embd": 2048}
            row |= {"use_gated_mlp": True, "num_tokens": n, "num_tensor_parallel_workers": degree}
            row |= {f"time_stats.{op}.median": 1e-3 * slower * (4 + n / 64) for op in OPERATORS}
            rows.append(row)
    return pd.DataFrame(rows)


def coefficients(a, b=1e-4, c=0.05):
    """One configuration of a profiler's JSON [ms]; the branch of large batches must not be used."""
    return {
        "decoding_large_small_bs_threshold": 95,
        "prefill": [a, 0.1, 1e-5],
        "decoding_smallbs": [a, b, c],
        "decoding_largebs": [1e3, b, c],
    }


@pytest.fixture
def files(tmp_path):
    """Two LLMs of one card, and two profiles of an engine."""
    for name, table in {"a": profile(), "b": profile(slower=1.1), "c": profile(1536)}.items():
        (tmp_path / name).mkdir()
        table.to_csv(tmp_path / name / "mlp.csv", index=False)
    opt = {"1": coefficients(23.0), "2": coefficients(24.0), "4": coefficients(26.0)}
    first = {"facebook/opt-13b": opt, "nobody/unknown-1b": {"1": coefficients(9.0)}}
    second = {"facebook/opt-13b": {"2": coefficients(20.0)}}
    for name, content in {"profiler-x.vllm.json": first, "profiler-x.vllm.1.json": second}.items():
        (tmp_path / name).write_text(json.dumps(content))
    return tmp_path


def run(capsys, *argv):
    """Exit code, standard output and standard error of one command."""
    try:
        code = cli.main([*map(str, argv)])
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


# --- light kernels ---------------------------------------------------------------------------


def test_a_cell_is_the_median_of_its_replicates(database, files):
    """A norm: two norms, two degrees and two files; an activation of one width: two files."""
    paths = [files / name / "mlp.csv" for name in "ab"]
    table = imported(database, "vidur-light", [*map(str, paths)], sku="a100")
    assert list(table.columns) == list(LAWS["light_time"].columns)
    assert set(table["sku"]) == {A100}
    assert not table.duplicated(["kernel", "tokens", "width"]).any()
    expected = 1e-6 * 1.05 * (4 + table["tokens"] / 64)
    np.testing.assert_allclose(table["op_time"], expected, rtol=1e-12)


def test_half_of_the_counts_are_even_in_the_log_and_half_linear():
    counts = spaced_counts(np.array(TOKENS))
    assert counts == sorted(set(counts))
    assert set(counts) <= set(TOKENS)
    assert {1, 4096, 2048, 64} <= set(counts)  # ends; the middle of each
    assert 1.5 * SPACED < len(counts) <= 2 * SPACED
    assert spaced_counts(np.array([7, 7])) == [7]
    assert spaced_counts(np.array([1, 2, 3])) == [1, 2, 3]


def test_only_designed_counts_are_kept_of_each_file(database, files):
    short = profile(1536, tokens=[1, 2, 3])
    short.to_csv(files / "c" / "mlp.csv", index=False)
    paths = [str(files / name / "mlp.csv") for name in "ac"]
    table = imported(database, "vidur-light", paths, sku="a100")
    norms = table[table["kernel"] == "norm"]
    assert sorted(norms[norms["width"] == 1536]["tokens"]) == [1, 2, 3]
    assert sorted(norms[norms["width"] == 768]["tokens"]) == spaced_counts(np.array(TOKENS))


def test_the_order_of_files_is_without_effect(database, files):
    paths = [str(files / name / "mlp.csv") for name in "abc"]
    one, other = (
        imported(database, "vidur-light", order, sku="a100") for order in (paths, paths[::-1])
    )
    pd.testing.assert_frame_equal(one, other)


# --- the host --------------------------------------------------------------------------------


def test_steps_that_the_host_bounds_by_hand(database, files):
    """13 billion weights on one GPU take 12.8 of 23 ms to read, on two 6.4 of 24."""
    paths = [str(files / name) for name in ("profiler-x.vllm.json", "profiler-x.vllm.1.json")]
    table = imported(database, "distserve-host", paths, sku="a100")
    assert list(table.columns) == list(LAWS["host_time"].columns)
    kernels = kernel_count(database.llm("opt-13b").layers, shared=True)
    assert set(table["kernels"]) == {kernels}
    assert set(table["mode"]) == {EAGER}
    assert set(table["backend"]) == {"vllm"}
    one = sorted(table[table["sequences"] == 1]["op_time"] * 1e3)
    np.testing.assert_allclose(one, [a + 128e-4 + 0.05 for a in (20.0, 24.0, 26.0)], rtol=1e-12)
    many = table[table["sequences"] == 64]["op_time"].max()
    assert many == pytest.approx(1e-3 * (26.0 + 64 * 128e-4 + 64 * 0.05), rel=1e-12)


def test_steps_bound_by_the_gpu_are_left_out(database, files):
    """A deliberate mistake would be to take one GPU along: its step is mostly weights."""
    content = {"facebook/opt-13b": {"1": coefficients(23.0)}}
    (files / "profiler-x.vllm.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="the host bounds no step of any LLM there"):
        imported(database, "distserve-host", [str(files / "profiler-x.vllm.json")], sku="a100")


# --- refusals --------------------------------------------------------------------------------


def refused(database, form, paths, sku="a100"):
    with pytest.raises((DataError, UnknownNameError)) as caught:
        imported(database, form, [*map(str, paths)], sku=sku)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_cannot_be_imported_is_said(database, files):
    light, host = files / "a" / "mlp.csv", files / "profiler-x.vllm.json"
    assert "add --sku NAME" in refused(database, "vidur-light", [light], sku=None)
    assert "unknown SKU 'a1000'" in refused(database, "vidur-light", [light], sku="a1000")
    assert "is given twice" in refused(database, "vidur-light", [light, files / "a/../a/mlp.csv"])
    assert "did you mean vidur" in refused(database, "vidur-lite", [light])
    assert "no such file" in refused(database, "vidur-light", [files / "none.csv"])
    assert "is JSON or a page, not a table" in refused(database, "vidur-light", [host])
    assert "is no profile of vllm" in refused(database, "distserve-host", [light])
    other = files / "profiler-x.distserve.json"
    other.write_text(host.read_text())
    assert "is no profile of vllm" in refused(database, "distserve-host", [other])
    host.write_text('{"nobody/unknown-1b": {}}')
    assert "holds no LLM of m2bayes list llms" in refused(database, "distserve-host", [host])
    host.write_text('{"facebook/opt-13b": {"2": {"prefill": [1, 2, 3]}}}')
    assert "no decoding_large_small_bs_threshold" in refused(database, "distserve-host", [host])
    host.write_text("[1]")
    assert "expected a JSON object" in refused(database, "distserve-host", [host])


# --- the command -----------------------------------------------------------------------------


def test_the_command_writes_what_a_posterior_would_record(files, capsys):
    out, source = files / "mine.csv", files / "a" / "mlp.csv"
    argv = ("import", "vidur-light", source, "--sku", "a100", "--out", out)
    code, printed, _ = run(capsys, *argv, "--json")
    summary = json.loads(printed)
    table = checked(Database().table(str(out)), origin="mine", law=LAWS["light_time"])
    assert code == 0
    assert summary["format"] == "vidur-light"
    assert summary["rows"] == len(table)
    assert summary["columns"] == list(table.columns)
    assert summary["sha256"] == sha256(out) == content_hash(table)
    assert summary["sources"] == [{"file": str(source), "sha256": sha256(source)}]
    before = out.read_bytes()
    code, printed, _ = run(capsys, *argv)
    assert (code, out.read_bytes()) == (0, before)
    assert f"{len(table)} rows" in printed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--sku": "a1000"}, "unknown SKU"),
        ({"PATH": "none.csv"}, "no such file"),
        ({"--out": "nowhere/mine.csv"}, "no such folder"),
        ({"--out": "a/mlp.csv"}, "is one of the files to read; name another"),
        ({"FORMAT": "vidor"}, "invalid choice: 'vidor'"),
    ],
)
def test_a_refused_import_writes_nothing(files, capsys, monkeypatch, change, message):
    monkeypatch.chdir(files)
    before = {p: p.read_bytes() for p in files.rglob("*") if p.is_file()}
    given = {"FORMAT": "vidur-light", "PATH": "a/mlp.csv", "--sku": "a100", "--out": "mine.csv"}
    given |= change
    options = [part for name in ("--sku", "--out") for part in (name, given[name])]
    code, out, err = run(capsys, "import", given["FORMAT"], given["PATH"], *options)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert {p: p.read_bytes() for p in files.rglob("*") if p.is_file()} == before


PLAIN = "sku,M,N,K,time [ms],backend,version{}\nh100,64,4096,4096,0.02,vllm,1{}\n"


@pytest.mark.parametrize(
    ("said", "given", "dtype"),
    [
        ((",dtype", ",fp8"), {}, "fp8"),
        ((",precision", ",bfloat16"), {}, "bf16"),
        (("", ""), {"dtype": "fp8"}, "fp8"),
        ((",dtype", ","), {"dtype": "fp8"}, "fp8"),
        (("", ""), {}, None),
    ],
)
def test_the_dtype_that_a_table_says_is_kept(database, tmp_path, said, given, dtype):
    path = tmp_path / "rows.csv"
    path.write_text(PLAIN.format(*said))
    table = imported(database, "plain", [str(path)], given=given)
    assert table.get("dtype", pd.Series([None])).tolist() == [dtype]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("versoin=1", "unknown key of --given 'versoin'; did you mean version?"),
        ("tp=2", "--given tp: rows of gemm_time have no tp; leave it out"),
    ],
)
def test_a_given_fact_that_nothing_uses_is_refused(tmp_path, capsys, given, message):
    path, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    path.write_text(PLAIN.format("", ""))
    code, _, err = run(capsys, "import", "plain", str(path), "--given", given, "--out", str(out))
    assert code == 2
    assert message in err
    assert not out.exists()


def test_the_help_lists_the_formats(capsys):
    code, out, _ = run(capsys, "import", "--help")
    assert code == 0
    assert list(options.FORMATS) == list(FORMATS)
    assert all(name in out for name in FORMATS)


# --- cards without rows ----------------------------------------------------------------------

OUTSIDE = [n for n in Database().data() if Database().data_record(n).outside]
every_card = pytest.mark.parametrize("name", OUTSIDE)


def test_there_are_cards_without_rows():
    assert OUTSIDE


@every_card
def test_a_card_without_rows_names_the_command_that_makes_them(database, name):
    assert name in database.data()
    assert not database.included(name)
    with pytest.raises(DataError) as caught:
        database.table(name)
    recipe = database.data_record(name).recipe
    assert str(caught.value).endswith(f"not included; make them with {recipe}")
    assert recipe.startswith(IMPORT)
    assert "\n" not in str(caught.value)


@every_card
def test_list_and_show_say_that_rows_are_not_included(name, capsys):
    rows = {row["data"]: row for row in catalogue.listing(Database(), "data")}
    assert rows[name]["here"] == "no"
    assert rows["gemm_bf16"]["here"] == "yes"
    _, out, _ = run(capsys, "list", "data")
    assert any(
        line.split()[:3] == [name, str(rows[name]["rows"]), "no"] for line in out.splitlines()
    )
    _, out, _ = run(capsys, "show", name)
    assert "not included: m2bayes import" in out
    _, out, _ = run(capsys, "show", "gemm_bf16")
    assert "not included" not in out


def posterior_of(database, name):
    return next(p for p in database.posteriors() if p.startswith(f"{name}-"))


@every_card
def test_check_skips_the_predictive_of_rows_that_are_not_here(database, name, capsys):
    posterior = posterior_of(database, name)
    code, out, err = run(capsys, "check", posterior)
    assert (code, err) == (0, "")
    assert "R-hat" in out
    assert f"the rows of {name} are not here, so the posterior predictive is skipped" in out
    code, out, err = run(capsys, "check", posterior, "--fingerprint")
    assert (code, out) == (2, "")
    assert "not included; make them with m2bayes import" in err


@every_card
def test_check_of_other_rows_is_refused(database, name, tmp_path, files, capsys):
    """A file of the right columns is not yet the file."""
    form, paths = {
        "light_time": ("vidur-light", [str(files / "a" / "mlp.csv")]),
        "host_time": ("distserve-host", [str(files / "profiler-x.vllm.json")]),
    }[database.model(database.posterior(posterior_of(database, name)).model).law]
    imported(database, form, paths, sku="a100").to_csv(tmp_path / "mine.csv", index=False)
    posterior = posterior_of(database, name)
    mine = ("--data", tmp_path / "mine.csv", "--fingerprint")
    code, out, err = run(capsys, "check", posterior, *mine)
    assert (code, out) == (2, "")
    assert f"holds other rows than posterior {posterior} was fitted to" in err


@every_card
def test_check_notices_a_card_of_other_rows(small_database, name, database, monkeypatch):
    """The hash that the posterior recorded is the card's, with or without the rows."""
    held = database.data_record(name)
    changed = type(held)(**(held.__dict__ | {"sha256": "0" * 64}))
    monkeypatch.setattr(Database, "data_record", lambda self, _: changed)
    with pytest.raises(RecordError, match="its data changed since the fit"):
        report(database, posterior_of(database, name), rebuild=False, tell=print)


# --- the real files --------------------------------------------------------------------------

EXTERNAL = os.environ.get("M2BAYES_EXTERNAL_DATA")


@every_card
@pytest.mark.skipif(not EXTERNAL, reason="M2BAYES_EXTERNAL_DATA names no folder")
def test_the_recipe_makes_the_table_of_its_card(database, name, tmp_path, monkeypatch, capsys):
    """And the posterior's predictive covers its rows."""
    card = database.data_record(name)
    monkeypatch.chdir(EXTERNAL)
    argv = card.recipe.removeprefix("m2bayes ").split()
    missing = [part for part in argv if "/" in part and not Path(part).is_file()]
    if missing:
        pytest.skip(f"no {missing[0]} in M2BAYES_EXTERNAL_DATA")
    assert argv[-2] == "--out"
    out = tmp_path / argv[-1]
    code, printed, _ = run(capsys, *argv[:-1], out, "--json")
    summary = json.loads(printed)
    assert code == 0
    assert (summary["rows"], summary["sha256"]) == (card.rows, card.sha256)
    assert summary["columns"] == list(card.columns)
    assert all(source["sha256"] in card.source for source in summary["sources"])
    found = report(database, posterior_of(database, name), rebuild=False, tell=print, data=str(out))
    assert found["calibration"]["mean"]["coverage_90"] > 0.8
