"""Thousands of damaged inputs: each is read or refused in one line, soon, and nothing is left."""

import json
import time
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from m2bayes import parse_workload
from m2bayes.datasheet import lint as lint_card
from m2bayes.errors import M2BayesError
from m2bayes.importing import imported, write
from m2bayes.linting.files import linted
from m2bayes.timings import read_timings

PATIENCE = 5.0  # [s] for one input
SEED = 20261129
TOKENS = [
    *(b"nan", b"inf", b"-inf", b"1e999", b"-1", b"0", b"", b"1e-320", b"9" * 400, b"0x10", b"1_0"),
    *(b"true", b"null", b"[]", b"{}", b'""', b'"', b"'", b"\\", b"\x00", b"\xff\xfe", b"\r", b"\n"),
    *(
        b",",
        b";",
        b"\t",
        b",,",
        b"=",
        b":",
        b"../../etc",
        b"%s",
        b"{0}",
        b"\xc2\xb5s",
        b"\xe2\x82\xac",
    ),
    *(b"2147483648", b"-9223372036854775809", b"1e308", b"NaN", b"N/A", b"1,5", b"1e", b"#", b"--"),
]


# --- sound inputs, by hand -------------------------------------------------------------------

PROJECTIONS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
LIGHT = ("emb", "input_layernorm", "post_attention_layernorm", "attn_rope", "mlp_act", "add")


def vidur():
    rows = []
    for tokens in (64, 128, 256):
        row = {"n_head": 32, "n_kv_head": 8, "n_embd": 4096, "n_expanded_embd": 14336}
        row |= {"use_gated_mlp": True, "num_tokens": tokens, "num_tensor_parallel_workers": 1}
        row |= {f"time_stats.{op}.median": 0.4 for op in PROJECTIONS}
        row |= {f"time_stats.{op}.median": 0.02 for op in LIGHT}
        rows.append(row)
    return pd.DataFrame(rows).to_csv(index=False)


AIC = """framework,version,device,op_name,kernel_source,gemm_dtype,m,n,k,latency
VLLM,0.24.0,NVIDIA H200,gemm,linear,bfloat16,64,4096,4096,0.03
VLLM,0.24.0,NVIDIA H200,gemm,linear,fp8,64,4096,4096,0.02
"""
SAMPLE = """id,silicon_data_source,backend,backend_version,model_path,system,precision,isl,osl,\
batch_size,silicon_ttft_ms,silicon_tpot_ms
a,silicon_concurrency=4,vllm,0.19.0,my/llm,h200_sxm,fp8,1024,256,4,80.5,8.5
b,silicon_concurrency=8,vllm,,my/llm,h200_sxm,fp8,1024,256,8,95.0,9.5
c,,vllm,0.19.0,my/llm,h200_sxm,fp8,1024,256,16,120.0,11.0
"""
SERVE = json.dumps(
    {"model_id": "my/llm", "request_rate": "inf", "max_concurrency": 8, "completed": 80,
     "total_input_tokens": 81920, "total_output_tokens": 20480, "median_ttft_ms": 80.0,
     "median_tpot_ms": 8.0, "median_e2el_ms": 2100.0}
)  # fmt: skip
GUIDELLM = json.dumps(
    {"benchmarks": [{"metrics": {n: {"successful": {"median": 8.0, "mean": 8.0, "count": 9}}
     for n in ("request_latency", "time_to_first_token_ms", "inter_token_latency_ms",
               "prompt_token_count", "output_token_count", "request_concurrency")}}]}
)  # fmt: skip
AIPERF = json.dumps(
    {"request_latency": {"unit": "ms", "p50": 2100.0},
     "input_config": {"loadgen": {"concurrency": 8}},
     "time_to_first_token": {"unit": "ms", "p50": 80.0},
     "inter_token_latency": {"unit": "ms", "p50": 8.0}}
)  # fmt: skip
QUERY = "timestamp, name, clocks.sm [MHz], power.limit [W], utilization.gpu [%]\n" + "".join(
    f"2026/11/29 12:00:{i:02d}, NVIDIA H200, {1500 + 15 * (i % 3)} MHz, 700.00 W, 100 %\n"
    for i in range(20)
)
DMON = "# gpu pwr sm pclk\n# Idx W % MHz\n" + "    0   690   99   1500\n" * 20
DCGM = "#Entity SMACT TENSO SMCLK\nID\n" + "GPU 0  0.98  0.65  1500\n" * 20
NCU = """==PROF== Connected
"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","gemm","sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active","%","96.0"
"0","gemm","gpu__time_duration.sum","usecond","1,250.00"
"""
LAYERS = "layer,tokens,time_us\nqkv_proj,64,40\no_proj,64,25\nact_fn,64,3\n"
PLAIN = "sku,backend,version,M,N,K,time [ms]\n" + "h200,vllm,0.24.0,64,4096,4096,0.03\n" * 3
STEPS = 'sku,workload,step_time,tp\nh200,"decode:batch=8,context=1024",0.01,1\n'
HOST = json.dumps(
    {"facebook/opt-13b": {"2": {"decoding_large_small_bs_threshold": 95,
     "prefill": [9.0, 0.1, 1e-5],
     "decoding_smallbs": [24.0, 1e-4, 0.05], "decoding_largebs": [9.0, 1e-4, 0.05]}}}
)  # fmt: skip
# format: a sound file, its name, and what it does not say
FILES = {
    "vidur": (vidur(), "mlp.csv", {}),
    "vidur-light": (vidur(), "mlp.csv", {}),
    "aiconfigurator": (AIC, "gemm.csv", {}),
    "aiconfigurator/served": (SAMPLE, "silicon.csv", {}),
    "vllm": (SERVE, "run.json", {}),
    "guidellm": (GUIDELLM, "benchmarks.json", {}),
    "aiperf": (AIPERF, "profile.json", {}),
    "nvidia-smi": (QUERY, "log.csv", {}),
    "nvidia-smi/dmon": (DMON, "dmon.txt", {}),
    "dcgm": (DCGM, "dcgm.txt", {}),
    "ncu": (NCU, "ncu.csv", {}),
    "llmservingsim": (LAYERS, "dense.csv", {"llm": "llama-3.1-8b"}),
    "plain": (PLAIN, "mine.csv", {}),
    "plain/steps": (STEPS, "steps.csv", {}),
    "distserve-host": (HOST, "profiler-x.vllm.json", {}),
}
SPECS = (
    "decode:batch=64,context=2048",
    "prefill:tokens=4096,context=128",
    "mixed:prefill=512,batch=64,context=2048",
    "gemm:m=64,n=6144,k=4096",
    "attention:phase=decode,batch=64,context=2048,heads=32,kv_heads=8",
)
WORKLOADS = {
    "plan.csv": "kind,batch,context,tokens\ndecode,8,1024,\nprefill,,,512\n",
    "plan.toml": '[[workload]]\nkind = "decode"\nbatch = 8\ncontext = 1024\n',
}


# --- damage ----------------------------------------------------------------------------------


def damaged(content, rng):
    """Content with one to three random changes, some of them at a number or a separator."""
    for _ in range(int(rng.integers(1, 4))):
        content = CHANGES[int(rng.integers(len(CHANGES)))](content, rng)
    return content


def spot(content, rng):
    return int(rng.integers(len(content) + 1))


def cut_off(content, rng):
    return content[: spot(content, rng)]


def flipped(content, rng):
    at = min(spot(content, rng), max(len(content) - 1, 0))
    return content[:at] + bytes([int(rng.integers(256))]) + content[at + 1 :]


def dropped(content, rng):
    at = spot(content, rng)
    return content[:at] + content[at + int(rng.integers(1, 20)) :]


def doubled(content, rng):
    at = spot(content, rng)
    return content[:at] + content[at : at + int(rng.integers(1, 60))] + content[at:]


def token(content, rng):
    at = spot(content, rng)
    return content[:at] + TOKENS[int(rng.integers(len(TOKENS)))] + content[at:]


def cell(content, rng):
    """One cell between separators is replaced."""
    marks = [i for i, byte in enumerate(content) if byte in b',:\n" =']
    if len(marks) < 2:
        return token(content, rng)
    at = int(rng.integers(len(marks) - 1))
    new = TOKENS[int(rng.integers(len(TOKENS)))]
    return content[: marks[at] + 1] + new + content[marks[at + 1] :]


def rows_shuffled(content, rng):
    lines = content.split(b"\n")
    return b"\n".join(lines[int(i)] for i in rng.permutation(len(lines)))


def other_delimiter(content, rng):
    return content.replace(b",", (b";", b"\t", b" ", b"|")[int(rng.integers(4))])


CHANGES = (
    cut_off,
    flipped,
    dropped,
    doubled,
    token,
    cell,
    cell,
    cell,
    rows_shuffled,
    other_delimiter,
)


def survived(act, tally):
    """Run `act`; only the project's own errors, of one line, may come out, and soon."""
    begin = time.monotonic()
    try:
        act()
    except M2BayesError as fault:
        lines = str(fault).splitlines()
        sound = False
        tally["refused"] += 1
    else:
        lines, sound = ["read"], True
        tally["read"] += 1
    assert len(lines) == 1
    assert lines[0].strip()
    assert time.monotonic() - begin < PATIENCE
    return sound


@pytest.fixture
def tally():
    return {"read": 0, "refused": 0}


def inputs(sound, count, name):
    rng = np.random.default_rng([SEED, *name.encode()])
    return [damaged(sound.encode(), rng) for _ in range(count)]


# --- what is fuzzed --------------------------------------------------------------------------

PER_FORMAT, PER_CARD, PER_SPEC = 50, 200, 120


def test_there_are_enough_inputs():
    """More of any one are a matter of these numbers, or of another seed."""
    held = PER_FORMAT * len(FILES) + 2 * PER_CARD + PER_SPEC * (len(SPECS) + len(WORKLOADS) + 1)
    assert held >= 2000


@pytest.mark.parametrize("name", FILES)
def test_damaged_measurements(database, tmp_path, tally, name):
    """Read and written whole, or refused and nothing written; lint has no fault either."""
    sound, file, given = FILES[name]
    form, folder = name.partition("/")[0], tmp_path / "in"
    folder.mkdir()
    path, out = folder / file, tmp_path / "out.csv"

    def act():
        table = imported(database, form, [str(path)], sku="h200", given=given)
        write(table, out, [str(path)])

    path.write_text(sound)
    assert survived(act, tally)
    out.unlink()
    for i, content in enumerate(inputs(sound, PER_FORMAT, name)):
        path.write_bytes(content)
        written = survived(act, tally)
        assert out.exists() == written
        out.unlink(missing_ok=True)
        if i % 10 == 0:
            survived(lambda: linted(database, [str(path)], sku="h200", given=given), tally)
        assert list(tmp_path.iterdir()) == [folder]
        assert list(folder.iterdir()) == [path]
    assert tally["refused"] > PER_FORMAT / 5


def test_damaged_datasheets(database, tmp_path, tally):
    text = (database.root / "data" / "datasheets" / "H100-80GB-SXM.json").read_text()
    path = tmp_path / "card.json"
    for content in inputs(text, PER_CARD, "card"):
        path.write_bytes(content)

        def act():
            lint_card(json.loads(path.read_bytes()), origin="card")

        survived(lambda: database.datasheets([str(path)]), tally)
        try:
            act()
        except (ValueError, RecursionError):
            continue  # no JSON: what the command says of it is tested above
    assert tally["refused"] > PER_CARD / 5
    assert tally["read"] > 0


def test_damaged_configurations_of_llms(database, tmp_path, tally):
    card = json.loads((database.root / "data" / "llms" / "llama-3.1-8b.json").read_text())
    path = tmp_path / "config.json"
    for content in inputs(json.dumps(card["config"]), PER_CARD, "llm"):
        path.write_bytes(content)
        survived(lambda: database.llm(str(path)), tally)
    assert tally["refused"] > PER_CARD / 5


@pytest.mark.parametrize("spec", SPECS)
def test_damaged_workloads(tally, spec):
    for content in inputs(spec, PER_SPEC, spec):
        survived(partial(parse_workload, content.decode("utf-8", "replace")), tally)
    assert tally["refused"] > PER_SPEC / 5


@pytest.mark.parametrize("name", WORKLOADS)
def test_damaged_files_of_workloads(database, tmp_path, tally, name):
    path = Path(tmp_path, name)
    for content in inputs(WORKLOADS[name], PER_SPEC, name):
        path.write_bytes(content)
        survived(lambda: database.workloads(str(path)), tally)
    assert tally["refused"] > PER_SPEC / 5


def test_damaged_timings(tmp_path, tally):
    path = tmp_path / "steps.csv"
    for content in inputs(STEPS, PER_SPEC, "timings"):
        path.write_bytes(content)
        survived(lambda: read_timings(path), tally)
    assert tally["refused"] > PER_SPEC / 5


def test_a_traceback_would_be_noticed(tally):
    """Negative control."""

    def fault():
        raise KeyError("x")

    with pytest.raises(KeyError):
        survived(fault, tally)
