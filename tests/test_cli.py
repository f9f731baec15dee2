"""What scripts and people rely on: exit codes, one line a complaint, JSON, CSV, nothing else."""

import csv
import functools
import io
import json
import os
import resource
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from helpers import refusal, run

from m2bayes import errors, options, question, suites
from m2bayes.database import Database
from m2bayes.errors import DatasheetError

DATABASE = Database()
PROGRAM = Path(sys.executable).with_name("m2bayes")
LLM = ("--llm", "llama-3.1-8b", "--metric", "gemm_time")
SKUS = ("--sku", "a100", "H200", "h100")
FULL = ["A100-80GB-SXM", "H200-141GB-SXM", "H100-80GB-SXM"]
STEP = ("--workload", "decode:batch=64,context=2048")
FEW = ("--draws", "200")
SINGLE = 4 * float(np.finfo("float32").eps)  # four operators, each rounded once
OPS = ["qkv", "o", "gate_up", "down"]


def asked(command="rank", *extra, llm=LLM, sku=SKUS, workload=STEP, draws=FEW):
    return run(command, *llm, *sku, *workload, *draws, *extra)


def answered(command="rank", *extra, **kwargs):
    """JSON of a question that can be answered; standard error must be silent."""
    code, out, err = asked(command, *extra, "--json", **kwargs)
    assert (code, err) == (0, "")
    return json.loads(out)


def rows(command="rank", *extra, **kwargs):
    code, out, err = asked(command, *extra, "--csv", **kwargs)
    assert (code, err) == (0, "")
    return list(csv.DictReader(io.StringIO(out)))


@pytest.fixture
def write(tmp_path):
    """Write a file and return its path as text."""

    def written(name, content):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    return written


def card(name="h100", **facts):
    """A shipped datasheet with some facts changed; None removes one."""
    held = json.loads(json.dumps(DATABASE.sku_card(name)[0]))
    for quantity, value in facts.items():
        if value is None:
            del held["facts"][quantity]
        else:
            held["facts"][quantity] |= value
    return held


# --- bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["rank", "predict"])
@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"sku": ("--sku", "h1000")}, "unknown SKU 'h1000'; did you mean h100"),
        ({"sku": ("--sku", "h100", "l40x")}, "unknown SKU 'l40x'; did you mean l40s"),
        ({"sku": ("--sku", "")}, "argument --sku: is empty: give a name or a path"),
        ({"sku": ("--sku", "/")}, "/: no datasheet; give a SKU, or the path of a .json"),
        ({"sku": ("--sku", "h100", "h100")}, "SKU H100-80GB-SXM is given twice; name each once"),
        ({"sku": ("--sku", "h100", "H100-80GB-SXM")}, "SKU H100-80GB-SXM is given twice"),
        ({"llm": ("--llm", "llama-3.1-9b")}, "unknown LLM 'llama-3.1-9b'; did you mean llama"),
        ({"llm": ()}, "workload decode:batch=64,context=2048 needs an LLM; give --llm"),
        ({"draws": ("--draws", "0")}, "--draws 0: give between 4 and 4000"),
        ({"draws": ("--draws", "3")}, "--draws 3: give between 4 and 4000"),
        ({"draws": ("--draws", "-4")}, "--draws -4: give between 4 and 4000"),
        ({"draws": ("--draws", "100000")}, "--draws 100000: give between 4 and 4000"),
        ({"draws": ("--draws", "few")}, "argument --draws: 'few' is not a whole number"),
    ],
)
def test_a_bad_selection_is_refused(command, changes, complaint):
    assert complaint in refusal(asked(command, **changes))


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("--backend", "TRTLM", "unknown backend 'TRTLM'; did you mean trtllm?"),
        ("--metric", "gem_time", "unknown metric 'gem_time'; did you mean gemm_time"),
        ("--metric", "cost_per_million_tokens", "cost needs the price of A100-80GB-SXM"),
        ("--backend", "tensorrt", "unknown backend 'tensorrt'; known: any, sglang, trtllm, vllm"),
        ("--regime", "lab", "invalid choice: 'lab' (choose from 'served', 'benchmark')"),
        ("--posterior", "gemm_bf16-hier", "did you mean gemm_bf16-hier_gemm"),
        ("--posterior", "nothing.json", "nothing.json: no such file"),
        ("--tp", "0", "tp must be a whole number of at least 1, not 0"),
        ("--tp", "-2", "tp must be a whole number of at least 1, not -2"),
        ("--tp", "3", "tp=3 does not divide the 32 attention heads of llama-3.1-8b; use one of 1"),
        ("--tp", "64", "use one of 1, 2, 4, 8, 16, 32"),
        ("--tp", "1.5", "argument --tp: '1.5' is not a whole number"),
        ("--dtype", "int8", "unknown dtype 'int8'; known: bf16, fp8, w4a16"),
        ("--dtype", "bf17", "unknown dtype 'bf17'; did you mean bf16?"),
        ("--threshold", "2", "threshold 2.0 must lie above 0.5 and up to 1"),
        ("--threshold", "0.5", "threshold 0.5 must lie above 0.5 and up to 1"),
        ("--threshold", "nan", "argument --threshold: 'nan' is not a finite number"),
        ("--threshold", "high", "argument --threshold: 'high' is not a finite number"),
        ("--mass", "0", "interval mass 0.0 must lie between 0 and 1"),
        ("--mass", "1", "interval mass 1.0 must lie between 0 and 1"),
        ("--mass", "nan", "argument --mass: 'nan' is not a finite number"),
        ("--mass", "1e999", "argument --mass: '1e999' is not a finite number"),
        ("--mass", "٠.٩", "argument --mass: '٠.٩' is not a finite number"),
        ("--tp", "１", "argument --tp: '１' is not a whole number"),
        ("--tp", "1_0", "argument --tp: '1_0' is not a whole number"),
        ("--seed", "9" * 5000, "999' is not a whole number"),
        ("--llm", "", "argument --llm: is empty: give a name or a path"),
        ("--posterior", " ", "argument --posterior: is empty: give a name or a path"),
        ("--seed", "x", "argument --seed: 'x' is not a whole number"),
        ("--seed", "-1", "argument --seed: '-1' is below 0"),
        ("--colour", "red", "unrecognized arguments: --colour red"),
        ("--database", "/nowhere", "/nowhere: no folder models, data, posteriors"),
    ],
)
def test_a_bad_option_is_refused(option, value, complaint):
    assert complaint in refusal(asked("rank", option, value))


@pytest.mark.parametrize("metric", ["step_time", "tokens_per_second"])
def test_a_metric_that_the_posterior_does_not_predict_is_refused(metric):
    posterior = ("--posterior", options.GEMM_POSTERIOR)
    message = refusal(asked("rank", "--metric", metric, *posterior))
    assert f"metric {metric} needs more than GEMM times" in message
    assert "use gemm_time" in message


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("", "expected kind:key=number,…"),
        ("decode", "expected key=number, got ''"),
        ("decode:batch=64", "context is missing"),
        ("decode:batch=0,context=1", "batch must be a whole number of at least 1"),
        ("decode:batch=-1,context=1", "batch must be a whole number of at least 1"),
        ("decode:batch=nan,context=1", "batch must be a whole number of at least 1"),
        ("decode:batch=inf,context=1", "batch must be a whole number of at least 1"),
        ("decode:batch=1e3,context=1", "batch must be a whole number of at least 1"),
        ("decode:batch=1000000000000000000000000,context=1", "batch must be at most 1,000,000"),
        ("decode:batch=1,context=1,batch=2", "batch is given twice"),
        ("decode:batch=1,contexts=1", "unknown key 'contexts'; did you mean context?"),
        ("dekode:batch=1,context=1", "unknown workload kind 'dekode'; did you mean decode?"),
        ("attention:phase=decode", "batch is missing"),
        ("attention:heads=8", "phase must be one of decode, prefill"),
        ("gemm:m=64,n=6144,k=4096", "gemm: workloads name a kernel; leave --llm out"),
        ("decode:batch=1,context=131072", "a sequence of 131073 tokens exceeds the 131072 tokens"),
        ("prefill:tokens=200000", "a sequence of 200000 tokens exceeds the 131072 tokens"),
        ("nothing.csv", "nothing.csv: no such file"),
        ("nothing.toml", "nothing.toml: no such file"),
    ],
)
def test_a_bad_workload_is_refused(spec, complaint):
    assert complaint in refusal(asked(workload=("--workload", spec)))


def test_a_workload_given_twice_or_of_two_kinds_is_refused():
    twice = asked(workload=(*STEP, *STEP))
    assert "is given twice; name each once" in refusal(twice)
    mixed = asked(workload=(*STEP, "--workload", "gemm:m=1,n=128,k=128"))
    assert "ask for them in two calls" in refusal(mixed)


def test_a_kernel_on_several_gpus_is_refused():
    kernel = ("--workload", "gemm:m=1,n=128,k=128")
    assert "tp=2 means nothing for a gemm" in refusal(
        asked("rank", "--tp", "2", llm=(), workload=kernel)
    )


@pytest.mark.parametrize("argv", [("lint", "a\x1b[2J\n.json"), ("rnak\x1b[2J\n",)])
def test_a_name_that_is_no_plain_text_cannot_move_the_cursor(argv):
    assert refusal(run(*argv)).isprintable()


def test_json_and_csv_exclude_each_other():
    assert "not allowed with argument" in refusal(asked("rank", "--json", "--csv"))


@pytest.mark.parametrize("noise", ["-1", "1001", "1000000000"])
def test_the_number_of_new_runs_is_limited(noise):
    assert f"--noise {noise}: give 0 to 1000 runs" in refusal(asked("predict", "--noise", noise))


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("--draws", "0", "--draws 0: give 10 to 100000"),
        ("--tune", "-5", "--tune -5: give 10 to 100000"),
        ("--chains", "1", "--chains 1: give 2 to 64"),
        ("--seed", "-1", "--seed -1: give 0 to 4294967295"),
        ("--target-accept", "1", "--target-accept 1.0: give 0.5 to 0.999"),
        ("--target-accept", "nan", "--target-accept: 'nan' is not a finite number"),
        ("--keep", "0", "--keep 0: give 100 to 1000"),
        ("--keep", "99", "--keep 99: give 100 to 1000"),
        ("--keep", "1001", "--keep 1001: give 100 to 1000"),
        ("--keep", "half", "--keep: 'half' is not a whole number"),
    ],
)
def test_a_bad_setting_of_a_fit_is_refused_before_anything_is_done(
    tmp_path, option, value, complaint
):
    out = tmp_path / "out"
    argv = ("fit", "--model", "const_ceiling", "--data", "gemm_bf16", "--out", str(out))
    assert complaint in refusal(run(*argv, option, value))
    assert not out.exists()


@pytest.mark.parametrize(
    "argv",
    [("fit", "--model", "const_ceiling", "--data", "gemm_bf16"), ("evaluate", "gemm-cells")],
)
def test_results_that_could_not_be_written_are_not_begun(tmp_path, argv):
    (tmp_path / "file").write_text("")
    message = refusal(run(*argv, "--quiet", "--out", str(tmp_path / "file")))
    assert "not a folder that can be written" in message


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (("fit", "--model", "hier_gem", "--data", "gemm_bf16"), "did you mean hier_gemm"),
        (("fit", "--model", "const_ceiling", "--data", "gem_bf16"), "gemm_bf16"),
        (("evaluate", "gemm-cell"), "did you mean gemm-cells?"),
        (("evaluate", "eta", "eta"), "suite eta is given twice; name each once"),
    ],
)
def test_no_folder_is_made_for_what_is_refused(tmp_path, argv, complaint):
    """Nor is a line of progress printed before the refusal."""
    assert complaint in refusal(run(*argv, "--out", str(tmp_path / "new" / "folder")))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "argv",
    [("fit", "--model", "const_ceiling", "--data", "gemm_bf16"), ("evaluate", "gemm-cells")],
)
def test_a_folder_that_was_made_for_nothing_is_taken_away(tmp_path, monkeypatch, argv):
    def failing(*args, **kwargs):
        raise errors.ConvergenceError("chains disagree; fit again")

    monkeypatch.setattr("m2bayes.posterior.sample", failing)
    monkeypatch.setattr("m2bayes.suites.run", failing)
    out = str(tmp_path / "new" / "folder")
    assert "chains disagree" in refusal(run.__wrapped__(*argv, "--quiet", "--out", out))
    assert list(tmp_path.iterdir()) == []


def test_a_suite_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("m2bayes.suites.run", lambda name, setting: {"suite": name})
    (tmp_path / "eta.json").mkdir()
    message = refusal(run.__wrapped__("evaluate", "eta", "--out", str(tmp_path)))
    assert "eta.json: cannot be written" in message
    assert [p.name for p in tmp_path.iterdir()] == ["eta.json"]


def test_a_suite_goes_on_from_its_results_of_before_and_a_broken_file_is_refused(
    tmp_path, monkeypatch
):
    seen = []
    monkeypatch.setattr("m2bayes.suites.run", lambda name, setting: seen.append(setting.former))
    file = tmp_path / "sbc.json"
    for text, former in (('{"results": {"a": 1}}', {"a": 1}), ('{"results": 3}', {}), ("{}", {})):
        file.write_text(text)
        run.__wrapped__("evaluate", "sbc", "--json", "--out", str(tmp_path))
        assert seen.pop() == former
        assert json.loads(file.read_text()) is None
    file.write_text('{"results": ')
    assert "sbc.json: not valid JSON" in refusal(
        run.__wrapped__("evaluate", "sbc", "--out", str(tmp_path))
    )
    assert seen == []


def test_telemetry_for_a_model_that_takes_none_is_refused(tmp_path):
    argv = ("fit", "--quiet", "--model", "const_ceiling", "--data", "gemm_bf16")
    argv += ("--clock", "clock_sustained", "--out", str(tmp_path))
    assert "this model takes no clock telemetry; leave --clock out" in refusal(run(*argv))


@pytest.mark.parametrize("argv", [(), ("rnak",), ("rank",), ("show",), ("list",), ("list", "gpus")])
def test_a_command_that_is_none_or_incomplete_is_refused(argv):
    assert "--help)" in refusal(run(*argv))


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (("show", "h1000"), "unknown name 'h1000'; m2bayes list skus (or llms, models, data, "),
        (("show", "h100-80gb-smx"), "unknown name 'h100-80gb-smx'; did you mean H100-80GB-SXM"),
        (("show", "nothing.json"), "nothing.json: no such file"),
        (("check", "gemm_bf16-hier"), "did you mean gemm_bf16-hier_gemm"),
        (("evaluate", "gemm-cell"), "unknown suite 'gemm-cell'; did you mean gemm-cells?"),
        (("lint", "nothing.json"), "nothing.json: no such file"),
        (
            ("fit", "--model", "hier_gem", "--data", "gemm_bf16", "--out", "."),
            "did you mean hier_gemm",
        ),
        (("fit", "--model", "hier_gemm", "--data", "gem_bf16", "--out", "."), "gemm_bf16"),
    ],
)
def test_an_unknown_name_is_answered_with_the_closest(argv, complaint):
    assert complaint in refusal(run(*argv, "--quiet"))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"peak_bandwidth": None}, "facts.peak_bandwidth: is missing"),
        ({"peak_flop_rate": {"bf16": {}}}, "facts.peak_flop_rate.bf16.value: is missing"),
        ({"l2": {"value": -1}}, "facts.l2.value: is -1 (int): give a finite number > 0"),
        ({"l2": {"value": float("nan")}}, "NaN is no number"),
        ({"memory": {"value": 8000}}, "check unit, number"),
    ],
)
def test_a_bad_datasheet_file_is_refused(write, change, complaint):
    path = write("mine.json", card(**change))
    message = refusal(asked(sku=("--sku", "h100", path)))
    assert message.startswith(f"m2bayes rank: {path}: ")
    assert complaint in message


def test_a_sparse_rate_is_recognised(write):
    sparse = card()
    sparse["facts"]["peak_flop_rate"]["bf16"]["value"] *= 2
    message = refusal(asked(sku=("--sku", write("mine.json", sparse))))
    assert "give the dense rate (the 2:4-sparse one is twice that)" in message


NO_JSON = {"empty": "", "cut": '{"name": ', "list": "[1]", "binary": bytes(range(256))}


@pytest.mark.parametrize("content", NO_JSON.values(), ids=NO_JSON)
def test_a_file_that_is_no_json_object_is_refused(write, content):
    path = write("mine/config.json", content)
    for changes in ({"llm": ("--llm", path)}, {"sku": ("--sku", path)}):
        assert path in refusal(asked(**changes))
    assert path in refusal(asked("rank", "--posterior", path))
    assert path in refusal(run("lint", path))


MOE = {
    "model_type": "mixtral", "num_local_experts": 8, "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "vocab_size": 32000, "max_position_embeddings": 32768,
}  # fmt: skip


def test_an_llm_that_is_not_modelled_is_refused(write):
    message = refusal(asked(llm=("--llm", write("moe/config.json", MOE))))
    assert "mixture-of-experts (num_local_experts) is not modelled yet" in message
    bare = {k: v for k, v in MOE.items() if "experts" not in k} | {"model_type": "llama"}
    assert answered(llm=("--llm", write("dense/config.json", bare)))["llm"] == "dense"
    del bare["num_hidden_layers"]
    message = refusal(asked(llm=("--llm", write("bare/config.json", bare))))
    assert "num_hidden_layers is missing; copy it from the LLM's config.json" in message


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("kind,batch,context\ndecode,8,64\ndecode,x,64\n", "line 3: batch must be a whole number"),
        ("kind,batch,context\ndecode,8\n", "line 2: context is missing"),
        ("kind,batch,context\ndecode,8,64,9\n", "line 2: more cells than the header"),
        ("kind,batch,contxt\ndecode,8,64\n", "line 2: unknown key 'contxt'"),
        ("batch,context\n8,64\n", "the header has no column kind"),
        ("kind,batch,context\ndecode,0,64\n", "line 2: batch must be a whole number of at least 1"),
        ("kind,batch,context\n", "holds no workload"),
        ("", "holds no workload"),
        (b"\xff\xfe\x00", "no text in UTF-8"),
    ],
)
def test_a_bad_line_in_a_workload_file_is_named(write, content, complaint):
    path = write("w.csv", content)
    message = refusal(asked(workload=("--workload", path)))
    assert message.startswith(f"m2bayes rank: {path}")
    assert complaint in message


@pytest.fixture
def copied(tmp_path):
    """Path of a copied posterior, whose draws lie beside it."""
    for suffix in (".json", ".nc"):
        shutil.copy(DATABASE.root / "posteriors" / f"gemm_bf16-const_ceiling{suffix}", tmp_path)
    return tmp_path / "gemm_bf16-const_ceiling.json"


def test_a_damaged_posterior_is_refused(copied):
    assert asked("rank", "--quiet", "--posterior", str(copied))[0] == 0
    draws = copied.with_suffix(".nc")
    content = draws.read_bytes()
    flipped = bytearray(content)
    flipped[-1000] ^= 1
    ask = functools.partial(run.__wrapped__, "rank", *LLM, *SKUS, *STEP, "--posterior", str(copied))
    for damaged in (content[:5000], b"", bytes(flipped)):
        draws.write_bytes(damaged)
        assert "was changed or cut off" in refusal(ask())
    draws.unlink()
    assert "is missing beside its record" in refusal(ask())
    record = json.loads(copied.read_text())
    copied.write_text(json.dumps(record | {"checks": record["checks"] | {"rhat_max": 1.2}}))
    assert "R-hat 1.2000 above 1.01" in refusal(ask())


@pytest.mark.parametrize(
    ("column", "value", "complaint"),
    [
        ("op_time", -1e-5, "row 4, column op_time: -1e-05 is not a time above zero, in seconds"),
        ("op_time", "", "row 4, column op_time: nan is not a finite number"),
        ("op_time", "inf", "row 4, column op_time: inf is not a finite number"),
        ("op_time", 54321, "is the unit right?"),
        ("M", 1.5, "row 4, column M: 1.5 is not a whole number"),
        ("sku", "H1000", "unknown SKU 'H1000'; did you mean h100"),
    ],
)
def test_a_table_with_a_bad_row_is_not_fitted(tmp_path, column, value, complaint):
    table = DATABASE.table("gemm_bf16").head(20).astype(object)
    table.loc[3, column] = value
    path = tmp_path / "mine.csv"
    table.to_csv(path, index=False)
    out = tmp_path / "out"
    argv = ("fit", "--quiet", "--model", "const_ceiling", "--data", str(path), "--out", str(out))
    assert complaint in refusal(run(*argv))
    assert not out.exists()


def test_a_table_without_a_column_is_not_fitted(tmp_path):
    path = tmp_path / "mine.csv"
    DATABASE.table("gemm_bf16").head(9).drop(columns="op_time").to_csv(path, index=False)
    argv = (
        "fit",
        "--quiet",
        "--model",
        "const_ceiling",
        "--data",
        str(path),
        "--out",
        str(tmp_path),
    )
    assert "no column op_time; needed are sku, backend" in refusal(run(*argv))


def test_a_fault_of_ours_is_one_line_too_and_can_be_looked_into(monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr("m2bayes.commands.listing.Database", broken)
    message = refusal(run.__wrapped__("list", "skus"), code=1)
    assert "internal fault, RuntimeError: first line second line; M2BAYES_DEBUG=1" in message
    monkeypatch.setenv("M2BAYES_DEBUG", "1")
    with pytest.raises(RuntimeError):
        run.__wrapped__("list", "skus")


def test_an_interrupt_is_no_traceback(monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("m2bayes.commands.listing.Database", interrupted)
    assert refusal(run.__wrapped__("list", "skus"), code=130).endswith("interrupted")


# --- what fits -------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["rank", "predict"])
@pytest.mark.parametrize("form", [(), ("--json",), ("--csv",)])
def test_nothing_fits_is_exit_code_three(command, form):
    outcome = asked(command, *form, llm=("--llm", "llama-3.1-405b"), sku=("--sku", "h100"))
    message = refusal(outcome, code=3)
    assert f"no SKU can serve {STEP[1]}: H100-80GB-SXM does not fit" in message
    assert "raise --tp or shrink the batch" in message


def test_a_sku_that_cannot_hold_the_llm_is_shown_with_the_reason():
    """llama-3.1-70b weighs 141 GB: an A100 has 80, a B200 180."""
    big = {
        "llm": ("--llm", "llama-3.1-70b", "--metric", "gemm_time"),
        "sku": ("--sku", "a100", "b200"),
        "workload": ("--workload", "decode:batch=1,context=16"),
    }
    (entry,) = answered(**big)["results"]
    first, last = entry["skus"]
    assert (first["sku"], last["sku"]) == ("B200-180GB-SXM", "A100-80GB-SXM")
    assert first["fits"] is True
    assert first["p_best"] == 1
    assert last["fits"] is False
    assert last["p_best"] == 0
    assert last["median"] is last["mean"] is None
    assert last["interval"]["low"] is last["interval"]["high"] is None
    assert last["expected_regret"] is last["relative_regret"] is None
    assert (
        "does not fit: weights and KV cache need 141.1 GB a GPU, the memory is 80 GB"
        in last["reason"]
    )
    assert entry["choice"] == "B200-180GB-SXM"
    assert entry["pairs"] == []
    unfit = next(row for row in rows(**big) if row["sku"] == "A100-80GB-SXM")
    assert (unfit["median"], unfit["fits"], unfit["p_best"]) == ("", "False", "0.0")
    assert "A100-80GB-SXM: does not fit" in asked(**big)[1]
    by_op = answered("predict", "--by", "op", **big)["results"][0]["skus"][1]
    assert [op["median"] for op in by_op["ops"]] == [None] * 4
    shared = answered("rank", "--tp", "4", **big)["results"][0]
    assert all(sku["fits"] for sku in shared["skus"])


# --- the JSON contract -----------------------------------------------------------------------


HEAD = {"llm", "dtype", "kv_dtype", "tp", "posterior", "metric", "units", "draws", "seed"}
HEAD |= {"regime", "backend", "results", "remarks"}
TIMES = {"sku", "median", "mean", "interval", "fits", "p_fits", "basis", "extrapolating"}
RANKED = TIMES | {"p_best", "p_best_mcse", "expected_rank", "expected_regret", "relative_regret"}
RANKED |= {"expected_regret_mcse", "relative_regret_mcse"}


def test_rank_json_holds_what_the_contract_promises():
    found = answered()
    assert set(found) == HEAD | {"crossovers"}
    assert found["llm"] == "llama-3.1-8b"
    assert (found["dtype"], found["tp"], found["metric"], found["units"]) == (
        "bf16", 1, "gemm_time", "s",
    )  # fmt: skip
    assert (found["draws"], found["seed"], found["posterior"]) == (200, 0, options.GEMM_POSTERIOR)
    (entry,) = found["results"]
    assert {"workload", "skus", "pairs", "p_any_flip", "choice", "verdict"} <= set(entry)
    assert entry["workload"] == STEP[1]
    for sku in entry["skus"]:
        assert set(sku) == RANKED
        assert set(sku["interval"]) == {"kind", "mass", "low", "high"}
        assert (sku["interval"]["kind"], sku["interval"]["mass"]) == ("eti", 0.9)
        assert 0 < sku["interval"]["low"] < sku["median"] < sku["interval"]["high"] < 1
        assert sku["fits"] is True
        assert sku["extrapolating"] is False
        assert sku["basis"] == "measured"
        assert 0 <= sku["p_best"] <= 1
        assert 1 <= sku["expected_rank"] <= 3
        assert sku["expected_regret"] >= 0
    for pair in entry["pairs"]:
        assert {"better", "worse", "p_flip"} <= set(pair)
        assert {pair["better"], pair["worse"]} < set(FULL)
        assert 0 <= pair["p_flip"] <= 1
    assert entry["verdict"] in ("clear", "either will do", "too close to call")
    assert entry["choice"] in FULL


def test_predict_json_has_the_nesting_of_rank_json():
    found = answered("predict")
    assert set(found) == HEAD
    (entry,) = found["results"]
    assert set(entry) == {"workload", "skus"}
    assert all(set(sku) == TIMES for sku in entry["skus"])
    by_op = answered("predict", "--by", "op")["results"][0]
    for sku, whole in zip(by_op["skus"], entry["skus"], strict=True):
        assert set(sku) == TIMES | {"ops"}
        assert {k: v for k, v in sku.items() if k != "ops"} == whole
        assert [op["op"] for op in sku["ops"]] == OPS
        assert all(set(op) == {"op", "median", "mean", "interval"} for op in sku["ops"])
        assert sum(op["mean"] for op in sku["ops"]) == pytest.approx(sku["mean"], rel=1e-12)


def test_a_kernel_question_names_no_llm():
    found = answered(llm=(), workload=("--workload", "gemm:m=64,n=6144,k=4096"))
    assert found["llm"] is None
    by_op = answered(
        "predict", "--by", "op", llm=(), workload=("--workload", "gemm:m=64,n=6144,k=4096")
    )
    assert [op["op"] for op in by_op["results"][0]["skus"][0]["ops"]] == ["gemm"]


def test_skus_come_best_first_under_their_full_names():
    for command in ("rank", "predict"):
        for entry in answered(command)["results"]:
            medians = [sku["median"] for sku in entry["skus"]]
            assert medians == sorted(medians)
            assert sorted(sku["sku"] for sku in entry["skus"]) == sorted(FULL)
    assert answered()["results"][0]["choice"] == "H200-141GB-SXM"


def test_p_best_sums_to_one_and_flips_agree_with_it():
    (entry,) = answered(sku=("--sku", "b200", "gb200", "b300", "gb300"))["results"]
    assert sum(sku["p_best"] for sku in entry["skus"]) == pytest.approx(1, abs=1e-12)
    leader = entry["skus"][0]
    assert entry["p_top1_flip"] == pytest.approx(1 - leader["p_best"], abs=1e-12)
    worst = max(p["p_flip"] for p in entry["pairs"] if p["better"] == leader["sku"])
    assert worst <= entry["p_top1_flip"] + 1e-12 <= entry["p_any_flip"] + 2e-12
    assert len(entry["pairs"]) == 6


def test_the_threshold_decides_what_is_clear():
    """A certainty of one is never claimed from draws that disagree."""
    close = {"sku": ("--sku", "b300", "gb300")}
    (entry,) = answered("rank", "--threshold", "1.0", **close)["results"]
    assert 0 < entry["skus"][0]["p_best"] < 1
    assert entry["verdict"] != "clear"
    (entry,) = answered("rank", "--threshold", "0.51", **close)["results"]
    best = next(s for s in entry["skus"] if s["sku"] == entry["choice"])
    assert (entry["verdict"] == "clear") == (best["p_best"] >= 0.51)


def test_the_seed_makes_an_answer_repeatable():
    again = run.__wrapped__("rank", *LLM, *SKUS, *STEP, *FEW, "--json")
    assert again == asked("rank", "--json")
    other = answered("rank", "--seed", "1")
    assert other["seed"] == 1
    assert other["results"] != answered()["results"]


def test_the_order_of_options_and_repeated_options_do_not_matter():
    apart = run("rank", "--sku", "a100", "--json", *STEP, "--sku", "H200", "h100", *LLM, *FEW)
    assert apart == asked("rank", "--json")


@pytest.mark.parametrize(
    "option", [("--regime", "benchmark"), ("--backend", "vllm"), ("--tp", "2")]
)
def test_an_option_changes_the_times_and_is_named_in_the_head(option):
    found = answered("rank", *option)
    assert str(found[option[0].removeprefix("--")]) == option[1]
    assert found["results"] != answered()["results"]


def test_noise_and_mass_change_the_interval():
    plain, noisy, narrow = (
        answered("predict", *extra)["results"][0]["skus"]
        for extra in ((), ("--noise", "1"), ("--mass", "0.5"))
    )
    for one, other, half in zip(plain, noisy, narrow, strict=True):
        assert one["interval"] != other["interval"]
        assert half["interval"]["mass"] == 0.5
        assert one["interval"]["low"] < half["interval"]["low"]
        assert half["interval"]["high"] < one["interval"]["high"]
    assert "--noise -1: give 0 to 1000 runs" in refusal(asked("predict", "--noise", "-1"))


def test_the_mass_is_not_rounded_in_the_title():
    for command in ("rank", "predict"):
        assert "  99.9 %" in asked(command, "--mass", "0.999")[1]
        assert "  90 %" in asked(command)[1]


def test_all_stored_draws_are_used_unless_told_otherwise():
    held = DATABASE.posterior(options.GEMM_POSTERIOR).inference
    assert answered(draws=())["draws"] == held["chains"] * held["draws"]


# --- text and CSV ----------------------------------------------------------------------------


def test_csv_rows_come_in_the_order_asked():
    two = (*STEP, "--workload", "prefill:tokens=512")
    ranked, predicted = rows(workload=two), rows("predict", workload=two)
    order = [(w, sku) for w in (two[1], two[3]) for sku in FULL]
    assert [(row["workload"], row["sku"]) for row in ranked] == order
    assert [(row["workload"], row["sku"]) for row in predicted] == order
    assert list(predicted[0]) == ["workload", "sku", "median", "mean", "low", "high"]
    assert {"p_best", "choice", "verdict", "fits", "basis", "reason"} < set(ranked[0])
    by_op = rows("predict", "--by", "op", workload=two)
    assert list(by_op[0]) == ["workload", "sku", "op", "median", "mean", "low", "high"]
    assert [row["op"] for row in by_op] == OPS * 6
    assert [(r["workload"], r["sku"]) for r in by_op] == [pair for pair in order for _ in OPS]


def test_csv_and_json_hold_the_same_numbers():
    held = {sku["sku"]: sku for sku in answered()["results"][0]["skus"]}
    for row in rows():
        sku = held[row["sku"]]
        for key in ("median", "mean", "p_best", "expected_regret"):
            assert float(row[key]) == sku[key]
        assert float(row["low"]) == sku["interval"]["low"]


def test_text_names_llm_posterior_verdict_and_every_sku():
    code, out, err = asked()
    assert code == 0
    assert out.startswith("llama-3.1-8b, bf16, TP 1: gemm_time, served regime, backend any\n")
    assert f"posterior {options.GEMM_POSTERIOR}, 200 draws, seed 0" in out
    assert "decode:batch=64,context=2048: H200-141GB-SXM, clear" in out
    assert all(sku in out for sku in FULL)
    assert err.startswith("served regime: cold weights")
    assert asked("rank", "--quiet") == (0, out, "")
    code, out, _ = asked("predict", "--by", "op")
    assert code == 0
    assert out.count("gate_up") == 3


def test_draws_are_written_for_further_use(tmp_path):
    """Operators add up to the total draw by draw: its median is the one that is printed."""
    path = tmp_path / "draws.nc"
    found = answered("predict", "--out", str(path))
    with xr.open_dataset(path, engine="h5netcdf") as file:
        time = file["op_time"].load()
    assert set(time.dims) == {"chain", "draw", "sku", "workload", "op"}
    assert time.attrs["units"] == "s"
    assert time["op"].values.tolist() == OPS
    median = time.sum("op").median(("chain", "draw")).isel(workload=0)
    for sku in found["results"][0]["skus"]:
        assert float(median.sel(sku=sku["sku"])) == pytest.approx(sku["median"], rel=SINGLE)
    assert [p.name for p in tmp_path.iterdir()] == ["draws.nc"]


def test_written_draws_of_a_sku_that_does_not_fit_are_no_numbers(tmp_path):
    path = tmp_path / "draws.nc"
    big = {"llm": ("--llm", "llama-3.1-70b"), "sku": ("--sku", "a100", "b200")}
    big["workload"] = ("--workload", "decode:batch=1,context=16")
    answered("predict", "--out", str(path), **big)
    with xr.open_dataset(path, engine="h5netcdf") as file:
        time = file["op_time"].load()
    assert np.isnan(time.sel(sku="A100-80GB-SXM")).all()
    assert np.isfinite(time.sel(sku="B200-180GB-SXM")).all()


def test_more_draws_than_a_file_should_hold_are_refused(tmp_path, write):
    lines = [f"decode,{b},{c}" for b in range(1, 101) for c in range(1, 101)]
    grid = write("grid.csv", "\n".join(["kind,batch,context", *lines]))
    out = tmp_path / "draws.nc"
    found = asked("predict", "--out", str(out), workload=("--workload", grid), draws=())
    assert "--out would hold 1.2e+08 draws; ask for fewer, see --draws" in refusal(found)
    assert not out.exists()


@pytest.fixture
def odd(tmp_path):
    """Paths that are there or can be followed, and yet are no files to write."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to_device").symlink_to(os.devnull)
    (tmp_path / "loop").symlink_to("loop")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        (".", "is a folder; name a file"),
        ("/", "is a folder; name a file"),
        ("new/", "names a folder; name a file"),
        ("no/draws.nc", "no such folder"),
        ("pipe", "is no regular file; name another"),
        ("to_device", "is no regular file; name another"),
        ("/dev/full", "is no regular file; name another"),
        ("loop", "cannot be written: Too many levels of symbolic links"),
        ("a" * 300, "cannot be written: File name too long"),
        ("draws.txt", "the draws are netCDF; name a .nc file"),
    ],
)
def test_draws_are_written_to_a_regular_file_only_and_refused_before_the_work(
    odd, monkeypatch, name, complaint
):
    def worked(*args, **kwargs):
        raise AssertionError

    monkeypatch.setattr("m2bayes.commands.asking.answers", worked)
    before = sorted(odd.iterdir())
    out = os.path.join(odd, name)  # keeps "." and a last slash
    ask = ("predict", *LLM, *SKUS, *STEP, *FEW, "--json")
    assert complaint in refusal(run.__wrapped__(*ask, "--out", out))
    assert sorted(odd.iterdir()) == before
    assert "argument --out: is empty" in refusal(run.__wrapped__(*ask, "--out", ""))


def test_draws_follow_a_link_and_replace_what_was_there(tmp_path):
    target, link = tmp_path / "target.nc", tmp_path / "link.nc"
    target.write_text("old")
    link.symlink_to(target)
    answered("predict", "--out", str(link))
    assert link.is_symlink()
    with xr.open_dataset(target, engine="h5netcdf") as file:
        assert "op_time" in file
    assert sorted(tmp_path.iterdir()) == [link, target]


def test_a_disk_that_fills_up_leaves_what_was_there(tmp_path):
    """A limit on the size of files fails as a full disk does, in the middle of writing."""
    path = tmp_path / "draws.nc"
    path.write_text("old")
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (1000, 1000))
    question = (*LLM, *SKUS, *STEP, *FEW, "--out", str(path))
    done = process("predict", *question, preexec_fn=limit)
    message = refusal((done.returncode, done.stdout, done.stderr))
    assert "cannot be written: File too large" in message
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


# --- cards of one's own ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "basis"), [("Hopper", "architecture"), ("Rubin", "population")]
)
def test_a_datasheet_file_is_ranked_beside_measured_skus(write, architecture, basis):
    mine = card("h200") | {"name": "H900-141GB-SXM", "aliases": [], "architecture": architecture}
    path = write("mine.json", mine)
    (entry,) = answered(sku=("--sku", "h200", path))["results"]
    held = {sku["sku"]: sku for sku in entry["skus"]}
    assert held["H900-141GB-SXM"]["basis"] == basis
    assert held["H200-141GB-SXM"]["basis"] == "measured"
    width = {name: sku["interval"]["high"] / sku["interval"]["low"] for name, sku in held.items()}
    assert width["H900-141GB-SXM"] > width["H200-141GB-SXM"]
    code, _, err = asked(sku=("--sku", "h200", path))
    assert code == 0
    assert "nobody measured the SKU itself" in err


def test_a_size_beyond_the_fitted_range_is_marked():
    long = ("--workload", "prefill:tokens=40000", "--workload", "prefill:tokens=32768")
    beyond, within = answered(workload=long)["results"]
    assert all(sku["extrapolating"] for sku in beyond["skus"])
    assert {sku["reason"] for sku in beyond["skus"]} == {
        "M = 40000 is outside the fitted 1 to 32768"
    }
    assert not any(sku["extrapolating"] for sku in within["skus"])
    _, out, err = asked(workload=long)
    assert "measured *" in out
    assert "* extrapolating: M = 40000 is outside the fitted 1 to 32768" in err


# --- lint, list, show, check -----------------------------------------------------------------


def shipped(*names):
    return [str(DATABASE.root / "data" / "datasheets" / f"{name}.json") for name in names]


def test_lint_is_silent_about_sound_files():
    assert run("lint", *shipped("H100-80GB-SXM", "L4-24GB-PCIe")) == (
        0, "2 datasheets, nothing to report\n", "",
    )  # fmt: skip
    code, out, _ = run("lint", "--json", *shipped(*DATABASE.skus()))
    assert (code, json.loads(out)) == (0, [])


def test_lint_reports_errors_with_code_two_and_warnings_with_zero(write):
    bad = write("bad.json", card(l2={"value": 0}))
    code, out, err = run("lint", bad, *shipped("L4-24GB-PCIe"))
    assert (code, err) == (2, "")
    assert out.startswith(f"error: {bad}: facts.l2.value: is 0")
    code, out, _ = run("lint", "--json", bad)
    (finding,) = json.loads(out)
    assert code == 2
    assert finding.keys() == {"severity", "place", "message", "file"}
    weak = card("a100", power_limit={"value": 250}) | {"name": "A101-80GB-SXM", "aliases": []}
    weak = write("weak.json", weak)
    code, out, _ = run("lint", weak)
    assert code == 0
    assert out.startswith("warning: ")
    taken = write("taken.json", card() | {"name": "H101-80GB-SXM"})
    code, out, _ = run("lint", taken)
    assert code == 2
    assert "'h100' is borne by H100-80GB-SXM too" in out


def test_lint_knows_a_file_from_another_card_of_its_name(write):
    """A file is compared with every card but itself, and with the other files that are given."""
    (shipped_card,) = shipped("H100-80GB-SXM")
    assert run("lint", shipped_card, shipped_card)[1] == "1 datasheet, nothing to report\n"
    changed = card() | {"name": "H101-80GB-SXM", "aliases": ["h101"]}
    mine = write("mine.json", changed)
    assert run("lint", mine)[:2] == (0, "1 datasheet, nothing to report\n")
    other = write("other.json", changed | {"name": "H102-80GB-SXM"})
    code, out, _ = run("lint", mine, other)
    assert code == 2
    assert f"error: {mine}: aliases: 'h101' is borne by H102-80GB-SXM too" in out
    assert f"error: {other}: aliases: 'h101' is borne by H101-80GB-SXM too" in out
    same_name = write("same.json", card(power_limit={"value": 690}))
    assert "H100-80GB-SXM" in run("lint", same_name)[1]


NAMES = {
    "skus": DATABASE.skus,
    "llms": DATABASE.llms,
    "models": DATABASE.models,
    "data": DATABASE.data,
    "posteriors": lambda: DATABASE.posteriors() + DATABASE.assemblies(),
}


@pytest.mark.parametrize("kind", options.KINDS)
def test_list_gives_a_line_for_each_name(kind):
    code, out, err = run("list", kind)
    assert (code, err) == (0, "")
    rows = [line for line in out.splitlines() if not line.startswith(" ")]  # or gone on with
    assert len(rows) == 1 + len(NAMES[kind]())
    code, as_json, _ = run("list", kind, "--json")
    assert code == 0
    assert [next(iter(row.values())) for row in json.loads(as_json)] == NAMES[kind]()
    assert all(name in out for name in NAMES[kind]())


@pytest.mark.parametrize("kind", options.KINDS)
def test_show_knows_every_name_that_list_gives(kind):
    for name in NAMES[kind]():
        code, out, err = run("show", name)
        assert (code, err) == (0, "")
        assert name in out
        code, out, _ = run("show", name, "--json")
        assert code == 0
        (content, *_) = json.loads(out).values()
        assert content["name"] == name


def test_show_takes_aliases_and_shows_factors_with_their_units():
    assert run("show", "H100")[1] == run("show", "H100-80GB-SXM")[1]
    _, out, _ = run("show", options.GEMM_POSTERIOR, "--json")
    factors = json.loads(out)["factors"]
    model = DATABASE.model(DATABASE.posterior(options.GEMM_POSTERIOR).model)
    assert list(dict.fromkeys(row["factor"] for row in factors)) == [
        f["name"] for f in model.factors
    ]
    units = {f["name"]: f["units"] for f in model.factors}
    assert all(row["units"] == units[row["factor"]] for row in factors)
    _, text, _ = run("show", options.GEMM_POSTERIOR)
    assert all(name in text for name in units)
    assert "contraction" in text


def test_show_takes_the_path_of_a_file(write):
    folder = DATABASE.root / "posteriors"
    for name, path in (
        ("h100", write("mine.json", card())),
        ("gemm_bf16-const_ceiling", str(folder / "gemm_bf16-const_ceiling.json")),
    ):
        assert run("show", path) == run("show", name)
    assert "peak_bandwidth: is missing" in refusal(
        run("show", write("bad.json", card(peak_bandwidth=None)))
    )


@pytest.mark.slow
def test_check_verifies_and_scores_a_stored_posterior():
    code, out, err = run("check", "--json", "--quiet", options.GEMM_POSTERIOR)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["posterior"] == options.GEMM_POSTERIOR
    assert set(found["checks"]) >= {"rhat_max", "ess_bulk_min", "ess_tail_min", "divergences"}
    assert set(found["calibration"]) == {
        *DATABASE.posterior(options.GEMM_POSTERIOR).datasheets,
        "mean",
    }


# --- real processes --------------------------------------------------------------------------


def process(*argv, **kwargs):
    return subprocess.run(
        [PROGRAM, *argv], capture_output=True, text=True, check=False, timeout=300, **kwargs
    )


def test_the_installed_program_answers_and_refuses(tmp_path):
    done = process("rank", *LLM, *SKUS, *STEP, *FEW, "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == answered()
    done = process("rank", *LLM, "--sku", "h1000", *STEP, cwd=tmp_path)
    refusal((done.returncode, done.stdout, done.stderr))
    done = process("rank", "--llm", "llama-3.1-405b", "--sku", "h100", *STEP, cwd=tmp_path)
    refusal((done.returncode, done.stdout, done.stderr), code=3)
    assert list(tmp_path.iterdir()) == []


def test_help_describes_every_command():
    done = process("--help")
    assert (done.returncode, done.stderr) == (0, "")
    commands = ("rank", "predict", "import", "fit", "check", "evaluate", "lint", "list", "show")
    assert all(name in done.stdout for name in commands)


@pytest.mark.parametrize("command", ["rank", "predict"])
def test_help_of_a_question_names_its_options_and_every_metric(command):
    code, out, err = run(command, "--help")
    assert (code, err) == (0, "")
    for option in ("--eager", "--calibrate FILE.csv", "--power-limit SKU=W", "--posterior NAME"):
        assert option in out
    for metric in question.METRICS:
        assert metric in out
    for kind in ("decode:", "prefill:", "mixed:", "gemm:", "attention:"):
        assert kind in out
    assert f"default: {options.POSTERIOR}" in " ".join(out.split())


def test_help_of_fit_and_import_names_what_they_take():
    assert "--keep N" in run("fit", "--help")[1]
    code, out, _ = run("import", "--help")
    assert code == 0
    assert all(name in out for name in options.FORMATS)


def test_defaults_that_the_options_name_are_in_the_database():
    assert options.POSTERIOR in DATABASE.assemblies()
    assert DATABASE.assembly(options.POSTERIOR).parts["gemm"] == options.GEMM_POSTERIOR


def test_help_of_evaluate_names_the_suites_and_how_long_they_take():
    code, out, _ = run("evaluate", "--help")
    assert code == 0
    assert "minutes" in out
    assert all(name in out for name in suites.NAMES)


def test_the_version_goes_to_standard_output():
    assert run("--version") == (0, f"m2bayes {version('m2bayes')}\n", "")


def shell(command, **environment):
    return subprocess.run(
        command, shell=True, executable="/bin/bash", capture_output=True, text=True, check=False,
        env={k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"} | environment,
    )  # fmt: skip


@pytest.mark.parametrize("buffering", [{}, {"PYTHONUNBUFFERED": "1"}], ids=["buffered", "not"])
@pytest.mark.parametrize("argv", ["--help", "--version", "list skus", "list skus --json"])
def test_a_result_that_cannot_be_printed_is_told(argv, buffering):
    done = shell(f"{PROGRAM} {argv} > /dev/full", **buffering)
    message = refusal((done.returncode, done.stdout, done.stderr))
    assert "cannot write the result: No space left on device" in message


def test_streams_that_are_closed_are_no_fault():
    done = shell(f"{PROGRAM} list skus >&-")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for closing in ("2>&-", "2>/dev/full"):
        done = shell(f"{PROGRAM} show h1000 {closing}")
        assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


@pytest.mark.parametrize("argv", ["rank --help", f"rank {' '.join((*LLM, *SKUS, *STEP, *FEW))}"])
def test_a_terminal_without_unicode_gets_plain_letters_in_as_many_columns(argv):
    done = shell(f"{PROGRAM} {argv}", PYTHONIOENCODING="ascii:strict")
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert done.stdout.isascii()
    assert "\\x" not in done.stdout
    assert "\\u" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_reader_that_goes_away_is_no_error():
    done = subprocess.run(
        f"{PROGRAM} show {options.GEMM_POSTERIOR} | head -n 1; exit ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "posterior:\n"


@pytest.mark.slow
def test_ten_thousand_workloads_are_one_call(tmp_path):
    path = tmp_path / "grid.csv"
    grid = [(batch, context) for batch in range(1, 101) for context in range(100, 10_100, 100)]
    lines = [f"decode,{batch},{context}" for batch, context in grid]
    path.write_text("\n".join(["kind,batch,context", *lines]))
    question = (*LLM, "--sku", "h100", "h200", "--workload", str(path), *FEW)
    done = process("rank", *question, "--csv", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    table = pd.read_csv(io.StringIO(done.stdout))
    assert len(table) == 2 * len(grid) == 20_000
    labels = [f"decode:batch={batch},context={context}" for batch, context in grid]
    assert table["workload"].tolist() == list(np.repeat(labels, 2))
    assert table["sku"].tolist() == ["H100-80GB-SXM", "H200-141GB-SXM"] * len(grid)
    fits = table[table["fits"]]
    assert (fits["low"] <= fits["median"]).all()
    # below 1 where it may be that neither card holds the batch
    assert table.groupby("workload")["p_best"].sum().round(9).between(0, 1).all()
    assert (table.groupby("workload")["p_best"].sum().round(9) == 1).mean() > 0.5


def test_every_error_class_of_bad_input_is_one_the_command_line_knows():
    """So that a new one does not become an internal fault."""
    defined = [c for c in vars(errors).values() if getattr(c, "__module__", "") == errors.__name__]
    classes = [c for c in defined if isinstance(c, type)]
    assert DatasheetError in classes
    assert all(issubclass(c, errors.M2BayesError) for c in classes)
    assert all(
        issubclass(c, ValueError | KeyError) for c in classes if c is not errors.M2BayesError
    )
