"""What several test files share: the database, seeded numbers, and a small made-up posterior."""

import hashlib
import json
import os
import shutil

# as the commands do, and workers of a cluster: a fit in this process has the rounding of theirs
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pytest
import xarray as xr
from hypothesis import settings

from m2bayes._random import labelled_rng
from m2bayes.database import Database, Posterior, store
from m2bayes.inputs import Inputs

# a loaded machine must not fail a property
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

# log-scale centre of each factor of the GEMM law, and its spread by architecture and by SKU
FACTORS = {
    "eta_memory": (np.log(0.87), 0.05, 0.04),
    "memory_latency": (np.log(8300), 0.1, 0.08),
    "eta_cache": (-1.7, 0.4, None),
    "launch_time": (np.log(1.4e-6), 0.15, 0.2),
    "clock_burst": (0.07, 0.1, 0.06),
    "droop": (np.log(0.25), 0.3, 0.4),
    "eta_issue": (0.2, 0.1, 0.05),
    "prologue": (np.log(250), None, None),
    "knee": (np.log(0.6), 0.3, None),
    "sigma_cell": (np.log(0.06), None, 0.3),
    "sigma_time": (np.log(3e-7), None, 0.3),
    "sigma_run": (np.log(0.03), None, 0.3),
}
SLOPES = {"power_slope": 0.6, "width_slope": 0.1, "blank_gain": 0.05}
MEASURED = ("A100-80GB-SXM", "H100-80GB-SXM", "H200-141GB-SXM")


@pytest.fixture(scope="session")
def database():
    return Database()


@pytest.fixture
def rng():
    return np.random.default_rng(20261129)


@pytest.fixture(scope="session")
def synthetic_posterior(database):
    """Draws as a fit of ``hier_gemm`` would store them, made up: 2 chains, 100 draws, 3 SKUs.

    Each measured SKU is known to about 1 %; populations and spreads are as in the model's priors.
    """
    sheets = database.datasheets(MEASURED)
    families, at = np.unique(sheets["architecture"].values, return_inverse=True)
    coords = {
        "chain": range(2),
        "draw": range(100),
        "sku": sheets["sku"].values,
        "architecture": families,
        "backend": ["sglang", "trtllm", "vllm"],
    }

    def around(centre, sd, label, *dims):
        dims = ("chain", "draw", *dims)
        noise = labelled_rng(1, label).standard_normal([len(coords[d]) for d in dims])
        return centre + sd * xr.DataArray(noise, dims=dims)

    draws = {name: around(slope, 0.05, name) for name, slope in SLOPES.items()}
    draws["clock_misfit"] = np.exp(around(np.log(0.04), 0.2, "clock_misfit"))
    draws["build_sd"] = np.exp(around(np.log(0.03), 0.2, "build_sd"))
    draws["build_effect"] = around(0.0, 0.02, "build_effect", "sku", "backend")
    for factor, (centre, architecture, sku) in FACTORS.items():
        name = f"log_{factor}"
        draws[f"{name}_mean"] = around(centre, 0.05, f"{name}_mean")
        level = xr.DataArray(np.full(len(families), centre), dims="architecture")
        if architecture:
            draws[f"{name}_architecture_sd"] = np.exp(around(np.log(architecture), 0.2, f"{name}a"))
            level = level + architecture * labelled_rng(2, name).standard_normal(len(families))
            level = around(level, 0.01, f"{name}_architecture", "architecture")
            draws[f"{name}_architecture"] = level
        if sku:
            draws[f"{name}_sku_sd"] = np.exp(around(np.log(sku), 0.2, f"{name}s"))
            own = xr.DataArray(sku * labelled_rng(3, name).standard_normal(len(at)), dims="sku")
            level = level.isel(architecture=xr.DataArray(at, dims="sku"))
            own = own if architecture else around(own, 0.01, name, "sku")
            draws[name] = level + own
    posterior = xr.Dataset(draws, coords).transpose("chain", "draw", ...).astype("float32")
    card = database.model("hier_gemm")
    facts = {"name": "syn_gemm-hier_gemm", "law": card.law, "dtype": "bf16"}
    lists = {"factors": json.dumps(card.factors), "domain": json.dumps(card.domain)}
    posterior.attrs = facts | lists
    return posterior


TABLES = {  # of the small database: every so many cells of a SKU
    "gemm_bf16": 4,
    "gemm_bf16_dense": 12,
    "gemm_bf16_test": 30,
    "gemm_bf16_ranking": 5,
}


@pytest.fixture(scope="session")
def small_database(database, synthetic_posterior, tmp_path_factory):
    """A database of three SKUs and few cells, whose posterior is the made-up one."""
    root = tmp_path_factory.mktemp("database")
    shutil.copytree(database.root / "models", root / "models")
    for folder in ("datasheets", "llms", "measurements"):
        shutil.copytree(database.root / "data" / folder, root / "data" / folder)
    shape = ["sku", "M", "N", "K"]
    for name, step in TABLES.items():
        table = database.table(name)
        table = table[table["sku"].isin(MEASURED)]
        if name == "gemm_bf16_ranking":  # whole layers
            table = table[table["M"].isin([1, 64, 4096])]
        else:
            cells = table[shape].drop_duplicates().groupby("sku").nth(slice(0, None, step))
            table = table.merge(cells)
        content = table.to_csv(index=False).encode()
        path = root / "data" / "measurements" / f"{name}.csv"
        path.write_bytes(content)
        card = json.loads(path.with_suffix(".json").read_text())
        card |= {"rows": len(table), "sha256": hashlib.sha256(content).hexdigest()}
        path.with_suffix(".json").write_text(json.dumps(card))
    (root / "posteriors").mkdir()
    small, name = Database(root), "gemm_bf16-hier_gemm"
    inputs = Inputs.read(small, "gemm_bf16", "clock_sustained", "gemm_bf16_dense", "bf16")
    held = database.posterior(name).__dict__
    sheets = {sku: held["datasheets"][sku] for sku in MEASURED}
    changes = {"data": inputs.sources, "datasheets": sheets, "draws": {}}
    draws = synthetic_posterior.merge(
        inputs.residuals(synthetic_posterior, small.model("hier_gemm"))
    )
    store(Posterior(**{**held, **changes}), draws.drop_attrs(), root / "posteriors")
    return small


@pytest.fixture
def spread_here():
    """As `m2bayes.sweeping.cluster.spread`, but its workers are threads of this process."""
    distributed = pytest.importorskip("distributed", reason="needs pip install 'm2bayes[sweep]'")
    from m2bayes.sweeping.cluster import spread

    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None
        ) as found,
        spread(0, found.scheduler_address) as each,
    ):
        yield each
