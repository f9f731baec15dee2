"""The rules of the house: which module may import what, what is public, how things are named."""

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
import xarray as xr

import m2bayes
from m2bayes import decision
from m2bayes.cli import SPARED
from m2bayes.factors import with_skus
from m2bayes.llm import LLM
from m2bayes.measurements import checked, runs_by_cell
from m2bayes.mechanism.gemm import gemm_terms
from m2bayes.predictive import predict
from m2bayes.workload import gemm_cells, parse_workload

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "m2bayes"

# The pipeline, lowest first: a module imports from layers below its own, never from its own.
LAYERS = [
    {"errors", "_jobs", "_math", "_order", "_random", "options._types", "options._examples"},
    {"linting", "measuring", "information", "reporting", "serving", "updating", "sweeping"},
    {"options._question", "options.fitting", "options.importing", "options.updating"},
    {
        "options.asking",
        "options.doctor",
        "options.judging",
        "options.listing",
        "options.plan",
        "options.next",
        "options.sweep",
    },
    {"options"},
    {"_ranks", "random_fields"},
    {
        "_families",
        "_files",
        "_draws",
        "_spec",
        "datasheet",
        "decision",
        "score",
        "discrepancy",
        "calibrate",
    },
    {"serving.scheduler", "serving.queueing", "serving.mix", "prices", "dominance"},
    {"serving.simulate", "serving.replica", "serving.backlog"},
    {"serving.first_token", "serving.next_tokens", "serving.reading"},
    {"serving.steady"},
    {"serving.loops"},
    {"serving.goodput"},
    {"quantisation", "sweeping.cluster"},
    {"mechanism", "mechanism.roofline", "mechanism.wave", "mechanism.clock", "mechanism.memory"},
    {"blocks"},
    {"mechanism.gemm", "mechanism.attention", "mechanism.collective", "mechanism.host"},
    {"mechanism.quantise", "mechanism.decode_attention"},
    {"mechanism.light", "mechanism.power", "llm", "diagnostics", "factors"},
    {"mechanism.laws", "gemm"},
    {"kernels", "operators", "residuals", "contraction", "records"},
    {"measurements", "residency", "misfit"},
    {"predictive"},
    {"updating.coordinates", "updating.likelihood", "updating.carried", "updating.design"},
    {"updating.enlarge", "updating.importance", "updating.rows"},
    {"updating.condition", "updating.smoothing"},
    {"updating.outlying"},
    {"updating.conditioned"},
    {"updating.moves"},
    {"memory"},
    {"narrow"},
    {"hierarchy", "step", "workload", "information.voi"},
    {"outside", "importers", "importers._rows", "importers._meaning"},
    {"silicon"},
    {"database", "traces", "timings", "vidur", "requests"},
    {"importers._parts", "importers.designed", "importers.hosts"},
    {"importers._labels", "importers.engines", "importers.counters", "linting.plausible"},
    {"linting.cards"},
    {"importers.plain", "importers.profiles", "importers.telemetry", "importers.aiconfigurator"},
    {"importers.formats", "linting.floors", "linting.tails", "linting.disagreement"},
    {"importing", "measuring.kernels", "measuring.keeping"},
    {"question", "inputs", "linting.files", "output", "layout", "measuring.cuda"},
    {"feasibility", "drivers"},
    {"answer", "tables", "crossover", "asking", "bottleneck", "surface", "information.candidates"},
    {"posterior", "remarks", "catalogue", "serving.plan", "serving.planned", "information.worth"},
    {"serving.sizing", "serving.simulated", "information.table"},
    {"serving.fleet"},
    {"leaveout", "sbc", "updating.refit", "updating.table", "sweeping.grid"},
    {"sweeping.points", "sweeping.store"},
    {"sweeping.engine"},
    {"updating.refused"},
    {"updating.update"},
    {"evaluate", "suites._designs", "suites._density", "suites._ladder", "suites._quick"},
    {"updating.drift"},
    {"checking", "doctor", "suites._grid", "suites._steps", "suites._forest", "suites.rivals"},
    {"suites.gemm_fp8", "suites._scalars", "suites.few_shot"},
    {"suites.served_e2e", "suites.refit"},
    {"suites.gemm_cells", "suites.gemm_transfer", "suites.clock", "suites.eta", "suites.attention"},
    {
        "suites.ranking",
        "suites.flips",
        "suites.fresh",
        "suites.power",
        "suites.knee",
        "suites.light",
        "suites.sbc",
        "suites.sensitivity",
        "suites.loo",
        "suites.prior",
        "suites.attention_transfer",
    },
    {"suites._waits", "suites._adjusted", "suites.next"},
    {"suites._queue"},
    {"suites.qlm"},
    {"suites.served", "suites._profiles"},
    {"suites.distserve", "suites.vidur_home", "suites.vidur_transfer"},
    {"suites.calibrate"},
    {"suites"},
    {"plot._svg", "plot._series"},
    {"plot._canvas"},
    {"plot.ranks", "plot.maps", "plot.regrets", "plot.parts", "plot.roofs", "plot.clocks"},
    {"plot.forest", "plot.calibration", "plot.plans", "plot.values"},
    {"plot.predictive"},
    {"plot"},
    {"plot.asked", "reporting.sentences", "reporting.evidence"},
    {"reporting.report"},
    {"commands._shared"},
    {"commands.report"},
    {"commands.asking", "commands.fitting", "commands.importing", "commands.judging"},
    {"commands.linting", "commands.listing", "commands.measuring", "commands.plan"},
    {"commands.doctor", "commands.update", "commands.next", "commands.sweep"},
    {"commands"},
    {"cli"},
    {"__main__"},
    {"__init__"},
]
ARRAYS = {"numpy", "xarray"}
FRAMES = {*ARRAYS, "pandas"}
DRAWING = sorted(name for names in LAYERS for name in names if name.startswith("plot."))
READERS = sorted(name for names in LAYERS for name in names if name.startswith("importers."))
UPDATING = (
    "updating.carried",
    "updating.rows",
    "updating.condition",
    "updating.conditioned",
    "updating.refused",
    "updating.update",
    "updating.drift",
    "checking",
)
UPDATING += ("suites.few_shot", "suites.refit")
# Third parties at module level; modules that are not named here have ARRAYS.
AT_MODULE_LEVEL = {
    "cli": set(),
    "__init__": set(),
    "errors": set(),
    "doctor": {"packaging"},
    "commands.doctor": set(),
    "output": set(),
    "measurements": FRAMES,
    "inputs": FRAMES,
    **dict.fromkeys(UPDATING, FRAMES),
    "suites.gemm_transfer": FRAMES,
    "suites.fresh": FRAMES,
    "suites.power": FRAMES,
    "suites.served": FRAMES,
    "suites._queue": FRAMES,
    "suites.served_e2e": FRAMES,
    "silicon": FRAMES,
    "suites.distserve": FRAMES,
    "suites.calibrate": FRAMES,
    "suites.attention": FRAMES,
    "suites.light": FRAMES,
    "suites._forest": FRAMES,
    "suites._profiles": FRAMES,
    "suites._designs": FRAMES,
    "suites.vidur_home": FRAMES,
    "suites.vidur_transfer": FRAMES,
    "importing": FRAMES,
    "linting.plausible": FRAMES,
    "linting.floors": FRAMES,
    "linting.tails": FRAMES,
    "linting.disagreement": FRAMES,
    "measuring.kernels": FRAMES,
    "measuring.keeping": FRAMES,
    "outside": FRAMES,
    "traces": FRAMES,
    "vidur": FRAMES,
    "requests": FRAMES,
    "hierarchy": {*ARRAYS, "pymc", "pytensor"},
    **dict.fromkeys((n for n in READERS if n != "importers._meaning"), FRAMES),
}
# Third parties inside functions: what only some commands need, and the other half of `_math`.
LAZILY = {
    "commands.doctor": {"shtab"},
    "serving.simulate": {"simpy"},
    "_math": {"pytensor"},
    "diagnostics": {"arviz_stats"},
    "updating.importance": {"arviz_stats"},
    "updating.outlying": {"scipy"},
    "updating.drift": {"scipy"},
    "updating.refit": {"nutpie", "pymc", "pytensor"},
    "posterior": {"nutpie", "pymc"},
    "suites.rivals": {"sklearn"},
    "suites._forest": {"sklearn"},
    "suites.knee": {"pymc", "scipy"},
    "leaveout": {"nutpie"},
    "importers._rows": {"pyarrow"},
    "measuring.cuda": {"torch", "pynvml"},
    "_ranks": {"scipy"},
    "sbc": {"arviz_stats", "nutpie", "pymc"},
    "suites._density": {"pymc", "pytensor"},
    "suites._ladder": {"nutpie"},
    "suites.loo": {"arviz_stats"},
    "suites.sensitivity": {"arviz_stats"},
    "database": {"pandas"},
    "_draws": {"h5py"},
    **{name: {"matplotlib"} for name in DRAWING},
    "plot.calibration": {"arviz_plots", "matplotlib"},
    "reporting.report": {"jinja2"},
    "commands._shared": {"rich"},
    "commands.asking": {"xarray"},
    "sweeping.store": {"zarr"},
    "sweeping.cluster": {"distributed"},
    "surface": {"scipy"},
    "serving.steady": {"scipy"},
    "serving.loops": {"scipy"},
}
HEAVY = {"pymc", "pytensor", "arviz", "arviz_base", "arviz_stats", "arviz_plots", "nutpie"}
HEAVY |= {"numba", "matplotlib", "scipy"}
ANY_ARRAYS = {"numpy", "pandas", "xarray", "h5py", "h5netcdf"}
PROVIDED_BY = {
    "pytensor": "pymc",
    "scipy": "pymc",
    "arviz_stats": "arviz",
    "arviz_plots": "arviz",
}  # pinned through these
# used where they are installed
OPTIONAL = {"sklearn", "pyarrow", "torch", "pynvml", "zarr", "distributed"}


@cache
def module(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def named(path):
    """Module name relative to the package: ``mechanism.gemm``, ``mechanism`` for its init."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


MODULES = {named(path): path for path in sorted(PACKAGE.rglob("*.py"))}
every_module = pytest.mark.parametrize("name", MODULES)


def is_type_checking(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports(tree, *, lazy):
    """Dotted names imported at module level, or inside functions when `lazy`."""
    found, stack = set(), [(node, False) for node in tree.body]
    while stack:
        node, inside = stack.pop()
        if is_type_checking(node):
            continue
        if isinstance(node, ast.Import) and inside == lazy:
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and inside == lazy:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        stack += [(child, inside) for child in ast.iter_child_nodes(node)]
    return found


def own(found):
    """Modules of the package among dotted names."""
    parts = [name.split(".")[1:] for name in found if name.split(".")[0] == "m2bayes"]
    candidates = [(".".join(p), ".".join(p[:-1])) for p in parts]
    return {whole if whole in MODULES else head for whole, head in candidates}


def foreign(found):
    tops = {name.split(".")[0] for name in found}
    return tops - set(sys.stdlib_module_names) - {"m2bayes", "__future__"}


def layer(name):
    return next(i for i, names in enumerate(LAYERS) if name in names)


# --- imports ---------------------------------------------------------------------------------


def test_every_module_has_its_layer_and_every_layer_its_modules():
    assert sorted(name for names in LAYERS for name in names) == sorted(MODULES)


@every_module
def test_imports_point_down_only(name):
    up = [o for o in own(imports(module(MODULES[name]), lazy=False)) if layer(o) >= layer(name)]
    assert up == []


@every_module
def test_lazy_imports_point_down_too(name):
    """So that there is no cycle that an import inside a function merely hides."""
    up = [o for o in own(imports(module(MODULES[name]), lazy=True)) if layer(o) >= layer(name)]
    assert up == []


@every_module
def test_only_the_allowed_third_parties_are_imported(name):
    tree = module(MODULES[name])
    usual = set() if name.split(".")[0] in ("options", "commands") else ARRAYS
    assert foreign(imports(tree, lazy=False)) <= AT_MODULE_LEVEL.get(name, usual)
    assert foreign(imports(tree, lazy=True)) <= LAZILY.get(name, set())


def test_pymc_is_imported_at_module_level_by_hierarchy_and_models_only():
    heavy = {n for n, p in MODULES.items() if foreign(imports(module(p), lazy=False)) & HEAVY}
    assert heavy == {"hierarchy"}
    models = sorted((ROOT / "models").glob("*.py"))
    assert models
    for path in models:
        assert foreign(imports(module(path), lazy=False)) <= {*ARRAYS, "pymc", "pytensor"}


def test_only_database_opens_files_of_the_database():
    """Other modules write what a command was told to write, and read nothing.

    A reader or a suite of tables that are no part of the database reads what users fetch, or
    measure, themselves.
    """
    opening = re.compile(r"\b(read_csv|open_dataset|read_text|read_bytes|load_dataset|open)\(")
    found = {
        n for n, p in MODULES.items() if opening.search(re.sub(r"os\.open", "", p.read_text()))
    }
    outside = {"outside", "traces", "timings", "serving.mix", "importers._rows", "requests"}
    assert found == {"_files", "_draws", "database", *outside}


def test_every_third_party_of_the_library_is_a_declared_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {
        re.split(r"[^A-Za-z0-9_-]", d)[0].replace("-", "_") for d in project["dependencies"]
    }
    trees = [module(p) for p in [*MODULES.values(), *(ROOT / "models").glob("*.py")]]
    used = {f for t in trees for lazy in (False, True) for f in foreign(imports(t, lazy=lazy))}
    assert {PROVIDED_BY.get(name, name) for name in used - OPTIONAL} <= declared
    assert any("scikit-learn" in d for d in project["optional-dependencies"]["rivals"])
    assert used >= OPTIONAL


def test_the_scanner_sees_what_it_should():
    """Negative control: an import in a function, under TYPE_CHECKING, and of a submodule."""
    tree = ast.parse(
        "import scipy.stats\nfrom m2bayes import tables\n"
        "if TYPE_CHECKING:\n    import pymc\n"
        "class A:\n    import numba\n    def f(self):\n        from m2bayes.cli import main\n"
    )
    assert imports(tree, lazy=False) == {"scipy.stats", "m2bayes.tables", "numba"}
    assert imports(tree, lazy=True) == {"m2bayes.cli.main"}
    assert own(imports(tree, lazy=False)) == {"tables"}
    assert own(imports(tree, lazy=True)) == {"cli"}
    assert foreign(imports(tree, lazy=False)) == {"scipy", "numba"}


# --- what really gets loaded -----------------------------------------------------------------


def loaded(code, *argv):
    """Top-level modules after `code` ran in a fresh interpreter."""
    script = (
        f"{code}\nimport sys\nprint(*{{m.split('.')[0] for m in sys.modules}}, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *argv], capture_output=True, text=True, check=True
    )
    return set(done.stderr.splitlines()[-1].split())


RUN = """
import sys
from m2bayes.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as stop:
    code = stop.code
assert code == 0, code
"""


def test_importing_the_package_loads_nothing_heavy():
    assert not loaded("import m2bayes") & (HEAVY | ANY_ARRAYS)


@pytest.mark.parametrize("argv", [["--help"], ["rank", "--help"]])
def test_help_loads_the_standard_library_only(argv):
    assert not loaded(RUN, *argv) & (HEAVY | ANY_ARRAYS | {"rich"})


@pytest.mark.parametrize("command", ["rank", "predict"])
def test_an_answer_from_a_stored_posterior_loads_no_probabilistic_programming(command):
    question = ["--llm", "llama-3.1-8b", "--sku", "h100", "h200", "--draws", "40"]
    found = loaded(RUN, command, *question, "--workload", "decode:batch=64,context=2048")
    assert "xarray" in found
    unasked = {"scipy"} if "dask" in found else set()  # xarray imports dask where it finds it
    assert not found & HEAVY - unasked


ALONE = RUN.replace("main(sys.argv[1:])", "main()")  # as the script does, in a process of its own


@pytest.mark.parametrize("command", ["rank", "predict"])
def test_a_process_for_one_question_imports_nothing_that_is_there_by_chance(command):
    question = ["--llm", "llama-3.1-8b", "--sku", "h100", "h200", "--draws", "40"]
    spared = f"{ALONE}\nassert not any(sys.modules.pop(name) for name in {SPARED})"
    found = loaded(spared, command, *question, "--workload", "decode:batch=64,context=2048")
    assert "xarray" in found
    assert not found & (HEAVY | {*SPARED, "scipy"})


def test_the_library_loads_pymc_when_a_model_is_built():
    """Negative control of the two tests above: the probe does see PyMC."""
    code = "from m2bayes.database import Database\nDatabase().builder('const_ceiling')"
    assert {"pymc", "pytensor"} <= loaded(code)


# --- the public names ------------------------------------------------------------------------


def test_there_are_at_most_fifteen_public_names_and_each_resolves():
    assert len(m2bayes.__all__) == len(set(m2bayes.__all__)) <= 15
    assert sorted(m2bayes.__all__) == m2bayes.__all__
    for name in m2bayes.__all__:
        value = getattr(m2bayes, name)
        assert value.__name__ == name
        assert value.__doc__


def test_the_version_is_that_of_the_build():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert m2bayes.__version__ == project["version"]


def test_a_name_that_is_not_public_is_refused():
    with pytest.raises(AttributeError, match="no attribute 'tables_of_contents'"):
        _ = m2bayes.tables_of_contents


def test_type_checkers_see_the_public_names_that_are_imported_at_run_time():
    tree = module(PACKAGE / "__init__.py")
    (block,) = [node for node in tree.body if is_type_checking(node)]
    seen = {a.name: n.module.removeprefix("m2bayes.") for n in block.body for a in n.names}
    assert seen == m2bayes._HOMES
    assert sorted(seen) == m2bayes.__all__


def test_the_package_file_holds_nothing_but_names():
    allowed = (ast.Import, ast.ImportFrom, ast.Assign, ast.Expr, ast.If)
    others = [n for n in module(PACKAGE / "__init__.py").body if not isinstance(n, allowed)]
    assert [node.name for node in others] == ["__getattr__"]


# --- names of variables ----------------------------------------------------------------------


def taken(names):
    return sorted(name for name in map(str, names) if hasattr(xr.Dataset, name))


def variable_names(tree):
    """String keys that name variables: of Dataset(...), assign(...), and ``x["name"] = …``."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).rsplit(".", 1)[-1]
            if called in ("assign", "assign_coords"):
                found |= {k.arg for k in node.keywords if k.arg}
            if called in ("Dataset", "assign", "assign_coords"):
                tables = [*node.args, *(k.value for k in node.keywords if k.arg != "attrs")]
                keys = [k for t in tables for d in ast.walk(t) for k in getattr(d, "keys", [])]
                found |= {k.value for k in keys if isinstance(k, ast.Constant)}
        if isinstance(node, ast.Assign):
            at = [t.slice for t in node.targets if isinstance(t, ast.Subscript)]
            found |= {k.value for k in at if isinstance(k, ast.Constant)}
    return {name for name in found if isinstance(name, str)}


# Keys that are no variables of a Dataset, or are read by key only.
NO_CLASH = {
    "units": "an attribute",
    "mean": "a row of a dict of scores",
}


@every_module
def test_no_variable_in_the_code_bears_a_name_that_a_dataset_has(name):
    assert taken(variable_names(module(MODULES[name])) - set(NO_CLASH)) == []


def test_the_scanner_of_variables_sees_what_it_should():
    tree = ast.parse(
        'xr.Dataset({"nbytes": 1, **{"rank": 2}}, coords={"sizes": 3}, attrs={"mean": 4})\n'
        'x.assign(count=5)\nx["quantile"] = 6\nx.attrs["shift"]'
    )
    found = variable_names(tree)
    assert taken(found) == ["count", "nbytes", "quantile", "rank", "sizes"]


def test_no_live_variable_bears_a_name_that_a_dataset_has(database, synthetic_posterior):
    llm = LLM(
        name="tiny", layers=2, hidden=256, heads=2, kv_heads=2, head_dim=128, intermediate=512,
        gated=True, vocab=100, tied_embeddings=True, max_context=4096,
    )  # fmt: skip
    sheets = database.datasheets(["h100", "l4"])
    cells = gemm_cells(llm, [parse_workload("decode:batch=4,context=64")])
    time = predict(synthetic_posterior, cells, sheets)
    table = checked(database.table("gemm_bf16").head(50), origin="table")
    live = {
        "datasheets": sheets,
        "gemm_cells": cells,
        "served terms": gemm_terms(cells, sheets, regime="served"),
        "benchmark terms": gemm_terms(cells, sheets, regime="benchmark"),
        "runs_by_cell": runs_by_cell(table, skus=database.skus()),
        "with_skus": with_skus(synthetic_posterior, sheets, seed=0),
        "rank": decision.rank(time.sum("op")),
        **{name: database.draws(name) for name in database.posteriors()},
    }
    found = {name: taken([*held.variables, *held.dims]) for name, held in live.items()}
    clashes = {name: set(names) - set(NO_CLASH) for name, names in found.items()}
    assert {name: names for name, names in clashes.items() if names} == {}


# --- docstrings ------------------------------------------------------------------------------

ARRAY_TYPES = re.compile(r"\b(DataArray|Dataset|DataTree|DataFrame|ndarray)\b")
DIMS = re.compile(r"\b(dims?|elementwise)\b", re.IGNORECASE)
UNIT = re.compile(r"\[[^\]\[]+\]")
LAWS = ("mechanism.", "_math", "hierarchy")  # their arrays are of any kind, typed Any
# What takes or returns an array and yet names no dims or no unit, and why that is right.
NO_DIMS_OR_UNIT = {
    "_math.smooth_maximum": "elementwise on whatever it is given; keeps the unit of its arguments",
    "mechanism.clock.power_load": "elementwise: dims are those of its argument",
    "question.thinned": "hands back its argument with fewer draws",
    "feasibility.feasible": "returns sentences",
    "question.rests_on": "returns labels",
    "question.Question.steps": "returns workloads",
    "answer.ranked": "returns the dict of the JSON contract, whose head holds the unit",
    "answer.predicted": "returns the dict of the JSON contract, whose head holds the unit",
    "evaluate.scores": "returns plain numbers, means over every dim",
    "evaluate.judged": "returns plain numbers, means over every dim",
    "evaluate.of_sku": "hands back some of its argument's cells",
    "evaluate.wide": "returns booleans",
    "measurements.checked": "a table, whose columns it lists with their units",
    "posterior.kept": "hands back some of the variables, whatever their dims and units",
    "factors.basis": "returns labels",
    "factors.with_skus": "units are those of the factors in the model's card",
    "database.store": "writes what it is given",
    "database.write_draws": "writes what it is given",
    "_draws.read_draws": "reads what a file holds",
    "database.labelled": "hands back its argument with attributes",
    "factors.families": "returns labels",
    "kernels.unit_labels": "returns labels",
    "predictive.law_of": "returns a law",
    "predictive.backends": "returns labels",
    "mechanism.collective.link": "returns labels",
    "step.aligned": "hands back its arguments with fewer draws",
    "factors.by_sku": "dims and unit are those of the variable, with its own SKUs",
    "leaveout.LeftOut.fit": "as `Database.draws`, whose units stand in the model's card",
    "measurements.content_hash": "returns a hash",
}
# Methods that hand over many quantities, each with its own unit, which stands in its attributes.
NO_SINGLE_UNIT = {
    "database.Database.": "hands over whole records, whose variables their makers document",
    "suites.": "returns plain numbers, or what a function of its own module documents",
    "hierarchy.Frame.": "hands over all terms of the law, which `gemm_terms` documents",
}


def functions(tree):
    """Public functions of a module and public methods of its public classes."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name, node
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_"):
                    yield f"{node.name}.{inner.name}", inner


def lacking(name, node):
    """What a docstring lacks of dims and unit, if the function takes or returns arrays."""
    given = [a.annotation for a in [*node.args.args, *node.args.kwonlyargs] if a.annotation]
    types = " ".join(ast.unparse(a) for a in [*given, *([node.returns] if node.returns else [])])
    law = name.startswith(LAWS) and re.search(r"\bAny\b", types)
    if not law and not ARRAY_TYPES.search(types):
        return []
    text = ast.get_docstring(node) or ""
    return [what for what, rule in (("dims", DIMS), ("unit", UNIT)) if not rule.search(text)]


@every_module
def test_everything_public_is_documented(name):
    tree = module(MODULES[name])
    assert ast.get_docstring(tree)
    nodes = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    bare = [n.name for n in nodes if not n.name.startswith("_") and not ast.get_docstring(n)]
    bare += [called for called, node in functions(tree) if not ast.get_docstring(node)]
    assert bare == []


def test_what_takes_or_returns_arrays_names_dims_and_units():
    found = {
        f"{name}.{called}": lacking(f"{name}.{called}", node)
        for name, path in MODULES.items()
        for called, node in functions(module(path))
    }
    bare = {called: gaps for called, gaps in found.items() if gaps}
    unexcused = {n: gaps for n, gaps in bare.items() if not n.startswith(tuple(NO_SINGLE_UNIT))}
    assert set(unexcused) - set(NO_DIMS_OR_UNIT) == set(), unexcused
    assert set(NO_DIMS_OR_UNIT) - set(bare) == set(), "an exception that is none any more"


def test_a_docstring_without_dims_or_unit_is_found():
    source = 'def f(x: xr.DataArray) -> float:\n    """{}"""'
    gaps = [
        lacking("x.f", ast.parse(source.format(text)).body[0])
        for text in ("Time.", "Time [s].", "Time, dims (sku,).", "Time [s], dims (sku,).")
    ]
    assert gaps == [["dims", "unit"], ["dims"], ["unit"], []]


# --- sizes and manners -----------------------------------------------------------------------

LONG_MODULES = {
    "question": "what is asked with all its checks, its draws, and what they rest on",
    "tables": "one short function a table",
    "decision": "one pass over the draws serves a dozen documented functions",
    "score": "a dozen scores, each with formula, reference and example",
    "database": "every kind of record, and its documentation",
}


def is_documented(node):
    return isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)


def docstring_lines(tree):
    """Numbers of the lines that docstrings take."""
    found = set()
    for node in ast.walk(tree):
        if is_documented(node) and ast.get_docstring(node) is not None:
            found |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return found


def code_lines(path):
    """Lines of a module without docstrings, blank lines and comments."""
    texts = docstring_lines(module(path))
    lines = enumerate(path.read_text().splitlines(), start=1)
    return sum(i not in texts and line.strip()[:1] not in ("", "#") for i, line in lines)


@every_module
def test_modules_are_short(name):
    lines = len(MODULES[name].read_text().splitlines())
    assert lines <= 300 or name in LONG_MODULES
    assert code_lines(MODULES[name]) <= 300


@every_module
def test_functions_are_short(name):
    nodes = [n for n in ast.walk(module(MODULES[name])) if isinstance(n, ast.FunctionDef)]
    sizes = {n.name: n.end_lineno - n.lineno + 1 for n in nodes}
    documented = {n.name: len((ast.get_docstring(n) or "").splitlines()) for n in nodes}
    assert {k: v for k, v in sizes.items() if v - documented[k] >= 60} == {}


@every_module
def test_the_library_never_asserts(name):
    assert not [n.lineno for n in ast.walk(module(MODULES[name])) if isinstance(n, ast.Assert)]


def literals(tree):
    """String literals outside docstrings, with the module-level name they are assigned to."""
    texts = set()
    for node in ast.walk(tree):
        if is_documented(node) and node.body and isinstance(node.body[0], ast.Expr):
            texts.add(id(node.body[0].value))
    for top in tree.body:
        target = top.targets[0] if isinstance(top, ast.Assign) else getattr(top, "target", None)
        target = "" if target is None else ast.unparse(target)
        for node in ast.walk(top):
            text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            if text and id(node) not in texts:
                yield target, node.value


ALLOWED_NAMES = {
    ("options._question", "POSTERIOR"),
    ("options.judging", "GEMM_POSTERIOR"),
    ("options._examples", "EXAMPLES"),
}


def may_name(module_name, target):
    """A suite is bound to its data; it says so in constants, and only there."""
    if module_name.split(".")[0] == "suites":
        return re.fullmatch(r"\(?[A-Z_]+(, [A-Z_]+)*\)?", target) is not None
    return (module_name, target) in ALLOWED_NAMES


def names_of_things(database):
    """Whatever a card in the database is called."""
    cards = [database.sku_card(name)[0] for name in database.skus()]
    names = {n for card in cards for n in (card["name"], *card["aliases"])}
    for kind in (database.llms, database.models, database.data, database.posteriors):
        names |= set(kind())
    quantities = {f["name"] for name in database.models() for f in database.model(name).factors}
    return names - quantities  # a table of measured eta_memory bears the name of the factor


def pattern_of(names):
    return re.compile(rf"(?<![\w.-])({'|'.join(map(re.escape, names))})(?![\w-])", re.IGNORECASE)


@every_module
def test_the_library_names_no_sku_no_llm_and_no_file(name, database):
    pattern = pattern_of(names_of_things(database))
    found = [
        (target, text)
        for target, text in literals(module(MODULES[name]))
        if not may_name(name, target) and pattern.search(text)
    ]
    assert found == []


def test_a_name_in_a_literal_is_found(database):
    pattern = pattern_of(names_of_things(database))
    tree = ast.parse('"""Of h100."""\nDEFAULT = "h100"\nx = f"on {y} a L40S-48GB-PCIe"\n')
    hits = [(t, pattern.findall(text)) for t, text in literals(tree) if pattern.search(text)]
    assert hits == [("DEFAULT", ["h100"]), ("x", ["L40S-48GB-PCIe"])]
    assert not pattern.search("sha100, th100x, 1.l4, bf16")
