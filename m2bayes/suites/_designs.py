"""Small designs on which the inference of each model is calibrated: labels and cells, no times."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd

from m2bayes.database import Database
from m2bayes.inputs import Inputs
from m2bayes.kernels import unit_labels, unit_sheets
from m2bayes.measurements import checked
from m2bayes.mechanism.laws import LAWS

ANY_TIME = 1e-3  # [s] stands where simulated times go


@dataclass(frozen=True)
class Design:
    """What is measured in a simulated experiment.

    Parameters
    ----------
    skus, backends : tuple of str
        Each SKU runs the kernels of each backend.
    cells : tuple of tuple
        Labels and sizes [1] of each kernel, in the order of the law's columns.
    factor : str
        Population mean whose prior the control gets wrong.
    clock : str, optional
        Data set whose loads and cap sweep are read; its clocks are simulated.
    tune, thin : int
        Discarded draws, and draws for each that is kept: fewer where each costs more [1].
    simulations : int
        Simulated experiments [1].
    """

    skus: tuple[str, ...]
    backends: tuple[str, ...]
    cells: tuple[tuple[str | int, ...], ...]
    factor: str
    clock: str | None = None
    tune: int = 400
    thin: int = 32
    simulations: int = 320


def _grid(*sides: tuple[str | int, ...]) -> tuple[tuple[str | int, ...], ...]:
    return tuple(product(*sides))


AMPERE = "A100-80GB-SXM"
ADA = "L40S-48GB-PCIe"
HOPPER, SISTER = "H100-80GB-SXM", "H200-141GB-SXM"
GEMMS = (
    *_grid((1, 64, 512, 4096), (4096,), (4096,)),
    *((1, 1024, 8192), (16, 28672, 4096), (256, 256, 16384), (1024, 1024, 1024)),
    *((8192, 6144, 4096), (16384, 8192, 8192)),
)
HEADS = ((32, 8), (8, 8))
DESIGNS = {
    "hier_gemm": Design(
        (AMPERE, HOPPER, SISTER),
        ("sglang", "vllm"),
        GEMMS,
        "log_eta_issue_mean",
        "clock_sustained",
        tune=300,
        thin=16,
    ),
    "const_ceiling": Design(
        (AMPERE, HOPPER, SISTER), ("sglang", "vllm"), GEMMS, "log_ceiling_mean"
    ),
    "hier_attention_prefill": Design(
        (AMPERE, HOPPER, SISTER),
        ("vllm",),
        tuple(
            (b, s, *h)
            for (b, s), h in product(
                ((1, 64), (1, 512), (1, 2048), (4, 4096), (1, 16384), (32, 1024), (128, 128)), HEADS
            )
        ),
        "log_tile_overhead_mean",
        tune=300,
        thin=16,
        simulations=640,  # of an earlier form of the law the first 320 alone were uneven
    ),
    "hier_attention_decode": Design(
        (AMPERE, HOPPER, SISTER),
        ("vllm",),
        tuple(
            (b, s, 32, 8)
            for b, s in (
                (1, 16),
                (1, 1024),
                (1, 8192),
                (1, 65536),
                (8, 512),
                (8, 4096),
                (64, 128),
                (64, 1024),
                (64, 8192),
                (512, 64),
                (512, 1024),
                (1024, 512),
            )
        ),
        "log_block_cost_mean",
        tune=300,
        thin=16,
    ),
    "hier_light": Design(
        (AMPERE,),
        ("vidur",),
        tuple(product(("norm", "add", "activation"), (1, 32, 512, 4096, 32768), (1024, 8192))),
        "log_issue_cost_mean",
    ),
    "hier_host": Design(
        (AMPERE, HOPPER),
        ("vllm", "trtllm"),
        tuple(product((326, 806), (1, 16, 64), (1, 2))),
        "log_sequence_time_mean",
    ),
    "hier_allreduce": Design(
        (AMPERE, HOPPER, SISTER),
        ("nccl",),
        tuple(product((2, 4, 8), (1024, 65536, 1 << 20, 1 << 24, 1 << 28))),
        "log_start_time_mean",
    ),
    "hier_gemm_fp8": Design(
        (HOPPER, SISTER, ADA), ("vllm",), GEMMS, "log_quantise_time_mean", tune=300, thin=16
    ),
    "hier_kv_fp8": Design(
        (HOPPER, SISTER, ADA),
        ("vllm",),
        (
            *((1, 1024, 32, 8, 12_000), (1, 65536, 32, 8, 110_000), (8, 4096, 32, 8, 60_000)),
            *((64, 1024, 32, 8, 110_000), (64, 4096, 8, 8, 420_000), (512, 512, 32, 8, 420_000)),
        ),
        "log_kv_cost_mean",
    ),
}


def inputs(database: Database, model: str) -> Inputs:
    """Inputs of a model's design, every time of which is a stand-in."""
    design, card = DESIGNS[model], database.model(model)
    law, (dtype, *_) = LAWS[card.law], card.domain["dtype"]
    rows = [
        (sku, backend, "simulated", *cell, ANY_TIME)
        for sku, backend, cell in product(design.skus, design.backends, design.cells)
    ]
    table = checked(pd.DataFrame(rows, columns=list(law.columns)), origin=model, law=law)
    clock = None if design.clock is None else database.table(design.clock)
    sheets = database.datasheets(sorted(design.skus), dtype=str(dtype))
    labels = unit_labels(law, table["sku"], table, table["backend"])
    units = [str(unit) for unit in np.unique(labels)]
    return Inputs(table, table.iloc[:0], clock, unit_sheets(law, sheets, units), [], law)
