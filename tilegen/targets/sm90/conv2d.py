"""conv2d on sm_90a: a product whose activations are boxes of pixels, one filter position and 64 channels at a
time.

y[pixel, n] = Σ over (r, s, c) of x[pixel shifted by (r, s), c] · w[n, r, s, c]. TMA shifts the box and fills
in zeros for the padding; with a stride it takes every second pixel. A box lies in shared memory as rows of 64
channels, a pixel each: what wgmma reads as 64 or 128 rows of activations.

Where it fits, a tile slides over a filter line, or over the whole filter (tilegen.graph.conv_box). Its
products then have rows that belong to no pixel, at the end of each line. (The swizzle is a matter of
addresses, so an operand may begin at any row.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilegen.analysis.regions import to_c
from tilegen.codegen.cuda_op import refuse
from tilegen.graph.conv_box import MOST_ROWS, MOST_STRIDE, SLIDING_DEPTH, ConvBox
from tilegen.graph.product_time import ROW_BYTES
from tilegen.ops.base import OpInstance
from tilegen.ops.conv2d import ConvAttributes
from tilegen.ops.patches import BLOCK
from tilegen.targets.sm90.code import Code
from tilegen.targets.sm90.extras import Extras
from tilegen.targets.sm90.product import Product, types_problem, waits_for_activations, waits_for_weights
from tilegen.targets.sm90.stage import BoxMap, Copy, Load, Loads
from tilegen.targets.sm90.store import PixelStore
from tilegen.targets.sm90.tile import BOX, Stage, Tile


def convolution(code: Code) -> Product:
    """A conv2d of a plan. PlanError where its tile does not fit the machine's instructions."""
    b = code.bound
    refuse(b, "sm_90a", types_problem(b) or _box_problem(b))
    box = ConvBox.of(b, b.tile)
    tile = Tile(
        box.rows,
        b.tile[3],
        b.tile[4],
        int(b.steps),
        1,
        b.op.cluster_shape,
        step=SLIDING_DEPTH if box.slides_down else BLOCK,
        row_bytes=box.row_bytes,
    )
    store = PixelStore(code, tile, box.spanned, box.line, box.slides)
    extras = Extras(code, tile, store.staged, weights_once=False)
    refuse(b, "sm_90a", tile.problem)
    load = _Load(code, tile, _stage(box, tile), box)
    return Product(
        code.plan,
        b,
        members=code.members,
        tile=tile,
        stage=load.stage,
        a=load.a,
        b=load.b,
        maps=(*load.maps, *store.maps),
        store=store,
        extras=extras,
    )


def _box_problem(b: OpInstance) -> str:
    """Why TMA does not take its pixels, or an empty string."""
    a = ConvAttributes.of(b)
    pixels = math.prod(b.tile[:3])
    if pixels > MOST_ROWS:
        return f"a tile has {pixels} pixels, expected at most {MOST_ROWS}"
    if max(a.stride) > MOST_STRIDE:
        return f"stride {a.stride}: a tensor map takes strides up to {MOST_STRIDE}"
    if any((t - 1) * s >= BOX for t, s in zip(b.tile[1:3], a.stride, strict=True)):
        return f"a tile spans more than {BOX} lines or pixels of its input"
    return ConvBox.of(b, b.tile).sliding_problem


def _stage(box: ConvBox, tile: Tile) -> Stage:
    """Products with a block of channels: those of a filter line where the tile slides, from row after row, or
    of all its lines, else of the channels of a step."""
    down, across = ConvAttributes.of(box.bound).dilation
    return Stage(
        box.blocks,
        box.loaded,
        (across if box.slides else box.loaded_whole) * box.row_bytes,
        box.loaded * box.row_bytes * box.blocks_loaded,
        box.loaded_whole * box.row_bytes * box.blocks_loaded,
        tile.cta_columns,
        box.row_bytes,
        box.filter[0] if box.slides_down else 1,
        down * box.line * box.row_bytes,
    )


@dataclass(frozen=True)
class _Load:
    """The load role: boxes of pixels, and of filters."""

    code: Code
    tile: Tile
    stage: Stage
    box: ConvBox

    @property
    def a(self) -> Loads:
        load = Load(tuple(self._a_copies()), self.stage.a_bytes, waits_for_activations(self.code))
        return Loads((load,), positions=self.box.positions)

    @property
    def b(self) -> Loads:
        load = Load(tuple(self._b_copies()), self.stage.b_bytes, waits_for_weights(self.code))
        return Loads((load,), positions=self.box.positions, at=self.stage.b_at)

    def _channel(self, block: int) -> str:
        first = f"{self.tile.depth} * k" if self.tile.steps > 1 else "0"
        return first if not block else str(64 * block) if first == "0" else f"{first} + {64 * block}"

    def _a_copies(self) -> list[Copy]:
        a = ConvAttributes.of(self.code.bound)
        b, width, positions = self.code.bound, self.box.filter[1], self.box.positions
        image, *first = (to_c(i.lo) for i in b.write[:3])
        shifts = (f"position / {width}", f"position % {width}")
        if positions == 1 or self.box.slides:
            shifts = ("position" if positions > 1 else "0", "0")
        line, pixel = (
            _shifted(*one) for one in zip(first, shifts, a.stride, a.dilation, a.padding, strict=True)
        )
        address = self.code.map_address(f"{self.code.name}_a")
        return [
            Copy(address, (self._channel(block), pixel, line, image), block * self.stage.a_block)
            for block in range(self.box.blocks_loaded)
        ]

    def _b_copies(self) -> list[Copy]:
        column = to_c(self.code.bound.write[3].lo) + (
            f" + cta_rank * {self.tile.cta_columns}" if self.tile.cluster.n > 1 else ""
        )
        out, address = [], self.code.map_address(f"{self.code.name}_b")
        if self.box.slides_down:
            return [Copy(address, (self._channel(0), column, "0"))]
        position = "position" if self.box.positions > 1 else "0"
        of_line = "0" if position == "0" else f"position * {self.box.filter[1]}"
        for block in range(self.stage.blocks):
            channel = self._channel(0 if self.box.slides else block)
            in_line = f"{of_line} + {block}" if block and of_line != "0" else str(block) if block else of_line
            for piece in self.tile.b_pieces:
                row = f"{column} + {piece.first}" if piece.first else column
                to = block * self.stage.b_block + piece.at * ROW_BYTES
                out.append(Copy(address, (channel, in_line if self.box.slides else position, row), to))
        return out

    @property
    def maps(self) -> list[BoxMap]:
        b, (sh, sw) = self.code.bound, ConvAttributes.of(self.code.bound).stride
        images, lines, pixels, c = b.shape(0)
        pitch, span = int(b.pitch(0)), self.box.row_bytes
        sizes, pitches = (c, pixels, lines, images), (pitch, pixels * pitch, lines * pixels * pitch)
        box, every = (span // 2, self.box.line, self.box.lines_loaded, self.box.pixels[0]), (1, sw, sh, 1)
        x = b.op.operands[0].tensor
        of_x = BoxMap(f"{self.code.name}_a", x, sizes, pitches, box, every, int(b.first(0)), span=span)
        return [of_x, self._map_of_filters]

    @property
    def _map_of_filters(self) -> BoxMap:
        """Where the tile slides over the whole filter, position by position: one copy brings all of them."""
        n, r, s, c = (int(x) for x in self.code.bound.shape(1))
        rows, span = self.tile.b_pieces[0].rows, self.box.row_bytes
        sizes, pitches, box = (c, r * s, n), (c, r * s * c), (span // 2, 1, rows)
        if self.box.slides_down:
            sizes, pitches, box = (c, n, r * s), (r * s * c, c), (span // 2, rows, r * s)
        w = self.code.bound.op.operands[1].tensor
        return BoxMap(f"{self.code.name}_b", w, sizes, pitches, box, (1, 1, 1), span=span)


def _shifted(first: str, shift: str, stride: int, dilation: int, padding: int) -> str:
    """The first line (or pixel) of the input under a tile's first, for a filter position."""
    terms = [
        first if stride == 1 or first == "0" else f"({first}) * {stride}",
        shift if dilation == 1 or shift == "0" else f"{shift} * {dilation}",
    ]
    text = " + ".join(term for term in terms if term != "0") or "0"
    return text if not padding else f"{text} - {padding}" if text != "0" else f"-{padding}"
