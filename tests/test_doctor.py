"""What is broken is found; help and completion serve every command."""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys

import pytest
from helpers import run

from m2bayes.database import Database
from m2bayes.doctor import BROKEN, MISSING, SOUND, examined, files, outside_data, packages
from m2bayes.options import parser
from m2bayes.options._examples import EXAMPLES

ESCAPE = "\x1b"


def commands():
    top = parser()
    (held,) = (a.choices for a in top._actions if isinstance(a, argparse._SubParsersAction))
    return held


@pytest.fixture
def copied(database, tmp_path):
    """A database that may be damaged, with one posterior."""
    shutil.copytree(database.root / "models", tmp_path / "models")
    for folder in ("datasheets", "llms", "measurements"):
        shutil.copytree(database.root / "data" / folder, tmp_path / "data" / folder)
    (tmp_path / "posteriors").mkdir()
    for suffix in (".json", ".nc"):
        file = f"gemm_bf16-const_ceiling{suffix}"
        shutil.copy(database.root / "posteriors" / file, tmp_path / "posteriors" / file)
    return tmp_path


def broken(root):
    return [(c["kind"], c["name"]) for c in files(Database(root)) if c["state"] == BROKEN]


def test_this_installation_is_sound(monkeypatch):
    monkeypatch.delenv("M2BAYES_EXTERNAL_DATA", raising=False)
    code, out, err = run("doctor")
    assert (code, err) == (0, ""), out
    assert out.endswith("sound\n")
    assert max(map(len, out.splitlines())) <= 80
    assert ESCAPE not in out


def test_json_names_every_posterior_and_every_version(database, monkeypatch):
    monkeypatch.delenv("M2BAYES_EXTERNAL_DATA", raising=False)
    code, out, _ = run("doctor", "--json")
    found = json.loads(out)
    assert (code, found["sound"]) == (0, True)
    names = {c["name"] for c in found["checks"]}
    assert {*database.posteriors(), *database.data(), *database.skus(), "pymc"} <= names
    assert set(found["versions"]) == {"python", "m2bayes"}


def test_an_untouched_copy_is_sound(copied):
    assert broken(copied) == []


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("posteriors/gemm_bf16-const_ceiling.nc", "posterior"),
        ("data/measurements/gemm_bf16.csv", "data set"),
    ],
)
def test_a_changed_byte_is_found(copied, file, kind):
    path = copied / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert [k for k, _ in broken(copied)] == [kind]


def test_a_datasheet_that_changed_since_the_fit_breaks_it_and_the_exit_code_says_so(copied):
    path = copied / "data" / "datasheets" / "H100-80GB-SXM.json"
    card = json.loads(path.read_text())
    card["facts"]["power_limit"]["value"] += 10
    path.write_text(json.dumps(card))
    code, out, _ = run("doctor", "--database", str(copied))
    assert code == 2
    assert "the datasheet of H100-80GB-SXM changed since the fit" in " ".join(out.split())
    assert out.endswith("broken: see above\n")


def test_a_missing_package_is_broken_if_needed_and_missing_if_optional(monkeypatch):
    asked = ["numpy>=1", "numpy>=999", "nowhere>=1", "nowhere>=1; extra == 'dream'"]
    monkeypatch.setattr("m2bayes.doctor.requires", lambda name: asked)
    assert [c["state"] for c in packages()] == [SOUND, BROKEN, BROKEN, MISSING]


def test_the_outside_folder_is_missing_broken_or_sound(monkeypatch, tmp_path):
    states = []
    for value in ("", str(tmp_path / "nowhere"), str(tmp_path)):
        monkeypatch.setenv("M2BAYES_EXTERNAL_DATA", value)
        states.append(outside_data()["state"])
    assert states == [MISSING, BROKEN, SOUND]


def test_every_check_has_the_same_keys(copied):
    keys = {frozenset(c) for c in examined(Database(copied))["checks"]}
    assert keys == {frozenset({"kind", "name", "state", "detail"})}


@pytest.mark.parametrize("name", sorted(commands()))
def test_help_of_every_command_ends_with_an_example_that_it_accepts(name):
    own = commands()[name]
    example = EXAMPLES[name]
    assert own.format_help().rstrip().endswith(example)
    assert max(map(len, example.splitlines())) <= 80
    words = shlex.split(example.replace("\\\n", " "))
    if words[0] == "m2bayes":
        assert parser().parse_args(words[1:]).command == name


def test_no_colour_where_none_is_wanted():
    env = {**os.environ, "NO_COLOR": "1", "FORCE_COLOR": "", "COLUMNS": "80"}
    for argv in (["--help"], ["rank", "--help"], ["list", "skus"]):
        done = subprocess.run(
            [sys.executable, "-m", "m2bayes.cli", *argv],
            capture_output=True, text=True, check=True, env=env,
        )  # fmt: skip
        assert ESCAPE not in done.stdout + done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_commands_options_and_names(shell):
    code, out, err = run("completion", shell)
    assert (code, err) == (0, "")
    for word in ("completion", "workload", "qwen3-32b", "l40s", "step_bf16"):
        assert word in out


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_a_command_and_an_llm(tmp_path):
    script = tmp_path / "complete.sh"
    script.write_text(run("completion", "bash")[1])
    probe = """
. "$1"
COMP_WORDS=(m2bayes ran); COMP_CWORD=1; _shtab_m2bayes; echo "${COMPREPLY[@]}"
COMP_WORDS=(m2bayes rank --llm qwen3-3); COMP_CWORD=3; _shtab_m2bayes; echo "${COMPREPLY[@]}"
"""
    done = subprocess.run(
        ["bash", "-c", probe, "bash", str(script)], capture_output=True, text=True, check=False
    )
    assert [line.split() for line in done.stdout.splitlines()] == [["rank"], ["qwen3-32b"]]


def test_a_shell_that_is_none_is_refused():
    assert run("completion", "cmd")[0] == 2
