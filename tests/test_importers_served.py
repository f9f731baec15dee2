"""Results of load generators as rows of served runs, and as steps to calibrate with."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from m2bayes import read_measurements
from m2bayes.errors import DataError
from m2bayes.importers.formats import recognised
from m2bayes.importing import write as write_table
from m2bayes.timings import read_timings

SERVE = {
    "date": "20261129-120000", "endpoint_type": "vllm", "label": None, "model_id": "my/llm",
    "tokenizer_id": "my/llm", "num_prompts": 80, "request_rate": "inf", "burstiness": 1.0,
    "max_concurrency": 8, "duration": 60.0, "completed": 80, "failed": 0,
    "total_input_tokens": 80 * 1024, "total_output_tokens": 80 * 256,
    "request_throughput": 1.3, "output_throughput": 340.0, "mean_ttft_ms": 90.0,
    "median_ttft_ms": 80.0, "p99_ttft_ms": 200.0, "mean_tpot_ms": 9.0, "median_tpot_ms": 8.0,
    "median_itl_ms": 7.9, "median_e2el_ms": 2100.0, "my_tag": "x",
}  # fmt: skip
LATENCY = {
    "avg_latency": 1.6,
    "latencies": [1.5, 1.6, 1.7],
    "percentiles": {"10": 1.5, "50": 1.55, "99": 1.7},
}
GUIDELLM = {
    "metadata": {"version": 1},
    "benchmarks": [
        {
            "args": {},
            "metrics": {
                name: {"successful": {"median": median, "mean": mean, "count": 50}, "errored": {}}
                for name, median, mean in (
                    ("request_latency", 2.1, 2.2),
                    ("time_to_first_token_ms", 80.0, 90.0),
                    ("inter_token_latency_ms", 8.0, 9.0),
                    ("time_per_output_token_ms", 8.3, 9.3),
                    ("prompt_token_count", 1024.0, 1024.0),
                    ("output_token_count", 256.0, 255.0),
                    ("request_concurrency", 8.0, 7.9),
                    ("requests_per_second", 3.0, 3.6),
                )
            },
        }
    ],
}
AIPERF = {
    "request_latency": {"unit": "ms", "avg": 2200.0, "p50": 2100.0, "count": 50},
    "time_to_first_token": {"unit": "ms", "avg": 90.0, "p50": 80.0},
    "inter_token_latency": {"unit": "us", "avg": 9000.0, "p50": 8000.0},
    "input_sequence_length": {"unit": "tokens", "avg": 1024.0, "p50": 1024.0},
    "output_sequence_length": {"unit": "tokens", "avg": 256.0},
    "request_count": {"unit": "requests", "avg": 50.0},
    "input_config": {
        "endpoint": {"model_names": ["my/llm"]},
        "loadgen": {"concurrency": 8, "request_rate": None},
    },
    "telemetry": {},
}
TOOLS = {"vllm": SERVE, "guidellm": GUIDELLM, "aiperf": AIPERF}


@pytest.fixture
def write(tmp_path):
    def write(content, name="run.json"):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    return write


def refused(*args, **kwargs):
    with pytest.raises(DataError) as caught:
        read_measurements(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_lengths_of_a_served_run_are_means(write):
    lengths = {"input_tokens": 512.4, "output_tokens": 30.5}
    assert np.isfinite(read_measurements(write(SERVE), sku="h100", **lengths)["tpot"]).all()


@pytest.mark.parametrize("tool", TOOLS)
def test_one_run_of_each_tool_by_hand(write, tool):
    """Each reports the same run, in milliseconds, microseconds and seconds."""
    path = write(TOOLS[tool])
    assert recognised(Path(path)) == tool
    (row,) = read_measurements(path, tool, sku="h100", version="0.24.0", tp=2).to_dict("records")
    assert row["sku"] == "H100-80GB-SXM"
    assert (row["version"], row["tp"]) == ("0.24.0", 2)
    assert row["ttft"] == pytest.approx(0.08)
    assert row["tpot"] == pytest.approx(0.008)
    assert row["e2e_time"] == pytest.approx(2.1)
    assert (row["input_tokens"], row["output_tokens"]) == (1024, 256)
    assert row["concurrency"] == pytest.approx(8, abs=0.2)
    assert row["workload"] == "decode:batch=8,context=1152"  # half of the output is there
    assert row["step_time"] == row["tpot"]


def test_a_served_run_calibrates(write, tmp_path):
    """The table has the columns that --calibrate reads."""
    table = read_measurements(write(SERVE), sku="h100", version="0.24.0", tp=2)
    write_table(table, tmp_path / "steps.csv", [])
    (timing,) = read_timings(tmp_path / "steps.csv")
    assert timing.workload.label == "decode:batch=8,context=1152"
    assert (timing.step_time, timing.tp) == (pytest.approx(0.008), 2)


def test_a_whole_batch_of_vllm(write):
    path = write(LATENCY)
    assert "add --given batch=… input_tokens=… output_tokens=…" in refused(path, sku="h100")
    said = {"batch": 8, "output_tokens": 128}
    assert "does not say its input_tokens; add" in refused(path, sku="h100", **said)
    facts = {"batch": 8, "input_tokens": 32, "output_tokens": 128, "llm": "x"}
    (row,) = read_measurements(path, sku="h100", **facts).to_dict("records")
    assert row["e2e_time"] == 1.55
    assert (row["concurrency"], row["output_tokens"]) == (8, 128)
    assert np.isnan(row["tpot"])


def test_a_whole_batch_asked_for_one_token_is_its_prefill(write):
    """What `m2bayes next` names to time a prefill step, read by --calibrate."""
    facts = {"batch": 4, "input_tokens": 512, "output_tokens": 1}
    (row,) = read_measurements(write(LATENCY), sku="h100", **facts).to_dict("records")
    assert (row["workload"], row["step_time"]) == ("prefill:tokens=512,batch=4", 1.55)
    longer = facts | {"output_tokens": 2}
    (row,) = read_measurements(write(LATENCY), sku="h100", **longer).to_dict("records")
    assert row["workload"] == ""


@pytest.mark.parametrize(
    "wrong",
    [{"batch": 0}, {"batch": 4.5}, {"input_tokens": 1e30}, {"output_tokens": -1}, {"tp": 0}],
)
def test_a_fact_that_counts_nothing_is_refused(write, wrong):
    facts = {"batch": 4, "input_tokens": 512, "output_tokens": 1} | wrong
    ((name, _),) = wrong.items()
    message = refused(write(LATENCY), sku="h100", **facts)
    assert f"--given {name}=" in message
    assert "give a whole number from 1 to 1,000,000" in message


def test_an_open_loop_run_has_no_known_batch(write):
    run = SERVE | {"max_concurrency": None, "request_rate": 4.0}
    (row,) = read_measurements(write(run), sku="h100").to_dict("records")
    assert row["request_rate"] == 4
    assert row["workload"] == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (SERVE | {"completed": 0}, "completed is 0: no request came through"),
        (SERVE | {"median_tpot_ms": "fast"}, "median_tpot_ms is 'fast'; give a number"),
        (SERVE | {"median_tpot_ms": -1.0}, "is not above zero, in s"),
        (SERVE | {"median_tpot_ms": 8e6}, "is not between 0.0001 and 2 s; is the unit right?"),
        ({k: v for k, v in SERVE.items() if k != "completed"}, "no completed"),
        (GUIDELLM | {"benchmarks": []}, "no benchmarks in it"),
        (GUIDELLM | {"benchmarks": [{}]}, "benchmark 1 holds no metrics"),
        (AIPERF | {"inter_token_latency": {"unit": "h", "avg": 1}}, "unit 'h' is none of s"),
        ("{", "not valid JSON"),
        ("[]", "expected a JSON object"),
        (json.dumps(SERVE)[:-40], "not valid JSON"),
        ("", "not valid JSON"),
    ],
)
def test_a_run_that_cannot_be_used_is_refused(write, content, message):
    assert message in refused(write(content), sku="h100")


def test_the_card_must_be_named_and_columns_that_nobody_reads_are_told(write, database):
    from m2bayes.importing import imported

    assert "does not name the card; add --sku NAME" in refused(write(SERVE))
    told = []
    imported(database, "vllm", [write(SERVE)], sku="h100", tell=told.append)
    assert told[0].message == "columns not read: my_tag"
    assert "'fast'" in refused(write(SERVE), sku="h100", tp="fast")


def test_the_end_to_end_sample_by_hand(write):
    rows = pd.DataFrame(
        {
            "id": ["a", "b"],
            "silicon_data_source": ["x; silicon_concurrency=64; y", "z"],
            "backend": ["vllm", "trtllm"],
            "backend_version": ["0.19.0", ""],
            "model_path": ["my/llm"] * 2,
            "system": ["h200_sxm", "gb200"],
            "precision": ["fp8"] * 2,
            "isl": [1024] * 2,
            "osl": [256] * 2,
            "batch_size": [32, 16],
            "tp_size": [4, 8],
            "silicon_ttft_ms": [100.0, 50.0],
            "silicon_tpot_ms": [10.0, 5.0],
        }
    )
    table = read_measurements(write(rows.to_csv(index=False), "sample.csv")).set_index("id")
    assert table["sku"].to_dict() == {"a": "H200-141GB-SXM", "b": "GB200-186GB-SXM"}
    assert table["concurrency"].to_dict() == {"a": 64, "b": 16}
    assert table["tpot"].to_dict() == {"a": 0.01, "b": 0.005}
    assert table["version"].to_dict() == {"a": "0.19.0", "b": "unknown"}
    assert table["tp_size"].astype(float).to_dict() == {"a": 4, "b": 8}  # what is known is kept


@pytest.mark.skipif(
    not importlib.util.find_spec("aiconfigurator_core"), reason="needs aiconfigurator-core"
)
def test_the_packaged_sample_can_be_read():
    import aiconfigurator_core

    path = Path(aiconfigurator_core.__file__).parent / "systems" / "silicon_sample.csv"
    table, raw = read_measurements(path), pd.read_csv(path)
    assert len(table) == len(raw)
    assert table["tpot"].sum() == pytest.approx(raw["silicon_tpot_ms"].sum() / 1e3)
    assert table["sku"].nunique() == raw["system"].nunique()
