"""Build the ``attention_*_bf16`` tables from the kernel tables of aiconfigurator-core 0.12.0.

Needs the optional extra ``recipes``. Run from the repository root::

    python data/recipes/attention_bf16.py            # write the tables and the sha256 in the cards
    python data/recipes/attention_bf16.py --check    # compare with the stored, change nothing

The subset is chosen by the SHA-256 of each cell's label, not by a random number generator, so the
same bytes come out under every version of every library. A cell is (batch, length, heads,
kv_heads); a unit is one framework on one SKU. Cells are drawn in turn from strata of length and of
independent work, one from each stratum before any gives a second. The head counts of widespread
LLMs under tensor parallelism count eight times in the draw. Of each of prefill and decode:

- ``*_test``, for scoring only, holds the same cells for every unit that measured them, and no
  cell of it is in another table of any unit;
- the table without suffix, for fitting the factors, takes half of its cells by a hash without the
  SKU (the same for every SKU of a framework) and half by a hash with it;
- ``*_dense`` takes more, mostly by the hash without the SKU, for the discrepancy between shapes.

In decode multi-head and grouped-query cells are drawn apart: most frameworks have a kernel of each.
"""

import hashlib
import sys
from typing import NamedTuple

import pandas as pd
from _recipe import main, tables


class Counts(NamedTuple):
    """Cells of a unit: by the hash without and with the SKU, and for each framework's share."""

    fit: tuple[int, int]
    dense: tuple[int, int]
    test: int


CELL = ["batch", "length", "heads", "kv_heads"]
COLUMNS = ["sku", "backend", "version", *CELL, "op_time"]
SUFFIXES = {"fit": "", "dense": "_dense", "test": "_test"}
COUNTS = {  # operation -> kind of kernel
    "prefill": {"any": Counts((45, 45), (230, 70), 180)},
    "decode": {
        "multi-head": Counts((15, 15), (115, 45), 70),
        "grouped": Counts((20, 20), (148, 57), 110),
    },
}
SHORTEST = 16  # of a prefill, tokens
MOST_QUERIES = 32  # heads a KV head; beyond it trtllm decodes with another kernel
COMMON = 2 / 3  # of the SKUs have measured a cell that is drawn without the SKU
COPIES = 8  # weight of a cell with the heads of a real LLM
LLM_HEADS = [(32, 8), (40, 8), (64, 8), (28, 4), (32, 32), (40, 40), (64, 64)]  # (heads, KV heads)
REAL = {(h // tp, max(kv // tp, 1)) for h, kv in LLM_HEADS for tp in (1, 2, 4, 8) if h % tp == 0}
OLDER = {"sglang": "0.5.10", "trtllm": "1.0.0", "vllm": "0.14.0"}
NEWER = {"sglang": "0.5.14", "trtllm": "1.3.0rc20", "vllm": "0.24.0"}
AMPERE = {"sglang": "flash_attention", "trtllm": "torch_flow", "vllm": "vllm_flash_attn"}
HOPPER = {"sglang": "fa3", "trtllm": "torch_flow", "vllm": "vllm_flash_attn_fa3"}
WORKSTATION = {"sglang": "flashinfer", "trtllm": "torch_flow", "vllm": "vllm_flash_attn_fa2"}
BLACKWELL = {"sglang": "trtllm_mha", "trtllm": "torch_flow", "vllm": "vllm_flashinfer_trtllm"}
BUILDS = {  # folder of the package -> SKU, version of each framework, its main kernel_source
    "a100_sxm": ("A100-80GB-SXM", OLDER, AMPERE),
    "h100_sxm": ("H100-80GB-SXM", NEWER, HOPPER),
    "h200_sxm": ("H200-141GB-SXM", NEWER, HOPPER),
    "l40s": ("L40S-48GB-PCIe", NEWER, WORKSTATION),
    "b200_sxm": ("B200-180GB-SXM", NEWER, BLACKWELL),
    "b300_sxm": ("B300-270GB-SXM", NEWER, BLACKWELL),
    "gb200": ("GB200-186GB-SXM", NEWER, BLACKWELL),
    "gb300": ("GB300-279GB-SXM", NEWER, BLACKWELL),
    "rtx_pro_6000_server": ("RTX-PRO-6000-96GB-PCIe", NEWER, WORKSTATION),
}
FILES = {"prefill": "context", "decode": "generation"}
IMPOSSIBLE = [("decode", "A100-80GB-SXM", "trtllm")]  # rows beat the peak of the memory


def unit(operation: str, folder: str, backend: str) -> pd.DataFrame:
    """All rows of one framework on one SKU by its main kernel, milliseconds turned into seconds."""
    sku, versions, kernels = BUILDS[folder]
    version, kernel = versions[backend], kernels[backend]
    if kernel == BLACKWELL["vllm"]:
        kernel += operation
    path = tables() / folder / "attention" / backend / version
    rows = pd.read_parquet(path / f"{FILES[operation]}_attention_perf.parquet")
    keep = (rows["attn_dtype"] == "bfloat16") & (rows["kv_cache_dtype"] == "bfloat16")
    keep &= (
        (rows["head_dim"] == 128) & (rows["beam_width"] == 1) & (rows["kernel_source"] == kernel)
    )
    if "window_size" in rows:
        keep &= rows["window_size"] == 0
    rows = rows[keep].rename(
        columns={"batch_size": "batch", "num_heads": "heads", "num_key_value_heads": "kv_heads"}
    )
    if operation == "prefill":
        rows = rows[rows["isl"] >= SHORTEST].assign(length=lambda r: r["isl"])
    else:
        rows = rows.assign(length=rows["step"] + 1)  # the new token attends to itself too
    if operation == "decode" and backend == "trtllm":
        rows = rows[rows["heads"] <= MOST_QUERIES * rows["kv_heads"]]
    rows = rows.assign(sku=sku, backend=backend, version=version, op_time=rows["latency"] / 1e3)
    return rows[COLUMNS].astype(dict.fromkeys(CELL, int))


def octave(size: int, width: int) -> int:
    """Group of `width` octaves, from 1 up."""
    return (int(size).bit_length() - 1) // width


def label(operation: str, cells: pd.DataFrame) -> pd.DataFrame:
    """Cells with their kind of kernel and stratum."""
    multi_head = cells["heads"] == cells["kv_heads"]
    if operation == "prefill":
        return cells.assign(
            kind="any",
            stratum=[  # lengths up to 64 are one
                f"{max(octave(s, 1), 6)} {octave(b * h, 2)}"
                for b, s, h, _ in cells[CELL].to_numpy()
            ],
        )
    return cells.assign(
        kind=multi_head.map({True: "multi-head", False: "grouped"}),
        stratum=[  # lengths in pairs (32, 64), (128, 256) and so on; up to 16 are one
            f"{max(octave(2 * s, 2), 2)} {octave(b * kv, 2)}"
            for b, s, _, kv in cells[CELL].to_numpy()
        ],
    )


def key(salt: str, cell: tuple[int, ...]) -> str:
    """SHA-256 of ``salt|copy|batch|length|heads|kv_heads``, the least of a cell's copies."""
    text = "|".join(map(str, cell))
    copies = COPIES if cell[-2:] in REAL else 1
    return min(hashlib.sha256(f"{salt}|{i}|{text}".encode()).hexdigest() for i in range(copies))


def draw(cells: pd.DataFrame, count: int, salt: str, held: pd.Index | None = None) -> pd.Index:
    """`count` more cells than those `held`, from all strata in turn, in each by the hash."""
    held = cells.index[:0] if held is None else held
    have = cells.loc[held, "stratum"].value_counts()
    left = cells.drop(held).sort_values(salt)
    turn = left.groupby("stratum").cumcount() + left["stratum"].map(have).fillna(0)
    return left.assign(turn=turn).sort_values(["turn", salt]).index[:count]


def choose(rows: pd.DataFrame, pool: pd.DataFrame, counts: Counts) -> dict[str, pd.DataFrame]:
    """Cells of one kind for each table and unit; `pool` has their strata and keys."""
    measured = pool[CELL].reset_index().merge(rows[["sku", "backend", *CELL]]).drop_duplicates()
    backends, units = measured.groupby("backend"), measured.groupby(["sku", "backend"])
    common: dict[str, pd.DataFrame] = {}
    for backend, part in backends:
        skus = part["index"].value_counts()
        common[backend] = pool.loc[skus.index[skus >= COMMON * part["sku"].nunique()]]
    test = pd.Index([])
    for cells in common.values():
        test = test.union(draw(cells, counts.test, "test"))
    used, shared = test, {}
    for table, (number, _) in (("fit", counts.fit), ("dense", counts.dense)):
        shared[table] = {
            backend: draw(cells.drop(used, errors="ignore"), number, table)
            for backend, cells in common.items()
        }
        used = used.union(pd.Index([i for drawn in shared[table].values() for i in drawn]))
    chosen = [("test", *u, i) for u, part in units for i in test.intersection(part["index"])]
    taken: dict[str, set[int]] = {sku: set(test) for sku in measured["sku"].unique()}
    for table, numbers in (("fit", counts.fit), ("dense", counts.dense)):
        new = []  # of all units of a SKU, before any of them is taken from the next table
        for (sku, backend), part in units:
            cells = pool.loc[part["index"]].drop(list(taken[sku]), errors="ignore")
            held = shared[table][backend].intersection(cells.index)
            own = draw(cells, sum(numbers) - len(held), f"{table}|{sku}", held)
            new += [(table, sku, backend, i) for i in held.append(own)]
        chosen += new
        for _, sku, _, i in new:
            taken[sku].add(i)
    frame = pd.DataFrame(chosen, columns=["table", "sku", "backend", "index"])
    frame = frame.join(pool[CELL], on="index").drop(columns="index")
    return {table: frame[frame["table"] == table].drop(columns="table") for table in SUFFIXES}


def build() -> dict[str, bytes]:
    """All tables as the bytes of their CSV files."""
    contents = {}
    for operation, kinds in COUNTS.items():
        rows = pd.concat(
            unit(operation, folder, backend)
            for folder, (sku, versions, _) in BUILDS.items()
            for backend in versions
            if (operation, sku, backend) not in IMPOSSIBLE
        )
        pool = rows[CELL].drop_duplicates().sort_values(CELL, ignore_index=True)
        pool = label(operation, pool)
        salts = ["test", "fit", "dense"]
        salts += [f"{table}|{sku}" for table in ("fit", "dense") for sku, *_ in BUILDS.values()]
        cells = list(pool[CELL].itertuples(index=False, name=None))
        pool = pool.assign(**{salt: [key(salt, cell) for cell in cells] for salt in salts})
        chosen = [choose(rows, pool[pool["kind"] == kind], n) for kind, n in kinds.items()]
        rows["order"] = rows["sku"].map({sku: i for i, (sku, *_) in enumerate(BUILDS.values())})
        for table, suffix in SUFFIXES.items():
            cells = pd.concat([part[table] for part in chosen])
            subset = rows.merge(cells, on=["sku", "backend", *CELL])
            subset = subset.sort_values(["order", *CELL, "backend", "op_time"])[COLUMNS]
            contents[f"attention_{operation}_bf16{suffix}"] = subset.to_csv(
                index=False, float_format="%.7g", lineterminator="\n"
            ).encode()
    return contents


if __name__ == "__main__":
    sys.exit(main(__doc__, build))
