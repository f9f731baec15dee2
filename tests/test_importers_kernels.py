"""Kernel tables of other projects and of one's own: shapes, units, what is left out."""

import importlib.util
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from m2bayes import read_measurements
from m2bayes.errors import DataError
from m2bayes.importing import imported, read
from m2bayes.measurements import content_hash
from m2bayes.mechanism.laws import LAWS

EXTERNAL = os.environ.get("M2BAYES_EXTERNAL_DATA")
outside = pytest.mark.skipif(not EXTERNAL, reason="M2BAYES_EXTERNAL_DATA names no folder")
packaged = pytest.mark.skipif(
    not importlib.util.find_spec("aiconfigurator_core"), reason="needs aiconfigurator-core"
)
SPEED = 1e-14  # [s/FLOP] of the made-up kernels: 100 TFLOP/s, within what an A100 can do


@pytest.fixture
def write(tmp_path):
    def write(text, name="table.csv"):
        path = tmp_path / name
        path.write_text(text) if isinstance(text, str) else text.to_csv(path, index=False)
        return str(path)

    return write


def refused(*args, **kwargs):
    with pytest.raises(DataError) as caught:
        read_measurements(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- Vidur -----------------------------------------------------------------------------------

SIZES = {"n_head": 32, "n_kv_head": 4, "n_embd": 4096, "n_expanded_embd": 14336}
SHAPES = {  # of one of 8 GPUs: half a KV head each, of which an engine keeps a whole one
    "attn_pre_proj": (4 * 128 + 2 * 128, 4096),
    "attn_post_proj": (4096, 4 * 128),
    "mlp_up_proj": (2 * 1792, 4096),
    "mlp_down_proj": (4096, 1792),
}


def profile(tokens=(256, 512), degree=8):
    """A made-up mlp.csv whose kernels all run at one speed [ms]."""
    rows = []
    for n in tokens:
        row = SIZES | {"use_gated_mlp": True, "vocab_size": 128256, "num_tokens": n}
        row["num_tensor_parallel_workers"] = degree
        for op, (N, K) in SHAPES.items():
            row[f"time_stats.{op}.median"] = 2 * n * N * K * SPEED * 1e3
            row[f"time_stats.{op}.mean"] = 1e9  # must not be used
        rows.append(row)
    return pd.DataFrame(rows)


def test_projections_of_a_vidur_profile_by_hand(write):
    table = read_measurements(write(profile()), "vidur", sku="a100")
    assert list(table.columns) == list(LAWS["gemm_time"].columns)
    assert {(N, K) for N, K in table[["N", "K"]].to_numpy()} == set(SHAPES.values())
    flops = 2 * table["M"] * table["N"] * table["K"]
    np.testing.assert_allclose(table["op_time"], flops * SPEED, rtol=1e-12)
    assert set(table["backend"]) == {"vidur"}


def test_the_whole_of_a_layer_is_shared_by_the_gpus(write):
    """Not the KV heads: eight GPUs hold eight of the four."""
    one = read_measurements(write(profile(degree=4)), "vidur", sku="a100")
    assert {4096 // 4 + 2 * 128, 2 * 14336 // 4, 4096} == set(one["N"])


@outside
def test_published_vidur_profiles_hold_together(database):
    """Each matrix product within the card's peak and ten times it; replicates are counted."""
    for path in sorted(Path(EXTERNAL, "vidur").rglob("mlp.csv")):
        table = read_measurements(path, sku=path.relative_to(EXTERNAL).parts[1])
        sheet = database.datasheets([table["sku"].iloc[0]])
        rate = (2 * table["M"] * table["N"] * table["K"] / table["op_time"])[table["M"] > 2048]
        share = rate / float(sheet["peak_flop_rate"].item())
        assert share.between(0.1, 1.0).all()
        raw = pd.read_csv(path)
        assert len(table) == len(SHAPES) * len(raw)
        keys = raw.groupby(["num_tokens", "num_tensor_parallel_workers"]).size()
        held = read(database, [str(path)], sku="a100").raw.groupby("key").size()
        assert (held > 1).sum() == (keys > 1).sum()


# --- AIConfigurator --------------------------------------------------------------------------


def kernel_table(**columns):
    rows = {
        "framework": ["VLLM"] * 3,
        "version": ["0.24.0"] * 3,
        "device": ["NVIDIA A100-SXM4-80GB"] * 3,
        "op_name": ["gemm"] * 3,
        "kernel_source": ["linear"] * 3,
        "gemm_dtype": ["bfloat16", "bfloat16", "fp8"],
        "m": [64, 4096, 64],
        "n": [4096] * 3,
        "k": [4096] * 3,
        "latency": [0.03, 1.4, 0.01],
    }
    return pd.DataFrame(rows | columns)


def test_a_gemm_table_by_hand(write, tmp_path):
    told = []
    path = tmp_path / "gemm_perf.parquet"
    kernel_table(power=[1.0, 2.0, 3.0]).to_parquet(path)
    from m2bayes.database import Database

    table = imported(Database(), "aiconfigurator", [str(path)], tell=told.append)
    assert table.to_dict("records") == [
        {"sku": "A100-80GB-SXM", "backend": "vllm", "version": "0.24.0", "M": 64.0, "N": 4096.0,
         "K": 4096.0, "op_time": pytest.approx(3e-5)},
        {"sku": "A100-80GB-SXM", "backend": "vllm", "version": "0.24.0", "M": 4096.0, "N": 4096.0,
         "K": 4096.0, "op_time": pytest.approx(1.4e-3)},
    ]  # fmt: skip
    messages = [finding.message for finding in told]
    assert "columns not read: power" in messages
    assert "1 row left out: gemm_dtype fp8" in messages
    narrow = read_measurements(write(kernel_table()), "aiconfigurator", dtype="fp8")
    assert len(narrow) == 1


def test_generation_attends_to_the_new_token_too(write):
    rows = pd.DataFrame(
        {"framework": ["SGLang"], "version": ["0.5.14"], "device": ["NVIDIA H200"],
         "op_name": ["generation_attention"], "kernel_source": ["fa3"], "batch_size": [8],
         "isl": [1], "num_heads": [32], "num_key_value_heads": [8], "head_dim": [128],
         "beam_width": [1], "attn_dtype": ["bfloat16"], "kv_cache_dtype": ["bfloat16"],
         "step": [2047], "window_size": [0], "latency": [0.05]}
    )  # fmt: skip
    (row,) = read_measurements(write(rows), "aiconfigurator").to_dict("records")
    assert (row["sku"], row["length"], row["heads"]) == ("H200-141GB-SXM", 2048, 32)
    assert row["op_time"] == pytest.approx(5e-5)


def test_the_kernel_of_most_rows_is_kept_and_eager_modes_are_not(write):
    base = {"framework": "vLLM", "version": "0.24.0", "device": "NVIDIA H100 80GB HBM3",
            "op_name": "all_reduce", "allreduce_dtype": "bfloat16", "num_gpus": 8}  # fmt: skip
    rows = pd.DataFrame(
        [base | {"kernel_source": f"custom_{mode}", "message_size": 2**i, "latency": 0.1 + slow}
         for mode, slow in (("eager", 0.1), ("graph", 0.0)) for i in (10, 12)]
    )  # fmt: skip
    path = write(rows)
    table = read_measurements(path, "aiconfigurator")
    assert list(table["bytes"]) == [2**11, 2**13]
    np.testing.assert_allclose(table["op_time"], 1e-4)
    slow = read_measurements(path, "aiconfigurator", kernel_source="custom_eager")
    np.testing.assert_allclose(slow["op_time"], 2e-4)
    assert "none of custom" in refused(path, "aiconfigurator", kernel_source="x")


def test_a_card_that_is_none_of_these_is_named(write):
    path = write(kernel_table(device=["Intel(R) Arc(TM) Pro B60 Graphics"] * 3))
    assert "row 1, column device: unknown SKU" in refused(path, "aiconfigurator")
    path = write(kernel_table())
    assert "is A100-80GB-SXM, not --sku H100-80GB-SXM" in refused(
        path, "aiconfigurator", sku="h100"
    )


@packaged
def test_packaged_tables_hold_what_ours_were_made_of(database):
    """The rows of a stored table are among the imported ones, to the last of seven digits."""
    import aiconfigurator_core

    root = Path(aiconfigurator_core.__file__).parent / "systems" / "data" / "h200_sxm"
    version, sku = "0.24.0", "H200-141GB-SXM"
    for name, file in {
        "gemm_bf16": f"gemm/vllm/{version}/gemm_perf.parquet",
        "attention_decode_bf16": f"attention/vllm/{version}/generation_attention_perf.parquet",
        "attention_prefill_bf16": f"attention/vllm/{version}/context_attention_perf.parquet",
        "allreduce_bf16": f"comm/vllm/{version}/custom_allreduce_perf.parquet",
    }.items():
        table = read_measurements(root / file, "aiconfigurator")
        ours = database.table(name)
        ours = ours[(ours["sku"] == sku) & (ours["backend"] == "vllm")]
        sizes = [c for c in ours if c not in ("sku", "backend", "version", "op_time")]
        both = ours.merge(table, on=sizes, how="left", suffixes=("", "_new"))
        assert len(ours) > 20
        np.testing.assert_allclose(both["op_time"], both["op_time_new"], rtol=1e-6)


# --- LLMServingSim ---------------------------------------------------------------------------


def test_layers_of_llmservingsim_by_hand(write):
    text = "layer,tokens,time_us\nqkv_proj,8,40\no_proj,8,25\nact_fn,8,3\n"
    told = []
    from m2bayes.database import Database

    path = write(text)
    given = {"llm": "llama-3.1-8b", "version": "vllm 0.19"}
    table = imported(
        Database(), "llmservingsim", [path], sku="rtx-pro-6000", given=given, tell=told.append
    )
    assert table[["M", "N", "K"]].to_numpy().tolist() == [[8, 4096, 4096], [8, 6144, 4096]]
    np.testing.assert_allclose(table["op_time"], [25e-6, 40e-6])
    assert [f.message for f in told] == ["1 row left out: layer act_fn"]
    assert "add --given llm=NAME" in refused(path, "llmservingsim", sku="l40s")
    assert "give …_dense.csv" in refused(
        write("prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n0,0,1,16,8\n"),
        sku="l40s",
        llm="llama-3.1-8b",
    )


def test_older_layers_are_single_products(write):
    text = "layer_name,input,kv_cache,tp_size,latency(ns)\nk_proj,16,0,1,9000\nrope,16,0,1,10\n"
    table = read_measurements(write(text), "llmservingsim", sku="h100", llm="llama-3.1-8b")
    assert table[["M", "N", "K", "op_time"]].to_numpy().tolist() == [[16, 1024, 4096, 9e-6]]
    text = text.replace(",0,1,9000", ",0,2,9000")
    assert "only tables of one GPU" in refused(
        write(text), "llmservingsim", sku="h100", llm="llama-3.1-8b"
    )


@outside
def test_published_layers_can_be_read():
    folder = Path(EXTERNAL, "llmservingsim")
    for file, sku, rows in (
        ("RTXPRO6000_llama3.1-8b_tp1_dense.csv", "rtx-pro-6000", 4 * 152),
        ("v0_H100_llama3.1-8b_tp1_layers.csv", "h100", 7 * 2048),
    ):
        table = read_measurements(folder / file, sku=sku, llm="llama-3.1-8b")
        assert len(table) == rows
        assert table["op_time"].between(1e-6, 1e-1).all()


# --- one's own -------------------------------------------------------------------------------

GEMM = "sku,backend,version,M,N,K,{}\nh100,vllm,0.24.0,64,4096,4096,{}\n"


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("op_time", "2e-5"),
        ("time [ms]", "0.02"),
        ("Latency (us)", "20"),
        ("time_us", "20"),
        ("duration [ns]", "20000"),
        ("op_time [s]", "0.00002"),
    ],
)
def test_a_unit_in_the_header_is_read(write, header, value):
    (row,) = read_measurements(write(GEMM.format(header, value))).to_dict("records")
    assert row["op_time"] == pytest.approx(2e-5, rel=1e-12)
    assert row["sku"] == "H100-80GB-SXM"


def test_columns_are_read_by_meaning(write):
    text = "GPU, framework, num_tokens, n, k, Latency [ms], note\n"
    text += "NVIDIA H100 PCIe,x,8,128,256,0.02,a\n"
    told = []
    from m2bayes.database import Database

    path = write(text)
    (row,) = imported(Database(), "plain", [path], tell=told.append).to_dict("records")
    assert row == {"sku": "H100-80GB-PCIe", "backend": "x", "version": "unknown", "M": 8, "N": 128,
                   "K": 256, "op_time": pytest.approx(2e-5)}  # fmt: skip
    messages = [f.message for f in told]
    assert messages[0] == "columns not read: note"
    assert "1 row without a software version" in messages[1]
    assert "both mean op_time" in refused(write("M,N,K,time_ms,latency\n1,1,1,1,1\n"), sku="h100")
    assert "unit 'min' is none of s, ms" in refused(write("M,N,K,time [min]\n1,1,1,1\n"))


def test_other_kinds_of_tables(write):
    steps = write('sku,workload,step_time [ms]\nh100,"decode:batch=8,context=1024",7.5\n')
    (row,) = read_measurements(steps).to_dict("records")
    assert (row["workload"], row["step_time"]) == ("decode:batch=8,context=1024", 0.0075)
    light = write("kernel,tokens,width,time_us\nnorm,64,4096,4\n")
    assert read_measurements(light, sku="a100")["op_time"].tolist() == [pytest.approx(4e-6)]
    ring = write("gpus,message_size [MiB],time_us\n8,1,60\n")
    assert read_measurements(ring, sku="h100")["bytes"].tolist() == [2.0**20]
    attention = write("batch,context,heads,kv_heads,time_us\n8,1024,32,8,60\n")
    assert "column phase" in refused(attention, sku="h100")
    (row,) = read_measurements(attention, sku="h100", phase="decode").to_dict("records")
    assert (row["length"], row["op_time"]) == (1024, pytest.approx(6e-5))
    eta = write("kernel,tensor_active [%]\ngemm,97.5\n")
    assert read_measurements(eta, sku="h100")["eta_active"].tolist() == [0.975]


@pytest.mark.parametrize("kind", ["gemm_bf16", "attention_decode_bf16", "allreduce_bf16"])
def test_a_stored_table_is_read_back_as_it_is(database, kind):
    """Recognised, its rows and their hash unchanged."""
    stored = database.table(kind)
    again = read_measurements(Path(database.root, "data", "measurements", f"{kind}.csv"))
    assert sorted(again.columns) == sorted(stored.columns)
    assert len(again) == len(stored)
    assert again["op_time"].sum() == pytest.approx(stored["op_time"].sum(), rel=1e-12)


def test_the_order_of_rows_is_without_effect(write, database):
    table = database.table("gemm_bf16").head(200)
    one = read_measurements(write(table, "a.csv"))
    two = read_measurements(write(table.sample(frac=1, random_state=1), "b.csv"))
    assert content_hash(one) == content_hash(two)


def test_several_files_are_one_table(write):
    paths = [write(GEMM.format("op_time", t), f"{t}.csv") for t in ("2e-5", "3e-5")]
    assert read_measurements(paths)["op_time"].tolist() == [2e-5, 3e-5]
    steps = write('sku,workload,step_time\nh100,"decode:batch=8,context=1024",0.01\n')
    assert "hold gemm_time and steps" in refused([paths[0], steps])
