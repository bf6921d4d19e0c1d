"""conv2d on sm_90a: a product whose activations are boxes of pixels, one filter position and 64 channels at a time.

y[pixel, n] = Σ over (r, s, c) of x[pixel shifted by (r, s), c] · w[n, r, s, c]. TMA shifts the box and fills in zeros for the padding; with a stride
it takes every second pixel. A box lies in shared memory as rows of 64 channels, a pixel each: what wgmma reads as 64 or 128 rows of activations.

Where it fits, a tile slides: its lines are loaded once for a filter line, with the pixels beside them, and position s reads from row s on. Its products then
have rows that belong to no pixel, at the end of each line. (The swizzle is a matter of addresses, so an operand may begin at any row.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilegen.analysis.memory_order import stores_pixels
from tilegen.analysis.regions import to_c
from tilegen.ops.conv2d import beside, slides
from tilegen.targets.sm90.op import HopperOp
from tilegen.targets.sm90.stage import BoxMap
from tilegen.targets.sm90.tile import BOX, ROW_BYTES

MOST_STRIDE = 8  # of a tensor map


@dataclass(frozen=True)
class HopperConv(HopperOp):
    """A conv2d of a plan. PlanError where its tile does not fit the machine's instructions."""

    groups = 1

    def _problem(self) -> str:
        b = self.bound
        if b.op.kind != "conv2d":
            return f"expected a conv2d, given {b.op.kind}"
        problem = self._types_problem()
        if problem:
            return problem
        if self.columns % 8:
            return f"{b.op.result!r} has {self.columns} channels: pixels must be whole 16-byte units; pad to {math.ceil(self.columns / 8) * 8}"
        if self.pixels > 128:
            return f"a tile has {self.pixels} pixels, expected at most 128"
        if max(self.bound.stride) > MOST_STRIDE:
            return f"stride {self.bound.stride}: a tensor map takes strides up to {MOST_STRIDE}"
        if any((t - 1) * s >= BOX for t, s in zip(b.tile[1:3], b.stride, strict=True)):
            return f"a tile spans more than {BOX} lines or pixels of its input"
        return self._tile_problem() or self.epilogue.problem

    # --- numbers ------------------------------------------------------------------------------------------------------------

    @property
    def channels(self) -> int:
        return int(self.bound.shape(0)[3])

    @property
    def pixels(self) -> int:
        return math.prod(self.bound.tile[:3])

    @property
    def tile(self) -> tuple[int, int, int]:
        """Pixels, rounded up to what wgmma takes; channels of the result; channels of a step."""
        return (64 if self.a_rows <= 64 else 128), self.bound.tile[3], self.bound.tile[4]

    @property
    def slides(self) -> bool:
        return slides(self.bound)

    @property
    def blocks(self) -> int:
        """Products with 64 channels in a stage."""
        return self.filter[1] if self.slides else self.tile[2] // 64

    @property
    def filter(self) -> tuple[int, int]:
        _, r, s, _ = self.bound.shape(1)
        return int(r), int(s)

    @property
    def line(self) -> int:
        """Pixels of a line in shared memory."""
        return beside((1, 1, self.bound.tile[2]), self.filter[1], self.bound.dilation[1]) if self.slides else self.bound.tile[2]

    @property
    def rows(self) -> int:
        return math.prod(int(n) for n in self.bound.out[:3])

    @property
    def a_rows(self) -> int:
        """Rows of shared memory that are loaded for a block."""
        return self.bound.tile[0] * self.bound.tile[1] * self.line

    @property
    def _loaded_rows(self) -> int:
        """The same in whole eights: the swizzle repeats after 8 rows."""
        return math.ceil(self.a_rows / 8) * 8

    @property
    def a_block(self) -> int:
        """From the activations of one product of a stage to those of the next."""
        return self.bound.dilation[1] * ROW_BYTES if self.slides else self._loaded_rows * ROW_BYTES

    @property
    def a_loaded(self) -> int:
        """Blocks of activations in a stage."""
        return 1 if self.slides else self.blocks

    @property
    def a_bytes(self) -> int:
        return self.a_rows * ROW_BYTES * self.a_loaded

    @property
    def b_at(self) -> int:
        return self._loaded_rows * ROW_BYTES * self.a_loaded

    @property
    def multicast(self) -> str:
        return ""

    @property
    def packed(self) -> bool:
        return False

    @property
    def weights_once(self) -> bool:
        return False

    @property
    def positions(self) -> int:
        """Of the filter: each is a stage; or each line of it."""
        return self.filter[0] if self.slides else math.prod(self.filter)

    # --- loads --------------------------------------------------------------------------------------------------------------

    def _channel(self, block: int) -> str:
        first = f"{self.tile[2]} * k" if self.steps_of_tile > 1 else "0"
        return first if not block else str(64 * block) if first == "0" else f"{first} + {64 * block}"

    @property
    def a_loads(self) -> list[str]:
        width = self.filter[1]
        image, line, pixel = (to_c(i.lo) for i in self.bound.write[:3])
        shifts = (f"position / {width}", f"position % {width}")
        if self.positions == 1 or self.slides:
            shifts = ("position" if self.positions > 1 else "0", "0")
        at = [image]
        for first, shift, stride, dilation, padding in zip(
            (line, pixel), shifts, self.bound.stride, self.bound.dilation, self.bound.padding, strict=True
        ):
            terms = [first if stride == 1 or first == "0" else f"({first}) * {stride}", shift if dilation == 1 or shift == "0" else f"{shift} * {dilation}"]
            text = " + ".join(term for term in terms if term != "0") or "0"
            at.append(text if not padding else f"{text} - {padding}" if text != "0" else f"-{padding}")
        image, line, pixel = at
        tensor_map = self.map_address(f"{self.name}_a")
        return [
            f"tg_load4(to{f' + {block * self.a_block}' if block else ''}, {tensor_map}, {self._channel(block)}, {pixel}, {line}, {image}, bar);"
            for block in range(self.a_loaded)
        ]

    @property
    def b_loads(self) -> list[str]:
        column = to_c(self.bound.write[3].lo) + (f" + part * {self.columns_of_part}" if self.shares("columns") else "")
        position = "position" if self.positions > 1 else "0"
        out, tensor_map = [], self.map_address(f"{self.name}_b")
        for block in range(self.blocks):
            channel = self._channel(0 if self.slides else block)
            of_line = "0" if position == "0" else f"position * {self.filter[1]}"
            where = f"{of_line} + {block}" if block and of_line != "0" else str(block) if block else of_line
            for _, first, at, _ in self.b_pieces:
                to = block * self.b_block + at * ROW_BYTES
                row = f"{column} + {first}" if first else column
                out.append(f"tg_load3(to{f' + {to}' if to else ''}, {tensor_map}, {channel}, {where if self.slides else position}, {row}, bar);")
        return out

    @property
    def maps(self) -> list[BoxMap]:  # type: ignore[override]
        b = self.bound
        (tb, th, tw), (sh, sw) = b.tile[:3], b.stride
        images, lines, pixels, c = (int(n) for n in b.shape(0))
        n, r, s, _ = (int(x) for x in b.shape(1))
        sizes, pitches = (c, pixels, lines, images), (c, pixels * c, lines * pixels * c)
        found = [
            BoxMap(f"{self.name}_a", b.op.operands[0].tensor, sizes, pitches, (64, self.line, th, tb), (1, sw, sh, 1)),
            BoxMap(f"{self.name}_b", b.op.operands[1].tensor, (c, r * s, n), (c, r * s * c), (64, 1, self._piece_rows), (1, 1, 1)),
        ]
        if self.staged:
            images, lines, pixels, c = (int(n) for n in b.out)
            sizes, pitches = (c, pixels, lines, images), (c, pixels * c, lines * pixels * c)
            found.append(BoxMap(self.store_map, b.op.result, sizes, pitches, (64, tw, 1, 1) if self.slides else (64, tw, th, tb), (1, 1, 1, 1)))
        return found

    # --- letting results out ------------------------------------------------------------------------------------------------

    @property
    def staged(self) -> bool:
        return stores_pixels("cuda", self.bound.result.dtype, self.a_rows, 8 * self.finished_octets) == "async"

    @property
    def corner(self) -> str:
        image, line, pixel = (to_c(i.lo) for i in self.bound.write[:3])
        return f"{self.row_of_warpgroup.removeprefix(' + ') or '0'}, {self.column}{self.column_of_warpgroup}, {image}, {line}, {pixel}"

    @property
    def corner_text(self) -> tuple[str, ...]:  # type: ignore[override]
        _, th, tw = self.bound.tile[:3]
        images, lines, pixels, _ = self.bound.out
        return (
            "struct corner {",
            "  int row, column, image, line, pixel;",
            "};",
            "// A row of the tile as a row of the result, a pixel of all images; -1 where the tile hangs over.",
            "TG_FN static int row(const corner& at, int local) {",
            f"  const int n = at.row + local, image = at.image + n / {th * self.line};",
            f"  const int line = at.line + n / {self.line} % {th}, pixel = at.pixel + n % {self.line};",
            f"  const bool there = n < {self.a_rows} && image < {images} && line < {lines} && pixel < {pixels}"
            + (f" && n % {self.line} < {tw};" if self.line > tw else ";"),
            f"  return there ? (image * {lines} + line) * {pixels} + pixel : -1;",
            "}",
            "TG_FN static bool inside(int row) { return row >= 0; }",
        )

    @property
    def ship(self) -> str:
        image, line, pixel = (to_c(i.lo) for i in self.bound.write[:3])
        at = f"{{ {self.column}, {pixel}, {line}, {image} }}"
        tb, th, _ = self.bound.tile[:3]
        boxes = f"{tb * th}, {self.line}, {th}" if self.slides else "1, 0, 1"
        return f"tg_ship_pixels<{self.finished_octets}, {boxes}>({self.map_address(self.store_map)}, {at}, smem, out, limit_ns);"
