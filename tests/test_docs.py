"""The documentation builds without a warning, and what it tells people to type runs."""

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import run

import m2bayes
from m2bayes import plot

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md"))
NEEDED = ("sphinx", "myst_nb", "furo", "latex2mathml")  # m2bayes[docs]
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DRAWS = 100  # used where a command takes fewer: the texts are of what to type
THINNED = ("rank", "predict", "next", "plan")
NOT_RUN = {  # blocks that start so, and why
    "m2bayes measure": "times kernels on a GPU",
}


def blocks(kind):
    """Page and text of every fenced block of one kind."""
    for page in PAGES:
        for found in BLOCK.finditer(page.read_text(encoding="utf-8")):
            if found[1] == kind:
                yield page.relative_to(DOCS).as_posix(), found[2]


def commands(text):
    """Commands of a block, one a line, continued lines joined."""
    return [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]


SHELL = [pytest.param(text, id=f"{page}-{i}") for i, (page, text) in enumerate(blocks("sh"))]
PYTHON = [pytest.param(text, id=f"{page}-{i}") for i, (page, text) in enumerate(blocks("python"))]
CELLS = [(64, 6144, 4096), (64, 4096, 4096), (256, 4096, 4096), (1024, 8192, 4096)]


@pytest.fixture(scope="module")
def folder(database, tmp_path_factory):
    """Files that the guides name, and what one command leaves for the next."""
    path = tmp_path_factory.mktemp("guides")
    card, _ = database.sku_card("h100-pcie")
    card |= {"name": "MINE-80GB-PCIe", "aliases": []}
    (path / "my_gpu.json").write_text(json.dumps(card))
    (path / "plan.csv").write_text("kind,batch,context\ndecode,8,1024\ndecode,64,1024\n")
    steps = ("h100,decode:batch=32,context=4096,0.0105", "l40s,decode:batch=32,context=4096,0.031")
    rows = [row.split(",", 1) for row in steps]
    text = "".join(
        f'{sku},"{rest.rsplit(",", 1)[0]}",{rest.rsplit(",", 1)[1]}\n' for sku, rest in rows
    )
    (path / "grid.toml").write_text(
        'llm = ["llama-3.1-8b"]\nsku = ["h100", "h200"]\nworkload = ["prefill:tokens=512"]\n'
        "[settings]\ndraws = 40\n"
    )
    (path / "steps.csv").write_text(f"sku,workload,step_time\n{text}")
    (path / "mine.csv").write_text(mine(database))
    return path


def mine(database):
    """A user's table of times, the measured ones of a card."""
    table = database.table("gemm_bf16_test").query("sku == 'H100-80GB-SXM' and backend == 'vllm'")
    rows = table.drop_duplicates(["M", "N", "K"]).head(6)
    lines = [
        f"h100,{r.M},{r.N},{r.K},{1e3 * r.op_time:.6f},vllm,{r.version}" for r in rows.itertuples()
    ]
    return "\n".join(["sku,M,N,K,time [ms],backend,version", *lines, ""])


@pytest.mark.slow
@pytest.mark.parametrize("text", SHELL)
def test_a_command_of_the_guides_runs(text, folder, monkeypatch):
    monkeypatch.chdir(folder)
    for line in commands(text):
        if any(line.startswith(start) for start in NOT_RUN):
            continue
        name, *argv = shlex.split(line, comments=True)
        assert name == "m2bayes", line
        if argv[0] in THINNED and "--posterior" not in argv:
            argv += ["--draws", str(DRAWS)]
        if argv[0] == "plan" and "--tp" not in argv:
            argv += ["--tp", "2"]  # one of four, to be quick
        code, _, err = run.__wrapped__(*argv)
        assert code == 0, f"{line}\n{err}"


@pytest.mark.parametrize("text", PYTHON)
def test_python_of_the_pages_runs(text, capsys):
    exec(compile(text, "page", "exec"), {})
    assert "p_best" in capsys.readouterr().out


def test_what_is_not_run_is_there():
    lines = [line for _, text in blocks("sh") for line in commands(text)]
    inline = " ".join(path.read_text(encoding="utf-8") for path in PAGES)
    for start in NOT_RUN:
        assert any(line.startswith(start) for line in lines) or f"`{start}" in inline


@pytest.mark.slow
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in NEEDED),
    reason="the documentation's generator is not installed: pip install 'm2bayes[docs]'",
)
def test_the_site_builds_without_a_warning(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html",
         "-d", str(tmp_path / "trees"), str(DOCS), str(tmp_path / "site")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    page = (tmp_path / "site" / "mathematics.html").read_text(encoding="utf-8")
    assert "<math" in page
    assert "log_" not in page
    assert '<script src="http' not in page
    index = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert (ROOT / "README.md").read_text(encoding="utf-8").split("\n", 1)[0][2:] in index


def test_every_public_name_is_in_the_reference():
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    assert [name for name in m2bayes.__all__ if f"m2bayes.{name}" not in text] == []
    assert "m2bayes.plot" in text
    assert plot.__all__


def test_every_law_has_its_documentation():
    text = (DOCS / "laws.rst").read_text(encoding="utf-8")
    names = {path.stem for path in (ROOT / "m2bayes" / "mechanism").glob("*.py")}
    missing = {name for name in names if f"m2bayes.mechanism.{name}\n" not in text}
    assert missing == {"__init__", "laws"}  # the latter is a table of the others


def test_the_priors_of_every_model_are_on_the_page_of_the_mathematics(database):
    text = (DOCS / "mathematics.md").read_text(encoding="utf-8")
    assert [name for name in database.models() if f"<!-- priors {name} -->" not in text] == []


def test_priors_are_read_from_the_model(database):
    pytest.importorskip("latex2mathml", reason="pip install 'm2bayes[docs]'")
    spec = importlib.util.spec_from_file_location("docs_conf", DOCS / "conf.py")
    conf = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conf)
    for name in database.models():
        factors = {factor["name"] for factor in database.model(name).factors}
        assert {called.removeprefix("log_") for called, *_ in conf.calls(name)} == factors
    found = {called: rest for called, *rest in conf.calls("const_ceiling")}
    assert found["log_ceiling"] == ["`N(log(0.7), 0.3)`", "0.2", "-"]
