"""What a convolution takes on Hopper's tensor cores, in µs: a linear whose activations are boxes of pixels.

    step     = ‖products, bytes from L2, least step‖ · what a pair waits
    products = blocks of 64 channels of a step · those of a linear's tile
    bytes    = 128 · (of_pixels · rows loaded + columns of filters), each for every block loaded
    memory   = (what the filter sees of x, all of w and y) / bandwidth
               · (1 + narrow · share of the SMs that are idle, of all waves)

of_pixels says how much longer a row of pixels takes to come than one of filters: in lines that slide, in
boxes, in boxes with a stride. What follows of steps is told in tilegen.graph.product_time. The constants were
fitted to 956 convolutions on an H200 (benchmarks.calibrate measure --convs), none of one pixel and stride 1,
which are linears.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilegen.arch.machine import Machine
from tilegen.frontend.program import DTYPES
from tilegen.graph.conv_box import ConvBox
from tilegen.graph.product_time import ROW_BYTES, ProductTime, Rates, products_clocks, rings_us
from tilegen.graph.residual import ConvTraits, Residual
from tilegen.ops.base import OpInstance, ceil_div
from tilegen.ops.cluster import ClusterShape
from tilegen.ops.conv2d import ConvAttributes
from tilegen.ops.gemm import curves, read_beside

NARROW = 16  # columns of a tile of 64 rows that takes longer than is known why


@dataclass(frozen=True)
class ConvRates(Rates):
    """Of an H200 and its kernel, in the units of Rates, whose constants have other values here."""

    clock: float = 1763.0
    l2: float = 83.16
    least_step: float = 0.1131
    least_step_of_pairs: float = 0.1376
    trip: float = 0.8
    shared_k: float = 1.054
    left: float = 14.11
    left_of_both: float = 14.89
    epilogue: float = 8.23e-05
    sent: float = 1.275e-05
    launch: float = 1.296
    launch_of_clusters: float = 0.4584
    start: float = 0.6881
    narrow: float = 1.272
    sharp: float = 3.256
    # a row of pixels, as of filters: of a line that slides, of a box, of a box with a stride
    of_lines: float = 1.874
    of_boxes: float = 1.535
    of_strides: float = 1.522
    half: float = 1.739  # besides, where the last of the blocks of 64 channels is not whole
    strided_trip: float = 0.7308  # from the request of a stage's bytes until they are there
    strided_memory: float = 1.127  # by how much longer pixels take from memory
    by_threads: float = 1.203e-04  # a number of the result that leaves by threads, not by TMA
    tile: float = 0.1329  # from one tile to the next
    narrow_tile: float = 0.2653  # a launch of NARROW tiles of which each SM has one

    def of_pixels(self, box: ConvBox) -> float:
        """Of a byte's time in L2, that of one of pixels."""
        strided = box.window.stride > 1
        partial = box.window.channels % 64 and not box.slides_down
        way = self.of_lines if box.slides else self.of_strides if strided else self.of_boxes
        return way * (self.half if partial else 1.0)


RATES = ConvRates()


def conv_time(b: OpInstance, machine: Machine, rates: ConvRates | None = None) -> ProductTime:
    """A convolution as it is cut."""
    return time_of_box(b, machine, ConvBox.of(b, b.tile), b.tile[3], b.op.cluster, rates)


def time_of_box(
    b: OpInstance, machine: Machine, box: ConvBox, width: int, cluster: int, rates: ConvRates | None = None
) -> ProductTime:
    """A convolution whose tiles are such a box of pixels and so many columns. cluster: CTAs that split its
    sum; rates: of the formula alone, where they are given."""
    learned, rates = rates is None, rates or RATES
    a = ConvAttributes.of(b)
    count = math.prod(ceil_div(int(n), t) for n, t in zip(b.out, (*box.pixels, width), strict=True))
    waves = ceil_div(count, machine.clusters(cluster))
    filled = min(1.0, count * cluster / waves / machine.sms)
    part = box.row_bytes / ROW_BYTES  # of a row of shared memory
    bytes = box.row_bytes * (rates.of_pixels(box) * box.loaded * box.blocks_loaded + width * box.blocks)
    step = rates.side_by_side(
        part * box.blocks * products_clocks(box.rows, width, 1, False, 0, rates) / rates.clock,
        bytes / (rates.l2 * rates.clock) * filled,
        rates.least_step_of_pairs if cluster > 1 else rates.least_step,
    )
    staged = box.rows > 64 and width // cluster % 64 == 0
    numbers = box.rows * width
    each = (rates.epilogue if staged else rates.by_threads) + (rates.sent if cluster > 1 else 0.0)
    each += curves(b) * rates.curve
    each += read_beside(b) / cluster * (rates.beside_by_tma if staged else rates.beside)
    alone = rates.narrow_tile if box.rows == 64 and width == NARROW and waves == 1 else 0.0
    moved, steps, tiles = _moved(b, rates), box.steps / cluster, count * cluster / machine.sms
    stage = box.stage_bytes(width) // ROW_BYTES
    pixels, columns, channels = math.prod(box.pixels), int(b.out[3]), int(b.shape(0)[3])
    parts = ceil_div(columns, width)
    traits = ConvTraits(
        pixels=pixels,
        loaded=box.loaded,
        width=width,
        blocks=box.blocks,
        slides=box.slides,
        cluster=cluster,
        tiles=tiles,
        filled=filled,
        steps=steps,
        pixels_there=math.prod(int(n) for n in b.out[:3]) / (pixels * count / parts),
        columns_there=columns / (parts * width),
        stride=a.stride[1],
        channels_there=channels / (ceil_div(channels, 64) * 64),
        down=count // parts,
        across=parts,
        stage=stage,
        rows=box.rows,
        columns=columns,
    )
    return ProductTime(
        step * rates.waiting(ClusterShape(k=cluster)),
        steps,
        numbers * each + rates.tile + alone,
        waves,
        rates.from_memory(moved, machine, filled),
        rings_us(machine),
        min(1.0, tiles),
        filled,
        stage,
        rates.strided_trip if a.stride[1] > 1 else rates.trip,
        clusters=cluster > 1,
        rates=rates,
        residual=Residual(machine, traits, steps * waves, moved) if learned and not box.slides_down else None,
    )


def _moved(b: OpInstance, rates: ConvRates) -> float:
    """Bytes from and to memory: of x those that the filter sees."""
    a, (_, *window, _) = ConvAttributes.of(b), b.shape(1)
    seen = math.prod(min(1.0, int(n) / s) for n, s in zip(window, a.stride, strict=True))
    strided = rates.strided_memory if a.stride[1] > 1 else 1.0
    x, w, y = (math.prod(int(n) for n in shape) for shape in (b.shape(0), b.shape(1), b.out))
    return DTYPES[b.dtype(0)] * (x * seen * strided + w + y)
