"""Build the ``allreduce_bf16`` table from the communication tables of aiconfigurator-core 0.12.0.

Needs the optional extra ``recipes``. Run from the repository root::

    python data/recipes/allreduce_bf16.py            # write the table and the sha256 in its card
    python data/recipes/allreduce_bf16.py --check    # compare with the stored, change nothing

The sizes are a fixed list, so the same bytes come out under every version of every library. A row
is one message size of NCCL or of a framework's all-reduce on 2, 4 or 8 GPUs of one node. Of the
two modes of sglang and vllm the one in a CUDA graph is kept, as they decode by default.
"""

import sys
from pathlib import Path

import pandas as pd
from _recipe import main, tables

NAME = "allreduce_bf16"
COLUMNS = ["sku", "backend", "version", "gpus", "bytes", "op_time"]
GPUS = (2, 4, 8)
OCTAVES = (10, 13, 14, 16, 17, 18, 19, 20, 21, 22, 23, 24, 26, 29)  # 1 KiB to 512 MiB
BYTES_EACH = 2  # the package counts elements
NEWER = {"nccl": "2.29.2", "sglang": "0.5.14", "trtllm": "1.3.0rc20", "vllm": "0.24.0"}
BUILDS = {  # folder of the package -> SKU and version of each library
    "a100_sxm": (
        "A100-80GB-SXM",
        {"nccl": "2.27.3", "sglang": "0.5.10", "trtllm": "1.0.0", "vllm": "0.14.0"},
    ),
    "h100_sxm": ("H100-80GB-SXM", NEWER),
    "h200_sxm": ("H200-141GB-SXM", NEWER),
    "l40s": ("L40S-48GB-PCIe", NEWER | {"nccl": "2.27.3", "vllm": "0.22.0"}),
    "b200_sxm": ("B200-180GB-SXM", NEWER),
    "b300_sxm": ("B300-270GB-SXM", NEWER),
    "gb200": ("GB200-186GB-SXM", NEWER),
    "gb300": ("GB300-279GB-SXM", NEWER),
    "rtx_pro_6000_server": ("RTX-PRO-6000-96GB-PCIe", NEWER),
}


def measured(folder: Path, sku: str, backend: str, version: str) -> pd.DataFrame:
    """All-reduce rows of one library on one SKU, elements turned into bytes and ms into seconds."""
    stem, dtype = "custom_allreduce_perf", ("allreduce_dtype", "bfloat16")
    if backend == "nccl":  # half is as wide as bfloat16
        stem, dtype = "nccl_perf", ("nccl_dtype", "half")
    rows = pd.read_parquet(folder / "comm" / backend / version / f"{stem}.parquet")
    rows = rows[(rows["op_name"] == "all_reduce") & (rows[dtype[0]] == dtype[1])]
    rows = rows[~rows["kernel_source"].str.endswith("_eager") & rows["num_gpus"].isin(GPUS)]
    rows = rows.assign(
        sku=sku,
        backend=backend,
        version=version,
        gpus=rows["num_gpus"],
        bytes=BYTES_EACH * rows["message_size"],
        op_time=rows["latency"] / 1e3,
    )
    return rows[rows["bytes"].isin([2**i for i in OCTAVES])][COLUMNS]


def build() -> bytes:
    """The table as the bytes of its CSV file."""
    parts = [
        measured(tables() / folder, sku, backend, version).sort_values(["gpus", "bytes"])
        for folder, (sku, versions) in BUILDS.items()
        for backend, version in versions.items()
    ]
    return pd.concat(parts).to_csv(index=False, float_format="%.7g", lineterminator="\n").encode()


if __name__ == "__main__":
    sys.exit(main(__doc__, lambda: {NAME: build()}))
