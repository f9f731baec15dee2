"""Build the ``gemm_fp8`` tables from the kernel tables of aiconfigurator-core 0.12.0.

Needs the optional extra ``recipes``. Run from the repository root::

    python data/recipes/gemm_fp8.py            # write the tables and the sha256 in their cards
    python data/recipes/gemm_fp8.py --check    # compare with the stored tables, change nothing

Rows with ``gemm_dtype`` ``fp8``: weights and activations in E4M3 with one scale a tensor or token,
output in 16 bit. ``fp8_block``, a scale for each 128 x 128 block, is another kernel and left out.
Every call takes 16-bit activations and quantises them first, so a row is two kernels or more: vllm
with a given scale, sglang with one a token, trtllm with one a tensor that it finds first.

Cells are stratified and hashed as in ``gemm_bf16.py``, and no two tables share a cell of a SKU:

- ``gemm_fp8``, for fitting the factors, by the same hashes: mostly the cells of ``gemm_bf16``;
- ``gemm_fp8_test``, for scoring only;
- ``gemm_fp8_dense`` takes more, for the discrepancy between shapes.
"""

import sys

import pandas as pd
from _recipe import main, tables
from gemm_bf16 import BUILDS, CELL, FIT, both, measured, order, without

DENSE, TEST = (8, 16), 10  # cells per SKU and stratum, as in gemm_bf16.py
NO_FP8 = ("a100_sxm",)


def choose(rows: pd.DataFrame, sku: str) -> dict[str, pd.DataFrame]:
    """Cells of one SKU for each table."""
    builds = rows.groupby(CELL).size().rename("builds").reset_index()
    builds["stratum"] = builds["M"].map(lambda m: int(m).bit_length())
    chosen: dict[str, list[pd.DataFrame]] = {"gemm_fp8": [], "gemm_fp8_test": []}
    chosen["gemm_fp8_dense"] = []
    for _, stratum in builds.groupby("stratum"):
        cells = stratum[stratum["builds"] == stratum["builds"].max()][CELL]
        fit = both(cells, sku, *FIT)
        test = order(without(cells, fit), f"test|{sku}").head(TEST)
        dense = both(without(cells, pd.concat([fit, test])), sku, *DENSE)
        for name, part in zip(chosen, (fit, test, dense), strict=True):
            chosen[name].append(part)
    return {name: pd.concat(parts) for name, parts in chosen.items()}


def build() -> dict[str, bytes]:
    """All tables as the bytes of their CSV files."""
    chosen: dict[str, list[pd.DataFrame]] = {}
    for folder, (sku, versions) in BUILDS.items():
        if folder in NO_FP8:
            continue
        rows = measured(tables() / folder, sku, versions, dtype="fp8")
        for name, cells in choose(rows, sku).items():
            part = rows.merge(cells, on=CELL).sort_values([*CELL, "backend"])
            chosen.setdefault(name, []).append(part)
    return {
        name: pd.concat(parts)
        .to_csv(index=False, float_format="%.7g", lineterminator="\n")
        .encode()
        for name, parts in chosen.items()
    }


if __name__ == "__main__":
    sys.exit(main(__doc__, build))
