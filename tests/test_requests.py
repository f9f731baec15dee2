"""Request logs: what is read, and how what cannot be used is refused."""

import json
import os
from pathlib import Path

import pytest

from m2bayes.errors import DataError
from m2bayes.requests import EngineSettings, engine_of, engine_series, request_log

ROW = {
    "request_id": "bench-0",
    "input_toks": 100,
    "output_toks": 3,
    "arrival_time": 1.8e9,
    "queued_ts": 20.0,
    "scheduled_ts": 20.5,
    "first_token_ts": 21.0,
    "last_token_ts": 23.0,
}
META = {
    "model": "meta-llama/Llama-3.1-8B",
    "vllm_version": "0.19.0",
    "engine_kwargs": {"max_num_seqs": 128, "max_num_batched_tokens": 2048},
}


def written(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_times_start_with_the_first_arrival_and_rows_are_in_order(tmp_path):
    later = ROW | {"queued_ts": 20.25, "output_toks": 1, "last_token_ts": 21.0}
    found = request_log(written(tmp_path / "a.jsonl", [later, ROW]))
    assert found["arrival"].tolist() == [0.0, 0.25]
    assert found["scheduled"].tolist() == [0.5, 0.5]
    assert found["first_token"].tolist() == [1.0, 1.0]
    assert found["finish"].tolist() == [3.0, 1.0]
    assert found["prompt"].tolist() == [100, 100]
    assert found["output"].tolist() == [3, 1]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"input_toks": None}, "line 2: input_toks is missing"),
        ({"output_toks": 0}, "line 2: output_toks is '0'"),
        ({"output_toks": 1.5}, "line 2: output_toks is '1.5'"),
        ({"queued_ts": "soon"}, "line 2: queued_ts is 'soon', not a time"),
        ({"queued_ts": float("nan")}, "line 2: queued_ts is 'nan', not a time"),
        ({"scheduled_ts": 19.0}, "line 2: scheduled_ts comes before"),
        ({"last_token_ts": 20.9}, "line 2: last_token_ts comes before"),
    ],
)
def test_a_request_that_cannot_be_is_named(tmp_path, change, told):
    with pytest.raises(DataError, match=told) as caught:
        request_log(written(tmp_path / "a.jsonl", [ROW, ROW | change]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [("", "holds no request"), ("[1, 2]\n", "line 1: expected an object"), ("{\n", "line 1: not")],
)
def test_what_is_no_log_is_refused(tmp_path, text, told):
    file = tmp_path / "a.jsonl"
    file.write_text(text)
    with pytest.raises(DataError, match=told):
        request_log(file)
    with pytest.raises(DataError, match="no such file"):
        request_log(tmp_path / "b.jsonl")


def test_settings_of_the_engine(tmp_path):
    file = written(tmp_path / "a.json", [META])
    assert engine_of(file) == EngineSettings("meta-llama/Llama-3.1-8B", "", "0.19.0", 128, 2048)
    cache = {"num_kv_tokens": 41408, "block_size": 32}
    held = META | {"kv_cache": cache, "hardware": {"device_name": "NVIDIA A"}}
    found = engine_of(written(file, [held]))
    assert (found.kv_tokens, found.block, found.device) == (41408, 32, "NVIDIA A")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"model": "a"}, "max_num_seqs is missing"),
        (META | {"engine_kwargs": {"max_num_seqs": True}}, "max_num_seqs is 'True'"),
        (META | {"kv_cache": {"num_kv_tokens": 0}}, "num_kv_tokens is '0'"),
    ],
)
def test_a_limit_that_is_missing_is_named(tmp_path, content, told):
    with pytest.raises(DataError, match=told):
        engine_of(written(tmp_path / "a.json", [content]))


def test_ticks_of_the_engine(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("t,prompt_throughput,gen_throughput,running,waiting\n1.0,5.0,2.0,5,2\n")
    found = engine_series(file)
    assert found.to_dict("list") == {
        "time": [1.0], "throughput": [2.0], "running": [5], "waiting": [2],
    }  # fmt: skip
    file.write_text("t,running,waiting\n1.0,5,2\n")
    with pytest.raises(DataError, match="no column gen_throughput"):
        engine_series(file)


LOGS = Path(os.environ.get("M2BAYES_EXTERNAL_DATA", "nowhere")) / "llmservingsim"


@pytest.mark.skipif(not LOGS.is_dir(), reason="M2BAYES_EXTERNAL_DATA has no llmservingsim")
def test_the_logs_of_two_cards():
    for name, cache in {"RTX4090": 41408, "RTXPRO6000": None}.items():
        log = request_log(LOGS / f"{name}_llama3.1-8b_vllmbench_requests.jsonl")
        assert len(log) == 300
        assert (log["scheduled"] >= log["arrival"]).all()
        engine = engine_of(LOGS / f"{name}_llama3.1-8b_vllmbench_meta.json")
        assert (engine.kv_tokens, engine.token_budget, engine.version) == (cache, 2048, "0.19.0")
