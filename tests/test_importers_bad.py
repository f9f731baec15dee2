"""Files that are none: one line that names file, column or row and remedy; nothing is written."""

import subprocess
import sys

import pytest

from m2bayes import cli
from m2bayes.importers import _rows
from m2bayes.importers._rows import frames

HEADER = "sku,backend,version,M,N,K,op_time\n"
ROW = "h200,vllm,0.24.0,64,4096,4096,0.00003\n"
SOUND = HEADER + 3 * ROW


@pytest.fixture
def outcome(tmp_path, capsys):
    """Exit code and the line on standard error of one import; nothing may be left behind."""

    def outcome(content, form="plain", name="mine.csv", *more):
        path, out = tmp_path / name, tmp_path / "out.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        code = cli.main(["import", form, str(path), "--out", str(out), *more])
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert list(tmp_path.iterdir()) == [path]
        path.unlink()
        return code, captured.err

    return outcome


BAD = {
    "truncated": (SOUND[:-16], "row 3 has 5 of 7 cells: it is cut off; copy it again"),
    "cut within quotes": (SOUND + '"h200,vllm', "row 4: unexpected end of data; is it cut off?"),
    "another delimiter": (SOUND.replace(",", ";"), "separated by ';', not by commas; write it"),
    "tabs": (SOUND.replace(",", "\t"), "separated by '\\t', not by commas"),
    "no column": (SOUND.replace("op_time", "x"), "no column op_time; needed are sku, backend"),
    "a short row": (HEADER + "h200,vllm\n" + ROW, "row 1 has 2 of 7 cells; fill or drop them"),
    "a long row": (HEADER + ROW.strip() + ",1\n", "row 1 has 8 cells, the header 7; name every"),
    "empty": ("", "the file is empty; give a table with a header"),
    "blank": ("\n \n", "the file is empty"),
    "no row": (HEADER, "the table holds no row; give at least one measurement"),
    "milliseconds": (SOUND.replace("0.00003", "0.03"), "are they in ms? write the unit: time [ms]"),
    "twice": (SOUND.replace("K,", "M,"), "two columns named 'M'; keep one"),
    "UTF-16": (SOUND.encode("utf-16"), "no text in UTF-8; unpack or convert it"),
    "binary": (b"a\0b,c\n1,2\n", "line 1 holds binary data; give a text file"),
    "an endless line": ("a" * 2_000_000, "line 1 has over 1,048,576 characters; is it a table?"),
    "JSON": ('{"a": 1}', "is JSON or a page, not a table; give a CSV"),
    "a bad number": (
        SOUND.replace("64", "many", 1),
        "row 1, column M: 'many' is not a whole number",
    ),
    "no card": (SOUND.replace("h200", ""), "row 1, column sku: names no card; add --sku NAME"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_in_one_line(outcome, name):
    content, message = BAD[name]
    code, err = outcome(content)
    assert code == 2
    assert message in err
    assert "mine.csv: " in err


def test_an_attention_file_given_as_mlp(outcome):
    text = "time_stats.attn_prefill.median,time_stats.attn_decode.median,batch_size\n1,1,1\n"
    for form in ("vidur", "vidur-light"):
        code, err = outcome(text, form, "attention.csv", "--sku", "a100")
        assert code == 2
        assert "is Vidur's attention.csv; give the mlp.csv beside it" in err


def test_a_file_of_another_format_is_recognised(outcome):
    code, err = outcome(SOUND.replace("op_time", "time_stats.x.median"), "plain")
    assert code == 2
    assert "it looks like a file for m2bayes import vidur" in err
    _, err = outcome('{"avg_latency": 1}', "aiperf", "run.json", "--sku", "h100")
    assert "it looks like a file for m2bayes import vllm" in err


def test_parquet_that_is_none(outcome, tmp_path):
    code, err = outcome(SOUND, "plain", "mine.parquet")
    assert code == 2
    assert "no Parquet file" in err
    assert "is it cut off? copy it again" in err


def test_a_fact_is_given_once(outcome):
    _, err = outcome(SOUND, "plain", "mine.csv", "--given", "tp=1", "tp=2")
    assert "--given tp is given twice; keep one" in err


# --- large files -----------------------------------------------------------------------------


def test_a_file_is_read_in_blocks(tmp_path, monkeypatch):
    """The second block is not read before it is asked for: a fault in it comes later."""
    monkeypatch.setattr(_rows, "CELLS", 7 * 100)
    path = tmp_path / "mine.csv"
    path.write_text(HEADER + 150 * ROW + "x,\n" + ROW)
    blocks = frames(path)
    first = next(blocks)
    assert (len(first), first.index[0], first.index[-1]) == (100, 1, 100)
    with pytest.raises(ValueError, match="row 151 has 2 of 7 cells"):
        list(blocks)


MEASURE = """
import resource, sys
from m2bayes.database import Database
from m2bayes.importing import imported
database = Database()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    imported(database, "plain", sys.argv[1:])
except ValueError as fault:
    print(fault)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize("content", [SOUND.removeprefix(HEADER), "x"], ids=["rows", "one line"])
def test_two_hundred_megabytes_take_bounded_memory(tmp_path, content):
    """Of a table that is far too long only as much is read as is needed to say so."""
    path = tmp_path / "large.csv"
    size = 200 * 10**6
    with path.open("w") as handle:
        handle.write(HEADER)
        part = content * (10**6 // len(content))
        for _ in range(size // len(part)):
            handle.write(part)
    assert path.stat().st_size > 0.99 * size
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True
    )
    said, megabytes = done.stdout.splitlines()
    assert "thin or split it" in said or "has over 1,048,576 characters" in said
    assert int(megabytes) < 350
