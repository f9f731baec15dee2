"""A user's own card goes by its name in every command that takes its datasheet."""

import json
import subprocess
import sys

import pytest
from helpers import refusal, run

from m2bayes.database import Database
from m2bayes.errors import DatasheetError, UnknownNameError
from m2bayes.linting.cards import doubts

NAME, GEMM = "MYGPU-80GB-SXM", "gemm_bf16-hier_gemm"
ROWS = (
    "sku,backend,version,M,N,K,op_time\n"
    "{0},vllm,1,64,6144,4096,3e-5\n{0},vllm,1,8,6144,4096,2.4e-5\n"
)
RANK = ("--llm", "llama-3.1-8b", "--workload", "decode:batch=1,context=64", "--draws", "100")


@pytest.fixture
def own(tmp_path, database):
    """Datasheet of a card like the H100 under another name; its aliases were forgotten."""
    card = database.sku_card("h100")[0]
    path = tmp_path / "my_gpu.json"
    path.write_text(json.dumps(card | {"name": NAME, "aliases": ["h100", "mine"]}))
    return str(path)


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(ROWS.format(NAME))
    return str(path)


def test_a_card_goes_by_name_and_own_alias_and_known_names_stay(own, database):
    more = database.with_cards([own, "l40s"])
    assert more.sku_card(NAME)[1] == more.sku_card("MINE")[1] == own
    assert more.sku_card("h100")[0]["name"] == "H100-80GB-SXM"
    assert NAME not in more.skus()
    with pytest.raises(UnknownNameError):
        database.sku_card(NAME)


@pytest.mark.parametrize("sku", [NAME, "", "h9000"])
def test_import_takes_a_datasheet(own, tmp_path, sku):
    source, target = tmp_path / "mine.csv", tmp_path / "out.csv"
    source.write_text(f"sku,M,N,K,time [us]\n{sku},64,6144,4096,30\n")
    argv = ("import", "plain", str(source), "--sku", own, "--out", str(target))
    code, _, err = run(*argv, "--given", "version=1", "backend=vllm")
    assert code == 0, err
    assert NAME in target.read_text()
    assert run("lint", str(target), "--sku", own)[:2] == (0, "1 file, nothing to report\n")


def test_check_takes_a_datasheet(own, rows):
    code, out, _ = run("check", "--data", rows, "--sku", own, "--quiet")
    assert code == 0
    assert NAME in out
    message = refusal(run("check", "--data", rows, "--quiet"))
    assert "unknown SKU 'MYGPU-80GB-SXM'" in message
    assert message.endswith("(of your own card give the datasheet with --sku)")


def test_check_refuses_other_numbers_under_a_known_name(tmp_path, database):
    card = json.loads(json.dumps(database.sku_card("h100")[0]))
    card["facts"]["l2"]["value"] += 1
    path, data = tmp_path / "h100.json", tmp_path / "rows.csv"
    path.write_text(json.dumps(card))
    data.write_text(ROWS.format("H100-80GB-SXM"))
    message = refusal(run("check", "--data", str(data), "--sku", str(path), "--quiet"))
    assert "has other numbers than the datasheet that the posterior was fitted with" in message


def test_a_wrong_datasheet_is_refused_even_unused(tmp_path, database, rows):
    card = json.loads(json.dumps(database.sku_card("h100")[0]))
    del card["facts"]["l2"]
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(card))
    with pytest.raises(DatasheetError, match="l2: is missing"):
        database.with_cards([str(path)])
    out = str(tmp_path / "out")
    message = refusal(run("update", GEMM, rows, "--sku", str(path), "--out", out, "--quiet"))
    assert "l2: is missing" in message


def test_prices_and_calibration_know_the_card(own, tmp_path):
    steps = tmp_path / "steps.csv"
    steps.write_text(f'sku,workload,step_time\n{NAME},"decode:batch=1,context=64",0.009\n')
    argv = ("rank", *RANK, "--sku", own, "l40s", "--calibrate", str(steps), "--quiet")
    cost = ("--metric", "cost_per_million_tokens", "--price", f"{NAME}=2", "l40s=1")
    assert run(*argv, *cost)[0] == 0


def test_an_unknown_card_of_a_calibration_has_its_line(tmp_path):
    steps = tmp_path / "steps.csv"
    steps.write_text('sku,workload,step_time\nfoo,"decode:batch=1,context=64",0.009\n')
    message = refusal(run("rank", *RANK, "--sku", "h100", "l40s", "--calibrate", str(steps)))
    assert f"{steps} line 2: unknown SKU 'foo'" in message


def test_lint_names_an_unknown_card_as_one(tmp_path):
    path = tmp_path / "foo.csv"
    path.write_text(ROWS.format("H1000-80GB-SXM"))
    code, out, _ = run("lint", str(path), "--quiet")
    assert code == 2
    assert "row 1, column sku: unknown SKU 'H1000-80GB-SXM'; did you mean H100" in out
    assert "names no card" not in out


@pytest.mark.parametrize("name", ["run.json", "table.parquet"])
def test_update_points_at_import(tmp_path, name):
    path = tmp_path / name
    path.write_text("{}")
    argv = ("update", GEMM, str(path), "--out", str(tmp_path / "out"))
    assert refusal(run(*argv)).endswith(f"{path}: no CSV table; make one of it with m2bayes import")


def test_update_points_at_import_for_other_units(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("sku,backend,version,M,N,K,time [ms]\nh100,vllm,1,64,6144,4096,0.03\n")
    message = refusal(run("update", GEMM, str(path), "--out", str(tmp_path / "out")))
    assert "no column op_time" in message
    assert "m2bayes import makes such a table" in message


@pytest.mark.parametrize("command", ["update", "check", "lint", "calibrate", "workload", "mix"])
@pytest.mark.parametrize("content", ["", "sku,M\n1,2\n"])
def test_empty_and_utf_16_files_are_named_in_our_words(tmp_path, command, content):
    path = tmp_path / "mine.csv"
    path.write_bytes(content.encode("utf-16"))
    file = str(path)
    rank = ("rank", *RANK[:2], "--sku", "h100", "l40s")
    argv = {
        "update": ("update", GEMM, file, "--out", str(tmp_path / "out")),
        "check": ("check", "--data", file),
        "lint": ("lint", file),
        "calibrate": (*rank, *RANK[2:], "--calibrate", file),
        "workload": (*rank, "--workload", file),
        "mix": ("plan", *RANK[:2], "--sku", "h100", "--rate", "1", "--ttft", "1", "--mix", file),
    }[command]
    message = refusal(run(*argv))
    assert "no text in UTF-8" in message
    assert "codec" not in message
    path.write_bytes(b"")
    empty = refusal(run(*argv, "--quiet"))
    assert "pars" not in empty
    assert "mine.csv" in empty


def test_python_m_runs_the_command_line():
    done = subprocess.run(
        [sys.executable, "-m", "m2bayes", "list", "models"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert "hier_gemm" in done.stdout


def test_a_database_with_cards_is_the_same_folder(own):
    database = Database()
    assert database.with_cards([own]).root == database.root
    assert database.with_cards([own]).with_cards(["h100"]).own == {NAME: own}


def test_a_figure_without_a_file_is_refused():
    message = refusal(run("rank", *RANK, "--sku", "h100", "l40s", "--figure", "regret"))
    assert message.endswith("--figure regret: name the file with --plot FILE")


def test_a_name_with_a_slash_is_refused(own, tmp_path):
    card = json.loads((tmp_path / "my_gpu.json").read_text()) | {"name": "MY/GPU-80GB-SXM"}
    (tmp_path / "my_gpu.json").write_text(json.dumps(card))
    assert "name: is 'MY/GPU-80GB-SXM'" in refusal(run("rank", *RANK, "--sku", own, "l40s"))


@pytest.mark.parametrize("text", ["0.05", "50ms", "50 ms", "50000us", "0.05s"])
def test_a_target_may_have_its_unit(text):
    from m2bayes.options._types import duration

    assert duration(text) == pytest.approx(0.05)


def test_what_show_prints_is_a_datasheet_file(tmp_path):
    path = tmp_path / "copy.json"
    text = run("show", "h100", "--json")[1]
    path.write_text(text.replace('"H100-80GB-SXM"', f'"{NAME}"').replace('"h100', '"mine'))
    assert run("lint", str(path))[:2] == (0, "1 datasheet, nothing to report\n")
    assert run("show", str(path), "--json")[0] == 0
    code, out, _ = run("rank", *RANK, "--sku", str(path), "l40s", "--quiet")
    assert (code, NAME in out) == (0, True)


def doubted(card, others):
    return [finding.message for finding in doubts(card, origin="c", others=others)]


def test_known_cards_leave_nothing_to_doubt(database):
    cards = [database.sku_card(name)[0] for name in database.skus()]
    assert [doubted(card, cards) for card in cards] == [[]] * len(cards)


def test_a_copied_card_names_the_sources_that_are_another_chips(database):
    card = database.sku_card("h100")[0]
    copied = json.loads(json.dumps(card)) | {"name": "X500-80GB-SXM", "vendor": "ACME"}
    (line,) = doubted(copied, [card])
    assert line.startswith("c: facts.sm_count.source: is a document of the H100 (and of ")
    assert line.endswith("name the one that says it of the X500")


@pytest.mark.parametrize(("width", "odd"), [(4096, False), (49152, False), (4054, True)])
def test_a_tensor_core_of_an_odd_width_is_doubted(database, width, odd):
    card = json.loads(json.dumps(database.sku_card("h100")[0]))
    card["facts"]["tensor_flop_per_clock"]["bf16"]["value"] = width
    assert bool(doubted(card, [])) == odd


@pytest.mark.parametrize("name", ["H 100-80GB-SXM", "Ж100-80GB-SXM"])
def test_a_name_that_is_hard_to_type_is_doubted(database, name):
    (line,) = doubted(database.sku_card("h100")[0] | {"name": name}, [])
    assert "hard to type" in line
