"""Units: a kernel on a card stands where a SKU stands, its family where an architecture stands."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from m2bayes.errors import UnknownNameError
from m2bayes.kernels import card_of, unit_labels, unit_sheets
from m2bayes.measurements import checked, runs_by_cell
from m2bayes.mechanism.laws import LAWS, tensor_generation

SKUS = ("A100-80GB-SXM", "B200-180GB-SXM", "H100-80GB-SXM", "H200-141GB-SXM", "L40S-48GB-PCIe")
PREFILL, DECODE, GEMM = (LAWS[f"{name}_time"] for name in ("prefill", "decode", "gemm"))
LIGHT, ALLREDUCE, HOST = (LAWS[f"{name}_time"] for name in ("light", "allreduce", "host"))


@pytest.fixture(scope="module")
def sheets(database):
    return database.datasheets(SKUS)


# --- labels ----------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["H100-80GB-SXM", "H100-80GB-SXM/vllm", "H100-80GB-SXM/vllm/gqa"])
def test_card_of_a_unit(unit):
    assert card_of(unit) == "H100-80GB-SXM"


def test_units_of_a_law_whose_factors_are_the_cards_are_the_cards():
    cells = {v: np.ones(2) for v in "MNK"}
    assert unit_labels(GEMM, ["a", "b"], cells, "vllm").tolist() == ["a", "b"]


def test_labels_of_attention():
    """Prefill by backend; multi-head and grouped-query decode are kernels apart."""
    cells = {"length": np.ones(3), "heads": np.array([32, 32, 8]), "kv_heads": [8, 32, 8]}
    backends = ["vllm", "sglang", "trtllm"]
    assert unit_labels(PREFILL, ["a", "a", "b"], cells, backends).tolist() == [
        "a/vllm",
        "a/sglang",
        "b/trtllm",
    ]
    assert unit_labels(DECODE, ["a", "a", "b"], cells, backends).tolist() == [
        "a/vllm/gqa",
        "a/sglang/mha",
        "b/trtllm/mha",
    ]


def test_one_backend_names_the_units_of_all_cells():
    cells = {"length": np.ones((2, 3)), "heads": np.full((2, 3), 8), "kv_heads": np.full((2, 3), 2)}
    labels = unit_labels(DECODE, "a", cells, "vllm")
    assert labels.shape == (2, 3)
    assert set(labels.ravel()) == {"a/vllm/gqa"}


def test_labels_of_the_other_laws():
    """A light kernel belongs to no backend; an all-reduce and a host do."""
    light = {"kernel": ["norm", "rope"], "tokens": [1, 1], "width": [1, 1]}
    assert unit_labels(LIGHT, "a", light, "vllm").tolist() == ["a/norm", "a/rope"]
    assert unit_labels(ALLREDUCE, "a", {"bytes": [8]}, "nccl").tolist() == ["a/nccl"]
    assert unit_labels(HOST, "a", {"kernels": [8]}, "vllm").tolist() == ["a/vllm"]


# --- datasheets ------------------------------------------------------------------------------


def test_a_unit_has_the_numbers_of_its_card(sheets):
    units = ["H100-80GB-SXM/vllm/gqa", "A100-80GB-SXM/vllm/mha", "H100-80GB-SXM/vllm/mha"]
    found = unit_sheets(DECODE, sheets, units)
    assert found["sku"].values.tolist() == units
    cards = sheets.sel(sku=[card_of(unit) for unit in units])
    for name in sheets.data_vars:
        np.testing.assert_array_equal(found[name], cards[name])
    xr.testing.assert_identical(
        found["dtype"].drop_vars("dtype"), cards["dtype"].drop_vars("dtype")
    )


def test_sheets_of_a_law_whose_factors_are_the_cards_are_the_cards(sheets):
    found = unit_sheets(GEMM, sheets, ["L40S-48GB-PCIe", "A100-80GB-SXM"])
    xr.testing.assert_identical(found, sheets.sel(sku=["L40S-48GB-PCIe", "A100-80GB-SXM"]))
    assert "spread" not in found


def families(law, sheets, variant):
    units = [f"{sku}/{variant}" for sku in SKUS]
    return unit_sheets(law, sheets, units)["architecture"].values.tolist()


def test_families_of_attention_are_those_of_the_tensor_core(sheets):
    assert tensor_generation(sheets) == ["mma", "tcgen05", "wgmma", "wgmma", "mma"]
    assert families(PREFILL, sheets, "vllm") == [
        "mma/vllm",
        "tcgen05/vllm",
        "wgmma/vllm",
        "wgmma/vllm",
        "mma/vllm",
    ]
    assert families(DECODE, sheets, "vllm/gqa")[2] == "wgmma/vllm/gqa"


def test_the_attention_of_sglang_on_ampere_is_another_library(sheets):
    """Its own family; elsewhere the backend's name tells the library."""
    assert families(DECODE, sheets, "sglang/gqa") == [
        "mma/flash-attention/sglang/gqa",
        "tcgen05/sglang/gqa",
        "wgmma/sglang/gqa",
        "wgmma/sglang/gqa",
        "mma/sglang/gqa",
    ]
    assert families(PREFILL, sheets, "sglang")[0] == "mma/flash-attention/sglang"
    assert families(PREFILL, sheets, "vllm")[0] == "mma/vllm"


def test_families_of_the_other_laws(sheets):
    """A link of an all-reduce; light kernels and hosts are pooled over all cards."""
    nvlink = "nvlink/nccl"
    assert families(ALLREDUCE, sheets, "nccl") == [nvlink] * 4 + ["pcie/nccl"]
    assert families(LIGHT, sheets, "norm") == ["norm"] * 5
    assert families(HOST, sheets, "vllm") == ["vllm"] * 5


def test_kernels_for_mma_differ_four_times_as_much(sheets):
    units = [f"{sku}/vllm" for sku in SKUS]
    assert unit_sheets(PREFILL, sheets, units)["spread"].values.tolist() == [4, 1, 1, 1, 4]
    assert unit_sheets(ALLREDUCE, sheets, units)["spread"].values.tolist() == [1] * 5


def test_a_unit_of_an_unknown_card_has_no_sheet(sheets):
    with pytest.raises(KeyError, match="H999"):
        unit_sheets(PREFILL, sheets, ["H100-80GB-SXM/vllm", "H999/vllm"])


# --- cells of units --------------------------------------------------------------------------


def table(**changes):
    rows = {
        "sku": ["A100-80GB-SXM", "A100-80GB-SXM", "A100-80GB-SXM", "H100-80GB-SXM"],
        "backend": ["vllm", "sglang", "vllm", "vllm"],
        "version": ["1", "1", "2", "1"],
        "batch": [4, 4, 4, 4],
        "length": [512, 512, 512, 512],
        "heads": [32, 32, 32, 8],
        "kv_heads": [8, 8, 8, 8],
        "op_time": [1e-5, 2e-5, 3e-5, 4e-5],
    }
    return checked(pd.DataFrame(rows | changes), origin="table", law=DECODE)


UNITS = ["A100-80GB-SXM/sglang/gqa", "A100-80GB-SXM/vllm/gqa", "H100-80GB-SXM/vllm/mha"]


def test_cells_of_units_are_labelled_by_unit():
    """Backends are units apart, so that runs of one cell are the versions of one backend."""
    cells = runs_by_cell(table(), skus=UNITS, law=DECODE)
    assert cells["sku"].values.tolist() == UNITS
    times = {
        u: sorted(t[np.isfinite(t)]) for u, t in zip(UNITS, cells["op_time"].values, strict=True)
    }
    assert times == {UNITS[0]: [2e-5], UNITS[1]: [1e-5, 3e-5], UNITS[2]: [4e-5]}
    assert cells["head_dim"].values.tolist() == [128] * 3
    assert "context" not in cells
    assert cells["cell"].values[0] == "A100-80GB-SXM/sglang/gqa/4x512x32x8"


def test_cells_of_a_card_alone_would_mix_backends():
    """Negative control: by the law of the GEMMs the three rows of the A100 are one cell."""
    whole = runs_by_cell(table().assign(M=1, N=1, K=1), skus=list(SKUS), law=GEMM)
    assert whole["op_time"].shape == (2, 3)


def test_cells_of_an_unknown_unit_are_refused():
    with pytest.raises(UnknownNameError, match="H100-80GB-SXM/vllm/mha"):
        runs_by_cell(table(), skus=UNITS[:2], law=DECODE)


def test_cells_of_light_kernels_keep_their_kernel():
    rows = {
        "sku": ["A100-80GB-SXM"] * 2,
        "backend": ["vidur"] * 2,
        "version": ["1"] * 2,
        "kernel": ["norm", "rope"],
        "tokens": [64, 64],
        "width": [4096, 4096],
        "op_time": [1e-5, 2e-5],
    }
    known = checked(pd.DataFrame(rows), origin="table", law=LIGHT)
    units = ["A100-80GB-SXM/norm", "A100-80GB-SXM/rope"]
    cells = runs_by_cell(known, skus=units, law=LIGHT)
    assert cells["sku"].values.tolist() == units
    assert cells["kernel"].values.tolist() == ["norm", "rope"]
