"""Build the ``gemm_bf16`` tables from the kernel tables of aiconfigurator-core 0.12.0.

Needs the optional extra ``recipes``. Run from the repository root::

    python data/recipes/gemm_bf16.py            # write the tables and the sha256 in their cards
    python data/recipes/gemm_bf16.py --check    # compare with the stored tables, change nothing

The subset is chosen by the SHA-256 of each cell's label, not by a random number generator, so the
same bytes come out under every version of every library. Cells are stratified by SKU and by
``floor(log2 M)``, and within a stratum only cells that the largest number of builds measured are
eligible, one build per framework. No two tables share a cell of a SKU:

- ``gemm_bf16_ranking`` takes every cell of the four projections of Llama-3.1-8B at TP 4;
- ``gemm_bf16``, for fitting the factors, takes a few cells by a hash without the SKU (the same
  cells on every SKU that measured them: they tell what SKUs share) and some by a hash with it;
- ``gemm_bf16_test`` takes others by another hash, for scoring only;
- ``gemm_bf16_dense`` takes more, as ``gemm_bf16``, for the discrepancy between shapes.
"""

import hashlib
import sys
from pathlib import Path

import pandas as pd
from _recipe import main, tables

FIT, DENSE = (3, 4), (17, 40)  # cells by the hash without and with the SKU, per SKU and stratum
TEST = 20  # cells per SKU and stratum
TOKENS = [2**i for i in range(13)]
PROJECTIONS = [(1536, 4096), (4096, 1024), (7168, 4096), (4096, 3584)]  # (N, K)
SMALLEST = 128  # of N and of K
COLUMNS = ["sku", "backend", "version", "M", "N", "K", "op_time"]
CELL = ["M", "N", "K"]
TABLES = ("gemm_bf16", "gemm_bf16_test", "gemm_bf16_dense", "gemm_bf16_ranking")
BUILDS = {  # folder of the package -> SKU; one build per framework (H100 has an older sglang too)
    "a100_sxm": ("A100-80GB-SXM", {"sglang": "0.5.10", "trtllm": "1.0.0", "vllm": "0.14.0"}),
    "h100_sxm": ("H100-80GB-SXM", {"sglang": "0.5.14", "trtllm": "1.3.0rc20", "vllm": "0.24.0"}),
    "h200_sxm": ("H200-141GB-SXM", {"sglang": "0.5.14", "trtllm": "1.3.0rc20", "vllm": "0.24.0"}),
    "l40s": ("L40S-48GB-PCIe", {"sglang": "0.5.14", "trtllm": "1.3.0rc20", "vllm": "0.24.0"}),
    "b200_sxm": ("B200-180GB-SXM", {"sglang": "0.5.14", "trtllm": "1.3.0rc20", "vllm": "0.24.0"}),
    "b300_sxm": ("B300-270GB-SXM", {"sglang": "0.5.14", "trtllm": "1.3.0rc20", "vllm": "0.24.0"}),
    "gb200": ("GB200-186GB-SXM", {"sglang": "0.5.14", "trtllm": "1.3.0rc20", "vllm": "0.24.0"}),
    "gb300": ("GB300-279GB-SXM", {"sglang": "0.5.14", "trtllm": "1.3.0rc20", "vllm": "0.24.0"}),
    "rtx_pro_6000_server": (
        "RTX-PRO-6000-96GB-PCIe",
        {"sglang": "0.5.14", "trtllm": "1.3.0rc20", "vllm": "0.24.0"},
    ),
}


def measured(
    folder: Path, sku: str, versions: dict[str, str], dtype: str = "bfloat16"
) -> pd.DataFrame:
    """All rows of one SKU and dtype, milliseconds turned into seconds."""
    parts = []
    for backend, version in versions.items():
        rows = pd.read_parquet(folder / "gemm" / backend / version / "gemm_perf.parquet")
        rows = rows[rows["gemm_dtype"] == dtype]
        rows = rows.rename(columns={"m": "M", "n": "N", "k": "K"})
        rows = rows[(rows["N"] >= SMALLEST) & (rows["K"] >= SMALLEST)]
        parts.append(
            rows.assign(sku=sku, backend=backend, version=version, op_time=rows["latency"] / 1e3)
        )
    return pd.concat(parts, ignore_index=True)[COLUMNS]


def order(cells: pd.DataFrame, salt: str) -> pd.DataFrame:
    """Cells in the order of the SHA-256 of ``salt|M|N|K``."""
    key = [
        hashlib.sha256(f"{salt}|{m}|{n}|{k}".encode()).hexdigest()
        for m, n, k in cells[CELL].itertuples(index=False)
    ]
    return cells.assign(key=key).sort_values("key")[CELL]


def without(cells: pd.DataFrame, taken: pd.DataFrame) -> pd.DataFrame:
    """Cells that are not among `taken`."""
    taken = taken.merge(cells[CELL])  # those of other strata would come out as unique rows
    return pd.concat([cells[CELL], taken[CELL]]).drop_duplicates(keep=False)


def both(cells: pd.DataFrame, sku: str, common: int, own: int) -> pd.DataFrame:
    """`common` cells by the hash without the SKU, then `own` others by the hash with it."""
    shared = order(cells, "common").head(common)
    return pd.concat([shared, order(without(cells, shared), f"train|{sku}").head(own)])


def choose(rows: pd.DataFrame, sku: str) -> dict[str, pd.DataFrame]:
    """Cells of one SKU for each table."""
    ranking = pd.DataFrame([(m, n, k) for m in TOKENS for n, k in PROJECTIONS], columns=CELL)
    builds = rows.groupby(CELL).size().rename("builds").reset_index()
    builds["stratum"] = builds["M"].map(lambda m: int(m).bit_length())
    chosen: dict[str, list[pd.DataFrame]] = {name: [] for name in TABLES}
    for _, stratum in builds.groupby("stratum"):
        cells = stratum[stratum["builds"] == stratum["builds"].max()][CELL]
        cells = without(cells, ranking)
        fit = both(cells, sku, *FIT)
        test = order(without(cells, fit), f"test|{sku}").head(TEST)
        dense = both(without(cells, pd.concat([fit, test])), sku, *DENSE)
        for name, part in zip(TABLES, (fit, test, dense), strict=False):
            chosen[name].append(part)
    chosen["gemm_bf16_ranking"].append(ranking)
    return {name: pd.concat(parts) for name, parts in chosen.items()}


def build() -> dict[str, bytes]:
    """All tables as the bytes of their CSV files."""
    chosen: dict[str, list[pd.DataFrame]] = {name: [] for name in TABLES}
    for folder, (sku, versions) in BUILDS.items():
        rows = measured(tables() / folder, sku, versions)
        for name, cells in choose(rows, sku).items():
            chosen[name].append(rows.merge(cells, on=CELL).sort_values([*CELL, "backend"]))
    return {
        name: pd.concat(parts)
        .to_csv(index=False, float_format="%.7g", lineterminator="\n")
        .encode()
        for name, parts in chosen.items()
    }


if __name__ == "__main__":
    sys.exit(main(__doc__, build))
