"""SPECs read as they are written, and the matrices, bytes and refusals that follow from them."""

import csv
import io
import json
import tomllib
from pathlib import Path
from time import process_time

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from m2bayes.errors import UnknownNameError, WorkloadError
from m2bayes.llm import LLM, llm_from_config
from m2bayes.workload import (
    DTYPE_BYTES,
    Attention,
    Kernel,
    Step,
    gemm_cells,
    kv_bytes_per_token,
    parse_workload,
    read_workload_rows,
    read_workload_toml,
    weight_bytes,
)

EXAMPLE = "; give for instance decode:batch=64,context=2048"
COLUMNS = "kind,batch,context,tokens,prefill,m,n,k\n"


def card(name):
    path = Path(__file__).parents[1] / "data" / "llms" / f"{name}.json"
    return llm_from_config(json.loads(path.read_text())["config"], name=name, origin=path.name)


LLAMA = card("llama-3.1-8b")
DECODE = Step("decode", batch=64, context=2048)


def refusal(call, *args, **kwargs):
    with pytest.raises(WorkloadError) as caught:
        call(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def read_csv(text):
    return read_workload_rows(csv.DictReader(io.StringIO(text)), "loads.csv")


# --- the SPEC


def test_each_kind_of_spec_is_read():
    assert parse_workload("decode:batch=64,context=2048") == DECODE
    assert parse_workload("prefill:tokens=4096") == Step("prefill", tokens=4096)
    assert parse_workload("prefill:tokens=9,context=1") == Step("prefill", tokens=9, context=1)
    assert parse_workload("prefill:tokens=9,batch=4") == Step("prefill", tokens=9, batch=4)
    mixed = Step("mixed", prefill=512, batch=64, context=2048)
    assert parse_workload("mixed:prefill=512,batch=64,context=2048") == mixed
    assert parse_workload("gemm:m=64,n=6144,k=4096") == Kernel(m=64, n=6144, k=4096)


def test_order_spaces_and_leading_zeros_do_not_matter():
    assert parse_workload(" decode : context = 2048, batch=064 ") == DECODE


def test_the_label_is_the_canonical_spec():
    assert parse_workload("decode:context=2048,batch=64").label == "decode:batch=64,context=2048"
    assert parse_workload("prefill:tokens=9,context=0").label == "prefill:tokens=9"


sizes, batches, sides = st.integers(1, 10**8), st.integers(1, 10**6), st.integers(1, 10**7)
workloads = st.one_of(
    st.builds(Step, st.just("decode"), batch=batches, context=sizes),
    st.builds(
        Step,
        st.just("prefill"),
        tokens=sizes,
        context=st.integers(0, 10**8),
        batch=st.integers(0, 10**6),
    ),
    st.builds(Step, st.just("mixed"), prefill=sizes, batch=batches, context=sizes),
    st.builds(Kernel, m=sides, n=sides, k=sides),
)


@given(workloads)
def test_a_label_parses_back_to_its_workload(workload):
    assert parse_workload(workload.label) == workload


def test_tokens_of_a_step_are_those_of_its_batch():
    mixed = parse_workload("mixed:prefill=512,batch=64,context=2048")
    prefill = parse_workload("prefill:tokens=4096,context=100")
    assert [s.new_tokens for s in (DECODE, prefill, mixed)] == [64, 4096, 576]
    assert [s.cached_tokens for s in (DECODE, prefill, mixed)] == [131072, 100, 131072]


def test_prompts_of_one_step_are_counted_and_one_is_the_default():
    four = parse_workload("prefill:tokens=512,context=64,batch=4")
    assert (four.prompts, four.decoding, four.new_tokens, four.cached_tokens) == (4, 0, 2048, 256)
    assert four.place[1:] == pytest.approx((11, np.log2(65), 2))
    assert "batch must be a whole number of at least 1" in refusal(
        parse_workload, "prefill:tokens=512,batch=0"
    )
    alone = parse_workload("prefill:tokens=512,batch=1")
    assert alone == parse_workload("prefill:tokens=512")
    assert (alone.label, alone.prompts) == ("prefill:tokens=512", 1)
    assert (DECODE.prompts, DECODE.decoding) == (0, 64)


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        ("", "expected kind:key=number,…"),
        ("  ", "expected kind:key=number,…"),
        ("decode", "expected key=number, got ''"),
        ("decode:", "expected key=number, got ''"),
        (":batch=1", "a kind is missing"),
        ("decod:batch=64,context=2048", "unknown workload kind 'decod'; did you mean decode"),
        ("Decode:batch=1,context=1", "unknown workload kind 'Decode'; did you mean decode"),
        ("decode:batches=64,context=2", "unknown key 'batches'; did you mean batch?"),
        ("decode:batch=1,context=1,tokens=1", "unknown key 'tokens'; "),
        ("decode:batch=1,batch=1,context=1", "batch is given twice"),
        ("decode:batch=64", "context is missing"),
        ("decode:batch=64,context=2048,", "an entry is empty; remove the stray comma"),
        ("decode:batch=64,,context=2048", "an entry is empty; remove the stray comma"),
        ("decode:64,context=2048", "expected key=number, got '64'"),
        ("decode:=64,context=2048", "expected key=number, got '=64'"),
        ("decode:batch=1000001,context=1", "batch must be at most 1,000,000"),
        ("decode:batch=1,context=100000001", "context must be at most 100,000,000"),
        ("decode:batch=1,context=" + "9" * 5000, "context must be at most 100,000,000"),
    ],
)
def test_a_malformed_spec_says_what_is_wrong(spec, what):
    message = refusal(parse_workload, spec)
    assert message.startswith("workload ")
    assert f": {what}" in message
    assert message.endswith(EXAMPLE)
    assert len(message) < 300


@pytest.mark.parametrize(
    "number", ["0", "-1", "64.0", "1e3", "nan", "inf", "+64", "6_4", "", "x", "0x40", "٦٤", "²"]
)
def test_only_whole_numbers_of_at_least_one_are_taken(number):
    message = refusal(parse_workload, f"decode:batch={number},context=2048")
    assert "': batch must be a whole number of at least 1" + EXAMPLE in message


def test_the_message_shows_the_spec_on_one_line():
    assert refusal(parse_workload, "decode:batch=0") == (
        "workload 'decode:batch=0': batch must be a whole number of at least 1" + EXAMPLE
    )
    assert r"'decode:\nbatch=1'" in refusal(parse_workload, "decode:\nbatch=1")


@pytest.mark.parametrize("spec", [None, 64, DECODE])
def test_what_is_no_string_is_refused(spec):
    assert "expected kind:key=number" in refusal(parse_workload, spec)


def test_other_kinds_give_their_own_example():
    message = refusal(parse_workload, "gemm:m=64,n=10000001,k=1")
    assert "n must be at most 10,000,000; give for instance gemm:m=64,n=6144,k=4096" in message
    message = refusal(parse_workload, "prefill:tokens=100000001")
    assert "tokens must be at most 100,000,000; give for instance prefill:tokens=4096" in message
    assert "at least 0; give" in refusal(parse_workload, "prefill:tokens=1,context=-1")


ATTENTION = "; give for instance attention:phase=decode,batch=64,context=2048,heads=32,kv_heads=8"
PREFILL = "; give for instance attention:phase=prefill,batch=1,tokens=2048,heads=32,kv_heads=8"


@pytest.mark.parametrize(
    "spec",
    [
        "attention:phase=decode,batch=64,context=2048,heads=32,kv_heads=8",
        "attention:phase=decode,batch=1,context=16,heads=32,kv_heads=32,head_dim=64",
        PREFILL.removeprefix("; give for instance "),
        "attention:phase=prefill,batch=1,tokens=4096,context=512,heads=32,kv_heads=8",
        "attention:phase=prefill,batch=4,tokens=4096,heads=71,kv_heads=1,head_dim=64",
    ],
)
def test_an_attention_kernel_is_read_and_written_back(spec):
    kernel = parse_workload(spec)
    assert isinstance(kernel, Attention)
    given = dict(entry.split("=") for entry in spec.partition(":")[2].split(","))
    assert kernel.phase == given.pop("phase")
    for key in ("batch", "context", "tokens", "heads", "kv_heads", "head_dim"):
        assert getattr(kernel, key) == int(given.get(key, 0))
    assert parse_workload(kernel.label) == kernel


def test_the_order_of_an_attention_kernels_keys_does_not_matter():
    spec = "attention: kv_heads=8, heads=32, context=2048, batch=64, phase=decode"
    label = "attention:phase=decode,batch=64,context=2048,heads=32,kv_heads=8"
    assert parse_workload(spec).label == label


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("", "expected key=number, got ''"),
        ("phase=decode", "batch is missing"),
        ("batch=1,context=1,heads=1,kv_heads=1", "phase must be one of decode, prefill"),
        ("phase=mixed,batch=1,context=1,heads=1,kv_heads=1", "phase must be one of"),
        ("phase=64,batch=1,context=1,heads=1,kv_heads=1", "phase must be one of"),
        ("phase=decode,batch=64,context=2048,heads=32", "kv_heads is missing"),
        ("phase=decode,batch=64,heads=32,kv_heads=8", "context is missing"),
        ("phase=prefill,batch=64,heads=32,kv_heads=8", "tokens is missing"),
        ("phase=prefill,batch=1,tokens=1,heads=12,kv_heads=8", "kv_heads=8 does not divide heads"),
        ("phase=decode,batch=1,tokens=1,context=1,heads=1,kv_heads=1", "unknown key 'tokens'"),
        ("phase=decode,batch=0,context=1,heads=1,kv_heads=1", "batch must be a whole number"),
        ("phase=decode,batch=1,context=1,heads=1,kv_heads=0", "kv_heads must be a whole number"),
        ("phase=decode,batch=1,context=1,heads=100001,kv_heads=1", "heads must be at most 100,000"),
        ("phase=decode,batch=1,context=1,heads=12,kv_heads=8", "kv_heads=8 does not divide heads"),
        ("phase=decode,batch=1,context=1,heads=4,kv_heads=8", "kv_heads=8 does not divide heads"),
        ("phase=decode,phase=decode,batch=1,context=1", "phase is given twice"),
    ],
)
def test_a_malformed_attention_kernel_says_what_is_wrong(body, what):
    message = refusal(parse_workload, f"attention:{body}")
    assert what in message
    assert message.endswith(PREFILL if "phase=prefill" in body else ATTENTION)


def test_attention_kernels_made_by_hand_are_checked_too():
    sizes = {"batch": 1, "heads": 8, "kv_heads": 8}
    assert "context is missing" in refusal(Attention, "decode", **sizes)
    assert "unknown key 'tokens'" in refusal(Attention, "decode", **sizes, context=1, tokens=1)
    assert "phase must be one of" in refusal(Attention, "encode", **sizes, context=1)
    assert "batch must be a" in refusal(Attention, "decode", **sizes | {"batch": 1.0}, context=1)
    assert "kv_heads=3 does not" in refusal(
        Attention, "decode", **sizes | {"kv_heads": 3}, context=1
    )


def test_workloads_made_by_hand_are_checked_too():
    assert "context is missing" in refusal(Step, "decode", batch=1)
    assert "unknown key 'prefill'" in refusal(Step, "decode", batch=1, context=1, prefill=1)
    assert "batch must be a whole number" in refusal(Step, "decode", batch=64.0, context=1)
    assert "batch must be a whole number" in refusal(Step, "decode", batch=True, context=1)
    assert "unknown workload kind" in refusal(Step, "encode", batch=1)
    assert "a gemm is a Kernel" in refusal(Step, "gemm")
    assert "m must be a whole number" in refusal(Kernel, m=0, n=1, k=1)


# --- files of them


def test_attention_kernels_are_read_from_files_too():
    expected = Attention("decode", batch=64, context=2048, heads=32, kv_heads=8)
    rows = "kind,phase,batch,context,heads,kv_heads,tokens\nattention,decode,64,2048,32,8,\n"
    assert read_csv(rows) == [expected]
    table = {"kind": "attention", "phase": "decode", "batch": 64, "context": 2048}
    table |= {"heads": 32, "kv_heads": 8}
    assert read_workload_toml({"workload": [table]}, "loads.toml") == [expected]


def test_a_csv_is_read_in_order_and_empty_cells_are_absent():
    text = COLUMNS + "decode,64,2048,,,,,\nprefill,,,4096,,,,\ngemm,,,,,64,6144,4096\n"
    expected = [DECODE, Step("prefill", tokens=4096), Kernel(m=64, n=6144, k=4096)]
    assert read_csv(text) == expected


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ("decode,64,2048,,,,,\ndecode,0,2048,,,,,\n", "line 3: batch must be a whole number"),
        ("decode,64,2048,,,,,\n\ndecode,64,,,,,,\n", "line 4: context is missing"),
        ("decode,64.0,2048,,,,,\n", "line 2: batch must be a whole number of at least 1"),
        ("decode,nan,2048,,,,,\n", "line 2: batch must be a whole number of at least 1"),
        ("decode,64,2048,9,,,,\n", "line 2: unknown key 'tokens'"),
        (",64,2048,,,,,\n", "line 2: a kind is missing"),
        ("decod,64,2048,,,,,\n", "line 2: unknown workload kind 'decod'"),
        ("decode,64,2048,,,,,,7\n", "line 2: more cells than the header has columns"),
        ("attention,64,2048,,,,,\n", "line 2: phase must be one of decode, prefill"),
    ],
)
def test_a_bad_row_of_a_csv_is_named_by_its_line(rows, what):
    assert refusal(read_csv, COLUMNS + rows).startswith(f"loads.csv {what}")


@pytest.mark.parametrize(
    ("header", "what"),
    [
        ("kind,batch,context,batch", "two columns named 'batch'; keep one"),
        ("kind,batch,context, batch ", "two columns named 'batch'; keep one"),
        ("batch,context", "the header has no column kind; add one"),
        ("Kind,batch,context", "the header has no column kind; add one"),
    ],
)
def test_a_header_that_cannot_be_meant_is_refused(header, what):
    message = refusal(read_csv, f"{header}\ndecode,64,2048,1\n")
    assert message.startswith(f"loads.csv: {what}")


def test_nameless_columns_of_a_spreadsheet_do_not_matter():
    assert read_csv("kind,batch,context,,\ndecode,64,2048,,\n") == [DECODE]


def test_a_key_given_twice_but_for_blanks_is_refused():
    row = {"kind": "decode", "batch": 64, "batch ": 8, "context": 2048}
    assert "a key is given twice" in refusal(read_workload_toml, {"workload": [row]}, "a.toml")


def test_a_number_of_thousands_of_digits_is_refused_like_any_other():
    row = {"kind": "decode", "batch": 16**5000, "context": 1}
    message = refusal(read_workload_toml, {"workload": [row]}, "a.toml")
    assert "batch must be at most 1,000,000" in message
    message = refusal(read_workload_toml, {"workload": [{"kind": 16**5000}]}, "a.toml")
    assert "kind must be text" in message


def test_an_empty_csv_is_refused():
    assert "loads.csv: holds no workload" in refusal(read_csv, COLUMNS)
    assert "separated by ';'; write commas" in refusal(read_csv, "kind;batch;context\ndecode;8;1\n")


def test_what_a_table_of_workloads_costs_grows_as_its_rows_do():
    def laid_out(count):
        rows = [{"kind": "decode", "batch": "8", "context": str(n + 1)} for n in range(count)]
        start = process_time()
        cells = gemm_cells(LLAMA, read_workload_rows(rows, "loads.csv"))
        assert cells.sizes == {"workload": count, "op": 4}
        return process_time() - start

    few, many = (min(laid_out(count) for _ in range(3)) for count in (1000, 10_000))
    assert many < 20 * few


def test_toml_tables_are_read_in_order():
    doc = tomllib.loads(
        '[[workload]]\nkind="decode"\nbatch=64\ncontext=2048\n'
        '[[workload]]\nkind="gemm"\nm=64\nn=6144\nk=4096\n'
    )
    assert read_workload_toml(doc, "a.toml") == [DECODE, Kernel(m=64, n=6144, k=4096)]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "a.toml: expected [[workload]] tables"),
        ("workload = 3", "a.toml: expected [[workload]] tables"),
        ("workload = [3]", "a.toml: expected [[workload]] tables"),
        ('[workload]\nkind="decode"', "a.toml: expected [[workload]] tables"),
        ("tp=2\n[[workload]]\n", "a.toml: expected [[workload]] tables"),
        ("[[workload]]\nbatch=64", "a.toml workload 1: a kind is missing"),
        ('[[workload]]\nkind="decode"\nbatch=true\ncontext=1', "a.toml workload 1: batch must be"),
        ('[[workload]]\nkind="decode"\nbatch=64.0\ncontext=1', "a.toml workload 1: batch must be"),
        ('[[workload]]\nkind="decode"\nbatch=nan\ncontext=1', "a.toml workload 1: batch must be"),
    ],
)
def test_a_bad_toml_is_named_by_its_table(text, what):
    assert refusal(read_workload_toml, tomllib.loads(text), "a.toml").startswith(what)


# --- matrices


def shapes(llm, **kwargs):
    step = Step("decode", batch=64, context=1024)
    cells = gemm_cells(llm, [step], **kwargs).isel(workload=0)
    return {op: (int(cells.N.sel(op=op)), int(cells.K.sel(op=op))) for op in cells.op.values}


def test_the_projections_of_llama_8b_have_their_published_shapes():
    assert shapes(LLAMA) == {
        "qkv": (6144, 4096),
        "o": (4096, 4096),
        "gate_up": (28672, 4096),
        "down": (4096, 14336),
    }


def test_four_gpus_hold_a_quarter_of_each_projection():
    assert shapes(LLAMA, tp=4) == {
        "qkv": (1536, 4096),
        "o": (4096, 1024),
        "gate_up": (7168, 4096),
        "down": (4096, 3584),
    }


def test_key_value_heads_are_copied_when_gpus_outnumber_them():
    assert shapes(LLAMA, tp=16)["qkv"] == ((32 // 16 + 2) * 128, 4096)
    assert kv_bytes_per_token(LLAMA, tp=16) == kv_bytes_per_token(LLAMA, tp=8)


def test_an_mlp_without_a_gate_is_half_as_wide():
    assert shapes(card("opt-13b"))["gate_up"] == (20480, 5120)


def test_heads_may_be_wider_than_hidden_by_heads():
    assert shapes(card("qwen3-32b"))["o"] == (5120, 8192)


def test_rows_are_the_new_tokens_and_calls_the_layers():
    steps = [DECODE, Step("prefill", tokens=4096), Step("mixed", prefill=512, batch=8, context=9)]
    cells = gemm_cells(LLAMA, steps)
    assert cells.M.dims == ("workload", "op")
    assert cells.M.sel(op="down").values.tolist() == [64, 4096, 520]
    assert (cells.calls == 32).all()
    assert cells.workload.values.tolist() == [step.label for step in steps]
    assert all(cells[name].attrs["units"] == "1" for name in ("M", "N", "K", "calls"))


def test_kernels_need_no_llm():
    kernels = [Kernel(m=64, n=6144, k=4096), Kernel(m=1, n=2, k=3)]
    cells = gemm_cells(None, kernels)
    assert cells.op.values.tolist() == ["gemm"]
    assert cells.to_array().sel(op="gemm").values.tolist() == [
        [64, 1],
        [6144, 2],
        [4096, 3],
        [1, 1],
    ]
    xr.testing.assert_identical(cells, gemm_cells(LLAMA, kernels))


def test_no_name_shadows_one_of_dataset():
    assert not [name for name in gemm_cells(LLAMA, [DECODE]).variables if hasattr(xr.Dataset, name)]


def test_the_largest_kernel_does_not_overflow():
    cells = gemm_cells(None, [Kernel(m=10**7, n=10**7, k=10**7)])
    assert (2 * cells.M * cells.N * cells.K).item() == 2e21


@st.composite
def sharded_llms(draw):
    tp = draw(st.sampled_from([1, 2, 3, 4, 8]))
    kv_heads = tp * draw(st.integers(1, 4))
    return tp, LLM(
        name="x",
        layers=draw(st.integers(1, 100)),
        hidden=draw(st.integers(1, 10**4)),
        heads=kv_heads * draw(st.integers(1, 8)),
        kv_heads=kv_heads,
        head_dim=draw(st.integers(1, 256)),
        intermediate=tp * draw(st.integers(1, 10**4)),
        gated=draw(st.booleans()),
        vocab=draw(st.integers(1, 10**6)),
        tied_embeddings=draw(st.booleans()),
        max_context=10**6,
    )


@given(sharded_llms())
def test_sharding_conserves_work_and_bytes(case):
    tp, llm = case
    whole, shard = (gemm_cells(llm, [DECODE], tp=n) for n in (1, tp))
    flops = [float((2 * c.M * c.N * c.K * c.calls).sum()) for c in (whole, shard)]
    np.testing.assert_allclose(flops[0], tp * flops[1], rtol=1e-12)
    np.testing.assert_allclose(weight_bytes(llm), tp * weight_bytes(llm, tp=tp), rtol=1e-12)
    assert kv_bytes_per_token(llm) == tp * kv_bytes_per_token(llm, tp=tp)


def test_copied_key_value_heads_add_work():
    """The deliberate mistake of the property above: with copies it must not hold."""
    whole, shard = (gemm_cells(LLAMA, [DECODE], tp=n).sel(op="qkv") for n in (1, 16))
    assert float(16 * shard.N.sum()) > float(whole.N.sum())


@pytest.mark.parametrize(
    ("name", "tp", "what"),
    [
        ("llama-3.1-8b", 3, "tp=3 does not divide the 32 attention heads of llama-3.1-8b"),
        ("llama-2-13b", 5, "tp=5 does not divide the MLP width 13824 of llama-2-13b"),
        ("llama-3.1-8b", 0, "tp must be a whole number of at least 1, not 0"),
        ("llama-3.1-8b", -2, "tp must be a whole number of at least 1, not -2"),
        ("llama-3.1-8b", 2.0, "tp must be a whole number of at least 1, not 2.0"),
        ("llama-3.1-8b", True, "tp must be a whole number of at least 1, not True"),
    ],
)
def test_a_tp_that_does_not_fit_is_refused(name, tp, what):
    for call in (weight_bytes, kv_bytes_per_token):
        assert refusal(call, card(name), tp=tp).startswith(what)
    assert refusal(gemm_cells, card(name), [DECODE], tp=tp).startswith(what)


def test_the_refusal_of_a_tp_lists_those_that_fit():
    assert refusal(gemm_cells, LLAMA, [DECODE], tp=3).endswith("; use one of 1, 2, 4, 8, 16, 32")


def test_a_tp_that_would_split_a_key_value_head_is_refused():
    llm = LLM("x", 1, 48, 48, 8, 1, 96, True, 10, False, 10**6)
    message = refusal(gemm_cells, llm, [DECODE], tp=6)
    assert message.startswith("tp=6 neither divides nor is a multiple of the 8 key/value heads")
    assert message.endswith("use one of 1, 2, 4, 8, 16, 24, 48")


def test_batches_that_cannot_be_laid_out_are_refused():
    kernel = Kernel(m=1, n=1, k=1)
    assert "no workload given" in refusal(gemm_cells, LLAMA, [])
    assert "cannot be mixed" in refusal(gemm_cells, LLAMA, [DECODE, kernel])
    assert "parse_workload first" in refusal(gemm_cells, LLAMA, ["decode:batch=1,context=1"])
    assert f"{DECODE.label} is given twice" in refusal(gemm_cells, LLAMA, [DECODE, DECODE])
    assert f"{DECODE.label} needs an LLM; give --llm" in refusal(gemm_cells, None, [DECODE])
    assert "tp=2 means nothing for a gemm" in refusal(gemm_cells, None, [kernel], tp=2)


@pytest.mark.parametrize(
    ("fits", "too_long"),
    [
        ("prefill:tokens=131072", "prefill:tokens=131073"),
        ("prefill:tokens=131071,context=1", "prefill:tokens=131072,context=1"),
        ("decode:batch=1,context=131071", "decode:batch=1,context=131072"),
        ("mixed:prefill=131072,batch=1,context=1", "mixed:prefill=131073,batch=1,context=1"),
        ("mixed:prefill=1,batch=1,context=131071", "mixed:prefill=1,batch=1,context=131072"),
    ],
)
def test_a_step_longer_than_the_context_is_refused(fits, too_long):
    gemm_cells(LLAMA, [parse_workload(fits)])
    message = refusal(gemm_cells, LLAMA, [parse_workload(too_long)])
    assert "131073 tokens exceeds the 131072 tokens that llama-3.1-8b can hold" in message


# --- bytes

# Parameters of the published checkpoints, and those per layer and in all that have no matrix:
# norms (Llama, Qwen3 also per head), biases and learned positions (OPT), biases (Phi).
PUBLISHED = {
    "llama-3.1-8b": (8_030_261_248, 2 * 4096, 4096),
    "llama-3-8b": (8_030_261_248, 2 * 4096, 4096),
    "llama-3.1-70b": (70_553_706_496, 2 * 8192, 8192),
    "llama-3.1-405b": (405_853_388_800, 2 * 16384, 16384),
    "llama-3.2-1b": (1_235_814_400, 2 * 2048, 2048),
    "llama-3.2-3b": (3_212_749_824, 2 * 3072, 3072),
    "llama-2-7b": (6_738_415_616, 2 * 4096, 4096),
    "llama-2-13b": (13_015_864_320, 2 * 5120, 5120),
    "llama-2-70b": (68_976_648_192, 2 * 8192, 8192),
    "mistral-7b": (7_241_732_096, 2 * 4096, 4096),
    "qwen3-8b": (8_190_735_360, 2 * 4096 + 2 * 128, 4096),
    "qwen3-32b": (32_762_123_264, 2 * 5120 + 2 * 128, 5120),
    "opt-13b": (12_853_473_280, 13 * 5120, (2048 + 2) * 5120 + 2 * 5120),
    "phi-2": (2_779_683_840, 7 * 2560 + 10240, 2 * 2560 + 51200),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_weights_are_the_published_parameters_less_norms_and_biases(name):
    parameters, per_layer, once = PUBLISHED[name]
    llm = card(name)
    left_out = llm.layers * per_layer + once
    assert weight_bytes(llm) / 2 == parameters - left_out
    assert left_out < 0.0015 * parameters


def test_kv_cache_of_one_token_in_16_bit():
    assert kv_bytes_per_token(LLAMA) == 131072
    assert kv_bytes_per_token(card("llama-3.1-70b")) == 327680
    assert kv_bytes_per_token(card("qwen3-32b")) == 262144
    assert kv_bytes_per_token(LLAMA, dtype="fp8") == 65536


def test_in_8_bit_the_tables_stay_in_16():
    tables = 2 * LLAMA.vocab * LLAMA.hidden
    assert weight_bytes(LLAMA, dtype="fp8") == (weight_bytes(LLAMA) - 2 * tables) / 2 + 2 * tables


def test_an_unknown_dtype_lists_the_closest():
    for call in (weight_bytes, kv_bytes_per_token):
        with pytest.raises(UnknownNameError, match="unknown dtype 'bf61'; did you mean bf16"):
            call(LLAMA, dtype="bf61")
    assert DTYPE_BYTES["bf16"] == 2 * DTYPE_BYTES["fp8"]
