"""Rows that begin anywhere, by bulk copies: every eighth of them at a time.

    row 8q + j begins at number first + j·pitch + q·(8·pitch)

A tensor map begins at a whole 16-byte unit of two-byte numbers, and so do all of its rows. Of a tensor whose
rows are no whole units every eighth row still lies whole units behind the one before. So eight maps bring
them, the rows 8q + j by map j, which begins up to seven numbers before row j; copies begin as many columns
later, since their coordinates may be any (PTX ISA, tensor data movement, tiled mode). What lies behind a row
is outside of its map, and comes as zeros.

A copy brings rows 8q + j of 64 rows, q = 0 … 7, 64 columns of each: the eight lines of an atom of the
swizzle. So line 8j + q of 64 holds row 8q + j. Of narrower tiles, weights of 8n rows lie so together, two or
four rows of each map: line n·j + q holds row 8q + j.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sympy import Expr

from tilegen.analysis.regions import to_c
from tilegen.frontend.dims import dims_of, most
from tilegen.frontend.program import Size
from tilegen.graph.product_time import ROW_BYTES
from tilegen.ops.base import ceil_div
from tilegen.ops.extrema import largest, smallest
from tilegen.ops.gemm import unaligned
from tilegen.targets.sm90.code import Code
from tilegen.targets.sm90.stage import ALONE, Copy, FirstRow, Map, Share
from tilegen.targets.sm90.tile import Tile

EIGHTHS = 8  # two-byte numbers of a 16-byte unit
ROWS = EIGHTHS * EIGHTHS  # that lie in shared memory by eighths
TOGETHER = (ROWS, 32, 16)  # rows of weights that may, columns of a math warpgroup


def problem_of(tile: Tile, weights: bool) -> str:
    """Why a tile does not consist of 64 rows at a time, or, where weights come so too, of 64 columns, or of
    16 or 32 altogether; or an empty string."""
    if tile.swapped or tile.uneven:
        return f"expected 64, 128 or 256 rows of a CTA, not {tile.cta_rows}"
    if tile.cta_rows // tile.cluster.n % ROWS:
        return f"{tile.cluster.n} CTAs do not share {tile.cta_rows} of them in whole {ROWS}s"
    if not weights:
        return ""
    shared, together = {piece.rows // tile.cluster.m for piece in tile.b_pieces}, columns_together(tile)
    if not together or any(rows % together for rows in shared):
        return (
            f"expected whole {ROWS}s of columns of a math warpgroup and of what a CTA loads, or 16, 32 or 64"
            f" columns of a CTA, not {tile.cta_columns}"
        )
    return ""


def columns_together(tile: Tile) -> int:
    """Columns of a math warpgroup whose weights lie by eighths; 0 where it has no such number."""
    together = next((n for n in TOGETHER if 8 * tile.n8s % n == 0), 0)
    return together if together == ROWS or tile.cta_columns in TOGETHER else 0


@dataclass(frozen=True)
class EighthRows:
    """The maps of an operand's rows and their copies. name: of the maps, but for their number; first, pitch:
    numbers before the first row, and from row to row; together: how many rows lie by eighths."""

    code: Code
    name: str
    tensor: str
    rows: Size
    columns: int
    pitch: int
    first: int
    together: int = ROWS

    @property
    def maps(self) -> list[Map]:
        return [self._map(j) for j in range(self._several)]

    @property
    def _several(self) -> int:
        """Maps that may have rows."""
        return min(EIGHTHS, most(self.rows))

    @property
    def _lines(self) -> int:
        """Rows of one copy: of fewer rows than a tile has, no more than there may be."""
        return min(self.together // EIGHTHS, ceil_div(most(self.rows), EIGHTHS))

    def copied(self, rows: int) -> Size:
        """Of so many that a stage has room for, those that are copied."""
        return rows // self.together * smallest(EIGHTHS, self.rows) * self._lines

    def _map(self, j: int) -> Map:
        """Of rows 8q + j. A map has a row at least; where there is none, it is not copied."""
        return Map(
            f"{self.name}{j}",
            self.tensor,
            largest(1, ceil_div(self.rows - j, EIGHTHS)),
            self._before(j) + self.columns,
            EIGHTHS * self.pitch,
            self.first + j * self.pitch - self._before(j),
            (self._lines, 64),
            True,
        )

    def _before(self, j: int) -> int:
        """Numbers from where map j begins to where row j does."""
        return (self.first + j * self.pitch) % EIGHTHS

    def copies(
        self, column: Expr, first: FirstRow, rows: int, to: int, policy: str, share: Share = ALONE
    ) -> Iterator[Copy]:
        """64 columns from this one on of so many rows from the first one on, which is a multiple of eight."""
        eighth = first.over(EIGHTHS)
        apart = self.together // EIGHTHS * ROW_BYTES  # from one map's rows to the next's
        for n in range(0, rows, self.together):
            for j in range(self._several):
                at = (to_c(column + self._before(j)), eighth + (f" + {n // EIGHTHS}" if n else ""))
                there = f"{to_c(self.rows)} > {j}" if j and dims_of(self.rows) else ""
                address = self.code.map_address(f"{self.name}{j}")
                yield Copy(address, at, to + n * ROW_BYTES + j * apart, share, policy, there)


def eighths_of_activations(code: Code) -> EighthRows | None:
    """A linear's activations, if their rows begin anywhere."""
    b = code.bound
    return _eighths(code, "a", 0, b.shape(0)[0]) if unaligned(b, 0) else None


def eighths_of_weights(code: Code, tile: Tile) -> tuple[EighthRows, ...]:
    """Each group's weights, if their rows begin anywhere."""
    b, groups = code.bound, tile.groups
    if not unaligned(b, 1):
        return ()
    rows, together = int(b.out[1]), columns_together(tile)
    letters = [f"b{g}_" for g in range(groups)] if groups > 1 else ["b"]
    return tuple(
        replace(_eighths(code, letter, 1, rows, g * rows), together=together)
        for g, letter in enumerate(letters)
    )


def _eighths(code: Code, letter: str, n: int, rows: Size, before: int = 0) -> EighthRows:
    """So many rows of an operand, behind so many others."""
    b, pitch = code.bound, int(code.bound.pitch(n))
    first, columns = int(b.first(n)) + before * pitch, int(b.shape(n)[1])
    tensor = b.op.operands[n].tensor
    return EighthRows(code, f"{code.name}_{letter}", tensor, rows, columns, pitch, first)
