"""GEMM time from pooled factors: clock, wave, issue, bandwidth, cache, latency, launch."""

import numpy as np
import pymc as pm

from m2bayes.hierarchy import cell_logp, cell_random, pooled
from m2bayes.mechanism.gemm import gemm_terms, gemm_time


def build(data, datasheets):
    """Model ``log op_time[cell, backend]`` of `data`; every prior stands on this screen."""
    sku, backends = datasheets.indexes["sku"], data.indexes["backend"]
    architecture, at = np.unique(datasheets["architecture"].values, return_inverse=True)
    here = np.array([sku.get_loc(name) for name in data["sku"].values])
    sheet = datasheets.sel(sku=data["sku"])
    terms = gemm_terms(data, sheet, regime="benchmark", backend=data["backend"])
    coords = {"sku": sku, "architecture": architecture, "backend": backends, "cell": data["cell"]}
    with pm.Model(coords=coords) as model:
        term = {
            str(k): pm.Data(str(k), v.broadcast_like(data["M"]).transpose("cell", ...).values)
            for k, v in terms.data_vars.items()
        }
        term = {k: v if v.ndim == 2 else v[:, None] for k, v in term.items()}

        # efficiency factors, log scale: (centre, sd) of the population, spreads below it
        # eta_memory: the source's ramp ends at 0.891; eta_issue and tile terms: its ceilings
        # 0.675 to 0.748; droop: its clocks 0.20 to 0.435; latency: some 8,000 clocks of an HBM read
        factor = {
            "eta_memory": pooled("log_eta_memory", (np.log(0.87), 0.08), architecture=0.05, sku=0.04, at=at, centred=True),
            "memory_latency": pooled("log_memory_latency", (np.log(8300), 0.3), architecture=0.1, sku=0.08, at=at, centred=True),
            "launch_time": pooled("log_launch_time", (np.log(1.4e-6), 0.4), architecture=0.15, sku=0.2, at=at, centred=True),
            "clock_burst": pooled("log_clock_burst", (0.07, 0.2), architecture=0.1, sku=0.06, at=at),
            "droop": pooled("log_droop", (np.log(0.25), 0.4), architecture=0.28, sku=0.4, at=at),
            "eta_cache": pooled("log_eta_cache", (-1.7, 0.45), architecture=0.43),
            "knee": pooled("log_knee", (np.log(0.6), 0.4), architecture=0.3),
            "eta_issue": pooled("log_eta_issue", (0.3, 0.2)),
            "prologue": pooled("log_prologue", (np.log(250), 0.5)),
        }
        row = {name: pm.math.exp(value) for name, value in factor.items()}
        row["knee"] = 1 + row["knee"]
        by_row = {"eta_cache": at, "knee": at}
        row = {k: v if v.ndim == 0 else v[by_row.get(k, np.arange(len(sku)))][here][:, None] for k, v in row.items()}
        row["power_slope"] = pm.Normal("power_slope", 0.6, 0.2)
        row["width_slope"] = pm.Normal("width_slope", 0.1, 0.1)
        row["blank_gain"] = pm.Normal("blank_gain", 0.05, 0.05)

        build_sd = pm.LogNormal("build_sd", np.log(0.03), 0.5)
        build_effect = build_sd * pm.Normal("build_offset", 0, 1, dims=("sku", "backend"))
        pm.Deterministic("build_effect", build_effect, dims=("sku", "backend"))
        sigma_cell = pooled("log_sigma_cell", (np.log(0.06), 0.4), sku=0.3)
        sigma_run = pooled("log_sigma_run", (np.log(0.03), 0.4), sku=0.3)

        mu = pm.math.log(gemm_time(term, row)) + build_effect[here]
        time = data["op_time"].transpose("cell", "backend").values
        present = np.isfinite(time).astype(float)
        pm.CustomDist(
            "log_time", mu, pm.Data("present", present), pm.math.exp(sigma_cell)[here], pm.math.exp(sigma_run)[here],
            logp=cell_logp, random=cell_random, signature="(c,b),(c,b),(c),(c)->(c,b)",
            observed=np.where(present, np.log(np.where(present, time, 1.0)), 0.0), dims=("cell", "backend"),
        )
    return model
