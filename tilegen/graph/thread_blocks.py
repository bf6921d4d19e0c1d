"""How the warps of a product by threads share its tile: in blocks of 16 rows and 32 columns."""

from __future__ import annotations

from tilegen.ops.base import ceil_div

LINE = 128  # bytes of k that are in shared memory together
ROWS, COLUMNS = 16, 32  # of a block
WARPS = 8


def warps_of(rows: int, columns: int) -> tuple[int, int]:
    """Warps below and beside each other: so that a warp has few blocks of such a tile, and reads few of its
    rows and columns. All columns that it reads are the tile's: behind them lies another stage."""
    down, across = ceil_div(rows, ROWS), ceil_div(columns, COLUMNS)
    whole = [n for n in (1, 2, 4, 8) if across % ceil_div(across, n) == 0]

    def cost(warps: tuple[int, int]) -> tuple[int, int]:
        own = ceil_div(down, warps[0]), ceil_div(across, warps[1])
        return own[0] * own[1], own[0] + 2 * own[1]

    return min(((WARPS // n, n) for n in whole), key=cost)
