"""Profiles of the Vidur simulator: units, widths, replicates, and what is refused."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from m2bayes.errors import DataError
from m2bayes.vidur import OPERATORS, read_operators

COLUMNS = ("sku", "backend", "version", "kernel", "tokens", "width", "op_time")
OTHERS = ("attn_pre_proj", "mlp_up_proj")  # GEMMs of the file, which are left alone
TIMES = {"emb": 5.0, "input_layernorm": 6.0, "post_attention_layernorm": 6.5, "attn_rope": 4.0,
         "mlp_act": 8.0, "add": 2.0}  # fmt: skip


def kernels(path, *, sku):
    """Rows in an order of their own, without the operators' names."""
    table = read_operators(path, sku=sku)[list(COLUMNS)]
    return table.sort_values(list(COLUMNS), ignore_index=True)


def profile(tokens=(1, 64), parallel=(1, 2, 8)):
    """A made-up mlp.csv: 12 query and 4 KV heads of 64 elements, medians of a few microseconds."""
    rows = []
    for degree in parallel:
        for n in tokens:
            shape = {"n_head": 12, "n_kv_head": 4, "n_embd": 768, "n_expanded_embd": 2048}
            row = shape | {"use_gated_mlp": True, "num_tokens": n}
            row["num_tensor_parallel_workers"] = degree
            for name in (*TIMES, *OTHERS):
                row[f"time_stats.{name}.mean"] = 1e9  # must not be used
                row[f"time_stats.{name}.median"] = 1e-3 * (TIMES.get(name, 50.0) + n)
            rows.append(row)
    return pd.DataFrame(rows)


@pytest.fixture
def write(tmp_path):
    def write(table):
        path = tmp_path / "mlp.csv"
        table.to_csv(path, index=False)
        return path

    return write


def test_rows_are_tidy_and_in_seconds(write):
    table = kernels(write(profile()), sku="T1-10GB-PCIe")
    assert list(table.columns) == list(COLUMNS)
    assert len(table) == 6 * len(OPERATORS)
    assert set(table["sku"]) == {"T1-10GB-PCIe"}
    assert set(table["backend"]) == {"vidur"}
    assert set(table["version"]) == {"7d47513"}
    add = table[(table["kernel"] == "add") & (table["tokens"] == 64)]
    np.testing.assert_allclose(add["op_time"], 66e-6, rtol=1e-12)


def test_widths_are_those_of_one_gpu(write):
    """RoPE turns query and key heads; 4 KV heads on 8 GPUs leave one on each."""
    table = kernels(write(profile()), sku="T1")
    widths = {
        kernel: sorted(set(rows["width"])) for kernel, rows in table.groupby("kernel", sort=True)
    }
    assert widths == {
        "activation": [256, 1024, 2048],
        "add": [768],
        "embedding": [768],
        "norm": [768],
        "rope": [(1.5 + 1) * 64, (6 + 2) * 64, (12 + 4) * 64],
    }


def test_what_parallelism_does_not_change_is_a_replicate(write):
    """Three degrees, and two norms of a block: 3 additions and 6 norms of the same cell."""
    table = kernels(write(profile()), sku="T1")
    counts = table.groupby(["kernel", "tokens", "width"]).size()
    assert counts["add", 1, 768] == counts["embedding", 64, 768] == 3
    assert counts["norm", 1, 768] == 6
    assert (counts["rope"] == 1).all()


def test_the_order_of_rows_is_without_effect(write):
    table = profile()
    once = kernels(write(table), sku="T1")
    again = kernels(write(table.iloc[::-1]), sku="T1")
    pd.testing.assert_frame_equal(once, again)


ADD = "time_stats.add.median"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (ADD, -1.0, "row 2, column time_stats.add.median: '-1.0' is not a time above zero"),
        (ADD, 0.0, "row 2, column time_stats.add.median: '0.0' is not a time above zero"),
        (ADD, "fast", "row 2, column time_stats.add.median: 'fast' is not a finite number"),
        (ADD, np.nan, "row 2, column time_stats.add.median: 'nan' is not a finite number"),
        (ADD, np.inf, "row 2, column time_stats.add.median: 'inf' is not a finite number"),
        (ADD, 1e7, "row 2, column time_stats.add.median: '10000000.0' is not a time in milli"),
        ("num_tokens", 0, "row 2, column num_tokens: '0' is not a whole number from 1 on"),
        ("n_embd", 1.5, "row 2, column n_embd: '1.5' is not a whole number from 1 on"),
        ("use_gated_mlp", False, "row 2, column use_gated_mlp: 'False' is not True"),
    ],
)
def test_a_bad_number_is_named_with_its_row(write, name, value, message):
    table = profile().astype({name: object})
    table.loc[1, name] = value
    with pytest.raises(DataError) as caught:
        kernels(write(table), sku="T1")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["num_tokens", "n_kv_head", "use_gated_mlp", ADD])
def test_a_missing_column_is_named(write, name):
    with pytest.raises(DataError, match=f"mlp.csv: no column {name}; give an mlp.csv of Vidur"):
        kernels(write(profile().drop(columns=name)), sku="T1")


def test_a_table_without_rows_is_refused(write):
    with pytest.raises(DataError, match="the table holds no row"):
        kernels(write(profile().iloc[:0]), sku="T1")


def test_a_file_that_is_none_of_these_is_refused(tmp_path):
    held = {
        "empty.csv": (b"", "the file is empty; give a table"),
        "other.csv": (b"a,b\n1,2\n", "no column num_tokens"),
        "image.csv": (b"\x89PNG\r\n\xff\xfe\x00", "no text in UTF-8"),
        "bytes.csv": (b"a,b\n\x00\x01,2\n", "no column num_tokens"),
        "attention.csv": (
            b"time_stats.attn_prefill.median,batch_size\n1,2\n",
            "is Vidur's attention.csv; give the mlp.csv beside it",
        ),
    }
    for name, (content, message) in held.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError) as caught:
            kernels(tmp_path / name, sku="T1")
        assert str(caught.value).startswith(str(tmp_path / name))
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match=r"absent\.csv: no such file"):
        kernels(tmp_path / "absent.csv", sku="T1")


def test_seconds_taken_for_milliseconds_would_show(write):
    """A deliberate mistake: times in seconds come out a thousandth as long."""
    right = kernels(write(profile()), sku="T1")["op_time"]
    table = profile()
    times = [c for c in table if c.endswith("median")]
    wrong = kernels(write(table.assign(**{c: table[c] * 1e-3 for c in times})), sku="T1")
    assert (right > 1e-6).all()
    assert (wrong["op_time"] < 1e-6).all()


# --- the real profiles -----------------------------------------------------------------------

EXTERNAL = os.environ.get("M2BAYES_EXTERNAL_DATA")


def profiles():
    return sorted(Path(EXTERNAL, "vidur").rglob("mlp.csv")) if EXTERNAL else []


@pytest.mark.skipif(
    not profiles(), reason="M2BAYES_EXTERNAL_DATA names no folder with vidur/**/mlp.csv"
)
def test_the_published_profiles_can_be_read():
    for path in profiles():
        table = kernels(path, sku="T1")
        assert set(table["kernel"]) == {kernel for kernel, _ in OPERATORS.values()}
        assert table["op_time"].between(1e-7, 1e-1).all()
        longest = table[table["tokens"] == table["tokens"].max()].groupby("kernel")["op_time"]
        shortest = table[table["tokens"] == table["tokens"].min()].groupby("kernel")["op_time"]
        assert (longest.min() > shortest.max()).all()
