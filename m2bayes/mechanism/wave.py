"""How a grid of output tiles fills the SMs: tile choice, split-K and wave quantisation."""

from __future__ import annotations

from typing import Any

import numpy as np

LADDER = ((4096, 128, 256), (512, 256, 128), (256, 128, 128), (0, 64, 64))  # (from M, tile)
TILES = (
    (16, 64),
    (16, 128),
    (32, 64),
    (32, 128),
    (64, 64),
    (64, 128),
    (128, 64),
    (128, 128),
    (64, 256),
    (256, 64),
    (128, 256),
    (256, 128),
)
SPLITS = (1, 2, 4, 8, 16, 32)
SHORTEST_SPLIT = 512  # a split keeps at least this much of K
RAMP = 450.0  # K elements that the start and end of one pass over K cost
EDGE = 0.3 * 64  # operand traffic of a tile, in units of its own edge


def tile_ladder(M: Any) -> tuple[np.ndarray, np.ndarray]:
    """Output tile ``(tile_m, tile_n)`` [1] by token count `M` [1], dims of `M`.

    The ladder that the m2 source document read from cuBLAS dispatch logs for the qkv projection of
    Llama-3.1-8B (section 6): 64×64 from M = 64, 128×128 from 256, 256×128 from 512, 128×256 from
    4096. It hit 25 of 36 held-out tiles; below M = 64 the first rung is assumed.

    >>> [int(t) for t in tile_ladder(512)]
    [256, 128]
    """
    M = np.asarray(M)
    rung = [start <= M for start, *_ in LADDER]
    return (
        np.select(rung, [m for _, m, _ in LADDER]),
        np.select(rung, [n for _, _, n in LADDER]),
    )


def eta_wave(M: Any, N: Any, *, tile_m: Any, tile_n: Any, sm_count: Any, split: Any = 1) -> Any:
    r"""Share of the provisioned tile slots that hold useful output [1], dims broadcast.

    .. math:: \eta_{wave} = \frac{M N / (t_m t_n)}{\lceil n s / \mathrm{SM} \rceil \mathrm{SM} / s},
              \qquad n = \lceil M / t_m \rceil \lceil N / t_n \rceil

    Parameters
    ----------
    M, N, tile_m, tile_n : array_like
        Output and tile widths [1].
    sm_count : array_like, dims (sku,)
        Streaming multiprocessors [1].
    split : array_like
        Parts :math:`s` into which K is split [1]; each is a tile of its own.

    Examples
    --------
    Exactly one full wave, then one tile more: half of the second wave's slots stand empty.

    >>> float(eta_wave(128, 128 * 4, tile_m=128, tile_n=128, sm_count=4))
    1.0
    >>> float(eta_wave(128, 128 * 5, tile_m=128, tile_n=128, sm_count=4))
    0.625
    """
    tiles = np.ceil(M / tile_m) * np.ceil(N / tile_n) * split
    slots = np.ceil(tiles / sm_count) * sm_count / split
    return M * N / (tile_m * tile_n * slots)


def grid_share(M: Any, N: Any, *, tile_m: Any, tile_n: Any, sm_count: Any, split: Any = 1) -> Any:
    """Share of useful tile slots [1] without rounding the last wave up, dims as in `eta_wave`.

    What `eta_wave` becomes when a scheduler hides the last partial wave behind the next kernel:
    only a grid smaller than the chip, and tiles that overhang the matrix, are lost.

    >>> float(grid_share(128, 128 * 5, tile_m=128, tile_n=128, sm_count=4))
    1.0
    """
    tiles = np.ceil(M / tile_m) * np.ceil(N / tile_n) * split
    return M * N / (tile_m * tile_n * np.maximum(tiles, sm_count) / split)


def tile_choice(M: Any, N: Any, K: Any, sm_count: Any) -> tuple[Any, Any, Any]:
    """Tile and split-K ``(tile_m, tile_n, split)`` [1] of least modelled work, dims broadcast.

    A stand-in for a library's kernel selector: of twelve tiles and six splits the one with the
    fewest tile-slots, charged for the ramp of each pass over K and for operand traffic. The
    constants were chosen once on public kernel tables and are not fitted parameters. Valid for
    tensor-core GEMMs with K of at least 32; it does not know a library's real heuristics.

    >>> [int(v) for v in tile_choice(4096, 4096, 4096, 132)]
    [128, 256, 1]
    """
    M, N, K, sm_count = np.broadcast_arrays(M, N, K, sm_count)
    split = np.array(SPLITS)
    best = np.full(M.shape, np.inf)
    chosen = [np.zeros(M.shape, dtype=np.int64) for _ in range(3)]
    ramp = np.where(
        (split == 1) | (K[..., None] / split >= SHORTEST_SPLIT),
        1 + RAMP * split / K[..., None],
        np.inf,
    )
    for tile_m, tile_n in TILES:
        tiles = np.ceil(M / tile_m) * np.ceil(N / tile_n)
        waves = np.ceil(tiles[..., None] * split / sm_count[..., None])
        cost = waves * tile_m * tile_n / split * ramp
        cost = cost * (1 + EDGE * (1 / tile_m + 1 / tile_n))
        at = cost.argmin(axis=-1)
        least = np.take_along_axis(cost, at[..., None], axis=-1)[..., 0]
        better = least < best
        best = np.where(better, least, best)
        for held, new in zip(chosen, (tile_m, tile_n, split[at]), strict=True):
            np.copyto(held, new, where=better)
    return tuple(chosen)  # type: ignore[return-value]
