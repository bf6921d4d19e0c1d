"""The threads of a CTA that compute a tile, and how they share rows that an op takes whole."""

from __future__ import annotations

from tilegen.frontend.dims import most
from tilegen.ops.base import OpInstance

THREADS, WARP = 256, 32  # that compute a tile
VECTOR = 8  # columns of a load
HELD = 8  # eights of columns that a thread holds of a row
HELD_NARROW = 4  # of one that less than a warp has


def rows_of_tile(b: OpInstance) -> int:
    """Of an op that takes whole rows; the last tile may have fewer. Those of an image are its pixels, of some
    of its lines."""
    *lines, _ = map(most, b.out)
    return min(b.tile[0], lines[1]) * lines[2] if len(lines) == 3 else min(b.tile[0], lines[0])


def threads_of_row(columns: int, rows: int, ends: bool) -> int:
    """As few as hold it, but all threads are to have one of the tile's rows.

    ends: whether rows begin or end within vectors; then up to 14 columns are a thread's each, and a whole
    warp has a row.
    """
    narrow = 0 if ends else HELD_NARROW
    held = {n: HELD if n >= WARP else narrow for n in (4, 8, 16, 32, 64, 128)}
    fewest = next((n for n in held if columns <= n * VECTOR * held[n]), THREADS)
    fair = next(n for n in (*held, THREADS) if n * rows >= THREADS)
    return max(fewest, fair)
