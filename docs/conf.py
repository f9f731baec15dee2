"""Documentation site: sphinx-build -W -b html docs build/docs (pip install 'm2bayes[docs]')."""

import ast
import json
import re
import shutil
from importlib.metadata import version as version_of
from pathlib import Path

from latex2mathml.converter import convert

ROOT = Path(__file__).resolve().parents[1]

project = "m2bayes"
author = "the m2bayes authors"
release = version_of("m2bayes")
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["figures"]
html_theme = "furo"
html_title = "m2bayes"
html_math_renderer = "mathml"  # no script, no network
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
suppress_warnings = ["misc.highlighting_failure", "ref.footnote"]  # a reference need not be cited
nb_execution_mode = "off"  # the outputs are those in the files, which a test makes anew
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False

# files of the repository that are pages of the site, and links between them
PAGES = {
    "README.md": "index.md",
    "EVALUATION.md": "evaluation.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
}
INCLUDE = re.compile(r"^<!-- include (\S+) -->$", re.MULTILINE)
PRIORS = re.compile(r"^<!-- priors (\S+) -->$", re.MULTILINE)
LINK = re.compile(r"(!?)\[([^\]]+)\]\((?!https?:|#)([^)\s]+)\)")


def linked(found: re.Match) -> str:
    """Link of a file of the repository as one of the site, or its text where it is no page."""
    mark, text, target = found.groups()
    path, hash_, place = target.removeprefix("docs/").partition("#")
    if mark or target.startswith("docs/"):
        return f"{mark}[{text}]({path})"
    return f"[{text}]({PAGES[path]}{hash_}{place})" if path in PAGES else f"`{text}`"


def included(found: re.Match) -> str:
    """A file of the repository with its links turned to those of the site."""
    return LINK.sub(linked, (ROOT / found[1]).read_text(encoding="utf-8"))


def log_normal(centre: ast.expr, sd: ast.expr) -> str:
    """Prior on the log scale as it stands in the model's file."""
    return f"`N({ast.unparse(centre).replace('np.', '')}, {ast.unparse(sd)})`"


def calls(model: str):
    """Name, prior, and spreads of each factor, as the model's file has them."""
    for node in ast.walk(ast.parse((ROOT / "models" / f"{model}.py").read_text(encoding="utf-8"))):
        called = node.func.attr if isinstance(node, ast.Call) and hasattr(node.func, "attr") else ""
        if called == "pooled":
            below = {k.arg: ast.unparse(k.value) for k in node.keywords}
            spreads = [below.get(level, "-") for level in ("architecture", "sku")]
            yield node.args[0].value, log_normal(*node.args[1].elts), *spreads
        elif called == "Normal":
            yield node.args[0].value, log_normal(*node.args[1:3]), "-", "-"


def priors(found: re.Match) -> str:
    """Table of a model's factors: meaning, unit, prior, spreads, and what the source calls it."""
    card = json.loads((ROOT / "models" / f"{found[1]}.json").read_text(encoding="utf-8"))
    about = {factor["name"]: factor for factor in card["factors"]}
    lines = [
        "| factor | unit | prior of the population | family | card | meaning | in the source |",
        "| --- | --- | --- | ---: | ---: | --- | --- |",
    ]
    for name, prior, family, sku in calls(found[1]):
        own = about.get(name.removeprefix("log_")) or about[name]
        scale = "log " if name.startswith("log_") else ""
        meaning = f"{own['description']} | {own['source']}"
        row = f"`{own['name']}` | {own['units']} | {scale}{prior} | {family} | {sku} | {meaning}"
        lines.append(f"| {row} |")
    return "\n".join(lines)


def filled(app, docname: str, source: list) -> None:
    """Put in what a page takes from files of the repository."""
    if "notebooks/" not in docname:
        text = PRIORS.sub(priors, INCLUDE.sub(included, source[0]))
        source[0] = text.replace("(../../notebooks/", "(../notebooks/")


def copied(app, config) -> None:
    """Bring the notebooks among the pages; the copies are not kept in the repository."""
    shutil.copytree(ROOT / "notebooks", ROOT / "docs" / "notebooks", dirs_exist_ok=True)


def footnotes(app, what: str, name: str, *rest: object) -> None:
    """Give the references of each docstring labels of their own: one page holds many."""
    own, lines = re.sub(r"\W+", "-", name), rest[-1]
    for i, line in enumerate(lines):
        lines[i] = re.sub(r"\[(\d+)\](_?)", rf"[#{own}-\1]\2", line) if _refers(line) else line


def _refers(line: str) -> bool:
    return bool(re.search(r"(^\.\. \[\d+\] )|(\[\d+\]_)", line.strip()))


def lines_of(tex: str) -> list:
    """Lines of a displayed formula, each as MathML."""
    parts = [part.replace("&", " ").strip() for part in tex.split(r"\\")]
    return [convert(part, display="block") for part in parts if part]


def inline(translator, node) -> None:
    """Formula within a line, as MathML."""
    import docutils.nodes

    translator.body.append(convert(node.astext()))
    raise docutils.nodes.SkipNode


def displayed(translator, node) -> None:
    """Displayed formula, as MathML."""
    import docutils.nodes

    held = "".join(lines_of(node.astext()))
    translator.body.append(f'<div class="math" style="overflow-x: auto">{held}</div>')
    raise docutils.nodes.SkipNode


def setup(app) -> None:
    """Register formulas without scripts, and what pages take from the repository."""
    app.add_html_math_renderer("mathml", (inline, None), (displayed, None))
    app.connect("config-inited", copied)
    app.connect("source-read", filled)
    app.connect("autodoc-process-docstring", footnotes, priority=100)  # before napoleon
