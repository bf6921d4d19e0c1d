"""How a product's sums leave the registers: swapped by the warpgroups, exchanged by the pair, stored row by
row or through shared memory and TMA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from tilegen.analysis.regions import to_c
from tilegen.frontend.dims import dims_of
from tilegen.frontend.program import Size
from tilegen.targets.sm90.code import Code
from tilegen.targets.sm90.stage import BoxMap, Map
from tilegen.targets.sm90.tile import Tile

TWO_BYTES = ("bfloat16", "float16")


@dataclass(frozen=True)
class Step:
    """What is done with `count` n8 fragments of a warpgroup's sums from `first` on. other: the first of those
    swapped away."""

    does: Literal["warpgroup_reduce", "cluster_send", "cluster_reduce", "store"]
    first: int
    count: int
    other: int = 0


@dataclass(frozen=True)
class Branch:
    """One thing or another: by the warpgroup, or by the CTA of a pair."""

    does: ClassVar[str] = "branch"

    condition: str
    then: tuple[Step | Branch, ...]
    otherwise: tuple[Step | Branch, ...]


Steps = tuple[Step | Branch, ...]


def finish(tile: Tile) -> Steps:
    """What is done after the main loop, until all sums are stored."""
    if tile.swapped:
        return (Step("store", 0, tile.n8s),)
    if tile.alternates:
        return _halves(
            tile,
            "warpgroup",
            lambda own, other, half: (Step("warpgroup_reduce", own, half, other), *_finish(tile, own, half)),
        )
    if not tile.exchanges or tile.warpgroups_split_n:
        return _finish(tile, 0, tile.n8s)
    return _halves(
        tile,
        "cta_rank",
        lambda own, other, half: (
            Step("cluster_send", other, half),
            Step("cluster_reduce", own, half),
            Step("store", own, half),
        ),
    )


def _halves(tile: Tile, who: str, steps: Callable[[int, int, int], Steps]) -> Steps:
    """steps(first n8 fragment of its own half, of the other's, how many) for warpgroup or CTA 0, which
    finishes the first half, and for 1."""
    half = tile.n8s // 2
    return (Branch(f"{who} == 0", steps(0, half, half), steps(half, 0, half)),)


def _finish(tile: Tile, first: int, count: int) -> Steps:
    """The same for these n8 fragments of a warpgroup that has the CTA's sums of half the columns."""
    store = Step("store", first, count)
    if not tile.exchanges:
        return (store,)
    return (
        Branch(
            "(int)warpgroup == cta_rank",
            (Step("cluster_reduce", first, count), store),
            (Step("cluster_send", first, count),),
        ),
    )


@dataclass(frozen=True)
class Store:
    """Where a tile's results go, of which a math warpgroup finishes some rows or columns."""

    code: Code
    tile: Tile

    @property
    def two_bytes(self) -> bool:
        return self.code.bound.result.dtype in TWO_BYTES

    @property
    def row(self) -> str:
        shared = f" + {self.tile.cta_row} * {self.tile.cta_rows}" if self.tile.cluster.m > 1 else ""
        return to_c(self.code.bound.write[0].lo) + shared

    @property
    def column(self) -> str:
        """First column that the CTA finishes."""
        column = to_c(self.code.bound.write[-1].lo)
        if self.tile.cluster.n > 1:
            return f"{column} + {self.tile.cta_column} * {self.tile.cta_columns}"
        halved = self.tile.exchanges and not self.tile.warpgroups_split_n
        return f"{column} + cta_rank * {self.tile.columns // 2}" if halved else column

    @property
    def moves(self) -> bool:
        """Whether the result's rows, or images, are not the same at every launch."""
        return bool(dims_of(self.code.bound.out))

    @property
    def row_of_warpgroup(self) -> str:
        if self.tile.warpgroups_split_right:
            return f" + (int)warpgroup * {self.tile.cta_rows // 2}"
        whole = self.tile.warpgroups_split_n or self.tile.swapped
        return "" if whole else f" + (int)warpgroup * {64 * self.tile.m64}"

    @property
    def column_of_warpgroup(self) -> str:
        if self.tile.warpgroups_split_right:
            return ""
        if self.tile.swapped:
            return f" + (int)warpgroup * {self.tile.cta_columns // 2}"
        return f" + (int)warpgroup * {8 * self.tile.finished_n8s}" if self.tile.warpgroups_split_n else ""

    @property
    def map_name(self) -> str:
        return f"{self.code.name}_out" if self.tile.finished_n8s >= 8 else self.rest_name

    @property
    def rest_name(self) -> str:
        """The map of the last columns, fewer than 64."""
        return f"{self.code.name}_rest" if self.tile.finished_n8s % 8 else ""


@dataclass(frozen=True)
class RowStore(Store):
    """A tile of a matrix of rows."""

    form: ClassVar[str] = "rows"

    @property
    def staged(self) -> bool:
        """Whether results leave through shared memory and TMA: where that pays and fits, else from
        registers."""
        return self.tile.cta_rows >= 128 and self.two_bytes and not self.tile.swapped

    @property
    def corner(self) -> str:
        """Where a math warpgroup's sums lie in the result: the members of tg_op_NAME::corner."""
        rows = f", {to_c(self.code.bound.out[0])}" if self.moves else ""
        return f"{self.row}{self.row_of_warpgroup}, {self.column}{self.column_of_warpgroup}{rows}"

    @property
    def maps(self) -> list[Map]:
        if not self.staged:
            return []
        b, found = self.code.bound, list[Map]()
        rows, columns = b.out[0], int(b.out[-1])
        if self.tile.finished_n8s >= 8:
            found.append(Map(self.map_name, b.op.result, rows, columns, columns, 0, (64, 64), True))
        if self.tile.finished_n8s % 8:
            box = (64, 8 * (self.tile.finished_n8s % 8))
            found.append(Map(self.rest_name, b.op.result, rows, columns, columns, 0, box, False))
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
        return self.a_rows > 64 and 8 * self.tile.finished_n8s % 64 == 0 and self.two_bytes

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
