"""How a product's sums leave the registers: swapped by the warpgroups, exchanged by the pair, stored row by
row or through shared memory and TMA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from tilegen.analysis.regions import to_c
from tilegen.codegen.epilogue import EpilogueOperand, EpilogueText
from tilegen.frontend.dims import dims_of
from tilegen.frontend.program import Size
from tilegen.ops.base import ceil_div
from tilegen.targets.sm90.code import Code
from tilegen.targets.sm90.stage import BoxMap, Map
from tilegen.targets.sm90.tile import TWO_BYTES, Tile


@dataclass(frozen=True)
class Step:
    """What is done with `count` n8 fragments of a warpgroup's sums from `first` on.

    other: the first of those swapped away. to: the CTA rank that sums are sent to, as C; barrier: which of a
    warpgroup's barriers tells that what it sent for the tile before has been read, -1 where that depends on
    its CTA; last: of those that the warpgroup sends.
    """

    does: Literal["warpgroup_reduce", "cluster_send", "cluster_reduce", "store"]
    first: int
    count: int
    other: int = 0
    to: str = ""
    barrier: int = 0
    last: bool = True


@dataclass(frozen=True)
class Branch:
    """One thing or another: by the warpgroup, or by the CTA of a cluster."""

    does: ClassVar[str] = "branch"

    condition: str
    then: tuple[Step | Branch, ...]
    otherwise: tuple[Step | Branch, ...]


Steps = tuple[Step | Branch, ...]


def finish(tile: Tile) -> Steps:
    """What is done after the main loop, until all sums are stored."""
    if not tile.alternates:
        return _finish(tile, 0, tile.n8s)
    half = tile.n8s // 2
    first, second = (
        (Step("warpgroup_reduce", own, half, other), *_finish(tile, own, half))
        for own, other in ((0, half), (half, 0))
    )
    return (Branch("warpgroup == 0", first, second),)


def _finish(tile: Tile, first: int, count: int) -> Steps:
    """The same for these n8 fragments, of which a math warpgroup has the CTA's sums. Where a cluster splits K
    each part of them goes to the CTA that finishes it."""
    if not tile.exchanges:
        return (Step("store", first, count),)
    size = count // tile.parts
    parts = [_Part(tile, n, first + n * size, size) for n in range(tile.parts)]
    steps: Steps = _sent(parts)
    for part in reversed(parts):
        others = _sent([p for p in parts if p is not part], part)
        told = part.number if tile.halved else -1
        reduced = Step("cluster_reduce", part.first, size, barrier=told)
        own = (*others, reduced, Step("store", part.first, size))
        last = part is parts[-1] and not tile.halved  # somebody's it is
        steps = own if last else (Branch(part.here, own, steps),)
    return steps


@dataclass(frozen=True)
class _Part:
    """n8 fragments that one CTA of a cluster finishes."""

    tile: Tile
    number: int
    first: int
    count: int

    @property
    def owner(self) -> str:
        """The rank of that CTA, as C: where the warpgroups have half each, the first half of the CTAs
        finishes that of the first."""
        if not self.tile.halved:
            return str(self.number)
        scaled = f" * {self.tile.parts}" if self.tile.parts > 1 else ""
        return f"(int)warpgroup{scaled}" + (f" + {self.number}" if self.number else "")

    @property
    def here(self) -> str:
        """Whether it is this one."""
        return f"{self.owner} == cta_rank" if self.tile.halved else f"cta_rank == {self.owner}"


def _sent(parts: Sequence[_Part], own: _Part | None = None) -> tuple[Step, ...]:
    """To the CTAs that finish them, by one that finishes `own`."""
    found = []
    for n, part in enumerate(parts):
        # barriers are counted without the part that is never sent
        before = own is not None and not part.tile.halved and own.number < part.number
        to = "cta_rank ^ 1" if part.tile.cluster.k == 2 else part.owner
        barrier, last = part.number - before, n == len(parts) - 1
        found.append(Step("cluster_send", part.first, part.count, to=to, barrier=barrier, last=last))
    return tuple(found)


def unit_of(*sizes: int) -> int:
    """Of rows that have so many numbers, or begin there, how many neighbours are aligned: eight, two or
    one."""
    return next(unit for unit in (8, 2, 1) if not any(n % unit for n in sizes))


@dataclass(frozen=True)
class Store:
    """Where a tile's results go, of which a math warpgroup finishes some rows or columns."""

    code: Code
    tile: Tile

    @property
    def two_bytes(self) -> bool:
        return self.code.bound.result.dtype in TWO_BYTES

    @property
    def unit(self) -> int:
        """How many neighbours in a row of the result one store is aligned for: eight, two or one."""
        return unit_of(int(self.code.bound.out[-1]))

    @property
    def by_tma(self) -> bool:
        """Whether TMA may store results: two bytes a number, in rows of whole 16-byte units."""
        return self.two_bytes and self.unit == 8

    @property
    def joins_lanes(self) -> bool:
        """Whether rows of two-byte numbers leave from registers in vectors that begin anywhere."""
        in_rows = not self.tile.swapped and self.tile.finished_n8s >= 4
        return self.two_bytes and self.unit < 8 and in_rows

    @property
    def turned_late(self) -> bool:
        """Whether a swapped tile's results are turned, half as many bytes as its sums: where all that the
        epilogue reads is the same in all rows."""
        vectors = all(e.vector for e in EpilogueText(self.code.bound).operands)
        return self.tile.swapped and self.two_bytes and vectors

    @property
    def blocks(self) -> int:
        """Of 64 x 64 results that a math warpgroup has, the last of them with fewer columns, or swapped with
        fewer rows."""
        return self.tile.left_blocks * ceil_div(self.tile.finished_n8s, 8)

    @property
    def row(self) -> str:
        """First row that the CTA finishes."""
        down, _ = self.tile.cluster.finished
        shared = f" + {self.tile.cta_row} * {self.tile.rows // down}" if down > 1 else ""
        return to_c(self.code.bound.write[0].lo) + shared

    @property
    def column(self) -> str:
        """First column that the CTA finishes."""
        column = to_c(self.code.bound.write[-1].lo)
        _, across = self.tile.cluster.finished
        # where warpgroups split columns that a cluster exchanges, column_of_warpgroup tells the CTA's part
        shared = across > 1 and not (self.tile.exchanges and self.tile.warpgroups_split_n)
        return f"{column} + {self.tile.cta_column} * {self.tile.columns // across}" if shared else column

    @property
    def moves(self) -> bool:
        """Whether the result's rows, or images, are not the same at every launch."""
        return bool(dims_of(self.code.bound.out))

    @property
    def row_of_warpgroup(self) -> str:
        if self.tile.warpgroups_split_right and not self.tile.exchanges:
            return f" + (int)warpgroup * {self.tile.cta_rows // 2}"
        whole = self.tile.warpgroups_split_n or self.tile.swapped or self.tile.pingpong
        return "" if whole else f" + (int)warpgroup * {64 * self.tile.m64}"

    @property
    def column_of_warpgroup(self) -> str:
        if self.tile.warpgroups_split_right or self.tile.pingpong:
            return ""
        if self.tile.swapped:
            return f" + (int)warpgroup * {self.tile.cta_columns // 2}"
        if not self.tile.warpgroups_split_n:
            return ""
        # of the columns that either warpgroup has, this CTA finishes those of its rank
        who = "cta_rank" if self.tile.cluster.k > 2 else "(int)warpgroup"
        return f" + {who} * {8 * self.tile.finished_n8s}"

    @property
    def map_name(self) -> str:
        return self._whole("out") or self.rest_name

    @property
    def rest_name(self) -> str:
        """The map of the last columns, or rows of a swapped tile, fewer than 64."""
        return self._rest("rest")

    @property
    def beside_name(self) -> str:
        """The map of a residual, by which the buffers are filled that results leave from."""
        return self._whole("beside") or self.beside_rest_name

    @property
    def beside_rest_name(self) -> str:
        return self._rest("beside_rest")

    def _whole(self, what: str) -> str:
        """The name of a map of 64 columns, if there are so many."""
        return f"{self.code.name}_{what}" if self.tile.finished_n8s >= 8 else ""

    def _rest(self, what: str) -> str:
        return f"{self.code.name}_{what}" if self.tile.finished_n8s % 8 else ""


@dataclass(frozen=True)
class RowStore(Store):
    """A tile of a matrix of rows."""

    form: ClassVar[str] = "rows"

    @property
    def staged(self) -> bool:
        """Whether results leave through shared memory and TMA: where that pays and fits, else from
        registers."""
        if not self.tile.swapped:
            return self.tile.cta_rows >= 128 and self.by_tma
        one_finishes = self.tile.exchanges and self.tile.halved  # of the math warpgroups, all that a CTA has
        shared = not (one_finishes or self.tile.pingpong)
        alone = len(self.code.plan.graph.ops) == 1
        return alone and self.by_tma and self.turned_late and shared

    @property
    def corner(self) -> str:
        """Where a math warpgroup's sums lie in the result: the members of tg_op_NAME::corner."""
        rows = f", {to_c(self.code.bound.out[0])}" if self.moves else ""
        return f"{self.row}{self.row_of_warpgroup}, {self.column}{self.column_of_warpgroup}{rows}"

    @property
    def maps(self) -> list[Map]:
        if not self.staged:
            return []
        b = self.code.bound
        return self._maps((self.map_name, self.rest_name), b.op.result, int(b.out[-1]), 0)

    @property
    def turned(self) -> tuple[int, ...]:
        """Of a swapped tile: blocks of 64 columns, and eights of rows, that a math warpgroup finishes; rows
        and columns from those of the first to those of the second."""
        tile = self.tile
        apart = (tile.cta_rows // 2, 0) if tile.warpgroups_split_right else (0, tile.cta_columns // 2)
        return (tile.left_blocks, tile.finished_n8s, *apart)

    def residual_maps(self, residual: EpilogueOperand) -> list[Map]:
        """As the result's are."""
        names = self.beside_name, self.beside_rest_name
        return self._maps(names, residual.tensor, residual.pitch, residual.first)

    def _maps(self, names: tuple[str, str], tensor: str, pitch: int, first: int) -> list[Map]:
        """Of whole blocks of 64 columns, and of those that are left over; swapped: of 64 rows."""
        b, found = self.code.bound, list[Map]()
        rows, columns, (name, rest) = b.out[0], int(b.out[-1]), names
        if self.tile.finished_n8s >= 8:
            found.append(Map(name, tensor, rows, columns, pitch, first, (64, 64), True))
        if left := 8 * (self.tile.finished_n8s % 8):
            box = (left, 64) if self.tile.swapped else (64, left)
            found.append(Map(rest, tensor, rows, columns, pitch, first, box, self.tile.swapped))
        return found


@dataclass(frozen=True)
class PixelStore(Store):
    """A tile of images: boxes of pixels, `line` rows of shared memory a line, a_rows in all."""

    a_rows: int
    line: int
    slides: bool

    form: ClassVar[str] = "pixels"

    @property
    def staged(self) -> bool:
        """By TMA where a tile takes more than 64 rows of shared memory, in whole blocks of 64 channels."""
        return self.a_rows > 64 and 8 * self.tile.finished_n8s % 64 == 0 and self.by_tma

    @property
    def first(self) -> tuple[str, str, str]:
        """Image, line and pixel of the tile's first."""
        image, line, pixel = (to_c(i.lo) for i in self.code.bound.write[:3])
        return image, line, pixel

    @property
    def corner(self) -> str:
        row = self.row_of_warpgroup.removeprefix(" + ") or "0"
        images = (to_c(self.sizes[0]),) if self.moves else ()
        return ", ".join((row, f"{self.column}{self.column_of_warpgroup}", *self.first, *images))

    @property
    def box(self) -> tuple[int, int, int]:
        """Images, lines, pixels of a tile."""
        tb, th, tw = self.code.bound.tile[:3]
        return tb, th, tw

    @property
    def sizes(self) -> tuple[Size, int, int]:
        """Images, lines, pixels of the result."""
        images, lines, pixels = self.code.bound.out[:3]
        return images, int(lines), int(pixels)

    @property
    def boxes(self) -> tuple[int, int, int]:
        """Copies of 64 channels, rows from one to the next, and lines of an image: a copy for each line where
        the tile slides, else one."""
        tb, th, _ = self.box
        return (tb * th, self.line, th) if self.slides else (1, 0, 1)

    @property
    def maps(self) -> list[BoxMap]:
        if not self.staged:
            return []
        (images, lines, pixels), c, (tb, th, tw) = self.sizes, int(self.code.bound.out[3]), self.box
        pitches, box = (
            (c, pixels * c, lines * pixels * c),
            (64, tw, 1, 1) if self.slides else (64, tw, th, tb),
        )
        return [
            BoxMap(
                self.map_name,
                self.code.bound.op.result,
                (c, pixels, lines, images),
                pitches,
                box,
                (1, 1, 1, 1),
            )
        ]
