"""Build ``attention_decode_fp8`` from the kernel tables of aiconfigurator-core 0.12.0.

Needs the optional extra ``recipes``. Run from the repository root::

    python data/recipes/attention_fp8.py            # write the table and the sha256 in its card
    python data/recipes/attention_fp8.py --check    # compare with the stored, change nothing

Decode attention with an 8-bit KV cache beside the same cell with a 16-bit one, of the same
framework on the same SKU: what the narrower cache does to a kernel whose 16-bit time is known. The
cells are chosen as in ``attention_bf16.py``, by hash and from strata, among those that tell: a
cache that L2 does not hold in 8 bits, or one whose traffic is a small part of the time.
"""

import sys

import pandas as pd
from _recipe import main, tables
from attention_bf16 import (
    BLACKWELL,
    BUILDS,
    CELL,
    COLUMNS,
    IMPOSSIBLE,
    MOST_QUERIES,
    draw,
    key,
    label,
)

from m2bayes.database import Database

CELLS = 20  # of a unit and kind of kernel
WIDTH = 128 * 2 * 2  # [byte] of one token and KV head in 16 bits
COLD, SMALL = 2.4, 0.2  # 16-bit cache over L2, traffic's share of the time
NO_FP8 = ("a100_sxm",)
SHEETS = Database().datasheets([sku for sku, *_ in BUILDS.values()])
OTHER = {"vllm_flash_attn_fa2": "vllm_flashinfer_fidecode"}  # kernel that reads 8 bits instead


def unit(folder: str, backend: str) -> pd.DataFrame:
    """Cells of one framework on one SKU, 8-bit time [s] and 16-bit time [ns]."""
    sku, versions, kernels = BUILDS[folder]
    version, kernel = versions[backend], kernels[backend]
    kernel += "decode" if kernel == BLACKWELL["vllm"] else ""
    path = tables() / folder / "attention" / backend / version
    rows = pd.read_parquet(path / "generation_attention_perf.parquet")
    rows = rows[(rows["head_dim"] == 128) & (rows["beam_width"] == 1)]
    if "window_size" in rows:
        rows = rows[rows["window_size"] == 0]
    rows = rows.rename(
        columns={"batch_size": "batch", "num_heads": "heads", "num_key_value_heads": "kv_heads"}
    ).assign(length=rows["step"] + 1)
    if backend == "trtllm":
        rows = rows[rows["heads"] <= MOST_QUERIES * rows["kv_heads"]]
    held = {}
    for dtype, source in (("bfloat16", kernel), ("fp8", OTHER.get(kernel, kernel))):
        own = rows[(rows["kv_cache_dtype"] == dtype) & (rows["kernel_source"] == source)]
        held[dtype] = own.groupby(CELL)["latency"].mean() / 1e3
    pair = pd.concat(held, axis=1, join="inner").reset_index()
    sheet = SHEETS.sel(sku=sku)
    l2, bandwidth = float(sheet["l2"]), float(sheet["peak_bandwidth"])
    cache = WIDTH * pair["batch"] * pair["length"] * pair["kv_heads"]
    tells = (cache > COLD * l2) | (cache / bandwidth < SMALL * pair["bfloat16"])
    pair = pair[tells].assign(sku=sku, backend=backend, version=version)
    pair["wide_time"] = (pair["bfloat16"] * 1e9).round().astype(int)
    return pair.rename(columns={"fp8": "op_time"}).astype(dict.fromkeys(CELL, int))


def build() -> dict[str, bytes]:
    """The table as the bytes of its CSV file."""
    parts = []
    for folder, (sku, versions, _) in BUILDS.items():
        for backend in versions:
            if folder in NO_FP8 or ("decode", sku, backend) in IMPOSSIBLE:
                continue
            cells = label("decode", unit(folder, backend).sort_values(CELL, ignore_index=True))
            salt = f"fp8|{sku}"
            cells[salt] = [key(salt, c) for c in cells[CELL].itertuples(index=False, name=None)]
            for _, kind in cells.groupby("kind"):
                parts.append(kind.loc[draw(kind, CELLS, salt)].sort_values(CELL))
    columns = [*COLUMNS[:-1], "wide_time", "op_time"]
    table = pd.concat(parts)[columns]
    content = table.to_csv(index=False, float_format="%.7g", lineterminator="\n").encode()
    return {"attention_decode_fp8": content}


if __name__ == "__main__":
    sys.exit(main(__doc__, build))
