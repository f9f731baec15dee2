"""Mixes of requests: one length, histograms, traces, and what is wrong with them."""

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from m2bayes.errors import DataError, WorkloadError
from m2bayes.serving.mix import (
    CLASSES,
    gathered,
    mean_context,
    mean_length,
    one_length,
    read_mix,
    read_trace,
    scv,
)


def written(tmp_path, text):
    path = tmp_path / "requests.csv"
    path.write_text(text)
    return path


def mix_of(prompt, answer, weight):
    weight = np.array(weight, float)
    names = ("input_tokens", "output_tokens", "weight")
    values = (np.array(prompt, float), np.array(answer, float), weight / weight.sum())
    return xr.Dataset({n: ("request", v) for n, v in zip(names, values, strict=True)})


def test_one_length_is_one_kind():
    mix = one_length(8192, 1024)
    assert mix.sizes["request"] == 1
    assert (mean_length(mix, "input_tokens"), mean_length(mix, "output_tokens")) == (8192, 1024)
    assert mean_context(mix) == 8192 + 512


def test_a_long_answer_counts_for_more_of_the_context():
    """(10·100 + 50 + 1000·100 + 500000) / 1010."""
    assert mean_context(mix_of([100, 100], [10, 1000], [1, 1])) == pytest.approx(601050 / 1010)


@pytest.mark.parametrize("lengths", [(0, 1), (1, 0), (10**9, 1)])
def test_lengths_out_of_range_are_refused(lengths):
    with pytest.raises(WorkloadError, match=r"put-tokens \d+: give 1 to 100,000,000 tokens"):
        one_length(*lengths)


def test_a_histogram_keeps_lengths_and_weights(tmp_path):
    text = "weight,input_tokens,output_tokens,note\n3,100,10,a\n1,1000,50,b\n0,5,5,c\n"
    mix = read_mix(written(tmp_path, text))
    assert mix["input_tokens"].values.tolist() == [100, 1000]
    assert mix["weight"].values.tolist() == [0.75, 0.25]


def test_a_trace_gives_the_rate_and_how_bursty_it_is(tmp_path):
    text = "arrival_time,input_tokens,output_tokens\n3,100,10\n0,100,20\n1,100,30\n"
    mix = read_trace(written(tmp_path, text))
    assert float(mix["rate"]) == pytest.approx(2 / 3)
    assert float(mix["arrival_scv"]) == pytest.approx(0.25 / 1.5**2)
    assert mean_length(mix, "output_tokens") == pytest.approx(20)
    assert "rate" not in read_trace(written(tmp_path, "input_tokens,output_tokens\n1,1\n"))


@given(st.lists(st.tuples(st.integers(1, 9000), st.integers(1, 900)), min_size=1, max_size=200))
def test_gathering_keeps_the_means_and_the_number_small(rows):
    prompt, answer = np.array(rows, float).T
    mix = mix_of(prompt, answer, np.ones(len(rows)))
    few = gathered(mix)
    assert few.sizes["request"] <= CLASSES**2
    assert float(few["weight"].sum()) == pytest.approx(1)
    for name, values in (("input_tokens", prompt), ("output_tokens", answer)):
        assert mean_length(few, name) == pytest.approx(values.mean(), rel=1e-9)


def test_the_variation_of_equal_lengths_is_none():
    assert scv(np.array([5.0, 5.0]), np.array([0.3, 0.7])) == 0
    assert scv(np.array([0.0, 2.0]), np.array([0.5, 0.5])) == 1


HEAD = "input_tokens,output_tokens"
TIMED = f"arrival_time,{HEAD}"


@pytest.mark.parametrize(
    ("read", "text", "says"),
    [
        (read_mix, f"{HEAD},weight\n1,1,1e308\n1,1,1e308\n", r"line 2: weight 1e\+308 is not from"),
        (read_mix, f"{HEAD},weight,weight\n1,1,1,2\n", "line 1: two columns named 'weight'"),
        (read_mix, f"{HEAD},weight\n1,1,1,9\n", "line 2: more cells than the header's 3"),
        (read_mix, "input_tokens;output_tokens;weight\n1;1;1\n", "separated by ';', not by commas"),
        (read_trace, f"{TIMED}\n0,1,1\n5e-324,1,1\n", "arrival_time more than 1,000,000 requests"),
        (read_trace, f"{TIMED}\n1e308,1,1\n-1e308,1,1\n", r"line 2: arrival_time 1e\+308 is over"),
        (read_mix, "input_tokens,output_tokens\n1,1\n", "header has no column weight"),
        (read_mix, "input_tokens,output_tokens,weight\n1,1,0\n", "all weights are 0"),
        (
            read_mix,
            "input_tokens,output_tokens,weight\n1,1,-1\n",
            "line 2: weight -1 is not from 0 to",
        ),
        (read_mix, "input_tokens,output_tokens,weight\n", "holds no request"),
        (read_trace, "input_tokens,output_tokens\n5,5\n5,x\n", "line 3: output_tokens is 'x'"),
        (read_trace, "input_tokens,output_tokens\n5,0\n", "line 2: output_tokens 0 is not from 1"),
        (read_trace, "input_tokens,output_tokens\n5\n", "line 2: output_tokens is empty"),
        (read_trace, "input_tokens,output_tokens\nnan,5\n", "input_tokens is 'nan', no finite"),
        (read_trace, "arrival_time,input_tokens,output_tokens\n1,1,1\n1,1,1\n", "spans no time"),
        (read_trace, "arrival_time,input_tokens,output_tokens\n,1,1\n", "arrival_time is empty"),
    ],
)
def test_a_bad_file_is_refused_by_line(tmp_path, read, text, says):
    with pytest.raises(DataError, match=says) as caught:
        read(written(tmp_path, text))
    assert "requests.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("read", [read_mix, read_trace])
def test_a_row_longer_than_the_context_is_named(tmp_path, read):
    path = written(tmp_path, "input_tokens,output_tokens,weight\n50,50,1\n99,2,1\n")
    with pytest.raises(DataError, match=r"csv line 3: prompt and answer of 101 tokens.*for 100;"):
        read(path, longest=100)
    assert read(path, longest=101).sizes["request"] == 2


def test_no_file_and_no_text_are_refused(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_mix(tmp_path / "none.csv")
    path = tmp_path / "bytes.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="UTF-8"):
        read_trace(path)
